"""Samples that are others: do they follow the settings, by themselves and together with those of the site?

The statistics are in draws.py and ties.py; here is which rows are asked, of what, and the verdict that follows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.golden import Case, GoldenError, Store, environment
from parity.judge import draws, own_loops, ties
from parity.judge.align import paired
from parity.judge.endings import leaves
from parity.judge.questions import NO_ADAPTER, OF_SEVERAL, Judged, asked_models, could_not, weights_of
from parity.judge.row import Row, backends_of, entry, is_drawn, same_backend, same_prompt, seeds_of
from parity.judge.session import COULD_NOT_JUDGE
from parity.record.rows import STRUCTURED
from parity.verdict import CAUSES, Cause, Outcome, Verdict, first_divergence

DRAWN_ALIKE = ("SAME-DISTRIBUTION", "SAME-SETTINGS")
LEAST_TEXTS, LEAST_SAMPLES, ALPHA = 10, 20, 0.01  # for comparing texts: fewer tell nothing

Ledgers = dict[tuple[str, str], draws.Ledger]  # (site, backend) -> its samples so far


@dataclass
class Samples:
    """Judges other samples under equal settings.   engine: of the last run, on which logits can be had.   resample: the
    new code again, with another seed.   paths: what the site's goldens were asked of."""

    store: Store
    backend: str
    engine: Callable[[], Any]
    resample: Callable[[Case, int], Case] | None
    ledgers: Ledgers
    paths: dict[Any, ties.OldPath] = dataclasses.field(default_factory=dict)

    def judged_draws(self, old: Case, new: Case) -> Judged:
        """Other draws under equal settings: do they follow them? (draws.py)"""
        try:
            theirs, mine = self.samples(old, new, old), self.samples(old, new, new)
        except COULD_NOT_JUDGE as error:
            off = self.off_its_seed(old, new)
            return self.permuted(old, new, str(error)) if off is None else ("DRIFT", off, ())
        ledger = self.ledger(old.site)
        before = draws.evidence_of(theirs, ledger.alpha)
        if before.breaks and before.fault != draws.COPY:
            if own_loops.of_own_loop(old):
                return "DRIFT", loop_drew_otherwise(before), ()
            said = f"the golden's own draws do not follow its settings: {before.sentence()}; record it again"
            return "ERROR", Cause("error", "confirmed", said), ()
        evidence = draws.evidence_of(mine, ledger.alpha, copied=not before.breaks)
        if evidence.breaks:
            cached = any((row.get("request") or {}).get("cached") for row in new.rows)
            return "DRIFT", drawn_otherwise(evidence, cached), ()
        ledger.add(old.case, mine)
        if own_loops.of_own_loop(old):
            ledger.own[old.case] = theirs
            return "SAME-SETTINGS", None, (evidence.sentence(),)  # until all are judged together
        with contextlib.suppress(*COULD_NOT_JUDGE):  # code without an engine is judged by its draws alone
            seen = [ties.same_draws(row, a, b) for _, row, a, b in self.readings(old, new) if is_drawn(row)]
            if in_float32(old, new) and (said := next((said for same, said in seen if not same), "")):
                if not ties.tells_its_logits(self.engine(), old.rows, self.store):
                    said = f"{CAUSES['post.other']}: the logits that it tells are not those of its log-probabilities"
                    return "LATENT", Cause("post.other", "likely", said), (evidence.sentence(),)
                return "DRIFT", Cause("numeric.shift", "confirmed", f"{CAUSES['numeric.shift']}: {said}"), ()
        if (off := self.off_its_seed(old, new)) is not None:
            return "DRIFT", off, (evidence.sentence(),)
        return ("SAME-DISTRIBUTION" if evidence.tells else "SAME-SETTINGS"), None, (evidence.sentence(),)

    def off_its_seed(self, old: Case, new: Case) -> Cause | None:
        """Why ids that are owed are others, by the rule of seeds in draws.py; None where all are there."""
        if not self.in_the_same_place(old):
            return None
        alike = len(old.rows) == len(new.rows) and all(map(same_prompt, old.rows, new.rows))
        for number, (mine, theirs) in enumerate(paired(old.rows, new.rows)):
            seed = draws.own_seed(mine)
            if seed is None or not owes_ids(mine, theirs, seed) or mine["output_ids"] == theirs["output_ids"]:
                continue
            step: int | None
            if backends_of(mine) == {"vllm"}:
                exact = alike or in_float32(old, new)
                step = first_divergence(mine["output_ids"], theirs["output_ids"]) if exact else None
            else:
                step = self.step_off_seed(old, new, mine, theirs, seed)
            if step is not None:
                said = f"row {number} has seed {seed} on both sides, and token {step} is not the one of this seed"
                proof = "same backend, versions, device and dtype: an equal seed gives equal ids"
                sure = alike and in_float32(old, new)  # where rows are missing, which seed is whose is not known
                return Cause("rng", "confirmed" if sure else "likely", said, proof)
        return None

    def step_off_seed(self, old: Case, new: Case, mine: Row, theirs: Row, seed: int) -> int | None:
        """Where a new row on hf leaves its seed, if the golden's does not; None where logits cannot be had."""
        place = next(place for place, row in enumerate(old.rows) if row is mine)
        with contextlib.suppress(*COULD_NOT_JUDGE):
            path = self.old_path(old, new, place)
            if draws.unreadable(mine) or draws.first_off_seed(mine, path.logits(mine), seed) is not None:
                return None
            asked = {**mine, "prompt_ids": theirs["prompt_ids"], "output_ids": theirs["output_ids"]}
            return draws.first_off_seed(asked, path.logits(asked), seed)
        return None

    def in_the_same_place(self, old: Case) -> bool:
        """Whether a golden was recorded with this machine's libraries and kind of device."""
        there, here = self.store.environment_of(old), environment()
        names = {"torch", "transformers", "device", "machine"} | (backends_of(*old.rows) & {"vllm"})
        return bool(there) and all(there.get(name) == here.get(name) for name in names)

    def samples(self, old: Case, new: Case, case: Case) -> list[draws.Sample]:
        """What a case's drawn rows, of one of both, say under the golden's settings. Raises GoldenError where that
        cannot be had."""
        found = list[draws.Sample]()
        sources, places = draws.streams(case.rows), {id(row): place for place, row in enumerate(old.rows)}
        asked_as = {id(row): places[id(golden)] for golden, row in paired(old.rows, case.rows)}
        for row, source in zip(case.rows, sources):
            place = asked_as.get(id(row), 0)
            golden = old.rows[place]
            asked = {**golden, "prompt_ids": row["prompt_ids"], "output_ids": row["output_ids"]}
            if why := draws.unreadable(asked):
                raise GoldenError(why)
            if is_drawn(golden):
                found.append(draws.sample_of(asked, self.old_path(old, new, place).logits(asked), source))
        return found

    def ledger(self, site: str) -> draws.Ledger:
        key = site, self.backend
        if key not in self.ledgers:
            goldens, _ = self.store.read_all([site])
            drawn = [ties.is_sampled(golden) or own_loops.of_own_loop(golden) for golden in goldens]
            self.ledgers[key] = draws.Ledger(sum(drawn))
        return self.ledgers[key]

    def permuted(self, old: Case, new: Case, why: str) -> Judged:
        """L3: texts of many draws against texts of many draws. why: what stands in the way of a stronger level. Where a
        structure does, equal settings are all that can be compared: the law of structures was asked before."""
        paths = [path for path, _ in leaves(old.value)]
        few = len(paths) < LEAST_TEXTS or len(old.samples) < LEAST_SAMPLES
        used = {name for row in (*old.rows, *new.rows) for name in entry(row, "sampling", "processors") or ()}
        if (few or self.resample is None) and used == {STRUCTURED}:
            return "SAME-SETTINGS", None, (f"{why}; to compare texts record with --samples {LEAST_SAMPLES}",)
        if few or self.resample is None:
            record = f"to compare texts record {LEAST_TEXTS} texts or more with --samples {LEAST_SAMPLES}"
            settings = "settings that were not seen" if own_loops.of_own_loop(old) else "equal settings"
            said = f"{settings}, other draws; {why}; {record}"
            if used and same_backend(old.rows[0], new.rows[0]) and seeded_alike(old, new):
                said = f"seeds and settings are equal, and what {', '.join(sorted(used))} does is not seen; {said}"
                return "DRIFT", Cause("sampling.processors", "likely", said), ()
            return could_not(said)
        before = columns(old.samples, paths)
        for first in (1, 1 + len(old.samples)):  # a rejection is drawn again: one in a hundred is chance
            seeds = range(first, first + len(old.samples))
            p = ties.permutation_p(before, columns([self.resample(old, seed).value for seed in seeds], paths))
            if p >= ALPHA:
                return "SAME-DISTRIBUTION", None, (f"by texts: p = {p:.3f} of {len(paths)} texts; {why}",)
        return "DRIFT", Cause("sampling.processors", "likely", f"other texts are drawn: p = {p:.3f}, twice; {why}"), ()

    def old_path(self, old: Case, new: Case, place: int) -> ties.OldPath:
        """What answered a golden's row, loaded again, once a site. Raises GoldenError."""
        weights = weights_of(old, new, place)
        if weights.adapter is None:
            raise GoldenError(NO_ADAPTER)
        model = {**old.rows[place]["model"], "path": weights.path}
        key = weights.path, weights.adapter, model.get("dtype")
        if key not in self.paths:
            self.paths[key] = ties.OldPath(model, self.store, weights.adapter)
        return self.paths[key]

    def readings(self, old: Case, new: Case) -> Iterator[tuple[int, Mapping[str, Any], Any, Any]]:
        """(number, row, old logits, new logits) of every row. Raises GoldenError where they cannot be had."""
        engine = self.engine()
        if engine is None:
            raise GoldenError("the moved code does not use gen_engine, so its logits cannot be read")
        for row in old.rows:
            if why := ties.unreadable(row):
                raise GoldenError(why)
        if len(asked_models(old, range(len(old.rows)))) > 1:
            raise GoldenError(OF_SEVERAL)
        path, adapter = self.old_path(old, new, 0), weights_of(old, new, 0).adapter or ""
        for number, (row, logits) in enumerate(zip(old.rows, ties.new_logits(engine, old.rows, self.store, adapter))):
            yield number, row, path.logits(row), logits


def owes_ids(old: Row, new: Row, seed: int) -> bool:
    """Whether two drawn rows of one prompt and seed, on one backend in one dtype, are to have the same ids. On the new
    side the seed must be the row's own: one of the process serves a batch, and what came before it."""
    drawn = is_drawn(old) and is_drawn(new) and same_prompt(old, new)
    dtypes = {row.get("model", {}).get("dtype") for row in (old, new)}
    own = seed_source(new) == "caller" and draws.own_seed(new) == seed
    return drawn and own and same_backend(old, new) and len(dtypes) == 1


def seed_source(row: Mapping[str, Any]) -> str | None:
    return (row.get("sampling", {}).get("seed") or {}).get("from")


def seeded_alike(old: Case, new: Case) -> bool:
    """Whether each draw has a seed on both sides, and the same."""
    seeds = [seeds_of(a) & seeds_of(b) for a, b in paired(old.rows, new.rows)]
    return bool(seeds) and all(seeds)


def in_float32(*cases: Case) -> bool:
    return all(row.get("model", {}).get("dtype") == "float32" for case in cases for row in case.rows)


def drawn_otherwise(evidence: draws.Evidence, cached: bool = False) -> Cause:
    """cached: some of the answers came out of a cache, where copies come from."""
    name = "rng" if evidence.fault == draws.COPY and evidence.impossible is None else "sampling.draw"
    if name == "rng" and cached:
        proof = "some of these answers came out of the cache"
        return Cause("cache.key", "likely", f"{CAUSES['cache.key']}: {evidence.sentence()}", proof)
    if evidence.fault == draws.BEST and evidence.impossible is None:
        name = "sampling.mode"
    said = "samples of one prompt are copies" if name == "rng" else CAUSES[name]
    proof = (
        f"computed by plain transformers under the golden's settings; by chance once in {1 / evidence.alpha:,.0f} runs"
    )
    return Cause(name, "confirmed", f"{said}: {evidence.sentence()}", proof)


def loop_drew_otherwise(evidence: draws.Evidence) -> Cause:
    name = "sampling.mode" if evidence.fault == draws.BEST and not evidence.impossible else "sampling.draw"
    said = f"the old code's own loop did not draw as the new code's settings say: {evidence.sentence()}"
    return Cause(name, "likely", f"{CAUSES[name]}: {said}")


def settle_samples(outcomes: Sequence[Outcome], ledgers: Ledgers) -> list[Outcome]:
    """Draws of a site's cases show together what each of them may be too few to show."""
    found = list(outcomes)
    for (site, backend), ledger in ledgers.items():
        evidence, own = ledger.together(), ledger.of_own_loops()
        for place, o in enumerate(found):
            if (o.site, o.backend) != (site, backend) or o.case not in ledger.samples or o.verdict not in DRAWN_ALIKE:
                continue
            if o.case in ledger.own and own is not None:
                found[place] = o = judged_loop(o, own)
            if o.verdict in DRAWN_ALIKE and evidence is not None and (evidence.breaks or evidence.tells):
                note = f"all cases of {site} together: {evidence.sentence()}"
                cause = drawn_otherwise(evidence) if evidence.breaks else None
                verdict: Verdict = "DRIFT" if cause else "SAME-DISTRIBUTION"
                found[place] = dataclasses.replace(o, verdict=verdict, cause=cause, notes=(*o.notes, note))
    return found


def judged_loop(outcome: Outcome, evidence: draws.Evidence) -> Outcome:
    """Of draws in a loop of the old code's own, whose settings were not seen: no equal settings are to be claimed."""
    if evidence.breaks:
        return dataclasses.replace(outcome, verdict="DRIFT", cause=loop_drew_otherwise(evidence))
    if evidence.tells:
        note = f"the old code's own loops drew as the new code says: {evidence.sentence()}"
        return dataclasses.replace(outcome, verdict="SAME-DISTRIBUTION", notes=(*outcome.notes, note))
    said = f"the old code draws in a loop of its own, by settings that are not seen: {evidence.sentence()}"
    verdict, cause, _ = could_not(f"{said}; record more calls of this site, or longer ones")
    return dataclasses.replace(outcome, verdict=verdict, cause=cause)


def columns(values: Sequence[Any], paths: Sequence[tuple[Any, ...]]) -> list[list[str]]:
    """The texts at each path, over several values; where a value has none there, an empty one."""
    found = [dict(leaves(value)) for value in values]
    return [[texts.get(path, "") for texts in found] for path in paths]
