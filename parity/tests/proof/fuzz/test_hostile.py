"""Hostile inputs: none of them fails, and what would be a failure is called one."""

from __future__ import annotations

import argparse
import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenEngineError, OptionError, RequestError
from parity.goldens.store import GoldenError
from parity.proof.fuzz import hostile as runner
from parity.proof.fuzz.hostile import Outcome, ask, table_of
from parity.proof.fuzz.hostile_room import Item, Room
from parity.proof.fuzz.hostile_table import chosen, hook
from parity.proof.matrix import README
from parity.tests.conftest import BACKENDS

pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.mark.parametrize("backend", BACKENDS)
def test_hostile_inputs_of_each_kind_are_right_or_refused_and_cost_no_neighbour(backend: str) -> None:
    outcomes = list(ask(backend, quick=True))
    assert len(outcomes) > 200
    assert [outcome for outcome in outcomes if outcome.kind == "failed"] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_quick_ones_are_of_every_group_door_and_field(backend: str) -> None:
    """Whatever is added: the first of each kind is among them."""
    every, some = chosen(backend), chosen(backend, quick=True)
    fast = [item for item in every if not item.slow]
    assert {(item.group, item.door, item.want) for item in some} == {(i.group, i.door, i.want) for i in fast}
    assert {re.split("[: ]", item.name)[0] for item in some} == {re.split("[: ]", item.name)[0] for item in fast}
    assert len(every) / 5 < len(some) < len(every) / 2.5
    assert [item.name for item in some] == [item.name for item in chosen(backend, quick=True)]


def test_readme_tells_of_the_whole_table_as_it_is_and_that_nothing_fails() -> None:
    shown = README.read_text().partition(runner.MARKS[0])[2].partition(runner.MARKS[1])[0]
    rows = [[word.strip() for word in line.strip("|").split("|")] for line in shown.strip().splitlines()[2:]]
    assert [(row[0], int(row[1].replace(",", "")), row[4]) for row in rows] == [
        (backend, len(chosen(backend)), "0") for backend in BACKENDS
    ]


def test_the_whole_of_it_writes_readmes_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before {} old {} after".format(*runner.MARKS))
    monkeypatch.setattr(runner, "README", readme)
    outcomes = [Outcome("ids", "a", kind, "") for kind in ("right", "refused", "refused")]
    monkeypatch.setattr(runner, "ask", lambda *given: iter(outcomes))
    for flags in ({"quick": True}, {"only": "a"}, {"backend": "hf"}):
        runner.run(given(**flags))
        assert "old" in readme.read_text()
    runner.run(given())
    assert "| hf | 3 | 1 | 2 | 0 |\n| vllm | 3 | 1 | 2 | 0 |" in readme.read_text() and "old" not in readme.read_text()


def given(**flags: Any) -> argparse.Namespace:
    usual = {"backend": None, "only": "", "quick": False, "verbose": False, "child": None}
    return argparse.Namespace(**usual | flags)


def test_a_batch_that_is_lost_at_work_is_no_refusal_where_errors_were_to_be_returned() -> None:
    """Before any work a call may be refused as a whole."""
    with Room("hf") as room:
        complete = room.engine().backend.complete

        def fails(*asked: Any) -> Any:
            raise OptionError("planted", fix="mend it")

        item = Item("group", "name", "call", {"plugins": [hook("should_stop", lambda *_: 1 / 0)]})
        assert room.outcome(item)[0] == "refused"
        assert room.outcome(Item("group", "name", "call", {"options": {"n": 0}}))[0] == "refused"
        room.engine().backend.complete = fails
        assert room.outcome(item) == ("failed", "the batch is lost: planted. Mend it.")
        raising_is_asked = Item("group", "name", "call", {"on_error": "raise"})
        assert room.outcome(raising_is_asked)[1] != "the batch is lost: planted. Mend it."
        room.engine().backend.complete = complete


@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_the_whole_of_it_has_inputs_of_every_kind_with_names_of_their_own(backend: str) -> None:
    items = chosen(backend)
    groups = {item.group for item in items}
    assert len(items) >= 400
    assert groups >= {"pictures", "messages", "prompts", "ids", "options", "structures", "adapters", "plugins"}
    assert groups >= {"scoring", "loading", "cache", "traces", "case files"}
    assert {item.group for item in chosen(backend, "pictures")} >= {"pictures"}
    assert len(chosen(backend, "pictures")) < len(items)


def act(function: Any, want: str = "refused") -> Item:
    return Item("group", "name", "act", function, want)


def raising(error: BaseException) -> Any:
    def raises(room: Room) -> None:
        raise error

    return raises


FAILURES: list[tuple[Item, str]] = [
    (act(raising(ZeroDivisionError("planted"))), "ZeroDivisionError: planted"),
    (act(raising(ValueError("planted"))), "ValueError: planted"),
    (act(lambda room: None), "right, but shall be refused"),
    (act(raising(OptionError("bad", fix="mend it")), "answered"), "refused, but shall be answered"),
    (act(raising(OptionError("bad"))), "no fix in 'bad'"),
    (act(raising(OptionError("", fix="mend it"))), "no problem in"),
    (act(raising(RequestError("\ud800", fix="mend it"))), "UnicodeEncodeError"),
    (act(raising(GoldenError("x" * 5000))), "an error of 5"),
]


@pytest.mark.parametrize(("item", "said"), FAILURES, ids=[said for _, said in FAILURES])
def test_what_is_neither_right_nor_refused_in_words_is_a_failure(item: Item, said: str) -> None:
    kind, why = Room("hf").outcome(item)
    assert kind == "failed" and said in why


def test_a_neighbour_that_changes_an_error_at_another_place_and_a_lost_batch_are_failures() -> None:
    with Room("hf") as room:
        engine = room.engine()
        generate, item = engine.generate_text_batch, Item("group", "name", "text", {"prompt": ""})
        assert room.outcome(item)[0] == "refused"

        def altered(change: Any) -> str:
            engine.generate_text_batch = lambda *given, **named: change(generate(*given, **named))  # type: ignore
            return room.outcome(item)[1]

        def elsewhere(results: list[Any]) -> list[Any]:
            results[1].index = 0
            return results

        def lost(results: list[Any]) -> list[Any]:
            raise KeyError("planted")

        assert "a neighbour's answer changed" in altered(lambda results: [results[0], results[1], results[0]])
        assert "index 0" in altered(elsewhere)
        assert "KeyError" in altered(lost)


class FakeChild:
    """Hangs at the second input, dies at the fourth."""

    def __init__(self, command: list[str]) -> None:
        self.says = self.script(int(command[-1]))
        self.last_words = ["Killed"]

    def script(self, place: int) -> Iterator[Any]:
        while True:
            yield {"what": "begin"}
            right = {"what": "end", "kind": "right", "said": ""}
            yield {1: queue.Empty(), 3: None}.get(place, right)
            place += 1

    def next(self, patience: float) -> Any:
        said = next(self.says)
        if isinstance(said, Exception):
            raise said
        return said

    def end(self) -> None: ...


def test_behind_an_input_that_hangs_or_ends_the_process_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Child", FakeChild)
    outcomes = list(ask("hf", "truncate_at_stops"))
    assert len(outcomes) == len(chosen("hf", "truncate_at_stops")) > 4
    assert [outcome.said for outcome in outcomes if outcome.kind == "failed"] == [
        "no answer within 90 s",
        "the process ended: Killed",
    ]


def test_a_failure_is_printed_and_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def run(*outcomes: Outcome) -> int:
        monkeypatch.setattr(runner, "ask", lambda *given: iter(outcomes))
        return runner.run(given(backend="hf"))

    fine, bad = Outcome("ids", "one", "refused", "no"), Outcome("ids", "two", "failed", "KeyError: 5")
    assert (run(fine), run(fine, bad), run()) == (0, 1, 5)
    assert "hf ids: two: failed: KeyError: 5" in capsys.readouterr().out
    assert table_of([fine, bad]).splitlines()[1].split() == ["ids", "2", "0", "1", "1"]


def test_an_error_of_ours_is_what_counts_as_refused() -> None:
    kind, why = Room("hf").outcome(act(raising(OptionError("bad", fix="mend it"))))
    assert (kind, why) == ("refused", "bad. Mend it.") and issubclass(OptionError, GenEngineError)
