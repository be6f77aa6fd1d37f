"""A check as one HTML page that opens from disk, with no network (page.html is its template)."""

from __future__ import annotations

import base64
import dataclasses
import difflib
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.goldens.causes import meaning
from parity.goldens.store import GoldenError, Store
from parity.goldens.verdict import (
    STAGES,
    Check,
    Difference,
    Outcome,
    brief,
    equal,
    first_divergence,
)
from parity.report.data import outcome_json, plain
from parity.report.partings import pairs_of
from parity.report.words import (
    VERDICTS,
    Row,
    accepted_lines,
    explain_command,
    final_line,
    uncompared_lines,
)

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


def answer_text(case: Mapping[str, Any]) -> str:
    """What a recorded call returned, or raised."""
    raised = case.get("raised")
    return as_text(case.get("value")) if raised is None else f"raised {raised}"


def as_text(value: Any) -> str:
    return (
        value if isinstance(value, str) else json.dumps(plain(value), indent=1, ensure_ascii=False)
    )


TEMPLATE = Path(__file__).with_name("page.html")
THUMBNAIL = 160  # pixels, the longer side
PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # not what PIL hands to another program
# What PIL raises for a broken file, and the goldens for one that is not there.
UNREADABLE = (GoldenError, OSError, ValueError, SyntaxError)
MOST_ROWS = 4  # rows of one case on the page
CALL = ("sampling", "stop", "decode", "batch", "model")


def thumbnail(name: str, store: Store) -> str | None:
    """A picture of the goldens as a small data: URL; None where it cannot be read."""
    from PIL import Image, ImageOps

    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(store.blob(name)), formats=PICTURES) as image:
            small = ImageOps.exif_transpose(image).convert("RGB")
    except (*UNREADABLE, Image.DecompressionBombError):
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
    """[stage, name, [old, from], [new, from], state] of each setting that one side has; [] for a
    side that has not.

    state: 2 a difference, 1 unequal without being one (a setting that greedy decoding ignores), 0
    equal.
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
    """[[blob or null, facts], ...] of one picture on both sides, or null for a side that has
    none."""
    facts = ("size", "tokens", "budget", "grid", "values", "sha256")

    def side(picture: Row | None) -> Any:
        if picture is None:
            return None
        return [
            picture.get("blob"),
            {f: str(picture[f]) for f in facts if picture.get(f) is not None},
        ]

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
        "prompt_ids": token_diff(prompt_ids[0], prompt_ids[1], " ")
        if prompt_ids[0] != prompt_ids[1]
        else [],
        "ids": token_diff(ids[0], ids[1], " "),
        "text": text_diff(*(str(row.get("text", "")) for row in (old, new))),
        "call": call_table(old, new, {(d.stage, d.field) for d in mine}),
        "images": [picture_pair(a, b) for a, b in zip(*padded)],
    }


def stage_states(outcome: Outcome) -> list[list[str]]:
    """[stage, state]: same, differs, told (differs, and does not count), or absent on both
    sides."""
    sides = [side for side in (outcome.old, outcome.new) if side is not None]
    there = {"value", *(stage for side in sides for row in side.get("rows", ()) for stage in row)}
    counting = {d.stage for d in outcome.differences if d.counts}
    told = {d.stage for d in outcome.differences}
    return [
        [
            s,
            "differs"
            if s in counting
            else "told"
            if s in told
            else "same"
            if s in there
            else "absent",
        ]
        for s in STAGES
    ]


def difference_entry(difference: Difference) -> list[Any]:
    """[stage, field, row, old, new, counts]"""
    shown = difference.words or (brief(difference.old, 400), brief(difference.new, 400))
    return [difference.stage, difference.field, difference.row, *shown, difference.counts]


def case_json(outcome: Outcome, fails: bool, asked_with: str) -> dict[str, Any]:
    """What the page shows of one case; of an identical one, a line."""
    said = outcome_json(outcome, fails)
    value = next(
        (side.get("value") for side in (outcome.old, outcome.new) if side is not None), None
    )
    said["value"] = brief(as_text(value), 160) if outcome.old or outcome.new else ""
    if outcome.old is None or outcome.new is None or outcome.verdict == "IDENTICAL":
        return {**said, "differences": [], "steps": []}
    pairs = list(enumerate(pairs_of(outcome)))
    touched = {d.row for d in outcome.differences} - {None}
    chosen = [entry for entry in pairs if entry[0] in touched] or pairs[:1]
    return {
        **said,
        "differences": list(map(difference_entry, outcome.differences)),
        "stages": stage_states(outcome),
        "diff": text_diff(answer_text(outcome.old), answer_text(outcome.new)),
        "raised": [outcome.old.get("raised"), outcome.new.get("raised")],
        "rows": [
            row_json(number, *pair, outcome.differences) for number, pair in chosen[:MOST_ROWS]
        ],
        "more_rows": max(0, len(chosen) - MOST_ROWS),
        "explain": explain_command(outcome, asked_with),
    }


def blobs_of(case: Mapping[str, Any]) -> Iterator[str]:
    for row in case.get("rows", ()):
        for pair in row["images"]:
            yield from (side[0] for side in pair if side and side[0])


def thumbnails(cases: Iterable[Mapping[str, Any]], store: Store | None) -> dict[str, str]:
    """blob -> data: URL of each picture of a failing case, once."""
    if store is None:
        return {}
    names = {name for case in cases if case["fails"] for name in blobs_of(case)}
    found = {name: thumbnail(name, store) for name in sorted(names)}
    return {name: url for name, url in found.items() if url}


def html_page(check: Check, store: Store | None = None) -> str:
    """One page with everything in it. store: the goldens; failing cases show their pictures."""
    failing = {id(o) for o in check.failing()}
    cases = [case_json(o, id(o) in failing, check.asked_with) for o in check.outcomes]
    named = {case["cause"]["name"] for case in cases if case["cause"]}
    page = {
        "final": final_line(check),
        "exit_code": check.exit_code,
        "environment": {key: str(value)[:120] for key, value in check.environment.items()},
        "policy": {"strict": check.policy.strict},
        "left_out": list(check.left_out),
        "accepted": [*accepted_lines(check), *check.only_old, *uncompared_lines(check)],
        "changes": [change.line for change in check.changes],
        "causes": {name: meaning(name) for name in sorted(named)},
        "verdicts": list(VERDICTS),
        "pictures": thumbnails(cases, store),
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
