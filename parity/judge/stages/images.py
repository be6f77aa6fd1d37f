"""The images and clips of a row: pixels, frames, budget, tokens, normalised values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parity.goldens.verdict import Difference, equal
from parity.judge.row import Row, images_in, picture_ids, same_backend, same_prompt
from parity.judge.stages.stage import Stage

TOLERANCE = 2e-3  # of normalised pixels, which go through other kernels


def image_differences(old: Row, new: Row) -> Iterator[Difference]:
    images = images_in(old)
    new_images = images_in(new)
    if len(images) != len(new_images):
        yield Difference("images", "count", len(images), len(new_images))
    names = ["sha256", "fps", "indices", "budget", "tokens"]
    # vLLM normalises inside the model, so what its processor gives says nothing there.
    if same_backend(old, new):
        names.append("values")
    for one, other in zip(images, new_images):
        for name in names:
            before = one.get(name)
            after = other.get(name)
            if before is None or after is None:
                continue
            is_exact = name not in ("values", "fps")
            is_same = before == after if is_exact else equal(before, after, TOLERANCE)
            if not is_same:
                words = words_of_pixels(one, other, names) if name == "sha256" else None
                yield Difference("images", name, before, after, words=words)


def words_of_pixels(old: Row, new: Row, compared: Sequence[str]) -> tuple[str, str]:
    """What is known of two images of other pixels, that differs: their sizes; else the mean and
    the deviation of what the processor made of them, where these are compared."""
    sizes = size_words(old), size_words(new)
    if sizes[0] != sizes[1] or "" in sizes:
        return f"{sizes[0]} pixels".strip(), f"{sizes[1] or 'other'} pixels"
    values = value_words(old), value_words(new)
    if values[0] == values[1] or "" in values or "values" not in compared:
        return f"{sizes[0]} pixels", f"other {sizes[1]} pixels"
    return f"{sizes[0]} pixels {values[0]}", f"{sizes[1]} pixels {values[1]}"


def size_words(image: Row) -> str:
    size = image.get("size")
    return f"{size[0]} × {size[1]}" if size else ""


def value_words(image: Row) -> str:
    values = image.get("values")
    return f"with mean {values[0]:.4g} and deviation {values[1]:.4g}" if values else ""


def time_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Clips that are written with other times: the prompt stages leave out what clips become."""
    if same_prompt(old, new):
        for a, b in zip(picture_ids(old), picture_ids(new)):
            if len(a) == len(b) and a != b:
                yield Difference("images", "times", a, b)


def tensor_differences(old: Row, new: Row) -> Iterator[Difference]:
    """The sums of the pixel tensors that reached the model's forward, where both were seen."""
    if old["prompt_ids"] != new["prompt_ids"]:
        return
    before = pictures_in_forward(old)
    after = pictures_in_forward(new)
    if before is not None and after is not None and not equal(before, after, TOLERANCE):
        yield Difference("images", "tensors", before, after)


def pictures_in_forward(row: Row) -> Any:
    inputs = row.get("inputs")
    return None if inputs is None else inputs.get("pictures")


def compare_images(old: Row, new: Row) -> Iterator[Difference]:
    yield from image_differences(old, new)
    yield from time_differences(old, new)
    yield from tensor_differences(old, new)


STAGE = Stage(fields=("images",), compare=compare_images)
