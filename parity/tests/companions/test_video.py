"""Videos: right answers and the same ids on both backends, as the plain libraries have them; bad ones refused alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import gen_engine
from gen_engine import BackendMissing, GenerationEngine, RequestError, UnsupportedError
from parity.companions import video
from parity.companions.video import VideoError
from parity.models.tasks import clip, drawing, video_tasks

from ..conftest import ROOT, TEXT, Load, of_task

MODEL = ROOT / "golden/models/tiny-qwen3-video"
COLOURS, END = "Which colors do you see?", "When does it end?"
FRAMES = clip("red", "blue", frames=8, change=4)
Both = Callable[[Path], list[GenerationEngine]]


def watch(*parts: Any, text: str = COLOURS, **request: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], **request}


def part(source: Any, fps: Any = 2, **fields: Any) -> dict[str, Any]:
    return {"type": "video", "video": source, "fps": fps, **fields}


def written(path: Path, frames: Any, rate: float = 8, code: str = "mp4v") -> Path:
    cv2 = importlib.import_module("cv2")
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), rate, frames[0].size)
    for frame in frames:
        writer.write(numpy.asarray(frame)[:, :, ::-1])
    writer.release()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seconds: red, from 2.5 seconds on blue."""
    return written(tmp_path_factory.mktemp("clips") / "clip.mp4", clip("red", "blue", frames=40, change=20))


def same_on(engines: list[GenerationEngine], requests: list[dict[str, Any]]) -> list[Any]:
    """The results of the first engine; the other has the same ids."""
    first, second = (engine.generate_vlm_batch(requests, {"max_new_tokens": 24}) for engine in engines)
    assert [r.token_ids for r in first] == [r.token_ids for r in second]
    assert [r.prompt_token_ids for r in first] == [r.prompt_token_ids for r in second]
    return first


@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_a_mapping_where_an_image_belongs_is_no_video(shared: Load, backend: str) -> None:
    engine = shared(MODEL, backend)
    inside = {"messages": [{"role": "user", "content": [{"type": "image", "image": part(FRAMES)}]}]}
    beside = {**watch({"type": "image"}), "images": [part(FRAMES)]}
    good = watch(part(FRAMES))
    errors = engine.generate_vlm_batch([inside, good, beside], {"max_new_tokens": 24}, on_error="return")
    assert errors[1].text == "First red, then blue."
    assert all(isinstance(e, gen_engine.ImageError) and "dict is no image" in str(e) for e in errors[::2]), errors


def test_pictures_are_read_when_all_parts_are_sound(shared: Load) -> None:
    asked = watch({"type": "image"}, images=["nowhere.png", "nowhere-else.png"])
    with pytest.raises(RequestError, match="1 of `images` have no part"):
        shared(MODEL, "hf").generate_vlm_batch([asked])


def test_clips_are_answered_right_and_alike_on_both_backends(both: Both) -> None:
    tasks = video_tasks(20)
    results = same_on(both(MODEL), [of_task(task) for task in tasks])
    assert [result.text for result in results] == [task.answer for task in tasks]


def test_a_file_is_sampled_at_the_processors_rate_or_at_its_own(both: Both, file: Path) -> None:
    requests = [
        watch(part(file, None)),
        watch(part(file, 2), text=END),
        watch(part(file, 4), text=END),
    ]
    usual, slow, fast = same_on(both(MODEL), requests)
    assert usual.text == "First red, then blue."
    assert slow.text == "At 4.6 seconds."
    assert fast.text == "At 4.8 seconds."


def test_arrays_paths_and_an_odd_number_of_frames_are_taken(both: Both, tmp_path: Path) -> None:
    array = numpy.stack([numpy.asarray(frame) for frame in FRAMES])
    paths = [tmp_path / f"{index}.png" for index in range(8)]
    for frame, path in zip(FRAMES, paths, strict=True):
        frame.save(path)
    results = same_on(both(MODEL), [watch(part(one)) for one in (FRAMES, array, paths, FRAMES[1:])])
    assert {result.text for result in results} == {"First red, then blue."}
    assert results[0].prompt_token_ids == results[1].prompt_token_ids == results[2].prompt_token_ids


def test_equal_frames_at_another_rate_are_another_prompt(both: Both) -> None:
    results = same_on(both(MODEL), [watch(part(FRAMES, fps), text=END) for fps in (1, 2, 4)])
    assert [result.text for result in results] == ["At 6.5 seconds.", "At 3.2 seconds.", "At 1.6 seconds."]


def test_images_and_clips_of_one_request_keep_their_order(both: Both) -> None:
    image = {"type": "image", "image": drawing("red", "circle")}
    mixed = [image, part(FRAMES), part(FRAMES[:6]), image]
    results = same_on(both(MODEL), [watch(*mixed), watch(part(FRAMES)), watch(*mixed[::-1])])
    assert results[1].text == "First red, then blue."
    assert len({result.prompt_token_ids for result in results}) == 3


# == Against the plain libraries ==


def plain_prompt(engine: GenerationEngine, frames: Any, text: str, **how: Any) -> tuple[str, Any]:
    """The rendered text, and transformers' inputs for it by its own processor."""
    processor: Any = engine.processor
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": text}]}]
    rendered = processor.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    inputs = processor(text=[rendered], videos=[frames], return_tensors="pt", **how)
    inputs.pop("video_metadata", None)
    return rendered, inputs


def metadata(frames: Any, rate: float) -> dict[str, Any]:
    count = len(frames)
    return {
        "fps": rate,
        "total_num_frames": count,
        "duration": count / rate,
        "frames_indices": list(range(count)),
    }


@pytest.mark.parametrize("rate", [0.5, 2, 8])
def test_ids_are_those_of_plain_transformers_and_plain_vllm(both: Both, rate: float) -> None:
    hf, vllm = both(MODEL)
    frames = numpy.stack([numpy.asarray(frame) for frame in FRAMES[:7]])
    for text in (COLOURS, END):
        how = {"video_metadata": [metadata(frames, rate)], "do_sample_frames": False}
        rendered, inputs = plain_prompt(hf, frames, text, **how)
        with hf.bare(read_only=True) as model:
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=24, eos_token_id=list(hf.checkpoint.eos_ids))
        prompt = inputs["input_ids"][0].tolist()
        answer = ids[0, len(prompt) :].tolist()
        kit = importlib.import_module("vllm")
        item = (frames, {**metadata(frames, rate), "do_sample_frames": False})
        with vllm.bare(read_only=True) as llm:
            plain = {"prompt": rendered, "multi_modal_data": {"video": [item]}}
            [output] = llm.generate(plain, kit.SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
        [result] = same_on([hf, vllm], [watch(part(frames, rate), text=text)])
        assert list(result.prompt_token_ids) == prompt == list(output.prompt_token_ids)
        assert list(result.token_ids) == answer == list(output.outputs[0].token_ids)


@pytest.mark.parametrize("fps", [None, 1, 3.5, 100])
def test_frames_of_a_file_are_those_that_plain_transformers_samples(shared: Load, file: Path, fps: Any) -> None:
    engine = shared(MODEL, "hf")
    everything = video.read_frames(str(file), range(40))
    known = {"fps": 8.0, "total_num_frames": 40, "duration": 5.0}
    how = {"fps": fps} if fps else {}
    _, inputs = plain_prompt(engine, numpy.stack(everything), END, video_metadata=[known], do_sample_frames=True, **how)
    [result] = engine.generate_vlm_batch([watch(part(file, fps), text=END)], {"max_new_tokens": 1})
    assert list(result.prompt_token_ids) == inputs["input_ids"][0].tolist()
    made = video.expand(
        video.load_video(part(file, fps), gen_engine.VlmGenerationRequest(prompt=""), engine.checkpoint),
        engine.checkpoint,
    )
    assert made["pixel_values_videos"].equal(inputs["pixel_values_videos"])


@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_scores_of_an_answer_are_its_logprobs(shared: Load, backend: str) -> None:
    engine = shared(MODEL, backend)
    request = watch(part(FRAMES))
    [result] = engine.generate_vlm_batch([request], {"logprobs": 0})
    [score] = engine.score_batch([(request, result.token_ids)])
    assert score.prompt_token_ids == result.prompt_token_ids
    assert score.logprobs == pytest.approx(result.logprobs, abs=1e-4)


# == What is refused ==


def cut(file: Path, size: int) -> bytes:
    return file.read_bytes()[:size]


def bad_file(name: str, folder: Path, good: Path) -> Any:
    """A path to a file that is no whole video."""
    path = folder / name
    avi = written(folder / "whole.avi", FRAMES, code="MJPG")
    contents: dict[str, bytes] = {
        "empty.mp4": b"",
        "head.mp4": cut(good, 10),
        "half.mp4": cut(good, good.stat().st_size // 2),
        "half.avi": cut(avi, avi.stat().st_size // 2),
        "text.mp4": b"a list of lines\n" * 400,
        "playlist.m3u8": b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/a.ts\n",
        "zeros.mp4": bytes(5000),
    }
    if name == "image.mp4":
        FRAMES[0].save(path, "PNG")
    elif name == "one.mp4":
        written(path, FRAMES[:1])
    elif name in contents:
        path.write_bytes(contents[name])
    return path


NAMES = [
    "empty.mp4",
    "head.mp4",
    "half.mp4",
    "half.avi",
    "text.mp4",
    "playlist.m3u8",
    "zeros.mp4",
    "image.mp4",
    "one.mp4",
]


@pytest.mark.parametrize("name", [*NAMES, "missing.mp4"])
def test_a_bad_file_is_refused_and_the_others_are_answered(shared: Load, tmp_path: Path, file: Path, name: str) -> None:
    engine = shared(MODEL, "hf")
    requests = [watch(part(FRAMES)), watch(part(bad_file(name, tmp_path, file))), watch(part(file))]
    first, error, last = engine.generate_vlm_batch(requests, on_error="return")
    assert isinstance(error, VideoError) and error.index == 1 and error.fix
    assert name in str(error)
    assert first.text == last.text == "First red, then blue."


BAD_PARTS: list[tuple[dict[str, Any], str]] = [
    (part(FRAMES, 0), "fps is 0"),
    (part(FRAMES, -1), "fps is -1"),
    (part(FRAMES, float("nan")), "fps is nan"),
    (part(FRAMES, "2"), "fps is '2'"),
    (part(FRAMES, True), "fps is True"),
    (part(FRAMES, 10**400), "fps is 1000"),
    (part(FRAMES, None), "without a rate"),
    (part([]), "a video gives 0 frames"),
    (part(FRAMES[:1]), "a video gives 1 frames"),
    (part([*FRAMES[:2], Image.new("RGB", (64, 96))]), "several sizes: 64x64, 64x96"),
    (part([FRAMES[0], "no/such.png"]), "a message names the file 'no/such.png'"),
    (part([FRAMES[0], b"no image"]), "unreadable image"),
    (part([numpy.zeros((4, 4, 7))] * 2), "frame 0 of a video is a float64 array [4, 4, 7]"),
    (part([numpy.zeros((4, 4, 3), "float32")] * 2), "frame 0 of a video is a float32 array [4, 4, 3]"),
    (part([FRAMES[0], numpy.zeros((3, 64, 64), "uint8")]), "frame 1 of a video is a uint8 array [3, 64, 64]"),
    (part(numpy.zeros((2, 4), "uint8")), "frame 0 of a video is a uint8 array [4]"),
    (part([Image.new("RGB", (2000, 4))] * 2), "frames of 2000x4 pixels"),
    (part(None), "has no video"),
    (part(7), "int is no video"),
    (part(b"\x00"), "bytes is no video"),
    (part("https://example.com/a.mp4"), "there is no file 'https://example.com/a.mp4'"),
    (part(FRAMES, max_pixels=5), "'max_pixels' in a video part does nothing"),
]


@pytest.mark.parametrize(("bad", "problem"), BAD_PARTS, ids=[problem for _, problem in BAD_PARTS])
def test_a_bad_part_is_refused_before_any_work(shared: Load, bad: Any, problem: str) -> None:
    with pytest.raises(RequestError) as refused:
        shared(MODEL, "hf").generate_vlm_batch([watch(part(FRAMES)), watch(bad)])
    assert problem in str(refused.value) and refused.value.index == 1


@pytest.mark.parametrize("vlm", [{"max_pixels": 4096}, {"min_pixels": 4096}, {"do_resize": False}])
def test_a_pixel_budget_beside_a_video_is_refused(shared: Load, vlm: Any) -> None:
    with pytest.raises(UnsupportedError, match="a pixel budget"):
        shared(MODEL, "hf").generate_vlm_batch([watch(part(FRAMES), vlm=vlm)])


def test_a_model_that_sees_no_videos_refuses_them(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="this checkpoint is text-only"):
        shared(TEXT, "hf").generate_vlm_batch([watch(part(FRAMES))])
    with pytest.raises(RequestError, match="use generate_vlm_batch|Use generate_vlm_batch"):
        shared(MODEL, "hf").generate_text_batch([watch(part(FRAMES))])
    monkeypatch.setattr(video, "PROCESSORS", ("AnotherProcessor",))
    with pytest.raises(UnsupportedError, match="videos for Qwen3VLProcessor are not supported"):
        shared(MODEL, "hf").generate_vlm_batch([watch(part(FRAMES))])


@pytest.mark.parametrize(("backend", "releases"), [("hf", "transformers<5.16"), ("vllm", "vllm<0.32")])
def test_a_release_that_was_not_tried_refuses_them(
    shared: Load, monkeypatch: pytest.MonkeyPatch, backend: str, releases: str
) -> None:
    monkeypatch.setattr(gen_engine, "installed", lambda asked: asked == releases)
    with pytest.raises(UnsupportedError, match=f"{releases} cannot do videos. Install a newer one, or give frames"):
        shared(MODEL, backend).generate_vlm_batch([watch(part(FRAMES))])


def test_without_opencv_a_file_is_refused_and_frames_are_taken(
    shared: Load, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(BackendMissing, match="pip install opencv-python-headless"):
        shared(MODEL, "hf").generate_vlm_batch([watch(part(file))])
    [result] = shared(MODEL, "hf").generate_vlm_batch([watch(part(FRAMES))])
    assert result.text == "First red, then blue."


@pytest.mark.parametrize("fps", [numpy.float32(2), numpy.float64(2), numpy.int64(2), Fraction(2)], ids=repr)
def test_a_rate_is_a_number_of_whatever_library(shared: Load, fps: Any) -> None:
    ask = shared(MODEL, "hf").generate_vlm_batch
    [plain], [other] = ask([watch(part(FRAMES))]), ask([watch(part(FRAMES, fps))])
    assert other.prompt_token_ids == plain.prompt_token_ids and other.text == plain.text


def test_a_picture_and_a_video_in_each_others_place_are_refused(shared: Load) -> None:
    vision = shared(MODEL, "hf").checkpoint.vision
    swapped = [part(FRAMES), {"type": "image", "image": drawing("red", "square")}]
    template = f"{{{{ '{vision.image_token}' }}}} {vision.video_token}"
    with pytest.raises(RequestError, match="in another order than their placeholders"):
        shared(MODEL, "hf").generate_vlm_batch([watch(*swapped, chat={"template": template})])


@pytest.mark.parametrize("kind", ["avi", "gif"])
def test_a_file_of_another_container_is_answered_like_its_frames(shared: Load, tmp_path: Path, kind: str) -> None:
    frames, path = clip("red", "blue", frames=40, change=20), tmp_path / f"clip.{kind}"
    if kind == "avi":
        written(path, frames, code="MJPG")
    else:
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=120)
    [result] = shared(MODEL, "hf").generate_vlm_batch([watch(part(path))])
    assert result.text == "First red, then blue."


def test_a_file_whose_frames_would_fill_the_memory_is_refused(
    shared: Load, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "MOST_BYTES", 100_000)
    with pytest.raises(VideoError, match="10 frames of .*clip.mp4' take 0 MiB"):
        shared(MODEL, "hf").generate_vlm_batch([watch(part(file))])


def test_frames_are_counted_where_a_file_does_not_say_how_many(file: Path) -> None:
    assert video.count_frames(str(file)) == 40 == video.file_facts(str(file))[0]


def test_a_marker_written_into_a_text_is_no_video(shared: Load) -> None:
    with pytest.raises(RequestError, match="1 images, but 2 placeholders") as refused:
        shared(MODEL, "hf").generate_vlm_batch([watch(part(FRAMES), text="<|video_pad|>")])
    assert refused.value.fix == "a prompt has one '<|image_pad|>' for each image, each video its own"
    ids = [*range(5), shared(MODEL, "hf").checkpoint.vision.video_token_id]
    with pytest.raises(RequestError, match="0 images, but 1 placeholders"):
        shared(MODEL, "hf").generate_text_batch([{"prompt_token_ids": ids}])


def test_an_image_in_the_place_of_a_video_is_refused(shared: Load) -> None:
    """One placeholder each, of another kind: what is put there must be what the prompt says."""
    ids = [5, shared(MODEL, "hf").checkpoint.vision.video_token_id]
    with pytest.raises(RequestError, match="in another order than their placeholders"):
        shared(MODEL, "hf").generate_vlm_batch([{"prompt_token_ids": ids, "images": [FRAMES[0]]}])
