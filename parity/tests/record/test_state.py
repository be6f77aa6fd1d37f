"""What a call finds and leaves in its object, and in what it is given."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity.goldens.store import Case, Store
from parity.judge.case import Judge
from parity.judge.session import Session
from parity.record.observe import Observer, Site
from parity.record.state import shape_of

OLD = """
class Chat:
    def __init__(self):
        self.history = []
        self.name = "bot"

    def ask(self, text):
        self.history.append(text)
        reply = " ".join(self.history)
        self.history.append(reply.upper())
        return reply

    def reset(self):
        self.history = []


def fill(rows, found):
    for row in rows:
        row["answer"] = row["text"].upper()
    found.append(len(rows))


def score(rows):
    for row in rows:
        row["score"] = len(row["text"]) / 8


def give(rows):
    for row in rows:
        row["answer"] = row["text"].upper()
    return rows
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "old_chat.py").write_text(OLD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "old_chat", raising=False)
    import old_chat  # type: ignore[import-not-found]

    yield old_chat
    del sys.modules["old_chat"]


def recorded(old: Any, attribute: str, run: Callable[[], Any], tmp_path: Path) -> list[Case]:
    found: list[Case] = []
    site = Site("chat", f"old_chat:{attribute}")
    with Observer(sites=[site], sink=found.append, store=Store(tmp_path / "golden"), seed=None) as observer:
        run()
    assert observer.failures == []
    return found


def test_state_is_what_the_object_held_before_each_call_and_left_behind_it(old: Any, tmp_path: Path) -> None:
    def run() -> None:
        chat = old.Chat()
        chat.ask("a")
        chat.ask("b")
        chat.reset()
        chat.ask("c")

    first, second, third = recorded(old, "Chat.ask", run, tmp_path)
    assert first.state == {"self.history": []}
    assert second.state == {"self.history": ["a", "A"]}
    assert third.state == {"self.history": []}
    assert second.left == ("self.history",)
    assert second.value == {"returned": "a A b", "self.history": ["a", "A", "b", "A A B"]}


def test_what_is_changed_in_place_is_part_of_the_value_unless_it_is_returned(old: Any, tmp_path: Path) -> None:
    [case] = recorded(old, "fill", lambda: old.fill([{"text": "a"}], []), tmp_path)
    assert case.left == ("found", "rows") and case.state == {}
    assert case.value == {"returned": None, "rows": [{"text": "a", "answer": "A"}], "found": [1]}
    [case] = recorded(old, "give", lambda: old.give([{"text": "a"}]), tmp_path)
    assert case.left == () and case.value == [{"text": "a", "answer": "A"}]
    [case] = recorded(old, "score", lambda: old.score([{"text": "abc"}]), tmp_path)
    assert case.value == {"returned": None, "rows": [{"text": "abc", "score": 0.375}]}


NO_STATE = {"a time": 0.5, "times": [0.5], "a tensor": {"at": object()}, "a data set": list(range(30_000))}


@pytest.mark.parametrize("value", NO_STATE.values(), ids=NO_STATE)
def test_times_tensors_and_data_sets_are_no_state(value: Any) -> None:
    assert shape_of(value) is None


def session_call(tmp_path: Path, golden: Case, new: str, source: str) -> Case:
    (tmp_path / "new_chat.py").write_text(source)
    factories = {"chat": {"self": "new_chat:Chat"}} if "." in new else {}
    with Session(Store(tmp_path / "golden"), {f"new_chat:{new}": "chat"}, factories) as session:
        return session.call(golden, f"new_chat:{new}", {}, {}, frozenset())


def test_a_case_is_judged_with_the_state_that_it_was_recorded_in(old: Any, tmp_path: Path) -> None:
    def run() -> None:
        chat = old.Chat()
        chat.ask("a")
        chat.ask("b")

    _, second = recorded(old, "Chat.ask", run, tmp_path)
    assert session_call(tmp_path, second, "Chat.ask", OLD).value == second.value
    forgets = OLD.replace("self.history.append(reply.upper())", "pass")
    new = session_call(tmp_path, second, "Chat.ask", forgets)
    assert new.value == {"returned": "a A b", "self.history": ["a", "A", "b"]}


def test_an_attribute_that_is_called_otherwise_is_not_compared(old: Any, tmp_path: Path) -> None:
    [first] = recorded(old, "Chat.ask", lambda: old.Chat().ask("a"), tmp_path)
    new = session_call(tmp_path, first, "Chat.ask", OLD.replace("history", "turns"))
    assert new.value == first.value and new.left == ()


def test_a_golden_of_an_older_release_is_compared_by_what_is_returned(old: Any, tmp_path: Path) -> None:
    [first] = recorded(old, "Chat.ask", lambda: old.Chat().ask("a"), tmp_path)
    older = dataclasses.replace(first, state={}, left=(), value="a")
    assert session_call(tmp_path, older, "Chat.ask", OLD).value == "a"


def test_a_golden_that_names_other_places_than_its_value_has_is_refused(old: Any, tmp_path: Path) -> None:
    [first] = recorded(old, "Chat.ask", lambda: old.Chat().ask("a"), tmp_path)
    said = {**first.to_json(), "left": ["self.turns"]}
    with pytest.raises(TypeError, match="left names other places than the value has"):
        Case.from_json(said)


KEEPING = """
from collections import OrderedDict, deque


class Chat:
    def __init__(self):
        self.memory = deque(maxlen=3)
        self.answers = OrderedDict()
        self.numbers = {}
        self.seen = set()

    def ask(self, system, text):
        key = (system, text)
        if key not in self.answers:
            self.memory.append((system, text))
            self.answers[key] = " ".join(said for _, said in self.memory)
            self.numbers[len(self.numbers)] = text
            self.seen.add(key)
        self.answers.move_to_end(key)
        if len(self.answers) > 2:
            self.answers.popitem(last=False)
        return self.answers[key]
"""


@pytest.mark.parametrize("number", range(5))
def test_queues_sets_and_keys_that_are_no_texts_come_back_as_they_were(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each case alone: a cache that came back with other keys would miss, a queue that did not would be empty."""
    (tmp_path / "old_chat.py").write_text(KEEPING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "old_chat", raising=False)
    import old_chat

    def run() -> None:
        chat = old_chat.Chat()
        for system, text in (("a", "x"), ("b", "x"), ("a", "x"), ("a", "y"), ("b", "z")):
            chat.ask(system, text)

    case = recorded(old_chat, "Chat.ask", run, tmp_path)[number]
    store = Store(tmp_path / "golden")
    store.write(case)
    read = store.read("chat", case.case)
    assert session_call(tmp_path, read, "Chat.ask", KEEPING).value == read.value
    as_list = KEEPING.replace("deque(maxlen=3)", "[]")  # the last call fills the queue
    assert (session_call(tmp_path, read, "Chat.ask", as_list).value == read.value) is (number != 4)
    wrong = KEEPING.replace("self.seen.add(key)", "self.seen.add(text)")
    assert (session_call(tmp_path, read, "Chat.ask", wrong).value == read.value) is (number == 2)


def test_what_changes_and_is_not_held_is_named(old: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Timed(old.Chat):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.times = [0.0]
            self.weights = [0.5]
            self.last = 0.0

        def ask(self, text: str) -> Any:
            self.times.append(0.5)
            self.last = len(self.times) / 3
            return super().ask(text)

    monkeypatch.setattr(old, "Chat", Timed)
    site = Site("chat", "old_chat:Chat.ask")
    with Observer(sites=[site], sink=lambda case: None, store=Store(tmp_path / "golden"), seed=None) as observer:
        old.Chat().ask("a")
    assert sorted(observer.not_held) == [("chat", "self.last", "float"), ("chat", "self.times", "list")]


KEEPERS = """
import collections
import dataclasses


class Dicts:  # gives back what it also keeps
    def __init__(self):
        self.turns = []

    def ask(self, text):
        self.turns.append({"role": "user", "content": text})
        self.turns.append({"role": "bot", "content": " ".join(turn["content"] for turn in self.turns)})
        return self.turns[-1]


class Late:  # makes its attributes in a call
    def ask(self, text):
        self.turns = [*getattr(self, "turns", []), text]
        self.last = text
        return " ".join(self.turns)


class Slots:
    __slots__ = ("turns",)

    def __init__(self):
        self.turns = []

    def ask(self, text):
        self.turns.append(text)
        return " ".join(self.turns)


@dataclasses.dataclass(frozen=True)
class Frozen:
    turns: list = dataclasses.field(default_factory=list)

    ask = Slots.ask


class Window(Slots):
    def __init__(self):
        self.turns = collections.deque(maxlen=2)


class Tuples:
    def __init__(self):
        self.turns = ()
        self.words = set()

    def ask(self, text):
        self.words.add(text)
        self.turns = (*self.turns, text)
        return [*self.turns + (), len(self.words)]


class Shared:  # an object inside holds the same list
    def __init__(self):
        self.turns = []
        self.client = Client(self.turns)

    def ask(self, text):
        self.turns.append(text)
        return " ".join(self.client.seen)


class Client:
    def __init__(self, seen):
        self.seen = seen


class Takes:  # takes an attribute away
    def __init__(self):
        self.turns = ["x"]

    def ask(self, text):
        turns = self.turns
        del self.turns
        return turns


class Counts:  # what no golden of the first call names
    def __init__(self):
        self.calls = 0
        self.turns = []

    def ask(self, text):
        if self.turns:
            self.calls += 1
        self.turns.append(text)
        return self.calls
"""


@pytest.fixture
def keepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "old_chat.py").write_text(KEEPERS)
    (tmp_path / "new_chat.py").write_text(KEEPERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "old_chat", raising=False)
    import old_chat

    yield old_chat
    del sys.modules["old_chat"]


def asked(chat: Any, *texts: str) -> None:
    for text in texts:
        chat.ask(text)


def values_of_runs(tmp_path: Path, name: str, goldens: list[Case]) -> list[Any]:
    """Each golden's case run twice in one session, the last one first."""
    store = Store(tmp_path / "golden")
    with Session(store, {f"new_chat:{name}.ask": "chat"}, {"chat": {"self": f"new_chat:{name}"}}) as session:
        return [
            session.call(golden, f"new_chat:{name}.ask", {}, {}, frozenset()).value
            for golden in reversed(goldens)
            for _ in range(2)
        ]


@pytest.mark.parametrize("name", ["Dicts", "Late", "Slots", "Frozen", "Window", "Tuples", "Shared", "Takes", "Counts"])
def test_each_run_of_a_case_begins_with_the_object_of_its_golden(keepers: Any, name: str, tmp_path: Path) -> None:
    texts = ["a"] if name == "Takes" else ["a", "b", "c"]
    goldens = recorded(keepers, f"{name}.ask", lambda: asked(getattr(keepers, name)(), *texts), tmp_path)
    assert all("self.turns" in golden.left for golden in goldens)
    store = Store(tmp_path / "golden")
    for golden in goldens:
        store.write(golden)
    read = [store.read("chat", golden.case) for golden in goldens]
    runs = values_of_runs(tmp_path, name, read)
    assert runs == [golden.value for golden in reversed(read) for _ in range(2)]


def test_two_objects_of_a_class_are_told_apart(old: Any, tmp_path: Path) -> None:
    def run() -> None:
        old.Chat().ask("a")
        other = old.Chat()
        other.name = "poet"
        other.ask("b")

    first, second = recorded(old, "Chat.ask", run, tmp_path)
    assert "self.name" not in first.state
    assert second.state == {"self.history": [], "self.name": "poet"}


NO_RERUN = OLD.replace("history", "turns")


def test_what_the_moved_class_keeps_under_another_name_stays_from_call_to_call(old: Any, tmp_path: Path) -> None:
    """The calls of a site in their order are those of the script."""
    goldens = recorded(old, "Chat.ask", lambda: asked(old.Chat(), "a", "b"), tmp_path)
    (tmp_path / "new_chat.py").write_text(NO_RERUN)
    with Session(Store(tmp_path / "golden"), {"new_chat:Chat.ask": "chat"}, {"chat": {"self": "new_chat:Chat"}}) as run:
        first = [run.call(goldens[0], "new_chat:Chat.ask", {}, {}, frozenset()) for _ in range(2)]
        second = run.call(goldens[1], "new_chat:Chat.ask", {}, {}, frozenset())
    assert [one.value for one in (*first, second)] == [goldens[0].value, goldens[0].value, goldens[1].value]
    assert second.left == ()


def test_what_cannot_be_put_back_is_no_drift(old: Any, tmp_path: Path) -> None:
    _, second = recorded(old, "Chat.ask", lambda: asked(old.Chat(), "a", "b"), tmp_path)
    new = session_call(tmp_path, second, "Chat.ask", NO_RERUN)
    outcome = Judge(Store(tmp_path / "golden"), "hf", lambda *given: new).outcome(second, new)
    assert outcome.verdict == "ERROR"
    assert "the old code kept self.history from call to call" in str(outcome.cause and outcome.cause.sentence)
