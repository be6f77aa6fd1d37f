"""The images and clips of a row: pixels, frames, budget, tokens, normalised values."""

from __future__ import annotations

from collections.abc import Iterator

from parity.judge.row import Row, images_in, picture_ids, same_backend, same_prompt
from parity.judge.stages.stage import Stage
from parity.verdict import Difference, equal

TOLERANCE = 2e-3  # of normalised pixels, which go through other kernels


def image_differences(old: Row, new: Row) -> Iterator[Difference]:
    mine, theirs = images_in(old), images_in(new)
    # vLLM normalises inside the model, so what its processor gives says nothing there.
    names = ["sha256", "fps", "indices", "budget", "tokens"]
    names += ["values"] if same_backend(old, new) else []
    if len(mine) != len(theirs):
        yield Difference("images", "count", len(mine), len(theirs))
    for a, b in zip(mine, theirs):
        for name in names:
            if a.get(name) is None or b.get(name) is None:
                continue
            is_exact = name not in ("values", "fps")
            same = a[name] == b[name] if is_exact else equal(a[name], b[name], TOLERANCE)
            if not same:
                yield Difference("images", name, a[name], b[name])


def time_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Clips that are written with other times: the prompt stages leave out what clips become."""
    if same_prompt(old, new):
        for a, b in zip(picture_ids(old), picture_ids(new)):
            if len(a) == len(b) and a != b:
                yield Difference("images", "times", a, b)


def tensor_differences(old: Row, new: Row) -> Iterator[Difference]:
    """The sums of the pixel tensors that reached the model's forward, where both were seen."""
    if (
        old.get("inputs") is None
        or new.get("inputs") is None
        or old["prompt_ids"] != new["prompt_ids"]
    ):
        return
    before, after = old["inputs"].get("pictures"), new["inputs"].get("pictures")
    if before is not None and after is not None and not equal(before, after, TOLERANCE):
        yield Difference("images", "tensors", before, after)


def compare_images(old: Row, new: Row) -> Iterator[Difference]:
    yield from image_differences(old, new)
    yield from time_differences(old, new)
    yield from tensor_differences(old, new)


STAGE = Stage(fields=("images",), compare=compare_images)
