"""Functions that settings name and that are nowhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parity.goldens.store import Case, GoldenError, SettingsError, Store
from parity.judge.check import unfit
from parity.judge.session import loaded, loaded_function
from parity.judge.sites import NotThere, expect_cases, raise_of_settings

MOVED = {"app.old": "shop.gone", "app.old:ask": "shop.new:ask"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one module, in the working directory."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/new.py").write_text("def answer():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("function", "named", "problem"),
    [
        ("shop.news:answer", "shop.news", "there is no module shop.news; did you mean 'shop.new'?"),
        ("shopp.new:answer", "shopp.new", "there is no module shopp; did you mean 'shop'?"),
        ("shop.zzz:answer", "shop.zzz", "there is no module shop.zzz; correct it"),
        ("shop.new:anser", "shop.new:anser", "shop.new has no function anser; did you mean 'answer'?"),
        ("shop/nex.py:answer", "shop/nex.py", "there is no file shop/nex.py; did you mean 'shop/new.py'?"),
        ("shop/new.py:anser", "shop/new.py:anser", "shop/new.py has no function anser; correct it"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_a_function_that_is_nowhere_is_told_with_a_guess(function: str, named: str, problem: str) -> None:
    with pytest.raises(NotThere) as caught:
        loaded(function)
    assert (caught.value.named, str(caught.value)) == (named, problem)


@pytest.mark.parametrize(
    ("function", "new"),
    [
        ("shop.new:anser", "shop.new:answer"),
        ("shop.news:answer", "shop.new:answer"),
        ("shop.new:zzz", "NEW.MODULE:FUNCTION"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_a_recorded_function_that_is_nowhere_is_told_with_the_command_for_it(function: str, new: str) -> None:
    with pytest.raises(GoldenError) as caught:
        loaded_function(Case("answers", "a", function), function)
    assert f"python -m parity rename {function} {new}; " in str(caught.value)
    assert "python -m parity prune answers --yes" in str(caught.value)
    with pytest.raises(NotThere) as moved:
        loaded_function(Case("answers", "a", "shop.old:answer"), function)
    assert "rename" not in str(moved.value), "the setting that says where it was moved is wrong"


def test_a_site_without_goldens_is_missing_with_the_command_for_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "golden")
    said = [unfit(store, "answers", "*", "hf", {}, {})]
    store.set_site("answers", functions=["shop.new:answer"])
    said.append(unfit(store, "answers", "*", "hf", {}, {}))
    assert ["prune answers --yes" in " ".join(o.notes) for o in said if o] == [False, True]


@pytest.mark.parametrize("text", ["import shop.gone", "import a_library_that_is_not_there", "{}['answer']", "1 / 0"])
def test_a_module_that_fails_by_what_it_does_is_there(text: str, shop: Path) -> None:
    (shop / "shop/broken.py").write_text(text)
    with pytest.raises(Exception, match=".") as caught:
        loaded("shop.broken:answer")
    assert not isinstance(caught.value, NotThere)


def test_what_a_moved_module_lacks_is_told_with_its_line(shop: Path) -> None:
    (shop / "shop/broken.py").write_text("import json\nimport numpi\n")
    with pytest.raises(GoldenError, match=r"No module named 'numpi' \(broken.py:2\)"):
        loaded("shop.broken:answer")


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("shop.gone", r"sites.json: site.moved: 'app.old': it"),
        ("shop.new:ask", r"--moved app.old:ask=shop.new:ask: it"),  # on the command line alone
        ("setup:make", r"sites.json: site.arguments: 'model': it"),
    ],
)
def test_the_setting_that_named_it_is_told(named: str, place: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    arguments = {"model": "setup:make"}
    store.set_site("site", moved={"app.old": "shop.gone"}, arguments=arguments)
    with pytest.raises(SettingsError, match=place):
        raise_of_settings(NotThere(named, "it"), store, "site", {"moved": MOVED, "arguments": arguments})


@pytest.mark.parametrize("error", [NotThere("shop.gone:ask", "it"), ValueError("it")])
def test_what_no_setting_names_is_an_error_of_the_moved_code(error: Exception, tmp_path: Path) -> None:
    """A module that moved, and lacks a function of the old one's name."""
    raise_of_settings(error, Store(tmp_path), "site", {"moved": MOVED})


def test_a_pattern_that_no_case_fits_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/answer-001.json").write_text("{}")
    expect_cases(store, "site", ["answer-*"])
    with pytest.raises(SettingsError, match=r"site.cases: 'answers-\*' fits no case"):
        expect_cases(store, "site", ["answer-*", "answers-*"])
