"""Sees what generation code does, from outside, and hands each call over as a case.

An `Observer` taps what transformers, vLLM and a vendored gen_engine are called by (record/taps),
and the call sites that it was told of: at import time, or at once where a module is loaded already.
Each tapped call becomes an event; assemble.py makes rows of them when a call of a site, or of the
model, is over. The observed code is never changed or broken by it: an exception of the recorder is
noted in `failures` and swallowed, one of the observed code passes.

    with Observer(sites=[Site("summaries", "pkg.old:summarize")], sink=found.append):
        pkg.old.summarize("photo.jpg")
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from parity.goldens import store as golden
from parity.record import assemble
from parity.record.calls import (
    Call,
    Listener,
    ListenerTap,
    Site,
    case,
    load_function,
    next_case_name,
    tap_pool,
    tap_thread,
)
from parity.record.events import Event, is_model_call
from parity.record.patching import (
    ACTIVE,
    Finder,
    Invocation,
    NotTappable,
    Patches,
    Tapped,
    bind_arguments,
)
from parity.record.rows import string_lists
from parity.record.seeds import NOBODY, SCRIPT, SEED, process_seed, seed_everything
from parity.record.state import RETURNED, Held, Shape
from parity.record.taps import (
    decisions,
    gen_engine,
    images,
    loops,
    streaming,
    text,
    transformers,
    vllm,
)
from parity.record.taps.gen_engine import is_copy, is_engine
from parity.record.values import Keeper, object_name, text_by_name

__all__ = [  # what stands above the recorder asks for these names here
    "LIBRARY_TAPS", "SEED", "Call", "Finder", "Observer", "Site", "Tapped", "case",
    "is_engine", "load_function", "seed_everything",
]  # fmt: skip

PENDING = 64  # model calls outside any site that may wait for their texts to be decoded
LATER = ("__next__", "__anext__", "__await__")  # generators, iterators, coroutines

Sink = Callable[[golden.Case], None]
TapTable = Mapping[str, Mapping[str, ListenerTap]]  # module -> path in it -> its tap


THREADS: TapTable = {
    "threading": {"Thread.start": tap_thread},
    "concurrent.futures.thread": {"ThreadPoolExecutor.submit": tap_pool},
}
TABLES = (THREADS, text.TAPS, images.TAPS, transformers.TAPS, loops.TAPS, vllm.TAPS)
# Modules that are known by what they define, whatever they are called.
COPIES = (
    (gen_engine.ENGINE, gen_engine.ENGINE_TAPS),
    (streaming.STREAMING, streaming.STREAMING_TAPS),
    (decisions.DECISIONS, decisions.DECISIONS_TAPS),
)
LIBRARY_TAPS = dict[str, Mapping[str, ListenerTap]]()
for table in TABLES:
    LIBRARY_TAPS.update(table)


def text_models() -> list[type]:
    """Classes of models that generate, as far as they are loaded."""
    mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    found = [] if mixin is None else [mixin]
    for kind in found:
        found += [one for one in kind.__subclasses__() if one not in found]
    return [kind for kind in found if "forward" in vars(kind)]


class Observer(Listener):
    """Taps, listens, and hands every finished call to `sink`.

    store: where images and files of arguments are kept (None: they are not).   loose: what model
    calls outside any site are filed under (None: they are not recorded).   seed: what each call of
    a site begins with (None: leave it).
    """

    def __init__(
        self,
        *,
        sink: Sink,
        sites: Sequence[Site] = (),
        store: golden.Store | None = None,
        loose: str | None = None,
        seed: int | None = SEED,
    ) -> None:
        super().__init__(store)
        self.sites = list(sites)
        self.sink = sink
        self.loose = loose
        self.seed = seed
        self.seed_owner = NOBODY
        # Called before every call of a site, and after every model call outside any site.
        self.starting: Callable[[Call], None] = lambda call: None
        self.asked: Callable[[], None] = lambda: None
        self.main_code: Callable[[str, Any], CodeType | None] = lambda name, loader: (
            loader.get_code(name)
        )
        # Places that a call is asked for (None: those that it changes).
        self.left: Sequence[str] | None = None
        self.lent = frozenset[str]()  # places of the object that a replay put there
        self.first_seen = dict[type, dict[str, Shape | None]]()
        # (site, place, type) of what calls change and no golden holds.
        self.not_held = set[tuple[str, str, str]]()
        self.patches = Patches()
        self._counts = dict[tuple[str, str], int]()
        self._finder = Finder(self)

    # -- life --

    def __enter__(self) -> Observer:
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.uninstall()

    def install(self) -> None:
        ACTIVE.append(self)
        sys.meta_path.insert(0, self._finder)
        for name, module in list(sys.modules.items()):
            if module is not None and self._finder.wanted(name, getattr(module, "__file__", None)):
                self.look_at(module)
        self.look_at_models()
        self.reseed()

    def uninstall(self) -> None:
        self.flush()
        ACTIVE.remove(self)
        sys.meta_path.remove(self._finder)
        self.patches.undo()

    @functools.cached_property
    def module_names(self) -> set[str]:
        """Modules that hold what is tapped."""
        return {*LIBRARY_TAPS, *(site.module for site in self.sites)}

    def look_at(self, module: ModuleType) -> None:
        """Tap what is of interest in a module that has just been loaded."""
        name = module.__name__
        with self.guarded(f"patching {name}"):
            taps = dict(LIBRARY_TAPS.get(name, {}))
            for names, own_taps in COPIES:
                if is_copy(module, *names):
                    taps |= own_taps
            for path, tap in taps.items():
                self.add_tap(module, path, tap)
            for site in self.sites:
                if site.module == name:
                    self.add_site(module, site)

    def look_at_models(self) -> None:
        """Tap what code may call instead of a model that generates, of all that are loaded."""
        for model in text_models():
            self.add_tap(model, "forward", loops.tap_forward)

    def add_tap(self, owner: ModuleType | type, path: str, tap: ListenerTap) -> None:
        """Tap `path`, if this release has it."""
        try:
            self.patches.add(owner, path, functools.partial(tap, self))
        except NotTappable:
            return

    def add_site(self, module: ModuleType, site: Site) -> None:
        try:
            self.patches.add(module, site.attribute, functools.partial(tap_site, site, self))
        except NotTappable as error:
            self.failures.append(f"{module.__name__} {error}: this site is not recorded")

    def sow(self) -> int | None:
        """Begin a site's call with the seed; returns the one that a script set since the last."""
        given: int | None = None
        if self.seed is not None and "torch" in sys.modules:
            current = process_seed()
            if current["from"] == "process":
                given = current["value"]
                self.seed_owner = SCRIPT
        self.reseed()
        return given

    def reseed(self) -> None:
        """Also behind a call, so that a seed set in it is not taken for the script's."""
        if self.seed is not None:
            seed_everything(self.seed, self.seed_owner)

    # -- calls --

    def next_name(self, site: str, stem: str) -> str:
        with self.lock:
            return next_case_name(stem, self._counts, site)

    def finish(self, call: Call, value: Any = None, raised: BaseException | None = None) -> None:
        """Hand a call over, if all of it was seen: a golden without a part of it would let what it
        does not hold pass."""
        while call.is_asking():  # a thread that nobody waited for: a streamer may stop reading
            time.sleep(0.001)
        if len(self.failures) > call.failures_before:
            self.failures.append(f"{call.site}/{call.case} is no golden: not all of it was seen")
            return
        with self.guarded(f"recording {call.site}/{call.case}"), self.lock:
            error = None
            if raised is not None:
                error = text_by_name(f"{type(raised).__name__}: {raised}", call.files)
            rows = assemble.rows_of(call.all_events(), self.store)
            if call.unseen and not rows:
                self.failures.append(unseen_text(call))
                return
            keep = Keeper(self.store, files=call.files).keep
            if error is None:
                kept, left, state = self.with_state(call, value, keep)
            else:
                kept, left, state = None, (), {}
            self.sink(
                golden.Case(
                    call.site,
                    call.case,
                    call.function,
                    call.arguments,
                    tuple(assemble.with_script_seed(rows, call.script_seed)),
                    kept,
                    error,
                    defaults=call.defaults,
                    state=state,
                    left=left,
                )
            )

    def with_state(
        self, call: Call, value: Any, keep: Callable[[Any], Any]
    ) -> tuple[Any, tuple[str, ...], dict[str, Any]]:
        """(the value with what the call left, the places of it, what it found) of state.py."""
        if call.held is None:
            return keep(value), (), {}
        self.not_held.update((call.site, *found) for found in call.held.not_held().items())
        changed = call.held.changed(value)
        wanted = changed if self.left is None else self.left
        left = {place: keep(now) for place, now in call.held.left(wanted).items()}
        whole = {RETURNED: keep(value), **left} if left else keep(value)
        return whole, tuple(left), call.held.state(changed)

    def note_model_call(self, event: Event) -> None:
        """Outside any site it becomes a case of its own, once its texts are decoded."""
        self.note(event)
        if self.in_site() or self.loose is None:
            return
        self.asked()
        if sum(map(is_model_call, self.running().events)) > PENDING:
            self.flush(keep=PENDING // 2)

    def flush(self, keep: int = 0) -> None:
        """Turn model calls outside any site into cases, all but the last `keep`."""
        loose = self.thread.loose
        if loose is None or self.loose is None:
            return
        with self.guarded("recording calls outside any site"):
            done, loose.events = assemble.split_calls(loose.events, keep)
            for events in done:
                name = self.next_name(self.loose, "generate")
                rows = tuple(assemble.rows_of(events, self.store))
                texts = [row.get("text") for row in rows]
                self.sink(golden.Case(self.loose, name, rows=rows, value=texts))


def tap_site(site: Site, observer: Observer, invocation: Invocation) -> Any:
    """A call site: arguments before, value after. A site called by a site belongs to that one."""
    with observer.inside("site") as outermost:
        if not outermost:
            return invocation.run()
        name = observer.next_name(site.name, site.stem or site.attribute)
        call = Call(site.name, name, site.function)
        call.failures_before = len(observer.failures)
        with observer.guarded(f"arguments of {site.function}"):
            keep_arguments(call, invocation, observer)
        call.script_seed = observer.sow()
        observer.starting(call)
        observer.thread.call = call
        with observer.lock:
            observer.under_way.append(call)
        try:
            value = invocation.run()
        except BaseException as error:
            observer.finish(call, raised=error)
            raise
        finally:
            call.is_over = True
            with observer.lock:
                observer.under_way.remove(call)
            observer.thread.call = None
            observer.reseed()
        if any(hasattr(value, name) for name in LATER):
            observer.failures.append(
                f"{site.function} gave a {type(value).__name__}, whose work is done after the "
                "call; name a function that gives a value"
            )
        else:
            observer.finish(call, value)
        return value


def unseen_text(call: Call) -> str:
    """Why a call is no golden: its value would be all that is compared."""
    return (
        f"{call.site}/{call.case} is no golden: while it ran, a model was called in a thread that"
        " is older than the call and may outlive it, so that nothing of it was seen. Start the"
        " thread in the call, give work to a ThreadPoolExecutor, or call the model in the"
        " function's own thread"
    )


def keep_arguments(call: Call, invocation: Invocation, observer: Observer) -> None:
    keeper = Keeper(observer.store, paths=True)
    given = bind_arguments(invocation.original, invocation.args, invocation.kwargs)
    for name, value in given.items():
        if name == "self":
            call.arguments[name] = object_name(value)
        elif name != "cls" or not inspect.isclass(value):
            call.arguments[name] = keeper.keep(value)
    call.held = Held.of(given, observer.first_seen, keeper.keep, observer.lent)
    call.defaults = stop_defaults(invocation.original, given)
    call.files = keeper.files


def stop_defaults(function: Callable[..., Any], given: Container[str]) -> dict[str, Any]:
    """Stop strings that a function has for parameters that were not given."""
    parameters = inspect.signature(function).parameters
    own = {name: parameters[name].default for name in parameters if name not in given}
    return {name: value for name, value in own.items() if any(string_lists({name: value}))}
