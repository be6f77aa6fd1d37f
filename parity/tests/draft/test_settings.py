"""Drafts of settings that old code collects before it generates: dicts, GenerationConfigs, masks beside them."""

from __future__ import annotations

import pytest

from .drafts import PROMPT, body, row, run

IDS = "ids = tok(question, return_tensors='pt').input_ids\n"
GREEDY = {"max_new_tokens": 5, "repetition_penalty": 1.05}


def decoded(length: str) -> str:
    return f"\nreturn tok.decode(out[0][{length}:], skip_special_tokens=True)"


@pytest.mark.parametrize(
    "mask",
    [
        "torch.ones_like(ids)",
        "torch.ones(ids.shape, dtype=torch.long, device=model.device)",
        "torch.ones((1, ids.shape[1]), dtype=torch.long)",
        "(ids != tok.pad_token_id).long()",
        "ids.ne(tok.pad_token_id).int().to(model.device)",
    ],
)
def test_draft_of_a_mask_that_is_made_of_the_ids_leaves_it_out(mask: str) -> None:
    code = IDS + f"mask = {mask}\nout = model.generate(ids, attention_mask=mask, max_new_tokens=5)"
    value, engine = run(body(code + decoded("ids.shape[1]"), question="x"), "answer", "Why?")
    assert (value, engine.calls) == ("ANSWER", [([{"prompt": "Why?"}], {"max_new_tokens": 5})])


def test_draft_of_a_mask_that_is_read_otherwise_is_refused() -> None:
    code = IDS + "mask = torch.ones_like(ids)\nout = model.generate(ids, max_new_tokens=5)\nreturn mask.sum()"
    draft = body(code, question="x")
    assert not draft.is_moved and "the attention mask" in draft.todos[0].text


@pytest.mark.parametrize(
    "made",
    [
        "words = {'max_new_tokens': 5}",
        "words = dict(max_new_tokens=5)",
        "words = {}\nwords['max_new_tokens'] = 5",
    ],
)
@pytest.mark.parametrize(
    "sampled",
    [
        "words.update(do_sample=True, temperature=heat)",
        "words.update({'do_sample': True, 'temperature': heat})",
        "words |= {'do_sample': True, 'temperature': heat}",
        "words['do_sample'] = True\n    words['temperature'] = heat",
        "words = {**words, 'do_sample': True, 'temperature': heat}",
        "words = dict(words, do_sample=True, temperature=heat)",
    ],
)
def test_draft_of_a_dict_that_is_changed_in_a_branch_asks_what_each_branch_said(made: str, sampled: str) -> None:
    code = IDS + made + f"\nif heat > 0:\n    {sampled}\nelse:\n    words.update(do_sample=False)\n"
    code += "out = model.generate(ids, attention_mask=torch.ones_like(ids), **words)" + decoded("ids.shape[-1]")
    observed = [row(penalty=1.05)]
    draft = body(code, parameters="question, heat=0.0", rows=observed, question="x", heat=0.0)
    value, engine = run(draft, "answer", "Why?")
    assert (value, engine.calls[0][1]) == ("ANSWER", GREEDY)
    _, engine = run(draft, "answer", "Why?", 0.7)
    assert engine.calls[0][1] == {**GREEDY, "temperature": 0.7, "top_p": 1.0, "top_k": 50}


@pytest.mark.parametrize(
    "words",
    [
        "dict(**inputs, max_new_tokens=5)",
        "{**inputs, 'max_new_tokens': 5}",
        "{'input_ids': inputs.input_ids, 'attention_mask': inputs.attention_mask, 'max_new_tokens': 5}",
    ],
)
def test_draft_of_inputs_and_settings_in_one_dict_asks_both(words: str) -> None:
    code = PROMPT + f"words = {words}\nout = model.generate(**words)" + decoded("inputs.input_ids.shape[1]")
    value, engine = run(body(code, question="x"), "answer", "Why?")
    assert (value, engine.calls) == ("ANSWER", [([{"prompt": "Why?"}], {"max_new_tokens": 5})])


def test_draft_of_samples_that_a_dict_asks_for_gives_each() -> None:
    code = PROMPT + (
        "words = {'max_new_tokens': 5}\nif many:\n    words.update(do_sample=True, num_return_sequences=3)\n"
        "out = model.generate(**inputs, **words)\n"
        "return [tok.decode(o[inputs.input_ids.shape[1]:], skip_special_tokens=True) for o in out]"
    )
    draft = body(code, parameters="question, many", question="x", many=False)
    assert run(draft, "answer", "Why?", False)[0] == ["ANSWER"]
    assert run(draft, "answer", "Why?", True)[0] == ["ANSWER 0", "ANSWER 1", "ANSWER 2"]
