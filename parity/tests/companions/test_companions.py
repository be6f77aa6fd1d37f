"""Companions: public names of gen_engine only, its version, and each copy uses the engine beside it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gen_engine
from parity.environment import vendor

from ..conftest import TEXT

COMPANIONS = vendor.companions()


def names_of_engine(tree: ast.Module) -> set[str]:
    """What a companion uses of gen_engine. Raises ValueError for an import under another name than `ge`."""
    used = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="ge"), attr=name):
                used.add(name)
            case ast.ImportFrom(module="gen_engine", names=names):
                used.update(alias.name for alias in names)
            case ast.Import(names=[ast.alias("gen_engine", "ge")]):
                pass
            case ast.ImportFrom(module=None, level=1, names=[ast.alias("gen_engine", "ge")]):
                pass
            case ast.Import(names=[ast.alias("gen_engine"), *_]) | ast.ImportFrom(level=1):
                raise ValueError(ast.unparse(node))
    return used


@pytest.mark.parametrize("name", COMPANIONS)
def test_a_companion_uses_names_of_the_two_doors_only(name: str) -> None:
    used = names_of_engine(ast.parse(COMPANIONS[name].read_text(encoding="utf-8")))
    assert used and used <= {*gen_engine.__all__, *gen_engine.FOR_COMPANIONS}


def test_the_door_of_companions_holds_what_they_use_and_nothing_of_users() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in COMPANIONS.values()]
    used = set().union(*map(names_of_engine, trees))
    is_base = {"Decoder"}  # what `load(decoder=...)` takes: for who writes a companion
    assert set(gen_engine.FOR_COMPANIONS) == used - set(gen_engine.__all__) | is_base


def test_the_table_of_companions_holds_those_that_calls_need() -> None:
    files = [vendor.SOURCE, *COMPANIONS.values()]
    needed = {
        name for file in files for name in re.findall(r"\bcompanions\.([a-z_]+)", file.read_text(encoding="utf-8"))
    }
    assert needed == set(gen_engine.COMPANIONS) and needed <= set(COMPANIONS)


@pytest.mark.parametrize("name", COMPANIONS)
def test_a_companion_has_the_engines_version(name: str) -> None:
    assert vendor.version_of(vendor.text_of(COMPANIONS[name])) == gen_engine.__version__


@pytest.mark.parametrize("name", COMPANIONS)
def test_what_a_companion_gives_is_named_and_documented(name: str) -> None:
    module = __import__(f"parity.companions.{name}", fromlist=["*"])
    assert module.__doc__ and f'WITH="{name}' in module.__doc__
    assert all(getattr(module, public).__doc__ for public in module.__all__)


NEIGHBOURS = """
import importlib, sys
for package in sys.argv[1:]:
    at = package + "." if package != "flat" else ""
    engine = importlib.import_module(at + "gen_engine")
    tools, caches = importlib.import_module(at + "tool_calls"), importlib.import_module(at + "answer_cache")
    assert tools.ge is caches.ge is engine, package
    assert engine.companions.tool_calls is tools and engine.companions.answer_cache is caches, package
    try:
        tools.parse_tool_calls("", format="hermess")
    except engine.OptionError as error:
        print(package, error.fix)
    [call] = tools.parse_tool_calls('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    engine.ModelLoadConfig("m", cache=caches.AnswerCache())
    for name in ("beams", "rollout", "speculation"):
        module = importlib.import_module(at + name)
        assert module.ge is engine, (package, name)
    assert issubclass(module.SpeculativeLoop, engine.DecodeLoop)
    engine.ModelLoadConfig("m", decoder=module.Speculation("ngram"))
"""


@pytest.mark.parametrize("order", [["acme.llm", "other", "flat"], ["flat", "other", "acme.llm"]])
def test_copies_in_one_process_use_the_engine_beside_them(tmp_path: Path, order: list[str]) -> None:
    """In a package, in a folder without __init__.py, and flat on sys.path."""
    for folder in ("acme/llm", "other", "."):
        vendor.copy_to(tmp_path / folder, list(COMPANIONS))
    (tmp_path / "acme/__init__.py").touch()
    (tmp_path / "acme/llm/__init__.py").write_text("from .tool_calls import parse_tool_calls\n")
    done = subprocess.run(
        [sys.executable, "-c", NEIGHBOURS, *order], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == ([f"{name} did you mean 'hermes'?" for name in order], "")


@pytest.mark.parametrize(
    ("folder", "module", "says"),
    [
        (".", "tool_calls", "No module named 'gen_engine'"),
        ("acme", "acme.tool_calls", "cannot import name 'gen_engine' from 'acme'"),  # the other one is not taken
    ],
)
def test_a_companion_without_an_engine_says_what_is_missing(
    tmp_path: Path, folder: str, module: str, says: str
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    for name in COMPANIONS:
        (tmp_path / folder / f"{name}.py").write_text(COMPANIONS[name].read_text(encoding="utf-8"))
    if folder != ".":
        vendor.copy_to(tmp_path / "gen_engine.py")
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import {module}"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert says in done.stderr


def test_a_companion_that_does_not_exist_is_an_attribute_error_with_a_guess() -> None:
    with pytest.raises(AttributeError, match=r"no companion 'structurd'; did you mean 'structured'\?"):
        _ = gen_engine.companions.structurd
    assert not hasattr(gen_engine.companions, "__wrapped__")  # what inspect asks of any object


REPOSITORY = """
import llm.gen_engine as plain, acme.llm.gen_engine as full
from acme.llm.answer_cache import AnswerCache
from acme.llm.rollout import replay, trace
from acme.llm.speculation import Speculation
assert plain is not full and not issubclass(plain.OptionError, full.OptionError)
chats = [{"messages": [{"role": "user", "content": f"Count to {n}."}]} for n in (5, 7)]
with plain.load(MODEL) as one, full.load(MODEL, decoder=Speculation("ngram"), cache=AnswerCache()) as other:
    expected = [result.token_ids for result in one.generate_text_batch(chats)]
    with trace(other, "traces") as rollout:
        assert [result.token_ids for result in other.generate_text_batch(chats)] == expected
    assert [result.token_ids for result in replay(other, rollout.cases)] == expected
    theirs = [full.TextGenerationRequest(**chat) for chat in chats]  # another copy's contracts
    assert [result.token_ids for result in one.generate_text_batch(theirs)] == expected
print("both")
"""


@pytest.mark.usefixtures("forked_python")
def test_a_repository_with_two_copies_one_of_them_with_companions(tmp_path: Path) -> None:
    vendor.copy_to(tmp_path / "llm", [])
    vendor.copy_to(tmp_path / "acme/llm", list(COMPANIONS))
    code = f"MODEL = {str(TEXT)!r}\n{REPOSITORY}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout == "both\n", done.stderr
