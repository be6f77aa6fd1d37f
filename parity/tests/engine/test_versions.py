"""What releases of transformers and vLLM cannot do is refused, by one table; what they do otherwise means the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gen_engine
from gen_engine import (
    Asked,
    GenerationEngine,
    GenerationOptions,
    LoadError,
    ModelLoadConfig,
    Plugin,
    UnsupportedError,
    load,
    refusal_of,
)
from parity.companions.speculation import Speculation
from parity.companions.structured import Grammars, StructuredOptions, grammar_of

from ..conftest import PROMPT, ROOT, TEXT, WINDOW, Load, chat

COUNT = chat("Count to 30.")


class Silent(Plugin):
    def logits(self, token_ids: Any, logits: Any) -> Any:
        return logits


Pretend = Callable[[str, str], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    """`pretend("vllm", "0.11.0")`: for this test, that is what is installed."""

    def set_version(library: str, version: str) -> None:
        gen_engine.installed.cache_clear()
        monkeypatch.setattr(gen_engine.lazy_import(library), "__version__", version)

    yield set_version
    gen_engine.installed.cache_clear()


@pytest.mark.parametrize("version", ["5.0.0", "5.0.0rc1", "5.1.0", "5.2.1"])
def test_a_transformers_that_generates_nothing_is_refused_at_load(pretend: Pretend, version: str) -> None:
    pretend("transformers", version)
    if version == "5.0.0rc1":  # before 5.0 by the rules of versions, and nobody's to use
        assert refusal_of(Asked(ModelLoadConfig(str(TEXT)))) is None
        return
    with pytest.raises(UnsupportedError, match="transformers>=5.0,<5.3 cannot do .*Install transformers>=5.3, or 4.57"):
        load(TEXT)


@pytest.mark.parametrize("version", ["4.57.1", "4.57.6", "5.3.0", "5.4.0", "5.19.0", "5.23.0", "5.24.0", "6.0.0"])
def test_a_transformers_that_works_is_not_refused(pretend: Pretend, version: str) -> None:
    pretend("transformers", version)
    assert refusal_of(Asked(ModelLoadConfig(str(TEXT)))) is None


@pytest.mark.parametrize(
    ("library", "version", "settings", "refused"),
    [
        ("transformers", "4.56.2", {"backend": "hf"}, "transformers<4.57 cannot do"),
        ("transformers", "4.56.2", {"backend": "vllm"}, "transformers<4.57 cannot do"),
        ("transformers", "5.1.0", {"backend": "vllm"}, None),
        ("vllm", "0.10.2", {"backend": "vllm"}, "vllm>=0.2,<0.11 cannot do"),
        ("vllm", "0.11.0", {"backend": "vllm"}, None),
        ("vllm", "0.1.dev1+g0123456", {"backend": "vllm"}, None),
        ("vllm", "0.10.2", {"backend": "hf"}, None),
        ("vllm", "0.19.1", {"backend": "vllm", "logits_hooks": True}, None),
        ("vllm", "0.20.0", {"backend": "vllm", "logits_hooks": True}, "vllm>=0.20,<0.23 cannot do logits hooks"),
        ("vllm", "0.22.1", {"backend": "vllm", "logits_hooks": True}, "vllm>=0.20,<0.23 cannot do logits hooks"),
        ("vllm", "0.22.1", {"backend": "vllm"}, None),
        ("vllm", "0.23.0", {"backend": "vllm", "logits_hooks": True}, None),
        ("vllm", "0.28.0", {"backend": "vllm", "decoder": Speculation("ngram")}, "vllm<0.29 cannot do speculation"),
        ("vllm", "0.29.0", {"backend": "vllm", "decoder": Speculation("ngram")}, None),
        ("vllm", "0.28.0", {"backend": "hf", "decoder": Speculation("ngram")}, None),
        ("transformers", "5.23.0", {"backend": "hf", "adapters": {"one": "x"}}, None),
    ],
    ids=str,
)
def test_what_a_release_cannot_do_is_data(
    pretend: Pretend, library: str, version: str, settings: dict[str, Any], refused: str | None
) -> None:
    pretend(library, version)
    said = refusal_of(Asked(ModelLoadConfig(str(TEXT), **settings)))
    assert said is None if refused is None else refused in str(said)


@pytest.mark.parametrize(
    ("version", "settings", "refused"),
    [
        ("0.11.0", {}, True),
        ("0.11.0", {"max_model_len": 8192}, True),
        ("0.11.0", {"max_model_len": 8192, "vllm_kwargs": {"enable_chunked_prefill": False}}, True),
        ("0.11.0", {"max_model_len": 8192, "vllm_kwargs": {"max_num_batched_tokens": 8192}}, False),
        ("0.11.0", {"max_model_len": 4096}, False),
        ("0.12.0", {"max_model_len": 8192}, False),
    ],
    ids=str,
)
def test_samples_are_refused_where_vllm_may_compute_a_prompt_in_parts(
    pretend: Pretend, version: str, settings: dict[str, Any], refused: bool
) -> None:
    """vLLM 0.11 can only be kept from it where a step has as many tokens as the window."""
    pretend("vllm", version)
    config = ModelLoadConfig(str(TEXT), backend="vllm", **settings)
    said = refusal_of(Asked(config, GenerationOptions(temperature=1.0)))
    assert ("cannot do samples on a CPU" in str(said)) == refused
    assert refusal_of(Asked(config, GenerationOptions())) is None


@pytest.mark.parametrize(("version", "refused"), [("0.11.2", True), ("0.12.0", False)])
def test_samples_are_refused_where_the_scheduler_is_out_of_reach(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, version: str, refused: bool
) -> None:
    """In a process of its own vLLM 0.11 died of them, and with it the engine."""
    pretend("vllm", version)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    config = ModelLoadConfig(str(TEXT), backend="vllm", max_model_len=WINDOW)
    said = refusal_of(Asked(config, GenerationOptions(temperature=1.0)))
    assert ("samples on a CPU in a process of its own" in str(said)) == refused
    assert refusal_of(Asked(config, GenerationOptions())) is None


@pytest.mark.parametrize(("version", "refused"), [("0.11.0", True), ("0.13.0", True), ("0.14.0", False)])
def test_plugins_that_could_break_a_structure_are_refused_where_vllm_goes_on(
    pretend: Pretend, version: str, refused: bool
) -> None:
    pretend("vllm", version)
    config = ModelLoadConfig(str(TEXT), backend="vllm", logits_hooks=True)
    shaped = dataclasses.replace(PROMPT, structured='root ::= "a"')
    said = refusal_of(Asked(config, plugins=gen_engine.adopt_plugins([Silent()]), prompts=[shaped]))
    assert ("logits plugins beside structures" in str(said)) == refused
    assert refusal_of(Asked(config, prompts=[shaped])) is None
    assert refusal_of(Asked(config, plugins=gen_engine.adopt_plugins([Silent()]), prompts=[PROMPT])) is None


@pytest.mark.parametrize(("peft", "refused"), [("0.21.2", True), ("0.22.0", False)])
def test_adapters_take_the_peft_that_their_transformers_asks_for(pretend: Pretend, peft: str, refused: bool) -> None:
    pretend("peft", peft)  # first: transformers 4 is loaded anew where peft is
    pretend("transformers", "5.24.0")
    said = refusal_of(Asked(ModelLoadConfig(str(TEXT), adapters={"one": "x"})))
    assert ("install peft>=0.22" in str(said).lower()) == refused


def test_structures_beside_free_rows_are_refused_where_vllm_would_pin_memory(pretend: Pretend) -> None:
    free, shaped = PROMPT, dataclasses.replace(PROMPT, structured='root ::= "a"')
    for version, prompts, refused in (
        ("0.14.1", (free, shaped), True), ("0.14.1", (shaped, shaped), False), ("0.14.1", (free,), False),
        ("0.11.0", (free, shaped), False), ("0.20.2", (free, shaped), False),
    ):  # fmt: skip
        pretend("vllm", version)
        said = refusal_of(Asked(ModelLoadConfig(str(TEXT), backend="vllm"), prompts=prompts))
        assert ("structures beside free rows" in str(said)) == refused


def test_a_window_that_slides_is_refused_at_load_where_vllm_has_none_on_a_cpu(pretend: Pretend) -> None:
    mistral = ROOT / "golden/models/random-mistral"
    pretend("vllm", "0.11.0")
    with pytest.raises(UnsupportedError, match="vllm>=0.11,<0.12 cannot do a sliding window on a CPU"):
        load(mistral, backend="vllm")
    ways: list[dict[str, Any]] = [{"backend": "vllm", "fallback_backend": "hf"}, {"backend": "auto"}]
    for asked in ways:
        with load(mistral, **asked) as engine:
            assert engine.backend.name == "hf"
    with pytest.raises(LoadError, match="cannot read the checkpoint '/nowhere/at/all'"):
        load("/nowhere/at/all", backend="vllm")
    assert refusal_of(Asked(ModelLoadConfig(str(TEXT), backend="vllm"))) is None
    pretend("vllm", "0.12.0")
    assert refusal_of(Asked(ModelLoadConfig(str(mistral), backend="vllm"))) is None


@pytest.mark.parametrize(("version", "refused"), [("0.26.0", True), ("0.27.0", False)])
def test_a_window_that_no_layer_has_is_refused_where_vllm_gives_it_to_all(
    pretend: Pretend, edited: Any, version: str, refused: bool
) -> None:
    """vllm-project/vllm#49795: an answer to a prompt longer than the window was made of its end."""
    llama = ROOT / "golden/models/random-llama"
    layers = ["full_attention"] * json.loads((llama / "config.json").read_text())["num_hidden_layers"]
    windowed = edited(llama, {"config.json": {"sliding_window": 8, "layer_types": layers}})
    pretend("vllm", version)
    said = refusal_of(Asked(ModelLoadConfig(str(windowed), backend="vllm")))
    assert ("a sliding window that no layer has" in str(said)) == refused
    assert refusal_of(Asked(ModelLoadConfig(str(llama), backend="vllm"))) is None


def test_a_refused_release_falls_back_only_to_one_that_works(pretend: Pretend) -> None:
    pretend("vllm", "0.10.2")
    with load(TEXT, backend="vllm", fallback_backend="hf") as engine:
        assert (engine.backend.name, engine.fallback_from) == ("hf", "vllm")
    pretend("transformers", "5.1.0")
    with pytest.raises(UnsupportedError, match="vllm>=0.2,<0.11"):
        load(TEXT, backend="vllm", fallback_backend="hf")


def left_inside(engine: GenerationEngine) -> tuple[int, int]:
    """Requests that vLLM still has: (in its output processor, in its scheduler)."""
    inner = engine.model.llm_engine
    return len(inner.output_processor.request_states), len(inner.engine_core.engine_core.scheduler.requests)


def test_after_a_stop_no_request_is_left_in_vllm(shared: Load) -> None:
    engine = shared(TEXT, "vllm")
    results = engine.generate_text_batch([COUNT, chat("Count to 12.")], {"max_new_tokens": 200, "stop": [", 5"]})
    assert [result.stop_reason for result in results] == [", 5", ", 5"]
    assert left_inside(engine) == (0, 0)


def test_a_vllm_that_does_not_say_its_ids_is_asked_for_them(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.14 to 0.16 give each request an id of their own, and return none."""
    engine = shared(TEXT, "vllm")
    inner = engine.model.llm_engine
    add = inner.add_request
    monkeypatch.setattr(inner, "add_request", lambda *given, **named: add(*given, **named) and None)
    [result] = engine.generate_text_batch([COUNT], {"max_new_tokens": 200, "stop": [", 5"]})
    assert result.stop_reason == ", 5"
    assert left_inside(engine) == (0, 0)


def test_a_stop_id_inside_a_structure_ends_the_row_there_on_both(shared: Load) -> None:
    letters = {shared(TEXT, "hf").tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "ab"}
    request = chat("What is the capital of France?", structured={"regex": "[ab]c[ab]c"})
    for backend in ("hf", "vllm"):
        [result] = shared(TEXT, backend).generate_text_batch([request], {"stop": {"token_ids": sorted(letters)}})
        assert (result.text, result.finish_reason, result.completion_tokens) == ("", "stop", 1)


def writes(engine: GenerationEngine, structured: dict[str, Any], text: str) -> bool:
    """Whether an answer with this structure may begin with this text."""
    grammar = grammar_of(gen_engine.build(StructuredOptions, structured))
    compiled = Grammars(engine.checkpoint).compiler.compile_grammar(grammar)
    return bool(gen_engine.lazy_import("xgrammar").GrammarMatcher(compiled).accept_string(text))


def test_json_of_anything_is_written_without_white_space(shared: Load) -> None:
    """What may stand anywhere has rules of its own in xgrammar, which forget the separators."""
    engine, anything = shared(TEXT, "hf"), {"json": {"type": "array", "items": {}}}
    assert writes(engine, {"json_object": True}, '{"a":[1,"b, c"],"d":{"e":2,"f":3}}')
    assert not writes(engine, {"json_object": True}, '{"a":1, "b":2}')
    assert writes(engine, anything, '[{"a":[1,2]},3]') and not writes(engine, anything, "[[1, 2],3]")
    for value in ('", "', ", ", '\\", "', '"a", "b"'):  # text that looks like a separator stays
        assert writes(engine, {"json": {"enum": [value]}}, json.dumps(value))
        assert writes(engine, {"choice": [value]}, value)


def test_a_structure_may_end_in_any_end_of_text_id_on_both(shared: Load, edited: Any) -> None:
    """Before 0.32 vLLM itself lets it end in the tokenizer's own one only."""
    base = shared(TEXT, "hf")
    [free] = base.generate_text_batch([chat("What is the capital of France?")])
    used, other = free.token_ids[-1], next(i for i in base.checkpoint.eos_ids if i != free.token_ids[-1])
    model = edited(TEXT, {"tokenizer_config.json": {"eos_token": base.tokenizer.convert_ids_to_tokens(other)}})
    request = chat("What is the capital of France?", structured={"choice": [free.text, "no"]})
    for backend in ("hf", "vllm"):
        [result] = shared(model, backend).generate_text_batch([request])
        assert (result.text, result.finish_reason, result.token_ids[-1]) == (free.text, "eos", used)


MASKED = {"min_new_tokens": 1, "stop": {"ignore_eos": True, "strings": ["a"]}}
CALLS: list[tuple[dict[str, Any], bool, str | None]] = [
    # options of a call, whether vLLM has the hook of logits, what vLLM refuses; hf does all of it
    ({"temperature": 0}, False, None),
    ({"temperature": 0.009}, False, "a temperature that is not 0 or 0.01 to 2"),
    ({"temperature": 0.01}, False, None),
    ({"temperature": 2}, False, None),
    ({"temperature": 2.01}, False, "a temperature that is not 0 or 0.01 to 2"),
    ({"logits": True}, False, "logits without its hook"),
    ({"logits": True}, True, None),
    ({"logits": True, "min_new_tokens": 1}, True, "logits with min_new_tokens"),
    ({"no_repeat_ngram_size": 2}, False, "no_repeat_ngram_size without its hook"),
    ({"no_repeat_ngram_size": 2}, True, None),
    ({"replay": [[5]]}, False, "a replay without its hook"),
    ({"replay": [[5]]}, True, None),
    (MASKED, False, "min_new_tokens with ignore_eos and stops"),
    ({**MASKED, "min_new_tokens": 0}, False, None),
    ({"min_new_tokens": 1, "stop": {"ignore_eos": True}}, False, None),
    ({"min_new_tokens": 1, "stop": ["a"]}, False, None),
]


@pytest.mark.parametrize(("options", "has_hook", "refused"), CALLS, ids=str)
def test_refusal_of_a_call_names_what_vllm_cannot_do(
    options: dict[str, Any], has_hook: bool, refused: str | None
) -> None:
    config = ModelLoadConfig(str(TEXT), backend="vllm", max_model_len=WINDOW, logits_hooks=has_hook)
    asked = Asked(config, GenerationOptions(**options))
    error = refusal_of(asked)
    assert refused is None if error is None else error.problem == f"vllm cannot do {refused}"
    assert refusal_of(asked._replace(config=ModelLoadConfig(str(TEXT)))) is None
