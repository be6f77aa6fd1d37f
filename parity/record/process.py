"""Inside an observed process: starts the observer, and writes a line per call to a file."""

from __future__ import annotations

import ast
import atexit
import builtins
import dataclasses
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from parity.goldens.functions import functions_in
from parity.goldens.store import Case, Store, environment
from parity.record.calls import Site, load_function
from parity.record.observe import Observer, tap_site
from parity.record.patching import ACTIVE, tap_function
from parity.record.source import source_digest, source_file
from parity.record.taps.models import FOLDERS

VARIABLE = "PARITY_OBSERVE"

# "pkg.mod:func" and keyword arguments: func(observer, **arguments) gives what is called before each
# call of a site. It is named, not imported: a judge that restores old values stands above.
Starting = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Setup:
    """What an observed process is told. folder: where its files go.   inside: the folder that the
    code must come from; "" where it may come from anywhere.   base: the folder that the scripts of
    sites are named from."""

    folder: str
    sites: Sequence[Site]
    loose: str | None
    seed: int | None
    starting: Starting | None = None
    inside: str = ""
    base: str = ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setup:
        fields = json.loads(text)
        fields["sites"] = [Site(**site) for site in fields["sites"]]
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a process's file. kind: "case", "argv", "asked" or "process"; "argv" tells of which
    site the case before it was, the arguments of its script, and the folder that this was started
    in, of one below the working directory.   at: in nanoseconds."""

    kind: str
    at: int
    rank: int
    content: dict[str, Any]


def process_rank() -> int:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


def observe_this_process() -> None:
    """Start the observer that the environment describes."""
    setup = Setup.from_json(os.environ[VARIABLE])
    note_scripts(setup)
    start_script_with_taps()
    folder = Path(setup.folder)
    file = folder / f"{os.getpid()}-{time.time_ns()}.jsonl"
    began = time.perf_counter()

    def write(kind: str, content: dict[str, Any]) -> None:
        line = Line(kind, time.time_ns(), process_rank(), content)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(dataclasses.asdict(line)) + "\n")

    # Of a function it is read once: its file may be edited while it runs.
    digest = functools.cache(source_digest)
    started = script_arguments(sys.argv)
    folder_at_start = shown_word(os.getcwd(), setup.base)

    def sink(case: Case) -> None:
        function = placed_function(case.function, setup.base)
        refuse_outside(function, setup.inside)
        source = "" if setup.starting else digest(function)  # a check asks for none
        case = dataclasses.replace(case, source=source)
        write("case", {**case.to_json(), "value": case.value})
        words = sys.argv[1:] if started is None else started
        argv = [shown_word(word, setup.base) for word in words]
        write("argv", {"site": case.site, "argv": argv, "folder": folder_at_start})

    observer = Observer(
        sites=setup.sites, sink=sink, store=Store(folder), loose=setup.loose, seed=setup.seed
    )
    if setup.starting:
        maker, settings = setup.starting
        observer.starting = load_function(maker)(observer, **settings)
    # Its case comes later: whoever watches sees that something goes on.
    observer.asked = lambda: write("asked", {})
    observer.main_code = module_code
    ACTIVE_SITES[:] = setup.sites

    def close() -> None:
        observer.uninstall()
        if "torch" in sys.modules or observer.failures:
            whole = time.perf_counter() - began
            seconds = {"own": observer.own_seconds, "whole": whole}
            folders = sorted(itertools.chain.from_iterable(FOLDERS.values()))
            content = {"failures": observer.failures, "folders": folders, **seconds}
            content["environment"] = environment()
            content["not_held"] = sorted(observer.not_held)
            write("process", content)

    atexit.register(close)
    observer.install()


def script_arguments(argv: Sequence[str]) -> list[str] | None:
    """The arguments of this process's script or module, as it starts; None of `-c` and of a child
    of multiprocessing, which takes its parent's arguments later."""
    first = argv[0] if argv else ""
    if first in ("", "-", "-c"):
        return None
    return list(argv[2:] if first == str(RUN_SCRIPT) else argv[1:])


def shown_word(word: str, base: str) -> str:
    """An argument of a script; a path below the project as a relative one."""
    path = Path(word)
    is_below = path.is_absolute() and path.is_relative_to(base) and path.exists()
    return path.relative_to(base).as_posix() if is_below else word


def placed_function(function: str, base: str) -> str:
    """A function, of a script by its absolute path: the process may have gone elsewhere."""
    module, _, attribute = function.rpartition(":")
    return f"{Path(base, module)}:{attribute}" if module.endswith(".py") else function


def refuse_outside(function: str, folder: str) -> None:
    """Raise ValueError for a function that was not loaded from a folder."""
    module = function.rpartition(":")[0]
    if not folder or not module:
        return
    loaded: Any = getattr(sys.modules.get(module), "__file__", None) or source_file(module)
    if loaded is None or not Path(loaded).resolve().is_relative_to(folder):
        raise ValueError(
            f"{function} was loaded from {loaded}, not from the revision: it is installed there"
        )


# == Scripts that define a site themselves ==

DECORATOR = "__parity_site__"
ACTIVE_SITES: list[Site] = []
SCRIPTS = dict[Path, set[str]]()  # a script that defines sites -> names of their functions
RUN_SCRIPT = Path(__file__).parent / "hook" / "run_script.py"
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def note_scripts(setup: Setup) -> None:
    for site in setup.sites:
        if site.module.endswith(".py"):
            path = Path(setup.base, site.module).resolve()
            SCRIPTS.setdefault(path, set()).add(site.attribute)


def start_script_with_taps() -> None:
    """Begin this process anew through `run_script`, where it is about to run a script that defines
    a site. Whoever started it, a shell or another script, need not know."""
    words = sys.orig_argv
    index = script_index(words)
    if index is not None and Path(words[index]).resolve() in SCRIPTS:
        before = words[1:index]
        os.execv(sys.executable, [sys.executable, *before, str(RUN_SCRIPT), *words[index:]])


def script_index(words: Sequence[str]) -> int | None:
    """Which word of a Python command is its script; None of `-c`, `-m` and standard input."""
    index = 1
    while index < len(words):
        word = words[index]
        if word in OPTIONS_WITH_VALUE:
            index += 2
        elif not word.startswith("-"):
            return index
        elif is_end_of_options(word):
            return None
        else:
            index += 1
    return None


def is_end_of_options(word: str) -> bool:
    """Whether a word of a Python command is `-`, or ends with `-c` or `-m`."""
    if word == "-":
        return True
    has_value = word.startswith(("--", "-W", "-X"))
    return not has_value and bool({"c", "m"} & set(word))


def run_script() -> None:
    """`python run_script.py script.py …`: what `python script.py …` does, with taps on the sites
    that the script itself defines. Its source is read as Python reads it; line numbers stay."""
    sys.argv = sys.argv[1:]
    path = Path(sys.argv[0])
    sys.path[0] = str(path.resolve().parent)
    module = ModuleType("__main__")
    module.__dict__["__file__"] = os.path.join(os.getcwd(), path)
    sys.modules["__main__"] = module
    exec(code_with_sites(path, SCRIPTS[path.resolve()]), module.__dict__)


def module_code(name: str, loader: Any) -> CodeType | None:
    """What `python -m name` executes, with taps on the sites that module `name` defines itself."""
    names = {site.attribute for site in ACTIVE_SITES if site.module == name}
    if not names:
        return loader.get_code(name)  # type: ignore[no-any-return]
    return code_with_sites(Path(loader.get_filename(name)), names)


def code_with_sites(path: Path, names: Collection[str]) -> CodeType:
    """A file's code with a decorator on the functions of these names."""
    tree = ast.parse(path.read_bytes(), str(path))
    for name, node in functions_in(tree.body):
        if name in names:
            decorator = ast.Name(DECORATOR, ast.Load())
            node.decorator_list.append(ast.copy_location(decorator, node))
    vars(builtins)[DECORATOR] = tap_own_site
    return compile(tree, str(path), "exec")


def tap_own_site(function: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator."""
    site = next(site for site in ACTIVE_SITES if site.attribute == function.__qualname__)
    return tap_function(function, functools.partial(tap_site, site, ACTIVE[0]))
