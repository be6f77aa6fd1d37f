"""Where hostile_table.py's hostile inputs are asked: engines, good neighbours, and what each outcome is called."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from typing import Any

import gen_engine
from gen_engine import GenEngineError, GenerationEngine, GenerationOptions, GenerationResult
from parity.goldens.store import GoldenError

MODELS = Path("golden/models")
TEXT, VL = MODELS / "tiny-qwen3", MODELS / "tiny-qwen3-vl"
WINDOW = 1024
SETTINGS: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 64}},
}
GOOD = [{"messages": [{"role": "user", "content": f"What is the capital of {land}?"}]} for land in ("France", "Peru")]
SHORT = {"max_new_tokens": 6}
TYPED = (GenEngineError, GoldenError)
MOST_MEMORY = 10 << 30  # bytes of data: an input that asks for all there is shall not take it
LONGEST_ERROR = 2000  # characters


@dataclass(frozen=True)
class Item:
    """One hostile input.

    door: the method of Room that asks it.   given: what that takes; a function of the room where it must be made first.
    want: "refused", "answered", or "either", where both are right.
    """

    group: str
    name: str
    door: str
    given: Any
    want: str = "refused"
    options: Mapping[str, Any] = field(default_factory=lambda: SHORT)
    plugins: Any = ()
    backends: tuple[str, ...] = ("hf", "vllm")
    slow: bool = False


class Fault(Exception):
    """What is wrong with an outcome."""


class Room:
    """A backend's engines, loaded when they are first wanted, and a folder for files."""

    def __init__(self, backend: str) -> None:
        self.backend, self._stack = backend, contextlib.ExitStack()
        self._engines: dict[Any, GenerationEngine] = {}
        self._known: dict[str, Any] = {}

    def __enter__(self) -> Room:
        limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, limit))
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def load(self, model: Any = TEXT, **settings: Any) -> GenerationEngine:
        return gen_engine.load(
            model, **{"backend": self.backend, "max_model_len": WINDOW, **SETTINGS[self.backend], **settings}
        )

    def engine(self, model: Path = TEXT) -> GenerationEngine:
        if model not in self._engines:
            hooks = {"logits_hooks": True} if model == TEXT else {}
            self._engines[model] = self._stack.enter_context(self.load(model, **hooks))
        return self._engines[model]

    # -- what is called what --

    def outcome(self, item: Item) -> tuple[str, str]:
        """(right, refused or failed; why)."""
        try:
            given = item.given(self) if isfunction(item.given) and item.door != "act" else item.given
            error = getattr(self, item.door)(item, given)
            kind, said = ("right", "") if error is None else ("refused", checked_error(error))
        except Fault as fault:
            return "failed", str(fault)
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            return "failed", f"{type(error).__name__}: {error}"[:300]
        if item.want not in ("either", {"right": "answered"}.get(kind, kind)):
            return "failed", f"{kind}, but shall be {item.want} {said}"
        return kind, said

    def neighbours(self, model: Path, options: Any) -> list[GenerationResult]:
        """What the good requests answer by themselves."""
        key = f"{model} {options!r}"
        if key not in self._known:
            self._known[key] = self.engine(model).generate_text_batch(GOOD, options)
        answers: list[GenerationResult] = self._known[key]
        return answers

    # -- doors --

    def text(self, item: Item, given: Any, model: Path = TEXT, verb: str = "generate_text_batch") -> Any:
        """A request between two good ones."""
        engine, options = self.engine(model), item.options
        plugins = item.plugins(self) if isfunction(item.plugins) else item.plugins
        expected = self.neighbours(model, options)
        verb_of = getattr(engine, verb)
        if verb == "generate_text_batch":
            first, asked, last = verb_of([GOOD[0], given, GOOD[1]], options, plugins=plugins, on_error="return")
        else:
            picture = {"messages": [{"role": "user", "content": [{"type": "image", "image": self.picture()}]}]}
            first, asked, last = verb_of([picture, given, picture], options, plugins=plugins, on_error="return")
            expected = [self._known.setdefault(f"picture {options!r}", first)] * 2
        if [first, last] != expected:
            raise Fault(f"a neighbour's answer changed: {first!r:.200} {last!r:.200}")
        if isinstance(asked, GenEngineError):
            if asked.index != 1:
                raise Fault(f"index {asked.index} of {asked}"[:300])
            return asked
        check_result(asked, engine, options, given)
        return None

    def vlm(self, item: Item, given: Any) -> Any:
        return self.text(item, given, VL, "generate_vlm_batch")

    def picture(self) -> Any:
        from parity.models.tasks import drawing

        return drawing("red", "circle")

    def call(self, item: Item, given: Mapping[str, Any]) -> Any:
        """A whole call that is refused before any work, or an error for each row that has one; the next is as ever."""
        engine = self.engine()
        error: Any = None
        expected = self.neighbours(TEXT, SHORT)
        asked = {"requests": GOOD, "options": SHORT, "on_error": "return", **given}
        try:
            with at_work(engine) as begun:
                results = engine.generate_text_batch(**asked)
            for place, result in enumerate(results):
                if isinstance(result, GenerationResult):
                    check_result(result, engine, {}, {})
                elif error is None:
                    error = result
                if isinstance(result, GenEngineError) and result.index != place:
                    raise Fault(f"index {result.index} of {result}"[:300])
        except TYPED as refused:
            if begun and asked["on_error"] == "return":
                raise Fault(f"the batch is lost: {refused}"[:300]) from None
            error = refused
        if engine.generate_text_batch(GOOD, SHORT) != expected:
            raise Fault("the next call gives something else")
        return error

    def score(self, item: Item, given: Any) -> Any:
        """A pair between two good ones; where it is refused, those by themselves."""
        engine = self.engine()
        good = [("The capital", " of France"), ("a b", " c d")]
        expected = self._known.setdefault("score", None) or engine.score_batch(good)
        self._known["score"] = expected
        error: Any = None
        try:
            first, asked, last = engine.score_batch([good[0], given, good[1]])
            if not all(math.isfinite(value) and value <= 0 for value in asked.logprobs):
                raise Fault(f"logprobs {asked.logprobs}"[:200])
            if any(abs(a - b) > 1e-4 for x, y in zip((first, last), expected) for a, b in zip(x.logprobs, y.logprobs)):
                raise Fault("a neighbour's score changed")
        except TYPED as refused:
            error = refused
            if refused.index != 1:  # type: ignore[union-attr]
                raise Fault(f"no index: {refused}"[:300]) from None
        if [s.token_ids for s in engine.score_batch(good)] != [s.token_ids for s in expected]:
            raise Fault("the next call gives something else")
        return error

    def loading(self, item: Item, given: Mapping[str, Any]) -> Any:
        """An engine that shall not load, or answers."""
        try:
            with self.load(**{"model": TEXT, **given}) as engine:
                check_result(engine.generate_text_batch(GOOD, SHORT)[0], engine, SHORT, {})
        except TYPED as error:
            return error
        return None

    def act(self, item: Item, given: Any) -> Any:
        """A function of the room."""
        try:
            given(self)
        except TYPED as error:
            return error
        return None

    def file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def checkpoint(self, name: str, changes: Mapping[str, Any], model: Path = TEXT) -> Path:
        """A copy of a checkpoint. changes: file -> bytes in its place, None to take it out, or keys to set in it."""
        import shutil

        target = self.folder / name
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(model, target)
        for file, change in changes.items():
            path = target / file
            if change is None:
                path.unlink()
            elif isinstance(change, bytes):
                path.write_bytes(change)
            else:
                path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        return target


def checked_error(error: Any) -> str:
    """An error's text, if it says what is wrong and what to do, and can be shown."""
    said = str(error)
    said.encode()
    if isinstance(error, GenEngineError):
        for what in ("problem", "fix"):
            if not getattr(error, what):
                raise Fault(f"no {what} in {said!r}")
    if len(said) > LONGEST_ERROR:
        raise Fault(f"an error of {len(said)} characters: {said[:100]}...")
    return said


def check_result(result: Any, engine: GenerationEngine, options: Any, request: Any) -> None:
    """An answer is what a result promises, and the prompt what was asked."""
    if not isinstance(result, GenerationResult):
        raise Fault(f"{result!r} is no result"[:200])
    settings = gen_engine.build(GenerationOptions, options)
    if not 0 < result.completion_tokens <= settings.max_new_tokens:
        raise Fault(f"{result.completion_tokens} tokens")
    if result.logprobs is not None and not all(map(math.isfinite, result.logprobs)):
        raise Fault(f"logprobs {result.logprobs}"[:200])
    prompt = request.get("prompt") if isinstance(request, Mapping) else None
    if isinstance(prompt, str) and not settings.truncate_prompt:
        read = engine.tokenizer.decode(list(result.prompt_token_ids), clean_up_tokenization_spaces=False)
        if unicodedata.normalize("NFC", read) != unicodedata.normalize("NFC", prompt):  # as tokenizers do
            raise Fault(f"the model read {read[:100]!r}")


@contextlib.contextmanager
def at_work(engine: GenerationEngine) -> Iterator[list[Any]]:
    """The calls that an engine hands to its backend meanwhile."""
    begun, complete = list[Any](), engine.backend.complete

    def told(*given: Any) -> Any:
        begun.append(given)
        return complete(*given)

    engine.backend.complete = told
    try:
        yield begun
    finally:
        engine.backend.complete = complete


def pipe(room: Room) -> str:
    path = room.folder / "pipe"
    if not path.exists():
        os.mkfifo(path)
    return str(path)
