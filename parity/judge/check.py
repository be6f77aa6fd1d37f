"""Runs the moved code on what the goldens hold, and judges. Writes nothing, ever.

    check_sites(Store("golden"), backends=("hf", "vllm"))    each golden's arguments through the moved function
    check_script(Store("golden"), ["python", "new.py"], …)   a whole script, observed as the old one was
    check_again(Store("golden"))                             --ab: the old function now against the new function now

sites.json says which functions are called (a golden is data: it cannot choose), where the moved code is (without it,
the function that was recorded is called again: code that was changed in place), what makes arguments that are no data,
and how engines are loaded for a check:

    {"summaries": {"functions": ["pkg.old:summarize"],                   those that `record --site` was told of
                   "moved": {"pkg.old": "pkg.new"},                      module to module, or function to function
                   "arguments": {"model": "pkg.setup:load_model"},       functions without arguments
                   "backends": ["hf", "vllm"],
                   "load": {"vllm": {"max_model_len": 1024}}}}

Moved code runs in a process of its own (worker.py): an exit, a crash or a hang is an ERROR of one case.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import inspect
import itertools
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from parity.golden import Case, GoldenError, Store, blob_names, chosen_cases, environment, objects_in
from parity.judge import compare, draws, laws, own_loops, ties
from parity.judge.endings import ADDED, leaves
from parity.judge.explain import (
    Inquiry,
    also_differs,
    backend_of,
    beside_rounding,
    by_cache,
    by_company,
    cause_of,
    declared_end,
    from_other_ids,
    up_to_followers,
)
from parity.judge.laws import Tools
from parity.judge.questions import (
    NO_ADAPTER,
    OF_SEVERAL,
    Judged,
    Question,
    asked_models,
    checkpoint_of,
    could_not,
    ends_elsewhere,
    kind_of,
    place_of,
    steps_of,
    weights_of,
)
from parity.judge.replay import Engines, Replay, readable
from parity.judge.revision import Revision
from parity.judge.worker import Died, Worker
from parity.record import observe
from parity.record.changing import as_recorded, changing, place_name, unchanged
from parity.record.recorder import Seen, Starting
from parity.record.rows import LIKELIEST, STRUCTURED
from parity.verdict import (
    CAUSES,
    Cause,
    Certainty,
    Check,
    Difference,
    Outcome,
    Policy,
    Verdict,
    equal,
    first_divergence,
)
from parity.verdict import Numerics as Measurement

if TYPE_CHECKING:
    from parity.judge.numerics import Numerics

Result = TypeVar("Result")
Progress = Callable[[str], None]
Run = Callable[[Case, Mapping[str, Any], frozenset[str]], Case | None]  # golden, load settings, parts put back -> new

LEAST_CHOSEN = 20  # tokens of a loop's own, all of them the likeliest: fewer tell nothing of how they were chosen
DRAWN_ALIKE = ("SAME-DISTRIBUTION", "SAME-SETTINGS")
LEAST_TEXTS, LEAST_SAMPLES, ALPHA = 10, 20, 0.01  # for comparing texts: fewer tell nothing
NOT_RUN = {"LoadError", "BackendMissing"}  # of an engine: says something of this machine, nothing of the moved code
# Newer releases encode pictures before the forward pass, which is then given one name for all of them.
PICTURES = {"pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "mm_encoder_outputs"}
SINCE_5 = {"mm_token_type_ids"}  # transformers 4 counts the kinds of tokens by itself
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
    numerics: Numerics | None = None
    today: datetime.date = dataclasses.field(default_factory=datetime.date.today)
    engine: Callable[[], Any] = lambda: None  # the engine of the last run, on which logits can be had
    resample: Callable[[Case, int], Case] | None = None  # the new code again, with another seed
    ledgers: dict[str, draws.Ledger] = dataclasses.field(default_factory=dict)  # site -> its draws so far
    seeds: dict[str, set[int]] = dataclasses.field(default_factory=dict)  # site -> those that its new code gave so far
    greedy: dict[str, bool] = dataclasses.field(default_factory=dict)  # site -> its own loops take the likeliest
    seeded: dict[str, bool] = dataclasses.field(default_factory=dict)  # site -> its script seeds before each call
    paths: dict[Any, ties.OldPath] = dataclasses.field(default_factory=dict)  # what the site's goldens were asked of

    def outcome(self, old: Case, new: Case, seconds: float = 0.0) -> Outcome:
        greedy = own_loops.of_own_loop(old) and self.only_the_likeliest(old.site)
        old, new = own_loops.as_declared(*own_loops.of_one_kind(old, new), greedy)
        found = self.without_chance(old, new, self.of_this_release(old, compare.differences(old, new)))
        found = (*found, *self.seeded_again(old, new), *self.seeds_of_the_script(old, new))
        steps: list[str] = []
        verdict, cause, notes = self.asked(old, new, self.verdict(old, new, found, steps))
        if old.changing:
            parts = ", ".join(place_name(part["at"]) for part in old.changing)
            notes = (*notes, f"not compared, for the old code gives another one each time: {parts}")
        accepted = accepted_by(self.store, old, self.backend, cause, self.today)
        also: tuple[str, ...] = ()
        if cause is not None and verdict in ("DRIFT", "LATENT"):
            also = also_differs(Inquiry(old, new, found, tools=tools_of(old)), cause)
        return Outcome(
            old.site, old.case, self.backend, "ACCEPTED" if accepted else verdict, found, cause, old.to_json(),
            new.to_json(), accepted, notes, seconds, tuple(steps), also,
        )  # fmt: skip

    def only_the_likeliest(self, site: str) -> bool:
        """Whether a loop of the old code's own never took any other token, over enough of them to say so, nor random
        numbers of the process: what is drawn may well be the likeliest."""
        if site not in self.greedy:
            loops = [row for golden in self.goldens(site) for row in golden.rows if row.get("loop")]
            enough = sum(len(row["output_ids"]) for row in loops) >= LEAST_CHOSEN
            self.greedy[site] = enough and all(row["loop"] == LIKELIEST and not compare.drew(row) for row in loops)
        return self.greedy[site]

    def goldens(self, site: str) -> Iterator[Case]:
        for name in self.store.names(site):
            with contextlib.suppress(GoldenError):  # said when its turn comes
                yield self.store.read(site, name)

    def of_this_release(self, old: Case, found: tuple[Difference, ...]) -> tuple[Difference, ...]:
        """Under which names pictures reach a forward pass is up to transformers' release: against a golden of another
        one they are told, and fail nothing by themselves. All other names count."""
        there, here = self.store.environment_of(old).get("transformers"), version("transformers")
        if there is None or there == here:
            return found
        unnamed = () if there.partition(".")[0] == here.partition(".")[0] else SINCE_5

        def names(keys: Sequence[str]) -> set[str]:
            return {"pictures" if name in PICTURES else name for name in keys if name not in unnamed}

        def renamed(d: Difference) -> bool:
            return (d.stage, d.field) == ("batch", "keys") and names(d.old) == names(d.new)

        return tuple(dataclasses.replace(d, counts=d.counts and not renamed(d)) for d in found)

    def without_chance(self, old: Case, new: Case, found: tuple[Difference, ...]) -> tuple[Difference, ...]:
        """Seeds that the new code draws by itself, where the old code had none, say no more than none: those are others
        when the process has another seed."""

        def added(d: Difference) -> bool:
            return (d.stage, d.field, d.old) == ("sampling", "seed", None)

        if self.resample is None or not any(map(added, found)):
            return found
        pairs = compare.paired(new.rows, self.resample(old, observe.SEED + 1).rows)
        drawn = bool(pairs) and all(not compare.seeds_of(a) & compare.seeds_of(b) for a, b in pairs)
        return tuple(dataclasses.replace(d, counts=d.counts and not (drawn and added(d))) for d in found)

    def seeded_again(self, old: Case, new: Case) -> Iterator[Difference]:
        """A seed that the new code gives in call after call, where a script seeded the process, once: its calls drew
        other numbers each. A seed that is an argument is the caller's."""
        known, given = self.seeds.setdefault(old.site, set()), {n for _, n in leaves(dict(old.arguments), kind=int)}
        drawn = (pair for pair in compare.paired(old.rows, new.rows) if all(map(compare.is_drawn, pair)))
        asked = [b for a, b in drawn if (seed_source(a), seed_source(b)) == ("script", "caller")]
        mine = {seed for row in asked for seed in compare.seeds_of(row) - given}
        if mine and mine <= known:
            yield Difference("sampling", "seed", "what the script had seeded", min(mine), 0)
        known |= mine

    def seeds_of_the_script(self, old: Case, new: Case) -> Iterator[Difference]:
        """The seed that a script gave before each call of a site and that the new rows lack: as
        their own, or, where the whole script runs again, as its. A function that is called alone
        and samples with the process's generator cannot have it."""
        if not self.is_seeded_each_time(old.site):
            return
        for number, (mine, theirs) in enumerate(compare.paired(old.rows, new.rows)):
            seed, again = script_seed(mine), script_seed(theirs)
            left_out = self.resample is not None and seed_source(theirs) == "nobody"
            if seed is None or not compare.is_drawn(theirs) or left_out:
                continue
            if seed != again and seed not in compare.seeds_of(theirs):
                new_seed = min(compare.seeds_of(theirs), default=again)
                yield Difference("sampling", "seed", seed, new_seed, number)
                return

    def is_seeded_each_time(self, site: str) -> bool:
        """Whether a script gave a seed before each of several calls. One that was given before the
        first call alone says nothing of the others."""
        if site not in self.seeded:
            drawn = [[row for row in golden.rows if compare.is_drawn(row)] for golden in self.goldens(site)]
            calls = [rows for rows in drawn if rows]
            told = all(script_seed(row) is not None for rows in calls for row in rows)
            self.seeded[site] = told and len(calls) > 1
        return self.seeded[site]

    def verdict(self, old: Case, new: Case, found: Sequence[Difference], steps: list[str]) -> Judged:
        if old.repeats is False:
            said = "the old code gave another value when it was recorded twice"
            return "UNSTABLE", Cause("nondeterminism", "confirmed", said), ()
        if old.raised is not None and new.raised is not None and old.raised != new.raised:
            return "DRIFT", raised_cause(old.raised, new.raised, steps), ()
        if (followed := self.followed_draws(old, new, found, steps)) is not None:
            return followed
        if not any(d.stage == "value" for d in found):
            return self.same_value(old, new, found)
        tools = tools_of(old)
        inquiry = Inquiry(
            old, new, found, tools.decode, functools.partial(self.again, old), tools, steps, lambda: self.company(old)
        )
        if self.only_drawn(old, new, found) and not inquiry.broken:
            if (known := by_cache(inquiry) or own_loops.own_ends(old, new, tools.decode)) is not None:
                return "DRIFT", known, ()
            judged = self.judged_draws(old, new)
            texts, gap = from_other_ids(inquiry) if judged[0] in DRAWN_ALIKE else (None, 0.0)
            return judged if texts is None or (gap and not in_float32(old, new)) else ("DRIFT", texts, judged[2])
        if (beside := self.drawn_beside(old, new, found)) is not None and not inquiry.broken:
            return beside
        first = up_to_followers(inquiry)
        cause = cause_of(first)
        if cause is not None and cause.name == "post.other" and (parts := self.changing(old, new)):
            return could_not(
                f"the new code gives another {', '.join(parts)} each time that it is run, and of the old code that is "
                "not known; record it with --repeat 2"
            )
        return ("DRIFT", cause, ()) if cause is not None else self.rounding(first, inquiry)

    def followed_draws(self, old: Case, new: Case, found: Sequence[Difference], steps: list[str]) -> Judged | None:
        """Draws that are others, where more was asked with what they gave: those draws are judged, and of the golden's
        own ones the new code is to ask for, and to make, what the old code did."""
        if (parts := compare.up_to_draws(old, new)) is None:
            return None
        tools, differences = tools_of(old), compare.differences(*parts)
        if not self.only_drawn(*parts, differences) or any(laws.broken_by_new(*parts, tools)):
            return None
        verdict, cause, notes = self.judged_draws(*parts)
        if verdict not in DRAWN_ALIKE:
            return verdict, cause, notes
        again = functools.partial(self.again, old)
        inquiry = Inquiry(old, new, found, tools.decode, again, tools, steps)
        steps.append(f"of {len(parts[0].rows)} rows nothing but draws differs, and the rest follows from them")
        texts, gap = from_other_ids(inquiry, followed=True)
        return (
            (verdict, None, notes) if texts is None or (gap and not in_float32(old, new)) else ("DRIFT", texts, notes)
        )

    def again(self, old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        """A replay, whose rows are of the golden's kind; None where it cannot be made."""
        try:
            made = self.run(old, load, parts)
        except GoldenError:
            return None
        return made and own_loops.of_one_kind(old, made)[1]

    def changing(self, old: Case, new: Case) -> list[str]:
        """Parts of the new value that are others when the new code is run again, if they are all that differs."""
        time.sleep(1)  # for a clock of whole seconds
        again = self.again(old, {}, frozenset())
        if again is None or not compare.same_ids(new, again) or not compare.same_ids(old, new):
            return []
        try:
            parts = changing([new.value, again.value])
        except ValueError:
            return []
        same = equal(old.value, unchanged(parts, old.value, new.value))
        return [place_name(part["at"]) for part in parts] if same else []

    def same_value(self, old: Case, new: Case, found: Sequence[Difference]) -> Judged:
        named = [(name, d) for name, d in compare.suspects(old, new, found) if d.counts]
        if named:
            name, difference = named[0]
            proof = "seen directly; on this case the value does not show it"
            own_choice = name == "sampling.mode" and own_loops.of_own_loop(old)  # of which no settings were seen
            rows = compare.paired(old.rows, new.rows)[difference.row or 0]
            criterion = (difference.stage, difference.field) == ("stop", "criteria")  # a value may be cut by hand, too
            unsure = own_choice or criterion or compare.may_be_written(name, *rows)
            certainty: Certainty = "likely" if unsure else "confirmed"
            return "LATENT", Cause(name, certainty, f"{CAUSES[name]}: {difference.sentence()}", proof), ()
        told = ("text", "end") if compare.same_ids(old, new) else ("text",)  # by the value and the ids themselves
        if broken := next((b for b in laws.broken_by_new(old, new, tools_of(old)) if b.law not in told), None):
            proof = f"the law of the stage '{broken.law}' is broken by the new side alone; the value does not show it"
            said = f"{CAUSES[broken.cause]}: row {broken.row}: {broken.sentence}"
            return "LATENT", Cause(broken.cause, "likely", said, proof), ()
        if 0 < len(old.rows) != len(new.rows) and (said := asked_otherwise(old, new)):
            proof = "seen directly; the value does not show it"
            return "LATENT", Cause("post.other", "likely", said, proof), ()
        if (flag := next((d for d in found if is_skip_special(d)), None)) and decoded_once(old, new):
            return "LATENT", flag_that_shows_elsewhere(flag), ()
        if self.only_drawn(old, new, found):
            _, cause, notes = self.judged_draws(old, new)
            wrong = cause is not None and cause.certainty == "confirmed"
            return ("LATENT", cause, notes) if wrong else ("TEXT-IDENTICAL", None, notes)
        seen = not any(compare.unseen(a, b) for a, b in compare.paired(old.rows, new.rows))
        return ("IDENTICAL" if seen and compare.same_ids(old, new) else "TEXT-IDENTICAL"), None, ()

    def asked(self, old: Case, new: Case, judged: Judged) -> Judged:
        """Ask for the site's numerics where this verdict hangs on them, beside what `rounding` asks."""
        if self.numerics is None or not old.rows or not new.rows:
            return judged
        kind = kind_of(old, new, judged, self.numerics.always)
        if kind is None:
            return judged
        if (place := place_of(old, new, kind)) is None:
            return could_not(OF_SEVERAL)
        self.numerics.ask(Question(old, new, self.backend, kind, judged, place=place))
        return judged

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

    def company(self, old: Case) -> float | None:
        """How far neighbours move the log-probabilities of the golden's tokens, in nats; None: not to be had."""
        try:
            self.run(old, {}, frozenset())  # on the site's own engine: that of a replay may have one place only
            engine = self.engine()
            return None if engine is None else ties.moved_by_company(engine, old.rows, self.store)
        except (*COULD_NOT_JUDGE, ValueError, RuntimeError):  # an engine's own errors are these, too
            return None

    def rounding(self, inquiry: Inquiry, whole: Inquiry) -> Judged:
        """Nothing but arithmetic is left: the site's numerics decide, when all cases were run; until then, no one.
        whole: with what follows from the answers that part."""
        if ends_elsewhere(inquiry.old, inquiry.new) or not steps_of(inquiry.old, inquiry.new):
            said = "one answer is the beginning of the other: where it ends was not the model's choice"
            stops = any(
                compare.entry(row, "stop", name) for row in inquiry.old.rows for name in ("strings", "criteria")
            )
            cause = own_loops.ended_by(inquiry.old, inquiry.new, inquiry.decode) or declared_end(whole)
            if cause is not None:
                return "DRIFT", cause, ()
            return "DRIFT", by_company(inquiry) or Cause("stop.rule", "likely" if stops else "unattributed", said), ()
        if (place := place_of(inquiry.old, inquiry.new, "parted")) is None:
            return could_not(OF_SEVERAL)
        judged = could_not("the numerics of its site were not read")
        if self.numerics is not None:
            company, beside = by_company(inquiry), beside_rounding(whole)
            asked = Question(inquiry.old, inquiry.new, self.backend, "parted", judged, company, *beside, place=place)
            self.numerics.ask(asked)
        return judged

    def only_drawn(self, old: Case, new: Case, found: Sequence[Difference]) -> bool:
        """Whether there are other draws under equal settings (L0) and seeds (L1), and nothing else that differs."""
        drawn = ties.is_sampled(old) and ties.is_sampled(new) and not compare.same_ids(old, new)
        drawn = drawn and len(old.rows) == len(new.rows)
        return drawn and not any(difference.counts for _, difference in compare.suspects(old, new, found))

    def drawn_beside(self, old: Case, new: Case, found: Sequence[Difference]) -> Judged | None:
        """Other draws, and differences that are no settings of drawing: where the draws follow the settings, whether a
        value shows more than them is luck, so such a difference is LATENT whatever the luck; but where a row ends is
        no matter of luck, and changes values."""
        named = [(name, d) for name, d in compare.suspects(old, new, found) if d.counts]
        drawn = ties.is_sampled(old) and ties.is_sampled(new) and not compare.same_ids(old, new)
        if not drawn or len(old.rows) != len(new.rows) or not named:
            return None
        if any(not name.startswith(("model.attn", "batch.", "stop.")) for name, _ in named):
            return None
        verdict, _, notes = self.judged_draws(old, new)
        if verdict not in DRAWN_ALIKE:
            return None
        name, difference = named[0]
        proof = "seen directly; the draws follow the golden's settings"
        verdict = "DRIFT" if name.startswith("stop.") else "LATENT"
        return verdict, Cause(name, "confirmed", f"{CAUSES[name]}: {difference.sentence()}", proof), notes

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
            seen = [ties.same_draws(row, a, b) for _, row, a, b in self.readings(old, new) if compare.is_drawn(row)]
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
        alike = len(old.rows) == len(new.rows) and all(map(compare.same_prompt, old.rows, new.rows))
        for number, (mine, theirs) in enumerate(compare.paired(old.rows, new.rows)):
            seed = draws.own_seed(mine)
            if seed is None or not owes_ids(mine, theirs, seed) or mine["output_ids"] == theirs["output_ids"]:
                continue
            step: int | None
            if compare.backends_of(mine) == {"vllm"}:
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

    def step_off_seed(self, old: Case, new: Case, mine: compare.Row, theirs: compare.Row, seed: int) -> int | None:
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
        names = {"torch", "transformers", "device", "machine"} | (compare.backends_of(*old.rows) & {"vllm"})
        return bool(there) and all(there.get(name) == here.get(name) for name in names)

    def samples(self, old: Case, new: Case, case: Case) -> list[draws.Sample]:
        """What a case's drawn rows, of one of both, say under the golden's settings. Raises GoldenError where that
        cannot be had."""
        found = list[draws.Sample]()
        sources, places = draws.streams(case.rows), {id(row): place for place, row in enumerate(old.rows)}
        asked_as = {id(row): places[id(golden)] for golden, row in compare.paired(old.rows, case.rows)}
        for row, source in zip(case.rows, sources):
            place = asked_as.get(id(row), 0)
            golden = old.rows[place]
            asked = {**golden, "prompt_ids": row["prompt_ids"], "output_ids": row["output_ids"]}
            if why := draws.unreadable(asked):
                raise GoldenError(why)
            if compare.is_drawn(golden):
                found.append(draws.sample_of(asked, self.old_path(old, new, place).logits(asked), source))
        return found

    def ledger(self, site: str) -> draws.Ledger:
        if site not in self.ledgers:
            drawn = [ties.is_sampled(golden) or own_loops.of_own_loop(golden) for golden in self.goldens(site)]
            self.ledgers[site] = draws.Ledger(sum(drawn))
        return self.ledgers[site]

    def permuted(self, old: Case, new: Case, why: str) -> Judged:
        """L3: texts of many draws against texts of many draws. why: what stands in the way of a stronger level. Where a
        structure does, equal settings are all that can be compared: the law of structures was asked before."""
        paths = [path for path, _ in leaves(old.value)]
        few = len(paths) < LEAST_TEXTS or len(old.samples) < LEAST_SAMPLES
        used = {name for row in (*old.rows, *new.rows) for name in compare.entry(row, "sampling", "processors") or ()}
        if (few or self.resample is None) and used == {STRUCTURED}:
            return "SAME-SETTINGS", None, (f"{why}; to compare texts record with --samples {LEAST_SAMPLES}",)
        if few or self.resample is None:
            record = f"to compare texts record {LEAST_TEXTS} texts or more with --samples {LEAST_SAMPLES}"
            settings = "settings that were not seen" if own_loops.of_own_loop(old) else "equal settings"
            said = f"{settings}, other draws; {why}; {record}"
            if used and compare.same_backend(old.rows[0], new.rows[0]) and seeded_alike(old, new):
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


def owes_ids(old: compare.Row, new: compare.Row, seed: int) -> bool:
    """Whether two drawn rows of one prompt and seed, on one backend in one dtype, are to have the same ids. On the new
    side the seed must be the row's own: one of the process serves a batch, and what came before it."""
    drawn = compare.is_drawn(old) and compare.is_drawn(new) and compare.same_prompt(old, new)
    dtypes = {row.get("model", {}).get("dtype") for row in (old, new)}
    own = seed_source(new) == "caller" and draws.own_seed(new) == seed
    return drawn and own and compare.same_backend(old, new) and len(dtypes) == 1


def seed_source(row: Mapping[str, Any]) -> str | None:
    return (row.get("sampling", {}).get("seed") or {}).get("from")


def script_seed(row: Mapping[str, Any]) -> int | None:
    found: int | None = (row.get("request") or {}).get("script_seed")
    return found


def seeded_alike(old: Case, new: Case) -> bool:
    """Whether each draw has a seed on both sides, and the same."""
    seeds = [compare.seeds_of(a) & compare.seeds_of(b) for a, b in compare.paired(old.rows, new.rows)]
    return bool(seeds) and all(seeds)


def in_float32(*cases: Case) -> bool:
    return all(row.get("model", {}).get("dtype") == "float32" for case in cases for row in case.rows)


def asked_otherwise(old: Case, new: Case) -> str:
    """Which prompt only one side asks for; what is asked for twice may be answered once."""
    before, after = ({tuple(row["prompt_ids"]) for row in case.rows if not read_in_vain(row)} for case in (old, new))
    plugins = any(compare.entry(row, "sampling", "processors") for row in new.rows)  # which read what they like
    if before == after or (plugins and own_loops.of_own_loop(old)):
        return ""
    read = {tuple(row["prompt_ids"]) for row in old.rows if row.get("scored")}
    gone = {ids for ids in before - after if ids not in read or not any(ids == whole[: len(ids)] for whole in after)}
    if gone:  # not one that was only read, and is read as the beginning of another one
        return f"of {len(before)} prompts {len(gone)} did not reach the model"
    parts = {ids for ids in after - before if any(ids == whole[: len(ids)] for whole in before)}
    more = len(after - before - parts)  # what was read as a whole may be asked in parts: a prompt, and its answer
    return f"{more} prompts reached the model that had not" if more else ""


def read_in_vain(row: compare.Row) -> bool:
    """Whether a loss was asked for of which no token counts."""
    return bool((row.get("request") or {}).get("labels") == "none")


def is_skip_special(difference: Difference) -> bool:
    return (difference.stage, difference.field) == ("decode", "skip_special_tokens")


def flag_that_shows_elsewhere(difference: Difference) -> Cause:
    """Special tokens that only one side drops, where no answer of the case holds any. Code that takes
    an engine's raw text has them whatever its options say, so where they went it is likely."""
    name, proof = "decode.skip_special", "seen directly; on this case the value does not show it"
    said = f"{CAUSES[name]}: {difference.sentence()}"
    if difference.new:
        return Cause(name, "likely", said, f"{proof}; unless the new code takes the engine's raw text")
    return Cause(name, "confirmed", said, proof)


def decoded_once(old: Case, new: Case) -> bool:
    """Whether each row became text once, and the same text (with or without its prompt): of several ways the value may
    use any."""
    if not all("decode" in row and "decodes" not in row for row in (*old.rows, *new.rows)):
        return False
    texts = [(a.get("text") or "", b.get("text") or "") for a, b in compare.paired(old.rows, new.rows)]
    return all(one.endswith(other) or other.endswith(one) for one, other in texts)


def raised_cause(old: str, new: str, steps: list[str]) -> Cause:
    """Both sides raise, and not the same: by type and message, as they are printed."""
    what = "exception" if old.partition(":")[0] != new.partition(":")[0] else "message"
    steps.append(f"both sides raise; the {what} is another one")
    return Cause("error", "confirmed", f"the old code raised {old}, the new code raises {new}", "seen directly")


def accepted_by(store: Store, old: Case, backend: str, cause: Cause | None, today: datetime.date) -> str:
    """Why a cause is wanted, and until when; "" if no one said so."""
    for entry in store.accepted() if cause is not None else ():
        if cause is not None and entry.covers(old.site, old.case, backend, cause.name, today):
            return f"{entry.reason} (until {entry.until})"
    return ""


def settled(store: Store, numerics: Numerics, outcome: Outcome) -> Outcome:
    """An outcome as its site's numerics make it."""
    answer = numerics.answer(outcome)
    if answer is None or outcome.verdict == "ACCEPTED":
        return outcome
    verdict, cause, notes = answer
    old = Case(outcome.site, outcome.case)
    accepted = accepted_by(store, old, outcome.backend, cause, datetime.date.today())
    verdict = "ACCEPTED" if accepted else verdict
    return dataclasses.replace(outcome, verdict=verdict, cause=cause, notes=notes, accepted=accepted)


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


def judged_together(outcomes: Sequence[Outcome], ledgers: Mapping[str, draws.Ledger]) -> list[Outcome]:
    """Draws of a site's cases show together what each of them may be too few to show."""
    found = list(outcomes)
    for site, ledger in ledgers.items():
        evidence, own = ledger.together(), ledger.of_own_loops()
        for place, o in enumerate(found):
            if o.site != site or o.case not in ledger.samples or o.verdict not in DRAWN_ALIKE:
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


_tokenizers: dict[str, Any] = {}


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
    added = tokenizer.added_tokens_decoder

    def decode(ids: Sequence[int], skip: bool | str, clean: bool) -> str:
        own = [i for i in ids if i not in added] if skip == ADDED else list(ids)
        text: str = tokenizer.decode(own, skip_special_tokens=bool(skip), clean_up_tokenization_spaces=clean)
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

    def __init__(self, store: Store, functions: Mapping[str, str], factories: Factories | None = None) -> None:
        """functions: "module:attribute" -> its site.   factories: what makes arguments that are no data."""
        self.factories, self.objects = factories or {}, dict[str, Any]()
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
        self.forget()
        sys.modules.update(self.aside)
        self.folder.cleanup()

    def forget(self) -> None:
        """Close all engines, and forget the modules and the objects that hold them."""
        self.engines.close()
        for engine in list(self.observer.opened):
            engine.close()
        for name in own_modules():
            del sys.modules[name]
        self.objects.clear()

    def call(self, old: Case, function: str, load: Mapping[str, Any], per_backend: Any, parts: frozenset[str]) -> Case:
        """One golden's arguments through `function`. Raises GoldenError if that cannot be done or seen."""
        self.replay = Replay(self.engines, load, per_backend, parts, old.rows, self.store)
        self.observer.replay = self.replay
        called = loaded(function)
        args, kwargs = spread(called, self.given(old, called))
        self.found.clear()
        self.observer.failures.clear()
        try:
            # What it raises is its answer, and the recording holds it.
            with observe.case(old.case), contextlib.suppress(Exception):
                called(*args, **kwargs)
        except SystemExit as end:
            if not (old.raised or "").startswith("SystemExit"):
                raise GoldenError(
                    f"{function} ended the process: sys.exit({end.code!r}); let it return or raise"
                ) from None
        finally:
            self.observer.replay = None  # the judge asks the engine, too
        if self.observer.failures or not self.found:
            why = "; ".join(self.observer.failures) or "its call was not seen (was it wrapped by another decorator?)"
            raise GoldenError(f"{function} could not be observed: {why}")
        new = self.found[-1]
        refuse_not_run(old, new)
        return dataclasses.replace(as_recorded(old, new), case=old.case, samples=())

    def given(self, old: Case, called: Callable[..., Any]) -> dict[str, Any]:
        """The arguments of a call. One that was an object comes from its factory, or is left out if nobody takes it."""
        makers, wanted = self.factories.get(old.site, {}), taken(called)
        data = {
            name: value
            for name, value in old.arguments.items()
            if not (objects_in(value) or (name in makers and holds_records(value)))
            or (name in wanted and name not in makers)
        }
        if lost := sorted(name for name, value in data.items() if objects_in(value)):
            kind = objects_in(data[lost[0]])[0]
            raise GoldenError(
                f"the argument {lost[0]!r} was a {kind}, which is no data; say in sites.json what makes one, "
                f'"arguments": {{"{lost[0]}": "pkg.setup:make"}}, or check the script as a whole: `check -- python ...`'
            )
        arguments: dict[str, Any] = self.store.restore(data, Path(self.folder.name) / "files")
        return {**{name: self.made(makers[name]) for name in makers if name in wanted - arguments.keys()}, **arguments}

    def made(self, factory: str) -> Any:
        """What a factory of sites.json makes, once for all cases."""
        if factory not in self.objects:
            try:
                self.objects[factory] = loaded(factory)()
            except (Exception, SystemExit) as error:  # whatever their code raises
                said = f"{type(error).__name__}: {error}"
                raise GoldenError(f"{factory}, which sites.json names for an argument, failed: {said}") from error
        return self.objects[factory]

    def resample(self, run: Run, old: Case, seed: int) -> Case:
        """The call with another seed of the process."""
        before, self.observer.seed = self.observer.seed, seed
        try:
            new = run(old, {}, frozenset())
        finally:
            self.observer.seed = before
        assert new is not None
        return new

    def ran(self) -> list[Any]:
        """The engines of the last call as they ran, one of each model."""
        return [] if self.replay is None else [*self.replay.ran.values()]

    def engine(self) -> Any:
        """The engine of the last call, loaded so that logits can be read."""
        if self.replay is None or self.replay.used is None:
            return None
        return readable(self.replay.used, self.engines, hooked=True)


def holds_records(value: Any) -> bool:
    """Whether a recorded argument was an object that a golden holds by its fields."""
    return any(objects_in(value, key) for key in ("$record", "$settings"))


def refuse_not_run(old: Case, new: Case) -> None:
    """Raise GoldenError where an engine could not be loaded: that says nothing of the moved code."""
    if old.raised is None and (new.raised or "").split(":")[0] in NOT_RUN:
        raise GoldenError(f"the moved code could not be run here: {new.raised}")


Factories = Mapping[str, Mapping[str, str]]  # site -> argument -> "pkg.setup:make"


def loaded(function: str) -> Callable[..., Any]:
    """A function of the code under test. Raises GoldenError, LookupError or ImportError, whatever importing it does."""
    try:
        return observe.load_function(function)
    except COULD_NOT_JUDGE:
        raise
    except (Exception, SystemExit) as error:  # their module may raise anything, or end the process
        raise GoldenError(f"{function} could not be imported: {type(error).__name__}: {error}") from error


def taken(function: Callable[..., Any]) -> set[str]:
    """Names of the parameters of a function; *args and **kwargs are none."""
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def spread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Recorded arguments as a call takes them: by name, but by place where the function wants it so, or has *args."""
    args, kwargs = [], dict(arguments)
    parameters = inspect.signature(function).parameters.values()
    if any(p.name == "self" for p in parameters) and "self" not in kwargs:
        raise GoldenError(
            "it is a method, and its object is no data; say in sites.json what makes one, "
            '"arguments": {"self": "pkg.setup:make"}, or check the script as a whole: `check -- python ...`'
        )
    filled = any(p.kind is p.VAR_POSITIONAL and p.name in kwargs for p in parameters)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            args += kwargs.pop(p.name, ())
        elif p.name in kwargs and (p.kind is p.POSITIONAL_ONLY or (filled and p.kind is p.POSITIONAL_OR_KEYWORD)):
            args.append(kwargs.pop(p.name))
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise GoldenError(
            f"the moved function does not take what was recorded: {error}; give it the old parameters, or say in "
            'sites.json what makes a new one: "arguments": {"NAME": "pkg.setup:make"}'
        ) from None
    return args, kwargs


def missing(site: str, case: str, backend: str, why: str) -> Outcome:
    return Outcome(site, case, backend, "MISSING", notes=(why,))


def error_outcome(site: str, case: str, backend: str, error: BaseException | str) -> Outcome:
    cause = Cause("error", "unattributed", f"could not judge: {error}")
    return Outcome(site, case, backend, "ERROR", cause=cause)


def of_one_case(error: Exception) -> str:
    """What is said of an error that ends one case: its words where they are meant for this, else also where it was."""
    if isinstance(error, COULD_NOT_JUDGE):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


Item = tuple[str, str, str]  # backend, site, case

TIME_LIMIT = 600.0  # seconds that one case may take, with loading its model
MOST_DEATHS = 3  # of processes in a row, by one site on one backend: its other cases are not tried any more


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to judge. items: those of one backend together.   functions: where the sites' functions are."""

    root: str
    items: tuple[Item, ...]
    settings: Mapping[str, Mapping[str, Any]]
    functions: Mapping[str, str]
    numerics: bool = False


def named_function(old: Case, settings: Mapping[str, Any]) -> str:
    """Where a golden's function is now. Raises GoldenError for one that neither sites.json nor --moved names: a golden
    is data that anybody may send, and does not choose what is called."""
    moved = settings.get("moved", {})
    if old.function not in settings.get("functions", ()) and old.function not in moved:
        said = f'"{old.site}": {{"functions": ["{old.function}"]}}'
        raise GoldenError(f"sites.json does not name {old.function!r}, so it is not called; if it is yours, add {said}")
    return new_function(old.function, moved)


def merged_settings(store: Store, sites: Sequence[str], moved: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """sites.json with what the command line says of moved code. Raises GoldenError where nothing was recorded of a
    module: the old code would be run, and pass."""
    said = store.settings()
    functions = {site: set(said.get(site, {}).get("functions", ())) for site in sites}
    places = [("--moved", moved, set().union(*functions.values()))]
    places += [(f"sites.json: {site}: moved", said.get(site, {}).get("moved", {}), functions[site]) for site in sites]
    for place, named, known in places:
        modules = {function.rpartition(":")[0] for function in known}
        if wrong := [old for old in named if ":" not in old and known and old not in modules]:
            said_so = f"{place} {wrong[0]!r}: nothing was recorded there"
            raise GoldenError(f"{said_so}; name the place of one of these: {', '.join(sorted(known))}")
    return {site: {**said.get(site, {}), "moved": {**said.get(site, {}).get("moved", {}), **moved}} for site in sites}


def pairs_asked(
    settings: Mapping[str, Mapping[str, Any]], backends: Sequence[str] | None
) -> tuple[list[tuple[str, str]], list[str]]:
    """(site, backend) to be checked, and what is left out because sites.json says that a site is not for a backend."""
    asked, left_out = [], []
    for site, said in settings.items():
        own = said.get("backends")
        for backend in backends or own or ["hf"]:
            if own and backend not in own:
                left_out.append(f"{site} on {backend} (sites.json: {', '.join(own)})")
            else:
                asked.append((site, backend))
    order = list(dict.fromkeys(backend for _, backend in asked))
    return sorted(asked, key=lambda pair: order.index(pair[1])), left_out


def for_backend(
    names: Sequence[str], backend: str, backends: Mapping[str, Sequence[str]]
) -> tuple[list[str], dict[str, Sequence[str]]]:
    """(a site's cases that are for a backend, the others with theirs). backends: of cases, by patterns of names."""
    own = {name: next((of for pattern, of in backends.items() if fnmatch(name, pattern)), None) for name in names}
    apart = {name: of for name, of in own.items() if of is not None and backend not in of}
    return [name for name in names if name not in apart], apart


def check_sites(
    store: Store,
    *,
    sites: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
    policy: Policy | None = None,
    moved: Mapping[str, str] | None = None,
    numerics: bool = False,
    progress: Progress | None = None,
    time_limit: float = TIME_LIMIT,
    worker: Worker | None = None,
    jobs: int = 1,
) -> Check:
    """Every golden that was asked for, on each backend. moved: where recorded functions are now, over sites.json.

    backends: those of each site's settings where not given.   time_limit: seconds of one case.   worker: the process
    that moved code runs in (None: the one that this process keeps).   jobs: such processes at a time.
    """
    started = time.perf_counter()
    chosen = chosen_cases(store, sites, cases)
    settings = merged_settings(store, list(chosen), moved or {})
    asked, left_out = pairs_asked(settings, backends)
    functions, outcomes, items = dict[str, str](), list[Outcome](), list[Item]()
    for site, backend in asked:
        fitting, apart = for_backend(chosen[site], backend, settings[site].get("cases", {}))
        left_out += [f"{site}/{name} on {backend} (sites.json: {', '.join(own)})" for name, own in apart.items()]
        for name in fitting or ([] if apart else ["*"]):
            refused = unfit(store, site, name, backend, settings[site], functions)
            outcomes += [refused] if refused else []
            items += [] if refused else [(backend, site, name)]
    job = Job(str(store.root), tuple(items), settings, functions, numerics)
    with contextlib.ExitStack() as stack:
        under_way = []
        for number, share in enumerate(shares(items, jobs)):
            process = stack.enter_context(Worker()) if number else worker or Worker.shared()
            under_way.append(beside(judged_apart, process, dataclasses.replace(job, items=share), time_limit, progress))
        ended = [future.result() for future in under_way]
    found = [outcome for each, _, _ in ended for outcome in each]
    machine = max((machine for _, machine, _ in ended), key=len)
    told = tuple(measurement for _, _, each in ended for measurement in each)
    order = {(backend, site, name): k for k, (site, backend) in enumerate(asked) for name in [*chosen[site], "*"]}
    outcomes = sorted([*outcomes, *found], key=lambda o: (order[o.backend, o.site, o.case], o.case))
    seconds = time.perf_counter() - started
    return Check(tuple(outcomes), policy or Policy(), machine, seconds, tuple(left_out), told)


def shares(items: Sequence[Item], jobs: int) -> list[tuple[Item, ...]]:
    """Items for each of `jobs` processes, in their order. A site's of one backend stay together: they share engines."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault(item[:2], []).append(item)
    parts: list[list[Item]] = [[] for _ in range(max(1, min(jobs, len(groups))))]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(parts, key=len).extend(group)
    order = list(groups)
    return [tuple(sorted(part, key=lambda item: order.index(item[:2]))) for part in parts]


def beside(work: Callable[..., Result], *given: Any) -> Future[Result]:
    """Work in a thread that does not keep an interrupted process from ending."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*given))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def unfit(
    store: Store, site: str, name: str, backend: str, settings: Mapping[str, Any], functions: dict[str, str]
) -> Outcome | None:
    """What is to be said of a golden that nothing can be run for; of others, the function is noted in `functions`."""
    if name == "*":
        return missing(site, "*", backend, f"no golden under {store.root / site}; record the old code first")
    if not store.path(site, name).exists():
        return missing(site, name, backend, f"there is no {store.path(site, name)}")
    try:
        functions[named_function(store.read(site, name), settings)] = site
    except GoldenError as error:
        return error_outcome(site, name, backend, error)
    return None


@dataclass(frozen=True, slots=True)
class Measured:
    """At the end of a worker's work: the site's numerics, and what outcomes become by them."""

    told: tuple[Measurement, ...]
    settled: Mapping[Item, Outcome]


def judged(job: Job) -> Iterator[Outcome | dict[str, Any] | Measured]:
    """In the worker: an outcome for each item, in order, at the end of a backend the machine, at the very end, when all
    engines are closed, the numerics."""
    from parity.judge.numerics import Numerics  # numpy, which `record` and `list` do without

    store, numerics = Store(job.root), Numerics(Store(job.root), job.numerics)
    factories = {site: said.get("arguments", {}) for site, said in job.settings.items()}
    outcomes: dict[Item, Outcome] = {}
    together: dict[Item, Outcome] = {}
    for backend in dict.fromkeys(backend for backend, _, _ in job.items):
        names = [(site, name) for b, site, name in job.items if b == backend]
        with Session(store, job.functions, factories) as session:
            for site, some in itertools.groupby(names, key=lambda item: item[0]):
                if len(session.observer.opened) > MOST_ENGINES:
                    session.forget()
                wanted, ledgers = [name for _, name in some], dict[str, draws.Ledger]()
                for found in check_site(session, site, wanted, backend, job.settings[site], numerics, ledgers):
                    outcomes[backend, site, found.case] = found
                    yield found
                seen = [outcomes[backend, site, name] for name in wanted]
                together.update({(o.backend, o.site, o.case): o for o in judged_together(seen, ledgers)})
            yield environment()
    numerics.judge()
    final = {item: settled(store, numerics, found) for item, found in together.items()}
    yield Measured(numerics.told(), {item: found for item, found in final.items() if found is not outcomes[item]})


MOST_ENGINES = 6  # that sites before this one may have left open: on vLLM each takes a part of the memory for itself


JUDGED = f"{judged.__module__}:{judged.__qualname__}"  # workers import it by this name


def judged_apart(
    worker: Worker, job: Job, time_limit: float, progress: Progress | None
) -> tuple[list[Outcome], dict[str, Any], tuple[Measurement, ...]]:
    """An outcome for each item, whatever becomes of the processes that they run in; the machine; the numerics."""
    outcomes, machine, measured = list[Outcome](), dict[str, Any](), Measured((), {})
    deaths: dict[tuple[str, str], int] = {}
    items = list(job.items)
    while items:
        share, whole = tuple(items), False
        try:
            for found in worker.run(JUDGED, dataclasses.replace(job, items=share), time_limit):
                if isinstance(found, dict):
                    machine = max(machine, found, key=len)
                    continue
                if whole := isinstance(found, Measured):
                    measured = Measured((*measured.told, *found.told), {**measured.settled, **found.settled})
                    continue
                outcomes.append(found)
                deaths.pop(items.pop(0)[:2], None)
                if progress:
                    progress(f"{found.backend} {found.label} {found.verdict}")
        except Died as death:
            if not items:
                said = f"the process of the moved code ended before its cases were judged together: {death}"
                pairs = [] if whole else dict.fromkeys(item[:2] for item in share)
                outcomes += [error_outcome(site, "*", backend, said) for backend, site in pairs]
                break
            backend, site, name = items.pop(0)
            outcomes.append(error_outcome(site, name, backend, f"the moved code did not come back: {death}"))
            deaths[backend, site] = deaths.get((backend, site), 0) + 1
            if deaths[backend, site] == MOST_DEATHS:
                rest = [item for item in items if item[:2] == (backend, site)]
                items = [item for item in items if item not in rest]
                said = f"not tried: {MOST_DEATHS} cases of this site in a row did not come back"
                outcomes += [error_outcome(site, name, backend, said) for _, _, name in rest]
    final = [measured.settled.get((o.backend, o.site, o.case), o) for o in outcomes]
    return final, machine or environment(), measured.told


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
    numerics: Numerics,
    ledgers: dict[str, draws.Ledger],
) -> Iterator[Outcome]:
    """An outcome for each golden, in order; then what the site's numerics need of the engines that ran is read.

    ledgers: what the site's draws have shown, for `judged_together`.
    """
    engines: dict[str, list[Any]] = {}  # only those that are read; the moved code may drop a hundred
    paths, seeds = dict[Any, ties.OldPath](), dict[str, set[int]]()
    for name in names:
        started = time.perf_counter()
        try:
            old = session.store.read(site, name)
            function, loads = new_function(old.function, settings["moved"]), settings.get("load", {})
            run = functools.partial(call_on, session, backend, function, loads)
            new = run(old, {}, frozenset())
            seconds, ran = time.perf_counter() - started, session.ran()
            again = functools.partial(session.resample, run)
            judge = Judge(
                session.store,
                backend,
                run,
                numerics,
                engine=session.engine,
                resample=again,
                ledgers=ledgers,
                paths=paths,
                seeds=seeds,
            )
            outcome = judge.outcome(old, new, seconds)
            if numerics.wants(old, backend, engines):
                engines[name] = ran
        except Exception as error:  # noqa: BLE001 - a fault of the judge ends one case, not the others
            outcome = error_outcome(site, name, backend, of_one_case(error))
        yield outcome
    numerics.read(site, backend, engines, session.engines)


def finished(
    store: Store, numerics: Numerics, outcomes: Sequence[Outcome], policy: Policy | None, started: float
) -> Check:
    """All engines are closed: judge the numerics that were asked for, and what hangs on them."""
    numerics.judge()
    final = tuple(settled(store, numerics, outcome) for outcome in outcomes)
    seconds = time.perf_counter() - started
    return Check(final, policy or Policy(), environment(), seconds, numerics=numerics.told())


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
        rows: Sequence[Mapping[str, Any]] = ()
        with contextlib.suppress(GoldenError):  # a call without a golden runs as it is
            rows = self.store.read(call.site, call.case).rows
        settings = self.per_backend.get(call.site, {})
        self.observer.replay = Replay(self.engines, self.load, settings, self.parts, rows, self.store)


REPLAYS = f"{Replays.__module__}:{Replays.__qualname__}"  # the observed processes import it by this name


def data_of(case: Case) -> dict[str, Any]:
    """The arguments that are data: objects may be others now, and are no reason not to pair two calls."""
    return {name: value for name, value in case.arguments.items() if not objects_in(value)}


def paired_cases(goldens: Sequence[Case], found: Sequence[Case]) -> list[tuple[Case | None, Case | None]]:
    """Goldens and calls that belong together: by arguments, else by name."""
    left = {(case.site, case.case): case for case in found}
    pairs: list[tuple[Case | None, Case | None]] = []
    by_arguments = {}
    for old in goldens if any(case.arguments for case in found) else ():
        same = [key for key, case in left.items() if key[0] == old.site and data_of(case) == data_of(old)]
        if same:  # of equal ones, the one of this name
            by_arguments[old.site, old.case] = left.pop(min(same, key=lambda key: key[1] != old.case))
    for old in goldens:
        key = old.site, old.case
        pairs.append((old, by_arguments[key] if key in by_arguments else left.pop(key, None)))
    return [*pairs, *((None, new) for new in left.values())]


def check_script(
    store: Store,
    observed: Callable[[Starting], Seen],
    *,
    sites: Sequence[str],
    backend: str | None = None,
    policy: Policy | None = None,
    numerics: bool = False,
) -> Check:
    """A whole script. observed: runs it, with what is called before each call, and tells what it did.

    The script runs once: what it does beside asking models is not done again to prove a cause. One that ended with an
    error that was not there when it was recorded, or was not wholly seen, is an ERROR of each site beside its cases.
    A golden that the script did not reach is UNUSED, a call that has no golden is MISSING. Its engines are in another
    process: where a site's numerics are asked for, plain transformers stands for a script that used them.
    """
    from parity.judge.numerics import Numerics  # numpy, which `record` and `list` do without

    started, outcomes, asked_of = time.perf_counter(), list[Outcome](), Numerics(store, numerics)
    settings = {site: said.get("load", {}) for site, said in store.settings().items()}
    base: dict[str, Any] = {
        "goldens": str(store.root),
        "backend": backend,
        "load": {},
        "parts": [],
        "per_backend": settings,
    }

    def run(old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        return None

    judge, label = Judge(store, backend or "hf", run, asked_of), backend or "hf"
    ran_on: list[tuple[str, str]] = []  # sites and the backends that their calls were seen on
    seen, (goldens, broken) = observed((REPLAYS, base)), store.read_all(sites)
    for site in sites:
        expected = store.settings().get(site, {}).get("exit_code", 0)
        outcomes += [error_outcome(site, "*", label, said) for said in script_faults(seen, site, expected)]
    outcomes += [error_outcome(*place, label, error) for place, error in broken.items()]
    for old, new in paired_cases(goldens, seen.cases):
        if new is None:
            assert old is not None
            outcomes.append(Outcome(old.site, old.case, label, "UNUSED", notes=("the script did not reach it",)))
        elif old is None and (new.site, new.case) in broken:
            continue  # said already
        elif old is None:
            outcomes.append(missing(new.site, new.case, label, "the script made a call that has no golden"))
        else:
            judge.backend = backend or backend_of(new)
            ran_on.append((old.site, judge.backend))
            try:
                refuse_not_run(old, new)
                outcomes.append(judge.outcome(old, dataclasses.replace(as_recorded(old, new), case=old.case)))
            except Exception as error:  # noqa: BLE001 - a fault of one case ends one case, not the others
                outcomes.append(error_outcome(old.site, old.case, judge.backend, of_one_case(error)))
    for place in dict.fromkeys(ran_on):
        asked_of.read(*place, {})
    return finished(store, asked_of, judged_together(outcomes, judge.ledgers), policy, started)


def script_faults(seen: Seen, site: str, expected: int) -> Iterator[str]:
    """Why what was seen of a script is not all that there was to see, or ended in an error. expected: its exit code."""
    code = seen.returncode
    if seen.stopped:
        yield f"the script {seen.stopped} and was ended with its children; --time-limit says another time"
    elif code not in (0, expected):
        how = f"with exit code {code}" if code > 0 else f"by signal {-code} ({signal.Signals(-code).name})"
        yield (
            f"the script ended {how}, and with {expected} when it was recorded; it may have said why above. If it is "
            f'to end so, write into sites.json: "{site}": {{"exit_code": {code}}}'
        )
    if seen.failures:
        yield f"not all could be observed: {'; '.join(dict.fromkeys(seen.failures))}"


# == --ab ==


@dataclass(frozen=True, slots=True)
class Again:
    """What old code is to do again. functions: golden's function -> the same in the old code.   old: the folder that
    it must come from, and the one that this stands for, or None."""

    root: str
    into: str
    items: tuple[tuple[str, str], ...]
    settings: Mapping[str, Mapping[str, Any]]
    functions: Mapping[str, str]
    old: tuple[str, str] | None = None


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
    """--ab: old code against new code, both run now. into: an empty folder, for what the old code gives.

    old: the revision that the old code comes from (None: it stands beside the new code). Raises ValueError where a
    function would be compared with itself.
    """
    chosen = chosen_cases(store, sites, cases)
    settings = merged_settings(store, list(chosen), moved or {})
    functions, items, errors = dict[str, str](), list[tuple[str, str]](), dict[tuple[str, str], GoldenError | str]()
    for site, name in [(site, name) for site, names in chosen.items() for name in names]:
        try:
            golden = store.read(site, name)
            if named_function(golden, settings[site]) == golden.function and old is None:
                raise ValueError(ITSELF.format(golden.function))
            functions[golden.function] = old_place(golden.function, old)
            if old is not None:
                for _, text in leaves(golden.arguments):
                    old.lend(text)
            items.append((site, name))
        except GoldenError as error:
            errors[site, name] = error
    roots = str(store.root.absolute()), str(into.root.absolute())
    job = Again(*roots, tuple(items), settings, functions, (str(old.worktree), str(old.top)) if old else None)
    with Worker(old.path(sys.path), old.folder()) if old else contextlib.nullcontext(Worker.shared()) as worker:
        errors |= recorded_apart(worker, job, time_limit)
    for site, said in store.settings().items():
        into.set_site(site, **said)
    for entry in store.accepted():
        into.accept(entry)
    check = Check((), how.get("policy") or Policy())
    if left := [site for site, names in chosen.items() if into.names(site) or not names]:
        check = check_sites(into, sites=left, moved=moved, time_limit=time_limit, **how)
    failed = [
        error_outcome(*item, backend, f"the old code: {error}")
        for item, error in errors.items()
        for site, backend in pairs_asked(settings, how.get("backends"))[0]
        if site == item[0]
    ]
    return dataclasses.replace(check, outcomes=(*check.outcomes, *failed))


ITSELF = (
    "--ab would compare {0} with itself: it was changed in place. Say which revision holds the old code, "
    "`check --ab --old HEAD~1`, or where the new code is, `--moved`"
)


def old_place(function: str, old: Revision | None) -> str:
    """A recorded function as the old code's process loads it: a script by its path, a module by its name."""
    module, _, attribute = function.rpartition(":")
    return f"{old.place(module)}:{attribute}" if old is not None and module.endswith(".py") else function


def recorded_apart(worker: Worker, job: Again, time_limit: float) -> dict[tuple[str, str], str]:
    """Have the old code do everything again; what it could not do, and why."""
    errors, left = dict[tuple[str, str], str](), list(job.items)
    while left:
        try:
            for error in worker.run(AGAIN, dataclasses.replace(job, items=tuple(left)), time_limit):
                item = left.pop(0)
                errors |= {item: error} if error else {}
        except Died as death:
            errors |= {left.pop(0): f"it did not come back: {death}"} if left else {}
    return errors


def recorded_again(job: Again) -> Iterator[str]:
    """In the worker: for each case "" when it was recorded, or why it was not."""
    store, into = Store(job.root), Store(job.into)
    factories = {site: said.get("old_arguments", said.get("arguments", {})) for site, said in job.settings.items()}
    with Session(
        store, {job.functions[store.read(*item).function]: item[0] for item in job.items}, factories
    ) as session:
        for site, name in job.items:
            try:
                old = store.read(site, name)
                refuse_itself(old, job)
                put_again(session, old, job, into)
                yield ""
            except COULD_NOT_JUDGE as error:
                yield str(error)


AGAIN = f"{recorded_again.__module__}:{recorded_again.__qualname__}"


def put_again(session: Session, old: Case, job: Again, into: Store) -> None:
    for blob in set(blob_names(old)):
        into.put_blob(session.store.blob(blob).read_bytes(), Path(blob).suffix)
    new = session.call(old, job.functions[old.function], {}, {}, frozenset())
    if job.old is not None:  # paths as they are now
        told = functools.partial(observe.by_name, files=dict([job.old]))
        rows = tuple(told(dict(row)) for row in new.rows)
        new = dataclasses.replace(new, rows=rows, value=told(new.value), raised=told(new.raised))
    for blob in blob_names(new):
        into.put_blob((session.scratch.blobs() / blob).read_bytes(), Path(blob).suffix)
    # Of an argument that was made anew the golden says more: what it was when it was recorded.
    into.write(dataclasses.replace(new, function=old.function, arguments=old.arguments, changing=old.changing))


def refuse_itself(old: Case, job: Again) -> None:
    """Raise GoldenError where the old code is not that of the revision, or is the new code under another name."""
    code = source_of(loaded(job.functions[old.function]))
    if job.old is not None:
        if code is None or not Path(code[0]).resolve().is_relative_to(job.old[0]):
            where = code[0] if code else "no Python file"
            raise GoldenError(f"{old.function} was loaded from {where}, not from the revision: it is installed there")
        return
    new = None
    with contextlib.suppress(*COULD_NOT_JUDGE):  # the check itself will say what is wrong with the new one
        new = source_of(loaded(named_function(old, job.settings[old.site])))
    if code is not None and code == new:
        raise GoldenError(ITSELF.format(old.function))


def source_of(function: Callable[..., Any]) -> tuple[str, int] | None:
    """File and line of a function, past its wrappers."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)
