"""Generation as a step of Ray Data: what one process gives, also where a worker was killed; the recipe with resume."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from parity.companions import ray_data
from parity.companions.ray_data import Generate
from parity.models.tasks import drawing, text_tasks

from ..conftest import ROOT, TEXT, VL, Load, chat

MOST = {"max_new_tokens": 24}


@pytest.fixture
def alone(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process, on an engine that is loaded already."""

    def open_engine(model: str, settings: Mapping[str, Any]) -> Any:
        return shared(Path(model), settings.get("backend", "hf"))

    monkeypatch.setattr(ray_data, "open_engine", open_engine)


def table(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in rows[0]}


def lists(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: values if isinstance(values, list) else values.to_pylist() for name, values in columns.items()}


@pytest.mark.usefixtures("alone")
def test_rows_get_what_one_call_gives(backend: str, shared: Load) -> None:
    asked = [task.messages for task in text_tasks(12) if not task.tools][:8]
    rows = [{"id": k, "messages": json.dumps(m) if k % 2 else m, "seed": float(k)} for k, m in enumerate(asked)]
    worker = Generate(str(TEXT), {**MOST, "temperature": 0.7}, load={"backend": backend}, columns=["text", "token_ids"])
    found = lists(worker(table(rows)))
    requests = [{"messages": messages, "seed": k} for k, messages in enumerate(asked)]
    expected = shared(TEXT, backend).generate_text_batch(requests, {**MOST, "temperature": 0.7})
    assert found["token_ids"] == [list(result.token_ids) for result in expected]
    assert found["id"] == list(range(len(asked))) and found["error"] == [None] * len(asked)


@pytest.mark.usefixtures("alone")
def test_pictures_text_and_bad_rows_share_a_batch() -> None:
    raw = io.BytesIO()
    drawing("red", "circle").save(raw, "PNG")
    ask = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]}]
    rows: list[dict[str, Any]] = [
        {"messages": json.dumps(ask), "images": [raw.getvalue()], "seed": float("nan")},
        {"messages": json.dumps(chat("What is the capital of Cuba?")["messages"]), "images": None, "seed": None},
        {"messages": "{", "images": None, "seed": None},
        {"messages": json.dumps(ask), "images": [b"no picture"], "seed": None},
        {"messages": None, "images": None, "seed": 2.5},
        {"messages": "[" * 100_000, "images": None, "seed": None},
    ]
    found = lists(Generate(str(VL), MOST)(table(rows)))
    assert found["text"][0] == "A red circle." and "Havana" in found["text"][1] and found["text"][2:] == [None] * 4
    assert found["error"][:2] == [None, None]
    reasons = ("is not JSON", "ImageError: unreadable image", "seed is 2.5", "nested too deeply")
    for error, why in zip(found["error"][2:], reasons):
        assert why in error and "request" not in error.split(":")[1]


@pytest.mark.usefixtures("alone")
def test_columns_are_added_and_never_replaced() -> None:
    with pytest.raises(gen_engine.OptionError, match=r"no fields \['txt'\]"):
        Generate(str(TEXT), columns=["txt"])
    with pytest.raises(gen_engine.OptionError, match=r"the rows have columns \['text'\] already"):
        Generate(str(TEXT))({"prompt": ["x"], "text": ["y"]})


@pytest.mark.usefixtures("alone")
def test_generate_with_and_without_errors_gives_blocks_of_the_same_types() -> None:
    block_of = importlib.import_module("ray.data.block").BlockAccessor.batch_to_arrow_block
    columns = ["text", "finish_reason", "stop_reason", "token_ids", "logprobs", "notes", "prompt_tokens", "choices"]
    worker = ray_data.Generate(str(TEXT), {"max_new_tokens": 2}, columns=columns)
    asked: list[list[Any]] = [["1, ", "2, "], [None, None], ["1, ", None]]
    schemas = [block_of(worker({"prompt": prompts})).schema for prompts in asked]
    for name in [*columns, "error"]:
        kinds = {str(schema.field(name).type) for schema in schemas}
        assert len(kinds) == 1 and kinds != {"null"}, (name, kinds)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """Ray runs: the file that a worker leaves which is killed."""
    before = dict(os.environ)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray, mark = importlib.import_module("ray"), tmp_path / "killed"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # workers have not seen ours
    environment = {"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KILLED": str(mark)}}
    # more places than the worker holds, or nothing is left that reads and writes
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    yield mark
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)  # it leaves some, with which no other process would be a fork


class Dying(Generate):
    """A worker that is killed in its first batch, once among all."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        found = super().__call__(batch)
        try:
            Path(os.environ["KILLED"]).touch(exist_ok=False)
        except FileExistsError:
            return found
        os.kill(os.getpid(), signal.SIGKILL)
        return found


def test_readmes_recipe_does_nothing_twice_though_a_worker_is_killed(
    killed: Path, shared: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (ROOT / "parity/companions/README.md").read_text(encoding="utf-8")
    [recipe] = [code for code in re.findall(r"^```py\n(.*?)^```", readme, re.M | re.S) if "map_batches" in code]
    for name in ("init", "shutdown"):  # it runs already
        monkeypatch.setattr(f"ray.{name}", lambda **_: None)
    monkeypatch.setattr(ray_data, "Generate", Dying)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(compile(recipe, "README.md", "exec"), names)
    assert killed.exists(), "a worker was killed"
    said = capsys.readouterr().out.splitlines()  # Ray also says, there, that a worker died
    assert recipe.splitlines()[-1].removeprefix("# ") in said
    found = sorted(importlib.import_module("ray.data").read_parquet(names["out"]).take_all(), key=lambda row: row["id"])
    requests = [{"prompt": row["prompt"]} for row in found]
    expected = shared(TEXT, "hf").generate_text_batch(requests, {"max_new_tokens": 8})
    assert [(row["text"], row["error"]) for row in found] == [(result.text, None) for result in expected]
