"""Runs the moved code on what the goldens hold, and judges. Writes nothing, ever.

    check_sites(Store("golden"), backends=("hf", "vllm"))    each golden's arguments through the moved function
    check_script(Store("golden"), ["python", "new.py"], …)   a whole script, observed as the old one was
    check_both(Store("golden"))                              --ab: the old function now against the new function now

sites.json says where the moved code is (without it, the function that was recorded is called again: code that was
changed in place) and how engines are loaded for a check:

    {"summaries": {"moved": {"pkg.old": "pkg.new"},                      module to module, or function to function
                   "backends": ["hf", "vllm"],
                   "load": {"vllm": {"max_model_len": 1024}}}}
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.golden import Case, GoldenError, Store, blob_names, chosen_cases, environment, read_json
from parity.judge import compare, draws, ties
from parity.judge.endings import leaves
from parity.judge.explain import Inquiry, also_differs, by_company, cause_of
from parity.judge.laws import Tools
from parity.judge.replay import Engines, Replay
from parity.record import observe
from parity.record.recorder import Starting
from parity.verdict import CAUSES, Cause, Check, Difference, Outcome, Policy, Verdict

Progress = Callable[[str], None]
Run = Callable[[Case, Mapping[str, Any], frozenset[str]], Case | None]  # golden, load settings, parts put back -> new

Judged = tuple[Verdict, Cause | None, tuple[str, ...]]  # verdict, cause, notes

LEAST_TEXTS, LEAST_SAMPLES, ALPHA = 10, 20, 0.01  # for comparing texts: fewer tell nothing
NOT_RUN = {"LoadError", "BackendMissing"}  # of an engine: says something of this machine, nothing of the moved code
COULD_NOT_JUDGE = (GoldenError, LookupError, ImportError, OSError)


def new_function(function: str, moved: Mapping[str, str]) -> str:
    """Where a recorded function is now."""
    if function in moved:
        return moved[function]
    module, _, attribute = function.rpartition(":")
    return f"{moved.get(module, module)}:{attribute}"


# == Judging one case ==


@dataclass
class Judge:
    """Turns two recordings into an Outcome; asks the model again only where they differ."""

    store: Store
    backend: str
    run: Run
    tau: float | None = None
    today: datetime.date = dataclasses.field(default_factory=datetime.date.today)
    engine: Callable[[], Any] = lambda: None  # the engine of the last run, on which logits can be had
    resample: Callable[[Case, int], Case] | None = None  # the new code again, with another seed
    ledgers: dict[str, draws.Ledger] = dataclasses.field(default_factory=dict)  # site -> its draws so far

    def outcome(self, old: Case, new: Case, seconds: float = 0.0) -> Outcome:
        found = compare.differences(old, new)
        steps: list[str] = []
        verdict, cause, notes = self.verdict(old, new, found, steps)
        accepted = "" if cause is None else self.accepted(old, cause)
        also: tuple[str, ...] = ()
        if cause is not None and verdict in ("DRIFT", "LATENT"):
            also = also_differs(Inquiry(old, new, found, tools=tools_of(old)), cause)
        return Outcome(
            old.site, old.case, self.backend, "ACCEPTED" if accepted else verdict, found, cause, old.to_json(),
            new.to_json(), accepted, notes, seconds, tuple(steps), also,
        )  # fmt: skip

    def verdict(self, old: Case, new: Case, found: Sequence[Difference], steps: list[str]) -> Judged:
        if old.repeats is False:
            said = "the old code gave another value when it was recorded twice"
            return "UNSTABLE", Cause("nondeterminism", "confirmed", said), ()
        if not any(d.stage == "value" for d in found):
            return self.same_value(old, new, found)
        tools = tools_of(old)
        again = lambda load, parts: self.run(old, load, parts)  # noqa: E731
        inquiry = Inquiry(old, new, found, tools.decode, again, tools, steps)
        if self.only_drawn(old, new, found):
            return self.judged_draws(old, new)
        cause = cause_of(inquiry)
        if cause is not None:
            return "DRIFT", cause, ()
        verdict, cause, notes = self.rounding(old)
        if verdict == "DRIFT":
            cause = by_company(inquiry) or cause
        return verdict, cause, notes

    def same_value(self, old: Case, new: Case, found: Sequence[Difference]) -> Judged:
        named = [(name, d) for name, d in compare.suspects(old, new, found) if d.counts]
        if named:
            name, difference = named[0]
            proof = "seen directly; on this case the value does not show it"
            return "LATENT", Cause(name, "confirmed", f"{CAUSES[name]}: {difference.sentence()}", proof), ()
        if self.only_drawn(old, new, found):
            _, cause, notes = self.judged_draws(old, new)
            wrong = cause is not None and cause.certainty == "confirmed"
            return ("LATENT", cause, notes) if wrong else ("TEXT-IDENTICAL", None, notes)
        return ("IDENTICAL" if compare.same_ids(old, new) else "TEXT-IDENTICAL"), None, ()

    def accepted(self, old: Case, cause: Cause) -> str:
        for entry in self.store.accepted():
            if entry.covers(old.site, old.case, self.backend, cause.name, self.today):
                return f"{entry.reason} (until {entry.until})"
        return ""

    def readings(self, old: Case) -> Iterator[tuple[int, Mapping[str, Any], Any, Any]]:
        """(number, row, old logits, new logits) of every row. Raises GoldenError where they cannot be had."""
        engine = self.engine()
        if engine is None:
            raise GoldenError("the moved code does not use gen_engine, so its logits cannot be read")
        for row in old.rows:
            if why := ties.unreadable(row):
                raise GoldenError(why)
        path = ties.OldPath({**old.rows[0]["model"], "path": checkpoint_of(old)}, self.store)
        for number, (row, logits) in enumerate(zip(old.rows, ties.new_logits(engine, old.rows, self.store))):
            yield number, row, path.logits(row), logits

    def rounding(self, old: Case) -> Judged:
        """Nothing but arithmetic is left: a near tie, or a shift."""
        try:
            readings = [ties.read(k, row, a, b, self.tau) for k, row, a, b in self.readings(old)]
        except COULD_NOT_JUDGE as error:
            said = f"every stage before the answer is equal; {error}"
            return "DRIFT", Cause("numeric.shift", "unattributed", said), ()
        gaps = [gap for reading in readings for gap in reading.gaps]
        stale = [reading.stale for reading in readings if reading.stale is not None]
        drift = max((reading.drift for reading in readings), default=0.0)
        notes = (f"log-probabilities of the golden's tokens differ by {drift:.1e} at most",)
        if stale and self.recorded_here(old):
            said = (
                f"plain transformers, given what was recorded, does not choose the golden's token {stale[0]}, in the "
                "environment that recorded it: something that was not recorded changed the old answer"
            )
            return "DRIFT", Cause("numeric.shift", "unattributed", said), notes
        if stale:
            said = f"the old path, run here, leaves the golden at step {stale[0]}: this environment is another one"
            return "DRIFT", Cause("env.version", "likely", said, "run `check --ab`"), notes
        worst = max(gaps, key=lambda gap: gap.delta / gap.tau, default=None)
        if worst is not None and worst.delta <= worst.tau:
            said = f"{len(gaps)} steps, the largest δ is {worst.delta:.1e}, allowed is {worst.tau:.1e}"
            return "NEAR-TIE", Cause("numeric.near_tie", "confirmed", f"{CAUSES['numeric.near_tie']}: {said}"), notes
        if worst is None:
            said = "both paths choose the golden's tokens when they read them; the answer was not the model's choice"
            stops = any(compare.entry(row, "stop", name) for row in old.rows for name in ("strings", "criteria"))
            return "DRIFT", Cause("stop.rule", "likely" if stops else "unattributed", said), notes
        said = f"at step {worst.step} of row {worst.row} δ is {worst.delta:.1e}, rounding allows {worst.tau:.1e}"
        return "DRIFT", Cause("numeric.shift", "confirmed", f"{CAUSES['numeric.shift']}: {said}"), notes

    def recorded_here(self, old: Case) -> bool:
        """Whether the golden is of this environment, as far as it says."""
        path = self.store.root / "environments" / f"{old.environment}.json"
        said = read_json(path) if old.environment and path.exists() else {}
        here = environment()
        return bool(said) and all(here.get(name, value) == value for name, value in said.items())

    def only_drawn(self, old: Case, new: Case, found: Sequence[Difference]) -> bool:
        """Whether there are other draws under equal settings (L0) and seeds (L1), and nothing else that differs."""
        drawn = ties.is_sampled(old) and ties.is_sampled(new) and not compare.same_ids(old, new)
        return drawn and not any(difference.counts for _, difference in compare.suspects(old, new, found))

    def judged_draws(self, old: Case, new: Case) -> Judged:
        """Other draws under equal settings: do they follow them? (draws.py)"""
        try:
            theirs, mine = self.samples(old, old), self.samples(old, new)
        except COULD_NOT_JUDGE as error:
            return self.permuted(old, str(error))
        ledger = self.ledger(old.site)
        before = draws.evidence_of(theirs, ledger.alpha)
        if before.breaks and before.fault != draws.COPY:
            said = f"the golden's own draws do not follow its settings: {before.sentence()}; record it again"
            return "ERROR", Cause("error", "confirmed", said), ()
        evidence = draws.evidence_of(mine, ledger.alpha, copied=not before.breaks)
        if evidence.breaks:
            return "DRIFT", drawn_otherwise(evidence), ()
        ledger.add(old.case, mine)
        with contextlib.suppress(*COULD_NOT_JUDGE):  # code without an engine is judged by its draws alone
            seen = [ties.same_draws(row, a, b) for _, row, a, b in self.readings(old)]
            exact = all(row["model"].get("dtype") == "float32" for row in (*old.rows, *new.rows))
            if exact and (said := next((said for same, said in seen if not same), "")):
                return "DRIFT", Cause("numeric.shift", "confirmed", f"{CAUSES['numeric.shift']}: {said}"), ()
        return ("SAME-DISTRIBUTION" if evidence.tells else "SAME-SETTINGS"), None, (evidence.sentence(),)

    def samples(self, old: Case, case: Case) -> list[draws.Sample]:
        """What a case's drawn rows say under the golden's settings. Raises GoldenError where that cannot be had."""
        path, found = ties.OldPath({**old.rows[0]["model"], "path": checkpoint_of(old)}, self.store), []
        sources = draws.streams(case.rows)
        asked_as = {id(new): golden for golden, new in compare.paired(old.rows, case.rows)}
        for row, source in zip(case.rows, sources):
            golden = asked_as.get(id(row), old.rows[0])
            asked = {**golden, "output_ids": row["output_ids"]}
            if why := draws.unreadable(asked):
                raise GoldenError(why)
            if compare.is_drawn(golden):
                found.append(draws.sample_of(asked, path.logits(asked), source))
        return found

    def ledger(self, site: str) -> draws.Ledger:
        if site not in self.ledgers:
            cases = 0
            for name in self.store.names(site):
                with contextlib.suppress(GoldenError):  # said when its turn comes
                    cases += ties.is_sampled(self.store.read(site, name))
            self.ledgers[site] = draws.Ledger(cases)
        return self.ledgers[site]

    def permuted(self, old: Case, why: str) -> Judged:
        """L3: texts of many draws against texts of many draws. why: what stands in the way of a stronger level."""
        paths = [path for path, _ in leaves(old.value)]
        if self.resample is None or len(paths) < LEAST_TEXTS or len(old.samples) < LEAST_SAMPLES:
            record = f"to compare texts record {LEAST_TEXTS} texts or more with --samples 20"
            said = f"equal settings, other draws; {why}; {record}"
            return "DRIFT", Cause("rng", "unattributed", said), ()
        before = columns(old.samples, paths)
        for first in (1, 1 + len(old.samples)):  # a rejection is drawn again: one in a hundred is chance
            seeds = range(first, first + len(old.samples))
            p = ties.permutation_p(before, columns([self.resample(old, seed).value for seed in seeds], paths))
            if p >= ALPHA:
                return "SAME-DISTRIBUTION", None, (f"by texts: p = {p:.3f} of {len(paths)} texts; {why}",)
        return "DRIFT", Cause("sampling.processors", "likely", f"other texts are drawn: p = {p:.3f}, twice; {why}"), ()


def drawn_otherwise(evidence: draws.Evidence) -> Cause:
    name = "rng" if evidence.fault == draws.COPY and evidence.impossible is None else "sampling.draw"
    said = "samples of one prompt are copies" if name == "rng" else CAUSES[name]
    proof = (
        f"computed by plain transformers under the golden's settings; by chance once in {1 / evidence.alpha:,.0f} runs"
    )
    return Cause(name, "confirmed", f"{said}: {evidence.sentence()}", proof)


def judged_together(outcomes: Sequence[Outcome], ledgers: Mapping[str, draws.Ledger]) -> list[Outcome]:
    """Draws of a site's cases show together what each of them may be too few to show."""
    found = list(outcomes)
    for site, ledger in ledgers.items():
        evidence = ledger.together()
        if evidence is None or not (evidence.breaks or evidence.tells):
            continue
        note = f"all cases of {site} together: {evidence.sentence()}"
        for place, o in enumerate(found):
            if (
                o.site != site
                or o.case not in ledger.samples
                or o.verdict not in ("SAME-DISTRIBUTION", "SAME-SETTINGS")
            ):
                continue
            cause = drawn_otherwise(evidence) if evidence.breaks else None
            verdict: Verdict = "DRIFT" if cause else "SAME-DISTRIBUTION"
            found[place] = dataclasses.replace(o, verdict=verdict, cause=cause, notes=(*o.notes, note))
    return found


def columns(values: Sequence[Any], paths: Sequence[tuple[Any, ...]]) -> list[list[str]]:
    """The texts at each path, over several values; where a value has none there, an empty one."""
    found = [dict(leaves(value)) for value in values]
    return [[texts.get(path, "") for texts in found] for path in paths]


_tokenizers: dict[str, Any] = {}


def checkpoint_of(old: Case) -> str | None:
    """Where the golden's checkpoint is. Of a folder elsewhere a golden holds the name; an argument may hold it all."""
    path: str | None = old.rows[0].get("model", {}).get("path") if old.rows else None
    said = (text for _, text in leaves(dict(old.arguments)) if path and text.endswith(f"/{path}"))
    return next((text for text in said if Path(text).is_dir()), path)


def tools_of(old: Case) -> Tools:
    """The golden's tokenizer and template as plain transformers has them; nothing where its checkpoint is not here."""
    path = checkpoint_of(old)
    if path is None:
        return Tools()
    if path not in _tokenizers:
        import transformers

        _tokenizers[path] = None
        with contextlib.suppress(OSError, ValueError):  # neither here nor downloaded
            _tokenizers[path] = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    if (tokenizer := _tokenizers[path]) is None:
        return Tools()

    def decode(ids: Sequence[int], skip: bool, clean: bool) -> str:
        text: str = tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=clean)
        return text

    def encode(text: str, special: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    def render(messages: Any, arguments: Mapping[str, Any]) -> str:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        return text

    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    return Tools(decode, encode, render, hashlib.sha256(template.encode()).hexdigest() if template else "")


# == Calling the moved functions ==


def own_modules() -> set[str]:
    """Loaded modules of the code under test: neither libraries, nor Python's, nor the harness, nor copies of gen_engine
    with the packages that they are in."""
    wanted = observe.Finder(observe.Observer(sink=lambda case: None)).wanted
    loaded = {name: module for name, module in sys.modules.items() if module is not None}
    found = {name for name, module in loaded.items() if wanted(name, getattr(module, "__file__", None))}
    engines = [name for name, module in loaded.items() if observe.is_engine(module)]
    kept = {
        *observe.LIBRARY_TAPS,
        *engines,
        *(name for name in found if any(e.startswith(f"{name}.") for e in engines)),
    }
    return {name for name in found - kept if not name.startswith(HARNESS)}


# `parity.callsites` is code under test, like anybody's.
ROOMS = {path.stem for path in Path(__file__).parents[1].glob("[!_]*") if path.suffix in ("", ".py")}
HARNESS = ("__m", *(f"parity.{name}" for name in sorted(ROOMS - {"callsites", "tests"})))


class Session:
    """Moved functions, called under observation on one backend.

    Code under test is loaded anew for it and forgotten at the end: its modules keep engines, and those of one backend
    must not answer for another. Copies of gen_engine stay, they keep nothing.
    """

    def __init__(self, store: Store, functions: Mapping[str, str]) -> None:
        """functions: "module:attribute" -> the site it belongs to."""
        self.store, self.engines, self.found = store, Engines(), list[Case]()
        self.folder = tempfile.TemporaryDirectory(prefix="parity-")
        self.scratch = Store(Path(self.folder.name) / "new")
        sites = [observe.Site(site, function) for function, site in functions.items()]
        self.observer = observe.Observer(sites=sites, sink=self.found.append, store=self.scratch)
        self.replay: Replay | None = None
        self.aside: dict[str, Any] = {}

    def __enter__(self) -> Session:
        self.aside = {name: sys.modules.pop(name) for name in own_modules()}
        self.observer.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.observer.uninstall()
        self.engines.close()
        for engine in self.observer.opened:
            engine.close()
        for name in own_modules():
            del sys.modules[name]
        sys.modules.update(self.aside)
        self.folder.cleanup()

    def call(self, old: Case, function: str, load: Mapping[str, Any], per_backend: Any, parts: frozenset[str]) -> Case:
        """One golden's arguments through `function`. Raises GoldenError if that cannot be done or seen."""
        arguments = self.store.restore(dict(old.arguments), Path(self.folder.name) / "files")
        self.replay = Replay(self.engines, load, per_backend, parts, request_rows(old), self.store)
        self.observer.replay = self.replay
        self.found.clear()
        self.observer.failures.clear()
        called = observe.load_function(function)
        args, kwargs = spread(called, arguments)
        # What it raises is its answer, and the recording holds it.
        with observe.case(old.case), contextlib.suppress(Exception):
            called(*args, **kwargs)
        if self.observer.failures or not self.found:
            why = "; ".join(self.observer.failures) or "its call was not seen (was it wrapped by another decorator?)"
            raise GoldenError(f"{function} could not be observed: {why}")
        new = self.found[-1]
        if old.raised is None and (new.raised or "").split(":")[0] in NOT_RUN:
            raise GoldenError(f"the moved code could not be run here: {new.raised}")
        return dataclasses.replace(new, case=old.case, samples=())

    def resample(self, run: Run, old: Case, seed: int) -> Case:
        """The call with another seed of the process."""
        before, self.observer.seed = self.observer.seed, seed
        try:
            new = run(old, {}, frozenset())
        finally:
            self.observer.seed = before
        assert new is not None
        return new

    def engine(self) -> Any:
        """The engine of the last call, loaded so that logits can be read."""
        if self.replay is None or self.replay.used is None:
            return None
        used = self.replay.used
        if used.backend.name == "vllm" and not used.config.logits_hooks:
            config = dataclasses.replace(used.config, logits_hooks=True)
            return self.engines.get(sys.modules[type(used).__module__], config)
        return used


def spread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Recorded arguments as a call takes them: by name, but by place where the function wants it so, or has *args."""
    args, kwargs = [], dict(arguments)
    parameters = inspect.signature(function).parameters.values()
    if any(p.name == "self" for p in parameters):
        raise GoldenError("it is a method, and its object is no data; check this site with `check -- python script`")
    filled = any(p.kind is p.VAR_POSITIONAL and p.name in kwargs for p in parameters)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            args += kwargs.pop(p.name, ())
        elif p.name in kwargs and (p.kind is p.POSITIONAL_ONLY or (filled and p.kind is p.POSITIONAL_OR_KEYWORD)):
            args.append(kwargs.pop(p.name))
    return args, kwargs


def request_rows(old: Case) -> list[Mapping[str, Any]]:
    """The golden's rows, one per request: samples of one prompt are one request."""
    rows = list(old.rows)
    count = compare.entry(rows[0], "sampling", "n") if rows else 1
    return rows[:: max(1, int(count or 1))]


def missing(site: str, case: str, backend: str, why: str) -> Outcome:
    return Outcome(site, case, backend, "MISSING", notes=(why,))


def error_outcome(site: str, case: str, backend: str, error: BaseException) -> Outcome:
    cause = Cause("error", "unattributed", f"could not judge: {error}")
    return Outcome(site, case, backend, "ERROR", cause=cause)


def check_sites(
    store: Store,
    *,
    sites: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
    policy: Policy | None = None,
    tau: float | None = None,
    moved: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Check:
    """Every golden that was asked for, on each backend. moved: where recorded functions are now, over sites.json.

    backends: those of each site's settings where not given.
    """
    started, outcomes = time.perf_counter(), []
    chosen = chosen_cases(store, sites, cases)
    settings = store.settings()
    for site in chosen:
        settings[site] = {
            **settings.get(site, {}),
            "moved": {**settings.get(site, {}).get("moved", {}), **(moved or {})},
        }
    asked = [(site, b) for site in chosen for b in (backends or settings[site].get("backends", ["hf"]))]
    functions = {}
    for site, names in chosen.items():
        for name in names:
            with contextlib.suppress(GoldenError):  # said when its turn comes
                functions[new_function(store.read(site, name).function, settings[site]["moved"])] = site
    for backend in dict.fromkeys(b for _, b in asked):
        with Session(store, functions) as session:
            for site in [site for site, b in asked if b == backend]:
                outcomes += check_site(session, site, chosen[site], backend, settings[site], tau, progress)
    return Check(tuple(outcomes), policy or Policy(), environment(), time.perf_counter() - started)


def call_on(
    session: Session, backend: str, function: str, loads: Any, old: Case, load: Mapping[str, Any], parts: frozenset[str]
) -> Case:
    return session.call(old, function, {"backend": backend, **load}, loads, parts)


def check_site(
    session: Session,
    site: str,
    names: Sequence[str],
    backend: str,
    settings: Mapping[str, Any],
    tau: float | None,
    progress: Progress | None,
) -> list[Outcome]:
    if not names:
        return [missing(site, "*", backend, f"no golden under {session.store.root / site}; record the old code first")]
    outcomes: list[Outcome] = []
    ledgers: dict[str, draws.Ledger] = {}
    for name in names:
        if not session.store.path(site, name).exists():
            outcomes.append(missing(site, name, backend, f"there is no {session.store.path(site, name)}"))
            continue
        started = time.perf_counter()
        try:
            old = session.store.read(site, name)
            function, loads = new_function(old.function, settings["moved"]), settings.get("load", {})

            run = functools.partial(call_on, session, backend, function, loads)
            new = run(old, {}, frozenset())
            seconds = time.perf_counter() - started
            again = functools.partial(session.resample, run)
            judge = Judge(session.store, backend, run, tau, engine=session.engine, resample=again, ledgers=ledgers)
            outcomes.append(judge.outcome(old, new, seconds))
        except COULD_NOT_JUDGE as error:
            outcomes.append(error_outcome(site, name, backend, error))
        if progress:
            progress(f"{backend} {outcomes[-1].label} {outcomes[-1].verdict}")
    return judged_together(outcomes, ledgers)


# == Whole scripts, and old against new ==


class Replays:
    """In an observed script: before each call of a site, set up the replay that belongs to its golden."""

    def __init__(
        self, observer: observe.Observer, *, goldens: str, backend: str | None, load: Any, parts: Any, per_backend: Any
    ) -> None:
        self.observer, self.store = observer, Store(goldens)
        self.load = {**load, **({"backend": backend} if backend else {})}
        self.parts, self.per_backend, self.engines = frozenset(parts), per_backend, Engines()
        observer.replay = Replay(self.engines, self.load, per_backend)

    def __call__(self, call: observe.Call) -> None:
        rows: list[Mapping[str, Any]] = []
        with contextlib.suppress(GoldenError):  # a call without a golden runs as it is
            rows = request_rows(self.store.read(call.site, call.case))
        settings = self.per_backend.get(call.site, {})
        self.observer.replay = Replay(self.engines, self.load, settings, self.parts, rows, self.store)


REPLAYS = f"{Replays.__module__}:{Replays.__qualname__}"  # the observed processes import it by this name


def paired_cases(store: Store, found: Sequence[Case], sites: Sequence[str]) -> list[tuple[Case | None, Case | None]]:
    """Goldens and calls that belong together: by arguments, else by name. Raises GoldenError."""
    left = {(case.site, case.case): case for case in found}
    goldens = [store.read(site, name) for site in sites for name in store.names(site)]
    pairs: list[tuple[Case | None, Case | None]] = []
    by_arguments = {}
    for old in goldens if any(case.arguments for case in found) else ():
        same = [key for key, case in left.items() if key[0] == old.site and case.arguments == old.arguments]
        if same:  # of equal ones, the one of this name
            by_arguments[old.site, old.case] = left.pop(min(same, key=lambda key: key[1] != old.case))
    for old in goldens:
        key = old.site, old.case
        pairs.append((old, by_arguments[key] if key in by_arguments else left.pop(key, None)))
    return [*pairs, *((None, new) for new in left.values())]


def check_script(
    store: Store,
    observed: Callable[[Starting], Sequence[Case]],
    *,
    sites: Sequence[str],
    backend: str | None = None,
    policy: Policy | None = None,
    tau: float | None = None,
) -> Check:
    """A whole script. observed: runs it, with what is called before each call, and gives its calls.

    A golden that the script did not reach is UNUSED, a call that has no golden is MISSING.
    """
    started, outcomes = time.perf_counter(), []
    settings = {site: said.get("load", {}) for site, said in store.settings().items()}
    base: dict[str, Any] = {
        "goldens": str(store.root),
        "backend": backend,
        "load": {},
        "parts": [],
        "per_backend": settings,
    }

    def run(old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        again = observed((REPLAYS, {**base, "load": dict(load), "parts": sorted(parts)}))
        return next((new for golden, new in paired_cases(store, again, [old.site]) if golden == old), None)

    judge, label = Judge(store, backend or "hf", run, tau), backend or "hf"
    for old, new in paired_cases(store, observed((REPLAYS, base)), sites):
        if new is None:
            assert old is not None
            outcomes.append(Outcome(old.site, old.case, label, "UNUSED", notes=("the script did not reach it",)))
        elif old is None:
            outcomes.append(missing(new.site, new.case, label, "the script made a call that has no golden"))
        else:
            outcomes.append(judge.outcome(old, dataclasses.replace(new, case=old.case)))
    return Check(
        tuple(judged_together(outcomes, judge.ledgers)),
        policy or Policy(),
        environment(),
        time.perf_counter() - started,
    )


def record_again(store: Store, into: Store, sites: Sequence[str] | None, cases: Sequence[str] | None) -> None:
    """--ab: run the recorded functions themselves, here and now, and write what they give to another store."""
    chosen = chosen_cases(store, sites, cases)
    goldens = [store.read(site, name) for site, names in chosen.items() for name in names]
    for old in goldens:
        for blob in set(blob_names(old)):
            into.put_blob(store.blob(blob).read_bytes(), Path(blob).suffix)
    with Session(into, {old.function: old.site for old in goldens}) as session:
        for old in goldens:
            new = session.call(old, old.function, {}, {}, frozenset())
            for blob in blob_names(new):
                into.put_blob((session.scratch.blobs() / blob).read_bytes(), Path(blob).suffix)
            into.write(dataclasses.replace(new, function=old.function))
    for site, said in store.settings().items():
        into.set_site(site, **said)
    for entry in store.accepted():
        into.accept(entry)
