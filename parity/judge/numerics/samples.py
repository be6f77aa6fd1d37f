"""Samples that differ: do they follow the settings, by themselves and together with their site's?

The statistics are in surprise.py; here is which rows are asked, and the verdict that follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Cause, Outcome, Verdict, first_divergence
from parity.judge.align import paired
from parity.judge.faults import COULD_NOT_JUDGE, raise_own_fault, skip_unjudgeable
from parity.judge.naming import named_cause
from parity.judge.numerics import seeds
from parity.judge.numerics.golden_rows import (
    engine_logits,
    has_logits_of_its_logprobs,
    is_recorded_here,
    token_row_of,
)
from parity.judge.numerics.processed import (
    Tensor,
    declared_settings,
    penalised_logits,
    why_not_sampled,
)
from parity.judge.numerics.questions import Judged, could_not
from parity.judge.numerics.reading import Reader
from parity.judge.numerics.surprise import (
    BEST,
    COPY,
    Evidence,
    Ledger,
    Sample,
    evidence_of,
    permutation_p,
    sample_of,
)
from parity.judge.numerics.weights import (
    NO_ADAPTER,
    OF_SEVERAL,
    in_float32,
    lends_adapter,
    models_of,
    weights_of,
)
from parity.judge.row import (
    Row,
    backends_of,
    entry,
    has_loop,
    is_drawn,
    may_be_sampled,
    request_of,
    same_backend,
    same_prompt,
    seeds_of,
)
from parity.judge.values import leaves
from parity.record.rows import STRUCTURED

FOLLOWS_SETTINGS = ("SAME-DISTRIBUTION", "SAME-SETTINGS")
SAME_P = 1e-3  # total variation of two float32 distributions that only rounding makes unequal
LEAST_TEXTS = 10  # fewer texts show nothing
LEAST_SAMPLES = 20  # of each text
ALPHA_OF_TEXTS = 0.01  # twice in a row

Ledgers = dict[tuple[str, str], Ledger]  # (site, backend) -> its samples so far


@dataclass
class Samples:
    """Judges other samples under equal settings.

    engine: of the last run, for its logits.   resample: the new code again, with another seed.
    paths: the checkpoints that a site's goldens were sampled from, loaded once.
    """

    store: Store
    backend: str
    engine: Callable[[], Any]
    resample: Callable[[Case, int], Case] | None
    ledgers: Ledgers
    paths: dict[Any, Reader] = field(default_factory=dict)

    def judge(self, old: Case, new: Case, *, count_copies: bool = True) -> Judged:
        """Other samples under equal settings: do they follow them?   count_copies: not where fewer
        answers are given, to a prompt that may be asked several times with one seed."""
        try:
            golden = self.samples_of(old, new, old)
            moved = self.samples_of(old, new, new)
        except COULD_NOT_JUDGE as error:
            raise_own_fault(error)
            if off := self.off_seed(old, new):
                return "DRIFT", off, ()
            return self.judge_texts(old, new, str(error))
        ledger = self.ledger(old.site)
        is_loop = has_loop(old)
        before = evidence_of(golden, ledger.alpha)
        if before.is_fault and before.fault != COPY:
            return judge_golden(before, is_loop=is_loop, has_lent_adapter=lends_adapter(old, new))
        counts = count_copies and not before.is_fault
        evidence = evidence_of(moved, ledger.alpha, count_copies=counts)
        if evidence.is_fault:
            return "DRIFT", cause_of_samples(evidence, is_cached(new)), ()
        ledger.samples[old.case] = moved
        if is_loop:  # until all are judged together
            ledger.own[old.case] = golden
            return "SAME-SETTINGS", None, (evidence.sentence(),)
        return self.judge_following(old, new, evidence)

    def judge_following(self, old: Case, new: Case, evidence: Evidence) -> Judged:
        """Samples that follow their settings, as far as they show it."""
        notes = (evidence.sentence(),)
        if unlike_now := self.by_logits(old, new):
            verdict, cause = unlike_now
            return verdict, cause, notes
        if off := self.off_seed(old, new):
            return "DRIFT", off, notes
        if evidence.can_tell:
            return "SAME-DISTRIBUTION", None, notes
        return "SAME-SETTINGS", None, notes

    def samples_of(self, old: Case, new: Case, case: Case) -> list[Sample]:
        """The sampled rows of `case`, one of both, under the golden's settings. Raises GoldenError
        where these cannot be computed."""
        golden_of = {id(row): golden for golden, row in paired(old.rows, case.rows)}
        samples = []
        for row, stream in zip(case.rows, seeds.streams(case.rows)):
            golden = golden_of.get(id(row), old.rows[0])
            asked = with_ids(golden, row)
            if why := why_not_sampled(asked):
                raise GoldenError(why)
            if is_drawn(golden):
                logits = self.old_logits(old, new, golden, asked)
                samples.append(sample_of(asked, logits, stream))
        return samples

    def old_logits(self, old: Case, new: Case, golden: Row, asked: Row) -> Tensor:
        """By what answered a golden's row, loaded again.   asked: that row, with the ids to read.
        Raises GoldenError."""
        place = next(k for k, row in enumerate(old.rows) if row is golden)
        weights = weights_of(old, new, place)
        if weights.adapter is None:
            raise GoldenError(NO_ADAPTER)
        if not weights.path:
            raise GoldenError("the golden does not say which checkpoint it was")
        key = (weights.path, weights.adapter, weights.dtype)
        if key not in self.paths:
            dtype = weights.dtype or "float32"
            self.paths[key] = Reader(weights.path, dtype, adapter=weights.adapter)
        return self.paths[key].logits(token_row_of(asked, self.store))

    def by_logits(self, old: Case, new: Case) -> tuple[Verdict, Cause] | None:
        """Both paths' distributions of the golden's tokens, in float32, where they are not one.
        Code without an engine is judged by its samples alone."""
        if not in_float32(old, new):
            return None
        with skip_unjudgeable():
            sentence = next(self.unlike_distributions(old, new), "")
            if not sentence:
                return None
            if has_logits_of_its_logprobs(self.engine(), old.rows, self.store):
                return "DRIFT", named_cause("numeric.shift", "confirmed", sentence)
            sentence = "the logits that it returns are not those of its log-probabilities"
            return "LATENT", named_cause("value", "likely", sentence)
        return None

    def unlike_distributions(self, old: Case, new: Case) -> Iterator[str]:
        """A sentence for each sampled row whose distributions differ. Raises GoldenError."""
        engine = self.engine()
        if engine is None:
            raise GoldenError("the moved code does not use gen_engine: its logits cannot be read")
        if len(models_of(old, range(len(old.rows)))) > 1:
            raise GoldenError(OF_SEVERAL)
        adapter = weights_of(old, new, 0).adapter or ""
        moved = engine_logits(engine, old.rows, self.store, adapter)
        for row, logits in zip(old.rows, moved):
            before = self.old_logits(old, new, row, row)
            if is_drawn(row) and (sentence := unlike(row, before, logits)):
                yield sentence

    def off_seed(self, old: Case, new: Case) -> Cause | None:
        """Why ids that are owed (seeds.py) are others; None where all are there."""
        if not is_recorded_here(old, self.store):
            return None
        is_aligned = have_same_prompts(old, new)
        is_exact = in_float32(old, new)
        for number, (golden, row) in enumerate(paired(old.rows, new.rows)):
            seed = seeds.own_seed(golden)
            if seed is None or not seeds.owes_ids(golden, row, seed):
                continue
            step: int | None = None
            if backends_of(golden) != {"vllm"}:
                step = self.step_off_seed(old, new, golden, row)
            elif is_exact:  # in half precision an equal seed is no equal sample in another batch
                step = first_divergence(golden["output_ids"], row["output_ids"])
            if step is not None:
                return cause_off_seed(number, seed, step, is_sure=is_aligned and is_exact)
        return None

    def step_off_seed(self, old: Case, new: Case, golden: Row, row: Row) -> int | None:
        """Where a new row on hf leaves its seed, if the golden's does not; None where logits cannot
        be read."""
        seed = seeds.own_seed(golden)
        is_same = golden["output_ids"] == row["output_ids"]
        if is_same or seed is None or why_not_sampled(golden):
            return None
        steps: list[int | None] = []
        with skip_unjudgeable():
            for asked in (golden, with_ids(golden, row)):
                logits = self.old_logits(old, new, golden, asked)
                steps.append(seeds.first_off_seed(asked, logits, seed))
        return steps[1] if len(steps) == 2 and steps[0] is None else None

    def ledger(self, site: str) -> Ledger:
        key = (site, self.backend)
        if key not in self.ledgers:
            goldens, _ = self.store.read_all([site])
            cases = sum(map(may_be_sampled, goldens))
            self.ledgers[key] = Ledger(cases)
        return self.ledgers[key]

    def judge_texts(self, old: Case, new: Case, why: str) -> Judged:
        """Many texts against many texts.   why: what stands in the way of anything better."""
        paths = [path for path, _ in leaves(old.value)]
        if len(paths) < LEAST_TEXTS or len(old.samples) < LEAST_SAMPLES or self.resample is None:
            return judge_few_texts(old, new, why)
        count = len(old.samples)
        before = columns(old.samples, paths)
        p = 0.0
        for first in (1, 1 + count):  # a rejection is sampled again: one in a hundred is chance
            again = [self.resample(old, first + k).value for k in range(count)]
            p = permutation_p(before, columns(again, paths))
            if p >= ALPHA_OF_TEXTS:
                note = f"by texts: p = {p:.3f} of {len(paths)} texts; {why}"
                return "SAME-DISTRIBUTION", None, (note,)
        sentence = f"other texts are sampled: p = {p:.3f}, twice; {why}"
        return "DRIFT", Cause("sampling.processors", "likely", sentence), ()


def have_same_prompts(old: Case, new: Case) -> bool:
    return len(old.rows) == len(new.rows) and all(map(same_prompt, old.rows, new.rows))


def cause_off_seed(number: int, seed: int, step: int, *, is_sure: bool) -> Cause:
    """is_sure: where rows are missing, which seed is whose is not known."""
    ids = f"token {step} is not the one of this seed"
    sentence = f"row {number} has seed {seed} on both sides, and {ids}"
    proof = "same backend, versions, device and dtype: an equal seed gives equal ids"
    return Cause("sampling.seed", "confirmed" if is_sure else "likely", sentence, proof)


def with_ids(golden: Row, row: Row) -> Row:
    """A row's ids under the golden's settings."""
    return {**golden, "prompt_ids": row["prompt_ids"], "output_ids": row["output_ids"]}


def unlike(row: Row, old: Tensor, new: Tensor) -> str:
    """How two paths' distributions of a row's tokens differ; "" where only by rounding. Without
    cuts, where rounding may take a token in or out.   old, new: raw logits, float32 [tokens,
    vocabulary]."""
    settings = declared_settings(row)
    before, after = (
        (penalised_logits(logits, row, settings, 0) / settings.temperature).softmax(-1)
        for logits in (old, new)
    )
    distance = float(((before - after).abs().sum(-1) / 2).max())
    if distance <= SAME_P:
        return ""
    return f"total variation ≤ {distance:.1e} over {len(before)} steps"


def judge_golden(evidence: Evidence, *, is_loop: bool, has_lent_adapter: bool) -> Judged:
    """The golden's own samples do not follow the settings."""
    if is_loop:
        return "DRIFT", cause_of_loop(evidence), ()
    if has_lent_adapter:
        whose = "under the adapter that the new code asks for, the golden's own samples"
        sentence = f"{whose} do not follow its settings: {evidence.sentence()}"
        return "DRIFT", named_cause("model.adapters", "likely", sentence), ()
    sentence = f"the golden's own samples do not follow its settings: {evidence.sentence()}"
    return "ERROR", Cause("error", "confirmed", f"{sentence}; record it again"), ()


def judge_few_texts(old: Case, new: Case, why: str) -> Judged:
    """Equal settings are all that can be compared. Under structured output that passes: whether
    the form is right was asked before."""
    used: set[str] = set()
    for row in (*old.rows, *new.rows):
        used.update(entry(row, "sampling", "processors") or ())
    if used == {STRUCTURED}:
        note = f"{why}; to compare texts record with --samples {LEAST_SAMPLES}"
        return "SAME-SETTINGS", None, (note,)
    is_loop = has_loop(old)
    settings = "settings that were not seen" if is_loop else "equal settings"
    record = f"record {LEAST_TEXTS} texts or more with --samples {LEAST_SAMPLES}"
    sentence = f"{settings}, other samples; {why}; to compare texts {record}"
    if used and same_backend(old.rows[0], new.rows[0]) and is_seeded_alike(old, new):
        names = ", ".join(sorted(used))
        sentence = f"seeds and settings are equal, and what {names} does is not seen; {sentence}"
        return "DRIFT", Cause("sampling.processors", "likely", sentence), ()
    return could_not(sentence)


def is_seeded_alike(old: Case, new: Case) -> bool:
    """Whether each sample has a seed on both sides, and the same."""
    pairs = paired(old.rows, new.rows)
    return bool(pairs) and all(seeds_of(a) & seeds_of(b) for a, b in pairs)


def is_cached(case: Case) -> bool:
    return any(request_of(row).get("cached") for row in case.rows)


def cause_of_samples(evidence: Evidence, is_cached: bool = False) -> Cause:
    """Of samples that do not follow.   is_cached: some came out of a cache, where copies come
    from."""
    sentence = evidence.sentence()
    once = f"by chance once in {1 / evidence.alpha:,.0f} runs"
    proof = f"computed by plain transformers under the golden's settings; {once}"
    if evidence.impossible is None and evidence.fault == COPY:
        if is_cached:
            proof = "some of these answers came out of the cache"
            return named_cause("cache", "likely", sentence, proof)
        copies = f"samples of one prompt are copies: {sentence}"
        return Cause("sampling.seed", "confirmed", copies, proof)
    return named_cause(name_of(evidence), "confirmed", sentence, proof)


def name_of(evidence: Evidence) -> str:
    is_greedy = evidence.impossible is None and evidence.fault == BEST
    return "sampling.mode" if is_greedy else "sampling.draws"


def cause_of_loop(evidence: Evidence) -> Cause:
    """Of the golden's samples in a custom decode loop."""
    loop = "the old code's own loop did not sample as the new code's settings say"
    return named_cause(name_of(evidence), "likely", f"{loop}: {evidence.sentence()}")


def columns(values: Sequence[Any], paths: Sequence[tuple[Any, ...]]) -> list[list[str]]:
    """The texts at each path, over several values; where a value has none there, an empty one."""
    texts_of = [dict(leaves(value)) for value in values]
    found = []
    for path in paths:
        found.append([texts.get(path, "") for texts in texts_of])
    return found


# == All of a site ==


def settle_samples(outcomes: Sequence[Outcome], ledgers: Ledgers) -> list[Outcome]:
    """Samples of a site's cases show together what each of them may be too few to show."""
    together = {key: ledger.together() for key, ledger in ledgers.items()}
    own = {key: ledger.of_own_loops() for key, ledger in ledgers.items()}
    settled = []
    for outcome in outcomes:
        key = (outcome.site, outcome.backend)
        ledger = ledgers.get(key)
        if ledger is not None and outcome.case in ledger.samples:
            if outcome.case in ledger.own:
                outcome = with_loop(outcome, own[key])
            outcome = with_site(outcome, together[key])
        settled.append(outcome)
    return settled


def with_site(outcome: Outcome, evidence: Evidence | None) -> Outcome:
    """By all samples of the site."""
    if evidence is None or outcome.verdict not in FOLLOWS_SETTINGS:
        return outcome
    note = f"all cases of {outcome.site} together: {evidence.sentence()}"
    notes = (*outcome.notes, note)
    if evidence.is_fault:
        cause = cause_of_samples(evidence)
        return dataclasses.replace(outcome, verdict="DRIFT", cause=cause, notes=notes)
    if evidence.can_tell:
        return dataclasses.replace(outcome, verdict="SAME-DISTRIBUTION", cause=None, notes=notes)
    return outcome


def with_loop(outcome: Outcome, evidence: Evidence | None) -> Outcome:
    """By what the old code sampled in a loop of its own, whose settings were not seen: without
    evidence no equal settings can be claimed."""
    if evidence is None or outcome.verdict not in FOLLOWS_SETTINGS:
        return outcome
    sentence = evidence.sentence()
    if evidence.is_fault:
        return dataclasses.replace(outcome, verdict="DRIFT", cause=cause_of_loop(evidence))
    if evidence.can_tell:
        note = f"the old code's own loops sampled as the new code says: {sentence}"
        notes = (*outcome.notes, note)
        return dataclasses.replace(outcome, verdict="SAME-DISTRIBUTION", notes=notes)
    loop = f"the old code samples in a loop of its own, by settings that are not seen: {sentence}"
    verdict, cause, _ = could_not(f"{loop}; record more calls of this site, or longer ones")
    return dataclasses.replace(outcome, verdict=verdict, cause=cause)
