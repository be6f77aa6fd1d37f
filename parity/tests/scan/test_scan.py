"""A scan as a whole: one fault costs one file or one block."""

from __future__ import annotations

import sys

import pytest

from parity.scan.facts import Facts
from parity.scan.files import Found, source_of
from parity.scan.index import Module, Repository
from parity.scan.report import Console
from parity.scan.scan import Scan, scan_files
from parity.tests.scan.material import LOAD, scan_text, scan_texts

CALL = "def f(x):\n    return model.generate(**x)\n"


def test_scan_with_a_block_that_cannot_be_analysed_lists_it_and_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_dtype = Facts.read_dtype

    def fail_in_bad(facts: Facts) -> object:
        if facts.block.module.path == "bad.py":
            raise IndexError("list index out of range")
        return read_dtype(facts)

    monkeypatch.setattr(Facts, "read_dtype", fail_in_bad)
    texts = {"bad.py": LOAD + CALL, "good.py": LOAD + CALL}
    found: Scan = scan_files(Found([source_of(path, text.encode()) for path, text in texts.items()]))
    assert [block.file for block in found.blocks] == ["good.py"]
    assert found.as_json()["not_analysed"] == [
        {"file": "bad.py", "line": 7, "function": "f", "reason": "IndexError: list index out of range"}
    ]
    report = Console(colour=False, is_full=False).text(found)
    assert "not analysed: bad.py:7 f: IndexError" in report


def test_scan_of_statements_nested_too_deep_names_the_file_and_reads_the_others() -> None:
    branches = "".join(f"elif n == {number}:\n    x = 1\n" for number in range(600))
    deep = f"{LOAD}{CALL}if n == 0:\n    x = 1\n{branches}"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own; libraries that a test before has imported raise it
    try:
        found = scan_texts({"deep.py": deep, "good.py": LOAD + CALL})
    finally:
        sys.setrecursionlimit(limit)
    assert [block.file for block in found.blocks] == ["good.py"]
    [problem] = found.problems
    assert problem.path == "deep.py"


def test_scan_of_an_attribute_that_is_set_only_in_arms_that_leave_finds_the_block() -> None:
    code = """
    from transformers import AutoModelForCausalLM
    class A:
        def load(self, fast):
            if fast:
                self.model = AutoModelForCausalLM.from_pretrained("m")
                return
        def run(self, x):
            return self.model.generate(**x)
    """
    [block] = scan_text(code).blocks
    assert block.library == "transformers"


def test_scan_of_modules_that_import_each_other_by_star_looks_each_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    find_module = Repository.find_module

    def counted(self: Repository, dotted: str, importer: Module) -> Module | None:
        asked.append(dotted)
        return find_module(self, dotted, importer)

    monkeypatch.setattr(Repository, "find_module", counted)
    count = 40
    stars = "".join(f"from pkg.m{number} import *\n" for number in range(count))
    files = {f"pkg/m{number}.py": f"{stars}def f{number}(): pass\n" for number in range(count)}
    files["pkg/__init__.py"] = stars
    files["main.py"] = f"from pkg import *\n{LOAD}{CALL}nowhere()\nf7()\nunknown.generate(nothing)\n"
    found = scan_texts(files)
    assert [block.file for block in found.blocks] == ["main.py"]
    assert len(asked) < 3 * (count + 1) ** 2


def test_scan_of_an_import_that_falls_back_to_none_follows_the_import() -> None:
    code = """
    try:
        from vllm import LLM, SamplingParams
    except ImportError:
        LLM, SamplingParams = None, None

    class Judge:
        def __init__(self, path):
            self.model = LLM(model=path)

        def ask(self, prompts):
            return self.model.generate(prompts, SamplingParams(temperature=0))
    """
    [block] = scan_text(code).blocks
    assert block.library == "vllm"
