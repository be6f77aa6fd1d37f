"""Calls moved functions on what a golden holds, observed as the old code was, in a process of its
own."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import itertools
import sys
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from parity.environment.companion_loader import Lender
from parity.goldens.store import Case, GoldenError, SettingsError, Store, objects_in
from parity.judge.faults import HarnessFault
from parity.judge.replay import Engines, Replay, readable
from parity.judge.sites import NotThere, raise_not_there, steps_of_absent
from parity.record import observe
from parity.record.calls import words_and_place
from parity.record.changing import as_recorded
from parity.record.state import AsMade, ModuleState

Run = Callable[
    [Case, Mapping[str, Any], frozenset[str]], Case | None
]  # golden, load settings, parts put back -> new


NOT_RUN = {
    "LoadError",
    "BackendMissing",
}  # of an engine: says something of this machine, nothing of the moved code


def own_modules() -> set[str]:
    """Loaded modules of the code under test: neither libraries, nor Python's, nor the harness, nor
    copies of gen_engine with the packages that they are in."""
    wanted = observe.Finder(observe.Observer(sink=lambda case: None)).wanted
    found = set()
    libraries = set(observe.LIBRARY_TAPS)
    for name, module in list(sys.modules.items()):
        if module is None:
            continue
        if wanted(name, getattr(module, "__file__", None)):
            found.add(name)
        if observe.is_engine(module):
            packages = itertools.accumulate(name.split("."), "{}.{}".format)  # a, a.b, a.b.c
            libraries.update(packages)
    return {name for name in found - libraries if not name.startswith(HARNESS)}


# The rooms of the product; the call sites under parity/proof are code under test, like anybody's.
ROOMS = {path.stem for path in Path(__file__).parents[1].glob("[!_]*")} - {"proof", "tests"}
HARNESS = ("__m", *(f"parity.{name}" for name in sorted(ROOMS)))

NOT_SEEN = "its call was not seen (was it wrapped by another decorator?)"

# Engines that may be left open: on vLLM each takes a part of the memory for itself.
MOST_ENGINES = 6
# Objects that a garbage collection may go through: each engine makes one at its end, vLLM's eight
# more. Measured on this repository's goldens: a collection of so many takes 0.1 s.
MOST_OBJECTS = 150_000


class Session:
    """Moved functions, called under observation on one backend.

    Code under test is loaded anew for it and forgotten at the end: its modules keep engines, and
    those of one backend must not answer for another. Copies of gen_engine stay, they keep nothing.
    """

    def __init__(
        self,
        store: Store,
        functions: Mapping[str, str],
        factories: Factories | None = None,
        load_factory: Callable[[str], Callable[..., Any]] | None = None,
        argv: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """functions: "module:attribute" -> its site.   factories: what makes arguments that are no
        data.   load_factory: gives one by its name (None: as `loaded` does).   argv: site -> the
        arguments of the script that it was recorded in, for code that reads sys.argv."""
        self.store = store
        self.argv = argv or {}
        self.current_argv: Sequence[str] | None = None
        self.factories = factories or {}
        self.load_factory = load_factory or loaded
        self.objects: dict[str, Any] = {}
        self.receivers: dict[int, AsMade] = {}
        self.engines = Engines()
        self.found: list[Case] = []
        self.folder = tempfile.TemporaryDirectory(prefix="parity-")
        self.scratch = Store(Path(self.folder.name) / "new")
        sites = [observe.Site(site, function) for function, site in functions.items()]
        self.observer = observe.Observer(sites=sites, sink=self.found.append, store=self.scratch)
        # (site, case, function) of the last case -> how it was run first, and what there was before
        self.before_case: dict[tuple[str, str, str], tuple[Any, ModuleState]] = {}
        self.replay: Replay | None = None
        self.lender: Lender | None = None  # until the judge asks more of an engine than the code
        self.own_argv = sys.argv
        self.aside: dict[str, Any] = {}

    def __enter__(self) -> Session:
        self.own_argv = sys.argv
        self.aside = {name: sys.modules.pop(name) for name in own_modules()}
        self.observer.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.observer.uninstall()
        sys.argv = self.own_argv
        self.forget()
        self.close_engines()
        if self.lender is not None:
            self.lender.end()
        sys.modules.update(self.aside)
        self.folder.cleanup()

    def forget(self) -> None:
        """Forget the code under test, and with it its engines. Those that other code keeps, such as
        an installed library, stay open, unless they are too many."""
        self.engines.close()
        self.replay = None
        for name in own_modules():
            del sys.modules[name]
        self.objects.clear()
        self.receivers.clear()
        self.before_case.clear()
        gc.collect()
        if len(self.observer.opened) > MOST_ENGINES:
            self.close_engines()

    def close_engines(self) -> None:
        for engine in list(self.observer.opened):
            engine.close()

    def is_full(self) -> bool:
        """Whether engines and code of sites before this one are better forgotten."""
        return len(self.observer.opened) > MOST_ENGINES or len(gc.get_objects()) > MOST_OBJECTS

    def call(
        self,
        old: Case,
        function: str,
        load: Mapping[str, Any],
        per_backend: Any,
        parts: frozenset[str],
    ) -> Case:
        """One golden's arguments through `function`. Raises GoldenError if that cannot be done, and
        HarnessFault if it could not be seen."""
        self.take_argv(old.site, function)
        self.replay = Replay(self.engines, load, per_backend, parts, old.rows, self.store)
        self.observer.replay = self.replay
        called = loaded_function(old, function)
        moved = moved_classes(old, function)
        given = self.given(old, called, moved)
        state = self.store.restore(dict(old.state), Path(self.folder.name) / "files", moved)
        receiver = self.as_made(given.get("self"))
        self.observer.lent = receiver.become(state, old.left)
        self.observer.left = old.left
        args, kwargs = spread(called, given)
        self.found.clear()
        self.observer.failures.clear()
        if parts:
            self.lend()
        elif self.lender is not None:
            self.lender.active = False  # what its own repository lacks fails a plain call
        try:
            # What it raises is its answer, and the recording holds it.
            with (
                self.remembering(old, function, (dict(load), parts)),
                observe.case(old.case),
                contextlib.suppress(Exception),
            ):
                called(*args, **kwargs)
        except SystemExit as end:
            if not (old.raised or "").startswith("SystemExit"):
                raise GoldenError(
                    f"{function} ended the process: sys.exit({end.code!r}); let it return or raise"
                ) from None
        finally:
            self.observer.replay = None  # the judge asks the engine, too
        if refused := self.replay.refused:
            raise SettingsError(f"{self.store.root / 'sites.json'}: {old.site}.{refused}")
        faults = [*self.observer.failures, *self.replay.faults]
        if faults or not self.found:
            why = "; ".join(faults) or NOT_SEEN
            raise HarnessFault(f"{function} could not be observed: {why}")
        new = self.found[-1]
        refuse_not_run(old, new)
        return dataclasses.replace(as_recorded(old, new), case=old.case, samples=())

    @contextlib.contextmanager
    def remembering(self, old: Case, function: str, changes: Any) -> Iterator[None]:
        """A run with something changed begins with what the moved code's modules kept before the
        first run of its case, whose answers it would give out, and leaves no trace: later cases and
        runs with nothing changed find what they would have found."""
        key = old.site, old.case, function
        if key not in self.before_case:
            self.before_case = {key: (changes, ModuleState(self.moved_modules()))}
        first, before = self.before_case[key]
        if changes == first:
            yield
            return
        now = ModuleState(self.moved_modules())
        before.recall()
        try:
            yield
        finally:
            now.recall()

    def moved_modules(self) -> list[ModuleType]:
        found = (sys.modules[name] for name in own_modules())
        return [module for module in found if type(module) is ModuleType]

    def take_argv(self, site: str, function: str) -> None:
        """Let sys.argv be what the script of a site was given, from its import on. What was
        imported with other arguments is forgotten."""
        argv = self.argv.get(site)
        if argv != self.current_argv:
            self.forget()
        self.current_argv = argv
        sys.argv = self.own_argv if argv is None else [function.rpartition(":")[0], *argv]

    def given(
        self, old: Case, called: Callable[..., Any], moved: Mapping[str, str]
    ) -> dict[str, Any]:
        """The arguments of a call. One that was an object comes from its factory, or is left out if
        nobody takes it.   moved: module -> where its classes are now."""
        makers = self.factories.get(old.site, {})
        wanted = taken(called)
        refuse_lost(old.arguments, wanted - makers.keys())
        data = {}
        for name, value in old.arguments.items():
            is_made = name in makers and holds_records(value)
            if not is_made and not objects_in(value):
                data[name] = value
        files = Path(self.folder.name) / "files"
        arguments: dict[str, Any] = self.store.restore(data, files, moved)
        for name, factory in makers.items():
            if name in wanted and name not in arguments:
                arguments[name] = self.made(factory)
        return arguments

    def made(self, factory: str) -> Any:
        """What a factory of sites.json makes, once for all cases."""
        if factory not in self.objects:
            try:
                self.objects[factory] = self.load_factory(factory)()
            except (Exception, SystemExit) as error:  # whatever their code raises
                said = f"{type(error).__name__}: {error}"
                raise GoldenError(
                    f"{factory}, which sites.json names for an argument, failed: {said}"
                ) from error
        return self.objects[factory]

    def as_made(self, receiver: Any) -> AsMade:
        """The object of a method, with what it was before its first call here."""
        if id(receiver) not in self.receivers:
            self.receivers[id(receiver)] = AsMade(receiver)
        return self.receivers[id(receiver)]

    def resample(self, run: Run, old: Case, seed: int) -> Case:
        """The call with another seed of the process."""
        before = self.observer.seed
        self.observer.seed = seed
        try:
            new = run(old, {}, frozenset())
        finally:
            self.observer.seed = before
        assert new is not None
        return new

    def lend(self) -> None:
        """Let the engines that are open find companions that their own repository lacks: they are
        asked for more than its code asks."""
        if self.lender is None:
            self.lender = Lender()
        for engine in self.observer.opened:
            self.lender.serve(sys.modules[type(engine).__module__])
        self.lender.active = True

    def ran(self) -> list[Any]:
        """The engines of the last call as they ran, one of each model."""
        return [] if self.replay is None else [*self.replay.ran.values()]

    def engine(self) -> Any:
        """The engine of the last call, loaded so that logits can be read."""
        if self.replay is None or self.replay.used is None:
            return None
        self.lend()
        return readable(self.replay.used, self.engines, hooked=True)


def refuse_lost(arguments: Mapping[str, Any], wanted: Container[str]) -> None:
    """Raise GoldenError where an object is wanted that no factory makes."""
    for name, value in sorted(arguments.items()):
        if name in wanted and objects_in(value):
            raise GoldenError(
                f"the argument {name!r} was a {objects_in(value)[0]}, which is no data; say in"
                f' sites.json what makes one, "arguments": {{"{name}": "pkg.setup:make"}}, or check'
                " the script as a whole: `check -- python ...`"
            )


def moved_classes(old: Case, function: str) -> dict[str, str]:
    """Where the classes of a recorded module are now: the module that its function was moved to.
    Those of a recorded script are of `__main__`."""
    was = old.function.rpartition(":")[0]
    now = function.rpartition(":")[0]
    return {
        "__main__" if was.endswith(".py") else was: str(Path(now)) if now.endswith(".py") else now
    }


def holds_records(value: Any) -> bool:
    """Whether a recorded argument was an object that a golden holds by its fields."""
    return any(objects_in(value, key) for key in ("$record", "$settings"))


def refuse_not_run(old: Case, new: Case) -> None:
    """Raise GoldenError where an engine could not be loaded: that says nothing of the moved
    code."""
    if old.raised is None and (new.raised or "").split(":")[0] in NOT_RUN:
        raise GoldenError(f"the moved code could not be run here: {new.raised}")


Factories = Mapping[str, Mapping[str, str]]  # site -> argument -> "pkg.setup:make"


def loaded(function: str) -> Callable[..., Any]:
    """A function of the code under test. Raises GoldenError, whatever importing it does."""
    try:
        return observe.load_function(function)
    except (Exception, SystemExit) as error:  # their module may raise anything, or end the process
        raise_not_there(function, error)
        if isinstance(error, SystemExit):
            raise GoldenError(
                f"{function} could not be imported: it ended the process, sys.exit({error.code!r})."
                ' Put what runs it as a script under `if __name__ == "__main__":`; what it reads of'
                " sys.argv is `argv` in sites.json"
            ) from error
        raise GoldenError(f"{function} could not be imported: {words_and_place(error)}") from error


def loaded_function(old: Case, function: str) -> Callable[..., Any]:
    """The function that is called with a golden's arguments. Raises GoldenError."""
    try:
        return loaded(function)
    except NotThere as absent:
        if function != old.function:
            raise
        steps = steps_of_absent(old.site, function, absent)
        raise GoldenError(f"{absent}; {steps}") from absent


def taken(function: Callable[..., Any]) -> set[str]:
    """Names of the parameters of a function; *args and **kwargs are none."""
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def spread(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Recorded arguments as a call takes them: by name, but by place where the function wants it
    so, or has *args. Raises GoldenError where it does not take them."""
    signature = inspect.signature(function)
    if "self" in signature.parameters and "self" not in arguments:
        raise GoldenError(
            "it is a method, and its object is no data; say in sites.json what makes one,"
            ' "arguments": {"self": "pkg.setup:make"}, or check the script as a whole: `check --'
            " python ...`"
        )
    args: list[Any] = []
    kwargs = dict(arguments)
    for name, kind in by_place(signature, arguments).items():
        if kind is inspect.Parameter.VAR_POSITIONAL:
            args += kwargs.pop(name)
        else:
            args.append(kwargs.pop(name))
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise GoldenError(
            f"the moved function does not take what was recorded: {error}; give it the old"
            ' parameters, or say in sites.json what makes a new one: "arguments": {"NAME":'
            ' "pkg.setup:make"}'
        ) from None
    return args, kwargs


def by_place(signature: inspect.Signature, given: Container[str]) -> dict[str, Any]:
    """Parameters that are given by place, and their kind: before *args all are, where it is
    given."""
    kinds = {}
    for parameter in signature.parameters.values():
        if parameter.name in given:
            kinds[parameter.name] = parameter.kind
    wanted: set[Any] = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        wanted.add(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: kind for name, kind in kinds.items() if kind in wanted}
