"""Beam search through each library's own; what does not go with it is refused."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, PromptTooLongError, RequestError, UnsupportedError
from parity.companions.beams import beam_search
from parity.models.tasks import drawing, text_tasks

from ..conftest import TEXT, Load, chat, of_task

TASKS = sorted(text_tasks(12), key=lambda task: len(task.answer))[:3]  # a beam's tokens are a step each


def test_beams_find_the_sure_answers_on_both(text: GenerationEngine) -> None:
    results = beam_search(text, [of_task(task) for task in TASKS], num_beams=3)
    assert [(r.text, r.finish_reason) for r in results] == [(task.answer, "eos") for task in TASKS]
    assert beam_search(text, [], num_beams=3) == []


def test_on_hf_they_are_what_plain_transformers_gives(shared: Load) -> None:
    transformers = importlib.import_module("transformers")
    engine = shared(TEXT, "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    ids = engine.tokenizer("The", return_tensors="pt")
    out = model.generate(**ids, num_beams=4, max_new_tokens=12, do_sample=False, repetition_penalty=1.0)
    [result] = beam_search(engine, [{"prompt": "The"}], num_beams=4, max_new_tokens=12)
    assert result.token_ids == tuple(out[0, ids["input_ids"].shape[1] :].tolist())[: result.completion_tokens]


@pytest.mark.parametrize("request_", [{"structured": {"regex": "a"}}, {"seed": 3}], ids=repr)
def test_what_decides_token_by_token_is_refused(request_: dict[str, Any], text: GenerationEngine) -> None:
    with pytest.raises(UnsupportedError, match=f"request 1: beam search does not go with {next(iter(request_))}"):
        beam_search(text, [chat("x"), chat("x", **request_)], num_beams=2)


def test_what_has_no_meaning_is_refused_before_anything_runs(text: GenerationEngine) -> None:
    for wrong in (1, 0, True, "2"):
        with pytest.raises(OptionError, match="num_beams is"):
            beam_search(text, [chat("x")], num_beams=wrong)  # type: ignore[arg-type]
    with pytest.raises(PromptTooLongError):
        beam_search(text, [chat("long " * 2000)], num_beams=2)


def test_pictures_are_refused(vl: GenerationEngine) -> None:
    with pytest.raises(OptionError, match="no field 'images'"):
        beam_search(vl, [{"prompt": "<|image_pad|>", "images": [drawing("red", "circle")]}], num_beams=2)
    with pytest.raises(RequestError, match="0 images, but 1 placeholders"):
        beam_search(vl, [{"prompt": "<|image_pad|>"}], num_beams=2)
