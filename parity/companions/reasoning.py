# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""The thought and the answer of a model that thinks first: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="reasoning"`, and

    from acme.llm.reasoning import Thinking, split

    request = {"messages": chat, "chat": {"enable_thinking": True}}
    thinking = Thinking(engine, budget=500, stop=["\\n\\n"])
    [result] = engine.generate_text_batch([request], options, plugins=[thinking])
    reasoning, answer = split(result, engine)

`Thinking` needs plugin_hooks.py, too. Structured output begins behind the thought with
`"structured": {"json": schema, "after": "</think>"}`.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = [
    "FORMATS",
    "Format",
    "Reasoned",
    "Thinking",
    "ThinkingOptions",
    "format_of",
    "split",
    "split_text",
]


NEVER = "(?!)"
CALL = r"<(?:seed:)?tool_call>|<ifm\|tool_calls>|<\|tool_calls_section_begin\|>|\[TOOL_CALLS\]"


class Format(NamedTuple):
    """How a family of models marks its thought.

    begin, end: regular expressions of the markers.   closing: the text that ends a thought.
    call: regular expression of what ends a thought that has no other end, and begins the answer.
    foot: of what stands behind an answer.   marks: of what is no text in either part."""

    begin: str
    end: str
    closing: str
    call: str = CALL
    foot: str = NEVER
    marks: str = NEVER


def tagged(begin: str, end: str) -> Format:
    """A thought between two markers, with a line end before and two behind the second."""
    return Format(re.escape(begin), re.escape(end), f"\n{end}\n\n")


FORMATS = {  # by the name of the first library or model that wrote so
    "think": tagged("<think>", "</think>"),  # Qwen3, DeepSeek-R1, GLM, MiniMax, Nemotron, OLMo, ...
    "mistral": tagged("[THINK]", "[/THINK]"),
    "seed": tagged("<seed:think>", "</seed:think>"),
    "cohere": Format(
        r"<\|START_THINKING\|>\s*",
        r"<\|END_THINKING\|>(?:\s*<\|START_RESPONSE\|>)?",
        "\n<|END_THINKING|>\n\n",
        foot=r"<\|END_RESPONSE\|>\s*",
        marks=r"</?co(?::[^<>]*)?>",  # of citations
    ),
    "kimi": tagged("◁think▷", "◁/think▷"),
    "kimi_k3": Format(
        r"<\|open\|>think<\|sep\|>",
        r"<\|close\|>think<\|sep\|>(?:\s*<\|open\|>response<\|sep\|>)?",
        "<|close|>think<|sep|><|open|>response<|sep|>",
        foot=r"<\|close\|>response<\|sep\|>(?:<\|close\|>message<\|sep\|>)?\s*",
    ),
    "k2_horizon": Format(  # of three efforts
        r"<ifm\|think(?:_fast(?:er)?)?>",
        r"</ifm\|think(?:_fast(?:er)?)?>",
        "\n</ifm|think>\n\n",
    ),
    "minimax_m3": tagged("<mm:think>", "</mm:think>"),
    "apertus": tagged("<|inner_prefix|>", "<|inner_suffix|>"),
    "plamo": tagged("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "gemma": Format(r"<\|channel>(?:thought\n)?", r"<channel\|>", "\n<channel|>"),
    "harmony": Format(  # gpt-oss
        r"(?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>",
        r"(?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final"
        r"(?:\s*<\|constrain\|>[^<]*)?<\|message\|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "granite": Format(
        r"Here(?:'s| is) my thought process:",
        r"Here(?:'s| is) my response:",
        "\n\nHere is my response:",
    ),
    # To be named: their markers are those of "think", and line ends belong to them.
    "step3p5": Format("<think>", r"\n?</think>\n?", "\n</think>\n"),
    "granite_thinking": Format("<think>", r"</think>\n*", "\n</think>\n"),  # HyperCLOVA X, too
    "hunyuan": Format(  # A13B
        "<think>\n", "\n</think>\n<answer>\n", "\n</think>\n<answer>\n", foot=r"\n</answer>\s*"
    ),
}


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise ge.OptionError(f"no reasoning format {name!r}", fix=ge.did_you_mean(name, FORMATS))
    return FORMATS[name]


def format_of(engine: ge.GenerationEngine) -> Format:
    """The format whose end the checkpoint's tokens or its chat template hold. Raises
    UnsupportedError where there is none."""
    tokenizer = engine.tokenizer
    template = str(getattr(engine.checkpoint.template_owner, "chat_template", None) or "")
    for known in FORMATS.values():
        in_tokens = any(re.fullmatch(known.end, token) for token in tokenizer.get_added_vocab())
        if in_tokens or re.search(known.end, template):
            return known
    problem = "the checkpoint has no marker of a thought that is known"
    raise ge.UnsupportedError(problem, fix="name one: " + ", ".join(FORMATS))


# == Splitting an answer ==


class Reasoned(NamedTuple):
    """The two parts of a text, without the markers.

    reasoning: None where the model did not think.
    answer: None where the text ended before it."""

    reasoning: str | None
    answer: str | None


def is_open(text: str, markers: Format) -> bool:
    """Whether a text ends inside a thought."""
    begins = [found.end() for found in re.finditer(markers.begin, text)]
    ends = [found.end() for found in re.finditer(markers.end, text)]
    return max(begins, default=-1) > max(ends, default=-1)


def plain(text: str, markers: Format) -> str:
    """A part of an answer without what is no text in it."""
    return re.sub(markers.marks, "", re.sub(rf"(?:{markers.foot})\Z", "", text))


def thought_end(text: str, markers: Format, start: int) -> tuple[int, int]:
    """Where a thought ends that begins at `start`, and where the answer begins: at a call, where
    there is no marker of the end."""
    end = re.search(markers.end, text)
    if end is not None:
        return end.span()
    call = re.compile(markers.call).search(text, start)
    at = len(text) if call is None else call.start()
    return at, at


def prompt_state(prompt: str, markers: Format) -> bool | None:
    """`split_text`'s opened."""
    if is_open(prompt, markers):
        return True
    return False if re.search(rf"(?:{markers.end})\s*\Z", prompt) else None


def is_answer(end: re.Match[str] | None, opened: bool | None) -> bool:
    """Whether a text without a beginning of a thought is an answer."""
    return opened is False or (end is None and opened is None)


def split_text(text: str, markers: Format, *, opened: bool | None = None) -> Reasoned:
    """The parts of a text that has its markers. What stands before the first one belongs to the
    thought if that was opened, else to the answer; white space to neither.
    opened: whether the prompt has begun the thought. False: it has begun and ended one, so that an
    end in the text ends nothing. Default None: neither."""
    end = re.search(markers.end, text)
    begin = re.search(markers.begin, text if end is None else text[: end.start()])
    if begin is None and is_answer(end, opened):
        return Reasoned(None, text or None)
    first, start = (0, 0) if begin is None else begin.span()
    last, rest = thought_end(text, markers, start)
    before = text[:first] if text[:first].strip() else ""
    thought = plain(text[start:last], markers)
    answer = plain(text[rest:], markers)
    if opened:
        thought = before + thought
    else:
        answer = before + answer
    return Reasoned(thought or None, answer or None)


def split(
    result: ge.GenerationResult, engine: ge.GenerationEngine, *, format: str | None = None
) -> Reasoned:
    """The thought and the answer of a result; the answer is cut at stops, as `result.text` is.

    format: a name of FORMATS. Default None: that of the checkpoint."""
    markers = format_of(engine) if format is None else format_named(format)
    opened = prompt_state(engine.tokenizer.decode(list(result.prompt_token_ids)), markers)
    if re.search(markers.end, result.text) or not re.search(markers.end, result.raw_text):
        return split_text(result.text, markers, opened=opened)
    # The marker is of special tokens, which `text` does not show.
    before = result.token_ids[: tokens_before(result.token_ids, engine.tokenizer, markers)]
    skip = bool(result.effective["skip_special_tokens"]["value"])
    hidden = engine.tokenizer.decode(list(before), skip_special_tokens=skip)
    shown = engine.tokenizer.decode(list(before))
    if opened is False and re.search(markers.begin, shown) is None:
        return Reasoned(None, result.text or None)
    thought, outside = split_text(shown, markers, opened=opened)
    answer = (outside or "") + plain(result.text[len(hidden) :], markers)
    return Reasoned(thought, answer or None)


def tokens_before(ids: Sequence[int], tokenizer: Any, markers: Format) -> int:
    """How many tokens there are up to the end of the thought, that included."""

    def holds_end(count: int) -> bool:
        return re.search(markers.end, tokenizer.decode(list(ids[:count]))) is not None

    return bisect.bisect_left(range(len(ids)), True, key=holds_end)


# == Stops and budgets ==


@dataclass(frozen=True, slots=True)
class ThinkingOptions:
    """What Thinking takes beside the engine.

    budget: most tokens, >= 0, of the answer before the thought is ended by writing its marker.
        Needs logits_hooks=True on vllm. Default None: no limit.
    stop: strings that end the answer, not the thought; `text` ends before the first. One string or
        a list. Default: none.
    format: a name of FORMATS. Default None: that of the checkpoint."""

    budget: int | None = None
    stop: Any = ()
    format: str | None = None

    def __post_init__(self) -> None:
        ge.check_int(self, "budget", 0, optional=True)
        ge.check_texts(self, "format", optional=True)
        if self.format is not None:
            format_named(self.format)
        ge.StopOptions(strings=self.stop)


class Thinking(ge.Plugin):
    """A plugin for requests whose model thinks first.

    engine: the engine that it is for.   settings: fields of ThinkingOptions.
    A row that it ends has the finish_reason "plugin", and the stop as its stop_reason."""

    name = "thinking"

    def __init__(self, engine: ge.GenerationEngine, **settings: Any) -> None:
        options = ge.build(ThinkingOptions, settings)
        budget = options.budget
        is_own = options.format is None
        self.markers = format_of(engine) if is_own else format_named(str(options.format))
        self.tokenizer = engine.tokenizer
        self.budget = budget
        self.stops = ge.StopOptions(strings=options.stop).strings
        self.closing = ge.encode(engine.checkpoint, self.markers.closing, False)
        words = self.tokenizer.get_added_vocab().items()
        self.end_ids = {i for word, i in words if re.fullmatch(self.markers.end, word)}
        self.settings: dict[str, Any] = {}  # what changes, for who records a call
        if budget is not None:
            self.settings["thinking_budget"] = budget
            self.logits = self._force_end
        if self.stops:
            self.settings["answer_strings"] = list(self.stops)
            self.should_stop = self._stop_in_answer
            self.post_decode = self._cut_answer

    def _answer_start(self, text: str) -> int | None:
        """Where the answer begins in a text, or None inside the thought. The blank lines between
        the two belong to neither: no stop is found in them."""
        end = re.search(rf"(?:{self.markers.end})\s*", text)
        return None if end is None else end.end()

    def _stop_in_answer(self, token_ids: Sequence[int], text: str) -> str:
        """The stop that ends the answer, or nothing."""
        begin = self._answer_start(text)
        cut = None if begin is None else ge.first_stop(text[begin:], self.stops)
        return "" if cut is None else cut[2]

    def _cut_answer(self, text: str) -> str:
        begin = self._answer_start(text)
        if begin is None:
            return text
        return text[:begin] + ge.truncate_at_stops(text[begin:], self.stops)

    def _force_end(
        self, token_ids: Sequence[int], logits: Any, prompt_token_ids: Sequence[int]
    ) -> Any:
        """Allow only the next token of the closing text where the thought goes on beyond the
        budget, until all of it is written. logits: [vocabulary]."""
        ids = tuple(token_ids)
        written = self._written(ids)
        if written is None:
            return logits
        thought = ids[: len(ids) - written]
        is_over = not self.end_ids.isdisjoint(thought)
        if is_over or not is_open(self._decode(prompt_token_ids, thought), self.markers):
            return logits
        forced = logits.new_full(logits.shape, -math.inf)
        forced[self.closing[written]] = 0.0
        return forced

    def _written(self, ids: tuple[int, ...]) -> int | None:
        """How many tokens of the closing text stand at the end of the ids, behind the budget; None
        before it is spent."""
        most = min(len(ids) - (self.budget or 0), len(self.closing) - 1)
        fits = [n for n in range(most + 1) if ids[len(ids) - n :] == self.closing[:n]]
        return max(fits, default=None)

    def _decode(self, prompt_token_ids: Sequence[int], ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode([*prompt_token_ids, *ids])
        return text
