"""Why a case differs: the first unequal stage, the smallest explanation, and a replay that proves it.

    1. Stages.       Everything unequal, in causal order; the first is the suspect (comparison.py).
    2. Endings.      Recorded ids alone: does another end, or another way to decode or cut, explain it? (endings.py)
    3. Laws.         What the new side breaks and the old side keeps (stages/).
    4. Replays.      One old stage value is put back into the new path and the case runs again: if the old answer comes
                     back, the cause is confirmed (replay.py).
    5. Rounding.     All of a site's tokens, read by both paths and in float32: do they differ by more? (numerics.py)

A cause is "likely" where the replay could not be made (the moved code does not use an engine, the old value is not
known) or did not bring the old answer back, and "unattributed" where nothing of this explains it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.causes import named as entry_of
from parity.golden import Case
from parity.judge.align import paired, same_ids
from parity.judge.comparison import OF_PROMPTS, Comparison
from parity.judge.endings import ADDED, Decode, by_hand, explain_text, leaves, strange_text
from parity.judge.questions import candidates, checkpoint_of, number_gap
from parity.judge.replay import ALONE, ANSWERS, UNCACHED
from parity.judge.row import Row, entry, is_drawn, is_prefix, placeholder_in, seeds_of, unseen
from parity.judge.stages.prompt import may_be_written
from parity.judge.stages.sampling import done_to_logits
from parity.judge.stages.stage import Broken
from parity.judge.stages.stop import may_end_by_criterion, told_stops
from parity.record.rows import BUT_THE_LAST, collapsed
from parity.verdict import CAUSES, STAGES, Cause, Certainty, Difference, brief, equal, first_divergence

Rerun = Callable[[Mapping[str, Any], frozenset[str]], Case | None]  # load settings, parts put back -> what comes out


@dataclass
class Inquiry:
    """One case whose value or ids differ, and what was found out about it. steps: for `explain`, one line each."""

    comparison: Comparison
    rerun: Rerun | None = None
    steps: list[str] = field(default_factory=list)
    company: Callable[[], float | None] = lambda: None  # how far neighbours move the model's log-probabilities, nats
    narrowed: bool = False  # to the answers that later prompts hold
    untried: dict[str, str] = field(default_factory=dict)  # cause -> why no run with its old value took place

    @property
    def old(self) -> Case:
        return self.comparison.old

    @property
    def new(self) -> Case:
        return self.comparison.new

    @property
    def found(self) -> Sequence[Difference]:
        return self.comparison.differences

    @property
    def decode(self) -> Decode | None:
        return self.comparison.tools.decode

    @property
    def broken(self) -> Sequence[Broken]:
        return self.comparison.broken

    @property
    def pairs(self) -> Sequence[tuple[Row, Row]]:
        return self.comparison.pairs

    def beside(self, old: Case, new: Case) -> Inquiry:
        """The same inquiry of two other recordings."""
        return dataclasses.replace(self, comparison=Comparison(old, new, self.comparison.tools))

    def realigned(self, again: Case | None, by_ids: bool = True) -> bool:
        """Whether a replay gives the old answer. by_ids: the old ids are proof enough; what is done with them after the
        model may differ, too."""
        if again is None or again.raised is not None:
            return False
        ids_came_back = by_ids and not same_ids(self.old, self.new) and same_ids(self.old, again)
        return ids_came_back or equal(self.old.value, again.value)


def up_to_followers(inquiry: Inquiry) -> Inquiry:
    """Where prompts follow from answers that are other ones: the inquiry of those answers, which have the cause. Their
    texts stand for the value."""
    follow = inquiry.comparison.followers
    if not follow:
        return inquiry
    kept = {k: "text" if "text" in a and "text" in b else "output_ids"
            for k, (a, b) in enumerate(inquiry.pairs) if k not in follow}  # fmt: skip
    held = {number: texts for cut in follow.values() for number, texts in cut.items()}

    def narrow(case: Case, held: Mapping[int, str]) -> Case:
        rows = {k: case.rows[k] for k in kept if k < len(case.rows)}
        value = [held.get(k, row.get(kept[k])) for k, row in rows.items()]
        return dataclasses.replace(case, rows=tuple(rows.values()), value=value)

    def rerun(load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        again = inquiry.rerun(load, parts) if inquiry.rerun else None
        return again and narrow(again, {})

    old, new = (narrow(case, {k: texts[side] for k, texts in held.items()})
                for side, case in enumerate((inquiry.old, inquiry.new)))  # fmt: skip
    inquiry.steps.append(f"{len(follow)} of {len(inquiry.pairs)} prompts hold answers that differ: those are judged")
    again = inquiry.rerun and rerun
    return dataclasses.replace(inquiry.beside(old, new), rerun=again, narrowed=True)


def cause_of(inquiry: Inquiry) -> Cause | None:
    """The cause; None if nothing but the model's own arithmetic is left to ask."""
    old, new = inquiry.old, inquiry.new
    agreed(inquiry)
    if new.raised is not None and old.raised is None:
        return Cause(
            "error", "confirmed", f"the old code returned {brief(old.value)}, the new code raised {new.raised}"
        )
    if old.raised is not None and new.raised is None:
        return Cause(
            "error", "confirmed", f"the old code raised {old.raised}, the new code returned {brief(new.value)}"
        )
    named = [(refined(name, d, inquiry), d) for name, d in inquiry.comparison.suspects if possible(name, inquiry)]
    for step in (by_recorded_ids, by_value, by_replay, by_cache, by_company, by_law):
        cause = step(inquiry, named)
        if cause is not None:
            inquiry.steps.append(f"cause: {cause}: {cause.proof}")
            return cause
    same = [a["output_ids"] == b["output_ids"] or is_drawn(a) or unseen(a, b) for a, b in inquiry.pairs]
    upstream = any(d.counts for _, d in named)
    if len(old.rows) != len(new.rows) and all(same) and (moved := in_other_places(inquiry)):
        return moved
    if len(old.rows) != len(new.rows) and all(same) and not upstream:
        said = f"the model gave {len(old.rows)} answers, gives {len(new.rows)}: calls were added, dropped or cached"
        return Cause("sampling.processors" if other_samples(old, new) else "post.other", "likely", said)
    if inquiry.comparison.has_same_ids and not (
        upstream and (number_gap(old.value, new.value) or by_endings(inquiry) is None)
    ):
        return after_decoding(inquiry)
    if not any(difference.counts for _, difference in named) and (cause := by_endings(inquiry)):
        inquiry.steps.append(f"cause: {cause}: {cause.proof}")
        return cause
    if named:
        name, difference = named[0]
        return Cause(name, "likely", sentence(name, difference), f"the first unequal stage; {tried(name, inquiry)}")
    return None


def no_run(again: Case | None, inquiry: Inquiry) -> str:
    """Why a replay says nothing: it did not take place, or ended in an error that putting a value back made."""
    if again is None:
        return "the case cannot be run again with it"
    made = again.raised is not None and again.raised not in (inquiry.old.raised, inquiry.new.raised)
    return f"the run with it ended in {brief(again.raised)}" if made else ""


def tried(name: str, inquiry: Inquiry) -> str:
    """What became of putting a cause's old value back."""
    if inquiry.rerun is None:
        return "putting it back was not tried, because the case cannot be run again"
    if why := inquiry.untried.get(name):
        return f"putting it back was not tried, because {why}"
    if name not in {one for one, _, _ in replays([name], inquiry.old, backend_of(inquiry.new))}:
        return "putting it back was not tried, because nothing does so"
    return "putting it back does not bring the old answer back"


def other_samples(old: Case, new: Case) -> bool:
    """Whether the same prompts are drawn from, and another number of times."""
    mine, theirs = ({tuple(row["prompt_ids"]) for row in case.rows} for case in (old, new))
    return mine == theirs and all(is_drawn(row) for row in (*old.rows, *new.rows))


def refined(name: str, difference: Difference, inquiry: Inquiry) -> str:
    """Of a prompt, what its laws say: they know the checkpoint's template and tokenizer; but where both sides rendered,
    a template that is another one, or is told something else, comes before them."""
    if difference.stage == "template" and all(row.get("template") for row in inquiry.pairs[difference.row or 0]):
        return name
    if name.startswith("prompt.") and inquiry.decode is not None:
        one, other = (row["prompt_ids"] for row in inquiry.pairs[difference.row or 0])
        if one != other and inquiry.decode(one, False, False) == inquiry.decode(other, False, False):
            return "prompt.tokenization"
    of_ids = [b.cause for b in inquiry.broken if b.law in OF_PROMPTS]
    return of_ids[0] if of_ids and name.startswith("prompt.") else name


def possible(name: str, inquiry: Inquiry) -> bool:
    """Whether a difference can be the cause at all: other ends can't make a model choose another word at a step where
    neither side ends."""
    if not name.startswith("stop."):
        return True
    for old, new in inquiry.pairs:
        before, after = old["output_ids"], new["output_ids"]
        place = first_divergence(before, after)
        if place is None or place >= min(len(before), len(after)):
            continue
        ends = {*(entry(old, "stop", "end_ids") or ()), *(entry(new, "stop", "end_ids") or ())}
        if not {before[place], after[place]} & ends:  # which a least number of tokens may hold back
            inquiry.steps.append(f"not {name}: at step {place}, where the ids part, neither token is an end")
            return False
    return True


def by_cache(inquiry: Inquiry, named: Sequence[tuple[str, Difference]] = ()) -> Cause | None:
    """An answer out of a cache that the model would not give."""
    rows = [k for k, (_, row) in enumerate(inquiry.pairs) if (row.get("request") or {}).get("cached")]
    if not rows or inquiry.rerun is None:
        return None
    again = inquiry.rerun({}, frozenset({UNCACHED}))
    if inquiry.realigned(again):
        said = f"{CAUSES['cache.key']}: row {rows[0]} was answered by the cache"
        return Cause("cache.key", "confirmed", said, "without the cache the old answer comes back")
    if again is not None and again.raised is None and (taken := of_another(inquiry.new, again)):
        said = f"{CAUSES['cache.key']}: row {taken[0]} was answered by the cache as another model, or another setting, "
        return Cause("cache.key", "likely", f"{said}had answered before", "without the cache it gets another answer")
    return None


def of_another(new: Case, again: Case) -> list[int]:
    """Rows out of a cache whose answers are not their own, by a run without the cache, but all those of others that
    asked the same of another model or with other settings: between two dtypes rounding might explain the ids. Of draws,
    those with a seed say it."""

    def how(row: Row) -> Any:
        model = row.get("model", {})
        return model.get("path"), model.get("dtype"), row.get("sampling"), row.get("stop")

    pairs = enumerate(paired(new.rows, again.rows))
    parted = [
        (place, row)
        for place, (row, own) in pairs
        if (row.get("request") or {}).get("cached")
        and (not is_drawn(row) or seeds_of(row))
        and row["output_ids"] != own["output_ids"]
    ]
    known = [
        any(
            one["prompt_ids"] == row["prompt_ids"] and one["output_ids"] == row["output_ids"]
            for one in new.rows[:place]
            if how(one) != how(row)
        )
        for place, row in parted
    ]
    return [place for place, _ in parted] if all(known) else []


def by_law(inquiry: Inquiry, named: Sequence[tuple[str, Difference]]) -> Cause | None:
    """The first law that the new side alone breaks, unless an earlier stage differs. A finding about where ids end is
    confirmed where the endings of both sides say the same."""
    if not inquiry.broken:
        return None
    first = min(inquiry.broken, key=lambda broken: STAGES.index(broken.place))
    place = STAGES.index(first.place)
    if any(d.counts and STAGES.index(d.stage) < place for _, d in named):
        return None
    if inquiry.comparison.has_same_ids and first.law in ("end", "text"):
        return None  # the texts themselves tell it
    said = f"{CAUSES[first.cause]}: row {first.row}: {first.sentence}"
    if (ending := by_endings(inquiry)) is not None and ending.name == first.cause:
        return ending
    return Cause(first.cause, "likely", said, f"the law of the stage '{first.law}' is broken by the new side alone")


def also_differs(comparison: Comparison, cause: Cause) -> tuple[str, ...]:
    """Names of everything else that differs, or that the new side alone breaks."""
    names = [name for name, _ in comparison.counted]
    names += [broken.cause for broken in comparison.broken]
    return tuple(name for name in dict.fromkeys(names) if name != cause.name)


def sentence(name: str, difference: Difference) -> str:
    return f"{CAUSES[name]}: {difference.sentence()}"


def agreed(inquiry: Inquiry) -> None:
    """Say what is the same and what is the first difference."""
    unequal = list(dict.fromkeys(d.stage for d in inquiry.found))
    present = {key for row, _ in inquiry.pairs for key in row}
    same = [stage for stage in present if stage not in unequal]
    beside = {"request", "inputs", "decodes"}  # which the laws read; they are no stages of their own for a reader
    keys = dict.fromkeys(key for row, _ in inquiry.pairs for key in row if key not in beside)
    order = [stage for stage in keys if stage in same]
    if order:
        inquiry.steps.append(f"the same on both sides: {', '.join(order)}")
    counted = [d for d in inquiry.found if d.counts] or list(inquiry.found)
    if counted:
        inquiry.steps.append(f"first difference: {counted[0].sentence()}")


# == From the recorded ids alone ==


def cut_at(ids: Sequence[int], ends: Collection[int]) -> list[int]:
    for place, i in enumerate(ids):
        if i in ends:
            return list(ids[: place + 1])
    return list(ids)


def by_recorded_ids(inquiry: Inquiry, named: Sequence[tuple[str, Difference]]) -> Cause | None:
    """A lost end or another budget shows in the ids: cut as the other side cuts, they are the same."""
    if inquiry.comparison.has_same_ids or len(inquiry.old.rows) != len(inquiry.new.rows):
        return None
    names = {name: difference for name, difference in named if difference.counts}
    if "batch.order" in names and names["batch.order"].old != "its own request":
        proof = "put back in order, the recorded ids of both sides are the same"
        return Cause("batch.order", "confirmed", sentence("batch.order", names["batch.order"]), proof)
    if taken := given_to_another(inquiry.old.rows, inquiry.new.rows):
        said = f"{CAUSES['batch.order']}: row {taken[0]} got row {taken[1]}'s"
        if inquiry.rerun is not None and inquiry.realigned(inquiry.rerun({}, frozenset({ALONE}))):
            return Cause("batch.order", "confirmed", said, "each request by itself gives the old answer")
        return Cause("batch.order", "likely", said, "it came with that one's prompt")
    tests = {"stop.eos_set": equal_when_cut, "stop.length": equal_when_shortened}
    for name, test in tests.items():
        if name in names and all(test(a, b) for a, b in inquiry.pairs):
            proof = "with this alone undone, the recorded ids of both sides are the same"
            return Cause(name, "confirmed", sentence(name, names[name]), proof)
    return None


def by_value(inquiry: Inquiry, named: Sequence[tuple[str, Difference]]) -> Cause | None:
    """The same texts in another order, of answers that are the old ones as far as both go."""
    if any(d.counts for _, d in named) or not all(
        is_prefix(a["output_ids"], b["output_ids"]) for a, b in inquiry.pairs
    ):
        return None
    if inquiry.comparison.has_same_ids or not any(text for _, text in leaves(inquiry.old.value)):
        return None
    places = permuted(inquiry.old.value, inquiry.new.value)
    proof = "put back in order, the values are the same"
    said = f"{CAUSES['batch.order']}: they come as {places}"
    return Cause("batch.order", "confirmed", said, proof) if places not in (None, sorted(places or ())) else None


def equal_when_cut(old: Row, new: Row) -> bool:
    before, after = entry(old, "stop", "end_ids") or (), entry(new, "stop", "end_ids") or ()
    both = {*before, *after}
    return cut_at(old["output_ids"], both) == cut_at(new["output_ids"], both)


def equal_when_shortened(old: Row, new: Row) -> bool:
    said = [entry(row, "stop", "max_new_tokens") for row in (old, new)]
    most = min((count for count in said if count is not None), default=None)
    return bool(old["output_ids"][:most] == new["output_ids"][:most])


def by_endings(inquiry: Inquiry, drawn: bool = False) -> Cause | None:
    """Another way from the same (or longer, or shorter) ids to text.   drawn: the ids are other draws, each text is to
    come from its own in the way that the old text came from the old ones."""
    if (texts := dict(leaves(inquiry.old.value))) and texts == dict(leaves(inquiry.new.value)):
        return None  # what differs is no text
    alike = (drawn or is_prefix(a["output_ids"], b["output_ids"]) for a, b in inquiry.pairs)
    if inquiry.decode is None or not all(alike):
        return None
    found = explain_text(inquiry.old, inquiry.new, inquiry.pairs, inquiry.decode)
    if found is None or (drawn and not found.of_value):  # rows may well be decoded in another way than values
        return None
    name, ways = found.cause, {found.old.skip_special, found.new.skip_special}
    if (
        name == "decode.skip_special"
        and ADDED in ways
        and all("text" in a and a["text"] == b.get("text") for a, b in inquiry.pairs)
    ):
        return None  # a marker that is no special token was cut by hand: both were seen to decode alike
    if name in ("post.trim", "decode.skip_special") and (within_stops(inquiry) or by_a_stop(inquiry)):
        name = "stop.rule"
    moved, told = {*found.old.stops} ^ {*found.new.stops}, told_stops(inquiry.new)
    if name == "stop.strings" and told and (told == stops_of(inquiry.old) or moved <= told & stops_of(inquiry.old)):
        name = "stop.rule"  # equal arguments, other behaviour
    proof = "of all ways to decode, cut and strip the recorded ids, the two that give both texts differ in this alone"
    certainty: Certainty = "confirmed" if len(found.fields) == 1 and found.of_value else "likely"
    if name == "post.strip" and lost_tokens(inquiry):
        certainty, proof = "likely", f"{proof}; so would a last token that is blank and lost"
    if any(map(may_end_by_criterion, inquiry.old.rows)):
        certainty, proof = "likely", f"{proof}; what the old code's own criterion stops at is not seen"
    return Cause(name, certainty, f"{CAUSES[name]}: {found.sentence()}", proof)


def within_stops(inquiry: Inquiry) -> bool:
    """Whether texts differ by the beginnings of stops only, which both sides were told: one rule of them is broken."""
    stops = told_stops(inquiry.new)
    if not stops or stops != stops_of(inquiry.old):
        return False
    texts = other_texts(inquiry)
    return bool(texts) and all(
        {*pair} <= stops or begins_stop(min(pair, key=len), max(pair, key=len), stops) for pair in texts
    )


def by_a_stop(inquiry: Inquiry) -> bool:
    """Whether each text differs by a whole stop at its end, that the new code was told, where both decode alike."""
    stops, texts = told_stops(inquiry.new), other_texts(inquiry)
    said = [row["stop"]["end_ids"] for row in inquiry.new.rows if entry(row, "stop", "include_stop")]
    ids = {i for told in said if told["from"] == "caller" for i in told["value"]}
    stops = stops | {inquiry.decode([i], False, False) for i in ids if inquiry.decode}
    flags = ((a.get("decode", {}).get("skip_special_tokens"), b.get("decode", {}).get("skip_special_tokens"))
             for a, b in inquiry.pairs)  # fmt: skip
    by_one = all(any(a + stop == b or b + stop == a for stop in stops) for a, b in texts)
    return bool(texts) and by_one and all(a == b and a is not None for a, b in flags)


def other_texts(inquiry: Inquiry) -> list[tuple[str, str]]:
    theirs = dict(leaves(inquiry.new.value))
    return [(text, theirs[path]) for path, text in leaves(inquiry.old.value) if theirs.get(path, text) != text]


def begins_stop(short: str, long: str, stops: set[str]) -> bool:
    return long.startswith(short) and any(stop.startswith(long[len(short) :]) for stop in stops)


def lost_tokens(inquiry: Inquiry) -> bool:
    """Whether each of the new texts that differ is also what all ids but the last would give."""
    assert inquiry.decode is not None
    differ = [(a, b) for a, b in inquiry.pairs if a.get("text") != b.get("text") and b["output_ids"]]
    ways = ((b, inquiry.decode(b["output_ids"][:-1], True, False)) for _, b in differ)
    return bool(differ) and all(b.get("text") == text for b, text in ways)


def stops_of(case: Case) -> set[str]:
    """Those, or the ones among its arguments, where it cuts by hand."""
    return told_stops(case) or set(by_hand(case))


def from_other_ids(inquiry: Inquiry, *, followed: bool = False) -> tuple[Cause | None, float]:
    """Where ids are others, as they may be: the golden's own ids, forced, are to become the golden's value. Where they
    cannot be forced, each text is to come from its own ids in the way that the golden's did. With it, where nothing but
    numbers differ: how far they do, at most; they come of the model's scores, and rounding may explain it.
    followed: the new code asked on with other ids, so that its own rows say nothing of the golden's."""
    if any(row.get("loop") == BUT_THE_LAST for row in inquiry.old.rows):
        return None, 0.0
    forced = inquiry.rerun({}, frozenset({ANSWERS})) if inquiry.rerun else None
    if forced is not None and forced.raised is None and (whole := said_as_far(inquiry.old, forced)) is not None:
        far = "" if whole else ", as far as the new stops let them go"
        inquiry.steps.append(f"the golden's ids were forced{far}, to see what the new code makes of them")
        made = inquiry.beside(inquiry.old, forced)
        asked = STAGES[: STAGES.index("batch")]
        if named := [x for x in made.comparison.counted if x[1].stage in asked]:
            proof = "with the golden's ids forced, this differs still"
            return Cause(named[0][0], "likely", sentence(*named[0]), proof), 0.0
        if equal(inquiry.old.value, forced.value) or (not whole and beginnings(inquiry, forced)):
            return None, 0.0
        gap = number_gap(inquiry.old.value, forced.value)
        if whole:
            return after_decoding(made), gap or 0.0
        unsure = after_decoding(inquiry.beside(shortened(inquiry.old, forced), forced))
        return dataclasses.replace(unsure, certainty="likely"), gap or 0.0
    if followed:
        if forced is None or (len(forced.rows) > len(inquiry.old.rows) and equal(inquiry.old.value, forced.value)):
            return None, 0.0  # calls that were added, and change nothing
        return asked_for_other_answers(inquiry.old, forced), 0.0
    if inquiry.new.raised is not None:
        said = f"{CAUSES['error']}: of other ids the new code makes {inquiry.new.raised}"
        return Cause("error", "likely", said, "the golden's own ids could not be forced"), 0.0
    if (cause := by_endings(inquiry, drawn=True)) is not None:
        return cause, 0.0
    decode = inquiry.decode
    strange = decode and strange_text(inquiry.old, inquiry.new, inquiry.pairs, decode)
    if not strange:
        return None, 0.0
    proof = "the golden's texts come from their ids"
    return Cause("post.other", "likely", f"{CAUSES['post.other']}: {strange}", proof), 0.0


def said_as_far(old: Case, forced: Case) -> bool | None:
    """Whether forced ids are the golden's, whole (True), or as far as the new stops let them go where a criterion of
    the old code's own kept rows until all had ended (False)."""
    if same_ids(old, forced):
        return True
    pairs = paired(old.rows, forced.rows)
    kept = all(
        b["output_ids"] == a["output_ids"][: len(b["output_ids"]) if entry(a, "stop", "criteria") else None]
        for a, b in pairs
    )
    return False if pairs and len(old.rows) == len(forced.rows) and kept else None


def beginnings(inquiry: Inquiry, forced: Case) -> bool:
    """Whether texts lack nothing but what the golden's rows went on with behind the new stops."""
    decode, theirs, more = inquiry.decode, dict(leaves(forced.value)), {""}
    if decode is None or not theirs:
        return False
    for old, new in paired(inquiry.old.rows, forced.rows):
        for skip in (True, False):
            whole, part = (decode(row["output_ids"], skip, False) for row in (old, new))
            more |= {whole[len(part) :], whole[len(part) :].rstrip()} if whole.startswith(part) else set()
    for path, text in leaves(inquiry.old.value):
        ways = {text.removesuffix(end) for end in more if text.endswith(end)}
        ways |= {way.strip() for way in ways} if text == text.strip() else set()
        if theirs.get(path) not in ways:
            return False
    return True


def shortened(old: Case, forced: Case) -> Case:
    """The golden, whose rows end where the forced ones do."""
    rows = [{**a, "output_ids": b["output_ids"]} for a, b in paired(old.rows, forced.rows)]
    return dataclasses.replace(old, rows=tuple(rows))


def asked_for_other_answers(old: Case, forced: Case) -> Cause | None:
    """Whether code that is given the golden's answers, as far as it asks for any, asks for more or fewer."""
    counts = len(old.rows), len(forced.rows)
    given = all(a["output_ids"] == b["output_ids"] for a, b in paired(old.rows, forced.rows))
    if counts[0] == counts[1] or not given or forced.raised is not None:
        return None
    said = f"of the same answers the old code asked for {counts[0]}, the new code for {counts[1]}"
    name = "sampling.processors" if other_samples(old, forced) else "post.other"
    return Cause(name, "likely", said, "the golden's ids were forced, to see what the new code makes of them")


def beside_rounding(inquiry: Inquiry) -> tuple[Cause | None, float]:
    """What else differs where ids part, and may do so by rounding: no near tie is to hide it. How far, as above."""
    named = inquiry.comparison.counted
    if named:
        proof = "seen directly; where the ids part it has no say"
        return Cause(named[0][0], "likely", sentence(*named[0]), proof), 0.0
    return from_other_ids(inquiry)


def declared_end(inquiry: Inquiry) -> Cause | None:
    """What was declared of where answers end, and differs: it comes before whatever else may have ended one."""
    for name, difference in inquiry.comparison.counted:
        if difference.stage == "stop":
            return Cause(name, "likely", sentence(name, difference), "declared, and an answer ends elsewhere")
    return None


def after_decoding(inquiry: Inquiry) -> Cause:
    """The ids are the same, so the difference was made after the model."""
    best = len(inquiry.old.rows) == 1 and equal(by_token(inquiry.old.value), by_token(inquiry.new.value))
    several = len(inquiry.old.rows) > 1 or not any(unseen(a, b) for a, b in inquiry.pairs)
    if not best and several and (places := permuted(inquiry.old.value, inquiry.new.value)) is not None:
        proof = "put back in order, the values are the same"
        return Cause("batch.order", "confirmed", f"{CAUSES['batch.order']}: they come as {places}", proof)
    if not best and (moved := in_other_places(inquiry)):
        return moved
    if any(unseen(a, b) for a, b in inquiry.pairs):
        [difference] = (found for found in inquiry.found if found.stage == "value")
        proof = "nothing else that was seen differs; of the old code only what it reads was seen, not what it chose"
        return Cause("post.other", "likely", sentence("post.other", difference), proof)
    cause = by_endings(inquiry)
    if cause is not None:
        inquiry.steps.append(f"cause: {cause}: {cause.proof}")
        return cause
    for difference in (found for found in inquiry.found if found.stage == "value"):
        if name := kept_more(difference.old, difference.new):
            proof = "the ids are the same, and one text holds the other"
            name = "stop.rule" if name == "post.trim" and within_stops(inquiry) else name
            if name == "post.trim" and another_answer(inquiry):
                proof = "the ids are the same, and each text is that of some answer"
                return Cause("post.other", "likely", sentence("post.other", difference), proof)
            if name == "post.trim" and told_stops(inquiry.new) and not told_stops(inquiry.old):
                said = f"{CAUSES['stop.strings']}: {difference.sentence()}"
                return Cause("stop.strings", "likely", said, "the ids are the same, and the old code cuts by hand")
            if name == "post.trim" and unfinished(difference.old, difference.new):
                proof = UNFINISHED
            if name == "post.trim" and (markers := by_markers(inquiry)):
                name, proof = "decode.skip_special", f"the ids are the same, and {markers} is all that texts differ by"
            alone = equal(without_texts(difference.old), without_texts(difference.new)) and inquiry.old.rows
            return Cause(name, "confirmed" if alone else "likely", sentence(name, difference), proof)
        if equal(by_token(difference.old), by_token(difference.new)):
            said = f"{CAUSES['post.other']}: the same best tokens stand in another order"
            return Cause("post.other", "likely", said, "the ids are the same, and put in order so are the values")
        done = dict.fromkeys(name for row in inquiry.old.rows for name in done_to_logits(row))
        pair = difference.old, difference.new
        longest = max((len(row["output_ids"]) for case in (inquiry.old, inquiry.new) for row in case.rows), default=0)
        if done and number_gap(*pair) and of_tokens(*pair, longest):
            what = f"numbers among the values are others, where there is {', '.join(done)}"
            said = f"{CAUSES['sampling.processors']}: {what}"
            return Cause("sampling.processors", "likely", said, "the ids are the same, and so is all that is no number")
        if reasons := other_reason(difference.old, difference.new):
            said = f"{CAUSES['stop.rule']}: an answer that ended by {reasons[0]!r} ended by {reasons[1]!r}"
            proof = "the ids are the same, and the reason that is told is another one"
            return Cause("stop.rule", "likely", said, proof)
        if only_numbers(difference):
            said = f"what is made of the model's numbers differs: {difference.sentence()}"
            return Cause("post.other", "likely", said, "the ids are the same, and so are all texts of the value")
        proof = "the ids are the same, and no way of decoding, cutting and stripping them gives both values"
        return Cause("post.other", "likely", sentence("post.other", difference), proof)
    raise AssertionError("after_decoding is asked about a value")


def only_numbers(difference: Difference) -> bool:
    """Whether values hold the same texts, and other numbers, or another number of them."""
    texts, numbers = ([list(leaves(side, kind=kind)) for side in (difference.old, difference.new)]
                      for kind in (str, float))  # fmt: skip
    return texts[0] == texts[1] and any(numbers)


def of_tokens(old: Any, new: Any, most: int) -> bool:
    """Whether numbers that differ stand in lists, or beside tokens, as those of tokens do, and not those of answers, or
    of a hidden state, which are more.   most: tokens of an answer."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and candidates(old) is None:
        return any(of_tokens(old[key], new[key], most) for key in old.keys() & new.keys())
    listed = isinstance(old, (Mapping, list, tuple))
    if listed and (candidates(old) is not None or any(isinstance(part, float) for part in old)):
        return len(old) <= most + 1 and not equal(old, new)
    return listed and any(of_tokens(one, other, most) for one, other in zip(old, new))


def another_answer(inquiry: Inquiry) -> bool:
    """Whether texts that differ are those of other answers of the same case."""
    texts = {row.get("text") for row in inquiry.new.rows}
    return all({one, other} <= texts for one, other in other_texts(inquiry))


def without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_texts(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_texts(part) for part in value]
    return "" if isinstance(value, str) else value


def by_token(value: Any) -> Any:
    """A value in which best tokens stand in the order of their names."""
    if isinstance(value, Mapping):
        return {key: by_token(part) for key, part in value.items()}
    found = candidates(value)
    if found is not None:
        return sorted(found.items(), key=str)
    return [by_token(part) for part in value] if isinstance(value, (list, tuple)) else value


def permuted(old: Any, new: Any) -> list[int] | None:
    """Where the parts of a list come from, if they are the same in another order; of a value that holds such lists, the
    first one's. None where anything else differs."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        left, places = list(range(len(old))), []
        for part in new:
            place = next((k for k in left if equal(old[k], part)), None)
            if place is None:
                break
            left.remove(place)
            places.append(place)
        else:
            return places
        if (fields := exchanged(old, new)) is not None:
            return permuted(*fields)
        pairs = list(zip(old, new)) if len(old) == 1 else []  # an order within an answer is not one of answers
    elif isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        pairs = [(old[key], new[key]) for key in old]
    found = [permuted(one, other) for one, other in pairs if not equal(one, other)]
    return found[0] if found and None not in found else None


def exchanged(old: Sequence[Any], new: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """Of records that stand in their order, the fields that differ, if others are the same: answers may have been put
    into the wrong ones."""
    if not all(isinstance(part, Mapping) and part.keys() == old[0].keys() for part in (*old, *new)):
        return None
    names = [name for name in old[0] if any(not equal(a[name], b[name]) for a, b in zip(old, new))]
    columns = [[[part[name] for name in names] for part in parts] for parts in (old, new)]
    return (columns[0], columns[1]) if 0 < len(names) < len(old[0]) else None


def shuffled(old: Any, new: Any) -> bool:
    """Whether the texts and numbers of a list are all there, and some stand in another of its parts."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        pairs = [(old[key], new[key]) for key in old if not equal(old[key], new[key])]
        return bool(pairs) and all(shuffled(*pair) for pair in pairs)
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new) or len(old) < 2:
        return False

    def held(value: Any) -> list[Any]:
        return [sorted(part for _, part in leaves(value, kind=kind)) for kind in (str, float)]

    return equal(held(old), held(new)) and not all(equal(held(a), held(b)) for a, b in zip(old, new))


def answers_moved(inquiry: Inquiry) -> bool:
    """Whether all texts that differ, however deep, stand at another's place, and each is how some answer begins: parts
    of one answer are not, but for its first."""
    old, new = (dict(leaves(case.value)) for case in (inquiry.old, inquiry.new))
    moved = [(text, new[path]) for path, text in old.items() if path in new and new[path] != text]
    told = tuple((row.get("text") or "").lstrip() for row in inquiry.old.rows)
    whole = all(text.strip() and any(one.startswith(text.strip()) for one in told) for text, _ in moved)
    return bool(moved) and whole and sorted(a for a, _ in moved) == sorted(b for _, b in moved)


def in_other_places(inquiry: Inquiry) -> Cause | None:
    """Parts of answers that stand in other ones."""
    if len(inquiry.old.rows) < 2 or not (shuffled(inquiry.old.value, inquiry.new.value) or answers_moved(inquiry)):
        return None
    said = f"{CAUSES['batch.order']}: parts of the value have changed places"
    return Cause("batch.order", "likely", said, "all that the value held is there, and stands elsewhere")


REASONS = {"eos", "eos_token", "stop", "stop_sequence", "end_turn", "length", "max_tokens", "plugin"}


def other_reason(old: Any, new: Any) -> tuple[str, str] | None:
    """The first reason for an end that is another one, where values tell such reasons."""
    theirs = dict(leaves(new))
    pairs = ((text, theirs.get(path)) for path, text in leaves(old) if text in REASONS)
    return next(((a, b) for a, b in pairs if b in REASONS and a != b), None)


def kept_more(old: Any, new: Any) -> str | None:
    """Of values whose texts differ: post.strip if only by blanks at the ends, post.trim if one text holds the other."""
    theirs = dict(leaves(new))
    texts = [(text, theirs[path]) for path, text in leaves(old) if path in theirs and theirs[path] != text]
    if not texts:
        return None
    if all(a.strip() == b.strip() for a, b in texts):
        return "post.strip"
    return "post.trim" if all(a and b and (a in b or b in a) for a, b in texts) else None


def by_markers(inquiry: Inquiry) -> str:
    """A special token of the answers by which texts differ, where nothing else is left of any difference."""
    decode = inquiry.decode
    if decode is None:
        return ""
    ids = {i for case in (inquiry.old, inquiry.new) for row in case.rows for i in row["output_ids"]}
    markers = [decode([i], False, False) for i in ids if not decode([i], True, False)]
    found = ""
    for pair in other_texts(inquiry):
        bare, whole = sorted(pair, key=len)
        left = whole
        for marker in (one for one in markers if one and one in whole and one not in bare):
            left, found = left.replace(marker, ""), marker
        if left != bare:
            return ""
    return found


def unfinished(old: Any, new: Any) -> bool:
    """Whether texts differ by nothing but a character at the new one's end that is not whole."""
    theirs = dict(leaves(new))
    pairs = [(text, theirs.get(path, "")) for path, text in leaves(old)]
    return all(one in (other, other.rstrip("\ufffd")) for one, other in pairs)


UNFINISHED = (
    "the ids are the same, and end within a character: vLLM's own text leaves out what a tokenizer decodes as U+FFFD; "
    "leave out last tokens until the text ends in none, where no stop string ended it"
)

# == With the model ==


def replays(names: Sequence[str], old: Case, backend: str) -> Iterator[tuple[str, Mapping[str, Any], frozenset[str]]]:
    """(cause, load settings, parts put back): what would undo each suspect alone."""
    model = old.rows[0].get("model", {}) if old.rows else {}
    settings: dict[str, Any] = {
        "dtype": model.get("dtype"),
        "model": checkpoint_of(old),
        "hf_kwargs": {},
        "attn_implementation": model.get("attention"),
        "max_batch_size": 1,
    }
    for name in names:
        known = entry_of(name).put_back
        fields = [part.removeprefix("load.") for part in known if part.startswith("load.")]
        if known and (backend == "hf" or {*fields} <= ON_BOTH):
            parts = frozenset(part for part in known if not part.startswith("load."))
            yield name, {field: settings[field] for field in fields}, parts


ON_BOTH = {"dtype", "model"}  # load settings that every backend has


def backend_of(case: Case) -> str:
    return str(case.rows[0].get("model", {}).get("backend", "hf")) if case.rows else "hf"


def by_replay(inquiry: Inquiry, named: Sequence[tuple[str, Difference]]) -> Cause | None:
    """Put one old stage value back at a time; the first that brings the old answer back is the cause."""
    if inquiry.rerun is None or not inquiry.new.rows:
        return None
    known = dict(named)
    tried: list[tuple[str, Mapping[str, Any], frozenset[str]]] = []
    for name, load, parts in replays(list(known), inquiry.old, backend_of(inquiry.new)):
        if inquiry.narrowed and not known[name].counts:
            continue  # without stops that the old code cut at by hand, its text is always the whole one
        tried.append((name, load, parts))
        # Stops that the old code cut at by hand: without them the ids are always the old ones, which proves nothing.
        again = inquiry.rerun(load, parts)
        if inquiry.realigned(again, by_ids=known[name].counts):
            if name == "batch.order" and answers_of_others(inquiry.new.rows, again.rows if again else ()) is None:
                return in_company(inquiry, "a request at a time, the old answer comes back", named)
            proof = f"with the old {' and '.join(sorted(parts)) or ', '.join(load)} put back, the old answer comes back"
            unsure = may_be_written(name, *inquiry.pairs[known[name].row or 0])
            return Cause(name, "likely" if unsure else "confirmed", sentence(name, known[name]), proof)
        if why := no_run(again, inquiry):
            inquiry.untried[name] = why
            inquiry.steps.append(f"putting {name} back was not tried, because {why}")
        else:
            inquiry.steps.append(f"not {name} alone: putting it back does not bring the old answer back")
    if len(tried) > 1:
        load = {key: value for _, one, _ in tried for key, value in one.items()}
        by_ids = all(known[name].counts for name, _, _ in tried)
        if inquiry.realigned(inquiry.rerun(load, frozenset().union(*(parts for _, _, parts in tried))), by_ids):
            names = [name for name, _, _ in tried]
            proof = f"only {', '.join(names)} together, put back, bring the old answer back"
            return Cause(names[0], "confirmed", sentence(names[0], known[names[0]]), proof)
    return None


def by_company(inquiry: Inquiry, named: Sequence[tuple[str, Difference]] = ()) -> Cause | None:
    """Each request by itself, nothing from a cache: is it the company of the others? In half precision rounding depends
    on them, so there the numerics are asked first (by_company without `named`)."""
    rows = inquiry.new.rows
    exact = all(row.get("model", {}).get("dtype", "float32") == "float32" for row in (*inquiry.old.rows, *rows))
    if inquiry.rerun is None or len(rows) < 2 or (named != () and not exact):
        return None
    apart = [row for old, row in inquiry.pairs if old["output_ids"] != row["output_ids"]] or rows
    if any(d.counts for _, d in named) and any(is_drawn(row) and not seeds_of(row) for row in apart):
        return None  # other draws may be the old ones by chance, and something is declared otherwise
    alone = inquiry.rerun({}, frozenset({ALONE}))
    if alone is None or not inquiry.realigned(alone):
        return None
    proof = "each request by itself gives the old answer"
    if (places := permuted(inquiry.old.value, inquiry.new.value)) is not None:
        return Cause("batch.order", "confirmed", f"{CAUSES['batch.order']}: they come as {places}", proof)
    if (once := next((k for k, row in enumerate(rows) if (row.get("request") or {}).get("shared")), None)) is not None:
        said = f"{CAUSES['cache.key']}: row {once} and an unlike one with this prompt were computed once"
        return Cause("cache.key", "confirmed", said, proof)
    # A row that was given what is another one's, such as its pixel budget, answers as that one does, and is no other's.
    taken = None if upstream_of_batch(named) else answers_of_others(rows, alone.rows)
    if taken is not None:
        return Cause("batch.order", "confirmed", f"{CAUSES['batch.order']}: row {taken[0]} got row {taken[1]}'s", proof)
    return in_company(inquiry, proof, named)


SAME_MODEL = 1e-3  # nats: other neighbours move float32 sums by 1e-5


def in_company(inquiry: Inquiry, proof: str, named: Sequence[tuple[str, Difference]] = ()) -> Cause:
    """Where neighbours come in: by their pictures, in the model, or in what is done with its logits."""
    if upstream := upstream_of_batch(named):
        return Cause(upstream[0][0], "confirmed", f"{sentence(*upstream[0])}; only beside others", proof)
    said = f"{CAUSES['batch.composition']}: the case has {len(inquiry.new.rows)} rows"
    gap = None if inquiry.comparison.has_same_ids else inquiry.company()
    told = "could not be read" if gap is None else f"differ by {gap:.1e} nats"
    inquiry.steps.append(f"the model's log-probabilities of the golden, beside others and alone: {told}")
    if gap is None or gap > SAME_MODEL:
        return Cause("batch.composition", "confirmed", said, proof)
    apart = [new for old, new in inquiry.pairs if new["output_ids"] != old["output_ids"]]
    drawn = any(is_drawn(row) and not entry(row, "sampling", "processors") for row in apart)
    name = "rng" if drawn else "stop.rule" if ends_apart(inquiry) else "sampling.processors"
    said = f"{CAUSES[name]}, only beside others: {len(inquiry.new.rows)} rows"
    proof = f"{proof}; reading the golden, the model says the same beside others, within {gap:.1e} nats"
    return Cause(name, "likely", said, proof)


def upstream_of_batch(named: Sequence[tuple[str, Difference]]) -> list[tuple[str, Difference]]:
    return [(name, d) for name, d in named if d.counts and STAGES.index(d.stage) < STAGES.index("batch")]


def ends_apart(inquiry: Inquiry) -> bool:
    """Whether rows differ in where they end, and in nothing before."""
    return all(is_prefix(old["output_ids"], new["output_ids"]) for old, new in inquiry.pairs)


def given_to_another(old: Sequence[Row], new: Sequence[Row]) -> tuple[int, int] | None:
    """(row, whose answer it got), where the first prompt that differs was seen to come with another request's answer:
    it is that one's, and says nothing of the prompts' own stages."""
    asked = [asked_as(row) for row in old]
    for number, row in enumerate(new):
        given = asked_as(row)
        if asked[number : number + 1] == [given]:
            continue
        seen = (row.get("request") or {}).get("answers") == "another"
        return (number, asked.index(given)) if seen and given in asked else None
    return None


def asked_as(row: Row) -> tuple[Any, Any]:
    return collapsed(row["prompt_ids"], placeholder_in(row)), shown(row)


def shown(row: Row) -> list[Any]:
    return [(picture.get("sha256"), picture.get("budget")) for picture in row.get("images", ())]


def answers_of_others(together: Sequence[Row], alone: Sequence[Row]) -> tuple[int, int] | None:
    """(row, whose answer it got), where rows that are asked alone get other ones' answers among the others. That a row
    answers as one of the same prompt does says nothing."""
    right = [tuple(row["output_ids"]) for row in alone]
    prompts = [asked_as(row) for row in alone]
    lengths = ({len(row["prompt_ids"]) for row in some} for some in (together, alone))
    if len(right) != len(together) or len(set(map(frozenset, lengths))) > 1:  # what is exchanged is there all the same
        return None
    for number, row in enumerate(together):
        ids = tuple(row["output_ids"])
        others = (k for k, one in enumerate(right) if one == ids and prompts[k] != prompts[number])
        if ids != right[number] and (other := next(others, None)) is not None:
            return number, other
    return None
