"""The laws of engine.md's stop strings: plain predicates, tried by Hypothesis, with the known cases pinned."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gen_engine import (
    GenerationOptions,
    ModelLoadConfig,
    OptionError,
    RowWatch,
    StopOptions,
    find_ending,
    make_plan,
    read_checkpoint,
    truncate_at_stops,
)

from .conftest import TEXT

PINNED = [("abc", ["abc", "b"], "a"), ("abXYZ", ["XYZ", "Y"], "abX"), ("xab", ["b", "ab"], "x")]
texts = st.text(alphabet="ab\nXé", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab\nXé", min_size=1, max_size=4), min_size=1, max_size=5)


def cut_by_scanning(text: str, stops: list[str]) -> str:
    """The law, literally: read characters left to right until some stop is complete; the longest such stop goes."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@pytest.mark.parametrize(("text", "stops", "cut"), PINNED)
def test_pinned_cases(text: str, stops: list[str], cut: str) -> None:
    assert truncate_at_stops(text, stops) == cut


@given(texts, stop_lists)
@example("abc", ["abc", "b"])
@example("abXYZ", ["XYZ", "Y"])
@example("xab", ["b", "ab"])
def test_the_stop_that_completes_first_cuts(text: str, stops: list[str]) -> None:
    assert truncate_at_stops(text, stops) == cut_by_scanning(text, stops)


@given(texts, stop_lists)
def test_the_cut_is_a_prefix_and_cutting_twice_is_cutting_once(text: str, stops: list[str]) -> None:
    cut = truncate_at_stops(text, stops)
    assert text.startswith(cut)
    assert truncate_at_stops(cut, stops) == cut


@given(texts, stop_lists)
def test_no_stop_survives(text: str, stops: list[str]) -> None:
    cut = truncate_at_stops(text, stops)
    assert not any(stop in cut for stop in stops)


@given(texts, stop_lists, st.randoms())
def test_the_order_of_the_list_does_not_matter(text: str, stops: list[str], random: Any) -> None:
    shuffled = random.sample(stops, len(stops))
    assert truncate_at_stops(text, shuffled) == truncate_at_stops(text, stops)


@given(texts, stop_lists, texts)
def test_what_comes_after_the_stop_does_not_matter(text: str, stops: list[str], more: str) -> None:
    stopped = text + stops[0]
    assert truncate_at_stops(stopped + more, stops) == truncate_at_stops(stopped, stops)


@given(texts, stop_lists)
def test_include_stop_keeps_the_stop_and_nothing_after_it(text: str, stops: list[str]) -> None:
    kept = truncate_at_stops(text, stops, include_stop=True)
    assert text.startswith(kept)
    assert kept == text or any(kept == truncate_at_stops(text, stops) + stop for stop in stops)


def test_one_string_is_one_stop() -> None:
    assert truncate_at_stops("a and b", "and") == "a "


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(OptionError, match="non-empty"):
        truncate_at_stops("text", [""])


def test_the_cutter_is_linear() -> None:
    stops = [f"never{i}" for i in range(64)]

    def seconds(size: int) -> float:
        text = "lorem ipsum " * (size // 12)
        began = time.perf_counter()
        truncate_at_stops(text, stops)
        return time.perf_counter() - began

    assert min(seconds(2_000_000) for _ in range(3)) < 8 * min(seconds(500_000) for _ in range(3)) + 1e-3


# -- the same laws on token ids, with the real tokenizer ---------------------------------------------------------------


@functools.cache
def checkpoint() -> Any:
    return read_checkpoint(ModelLoadConfig(str(TEXT)))


def plan_of(stops: list[str], **options: Any) -> Any:
    return make_plan(
        GenerationOptions(max_new_tokens=64, stop=StopOptions(strings=tuple(stops)), **options), checkpoint()
    )


words = st.lists(
    st.sampled_from(["The", " capital", " is", "\n", "é", "😀", "Verdict: ", "no", "{", '"a"', " "]), max_size=12
)
pieces = st.lists(
    st.sampled_from(["is", "ca", "t: n", "\n", "é", "😀", "al is", "o", '"', "Verdict"]), min_size=1, max_size=3
)


def ids_of(parts: list[str]) -> list[int]:
    """Each part tokenized by itself: other parts, other tokens, same text."""
    encode = checkpoint().tokenizer.encode
    return list(itertools.chain.from_iterable(encode(part, add_special_tokens=False) for part in parts))


@settings(deadline=None)
@given(words, pieces, st.data())
def test_how_the_text_was_split_into_tokens_does_not_matter(parts: list[str], stops: list[str], data: Any) -> None:
    whole = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    other = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    plan = plan_of(stops)
    expected = truncate_at_stops(whole, stops)
    for ids in (ids_of(parts), ids_of(other)):
        ending = find_ending(ids, plan)
        text = plan.decode(ids[: ending.count] if ending else ids)
        assert truncate_at_stops(text, stops) == expected
        assert (ending is not None and ending.reason == "stop") == (expected != whole)


@settings(deadline=None)
@given(words, pieces)
def test_the_ending_is_the_first_token_that_completes_a_stop(parts: list[str], stops: list[str]) -> None:
    ids, plan = ids_of(parts), plan_of(stops)
    first = next((k for k in range(1, len(ids) + 1) if any(s in plan.decode(ids[:k]) for s in stops)), None)
    ending = find_ending(ids, plan)
    assert (ending and ending.count) == first


@settings(deadline=None)
@given(words, pieces)
def test_a_watched_row_ends_exactly_there(parts: list[str], stops: list[str]) -> None:
    ids, plan = ids_of(parts), plan_of(stops)
    watch, ending = RowWatch(plan), find_ending(ids, plan)
    over = next((k for k, token in enumerate(ids, start=1) if watch.push(token)), None)
    assert over == (ending and ending.count)


def test_a_stop_across_skipped_special_tokens_is_seen() -> None:
    tokenizer, plan = checkpoint().tokenizer, plan_of(["is no"])
    special = tokenizer.convert_tokens_to_ids("<|vision_start|>")
    ids = [*tokenizer.encode("this is"), *[special] * 12, *tokenizer.encode(" no")]
    watch = RowWatch(plan)
    over = next((k for k, token in enumerate(ids, start=1) if watch.push(token)), None)
    ending = find_ending(ids, plan)
    assert ending is not None and ending.reason == "stop" and over == ending.count


def test_a_stop_that_holds_a_special_token_among_text_is_refused_rather_than_never_found() -> None:
    with pytest.raises(OptionError, match="skip_special_tokens=False"):
        plan_of(["<|im_end|>\n"])
    assert plan_of(["<|im_end|>\n"], decode={"skip_special_tokens": False})


def test_a_stop_that_is_one_special_token_stops_by_id() -> None:
    plan = plan_of(["<|vision_end|>"])
    assert plan.stop_ids == {checkpoint().tokenizer.convert_tokens_to_ids("<|vision_end|>"): "<|vision_end|>"}
