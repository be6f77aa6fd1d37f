"""Drafts of loads: what `load` decides in place of the old code is said."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gen_engine import GenerationOptions
from parity.draft.observed import Mention, absent_words, checkpoint_path, with_checkpoint
from parity.record.taps.models import weights_on_disk

from .drafts import PROMPT, Tokenizer, draft_of, row, run, seen

SOURCE = """
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from vllm import LLM, SamplingParams

LOADS

def answer(question, device="cuda"):
    inputs = tok(question, return_tensors="pt").to(device)
    out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""
TOK = 'tok = AutoTokenizer.from_pretrained("m")\n'
MODEL = 'model = AutoModelForCausalLM.from_pretrained("m")\n'


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        (TOK + MODEL.replace('"m"', '"m", device_map="auto"'), 'device_map="auto"'),
        (TOK + MODEL.replace('")', '").to("cuda").eval()'), '.to("cuda")'),
        (TOK + MODEL + "model.cuda()\n", ".cuda()"),
        (TOK + MODEL + "if NAME:\n    model.to(NAME)\n", ".to(NAME)"),
        (MODEL + TOK.replace('"m"', '"m", use_fast=False'), "use_fast=False"),
        (MODEL.replace('"m"', '"m", low_cpu_mem_usage=True, max_memory={0: "9GB"}') + TOK,
         'low_cpu_mem_usage=True, max_memory={0: "9GB"}'),
        (TOK + MODEL.replace('"m"', '"m", device_map=None'), ""),
        (TOK + MODEL.replace('"m"', '"m", device_map="cpu"'), ""),
    ],
)  # fmt: skip
def test_draft_says_in_a_comment_what_load_decides(loads: str, said: str) -> None:
    draft = draft_of(SOURCE.replace("LOADS", f"NAME = 'x'\n{loads}"), seen(question="x"))
    assert run(draft, "answer", "Why?")[0] == "ANSWER" and not draft.todos
    assert [line for line in draft.code.splitlines() if "left to load()" in line] == (
        [f"# left to load(): {said}"] if said else []
    )


def test_draft_of_a_cached_loader_says_it_above_the_loader() -> None:
    source = """
        import functools
        from transformers import pipeline

        @functools.lru_cache
        def get():
            return pipeline("text-generation", model="m", device=0, tokenizer="m")

        def answer(question):
            return get()(question, max_new_tokens=5, return_full_text=False)[0]["generated_text"]
    """
    draft = draft_of(source, seen(question="x"))
    assert run(draft, "answer", "Why?")[0] == "ANSWER" and not draft.todos
    assert "# left to load(): device=0\n@functools.cache\ndef get():" in draft.code
    few = draft_of(source.replace("lru_cache", "lru_cache(maxsize=2)"), seen(question="x"))
    assert run(few, "answer", "Why?")[0] == "ANSWER" and not few.todos
    assert "@functools.lru_cache(maxsize=2)\ndef get():" in few.code, "as many models as there was room for"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (TOK, TOK.replace('"m"', '"m", add_bos_token=False'), "is told add_bos_token=False"),
        ("LLM(", 'LLM(tokenizer="other", model=', 'the tokenizer is "other", the model "m"'),
        ("LLM(", 'LLM(tokenizer_mode="mistral", model=', 'tokenizer_mode="mistral"'),
        ("LLM(", 'LLM(tokenizer="m", tokenizer_mode="auto", model=', ""),
    ],
)
def test_draft_leaves_a_todo_where_the_tokenizer_is_another(old: str, new: str, says: str) -> None:
    source = textwrap.dedent(SOURCE).replace("LOADS", f"{TOK}{MODEL}llm = LLM('m')\n".replace("'", '"'))
    draft = draft_of(source.replace(old, new), seen(question="x"))
    assert draft.is_moved and [says in todo.text for todo in draft.todos] == ([True] if says else [])
    assert "# TODO parity: " in draft.code or not says


def rows_in(dtype: str, **model: str) -> list[dict[str, Any]]:
    return [{**row(), "model": {**row()["model"], "dtype": dtype, **model}}]


LOADER = """def make():
    model = AutoModelForCausalLM.from_pretrained("m")CAST
    return model, AutoTokenizer.from_pretrained("m")

model, tok = make()
"""


@pytest.mark.parametrize("loads", [TOK + MODEL, MODEL + TOK, LOADER])
@pytest.mark.parametrize(
    ("cast", "fields"),
    [
        (".float()", {"dtype": "float32"}),
        (".to(torch.float32).eval()", {"dtype": "float32"}),
        (".eval().to('cuda', torch.float32)", {"dtype": "float32"}),
        (".to(device='cuda', dtype=getattr(torch, NAME))", {"dtype": "float32"}),
        ("\nmodel.float()", {"dtype": "float32"}),
        ("\nmodel = model.to(torch.float32)", {"dtype": "float32"}),
    ],
)
def test_draft_loads_a_model_in_the_dtype_that_it_is_cast_to(cast: str, fields: dict[str, str], loads: str) -> None:
    text = loads.replace("CAST", cast.replace("\n", "\n    ")) if "CAST" in loads else loads
    text = text if "CAST" in loads else text.replace(MODEL, MODEL.rstrip() + cast + "\n")
    source = SOURCE.replace("LOADS", f"import torch\nNAME = 'float32'\n{text}")
    observed = seen(rows=rows_in("float32"), question="x")
    value, engine = run(draft_of(source, observed), "answer", "Why?")
    assert value == "ANSWER" and engine.loads == [("m", fields)]


@pytest.mark.parametrize(
    ("cast", "model", "says"),
    [
        ("model.half()", {}, "it is not moved into load()"),
        ("if NAME:\n    model.float()", {}, "it is not moved into load()"),
        (LOADER.replace("CAST", "\n    if NAME:\n        model = model.half()"), {}, "it is not moved into load()"),
        ("def get():\n    return model\nmodel = get().half()", {}, "it is not moved into load()"),
        ('model = AutoModelForCausalLM.from_pretrained("m", dtype=torch.bfloat16).float()', {}, "another dtype before"),
        ('model = AutoModelForCausalLM.from_pretrained("m").half()', {"buffers": "float16"}, "buffers"),
    ],
)
def test_draft_leaves_a_cast_that_load_does_not_do(cast: str, model: dict[str, str], says: str) -> None:
    source = SOURCE.replace("LOADS", f"import torch\nNAME = 'float32'\n{TOK}{MODEL}{cast}\n")
    draft = draft_of(source, seen(rows=rows_in("float32", **model), question="x"))
    assert not draft.is_moved and says in draft.todos[0].text and draft.code.count("# TODO parity: ") == 1


@pytest.mark.parametrize(
    "old",
    [
        LOADER.replace("CAST", ".half()"),  # what only loads is translated as a whole
        TOK + MODEL + "if NAME: model.half()\n",  # a line of its own, and no statement of its own
    ],
)
def test_draft_that_is_not_sure_says_so_in_the_file(old: str) -> None:
    source = SOURCE.replace("LOADS", f"NAME = 'x'\n{old}")
    draft = draft_of(source, seen(rows=rows_in("float32", buffers="float16"), question="x"))
    assert not draft.is_moved and [f"# TODO parity: {todo.text}" in draft.code for todo in draft.todos] == [True]
    assert all(todo.line for todo in draft.todos)


def test_draft_of_a_pipeline_says_its_model_kwargs_to_load() -> None:
    source = """
        import torch, transformers
        ask = transformers.pipeline("text-generation", model="m", model_kwargs={"torch_dtype": torch.bfloat16})

        def answer(question):
            return ask(question, max_new_tokens=5, return_full_text=False)[0]["generated_text"]
    """
    value, engine = run(draft_of(source, seen(question="x")), "answer", "Why?")
    assert (value, engine.loads) == ("ANSWER", [("m", {"dtype": "bfloat16"})])


def test_checkpoint_of_a_golden_is_the_folder_with_its_weights(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "m").mkdir(parents=True)
        (tmp_path / name / "m" / "model.safetensors").write_bytes(name.encode())
    mentions = [Mention(str(tmp_path / name / "m"), name) for name in ("old", "new")]
    for name in ("old", "new"):
        digests = {weights_on_disk(str(tmp_path / name / "m")) or ""}
        assert checkpoint_path("m", mentions, digests).text == str(tmp_path / name / "m")
    assert "or its weights are others" in absent_words(checkpoint_path("m", mentions, {"gone"}))


def test_checkpoints_of_one_name_are_not_told_apart_by_it() -> None:
    rows = [rows_in("float32", files=digest)[0] for digest in ("one", "two")]
    assert with_checkpoint(seen(rows=rows), []).problem == "the goldens were made with 2 checkpoints that are called m"


ONE_OR_TWO = """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def load_both(path):
        tok = AutoTokenizer.from_pretrained(path)
        return AutoModelForCausalLM.from_pretrained(path), tok

    class Quiz:
        def __init__(self, path="m", other="n"):
            LOADS

        def answer(self, text):
            inputs = self.tok(text, return_tensors="pt")
            out = self.model.generate(**inputs, max_new_tokens=5, do_sample=False)
            return self.tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""
TOK_OF = "self.tok = AutoTokenizer.from_pretrained({})"
MODEL_OF = "self.model = AutoModelForCausalLM.from_pretrained({})"
FURTHER_OF = MODEL_OF.replace("self.model", "self.judge")


def of_loads(*lines: str, function: str = "Quiz.answer") -> Any:
    source = ONE_OR_TWO.replace("LOADS", "\n            ".join(lines))
    return draft_of(source, seen(function, text="x"))


@pytest.mark.parametrize(
    "lines",
    [
        (TOK_OF.format("path"), MODEL_OF.format("path"), FURTHER_OF.format("other")),
        (MODEL_OF.format("path"), FURTHER_OF.format("other"), TOK_OF.format("path")),
        (TOK_OF.format("path"), MODEL_OF.format("path"), FURTHER_OF.format("path, dtype=torch.float32")),
        (TOK_OF.format("path"), MODEL_OF.format("path"), "path = other", FURTHER_OF.format("path")),
        ("self.model, self.tok = load_both(path)", "self.judge, self.rules = load_both(other)"),
        ("a, tok = load_both(path)", "b, rules = load_both(other)", "self.model, self.judge, self.tok = a, b, tok"),
    ],
    ids=["behind it", "before the tokenizer", "another dtype", "a name that is bound again", "of a helper", "by names"],
)
def test_draft_of_a_class_with_two_models_is_refused(lines: tuple[str, ...]) -> None:
    """One engine stood for both: answers of the second model came from the first, and goldens passed."""
    draft = of_loads(*lines)
    assert not draft.is_moved
    assert any("a class of a draft has one engine" in todo.text for todo in draft.todos)


@pytest.mark.parametrize(
    "lines",
    [
        (TOK_OF.format("path"), MODEL_OF.format("path")),
        (MODEL_OF.format("path"), TOK_OF.format("path"), "self.judge = self.model"),
        ("model, tok = load_both(path)", "self.model = model", "self.tok = tok"),
        ("model, tok = load_both(path)", "self.model, self.tok = model, tok"),
        (
            "if other:",
            "    " + MODEL_OF.format("other"),
            "else:",
            "    " + MODEL_OF.format("path"),
            TOK_OF.format("path"),
        ),
    ],
    ids=["one", "of two names", "by a helper", "by names", "in branches"],
)
def test_draft_of_a_class_with_one_model_is_moved(lines: tuple[str, ...]) -> None:
    assert of_loads(*lines).is_moved


def test_draft_of_a_class_says_that_its_tokenizer_is_anothers() -> None:
    draft = of_loads(TOK_OF.format("path"), MODEL_OF.format("other"))
    assert "a prompt is made by the tokenizer of path" in " ".join(todo.text for todo in draft.todos)


@pytest.mark.parametrize("decorator", ["staticmethod", "property", "functools.cached_property"])
def test_draft_of_what_loads_under_another_decorator_is_refused(decorator: str) -> None:
    """It became `functools.cache` alone, and the draft called it with one argument too many."""
    loader = (
        f"@{decorator}\n        def load_it(path):\n            return AutoModelForCausalLM.from_pretrained(path)\n"
    )
    source = ONE_OR_TWO.replace("def answer", f"{loader}\n        def answer")
    source = source.replace("LOADS", f"{TOK_OF.format('path')}\n            self.model = self.load_it(path)")
    draft = draft_of(source, seen("Quiz.answer", text="x"))
    assert not draft.is_moved and any(f"`@{decorator}` stands at what loads" in todo.text for todo in draft.todos)


FREE = """from transformers import AutoModelForCausalLM, AutoTokenizer


def answer(path, question):
    tok = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
"""

SAID = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 7, "repetition_penalty": 1.3}
TAKEN = {"temperature": 0.6, "top_p": 0.9, "top_k": 7, "min_p": 0.0, "repetition_penalty": 1.3}
HOT, OWN = {"temperature": 1.0}, {"repetition_penalty": 1.1}
NONE_SAID = {"temperature": 0.0, "top_p": 1.0, "top_k": 50, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize(
    ("call", "recorded", "other"),
    [
        ("max_new_tokens=5, do_sample=False", {"repetition_penalty": 1.3}, {"repetition_penalty": 1.0}),
        ("max_new_tokens=5", TAKEN, NONE_SAID),
        ("max_new_tokens=5, do_sample=True, top_p=0.5", {**TAKEN, "top_p": 0.5}, {**NONE_SAID, **HOT, "top_p": 0.5}),
        ("max_new_tokens=5, repetition_penalty=1.1", {**TAKEN, **OWN}, {**NONE_SAID, **OWN}),
        ("**words", TAKEN, {"repetition_penalty": 1.0}),
        ("**words, do_sample=False", {"repetition_penalty": 1.3}, {"repetition_penalty": 1.0}),
        ("do_sample=True, temperature=0.7, **words", {**TAKEN, "temperature": 0.7}, {**NONE_SAID, "temperature": 0.7}),
        ("repetition_penalty=1.1, top_k=0, **words", {**TAKEN, **OWN, "top_k": None}, OWN),
    ],
)  # fmt: skip
@pytest.mark.parametrize("made", ["Asker(path).ask(question)", "Careful().ask(question)"])
def test_draft_of_a_class_that_takes_any_checkpoint_asks_each_what_it_sets(
    made: str, call: str, recorded: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    """The goldens show one of them."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(SAID))
    source = f"""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        class Asker:
            def __init__(self, path):
                self.model = AutoModelForCausalLM.from_pretrained(path)
                self.tokenizer = AutoTokenizer.from_pretrained(path)

            def ask(self, question, **words):
                words = {{"max_new_tokens": 5, **words}}
                inputs = self.tokenizer(question, return_tensors="pt")
                out = self.model.generate(**inputs, {call})
                return self.tokenizer.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

        class Careful(Asker):
            def __init__(self):
                super().__init__({str(tmp_path / "other")!r})

        def answer(path, question):
            return {made.replace("Careful()", "(Careful() if path is None else Asker(path))")}
    """
    observed = replace(seen("Asker.ask", question="x"), models=(str(tmp_path / "m"),), settings=SAID)
    draft = draft_of(source, observed)
    _, engine = run(draft, "answer", str(tmp_path / "m"), "Why?")
    assert engine.options == {"max_new_tokens": 5, **recorded}
    path = None if "Careful" in made else str(tmp_path / "other")
    _, engine = run(draft, "answer", path, "Why?")
    assert engine.options == {"max_new_tokens": 5, **other}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"min_length": 3}, "sets min_length: say it in the options"),
        ({"min_length": 1, "bad_words_ids": [[3]]}, "sets bad_words_ids, min_length: say"),
        ({"begin_suppress_tokens": [5]}, "sets begin_suppress_tokens"),
        ({"exponential_decay_length_penalty": [3, 1.5]}, "sets exponential_decay_length_penalty"),
        ({"guidance_scale": 1.5}, "sets guidance_scale"),
        ({"num_return_sequences": 2, "do_sample": True}, "sets num_return_sequences"),
        ({"epsilon_cutoff": 0.1}, "sets epsilon_cutoff"),
        ({"num_beams": 2}, "sets num_beams"),
        ({"max_length": 99}, "sets max_length: say"),
    ],
)
@pytest.mark.parametrize("call", ["", "do_sample=False, repetition_penalty=1.0", "**words"])
def test_a_checkpoint_that_sets_what_a_draft_cannot_take_from_it_is_refused_when_it_is_asked(
    call: str, said: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6, **said}))
    draft = draft_of(FREE.replace("question", "question, **words") + asks(call), seen(question="x"))
    with pytest.raises(ValueError, match=problem):
        run(draft, "answer", str(tmp_path), "Why?", ends=(6,), tokenizer=Special())


class Special(Tokenizer):
    """Of some special tokens, by default 6 alone."""

    def __init__(self, special: Sequence[int] = (6,)) -> None:
        self.special = special

    def decode(self, ids: Sequence[int], **said: Any) -> str:
        return super().decode([one for one in ids if one not in self.special], **said)


ENDS_AT_6: dict[str, Any] = {"ends": (6,), "tokenizer": Special()}


def asks(call: str) -> str:
    """A function's body that generates with these keywords."""
    code = PROMPT + f"out = model.generate(**inputs, {call})\nreturn tok.decode(out[0][inputs.input_ids.shape[1]:])"
    return textwrap.indent(code.replace(", )", ")"), "    ")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("max_new_tokens=5", {"max_length": 99}),
        ("no_repeat_ngram_size=2", {"no_repeat_ngram_size": 3}),
        ("**{'no_repeat_ngram_size': 2, **words}", {"no_repeat_ngram_size": 3}),
        ("eos_token_id=6", {"eos_token_id": [6, 7]}),
        ("", {"num_beams": 1, "typical_p": 1.0, "guidance_scale": 1, "use_cache": True, "chat_format": "chatml"}),
    ],
)
def test_what_a_call_says_and_what_changes_nothing_is_refused_of_no_checkpoint(
    call: str, said: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6, **said}))
    draft = draft_of(FREE.replace("question", "question, **words") + asks(call), seen(question="x"))
    _, engine = run(draft, "answer", str(tmp_path), "Why?", ends=(6,), tokenizer=Special())
    GenerationOptions(**engine.calls[0][1])


@pytest.mark.parametrize(
    ("said", "call", "stop"),
    [
        ({"eos_token_id": 6}, "eos_token_id=6", [6]),
        ({"eos_token_id": [6, 7]}, "eos_token_id=tok.eos_token_id", [6]),
        ({"eos_token_id": [6, 7]}, "eos_token_id=[tok.eos_token_id, 8]", [6, 8]),
    ],
)
def test_ends_that_a_call_says_are_kept_though_one_checkpoint_has_them(
    said: dict[str, Any], call: str, stop: list[int], tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    rows = [{**row(), "stop": {"end_ids": {"value": [6], "from": "caller"}}}]
    recorded = SimpleNamespace(eos_ids=(6,), special_tokens={6: "<end>"}, dtype=None, template_owner=None)
    draft = draft_of(FREE + asks(call), replace(seen(rows=rows, question="x"), checkpoint=recorded))
    _, engine = run(draft, "answer", str(tmp_path), "Why?", ends=(6, 7), tokenizer=Special(range(9)))
    assert engine.calls[0][1]["stop"] == {"token_ids": stop, "ignore_eos": True}


@pytest.mark.parametrize("call", ["", "do_sample=False, repetition_penalty=1.0", "**words", "num_beams=1, **words"])
@pytest.mark.parametrize(
    ("said", "options"),
    [
        ({"eos_token_id": [6, 7]}, {"stop": {"token_ids": [6, 7], "ignore_eos": True}}),
        ({"eos_token_id": None}, {"stop": {"token_ids": [], "ignore_eos": True}}),
        ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),
        ({"min_new_tokens": 4}, {"min_new_tokens": 4}),
    ],
)
def test_ends_and_limits_that_another_checkpoint_sets_are_its_own(
    call: str, said: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """They were refused, and the ends of the recorded one were no sign of another's."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6, **said}))
    rows = [{**row(), "stop": {"end_ids": {"value": [6], "from": "checkpoint"}}}]
    recorded = SimpleNamespace(eos_ids=(6, 7), special_tokens={6: "", 7: ""}, dtype=None, template_owner=None)
    observed = replace(seen(rows=rows, question="x"), checkpoint=recorded)
    draft = draft_of(FREE.replace("question", "question, **words") + asks(call), observed)
    _, engine = run(draft, "answer", str(tmp_path), "Why?", ends=(6,), tokenizer=Special(range(9)))
    expected = {"max_new_tokens": 20, "repetition_penalty": 1.0, **options}
    assert {name: engine.options[name] for name in expected} == expected


NONE = dict.fromkeys(["temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens", "eos_token_id"])


@pytest.mark.parametrize(
    ("given", "keywords", "config"),
    [
        (NONE, {"top_k": None, "max_new_tokens": 20, "ends": []}, {}),
        (
            {**NONE, "temperature": 0.5},
            {"temperature": 0.5, "top_k": None, "max_new_tokens": 20, "ends": []},
            {"temperature": 0.5},
        ),
        (
            {**NONE, "top_k": 0, "eos_token_id": 8},
            {"top_k": None, "max_new_tokens": 20, "ends": [8]},
            {"top_k": None, "ends": [8]},
        ),
        ({**NONE, "max_new_tokens": 5}, {"top_k": None, "max_new_tokens": 5, "ends": []}, {"max_new_tokens": 5}),
    ],
)
@pytest.mark.parametrize("is_config", [False, True])
def test_none_of_a_keyword_is_nothing_and_none_of_a_config_is_what_the_checkpoint_sets(
    given: dict[str, Any], keywords: dict[str, Any], config: dict[str, Any], is_config: bool, tmp_path: Path
) -> None:
    own = {"temperature": 0.6, "top_p": 0.9, "top_k": 7, "repetition_penalty": 1.3, "max_new_tokens": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps({**own, "eos_token_id": 6}))
    words = ", ".join(f"{name}={name}" for name in NONE)
    call = f"generation_config=GenerationConfig(do_sample=True, {words})" if is_config else f"do_sample=True, {words}"
    code = FREE.replace("question", f"question, {', '.join(NONE)}") + asks(call)
    draft = draft_of(code.replace("import Auto", "import GenerationConfig, Auto"), seen(question="x"))
    _, engine = run(draft, "answer", str(tmp_path), "Why?", *given.values(), ends=(6,), tokenizer=Special(range(9)))
    nothing = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
    wanted = {**own, "ends": [6], **config} if is_config else {**nothing, **keywords}
    ends = wanted.pop("ends")
    assert {name: engine.calls[0][1][name] for name in wanted} == wanted
    assert engine.calls[0][1]["stop"] == {"token_ids": ends, "ignore_eos": True}
    GenerationOptions(**engine.calls[0][1])


def test_none_of_a_config_is_what_the_checkpoint_sets_where_the_source_names_it() -> None:
    rows = [row(temperature=0.6, top_k=7)]
    rows[0]["sampling"]["temperature"] = {"value": 0.6, "from": "checkpoint"}
    call = "generation_config=GenerationConfig(do_sample=True, temperature=temperature, top_k=top_k, top_p=None)"
    code = FREE.replace("path, question", "question, temperature=None, top_k=None").replace("(path", '("m"') + asks(
        call
    )
    draft = draft_of(code.replace("import Auto", "import GenerationConfig, Auto"), seen(rows=rows, question="x"))
    taken = [run(draft, "answer", "Why?", *given)[1].options for given in ((), (0.5, 0), (0.9, 4))]
    assert [(one["temperature"], one["top_k"]) for one in taken] == [(0.6, 7), (0.5, None), (0.9, 4)]


CONFIG = """
    config = GenerationConfig.from_pretrained(path)
    config.do_sample = False
    inputs = tok(question, return_tensors="pt")
    out = model.generate(**inputs, generation_config=config)
    return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)
"""
OF_CONFIG = FREE.replace("import Auto", "import GenerationConfig, Auto") + CONFIG
ORDINARY = {"use_cache": False, "bos_token_id": 1, "pad_token_id": 7, "max_length": 99, "max_new_tokens": 7}


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ({**ORDINARY, "num_return_sequences": 1, "do_sample": True}, {}),
        ({"max_new_tokens": 7, "min_new_tokens": 2}, {"min_new_tokens": 2}),
        ({"max_new_tokens": 7, "no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    ],
)
def test_fields_of_a_config_of_any_checkpoint_are_taken_or_change_nothing(
    said: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6, **said}))
    _, engine = run(draft_of(OF_CONFIG, seen(question="x")), "answer", str(tmp_path), "Why?", **ENDS_AT_6)
    ends = {"stop": {"token_ids": [6], "ignore_eos": True}}
    assert engine.calls[0][1] == {"max_new_tokens": 7, "repetition_penalty": 1.0, **options, **ends}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"num_beams": 3}, "no option num_beams, which is 3, by the call or the checkpoint's generation_config"),
        ({"num_return_sequences": 2, "do_sample": True}, "no option num_return_sequences"),
        ({"max_length": 99}, "max_length counts the prompt, too: say max_new_tokens"),
    ],
)
def test_fields_of_a_config_that_the_engine_has_no_option_for_are_refused(
    said: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6, **said}))
    with pytest.raises(ValueError, match=problem):
        run(draft_of(OF_CONFIG, seen(question="x")), "answer", str(tmp_path), "Why?", **ENDS_AT_6)


CUTS = {"do_sample": True, "min_p": 0.2, "top_p": 0.5}


@pytest.mark.parametrize(
    ("call", "said", "is_refused"),
    [
        ("", CUTS, True),
        ("**words", CUTS, True),
        ("top_p=0.5", {**CUTS, "top_p": 1.0}, True),
        ("do_sample=True", {**CUTS, "do_sample": False}, True),
        ("do_sample=False", CUTS, False),
        ("top_p=1.0", CUTS, False),
        ("top_p=None", CUTS, False),
        ("min_p=0.0, **words", CUTS, False),
    ],
)
def test_min_p_beside_top_p_is_refused_of_a_checkpoint_that_sets_either(
    call: str, said: dict[str, Any], is_refused: bool, tmp_path: Path
) -> None:
    """generate cuts by min_p last, the engine first."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 6, **said}))
    draft = draft_of(FREE.replace("question", "question, **words") + asks(call), seen(question="x"))
    refused = pytest.raises(ValueError, match="cuts by min_p last")
    with refused if is_refused else contextlib.nullcontext():
        run(draft, "answer", str(tmp_path), "Why?", **ENDS_AT_6)


UNMASKED = """
    ids = tok(question, return_tensors="pt").input_ids
    out = model.generate(ids, CALL)
    return tok.decode(out[0][ids.shape[1]:], skip_special_tokens=True)
"""


@pytest.mark.parametrize(
    ("call", "said", "is_refused"),
    [
        ("max_new_tokens=5", {"pad_token_id": 1}, True),
        ("max_new_tokens=5, attention_mask=None", {"pad_token_id": 1}, True),
        ("**words", {"pad_token_id": 1}, True),
        ("pad_token_id=tok.bos_token_id", {}, True),
        ("max_new_tokens=5", {"pad_token_id": 1, "eos_token_id": 1}, False),
        ("max_new_tokens=5", {"pad_token_id": 7}, False),
        ("max_new_tokens=5", {}, False),
        ("pad_token_id=tok.eos_token_id", {"pad_token_id": 1}, False),
        ("pad_token_id=model.config.eos_token_id", {"pad_token_id": 7}, False),
        ("attention_mask=torch.ones_like(ids)", {"pad_token_id": 1}, False),
    ],
)
def test_a_bos_that_a_call_without_a_mask_hides_is_refused(
    call: str, said: dict[str, Any], is_refused: bool, tmp_path: Path
) -> None:
    ends = (said.get("eos_token_id", 6),)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends[0], **said}))
    code = FREE.replace("question", "question, **words") + UNMASKED.replace("CALL", call)
    draft = draft_of(code, seen(question="x"))
    expected = (
        pytest.raises(ValueError, match="hides the pad id 1 .*the BOS") if is_refused else contextlib.nullcontext()
    )
    with expected:
        run(draft, "answer", str(tmp_path), "Why?", ends=ends, tokenizer=Special(range(9)))


def test_a_budget_of_the_checkpoint_that_wins_over_max_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 7}')
    draft = draft_of(FREE + asks("max_length=60"), seen(question="x"))
    with pytest.raises(ValueError, match="sets max_new_tokens, which wins over max_length"):
        run(draft, "answer", str(tmp_path), "Why?")


@pytest.mark.parametrize("said", ["skip_special_tokens=True", "", "clean_up_tokenization_spaces=False"])
def test_text_of_another_checkpoint_is_decoded_as_the_old_code_does(said: str, tmp_path: Path) -> None:
    """An end that is no special token is text, and some tokenizers tidy spaces."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 7]}')
    code = FREE + asks("").replace(":])", f":], {said})")
    _, engine = run(draft_of(code, seen(question="x")), "answer", str(tmp_path), "Why?", tokenizer=Told())
    words = {word: value == "True" for word, _, value in [said.partition("=")] if word}
    assert engine.tokenizer.told == [([5, 6], words)]  # type: ignore[attr-defined]


class Told(Tokenizer):
    """told: what it is told to decode."""

    def __init__(self) -> None:
        self.told: list[tuple[list[int], dict[str, Any]]] = []

    def decode(self, ids: Sequence[int], **said: Any) -> str:
        self.told.append((list(ids), said))
        return ""


TURNS = '[{"role": "user", "content": question}]'
RENDERED = f"text = tok.apply_chat_template({TURNS}, tokenize=False, add_generation_prompt=True)\n"
PROMPTED = {"prompt": "<Why?>"}
IDS_OF = 'return_tensors="pt"'
BARE = IDS_OF + ", add_special_tokens=False"
CHATTED = {"messages": [{"role": "user", "content": "Why?"}], "chat": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("code", "request_"),
    [
        (f"{RENDERED}inputs = tok(text, {IDS_OF})", PROMPTED),
        (f"{RENDERED}inputs = tok([text], {IDS_OF}).to(model.device)", PROMPTED),
        (f"{RENDERED}inputs = tok(text + question, {IDS_OF})", {"prompt": "<Why?>Why?"}),
        (f"inputs = tok([render(tok, q) for q in [question]], {IDS_OF}, padding=True)", PROMPTED),
        (f"text = render(tok, question)\ninputs = tok(text, {IDS_OF})", PROMPTED),
        (f"texts = [render(tok, question)]\nfor text in texts:\n    inputs = tok(text, {IDS_OF})", PROMPTED),
        (f"{RENDERED}inputs = tok(text, {BARE})", CHATTED),
        (f"inputs = tok.apply_chat_template({TURNS}, add_generation_prompt=True, {IDS_OF}, return_dict=True)", CHATTED),
        (f"inputs = tok(question, {IDS_OF})", {"prompt": "Why?"}),
        (f"inputs = tok(question, {BARE})", {"prompt_token_ids": [0, 1, 2, 3]}),
        (f"inputs = tok([question], {BARE})", {"prompt_token_ids": [0, 1, 2, 3]}),
        (f"inputs = tok(question, {IDS_OF}, add_special_tokens=True)", {"prompt": "Why?"}),
        (f"inputs = tok(question, {IDS_OF}, add_special_tokens=adds)", {"prompt_token_ids": [0, 1, 2, 3, 9]}),
        (f"{RENDERED}inputs = tok(text + '!', {BARE})", {"prompt_token_ids": list(range(7))}),
    ],
)
def test_special_tokens_of_a_prompt_are_those_that_the_source_asks_for(code: str, request_: dict[str, Any]) -> None:
    """Goldens of a checkpoint that adds none do not show them."""
    recorded = SimpleNamespace(eos_ids=(6,), special_tokens={6: ""}, dtype=None, template_owner=None)
    recorded.tokenizer = lambda text, **_: {"input_ids": [5]}
    source = FREE.replace("question", "question, adds=True") + textwrap.indent(code, "    ") + ASKED
    source += "\n\ndef render(tok, question):\n    " + RENDERED.replace("text =", "return")
    draft = draft_of(source, replace(seen(question="x"), checkpoint=recorded))
    _, engine = run(draft, "answer", "m", "Why?", tokenizer=Adding(range(9)), ends=())
    assert engine.calls[0][0] == [request_]


ASKED = """
    out = model.generate(**inputs, do_sample=False, max_new_tokens=5)
    return tok.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""


class Adding(Special):
    """Puts 9 behind a text, unless it is told not to."""

    def __call__(self, text: str, **said: Any) -> dict[str, list[int]]:
        return {"input_ids": [*range(len(text)), *[9] * (said.get("add_special_tokens") is not False)]}


def test_a_list_of_one_text_is_one_row_of_which_tokens_are_counted() -> None:
    code = f"    {RENDERED}    inputs = tok([text], {IDS_OF})\n    out = model.generate(**inputs)\n"
    code += "    ids = out[0][len(inputs.input_ids[0]):].tolist()\n    return len(ids)\n"
    value, engine = run(draft_of(FREE + code, seen(question="x")), "answer", "m", "Why?")
    assert (value, engine.calls[0][0]) == (2, [PROMPTED])


@pytest.mark.parametrize(("words", "count"), [(IDS_OF, 5), (BARE, 4), (f"{IDS_OF}, add_special_tokens=adds", 5)])
@pytest.mark.parametrize("text", ["question", "[question]"])
def test_max_length_counts_the_prompt_with_the_special_tokens_that_it_has(text: str, words: str, count: int) -> None:
    code = f"    inputs = tok({text}, {words})\n    out = model.generate(**inputs, max_length=20)\n"
    code += "    return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)\n"
    draft = draft_of(FREE.replace("question", "question, adds=True") + code, seen(question="x"))
    _, engine = run(draft, "answer", "m", "Why?", tokenizer=Adding(range(9)))
    assert engine.calls[0][1]["max_new_tokens"] == 20 - count


def test_rendered_text_of_vllm_is_a_prompt_where_run_time_decides_the_checkpoint() -> None:
    source = f"""
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams

def answer(path, question):
    llm = LLM(path, dtype="float32")
    tok = llm.get_tokenizer()
    {RENDERED}
    return llm.generate([text], SamplingParams(temperature=0, max_tokens=5))[0].outputs[0].text
"""
    _, engine = run(draft_of(source, seen(question="x")), "answer", "m", "Why?")
    assert engine.calls[0][0] == [PROMPTED]


def test_rendered_text_of_a_pipeline_is_a_prompt_where_run_time_decides_the_checkpoint() -> None:
    """It tokenizes with special tokens, too."""
    source = f"""
from transformers import pipeline

def answer(path, question):
    pipe = pipeline("text-generation", model=path)
    tok = pipe.tokenizer
    {RENDERED}
    return pipe(text, do_sample=False, max_new_tokens=5, return_full_text=False)[0]["generated_text"]
"""
    _, engine = run(draft_of(source, seen(question="x")), "answer", "m", "Why?")
    assert engine.calls[0][0] == [PROMPTED]


@pytest.mark.parametrize("given", ["Why?", ["Why?"], ("Why?",)])
@pytest.mark.parametrize("reads", [f"inputs = tok(question, {IDS_OF}, padding=True){ASKED}", "vllm"])
def test_one_text_in_place_of_a_list_of_texts_is_one_prompt(reads: str, given: Any) -> None:
    """It was asked letter by letter."""
    source = FREE + "    " + reads
    if reads == "vllm":
        source = (
            "from vllm import LLM, SamplingParams\n\n\ndef answer(path, question):\n    llm = LLM(path, dtype='half')\n"
        )
        source += "    return llm.generate(question, SamplingParams(temperature=0, max_tokens=5))[0].outputs[0].text\n"
    _, engine = run(draft_of(source, seen(question=["x", "y"])), "answer", "m", given)
    assert engine.calls[0][0] == [{"prompt": "Why?"}]


class Thinks(Tokenizer):
    """By itself, and not if it is told not to."""

    def apply_chat_template(self, messages: Any, **said: Any) -> str:
        return "<think>" if said.get("enable_thinking", True) else "<think></think>"


class ThinksIfTold(Tokenizer):
    def apply_chat_template(self, messages: Any, **said: Any) -> str:
        return "<think>" if said.get("enable_thinking") else "<think></think>"


@pytest.mark.parametrize("tokenizer", [Tokenizer(), Thinks(), ThinksIfTold()])
def test_another_checkpoints_template_thinks_as_it_does_where_nobody_says_it(tokenizer: Tokenizer) -> None:
    code = """
    turns = [{"role": "user", "content": question}]
    inputs = tok.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**inputs)
    return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""
    draft = draft_of(FREE + code, seen(question="x"))
    _, engine = run(draft, "answer", "m", "Why?", tokenizer=tokenizer)
    [[request], _] = engine.calls[0]
    assert request["chat"] == {"enable_thinking": isinstance(tokenizer, Thinks)}


@pytest.mark.parametrize(
    ("loads", "is_read"),
    [
        (["'m'"], False),
        (["'m'", "'m'"], False),
        (["'m'", "'other/m'"], True),  # a folder of the same name
        (["'m'", "NAME"], True),
        (["sys.argv[1]"], True),
        (["os.environ.get('MODEL', 'm')"], True),
        (["'other'"], True),  # not what was recorded
        (["CONSTANT"], False),
        (["CONSTANT); globals()['CONSTANT'] = os.environ['MODEL']; str('m'"], True),
        (["CONSTANT); exec(open('configurator.py').read()); str('m'"], True),
        (["'m'); os.chdir('elsewhere'); str('m'"], True),
    ],
)
def test_what_a_checkpoint_sets_is_read_where_another_one_may_be_loaded(loads: list[str], is_read: bool) -> None:
    code = (
        "import os, sys\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\nNAME = 'n' * 2\nCONSTANT = 'm'\n"
    )
    code += f"tok = AutoTokenizer.from_pretrained({loads[0]})\n"
    code += "".join(f"model{k or ''} = AutoModelForCausalLM.from_pretrained({one})\n" for k, one in enumerate(loads))
    code += "def answer(question):\n" + textwrap.indent(ASKS, "    ")
    draft = draft_of(code, seen(rows=[row(penalty=1.05)], question="x"))
    assert draft.is_moved and ("checkpoint_settings" in draft.code) is is_read
    assert ("1.05" in draft.code) is not is_read


ASKS = PROMPT + "out = model.generate(**inputs)\nreturn tok.decode(out[0][inputs.input_ids.shape[1]:])"


OF_VLLM = """
from vllm import LLM, SamplingParams

def answer(path, question, dtype="auto"):
    llm = LLM(model=path, LOAD)
    return llm.generate([question], SamplingParams(temperature=0, max_tokens=5))[0].outputs[0].text
"""


@pytest.mark.parametrize(
    ("load", "asked"),
    [
        ("max_model_len=64", {}),
        ('dtype="auto", revision="v2", trust_remote_code=False', {"revision": "v2"}),
        ("dtype=dtype", {"dtype": "auto"}),
    ],
)
def test_dtype_of_vllm_is_asked_for_at_run_time_where_run_time_decides_the_checkpoint(
    load: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was that of the goldens' checkpoint."""
    made: list[tuple[str, dict[str, Any]]] = []

    class EngineArgs:
        def __init__(self, model: str, **fields: Any) -> None:
            made.append((model, fields))

        def create_model_config(self) -> Any:
            return SimpleNamespace(dtype="torch.float16")

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(EngineArgs=EngineArgs))
    draft = draft_of(OF_VLLM.replace("LOAD", load), seen(rows=rows_in("bfloat16"), question="x"))
    _, engine = run(draft, "answer", "other", "Why?")
    assert engine.loads[0][1]["dtype"] == "float16" and made == [("other", asked)]


@pytest.mark.parametrize(("load", "dtype"), [("dtype='half'", "float16"), ("dtype=torch.float32", "float32")])
def test_dtype_of_vllm_that_the_source_says_is_said_to_load(load: str, dtype: str) -> None:
    draft = draft_of(OF_VLLM.replace("LOAD", load), seen(rows=rows_in("bfloat16"), question="x"))
    assert run(draft, "answer", "other", "Why?")[1].loads[0][1]["dtype"] == dtype


def test_auto_dtype_of_vllm_is_the_goldens_where_the_source_names_the_checkpoint() -> None:
    source = OF_VLLM.replace("LOAD", "dtype='auto'").replace("model=path", "model='m'")
    draft = draft_of(source, seen(rows=rows_in("bfloat16"), question="x"))
    assert run(draft, "answer", "m", "Why?")[1].loads == [("m", {"backend": "vllm", "dtype": "bfloat16"})]


@pytest.mark.parametrize(
    ("given", "dtype"), [("auto", None), (None, None), ("float32", "float32"), (torch.bfloat16, "bfloat16")]
)
def test_dtype_that_a_parameter_holds_is_translated_at_run_time(given: Any, dtype: str | None) -> None:
    code = FREE.replace("question", 'question, dtype="auto"') + ASKS_FREE
    code = code.replace("LM.from_pretrained(path", "LM.from_pretrained(path, dtype=dtype")
    _, engine = run(draft_of(code, seen(question="x")), "answer", "m", "Why?", given)
    assert engine.loads == [("m", {"dtype": dtype})]


ASKS_FREE = asks("max_new_tokens=5, do_sample=False")


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ("Why?", [{"prompt": "Why?"}]),
        (["Why?", "So?"], [{"prompt": "Why?"}, {"prompt": "So?"}]),
        ([5, 6], [{"prompt_token_ids": [5, 6]}]),
        ([[5, 6], [7]], [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]),
        ({"prompt_token_ids": (5, 6), "prompt": "so"}, [{"prompt_token_ids": [5, 6]}]),
        ([{"prompt": "Why?", "multi_modal_data": None}, "So?"], [{"prompt": "Why?"}, {"prompt": "So?"}]),
    ],
)
def test_prompts_of_vllm_are_what_they_are_when_the_draft_runs(given: Any, requests: list[Any]) -> None:
    """Goldens of texts made a text of each mapping."""
    source = OF_VLLM.replace("LOAD", "dtype='half'").replace("[question]", "question")
    _, engine = run(draft_of(source, seen(question=["x"])), "answer", "m", given)
    assert engine.calls[0][0] == requests


@pytest.mark.parametrize(
    "given",
    [{"prompt_embeds": 1}, [{"prompt": "x", "mm_processor_kwargs": {}}], [{"prompt": "x", "multi_modal_data": {}}]],
)
def test_prompt_of_vllm_that_is_not_moved_is_refused(given: Any) -> None:
    source = OF_VLLM.replace("LOAD", "dtype='half'").replace("[question]", "question")
    with pytest.raises(ValueError, match="a prompt of .*: only texts, ids and images are moved"):
        run(draft_of(source, seen(question=["x"])), "answer", "m", given)


class Picture:
    """An image with EXIF."""

    def __init__(self, exif: Sequence[int] = (5,)) -> None:
        self.exif = list(exif)
        self.info: dict[str, Any] = {}

    def copy(self) -> Picture:
        return Picture(self.exif)

    def getexif(self) -> list[int]:
        return self.exif


def test_images_of_a_prompt_of_vllm_are_those_of_its_request() -> None:
    source = OF_VLLM.replace("LOAD", "dtype='half'")
    source = source.replace("[question]", "[{'prompt': 'See <image>', 'multi_modal_data': {'image': question}}]")
    draft = draft_of(source, seen(question="x"))
    _, engine = run(draft, "answer", "m", Picture())
    [[request], _] = engine.calls[0]
    assert request["prompt"] == "See <image>" and [one.exif for one in request["images"]] == [[]]
    assert "generate_vlm_batch" in draft.code
