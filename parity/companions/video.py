# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Videos in messages, for checkpoints of Qwen3-VL's kind: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="video"`, and write

    clip = {"type": "video", "video": "clip.mp4", "fps": 2}
    question = {"type": "text", "text": "What happens?"}
    engine.generate_vlm_batch([{"messages": [{"role": "user", "content": [clip, question]}]}])

gen_engine finds this file beside itself. The checkpoint's own processor chooses the frames, and
both backends are given the same ones, with the times that they were taken at. Files are decoded by
OpenCV (pip install opencv-python-headless; vLLM brings it).
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["REFUSALS", "Clip", "VideoError", "expand", "load_video"]


class VideoError(ge.RequestError):
    """A video is unreadable, truncated, too large, or no video."""


@dataclass(frozen=True, eq=False, slots=True)
class Clip:
    """The frames of a video that the model is given.

    frames: uint8 [frames, height, width, 3].   indices: of them, in the video.
    total: frames of the video.   rate: its frames per second.
    placeholder_id: of the token that stands for it.   tokens: that it becomes."""

    frames: Any
    indices: tuple[int, ...]
    total: int
    rate: float
    placeholder_id: int
    tokens: int = 0

    @property
    def size(self) -> tuple[Any, ...]:
        """What tells it, beside its pixels, from others."""
        return (*self.frames.shape, self.indices, self.total, self.rate)

    def tobytes(self) -> bytes:
        return bytes(self.frames.tobytes())

    def metadata(self) -> dict[str, Any]:
        """What transformers and vLLM want to know of a video; a new one each time, since both
        write into it."""
        return {
            "fps": self.rate,
            "duration": self.total / self.rate,
            "total_num_frames": self.total,
            "frames_indices": list(self.indices),
        }

    @property
    def vllm_item(self) -> tuple[str, Any]:
        return "video", (self.frames, {**self.metadata(), "do_sample_frames": False})


# == What can be asked of a checkpoint ==

INSTEAD = "install a newer one, or give frames as images"
REFUSALS = (  # these place frames otherwise, or cannot count their tokens
    ge.Refusal("both", "videos", lambda asked: True, INSTEAD, "transformers<5.16"),
    ge.Refusal("vllm", "videos", lambda asked: True, INSTEAD, "vllm<0.32"),
)

# Their video path was compared on both backends, id by id; others write their frames otherwise.
PROCESSORS = ("Qwen3VLProcessor",)


def check_checkpoint(checkpoint: ge.Checkpoint) -> None:
    """Raise UnsupportedError where this checkpoint, or a release, has no videos."""
    kind = type(checkpoint.vision).__name__
    if kind not in PROCESSORS:
        problem = f"videos for {kind} are not supported"
        fix = f"give frames as images, or load a checkpoint of {', '.join(PROCESSORS)}"
        raise ge.UnsupportedError(problem, fix=fix)
    asked = ge.Asked(checkpoint.settings)
    for refusal in REFUSALS:
        if refusal.holds(asked):
            problem = f"{refusal.releases} cannot do {refusal.what}"
            raise ge.UnsupportedError(problem, fix=refusal.fix)


def check_budget(vlm: ge.VlmPreprocessOptions) -> None:
    """Raise UnsupportedError for a pixel budget, which means an image's."""
    if vlm.min_pixels or vlm.max_pixels or not vlm.do_resize:
        problem = "a pixel budget (`vlm`) beside a video"
        raise ge.UnsupportedError(problem, fix="give smaller frames, a lower fps, or leave it out")


# == A part of a message ==

FIELDS = ("type", "video", "fps")


def check_fields(part: Mapping[str, Any]) -> None:
    """Raise VideoError for a part without a video, or with what nothing reads."""
    for name, value in part.items():
        if name not in FIELDS and value is not None:
            problem = f"{ge.short_repr(name)} in a video part does nothing"
            raise VideoError(problem, fix="give it `video` and `fps` only")
    if part.get("video") is None:
        fix = "give it {'type': 'video', 'video': a path or a list of frames}"
        raise VideoError("a video part has no video", fix=fix)


def frame_rate(part: Mapping[str, Any]) -> float | None:
    """The part's fps, if it names one. Raises VideoError."""
    rate = part.get("fps")
    if rate is None:
        return None
    known = 0.0
    if isinstance(rate, numbers.Real) and not isinstance(rate, bool):
        with contextlib.suppress(OverflowError):  # a whole number that no float holds
            known = float(rate)
    if not math.isfinite(known) or known <= 0:
        raise VideoError(f"fps is {ge.short_repr(rate)}", fix="give a number above 0")
    return known


# == Frames of a file ==

# By their first bytes: FFmpeg would read texts and images, too, and playlists that name addresses.
CONTAINERS = re.compile(
    rb"....(ftyp|moov|mdat|wide|free|skip)"  # MP4, MOV
    rb"|\x1aE\xdf\xa3"  # WebM, Matroska
    rb"|RIFF....AVI "
    rb"|GIF8"
    rb"|\x00\x00\x01\xba",  # MPEG
    re.DOTALL,
)
MOST_BYTES = 1 << 32  # of the frames that are read out of one file


def check_file(path: str) -> None:
    """Raise VideoError for what is no file of a known container."""
    if not os.path.isfile(path):  # a pipe or a device may never end
        problem = f"there is no file {ge.short_repr(path)}"
        raise VideoError(problem, fix="give the path of a video; none is fetched from a URL")
    with open(path, "rb") as file:
        head = file.read(12)
    if not CONTAINERS.match(head):
        what = "no video" if head else "empty"
        fix = "give an MP4, MOV, WebM, Matroska, AVI, MPEG or GIF file, or a list of frames"
        raise VideoError(f"{ge.short_repr(path)} is {what}", fix=fix)


def decoder() -> Any:
    """The module cv2. Raises BackendMissing with the line that installs it."""
    if find_spec("cv2") is None:
        fix = "run: pip install opencv-python-headless; or give a list of frames"
        raise ge.BackendMissing("OpenCV, which decodes videos, is not installed", fix=fix)
    return ge.lazy_import("cv2")


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """OpenCV's reader of a file. Raises VideoError."""
    cv2 = decoder()
    check_file(path)
    reader = cv2.VideoCapture(os.path.abspath(path), cv2.CAP_FFMPEG)
    try:
        if not reader.isOpened():
            problem = f"{ge.short_repr(path)} cannot be decoded"
            raise VideoError(problem, fix="it may be truncated: see whether a player shows it")
        yield reader
    finally:
        reader.release()


def count_frames(path: str) -> int:
    """How many frames can be read: some containers do not say it."""
    count = 0
    with opened(path) as reader:
        while reader.grab():
            count += 1
    return count


def file_facts(path: str) -> tuple[int, float, int]:
    """(frames, frames per second, bytes of a frame) of a file. Raises VideoError."""
    cv2 = decoder()
    with opened(path) as reader:
        names = (cv2.CAP_PROP_FRAME_COUNT, cv2.CAP_PROP_FPS)
        total, rate = (reader.get(name) for name in names)
        sides = (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        width, height = (reader.get(name) for name in sides)
    if not math.isfinite(rate) or rate <= 0:
        problem = f"{ge.short_repr(path)} names no frame rate"
        raise VideoError(problem, fix="give its frames as a list, with fps")
    known = int(total) if total > 0 else count_frames(path)
    if known == 0:
        raise VideoError(f"{ge.short_repr(path)} has no frames", fix="give a video with some")
    return known, rate, int(width * height) * 3


def read_frames(path: str, indices: Sequence[int]) -> list[Any]:
    """The frames with these indices, in RGB, upright. Raises VideoError for a file that ends
    before them."""
    cv2 = decoder()
    wanted = set(indices)
    frames = []
    with opened(path) as reader:
        for index in range(max(indices) + 1):
            is_there = reader.grab()
            if is_there and index in wanted:
                is_there, frame = reader.retrieve()
                if is_there:
                    frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
            if not is_there:
                problem = (
                    f"{ge.short_repr(path)} ends at frame {index}, before frame {max(indices)}"
                )
                raise VideoError(
                    problem, fix="it is truncated, or its header is wrong: get it anew"
                )
    return frames


def sampled(total: int, rate: float, wanted: float | None, processor: Any) -> tuple[int, ...]:
    """Indices of the frames that the checkpoint's processor takes. wanted: frames per second."""
    if wanted is None and not processor.do_sample_frames:
        return tuple(range(total))
    facts = ge.lazy_import("transformers.video_utils").VideoMetadata(
        total_num_frames=total, fps=rate
    )
    count = processor.num_frames if wanted is None else None
    if wanted is None and count is None:
        wanted = processor.fps
    indices = processor.sample_frames(metadata=facts, num_frames=count, fps=wanted)
    return tuple(int(index) for index in indices)


# == Frames as a list ==


def check_array(frame: Any, position: int) -> None:
    """Raise VideoError for an array that is no frame in RGB: what PIL would make of it, if
    anything, is another picture."""
    if frame.dtype != "uint8" or frame.ndim != 3 or frame.shape[-1] != 3:
        is_what = f"a {frame.dtype} array {list(frame.shape)}"
        fix = "give uint8 [height, width, 3], red first: scale floats of 0 to 1 by 255"
        raise VideoError(f"frame {position} of a video is {is_what}", fix=fix)


def given_frames(frames: Any, request: ge.VlmGenerationRequest) -> list[Any]:
    """Frames as RGB arrays. Each may be what an image may be, or an array [height, width, 3]."""
    numpy = ge.lazy_import("numpy")
    arrays = []
    for position, frame in enumerate(frames):
        with ge.wrapping_errors(
            VideoError, f"frame {position} of a video", "give what an image may be"
        ):
            if isinstance(frame, numpy.ndarray):
                check_array(frame, position)
                frame = ge.lazy_import("PIL.Image").fromarray(frame)
            image = ge.load_image(
                ge.named_source(frame, request.image_root),
                loader=request.image_loader,
                root=request.image_root,
                background=request.vlm.background,
            )
        arrays.append(numpy.asarray(image))
    return arrays


def stacked(frames: Sequence[Any], least: int, name: str) -> Any:
    """Frames as one array. name: of the video, for VideoErrors: too few, or of several sizes."""
    if len(frames) < least:
        problem = f"{name} gives {len(frames)} frames"
        raise VideoError(problem, fix=f"give {least} or more, or give them as images")
    sizes = sorted({f"{frame.shape[1]}x{frame.shape[0]}" for frame in frames})
    if len(sizes) > 1:
        problem = f"the frames of {name} have several sizes: {', '.join(sizes[:4])}"
        raise VideoError(problem, fix="scale them to one size")
    return ge.lazy_import("numpy").stack(frames)


# == For gen_engine ==


def count_tokens(clip: Clip, checkpoint: ge.Checkpoint) -> int:
    """How many tokens a clip becomes: the processor's own arithmetic and its own words."""
    processor = checkpoint.vision
    video = processor.video_processor
    count, height, width, _ = clip.frames.shape
    with ge.wrapping_errors(VideoError, f"frames of {width}x{height} pixels", "crop them"):
        patches = int(video.get_num_of_video_patches(count, height, width))
        groups = -(-count // video.temporal_patch_size)
        grid = ge.lazy_import("torch").tensor([[groups, patches // groups, 1]])
        known = ge.lazy_import("transformers.video_utils").VideoMetadata(**clip.metadata())
        made = {"video_grid_thw": grid, "video_metadata": [known]}
        text = processor.replace_video_token(made, 0)
    return len(checkpoint.tokenizer(text, add_special_tokens=False)["input_ids"])


def read_clip(part: Mapping[str, Any], request: Any, checkpoint: ge.Checkpoint) -> Clip:
    """The frames of a part. Raises VideoError."""
    processor = checkpoint.vision.video_processor
    with ge.wrapping_errors(VideoError, "the video", "see the cause"):
        source = ge.named_source(part["video"], request.image_root)
    rate = frame_rate(part)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        name = ge.short_repr(path)
        total, own_rate, size = file_facts(path)
        indices = sampled(total, own_rate, rate, processor)
        if len(indices) * size > MOST_BYTES:
            problem = f"{len(indices)} frames of {name} take {len(indices) * size >> 20} MiB"
            fix = f"lower fps, or scale the video, to {MOST_BYTES >> 20} MiB at most"
            raise VideoError(problem, fix=fix)
        frames = read_frames(path, indices)
    else:
        if isinstance(source, (bytes, Mapping)) or not hasattr(source, "__len__"):
            fix = "give a path or a list of frames"
            raise VideoError(f"{type(source).__name__} is no video", fix=fix)
        if rate is None:
            fix = "give fps: how many frames a second they were taken at"
            raise VideoError("frames without a rate", fix=fix)
        name = "a video"
        frames = given_frames(source, request)
        total, own_rate = len(frames), rate
        indices = tuple(range(total))
    array = stacked(frames, processor.temporal_patch_size, name)
    return Clip(array, indices, total, own_rate, checkpoint.vision.video_token_id)


def load_video(part: Mapping[str, Any], request: Any, checkpoint: ge.Checkpoint) -> Clip:
    """The video of a message's part, as both backends are given it.

    part: {"type": "video", "video": a path or a list of frames, "fps": ...}. fps is how many frames
        a second the model is given: of a file they are sampled, by default at the rate of the
        checkpoint's processor; a list is taken whole, and its fps is needed.
    Raises VideoError, and UnsupportedError where the checkpoint or a release has no videos."""
    check_checkpoint(checkpoint)
    check_fields(part)
    check_budget(request.vlm)
    clip = read_clip(part, request, checkpoint)
    return replace(clip, tokens=count_tokens(clip, checkpoint))


def expand(clip: Clip, checkpoint: ge.Checkpoint) -> dict[str, Any]:
    """The processor's tensors for a clip: input_ids [1, its tokens], attention_mask, pixel values
    and grid."""
    processor = checkpoint.vision
    made = processor(
        text=[processor.video_token],
        videos=[clip.frames],
        video_metadata=[clip.metadata()],
        do_sample_frames=False,
        add_special_tokens=False,
        return_tensors="pt",
    )
    return {name: value for name, value in made.items() if name != "video_metadata"}
