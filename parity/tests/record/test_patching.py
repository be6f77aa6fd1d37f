"""Observing changes nothing of what is observed: descriptors stay what they are, and all is put back."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parity.goldens.store import Case
from parity.record import observe
from parity.record.observe import Observer, Site
from parity.record.seeds import process_seed

from ..conftest import TEXT, chat, open_engine

MODULE = """
import functools

class Base:
    def inherited(self, word):
        return self.plain(word)

    @classmethod
    def inherited_of_class(cls, word):
        return cls.__name__, word

class Kinds(Base):
    def __init__(self, name="kinds"):
        self.name = name

    def plain(self, word):
        return self.name + word

    @classmethod
    def of_class(cls, word):
        return cls.__name__, word

    @staticmethod
    def static(word):
        return word * 2

    @property
    def title(self):
        return self.name.title()

    @title.setter
    def title(self, value):
        self.name = value

    def by_self(self, word):
        return self.plain(word), self.of_class(word), self.static(word), self.title, self.inherited(word)

    @functools.lru_cache
    def cached(self, word):
        return self.name + word

class Below(Kinds):
    pass

@functools.lru_cache
def cached(word):
    return word.upper()

thing = Kinds("thing")
"""
NAMES = ["plain", "of_class", "static", "title", "by_self", "inherited", "inherited_of_class", "cached"]
SITES = [*(f"Kinds.{name}" for name in NAMES), "thing.plain", "thing.of_class", "cached"]


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "kinds_observed.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import kinds_observed  # type: ignore[import-not-found]

    yield kinds_observed
    del sys.modules["kinds_observed"]


def used(module: Any) -> list[Any]:
    """Every kind of call there is, and what can be seen of the attributes."""
    one, below, module.thing.name = module.Kinds(), module.Below("below"), "thing"
    found: list[Any] = []
    for thing in (one, below, module.thing):
        found += [thing.plain("a"), thing.of_class("b"), thing.static("c"), thing.title, thing.by_self("d")]
        found += [thing.inherited("e"), thing.inherited_of_class("f"), thing.cached("g")]
        thing.title = "new"
        found += [thing.title]
        thing.name = "old"
    for kind in (module.Kinds, module.Below):
        found += [kind.of_class("h"), kind.static("i"), kind.inherited_of_class("j"), kind.plain(one, "k")]
    module.cached("l")
    found += [module.cached("l"), module.cached.cache_info().hits > 0, isinstance(one, module.Base)]
    for name in NAMES:
        static = inspect.getattr_static(module.Kinds, name)
        found += [(name, type(static).__name__) if isinstance(static, (property, classmethod, staticmethod)) else name]
    found += [str(inspect.signature(module.Kinds.plain)), module.Kinds.plain.__qualname__, module.cached.__name__]
    return found


def test_a_class_with_all_kinds_is_the_same_observed_and_unobserved(kinds: Any) -> None:
    before, attributes = used(kinds), dict(vars(kinds.Kinds))
    found: list[Case] = []
    observer = Observer(sites=[Site("s", f"kinds_observed:{name}") for name in SITES], sink=found.append, seed=None)
    with observer:
        assert used(kinds) == before
    assert observer.failures == []
    assert {name.rpartition("-")[0] for name in {case.case for case in found}} == {s.replace(".", "-") for s in SITES}
    assert dict(vars(kinds.Kinds)) == attributes and vars(kinds.thing) == {"name": "old"}, "all is put back"
    selves = {str(case.arguments.get("self")) for case in found if case.function.endswith("Kinds.inherited")}
    assert selves == {"{'$object': 'kinds_observed.Kinds'}", "{'$object': 'kinds_observed.Below'}"}


def test_a_class_is_no_site(kinds: Any) -> None:
    with Observer(sites=[Site("s", "kinds_observed:Kinds")], sink=lambda case: None, seed=None) as observer:
        assert inspect.isclass(kinds.Kinds)
    assert "name a method of it" in observer.failures[0]


def test_library_taps_each_module_stands_in_one_table() -> None:
    names = [module for table in observe.TABLES for module in table]
    assert len(names) == len(observe.LIBRARY_TAPS)


def test_the_engine_s_fallback_works_under_observation() -> None:
    """A second engine is loaded inside a call of the first; its loading is observed, and is not the caller's."""
    with Observer(sink=lambda case: None, loose="x") as observer:
        with open_engine(TEXT, "vllm", fallback_backend="hf") as engine:
            [one] = engine.generate_text_batch([chat("Is 28 even?")], {"logits": True, "max_new_tokens": 8})
        assert list(observer.opened) == [engine]
    assert observer.failures == [] and one.fallback_from == "vllm"


def test_an_engine_that_is_dropped_is_gone() -> None:
    with Observer(sink=lambda case: None) as observer:
        kept, dropped = open_engine(TEXT, "hf"), open_engine(TEXT, "hf")
        assert len(observer.opened) == 2
        del dropped
        gc.collect()
        assert list(observer.opened) == [kept]
    kept.close()


def test_whose_seed_a_call_began_with_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's; its own, where the call gave one; and the recorder's behind a script that had given one."""
    import torch

    told: list[Any] = []

    def draws(seed: int | None) -> list[float]:
        if seed is not None:
            torch.manual_seed(seed)
        told.append(process_seed()["from"])
        return torch.rand(2).tolist()  # type: ignore[no-any-return]

    module = ModuleType("draws_observed")
    draws.__module__, module.draws = module.__name__, draws  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before: list[int | None] = []
    with Observer(sites=[Site("s", "draws_observed:draws")], sink=lambda case: None) as observer:
        observer.starting = lambda call: before.append(call.script_seed)
        values = [module.draws(None), module.draws(7), module.draws(None)]
        torch.manual_seed(42)
        values += [module.draws(None), module.draws(None)]
    assert told == ["nobody", "process", "nobody", "script", "script"]
    assert values[0] == values[2] == values[3] == values[4] != values[1]
    assert before == [None, None, None, 42, None]
