"""The stop: where ids end, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from parity.golden import Case
from parity.judge.row import Row, entry, is_drawn
from parity.judge.stages.stage import KEPT, Broken, Compared, Invariant, Kept, Stage, Tools
from parity.record.rows import string_lists
from parity.verdict import Difference, brief


def told_stops(case: Case) -> set[str]:
    """Stop strings that a case's library was told."""
    return {stop for row in case.rows for stop in entry(row, "stop", "strings") or ()}


def stop_differences(old: Row, new: Row) -> Iterator[Difference]:
    if not old.get("stop") or not new.get("stop"):
        return
    before, after = entry(old, "stop", "end_ids"), entry(new, "stop", "end_ids")
    either = {*(entry(old, "stop", "string_ids") or ()), *(entry(new, "stop", "string_ids") or ())}
    # Ids may stand in a criterion's place, or in a part of it: only those that are chosen can tell.
    instead = bool(entry(old, "stop", "criteria")) and {*before} < {*after}
    if ({*before} ^ {*after}) - either:
        yield Difference("stop", "end_ids", before, after, counts=not instead)
    for name in ("max_new_tokens", "min_new_tokens"):
        before, after = entry(old, "stop", name), entry(new, "stop", name)
        if before != after:
            yield Difference("stop", name, before, after)
    before, after = strings_looked_for(old), strings_looked_for(new)
    said = [{*(entry(row, "stop", "strings") or ())} for row in (old, new)]
    if set(before) != set(after) and said[0] != said[1]:
        # Code that cut by hand, after decoding, names no strings to the library: only its value can tell.
        yield Difference("stop", "strings", before, after, counts=bool(before))
    before, after = entry(old, "stop", "criteria") or [], entry(new, "stop", "criteria") or []
    if bool(before) != bool(after):
        # A criterion says nothing of what it does: where stops stand in its place, only the ids can tell.
        instead = bool(entry(new, "stop", "strings")) or len(entry(new, "stop", "end_ids")) > len(
            entry(old, "stop", "end_ids")
        )
        yield Difference("stop", "criteria", before, after, counts=may_end_by_criterion(old) and not instead)


def may_end_by_criterion(row: Row) -> bool:
    """Whether a stopping criterion of the code's own ended a row by itself, or may have, where that was not recorded.
    One that called it done only when an end id, a stop string or the length did too is that end."""
    own = entry(row, "stop", "criteria") or ()
    if not own or "finish" not in row:
        return bool(own)
    done = row["finish"]["criteria"]
    by_itself = [count for name, count in done.items() if name in own]
    by_library = [count for name, count in done.items() if name not in own]
    return bool(by_itself) and (not by_library or min(by_itself) < min(by_library))


def strings_looked_for(row: Row) -> list[str]:
    """Stop strings that can stand in a row's text."""
    never = entry(row, "stop", "never_text") or ()
    return [text for text in entry(row, "stop", "strings") or () if text not in never]


def end(row: Row, tools: Tools) -> Kept:
    """Where ids end, and why."""
    if "stop" not in row or (entry(row, "sampling", "num_beams") or 1) > 1:
        return None
    ids, most = row["output_ids"], entry(row, "stop", "max_new_tokens")
    least = entry(row, "stop", "min_new_tokens") or 0
    ends = {*(entry(row, "stop", "end_ids") or ()), *(entry(row, "stop", "string_ids") or ())}
    strings = entry(row, "stop", "strings") or ()
    if len(ids) < least and most != len(ids):
        name = "stop.length" if ids and ids[-1] in ends else "stop.rule"
        return name, f"ended after {len(ids)} tokens, where {least} were asked for at least"
    if (place := next((k for k, i in enumerate(ids[:-1]) if i in ends), None)) is not None:
        return "stop.eos_set", f"token {place} of {len(ids)} ends the text, and the row went on"
    if most is not None and len(ids) > most:
        return "stop.length", f"{len(ids)} tokens, where {most} are allowed"
    if strings and tools.decode is None:
        return None
    stopped = completed(ids, strings, tools.decode, least) if tools.decode else None
    if stopped is not None and stopped < len(ids):
        return "stop.rule", f"a stop was complete after {stopped} tokens, and the row went on to {len(ids)}"
    if (ids and ids[-1] in ends) or stopped is not None or most is None or len(ids) == most:
        return KEPT
    if may_end_by_criterion(row):
        return KEPT
    name = "stop.rule" if strings else "stop.length"
    return name, f"ended after {len(ids)} tokens without an end id or a stop, where {most} are allowed"


def completed(ids: Sequence[int], strings: Sequence[str], decode: Callable[..., str], least: int = 0) -> int | None:
    """After how many tokens the first stop is complete, in text without special tokens; behind the least number."""
    since = len(decode(ids[:least], True, False))

    def stops(count: int) -> bool:
        made = decode(ids[:count], True, False)
        return any(made.find(stop, max(0, since - len(stop) + 1)) >= 0 for stop in strings)

    return next(filter(stops, range(least + 1, len(ids) + 1)), None) if stops(len(ids)) else None


def ends_early(old: Row, new: Row, held: Sequence[str], tools: Tools) -> str:
    """Of draws, which are others: whether a new stop would end an old answer, where texts of the old value hold what
    came behind it: so nobody had cut there by hand."""
    added = {*(entry(new, "stop", "strings") or ())} - {*(entry(old, "stop", "strings") or ())}
    if not added or tools.decode is None or not (is_drawn(old) and is_drawn(new)):
        return ""
    ids = old["output_ids"]
    if (count := completed(ids, [*added], tools.decode, entry(new, "stop", "min_new_tokens") or 0)) is None:
        return ""
    before = tools.decode(ids[:count], True, False)
    whole = tools.decode(ids, True, False)[: len(before) + BEHIND].strip()
    if whole == before.strip() or not any(whole in text for text in held):
        return ""
    return f"one of {sorted(added)} would end it after {count} of {len(ids)} tokens, and the old code let it go on"


BEHIND = 8  # characters that tell whether a text goes on


def goes_on(old: Row, new: Row, tools: Tools) -> str:
    """Of draws, which are others: whether the new stops would let an old answer go on that a stop had ended."""
    ids, strings = old["output_ids"], entry(new, "stop", "strings") or ()
    ends = {*(entry(old, "stop", "end_ids") or ()), *(entry(new, "stop", "end_ids") or ())}
    ends |= {*(entry(new, "stop", "string_ids") or ())}
    asked = tools.decode and "stop" in old and "stop" in new and is_drawn(old) and is_drawn(new)
    stopped = asked and ids and len(ids) < (entry(old, "stop", "max_new_tokens") or 0) and ids[-1] not in ends
    told = may_end_by_criterion(old) or entry(old, "stop", "strings")
    if not stopped or not told or tools.decode is None or entry(new, "stop", "criteria") or ids == new["output_ids"]:
        return ""
    if completed(ids, strings, tools.decode) is not None:
        return ""
    return f"a stop ended it at {brief(tools.decode(ids, True, False)[-12:])}, which is none of {list(strings)}"


# == The stage ==


def weigh_strings(difference: Difference, comparison: Compared) -> Difference | None:
    """Stops at which the old code cuts by itself are among its arguments: nothing differs. Those that it tells its
    library for other rows it does not cut at by hand in this one: they count."""
    if difference.field != "strings":
        return difference
    given = {*difference.new}
    if not difference.old and any({*stops} == given for stops in string_lists(comparison.old.arguments)):
        return None
    return replace(difference, counts=difference.counts or given <= told_stops(comparison.old))


def ends_across(comparison: Compared) -> Iterator[Broken]:
    """Of samples, which are others: where the new stops would have ended the golden's answers."""
    tools = comparison.tools
    for number, (old, new) in enumerate(comparison.pairs):
        if said := ends_early(old, new, comparison.old_texts, tools):
            yield Broken("end", "stop.strings", number, said, "output_ids")
            return
        if said := goes_on(old, new, tools):
            before, after = ({*(entry(row, "stop", "strings") or ())} for row in (old, new))
            name = "stop.rule" if before and before == after else "stop.strings"  # the same: it began in the prompt
            yield Broken("end", name, number, said, "output_ids")
            return


STAGE = Stage(
    "stop",
    fields=("stop",),
    compare=stop_differences,
    weigh=weigh_strings,
    invariants=(Invariant("end", "output_ids", end),),
    across=ends_across,
)
