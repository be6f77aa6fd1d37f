"""The prompt: messages, template, text, ids.

Why two prompts differ is asked of `PROMPT_RULES` in order, from what was observed of a cut or a
template to what the ids alone suggest; the first rule that answers names the cause.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from parity.goldens.verdict import Difference, brief
from parity.judge.naming import first_answer
from parity.judge.row import (
    Row,
    TokenIds,
    end_ids,
    prompt_around_pictures,
    request_of,
    same_prompt,
    shared_start,
)
from parity.judge.stages.stage import KEPT, NO_TOOLS, Compared, Invariant, Kept, Stage, Tools

PROMPT_STAGES = ("messages", "template", "prompt_text", "prompt_ids")
RESPONSE = "response"  # of a scored request: how many of its ids, the last ones


# == What differs ==


def prompt_differences(old: Row, new: Row) -> Iterator[Difference]:
    """Another prompt; where the ids, or the text, are the same, whatever led to them is only
    told."""
    differs = not same_prompt(old, new)
    text = old.get("prompt_text")
    led_to_other = differs and (text is None or text != new.get("prompt_text"))
    for stage in ("messages", "template", "prompt_text"):
        if old.get(stage) is None or new.get(stage) is None or old[stage] == new[stage]:
            continue
        if stage == "template":
            yield from template_differences(old[stage], new[stage], led_to_other)
        else:
            yield Difference(stage, "", old[stage], new[stage], counts=led_to_other)
    if differs:
        yield Difference("prompt_ids", "", old["prompt_ids"], new["prompt_ids"])
    else:
        yield from response_differences(old, new)


def response_differences(old: Row, new: Row) -> Iterator[Difference]:
    """How many of the same ids are the response that is scored, where both sides were seen to split
    them."""
    before = request_of(old).get(RESPONSE)
    after = request_of(new).get(RESPONSE)
    if before and after and before != after:
        yield Difference("prompt_ids", RESPONSE, before, after)


def template_differences(old: Row, new: Row, counts: bool) -> Iterator[Difference]:
    if old["sha256"] != new["sha256"]:
        digests = old["sha256"][:12], new["sha256"][:12]
        yield Difference("template", "sha256", *digests, counts=counts)
    for name in sorted({*old["arguments"], *new["arguments"]}):
        before = old["arguments"].get(name)
        after = new["arguments"].get(name)
        if before != after:
            yield Difference("template", name, before, after, counts=counts)


# == Invariants ==


def template(row: Row, tools: Tools) -> Kept:
    said = row.get("template")
    text = row.get("prompt_text")
    if said is None or text is None or tools.render is None or said["sha256"] != tools.template:
        return None
    if any(str(value).startswith("<") for value in said["arguments"].values()):
        return None  # an argument that is no data
    wanted = tools.render(row["messages"], said["arguments"])
    if wanted == text:
        return KEPT
    return "prompt.template", f"the template gives {brief(wanted)}, not {brief(text)}"


def tokenization(row: Row, tools: Tools) -> Kept:
    text = row.get("prompt_text")
    if text is None or tools.encode is None or row.get("images") or row.get("scored"):
        return None
    if has_lone_surrogate(text):
        return None
    ids = list(prompt_around_pictures(row))
    wholes = ids_of_text(text, tools)
    if ids in wholes:
        return KEPT
    for whole in wholes:
        if broken := has_bos_twice(ids, whole) or lacks_ids(ids, whole, tools):
            return broken
    made = f"the tokenizer makes {len(wholes[0])} ids of this text"
    return "prompt.tokenization", f"{made}, other {len(ids)} reached the model"


def is_broken_anew(before: Kept, found: tuple[str, str], old: Row, new: Row) -> bool:
    """Whether ids are no text's anew: of other prompts also where the old ones are none in another
    way, or were not observed with their text, and these are cut. Ids that were put together by hand
    are no text's, on either side."""
    if old["prompt_ids"] == new["prompt_ids"]:
        return before == KEPT
    is_cut = found[0] == "prompt.truncation" and before != found
    return is_cut or (before is not None and before[0] != found[0])


def ids_of_text(text: str, tools: Tools) -> list[list[int]]:
    """The ids of a text with, and without, special tokens."""
    if tools.encode is None or has_lone_surrogate(text):
        return []
    return [list(tools.encode(text, special)) for special in (True, False)]


def has_lone_surrogate(text: str) -> bool:
    """Whether a text contains half a character, which no tokenizer takes."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def has_bos_twice(ids: list[int], whole: list[int]) -> Kept:
    if len(ids) == len(whole) + 1 and ids[1:] == whole and ids[0] == ids[1]:
        return "prompt.double_bos", f"id {ids[0]} stands twice at the beginning"
    return None


def lacks_ids(ids: list[int], whole: list[int], tools: Tools) -> Kept:
    """Of a text's ids only the first, the last, or the first and the last reached the model."""
    lost = lacking_ids(ids, whole)
    if not lost or not ids:
        return None
    end = "first and last"
    if ids == whole[: len(ids)]:
        end = "first"
    elif ids == whole[-len(ids) :]:
        end = "last"
    is_blank = tools.decode is not None and not tools.decode(lost, True, False).strip()
    name = "prompt.tokenization" if is_blank else "prompt.truncation"
    return name, f"of {len(whole)} ids only the {end} {len(ids)} reached the model"


def lacking_ids(some: TokenIds, every: TokenIds) -> TokenIds:
    """The ids that one run of `every` holds more than `some`; none, where that is not all that
    differs."""
    count = len(every) - len(some)
    same = shared_start(some, every)
    if count > 0 and every[same + count :] == some[same:]:
        return every[same : same + count]
    return ()


# == Causes ==


MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
CLOCK = re.compile(rf"\d{{4}}-\d\d-\d\d|\d\d?:\d\d|\b(19|20)\d\d\b|({MONTHS})\w*\b")
MARKER = re.compile(r"<\|[^<|>]+\|>|</?\w+>|\[/?[A-Z]+\]")  # of a chat's parts
SEAM = re.compile(r".*(\n|[.:!?] ?)", re.DOTALL)  # where a part of a text ends that was written so
LEAST_CUT = 8  # characters: what lacks fewer at its end was written otherwise, and not cut


@dataclass(frozen=True)
class TwoPrompts:
    """Two prompts whose ids differ.   short, long: their ids by length."""

    old: Row
    new: Row
    tools: Tools = NO_TOOLS

    @property
    def before(self) -> str | None:
        return self.old.get("prompt_text")

    @property
    def after(self) -> str | None:
        return self.new.get("prompt_text")

    @functools.cached_property
    def by_length(self) -> list[TokenIds]:
        return sorted((self.old["prompt_ids"], self.new["prompt_ids"]), key=len)

    @property
    def short(self) -> TokenIds:
        return self.by_length[0]

    @property
    def long(self) -> TokenIds:
        return self.by_length[1]

    @property
    def has_both_texts(self) -> bool:
        return self.before is not None and self.after is not None

    @property
    def has_other_text(self) -> bool:
        """Whether both texts were observed, and differ."""
        return self.has_both_texts and self.before != self.after

    @property
    def is_beginning(self) -> bool:
        return self.long[: len(self.short)] == self.short

    @property
    def is_end(self) -> bool:
        return self.long[len(self.long) - len(self.short) :] == self.short

    def rendered_or_written(self) -> str:
        return "prompt.template" if self.old.get("template") else "prompt.messages"


def of_doubled_bos(prompts: TwoPrompts) -> str | None:
    """The first id stands more often, before the text or behind it."""
    short, long = prompts.by_length
    more = len(long) - len(short)
    if more and prompts.is_end and set(long[: max(2, more)]) == {long[0]}:
        return "prompt.double_bos"
    behind = {*long[len(short) :]}
    if prompts.before == prompts.after and prompts.is_beginning and behind == {*long[:1]}:
        return "prompt.double_bos"
    return None


def of_declared_cut(prompts: TwoPrompts) -> str | None:
    """Two parts of equally long texts, or the beginning and the end of texts, as the tokenizer was
    seen to cut them."""
    cut = request_of(prompts.old).get("cut", "").split()
    new_cut = request_of(prompts.new).get("cut", "").split()
    if not cut or not new_cut or cut == new_cut:
        return None
    is_cut = cut[0] != new_cut[0] or cut[-1] == new_cut[-1]
    return "prompt.truncation" if is_cut else None


def of_clock(prompts: TwoPrompts) -> str | None:
    if not prompts.has_other_text:
        return None
    bare = CLOCK.sub("", prompts.before or "")
    return "prompt.clock" if bare == CLOCK.sub("", prompts.after or "") else None


def of_messages(prompts: TwoPrompts) -> str | None:
    """Other messages; but not where one side is written by hand as a switch of the template
    would have it."""
    if not prompts.has_other_text:
        return None
    old = prompts.old
    new = prompts.new
    is_by_hand = (old.get("template") is None) != (new.get("template") is None)
    if is_by_hand and opens_an_answer(prompts):
        return "prompt.template"
    return "prompt.messages" if old.get("messages") != new.get("messages") else None


def of_rendering(prompts: TwoPrompts) -> str | None:
    """The same messages, rendered otherwise; of blanks alone: whoever joined the text."""
    if not prompts.has_other_text:
        return None
    is_blank = (prompts.before or "").split() == (prompts.after or "").split()
    if is_blank or prompts.old.get("template") != prompts.new.get("template"):
        return prompts.rendered_or_written()
    return "prompt.template" if opens_an_answer(prompts) else None


def of_first_messages(prompts: TwoPrompts) -> str | None:
    """The first messages of a chat are missing."""
    starts = [MARKER.match(text or "") for text in (prompts.before, prompts.after)]
    if prompts.short and prompts.has_other_text and prompts.is_end and all(starts):
        return "prompt.messages"
    return None


def of_templates(prompts: TwoPrompts) -> str | None:
    """Cut prompts of two templates."""
    old = prompts.old.get("template")
    new = prompts.new.get("template")
    if prompts.has_both_texts or not old or not new:
        return None
    return "prompt.template" if old["sha256"] != new["sha256"] else None


def of_first_id(prompts: TwoPrompts) -> str | None:
    """The tokenizer's own first id is missing, here or in a later turn."""
    if prompts.has_other_text:
        return None
    first = prompts.long[:1]
    bare = [i for i in prompts.short if i not in first]
    is_bare = bare == [i for i in prompts.long if i not in first]
    return "prompt.tokenization" if is_bare else None


def of_ids_behind(prompts: TwoPrompts) -> str | None:
    """Ids that were put behind a text."""
    behind = request_of(prompts.old).get("behind")
    if prompts.before != prompts.after or behind == request_of(prompts.new).get("behind"):
        return None
    return "prompt.messages"


def of_windows(prompts: TwoPrompts) -> str | None:
    """Two windows of one text, of which at least one side's is known."""
    text = prompts.before if prompts.before is not None else prompts.after
    if text is None or prompts.has_other_text:
        return None
    for whole in ids_of_text(text, prompts.tools):
        if all(is_run(ids, whole) for ids in prompts.by_length):
            return "prompt.truncation"
    return None


def of_length(prompts: TwoPrompts) -> str | None:
    """One is the beginning or the end of the other."""
    if not prompts.short or not (prompts.is_beginning or prompts.is_end):
        return None
    is_of_one_text = not prompts.has_other_text or prompts.old.get("template")
    return "prompt.truncation" if is_of_one_text else of_written_text(prompts)


def of_written_text(prompts: TwoPrompts) -> str:
    """Whether a text that nobody rendered was written otherwise, or cut."""
    before = prompts.before or ""
    after = prompts.after or ""
    is_few = abs(len(before) - len(after)) < LEAST_CUT and prompts.is_beginning
    is_written = is_few or has_whole_parts(before, after)
    return "prompt.messages" if is_written else "prompt.truncation"


def of_kept_first_id(prompts: TwoPrompts) -> str | None:
    """Cut behind a first id that was kept."""
    short, long = prompts.by_length
    if len(short) < 2 or prompts.before != prompts.after:
        return None
    is_cut = long[0] == short[0] and long[1 - len(short) :] == short[1:]
    return "prompt.truncation" if is_cut else None


def of_equal_length(prompts: TwoPrompts) -> str | None:
    """As many ids that are no whole text, most of which both share."""
    short, long = prompts.by_length
    if prompts.has_both_texts or len(short) != len(long):
        return None
    first = shared_start(short, long)
    last = shared_start(short[::-1], long[::-1])
    if max(first, last, overlap(short, long)) * 2 < len(short):
        return None
    last = prompts.new["prompt_ids"][-1]
    is_closed = last != prompts.old["prompt_ids"][-1] and last in end_ids(prompts.new)
    return "prompt.tokenization" if is_closed else "prompt.truncation"


def of_ids_alone(prompts: TwoPrompts) -> str | None:
    """No text was observed: the longest run that both share stands elsewhere in each, as in two
    windows of one text, or at one position, as around another message."""
    if prompts.before is not None or prompts.after is not None:
        return None
    matcher = difflib.SequenceMatcher(None, prompts.short, prompts.long, autojunk=False)
    found = matcher.find_longest_match()
    if found.size * 2 < len(prompts.short):
        return None
    return "prompt.truncation" if found.a != found.b else "prompt.messages"


def of_read_answers(prompts: TwoPrompts) -> str | None:
    """Behind one prompt another answer is read, which no text of the prompt holds."""
    decode = prompts.tools.decode
    is_read = prompts.old.get("scored") and prompts.new.get("scored")
    if decode is None or not is_read or prompts.before != prompts.after:
        return None
    texts = [decode(ids, True, False) for ids in prompts.by_length]
    return "prompt.messages" if texts[0] != texts[1] else None


def of_nothing_else(prompts: TwoPrompts) -> str:
    if prompts.before == prompts.after:
        return "prompt.tokenization"
    is_rendered = prompts.old.get("template") or prompts.new.get("template")
    return "prompt.template" if is_rendered else "prompt.messages"


PROMPT_RULES: tuple[Callable[[TwoPrompts], str | None], ...] = (
    of_doubled_bos,
    of_declared_cut,
    of_clock,
    of_messages,
    of_rendering,
    of_first_messages,
    of_templates,
    of_first_id,
    of_ids_behind,
    of_windows,
    of_length,
    of_kept_first_id,
    of_equal_length,
    of_ids_alone,
    of_read_answers,
)


def prompt_cause(old: Row, new: Row, *, tools: Tools = NO_TOOLS) -> str:
    """Why two prompts differ: the first rule that answers."""
    prompts = TwoPrompts(old, new, tools)
    return first_answer(PROMPT_RULES, prompts) or of_nothing_else(prompts)


def opens_an_answer(prompts: TwoPrompts) -> bool:
    """Whether all that one prompt text has more is markers at its end, such as those of an empty
    thought: a switch of a template, not a message."""
    less, more = sorted((prompts.before or "", prompts.after or ""), key=len)
    return more.startswith(less) and MARKER.match(more[len(less) :]) is not None


def has_whole_parts(before: str, after: str) -> bool:
    """Whether of two texts, one the beginning or the end of the other, the new one has more than
    the old, or lacks a whole part: whoever cuts a text to its length cuts anywhere."""
    if after.startswith(before) or after.endswith(before):
        return True
    first = before[: -len(after)] if before.endswith(after) else after
    ends_a_part = SEAM.fullmatch(first) is not None
    return ends_a_part or before[len(first) :].startswith(("\n", "[", "<"))


def is_run(ids: TokenIds, whole: TokenIds) -> bool:
    """Whether all ids stand in `whole`, one behind the other."""
    count = len(ids)
    starts = range(len(whole) - count + 1)
    return any(whole[k] == ids[0] and list(whole[k : k + count]) == list(ids) for k in starts)


def overlap(one: TokenIds, other: TokenIds) -> int:
    """How many ids the end of one shares with the beginning of the other, as two windows of one
    text do."""
    for count in range(min(len(one), len(other)), 0, -1):
        if one[-count:] == other[:count] or other[-count:] == one[:count]:
            return count
    return 0


def may_be_written(name: str, old: Row, new: Row) -> bool:
    """Whether a prompt that was called cut may have been written so: no cut was observed, and its
    text, as far as it is known, is the shorter one."""
    if name != "prompt.truncation" or any(request_of(row).get("cut") for row in (old, new)):
        return False
    before = old.get("prompt_text")
    after = new.get("prompt_text")
    return before is None or after is None or before != after


# == The stage ==


def weigh_prompt(difference: Difference, comparison: Compared) -> Difference | None:
    """A prompt that differs only as the answers differ that it holds, or by the id that is asked
    for, fails nothing."""
    row = difference.row or 0
    is_excused = row in comparison.followers or row in comparison.read_for_asked
    return replace(difference, counts=False) if is_excused else difference


def cause(difference: Difference, old: Row, new: Row, tools: Tools) -> str:
    if difference.field == RESPONSE:
        return "prompt.tokenization"
    return prompt_cause(old, new, tools=tools)


STAGE = Stage(
    fields=PROMPT_STAGES,
    compare=prompt_differences,
    weigh=weigh_prompt,
    invariants=(
        Invariant("template", "template", template),
        Invariant("tokenization", "prompt_ids", tokenization, is_broken_anew),
    ),
    cause=cause,
)
