"""The calls under observation: what taps note in a thread, and which call it belongs to."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from parity.goldens.store import Store
from parity.record.events import Event, Events
from parity.record.patching import Invocation, load_file
from parity.record.state import Held

T = TypeVar("T")

_case_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("parity_case", default=None)


@contextlib.contextmanager
def case(name: str) -> Iterator[None]:
    """Name the calls of sites inside, for an active recorder; nothing otherwise."""
    token = _case_name.set(name)
    try:
        yield
    finally:
        _case_name.reset(token)


@dataclass(frozen=True, slots=True)
class Site:
    """A call site: its name among the goldens, and its function.

    function: "pkg.mod:func", "pkg.mod:Class.method" or "path/script.py:func".   stem: what its
    cases are named after, where the function was renamed ("": the function).
    """

    name: str
    function: str
    stem: str = ""

    @property
    def module(self) -> str:
        return self.function.rpartition(":")[0]

    @property
    def attribute(self) -> str:
        return self.function.rpartition(":")[2]

    @classmethod
    def parse(cls, text: str) -> Site:
        """ "name=pkg.mod:func", or "pkg.mod:func", named after the function. Raises ValueError."""
        name, equals, function = text.rpartition("=")
        module, _, attribute = function.rpartition(":")
        if not module or not attribute:
            raise ValueError(f"{text!r} is no call site: write pkg.mod:func, or name=pkg.mod:func")
        return cls(name if equals else attribute.replace(".", "-"), function)


def load_function(function: str) -> Callable[..., Any]:
    """The function of "pkg.mod:func" or "path/script.py:func". Raises LookupError."""
    site = Site.parse(function)
    name = site.module
    is_script = name.endswith(".py")
    found: Any = load_file(Path(name)) if is_script else importlib.import_module(name)
    for part in site.attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise LookupError(f"{function}: {name} has no function {site.attribute}")
    return found  # type: ignore[no-any-return]


def words_and_place(error: BaseException) -> str:
    """An error with where it was raised, for those who mend the code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


class Memory:
    """What taps keep for as long as a call, a thread or a listener lives: one object of a class."""

    def __init__(self) -> None:
        self._kept = dict[type, Any]()

    def of(self, kind: type[T]) -> T:
        if kind not in self._kept:
            return self.renew(kind)
        kept: T = self._kept[kind]
        return kept

    def renew(self, kind: type[T]) -> T:
        self._kept[kind] = fresh = kind()
        return fresh


@dataclass(slots=True)
class Call:
    """A call of a site; or of a model, where no site is around it.

    held: what it finds in its object and arguments. files: path among its arguments -> what
    stands for it in its value. branches: its threads, each with the number of events before it.
    parent: the call that a thread works for. depths: what is running in its thread.
    script_seed: one that the script set since the call before. failures_before: of the
    recorder, when it began. is_over: it has ended; a thread that it started may go on. unseen:
    model calls that began meanwhile in threads of no call.
    """

    site: str
    case: str
    function: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    held: Held | None = None
    files: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    branches: list[tuple[int, Call]] = field(default_factory=list)
    parent: Call | None = None
    depths: dict[str, int] = field(default_factory=dict)
    script_seed: int | None = None
    failures_before: int = 0
    is_over: bool = False
    unseen: int = 0

    @property
    def root(self) -> Call:
        """The call of a site that a thread's call works for."""
        return self if self.parent is None else self.parent.root

    def all_events(self) -> list[Event]:
        """Its events, and those of each thread where it was started: the same order each time."""
        found = list[Event]()
        last = 0
        for index, branch in self.branches:
            found += self.events[last:index]
            found += branch.all_events()
            last = index
        return found + self.events[last:]

    def events_so_far(self) -> list[Event]:
        """Its events, behind those of the calls that it works for."""
        before = self.parent.events_so_far() if self.parent else []
        return before + self.all_events()

    def is_asking(self) -> bool:
        """Whether a thread of it is in a model call."""
        return any(branch.is_asking() or branch.depths.get(ASKING) for _, branch in self.branches)


MODEL_CALLS = ("generate", "vllm", "engine", "forward")
LOADING = "loading"
ASKING = "asking"


class ThreadState(threading.local):
    """What one thread does. call: of a site.   loose: what belongs to none."""

    call: Call | None = None
    loose: Call | None = None

    def __init__(self) -> None:
        self.depths = dict[str, int]()
        self.memory = Memory()


class Listener:
    """What taps see of an observer: they note events, and ask what is running in their thread."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        # A parity.judge.replay.Replay, which changes what an engine is asked.
        self.replay: Any = None
        self.failures = list[str]()
        self.own_seconds = 0.0
        # Engines that the observed code loaded, as long as it holds them.
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.memory = Memory()
        self.thread = ThreadState()
        self.under_way = list[Call]()  # calls of sites, in any thread
        self.lock = threading.RLock()

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Work of the recorder: timed, and never an exception to the code that it observes."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on, the record says so
            self.failures.append(f"{doing}: {words_and_place(error)}")
        finally:
            self.own_seconds += time.perf_counter() - started

    @contextlib.contextmanager
    def inside(self, kind: str) -> Iterator[bool]:
        """True for the outermost call of its kind in this thread: a library calls itself, too."""
        depths = self.thread.depths
        depths[kind] = depths.get(kind, 0) + 1
        try:
            yield depths[kind] == 1
        finally:
            depths[kind] -= 1

    def depth(self, kind: str) -> int:
        """How many calls of its kind are running in this thread, each inside the one before."""
        return self.thread.depths.get(kind, 0)

    def within(self, *kinds: str) -> bool:
        return any(self.depth(kind) for kind in kinds)

    def in_site(self) -> bool:
        """Whether a call of a site is running in this thread."""
        return self.thread.call is not None

    def count_unseen(self) -> None:
        """A model call begins; where its thread works for no call that is under way, nobody knows
        which of these it is for."""
        call = self.thread.call
        if self.within(*MODEL_CALLS) or (call is not None and not call.root.is_over):
            return
        with self.lock:
            for other in self.under_way:
                other.unseen += 1

    def running(self) -> Call:
        """The call that events of this thread belong to."""
        if self.thread.call is not None:
            return self.thread.call
        if self.thread.loose is None:
            self.thread.loose = Call("", "")
        return self.thread.loose

    def note(self, *events: Event) -> None:
        self.running().events += events

    def mark(self) -> int:
        """A place among the events, for `events_since`."""
        return len(self.running().events)

    def events_since(self, mark: int) -> list[Event]:
        return self.running().events[mark:]

    def note_model_call(self, event: Event) -> None:
        """A model call is over."""
        raise NotImplementedError

    def look_at_models(self) -> None:
        """Tap the forward of all classes of models that are loaded."""
        raise NotImplementedError

    def carried(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, for another thread: there it belongs to the call that is running in this one."""
        call = self.thread.call
        if call is None or self.within(*MODEL_CALLS, LOADING):
            return work
        branch = Call(call.site, call.case, parent=call)
        call.branches.append((len(call.events), branch))

        def working(*args: Any, **kwargs: Any) -> Any:
            thread = self.thread
            before = thread.call
            thread.call = branch
            branch.depths = thread.depths
            try:
                return work(*args, **kwargs)
            finally:
                thread.call = before

        return working


# == Taps ==

ListenerTap = Callable[[Listener, Invocation], Any]
EventReader = Callable[[Invocation, Any, Events], Event | None]


def event_tap(kind: str, doing: str, reader: EventReader, unless: str = "") -> ListenerTap:
    """A tap that notes at most one event of the outermost call.

    reader: of the invocation, its result and the events meanwhile.   unless: not within this kind.
    """

    def tap(listener: Listener, call: Invocation) -> Any:
        mark = listener.mark()
        with listener.inside(kind) as outermost:
            result = call.run()
        if outermost and not listener.within(unless):
            with listener.guarded(doing):
                event = reader(call, result, listener.events_since(mark))
                if event is not None:
                    listener.note(event)
        return result

    return tap


def model_tap(tap: ListenerTap) -> ListenerTap:
    """A tap on a model call: `Call.is_asking` says so until what it gave is noted."""

    @functools.wraps(tap)
    def whole(listener: Listener, call: Invocation) -> Any:
        listener.count_unseen()
        with listener.inside(ASKING):
            return tap(listener, call)

    return whole


def tap_loading(listener: Listener, call: Invocation) -> None:
    with listener.inside(LOADING):
        call.run()


def tap_thread(listener: Listener, call: Invocation) -> None:
    """A thread that is started."""
    thread = call.owner
    carried = listener.carried(thread.run)
    if carried != thread.run:
        thread.run = carried
    call.run()


def tap_pool(listener: Listener, call: Invocation) -> Any:
    """Work for a pool of threads, which may be older than the call, and live longer."""
    pool, work, *args = call.args
    return call.original(pool, listener.carried(work), *args, **call.kwargs)


def next_case_name(stem: str, counts: dict[tuple[str, str], int], site: str) -> str:
    """The next name of a case: that of `case`, or the stem with a number."""
    chosen = _case_name.get()
    stem = chosen or stem.replace(".", "-")
    count = counts.get((site, stem), 0) + 1
    counts[site, stem] = count
    if not chosen:
        return f"{stem}-{count:03d}"
    return stem if count == 1 else f"{stem}-{count}"
