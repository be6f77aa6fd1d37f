"""What tests of drafts share: goldens, an engine that stands for gen_engine, and a draft that is run on it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from transformers import PretrainedConfig

from gen_engine import ModelLoadConfig
from parity.draft.decisions import Decisions
from parity.draft.module import Draft, draft_module
from parity.draft.observed import Observed
from parity.goldens.store import Case


@dataclass
class Result:
    """What an engine answers: "ANSWER" for each request, with its end token."""

    text: str = "ANSWER"
    raw_text: str = "ANSWER<end>"
    token_ids: tuple[int, ...] = (5, 6)
    prompt_token_ids: tuple[int, ...] = (1, 2, 3)
    completion_tokens: int = 2
    logprobs: tuple[float, ...] = (-0.5, -0.25)
    samples: tuple[Any, ...] = ()


class DecodedAnswer(str):
    """An answer's text as the tokenizer decodes it, and not the result's own."""


class Tokenizer:
    eos_token_id = 6
    bos_token_id = 1

    def decode(self, ids: Sequence[int], **said: Any) -> str:
        if (tuple(ids), said) == (Result.token_ids, {"skip_special_tokens": True}):
            return DecodedAnswer(Result.text)
        return "" if not ids else f"decoded {list(ids)} {said}"

    def apply_chat_template(self, messages: Any, **said: Any) -> str:
        return f"<{messages[-1]['content']}>"

    def __call__(self, text: str, **said: Any) -> dict[str, list[int]]:
        return {"input_ids": list(range(len(text)))}


@dataclass
class Engine:
    """calls: (requests, options) of each."""

    config: ModelLoadConfig = field(default_factory=lambda: ModelLoadConfig("m"))
    loads: list[tuple[Any, Mapping[str, Any]]] = field(default_factory=list)
    calls: list[tuple[list[Any], Mapping[str, Any]]] = field(default_factory=list)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    ends: tuple[int, ...] = ()

    @property
    def checkpoint(self) -> Any:
        """Of a folder without a generation_config.json."""
        return SimpleNamespace(config=PretrainedConfig(eos_token_id=list(self.ends)))

    def describe(self) -> dict[str, Any]:
        return {"eos_token_ids": list(self.ends)}

    def load(self, model: str, **fields: Any) -> Engine:
        self.loads.append((model, fields))
        self.config = ModelLoadConfig(str(model))
        return self

    def generate_text_batch(self, requests: list[Any], options: Mapping[str, Any]) -> list[Result]:
        copied = [{**r, "messages": list(r["messages"])} if "messages" in r else r for r in requests]
        self.calls.append((copied, dict(options)))
        several = range(options.get("n", 1)) if options.get("n", 1) > 1 else ()
        samples = tuple(Result(text=f"ANSWER {k}") for k in several)
        return [Result(samples=samples) for _ in requests]

    generate_vlm_batch = generate_text_batch

    @property
    def options(self) -> dict[str, Any]:
        """Of the last call, without what says of a checkpoint of run time that it sets nothing."""
        ends = {"token_ids": list(self.ends), "ignore_eos": True}
        idle = {"no_repeat_ngram_size": None, "min_new_tokens": 0, "stop": ends}
        return {name: one for name, one in self.calls[-1][1].items() if idle.get(name, ...) != one}


def row(penalty: float = 1.0, **sampling: Any) -> dict[str, Any]:
    """A golden's row of a greedy call on a checkpoint with a penalty of its own."""
    entries = {
        "temperature": {"value": 0, "from": "caller"},
        "repetition_penalty": {"value": penalty, "from": "checkpoint" if penalty != 1 else "default"},
    }
    entries |= {name: {"value": value, "from": "checkpoint"} for name, value in sampling.items()}
    stop = {"max_new_tokens": {"value": 20, "from": "default"}}
    return {
        "prompt_ids": [1, 2, 3],
        "model": {"class": "QwenForCausalLM", "path": "m"},
        "sampling": entries,
        "stop": stop,
    }


def seen(function: str = "answer", rows: Sequence[Mapping[str, Any]] = (), **arguments: Any) -> Observed:
    rows = tuple(rows) or (row(),)
    case = Case("site", "case", function=f"old.py:{function}", arguments=arguments, rows=rows)
    return Observed("site", (case,), rows, ("m",))


def draft_of(source: str, observed: Observed | None = None, decisions: Decisions | None = None) -> Draft:
    text = textwrap.dedent(source).lstrip()
    return draft_module(text, observed or seen(), decisions or Decisions(yes=True), "the_engine")


def run(draft: Draft, function: str, *args: Any, **fields: Any) -> tuple[Any, Engine]:
    """What a function of a draft returns, and the engine that it used, which has these fields."""
    assert draft.is_moved, draft.todos
    engine = Engine(**fields)
    module = ModuleType("the_engine")
    module.load = engine.load  # type: ignore[attr-defined]
    before = sys.modules.get("the_engine")
    sys.modules["the_engine"] = module
    try:
        names: dict[str, Any] = {"__name__": "draft"}
        exec(compile(draft.code, "draft.py", "exec"), names)
        return names[function](*args), engine
    finally:
        if before is None:
            del sys.modules["the_engine"]
        else:
            sys.modules["the_engine"] = before


def body(text: str, before: str = "", parameters: str = "question", rows: Any = (), **arguments: Any) -> Draft:
    """The draft of a function on a model of the module."""
    lines = [
        "import torch",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        'tok = AutoTokenizer.from_pretrained("m")',
        'model = AutoModelForCausalLM.from_pretrained("m")',
        textwrap.dedent(before),
        f"def answer({parameters}):",
        textwrap.indent(textwrap.dedent(text).strip("\n"), "    "),
    ]
    return draft_of("\n".join(lines) + "\n", seen(rows=rows, **arguments))


PROMPT = "inputs = tok(question, return_tensors='pt')\n"
