"""The documents' examples are run and print what they say; their commands exist; their tables are complete.

python      run here; what it prints is what its last comment lines say
py          files of the migration (test_migration.py), or listed in ELSEWHERE with what runs it
bash, ""    each command is parsed by the real parser, or is a target of the Makefile; other text is output
json, toml, yaml    parsed
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import gen_engine
from parity.cli.command_line import Parsers, split_at_dashes
from parity.companions import structured
from parity.goldens.causes import TABLE, stage_of
from parity.proof.__main__ import PROOF

from .conftest import ROOT
from .documents import blocks, documents, workflow_commands

DOCUMENTS = {path.relative_to(ROOT).as_posix(): path for path in documents(ROOT)}
BLOCKS = [(name, kind, code) for name, path in DOCUMENTS.items() for kind, code in blocks(path)]
EXAMPLES = [pytest.param(code, id=name) for name, kind, code in BLOCKS if kind == "python"]

ELSEWHERE = {  # a word of a block of Python that is not run here -> what runs it, or why nothing can
    "map_batches(Generate, batch_size=4": "companions/test_ray_data.py, with a worker that is killed",
    "with Decoupled(": "needs two machines with GPUs; companions/test_decoupled.py runs it small",
    "# summarize.py": "test_migration.py",
    "# acme/answers.py": "test_migration.py",
    "group_advantages": "companions/test_rl.py",
    "# setup_parity.py": "test_migration.py",
    "# test_parity.py": "test_migration.py",
    "# test_each.py": "test_migration.py",
}
OTHER_PROGRAMS = ("pip install", "git ", "pytest ", "grep ", "export ", ".venv/bin/", "cd ")  # nothing of ours to parse


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_says(
    example: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.strip()
    expected = "\n".join(line[2:] for line in example.splitlines() if line.startswith("# "))
    assert printed == expected and expected


def test_every_block_is_run_parsed_or_listed() -> None:
    unknown = [
        (name, kind) for name, kind, _ in BLOCKS if kind not in ("python", "py", "bash", "json", "toml", "yaml", "")
    ]
    assert unknown == []
    unlisted = [
        (name, code) for name, kind, code in BLOCKS if kind == "py" and not any(word in code for word in ELSEWHERE)
    ]
    assert unlisted == []
    everything = "\n".join(code for _, kind, code in BLOCKS if kind == "py")
    assert [word for word in ELSEWHERE if word not in everything] == []


def commands() -> Iterator[tuple[str, str]]:
    """(document, command) of each line that is a command, and of each `run:` and `entry:` of a workflow."""
    for name, kind, code in BLOCKS:
        lines = list(workflow_commands(yaml.safe_load(code))) if kind == "yaml" else []
        if kind in ("bash", ""):
            lines = [line for line in code.splitlines() if kind == "bash" or line.startswith(("python -m", "make "))]
        yield from ((name, line) for line in lines if line.strip() and not line.startswith("#"))


@pytest.mark.parametrize(("name", "line"), sorted(set(commands())))
def test_a_command_exists(name: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[:3] == ["python", "-m", "parity"]:
        Parsers().parse(split_at_dashes(words[3:])[0])
    elif words[:3] == ["python", "-m", "parity.proof"]:
        Parsers(PROOF).parse(words[3:])
    elif words[:2] == ["python", "-m"] and words[2].startswith("parity.proof."):
        assert importlib.util.find_spec(words[2]) is not None, line
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        asked = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        assert asked and set(asked) <= set(targets), line
    else:
        assert line.startswith(OTHER_PROGRAMS), f"{name}: {line}"


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_a_command_named_in_a_sentence_exists(name: str) -> None:
    parsers = Parsers()
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    named = re.findall(r"`(?:python -m )?parity ([a-z]+)[^`\n]*`", text)
    assert [word for word in named if word not in parsers.users] == []
    proving = re.findall(r"`python -m parity\.proof ([a-z]+)[^`\n]*`", text)
    assert [word for word in proving if word not in Parsers(PROOF).users] == []


def test_data_in_a_document_can_be_parsed() -> None:
    yaml = importlib.import_module("yaml")
    tomllib = pytest.importorskip("tomllib")
    for _, kind, code in BLOCKS:
        {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}.get(kind, str)(code)


def anchors(document: Path) -> set[str]:
    """What a link may name in a document, as GitHub makes it of headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_its_links_lead_somewhere(name: str) -> None:
    path = DOCUMENTS[name]
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    for link in (link for link in found if "://" not in link):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readmes_commands_are_those_of_the_full_migration() -> None:
    def lines(name: str) -> set[str]:
        return {line for kind, code in blocks(DOCUMENTS[name]) if kind == "bash" for line in code.splitlines()}

    assert lines("README.md") and lines("README.md") <= lines("parity/README.md")


def test_the_causes_are_those_that_are_looked_for_in_their_order() -> None:
    section = DOCUMENTS["parity/README.md"].read_text(encoding="utf-8").partition("\n## Causes, and")[2]
    table = re.findall(r"^\| (`[^|]+) \|", section.partition("\n## ")[0], re.MULTILINE)
    told = {name for row in table for name in re.findall(r"`([\w.]+)`", row)}
    stages = {stage_of(entry.name) for entry in TABLE}
    assert {stage_of(name) for name in told} == stages
    fields = {entry.name for entry in TABLE if "." in entry.name}
    assert fields <= told, fields - told


def test_the_tables_name_every_field() -> None:
    text = DOCUMENTS["parity/engine.md"].read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    inherited = {f.name for f in dataclasses.fields(gen_engine.TextGenerationRequest)}
    for name in ("ModelLoadConfig", "TextGenerationRequest", "VlmGenerationRequest", "GenerationOptions", "StopOptions",
                 "DecodeOptions", "ChatTemplateOptions", "VlmPreprocessOptions", "StructuredOptions",
                 "GenerationResult"):  # fmt: skip
        contract = getattr(gen_engine, name, None) or getattr(structured, name)
        fields = {f.name for f in dataclasses.fields(contract)}
        fields -= inherited if name == "VlmGenerationRequest" else set()
        assert fields <= set(re.findall(r"\w+", rows[name])), name


def named_files() -> Iterator[tuple[str, str]]:
    """(document, file) of each Python file that a maintainers' page names, of ours by its folder."""
    for document in (ROOT / "CONTRIBUTING.md", *(ROOT / "parity").glob("*/README.md")):
        for name in re.findall(r"`((?:parity/)?(?:\w+/)*[a-z_]+\.py)`", document.read_text(encoding="utf-8")):
            yield document.relative_to(ROOT).as_posix(), name


@pytest.mark.parametrize(("document", "name"), sorted(set(named_files())))
def test_a_file_that_a_maintainers_page_names_exists(document: str, name: str) -> None:
    places = (ROOT, (ROOT / document).parent, ROOT / "parity")
    assert any((place / name).is_file() for place in places), f"{document} names {name}"
