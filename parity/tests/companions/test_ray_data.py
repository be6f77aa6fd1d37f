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
from parity.tasks import drawing, text_tasks

from ..conftest import ROOT, TEXT, VL, Load, chat

MOST = {"max_new_tokens": 24}


@pytest.fixture
def alone(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process, on an engine that is loaded already."""
    monkeypatch.setattr(ray_data, "load", lambda model, backend="hf", **_: shared(Path(model), backend))


def table(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in rows[0]}


@pytest.mark.usefixtures("alone")
def test_rows_get_what_one_call_gives(backend: str, shared: Load) -> None:
    asked = [task.messages for task in text_tasks(12) if not task.tools][:8]
    rows = [{"id": k, "messages": json.dumps(m) if k % 2 else m, "seed": float(k)} for k, m in enumerate(asked)]
    worker = Generate(str(TEXT), {**MOST, "temperature": 0.7}, load={"backend": backend}, columns=["text", "token_ids"])
    found = worker(table(rows))
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
    ]
    found = Generate(str(VL), MOST)(table(rows))
    assert found["text"][0] == "A red circle." and "Havana" in found["text"][1] and found["text"][2:] == [None] * 3
    assert found["error"][:2] == [None, None]
    for error, why in zip(found["error"][2:], ("is not JSON", "ImageError: unreadable picture", "seed is 2.5")):
        assert why in error and "request" not in error.split(":")[1]


@pytest.mark.usefixtures("alone")
def test_columns_are_added_and_never_replaced() -> None:
    with pytest.raises(gen_engine.OptionError, match=r"no fields \['txt'\]"):
        Generate(str(TEXT), columns=["txt"])
    with pytest.raises(gen_engine.OptionError, match=r"the rows have columns \['text'\] already"):
        Generate(str(TEXT))({"prompt": ["x"], "text": ["y"]})


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = importlib.import_module("ray")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # workers have not seen ours
    environment = {"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}}
    # more places than the two workers hold, or nothing is left that reads and writes
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    context = importlib.import_module("ray.data").DataContext.get_current()
    context.enable_progress_bars = False
    context.use_datasource_v2 = False  # it starts a process for each file's footer: minutes on a small machine
    yield ray
    ray.shutdown()


class Dying(Generate):
    """A worker that is killed in its first batch, once among all."""

    def __init__(self, *given: Any, mark: str, **how: Any) -> None:
        super().__init__(*given, **how)
        self.mark = Path(mark)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        found = super().__call__(batch)
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return found
        os.kill(os.getpid(), signal.SIGKILL)
        return found


def write_questions(folder: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow = importlib.import_module("pyarrow")
    folder.mkdir()
    for k in range(0, len(rows), 3):
        part = pyarrow.Table.from_pylist(rows[k : k + 3])
        importlib.import_module("pyarrow.parquet").write_table(part, folder / f"{k}.parquet")
    return str(folder)


def test_every_id_stands_once_though_a_worker_is_killed(ray: Any, shared: Load, tmp_path: Path) -> None:
    data = importlib.import_module("ray.data")
    tasks = [task for task in text_tasks(40) if not task.tools][:12]
    rows = [{"id": f"q{k}", "messages": json.dumps(task.messages)} for k, task in enumerate(tasks)]
    data.read_parquet(write_questions(tmp_path / "in", rows)).map_batches(
        Dying,
        batch_size=3,
        concurrency=2,
        fn_constructor_args=[str(TEXT), MOST],
        fn_constructor_kwargs={"mark": str(tmp_path / "killed")},
    ).write_parquet(str(tmp_path / "out"))
    assert (tmp_path / "killed").exists()
    found = data.read_parquet(str(tmp_path / "out")).take_all()
    expected = shared(TEXT, "hf").generate_text_batch([{"messages": task.messages} for task in tasks], MOST)
    assert sorted((row["id"], row["text"], row["error"]) for row in found) == sorted(
        (f"q{k}", result.text, None) for k, result in enumerate(expected)
    )


def test_readmes_recipe_does_nothing_twice(
    ray: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [recipe] = [code for code in re.findall(r"^```py\n(.*?)^```", readme, re.M | re.S) if "map_batches" in code]
    for name in ("init", "shutdown"):  # it runs already
        monkeypatch.setattr(ray, name, lambda **_: None)
    monkeypatch.chdir(ROOT)
    exec(compile(recipe, "README.md", "exec"), {})
    assert "# " + capsys.readouterr().out.strip() == recipe.splitlines()[-1]
