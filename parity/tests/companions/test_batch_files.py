"""Files of requests: one line for each, whatever happens to the process, and each line what one call would give."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from parity import vendor
from parity.__main__ import main
from parity.companions import batch_files
from parity.companions.batch_files import Summary, answer_file
from parity.tasks import drawing, text_tasks

from ..conftest import ROOT, TEXT, VL, Load, chat

MOST = {"max_new_tokens": 24}
KILLED = int(os.environ.get("KILLED_LINES", "240")), int(os.environ.get("KILLS", "4"))  # by hand: 3000 and 20
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
    _, summary = answered(write(tmp_path / "in.jsonl", count), engine, chunk=4)
    assert summary.lines == 64 and calls[0] <= 12 and len(calls) <= 3


def test_a_line_without_an_id_is_known_by_its_number(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    asked = [
        json.dumps(chat(CAPITAL)),
        "",
        json.dumps({**chat(CAPITAL), "id": 7}),
        json.dumps({"prompt_token_ids": [5]}),
    ]
    source.write_text("\n".join(asked))  # a blank line is none; the last one ends without a line feed
    target, _ = answered(source, engine)
    assert [line["id"] for line in lines(target)] == [1, 7, 3]
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
    "a list": ("[1]", "the line is list"),
    "an unknown field": ({"promt": "x"}, "has no field 'promt'. Did you mean 'prompt'?"),
    "an unknown option": ({"prompt": "x", "options": {"temprature": 1}}, "did you mean 'temperature'"),
    "an id that is none": ({"prompt": "x", "id": {"error": {}}}, "the id is dict"),
    "no prompt": ({"id": 1}, "none of them given"),
    "a wrong type": ({"prompt": 5}, "prompt is 5"),
    "too long": ({"prompt_token_ids": [5] * 2000}, "leaves"),
    "too many samples": ({"prompt": "x", "options": {"n": 129, "seed": 1}}, "128 at most"),
    "too many logprobs": ({"prompt": "x", "options": {"logprobs": 10**6}}, "1000 at most"),
    "half a surrogate pair": ({"prompt": "\ud800"}, "half a character"),
    "a broken grammar": ({"prompt": "x", "structured": {"regex": "("}}, "xgrammar refused the regex"),
    "a remote picture": ({"prompt": "x", "images": ["http://a/b.png"]}, "refused"),
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
    [("stream", True), ("presence_penalty", 0.5), ("logit_bias", {"5": 1}), ("tools", [{}]), ("model", "gpt-9"),
     ("best_of", 2), ("response_format", {"type": "xml"})],
)  # fmt: skip
def test_an_openai_field_that_cannot_be_honoured_is_refused(
    field: str, value: Any, engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    target, summary = answered(write(tmp_path / "in.jsonl", [body(**{field: value})]), engine)
    [line] = lines(target)
    assert line["response"] is None and line["custom_id"] == "c1" and summary.errors == 1
    assert field in line["error"]["message"] or str(value["type"]) in line["error"]["message"]


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
    linked = write(folder / "linked.jsonl", picture_lines(tmp_path)[:1])
    assert "lies outside" in lines(answered(linked, shared(VL, "hf"))[0])[0]["error"]["message"]
    linked = write(folder / "allowed.jsonl", picture_lines(tmp_path)[:1])
    assert texts(answered(linked, shared(VL, "hf"), any_path=True)[0]) == ["A red circle."]


def test_parquet_in_and_out(shared: Load, tmp_path: Path) -> None:
    pyarrow, parquet = batch_files.arrow()
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
        assert answered(source, engine, chunk=5)[1].answered == 30 - whole[:kept].count(b"\n")
        assert target.read_bytes() == whole
    monkeypatch.setattr(batch_files, "load", lambda *_: pytest.fail("a model was loaded"))
    settings = {**{f: getattr(engine.config, f) for f in ("max_model_len", "backend")}, "model": str(TEXT)}
    assert answered(source, settings)[1].lines == 30


def test_other_settings_and_another_input_are_refused_with_what_differs(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", questions(12))
    target, _ = answered(source, engine, chunk=4)
    whole = target.read_bytes()
    with pytest.raises(gen_engine.OptionError, match="options.max_new_tokens was 24, is 9"):
        answered(source, engine, {"max_new_tokens": 9})
    with pytest.raises(gen_engine.OptionError, match="load.dtype was null, is .float32."):
        answered(source, {"model": str(TEXT), "max_model_len": 1024, "dtype": "float32"})
    with pytest.raises(gen_engine.OptionError, match="weights was"):
        answered(source, {"model": str(VL), "max_model_len": 1024})
    write(source, [*questions(5), chat("Another one."), *questions(12)[6:]])
    with pytest.raises(gen_engine.RequestError, match="has changed up to line 8"):
        answered(source, engine)
    write(source, questions(11))
    with pytest.raises(gen_engine.RequestError, match="has 11 lines, an earlier run saw more"):
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
    with pytest.raises(gen_engine.OptionError, match="is there, and no in.out.jsonl.run"):
        answered(source, engine)
    assert target.read_text() == "somebody's\n"


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
    assert [line["id"] for line in after] == list(range(1, 9))
    assert all(new == old for new, old in zip(after, before) if "error" not in old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "in.jsonl", "in.out.jsonl", "in.out.jsonl.run"]


def test_answers_that_were_asked_for_again_are_not_lost_with_the_process(
    engine: gen_engine.GenerationEngine, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", [*questions(3), {"prompt": ""}, *questions(5)[4:]])
    target, _ = answered(source, engine)
    again = json.dumps({"id": 4, "text": "saved"})
    Path(f"{target}.retry").write_text(f"4 {again}\n3 {{torn")  # as a killed process leaves it
    assert answered(source, engine)[1].errors == 0
    assert lines(target)[3] == {"id": 4, "text": "saved"} and len(lines(target)) == 5
    assert not Path(f"{target}.retry").exists()


def test_one_process_at_a_time(engine: gen_engine.GenerationEngine, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", questions(2))
    target, _ = answered(source, engine)
    with (
        batch_files.Lines(Path(f"{target}.run"), alone=True),
        pytest.raises(gen_engine.EngineError, match="in use by another process"),
    ):
        answered(source, engine)


def test_a_full_disk_loses_nothing_that_was_written(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.jsonl", questions(20))
    target, _ = answered(source, engine)
    whole = target.read_bytes()
    target.unlink()
    Path(f"{target}.run").unlink()
    fsync, calls = os.fsync, iter([0] * 9 + [1] * 99)

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


# == The command ==


def command(source: Path | str, target: Path, *more: str) -> list[str]:
    given = ["--model", str(TEXT), "--options", json.dumps(MOST), "--chunk", "16", *more]
    return [sys.executable, "-m", "parity", "batch", str(source), str(target), *given]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


KILLER = """
# Loads the model once; each run of the command is a fork of this process, and is killed when it likes to be.
import contextlib, os, random, resource, signal, sys, time
from pathlib import Path
from gen_engine import load
from parity.companions import batch_files

source, whole, target, model, kills, *more = sys.argv[1:]
engine = load(model, progress=False)
batch_files.load = lambda config: contextlib.nullcontext(engine)
chance = random.Random(0)

def begun(out, limit=resource.RLIM_INFINITY):
    if child := os.fork():
        return child
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    os._exit(batch_files.main([source, out, "--model", model, *more]))

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def forgotten():
    for name in (target, target + ".run"):
        Path(name).unlink(missing_ok=True)

began = time.monotonic()
assert ended(begun(whole)) == 0
expected, took, killed = Path(whole).read_bytes(), time.monotonic() - began, 0
while killed < int(kills):
    child = begun(target)
    time.sleep(chance.uniform(0, took))
    os.kill(child, signal.SIGKILL)
    code, found = ended(child), Path(target).read_bytes() if os.path.exists(target) else b""
    assert expected.startswith(found), killed
    if code == 0:  # it was faster
        assert found == expected
        forgotten()
    else:
        assert code == -signal.SIGKILL
        killed += 1
        print("killed after", found.count(b"\\n"))
forgotten()
assert ended(begun(target, len(expected) // 2)) == 3
found = Path(target).read_bytes()
assert found and expected.startswith(found) and found.endswith(b"\\n")
assert ended(begun(target)) == 0 and Path(target).read_bytes() == expected
print("equal")
"""


def test_the_command_survives_kills_and_a_file_that_may_not_grow(tmp_path: Path) -> None:
    source, kills = write(tmp_path / "in.jsonl", questions(KILLED[0])), str(KILLED[1])
    files = [str(source), str(tmp_path / "whole.jsonl"), str(tmp_path / "out.jsonl")]
    run = [sys.executable, "-c", KILLER, *files, str(TEXT), kills, "--options", json.dumps(MOST), "--chunk", "8"]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), done.stdout + done.stderr
    assert done.stdout.count("killed") == KILLED[1] and "the same command continues" in done.stderr
    assert re.search(
        rf"batch: {KILLED[0]:,} lines answered in .* lines/s, .* tokens/s\), 0 of them failed", done.stderr
    )


def test_standard_input_and_a_vendored_copy(tmp_path: Path) -> None:
    vendor.copy_to(tmp_path / "acme/llm", ["batch_files", "answer_cache"])
    script, target = tmp_path / "acme/llm/batch_files.py", tmp_path / "out.jsonl"
    asked = b"".join(json.dumps(record).encode() + b"\n" for record in [chat(CAPITAL), {"prompt": ""}])
    run = [sys.executable, str(script), "-", str(target), "--model", str(TEXT), "--options", json.dumps(MOST)]
    done = subprocess.run(run, input=asked, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 1 and b"1 of them failed" in done.stderr, done.stderr
    good, bad = lines(target)
    assert good["text"] == "The capital of France is Paris." and "no tokens" in bad["error"]["message"]


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


def test_a_missing_input_and_a_missing_model_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "gone.jsonl", tmp_path / "out.jsonl")[3:]) == 3
    assert "gone.jsonl" in capsys.readouterr().err
    source = write(tmp_path / "in.jsonl", [chat(CAPITAL)])
    assert main(["batch", str(source), str(tmp_path / "other.jsonl"), "--model", "/no/such"]) == 3
    assert "cannot read the checkpoint" in capsys.readouterr().err


def test_where_there_is_no_terminal_one_line_a_minute_tells_of_the_work(
    engine: gen_engine.GenerationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(batch_files, "MINUTE", 0.0)
    source = write(tmp_path / "in.jsonl", questions(5))
    answer_file(source, tmp_path / "out.jsonl", engine, MOST)
    said = capsys.readouterr().err.splitlines()
    assert len(said) >= 5 and "\r" not in "".join(said)
    assert re.fullmatch(r"batch: 100%\|.*\| 5/5 \[.* lines/s, [\d,]+ tokens/s, 0 errors\]", said[-1]), said
