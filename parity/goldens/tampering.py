"""What in a golden cannot have been recorded, where no digest tells that it was edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import brief

Decode = Callable[[Sequence[int], Any, bool], str]  # ids, skip_special_tokens, clean_up

# What a decode was given -> whether a recorded text holds what the row's own ids decode to. It may
# hold more (the prompt, the pads) or less (what an engine had cut).
HOLDS: dict[Any, Callable[[str, str], bool]] = {
    "ended": lambda wanted, text: wanted == text,
    "new": lambda wanted, text: text.startswith(wanted),
    "part": lambda wanted, text: wanted.strip().startswith(text.strip()),
    "whole": lambda wanted, text: wanted in text,
}


def refuse_edited(golden: Case, store: Store, tools: Any) -> None:
    """Raise GoldenError where a text of a golden is not what its ids decode to.

    tools: with `decode` of its own checkpoint, None where that is not here. Asked of the release
    that it was recorded with: another one may decode otherwise."""
    decode: Decode | None = tools.decode
    if golden.digest or decode is None:
        return
    if store.environment_of(golden).get("transformers") != version("transformers"):
        return
    for number, row in enumerate(golden.rows):
        problem = text_problem(row, decode)
        if problem:
            fix = "restore it from version control, or record it again"
            raise GoldenError(f"row {number} of the golden was edited: {problem}; {fix}")


def text_problem(row: Mapping[str, Any], decode: Decode) -> str:
    """What is wrong with the texts of a row; "" where nothing is, or nobody can tell."""
    if "decode" not in row:
        return ""
    for how in row.get("decodes") or [{**row["decode"], "text": row.get("text")}]:
        text = how.get("text")
        holds = HOLDS.get(how.get("ids"))
        if text is None or holds is None:
            continue
        skip = how.get("skip_special_tokens") or False
        wanted = decode(row["output_ids"], skip, bool(how.get("clean_up")))
        if not holds(wanted, text):
            return f"its ids decode to {brief(wanted)}, its text is {brief(text)}"
    return ""
