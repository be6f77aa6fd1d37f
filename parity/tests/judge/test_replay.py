"""A run with one thing as it was: what a call gives its engine."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from parity.judge.replay import Engines, Replay
from parity.record.taps.gen_engine import listed_plugins, names_with_hook


@pytest.mark.parametrize("plugins", [object(), None, "name"])
def test_call_what_is_no_list_of_plugins_reaches_the_engine(plugins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine refuses one plugin in its own words; the harness says nothing before it."""
    engine = SimpleNamespace(config=SimpleNamespace(model="m"), checkpoint=SimpleNamespace(dtype="float32"))
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines)
        monkeypatch.setattr(replay, "engine", lambda engine, *, hooked: engine)
        given = replay.call(lambda engine, requests, options, **how: how, engine, [], None, plugins=plugins)
    assert given == {"plugins": plugins}


def test_call_an_observer_sees_the_engine_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced ids need an engine with its hook: what the code makes of its trace comes from that one."""
    about = {"config": SimpleNamespace(model="m"), "checkpoint": SimpleNamespace(dtype="float32")}
    engine = SimpleNamespace(**about, observer=object())
    other = SimpleNamespace(**about, observer=None)
    with contextlib.closing(Engines()) as engines:
        replay = Replay(engines)
        monkeypatch.setattr(replay, "engine", lambda asked, *, hooked: other)
        seen = replay.call(lambda engine, requests, options, **how: engine.observer, engine, [])
    assert seen is engine.observer


def test_names_with_hook_an_unnamed_plugin_has_the_default_name() -> None:
    unnamed = SimpleNamespace(logits=len)
    assert names_with_hook(listed_plugins([unnamed]), "logits") == ["plugin"]
    assert listed_plugins(unnamed) == ()
