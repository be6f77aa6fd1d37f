"""A case whose value is the golden's: whether it passes, and what differs all the same.

is_identical(comparison)     nothing at all differs: the case is judged, and nothing is run again
latent_cause(comparison)     what differs, though this value does not show it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Certainty, brief
from parity.judge.align import has_same_ids
from parity.judge.comparison import Comparison
from parity.judge.naming import broken_cause, difference_cause, named_cause
from parity.judge.row import (
    entry,
    has_loop,
    is_drawn,
    is_sampled,
    prompt_of,
    request_of,
    text_of,
)
from parity.judge.stages.stop import told_stops
from parity.record.changing import covered_texts, covers_all, value_or_error
from parity.record.rows import by_itself

NOT_SHOWN = "on this case the value does not show it"


def is_identical(comparison: Comparison) -> bool:
    """Whether a case passes by what was seen of it alone. What was sampled, only read, or chosen by
    a loop of the code's own is weighed by what its site says first (site_facts.py)."""
    old = comparison.old
    new = comparison.new
    if old.repeats is False or old.raised != new.raised or not comparison.has_same_value:
        return False
    if any(is_drawn(row) or by_itself(row) for row in (*old.rows, *new.rows)):
        return False
    if not comparison.has_same_ids or comparison.behind:
        return False
    if any(difference.counts for difference in comparison.differences):
        return False
    return unshown_cause(comparison) is None


def latent_cause(comparison: Comparison) -> Cause | None:
    """What differs, though the value does not show it."""
    empty = of_nothing_compared(comparison)
    return empty or of_seen(comparison) or unshown_cause(comparison)


def unshown_cause(comparison: Comparison) -> Cause | None:
    """What differs beside the stages that are compared side by side."""
    for rule in (of_nothing_compared, of_broken_unseen, of_asked, of_flag):
        if cause := rule(comparison):
            return cause
    return None


def of_nothing_compared(comparison: Comparison) -> Cause | None:
    """What the golden leaves out, so that equal values say nothing."""
    old = comparison.old
    said = ""
    if has_ids(comparison.new) and not has_ids(old):
        count = len(comparison.new.rows)
        said = f"the golden has no model call to compare; the new code makes {count} rows of them"
    elif covers_all(old.changing, value_or_error(old)):
        said = "nothing of the value is compared: all of it is marked as changing"
    elif answer := next(covered_answers(old), ""):
        said = f"an answer of the model is marked as changing and not compared: {brief(answer)}"
    return Cause("golden.empty", "confirmed", said, "seen directly") if said else None


def has_ids(case: Case) -> bool:
    return any(row["prompt_ids"] or row["output_ids"] for row in case.rows)


# Characters of an answer that a time or a random name does not hold by chance.
LEAST_ANSWER = 8


def covered_answers(case: Case) -> Iterator[str]:
    """Answers that stand in a part of the value that is not compared. What is recorded as changing
    changed while the answers were the same."""
    texts = [text_of(row).strip() for row in case.rows]
    for middle in covered_texts(case.changing, value_or_error(case)):
        yield from (text for text in texts if len(text) >= LEAST_ANSWER and text in middle)


def of_seen(comparison: Comparison) -> Cause | None:
    """The first difference that counts, where the value does not show it."""
    if not comparison.counted:
        return None
    name, difference = comparison.counted[0]
    certainty: Certainty = "confirmed"
    if name == "sampling.mode" and has_loop(comparison.old):
        certainty = "likely"  # by which settings it chose was not seen
    if name == "stop.criteria" or (name == "stop.strings" and not told_stops(comparison.old)):
        certainty = "likely"  # what a criterion does is not seen, and the value may be cut by hand
    return difference_cause(certainty, difference, f"seen directly; {NOT_SHOWN}")


def of_broken_unseen(comparison: Comparison) -> Cause | None:
    """The first invariant that the new side alone breaks, but for those of which the value and the
    ids themselves would tell."""
    told = ("text", "end") if comparison.has_same_ids else ("text",)
    for broken in comparison.broken:
        if broken.law not in told:
            return broken_cause(broken, f"; {NOT_SHOWN}")
    return None


def of_asked(comparison: Comparison) -> Cause | None:
    """Prompts that only one side asks for."""
    old = comparison.old
    if comparison.has_as_many_rows or not old.rows:
        return None
    said = asked_otherwise(old, comparison.new) or drawn_otherwise(comparison)
    proof = f"seen directly; {NOT_SHOWN}"
    return named_cause("calls", "confirmed", said, proof) if said else None


def drawn_otherwise(comparison: Comparison) -> str:
    """How many samples only one side draws, where the others are the same: none of them decided
    how many there are."""
    before, after = (
        Counter(prompt_of(row) for row in case.rows if is_drawn(row))
        for case in (comparison.old, comparison.new)
    )
    if not before or not after or before == after or not has_same_ids(comparison.pairs):
        return ""
    return f"{before.total()} samples were drawn, are {after.total()}"


def of_flag(comparison: Comparison) -> Cause | None:
    """Special tokens that only one side drops, where each row became text once, and no answer holds
    any. Code that takes an engine's raw text has them whatever its options say."""
    for flag in comparison.differences:
        is_flag = (flag.stage, flag.field) == ("decode", "skip_special_tokens")
        if is_flag and is_decoded_once(comparison):
            certainty: Certainty = "likely" if flag.new else "confirmed"
            return difference_cause(certainty, flag, f"seen directly; {NOT_SHOWN}")
    return None


def is_decoded_once(comparison: Comparison) -> bool:
    """Whether each row became text once, and the same text (with or without its prompt): of several
    ways the value may use any."""
    for row in (*comparison.old.rows, *comparison.new.rows):
        if "decode" not in row or "decodes" in row:
            return False
    for old, new in comparison.pairs:
        one = text_of(old)
        other = text_of(new)
        if not one.endswith(other) and not other.endswith(one):
            return False
    return True


# == Which requests were asked ==

Prompt = tuple[int, ...]


def asked_otherwise(old: Case, new: Case) -> str:
    """Which prompt only one side asks for; what is asked for twice may be answered once."""
    before = asked_prompts(old)
    after = asked_prompts(new)
    if before == after or may_read_anything(old, new):
        return ""
    read = {prompt_of(row) for row in old.rows if row.get("scored")}
    # Not one that was only read, and is read as the beginning of another one.
    gone = before - after - {ids for ids in read if begins_one_of(ids, after)}
    if gone:
        return f"of {len(before)} prompts {len(gone)} did not reach the model"
    # What was read as a whole may be asked in parts: a prompt, and its answer.
    more = [ids for ids in after - before if not begins_one_of(ids, before)]
    return f"{len(more)} prompts reached the model that had not" if more else ""


def may_read_anything(old: Case, new: Case) -> bool:
    """Whether a loop became logits processors, which read what they like."""
    has_processors = any(entry(row, "sampling", "processors") for row in new.rows)
    return has_processors and has_loop(old)


def asked_prompts(case: Case) -> set[Prompt]:
    """But for those whose loss was asked for, where no token counts."""
    counted = [row for row in case.rows if request_of(row).get("labels") != "none"]
    return {prompt_of(row) for row in counted}


def begins_one_of(ids: Prompt, prompts: set[Prompt]) -> bool:
    return any(ids == whole[: len(ids)] for whole in prompts)


def is_other_samples(comparison: Comparison) -> bool:
    """Whether both sides sample, as many rows, and other ids."""
    if comparison.has_same_ids or not comparison.has_as_many_rows:
        return False
    return is_sampled(comparison.old) and is_sampled(comparison.new)
