"""Models that think first: thought and answer, stops and budgets, structured output behind the thought."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, RequestError, UnsupportedError
from parity.companions.reasoning import FORMATS, Reasoned, Thinking, format_of, split, split_text

from ..conftest import TEXT, Load

QUESTIONS = ("What is the capital of France?", "Count to 12.", "Is 28 even?")
REQUESTS = [
    {"messages": [{"role": "user", "content": question}], "chat": {"enable_thinking": True}} for question in QUESTIONS
]
OPTIONS = {"max_new_tokens": 96}
MARKS = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "harmony": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "granite": ("Here's my thought process:", "Here is my response:"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    "k2_horizon": ("<ifm|think_fast>", "</ifm|think_fast>"),
    "step3p5": ("<think>", "\n</think>\n"),
    "granite_thinking": ("<think>", "</think>\n\n"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "plamo": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "gemma": ("<|channel>thought\n", "<channel|>"),
    "hunyuan": ("<think>\n", "\n</think>\n<answer>\n"),
}
PARTS = {
    "both": ("{begin}a\nb{end}c\nd", ("a\nb", "c\nd")),
    "begun by the prompt": ("a{end}c", ("a", "c")),
    "nothing behind": ("{begin}a{end}", ("a", None)),
    "not ended": ("{begin}a", ("a", None)),
    "no thought": ("c", (None, "c")),
    "an empty thought": ("{begin}{end}c", (None, "c")),
    "white space before": ("\n{begin}a{end}c", ("a", "c")),
    "something said before": ("x {begin}a{end}c", ("a", "x c")),
    "the first marker once more": ("{begin}a{begin}b{end}c", ("a{begin}b", "c")),
    "a call in place of the end": ("{begin}a<tool_call>c", ("a", "<tool_call>c")),
    "a call in the thought": ("{begin}a<tool_call>b{end}c", ("a<tool_call>b", "c")),
    "the marker once more": ("{begin}a{end}c{end}d", ("a", "c{end}d")),
    "nothing": ("", (None, None)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("parts", PARTS)
def test_split_text_of_each_format_gives_both_parts(name: str, parts: str) -> None:
    begin, end = MARKS[name]
    text, expected = PARTS[parts]

    def written(part: str | None) -> str | None:
        return part and part.format(begin=begin, end=end)

    found = split_text(text.format(begin=begin, end=end), FORMATS[name])
    assert found == Reasoned(*map(written, expected))


def test_split_text_of_a_thought_that_the_prompt_opened_has_no_answer() -> None:
    assert split_text("a", FORMATS["think"], opened=True) == Reasoned("a", None)


def test_split_text_behind_a_thought_that_the_prompt_ended_is_an_answer() -> None:
    assert split_text("a</think>c", FORMATS["think"], opened=False) == Reasoned(None, "a</think>c")
    assert split_text("<think>a</think>c", FORMATS["think"], opened=False) == Reasoned("a", "c")


def test_split_text_keeps_white_space_that_stands_in_a_part() -> None:
    assert split_text("<think>\n\n</think>\n\nc", FORMATS["think"]) == Reasoned("\n\n", "\n\nc")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("think", "x <think>a</think>c", ("x a", "c")),  # the prompt has opened it
        (
            "cohere",
            "<|START_THINKING|> a <co>b</co: 0:[1]><|END_THINKING|>\n<|START_RESPONSE|>c<|END_RESPONSE|>",
            ("a b", "c"),
        ),
        ("hunyuan", "<think>\na\n</think>\n<answer>\nc\n</answer>", ("a", "c")),
        ("gemma", "<|channel>thousand<channel|>c", ("thousand", "c")),
        ("harmony", "a<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>c", ("a", "c")),
    ],
)
def test_split_text_leaves_out_what_is_no_text(name: str, text: str, expected: tuple[str, str]) -> None:
    assert split_text(text, FORMATS[name], opened=True) == expected


def test_a_thinking_model_is_split(text: GenerationEngine) -> None:
    results = text.generate_text_batch(REQUESTS, OPTIONS)
    assert [split(result, text) for result in results] == [
        ("\nI know this country.\n", "\n\nThe capital of France is Paris."),
        ("\nI go up one by one.\n", "\n\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12."),
        ("\nI look at the last digit.\n", "\n\n28 is even.\nVerdict: yes"),
    ]
    [short] = text.generate_text_batch(REQUESTS[:1], {"max_new_tokens": 4})
    assert split(short, text) == ("\nI ", None)
    [without] = text.generate_text_batch([{"messages": REQUESTS[0]["messages"]}], OPTIONS)
    assert split(without, text) == (None, "The capital of France is Paris.")


@pytest.fixture
def special_markers(edited: Any) -> Path:
    """A checkpoint whose markers of a thought are special tokens."""
    changes = {}
    for file, name in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")):
        tokens = json.loads((TEXT / file).read_text())[name]
        for token in tokens.values() if isinstance(tokens, dict) else tokens:
            token["special"] = token["special"] or "think>" in token["content"]
        changes[file] = {name: tokens}
    return Path(edited(TEXT, changes))


def test_markers_that_are_special_tokens_are_found_by_ids(special_markers: Path, backend: str, shared: Load) -> None:
    engine = shared(special_markers, backend)
    [result] = engine.generate_text_batch(REQUESTS[:1], {**OPTIONS, "stop": [" Paris"]})
    assert "think>" not in result.text
    assert split(result, engine) == ("\nI know this country.\n", "\n\nThe capital of France is")


def test_an_end_marker_behind_a_thought_that_the_prompt_ended_begins_no_answer(
    special_markers: Path, shared: Load
) -> None:
    """The template wrote an empty thought: an answer that speaks of the marker is an answer."""
    engine = shared(special_markers, "hf")
    [result] = engine.generate_text_batch([{"messages": REQUESTS[0]["messages"]}], OPTIONS)
    end = engine.tokenizer.convert_tokens_to_ids("</think>")
    ids = (*result.token_ids[:3], end, *result.token_ids[3:])
    spoken = dataclasses.replace(result, token_ids=ids, raw_text=engine.tokenizer.decode(list(ids)))
    assert split(spoken, engine) == (None, result.text)


def test_a_stop_in_the_thought_ends_nothing(text: GenerationEngine) -> None:
    first, second, _ = text.generate_text_batch(REQUESTS, OPTIONS, plugins=[Thinking(text, stop=["o", " 7"])])
    assert split(first, text) == ("\nI know this country.\n", "\n\nThe capital ")
    assert split(second, text) == ("\nI go up one by one.\n", "\n\n1, 2, 3, 4, 5, 6,")
    assert (first.finish_reason, first.stop_reason, second.stop_reason) == ("plugin", "o", " 7")


def test_the_blank_lines_behind_a_thought_are_no_stop(text: GenerationEngine) -> None:
    """The line end that stands behind every thought ended the row, whose answer was None."""
    first, _, third = text.generate_text_batch(REQUESTS, OPTIONS, plugins=[Thinking(text, stop=["\n\n", "\n"])])
    assert split(first, text).answer == "\n\nThe capital of France is Paris." and first.finish_reason == "eos"
    assert split(third, text).answer == "\n\n28 is even."
    assert (third.finish_reason, third.stop_reason) == ("plugin", "\n")


@pytest.mark.parametrize("budget", [0, 4, 10])
def test_a_thought_beyond_its_budget_is_ended(hooked: GenerationEngine, budget: int) -> None:
    plain = hooked.generate_text_batch(REQUESTS, OPTIONS)
    results = hooked.generate_text_batch(REQUESTS, OPTIONS, plugins=[Thinking(hooked, budget=budget)])
    for before, result in zip(plain, results):
        reasoning, answer = split(result, hooked)
        assert answer is not None and answer.startswith("\n\n") and result.finish_reason == "eos"
        spent = max(budget, 1)  # the first token opens the thought
        closing = tuple(hooked.tokenizer.encode(FORMATS["think"].closing, add_special_tokens=False))
        assert result.token_ids[: spent + len(closing)] == before.token_ids[:spent] + closing
        assert hooked.tokenizer.decode(result.token_ids[:spent]) == f"<think>{(reasoning or '').removesuffix(chr(10))}"


def test_a_budget_bounds_the_first_thought_only(hooked: GenerationEngine) -> None:
    """A second one is text of the answer: it would be closed in the middle of a sentence."""
    torch = importlib.import_module("torch")
    ids = hooked.tokenizer.encode("<think>a</think>b<think>c d e f g", add_special_tokens=False)
    logits = torch.zeros(hooked.checkpoint.vocabulary)
    bound: Any = Thinking(hooked, budget=2).logits
    assert torch.equal(bound(ids, logits, prompt_token_ids=()), logits)
    assert bound(ids[:3], logits, prompt_token_ids=()).isfinite().all()
    assert bound(ids[1:2] * 3, logits, prompt_token_ids=ids[:1]).isfinite().sum() == 1


def test_a_thought_within_its_budget_stays_as_it_is(hooked: GenerationEngine) -> None:
    plain = hooked.generate_text_batch(REQUESTS, OPTIONS)
    bounded = hooked.generate_text_batch(REQUESTS, OPTIONS, plugins=[Thinking(hooked, budget=40)])
    assert [result.token_ids for result in bounded] == [result.token_ids for result in plain]


def test_a_structure_begins_behind_the_thought(text: GenerationEngine) -> None:
    structured = {"choice": ["yes", "no"], "after": "</think>"}
    results = text.generate_text_batch([{**request, "structured": structured} for request in REQUESTS], OPTIONS)
    reasons = [split(result, text).reasoning for result in results]
    assert reasons == [split(result, text).reasoning for result in text.generate_text_batch(REQUESTS, OPTIONS)]
    assert {str(split(result, text).answer).strip() for result in results} <= {"yes", "no"}
    assert {result.finish_reason for result in results} == {"eos"}


def test_a_structure_that_leaves_no_thought_is_refused_unless_that_is_said(text: GenerationEngine) -> None:
    request: dict[str, Any] = {**REQUESTS[2], "structured": {"choice": ["yes", "no"]}}
    with pytest.raises(RequestError, match="leaves no room for the thought. Say structured="):
        text.generate_text_batch([request])
    request["structured"]["after"] = ""
    assert text.generate_text_batch([request])[0].text in ("yes", "no")


def test_an_answer_that_goes_on_needs_no_room_for_a_thought(text: GenerationEngine) -> None:
    started = [*REQUESTS[2]["messages"], {"role": "assistant", "content": "It is even.\nVerdict: "}]
    request = {**REQUESTS[2], "messages": started, "continue_final": True, "structured": {"choice": ["yes", "no"]}}
    assert text.generate_text_batch([request])[0].text in ("yes", "no")


@pytest.mark.parametrize("after", ["<think><", 5, "\ud800"])
def test_a_marker_that_cannot_be_one_is_refused(after: Any, text: GenerationEngine) -> None:
    request = {**REQUESTS[0], "structured": {"choice": ["yes"], "after": after}}
    with pytest.raises((OptionError, RequestError), match=r"StructuredOptions.after is "):
        text.generate_text_batch([request])


def test_what_is_no_budget_and_no_format_is_refused(text: GenerationEngine, shared: Load) -> None:
    for budget in (-1, 1.5, True):
        with pytest.raises(OptionError, match="it must be a whole number >= 0|It must be"):
            Thinking(text, budget=budget)
    with pytest.raises(OptionError, match="no reasoning format 'thinc'. Did you mean 'think'"):
        Thinking(text, format="thinc")
    assert format_of(text) == FORMATS["think"]


def test_a_checkpoint_without_markers_says_so(real: Any, shared: Load) -> None:
    with pytest.raises(UnsupportedError, match="no marker of a thought that is known. Name one: think, mistral"):
        format_of(shared(real, "hf"))
