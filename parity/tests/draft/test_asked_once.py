"""Whatever is drawn from one call of generate comes from one call of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from .drafts import PROMPT, body, draft_of, run, seen

CALL = "model.generate(**inputs, max_new_tokens=5)"
NEW = f"{CALL}[0][inputs.input_ids.shape[1]:]"
TEXT = "tok.decode({ids}, skip_special_tokens=True)"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (f"ids = {NEW}.tolist()\ntext = {TEXT.format(ids='ids')}\nreturn ids, text", ([5, 6], "ANSWER")),
        (f"row = {NEW}\nreturn len(row), {TEXT.format(ids='row')}", (2, "ANSWER")),
        (f"ids = {NEW}.tolist()\nreturn len(ids), tok.decode(ids)", (2, "ANSWER<end>")),
        (f"rows = list({CALL})\nreturn [{TEXT.format(ids='r[inputs.input_ids.shape[1]:]')} for r in {CALL}]", None),
        (f"ids = {NEW}.tolist()\nif ids:\n    return {TEXT.format(ids='ids')}\nreturn ids", "ANSWER"),
        (f"first, = {CALL}\nreturn tok.decode(first), tok.decode(first)", None),
        (f"seq = model.generate(**inputs, max_new_tokens=5, return_dict_in_generate=True).sequences[0]\n"
         f"new = seq[inputs.input_ids.shape[1]:]\nreturn new.tolist(), {TEXT.format(ids='new')}", ([5, 6], "ANSWER")),
    ],
)  # fmt: skip
def test_draft_of_what_is_drawn_from_one_generate_asks_once(code: str, value: Any) -> None:
    draft = body(PROMPT + code, question="x")
    if not draft.is_moved:  # that it says so is as good
        assert value is None
        return
    result, engine = run(draft, "answer", "Why?")
    assert len(engine.calls) == code.count("model.generate")
    assert value is None or result == value


HELPER = """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tok = AutoTokenizer.from_pretrained("m")
    model = AutoModelForCausalLM.from_pretrained("m")

    def rows(inputs):
        return model.generate(**inputs, max_new_tokens=5)

    def answer(question):
        inputs = tok(question, return_tensors="pt")
        ids = rows(inputs)[0][inputs.input_ids.shape[1]:].tolist()
        return ids, tok.decode(ids, skip_special_tokens=True)
"""


def test_draft_of_what_a_helper_generates_asks_once() -> None:
    value, engine = run(draft_of(HELPER, seen(question="x")), "answer", "Why?")
    assert (value, len(engine.calls)) == (([5, 6], "ANSWER"), 1)


def test_draft_of_vllm_in_a_comprehension_asks_once_for_each() -> None:
    source = """
        from vllm import LLM, SamplingParams
        llm = LLM("m")

        def answer(questions, n):
            params = SamplingParams(n=n, temperature=0.5, max_tokens=9)
            return {q: [o.text for o in llm.generate(q, params)[0].outputs] for q in questions}
    """
    value, engine = run(draft_of(source, seen(questions=["a"], n=2)), "answer", ["a", "b"], 2)
    assert value == {"a": ["ANSWER 0", "ANSWER 1"], "b": ["ANSWER 0", "ANSWER 1"]}
    assert len(engine.calls) == 2


@pytest.mark.parametrize(
    "code",
    [
        f"return {TEXT.format(ids=NEW)} if wanted else ''",
        f"return wanted and {TEXT.format(ids=NEW)}",
        f"return not wanted or {TEXT.format(ids=NEW)}",
        f"if not wanted:\n    return ''\nelif {TEXT.format(ids=NEW)}:\n    return 'yes'\nreturn 'no'",
        f"while wanted and {TEXT.format(ids=NEW)}:\n    return 'yes'\nreturn ''",
    ],
)
def test_draft_asks_only_where_the_old_code_did(code: str) -> None:
    draft = body(PROMPT + code, parameters="question, wanted", question="x", wanted=True)
    for wanted in (True, False):
        _, engine = run(draft, "answer", "Why?", wanted)
        assert len(engine.calls) == wanted


def test_draft_of_settings_that_only_one_branch_has_reads_them_there_only() -> None:
    code = f"return {TEXT.format(ids=NEW.replace('=5', '=cfg.budget'))} if cfg else ''"
    draft = body(PROMPT + code, parameters="question, cfg", question="x", cfg=None)
    assert run(draft, "answer", "Why?", None)[0] == ""


@pytest.mark.parametrize("sampled", [True, False])
def test_draft_of_rows_of_two_branches_reads_those_of_the_one_that_ran(sampled: bool) -> None:
    code = f"""
if sampled:
    row = {NEW.replace("=5", "=5, do_sample=True")}
else:
    row = {NEW.replace("=5", "=9")}
return row.tolist(), tok.decode(row, skip_special_tokens=True)
"""
    draft = body(PROMPT + code, parameters="question, sampled", question="x")
    value, engine = run(draft, "answer", "Why?", sampled)
    assert value == ([5, 6], "ANSWER")
    assert [call[1]["max_new_tokens"] for call in engine.calls] == [5 if sampled else 9]


@pytest.mark.parametrize("change", ["ids.append(7)", "ids += [7]", "ids[0] = 7", "del ids[0]", "ids.pop()"])
def test_draft_of_ids_that_are_changed_decodes_those(change: str) -> None:
    code = f"ids = {NEW}.tolist()\n{change}\nreturn ids, {TEXT.format(ids='ids')}"
    (ids, text), engine = run(body(PROMPT + code, question="x"), "answer", "Why?")
    assert len(engine.calls) == 1 and text.startswith(f"decoded {ids}")
