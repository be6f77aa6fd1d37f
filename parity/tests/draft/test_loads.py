"""Drafts of loads: what `load` decides in place of the old code is said."""

from __future__ import annotations

import textwrap

import pytest

from .drafts import draft_of, run, seen

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
