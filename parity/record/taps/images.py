"""Taps on image and video processors: pixels -> patches, and how many tokens they take."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from parity.goldens import store as golden
from parity.record.calls import LOADING, event_tap
from parity.record.events import Event, Events, Images
from parity.record.patching import Arguments, Invocation
from parity.record.rows import Fields, Placeholders
from parity.record.taps.text import id_lists

RGB = 3  # channels
LARGEST_IMAGE = 4 << 20  # pixels of an image that a golden keeps as a blob
IMAGE_KEYS = (
    "sha256", "size", "fps", "indices", "grid", "values", "tokens", "placeholder", "budget",
)  # fmt: skip  # in the order of a golden


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


def film_strip(frames: Any) -> Any:
    """The frames of a clip, one below the other, as a PIL image."""
    from PIL import Image

    pixels = frames.cpu().numpy() if hasattr(frames, "cpu") else frames  # [frames, ., ., .]
    if pixels.shape[-1] != RGB:
        pixels = pixels.transpose(0, 2, 3, 1)
    whole = pixels.reshape(-1, *pixels.shape[2:])
    return Image.fromarray(whole.astype("uint8"))


def clip_picture(frames: Any, rate: float | None, indices: Any, budget: list[int] | None) -> Fields:
    """A clip as an image among a row's. rate: frames per second of the video.   indices: of the
    frames in it."""
    strip = film_strip(frames)
    if indices is None:
        indices = range(len(frames))
    return {
        "sha256": pixel_digest(strip),
        "size": [strip.width, strip.height // len(frames)],
        "fps": rate,
        "indices": [*map(int, indices)],
        "budget": budget,
        "pixels": strip,
    }


def is_clip(picture: Mapping[str, Any]) -> bool:
    return "indices" in picture


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
    processor = call.owner
    given = call.arguments
    images = [as_rgb(image) for image in flat_images(given["images"])]
    budget = budget_of(processor, given)
    pictures = [
        {"sha256": pixel_digest(rgb), "size": list(rgb.size), "budget": budget, "pixels": rgb}
        for rgb in images
    ]
    add_patches(pictures, result, "pixel_values", "image_grid_thw")
    merge = getattr(processor, "merge_size", None)
    if merge:
        for picture in pictures:
            if "grid" in picture:
                patches = math.prod(picture["grid"])
                picture["tokens"] = patches // merge**2
    return Images(pictures)


def add_patches(pictures: Sequence[Fields], result: Any, values: str, grids: str) -> None:
    """What a processor made of each picture. values, grids: the names of its tensors."""
    if grids not in result:
        return
    shapes = id_lists(result[grids])
    patches = result.get(values)
    parts = patches_of_images(patches, shapes) if hasattr(patches, "split") else ()
    for picture, grid in zip(pictures, shapes):
        picture["grid"] = grid
    for picture, part in zip(pictures, parts):
        picture["values"] = mean_and_deviation(part)


def read_clips(call: Invocation, result: Any, _: Events) -> Images:
    """The frames that a video processor takes, before it does anything to them."""
    budget = budget_of(call.owner, {})
    pictures = []
    for frames, known in zip(*result):
        pictures.append(clip_picture(frames, known.fps, known.frames_indices, budget))
    return Images(pictures)


def read_clip_patches(call: Invocation, result: Any, inner: Events) -> None:
    clips = pictures_of(inner)
    budget = budget_of(call.owner, call.arguments)
    for clip in clips:
        clip["budget"] = budget
    add_patches(clips, result, "pixel_values_videos", "video_grid_thw")


def patches_of_images(values: Any, grids: Sequence[Sequence[int]]) -> Sequence[Any]:
    """The part of all patches that is each image's."""
    parts: Sequence[Any] = values.split([math.prod(grid) for grid in grids])
    return parts


def pictures_of(events: Iterable[Event]) -> list[Fields]:
    """All images that went through an image processor."""
    found = list[Fields]()
    for event in events:
        if isinstance(event, Images):
            found += event.pictures
    return found


def take_next(queues: Mapping[int | None, list[Any]], tokens: Sequence[int | None]) -> list[Any]:
    """The next of each queue, as often as its token is there."""
    found = []
    for token, queue in queues.items():
        count = tokens.count(token)
        found += queue[:count]
        del queue[:count]
    return found


def placed_pictures(
    pictures: Sequence[Fields], ids: Sequence[int], placeholders: Placeholders
) -> list[Fields]:
    """A row's pictures: images, then clips, each with its token and how many ids it takes. Raises
    GoldenError where the prompt holds other clips than were seen: they may be any."""
    places = [place for token, place in placeholders.places(ids) if token == placeholders.clip]
    clips = [picture for picture in pictures if is_clip(picture)]
    if len(clips) != len(places):
        raise golden.GoldenError(
            f"a prompt holds {len(places)} videos, and {len(clips)} were seen on their way to it: "
            "give them to the processor as transformers >= 5.10 and vLLM >= 0.32 take them"
        )
    found = [picture for picture in pictures if not is_clip(picture)]
    for clip, place in zip(clips, places):
        found.append({**clip, "tokens": len(place), "placeholder": placeholders.clip})
    return found


def mean_and_deviation(values: Any) -> list[float]:
    values = values.float()
    found = (values.mean(), values.std())
    return [round(float(value), 4) for value in found]


def kept_picture(picture: Mapping[str, Any], store: golden.Store | None) -> Fields:
    """An image as it stands in a row: its pixels are a blob."""
    kept = {key: picture[key] for key in IMAGE_KEYS if picture.get(key) is not None}
    pixels = picture.get("pixels")
    if store is None or pixels is None or pixels.width * pixels.height > LARGEST_IMAGE:
        return kept
    png = golden.image_bytes(pixels)
    return {**kept, "blob": store.put_blob(png, ".png")}


# vLLM warms itself up with images of its own.
tap_images = event_tap("images", "an image processor call", read_images, unless=LOADING)
tap_clips = event_tap("clips", "the frames of a video", read_clips, unless=LOADING)
tap_patches = event_tap("patches", "a video processor call", read_clip_patches, unless=LOADING)

TAPS = {
    "transformers.image_processing_utils": {"BaseImageProcessor.__call__": tap_images},
    "transformers.image_processing_utils_fast": {"BaseImageProcessorFast.__call__": tap_images},
    "transformers.video_processing_utils": {
        "BaseVideoProcessor._decode_and_sample_videos": tap_clips,
        "BaseVideoProcessor.__call__": tap_patches,
    },
}
