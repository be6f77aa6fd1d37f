"""Sees what generation code does, from outside: wraps what transformers, vLLM and a vendored gen_engine are called by.

An `Observer` patches, at import time or at once where a module is loaded already:

    chat templates     apply_chat_template of tokenizers and processors
    tokenizers         __call__, encode, decode, batch_decode
    image processors   __call__
    transformers       generate, and the logits processors and stopping criteria that it resolves
    vLLM               LLM.generate, LLM.chat, and the parameters that reach LLMEngine.add_request
    gen_engine         generate_text_batch and generate_vlm_batch of any vendored copy, under any name
    call sites         functions that it was told of: their arguments and the value that they finally return

Each becomes an event; rows.py makes rows of them when a call of a site, or of the model, is over. The observed
code is never changed or broken by it: an exception of ours is noted in `failures` and swallowed, one of theirs passes.

    with Observer(sites=[Site("summaries", "pkg.old:summarize")], sink=found.append):
        pkg.old.summarize("photo.jpg")
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import functools
import importlib.util
import inspect
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from parity import golden
from parity.record import rows
from parity.record.loops import Loops, Reading

SEED = 0
PENDING = 64  # model calls outside any site that may wait for their texts to be decoded
TEMPORARY = Path(tempfile.gettempdir())
LARGEST_FILE = 32 << 20  # bytes of a file argument that a golden keeps

Sink = Callable[[golden.Case], None]

_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("parity_case", default=None)


@contextlib.contextmanager
def case(name: str) -> Iterator[None]:
    """Name the site calls inside for an active recorder; nothing otherwise."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


@dataclass(frozen=True, slots=True)
class Site:
    """A call site: its name among the goldens, and its function as "pkg.mod:func", "pkg.mod:Class.method" or
    "path/script.py:func". stem: what its cases are named after ("": the function), where it has been renamed."""

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
        """ "name=pkg.mod:func" or "pkg.mod:func", which is named after the function. Raises ValueError."""
        name, equals, function = text.rpartition("=")
        module, colon, attribute = function.rpartition(":")
        if not colon or not module or not attribute:
            raise ValueError(f"{text!r} is no call site: write pkg.mod:func, or name=pkg.mod:func")
        return cls(name if equals else attribute.replace(".", "-"), function)


@dataclass(slots=True)
class Call:
    """A call under observation: of a site, or of the model where no site is around it.   files: paths among its
    arguments -> what stands for them in its value.   branches: its threads, with how many events were there when each
    was begun.   parent: the call that a thread works for.   depths: what is running in the thread.   script_seed: that
    the script gave the process between the call before and this one."""

    site: str
    case: str
    function: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    events: list[rows.Event] = field(default_factory=list)
    loops: Loops = field(default_factory=Loops)
    branches: list[tuple[int, Call]] = field(default_factory=list)
    parent: Call | None = None
    depths: dict[str, int] = field(default_factory=dict)
    script_seed: int | None = None

    def told(self) -> list[rows.Event]:
        """Its events, and those of its threads where they were begun: in this order each time."""
        found, last = list[rows.Event](), 0
        for place, branch in self.branches:
            found += [*self.events[last:place], *branch.told()]
            last = place
        return found + self.events[last:]

    def so_far(self) -> list[rows.Event]:
        """Its events, behind those of the calls that it works for."""
        return (self.parent.so_far() if self.parent else []) + self.told()

    def asks(self) -> bool:
        """Whether a thread of it is in a model call."""
        return any(branch.asks() or branch.depths.get("asking") for _, branch in self.branches)


MODEL_CALLS = ("generate", "vllm", "engine", "forward")


def to_its_end(tap: Callable[..., Any]) -> Callable[..., Any]:
    """A tap on a model call, during which `Call.asks` says so: until what it gave is noted."""

    @functools.wraps(tap)
    def whole(observer: Observer, *args: Any, **kwargs: Any) -> Any:
        with observer.inside("asking"):
            return tap(observer, *args, **kwargs)

    return whole


# == Values as a golden keeps them ==


def keep(value: Any, blobs: golden.Store | None, *, paths: bool = False) -> Any:
    """A value as plain data; what is no data becomes {"$object": its type}. paths: strings that name a file become the
    file, so that the case can be replayed on another machine."""
    if isinstance(value, (str, os.PathLike)):
        return keep_path(os.fspath(value), blobs) if paths else str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): keep(entry, blobs, paths=paths) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [keep(entry, blobs, paths=paths) for entry in value]
    if isinstance(value, (set, frozenset)):
        return {"$set": [keep(entry, blobs, paths=paths) for entry in sorted(value, key=repr)]}
    if (fields := kept_fields(value, blobs, paths)) is not None:
        return fields
    if hasattr(value, "getexif") and blobs is not None:
        return {"$image": blobs.put_blob(golden.image_bytes(value), ".png")}
    if hasattr(value, "tolist") and getattr(value, "size", 0) is not None:  # numpy and torch
        return keep(value.detach().cpu().float().tolist() if hasattr(value, "detach") else value.tolist(), blobs)
    return object_named(value)


def kept_fields(value: Any, blobs: golden.Store | None, paths: bool) -> dict[str, Any] | None:
    """An object that is data: settings, a dataclass or, among arguments, a pydantic model. None for
    anything else."""
    if paths and (settings := kept_settings(value, blobs)) is not None:
        return settings
    if is_dataclass(value) and not isinstance(value, type):
        own = {name: getattr(value, name) for name in value.__dataclass_fields__}
    elif paths and golden.is_pydantic(type(value)):
        own = vars(value)
    else:
        return None
    fields = {name: keep(part, blobs, paths=paths) for name, part in own.items()}
    return {"$record": object_named(value)["$object"], "fields": fields} if paths else fields


def kept_settings(value: Any, blobs: golden.Store | None) -> dict[str, Any] | None:
    """A library's settings by the fields that differ from the default. None for anything else, and
    where one of the fields, such as a function, is no data."""
    if (found := golden.settings_in(value)) is None:
        return None
    name, own = found
    fields = {key: keep(entry, blobs, paths=True) for key, entry in own.items()}
    return None if golden.objects_in(fields) else {"$settings": name, "fields": fields}


def object_named(value: Any) -> dict[str, str]:
    """What a golden says of an object: its type alone."""
    return {"$object": f"{type(value).__module__}.{type(value).__qualname__}"}


def keep_path(text: str, blobs: golden.Store | None) -> Any:
    """A path to a file as its content; a path below the working directory as a relative one; other text as it is."""
    if not text or len(text) > 4096 or "\0" in text or "\n" in text:
        return text
    path = Path(text)
    with contextlib.suppress(OSError):  # text that no file system takes as a name
        if blobs is not None and path.is_file() and path.stat().st_size <= LARGEST_FILE:
            return {"$file": blobs.put_blob(path.read_bytes(), path.suffix), "name": path.name}
        if path.is_absolute() and path.is_dir() and path.is_relative_to(Path.cwd()):
            return path.relative_to(Path.cwd()).as_posix()
        if (
            path.is_absolute()
            and not path.exists()
            and path.is_relative_to(TEMPORARY)
            and len(path.relative_to(TEMPORARY).parts) > 1
        ):
            return {"$scratch": Path(*path.relative_to(TEMPORARY).parts[1:]).as_posix()}
    return text


def files_in(given: Any, kept: Any) -> Iterator[tuple[str, str]]:
    """(path, what stands for it) of each argument that was kept as a file, or as a place for one; also as it is written
    in full."""
    if isinstance(given, (str, os.PathLike)) and isinstance(kept, Mapping):
        text = os.fspath(given)
        name = f"{kept['$file'][:12]}/{kept['name']}" if "$file" in kept else Path(kept["$scratch"]).name
        yield from dict.fromkeys([(os.path.abspath(text), name), (text, name)])
    elif isinstance(given, Mapping) and isinstance(kept, Mapping):
        yield from (pair for key, entry in given.items() for pair in files_in(entry, kept.get(str(key))))
    elif isinstance(given, (list, tuple)) and isinstance(kept, list):
        yield from (pair for entry, part in zip(given, kept) for pair in files_in(entry, part))


def by_name(value: Any, files: Mapping[str, str]) -> Any:
    """A value in which files that were given are called by their content and name: a replay has them elsewhere. Within
    a longer text only a path with folders is one for sure."""
    if isinstance(value, str) and files:
        if value in files:
            return files[value]
        for path in sorted(files, key=len, reverse=True):
            value = value.replace(path, files[path]) if os.sep in path else value
        return value
    if isinstance(value, dict):
        return {by_name(key, files): by_name(entry, files) for key, entry in value.items()}
    return [by_name(entry, files) for entry in value] if isinstance(value, list) else value


def bound(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], without: str = "self"
) -> dict[str, Any]:
    """Arguments by name; *args and **kwargs under their own names. Without `self`."""
    signature = inspect.signature(function)
    flat: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if name == without:
            continue
        flat.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return flat


def seed_everything(seed: int, whose: int = rows.NOBODY) -> None:
    """The same draws in every run: of Python, and of numpy and torch where they are loaded."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(whose + seed)


# == Putting a tap on an attribute ==


class Tapped:
    """A callable that is no plain function, such as what lru_cache makes: all of it but the call is its own."""

    def __init__(self, original: Any, tap: Callable[..., Any]) -> None:
        self.__wrapped__, self._tap = original, tap
        self.__doc__ = original.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tap(self.__wrapped__, *args, **kwargs)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        binds = hasattr(type(self.__wrapped__), "__get__") and owner is not None
        return Tapped(self.__wrapped__.__get__(owner, kind), self._tap) if binds else self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def tapped(static: Any, tap: Callable[..., Any]) -> Any:
    """What stands for `static`, an attribute as it lies in its class or module: of the same kind, and calls
    tap(original, *args, **kwargs), where original takes what the caller gave."""
    if isinstance(static, property):
        getter = static.fget and wrapper_of(static.fget, tap)
        return property(getter, static.fset, static.fdel, static.__doc__)
    if isinstance(static, staticmethod):
        return staticmethod(tapped(static.__func__, tap))
    if isinstance(static, classmethod):
        inner = static.__func__

        @functools.wraps(inner)
        def of_class(kind: Any, *args: Any, **kwargs: Any) -> Any:
            return tap(inner.__get__(kind), *args, **kwargs)

        return classmethod(of_class)
    plain = inspect.isfunction(static) or inspect.isbuiltin(static) or inspect.ismethod(static)
    return wrapper_of(static, tap) if plain else Tapped(static, tap)


def wrapper_of(original: Callable[..., Any], tap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return tap(original, *args, **kwargs)

    return wrapper


# == The observer ==

ACTIVE: list[Observer] = []  # for scripts that are loaded by path, past the import system


class Observer:
    """Wraps, listens, and hands every finished call to `sink` as a golden.Case.

    store: where pictures and files of arguments are kept (None: they are not kept).   loose: what model calls outside
    any site are filed under (None: they are not recorded).   seed: what each site call begins with (None: leave it).
    """

    def __init__(
        self,
        *,
        sites: Sequence[Site] = (),
        sink: Sink,
        store: golden.Store | None = None,
        loose: str | None = None,
        seed: int | None = SEED,
        replay: Any = None,
    ) -> None:
        self.sites, self.sink, self.store, self.loose, self.seed = list(sites), sink, store, loose, seed
        self.sown = rows.NOBODY
        self.replay = replay  # a parity.judge.replay.Replay, which changes what an engine is asked
        self.starting: Callable[[Call], None] = lambda call: None  # told of every call of a site before it runs
        self.asked: Callable[[], None] = lambda: None  # told of every model call outside any site
        self.main_code: Callable[[str, Any], Any] = lambda name, loader: loader.get_code(name)
        self.failures: list[str] = []
        self.stepped = rows.Stepped()
        # Engines that the observed code loaded, as long as it holds them: one that it drops is gone from memory.
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.own_seconds = 0.0
        self.counts: dict[tuple[str, str], int] = {}
        self._patched: list[tuple[Any, str, Any]] = []
        self._seen: set[Any] = set()
        self._local = threading.local()
        self._lock = threading.RLock()
        self._finder = Finder(self)
        self.hooks = Hooks()

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
        if self.seed is not None:
            seed_everything(self.seed)

    def look_at_models(self) -> None:
        """Patch what code may call instead of a model that generates, of all that are loaded."""
        for model in text_models():
            self.patch(model, "forward", functools.partial(tap_forward, self))

    def sow(self, after: bool = False) -> int | None:
        """Begin a site's call with the seed. after: behind one, so that a seed given there is not
        taken for one that a script gave before. Returns the seed that a script had given since."""
        if self.seed is None:
            return None
        given: int | None = None
        if "torch" in sys.modules and not after:
            own = rows.process_seed()
            given = own["value"] if own["from"] == "process" else None
        if given is not None:
            self.sown = rows.SCRIPT
        seed_everything(self.seed, self.sown)
        return given

    def uninstall(self) -> None:
        self.flush()
        ACTIVE.remove(self)
        sys.meta_path.remove(self._finder)
        self.hooks.close()
        for owner, name, original in reversed(self._patched):
            if original is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._patched.clear()
        self._seen.clear()

    def look_at(self, module: ModuleType) -> None:
        """Patch what is of interest in a module that has just been loaded."""
        with self.guarded(f"patching {module.__name__}"):
            for path, kind in LIBRARY_TAPS.get(module.__name__, {}).items():
                self.patch(module, path, functools.partial(kind, self))
            if is_engine(module):
                for path, kind in ENGINE_TAPS.items():
                    self.patch(module, path, functools.partial(kind, self))
            for site in self.sites:
                if site.module == module.__name__:
                    self.patch(module, site.attribute, functools.partial(tap_site, self, site))

    def patch(self, module: ModuleType | type, path: str, tap: Callable[..., Any]) -> None:
        """Replace `path` ("Class.method" or "function") by a wrapper that calls tap(original, *args, **kwargs)."""
        owner: Any = module
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        static = inspect.getattr_static(owner, name, getattr(owner, name, None))
        if static is None or inspect.isclass(static):
            if any(site.attribute == path and site.module == module.__name__ for site in self.sites):
                why = f"has no {path}" if static is None else f"has a class {path}: name a method of it"
                self.failures.append(f"{module.__name__} {why}: this site is not recorded")
            return
        if (key := (id(owner), name)) in self._seen:
            return
        self._seen.add(key)
        self._patched.append((owner, name, vars(owner).get(name)))
        is_object = not inspect.isclass(owner) and not inspect.ismodule(owner)  # what it gives is bound already
        setattr(owner, name, wrapper_of(getattr(owner, name), tap) if is_object else tapped(static, tap))

    # -- what taps use --

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Our own work: timed, and never an exception to the code that we look at."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the observed run goes on, and the record says so
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.failures.append(
                f"{doing}: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            )
        finally:
            self.own_seconds += time.perf_counter() - started

    @contextlib.contextmanager
    def inside(self, kind: str) -> Iterator[bool]:
        """True for the outermost call of its kind in this thread: a library's calls of itself are not the caller's."""
        depths = self._local.__dict__.setdefault("depths", {})
        depths[kind] = depths.get(kind, 0) + 1
        try:
            yield depths[kind] == 1
        finally:
            depths[kind] -= 1

    def depth(self, kind: str) -> int:
        """How many calls of its kind are running in this thread, each inside the one before."""
        depths: dict[str, int] = self._local.__dict__.get("depths", {})
        return depths.get(kind, 0)

    def within(self, kind: str) -> bool:
        return self.depth(kind) > 0

    def note(self, event: rows.Event) -> None:
        """Add an event to the call that is running in this thread."""
        self.running().events.append(event)

    def note_all(self, events: Sequence[rows.Event]) -> None:
        for event in events:
            self.note(event)

    def in_site(self) -> bool:
        """Whether a call of a site is running in this thread."""
        return self._local.__dict__.get("call") is not None

    def running(self) -> Call:
        call = self._local.__dict__.get("call")
        if call is None:
            with self._lock:
                call = self._local.loose = self._local.__dict__.get("loose") or Call("", "")
        return call

    def next_name(self, site: str, function: str) -> str:
        with self._lock:
            stem = _name.get() or function.replace(".", "-")
            count = self.counts[site, stem] = self.counts.get((site, stem), 0) + 1
        if _name.get():
            return stem if count == 1 else f"{stem}-{count}"
        return f"{stem}-{count:03d}"

    def carried(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, for another thread: what it does there belongs to the call that is running in this one."""
        call = self._local.__dict__.get("call")
        if call is None or any(map(self.within, (*MODEL_CALLS, "loading"))):
            return work
        branch = Call(call.site, call.case, parent=call)
        call.branches.append((len(call.events), branch))

        def working(*args: Any, **kwargs: Any) -> Any:
            there = self._local.__dict__
            before, there["call"] = there.get("call"), branch
            branch.depths = there.setdefault("depths", {})
            try:
                return work(*args, **kwargs)
            finally:
                there["call"] = before

        return working

    def events_since(self, mark: int) -> list[rows.Event]:
        return self.running().events[mark:]

    # -- calls --

    def finish(self, call: Call, value: Any = None, raised: BaseException | None = None) -> None:
        """Hand a call over."""
        while call.asks():  # a thread that nobody waited for: what streams an answer may stop reading
            time.sleep(0.001)
        with self.guarded(f"recording {call.site}/{call.case}"), self._lock:
            said = None if raised is None else by_name(f"{type(raised).__name__}: {raised}", call.files)
            found = tuple(rows.with_script_seed(rows.rows_of(call.told(), self.store), call.script_seed))
            kept = by_name(keep(value, self.store), call.files)
            self.sink(golden.Case(call.site, call.case, call.function, call.arguments, found, kept, said))

    def model_called(self) -> None:
        """A model call is over. Outside any site it becomes a case of its own, once its texts are decoded."""
        if self._local.__dict__.get("call") is not None or self.loose is None:
            return
        self.asked()
        calls = sum(isinstance(event, rows.MODEL_EVENTS) for event in self.running().events)
        if calls > PENDING:
            self.flush(keep=PENDING // 2)

    def flush(self, keep: int = 0) -> None:
        """Turn model calls outside any site into cases, all but the last `keep`."""
        loose = self._local.__dict__.get("loose")
        if loose is None or self.loose is None:
            return
        with self.guarded("recording calls outside any site"):
            done, loose.events = rows.split_calls(loose.events, keep)
            for events in done:
                name = self.next_name(self.loose, "generate")
                made = tuple(rows.rows_of(events, self.store))
                self.sink(golden.Case(self.loose, name, rows=made, value=[row.get("text") for row in made]))


def tap_site(observer: Observer, site: Site, original: Any, *args: Any, **kwargs: Any) -> Any:
    """A call site: arguments before, value after. A site called by a site belongs to the outer one."""
    with observer.inside("site") as outermost:
        if not outermost:
            return original(*args, **kwargs)
        call = Call(site.name, observer.next_name(site.name, site.stem or site.attribute), site.function)
        with observer.guarded(f"arguments of {site.function}"):
            given = bound(original, args, kwargs, without="")
            call.arguments = {
                name: object_named(value) if name == "self" else keep(value, observer.store, paths=True)
                for name, value in given.items()
                if not (name == "cls" and inspect.isclass(value))
            }
            call.files = dict(files_in(given, call.arguments))
        call.script_seed = observer.sow()
        observer.starting(call)
        observer._local.call = call
        try:
            value = original(*args, **kwargs)
        except BaseException as error:
            observer.finish(call, raised=error)
            raise
        finally:
            observer._local.call = None
            observer.sow(after=True)
        if any(hasattr(value, name) for name in LATER):
            kind = type(value).__name__
            observer.failures.append(
                f"{site.function} gave a {kind}, whose work is done after the call; name a function that gives a value"
            )
        else:
            observer.finish(call, value)
        return value


LATER = ("__next__", "__anext__", "__await__")  # generators, iterators, coroutines


# == Taps on the libraries ==


def tap_thread(observer: Observer, original: Any, thread: threading.Thread) -> None:
    """A thread that is started."""
    if (carried := observer.carried(thread.run)) != thread.run:
        thread.run = carried  # type: ignore[method-assign]
    original(thread)


def tap_pool(observer: Observer, original: Any, pool: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
    """What a pool of threads is given to do; its threads may be older than the call, and live longer."""
    return original(pool, observer.carried(work), *args, **kwargs)


def tap_template(observer: Observer, original: Any, owner: Any, conversation: Any, *args: Any, **kwargs: Any) -> Any:
    mark = len(observer.running().events)
    with observer.inside("template") as outermost:
        result = original(owner, conversation, *args, **kwargs)
    if outermost:
        with observer.guarded("a chat template"):
            given = {**bound(original, (owner, conversation, *args), kwargs)}
            observer.note(rows.template_event(owner, conversation, given, result, observer.events_since(mark)))
    return result


def tap_tokens(observer: Observer, original: Any, tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    with observer.inside("tokens") as outermost:
        result = original(tokenizer, *args, **kwargs)
    text = args[0] if args else kwargs.get("text")
    if outermost and text is not None:
        with observer.guarded("a tokenizer call"):
            observer.note(rows.tokens_event(text, result))
    return result


def tap_decode(observer: Observer, original: Any, tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    with observer.inside("decode") as outermost:
        result = original(tokenizer, *args, **kwargs)
    if outermost and not observer.within("engine"):  # an engine decodes at every step, and says its text itself
        with observer.guarded("a decode call"):
            observer.note(rows.decode_event(tokenizer, bound(original, (tokenizer, *args), kwargs), result))
    return result


def tap_images(observer: Observer, original: Any, processor: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
    with observer.inside("images") as outermost:
        result = original(processor, images, *args, **kwargs)
    if outermost and not observer.within("loading"):  # vLLM warms itself up with pictures of its own
        with observer.guarded("an image processor call"):
            observer.note(rows.images_event(processor, images, kwargs, result))
    return result


@to_its_end
def tap_generate(observer: Observer, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    with observer.inside("generate") as outermost:
        if outermost:
            observer._local.resolved = {}
        nested = observer.within("engine")
        with look_at_forward(observer, model, stays=nested) if outermost else contextlib.nullcontext():
            result = original(model, *args, **kwargs)
    if outermost:
        with observer.guarded("a call of generate"):
            given = bound(original, (model, *args), kwargs)
            resolved, known = observer._local.resolved, rows.known_ids(observer.running().so_far())
            observer.note(rows.generate_event(model, given, resolved, result, nested=nested, known=known))
            observer.model_called()
    return result


@contextlib.contextmanager
def look_at_forward(
    observer: Observer, model: Any, *, stays: bool = False, all_of_them: bool = False
) -> Iterator[None]:
    """Note what reaches the model's forward in the first step of this thread. stays: the step is made after the block,
    by an engine that `generate` prepares the batch for.   all_of_them: each is a first step."""
    looks = list[Any]()

    def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not all_of_them:
            leave()
        with observer.guarded("a forward"):
            given = bound(module.forward, args, kwargs)
            event = rows.forward_event(model, {**given, **kwargs})
            if event is not None:
                observer.note(event)

    def leave() -> None:
        if look in looks:
            looks.remove(look)
            if stays:
                observer.hooks.let_go(model)

    with observer.guarded("watching the forward"):
        looks = observer.hooks.looks_at(model)
        looks.append(look)
    try:
        yield
    finally:
        if not stays:
            leave()
            observer.hooks.let_go(model)


class Hooks:
    """One hook on each model that somebody looks at, in whatever thread: torch adds and takes away no hook while
    another thread is in the model's forward."""

    def __init__(self) -> None:
        self._lock, self._local = threading.Lock(), threading.local()
        self._held: dict[int, tuple[Any, int]] = {}

    def looks_at(self, model: Any) -> list[Any]:
        """What is to be told of the model's forward in this thread; the model keeps its hook until `let_go`."""
        local = self._local
        with self._lock:
            handle, count = self._held.get(id(model), (None, 0))

            def hook(module: Any, args: Any, kwargs: Any = None) -> None:
                for look in [] if kwargs is None else list(looks_in(local).get(module, ())):
                    look(module, args, kwargs)

            handle = handle or model.register_forward_pre_hook(hook, with_kwargs=True)
            self._held[id(model)] = handle, count + 1
        return looks_in(local).setdefault(model, [])

    def let_go(self, model: Any) -> None:
        with self._lock:
            handle, count = self._held.pop(id(model), (None, 0))
            if count > 1:
                self._held[id(model)] = handle, count - 1
            elif handle is not None:
                handle.remove()

    def close(self) -> None:
        for handle, _ in self._held.values():
            handle.remove()
        self._held.clear()


def looks_in(local: threading.local) -> weakref.WeakKeyDictionary[Any, list[Any]]:
    found: weakref.WeakKeyDictionary[Any, list[Any]] = local.__dict__.setdefault("looks", weakref.WeakKeyDictionary())
    return found


def tap_model(observer: Observer, original: Any, *args: Any, **kwargs: Any) -> None:
    """Where a model is made, its class is known."""
    with observer.guarded("a model"):
        observer.look_at_models()
    original(*args, **kwargs)


def tap_resolved(name: str, observer: Observer, original: Any, *args: Any, **kwargs: Any) -> Any:
    """What generate makes of its arguments: the whole list of logits processors, or of stopping criteria."""
    result = original(*args, **kwargs)
    if observer.depth("generate") == 1:  # and not of a model that guesses for it
        with observer.guarded(f"resolved {name}"):
            given = bound(original, args, kwargs)
            observer._local.__dict__.setdefault("resolved", {}).update(
                {name: list(result), "config": given["generation_config"]}
            )
    return result


def tap_criteria(observer: Observer, original: Any, criteria: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
    """Where generate's criteria end each row: what follows is padding, also where the pad id is an end."""
    done = original(criteria, ids, *args, **kwargs)
    if observer.depth("generate") == 1:
        with observer.guarded("the criteria of generate"):
            ends = observer._local.__dict__.setdefault("resolved", {}).setdefault("ends", {})
            for row in (row for row, over in enumerate(done.tolist()) if over):
                ends.setdefault(row, ids.shape[1])
    return done


@to_its_end
def tap_vllm(observer: Observer, original: Any, llm: Any, *args: Any, **kwargs: Any) -> Any:
    """LLM.generate and LLM.chat; chat calls generate's inner parts, not generate."""
    mark = len(observer.running().events)
    with observer.inside("vllm") as outermost:
        outputs = original(llm, *args, **kwargs)
    if outermost:
        with observer.guarded("a call of vLLM"):
            given = bound(original, (llm, *args), kwargs)
            observer.note(rows.vllm_event(llm, given, observer.events_since(mark), outputs))
            observer.model_called()
    return outputs


def tap_add_request(observer: Observer, original: Any, *args: Any, **kwargs: Any) -> Any:
    with observer.guarded("a request to vLLM"):
        given = bound(original, args, kwargs)
        lora = given.get("lora_request")
        observer.note(rows.request_event(given.get("prompt"), given["params"], str(given["request_id"]), lora))
        if not observer.within("vllm") and not observer.within("engine"):
            observer.stepped.params[given["request_id"]] = given["params"]
    return original(*args, **kwargs)


def tap_step(observer: Observer, original: Any, engine: Any) -> Any:
    """Code that steps an LLMEngine by itself, as rollout workers do."""
    outputs = original(engine)
    if observer.stepped.params and not observer.within("vllm") and not observer.within("engine"):
        with observer.guarded("a step of vLLM"):
            for event in observer.stepped.take(engine, outputs):
                observer.note(event)
                observer.model_called()
    return outputs


@to_its_end
def tap_engine(observer: Observer, original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """generate_text_batch or generate_vlm_batch of a vendored gen_engine."""
    with observer.inside("engine") as outermost:
        if not outermost:
            with observer.inside("another engine"):
                return original(engine, *args, **kwargs)
        mark = len(observer.running().events)
        observer._local.prompts, observer._local.engine = {}, None
        run = functools.partial(observer.replay.call, original) if observer.replay else original
        results = run(engine, *args, **kwargs)
        with observer.guarded("a call of gen_engine"):
            given = bound(original, (engine, *args), kwargs)
            used = observer._local.__dict__.get("engine") or engine
            inner = observer.events_since(mark)
            observer.note(rows.engine_event(used, given, observer._local.prompts, inner, results))
            observer.model_called()
    return results


def tap_forward(observer: Observer, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """A model that is called by itself, to read what it makes of given ids."""
    with observer.inside("forward") as outermost:
        own = outermost and observer.in_site() and not any(map(observer.within, ("generate", "engine", "vllm")))
        if not own:
            return original(model, *args, **kwargs)
        loops, readings, given = observer.running().loops, list[Reading](), dict[str, Any]()
        with observer.guarded("a forward"):
            given = {**bound(model.forward, args, kwargs), **kwargs}
            events, readings = loops.begin(model, given, observer.running().so_far())
            observer.note_all(events)
        result = original(model, *args, **kwargs)
        with observer.guarded("what a forward gave"):
            loops.end(readings, given, result)
        return result


def tap_draw(observer: Observer, original: Any, *args: Any, **kwargs: Any) -> Any:
    """A draw by the code itself, which may have a generator of its own."""
    if observer.in_site() and not any(map(observer.within, ("generate", "engine", "vllm", "forward"))):
        with observer.guarded("a draw"):
            observer.running().loops.draws(kwargs.get("generator"))
    return original(*args, **kwargs)


@contextlib.contextmanager
def scored_prompts(backend: Any) -> Iterator[list[Any]]:
    """The prompts that an engine hands to its backend to score, as they come."""
    found, score = list[Any](), backend.score

    def seen(pairs: Any, *args: Any, **how: Any) -> Any:
        found.extend(prompt for prompt, _ in pairs)
        return score(pairs, *args, **how)

    backend.score = seen
    try:
        yield found
    finally:
        vars(backend).pop("score", None)  # of two calls at once, the first to end takes it away


@to_its_end
def tap_score(observer: Observer, original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """score_batch of a vendored gen_engine."""
    with observer.inside("engine") as outermost:
        if not outermost or not observer.in_site():
            return original(engine, *args, **kwargs)
        used = observer.replay.engine(engine) if observer.replay else engine
        mark, watching = len(observer.running().events), look_at_forward(observer, used.model, all_of_them=True)
        with contextlib.ExitStack() as stack:
            if hasattr(used.model, "register_forward_pre_hook"):
                stack.enter_context(watching)
            prompts = stack.enter_context(scored_prompts(used.backend))
            score = functools.partial(observer.replay.score, original) if observer.replay else original
            scores = score(used, *args, **kwargs)
        with observer.guarded("scores of gen_engine"):
            inner = observer.events_since(mark)
            events = [event for event in inner if isinstance(event, rows.Forward)]
            read = [ids for event in events for ids, _ in event.rows]
            said = [([*score.prompt_token_ids, *score.token_ids], score.token_ids) for score in scores]
            ids = [rows.seen_ids(whole, response, read) for whole, response in said]
            pictures = rows.scored_pictures(used, prompts, inner, ids)
            adapters = rows.adapters_received(used.model, inner)
            told = [rows.adapter_told(used, prompt, adapters) for prompt in prompts]
            told += [{} for _ in scores[len(told) :]]
            told = [{**one, "response": len(score.token_ids)} for one, score in zip(told, scores)]
            observer.note(rows.scored_event(used.model, ids, used.checkpoint.placeholder_id, pictures, told))
    return scores


def tap_prompt(observer: Observer, original: Any, engine: Any, index: int, given: Any, *rest: Any) -> Any:
    """Where an engine turns request `index` into ids and pictures; one that a plugin asks has its own."""
    if observer.within("another engine"):
        return original(engine, index, given, *rest)
    mark = len(observer.running().events)
    prompt = original(engine, index, given, *rest)
    if observer.replay is not None:
        prompt = observer.replay.prompt(engine, prompt)
    with observer.guarded("a prompt of gen_engine"):
        observer._local.engine = engine
        place = index if observer.replay is None else observer.replay.place(index)
        observer._local.__dict__.setdefault("prompts", {})[place] = (given, prompt, observer.events_since(mark))
    return prompt


def tap_open(observer: Observer, original: Any, engine: Any, config: Any, *args: Any, **kwargs: Any) -> None:
    """Where an engine is loaded: a replay on another backend need not load the first one too."""
    if observer.replay is not None and not observer.within("engine"):
        config = observer.replay.opening(config)
        module = sys.modules[type(config).__module__]
        if refused := module.refusal_of(module.Asked(config)):  # `load` asked this of the other backend
            raise refused
    tap_loading(observer, original, engine, config, *args, **kwargs)
    if not observer.within("engine"):
        observer.opened.add(engine)


def tap_loading(observer: Observer, original: Any, *args: Any, **kwargs: Any) -> None:
    with observer.inside("loading"):
        original(*args, **kwargs)


LIBRARY_TAPS: dict[str, dict[str, Callable[..., Any]]] = {
    "threading": {"Thread.start": tap_thread},
    "concurrent.futures.thread": {"ThreadPoolExecutor.submit": tap_pool},
    "transformers.tokenization_utils_base": {
        "PreTrainedTokenizerBase.apply_chat_template": tap_template,
        "PreTrainedTokenizerBase.__call__": tap_tokens,
        "PreTrainedTokenizerBase.encode": tap_tokens,
        "PreTrainedTokenizerBase.decode": tap_decode,
        "PreTrainedTokenizerBase.batch_decode": tap_decode,
    },
    "transformers.processing_utils": {"ProcessorMixin.apply_chat_template": tap_template},
    "transformers.image_processing_utils": {"BaseImageProcessor.__call__": tap_images},
    "transformers.image_processing_utils_fast": {"BaseImageProcessorFast.__call__": tap_images},
    "transformers.modeling_utils": {"PreTrainedModel.__init__": tap_model, "PreTrainedModel.__call__": tap_forward},
    "transformers.generation.utils": {
        "GenerationMixin.generate": tap_generate,
        "GenerationMixin._get_logits_processor": functools.partial(tap_resolved, "processors"),
        "GenerationMixin._get_stopping_criteria": functools.partial(tap_resolved, "criteria"),
    },
    "transformers.generation.stopping_criteria": {"StoppingCriteriaList.__call__": tap_criteria},
    "torch": {"multinomial": tap_draw, "Tensor.multinomial": tap_draw},
    "vllm.entrypoints.llm": {"LLM.__init__": tap_loading, "LLM.generate": tap_vllm, "LLM.chat": tap_vllm},
    "vllm.v1.engine.llm_engine": {"LLMEngine.add_request": tap_add_request, "LLMEngine.step": tap_step},
}

ENGINE_TAPS: dict[str, Callable[..., Any]] = {
    "GenerationEngine.generate_text_batch": tap_engine,
    "GenerationEngine.generate_vlm_batch": tap_engine,
    "GenerationEngine.score_batch": tap_score,
    "generate_text_batch": tap_engine,  # the same functions under the module's name
    "generate_vlm_batch": tap_engine,
    "score_batch": tap_score,
    "GenerationEngine._prompt": tap_prompt,
    "GenerationEngine.__init__": tap_open,
}


def text_models() -> list[type]:
    """Classes of models that generate, as far as they are loaded."""
    mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    found = [] if mixin is None else [mixin]
    for kind in found:
        found += [one for one in kind.__subclasses__() if one not in found]
    return [kind for kind in found if "forward" in vars(kind)]


def is_engine(module: ModuleType) -> bool:
    """Whether a module is a copy of gen_engine.py, whatever it is called."""
    inside = vars(module)
    if "GenerationEngine" not in inside or "truncate_at_stops" not in inside:
        return False  # of thousands that are looked at, nearly all
    return getattr(inside["GenerationEngine"], "__module__", None) == module.__name__


# == Modules that are loaded later ==


class Finder:
    """On sys.meta_path: lets the others find a module, and looks at it when it has been executed."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._libraries = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
        self._standard = str(Path(os.__file__).parent)

    def wanted(self, name: str, origin: str | None) -> bool:
        """The libraries' modules that we tap, sites, and everything that belongs to neither library nor Python."""
        if name in LIBRARY_TAPS or any(site.module == name for site in self.observer.sites):
            return True
        if origin is None or not origin.endswith(".py") or origin.startswith(self._standard):
            return False
        return not any(part in origin for part in self._libraries)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or isinstance(finder, Finder) or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None and hasattr(spec.loader, "exec_module") and self.wanted(name, spec.origin):
            spec.loader = LookingLoader(spec.loader, self.observer)
        return spec


class LookingLoader:
    """A loader that shows each module to the observer once it is executed; everything else is the loader's own."""

    def __init__(self, loader: Any, observer: Observer) -> None:
        self._loader, self._observer = loader, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._observer.look_at(module)

    def get_code(self, name: str) -> Any:
        """For `python -m name`, which executes it as __main__ and does not come by `exec_module`."""
        return self._observer.main_code(name, self._loader)


def load_function(function: str) -> Callable[..., Any]:
    """The function that "pkg.mod:func" or "path/script.py:func" names. Raises LookupError where there is none."""
    site = Site.parse(function)
    by_path = site.module.endswith(".py")
    module = load_file(Path(site.module)) if by_path else importlib.import_module(site.module)
    found: Any = module
    for part in site.attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise LookupError(f"{function}: {site.module} has no function {site.attribute}")
    return found  # type: ignore[no-any-return]


def load_file(path: Path) -> ModuleType:
    """A script as a module named after its path, so that its `if __name__ == "__main__"` part does not run."""
    name = str(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise LookupError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script
    spec.loader.exec_module(module)
    for observer in ACTIVE:
        observer.look_at(module)
    return module
