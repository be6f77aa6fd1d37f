"""The prompt: messages, template, text, ids."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from parity.judge.row import Row, entry, placeholder_in, same_prompt, shared_start
from parity.judge.stages.stage import KEPT, Compared, Invariant, Kept, Stage, Tools
from parity.record.rows import collapsed
from parity.verdict import Difference, brief

PROMPT_STAGES = ("messages", "template", "prompt_text", "prompt_ids")


# == What differs ==


def prompt_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Another prompt; where the ids are the same, whatever led to them is only told."""
    differs = not same_prompt(old, new)
    for stage in ("messages", "template", "prompt_text"):
        if old.get(stage) is not None and new.get(stage) is not None and old[stage] != new[stage]:
            if stage == "template":
                yield from template_differences(old[stage], new[stage], differs)
            else:
                yield Difference(stage, "", old[stage], new[stage], counts=differs)
    if differs:
        yield Difference("prompt_ids", "", old["prompt_ids"], new["prompt_ids"])


def template_differences(old: Row, new: Row, counts: bool) -> Iterator[Difference]:
    if old["sha256"] != new["sha256"]:
        yield Difference("template", "sha256", old["sha256"][:12], new["sha256"][:12], counts=counts)
    for name in sorted({*old["arguments"], *new["arguments"]}):
        before, after = old["arguments"].get(name), new["arguments"].get(name)
        if before != after:
            yield Difference("template", name, before, after, counts=counts)


# == Invariants ==


def template(row: Row, tools: Tools) -> Kept:
    said, text = row.get("template"), row.get("prompt_text")
    if said is None or text is None or tools.render is None or said["sha256"] != tools.template:
        return None
    if any("<" in str(value)[:1] for value in said["arguments"].values()):  # an argument that is no data
        return None
    wanted = tools.render(row["messages"], said["arguments"])
    return KEPT if wanted == text else ("prompt.template", f"the template gives {brief(wanted)}, not {brief(text)}")


def tokenization(row: Row, tools: Tools) -> Kept:
    text = row.get("prompt_text")
    if text is None or tools.encode is None or row.get("images") or row.get("scored"):
        return None
    ids = list(collapsed(row["prompt_ids"], placeholder_in(row)))
    ways = [list(tools.encode(text, special)) for special in (True, False)]
    if ids in ways:
        return KEPT
    for way in ways:
        if len(ids) == len(way) + 1 and ids[1:] == way and ids[0] == ids[1]:
            return "prompt.double_bos", f"id {ids[0]} stands twice at the beginning"
        if (lost := missing(ids, way)) and ids:
            end = "first" if ids == way[: len(ids)] else "last" if ids == way[-len(ids) :] else "first and last"
            blank = tools.decode is not None and not tools.decode(lost, True, False).strip()
            name = "prompt.tokenization" if blank else "prompt.truncation"
            return name, f"of {len(way)} ids only the {end} {len(ids)} reached the model"
    return (
        "prompt.tokenization",
        f"the tokenizer makes {len(ways[0])} ids of this text, other {len(ids)} reached the model",
    )


def missing(some: Sequence[int], every: Sequence[int]) -> Sequence[int]:
    """The ids that one run of `every` holds more than `some`; none, where that is not all the difference."""
    count = len(every) - len(some)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(some, every)))
    return every[same : same + count] if count > 0 and every[same + count :] == some[same:] else ()


# == Causes ==


CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d|\b(19|20)\d\d\b|(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*\b")


MARKER = re.compile(r"<\|[^<|>]+\|>|</?\w+>|\[/?[A-Z]+\]")  # of a chat's parts, in the templates of the field


def without_clock(text: str) -> str:
    return CLOCK.sub("", text)


def prompt_cause(old: Row, new: Row) -> str:
    """Why two prompts differ, from what led to them, their text and their ids."""
    before, after = old.get("prompt_text"), new.get("prompt_text")
    short, long = sorted((old["prompt_ids"], new["prompt_ids"]), key=len)
    first = long[: len(long) - len(short)]
    if first and long[len(first) :] == short and set(long[: max(2, len(first))]) == {long[0]}:
        return "prompt.double_bos"
    if before == after and long[: len(short)] == short and {*long[len(short) :]} == {*long[:1]}:
        return "prompt.double_bos"  # of what was put behind it
    cuts = [(row.get("request") or {}).get("cut", "").partition(" of ") for row in (old, new)]
    if cuts[0] != cuts[1] and cuts[0][2] == cuts[1][2] != "":  # two parts of as long a text
        return "prompt.truncation"
    if before is not None and after is not None and before != after:
        if without_clock(before) == without_clock(after):
            return "prompt.clock"
        written_by_hand = (old.get("template") is None) != (new.get("template") is None)
        if written_by_hand and opens_an_answer(before, after):
            return "prompt.template"
        if old.get("messages") != new.get("messages"):
            return "prompt.messages"
        if old.get("template") != new.get("template") or before.split() == after.split():
            return "prompt.template" if old.get("template") else "prompt.messages"  # blanks: who joined the text?
        if opens_an_answer(before, after):
            return "prompt.template"
        if long[-len(short) :] == short and MARKER.match(before) and MARKER.match(after):
            return "prompt.messages"  # the first ones
    if None in (before, after) and None not in (was := template_of(old), now := template_of(new)) and was != now:
        return "prompt.template"  # cut prompts of two templates
    if (before == after or None in (before, after)) and without(long[:1], long) == without(long[:1], short):
        return "prompt.tokenization"  # the tokenizer's own first id is missing, here or in a later turn
    behind = [(row.get("request") or {}).get("behind") for row in (old, new)]
    if before == after and behind[0] != behind[1]:
        return "prompt.messages"  # ids that were put behind a text
    if short and (long[-len(short) :] == short or long[: len(short)] == short):
        if before is None or after is None or before == after or old.get("template"):
            return "prompt.truncation"
        few = abs(len(before) - len(after)) < LEAST_CUT and long[: len(short)] == short
        return "prompt.messages" if few or written_so(before, after) else "prompt.truncation"
    if len(short) > 1 and long[0] == short[0] and long[1 - len(short) :] == short[1:] and before == after:
        return "prompt.truncation"  # behind a first id that was kept
    cut_alike = None in (before, after) and len(short) == len(long)  # ids that are no whole text
    if cut_alike and max(shared_ends(short, long), overlap(short, long)) * 2 >= len(short):
        last = new["prompt_ids"][-1]
        ended = last != old["prompt_ids"][-1] and last in (entry(new, "stop", "end_ids") or ())
        return "prompt.tokenization" if ended else "prompt.truncation"
    if before is None and after is None and (moved := moved_run(short, long)) is not None:
        return "prompt.truncation" if moved else "prompt.messages"
    if before == after:
        return "prompt.tokenization"
    return "prompt.template" if old.get("template") or new.get("template") else "prompt.messages"


def opens_an_answer(before: str, after: str) -> bool:
    """Whether all that one prompt text has more is markers at its end, such as those of an empty thought: a switch of a
    template, not a message."""
    less, more = sorted((before, after), key=len)
    return more.startswith(less) and MARKER.match(more[len(less) :]) is not None


def without(some: Sequence[int], ids: Sequence[int]) -> list[int]:
    return [i for i in ids if i not in some]


def may_be_written(name: str, old: Row, new: Row) -> bool:
    """Whether a prompt that was called cut may have been written so: nobody said that it was cut, and its text, as far
    as it is known, is the shorter one."""
    texts = old.get("prompt_text"), new.get("prompt_text")
    said = any((row.get("request") or {}).get("cut") for row in (old, new))
    return name == "prompt.truncation" and not said and (None in texts or texts[0] != texts[1])


SEAM = re.compile(r".*(\n|[.:!?] ?)", re.DOTALL)  # where a part of a text ends that somebody wrote as a part


def written_so(before: str, after: str) -> bool:
    """Whether of two texts, one the beginning or the end of the other, the new one has more than the old, or lacks a
    whole part: whoever cuts a text to its length cuts anywhere."""
    if not (after.startswith(before) or after.endswith(before)):
        first = before[: -len(after)] if before.endswith(after) else after
        return SEAM.fullmatch(first) is not None or before[len(first) :].startswith(("\n", "[", "<"))
    return True


LEAST_CUT = 8  # characters: what lacks fewer at its end was written otherwise, and not cut


def template_of(row: Row) -> str | None:
    name: str | None = (row.get("template") or {}).get("sha256")
    return name


def shared_ends(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two prompts share at their beginning, or at their end."""
    return max(shared_start(one, other), shared_start(one[::-1], other[::-1]))


def moved_run(one: Sequence[int], other: Sequence[int]) -> bool | None:
    """Whether the longest run that two prompts share stands elsewhere in each, as in two windows of one text, behind
    which the same was put; None where they share less than half."""
    found = difflib.SequenceMatcher(None, one, other, autojunk=False).find_longest_match()
    return found.a != found.b if found.size * 2 >= len(one) else None


def overlap(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids the end of one shares with the beginning of the other, as two windows of one text do."""
    sizes = range(min(len(one), len(other)), 0, -1)
    ways = ((one, other), (other, one))
    return next((n for n in sizes for a, b in ways if a[-n] == b[0] and a[-n:] == b[:n]), 0)


# == The stage ==


def weigh_prompt(difference: Difference, comparison: Compared) -> Difference | None:
    """A prompt that differs only as the answers differ that it holds, or by the id that is asked for, fails nothing."""
    row = difference.row or 0
    excused = row in comparison.followers or row in comparison.read_for_asked
    return replace(difference, counts=False) if excused else difference


def cause_of_prompt(difference: Difference, old: Row, new: Row) -> str:
    return prompt_cause(old, new)


STAGE = Stage(
    "prompt",
    fields=PROMPT_STAGES,
    compare=prompt_differences,
    weigh=weigh_prompt,
    invariants=(
        Invariant("template", "template", template),
        Invariant("tokenization", "prompt_ids", tokenization),
    ),
    cause=cause_of_prompt,
)
