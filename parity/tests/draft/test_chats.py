"""Drafts of code that answers one chat, or several: what the source and the goldens show of it."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from PIL import Image

from gen_engine import VlmGenerationRequest
from parity.draft.decisions import Decisions
from parity.draft.module import Draft
from parity.draft.observed import Observed

from .drafts import Engine, draft_of, row, run, seen


def chatted(text: str, parameters: str = "questions", rows: int = 1, before: str = "", **arguments: Any) -> Draft:
    """The draft of a function that has a pipeline and an LLM.   rows: of its golden."""
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline",
        "from vllm import LLM, SamplingParams",
        'pipe = pipeline("text-generation", model="m")',
        'llm = LLM("m")',
        "params = SamplingParams(temperature=0, max_tokens=5)",
        textwrap.dedent(before),
        f"def answer({parameters}):",
        textwrap.indent(textwrap.dedent(text).strip("\n"), "    "),
    ]
    one = {**row(), "messages": [{"role": "user", "content": "a"}]}
    return draft_of("\n".join(lines) + "\n", seen(rows=[one] * rows, **arguments))


def asked(engine: Engine) -> list[list[str]]:
    """The last words of each request of each call."""
    return [[one["messages"][-1]["content"] for one in requests] for requests, _ in engine.calls]


CHATS = """
chats = []
for q in questions:
    chats.append([{"role": "user", "content": q}])
"""
TURNS = """
chats = [{"role": "system", "content": "Be short."}]
for q in questions:
    chats.append({"role": "user", "content": q})
"""
HELPER = 'def chat_of(q, system=None):\n    return [{"role": "user", "content": q}]\n'
SHAPES = [  # (what makes `chats`, the last words of each chat)
    pytest.param(CHATS, ["a", "b"], id="chats by append"),
    pytest.param(TURNS, ["b"], id="turns by append"),
    pytest.param('chats = [[{"role": "user", "content": q}] for q in questions]', ["a", "b"], id="comprehension"),
    pytest.param('chats = [dict(role="user", content=q) for q in questions]', ["b"], id="messages of a comprehension"),
    pytest.param("chats = [chat_of(q) for q in questions]", ["a", "b"], id="chats of a function"),
    pytest.param("chats = chat_of(questions[0])", ["a"], id="a chat of a function"),
    pytest.param('chats = []\nchats += [{"role": "user", "content": questions[1]}]', ["b"], id="a chat by +="),
    pytest.param('chats = []\nchats.extend(chat_of("a"))', ["a"], id="a chat by extend"),
    pytest.param(
        'message = {"role": "user", "content": "a"}\nchat = [message]\nchats = [list(chat), chat + chat]',
        ["a", "a"], id="chats of names",
    ),
    pytest.param('every = [chat_of(q) for q in questions]\nchats = every[1]', ["b"], id="one of several"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "words"), SHAPES)
def test_draft_of_llm_chat_asks_as_many_chats_as_the_old_code(made: str, words: list[str]) -> None:
    code = f"{made}\nreturn [out.outputs[0].text for out in llm.chat(chats, params)]"
    value, engine = run(chatted(code, before=HELPER, questions=["a", "b"]), "answer", ["a", "b"])
    assert (asked(engine), value) == ([words], ["ANSWER"] * len(words))


@pytest.mark.parametrize(("made", "words"), SHAPES)
def test_draft_of_a_pipeline_asks_as_many_chats_as_the_old_code(made: str, words: list[str]) -> None:
    last = 'out["generated_text"][-1]["content"]' if len(words) == 1 else 'out[0]["generated_text"][-1]["content"]'
    code = f"{made}\nreturn [{last} for out in pipe(chats, max_new_tokens=5)]"
    value, engine = run(chatted(code, before=HELPER, questions=["a", "b"]), "answer", ["a", "b"])
    assert (asked(engine), value) == ([words], ["ANSWER"] * len(words))


@pytest.mark.parametrize(
    "text",
    [
        'return [out[0]["generated_text"] for out in pipe(chats, max_new_tokens=5, return_full_text=False)]',
        'outs = pipe(chats, max_new_tokens=5)\nreturn [out[0]["generated_text"][-1]["content"] for out in outs]',
        "outs = pipe(chats, max_new_tokens=5)\n"
        'return [outs[k][0]["generated_text"][-1]["content"] for k in range(len(chats))]',
        "texts = []\nfor q, out in zip(questions, pipe(chats, max_new_tokens=5, batch_size=2)):\n"
        '    texts.append(out[0]["generated_text"][-1]["content"])\nreturn texts',
    ],
)
def test_draft_of_a_pipeline_over_chats_reads_each_row(text: str) -> None:
    value, engine = run(chatted(CHATS + text), "answer", ["a", "b"])
    assert (asked(engine), value) == ([["a", "b"]], ["ANSWER", "ANSWER"])


@pytest.mark.parametrize(
    "kept",
    [
        'messages.append(out[0]["generated_text"][-1])',
        'reply = out[0]["generated_text"][-1]\n    messages.append(reply)\n    texts.append(reply["content"])',
        'messages = out[0]["generated_text"]',
    ],
)
def test_draft_of_turns_by_a_pipeline_keeps_the_answers(kept: str) -> None:
    code = f"""
messages = []
texts = []
for q in questions:
    messages.append({{"role": "user", "content": q}})
    out = pipe(messages, max_new_tokens=5)
    {kept}
return messages
"""
    value, engine = run(chatted(code), "answer", ["a", "b"])
    assert [one["content"] for one in value] == ["a", "ANSWER", "b", "ANSWER"]
    assert [len(requests[0]["messages"]) for requests, _ in engine.calls] == [1, 3]


@pytest.mark.parametrize(
    ("chats", "rows", "words"),
    [
        ([[{"role": "user", "content": "a"}]], 1, [["a"]]),
        ([{"role": "user", "content": "b"}, {"role": "user", "content": "a"}], 1, [["a"]]),
        ([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]], 2, [["a", "b"]]),
    ],
)
def test_draft_of_chats_that_are_an_argument_sees_them_in_the_golden(
    chats: list[Any], rows: int, words: list[list[str]]
) -> None:
    helper = "def helper(given):\n    return llm.chat(given, params)\n"
    for code, before in (("helper(questions)", helper), ("llm.chat(questions, params)", "")):
        text = f"return [out.outputs[0].text for out in {code}]"
        draft = chatted(text, rows=rows, before=before, questions=chats)
        assert asked(run(draft, "answer", chats)[1]) == words


@pytest.mark.parametrize(("made", "words"), SHAPES)
@pytest.mark.parametrize("is_text", [True, False])
def test_draft_of_a_template_renders_as_many_chats_as_the_old_code(made: str, words: list[str], is_text: bool) -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer
        tok = AutoTokenizer.from_pretrained("m")
        model = AutoModelForCausalLM.from_pretrained("m")
        HELPER
        def answer(questions):
            MADE
            inputs = tok.apply_chat_template(chats, add_generation_prompt=True, WORDS)
            out = model.generate(**inputs, max_new_tokens=5)
            return tok.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
    """
    said = "tokenize=False" if is_text else 'return_tensors="pt", return_dict=True, padding=True'
    text = textwrap.dedent(source).replace("HELPER", HELPER).replace("WORDS", said)
    text = text.replace("    MADE", textwrap.indent(made.strip(), "    "))
    if is_text:
        line = "    inputs = tok(inputs, padding=True, return_tensors='pt')\n    out ="
        text = text.replace("    out =", line)
    value, engine = run(draft_of(text, seen(questions=["a", "b"])), "answer", ["a", "b"])
    assert (asked(engine), value) == ([words], ["ANSWER"] * len(words))


READ = 'import json\nchats = json.loads(questions)\nreturn [out[0]["generated_text"] for out in pipe(chats, RET)]'


def test_draft_of_chats_that_are_read_is_decided_by_how_many_a_call_asked() -> None:
    code = READ.replace("RET", "max_new_tokens=5, return_full_text=False")
    text = '[[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]'
    assert asked(run(chatted(code, rows=2, questions=text), "answer", text)[1]) == [["a", "b"]]
    draft = chatted(code, rows=1, questions=text)
    assert not draft.is_moved and "one chat or several" in draft.todos[0].text


def test_draft_of_a_pipeline_over_texts_is_a_batch_where_they_are_new_ones() -> None:
    code = 'return [out[0]["generated_text"] for out in pipe([q + "?" for q in questions], RET)]'
    one = seen(questions=["a", "b"])
    source = (
        'from transformers import pipeline\npipe = pipeline("text-generation", model="m")\ndef answer(questions):\n'
    )
    draft = draft_of(f"{source}    {code.replace('RET', 'max_new_tokens=5, return_full_text=False')}\n", one)
    value, engine = run(draft, "answer", ["a", "b"])
    assert (value, engine.calls[0][0]) == (["ANSWER"] * 2, [{"prompt": "a?"}, {"prompt": "b?"}])
    draft = draft_of(f"{source}    {code.replace('RET', 'max_new_tokens=5')}\n", one)
    assert not draft.is_moved and "each text holds its prompt" in draft.todos[0].text


def test_draft_of_chats_and_texts_in_one_file_tells_them_apart() -> None:
    """The goldens of all sites of a file were asked whether a call is a chat."""
    source = """
        from transformers import pipeline
        pipe = pipeline("text-generation", model="m")

        def answer(questions):
            messages = []
            for q in questions:
                messages.append({"role": "user", "content": q})
            return pipe(messages, max_new_tokens=5)[0]["generated_text"][-1]["content"]

        def told(question):
            return pipe(f"Q: {question}", max_new_tokens=5)[0]["generated_text"]
    """
    chat = seen(rows=[{**row(), "messages": [{"role": "user", "content": "a"}]}], questions=["a"])
    for observed in (chat, chat.beside(seen("told", question="a"))):
        draft = draft_of(source, observed)
        assert asked(run(draft, "answer", ["a", "b"])[1]) == [["b"]]
        assert run(draft, "told", "a")[0] == "Q: aANSWER"


def test_draft_of_a_prompt_with_braces_keeps_them() -> None:
    """`{text}` of an f-string was taken for a gap in what the draft writes."""
    source = """
        from transformers import pipeline
        pipe = pipeline("text-generation", model="m")

        def answer(text):
            return pipe(f"Q: {text}", max_new_tokens=5)[0]["generated_text"]
    """
    value, engine = run(draft_of(source, seen(text="a")), "answer", "a")
    assert (value, engine.calls[0][0]) == ("Q: aANSWER", [{"prompt": "Q: a"}])


BATCH_OF_IMAGES = """
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor
    processor = AutoProcessor.from_pretrained("m")
    model = AutoModelForImageTextToText.from_pretrained("m")

    def answer(paths, images):
        chats = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": p}]}] for p in paths]
        texts = [processor.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        inputs = processor(text=texts, images=images, padding=True, return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
        new = [o[len(i):] for i, o in zip(inputs.input_ids, out)]
        return processor.batch_decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
"""


@pytest.mark.parametrize("each", [1, 2])
def test_draft_of_a_batch_gives_each_request_its_image_where_each_had_one(each: int) -> None:
    rows = [{**row(), "images": [{}] * each}] * 2
    draft = draft_of(BATCH_OF_IMAGES, seen(rows=rows, paths=["a", "b"]), Decisions(yes=False, read=lambda _: "turn"))
    if each == 2:
        assert not draft.is_moved and "one image each" in draft.todos[0].text
        return
    value, engine = run(draft, "answer", ["a", "b"], ["A", "B"])
    assert value == ["ANSWER", "ANSWER"]
    [(requests, _)] = engine.calls
    assert [(r["messages"][0]["content"][1]["text"], r["images"]) for r in requests] == [("a", "A"), ("b", "B")]
    with pytest.raises(ValueError, match="zip"):
        run(draft, "answer", ["a", "b"], ["A"])


@pytest.mark.parametrize("nested", [False, True])
def test_draft_of_a_batch_takes_an_image_of_each_row_or_a_list_with_it(nested: bool) -> None:
    """Processors take both. A list was asked for its EXIF."""
    rows = [{**row(), "images": [{}]}] * 2
    images = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    draft = draft_of(BATCH_OF_IMAGES, seen(rows=rows, paths=["a", "b"]))
    _, engine = run(draft, "answer", ["a", "b"], [[image] for image in images] if nested else images)
    given = [VlmGenerationRequest(**request).images for request in engine.calls[0][0]]
    assert [[image.tobytes() for image in own] for own in given] == [[image.tobytes()] for image in images]


def test_draft_says_where_the_templates_switch_comes_from_in_a_line_that_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Observed, "thinking", lambda _: True)
    rows = [{**row(), "images": [{}]}] * 2
    text = draft_of(BATCH_OF_IMAGES, seen(rows=rows, paths=["a", "b"])).code
    _, _, after = text.partition("# enable_thinking: the template thinks unless it is told not to\n")
    assert after.lstrip().startswith('requests = [{"messages": c, "chat": {"enable_thinking": True}} for c in chats]')
