"""Taps on image processors: images -> patches, and how many tokens they take."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from parity import golden
from parity.record.calls import LOADING, event_tap
from parity.record.events import Event, Events, Images
from parity.record.patching import Arguments, Invocation
from parity.record.rows import Fields
from parity.record.taps.text import id_lists

LARGEST_IMAGE = 4 << 20  # pixels of an image that a golden keeps as a blob
IMAGE_KEYS = ("sha256", "size", "grid", "values", "tokens", "budget")  # in the order of a golden


def flat_images(images: Any) -> Iterator[Any]:
    if isinstance(images, (list, tuple)):
        for entry in images:
            yield from flat_images(entry)
    else:
        yield images


def as_rgb(image: Any) -> Any:
    """A PIL image of whatever a processor takes."""
    if hasattr(image, "convert"):
        return image.convert("RGB")
    from PIL import Image

    array = image.permute(1, 2, 0).cpu().numpy() if hasattr(image, "permute") else image
    return Image.fromarray(array.astype("uint8")).convert("RGB")


def pixel_digest(image: Any) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()


def refuse_video(video: Any) -> None:
    """Raise GoldenError for a video: other frames of it would go unseen."""
    if video is not None:
        raise golden.GoldenError(
            "goldens hold no videos yet: a call with one can be neither recorded nor checked"
        )


def budget_of(processor: Any, kwargs: Arguments) -> list[int] | None:
    """[least, most] pixels that images are resized to, where the processor has such a budget."""
    kwargs = {**kwargs, **(kwargs.get("images_kwargs") or {})}
    resizes = kwargs.get("do_resize")
    if resizes is None:
        resizes = getattr(processor, "do_resize", True)
    if resizes is False:
        return [0, 0]
    size = kwargs.get("size") or getattr(processor, "size", None) or {}
    least = kwargs.get("min_pixels") or size.get("shortest_edge")
    most = kwargs.get("max_pixels") or size.get("longest_edge")
    return [least, most] if least and most else None


def read_images(call: Invocation, result: Any, _: Events) -> Images:
    processor, given = call.owner, call.arguments
    images = [as_rgb(image) for image in flat_images(given["images"])]
    budget = budget_of(processor, given)
    pictures = [
        {"sha256": pixel_digest(rgb), "size": list(rgb.size), "budget": budget, "pixels": rgb}
        for rgb in images
    ]
    if "image_grid_thw" not in result:
        return Images(pictures)
    grids = id_lists(result["image_grid_thw"])
    merge = getattr(processor, "merge_size", None)
    for picture, grid in zip(pictures, grids):
        picture["grid"] = grid
        picture["tokens"] = math.prod(grid) // merge**2 if merge else None
    values = result.get("pixel_values")
    if hasattr(values, "split"):
        for picture, patches in zip(pictures, patches_of_images(values, grids)):
            picture["values"] = mean_and_deviation(patches)
    return Images(pictures)


def patches_of_images(values: Any, grids: Sequence[Sequence[int]]) -> Sequence[Any]:
    """The part of all patches that is each image's."""
    parts: Sequence[Any] = values.split([math.prod(grid) for grid in grids])
    return parts


def pictures_of(events: Iterable[Event]) -> list[Fields]:
    """All images that went through an image processor."""
    return [one for event in events if isinstance(event, Images) for one in event.pictures]


def mean_and_deviation(values: Any) -> list[float]:
    values = values.float()
    found = values.mean(), values.std()
    return [round(float(value), 4) for value in found]


def kept_picture(picture: Mapping[str, Any], store: golden.Store | None) -> Fields:
    """An image as it stands in a row: its pixels are a blob."""
    kept = {key: picture[key] for key in IMAGE_KEYS if picture.get(key) is not None}
    pixels = picture.get("pixels")
    if store is None or pixels is None or pixels.width * pixels.height > LARGEST_IMAGE:
        return kept
    return {**kept, "blob": store.put_blob(golden.image_bytes(pixels), ".png")}


# vLLM warms itself up with images of its own.
tap_images = event_tap("images", "an image processor call", read_images, unless=LOADING)

TAPS = {
    "transformers.image_processing_utils": {"BaseImageProcessor.__call__": tap_images},
    "transformers.image_processing_utils_fast": {"BaseImageProcessorFast.__call__": tap_images},
}
