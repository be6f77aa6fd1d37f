# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Images for vision-language models, the same on both backends: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="images"`, and write

    part = {"type": "image", "image": "cat.png"}
    chat = [{"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}]
    engine.generate_vlm_batch([{"messages": chat}])

gen_engine finds this file beside itself.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import (
        Checkpoint,
        ImageError,
        Prompt,
        RequestError,
        Row,
        UnsupportedError,
        VlmPreprocessOptions,
        image_parts,
        lazy_import,
        short_repr,
        wrapping_errors,
    )
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import (
        Checkpoint,
        ImageError,
        Prompt,
        RequestError,
        Row,
        UnsupportedError,
        VlmPreprocessOptions,
        image_parts,
        lazy_import,
        short_repr,
        wrapping_errors,
    )

__version__ = "0.2.0"

__all__ = ["image_columns", "image_inputs", "image_tokens", "images_of", "load_image"]

# == Files: anything that holds an image -> an upright RGB PIL image ==

# Not all that PIL reads: it starts Ghostscript for EPS, and reads formats of icons and telescopes.
FORMATS = (
    "PNG",
    "JPEG",
    "MPO",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
    "JPEG2000",
    "AVIF",
    "HEIF",
)
REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def data_url_bytes(url: str) -> bytes:
    """The bytes of a data: URL. Raises ImageError."""
    header, comma, payload = url.partition(",")
    if not comma:
        raise ImageError("data: URL without a comma", fix="write data:image/png;base64,...")
    with wrapping_errors(ImageError, "data: URL is not base64", "encode the file's bytes"):
        raw: bytes = lazy_import("urllib.parse").unquote_to_bytes(payload)
        if header.endswith(";base64"):
            raw = lazy_import("base64").b64decode(raw, validate=True)
    return raw


def readable(source: Any) -> Any:
    """What PIL can open: the path of a file, or bytes as a stream. Raises ImageError."""
    if isinstance(source, str) and source.startswith("data:"):
        source = data_url_bytes(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if isinstance(source, (str, os.PathLike)):
        if os.path.isfile(source):  # a pipe or a device may never end
            return source
        problem = f"there is no file {short_repr(source)}"
        raise ImageError(problem, fix="give the path of an image")
    fix = "give a PIL image, a path, bytes or a data: URL"
    raise ImageError(f"{type(source).__name__} is no image", fix=fix)


def fetched(source: Any, loader: Callable[[str], Any] | None) -> Any:
    """What a loader returns for a remote URL; anything else as it is. Raises ImageError."""
    if not isinstance(source, str) or not REMOTE.match(source):
        return source
    if loader is None:
        problem = f"remote image {source[:80]!r} refused"
        raise ImageError(problem, fix="pass image_loader, or load the bytes")
    with wrapping_errors(ImageError, f"image_loader failed on {source[:80]!r}", "see the cause"):
        return loader(source)


def check_size(image: Any) -> None:
    """Raise ImageError for an image without pixels, of too many, or of more than 8 bits."""
    if not image.width or not image.height:
        raise ImageError("image without pixels", fix="give one with some")
    limit = lazy_import("PIL.Image").MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        problem = f"image of {image.width}x{image.height} pixels"
        raise ImageError(problem, fix=f"the limit is {limit} pixels")
    if image.mode[0] in "IF":  # 16 bit and float: convert() would clip nearly all of it to white
        fix = "scale it to 8 bits per channel first"
        raise ImageError(f"image of mode {image.mode!r}", fix=fix)


def load_image(source: Any, *, loader: Callable[[str], Any] | None = None) -> Any:
    """A PIL image, a path, bytes or a data: URL -> an upright RGB PIL image, fully read.

    It is turned by its EXIF orientation; alpha is dropped as PIL's convert("RGB") does. A remote
    URL is given to `loader`. Raises ImageError."""
    image_module = lazy_import("PIL.Image")
    image_ops = lazy_import("PIL.ImageOps")
    source = fetched(source, loader)
    image_module.init()
    known = [name for name in FORMATS if name in image_module.OPEN]
    with wrapping_errors(ImageError, "unreadable picture", "give a file that PIL reads"):
        image = source
        if not isinstance(source, image_module.Image):
            image = image_module.open(readable(source), formats=known)
        check_size(image)
        return image_ops.exif_transpose(image).convert("RGB")


# == Requests: the images of one, and their size in pixels and tokens ==


IMAGE_FIELDS = (
    "image",
    "path",
    "url",
    "base64",
)  # of a part of type "image", as libraries write it


def image_field(part: Mapping[str, Any]) -> str:
    """The field that holds the image of a part of type "image". Raises RequestError for two."""
    names = [name for name in IMAGE_FIELDS if part.get(name) is not None]
    if len(names) > 1:
        problem = f"an image part has {' and '.join(names)}"
        raise RequestError(problem, fix="give one of them")
    return names[0] if names else "image"


def check_others(fields: Mapping[str, Any], used: Sequence[str]) -> None:
    """Raise RequestError for a field that nothing reads. None and "auto" mean nothing."""
    for name, value in fields.items():
        if name not in used and value is not None and value != "auto":
            problem = f"{short_repr(name)} in a part does nothing"
            raise RequestError(problem, fix="drop it, or say vlm={'max_pixels': ...}")


def url_source(part: Mapping[str, Any]) -> Any:
    """The URL of a part of type "image_url", which is OpenAI's."""
    source = part.get("image_url")
    if isinstance(source, Mapping):
        check_others(source, ("url",))
        source = source.get("url")
    if source is None:
        fix = "give it {'image_url': {'url': ...}}"
        raise RequestError("an image_url part has no url", fix=fix)
    return source


def part_source(part: Mapping[str, Any]) -> Any:
    """The image of a part, or None of a bare one. Raises RequestError for other fields."""
    if part["type"] == "image_url":
        check_others(part, ("type", "image_url"))
        return url_source(part)
    kind = image_field(part)
    check_others(part, ("type", kind))
    source = part.get(kind)
    return f"data:;base64,{source}" if kind == "base64" else source


def counts_patches(checkpoint: Checkpoint) -> bool:
    """Whether an image's tokens are known by arithmetic, and its size is set by a pixel budget."""
    processor = checkpoint.vision.image_processor
    return hasattr(processor, "get_number_of_image_patches") and hasattr(processor, "merge_size")


def pixel_budget(vlm: VlmPreprocessOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """The processor's keywords for a pixel budget. Always `size` with both edges: alone, or as
    min_pixels and max_pixels, releases and backends read, ignore or refuse them."""
    if vlm == VlmPreprocessOptions():
        return {}
    processor = checkpoint.vision.image_processor
    if not counts_patches(checkpoint):
        problem = f"{type(processor).__name__} has no pixel budget"
        raise UnsupportedError(problem, fix="leave `vlm` out")
    if not vlm.do_resize:
        return {"do_resize": False}
    usual = processor.size["shortest_edge"]
    # A minimum above the maximum would enlarge a small image beyond it.
    least = vlm.min_pixels or (usual if usual <= (vlm.max_pixels or usual) else 1)
    most = vlm.max_pixels or max(processor.size["longest_edge"], least)
    return {"size": {"shortest_edge": least, "longest_edge": most}}


def images_of(request: Any, checkpoint: Checkpoint) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(images of a VlmGenerationRequest in order, the processor's keywords for them)."""
    loose = list(request.images)
    sources = []
    for part in image_parts(request.messages):
        source = part_source(part)
        if source is None:
            if not loose:
                problem = "a bare image part, but no image in `images` for it"
                raise RequestError(problem, fix="add it to images")
            source = loose.pop(0)
        sources.append(source)
    if request.messages is not None and loose:
        problem = f"{len(loose)} of `images` have no part in the messages"
        raise RequestError(problem, fix="add {'type': 'image'} parts")
    sources += loose
    images = tuple(load_image(source, loader=request.image_loader) for source in sources)
    return images, pixel_budget(request.vlm, checkpoint)


def expand_images(images: Sequence[Any], kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> Any:
    """The processor's tensors for images: input_ids [images, most image tokens], attention_mask,
    pixel values and grid."""
    how = {"padding": True, "add_special_tokens": False, "return_tensors": "pt", **kwargs}
    texts = [checkpoint.placeholder] * len(images)
    return checkpoint.vision(text=texts, images=[[image] for image in images], **how)


def check_sides(image: Any, processor: Any) -> None:
    """Raise ImageError for an image that is no whole number of patches, without resizing."""
    side = processor.patch_size * processor.merge_size
    if image.width % side or image.height % side:
        problem = f"image of {image.width}x{image.height} pixels with do_resize=False"
        raise ImageError(problem, fix=f"both sides must be multiples of {side}")


def image_tokens(image: Any, kwargs: Mapping[str, Any], checkpoint: Checkpoint) -> int:
    """How many tokens an image becomes, by arithmetic where the image processor offers it."""
    processor = checkpoint.vision.image_processor
    if not counts_patches(checkpoint):
        return len(expand_images([image], kwargs, checkpoint)["input_ids"][0])
    if not kwargs.get("do_resize", True):
        check_sides(image, processor)
        side = processor.patch_size * processor.merge_size
        return int(image.width // side * (image.height // side))
    size = kwargs.get("size", processor.size)
    budget = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    with wrapping_errors(ImageError, f"image of {image.width}x{image.height}", "crop it"):
        patches = processor.get_number_of_image_patches(image.height, image.width, budget)
    return int(patches) // int(processor.merge_size) ** 2


# == transformers: the inputs of a batch ==

ALIGNED = ("input_ids", "token_type_ids", "mm_token_type_ids")  # a value per token; of text, 0

Run = Mapping[str, list[int]]  # what an image is per token, by name of an ALIGNED input


def image_groups(prompts: Sequence[Prompt], checkpoint: Checkpoint) -> Iterator[list[Any]]:
    """(image, kwargs) of all images in order, in groups for one call of the processor each.

    Neighbours of one pixel budget are a group where the processor makes rows of patches (Qwen-VL):
    a call takes longer than a small image. Other processors pad images to the largest of a call."""
    images = [(image, prompt.image_kwargs) for prompt in prompts for image in prompt.images]
    if not images:
        return
    if "image_grid_thw" not in checkpoint.vision.image_processor.model_input_names:
        yield from ([image] for image in images)
        return
    for _, group in itertools.groupby(images, key=lambda item: repr(item[1])):
        yield list(group)


def image_inputs(
    prompts: Sequence[Prompt], checkpoint: Checkpoint
) -> tuple[list[Run], dict[str, Any]]:
    """(what each image is per token, the tensors of all images), in order."""
    runs: list[Run] = []
    tensors: dict[str, list[Any]] = {}
    for group in image_groups(prompts, checkpoint):
        made = dict(expand_images([image for image, _ in group], group[0][1], checkpoint))
        seen = made.pop("attention_mask").bool()
        aligned = {name: made.pop(name) for name in ALIGNED if name in made}
        for place in range(len(group)):
            run = {name: values[place][seen[place]] for name, values in aligned.items()}
            runs.append({name: values.tolist() for name, values in run.items()})
        for name, tensor in made.items():
            tensors.setdefault(name, []).append(tensor)
    return runs, {name: lazy_import("torch").cat(parts) for name, parts in tensors.items()}


def token_columns(token_id: int, run: Run | None, names: Sequence[str]) -> dict[str, list[int]]:
    """What a token is by name of an input: a run of an image, or one token of text."""
    if run is None:
        return {name: [token_id if name == "input_ids" else 0] for name in names}
    return {name: run.get(name) or [0] * len(run["input_ids"]) for name in names}


def row_columns(
    row: Row, runs: Sequence[Run], names: Sequence[str], placeholder: int | None
) -> dict[str, list[int]]:
    """What a row is per token, by name of an input: each placeholder becomes its image's run."""
    columns: dict[str, list[int]] = {name: [] for name in names}
    left = iter(runs)
    for token_id in (*row.prompt.token_ids, *row.response):
        run = next(left) if runs and token_id == placeholder else None
        for name, values in token_columns(token_id, run, names).items():
            columns[name] += values
    return columns


def image_columns(
    rows: Sequence[Row], checkpoint: Checkpoint
) -> tuple[list[dict[str, list[int]]], dict[str, Any]]:
    """(each row's values per token, by input; the tensors of all images). A row without images has
    zeros beside its ids."""
    runs, tensors = image_inputs([row.prompt for row in rows], checkpoint)
    columns = []
    start = 0
    for row in rows:
        count = len(row.prompt.images)
        own = runs[start : start + count]
        columns.append(row_columns(row, own, list(runs[0]), checkpoint.placeholder_id))
        start += count
    return columns, tensors
