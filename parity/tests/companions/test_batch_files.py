"""Files of requests: one line for each, whatever happens to the process, and each line what one call would give."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from parity.__main__ import main
from parity.companions import batch_files, batch_lines
from parity.companions.batch_files import Summary, answer_file
from parity.environment import vendor
from parity.models.tasks import drawing, text_tasks

from ..conftest import ROOT, TEXT, VL, Load, chat, forks_for_python

MOST = {"max_new_tokens": 24}
LINES = int(os.environ.get("BATCH_LINES", "60"))
STOPS = int(os.environ.get("BATCH_STOPS", "6"))  # by hand: 200, of 300 lines
SEED = os.environ.get("BATCH_SEED", "0")
CAPITAL = "What is the capital of France?"


def write(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts(path: Path) -> list[str]:
    return [line["text"] for line in lines(path)]


def questions(count: int) -> list[dict[str, Any]]:
    """Greedy and seeded ones, short and long, some of them equal."""
    tasks = [task for task in text_tasks(60) if task.kind in ("capital", "sum", "list", "age", "parity")]
    records = []
    for number in range(count):
        own = {"seed": number, "options": {"temperature": 0.8}} if number % 4 == 1 else {}
        records.append({"id": f"q{number}", "messages": tasks[number % len(tasks)].messages, **own})
    return records


@pytest.fixture
def engine(shared: Load) -> gen_engine.GenerationEngine:
    return shared(TEXT, "hf")


def answered(source: Path, engine: Any, options: Any = MOST, **how: Any) -> tuple[Path, Summary]:
    target = source.with_name(f"{source.stem}.out{source.suffix}")
    return target, answer_file(source, target, engine, options, progress=False, **how)


# == What stands in the lines ==


def test_each_line_is_what_one_call_gives_in_the_order_of_the_input(backend: str, shared: Load, tmp_path: Path) -> None:
    engine, asked = shared(TEXT, backend), questions(40)
    target, summary = answered(write(tmp_path / "in.jsonl", asked), engine, chunk=7, ids=True)
    plain = [{"messages": record["messages"], "seed": record.get("seed")} for record in asked]
    greedy = engine.generate_text_batch(plain, MOST)
    drawn = engine.generate_text_batch(plain, {**MOST, "temperature": 0.8})
    expected = [drawn[k] if "options" in record else greedy[k] for k, record in enumerate(asked)]
    found = lines(target)
    assert [line["id"] for line in found] == [record["id"] for record in asked]
    assert [tuple(line["token_ids"]) for line in found] == [result.token_ids for result in expected]
    assert [(line["text"], line["finish_reason"]) for line in found] == [(r.text, r.finish_reason) for r in expected]
    assert [line["prompt_tokens"] for line in found] == [result.prompt_tokens for result in expected]
    assert (summary.lines, summary.answered, summary.errors) == (40, 40, 0)
    assert summary.tokens == sum(line["completion_tokens"] for line in found)


def test_rows_of_the_next_chunk_join_while_the_last_ones_run(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    complete = engine.backend.complete

    def counted(prompts: Any, call: gen_engine.Call) -> None:
        calls.append(len(prompts))
        complete(prompts, call)

    monkeypatch.setattr(engine.backend, "complete", counted)
    count = [{"prompt": f"{number}: "} for number in range(64)]
    _, summary = answered(write(tmp_path / "in.jsonl", count), engine, chunk=12)
    assert summary.lines == 64 and calls[0] <= 12 and len(calls) <= 3


def test_a_line_without_an_id_gets_one_that_no_other_line_has(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    asked = [
        json.dumps(chat(CAPITAL)),
        "",
        json.dumps({**chat(CAPITAL), "id": 7}),
        json.dumps({"prompt_token_ids": [5]}),
    ]
    source.write_text("\n".join(asked))  # a blank line is none; the last one ends without a line feed
    target, _ = answered(source, engine)
    assert [line["id"] for line in lines(target)] == ["line:1", 7, "line:3"]
    assert texts(target)[:2] == ["The capital of France is Paris."] * 2


def test_samples_and_logprobs_stand_in_the_line(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    options = {**MOST, "n": 3, "temperature": 1.0, "logprobs": 2}
    target, _ = answered(write(tmp_path / "in.jsonl", [chat(CAPITAL, seed=5)]), engine, options)
    [result] = engine.generate_text_batch([chat(CAPITAL, seed=5)], options)
    [line] = lines(target)
    assert [sample["text"] for sample in line["samples"]] == [sample.text for sample in result.samples]
    assert line["logprobs"] == pytest.approx(result.logprobs, abs=1e-5)
    assert [len(tops) for tops in line["top_logprobs"]] == [2] * len(result.token_ids)


BAD = {
    "not json": ("{", "the line is not JSON"),
    "a field twice": ('{"prompt": "1, 2, ", "prompt": "3, 4, "}', "'prompt' stands twice in an object"),
    "a list": ("[1]", "the line is list"),
    "an unknown field": ({"promt": "x"}, "has no field 'promt'. Did you mean 'prompt'?"),
    "an unknown option": ({"prompt": "x", "options": {"temprature": 1}}, "did you mean 'temperature'"),
    "an id that is none": ({"prompt": "x", "id": {"error": {}}}, "the id is dict"),
    "no prompt": ({"id": 1}, "none of them given"),
    "a wrong type": ({"prompt": 5}, "prompt is 5"),
    "too long": ({"prompt_token_ids": [5] * 2000}, "leaves"),
    "too many samples": ({"prompt": "x", "options": {"n": 129, "seed": 1}}, "128 at most"),
    "too many logprobs": ({"prompt": "x", "options": {"logprobs": 10**6}}, "1000 at most"),
    "half a surrogate pair": ({"prompt": "\ud800"}, "a lone surrogate"),
    "a broken grammar": ({"prompt": "x", "structured": {"regex": "("}}, "xgrammar refused the regex"),
    "a remote image": ({"prompt": "x", "images": ["http://a/b.png"]}, "refused"),
    "a picture for a text model": ({"prompt": "x", "images": ["a.png"]}, "there is no file"),
    "a loader": ({"prompt": "x", "image_loader": "os.system"}, "cannot bring an image_loader"),
    "deep nesting": ("[" * 100_000, "the line is not JSON"),
    "tensors": ({"prompt": "x", "options": {"logits": True}}, "not for files"),
}


def test_a_bad_line_gives_its_reason_and_the_run_goes_on(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    given = [line if isinstance(line, str) else json.dumps(line) for line, _ in BAD.values()]
    source.write_text("\n".join([*given, json.dumps(chat(CAPITAL))]))
    target, summary = answered(source, engine)
    *failed, good = lines(target)
    for (name, (_, why)), line in zip(BAD.items(), failed):
        assert why.lower() in line["error"]["message"].lower(), (name, line)
        assert "text" not in line and "request 0" not in line["error"]["message"]
    assert good["text"] == "The capital of France is Paris."
    assert (summary.lines, summary.failed, summary.errors) == (len(BAD) + 1, len(BAD), len(BAD))


@pytest.mark.parametrize(
    ("options", "load", "says"),
    [
        ({"max_new_token": 3}, {}, "has no field 'max_new_token'"),
        ({"logits": True}, {}, "logits is not for files"),
        ({}, {"backend": "auto"}, "answered by one backend"),
        ({}, {"cache": {}}, "the cache is not asked here"),
    ],
)
def test_what_no_line_could_be_answered_with_is_refused_at_once(
    options: Any, load: Any, says: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", [chat(CAPITAL)])
    with pytest.raises(gen_engine.OptionError, match=says):
        answered(source, {"model": str(TEXT), **load}, options)
    assert list(tmp_path.iterdir()) == [source]


# == OpenAI batch lines ==


def body(**fields: Any) -> dict[str, Any]:
    request = {"method": "POST", "url": "/v1/chat/completions"}
    return {"custom_id": "c1", **request, "body": {"model": TEXT.name, **chat(CAPITAL), **fields}}


def test_openai_batch_lines_are_answered_by_openai_result_lines(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = body(max_tokens=4, temperature=0, logprobs=True, top_logprobs=2, stream=False, user="u", seed=3)
    target, _ = answered(write(tmp_path / "in.jsonl", [asked]), engine)
    [result] = engine.generate_text_batch([chat(CAPITAL)], {"max_new_tokens": 4, "logprobs": 2})
    [line] = lines(target)
    told = line["response"]["body"]
    [choice] = told["choices"]
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("c1", None, 200)
    assert line["id"] == line["response"]["request_id"] == "batch_req_1"
    assert choice["message"] == {"role": "assistant", "content": result.text}
    assert (choice["finish_reason"], told["usage"]["completion_tokens"]) == ("length", 4)
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == pytest.approx(result.logprobs, abs=1e-5)


def test_openai_fields_are_honoured(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"const": 1}}}}}
    asked = [body(stop=" Paris"), body(n=2, seed=1, temperature=1.0), body(response_format=wanted)]
    target, _ = answered(write(tmp_path / "in.jsonl", asked), engine)
    stopped, drawn, made = (line["response"]["body"]["choices"] for line in lines(target))
    [two] = engine.generate_text_batch([chat(CAPITAL, seed=1)], {**MOST, "n": 2, "temperature": 1.0})
    assert stopped[0]["message"]["content"] == "The capital of France is"
    assert [one["message"]["content"] for one in drawn] == [sample.text for sample in two.samples]
    assert made[0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("field", "value"),
    [("stream", True), ("presence_penalty", 2.5), ("logit_bias", {"x": 1}), ("tools", [{}]), ("model", "gpt-9"),
     ("best_of", 2), ("response_format", {"type": "xml"}), ("tool_choice", "some"), ("reasoning_effort", "low"),
     ("chat_template_kwargs", [1]), ("parallel_tool_calls", 0), ("thinking_token_budget", -1)],
)  # fmt: skip
def test_an_openai_field_that_cannot_be_honoured_is_refused(
    field: str, value: Any, engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = [body(**{field: value}), body(max_tokens=1)]
    target, summary = answered(write(tmp_path / "in.jsonl", asked), engine)
    line, _ = lines(target)
    assert line["response"] is None and line["custom_id"] == "c1" and summary.errors == 1
    assert line["id"] == "batch_req_1"
    named = {"thinking_token_budget": "budget", "response_format": "xml"}.get(field, field)
    assert named in line["error"]["message"]


# == Pictures and Parquet ==


def picture_lines(folder: Path) -> list[dict[str, Any]]:
    drawing("red", "circle").save(folder / "a.png")
    raw = io.BytesIO()
    drawing("blue", "square").save(raw, "PNG")
    url = "data:image/png;base64," + base64.b64encode(raw.getvalue()).decode()
    text = {"type": "text", "text": "What do you see?"}

    def with_part(part: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [part, text]}], **more}

    return [
        with_part({"type": "image", "image": "a.png"}),
        with_part({"type": "image_url", "image_url": {"url": url}}),
        with_part({"type": "image"}, images=["sub/../a.png"]),
        chat("What is the capital of Cuba?"),
        with_part({"type": "image", "image": "../outside.png"}),
        with_part({"type": "image", "image": "gone.png"}),
    ]


def test_pictures_come_from_beside_the_file_and_from_nowhere_else(shared: Load, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    drawing("red", "circle").save(tmp_path / "outside.png")
    target, summary = answered(write(folder / "in.jsonl", picture_lines(folder)), shared(VL, "hf"), chunk=2)
    red, blue, again, planets, outside, gone = lines(target)
    assert [red["text"], blue["text"], again["text"]] == ["A red circle.", "A blue square.", "A red circle."]
    assert "Havana" in planets["text"] and summary.failed == 2
    assert "lies outside" in outside["error"]["message"] and "there is no file" in gone["error"]["message"]
    (folder / "a.png").unlink()
    (folder / "a.png").symlink_to(tmp_path / "outside.png")
    linked = write(folder / "linked.jsonl", picture_lines(tmp_path)[::3])
    assert "lies outside" in lines(answered(linked, shared(VL, "hf"))[0])[0]["error"]["message"]
    linked = write(folder / "allowed.jsonl", picture_lines(tmp_path)[:1])
    assert texts(answered(linked, shared(VL, "hf"), any_path=True)[0]) == ["A red circle."]


def test_parquet_in_and_out(shared: Load, tmp_path: Path) -> None:
    pyarrow, parquet = batch_files.import_arrow()
    raw = io.BytesIO()
    drawing("red", "circle").save(raw, "PNG")
    asked = json.dumps([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]}])
    rows = [
        {"id": "a", **chat("What is the capital of Cuba?"), "images": None, "asked": None, "seed": 3},
        {"id": "b", "messages": None, "images": [raw.getvalue()], "asked": asked, "seed": None},
    ]
    both = pyarrow.Table.from_pylist(rows)
    parquet.write_table(both.drop_columns(["asked", "images"]), tmp_path / "text.parquet")
    pictures = both.drop_columns(["messages"]).rename_columns({"asked": "messages"}).slice(1)
    parquet.write_table(pictures, tmp_path / "pictures.parquet")
    target, summary = answered(tmp_path / "text.parquet", shared(VL, "hf"))
    good, bad = parquet.read_table(target).to_pylist()
    assert (good["id"], "Havana" in good["text"], good["error"]) == ("a", True, None)
    assert (bad["id"], bad["text"], summary.errors) == ("b", None, 1) and "none of them given" in bad["error"]
    target, _ = answered(tmp_path / "pictures.parquet", shared(VL, "hf"))
    assert parquet.read_table(target).column("text").to_pylist() == ["A red circle."]


# == Going on ==


def test_a_torn_run_goes_on_where_it_stopped_and_a_finished_one_loads_nothing(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.jsonl", questions(30))
    target, _ = answered(source, engine, chunk=8)
    whole = target.read_bytes()
    for kept in (0, 1, len(whole) // 3, whole.index(b"\n") + 1, len(whole) - 1, len(whole)):
        target.write_bytes(whole[:kept])  # between lines, and inside one
        assert answered(source, engine, chunk=5)[1].answered == 0  # the log has all answers
        assert target.read_bytes() == whole
    log = Path(f"{target}.run").read_bytes()
    for kept in (log.index(b"\n") + 9, len(log) // 3, len(log) - 1):
        Path(f"{target}.run").write_bytes(log[:kept])
        target.unlink()
        records = log[: log[:kept].rfind(b"\n") + 1].count(b" answer ")
        assert answered(source, engine, chunk=5)[1].answered == 30 - records
        assert target.read_bytes() == whole
    monkeypatch.setattr(gen_engine, "load", lambda *_: pytest.fail("a model was loaded"))
    settings = {**{f: getattr(engine.config, f) for f in ("max_model_len", "backend")}, "model": str(TEXT)}
    assert answered(source, settings)[1].lines == 30


def test_other_settings_and_another_input_are_refused_with_what_differs(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", questions(12))
    target, _ = answered(source, engine, chunk=12)
    whole = target.read_bytes()
    with pytest.raises(gen_engine.OptionError, match="options.max_new_tokens was 24, is 9"):
        answered(source, engine, {"max_new_tokens": 9})
    with pytest.raises(gen_engine.OptionError, match="load.dtype was null, is .float32."):
        answered(source, {"model": str(TEXT), "max_model_len": 1024, "dtype": "float32"})
    with pytest.raises(gen_engine.OptionError, match="the files of the model .* are not the same"):
        answered(source, {"model": str(VL), "max_model_len": 1024})
    write(source, [*questions(5), chat("Another one."), *questions(12)[6:]])
    with pytest.raises(gen_engine.RequestError, match="line 6: it was answered, and has changed"):
        answered(source, engine)
    write(source, questions(11))
    with pytest.raises(gen_engine.RequestError, match="has 11 lines, line 12 was answered"):
        answered(source, engine)
    assert target.read_bytes() == whole
    write(source, questions(14))  # it has grown: its beginning is what it was
    assert answered(source, engine)[1].answered == 2 and target.read_bytes().startswith(whole)


def test_an_observed_engine_is_refused(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    class Mine(gen_engine.Observer): ...

    source = write(tmp_path / "in.jsonl", questions(2))
    with engine.observed(Mine()), pytest.raises(gen_engine.OptionError, match="the engine is observed"):
        answered(source, engine)


def test_a_file_that_is_not_ours_stays_as_it_is(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.jsonl", questions(2)), tmp_path / "in.out.jsonl"
    target.write_text("somebody's\n")
    with pytest.raises(gen_engine.OptionError, match="exists, and in.out.jsonl.run does not"):
        answered(source, engine)
    assert target.read_text() == "somebody's\n"


def test_standard_output_is_no_file_of_answers(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "in.jsonl", questions(2))
    with pytest.raises(gen_engine.OptionError, match="standard output cannot be continued"):
        batch_files.answer_file(source, "-", engine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_errors_are_tried_again_on_demand_and_take_the_answers_place(shared: Load, tmp_path: Path) -> None:
    asked = picture_lines(tmp_path)
    source, engine = write(tmp_path / "in.jsonl", [*asked, *asked[:2]]), shared(VL, "hf")
    (tmp_path / "a.png").unlink()
    target, summary = answered(source, engine, chunk=2)
    assert summary.errors == 5
    drawing("red", "circle").save(tmp_path / "a.png")
    assert answered(source, engine)[1].answered == 0
    before = lines(target)
    _, summary = answered(source, engine, chunk=2, retry_errors=True)
    after = lines(target)
    assert (summary.answered, summary.failed, summary.errors, summary.lines) == (5, 2, 2, 8)
    assert [line.get("text") for line in after[:3]] == ["A red circle.", "A blue square.", "A red circle."]
    assert [line["id"] for line in after] == [f"line:{number}" for number in range(1, 9)]
    assert all(new == old for new, old in zip(after, before) if "error" not in old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "in.jsonl", "in.out.jsonl", "in.out.jsonl.run"]


def test_retried_answers_of_a_killed_process_are_merged_by_the_next_one(
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = tmp_path / "late.png"
    asked = [*questions(3), {"prompt": "1, ", "images": ["late.png"]}, *questions(5)[4:]]
    source = write(tmp_path / "in.jsonl", asked)
    target, _ = answered(source, engine)
    before = lines(target)
    drawing("red", "circle").save(late)

    class Killed(BaseException): ...

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(batch_files.Target, "finish", killed)
        with pytest.raises(Killed):
            answered(source, engine, retry_errors=True)
    garbled, torn = b"01234567 answer 3 0123456789abcdef {}\n", b"01234567 answer 4 0123"
    with open(f"{target}.run", "ab") as log:
        log.write(garbled + torn)
    assert lines(target) == before
    assert answered(source, engine)[1].answered == 0
    after = lines(target)
    assert after[:3] + after[4:] == before[:3] + before[4:]
    assert "there is no file" in before[3]["error"]["message"]
    assert "there is no file" not in after[3]["error"]["message"]


def test_one_process_at_a_time(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", questions(2))
    target, _ = answered(source, engine)
    log = Path(f"{target}.run")
    with open(log, "r+b") as other:
        batch_files.lock(other, log)
        with pytest.raises(gen_engine.EngineError, match="in use by another process"):
            answered(source, engine)
    assert answered(source, engine)[1].errors == 0


def test_a_full_disk_loses_nothing_that_was_written(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.jsonl", questions(20))
    target, _ = answered(source, engine)
    whole = target.read_bytes()
    target.unlink()
    Path(f"{target}.run").unlink()
    fsync, calls = os.fsync, iter([0] * 9 + [1] * 99)
    monkeypatch.setattr(batch_files, "SYNC_SECONDS", 0.0)

    def full(handle: int) -> None:
        if next(calls):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(gen_engine.EngineError, match="No space left on device.*the same command continues"):
            answered(source, engine, chunk=4)
    assert whole.startswith(target.read_bytes()) and target.read_bytes().endswith(b"\n")
    answered(source, engine, chunk=4)
    assert target.read_bytes() == whole


# == Input that can be read only once ==


def feed(path: str | Path, content: bytes) -> threading.Thread:
    """Write to a FIFO from a thread, as another process would."""
    thread = threading.Thread(target=Path(path).write_bytes, args=[content], daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", ["fifo", "process substitution"])
def test_answer_file_with_input_that_is_read_once_answers_each_line(
    kind: str,
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
) -> None:
    asked = [{"id": f"q{number}", "prompt": "1, 2, "} for number in range(1500)]
    content = write(tmp_path / "in.jsonl", asked).read_bytes()  # less than a pipe holds
    target = tmp_path / "out.jsonl"
    if kind == "fifo":
        source = str(tmp_path / "fifo.jsonl")
        os.mkfifo(source)
        feed(source, content)
    else:
        receiver, sender = os.pipe()
        source = f"/dev/fd/{receiver}"
        os.write(sender, content)
        os.close(sender)
    summary = answer_file(source, target, engine, {"max_new_tokens": 1}, chunk=48)
    assert summary.lines == 1500
    assert [line["id"] for line in lines(target)] == [record["id"] for record in asked]
    assert not Path(f"{target}.in").exists()


def test_answer_file_stopped_while_it_reads_a_stream_keeps_the_copy_of_its_input(
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write(tmp_path / "in.jsonl", questions(40))
    fifo = tmp_path / "fifo.jsonl"
    os.mkfifo(fifo)
    target = tmp_path / "out.jsonl"
    feed(fifo, source.read_bytes())
    with monkeypatch.context() as patch:
        stop_after(patch, 12)
        with pytest.raises(KeyboardInterrupt):
            answer_file(fifo, target, engine, MOST, chunk=6, progress=False)
    copy = Path(f"{target}.in")
    assert copy.read_bytes() == source.read_bytes()
    feed(fifo, b'{"prompt": "another"}\n')
    with pytest.raises(gen_engine.RequestError, match="gives other lines than before"):
        answer_file(fifo, target, engine, MOST, chunk=6, progress=False)
    assert answer_file(copy, target, engine, MOST, chunk=6, progress=False).lines == 40


# == Lines that would stop a file for good ==


TEMPLATES = {
    "size": ("{{ 'a' * 20000000 }}", "wrote more than 8,388,608 characters"),
    "memory": ("{% set a = 'a' * 9000000000 %}{{ a }}", "MiB of memory"),
    "time": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "ran for more than 1 seconds",
    ),
    "its own error": ("{{ raise_exception('no chat') }}", "no chat"),
}


@pytest.mark.parametrize("limit", TEMPLATES)
def test_answer_file_limits_the_template_that_a_line_brings(
    limit: str,
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_lines, "TEMPLATE_SECONDS", 1.0 if limit == "time" else 120.0)
    template, reason = TEMPLATES[limit]
    asked = [{**chat(CAPITAL), "chat": {"template": template}}, chat(CAPITAL)]
    target, summary = answered(write(tmp_path / "in.jsonl", asked), engine)
    bad, good = lines(target)
    assert summary.errors == 1
    assert reason in bad["error"]["message"]
    assert good["text"] == "The capital of France is Paris."


def test_answer_file_renders_the_template_that_a_line_brings_as_one_call_does(
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
) -> None:
    own = "{{ word }}{{ enable_thinking }} 1, 2, "
    hostile = "#}{{ rendered_line }}{#"  # a name that could end the comment which names it
    kwargs = {"word": "<|im_end|>", hostile: 1}
    asked = [
        {**chat(CAPITAL), "chat": {"template": engine.tokenizer.chat_template}},
        {**chat(CAPITAL), "chat": {"template": own, "kwargs": kwargs}},
        {**chat(CAPITAL), "chat": {"template": "{{ messages[0].content }}"}},
    ]
    target, summary = answered(write(tmp_path / "in.jsonl", asked), engine, ids=True)
    expected = engine.generate_text_batch(asked, MOST)
    assert summary.errors == 0
    for line, result in zip(lines(target), expected):
        assert tuple(line["prompt_token_ids"]) == result.prompt_token_ids
        assert line["text"] == result.text
        assert tuple(line.get("notes", ())) == result.notes


def test_answer_file_refuses_a_text_that_no_tokenizer_should_be_given(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gen_engine, "MOST_TEXT", 5000)
    data_url = picture_lines(tmp_path)[1]["messages"][0]["content"][0]
    assert len(str(data_url)) < 5000
    asked = [{"prompt": "x" * 6000}, {"prompt": "x", "stop": ["y" * 6000]}, chat(CAPITAL)]
    target, _ = answered(write(tmp_path / "in.jsonl", asked), engine)
    assert "characters without its images" in lines(target)[0]["error"]["message"]
    assert "characters without its images" in lines(target)[1]["error"]["message"]
    assert lines(target)[2]["text"] == "The capital of France is Paris."


DEADLY = """
# Each run is a fork of this process, in which the line with "deadly" kills it at one place.
import contextlib, dataclasses, os, signal, sys
import gen_engine
from parity.companions import batch_files, batch_lines

source, whole, model, *targets = sys.argv[1:]
engine = gen_engine.load(model, progress=False)
gen_engine.load = lambda config: contextlib.nullcontext(engine)

def is_deadly(text):
    return "deadly" in text

def deadly(owner, name, text_of):
    real = getattr(owner, name)
    def call(*given, **named):
        if is_deadly(text_of(*given)):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)
    setattr(owner, name, call)

def deadly_model():
    complete = engine.backend.complete
    def call(prompts, call):
        def check(new):
            if any(is_deadly(engine.tokenizer.decode(prompt.token_ids)) for prompt in new):
                os.kill(os.getpid(), signal.SIGKILL)
            return new
        more = call.more
        return complete(check(prompts), dataclasses.replace(call, more=lambda: check(more())))
    engine.backend.complete = call

def run(out):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if out.endswith("read.jsonl"):
        deadly(batch_lines.Reader, "item", lambda reader, number, record: str(record))
    elif out.endswith("prepare.jsonl"):
        deadly(gen_engine, "prompt_of", lambda request, plan: str(request.prompt))
    elif out.endswith("run.jsonl"):
        deadly_model()
    os._exit(batch_files.main([source, out, "--model", model, "--chunk", "12",
                               "--options", '{"max_new_tokens": 8}']))

print(run(whole))
for target in targets:
    print(*[run(target) for _ in range(6)])
"""


DEADLY_AT = 9  # the deadly line, from 0
DEATHS = {"read": "-9 -9 -9 -9 1 1", "prepare": "-9 -9 -9 -9 1 1", "run": "-9 -9 -9 -9 1 1"}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder, and for each place where a line kills the process the exit codes of six starts."""
    folder = tmp_path_factory.mktemp("deaths")
    asked = questions(16)
    asked[DEADLY_AT] = {"id": "bad", "prompt": "a deadly line"}
    source = write(folder / "in.jsonl", asked)
    targets = [str(folder / f"{place}.jsonl") for place in DEATHS]
    files = [str(source), str(folder / "whole.jsonl"), str(TEXT), *targets]
    with forks_for_python():
        run = [sys.executable, "-c", DEADLY, *files]
        done = subprocess.run(run, capture_output=True, text=True, env=environment(), check=False)
    first, *codes = done.stdout.splitlines()
    assert first == "0" and len(codes) == len(DEATHS), done.stdout + done.stderr
    return folder, dict(zip(DEATHS, codes))


# From the second death on it is alone, since a 64th of --chunk 12 is one line.
@pytest.mark.parametrize(("place", "codes"), DEATHS.items())
def test_answer_file_sets_a_line_aside_at_which_the_process_died_alone_three_times(
    place: str,
    codes: str,
    deaths: tuple[Path, dict[str, str]],
) -> None:
    folder, found = deaths
    target, whole = folder / f"{place}.jsonl", folder / "whole.jsonl"
    assert found[place] == codes
    bad = lines(target)[DEADLY_AT]
    assert bad["id"] == "bad"
    assert f"the process died 4 times while line {DEADLY_AT + 1} was in work" in bad["error"]["message"]
    others = lines(target)[:DEADLY_AT] + lines(target)[DEADLY_AT + 1 :]
    assert [line["text"] for line in others] == texts(whole)[:DEADLY_AT] + texts(whole)[DEADLY_AT + 1 :]
    assert not Path(f"{target}.at").exists()


@pytest.mark.parametrize("chunk", ["1", "12", "3072"])
def test_a_process_that_dies_while_the_model_is_loaded_blames_no_line(
    chunk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kill while a large model was loading set one more line aside, which nothing had been run for."""
    monkeypatch.setattr(gen_engine, "load", lambda config: os.kill(os.getpid(), signal.SIGKILL))
    source, target = write(tmp_path / "in.jsonl", questions(16)), tmp_path / "out.jsonl"
    for _ in range(8):
        child = os.fork()
        if not child:
            main(command(source, target, "--chunk", chunk)[3:])
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    log = Path(f"{target}.run").read_bytes()
    # One that is read meanwhile, in a thread, may be noted once.
    assert b" error " not in log and log.count(b" died ") <= 1


class Killed(batch_files.Answering):
    """Ends some lines; then somebody kills the process, whatever is in work."""

    lines = 2

    def run(self, parts: batch_files.Parts, most: int) -> None:
        while not parts.over:
            for item in parts.take(wait=True):
                if not self.lines:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.lines -= 1
                self.end(item, json.dumps({"id": item.number}).encode())


@pytest.mark.parametrize("chunk", ["1", "12", "3072"])
def test_no_kill_from_outside_costs_a_line(chunk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that was alone in work at its second death became an error: a job that was killed every two
    seconds lost a line a kill."""
    monkeypatch.setattr(batch_files, "Answering", Killed)
    source, target = write(tmp_path / "in.jsonl", questions(20)), tmp_path / "out.jsonl"
    for _ in range(12):
        child = os.fork()
        if not child:
            os._exit(main(command(source, target, "--chunk", chunk)[3:]))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            break
    assert code == 0
    assert [line["id"] for line in lines(target)] == list(range(1, 21))


def test_a_line_that_kills_the_process_as_it_is_read_is_found_while_the_model_is_loaded(tmp_path: Path) -> None:
    """The next part is read meanwhile, in a thread."""
    log = batch_files.Log(tmp_path / "out.run", {})
    at = tmp_path / "out.at"
    with batch_files.InWork(at, log) as in_work:
        for number in (1, 2):
            in_work.add(number)
            in_work.note_read(number)
        in_work.add(3)
        assert at.read_bytes().split() == [b"1", b"3"]
        with in_work.while_loading():
            assert at.read_bytes().split() == [b"3", b"3"]
            in_work.note_read(3)
            in_work.add(4)
            assert at.read_bytes().split() == [b"4", b"4"]
        assert at.read_bytes().split() == [b"1", b"4"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_is_no_death(number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_engine, "load", lambda config: signal.raise_signal(number))
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        source = write(tmp_path / "in.jsonl", questions(3))
        assert main(command(source, tmp_path / "out.jsonl")[3:]) == 128 + number
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_line_in_which_a_field_stands_twice_is_refused() -> None:
    """The last one was taken, as Python's reader does."""
    for text in (b'{"prompt": "a", "prompt": "b"}', b'{"messages": [{"role": "user", "role": "system"}]}'):
        with pytest.raises(gen_engine.RequestError, match="stands twice in an object. Leave one out"):
            batch_lines.parse_record(text + b"\n")


@pytest.mark.parametrize("name", ["out.jsonl.run", "out.jsonl.at"])
def test_a_pipe_beside_out_is_refused_and_not_waited_for(name: str, tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / name)
    source = write(tmp_path / "in.jsonl", questions(3))
    assert main(command(source, tmp_path / "out.jsonl")[3:]) == 2
    assert f"{name} is no regular file" in capsys.readouterr().err


def test_no_file_of_somebody_else_is_written_over(tmp_path: Path, capsys: Any) -> None:
    """A text without a line feed was taken for the torn first line of a log, and the target of a link was emptied."""
    source, other = write(tmp_path / "in.jsonl", questions(3)), tmp_path / "other"
    other.write_text("precious")
    for name in ("out.jsonl.at", "out.jsonl.run"):
        (tmp_path / name).symlink_to("other")
        assert main(command(source, tmp_path / "out.jsonl")[3:]) == 2
        (tmp_path / name).unlink()  # which is there
    assert other.read_text() == "precious"


@pytest.mark.parametrize("length", [252, 300])
def test_a_name_that_is_too_long_is_nothing_that_passes(length: int, tmp_path: Path, capsys: Any) -> None:
    source = write(tmp_path / "in.jsonl", questions(3))
    assert main(command(source, tmp_path / ("x" * length))[3:]) == 2


@pytest.mark.parametrize("text", ["1 99999999999999999999", "2 1", "garbage", "1"])
def test_a_garbled_note_of_the_lines_in_work_is_none(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "Answering", Killed)
    source, target = write(tmp_path / "in.jsonl", questions(2)), tmp_path / "out.jsonl"
    Path(f"{target}.at").write_text(text)
    assert main(command(source, target)[3:]) == 0
    assert b" died " not in Path(f"{target}.run").read_bytes()


# == OUT that was edited ==


Lines = list[bytes]
EDITS: dict[str, tuple[Callable[[Lines], Lines], int]] = {  # the edit, and the first line that it changes
    "deleted": (lambda old: [*old[:4], *old[5:]], 5),
    "doubled": (lambda old: [*old[:6], old[5], *old[6:]], 7),
    "blank": (lambda old: [*old[:2], b"\n", *old[2:]], 3),
    "garbage": (lambda old: [*old[:6], b"\xff\xfe\n", *old[7:]], 7),
    "edited": (lambda old: [old[0].replace(b"e", b"E"), *old[1:]], 1),
    "moved": (lambda old: [*old[:3], old[4], old[3], *old[5:]], 4),
    "appended": (lambda old: [*old, b"{}\n"], 21),
}


@pytest.mark.parametrize("edit", EDITS)
def test_answer_file_reports_an_edited_target_and_repairs_it_on_request(
    edit: str,
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
) -> None:
    change, number = EDITS[edit]
    source = write(tmp_path / "in.jsonl", questions(20))
    target, _ = answered(source, engine, chunk=9)
    whole = target.read_bytes()
    edited = b"".join(change(whole.splitlines(keepends=True)))
    target.write_bytes(edited)
    with pytest.raises(gen_engine.OptionError, match=f"line {number}: it is not what was") as raised:
        answered(source, engine)
    assert "--repair" in str(raised.value)
    assert target.read_bytes() == edited
    _, summary = answered(source, engine, repair=True)
    assert target.read_bytes() == whole
    assert (summary.lines, summary.errors, summary.answered) == (20, 0, 0)  # the log has the answers
    assert answered(source, engine)[1].answered == 0
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"in.jsonl", "in.out.jsonl", "in.out.jsonl.run"}


DAMAGED_RUNS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "emptied": (lambda run: b"", "is empty"),
    "another file": (lambda run: b"7\n" + run, "is not the log of a batch run"),
    "a lost beginning": (lambda run: drop_line(run, 0), "is not the log of a batch run"),
    "format 2": (lambda run: b'{"created": 1, "format": 2, "weights": ""}\n', "of an older format"),
}


def drop_line(data: bytes, index: int) -> bytes:
    kept = data.splitlines(keepends=True)
    del kept[index]
    return b"".join(kept)


@pytest.mark.parametrize("damage", DAMAGED_RUNS)
def test_answer_file_refuses_a_damaged_run_file(
    damage: str,
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
) -> None:
    change, says = DAMAGED_RUNS[damage]
    source = write(tmp_path / "in.jsonl", questions(9))
    target, _ = answered(source, engine, chunk=9)
    run = Path(f"{target}.run")
    run.write_bytes(change(run.read_bytes()))
    before, damaged = target.read_bytes(), run.read_bytes()
    with pytest.raises(gen_engine.OptionError, match=says) as raised:
        answered(source, engine)
    assert run.read_bytes() == damaged
    assert "codec" not in str(raised.value)
    assert raised.value.fix
    assert target.read_bytes() == before


GARBLED: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda run: run.replace(b"France", b"Frince", 1),
    "zeros, as after a power cut": lambda run: run[:-400] + b"\0" * 400,
    "a lost line": lambda run: drop_line(run, 4),
    "no utf-8": lambda run: run.replace(b"France", b"\xff\xfe", 1),
}


@pytest.mark.parametrize("kind", GARBLED)
def test_answer_file_answers_lines_again_whose_records_were_garbled(
    kind: str, engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", questions(9))
    target, _ = answered(source, engine)
    whole, log = target.read_bytes(), Path(f"{target}.run")
    garbled = GARBLED[kind](log.read_bytes())
    assert garbled != log.read_bytes()
    log.write_bytes(garbled)
    target.unlink()
    assert 0 < answered(source, engine)[1].answered < 9
    assert target.read_bytes() == whole


# == Ids, first lines and starts that fail ==


def test_answer_file_gives_a_line_without_a_usable_id_one_that_no_other_line_has(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    usable = [{"id": 2, **chat(CAPITAL)}, {"id": "line:3", **chat(CAPITAL)}]
    unusable = ["{", json.dumps({"id": [1], **chat(CAPITAL)}), json.dumps(chat(CAPITAL))]
    taken = [{"id": "line:4", **chat(CAPITAL)}, {"id": "\ud800", **chat(CAPITAL)}]
    openai = {**body(max_tokens=2), "custom_id": True}
    source = tmp_path / "in.jsonl"
    written = [*map(json.dumps, usable), *unusable, *map(json.dumps, taken), json.dumps(openai)]
    source.write_text("\n".join(written))
    target, _ = answered(source, engine)
    *own, last = lines(target)
    names = [2, "line:2", "line:3", "line:4", "line:5", "line:6", "line:7"]
    assert [line["id"] for line in own] == names
    assert [line["id"] for line in own if "text" in line] == [2, "line:5"]
    assert last["custom_id"] == "line:8" and "the id is bool" in last["error"]["message"]


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "cuda:9"},
        {"model": "golden/models"},
        {"dtype": "float8"},
        {"attn_implementation": "x"},
    ],
)
def test_answer_file_whose_start_fails_leaves_nothing_behind(
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "in.jsonl", [chat(CAPITAL)])
    with pytest.raises(Exception):  # noqa: B017 - whatever the load raises
        answered(source, {"model": str(TEXT), **settings})
    assert list(tmp_path.iterdir()) == [source]


def test_answer_file_interrupted_before_its_first_answer_leaves_nothing_behind(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.jsonl", questions(20))
    stop_after(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        answered(source, engine, chunk=9)
    assert list(tmp_path.iterdir()) == [source]
    monkeypatch.undo()
    assert answered(source, engine, {"max_new_tokens": 2})[1].errors == 0


def test_answer_file_checks_the_first_lines_before_it_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_engine, "load", lambda *_: pytest.fail("a model was loaded"))
    asked = [{"id": k, "question": CAPITAL} for k in range(500)]
    source = write(tmp_path / "in.jsonl", asked)
    assert main(command(source, tmp_path / "out.jsonl")[3:]) == 2
    reason = capsys.readouterr().err
    assert "cannot read any of its first 20 lines; line 1: VlmGenerationRequest" in reason
    assert "has no field 'question'" in reason
    assert "--prompt-field" in reason
    assert list(tmp_path.iterdir()) == [source]


def test_answer_file_reports_the_first_error_on_the_console(
    engine: gen_engine.GenerationEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [chat(CAPITAL), {"promt": 1}, {"prompt": 2}]
    source = write(tmp_path / "in.jsonl", asked)
    answer_file(source, tmp_path / "out.jsonl", engine, MOST)
    reported = capsys.readouterr().err
    assert "batch: line 2: VlmGenerationRequest has no field 'promt'" in reported
    assert "line 3" not in reported


def test_answer_file_with_a_prompt_field_reads_the_column_and_names_the_others(
    engine: gen_engine.GenerationEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        {"id": "a", "question": "1, 2, 3, ", "answer": "4"},
        {"id": "b", "question": chat(CAPITAL)["messages"], "seed": 3},
        {"id": "c", "answer": "4"},
    ]
    source = write(tmp_path / "in.jsonl", asked)
    target = tmp_path / "out.jsonl"
    answer_file(source, target, engine, MOST, prompt_field="question")
    text, messages, missing = lines(target)
    [expected] = engine.generate_text_batch([{"prompt": "1, 2, 3, "}], MOST)
    assert text["text"] == expected.text
    assert messages["text"] == "The capital of France is Paris."
    assert "has no field 'question'" in missing["error"]["message"]
    assert "batch: not read: answer" in capsys.readouterr().err
    with pytest.raises(gen_engine.OptionError, match='prompt_field was "question", is null'):
        answer_file(source, target, engine, MOST, progress=False)


# == Bounds and words ==


def stop_after(patch: pytest.MonkeyPatch, count: int) -> list[batch_lines.Item]:
    """Interrupt the run when so many lines have been answered."""
    ended: list[batch_lines.Item] = []
    end = batch_files.Run.end

    def counted(run: batch_files.Run, item: batch_lines.Item, answer: bytes) -> None:
        if len(ended) == count:
            raise KeyboardInterrupt
        ended.append(item)
        end(run, item, answer)

    patch.setattr(batch_files.Run, "end", counted)
    return ended


@pytest.mark.parametrize("count", [13, 40, 67])
def test_answer_file_stopped_among_lanes_loses_no_answer(
    count: int, engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = questions(80)
    for number, record in enumerate(asked):
        record["options"] = {"max_new_tokens": 2 + number % 5}
    source = write(tmp_path / "in.jsonl", asked)
    with monkeypatch.context() as patch:
        ended = stop_after(patch, count)
        with pytest.raises(KeyboardInterrupt):
            answered(source, engine, chunk=12)
    assert len(ended) == count
    target, summary = answered(source, engine, chunk=12)
    assert (summary.lines, summary.answered) == (80, 80 - count)
    assert [line["id"] for line in lines(target)] == [record["id"] for record in asked]


ESCAPES = [
    "x://../../p.png",
    "X+y://../../p.png",
    "file:///p.png",
    "file://../p.png",
    "file://%2e%2e/p.png",
    "../p.png",
    "sub/../../p.png",
    "data/../../p.png",
    "s3://../../../p.png",
]


def test_image_folder_keeps_paths_inside_whatever_they_are_called(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    for inside in ("x:", "X+y:", "s3:", "data", "file:"):
        (folder / inside).mkdir()
    drawing("red", "circle").save(tmp_path / "p.png")
    drawing("red", "circle").save(folder / "in.png")
    images = batch_lines.ImageFolder(folder)
    for name in ESCAPES:
        with pytest.raises(gen_engine.ImageError, match="lies outside"):
            images.read(name)
    assert images.read("in.png").size == images.read(f"file://{folder}/in.png").size
    with pytest.raises(gen_engine.ImageError, match="refused"):
        images.read("HTTP://example.com/p.png")


def test_make_request_with_a_video_is_refused(tmp_path: Path) -> None:
    content = [{"type": "video", "video": "../clip.mp4"}]
    fields = {"messages": [{"role": "user", "content": content}]}
    with pytest.raises(gen_engine.RequestError, match="a video in a line"):
        batch_lines.make_request(fields, batch_lines.ImageFolder(tmp_path))


def test_answer_file_writes_errors_without_addresses_and_codec_traces(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gen_engine.prompt_of

    def failing(request: Any, plan: Any) -> Any:
        if request.prompt == "object":
            raise gen_engine.RequestError(f"{object()} and {failing} fail")
        return real(request, plan)

    monkeypatch.setattr(gen_engine, "prompt_of", failing)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"prompt": "object"}\n\xff{"prompt": "x"}\n{"prompt": "x"}\n')
    target, _ = answered(source, engine)
    first, second, _ = lines(target)
    assert "0x" not in first["error"]["message"]
    assert "<object> and <function" in first["error"]["message"]
    assert "byte 1 is no UTF-8" in second["error"]["message"]
    assert "codec" not in second["error"]["message"]


def test_answer_file_with_a_missing_model_folder_names_it(
    engine: gen_engine.GenerationEngine,
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "in.jsonl", questions(2))
    answered(source, engine)
    with pytest.raises(gen_engine.LoadError, match="/no/such: there is no such folder"):
        answered(source, {"model": "/no/such", "max_model_len": 1024})


def test_answer_file_takes_parquet_by_any_case_of_its_suffix_and_escapes_surrogates(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = [{"id": "\ud800", **chat(CAPITAL)}, {"id": 7, "prompt": "\ud800"}, chat(CAPITAL)]
    source = write(tmp_path / "in.jsonl", asked)
    target = tmp_path / "out.PARQUET"
    answer_file(source, target, engine, MOST, progress=False)
    rows = batch_files.import_arrow()[1].read_table(target).to_pylist()
    assert [row["id"] for row in rows] == ["line:1", "7", "line:3"]
    assert "lone surrogate" in rows[0]["error"]
    assert rows[2]["text"] == "The capital of France is Paris."
    assert batch_files.parquet_text("a\ud800") == "a\\ud800"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"top_logprobs": 2}, "top_logprobs without body.logprobs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "body.add_generation_prompt"),
    ],
)
def test_openai_fields_that_contradict_each_other_are_refused(
    fields: dict[str, Any], says: str, engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = [body(**fields), body(max_tokens=3, max_completion_tokens=3)]
    target, _ = answered(write(tmp_path / "in.jsonl", asked), engine)
    refused, good = lines(target)
    assert says in refused["error"]["message"]
    assert good["error"] is None


def test_openai_logprobs_hold_the_text_and_bytes_of_each_token(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = [body(logprobs=True, top_logprobs=1)]
    target, _ = answered(write(tmp_path / "in.jsonl", asked), engine)
    [choice] = lines(target)[0]["response"]["body"]["choices"]
    content = choice["logprobs"]["content"]
    text = "".join(entry["token"] for entry in content)
    assert text.startswith("The capital of France is Paris.")
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    assert content[0]["top_logprobs"][0]["token"] == content[0]["token"]


# == Inputs that change ==


def test_answer_file_with_a_corrected_error_line_answers_it(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = questions(6)
    wrong = [*asked[:2], {"id": "x", "promt": "1, "}, *asked[2:]]
    source = write(tmp_path / "in.jsonl", wrong)
    target, summary = answered(source, engine)
    assert summary.errors == 1
    before = lines(target)
    write(source, [*asked[:2], {"id": "x", **chat(CAPITAL)}, *asked[2:]])
    _, summary = answered(source, engine, retry_errors=True)
    after = lines(target)
    assert (summary.answered, summary.errors, summary.lines) == (1, 0, 7)
    assert after[2]["text"] == "The capital of France is Paris."
    assert after[:2] + after[3:] == before[:2] + before[3:]


def test_answer_file_with_a_torn_last_line_answers_it_when_its_rest_is_there(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole.jsonl", questions(8)).read_bytes()
    source = tmp_path / "in.jsonl"
    source.write_bytes(whole[: whole.index(b"q5") + 20])
    target, summary = answered(source, engine)
    assert (summary.lines, summary.errors) == (6, 1)
    assert "ends inside" in lines(target)[-1]["error"]["message"]
    source.write_bytes(whole)
    _, summary = answered(source, engine)
    assert (summary.lines, summary.errors, summary.answered) == (8, 0, 3)
    assert [line["id"] for line in lines(target)] == [f"q{number}" for number in range(8)]


def test_answer_file_with_a_stream_whose_producer_was_killed_goes_on_with_the_whole_stream(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole.jsonl", questions(8)).read_bytes()
    fifo, target = tmp_path / "fifo.jsonl", tmp_path / "out.jsonl"
    os.mkfifo(fifo)
    feed(fifo, whole[: whole.index(b"q5") + 20])
    assert answer_file(fifo, target, engine, MOST, progress=False).errors == 1
    feed(fifo, whole)
    summary = answer_file(fifo, target, engine, MOST, progress=False)
    assert (summary.lines, summary.errors) == (8, 0)


# == Exit codes ==


@pytest.mark.parametrize("missing", ["input", "input folder", "output folder", "output is a folder", "model"])
def test_the_command_exits_with_2_for_what_the_same_command_cannot_mend(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, model = write(tmp_path / "in.jsonl", questions(1)), tmp_path / "out.jsonl", str(TEXT)
    if missing == "input":
        source = tmp_path / "gone.jsonl"
    elif missing == "input folder":
        source = tmp_path
    elif missing == "output folder":
        target = tmp_path / "gone/out.jsonl"
    elif missing == "output is a folder":
        target.mkdir()
    else:
        model = str(tmp_path / "no-model")
    assert main(["batch", str(source), str(target), "--model", model]) == 2
    assert "the same command continues" not in capsys.readouterr().err


# == What a run was begun with ==


def test_answer_file_with_another_chat_template_at_the_same_path_is_refused(shared: Load, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TEXT, model)
    source = write(tmp_path / "in.jsonl", questions(2))
    target, _ = answered(source, {"model": str(model)})
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{# changed #}")
    write(source, questions(3))
    before = target.read_bytes()
    with pytest.raises(gen_engine.OptionError, match="the files of the model .* are not the same"):
        answered(source, {"model": str(model)})
    assert target.read_bytes() == before


def test_answer_file_with_another_chat_template_in_memory_is_refused(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.jsonl", questions(2))
    answered(source, engine)
    write(source, questions(3))
    template = engine.tokenizer.chat_template
    monkeypatch.setattr(engine.tokenizer, "chat_template", template + "{# changed #}")
    with pytest.raises(gen_engine.OptionError, match="chat template"):
        answered(source, engine)


# == What a copy needs ==


def test_vendor_of_batch_files_copies_what_lines_may_ask_for(tmp_path: Path) -> None:
    copies = {path.name for path in vendor.copy_to(tmp_path / "acme/llm", ["batch_files"])}
    assert {"reasoning.py", "tool_calls.py", "penalties.py", "plugin_hooks.py", "structured.py"} <= copies


# == Columns, ids and errors ==


def test_answer_file_with_an_openai_line_without_a_body_keeps_its_custom_id(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = [{"custom_id": "mine", "method": "POST"}, {"custom_id": "b", "body": chat(CAPITAL)}]
    target, _ = answered(write(tmp_path / "in.jsonl", asked), engine)
    bad, good = lines(target)
    assert bad["custom_id"] == "mine" and bad["response"] is None and "body" in bad["error"]["message"]
    assert good["custom_id"] == "b"


def test_answer_file_with_doubled_ids_names_them(
    engine: gen_engine.GenerationEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [{"id": name, "prompt": "1, "} for name in ("a", "b", "a", "c")]
    asked = [*own, *({"custom_id": "d", "body": chat(CAPITAL)} for _ in range(3))]
    target = tmp_path / "out.jsonl"
    answer_file(write(tmp_path / "in.jsonl", asked), target, engine, {"max_new_tokens": 1})
    reported = capsys.readouterr().err
    assert '"a" (lines 1 and 3)' in reported and '"d" (lines 5 and 6)' in reported
    assert '"b"' not in reported
    assert [line.get("id") for line in lines(target)[:4]] == ["a", "b", "a", "c"]


def test_answer_file_into_parquet_tells_ids_that_are_one_as_text(
    engine: gen_engine.GenerationEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"id": 1, "prompt": "1, "}, {"id": "1", "prompt": "2, "}]
    source = write(tmp_path / "in.jsonl", asked)
    answer_file(source, tmp_path / "out.jsonl", engine, {"max_new_tokens": 1})
    assert "ids stand for" not in capsys.readouterr().err
    answer_file(source, tmp_path / "out.parquet", engine, {"max_new_tokens": 1})
    assert "(lines 1 and 2)" in capsys.readouterr().err


def test_error_lines_of_a_broken_grammar_are_the_same_from_run_to_run(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    asked = [{"prompt": "x", "structured": {"regex": "("}}, {"prompt": "x", "structured": {"grammar": "root ::= ("}}]
    target, _ = answered(write(tmp_path / "in.jsonl", asked), engine)
    for line in lines(target):
        assert "xgrammar refused" in line["error"]["message"]
        assert "cc:" not in line["error"]["message"] and "[" not in line["error"]["message"]


def test_answer_file_killed_again_and_again_advances_each_time(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is stopped, without notice, when ten more lines are answered."""
    source = write(tmp_path / "in.jsonl", questions(40))
    finish, made = gen_engine.finish, list[int]()

    class Killed(BaseException): ...

    def counted(*given: Any) -> Any:
        if len(made) == 10:
            raise Killed
        made.append(1)
        return finish(*given)

    runs = 0
    with monkeypatch.context() as patch:
        patch.setattr(gen_engine, "finish", counted)
        while runs < 20:
            made.clear()
            try:
                answered(source, engine)
                break
            except Killed:
                runs += 1
    assert runs <= 4
    assert len(texts(tmp_path / "in.out.jsonl")) == 40


# == The command ==


def command(source: Path | str, target: Path, *more: str) -> list[str]:
    given = ["--model", str(TEXT), "--options", json.dumps(MOST), "--chunk", "16", *more]
    return [sys.executable, "-m", "parity", "batch", str(source), str(target), *given]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


KILLER = """
# Loads the model once; each run of the command is a fork of this process, which is stopped in some way.
import collections, contextlib, os, random, resource, signal, sys, time
from pathlib import Path
import gen_engine
from parity.companions import batch_files

source, whole, target, model, stops, seed, *more = sys.argv[1:]
engine = gen_engine.load(model, progress=False)
gen_engine.load = lambda config: contextlib.nullcontext(engine)
chance = random.Random(int(seed))
log = Path(target + ".run")
content = Path(source).read_bytes()

def die_inside(name, call):
    # The process is killed at the call-th write, sync, rename or note; a write is torn.
    left = [call]
    def last():
        left[0] -= 1
        return not left[0]
    if name == "write":
        append = batch_files.LineFile.append
        def torn(file, data):
            if last():
                os.pwrite(file.file.fileno(), data[: chance.randrange(len(data))], file.end)
                os.kill(os.getpid(), signal.SIGKILL)
            return append(file, data)
        batch_files.LineFile.append = torn
        return
    owner = batch_files.InWork if name == "_write" else os
    real = getattr(owner, name)
    def call(*given):
        before = chance.random() < 0.5
        result = None if before else real(*given)
        if last():
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given) if before else result
    setattr(owner, name, call)

def start(out, *extra, limit=resource.RLIM_INFINITY, death=None, pipe=None):
    if child := os.fork():
        return child
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    batch_files.SYNC_SECONDS = 0.2
    if death:
        die_inside(*death)
    given = source
    if pipe is not None:  # a producer that may be killed within a line
        receiver, sender = os.pipe()
        if not os.fork():
            os.close(receiver)
            with contextlib.suppress(BrokenPipeError), open(sender, "wb") as stream:
                stream.write(content[:pipe])
            os._exit(0)
        os.close(sender)
        os.dup2(receiver, 0)
        given = "-"
    os._exit(batch_files.main([given, out, "--model", model, *more, *extra]))

def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def read(path):
    return Path(path).read_bytes().splitlines(keepends=True) if os.path.exists(path) else []

def records(kind):
    found = []
    for line in read(log):
        if line.endswith(b"\\n") and line.split(b" ", 2)[1] == kind:
            found.append(int(line.split(b" ", 3)[2]))
    return found

def forget():
    for suffix in ("", ".run", ".at", ".in"):
        Path(target + suffix).unlink(missing_ok=True)

def check(done):
    # OUT is the beginning of what it has to be, but for lines that died or were torn and wait.
    for line, right in zip(read(target), expected):
        waits = b"the process died" in line or b"the input ends inside" in line
        assert line == right or waits or right.startswith(line), (line, right)
    answers = records(b"answer")
    assert done <= set(answers), "an answer was lost"
    assert len(answers) == len(set(answers)), "a line was answered twice"
    return set(answers)

def edit():
    lines = read(target)
    lines.insert(4, lines.pop(2))
    lines[1] = b"garbage\\n"
    Path(target).write_bytes(b"".join(lines))

def finish(pipe):
    # Kills look like deaths: lines that were alone in work at two of them are tried again.
    code = exit_code(start(target, pipe=pipe))
    if code == 1:
        code = exit_code(start(target, "--retry-errors", pipe=pipe))
    assert code == 0 and read(target) == expected, code
    check(set(range(1, len(expected) + 1)))
    names = {path.name for path in Path(target).parent.iterdir()}
    assert not names & {Path(target).name + suffix for suffix in (".at", ".in", ".new", ".in.new")}, names

began = time.monotonic()
assert exit_code(start(whole)) == 0
expected, took = read(whole), time.monotonic() - began
counts, files, advanced, done = collections.Counter(), 0, 0, set()
is_pipe = torn = False
while counts.total() < int(stops):
    if is_pipe:  # a torn line is longer each time: OUT.in keeps what was there
        torn = chance.randint(torn, len(content))
    pipe = torn if is_pipe else None
    kind = chance.choice(["kill", "kill", "inside", "inside", "term", "disk"])
    limit, death = resource.RLIM_INFINITY, None
    if kind == "disk":
        limit = (log.stat().st_size if log.exists() else 0) + chance.randrange(3000)
    if kind == "inside":
        death = chance.choice(["write", "write", "fsync", "replace", "_write"]), chance.randint(1, 30)
    child = start(target, limit=limit, death=death, pipe=pipe)
    if kind in ("kill", "term"):
        time.sleep(chance.uniform(0, took))
        os.kill(child, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
    code = exit_code(child)
    known = check(done)
    advanced += len(known) > len(done)
    done = known
    if code in (0, 1):  # it was faster
        finish(len(content) if is_pipe else None)
        files += 1
        if files % 2:
            edit()
            assert exit_code(start(target)) == 2 and exit_code(start(target, "--repair")) == 0
            assert read(target) == expected
        forget()
        done, torn, is_pipe = set(), 0, files % 3 == 1
        continue
    # A SIGTERM may come before the command listens to it.
    assert code in {"kill": [-9], "inside": [-9], "term": [143, -15], "disk": [3]}[kind], (kind, code)
    counts[kind] += 1
finish(len(content) if is_pipe else None)
print(dict(counts), "stops,", advanced, "of them with new answers,", files + 1, "files finished")
print("equal")
"""


@pytest.mark.usefixtures("forked_python")
def test_the_command_survives_kills_and_a_file_that_may_not_grow(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", questions(LINES))
    files = [str(source), str(tmp_path / "whole.jsonl"), str(tmp_path / "out.jsonl")]
    given = [*files, str(TEXT), str(STOPS), SEED, "--options", json.dumps(MOST), "--chunk", "8"]
    run = [sys.executable, "-c", KILLER, *given]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(), check=False)
    print(done.stdout)  # by hand: the figures, with pytest -s
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), done.stdout + done.stderr
    assert re.search(rf"batch: {LINES:,} lines answered in .* lines/s, .* tokens/s\), 0 of them failed", done.stderr)


@pytest.mark.usefixtures("forked_python")
def test_standard_input_and_a_vendored_copy(tmp_path: Path) -> None:
    vendor.copy_to(tmp_path / "acme/llm", ["batch_files"])
    script, target = tmp_path / "acme/llm/batch_files.py", tmp_path / "out.jsonl"
    records = [chat(CAPITAL), {"prompt": ""}, body(max_tokens=3, response_format={"type": "json_object"})]
    asked = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    run = [sys.executable, str(script), "-", str(target), "--model", str(TEXT), "--options", json.dumps(MOST)]
    done = subprocess.run(run, input=asked, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 1 and b"1 of them failed" in done.stderr, done.stderr
    good, bad, openai = lines(target)
    assert good["text"] == "The capital of France is Paris." and "no tokens" in bad["error"]["message"]
    assert openai["error"] is None


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--options", "{"], 2, "--options is not JSON"),
        (["--load", "[]"], 2, "--load is list"),
        (["--chunk", "0"], 2, "chunk is 0"),
        (["--load", '{"max_model_lenn": 5}'], 2, "did you mean 'max_model_len'"),
    ],
)
def test_what_is_wrong_with_a_command_is_said(
    more: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [chat(CAPITAL)])
    assert main(command(source, tmp_path / "out.jsonl", *more)[3:]) == code
    assert says.lower() in capsys.readouterr().err.lower()


def test_where_there_is_no_terminal_one_line_a_minute_tells_of_the_work(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(batch_files, "MINUTE", 0.0)
    source = write(tmp_path / "in.jsonl", questions(5))
    answer_file(source, tmp_path / "out.jsonl", engine, MOST)
    said = capsys.readouterr().err.splitlines()
    assert len(said) >= 5 and "\r" not in "".join(said)
    assert re.fullmatch(r"batch: 100%\|.*\| 5/5 \[.* lines/s, [\d,]+ tokens/s, 0 errors\]", said[-1]), said
