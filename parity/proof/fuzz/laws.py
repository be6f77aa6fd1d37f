"""What must hold of every generated call: each request is answered or refused in the engine's own
words, at its own index, and the good requests beside it are answered as they are alone."""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gen_engine import (
    GenEngineError,
    GenerationEngine,
    GenerationOptions,
    GenerationResult,
    build,
)
from parity.models.tasks import drawing
from parity.proof.fuzz.hostile_room import TEXT, VL, Fault, Room, check_result, checked_error
from parity.proof.fuzz.structures import follows, words_of
from parity.proof.fuzz.values import Case, materialize

GOOD_QUESTION = "What is the capital of France?"
MOST_KNOWN = 200  # options whose good answers are remembered
KINDS = ("raw error", "neighbour", "error", "result", "structure")


@dataclass(frozen=True)
class Failure:
    """kind: of KINDS, or "hang" and "crash".   where: what tells it from other failures.
    detail: in full."""

    kind: str
    where: str
    detail: str

    @property
    def key(self) -> str:
        return f"{self.kind}: {self.where}"


def place_of(error: BaseException) -> str:
    """Type of an error, and the function of this project where it passed last."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [frame for frame in frames if "/site-packages/" not in frame.filename]
    last = names[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"


def without_values(text: str) -> str:
    """A message that is the same for other values of the same fault."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "_", text)[:120]


Answers = Sequence[tuple[Any, ...]]


def essence(result: GenerationResult) -> tuple[Any, ...]:
    """What must not depend on the rows beside it; logprobs may, by rounding."""
    samples = result.samples or (result,)
    return tuple((sample.token_ids, sample.text, sample.finish_reason) for sample in samples)


@dataclass
class Asker:
    """Asks generated calls on a backend's engines.

    asked: how many requests.   outcomes: how many of them were answered, refused, or refused with
    their whole call."""

    room: Room
    asked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    _known: dict[str, Answers | None] = field(default_factory=dict)

    def failure(self, case: Case) -> Failure | None:
        """What is wrong with the outcome of a call; None where nothing is."""
        self.asked += len(case.requests)
        try:
            self._ask(case)
        except Fault as fault:
            kind, text, *where = fault.args
            return Failure(kind, where[0] if where else without_values(text), text)
        except Exception as error:  # noqa: BLE001 - any error that is not the engine's own is a find
            text = "".join(traceback.format_exception(error))[-3000:]
            return Failure("raw error", place_of(error), text)
        return None

    def _engine(self, verb: str) -> GenerationEngine:
        return self.room.engine(VL if verb == "vlm" else TEXT)

    def _call(self, verb: str, requests: Sequence[Any], options: Any) -> list[Any]:
        engine = self._engine(verb)
        ask = engine.generate_vlm_batch if verb == "vlm" else engine.generate_text_batch
        return list(ask(requests, options, on_error="return"))

    def _good(self, verb: str) -> list[Any]:
        """The good requests; with seeds, so that they are answered the same each time."""
        content: Any = GOOD_QUESTION
        if verb == "vlm":
            picture = {"type": "image", "image": drawing("red", "circle")}
            content = [picture, {"type": "text", "text": "What is this?"}]
        messages = [{"role": "user", "content": content}]
        return [{"messages": messages, "seed": 3}, {"messages": messages, "seed": 4}]

    def _expected(self, case: Case) -> Answers | None:
        """What the good requests are answered alone; None where these options are refused."""
        key = case.verb + json.dumps(case.options, sort_keys=True)
        if key not in self._known:
            while len(self._known) >= MOST_KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._answers_alone(case)
        return self._known[key]

    def _answers_alone(self, case: Case) -> Answers | None:
        try:
            results = self._call(case.verb, self._good(case.verb), materialize(case.options))
        except GenEngineError as error:
            check_words(error)
            return None
        for result in results:
            if isinstance(result, GenEngineError):
                check_words(result)
                return None
        return [essence(result) for result in results]

    def _ask(self, case: Case) -> None:
        expected = self._expected(case)
        first, last = self._good(case.verb)
        requests = [materialize(request) for request in case.requests]
        try:
            results = self._call(case.verb, [first, *requests, last], materialize(case.options))
        except GenEngineError as error:
            check_words(error)
            if expected is not None:
                raise Fault("neighbour", f"the whole call is refused: {error}") from None
            self.outcomes["whole call refused"] += len(requests)
            return
        if len(results) != len(requests) + 2:
            raise Fault("result", f"{len(results)} results of {len(requests) + 2} requests")
        if expected is not None:
            check_neighbours([results[0], results[-1]], expected)
        for index, (request, result) in enumerate(zip(requests, results[1:-1]), start=1):
            self._check(index, request, result, case)

    def _check(self, index: int, request: Any, result: Any, case: Case) -> None:
        if isinstance(result, GenEngineError):
            check_words(result)
            if result.index != index:
                raise Fault("error", f"the error of request {index} names {result.index}: {result}")
            self.outcomes["refused"] += 1
            return
        options = build(GenerationOptions, materialize(case.options))
        # The text that was read back is compared with that of a prompt, which holds no images.
        is_plain = case.verb == "text" and isinstance(request, Mapping)
        asked = request if is_plain else {}
        try:
            check_result(result, self._engine(case.verb), options, asked)
        except Fault as fault:
            raise Fault("result", str(fault)) from None
        check_samples(result, options)
        is_whole = not {"stop", "decode"} & set(case.options or ())  # text is all that was said
        if isinstance(request, Mapping) and is_whole:
            check_structure(result, request)
        self.outcomes["answered"] += 1


def check_samples(result: GenerationResult, options: GenerationOptions) -> None:
    """As many samples as were asked for, and a log-probability for each token if one was."""
    samples = result.samples or (result,)
    if len(samples) != options.n:
        raise Fault("result", f"{len(samples)} samples, n is {options.n}")
    for sample in samples:
        if (sample.logprobs is None) != (options.logprobs is None):
            raise Fault("result", f"logprobs is {options.logprobs}, there are {sample.logprobs}")
        if sample.logprobs is not None and len(sample.logprobs) != len(sample.token_ids):
            raise Fault("result", f"{sample.logprobs} of {sample.token_ids}")


def check_structure(result: GenerationResult, request: Mapping[str, Any]) -> None:
    """An answer that has ended by itself is one that its structure allows."""
    structured = request.get("structured")
    if not isinstance(structured, Mapping):
        return
    for sample in result.samples or (result,):
        text = sample.text
        if sample.finish_reason == "eos" and not follows(structured, text):
            problem = f"{text!r} is none of {structured}"
            raise Fault("structure", problem, ", ".join(words_of(structured)))


def check_words(error: GenEngineError) -> None:
    """An error says what is wrong and what to do, and can be shown."""
    try:
        checked_error(error)
    except (Fault, UnicodeEncodeError) as problem:
        raise Fault("error", f"{type(error).__name__}: {problem!r}") from None


def check_neighbours(results: Sequence[Any], expected: Answers) -> None:
    for result, alone in zip(results, expected):
        if isinstance(result, GenEngineError):
            raise Fault("neighbour", f"a good request is refused: {result}")
        if essence(result) != alone:
            raise Fault("neighbour", f"a good answer changed: {essence(result)} {alone}"[:1000])
