"""The engine's whole public surface, observed and unobserved: the same answers, and the libraries as they were."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gen_engine
from gen_engine import GenEngineError, GenerationEngine, Plugin
from parity.goldens.store import Case
from parity.goldens.verdict import equal
from parity.models.tasks import TOOLS, drawing
from parity.proof.callsites.plugins import SuppressRepeatedObject
from parity.record import patching
from parity.record.observe import Observer, Site, Tapped

from ..conftest import TEXT, VL, chat, open_engine
from ..engine.test_lora import make_adapter

SHORT = {"max_new_tokens": 8}
COUNT, CAPITAL = chat("Count to 12."), chat("What is the capital of France?")
CHOICE = {**CAPITAL, "structured": {"choice": ["Paris", "Rome"]}}


class Loud(Plugin):
    """Ends a row after five tokens, and shouts."""

    name = "loud"

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return len(token_ids) >= 5

    def post_decode(self, text: str) -> str:
        return text.upper()


class Log(gen_engine.Observer):
    """Everything that the engine's own observers are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def arrived(self, backend: str, rows: Sequence[Any]) -> None:
        self.told.append((backend, len(rows)))

    def stepped(self) -> None:
        self.told.append("step")

    def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None:
        self.told.append([result.text for result in results])


def plain(value: Any) -> Any:
    """A result with all that it has, as data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, GenEngineError):
        return [type(value).__name__, str(value), value.index]
    return value.tolist() if hasattr(value, "tolist") else value


def caught(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except GenEngineError as error:
        return error


def bare(text: GenerationEngine, ids: list[int]) -> Any:
    with text.bare(read_only=True) as model:
        if text.backend.name == "hf":
            torch = importlib.import_module("torch")
            return model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False).tolist()
        params = importlib.import_module("vllm").SamplingParams(temperature=0, max_tokens=3)
        outputs = model.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def watched(text: GenerationEngine) -> list[Any]:
    log = Log()
    with text.observed(log):
        text.generate_text_batch([COUNT, CAPITAL], SHORT, cache=False)
    return log.told


def verbs(text: GenerationEngine, vl: GenerationEngine) -> dict[str, Callable[[], Any]]:
    """What the surface can be asked: a name, and how it is asked."""
    ask, pictures = text.generate_text_batch, [drawing("red", "circle"), drawing("blue", "square")]
    seen = [chat("What do you see?", images=[picture]) for picture in pictures]
    question, ids = CAPITAL["messages"], text.tokenizer("Is 28 even?")["input_ids"]
    bad = [COUNT, {**COUNT, "adapter": "none"}, {"prompt": "a\ud800"}, CAPITAL]
    broken = [{**seen[0], "images": [b"none"]}, seen[1]]
    return {
        "generate_text_batch": lambda: ask([COUNT, CAPITAL, {"prompt": "1, 2,"}, {"prompt_token_ids": ids}], SHORT),
        "of the module": lambda: [
            gen_engine.generate_text_batch(text, [COUNT], {**SHORT, "stop": [", 3"]}),
            gen_engine.generate_vlm_batch(vl, seen[:1], SHORT),
            gen_engine.score_batch(text, [("1, 2,", " 3")]),
        ],
        "numbers": lambda: ask([COUNT, CAPITAL], {**SHORT, "logprobs": 2, "logits": True}),
        "tools": lambda: ask([chat("What is the weather in Oslo?", tools=TOOLS)], {"max_new_tokens": 40}),
        "replay": lambda: ask([COUNT], {**SHORT, "replay": [[5, 6, 7]], "logprobs": 0}),
        "samples": lambda: ask([COUNT, CAPITAL], {**SHORT, "temperature": 1.5, "seed": 3, "n": 3}),
        "adapters": lambda: ask([{**COUNT, "adapter": "one"}, COUNT], {**SHORT, "logprobs": 0}),
        "structured": lambda: ask([CHOICE, chat("Anything.", structured={"regex": "[a-c]{4}"})], SHORT),
        "plugins": lambda: ask([COUNT, CAPITAL], plugins=[Loud(), SuppressRepeatedObject(text.tokenizer)]),
        "cache": lambda: [ask([CAPITAL], SHORT)[0].cached for _ in range(2)] + [len(text.cache or ())],
        "generate_vlm_batch": lambda: vl.generate_vlm_batch(seen, SHORT),
        "a pixel budget": lambda: vl.generate_vlm_batch([{**seen[0], "vlm": {"max_pixels": 32 * 32}}], SHORT),
        "score_batch": lambda: text.score_batch([(question, "Paris."), ("1, 2,", " 3"), (ids, ids[:2])], logits=True),
        "scored pictures": lambda: vl.score_batch([(seen[0], "A red circle.")]),
        "scored with an adapter": lambda: text.score_batch([({**CAPITAL, "adapter": "one"}, "Paris.")]),
        "render": lambda: [text.render(question), text.render(question, tools=TOOLS), vl.render(seen[0]["messages"])],
        "effective": lambda: text.effective({"temperature": 0.5, "stop": ["x"]}, plugins=[Loud()]),
        "describe": lambda: [text.describe(), vl.describe(), text.capabilities],
        "observed": lambda: watched(text),
        "bare": lambda: bare(text, ids),
        "an option": lambda: ask([COUNT], {"temprature": 1}),
        "a request": lambda: ask(bad, SHORT),
        "requests": lambda: ask(bad, SHORT, on_error="return"),
        "a picture": lambda: vl.generate_vlm_batch(broken, SHORT, on_error="return"),
        "a door": lambda: vl.generate_vlm_batch([COUNT], SHORT),
    }  # fmt: skip


def asked(text: GenerationEngine, vl: GenerationEngine) -> dict[str, Any]:
    assert text.cache is not None
    text.cache.clear()
    return {name: plain(caught(ask)) for name, ask in verbs(text, vl).items()}


def surface(text: GenerationEngine, vl: GenerationEngine) -> dict[str, Any]:
    return asked(text, vl)


PATCHED = {"transformers", "vllm", "torch", "threading", "concurrent", "gen_engine", __name__.partition(".")[0]}


KINDS = (classmethod, staticmethod, property, Tapped, type(functools.cache(len)))


def attributes() -> dict[tuple[int, str], Any]:
    """(id of a module or a class, name) -> each function, method and property of the libraries, as it lies there."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in PATCHED and m is not None]
    kinds = {kind for module in modules for kind in list(vars(module).values()) if isinstance(kind, type)}
    return {
        (id(holder), name): value
        for holder in (*modules, *kinds)
        for name, value in list(vars(holder).items())
        if inspect.isroutine(value) or isinstance(value, KINDS)
    }


def is_tap(value: Any) -> bool:
    """Whether the observer has put this here."""
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    code = getattr(inner, "__code__", None)
    return isinstance(inner, Tapped) or (
        code is not None and code.co_filename == patching.__file__ and code.co_name in ("wrapper", "of_class")
    )


def test_the_whole_surface_is_the_same_observed_and_all_is_put_back(backend: str, tmp_path: Path) -> None:
    told = {"adapters": {"one": make_adapter(tmp_path / "one", 0)}, "logits_hooks": True}
    found: list[Case] = []
    observer = Observer(sink=found.append, sites=[Site("s", f"{__name__}:surface")], loose="loose")
    with open_engine(TEXT, backend, cache={}, **told) as text, open_engine(VL, backend, logits_hooks=True) as vl:
        first = surface(text, vl)
        assert equal(surface(text, vl), first), "it repeats itself"
        before = attributes()
        with observer:
            during, outside = surface(text, vl), asked(text, vl)
            with (
                open_engine(TEXT, backend, cache={}, **told) as own,
                open_engine(VL, backend, logits_hooks=True) as two,
            ):
                loaded = surface(own, two)
            patched = {key: f"{owner!r}.{key[1]}" for key, (owner, _) in observer.patches.replaced.items()}
        after = attributes()
        again = surface(text, vl)
    for name, value in first.items():
        for when, other in {"in a site": during, "outside": outside, "loaded then": loaded, "after": again}.items():
            assert equal(other[name], value), (name, when)
    assert observer.failures == []
    assert {case.site for case in found} == {"s", "loose"} and sum(len(case.rows) for case in found) > 60
    stops = [row.get("stop", {}).get("strings", {}).get("value") for case in found for row in case.rows]
    assert stops.count([", 3"]) == 3, "the functions of the module are seen, too"
    assert len(patched) > 20 and {"generate", "forward", "score_batch", "__call__"} <= {name for _, name in patched}
    lost = [name for key, name in patched.items() if before.get(key) is not after.get(key)]
    assert (lost, [key for key, value in after.items() if is_tap(value)]) == ([], [])
