"""What is seen of a vendored gen_engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gen_engine
import pytest

from parity.companions.structured import StructuredOptions
from parity.goldens.store import Case
from parity.record.observe import Observer, Site
from parity.record.rows import Placeholders
from parity.record.taps.gen_engine import (
    ENGINE_TAPS,
    Below,
    is_answer_to,
    seen_ids,
    structure_of,
)
from parity.record.taps.vllm import Names, read_request
from parity.tests.conftest import TEXT, open_engine
from parity.tests.engine.test_lora import make_adapter


@pytest.mark.parametrize("path", [*ENGINE_TAPS, "refusal_of", "Asked", "truncate_at_stops"])
def test_engine_taps_every_name_is_in_the_engine(path: str) -> None:
    """Whoever renames one of these renames it in the tap, too."""
    found = gen_engine
    for name in path.split("."):
        found = getattr(found, name)


IMAGES = Placeholders(7)


def test_is_answer_to_images_of_another_size_are_anothers_only_if_swapped() -> None:
    own = SimpleNamespace(token_ids=(1, 7, 2), length=4)
    assert is_answer_to(own, [1, 7, 7, 2], IMAGES, [(4, 4), (6, 6)])
    assert not is_answer_to(own, [1, 7, 7, 7, 7, 2], IMAGES, [(4, 6), (6, 4)])
    assert is_answer_to(own, [1, 7, 7, 7, 2], IMAGES, [(4, 5), (6, 6)]), "another budget"
    assert is_answer_to(own, [1, 7, 7, 7, 7, 2], IMAGES, [(4, 6), (6, 6)]), "the other one's budget"
    assert not is_answer_to(own, [1, 7, 7, 3], IMAGES, [(4, 4)])


def test_seen_ids_are_those_that_were_read() -> None:
    assert seen_ids([1, 5], [5], [(1, 5)]) == [1, 5]
    assert seen_ids([2, 5], [5], [(3, 6), (1, 2, 5)]) == [1, 2, 5]
    assert seen_ids([2, 5], [5], []) == [2, 5]


def test_pictures_are_those_that_vllm_was_given() -> None:
    from PIL import Image

    red, blue = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    request = {"prompt_token_ids": [1, 7, 7], "multi_modal_data": {"image": [blue, red]}}
    received = read_request(Names(), request, None)
    assert received.prompt_ids == (1, 7, 7)
    vision = SimpleNamespace(image_processor=SimpleNamespace(size={}))
    engine = SimpleNamespace(
        checkpoint=SimpleNamespace(placeholder_id=7, vision=vision, config=None)
    )
    prompt = SimpleNamespace(images=(red, blue), image_kwargs={})
    own, theirs = (
        [
            picture["sha256"]
            for picture in Below(engine, events).pictures(prompt, [1, 7, 2, 7], (1, 7, 7)) or ()
        ]
        for events in ((), (received,))
    )
    assert own == theirs[::-1] != theirs


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ({"regex": "a", "after": ""}, {"regex": "a"}),
        (StructuredOptions(regex="a", after=""), {"regex": "a"}),
        (
            StructuredOptions(choice=("a",), after="</think>"),
            {"choice": ("a",), "after": "</think>"},
        ),
        (None, {}),
    ],
)
def test_structure_of_a_request_is_what_it_asks_for(asked: Any, form: dict[str, Any]) -> None:
    assert structure_of({"structured": asked}) == form


def ask_adapter(engine: gen_engine.GenerationEngine, folder: str) -> str:
    """A call with an adapter that was not there when the engine was loaded."""
    engine.add_adapter("policy", folder)
    [result] = engine.generate_text_batch(
        [{"prompt": "1, 2, ", "adapter": "policy"}], {"max_new_tokens": 4}
    )
    engine.remove_adapter("policy")
    return result.text


def test_rows_of_adapters_that_are_added_while_an_engine_lives_name_their_folders(
    backend: str, tmp_path: Path
) -> None:
    folders = [make_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    found: list[Case] = []
    site = Site("adapters", f"{__name__}:ask_adapter")
    with open_engine(TEXT, backend, adapters={"policy": folders[0]}) as engine:
        engine.remove_adapter("policy")
        with Observer(sink=found.append, sites=[site]):
            for folder in folders:
                ask_adapter(engine, folder)
    rows = [row for case in found for row in case.rows]
    assert [Path(row["request"]["adapter"]).name for row in rows] == ["one", "two"]


def ask_samples(engine: gen_engine.GenerationEngine) -> None:
    engine.generate_text_batch(
        [{"prompt": "1, 2, ", "seed": 7}], {"max_new_tokens": 4, "n": 3, "temperature": 1.5}
    )


@pytest.mark.parametrize(("lost", "seeds"), [(0, [7, 8, 9]), (1, [None, None])])
def test_seeds_of_fewer_samples_than_were_asked_for_are_not_told(
    lost: int, seeds: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = gen_engine.GenerationEngine._answer

    def losing(self: Any, *given: Any) -> list[Any]:
        return [
            dataclasses.replace(one, samples=one.samples[lost:]) for one in answer(self, *given)
        ]

    monkeypatch.setattr(gen_engine.GenerationEngine, "_answer", losing)
    found: list[Case] = []
    site = Site("samples", f"{__name__}:ask_samples")
    with open_engine(TEXT, "hf") as engine, Observer(sink=found.append, sites=[site]):
        ask_samples(engine)
    assert [row["request"].get("seed") for case in found for row in case.rows] == seeds


def ask_scores(engine: gen_engine.GenerationEngine, temperature: float = 1.0) -> None:
    engine.score_batch([("1, 2, ", "3")], temperature=temperature)


def test_the_temperature_of_scores_is_told_where_it_is_another_one() -> None:
    found: list[Case] = []
    site = Site("scores", f"{__name__}:ask_scores")
    with open_engine(TEXT, "hf") as engine, Observer(sink=found.append, sites=[site]):
        ask_scores(engine)
        ask_scores(engine, temperature=0.5)
    assert [row["request"].get("temperature") for one in found for row in one.rows] == [None, 0.5]
