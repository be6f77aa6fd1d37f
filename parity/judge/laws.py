"""Stage laws: what each stage's output must be, given its observed input and its declared settings, by plain libraries.

    template       the text is what the checkpoint's template makes of these messages and switches
    tokenization   the ids are what the tokenizer makes of that text, special tokens once; a shorter one is its one end
    batch          padding is masked and on the left; positions count the row's own tokens
    end            ids end at the first end id, at the first completed stop, or after exactly max_new_tokens
    text           each text is the decode of these ids under these flags
    structure      an answer that ended by itself has the form that was asked for
    identity       an answer belongs to the request that it is given for
    draws          equal requests with one seed are drawn alike

A law says a sentence where it is broken, "" where it is kept and None where its input was not recorded: not seen is
not kept. What happens to the model's numbers is the referee's, and what is drawn from them is draws.py's. A cause is
what the new side breaks and the old side keeps; a law that both break is how the site is, and one that was not seen of
the old side says nothing of what changed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.golden import Case
from parity.judge.compare import decodes_of, entry, is_drawn, may_end_by_criterion, paired, placeholder_in
from parity.judge.endings import Decode, leaves
from parity.record.rows import collapsed
from parity.verdict import brief

Row = Mapping[str, Any]
Kept = tuple[str, str] | None  # (cause, sentence), ("", "") where the law is kept, None where it was not seen
KEPT: Kept = ("", "")


@dataclass(frozen=True, slots=True)
class Tools:
    """The plain libraries on the golden's checkpoint. None: not here, so what needs it is not seen."""

    decode: Decode | None = None
    encode: Callable[[str, bool], Sequence[int]] | None = None  # text, add_special_tokens
    render: Callable[[Any, Mapping[str, Any]], str] | None = None  # messages, arguments of the template
    template: str = ""  # sha256 of the checkpoint's


@dataclass(frozen=True, slots=True)
class Broken:
    law: str
    cause: str
    row: int
    sentence: str


# == Before the model ==


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


def batch(row: Row, tools: Tools) -> Kept:
    padded, inputs = row.get("batch"), row.get("inputs")
    if padded is None and inputs is None:
        return None
    padded = padded or {}
    if padded.get("masked") is False:
        return "batch.pad_unmasked", f"{padded.get('pads')} pads are not masked"
    if padded.get("side") == "right":
        return "batch.padding_side", f"{padded.get('pads')} pads stand behind the prompt"
    if hidden := (inputs or {}).get("hidden"):
        return "batch.inputs", f"{hidden} of the row's own tokens are masked"
    places = (inputs or {}).get("positions", "from 0")
    if places.startswith("from ") and places != "from 0":
        return "batch.position_ids", f"positions of the row's own tokens count {places}"
    return KEPT


# == After the model ==


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


def text(row: Row, tools: Tools) -> Kept:
    """Each decode that was seen. Of a text that the engine had cut, the decode must begin with it."""
    if tools.decode is None or row.get("text") is None or "decode" not in row:
        return None
    for how in decodes_of(row):
        if how.get("ids") not in ("ended", "new") or how.get("text") is None:
            continue
        flags = bool(how.get("skip_special_tokens")), bool(how.get("clean_up"))
        wanted = tools.decode(row["output_ids"], *flags)
        if how["ids"] == "ended" and not wanted.strip().startswith(how["text"].strip()):
            other = tools.decode(row["output_ids"], not flags[0], flags[1])
            name = "decode.skip_special" if other.strip().startswith(how["text"].strip()) else "decode.cleanup"
            return name, f"decoded is {brief(wanted)}, recorded {brief(how['text'])}"
    return KEPT


def structure(row: Row, tools: Tools) -> Kept:
    """Where the request says its form: a regular expression, one of some strings, or JSON (which is only parsed)."""
    asked = (row.get("request") or {}).get("structure")
    if not asked or tools.decode is None:
        return None
    ids, ends = row["output_ids"], entry(row, "stop", "end_ids") or ()
    if not ids or ids[-1] not in ends:
        return KEPT  # cut short: its form is not whole
    [(form, value)], said = asked.items(), tools.decode(ids[:-1], True, False)
    if form == "choice":
        kept = said in value
    elif form == "regex":
        try:
            kept = re.fullmatch(value, said) is not None
        except re.error:  # a grammar's expressions are not all Python's
            return None
    else:
        kept = is_json(said) if form == "json" else True
    return KEPT if kept else ("sampling.processors", f"{brief(said)} has not the form that was asked for, {form}")


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def identity(row: Row, tools: Tools) -> Kept:
    said = row.get("request")
    if said is None:
        return None
    return ("batch.order", "the answer is another request's") if said.get("answers") == "another" else KEPT


def seeds(rows: Sequence[Row]) -> tuple[int, int] | None:
    """Two rows of one prompt, one seed and one setting that were drawn otherwise: a seed is a request's own."""
    known: dict[str, int] = {}
    for number, row in enumerate(rows):
        seed = (row.get("request") or {}).get("seed")
        if seed is None or not is_drawn(row):
            continue
        settings = {**row["sampling"], "seed": None, "n": None}
        pictures = [picture.get("sha256") for picture in row.get("images", ())]
        asked = [row["prompt_ids"], pictures, seed, settings, row["stop"], row["model"].get("path")]
        key = json.dumps(asked, sort_keys=True)
        first = known.setdefault(key, number)
        if rows[first]["output_ids"] != row["output_ids"]:
            return first, number
    return None


LAWS: dict[str, Callable[[Row, Tools], Kept]] = {
    "template": template,
    "tokenization": tokenization,
    "batch": batch,
    "end": end,
    "text": text,
    "structure": structure,
    "identity": identity,
}


def broken_by_new(old: Case, new: Case, tools: Tools) -> Iterator[Broken]:
    """Laws that the new side breaks and the old side keeps, in the order of the stages."""
    pairs = paired(old.rows, new.rows)
    for law, holds in LAWS.items():
        for number, (mine, theirs) in enumerate(pairs):
            if law in OF_PROMPTS and identity(theirs, tools) not in (None, KEPT):
                continue  # its stages are those of one request, its ids those of another
            found, before = holds(theirs, tools), holds(mine, tools)
            cut_otherwise = (
                law == "tokenization" and mine["prompt_ids"] != theirs["prompt_ids"] and another(before, found)
            )
            if law == "structure" and before is None:
                before = KEPT  # the old side says its form in its own way; what it gave is the golden
            if found and found[0] and (before == KEPT or cut_otherwise):
                yield Broken(law, found[0], number, found[1])
                break

    held = [text for _, text in leaves(old.value)]
    for number, (mine, theirs) in enumerate(pairs):
        if said := ends_early(mine, theirs, held, tools):
            yield Broken("end", "stop.strings", number, said)
            break
        if said := goes_on(mine, theirs, tools):
            one, other = ({*(entry(row, "stop", "strings") or ())} for row in (mine, theirs))
            name = "stop.rule" if one and one == other else "stop.strings"  # the same ones: it began in the prompt
            yield Broken("end", name, number, said)
            break

    if (broken := seeds(new.rows)) is not None:
        said = f"rows {broken[0]} and {broken[1]} have one prompt, seed and setting, and other draws"
        yield Broken("draws", "rng", broken[1], said)


def another(before: Kept, found: Kept) -> bool:
    """Whether a law that both sides break, or that was not seen of the old side, is broken in another way: ids that
    were put together by hand are no text's, on either side."""
    if found is None or before == found:
        return False
    return found[0] == "prompt.truncation" or (before is not None and before[0] != found[0])


OF_PROMPTS = {"template", "tokenization"}
