"""Beam search through each library's own; what does not go with it is refused."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from gen_engine import GenerationEngine, OptionError, UnsupportedError
from parity.tasks import drawing, text_tasks

from ..conftest import TEXT, Load, chat, of_task

TASKS = text_tasks(6)


def test_beams_find_the_sure_answers_on_both(text: GenerationEngine) -> None:
    results = text.generate_text_batch([of_task(task) for task in TASKS], {"num_beams": 3})
    assert [(r.text, r.finish_reason) for r in results] == [(task.answer, "eos") for task in TASKS]


def test_on_hf_they_are_what_plain_transformers_gives(shared: Load) -> None:
    transformers = importlib.import_module("transformers")
    engine = shared(TEXT, "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT)
    ids = engine.tokenizer("The", return_tensors="pt")
    out = model.generate(**ids, num_beams=4, max_new_tokens=12, do_sample=False, repetition_penalty=1.0)
    [result] = engine.generate_text_batch([{"prompt": "The"}], {"num_beams": 4, "max_new_tokens": 12})
    assert result.token_ids == tuple(out[0, ids["input_ids"].shape[1] :].tolist())[: result.completion_tokens]


@pytest.mark.parametrize(
    "options", [{"temperature": 0.5}, {"n": 2}, {"logprobs": 1}, {"stop": ["x"]}, {"min_new_tokens": 2}], ids=repr
)
def test_what_decides_token_by_token_is_refused(options: dict[str, Any], text: GenerationEngine) -> None:
    with pytest.raises(OptionError, match=f"num_beams 2 does not go with {next(iter(options))}"):
        text.generate_text_batch([chat("x")], {"num_beams": 2, **options})


def test_pictures_and_structure_are_refused(vl: GenerationEngine) -> None:
    request = {"prompt": "<|image_pad|>", "images": [drawing("red", "circle")]}
    with pytest.raises(UnsupportedError, match="request 0: beam search with pictures"):
        vl.generate_vlm_batch([request], {"num_beams": 2})
