"""Pictures: the same image tokens and answers on both backends, every kind of source, every kind of bad source."""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

import gen_engine
from gen_engine import GenerationEngine, ImageError, RequestError, UnsupportedError, load_image
from parity.models.tasks import drawing, text_tasks, vision_tasks

from ..conftest import ROOT, TEXT, VL, Load, chat, of_task, open_engine, spy

TASKS = vision_tasks(60)
COPIED = """
import sys
from PIL import Image
from gen_engine import load, __file__ as file

content = [{"type": "image", "image": Image.new("RGB", (64, 64), "red")}, {"type": "text", "text": "What?"}]
with load(sys.argv[1]) as engine:
    [result] = engine.generate_vlm_batch([{"messages": [{"role": "user", "content": content}]}], {"max_new_tokens": 4})
print(file, result.completion_tokens, "parity" in sys.modules)
"""
PICTURES = [task for task in TASKS if any(not isinstance(m["content"], str) for m in task.messages)]
ASK = "What is in the picture? Answer in JSON."
Both = Callable[[Path], list[GenerationEngine]]


def look(*images: Any, text: str = ASK, **request: Any) -> dict[str, Any]:
    parts = [{"type": "image", "image": image} for image in images]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], **request}


def png(image: Image.Image, kind: str = "PNG", **save: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **save)
    return stream.getvalue()


def photograph() -> Image.Image:
    return Image.open(importlib.import_module("matplotlib.cbook").get_sample_data("grace_hopper.jpg"))


def test_drawings_are_named_right_and_alike_on_both_backends(both: Both) -> None:
    hf, vllm = (engine.generate_vlm_batch([of_task(task) for task in PICTURES]) for engine in both(VL))
    assert [r.token_ids for r in hf] == [r.token_ids for r in vllm]
    assert [r.prompt_token_ids for r in hf] == [r.prompt_token_ids for r in vllm]
    assert [r.text for r in hf] == [task.answer for task in PICTURES]


def test_a_vlm_checkpoint_chats_too(vl: GenerationEngine) -> None:
    talk = [task for task in TASKS if task not in PICTURES]
    assert talk
    assert [r.text for r in vl.generate_text_batch([of_task(task) for task in talk])] == [t.answer for t in talk]


def test_a_row_with_pictures_alone_is_the_row_in_a_ragged_batch(vl: GenerationEngine) -> None:
    requests = [look(drawing("red", "circle", width=w, height=h)) for w, h in ((64, 64), (96, 64), (200, 80))]
    requests.append(look(drawing("blue", "square"), drawing("green", "circle"), text="What do you see?"))
    options = {"repetition_penalty": 1.1, "max_new_tokens": 40}
    assert vl.generate_vlm_batch(requests, options) == [vl.generate_vlm_batch([r], options)[0] for r in requests]


SIZES = [(64, 64), (80, 64), (33, 47), (300, 200), (1000, 31), (640, 480)]
BUDGETS: list[dict[str, Any]] = [
    {}, {"max_pixels": 4096}, {"min_pixels": 65536}, {"min_pixels": 8192, "max_pixels": 16384}, {"max_pixels": 1024},
]  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_the_pixel_budget_gives_the_same_image_tokens_on_both_and_as_the_processor(both: Both, budget: Any) -> None:
    requests = [look(drawing("red", "square", width=w, height=h), vlm=budget) for w, h in SIZES]
    hf, vllm = (engine.generate_vlm_batch(requests, {"max_new_tokens": 3}) for engine in both(VL))
    assert [r.prompt_token_ids for r in hf] == [r.prompt_token_ids for r in vllm]
    processor: Any = both(VL)[0].processor
    own = dict(processor.image_processor.size)
    usual = own["shortest_edge"] if own["shortest_edge"] <= budget.get("max_pixels", math.inf) else 1
    least = budget.get("min_pixels", usual)
    size = {"shortest_edge": least, "longest_edge": budget.get("max_pixels", max(own["longest_edge"], least))}
    for (width, height), result in zip(SIZES, hf):
        plain = processor(
            text=["<|image_pad|>"], images=[drawing("red", "square", width=width, height=height)], size=size
        )
        image_token = processor.image_token_id
        assert result.prompt_token_ids.count(image_token) == plain["input_ids"][0].count(image_token)


def test_do_resize_false_takes_the_picture_as_it_is(both: Both) -> None:
    request = look(drawing("red", "circle", width=96, height=64), vlm={"do_resize": False})
    hf, vllm = (engine.generate_vlm_batch([request])[0] for engine in both(VL))
    processor: Any = both(VL)[0].processor
    assert hf.prompt_token_ids == vllm.prompt_token_ids
    assert hf.prompt_token_ids.count(processor.image_token_id) == 6
    assert hf.token_ids == vllm.token_ids
    with pytest.raises(ImageError, match="multiples of 32"):
        both(VL)[0].generate_vlm_batch([look(drawing("red", "circle", width=90, height=64), vlm={"do_resize": False})])


def test_a_real_photograph_goes_the_whole_way_alike_on_both(both: Both) -> None:
    request = look(photograph(), vlm={"max_pixels": 128 * 128})
    hf, vllm = (engine.generate_vlm_batch([request], {"max_new_tokens": 24})[0] for engine in both(VL))
    assert hf.prompt_token_ids == vllm.prompt_token_ids
    assert hf.token_ids == vllm.token_ids


# -- sources -----------------------------------------------------------------------------------------------------------


def sources(folder: Path) -> dict[str, Any]:
    image = drawing("green", "triangle")
    file = folder / "picture.png"
    file.write_bytes(png(image))
    data = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    percents = "data:," + "".join(f"%{byte:02x}" for byte in png(image))
    return {
        "pil": image, "path": file, "bytes": png(image), "data url": data,
        "bytearray": bytearray(png(image)), "memory": memoryview(png(image)), "percents": percents,
    }  # fmt: skip


def test_every_source_is_the_same_picture(vl: GenerationEngine, tmp_path: Path) -> None:
    given = sources(tmp_path)
    requests = [look(source) for source in given.values()]
    url = {"type": "image_url", "image_url": {"url": given["data url"]}}
    requests.append({"messages": [{"role": "user", "content": [url, {"type": "text", "text": ASK}]}]})
    bare = look(None)
    bare["messages"][0]["content"][0] = {"type": "image"}
    requests.append({**bare, "images": [given["pil"]]})
    prompt = vl.render(requests[0]["messages"])
    requests.append({"prompt": prompt, "images": [given["bytes"]]})
    requests.append({"prompt_token_ids": vl.tokenizer.encode(prompt), "images": given["path"]})
    results = vl.generate_vlm_batch(requests)
    assert {(r.text, r.prompt_token_ids) for r in results} == {
        ('{"color": "green", "shape": "triangle"}', results[0].prompt_token_ids)
    }


def test_an_image_url_is_an_image_to_a_template_that_knows_images_alone(
    edited: Callable[..., Path], tmp_path: Path
) -> None:
    model = edited(VL, {})
    template = (model / "chat_template.jinja").read_text()
    any_form = "part.type in ('image', 'image_url') or 'image' in part or 'image_url' in part"
    assert any_form in template
    (model / "chat_template.jinja").write_text(template.replace(any_form, "part.type == 'image'"))
    url = {"type": "image_url", "image_url": {"url": sources(tmp_path)["data url"]}}
    part = {"type": "image", "image": drawing("green", "triangle")}
    with open_engine(model, "hf") as engine:
        texts = [engine.render([{"role": "user", "content": [one]}]) for one in (url, part)]
    assert texts[0] == texts[1] and "image" in texts[0]


WRITTEN = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")


@pytest.mark.parametrize("kind", WRITTEN)
def test_load_image_reads_the_formats_of_pictures(kind: str) -> None:
    image = load_image(png(Image.new("RGB", (16, 16), "white"), kind))
    assert (image.mode, image.size, image.getpixel((8, 8))) == ("RGB", (16, 16), (255, 255, 255))


@pytest.mark.parametrize("kind", ["EPS", "ICO"])
def test_load_image_refuses_formats_of_scripts_and_icons(kind: str) -> None:
    with pytest.raises(ImageError, match="unreadable image"):
        load_image(png(Image.new("RGB", (16, 16)), kind))


def test_pictures_are_turned_upright_and_made_rgb() -> None:
    image = photograph().resize((60, 80))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    turned = load_image(png(image, "JPEG", exif=exif))
    assert turned.size == (80, 60)
    assert turned.tobytes() == ImageOps.exif_transpose(Image.open(io.BytesIO(png(image, "JPEG", exif=exif)))).tobytes()
    for mode in ("RGBA", "L", "P", "1", "CMYK", "LA"):
        assert load_image(image.convert("RGB").convert(mode if mode != "LA" else "L").convert(mode)).mode == "RGB"


def test_a_remote_url_goes_to_the_callers_loader_only(vl: GenerationEngine) -> None:
    url = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    request: dict[str, Any] = {"messages": [{"role": "user", "content": [url, {"type": "text", "text": ASK}]}]}
    with pytest.raises(ImageError, match=r"request 0: remote image .* refused.*image_loader"):
        vl.generate_vlm_batch([request])
    asked: list[str] = []

    def loader(url: str) -> bytes:
        asked.append(url)
        return png(drawing("red", "circle"))

    [result] = vl.generate_vlm_batch([{**request, "image_loader": loader}])
    assert (result.text, asked) == ('{"color": "red", "shape": "circle"}', ["https://example.com/a.png"])


GOOD = png(drawing("red", "circle"))
BAD = {
    "truncated": (GOOD[: len(GOOD) // 2], "unreadable image"),
    "not a picture": (b"hello, I am text", "unreadable image"),
    "empty": (b"", "unreadable image"),
    "missing file": (Path("/nowhere/at/all.png"), "there is no file"),
    "a folder": (Path("/"), "there is no file"),
    "bad base64": ("data:image/png;base64,@@@", "not base64"),
    "data url without data": ("data:image/png", "without a comma"),
    "a number": (7, "int is no image"),
    "16 bit": (Image.new("I;16", (8, 8)), "mode 'I;16'"),
    "32 bit": (Image.new("I", (8, 8)), "mode 'I'"),
    "floats": (Image.new("F", (8, 8)), "mode 'F'"),
    "no lines": (Image.new("RGB", (8, 0)), "without pixels"),
    "very flat": (Image.new("RGB", (4000, 4)), "aspect ratio"),
    "remote": ("http://example.com/a.png", "remote image"),
    "ftp": ("ftp://example.com/a.png", "remote image"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_picture_is_an_error_with_the_index_before_any_work(
    vl: GenerationEngine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vl.backend, "complete", None)
    source, said = BAD[kind]
    with pytest.raises(ImageError, match=f"(?s)^request 1: .*{said}") as caught:
        vl.generate_vlm_batch([look(GOOD), look(source)])
    assert caught.value.index == 1


def failing_loader(url: str) -> bytes:
    raise KeyError(url)


ALONE: list[dict[str, Any]] = [
    look("https://example.com/a.png", image_loader=failing_loader),
    look(Image.new("RGB", (0, 0))),
    look("a\0b.png"),
    look(drawing("red", "circle"), chat={"template": "{{ 1 / 0 }}"}),
    look(drawing("red", "circle"), tools=[lambda x: x]),
    {"messages": [{"role": "user", "content": "no picture"}]},
]


@pytest.mark.parametrize("bad", ALONE, ids=range(len(ALONE)))
def test_a_bad_row_of_any_kind_fails_alone_where_asked(vl: GenerationEngine, bad: dict[str, Any]) -> None:
    good = look(drawing("red", "circle"))
    results: list[Any] = vl.generate_vlm_batch([good, bad, good], on_error="return")
    assert isinstance(results[1], RequestError) and results[1].index == 1
    assert results[0].text == results[2].text == '{"color": "red", "shape": "circle"}'


SHOWN = "data:image/png;base64," + base64.b64encode(png(drawing("red", "circle"))).decode()
BESIDE: list[dict[str, Any]] = [
    {"type": "image", "image": SHOWN, "max_pixels": 1024},
    {"type": "image", "image": SHOWN, "resized_height": 32, "resized_width": 32},
    {"type": "image", "uri": SHOWN},
    {"type": "image_url", "image_url": {"url": SHOWN, "detail": "low"}},
    {"type": "image_url", "image_url": {"url": SHOWN, "max_pixels": 1024}},
    {"type": "image_url", "image_url": SHOWN, "min_pixels": 1024},
]


@pytest.mark.parametrize("part", BESIDE, ids=lambda part: " ".join(part))
def test_what_a_part_says_beside_its_picture_is_refused(vl: GenerationEngine, part: dict[str, Any]) -> None:
    good = look(drawing("blue", "square"))
    bad = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": ASK}]}]}
    first, error = vl.generate_vlm_batch([good, bad], on_error="return")  # type: Any, Any
    assert isinstance(error, RequestError) and error.index == 1 and "does nothing" in str(error)
    assert "vlm={'max_pixels': ...}" in str(error) and first.text


@pytest.mark.parametrize("named", [{}, {"image_url": None}, {"image_url": {}}], ids=repr)
def test_an_image_url_part_without_a_url_is_refused(vl: GenerationEngine, named: dict[str, Any]) -> None:
    part = {"type": "image_url", **named}
    with pytest.raises(RequestError, match="request 0: an image_url part has no url"):
        vl.generate_vlm_batch([{"messages": [{"role": "user", "content": [part]}]}])


def test_what_a_part_leaves_open_is_nothing(vl: GenerationEngine) -> None:
    """As OpenAI's clients say `detail`, and tables of messages have a value in each column."""
    url = {"url": SHOWN, "detail": "auto"}
    parts: list[Any] = [{"type": "image_url", "image_url": url}, {"type": "image_url", "image_url": {"url": SHOWN}},
                        {"type": "image", "image": SHOWN, "text": None, "image_url": None}]  # fmt: skip
    answers = [vl.generate_vlm_batch([{"messages": [{"role": "user", "content": [part]}]}]) for part in parts]
    assert answers[0] == answers[1] == answers[2]


def test_a_text_contract_with_pictures_goes_through_the_vlm_door(vl: GenerationEngine) -> None:
    request = gen_engine.TextGenerationRequest(messages=look(drawing("red", "circle"))["messages"])
    assert vl.generate_vlm_batch([request])[0].text == '{"color": "red", "shape": "circle"}'


def test_a_decompression_bomb_is_refused(vl: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (5000, 2000):  # PIL itself warns above its limit and raises above twice that
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ImageError, match="request 0: .*pixels"):
            vl.generate_vlm_batch([look(png(Image.new("RGB", (100, 80))))])


def test_load_image_takes_an_image_of_as_many_pixels_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (6, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert load_image(Image.new("RGB", (3, 2))).size == (3, 2)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    with pytest.raises(ImageError, match="image of 3x2 pixels. The limit is 5 pixels"):
        load_image(Image.new("RGB", (3, 2)))


def test_a_picture_in_a_text_request_is_refused(vl: GenerationEngine) -> None:
    with pytest.raises(RequestError, match="request 0: an image in a text request. Use generate_vlm_batch"):
        vl.generate_text_batch([look(GOOD)])


def test_no_picture_in_a_vlm_request_is_refused(vl: GenerationEngine) -> None:
    with pytest.raises(RequestError, match="request 1: no image in the request. Use generate_text_batch"):
        vl.generate_vlm_batch([look(GOOD), chat("Hello")])


def test_a_text_checkpoint_refuses_pictures(text: GenerationEngine) -> None:
    with pytest.raises(UnsupportedError, match="this checkpoint is text-only"):
        text.generate_vlm_batch([look(GOOD)])


def test_pictures_and_placeholders_must_agree(vl: GenerationEngine) -> None:
    bare = {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ASK}]}]}
    for request, said in (
        ({"prompt": "<|image_pad|>", "images": [GOOD, GOOD]}, "2 images, but 1 placeholders"),
        ({"prompt": "<|image_pad|><|image_pad|>", "images": [GOOD]}, "1 images, but 2 placeholders"),
        ({**bare, "images": [GOOD, GOOD]}, "1 of `images` have no part"),
        (look(GOOD, text="what is <|image_pad|>?"), "1 images, but 2 placeholders"),
        ({"messages": [*bare["messages"] * 2], "images": [GOOD]}, "no image in `images`"),
    ):
        with pytest.raises(RequestError, match=said):
            vl.generate_vlm_batch([request])
    with pytest.raises(RequestError, match="0 images, but 1 placeholders"):
        vl.generate_text_batch([chat("what is <|image_pad|>?")])


def test_too_many_image_tokens_for_the_window_are_refused_before_any_work(backend: str) -> None:
    request = look(Image.new("RGB", (640, 640)), vlm={"max_pixels": 640 * 640})
    with open_engine(VL, backend, max_model_len=256) as engine:
        for budget, fix in ((16, "cannot be truncated"), (256, "Lower max_new_tokens")):
            with pytest.raises(gen_engine.PromptTooLongError, match=f"the prompt has .* tokens.*{fix}"):
                engine.generate_vlm_batch([request], {"truncate_prompt": True, "max_new_tokens": budget})


def test_equal_pictures_in_equal_greedy_requests_are_generated_once(
    vl: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spy(vl, monkeypatch)
    red, blue = drawing("red", "circle"), drawing("blue", "circle")
    results = vl.generate_vlm_batch([look(red), look(blue), look(png(red)), look(red, vlm={"max_pixels": 1024})])
    assert seen == [3]
    assert [r.text for r in results[:3]] == [f'{{"color": "{c}", "shape": "circle"}}' for c in ("red", "blue", "red")]


def test_images_of_equal_bytes_and_other_sizes_have_an_answer_each(
    vl: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    upright = Image.new("RGB", (64, 96), "red")
    upright.paste("blue", (0, 0, 64, 48))
    lying = Image.frombytes("RGB", (96, 64), upright.tobytes())
    options = {"max_new_tokens": 4, "logprobs": 0}
    alone = [vl.generate_vlm_batch([look(image)], options)[0] for image in (upright, lying)]
    assert alone[0].logprobs != alone[1].logprobs
    seen = spy(vl, monkeypatch)
    assert vl.generate_vlm_batch([look(upright), look(lying)], options) == alone
    assert seen == [2]


def test_ragged_rows_with_images_are_what_each_is_alone_whatever_a_plugin_asks_meanwhile(shared: Load) -> None:
    """The batch is made smaller, and goes on from its own position offsets."""
    engine = shared(VL, "hf")
    images = [drawing("red", "circle"), drawing("green", "square", width=160, height=96), drawing("blue", "triangle")]
    texts = ["Count to 14.", *["What do you see?"] * 2, "Count to 9.", *["What do you see?"] * 2]
    requests = [look(*images[: 1 + n % 3], text=text) for n, text in enumerate(texts)]
    options = {"max_new_tokens": 60, "logprobs": 0}

    class Asks(gen_engine.Plugin):
        def should_stop(self, token_ids: Any, text: str) -> bool:
            if len(token_ids) in (3, 9):
                engine.generate_vlm_batch([look(images[1])], {"max_new_tokens": 2}, cache=False)
            return False

    for plugins in ([], [Asks()]):
        together = engine.generate_vlm_batch(requests, options, plugins=plugins, cache=False)
        assert len({result.completion_tokens for result in together}) > 1
        for request, result in zip(requests, together):
            [alone] = engine.generate_vlm_batch([request], options, cache=False)
            assert result.token_ids == alone.token_ids
            assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


@pytest.mark.parametrize("call", ["generate", "score", "score with gradient"])
def test_a_call_leaves_no_position_offsets_in_the_bare_model(call: str) -> None:
    """A caller's own step over a cache read those of the last batch, and failed where that had more rows."""
    import torch

    requests = [look(drawing("red", "circle"), text=f"{n}?") for n in range(3)]
    with open_engine(VL, "hf") as engine:
        ids = torch.tensor([engine.tokenizer("What do you see? What is it?")["input_ids"]])
        if call == "generate":
            engine.generate_vlm_batch(requests, {"max_new_tokens": 2})
        else:
            engine.score_batch([(request, "It is red.") for request in requests], grad=call != "score")
        with engine.bare(read_only=True) as model, torch.no_grad():
            whole = model(input_ids=ids).logits[:, -1]
            cache = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
            place = {"cache_position": torch.tensor([ids.shape[1] - 1])}  # transformers 4.57 takes 0 otherwise
            step = model(input_ids=ids[:, -1:], past_key_values=cache, **place).logits[:, -1]
        assert torch.allclose(step, whole, atol=1e-3)


def test_text_batches_of_a_vlm_and_of_a_text_checkpoint_share_one_meaning(shared: Load) -> None:
    task = text_tasks(1)[0]
    a, b = (shared(model, "hf").generate_text_batch([of_task(task)])[0] for model in (TEXT, VL))
    assert a.prompt_token_ids == b.prompt_token_ids


def test_pictures_read_together_are_what_each_is_alone(vl: GenerationEngine) -> None:
    """Several pixel budgets, several pictures in a row, a row without: tensors in the order of the requests."""
    import torch

    small, large = {"max_pixels": 64 * 64}, {"max_pixels": 256 * 256}
    rows = [
        look(drawing("red", "circle"), drawing("blue", "square", width=160, height=96), vlm=small),
        look(drawing("green", "triangle", width=224, height=224), vlm=large),
        look(drawing("yellow", "square", width=224, height=64), vlm=small),
    ]
    plan = gen_engine.make_plan(gen_engine.GenerationOptions(), vl.checkpoint)
    prompts = [gen_engine.prompt_of(gen_engine.VlmGenerationRequest(**row), plan) for row in rows]
    bare = gen_engine.prompt_of(gen_engine.TextGenerationRequest(prompt="Hello."), plan)
    runs, tensors = gen_engine.image_inputs([*prompts[:1], bare, *prompts[1:]], vl.checkpoint)
    pictures = [(image, prompt.image_kwargs) for prompt in prompts for image in prompt.images]
    alone = [gen_engine.expand_image(image, kwargs, vl.checkpoint) for image, kwargs in pictures]
    assert len(runs) == len(alone) == 4
    assert [run["input_ids"] for run in runs] == [one["input_ids"][0].tolist() for one in alone]
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.cat([one[name] for one in alone]))


def test_no_picture_is_made_larger_than_its_budget(both: Both) -> None:
    """Where that is below what the checkpoint makes of the smallest picture."""
    requests = [
        look(drawing("red", "square", width=w, height=w), vlm={"max_pixels": most})
        for w, most in ((32, 2048), (20, 1500), (300, 2048))
    ]
    for engine in both(VL):
        got = engine.generate_vlm_batch(requests, {"max_new_tokens": 2})
        tokens = [result.prompt_token_ids.count(engine.checkpoint.placeholder_id) for result in got]
        assert [count * 32 * 32 for count in tokens] == [1024, 1024, 1024]


def test_a_prompt_that_begins_with_its_picture_is_padded_with_something_else(vl: GenerationEngine) -> None:
    short = {"prompt": "<|image_pad|>a", "images": [drawing("red", "circle")]}
    long = look(drawing("blue", "square"))
    answers = vl.generate_vlm_batch([short, long], {"max_new_tokens": 4, "repetition_penalty": 1.2})
    alone = [vl.generate_vlm_batch([one], {"max_new_tokens": 4, "repetition_penalty": 1.2})[0] for one in (short, long)]
    assert answers == alone
    [both, other] = vl.score_batch([(short, "b"), (long, "b")])
    assert both.logprobs == pytest.approx(vl.score_batch([(short, "b")])[0].logprobs, abs=1e-4) and other.logprobs


def test_a_picture_of_three_tokens_is_not_taken_for_what_stands_beside_them(vl: GenerationEngine) -> None:
    """Its grid [1, 3] has the shape of its ids."""
    [result] = vl.generate_vlm_batch([look(drawing("red", "circle", width=96, height=32), vlm={"do_resize": False})])
    assert result.prompt_token_ids.count(vl.checkpoint.placeholder_id) == 3


def test_an_image_part_names_its_source_as_each_library_does(vl: GenerationEngine, tmp_path: Path) -> None:
    picture = png(drawing("red", "circle"))
    (tmp_path / "a.png").write_bytes(picture)
    text = base64.b64encode(picture).decode()
    ways: list[dict[str, Any]] = [
        {"image": picture},
        {"path": tmp_path / "a.png"},
        {"base64": text},
        {"url": f"data:image/png;base64,{text}"},
    ]
    requests = [{"messages": [{"role": "user", "content": [{"type": "image", **way}]}]} for way in ways]
    results = vl.generate_vlm_batch(requests, {"max_new_tokens": 4})
    assert len({result.token_ids for result in results}) == 1
    both: Any = {"messages": [{"role": "user", "content": [{"type": "image", **ways[0], **ways[1]}]}]}
    with pytest.raises(RequestError, match="an image part has image and path"):
        vl.generate_vlm_batch([both])


@pytest.mark.usefixtures("forked_python")
def test_the_file_alone_takes_images(tmp_path: Path) -> None:
    copy = shutil.copy(ROOT / "gen_engine.py", tmp_path)
    command = [sys.executable, "-c", COPIED, str(VL)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    # transformers 5.10 prints complaints about its own docstrings first.
    assert done.stdout.split()[-3:] == [copy, "4", "False"], done.stderr


def transparent(mode: str) -> Image.Image:
    """A black pixel that does not show."""
    if mode == "P":
        image = Image.new("P", (2, 2), 0)
        image.info["transparency"] = 0
        return image
    return Image.new(mode, (2, 2), 0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
@pytest.mark.parametrize("background, shown", [("white", (255,) * 3), ("#ff0000", (255, 0, 0)), (None, (0, 0, 0))])
def test_load_image_of_transparent_pixels_shows_the_background(
    mode: str, background: str | None, shown: tuple[int, ...]
) -> None:
    image = load_image(transparent(mode), background=background)
    assert image.mode == "RGB" and image.getpixel((0, 0)) == shown


def test_a_request_sets_the_background_on_both_backends(vl: GenerationEngine) -> None:
    hidden = drawing("red", "circle").convert("RGBA")
    hidden.putalpha(0)
    white = Image.new("RGB", hidden.size, "white")
    options = {"max_new_tokens": 8, "logprobs": 0}
    on_white, plain, shown, red = vl.generate_vlm_batch(
        [look(hidden), look(white), look(hidden, vlm={"background": None}), look(drawing("red", "circle"))], options
    )
    assert on_white.logprobs == plain.logprobs and shown.logprobs == red.logprobs
    with pytest.raises(gen_engine.OptionError, match="background"):
        vl.generate_vlm_batch([look(white, vlm={"background": "whit"})])


def test_a_file_url_is_read_under_the_root_only(tmp_path: Path) -> None:
    root = tmp_path / "images"
    root.mkdir()
    for folder in (root, tmp_path):
        (folder / "a b.png").write_bytes(png(drawing("red", "circle")))
    assert load_image((root / "a b.png").as_uri(), root=root).mode == "RGB"
    outside = [(tmp_path / "a b.png").as_uri(), f"file://{root}/../a%20b.png", "file:///etc/hostname"]
    (root / "link.png").symlink_to(tmp_path / "a b.png")
    for url in [*outside, (root / "link.png").as_uri()[:7] + f"{root}/link.png"]:
        with pytest.raises(ImageError, match="is outside image_root"):
            load_image(url, root=root)
    with pytest.raises(ImageError, match="is no path"):
        load_image(f"file://{root}/%00", root=root)
    with pytest.raises(ImageError, match="names the file .*image_root"):
        load_image((root / "a b.png").as_uri())
    assert load_image("a b.png", root=root).mode == load_image(str(root / "a b.png")).mode == "RGB"
    for path in (str(tmp_path / "a b.png"), "../a b.png", str(root / "link.png"), "/etc/hostname"):
        with pytest.raises(ImageError, match="is outside image_root"):
            load_image(path, root=root)
    assert load_image(root / "link.png", root=root).mode == "RGB", "an object is the caller's"


@pytest.mark.parametrize("field", ["image", "path", "url"])
def test_a_path_in_a_message_is_read_under_the_root_only(field: str, vl: GenerationEngine, tmp_path: Path) -> None:
    """{"image_url": {"url": "/any/file.png"}} was opened: whoever writes a message chose the file."""
    root = tmp_path / "images"
    root.mkdir()
    for folder in (root, tmp_path):
        (folder / "a.png").write_bytes(png(drawing("red", "circle")))
    (root / "link.png").symlink_to(tmp_path / "a.png")

    def ask(source: Any, root: Any = None) -> Any:
        part: dict[str, Any] = {"type": "image", field: source}
        if field == "url":
            part = {"type": "image_url", "image_url": {"url": source}}
        text = {"type": "text", "text": ASK}
        request: dict[str, Any] = {"messages": [{"role": "user", "content": [part, text]}], "image_root": root}
        return vl.generate_vlm_batch([request], {"max_new_tokens": 4})[0]

    inside = [str(root / "a.png"), "a.png", "./a.png", f"{root}/../images/a.png"]
    assert len({ask(source, str(root)).token_ids for source in inside}) == 1
    assert ask(tmp_path / "a.png").token_ids == ask("a.png", str(root)).token_ids, "an object is the caller's"
    for source in (str(tmp_path / "a.png"), "../a.png", "link.png", "/etc/hostname", "a/../../a.png", "/dev/zero"):
        with pytest.raises(ImageError, match="is outside image_root. Move it there"):
            ask(source, str(root))
    with pytest.raises(ImageError, match="is no path"):
        ask("a\0.png", str(root))
    for source in (str(root / "a.png"), "a.png", "/etc/hostname"):
        with pytest.raises(ImageError, match="a message names the file .*image_root, the folder"):
            ask(source)


def test_an_image_is_hashed_once_for_all_samples(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256, hashed = hashlib.sha256, list[bytes]()

    def noted(raw: bytes) -> Any:
        hashed.append(raw)
        return sha256(raw)

    monkeypatch.setattr(hashlib, "sha256", noted)
    picture = Image.new("RGB", (56, 56), "red")
    message = {"role": "user", "content": [{"type": "image", "image": picture}]}
    options = {"max_new_tokens": 2, "temperature": 1.0, "seed": 1, "n": 6}
    shared(VL, "hf").generate_vlm_batch([{"messages": [message]}], options)
    assert hashed == [picture.tobytes()]
