"""The record line of a block."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.record.calls import Site
from parity.scan.scan import scan
from parity.tests.scan.material import LOAD, scan_texts

MAIN = "\nif __name__ == '__main__':\n    print(ask('a'))\n"
ASK = LOAD + "def ask(q):\n    return model.generate(q, max_new_tokens=3)\n"


def record_of(files: dict[str, str]) -> str:
    [block] = scan_texts(files).blocks
    return block.record


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"old.py": ASK + MAIN}, "--site old-ask=old.py:ask -- python old.py …"),
        ({"llm.py": ASK, "run.py": "from llm import ask\n" + LOAD + MAIN}, "--site llm-ask=llm:ask -- python run.py …"),
        ({"llm.py": ASK}, "--site llm-ask=llm:ask -- python YOUR_SCRIPT.py …"),
        ({"old.py": ASK + "for q in 'ab':\n    print(ask(q))"}, "--site old-ask=old.py:ask -- python old.py …"),
        (
            {"old.py": ASK + "def run(q):\n    return ask(q)\nanswers = [run(q) for q in 'ab']"},
            "--site old-ask=old.py:ask -- python old.py …",
        ),
        (
            {"llm.py": ASK, "run.py": "from llm import ask\nprint(ask('a'))\n"},
            "--site llm-ask=llm:ask -- python run.py …",
        ),
        (
            {"a.py": LOAD + "class A:\n    def f(self, q):\n        return model.generate(q)\nA().f('a')"},
            "--site a-f=a.py:A.f -- python a.py …",
        ),
        ({"old.py": LOAD + "model.generate(**x)"}, "--name old -- python old.py …"),
        (
            {"a.py": LOAD + "class A:\n    def f(self, q):\n        return model.generate(q)" + MAIN},
            "--site a-f=a.py:A.f -- python a.py …",
        ),
        (
            {"a.py": LOAD + "def f(q):\n    def g():\n        return model.generate(q)\n    return g()" + MAIN},
            "--site a-f=a.py:f -- python a.py …",
        ),
        (
            {"a.py": LOAD + "def f(q):\n    yield model.generate(q)\ndef h(q):\n    return list(f(q))" + MAIN},
            "--site a-h=a.py:h -- python a.py …",
        ),
    ],
)
def test_describe_the_line_reaches_the_block(files: dict[str, str], expected: str) -> None:
    assert record_of(files) == f"python -m parity record {expected}"


def test_describe_a_module_of_a_package_is_named_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src" / "acme" / "llm").mkdir(parents=True)
    (tmp_path / "src" / "acme" / "__init__.py").write_text("")
    (tmp_path / "src" / "acme" / "llm" / "old.py").write_text(ASK)
    (tmp_path / "src" / "acme" / "__main__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    [block] = scan(["src"]).blocks
    assert block.target == "acme.llm.old:ask"
    assert "-- -m acme …" in block.record
    assert Site.parse(block.record.split("--site ")[1].split(" -- ")[0]).function == "acme.llm.old:ask"


def test_describe_two_functions_of_one_name_are_two_sites() -> None:
    found = scan_texts({"a/old.py": ASK, "b/old.py": ASK})
    assert [block.site for block in found.blocks] == ["old-ask", "old-ask-2"]


def test_describe_a_notebook_says_what_to_do_first() -> None:
    text = '{"cells": [{"cell_type": "code", "source": "from vllm import LLM\\nLLM(1).generate(2)"}]}'
    [block] = scan_texts({"nb.ipynb": text}).blocks
    assert "nbconvert" in block.note


@pytest.mark.parametrize(
    ("function", "note"),
    [
        ("def f(q):\n    yield model.generate(q)", "f is a generator"),
        ("async def f(q):\n    return model.generate(q)", "f is async"),
    ],
)
def test_describe_a_function_that_the_recorder_refuses_is_not_named(function: str, note: str) -> None:
    [block] = scan_texts({"a.py": LOAD + function}).blocks
    assert block.target == "" and block.note.startswith(note)


def test_describe_a_decorated_generator_is_named_as_the_recorder_takes_it() -> None:
    [block] = scan_texts({"a.py": LOAD + "@collected\ndef f(q):\n    yield model.generate(q)"}).blocks
    assert block.target == "a:f" and block.note == ""
