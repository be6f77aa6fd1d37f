"""Real engines on the tiny checkpoints, one of each kind for the whole run: what is claimed of one backend is claimed
of both, through the `backend` parametrization."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, for each engine
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PARITY_CACHE", "")  # what one test reads is read again by the next

import gen_engine
from parity.cli.refusals import REFUSALS
from parity.environment.libraries import collections_later, settle
from parity.models import real_model

from .browser import NO_BROWSER
from .forked_python import running_server

ROOT = Path(__file__).parents[2]
TEXT, VL = ROOT / "golden/models/tiny-qwen3", ROOT / "golden/models/tiny-qwen3-vl"
BACKENDS = ("hf", "vllm")
WINDOW = 1024
SMALL: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {"vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 64}},
}

RELEASES = {f"{r.releases} cannot do {r.what}": r.fix for r in REFUSALS if r.releases}

# Other examples in each run. --hypothesis-profile default: the usual hundred.
hypothesis.settings.register_profile("parity", max_examples=30)
hypothesis.settings.load_profile("parity")

SERVER = "PARITY_TESTS_FORKED_PYTHON"  # variable: the folder of its client

PROMPT = gen_engine.Prompt(
    token_ids=(5,),
    images=(),
    image_kwargs={},
    length=1,
    seed=None,
    adapter=None,
    structured=None,
    notes=(),
    messages=None,
)


def pytest_configure(config: pytest.Config) -> None:
    """One server for all processes of a run; xdist's workers are forks of it, too."""
    if hasattr(config, "workerinput"):
        sys.executable = config.workerinput["python"]
    else:
        stack = contextlib.ExitStack()
        os.environ[SERVER] = str(stack.enter_context(running_server()))
        config.add_cleanup(stack.close)
        config.option.tx = [f"{spec}//python={os.environ[SERVER]}/python" for spec in config.getoption("tx", ())]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist starts a worker."""
    node.workerinput["python"] = sys.executable


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Files of tests import the libraries."""
    with collections_later():
        return (yield)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A skip would not be seen: what was not looked at is the last thing that is said."""
    unseen = [report for report in terminalreporter.stats.get("skipped", ()) if NO_BROWSER in str(report.longrepr)]
    if unseen:
        terminalreporter.write_line(f"{NO_BROWSER} ({len(unseen)} tests of the page)", red=True, bold=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Documents and commands first: they take longest, and a process that begins one last would end alone."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


LIBRARIES = {"hf": ("transformers.generation",), "vllm": ("transformers.generation", "vllm.entrypoints.llm")}


@functools.cache
def import_libraries(backend: str) -> None:
    """Before the first engine of a backend in this process: tests that load none need not wait for its libraries."""
    settle(*LIBRARIES[backend])


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    """Once a file: what an earlier one has loaded is there to stay."""
    settle()


@contextlib.contextmanager
def forks_for_python() -> Iterator[None]:
    """Python processes that the block starts need not import the libraries; see forked_python.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", f"{os.environ[SERVER]}/python")
        patch.setenv("PATH", os.environ[SERVER], prepend=os.pathsep)
        yield


@pytest.fixture
def forked_python() -> Iterator[None]:
    with forks_for_python():
        yield


@pytest.fixture(scope="session")
def real() -> Path:
    """The real model's checkpoint. Where it was not built the test ends in an error that says what to run."""
    return real_model.folder()


Load = Callable[..., gen_engine.GenerationEngine]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that asks what this release of a library has not ends in the refusal that says so: seen, counted as
    expected (x), and never skipped. Any other error, and the refusal of another release, is a failure."""
    report, error = (yield), call.excinfo.value if call.excinfo else None
    if isinstance(error, gen_engine.UnsupportedError) and RELEASES.get(error.problem) == error.fix:
        assert gen_engine.installed(error.problem.partition(" ")[0])
        report.outcome, report.wasxfail = "skipped", f"this release: {error}"
    return report


def open_engine(model: Path, backend: Any, **overrides: Any) -> gen_engine.GenerationEngine:
    import_libraries(backend)
    return gen_engine.load(model, backend=backend, **{"max_model_len": WINDOW, **SMALL[backend], **overrides})


@pytest.fixture(scope="session")
def shared() -> Iterator[Load]:
    """`shared(model, backend, **settings)`: an engine that stays loaded for the whole run."""
    engines: dict[Any, gen_engine.GenerationEngine] = {}

    def get(model: Path, backend: str, **settings: Any) -> gen_engine.GenerationEngine:
        key = (model, backend, *settings.items())
        if key not in engines:
            engines[key] = open_engine(model, backend, **settings)
        return engines[key]

    yield get
    for engine in engines.values():
        engine.close()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def text(shared: Load, backend: str) -> gen_engine.GenerationEngine:
    return shared(TEXT, backend)


@pytest.fixture
def hooked(shared: Load, backend: str) -> gen_engine.GenerationEngine:
    """With what logits plugins and full logits need; hf always has it."""
    return shared(TEXT, backend, logits_hooks=True)


@pytest.fixture
def vl(shared: Load, backend: str) -> gen_engine.GenerationEngine:
    return shared(VL, backend)


@pytest.fixture
def both(shared: Load) -> Callable[[Path], list[gen_engine.GenerationEngine]]:
    return lambda model: [shared(model, backend) for backend in BACKENDS]


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """`edited(model, {"config.json": {...}})`: a copy of a checkpoint with these keys of these files changed."""

    def copy(model: Path, changes: dict[str, dict[str, Any]]) -> Path:
        target = tmp_path / model.name
        shutil.copytree(model, target)
        for name, keys in changes.items():
            content = json.loads((target / name).read_text()) if (target / name).exists() else {}
            (target / name).write_text(json.dumps({**content, **keys}))
        return target

    return copy


def spy(engine: gen_engine.GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompts each call hands to the backend."""
    seen: list[int] = []
    complete = engine.backend.complete

    def counted(prompts: Any, *rest: Any) -> Any:
        seen.append(len(prompts))
        return complete(prompts, *rest)

    monkeypatch.setattr(engine.backend, "complete", counted)
    return seen


def endings(monkeypatch: pytest.MonkeyPatch) -> list[gen_engine.RowWatch]:
    """The watch of each row that comes to its end on hf, in that order."""
    ended: list[gen_engine.RowWatch] = []
    push = gen_engine.RowWatch.push

    def counted(watch: gen_engine.RowWatch, token: int) -> bool:
        over = push(watch, token)
        ended.extend([watch] * over)
        return over

    monkeypatch.setattr(gen_engine.RowWatch, "push", counted)
    return ended


def chat(text: str, **request: Any) -> dict[str, Any]:
    """A request of one user turn."""
    return {"messages": [{"role": "user", "content": text}], **request}


def of_task(task: Any) -> dict[str, Any]:
    return {"messages": task.messages, "tools": task.tools, "chat": {"enable_thinking": task.enable_thinking}}
