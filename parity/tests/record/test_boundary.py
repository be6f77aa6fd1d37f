"""What reaches a model's forward is seen, of plain code and of the engine alike, and seeing it changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gen_engine
from parity.goldens.store import Case, Store
from parity.judge.session import Session
from parity.models.tasks import drawing
from parity.record.observe import Observer
from parity.tests.conftest import ROOT, TEXT, VL, Load

from ..judge.inquiries import differences, named

QUESTION = "What do you see?"
DRAFT = ROOT / "golden/models/tiny-qwen3-draft"


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Any]:
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(VL, dtype="float32").eval()
    return model, transformers.AutoProcessor.from_pretrained(VL)


def seen(run: Any) -> tuple[Any, Case]:
    found: list[Case] = []
    with Observer(sink=found.append, loose="loose") as observer:
        value = run()
    assert observer.failures == []
    [case] = found
    return value, case


def asked(plain: tuple[Any, Any], *dropped: str) -> Any:
    model, processor = plain
    content: list[dict[str, Any]] = [
        {"type": "image", "image": drawing("red", "circle")},
        {"type": "text", "text": QUESTION},
    ]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    inputs = processor(text=[text], images=[content[0]["image"]], return_tensors="pt")
    kept = {name: value for name, value in inputs.items() if name not in dropped}
    ids = model.generate(**kept, max_new_tokens=8, do_sample=False)
    processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return ids.tolist()


def test_seeing_a_forward_changes_nothing_and_leaves_nothing(plain: tuple[Any, Any]) -> None:
    hooks = dict(plain[0]._forward_pre_hooks)
    value, case = seen(lambda: asked(plain))
    assert value == asked(plain) and plain[0]._forward_pre_hooks == hooks
    [row] = case.rows
    keys = set(row["inputs"]["keys"])
    assert "mm_token_type_ids" in keys and keys & {"pixel_values", "mm_encoder_outputs"}
    assert row["inputs"]["positions"]
    assert row["request"] == {"number": 0, "sample": 0}


def test_dropped_inputs_of_plain_code_are_named(plain: tuple[Any, Any]) -> None:
    _, old = seen(lambda: asked(plain))
    _, new = seen(lambda: asked(plain, "mm_token_type_ids"))
    assert named(old, new, differences(old, new))[0][0] == "batch.keys"


def test_the_engine_hands_over_what_plain_code_does(plain: tuple[Any, Any]) -> None:
    _, old = seen(lambda: asked(plain))
    content: list[dict[str, Any]] = [
        {"type": "image", "image": drawing("red", "circle")},
        {"type": "text", "text": QUESTION},
    ]
    with gen_engine.load(VL) as engine:
        request = {"messages": [{"role": "user", "content": content}]}
        _, new = seen(lambda: engine.generate_vlm_batch([request], {"max_new_tokens": 8}))
        assert not engine.model._forward_pre_hooks
    assert new.rows[0]["inputs"] == old.rows[0]["inputs"]


def test_a_picture_that_is_scored_again_is_seen_again(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM keeps what it made of a picture, and does not process it a second time."""
    monkeypatch.chdir(ROOT)
    store, function = Store("golden"), "parity.proof.callsites.selftest.moved:score"
    old, load = store.read("selftest", "scores-pictures"), store.settings()["selftest"]["load"]
    with Session(store, {function: "selftest"}) as session:
        for _ in range(2):  # on one engine, which the site keeps
            new = session.call(old, function, {"backend": backend}, load, frozenset())
            assert not [d for d in differences(old, new) if d.stage in ("prompt_ids", "images")]


def test_pictures_of_foreign_vllm_code_stand_with_their_requests(shared: Load) -> None:
    """vLLM processes a picture that it knows no second time, in this call or in one before. These no other test shows
    it: what it was shown before there was an observer, nobody can see."""
    red, blue, green = (drawing("red", "circle", width=width) for width in (288, 320, 352))

    def prompts(*shown: Any) -> list[dict[str, Any]]:
        text = "".join("<|vision_start|><|image_pad|><|vision_end|>" for _ in shown)
        return [{"prompt": text + QUESTION, "multi_modal_data": {"image": list(shown)}}]

    with shared(VL, "vllm").bare() as llm:
        sizes = [[[288, 64], [320, 64]], [[320, 64], [288, 64]], [[288, 64]], []]
        for _ in range(2):
            pairs = prompts(red, blue) + prompts(blue, red) + prompts(red) + [{"prompt": QUESTION}]
            _, case = seen(lambda given=pairs: llm.generate(given, use_tqdm=False))
            assert [[picture["size"] for picture in row.get("images", ())] for row in case.rows] == sizes
        _, case = seen(lambda: llm.generate(prompts(green, red), use_tqdm=False))
        assert [picture["size"] for picture in case.rows[0]["images"]] == [[352, 64], [288, 64]]
        assert all(picture["sha256"] for picture in case.rows[0]["images"])


def test_a_model_that_guesses_for_another_leaves_its_settings_alone() -> None:
    """It is asked for a few tokens at a time, inside the other's call."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(TEXT)
    model, draft = (transformers.AutoModelForCausalLM.from_pretrained(path).eval() for path in (TEXT, DRAFT))
    inputs = tokenizer("1, 2, 3,", return_tensors="pt")
    how = {"max_new_tokens": 24, "do_sample": False}
    alone = seen(lambda: model.generate(**inputs, **how).tolist())[1].rows
    guessed = seen(lambda: model.generate(**inputs, **how, assistant_model=draft).tolist())[1].rows
    assert [row["stop"] for row in guessed] == [row["stop"] for row in alone]
    assert [row["sampling"] for row in guessed] == [row["sampling"] for row in alone]


def test_a_least_length_that_counts_the_prompt_is_one_of_the_answer(plain: tuple[Any, Any]) -> None:
    model, processor = plain
    inputs = processor.tokenizer("One, two", return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    for how, least in (({"min_length": length + 2}, 2), ({"min_length": 1}, 0), ({"min_new_tokens": 3}, 3)):
        _, case = seen(lambda how=how: model.generate(**inputs, max_new_tokens=4, do_sample=False, **how))
        assert case.rows[0]["stop"]["min_new_tokens"]["value"] == least


def test_a_row_that_criteria_end_is_not_padded_to_an_end() -> None:
    """The pad id is an end of text, as usual: what stands behind a stop string, or a criterion's end, is padding."""
    import transformers

    class AtFour(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return input_ids.new_tensor([input_ids.shape[1] - length == 4, False]).bool()

    tokenizer = transformers.AutoTokenizer.from_pretrained(TEXT, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT, dtype="float32").eval()
    asked = [[{"role": "user", "content": text}] for text in ("What is the capital of France?", "Count to 20.")]
    how = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    texts = [tokenizer.apply_chat_template(one, **how) for one in asked]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    length, pad = inputs["input_ids"].shape[1], tokenizer.pad_token_id
    ends = {"eos_token_id": [pad, tokenizer.eos_token_id], "max_new_tokens": 12, "do_sample": False}
    for stops in ({"stop_strings": ["capital"], "tokenizer": tokenizer}, {"stopping_criteria": [AtFour()]}):
        ids, case = seen(lambda stops=stops: model.generate(**inputs, **ends, **stops))
        [first, second] = (row["output_ids"] for row in case.rows)
        given = ids[0, length:].tolist()
        assert given == first + [pad] * (12 - len(first)) and len(second) == 12
        assert 0 < len(first) < 12 and first[-1] != pad


def test_criteria_that_a_library_adds_behind_those_of_generate_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As stop-sequencer does, which puts a method of its own in the model's place."""
    import transformers

    class AtThree(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> bool:
            return bool(input_ids.shape[1] - length == 3)

    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT, dtype="float32").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(TEXT)
    inputs = tokenizer("One, two", return_tensors="pt")
    length, made = inputs["input_ids"].shape[1], model._get_stopping_criteria

    def with_one_more(*given: Any, **words: Any) -> Any:
        return transformers.StoppingCriteriaList([*copy.deepcopy(made(*given, **words)), AtThree()])

    def run() -> Any:
        monkeypatch.setattr(model, "_get_stopping_criteria", with_one_more)
        return model.generate(**inputs, max_new_tokens=9, do_sample=False)

    _, case = seen(run)
    [row] = case.rows
    assert (row["stop"]["criteria"]["value"], row["finish"]["criteria"]) == (["AtThree"], {"AtThree": 3})


def test_record_criteria_of_the_codes_own_say_after_how_many_ids_they_were_done() -> None:
    """By row, also where one word is meant for the whole batch, and beside the library's own criteria."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(TEXT, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT, dtype="float32").eval()
    asked = [[{"role": "user", "content": text}] for text in ("What is the capital of France?", "Count to 20.")]
    how = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    texts = [tokenizer.apply_chat_template(one, **how) for one in asked]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    length, end = inputs["input_ids"].shape[1], tokenizer.eos_token_id

    class WithTheEnd(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return input_ids[:, -1] == end

    class AtSix(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> bool:
            return bool(input_ids.shape[1] - length == 6)

    def finishes(*own: Any, most: int) -> list[Any]:
        how = {"max_new_tokens": most, "do_sample": False, "stopping_criteria": [*own]}
        _, case = seen(lambda: model.generate(**inputs, **how))
        return [(len(row["output_ids"]), row.get("finish", {}).get("criteria")) for row in case.rows]

    [(short, first), long] = finishes(WithTheEnd(), most=30)
    assert first == {"EosTokenCriteria": short, "WithTheEnd": short} and short < 20
    assert long == (30, {"MaxLengthCriteria": 30})
    assert finishes(AtSix(), most=30) == [(6, {"AtSix": 6})] * 2
    assert finishes(most=4) == [(4, None)] * 2
