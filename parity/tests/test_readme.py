"""README's examples are run, and print what README says they print; its tables name every field there is."""

from __future__ import annotations

import dataclasses
import re

import pytest

import gen_engine
from parity.verdict import CAUSES

from .conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_it_says(
    example: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.strip()
    said = "\n".join(line[2:] for line in example.splitlines() if line.startswith("# "))
    assert printed == said or not said


def test_the_causes_are_those_that_are_looked_for_in_their_order() -> None:
    said = " ".join(README.partition("\nCauses, in the order")[2].partition(".\n")[0].partition(": ")[2].split())
    named: list[str] = []
    for part in said.split(" · "):
        word, names = re.fullmatch(r"`([\w.]+)`(?: (.*))?", part).groups()  # type: ignore[union-attr]
        named += [word] if names is None else [word + name for name in names.split(", ")]
    assert named == list(CAUSES)


def test_the_tables_name_every_field() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", README, re.MULTILINE))
    inherited = {f.name for f in dataclasses.fields(gen_engine.TextGenerationRequest)}
    for name in ("ModelLoadConfig", "TextGenerationRequest", "VlmGenerationRequest", "GenerationOptions", "StopOptions",
                 "DecodeOptions", "ChatTemplateOptions", "VlmPreprocessOptions", "StructuredOptions",
                 "GenerationResult"):  # fmt: skip
        fields = {f.name for f in dataclasses.fields(getattr(gen_engine, name))}
        fields -= inherited if name == "VlmGenerationRequest" else set()
        assert fields <= set(re.findall(r"\w+", rows[name])), name
