"""Stop strings: the cutter keeps the laws of parity.cli.laws, and so does the engine on token ids."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen_engine import (
    GenerationEngine,
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
from parity.cli.laws import LAWS, Law, Sample, samples, try_law

from ..conftest import PROMPT, TEXT, chat

PINNED = [("abc", ["abc", "b"], "a"), ("abXYZ", ["XYZ", "Y"], "abX"), ("xab", ["b", "ab"], "x")]


@pytest.mark.parametrize(("text", "stops", "cut"), PINNED)
def test_pinned_cases(text: str, stops: list[str], cut: str) -> None:
    assert truncate_at_stops(text, stops) == cut


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_cutter_keeps_the_laws(law: Law) -> None:
    trial = try_law(law, truncate_at_stops, examples=100, seed=random.randrange(1 << 32))
    assert trial.broken is None, str(trial)


@given(samples())
def test_include_stop_keeps_the_stop_and_nothing_after_it(sample: Sample) -> None:
    text, stops = sample.text, sample.stops
    kept = truncate_at_stops(text, stops, include_stop=True)
    assert text.startswith(kept)
    assert kept == text or any(kept == truncate_at_stops(text, stops) + stop for stop in stops)


def test_one_string_is_one_stop() -> None:
    assert truncate_at_stops("a and b", "and") == "a "


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(OptionError, match="non-empty"):
        truncate_at_stops("text", [""])


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


EOS = "<|im_end|>"
ENDINGS: list[tuple[str, dict[str, list[str]], list[str], Any]] = [
    # tokens of one character; a stop id is named by its token
    ("an EOS id before a stop string", {"strings": [f"b{EOS}"]}, ["a", "b", EOS], (3, "eos", None)),
    ("an EOS id before a stop id", {"token_ids": [EOS]}, ["a", EOS], (2, "eos", None)),
    ("a stop id before a stop string", {"strings": ["ab"], "token_ids": ["b"]}, ["a", "b"], (2, "stop", "id of b")),
    ("an id that is a stop string", {"strings": ["b"]}, ["a", "b"], (2, "stop", "b")),
    ("a stop string before the length", {"strings": ["bc"]}, ["a", "b", "c"], (3, "stop", "bc")),
    ("a stop string before an id", {"strings": ["ab"], "token_ids": ["c"]}, ["a", "b", "c"], (2, "stop", "ab")),
    ("the length", {"strings": ["x"]}, ["a", "b", "c", "x"], (3, "length", None)),
    ("nothing", {"strings": ["x"]}, ["a", "b"], None),
]


@pytest.mark.parametrize(("stop", "tokens", "expected"), [row[1:] for row in ENDINGS], ids=[row[0] for row in ENDINGS])
def test_find_ending_prefers_eos_then_a_stop_id_then_a_string_then_length(
    stop: dict[str, list[str]], tokens: list[str], expected: Any
) -> None:
    numbers = {token: checkpoint().tokenizer.convert_tokens_to_ids(token) for token in ["a", "b", "c", "x", EOS]}
    names = {number: f"id of {token}" for token, number in numbers.items()}
    stops = {**stop, "token_ids": [numbers[token] for token in stop.get("token_ids", ())]}
    options: dict[str, Any] = {"max_new_tokens": 3, "stop": stops, "decode": {"skip_special_tokens": False}}
    found = find_ending([numbers[token] for token in tokens], make_plan(GenerationOptions(**options), checkpoint()))
    if found is not None:
        assert (found.count, found.reason, names.get(found.stop_reason, found.stop_reason)) == expected
    else:
        assert expected is None


def test_a_stop_whose_character_is_cut_at_the_minimum_completes_behind_it() -> None:
    ids = ids_of(["t", "\U0001f600", " tail"])
    plan = plan_of(["\U0001f600"], min_new_tokens=2)
    assert "\ufffd" in plan.decode(ids[:2]) and "\U0001f600" not in plan.decode(ids[:2])
    ending = find_ending(ids, plan)
    assert ending is not None and ending.stop_reason == "\U0001f600"


@settings(deadline=None)
@given(words, pieces)
def test_a_watched_row_ends_exactly_there(parts: list[str], stops: list[str]) -> None:
    ids, plan = ids_of(parts), plan_of(stops)
    watch, ending = RowWatch(plan, PROMPT), find_ending(ids, plan)
    over = next((k for k, token in enumerate(ids, start=1) if watch.push(token)), None)
    assert over == (ending and ending.count)


def test_a_stop_across_skipped_special_tokens_is_seen() -> None:
    tokenizer, plan = checkpoint().tokenizer, plan_of(["is no"])
    special = tokenizer.convert_tokens_to_ids("<|vision_start|>")
    ids = [*tokenizer.encode("this is"), *[special] * 12, *tokenizer.encode(" no")]
    watch = RowWatch(plan, PROMPT)
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


@pytest.mark.parametrize("stop", ["3", ","])
def test_min_new_tokens_holds_back_no_stop_string(text: GenerationEngine, stop: str) -> None:
    """One that is a token, too: below the minimum it is sampled as if there were no stop."""
    least = {"min_new_tokens": 12, "max_new_tokens": 12}
    [free] = text.generate_text_batch([chat("Count to 5.")], least)
    [stopped] = text.generate_text_batch([chat("Count to 5.")], {**least, "stop": [stop]})
    assert stop in free.text and stopped.token_ids == free.token_ids


def test_a_stop_string_behind_the_minimum_ends_the_row(text: GenerationEngine) -> None:
    options = {"min_new_tokens": 4, "max_new_tokens": 24}
    [free] = text.generate_text_batch([chat("Count to 25.")], options)
    [stopped] = text.generate_text_batch([chat("Count to 25.")], {**options, "stop": [","]})
    since = len(text.tokenizer.decode(free.token_ids[:4]))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", ",")
    assert stopped.text == free.text[: free.text.index(",", since)]


LLAMA = TEXT.parent / "random-llama"  # special tokens of its tokenizer stand in no list of special tokens


def test_a_special_token_that_no_list_names_is_one_for_stops() -> None:
    """skip_special_tokens leaves it out of every text, so no string finds it: its id ends the row."""
    checkpoint = read_checkpoint(ModelLoadConfig(model=str(LLAMA)))
    token = "<|im_start|>"
    number = checkpoint.tokenizer.convert_tokens_to_ids(token)
    assert token not in checkpoint.tokenizer.all_special_tokens
    plan = make_plan(GenerationOptions(stop=StopOptions(strings=(token,)), min_new_tokens=2), checkpoint)
    ending = find_ending([5, 6, 7, number, 8], plan)
    assert ending is not None and (ending.count, ending.stop_reason) == (4, token)
    with pytest.raises(OptionError, match="contains a special token"):
        make_plan(GenerationOptions(stop=StopOptions(strings=(f"x{token}",))), checkpoint)


def test_special_tokens_between_the_parts_of_a_stop_do_not_hide_it() -> None:
    checkpoint = read_checkpoint(ModelLoadConfig(model=str(LLAMA)))
    encode = functools.partial(checkpoint.tokenizer.encode, add_special_tokens=False)
    hidden = checkpoint.tokenizer.convert_tokens_to_ids("<|im_start|>")
    plan = make_plan(GenerationOptions(stop=StopOptions(strings=("ab",)), max_new_tokens=40), checkpoint)
    watch = RowWatch(plan, PROMPT)
    for token in [*encode("a"), *[hidden] * 9, *encode("b")]:
        is_over = watch.push(token)
    assert is_over
