"""What differs though the value does not show it: the causes of LATENT, in the order in which they
are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Certainty, Difference, brief
from parity.judge import own_loops
from parity.judge.comparison import Comparison
from parity.judge.naming import broken_cause, difference_cause
from parity.judge.numerics.questions import NOT_SHOWN
from parity.judge.row import entry, prompt_of, request_of, text_of
from parity.judge.stages.prompt import may_be_written
from parity.judge.stages.stop import told_stops
from parity.record.changing import covered_texts, covers_all, value_or_error


def nothing_compared(comparison: Comparison) -> Cause | None:
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


def seen_directly(comparison: Comparison) -> Cause | None:
    """The first difference that counts, where the value does not show it."""
    if not comparison.counted:
        return None
    name, difference = comparison.counted[0]
    certainty: Certainty = "confirmed" if is_sure(name, difference, comparison) else "likely"
    return difference_cause(name, certainty, difference, f"seen directly; {NOT_SHOWN}")


def is_sure(name: str, difference: Difference, comparison: Comparison) -> bool:
    """Whether nothing that was not seen can do what a cause says."""
    old = comparison.old
    if name == "sampling.mode" and own_loops.of_own_loop(old):
        return False  # by which settings it chose was not seen
    if difference.field == "criteria":
        return False
    if difference.field == "strings" and not told_stops(old):
        return False  # the value may be cut by hand
    return not may_be_written(name, *comparison.pairs[difference.row or 0])


def broken_unseen(comparison: Comparison) -> Cause | None:
    """The first invariant that the new side alone breaks, but for those of which the value and the
    ids themselves would tell."""
    told = ("text", "end") if comparison.has_same_ids else ("text",)
    for broken in comparison.broken:
        if broken.law not in told:
            return broken_cause(broken, f"; {NOT_SHOWN}")
    return None


def other_prompts(comparison: Comparison) -> Cause | None:
    """Prompts that only one side asks for."""
    if comparison.has_as_many_rows or not comparison.old.rows:
        return None
    said = asked_otherwise(comparison.old, comparison.new)
    proof = "seen directly; the value does not show it"
    return Cause("post.other", "likely", said, proof) if said else None


def other_flag(comparison: Comparison) -> Cause | None:
    """Special tokens that only one side drops, where each row became text once."""
    for flag in comparison.differences:
        if (flag.stage, flag.field) == ("decode", "skip_special_tokens"):
            return flag_that_shows_elsewhere(flag) if decoded_once(comparison) else None
    return None


SEEN_WITHOUT_VALUE = (nothing_compared, seen_directly, broken_unseen, other_prompts, other_flag)


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


Prompt = tuple[int, ...]


def may_read_anything(old: Case, new: Case) -> bool:
    """Whether a loop became logits processors, which read what they like."""
    has_processors = any(entry(row, "sampling", "processors") for row in new.rows)
    return has_processors and own_loops.of_own_loop(old)


def asked_prompts(case: Case) -> set[Prompt]:
    """But for those whose loss was asked for, where no token counts."""
    counted = [row for row in case.rows if request_of(row).get("labels") != "none"]
    return {prompt_of(row) for row in counted}


def begins_one_of(ids: Prompt, prompts: set[Prompt]) -> bool:
    return any(ids == whole[: len(ids)] for whole in prompts)


def flag_that_shows_elsewhere(difference: Difference) -> Cause:
    """Special tokens that only one side drops, where no answer of the case holds any. Code that
    takes an engine's raw text has them whatever its options say, so where they went it is
    likely."""
    proof = f"seen directly; {NOT_SHOWN}"
    if not difference.new:
        return difference_cause("decode.skip_special", "confirmed", difference, proof)
    unless = f"{proof}; unless the new code takes the engine's raw text"
    return difference_cause("decode.skip_special", "likely", difference, unless)


def decoded_once(comparison: Comparison) -> bool:
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
