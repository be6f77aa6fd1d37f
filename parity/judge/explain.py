"""Why a case differs: the first unequal stage, the smallest explanation, and a run that proves it.

    1. Stages.       Everything unequal, in causal order; the first is the suspect (comparison.py).
    2. Ids.          Recorded ids alone: cut as the other side cuts, are they the same?
    3. Runs.         One old value is put back into the new path and the case runs again: if the old
                     answer comes back, the cause is confirmed (counterfactual.py).
    4. Invariants.   What the new side breaks and the old side keeps (stages/).
    5. Texts.        What was done with ids after the model (after_model.py).
    6. Rounding.     All of a site's tokens, read by both paths and in float32 (numerics).

A cause is "likely" where the run could not be made (the moved code does not use an engine, the old
value is not known) or did not bring the old answer back, and "unattributed" where nothing of this
explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from parity.goldens.verdict import STAGES, Cause, Difference, brief
from parity.judge.after_model import (
    after_decoding,
    by_endings,
    goes_on_with_stop,
    told_or_cut_stops,
    value_cause,
)
from parity.judge.changed_places import IN_ORDER, in_other_places, of_order, order_of_answers
from parity.judge.comparison import OF_PROMPTS, Comparison
from parity.judge.counterfactual import (
    NOT_BACK,
    asked_as,
    by_cache,
    by_company_exactly,
    by_replay,
    put_back_result,
)
from parity.judge.endings import Decoder, texts_in
from parity.judge.inquiry import Inquiry, name_of_other_number
from parity.judge.naming import broken_cause, difference_cause, first_answer, named_cause
from parity.judge.numerics.numbers import number_gap
from parity.judge.replay import ALONE
from parity.judge.row import (
    Row,
    are_prefixes,
    end_ids,
    is_drawn,
    max_tokens,
    parting_step,
    request_of,
    unseen,
)
from parity.judge.stages.stop import told_stops

ExplainStep = Callable[[Inquiry], Cause | None]


def cause_of(inquiry: Inquiry) -> Cause | None:
    """The cause; None if nothing but the model's own arithmetic is left to ask."""
    inquiry.suspects = [
        (refined(name, difference, inquiry), difference)
        for name, difference in inquiry.comparison.suspects
        if is_possible(name, inquiry)
    ]
    return first_answer(STEPS, inquiry)


def by_error(inquiry: Inquiry) -> Cause | None:
    """One side raises."""
    old = inquiry.old
    new = inquiry.new
    if (old.raised is None) == (new.raised is None):
        return None
    if old.raised is None:
        said = f"the old code returned {brief(old.value)}, the new code raised {new.raised}"
    else:
        said = f"the old code raised {old.raised}, the new code returned {brief(new.value)}"
    return Cause("error", "confirmed", said)


# == Where no run, no invariant and no id proves anything ==


def is_upstream(inquiry: Inquiry) -> bool:
    """Whether something differs before the model's ids; what a criterion does was not seen, the
    texts tell it."""
    return any(difference.field != "criteria" for _, difference in inquiry.counted)


def by_number_of_calls(inquiry: Inquiry) -> Cause | None:
    """More or fewer answers, where those that both sides have are the same."""
    if inquiry.comparison.has_as_many_rows:
        return None
    if not all(is_same_answer_or_sample(*pair) for pair in inquiry.pairs):
        return None
    moved = in_other_places(inquiry)
    if moved is not None or is_upstream(inquiry):
        return moved
    old = inquiry.old
    new = inquiry.new
    counts = f"the model gave {len(old.rows)} answers, gives {len(new.rows)}"
    name = name_of_other_number(old, new)
    return Cause(name, "likely", f"{counts}: calls were added, dropped or cached")


def by_values_of_same_ids(inquiry: Inquiry) -> Cause | None:
    """What was made of equal ids; where more differs than that, only of texts that some way of
    decoding explains."""
    if not inquiry.comparison.has_same_ids:
        return None
    gap = number_gap(inquiry.old.value, inquiry.new.value)
    if is_upstream(inquiry) and (gap or by_endings(inquiry) is None):
        return None
    return after_decoding(inquiry)


def by_texts(inquiry: Inquiry) -> Cause | None:
    return None if is_upstream(inquiry) else by_endings(inquiry)


def by_first_suspect(inquiry: Inquiry) -> Cause | None:
    """The first unequal stage, unless it was seen that the cause is behind the model."""
    if not inquiry.suspects:
        return None
    name, difference = [*inquiry.counted, *inquiry.suspects][0]
    result = put_back_result(name, inquiry)
    if not difference.counts and result == NOT_BACK and are_prefixes(inquiry.pairs):
        # It passes where the value is the same: what differs was made behind it.
        proof = f"the ids are the same as far as both go; not {name}: {result}"
        is_rule = name == "stop.strings" and is_cut_at_stops(inquiry)
        return value_cause("stop.rule" if is_rule else "post.other", "likely", inquiry, proof)
    return difference_cause(name, "likely", difference, f"the first unequal stage; {result}")


def is_cut_at_stops(inquiry: Inquiry) -> bool:
    """Whether both sides cut at the same stops, and each of two texts goes on with one of them
    where the other ends."""
    stops = told_stops(inquiry.new)
    if stops != told_or_cut_stops(inquiry.old):
        return False
    for pair in inquiry.other_texts:
        shorter, longer = sorted(pair, key=len)
        if not goes_on_with_stop(shorter, longer, stops):
            return False
    return True


def is_same_answer_or_sample(old: Row, new: Row) -> bool:
    return old["output_ids"] == new["output_ids"] or is_drawn(old) or unseen(old, new)


# == What is asked, in order ==


def refined(name: str, difference: Difference, inquiry: Inquiry) -> str:
    """Of a prompt, what its invariants say: they know the checkpoint's template and tokenizer; but
    where both sides rendered, a template that is another one, or is told something else, comes
    before them."""
    old, new = inquiry.pairs[difference.row or 0]
    is_rendered = bool(old.get("template") and new.get("template"))
    if not name.startswith("prompt.") or (difference.stage == "template" and is_rendered):
        return name
    if has_same_text_of_other_ids(old, new, inquiry.decode):
        return "prompt.tokenization"
    broken = inquiry.comparison.broken
    return next((b.cause for b in broken if b.law in OF_PROMPTS), name)


def has_same_text_of_other_ids(old: Row, new: Row, decode: Decoder | None) -> bool:
    """Whether prompts of other ids are one text."""
    before = old["prompt_ids"]
    after = new["prompt_ids"]
    if decode is None or before == after:
        return False
    return decode(before, False, False) == decode(after, False, False)


def is_possible(name: str, inquiry: Inquiry) -> bool:
    """Whether a difference can be the cause at all: other ends can't make a model choose another
    word at a step where neither side ends."""
    if not name.startswith("stop."):
        return True
    for old, new in inquiry.pairs:
        before = old["output_ids"]
        after = new["output_ids"]
        ends = {*end_ids(old), *end_ids(new)}
        step = parting_step(before, after)
        # An end may be held back by a least number of tokens.
        if step is not None and ends.isdisjoint((before[step], after[step])):
            where = f"at step {step}, where the ids part, neither token is an end"
            inquiry.steps.append(f"not {name}: {where}")
            return False
    return True


def by_invariant(inquiry: Inquiry) -> Cause | None:
    """The first invariant that the new side alone breaks, unless an earlier stage differs. A
    finding about where ids end is confirmed where the endings of both sides say the same."""
    broken = inquiry.comparison.broken
    if not broken:
        return None
    first = min(broken, key=lambda one: STAGES.index(one.place))
    place = STAGES.index(first.place)
    if any(STAGES.index(difference.stage) < place for _, difference in inquiry.counted):
        return None
    if inquiry.comparison.has_same_ids and first.law in ("end", "text"):
        return None  # the texts themselves tell it
    ending = by_endings(inquiry)
    if ending is not None and ending.name == first.cause:
        return ending
    return broken_cause(first)


def also_differs(comparison: Comparison, cause: Cause) -> tuple[str, ...]:
    """Names of everything else that differs, or that the new side alone breaks."""
    names = [name for name, _ in comparison.counted]
    names += [broken.cause for broken in comparison.broken]
    return tuple(name for name in dict.fromkeys(names) if name != cause.name)


def declared_end(inquiry: Inquiry) -> Cause | None:
    """What was declared of where answers end, and differs: it comes before whatever else may have
    ended one."""
    for name, difference in inquiry.comparison.counted:
        if difference.stage == "stop":
            proof = "declared, and an answer ends elsewhere"
            return difference_cause(name, "likely", difference, proof)
    return None


# == From the recorded ids alone ==


def by_recorded_ids(inquiry: Inquiry) -> Cause | None:
    """Another order, another's answer, a lost end or another budget show in the ids."""
    if inquiry.comparison.has_same_ids or not inquiry.comparison.has_as_many_rows:
        return None
    names = dict(inquiry.counted)
    order = names.get("batch.order")
    if order is not None and order.old != "its own request":
        proof = "put back in order, the recorded ids of both sides are the same"
        return difference_cause("batch.order", "confirmed", order, proof)
    return by_another_answer(inquiry) or by_cut_ids(inquiry, names)


def by_another_answer(inquiry: Inquiry) -> Cause | None:
    taken = given_to_another(inquiry.old.rows, inquiry.new.rows)
    if taken is None:
        return None
    said = f"row {taken[0]} got row {taken[1]}'s"
    if inquiry.realigned(inquiry.run({}, {ALONE})):
        proof = "each request by itself gives the old answer"
        return named_cause("batch.order", "confirmed", said, proof)
    return named_cause("batch.order", "likely", said, "it came with that one's prompt")


def by_cut_ids(inquiry: Inquiry, names: dict[str, Difference]) -> Cause | None:
    """Cut as the other side cuts, the ids are the same."""
    for name, is_equal in EQUAL_WHEN.items():
        if name in names and all(is_equal(old, new) for old, new in inquiry.pairs):
            proof = "with this alone undone, the recorded ids of both sides are the same"
            return difference_cause(name, "confirmed", names[name], proof)
    return None


def given_to_another(old: Sequence[Row], new: Sequence[Row]) -> tuple[int, int] | None:
    """(row, whose answer it got), where the first prompt that differs was seen to come with another
    request's answer: it is that one's, and says nothing of the prompts' own stages."""
    asked = [asked_as(row) for row in old]
    for number, row in enumerate(new):
        given = asked_as(row)
        if asked[number : number + 1] == [given]:
            continue
        is_seen = request_of(row).get("answers") == "another"
        return (number, asked.index(given)) if is_seen and given in asked else None
    return None


def equal_when_cut(old: Row, new: Row) -> bool:
    both = {*end_ids(old), *end_ids(new)}
    return cut_at(old["output_ids"], both) == cut_at(new["output_ids"], both)


def cut_at(ids: Sequence[int], ends: Collection[int]) -> list[int]:
    """Ids up to the first that ends them."""
    for position, i in enumerate(ids):
        if i in ends:
            return list(ids[: position + 1])
    return list(ids)


def equal_when_shortened(old: Row, new: Row) -> bool:
    counts = [count for count in map(max_tokens, (old, new)) if count is not None]
    most = min(counts, default=None)
    return bool(old["output_ids"][:most] == new["output_ids"][:most])


EQUAL_WHEN = {"stop.eos_set": equal_when_cut, "stop.length": equal_when_shortened}


def by_value(inquiry: Inquiry) -> Cause | None:
    """The same texts in another order, of answers that are the old ones as far as both go."""
    if inquiry.counted or inquiry.comparison.has_same_ids:
        return None
    if not are_prefixes(inquiry.pairs):
        return None
    if not any(texts_in(inquiry.old.value)):
        return None
    places = order_of_answers(inquiry.old, inquiry.new)
    if places is None or places == sorted(places):
        return None
    return of_order(places, IN_ORDER)


STEPS: tuple[ExplainStep, ...] = (
    by_error,
    by_recorded_ids,
    by_value,
    by_replay,
    by_cache,
    by_company_exactly,
    by_invariant,
    by_number_of_calls,
    by_values_of_same_ids,
    by_texts,
    by_first_suspect,
)
