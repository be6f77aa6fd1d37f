"""`parity compare`: which lines of two files of answers differ, grouped, with how much."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parity.__main__ import main
from parity.bench import workloads
from parity.companions.batch_files import answer_file
from parity.models.tasks import text_tasks
from parity.report.answers import compared

from ..conftest import SMALL


def line(name: Any, text: str = "one two three", **more: Any) -> dict[str, Any]:
    return {"id": name, "text": text, "finish_reason": "eos", "token_ids": [1, 2], **more}


IDS: dict[str, Any] = {"prompt_token_ids": [9, 9], "token_ids": [1, 2]}


def result(name: str, text: str) -> dict[str, Any]:
    message = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    return {
        "id": "batch_req_1",
        "custom_id": name,
        "response": {"body": {"choices": [message]}},
        "error": None,
    }


def failed(name: Any, message: str = "no prompt") -> dict[str, Any]:
    return {"id": name, "error": {"type": "RequestError", "message": message}}


def files(folder: Path, *sides: list[dict[str, Any]]) -> list[Path]:
    paths = [folder / "old.jsonl", folder / "new.jsonl"]
    for path, side in zip(paths, sides):
        path.write_text("".join(json.dumps(each) + "\n" for each in side))
    return paths


NEVER = (
    (
        line(1, **IDS),
        line(1, "one two", **{**IDS, "token_ids": [1]}),
        "the same beginning, shorter now",
        6,
    ),
    (line(1, **IDS), line(1, "one TWO three", **IDS), "another text", 4),
    (line(1, **IDS), line(1, finish_reason="length", **IDS), "the same text, another end", 1),
    (line(1, **IDS), line(1, **{**IDS, "prompt_token_ids": [9, 8]}), "another prompt", 1),
    (line(1), failed(1), "an error now", 1),
    (failed(1), line(1), "an error before, an answer now", 1),
    (failed(1), failed(1, "too long"), "another error", 1),
    (line(1), line(1, samples=[line(0), line(0)]), "another number of samples", 1),
)
OPEN = (
    (line(1), line(1, "one TWO three"), "another text", 4),
    (line(1), line(1, "one two three four"), "the same beginning, longer now", 5),
    (line(1), line(1, "one two"), "the same beginning, shorter now", 6),
    (line(1), line(1, " one two three"), "only white space at the ends differs", 1),
    (line(1), line(1, finish_reason="length"), "the same text, another end", 1),
    (line(1), line(1, token_ids=[1, 3]), "the same text from other tokens", 1),
    (line(1, **IDS), line(1, **{**IDS, "token_ids": [1, 3]}), "the same text from other tokens", 1),
    (
        line(1, logprobs=[-0.5, -1]),
        line(1, logprobs=[-0.5, -1.25]),
        "the same tokens, other logprobs",
        0.25,
    ),
    (result("a", "yes"), result("a", "no"), "another text", 0),
)


@pytest.mark.parametrize(
    ("code", "old", "new", "group", "size"),
    [*((1, *case) for case in NEVER), *((3, *case) for case in OPEN)],
)
def test_a_difference_is_put_into_its_group(
    code: int, old: Any, new: Any, group: str, size: float, tmp_path: Path
) -> None:
    both = files(tmp_path, [old, line("same")], [line("same"), new])
    found = compared(*both)
    assert (found.paired, found.same) == (2, 1)
    assert {name: one.sizes for name, one in found.groups.items()} == {group: [size]}
    assert main(["compare", *map(str, both)]) == code


def test_equal_files_are_equal_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [line(1), result("a", "yes"), failed("b"), line(2, logprobs=[-0.5])]
    nearly = [*both[:3], line(2, logprobs=[-0.50001])]
    old, new = files(tmp_path, both, nearly[::-1])
    assert main(["compare", str(old), str(new)]) == 0
    assert capsys.readouterr().out == "4 of 4 lines are the same\n"


def test_what_is_printed_names_groups_examples_and_lines_of_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [line(k) for k in range(8)] + [line("gone")]
    new = [line(k, "one TWO three" if k < 5 else "one two" if k == 5 else "one two three") for k in range(8)]
    assert main(["compare", *map(str, files(tmp_path, old, new))]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "2 of 8 lines are the same"
    assert said[1] == "  5  another text (characters that are the same before: median 4, most 4)"
    assert said[2] == "      0: at character 4: was 'two three', is 'TWO three'" and len(said) == 8
    assert "cannot tell" not in said[-1]
    assert said[-1] == '  1  only in OLD: "gone"'


@pytest.mark.parametrize(
    ("old", "code", "says"),
    [
        ([line("x")], 5, "no line stands in both files"),
        ([line(1), line(1)], 2, "line 2: the id 1 stands there twice"),
        ([{"text": "x"}], 2, "line 1 is no answer"),
        ([{"id": 1}], 2, "no answer"),
    ],
)
def test_what_cannot_be_compared_is_said(
    old: Any, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, files(tmp_path, old, [line(1)]))]) == code
    said = capsys.readouterr()
    assert says in said.out + said.err


# == With a model ==

LINES = 40
TOKENS = 48


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of random weights in bfloat16, and what several paths answer, all
    by real engines."""
    folder = tmp_path_factory.mktemp("answers")
    model = workloads.make_random_model(folder / "model", layers=4)
    write_int8(model, folder / "int8")
    tasks = text_tasks(400)
    questions = dict.fromkeys(json.dumps([*task.messages]) for task in tasks if not task.tools)
    lines = [json.dumps({"id": k, "messages": json.loads(chat)}) for k, chat in enumerate(list(questions)[:LINES])]
    (folder / "questions.jsonl").write_text("\n".join(lines))
    vllm = {"backend": "vllm", "max_model_len": 512, **SMALL["vllm"]}
    write_answers(folder, "hf", {"model": model})
    write_answers(folder, "vllm", {"model": model, **vllm})
    write_answers(folder, "int8", {"model": folder / "int8"})
    return folder


def write_int8(model: Path, target: Path) -> None:
    """The checkpoint with its matrices rounded to int8, one scale for each matrix."""
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for parameter in loaded.model.layers.parameters():
            if parameter.dim() == 2:
                scale = parameter.abs().max() / 127
                parameter.copy_((parameter / scale).round() * scale)
    loaded.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(target)


def write_answers(folder: Path, name: str, load: Mapping[str, Any]) -> None:
    options = {"max_new_tokens": TOKENS, "stop": {"ignore_eos": True}}
    config = {**load, "model": str(load["model"]), "dtype": "bfloat16", "progress": False}
    answer_file(folder / "questions.jsonl", folder / f"{name}.jsonl", config, options, ids=True)


def compare(folder: Path, old: str, new: str, *words: str) -> int:
    return main(["compare", str(folder / f"{old}.jsonl"), str(folder / f"{new}.jsonl"), *words])


def test_answers_without_a_model_cannot_be_told(answered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(answered, "hf", "vllm") == 3
    told = capsys.readouterr().out
    assert told.endswith("cannot tell rounding from a fault: name the model that wrote OLD, --model M\n")


def test_answers_of_two_backends_part_by_rounding(answered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = compare(answered, "hf", "vllm", "--model", str(answered / "model"), "--dtype", "bfloat16")
    told = capsys.readouterr().out
    assert "ROUNDING EXPLAINS IT: NEW's errors are" in told and code == 0, told


def test_answers_of_int8_weights_are_no_rounding(answered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = compare(answered, "hf", "int8", "--model", str(answered / "model"), "--dtype", "bfloat16")
    told = capsys.readouterr().out
    assert "ROUNDING DOES NOT EXPLAIN IT: NEW's errors are" in told and code == 1, told


def test_few_lines_cannot_be_told(answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("hf", "vllm"):
        lines = (answered / f"{name}.jsonl").read_text().splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[:3]))
    code = compare(tmp_path, "hf", "vllm", "--model", str(answered / "model"), "--dtype", "bfloat16")
    told = capsys.readouterr().out
    assert "CANNOT TELL: " in told and told.endswith("Compare more lines\n") and code == 3, told


def test_a_model_that_is_not_here_is_said(answered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(answered, "hf", "vllm", "--model", str(answered / "nowhere"), "--dtype", "bfloat16") == 3
    assert "CANNOT TELL: the golden's checkpoint" in capsys.readouterr().out
