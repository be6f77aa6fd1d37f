"""Reports of a check: the console, JUnit, Markdown, JSON and one HTML page, all computed from one `Check` afterwards.

    console(check, colour=...)   for people at a terminal, 100 columns
    case_text(outcome, ...)      one case of it: cause, both values, where they part, what explains it
    junit_xml(check)             a testsuite per site and backend
    markdown_summary(check)      grouped by cause, for $GITHUB_STEP_SUMMARY
    json_text(check)             everything, for other tools (keys: see `json_text`)
    html_page(check, blobs)      one page that opens from disk, with no network (report.html is its template)

What models wrote is hostile here: it may hold terminal escapes, tags, pipes, and characters that XML cannot write.
Nothing here judges: verdicts, and what passes, come from parity.verdict.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import hashlib
import io
import json
import math
import os
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

from parity.golden import write_whole
from parity.judge.align import paired
from parity.judge.row import is_drawn
from parity.verdict import CAUSES, STAGES, Check, Difference, Outcome, Verdict, brief, equal, first_divergence

JSON_FORMAT = 2  # 2: numerics; no budget of near ties
WIDTH = 100
AROUND = 36  # characters shown on each side of the place where two texts part
IDS_AROUND = 6
FULL_BLOCKS = 3  # of failing cases of one site, backend, verdict and cause; the others are named
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ENDINGS = {0: "within policy", 1: "drift", 3: "could not judge", 4: "missing or unused", 5: "nothing was compared"}
Row = Mapping[str, Any]


# == Words ==


def printable(text: str) -> str:
    """Text that does nothing to a terminal: what cannot be printed is written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def groups(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    """(site, backend) -> its outcomes, in order."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.site, outcome.backend), []).append(outcome)
    return found


def counted(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Verdict -> how many, gravest last, none left out that is there."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}


def counts_line(outcomes: Iterable[Outcome]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counted(outcomes).items()) or "no case"


def sentence(outcome: Outcome) -> str:
    """One sentence with both values."""
    if outcome.cause is not None and outcome.cause.sentence:
        return outcome.cause.sentence
    telling = sorted(outcome.differences, key=lambda d: not d.counts)
    if telling:
        return telling[0].sentence()
    alone = {
        "MISSING": "there is no golden of this case",
        "UNUSED": "the golden was not used by any call",
        "ERROR": "it could not be judged",
        "UNSTABLE": "the old code does not repeat itself",
    }
    return "; ".join(outcome.notes) or alone.get(outcome.verdict, "nothing differs")


def explain_command(outcome: Outcome) -> str:
    return f"python -m parity explain {shlex.quote(outcome.label)} --backend {outcome.backend}"


# == Where two recordings part ==


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts, or two lists of ids, part. what: "value, from character 3 on", "output ids of row 2, from 7 on".

    old, new: each in two pieces, the common part before the place and what follows.
    """

    what: str
    old: tuple[str, str]
    new: tuple[str, str]


def text_parting(what: str, old: str, new: str) -> Parting | None:
    place = first_divergence(old, new)
    if place is None:
        return None
    before = ("…" if place > AROUND else "") + printable(old[max(0, place - AROUND) : place])

    def after(text: str) -> str:
        rest = printable(text[place : place + AROUND])
        return (rest + "…" if len(text) > place + AROUND else rest) or "(end)"

    return Parting(f"{what}, from character {place} on", (before, after(old)), (before, after(new)))


def ids_parting(what: str, old: Sequence[int], new: Sequence[int]) -> Parting | None:
    place = first_divergence(old, new)
    if place is None:
        return None
    shown = [str(i) for i in old[max(0, place - IDS_AROUND) : place]]
    before = " ".join([*(["…"] if place > IDS_AROUND else []), *shown, ""])

    def after(ids: Sequence[int]) -> str:
        rest = [str(i) for i in ids[place : place + IDS_AROUND]]
        return " ".join(rest + (["…"] if len(ids) > place + IDS_AROUND else [])) or "(end)"

    return Parting(f"{what}, from {place} on", (before, after(old)), (before, after(new)))


def leaves(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, old, new) of the innermost values that differ, floats by more than rounding."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        for key in old:
            yield from leaves(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        for place, (a, b) in enumerate(zip(old, new)):
            yield from leaves(a, b, f"{path}[{place}]")
    elif not equal(old, new):
        yield path, old, new


def parting(what: str, old: Any, new: Any) -> Parting | None:
    """The first place where two values part."""
    for path, a, b in leaves(old, new):
        if isinstance(a, str) and isinstance(b, str):
            return text_parting(what + path, a, b)
        return Parting(what + path, ("", printable(brief(a))), ("", printable(brief(b))))
    return None


def row_partings(number: int, old: Row, new: Row) -> Iterator[Parting | None]:
    prompts = old.get("prompt_text"), new.get("prompt_text")
    if None not in prompts and prompts[0] != prompts[1]:
        yield text_parting(f"prompt of row {number}", *map(str, prompts))
    else:
        yield ids_parting(f"prompt ids of row {number}", old.get("prompt_ids", []), new.get("prompt_ids", []))
    yield ids_parting(f"output ids of row {number}", old.get("output_ids", []), new.get("output_ids", []))


def pairs_of(outcome: Outcome) -> list[tuple[Row, Row]]:
    """Rows side by side, numbered as the differences are."""
    if outcome.old is None or outcome.new is None:
        return []
    return paired(outcome.old.get("rows", ()), outcome.new.get("rows", ()))


def partings(outcome: Outcome) -> list[Parting]:
    """The first place inside the rows, and the first inside the value. None of an answer drawn anew, whose cause lies
    after decoding: the ids are others all the same, and say nothing of it."""
    if outcome.old is None or outcome.new is None:
        return []
    pairs = pairs_of(outcome)
    after_ids = outcome.cause is not None and outcome.cause.name.startswith(("post.", "decode."))
    if after_ids and any(is_drawn(old) and old["output_ids"] != new["output_ids"] for old, new in pairs):
        return []
    rows = (p for number, pair in enumerate(pairs) for p in row_partings(number, *pair) if p)
    inside = next(rows, None)
    value = parting("value", outcome.old.get("value"), outcome.new.get("value"))
    return [found for found in (inside, value) if found]


# == Console ==

GOOD = {"IDENTICAL", "TEXT-IDENTICAL", "SAME-DISTRIBUTION", "SAME-SETTINGS", "ACCEPTED"}
PAINT = {"red": 31, "green": 32, "yellow": 33, "dim": 2, "bold": 1}


def paint(text: str, how: str, colour: bool) -> str:
    return f"\x1b[{PAINT[how]}m{text}\x1b[0m" if colour and text else text


def hue(verdict: str) -> str:
    return "green" if verdict in GOOD else "yellow" if verdict in ("LATENT", "NEAR-TIE") else "red"


def wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def parting_text(found: Parting, colour: bool) -> str:
    """Both sides under each other, the same text above the same text; ▸ stands where they part."""
    lines = [f"  {found.what}:"]
    for side, (before, after), how in (("was", found.old, "red"), ("is", found.new, "green")):
        lines.append(f"    {side:>3}  {paint(before, 'dim', colour)}▸{paint(after, how, colour)}")
    return "\n".join(lines)


def case_text(outcome: Outcome, *, colour: bool = False) -> str:
    """One case: verdict and cause, one sentence, where the recordings part, and the command that explains it."""
    cause = f"  {outcome.cause}" if outcome.cause else ""
    head = paint(outcome.verdict, hue(outcome.verdict), colour) + f"  {paint(outcome.label, 'bold', colour)}"
    lines = [f"{head} on {outcome.backend}{cause}", wrapped(sentence(outcome))]
    lines += [parting_text(found, colour) for found in partings(outcome)]
    if outcome.cause and outcome.cause.proof:
        lines.append(wrapped(f"proof: {outcome.cause.proof}"))
    if sentence(outcome) != "; ".join(outcome.notes):
        lines += [wrapped(f"note: {note}") for note in outcome.notes]
    if outcome.also:
        lines.append(wrapped(f"also differs: {', '.join(outcome.also)}"))
    if outcome.verdict not in ("MISSING", "UNUSED"):
        lines.append(f"  {paint(explain_command(outcome), 'dim', colour)}")
    return "\n".join(lines)


def numerics_text(check: Check, colour: bool) -> str:
    """One line for each site whose rounding was measured."""
    how = {"holds": "green", "shifted": "red"}
    return "\n".join(paint(wrapped(n.line, ""), how.get(n.outcome, "yellow"), colour) for n in check.numerics)


def sites_text(check: Check, colour: bool) -> str:
    """One line per site and backend."""
    table = groups(check.outcomes)
    width = max((len(site) for site, _ in table), default=0)
    lines = []
    for (site, backend), outcomes in table.items():
        counts = "  ".join(paint(f"{n} {v}", hue(v), colour) for v, n in counted(outcomes).items())
        lines.append(f"{site:{width}}  {backend:5} {sum(o.seconds for o in outcomes):7.1f} s  {counts}")
    return "\n".join(lines)


def alike(failing: Iterable[Outcome]) -> list[list[Outcome]]:
    """Failing outcomes with one site, backend, verdict and cause together, in order of their first; one error is one,
    wherever it is met."""
    found: dict[Any, list[Outcome]] = {}
    for o in failing:
        apart = (o.site, o.backend, o.cause and o.cause.name)
        found.setdefault((o.verdict, sentence(o) if o.verdict == "ERROR" else apart), []).append(o)
    return list(found.values())


def more_text(same: Sequence[Outcome]) -> str:
    """The others of failing cases that are alike, by name alone."""
    several = len({(o.site, o.backend) for o in same}) > 1
    return wrapped(f"{len(same)} more like these: " + ", ".join(o.label if several else o.case for o in same), "")


NEXT_STEP = "record the old code first: python -m parity record --site NAME=pkg.mod:func -- python old_script.py"


def final_line(check: Check) -> str:
    """The verdict of the whole; always that of the exit code."""
    failing, code = check.failing(), check.exit_code
    word = "PASSED" if code == 0 else "FAILED"
    count = f"{len(check.outcomes)} cases" if not failing else f"{len(failing)} of {len(check.outcomes)} cases fail"
    said = f": {counts_line(failing)}" if failing else ""
    return f"{word} (exit {code}, {ENDINGS[code]}): {count}{said}; {check.seconds:.1f} s"


def accepted_lines(check: Check) -> list[str]:
    """Each accepted case with its reason, and acceptances that cover nothing."""
    accepted = (o for o in check.outcomes if o.verdict == "ACCEPTED")
    lines = [f"ACCEPTED {o.label} on {o.backend}: {o.cause and o.cause.name}: {o.accepted}" for o in accepted]
    return lines + [f"unused acceptance {line}" for line in check.unused_acceptances]


def console(check: Check, *, colour: bool = False) -> str:
    """The whole check for a terminal. Of failing cases that are alike the first few are told, the others named."""
    parts = [sites_text(check, colour)] if check.outcomes else []
    parts += [numerics_text(check, colour)] if check.numerics else []
    for same in alike(check.failing()):
        told = 1 if same[0].verdict == "ERROR" else FULL_BLOCKS
        parts += [case_text(outcome, colour=colour) for outcome in same[:told]]
        if more := same[told:]:
            parts.append(more_text(more))
    if named := accepted_lines(check):
        parts.append("\n".join(wrapped(line, "") for line in named))
    if check.left_out:
        parts.append(wrapped(f"left out: {'; '.join(check.left_out)}", ""))
    if not check.outcomes and not check.left_out:
        parts.append(NEXT_STEP)
    last = final_line(check)
    parts.append(paint(last, "green" if check.exit_code == 0 else "red", colour))
    return "\n\n".join(parts)


# == JUnit ==

NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Text that XML 1.0 can hold: other characters are written as their escape."""
    return NOT_XML.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), text)


def junit_case(suite: ElementTree.Element, outcome: Outcome, fails: bool) -> None:
    name = {"name": xml_text(outcome.case), "classname": xml_text(f"{outcome.site}.{outcome.backend}")}
    node = ElementTree.SubElement(suite, "testcase", {**name, "time": f"{outcome.seconds:.3f}"})
    if outcome.verdict == "ACCEPTED":
        ElementTree.SubElement(node, "skipped", {"message": xml_text(f"accepted: {outcome.accepted}")})
    if fails:
        kind = "error" if outcome.verdict in ("ERROR", "UNSTABLE") else "failure"
        what = outcome.cause.name if outcome.cause else outcome.verdict
        said = {"type": xml_text(what), "message": xml_text(f"{outcome.verdict}: {sentence(outcome)}")}
        ElementTree.SubElement(node, kind, said).text = xml_text(case_text(outcome))


def junit_xml(check: Check) -> str:
    """A testsuite per site and backend. What is accepted counts as skipped; what could not be judged as an error."""
    root = ElementTree.Element("testsuites", {"name": "parity", "time": f"{check.seconds:.3f}"})
    failing = {id(o) for o in check.failing()}
    for (site, backend), outcomes in groups(check.outcomes).items():
        suite = ElementTree.SubElement(root, "testsuite", {"name": xml_text(f"{site} on {backend}")})
        for outcome in outcomes:
            junit_case(suite, outcome, id(outcome) in failing)
        suite.set("tests", str(len(outcomes)))
        suite.set("time", f"{sum(o.seconds for o in outcomes):.3f}")
        for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(plural, str(len(suite.findall(f"testcase/{kind}"))))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


# == Markdown ==

LIVE = re.compile(r"[\\`*_{}\[\]<>|~&#!@$]")
MOST_CASES = 20  # told per cause


def markdown_text(text: str, most: int = 300) -> str:
    """Text that means nothing in Markdown, on one line, at most so long."""
    text = text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 4 :]}"
    return LIVE.sub(lambda m: f"&#{ord(m[0])};", printable(text.replace("\n", " ⏎ ")))


def markdown_cause(name: str, outcomes: Sequence[Outcome]) -> str:
    certainty = ", ".join(sorted({o.cause.certainty for o in outcomes if o.cause}))
    told = f" ({certainty})" if certainty else ""
    lines = [f"### {markdown_text(name)}: {len(outcomes)}{told}", "", CAUSES.get(name, ""), ""]
    lines += ["| case | backend | verdict | what |", "|---|---|---|---|"]
    for o in outcomes[:MOST_CASES]:
        cells = [markdown_text(text) for text in (o.label, o.backend, o.verdict, sentence(o))]
        also = f"; also differs: {markdown_text(', '.join(o.also))}" if o.also else ""
        lines.append("| " + " | ".join(cells) + also + " |")
    if len(outcomes) > MOST_CASES:
        lines.append(f"\n… and {len(outcomes) - MOST_CASES} more.")
    return "\n".join([*lines, "", f"`{explain_command(outcomes[0]).replace('`', '')}`", ""])


def markdown_summary(check: Check) -> str:
    """The verdict, a table of sites, and the failing cases by cause."""
    sign = "✅" if check.exit_code == 0 else "❌"
    lines = [f"## {sign} parity: {markdown_text(final_line(check))}", ""]
    lines += ["| site | backend | verdicts | seconds |", "|---|---|---|---:|"]
    for (site, backend), outcomes in groups(check.outcomes).items():
        seconds = f"{sum(o.seconds for o in outcomes):.1f}"
        lines.append(f"| {markdown_text(site)} | {markdown_text(backend)} | {counts_line(outcomes)} | {seconds} |")
    if check.left_out:
        lines += ["", markdown_text(f"left out: {'; '.join(check.left_out)}")]
    if named := accepted_lines(check):
        lines += ["", *(f"- {markdown_text(line)}" for line in named)]
    if check.numerics:
        lines += ["", "| site | backend | numerics |", "|---|---|---|"]
    lines += [f"| {markdown_text(n.site)} | {n.backend} | {markdown_text(n.said, 600)} |" for n in check.numerics]
    causes: dict[str, list[Outcome]] = {}
    for outcome in check.failing():
        causes.setdefault(outcome.cause.name if outcome.cause else outcome.verdict, []).append(outcome)
    by_size = sorted(causes.items(), key=lambda entry: -len(entry[1]))
    return "\n".join([*lines, "", *(markdown_cause(name, outcomes) for name, outcomes in by_size)])


# == JSON ==


def plain(value: Any) -> Any:
    """A value as JSON has it. A float that JSON cannot write is {"$float": "nan"}, as in goldens."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def difference_json(d: Difference) -> dict[str, Any]:
    said = {"stage": d.stage, "field": d.field, "row": d.row, "old": d.old, "new": d.new, "counts": d.counts}
    return {**plain(said), "sentence": d.sentence()}


def outcome_json(outcome: Outcome, fails: bool) -> dict[str, Any]:
    cause = outcome.cause
    return {
        "site": outcome.site,
        "case": outcome.case,
        "backend": outcome.backend,
        "verdict": outcome.verdict,
        "fails": fails,
        "sentence": sentence(outcome),
        "cause": cause
        and {"name": cause.name, "certainty": cause.certainty, "sentence": cause.sentence, "proof": cause.proof},
        "differences": [difference_json(d) for d in outcome.differences],
        "accepted": outcome.accepted,
        "notes": list(outcome.notes),
        "also": list(outcome.also),
        "steps": list(outcome.steps),
        "seconds": round(outcome.seconds, 3),
    }


def json_text(check: Check) -> str:
    """The whole check. Keys are stable within one `format`:

    {"format", "exit_code", "ending", "seconds", "policy", "environment", "left_out", "unused_acceptances",
     "counts": {verdict: n},
     "outcomes": [
        {"site", "case", "backend", "verdict", "fails", "sentence", "accepted", "notes", "also", "steps", "seconds",
         "cause": null | {"name", "certainty", "sentence", "proof"},
         "differences": [{"stage", "field", "row", "old", "new", "counts", "sentence"}],
         "old", "new": the two recordings as in parity.golden, or null}],
     "numerics": [{"site", "backend", "checkpoint", "dtype", "outcome", "said", "cause", "against", "fields": {"rows",
         "tokens", "old", "new", "sees", "more", "like", "exact", "statistics"}, "picture"}]: see parity.verdict}
    """
    failing = {id(o) for o in check.failing()}
    said = {
        "format": JSON_FORMAT,
        "exit_code": check.exit_code,
        "ending": ENDINGS[check.exit_code],
        "seconds": round(check.seconds, 3),
        "policy": {"strict": check.policy.strict},
        "environment": plain(check.environment),
        "left_out": list(check.left_out),
        "unused_acceptances": list(check.unused_acceptances),
        "counts": counted(check.outcomes),
        "outcomes": [
            {**outcome_json(o, id(o) in failing), "old": plain(o.old), "new": plain(o.new)} for o in check.outcomes
        ],
        "numerics": [plain(dataclasses.asdict(n)) for n in check.numerics],
    }
    return json.dumps(said, indent=1) + "\n"  # ASCII: a lone surrogate in an output is no UTF-8


# == Diffs for the page ==

MOST_TEXT = 20_000  # characters of one text on the page
MOST_WORK = 4_000_000  # tokens x tokens that are compared; beyond it a text is replaced whole
WORDS = re.compile(r"\\(?:u[0-9a-f]{4}|.)|\w+|\s|[^\w\s]")  # an escape of JSON is one token
Diff = list[list[str]]  # [["=", "same"], ["-", "old"], ["+", "new"]]


def token_diff(old: Sequence[str], new: Sequence[str], glue: str = "") -> Diff:
    """Runs of equal, removed and added tokens."""
    start = first_divergence(old, new)
    if start is None:
        return [["=", glue.join(old)]] if old else []
    same_end = first_divergence(old[start:][::-1], new[start:][::-1]) or 0
    mine, theirs = old[start : len(old) - same_end], new[start : len(new) - same_end]
    blocks = [("replace", 0, len(mine), 0, len(theirs))]
    if len(mine) * len(theirs) <= MOST_WORK:
        blocks = difflib.SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes()  # type: ignore[assignment]
    found = [["=", glue.join(old[:start])]]
    for kind, a, b, c, d in blocks:
        pieces = [("=", mine[a:b])] if kind == "equal" else [("-", mine[a:b]), ("+", theirs[c:d])]
        found += [[sign, glue.join(piece)] for sign, piece in pieces]
    found.append(["=", glue.join(old[len(old) - same_end :])])
    return [entry for entry in found if entry[1]]


def text_diff(old: str, new: str) -> Diff:
    """By words and single signs; words that differ only in their blanks differ only there."""
    short = [text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…" for text in (old, new)]
    return token_diff(WORDS.findall(short[0]), WORDS.findall(short[1]))


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), indent=1, ensure_ascii=False)


# == The page ==

TEMPLATE = Path(__file__).with_name("report.html")
THUMBNAIL = 160  # pixels, the longer side
PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # not what PIL hands to another program
MOST_ROWS = 4  # rows of one case on the page
CALL = ("sampling", "stop", "decode", "batch", "model")


def thumbnail(path: Path) -> str | None:
    """A picture as a small data: URL, or None where it cannot be read."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    file = io.BytesIO()
    try:
        with Image.open(path, formats=PICTURES) as image:
            small = ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    small.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def setting(said: Any) -> tuple[Any, str]:
    """(value, from) of one setting of a call, recorded with its source or without."""
    if isinstance(said, Mapping) and "value" in said:
        return said["value"], str(said.get("from", ""))
    return said, ""


def call_table(old: Row, new: Row, differing: set[tuple[str, str]]) -> list[list[Any]]:
    """[stage, name, [old, from], [new, from], state] of each setting that one side has; [] for a side that has not.

    state: 2 a difference, 1 unequal without being one (a setting that greedy decoding ignores), 0 equal.
    """
    if ("sampling", "mode") in differing:  # greedy or drawn: the temperature says it
        differing = differing | {("sampling", "temperature")}
    table = []
    for stage in CALL:
        mine, theirs = old.get(stage, {}), new.get(stage, {})
        for name in {**mine, **theirs}:
            sides = [setting(side[name]) if name in side else None for side in (mine, theirs)]
            shown = [[brief(side[0], 200), side[1]] if side else [] for side in sides]
            alike = None not in sides and equal(sides[0] and sides[0][0], sides[1] and sides[1][0])
            table.append([stage, name, *shown, 2 if (stage, name) in differing else int(not alike)])
    return table


def picture_pair(old: Row | None, new: Row | None) -> list[Any]:
    """[[blob or null, facts], ...] of one picture on both sides, or null for a side that has none."""
    facts = ("size", "tokens", "budget", "grid", "values", "sha256")

    def side(picture: Row | None) -> Any:
        if picture is None:
            return None
        return [picture.get("blob"), {f: str(picture[f]) for f in facts if picture.get(f) is not None}]

    return [side(old), side(new)]


def row_json(number: int, old: Row, new: Row, differences: Sequence[Difference]) -> dict[str, Any]:
    mine = [d for d in differences if d.row == number]
    pictures = [list(row.get("images", ())) for row in (old, new)]
    most = max(map(len, pictures))
    padded = [[*side, *[None] * (most - len(side))] for side in pictures]
    ids = [[str(i) for i in row.get("output_ids", ())] for row in (old, new)]
    prompts = [str(row.get("prompt_text", "")) for row in (old, new)]
    prompt_ids = [[str(i) for i in row.get("prompt_ids", ())] for row in (old, new)]
    return {
        "number": number,
        "prompt": text_diff(*prompts),
        "prompt_ids": token_diff(prompt_ids[0], prompt_ids[1], " ") if prompt_ids[0] != prompt_ids[1] else [],
        "ids": token_diff(ids[0], ids[1], " "),
        "text": text_diff(*(str(row.get("text", "")) for row in (old, new))),
        "call": call_table(old, new, {(d.stage, d.field) for d in mine}),
        "images": [picture_pair(a, b) for a, b in zip(*padded)],
    }


def stage_states(outcome: Outcome) -> list[list[str]]:
    """[stage, state]: same, differs, told (differs, and does not count), or absent on both sides."""
    sides = [side for side in (outcome.old, outcome.new) if side is not None]
    there = {"value", *(stage for side in sides for row in side.get("rows", ()) for stage in row)}
    counting = {d.stage for d in outcome.differences if d.counts}
    told = {d.stage for d in outcome.differences}
    return [
        [s, "differs" if s in counting else "told" if s in told else "same" if s in there else "absent"] for s in STAGES
    ]


def case_json(outcome: Outcome, fails: bool) -> dict[str, Any]:
    """What the page shows of one case; of an identical one, a line."""
    said = outcome_json(outcome, fails)
    value = next((side.get("value") for side in (outcome.old, outcome.new) if side is not None), None)
    said["value"] = brief(as_text(value), 160) if outcome.old or outcome.new else ""
    if outcome.old is None or outcome.new is None or outcome.verdict == "IDENTICAL":
        return {**said, "differences": [], "steps": []}
    pairs = list(enumerate(pairs_of(outcome)))
    touched = {d.row for d in outcome.differences} - {None}
    chosen = [entry for entry in pairs if entry[0] in touched] or pairs[:1]
    return {
        **said,
        "differences": [
            [d.stage, d.field, d.row, brief(d.old, 400), brief(d.new, 400), d.counts] for d in outcome.differences
        ],
        "stages": stage_states(outcome),
        "diff": text_diff(as_text(outcome.old.get("value")), as_text(outcome.new.get("value"))),
        "raised": [outcome.old.get("raised"), outcome.new.get("raised")],
        "rows": [row_json(number, *pair, outcome.differences) for number, pair in chosen[:MOST_ROWS]],
        "more_rows": max(0, len(chosen) - MOST_ROWS),
        "explain": explain_command(outcome),
    }


def blobs_of(case: Mapping[str, Any]) -> Iterator[str]:
    for row in case.get("rows", ()):
        for pair in row["images"]:
            yield from (side[0] for side in pair if side and side[0])


def thumbnails(cases: Iterable[Mapping[str, Any]], blobs: Path | None) -> dict[str, str]:
    """blob -> data: URL of each picture of a failing case, once."""
    names = {name for case in cases if case["fails"] for name in blobs_of(case)}
    if blobs is None:
        return {}
    found = {name: thumbnail(blobs / name) for name in sorted(names) if Path(name).name == name}
    return {name: url for name, url in found.items() if url}


def html_page(check: Check, blobs: Path | None = None) -> str:
    """One page with everything in it. blobs: the folder of the goldens' pictures; failing cases show them."""
    failing = {id(o) for o in check.failing()}
    cases = [case_json(o, id(o) in failing) for o in check.outcomes]
    named = {name for case in cases for name in (*case["also"], *([case["cause"]["name"]] if case["cause"] else []))}
    page = {
        "final": final_line(check),
        "exit_code": check.exit_code,
        "environment": {key: str(value)[:120] for key, value in check.environment.items()},
        "policy": {"strict": check.policy.strict},
        "left_out": list(check.left_out),
        "accepted": accepted_lines(check),
        "causes": {name: CAUSES.get(name, "") for name in sorted(named)},
        "verdicts": list(VERDICTS),
        "pictures": thumbnails(cases, blobs),
        "cases": cases,
        "numerics": [dataclasses.asdict(n) for n in check.numerics],
    }
    payload = json.dumps(plain(page), separators=(",", ":"))
    for sign in "<>&":  # no tag, no comment and no entity in it, whatever a model wrote
        payload = payload.replace(sign, f"\\u{ord(sign):04x}")
    template = TEMPLATE.read_text(encoding="utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.replace("@SCRIPT-SHA256@", digest).replace("@PAYLOAD@", payload)


# == Files ==


def write_markdown(path: Path, text: str) -> None:
    """$GITHUB_STEP_SUMMARY belongs to all of a step: it is added to. Any other file is written anew."""
    if os.environ.get("GITHUB_STEP_SUMMARY") == str(path):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        write_whole(path, text.encode())


def write_reports(
    check: Check,
    *,
    junit: Path | None = None,
    markdown: Path | None = None,
    json_path: Path | None = None,
    html: Path | None = None,
    blobs: Path | None = None,
) -> None:
    """Write the reports that were asked for. blobs: `Store.blobs()`, for the pictures on the page."""
    if junit is not None:
        write_whole(Path(junit), junit_xml(check).encode())
    if markdown is not None:
        write_markdown(Path(markdown), markdown_summary(check))
    if json_path is not None:
        write_whole(Path(json_path), json_text(check).encode())
    if html is not None:
        write_whole(Path(html), html_page(check, blobs).encode())
