"""check --ab: the old functions run now, and what they give stands in for the goldens."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from parity.environment.revision import Revision
from parity.goldens.store import Case, GoldenError, Store, blob_names, chosen_cases
from parity.goldens.verdict import Check, Outcome, Policy
from parity.judge.check import TIME_LIMIT, check_sites
from parity.judge.faults import COULD_NOT_JUDGE, HarnessFault, skip_unjudgeable
from parity.judge.session import Session, loaded
from parity.judge.site import error_outcome
from parity.judge.sites import argv_of, merged_settings, named_function, pairs_asked
from parity.judge.values import texts_in
from parity.judge.worker import Died, Worker
from parity.record.source import source_file
from parity.record.values import with_places


@dataclass(frozen=True, slots=True)
class Again:
    """What old code is to do again. functions: golden's function -> the same in the old code.
    old: the folder that it must come from, and the one that this stands for, or None.
    today: module of factories -> its file as it is now, beside the old code of a revision."""

    root: str
    into: str
    items: tuple[tuple[str, str], ...]
    settings: Mapping[str, Mapping[str, Any]]
    functions: Mapping[str, str]
    old: tuple[str, str] | None = None
    today: Mapping[str, str] = field(default_factory=dict)


def check_again(
    store: Store,
    into: Store,
    *,
    sites: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
    moved: Mapping[str, str] | None = None,
    old: Revision | None = None,
    time_limit: float = TIME_LIMIT,
    **how: Any,
) -> Check:
    """--ab: old code against new code, both run now. into: an empty folder, for what the old code
    gives.

    old: the revision that the old code comes from (None: it stands beside the new code). Raises
    ValueError where a function would be compared with itself.
    """
    chosen = chosen_cases(store, sites, cases)
    settings = merged_settings(store, list(chosen), moved or {})
    job = Again(str(store.root.absolute()), str(into.root.absolute()), (), settings, {})
    job, errors = asked_again(store, job, chosen, old)
    errors |= run_old_code(job, old, time_limit)
    copy_settings(store, into)
    left = []
    for site, names in chosen.items():
        if into.names(site) or not names:  # one without cases is MISSING
            left.append(site)
    if left:
        check = check_sites(into, sites=left, moved=moved, time_limit=time_limit, **how)
    else:
        check = Check((), how.get("policy") or Policy())
    asked, _ = pairs_asked(settings, how.get("backends"))
    outcomes = (*check.outcomes, *outcomes_of_errors(errors, asked))
    return dataclasses.replace(check, outcomes=outcomes)


CaseErrors = dict[tuple[str, str], GoldenError | str]


def run_old_code(job: Again, old: Revision | None, time_limit: float) -> CaseErrors:
    if old is None:
        return recorded_apart(Worker.shared(), job, time_limit)
    with Worker(old.path(sys.path), old.folder()) as worker:
        return recorded_apart(worker, job, time_limit)


def copy_settings(store: Store, into: Store) -> None:
    for site, said in store.settings().items():
        into.set_site(site, **said)
    for entry in store.accepted():
        into.accept(entry)


def outcomes_of_errors(errors: CaseErrors, asked: Sequence[tuple[str, str]]) -> Iterator[Outcome]:
    """asked: (site, backend) to be checked."""
    for (site, name), error in errors.items():
        for one, backend in asked:
            if one == site:
                yield error_outcome(site, name, backend, f"the old code: {error}")


def asked_again(
    store: Store, job: Again, chosen: Mapping[str, Sequence[str]], old: Revision | None
) -> tuple[Again, CaseErrors]:
    """The job with its cases and their functions, and what cannot be asked again."""
    functions = dict[str, str]()
    errors = CaseErrors()
    items = []
    for item in items_of(chosen):
        try:
            golden = store.read(*item)
            if named_function(golden, job.settings[golden.site]) == golden.function and not old:
                raise ValueError(ITSELF.format(golden.function))
            functions[golden.function] = old_place(golden.function, old)
            if old is not None:
                lend_texts(old, golden)
            items.append(item)
        except GoldenError as error:
            errors[item] = error
    asked = dataclasses.replace(job, items=tuple(items), functions=functions)
    if old is not None:
        place = str(old.worktree), str(old.top)
        asked = dataclasses.replace(asked, old=place, today=factories_of_today(asked, old))
    return asked, errors


def factories_of(job: Again) -> dict[str, dict[str, str]]:
    """Site -> argument of the old code -> its factory."""
    return {
        site: said.get("old_arguments", said.get("arguments", {}))
        for site, said in job.settings.items()
    }


def factories_of_today(job: Again, old: Revision) -> dict[str, str]:
    """Module of factories -> its file now, which the revision may not have, or may have otherwise.
    Not of one that holds a recorded function, too: that is the old code."""
    recorded = {source_file(function.rpartition(":")[0]) for function in job.functions}
    found = {}
    for made in factories_of(job).values():
        for factory in made.values():
            module = factory.rpartition(":")[0]
            path = source_file(module)
            is_in_tree = path is not None and old.place(path).is_relative_to(old.worktree)
            if path is not None and is_in_tree and path not in recorded:
                found[module] = str(path.resolve())
    return found


def items_of(chosen: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """(site, case), site by site."""
    for site, names in chosen.items():
        for name in names:
            yield site, name


def lend_texts(old: Revision, golden: Case) -> None:
    """Files that arguments name lie beside the old code, too."""
    for text in texts_in(golden.arguments):
        old.lend(text)


ITSELF = (
    "--ab would compare {0} with itself: it was changed in place. Say which revision holds the old"
    " code, `check --ab --old HEAD~1`, or where the new code is, `--moved`"
)


def old_place(function: str, old: Revision | None) -> str:
    """A recorded function as the old code's process loads it: a script by its path, a module by its
    name."""
    module, _, attribute = function.rpartition(":")
    if old is None or not module.endswith(".py"):
        return function
    return f"{old.place(module)}:{attribute}"


def recorded_apart(worker: Worker, job: Again, time_limit: float) -> CaseErrors:
    """Have the old code do everything again; what it could not do, and why."""
    errors = CaseErrors()
    left = list(job.items)
    while left:
        rest = dataclasses.replace(job, items=tuple(left))
        try:
            for error in worker.run(AGAIN, rest, time_limit):
                item = left.pop(0)
                if error:
                    errors[item] = error
        except Died as death:
            if left:
                errors[left.pop(0)] = f"it did not come back: {death}"
    return errors


def recorded_again(job: Again) -> Iterator[str]:
    """In the worker: for each case "" when it was recorded, or why it was not."""
    store = Store(job.root)
    into = Store(job.into)
    sites = {}
    for site, name in job.items:
        function = store.read(site, name).function
        sites[job.functions[function]] = site
    factory_of_today = functools.partial(load_of_today, job.today)
    argv = argv_of(job.settings)
    with Session(store, sites, factories_of(job), factory_of_today, argv) as session:
        for site, name in job.items:
            try:
                old = store.read(site, name)
                refuse_itself(old, job)
                put_again(session, old, job, into)
                yield ""
            except (*COULD_NOT_JUDGE, HarnessFault) as error:
                yield str(error)


AGAIN = f"{recorded_again.__module__}:{recorded_again.__qualname__}"


def load_of_today(today: Mapping[str, str], factory: str) -> Callable[..., Any]:
    """A factory from its file of today; what that imports is the old code."""
    module, _, attribute = factory.rpartition(":")
    if module not in today:
        return loaded(factory)
    name = f"{module}@today"  # beside the old module, in the same package
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, today[module])
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]  # else the next case would find half of it
            raise
    found: Any = sys.modules[name]
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise GoldenError(f"{today[module]} has no function {attribute}; correct sites.json")
    return cast(Callable[..., Any], found)


def put_again(session: Session, old: Case, job: Again, into: Store) -> None:
    keep_blobs(old, session.store, into)
    new = session.call(old, job.functions[old.function], {}, {}, frozenset())
    if job.old is not None:  # paths as they are now
        new = with_places(new, dict([job.old]))
    keep_blobs(new, session.scratch, into)
    # Of an argument that was made anew the golden says more: what it was when it was recorded.
    new = dataclasses.replace(new, arguments=old.arguments)
    into.write(dataclasses.replace(new, function=old.function, changing=old.changing))


def keep_blobs(case: Case, source: Store, into: Store) -> None:
    for blob in set(blob_names(case)):
        into.put_blob(source.blob(blob), Path(blob).suffix)


def refuse_itself(old: Case, job: Again) -> None:
    """Raise GoldenError where the old code is not that of the revision, or is the new code under
    another name."""
    code = source_of(loaded(job.functions[old.function]))
    if job.old is not None:
        if code is None or not Path(code[0]).resolve().is_relative_to(job.old[0]):
            where = code[0] if code else "no Python file"
            raise GoldenError(
                f"{old.function} was loaded from {where}, not from the revision: it is installed"
                " there"
            )
        return
    new = None
    with skip_unjudgeable():  # the check itself will say what is wrong with the new one
        new = source_of(loaded(named_function(old, job.settings[old.site])))
    if code is not None and code == new:
        raise GoldenError(ITSELF.format(old.function))


def source_of(function: Callable[..., Any]) -> tuple[str, int] | None:
    """File and line of a function, past its wrappers."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)
