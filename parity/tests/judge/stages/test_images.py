"""The stage of images: a clip's frames, their indices, its rate and the times that are written."""

from __future__ import annotations

from typing import Any

import pytest

from parity.judge.row import same_prompt
from parity.judge.stages.images import STAGE

OPEN, CLOSE, CLIP, TEXT = 7, 8, 9, 3
SEEN = {"sha256": "a", "fps": 2.0, "indices": [0, 1, 2, 3], "tokens": 8, "placeholder": CLIP}


def row(times: tuple[int, ...] = (40, 41), **changes: Any) -> dict[str, Any]:
    """A row of one clip, whose frames have these times; changes: of the clip, None for no clip."""
    groups = [token for time in times for token in (time, OPEN, CLIP, CLOSE)]
    images = [{**SEEN, "tokens": len(groups), **changes}]
    return {"prompt_ids": [TEXT, OPEN, *groups, CLOSE, TEXT], "output_ids": [], "images": images}


def fields(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [difference.field for difference in STAGE.compare(old, new)]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (row(), []),
        (row(fps=2), []),
        (row(fps=4.0), ["fps"]),
        (row(sha256="b"), ["sha256"]),
        (row(indices=[3, 2, 1, 0]), ["indices"]),
        (row((40,), sha256="b", indices=[0, 1]), ["sha256", "indices", "tokens"]),
        (row((40, 42)), ["times"]),
        (row((40, 42), fps=4.0), ["fps", "times"]),
        ({**row(), "images": []}, ["count"]),
    ],
)
def test_what_differs_of_a_clip_is_named(new: dict[str, Any], expected: list[str]) -> None:
    assert fields(row(), new) == expected


def test_a_clip_is_one_token_of_its_prompt() -> None:
    """What it becomes is the images' to say, whatever stands around it the prompt's."""
    assert same_prompt(row(), row((40,), indices=[0, 1]))
    longer = row()
    assert not same_prompt(row(), {**longer, "prompt_ids": [*longer["prompt_ids"], TEXT]})


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"size": [64, 72]}, "was 72 × 64 pixels, is 64 × 72 pixels"),
        (
            {"values": [0.5, 0.5]},
            "was 72 × 64 pixels with mean 0.66 and deviation 0.52, is 72 × 64 pixels with mean 0.5 and deviation 0.5",
        ),
        ({}, "was 72 × 64 pixels, is other 72 × 64 pixels"),
        ({"size": None}, "was 72 × 64 pixels, is other pixels"),
    ],
)
def test_another_image_is_told_by_what_differs_not_by_a_digest(new: dict[str, Any], said: str) -> None:
    old = {"sha256": "aa", "size": [72, 64], "values": [0.66, 0.52], "tokens": 4}
    sides = [
        {"prompt_ids": [1], "output_ids": [], "images": [image]} for image in (old, {**old, "sha256": "bb", **new})
    ]
    [found] = [difference for difference in STAGE.compare(*sides) if difference.field == "sha256"]
    assert found.sentence() == f"image.pixels {said}"


def test_vllms_pixels_before_they_are_normalised_are_not_told_as_others() -> None:
    image = {"sha256": "aa", "size": [72, 64], "values": [0.66, 0.52], "tokens": 4}
    old = {"prompt_ids": [1], "output_ids": [], "images": [image], "model": {"backend": "hf"}}
    raw = {**image, "sha256": "bb", "values": [150.0, 60.0]}
    new = {**old, "images": [raw], "model": {"backend": "vllm"}}
    [found] = STAGE.compare(old, new)
    assert found.sentence() == "image.pixels was 72 × 64 pixels, is other 72 × 64 pixels"
