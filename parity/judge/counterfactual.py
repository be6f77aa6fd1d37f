"""Runs of the new code with something as it was, and what they prove.

A cause is confirmed where its old value, put back, brings the old answer back. Suspects are put
back one at a time, in causal order; where none is enough alone, all together, and then, bisected,
the fewest first ones that are. Each run takes place once (`Inquiry.run`).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.goldens.causes import named as entry_of
from parity.goldens.store import Case
from parity.goldens.verdict import CAUSES, STAGES, Cause, Certainty, Difference, equal
from parity.judge.after_model import after_decoding, by_endings, told_or_cut_stops
from parity.judge.align import paired, same_ids
from parity.judge.changed_places import of_order, order_of_answers
from parity.judge.comparison import Named
from parity.judge.endings import Decoder, decoded_both_ways, leaves, strange_text
from parity.judge.followers import words
from parity.judge.inquiry import Inquiry, Parts, name_of_other_number, no_run
from parity.judge.naming import difference_cause, named_cause
from parity.judge.numerics.numbers import number_gap
from parity.judge.numerics.questions import Beside
from parity.judge.numerics.weights import checkpoint_of, in_float32
from parity.judge.replay import ALONE, ANSWERS, UNCACHED
from parity.judge.row import (
    Row,
    are_prefixes,
    criteria,
    entry,
    images_in,
    is_drawn,
    model_in,
    prompt_around_pictures,
    prompt_of,
    request_of,
    seeds_of,
)
from parity.judge.stages.prompt import may_be_written
from parity.judge.stages.stop import told_stops
from parity.record.rows import BUT_THE_LAST

ON_BOTH = {"dtype", "model"}  # load settings that every backend has


def backend_of(case: Case) -> str:
    if not case.rows:
        return "hf"
    return str(model_in(case.rows[0]).get("backend", "hf"))


# == One old value at a time ==


@dataclass(frozen=True)
class PutBack:
    """What would undo one suspect alone.   load: load settings.   parts: of requests."""

    name: str
    difference: Difference
    load: Mapping[str, Any]
    parts: Parts

    @property
    def what(self) -> str:
        return " and ".join(sorted(self.parts)) or ", ".join(self.load)


def old_load(old: Case) -> dict[str, Any]:
    """Load settings of the old code, by what the table of causes calls them behind "load."."""
    model = model_in(old.rows[0]) if old.rows else {}
    return {
        "dtype": model.get("dtype"),
        "model": checkpoint_of(old),
        "hf_kwargs": {},
        "attn_implementation": model.get("attention"),
        "max_batch_size": 1,
    }


def put_backs(named: Sequence[Named], old: Case, backend: str) -> list[PutBack]:
    settings = old_load(old)
    found = []
    for name, difference in dict(named).items():
        load = {}
        parts = set()
        for part in entry_of(name).put_back:
            if part.startswith("load."):
                field = part.removeprefix("load.")
                load[field] = settings[field]
            else:
                parts.add(part)
        can_be_loaded = backend == "hf" or load.keys() <= ON_BOTH
        if can_be_loaded and (load or parts):
            found.append(PutBack(name, difference, load, frozenset(parts)))
    return found


NOT_BACK = "putting it back does not bring the old answer back"


def by_replay(inquiry: Inquiry) -> Cause | None:
    """The first suspect whose old value alone brings the old answer back; or the fewest that do
    together."""
    if inquiry.rerun is None or not inquiry.new.rows:
        return None
    known = put_backs(inquiry.suspects, inquiry.old, backend_of(inquiry.new))
    if inquiry.narrowed:
        # Without stops that the old code cut at by hand, its text is always the whole one.
        known = [one for one in known if one.difference.counts]
    for one in known:
        again = inquiry.run(one.load, one.parts)
        # Of stops that the old code cut at by hand, equal ids prove nothing: they always are.
        if inquiry.realigned(again, by_ids=one.difference.counts):
            return alone(inquiry, one, again)
        note_failure(inquiry, one, again)
    return together(inquiry, known)


def alone(inquiry: Inquiry, one: PutBack, again: Case | None) -> Cause:
    rows = again.rows if again else ()
    if one.name == "batch.order" and answers_of_others(inquiry.new.rows, rows) is None:
        return in_company(inquiry, "a request at a time, the old answer comes back")
    certainty: Certainty = "confirmed"
    proof = f"with the old {one.what} put back, the old answer comes back"
    if has_more(inquiry, one, again):
        certainty = "likely"
        proof = f"with the old {one.what} put back, the old ids come back, and not the value"
    elif may_be_written(one.name, *inquiry.pairs[one.difference.row or 0]):
        certainty = "likely"
    name = one.name
    if name == "stop.strings" and told_stops(inquiry.new) == told_or_cut_stops(inquiry.old):
        name = "stop.rule"  # told what the old code cuts at by hand, the new one cuts elsewhere
    return difference_cause(name, certainty, one.difference, proof)


def has_more(inquiry: Inquiry, one: PutBack, again: Case | None) -> bool:
    """Whether the value differs still where a later prompt is put back: it may only hold what was
    done with an earlier answer."""
    is_later = bool(one.difference.row) and one.name.startswith("prompt.")
    if not is_later or again is None:
        return False
    return not equal(inquiry.old.value, again.value)


def note_failure(inquiry: Inquiry, one: PutBack, again: Case | None) -> None:
    if why := no_run(again, inquiry):
        inquiry.untried[one.name] = why
        inquiry.steps.append(f"putting {one.name} back was not tried, because {why}")
    else:
        inquiry.steps.append(f"not {one.name} alone: {NOT_BACK}")


def together(inquiry: Inquiry, known: Sequence[PutBack]) -> Cause | None:
    """Suspects that only together bring the old answer back: the first k, for the least k."""
    if len(known) < 2 or not is_back(inquiry, known):
        return None
    counts = range(2, len(known) + 1)
    least = counts[bisect_left(counts, True, key=lambda count: is_back(inquiry, known[:count]))]
    names = ", ".join(one.name for one in known[:least])
    proof = f"only {names} together, put back, bring the old answer back"
    first = known[0]
    return difference_cause(first.name, "confirmed", first.difference, proof)


def is_back(inquiry: Inquiry, known: Sequence[PutBack]) -> bool:
    load: dict[str, Any] = {}
    parts: set[str] = set()
    for one in known:
        load.update(one.load)
        parts.update(one.parts)
    by_ids = all(one.difference.counts for one in known)
    return inquiry.realigned(inquiry.run(load, parts), by_ids)


def put_back_result(name: str, inquiry: Inquiry) -> str:
    """What became of putting a cause's old value back."""
    why = why_untried(name, inquiry)
    return f"putting it back was not tried, because {why}" if why else NOT_BACK


def why_untried(name: str, inquiry: Inquiry) -> str:
    """Why no run with a cause's old value took place; "" if one did."""
    if inquiry.rerun is None:
        return "the case cannot be run again"
    if name in inquiry.untried:
        return inquiry.untried[name]
    of_any = Difference("value", "", None, None)
    known = put_backs([(name, of_any)], inquiry.old, backend_of(inquiry.new))
    return "" if known else "nothing does so"


# == Without the cache ==


def by_cache(inquiry: Inquiry) -> Cause | None:
    """An answer out of a cache that the model would not give."""
    rows = [k for k, (_, row) in enumerate(inquiry.pairs) if request_of(row).get("cached")]
    if not rows:
        return None
    again = inquiry.run({}, {UNCACHED})
    if inquiry.realigned(again):
        proof = "without the cache the old answer comes back"
        said = f"row {rows[0]} was answered by the cache"
        return named_cause("cache.key", "confirmed", said, proof)
    if again is None or again.raised is not None:
        return None
    taken = of_another(inquiry.new, again)
    if not taken:
        return None
    by_whom = "as another model, or another setting, had answered before"
    said = f"row {taken[0]} was answered by the cache {by_whom}"
    proof = "without the cache it gets another answer"
    return named_cause("cache.key", "likely", said, proof)


def of_another(new: Case, again: Case) -> list[int]:
    """Rows out of a cache whose answers are not their own, by a run without the cache, but all
    those of others that asked the same of another model or with other settings: between two dtypes
    rounding might explain the ids. Of samples, those with a seed say it."""
    found = []
    for position, (row, own) in enumerate(paired(new.rows, again.rows)):
        if row["output_ids"] == own["output_ids"] or (is_drawn(row) and not seeds_of(row)):
            continue
        if not request_of(row).get("cached"):
            return []  # no cache gave this one: the run says nothing of those that one gave
        if not any(is_same_answer(one, row) for one in new.rows[:position]):
            return []
        found.append(position)
    return found


def is_same_answer(one: Row, row: Row) -> bool:
    """Whether a row that was asked otherwise has the same prompt and answer."""
    is_same = all(one[name] == row[name] for name in ("prompt_ids", "output_ids"))
    return is_same and how_asked(one) != how_asked(row)


def how_asked(row: Row) -> Any:
    model = model_in(row)
    return model.get("path"), model.get("dtype"), row.get("sampling"), row.get("stop")


# == Each request by itself ==

SAME_MODEL = 1e-3  # nats: other rows of a batch move float32 sums by 1e-5


def by_company_exactly(inquiry: Inquiry) -> Cause | None:
    """In half precision rounding depends on the rest of the batch: there numerics are asked
    first."""
    return by_company(inquiry) if in_float32(inquiry.old, inquiry.new) else None


def by_company(inquiry: Inquiry) -> Cause | None:
    """Each request by itself, nothing from a cache: is it the rest of the batch?"""
    if not can_be_company(inquiry):
        return None
    alone = inquiry.run({}, {ALONE})
    if alone is None or not inquiry.realigned(alone):
        return None
    proof = "each request by itself gives the old answer"
    places = order_of_answers(inquiry.old, inquiry.new)
    if places is not None:
        return of_order(places, proof)
    rows = inquiry.new.rows
    once = next((k for k, row in enumerate(rows) if request_of(row).get("shared")), None)
    if once is not None:
        said = f"row {once} and an unlike one with this prompt were computed once"
        return named_cause("cache.key", "confirmed", said, proof)
    # A row that was given what is another one's, such as its pixel budget, answers as that one
    # does, and is no other's.
    taken = None if upstream_of_batch(inquiry) else answers_of_others(rows, alone.rows)
    if taken is not None:
        said = f"row {taken[0]} got row {taken[1]}'s"
        return named_cause("batch.order", "confirmed", said, proof)
    return in_company(inquiry, proof)


def can_be_company(inquiry: Inquiry) -> bool:
    rows = inquiry.new.rows
    if inquiry.rerun is None or len(rows) < 2:
        return False
    # Other samples may be the old ones by chance, where something is declared otherwise.
    apart = inquiry.other_answers or rows
    is_chance = any(is_drawn(row) and not seeds_of(row) for row in apart)
    return not (inquiry.counted and is_chance)


def in_company(inquiry: Inquiry, proof: str) -> Cause:
    """Where the rest of a batch comes in: by its images, in the model, or in what is done with its
    logits."""
    if upstream := upstream_of_batch(inquiry):
        name, difference = upstream[0]
        said = f"{difference.sentence()}; only beside others"
        return named_cause(name, "confirmed", said, proof)
    count = len(inquiry.new.rows)
    gap = None if inquiry.comparison.has_same_ids else inquiry.company()
    told = "could not be read" if gap is None else f"differ by {gap:.1e} nats"
    read = "the model's log-probabilities of the golden, beside others and alone"
    inquiry.steps.append(f"{read}: {told}")
    if gap is None or gap > SAME_MODEL:
        return named_cause("batch.composition", "confirmed", f"the case has {count} rows", proof)
    name = cause_beside_others(inquiry)
    said = f"{CAUSES[name]}, only beside others: {count} rows"
    same = f"reading the golden, the model says the same beside others, within {gap:.1e} nats"
    return Cause(name, "likely", said, f"{proof}; {same}")


def cause_beside_others(inquiry: Inquiry) -> str:
    """What the rest of a batch changes where the model says the same."""
    for row in inquiry.other_answers:
        if is_drawn(row) and not entry(row, "sampling", "processors"):
            return "rng"
    return "stop.rule" if are_prefixes(inquiry.pairs) else "sampling.processors"


def upstream_of_batch(inquiry: Inquiry) -> list[Named]:
    batch = STAGES.index("batch")
    return [(name, d) for name, d in inquiry.counted if STAGES.index(d.stage) < batch]


def asked_as(row: Row) -> tuple[Any, Any]:
    images = [(image.get("sha256"), image.get("budget")) for image in images_in(row)]
    return prompt_around_pictures(row), images


def answers_of_others(beside: Sequence[Row], alone: Sequence[Row]) -> tuple[int, int] | None:
    """(row, whose answer it got), where rows that are asked alone get other ones' answers among the
    others. That a row answers as one of the same prompt does says nothing."""
    if len(alone) != len(beside):
        return None
    if prompt_lengths(alone) != prompt_lengths(beside):  # what is exchanged is there all the same
        return None
    for number, (row, own) in enumerate(zip(beside, alone)):
        answer = row["output_ids"]
        if answer == own["output_ids"]:
            continue
        for other, one in enumerate(alone):
            if one["output_ids"] == answer and asked_as(one) != asked_as(own):
                return number, other
    return None


def prompt_lengths(rows: Sequence[Row]) -> set[int]:
    return {len(row["prompt_ids"]) for row in rows}


# == The golden's ids, forced ==

FORCED = "the golden's ids were forced, to see what the new code makes of them"


def from_other_ids(inquiry: Inquiry) -> Beside:
    """Where ids are others, as they may be: the golden's own ids, forced, are to become the
    golden's value. Where they cannot be forced, each text is to come from its own ids in the way
    that the golden's did."""
    return from_forced_ids(inquiry) or Beside(from_own_ids(inquiry))


def from_followed_ids(inquiry: Inquiry) -> Beside:
    """The same where the new code asked on with other ids, so that its own rows say nothing of the
    golden's."""
    if cause := from_asking_on(inquiry):
        return Beside(cause)
    return from_forced_ids(inquiry) or Beside()


def forced_run(inquiry: Inquiry) -> Case | None:
    """The new code, given the golden's ids; None where that cannot be done."""
    forced = inquiry.run({}, {ANSWERS})
    return None if forced is None or forced.raised is not None else forced


def from_forced_ids(inquiry: Inquiry) -> Beside | None:
    """None where the golden's ids could not be forced."""
    if any(row.get("loop") == BUT_THE_LAST for row in inquiry.old.rows):
        return Beside()
    forced = forced_run(inquiry)
    if forced is None:
        return None
    if len(forced.rows) != len(inquiry.old.rows):
        return from_another_number(inquiry.old, forced)
    is_whole = said_as_far(inquiry.old, forced)
    if is_whole is None:
        return None
    far = "" if is_whole else ", as far as the new stops let them go"
    inquiry.steps.append(
        f"the golden's ids were forced{far}, to see what the new code makes of them"
    )
    return made_of_forced(inquiry, forced, is_whole=is_whole)


def made_of_forced(inquiry: Inquiry, forced: Case, *, is_whole: bool) -> Beside:
    """What the new code makes of the golden's ids.   is_whole: of all of them."""
    old = inquiry.old
    made = inquiry.beside(old, forced)
    asked = STAGES[: STAGES.index("batch")]
    for name, difference in made.comparison.counted:
        if difference.stage in asked:
            proof = "with the golden's ids forced, this differs still"
            return Beside(difference_cause(name, "likely", difference, proof))
    if equal(old.value, forced.value):
        return Beside()
    gap = number_gap(old.value, forced.value) or 0.0
    if is_whole:
        return Beside(after_decoding(made), gap)
    if lacks_only_ends(inquiry, forced):
        return Beside()
    unsure = after_decoding(inquiry.beside(up_to_forced(old, forced), forced))
    return Beside(dataclasses.replace(unsure, certainty="likely"), gap)


def from_asking_on(inquiry: Inquiry) -> Cause | None:
    """Whether code that is given the golden's answers, as far as it asks for any, asks for more or
    fewer."""
    forced = forced_run(inquiry)
    old = inquiry.old
    if forced is None or len(forced.rows) == len(old.rows) or not are_given(old, forced):
        return None
    if len(forced.rows) > len(old.rows) and equal(old.value, forced.value):
        return None
    return of_another_number(old, forced)


def from_another_number(old: Case, forced: Case) -> Beside | None:
    """Where the new code asks for more or fewer answers than the old code, and is given the
    golden's: it may do so as long as it makes the golden's value of them."""
    if not are_given(old, forced):
        return None
    if equal(old.value, forced.value):
        return Beside()
    gap = number_gap(old.value, forced.value) or 0.0
    return Beside(of_another_number(old, forced), gap)


def are_given(old: Case, forced: Case) -> bool:
    """Whether the golden's ids were forced, as far as the new code asks for any."""
    pairs = paired(old.rows, forced.rows)
    return all(a["output_ids"] == b["output_ids"] for a, b in pairs)


def of_another_number(old: Case, forced: Case) -> Cause:
    counts = f"the old code asked for {len(old.rows)}, the new code for {len(forced.rows)}"
    said = f"of the same answers {counts}"
    return Cause(name_of_other_number(old, forced), "likely", said, FORCED)


def from_own_ids(inquiry: Inquiry) -> Cause | None:
    """Each prompt is to be asked, and each text to come from its own ids in the way that the
    golden's did."""
    if inquiry.new.raised is not None:
        said = f"of other ids the new code makes {inquiry.new.raised}"
        return named_cause("error", "likely", said, NOT_FORCED)
    if unasked := unasked_rows(inquiry):
        said = f"{len(unasked)} of {len(inquiry.old.rows)} prompts are not asked any more"
        return Cause("post.other", "likely", said, NOT_FORCED)
    cause = by_endings(inquiry, drawn=True)
    if cause is not None or inquiry.decode is None:
        return cause
    strange = strange_text(inquiry.old, inquiry.new, inquiry.pairs, inquiry.decode)
    if not strange:
        return None
    proof = "the golden's texts come from their ids"
    return named_cause("post.other", "likely", strange, proof)


NOT_FORCED = "the golden's own ids could not be forced"


def unasked_rows(inquiry: Inquiry) -> list[Row]:
    """The golden's rows whose prompts the new code does not ask, also not for another row. One that
    holds an answer may not be asked where that answer is another one."""
    asked = {prompt_of(old) for old, _ in inquiry.pairs}
    left = [row for row in inquiry.old.rows if prompt_of(row) not in asked]
    return [row for row in left if not holds_answer(row, inquiry.old)]


def holds_answer(row: Row, case: Case) -> bool:
    """Whether a prompt holds the ids of an answer of its case, but for the last one."""
    answers = [words(one["output_ids"][:-1]) for one in case.rows]
    return any(answer in words(row["prompt_ids"]) for answer in answers if answer)


def said_as_far(old: Case, forced: Case) -> bool | None:
    """Whether forced ids are the golden's, whole (True), or as far as the new stops let them go
    where a criterion of the old code's own kept rows until all had ended (False)."""
    if same_ids(old, forced):
        return True
    pairs = paired(old.rows, forced.rows)
    is_part = bool(pairs) and all(is_forced_part(*pair) for pair in pairs)
    return False if is_part else None


def is_forced_part(old: Row, forced: Row) -> bool:
    ids = forced["output_ids"]
    wanted = old["output_ids"]
    if criteria(old):
        wanted = wanted[: len(ids)]
    return bool(ids == wanted)


def lacks_only_ends(inquiry: Inquiry, forced: Case) -> bool:
    """Whether texts lack nothing but what the golden's rows went on with behind the new stops."""
    new_texts = dict(leaves(forced.value))
    if inquiry.decode is None or not new_texts:
        return False
    more = {""}
    for pair in paired(inquiry.old.rows, forced.rows):
        more.update(rests(*pair, inquiry.decode))
    for path, text in leaves(inquiry.old.value):
        ways = {text.removesuffix(rest) for rest in more if text.endswith(rest)}
        if text == text.strip():
            ways |= {way.strip() for way in ways}
        if new_texts.get(path) not in ways:
            return False
    return True


def rests(old: Row, new: Row, decode: Decoder) -> Iterator[str]:
    """What the text of the old ids has behind that of the new ones."""
    wholes = decoded_both_ways(old["output_ids"], decode)
    parts = decoded_both_ways(new["output_ids"], decode)
    for whole, part in zip(wholes, parts):
        if whole.startswith(part):
            rest = whole[len(part) :]
            yield rest
            yield rest.rstrip()


def up_to_forced(old: Case, forced: Case) -> Case:
    """The golden, whose rows end where the forced ones do."""
    rows = []
    for row, other in paired(old.rows, forced.rows):
        rows.append({**row, "output_ids": other["output_ids"]})
    return dataclasses.replace(old, rows=tuple(rows))


def beside_rounding(inquiry: Inquiry) -> Beside:
    """What else differs where ids part, and may do so by rounding: no near tie is to hide it."""
    counted = inquiry.comparison.counted
    if not counted:
        return from_other_ids(inquiry)
    name, difference = counted[0]
    proof = "seen directly; where the ids part it has no say"
    return Beside(difference_cause(name, "likely", difference, proof))
