"""A check as JSON, for other programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from parity.goldens.verdict import Check, Difference, Outcome
from parity.report.words import ENDINGS, counted, sentence, steps_to_cause

JSON_FORMAT = 2  # 2: numerics; no budget of near ties


def plain(value: Any) -> Any:
    """A value as JSON has it. A float that JSON cannot write is {"$float": "nan"}, as in
    goldens."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def difference_json(d: Difference) -> dict[str, Any]:
    said = {
        "stage": d.stage,
        "field": d.field,
        "row": d.row,
        "old": d.old,
        "new": d.new,
        "counts": d.counts,
    }
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
        and {
            "name": cause.name,
            "certainty": cause.certainty,
            "sentence": cause.sentence,
            "proof": cause.proof,
        },
        "differences": [difference_json(d) for d in outcome.differences],
        "accepted": outcome.accepted,
        "notes": list(outcome.notes),
        "also": list(outcome.also),
        "steps": steps_to_cause(outcome),
        "seconds": round(outcome.seconds, 3),
    }


def json_text(check: Check) -> str:
    """The whole check. Keys are stable within one `format`:

    {"format", "exit_code", "ending", "seconds", "policy", "environment", "left_out",
     "unused_acceptances", "only_old",
     "changes": [str],  what became of the goldens since the revision of --since
     "counts": {verdict: n},
     "outcomes": [
        {"site", "case", "backend", "verdict", "fails", "sentence", "accepted", "notes", "also",
         "steps", "seconds",
         "cause": null | {"name", "certainty", "sentence", "proof"},
         "differences": [{"stage", "field", "row", "old", "new", "counts", "sentence"}],
         "old", "new": the two recordings as in parity.goldens.store, or null}],
     "numerics": [
        {"site", "backend", "checkpoint", "dtype", "outcome", "said", "cause", "against",
         "fields": {"rows", "tokens", "old", "new", "sees", "more", "like", "exact", "statistics"},
         "picture"}]: see parity.goldens.verdict}
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
        "only_old": list(check.only_old),
        "changes": [change.line for change in check.changes],
        "counts": counted(check.outcomes),
        "outcomes": [
            {**outcome_json(o, id(o) in failing), "old": plain(o.old), "new": plain(o.new)}
            for o in check.outcomes
        ],
        "numerics": [plain(dataclasses.asdict(n)) for n in check.numerics],
    }
    return json.dumps(said, indent=1) + "\n"  # ASCII: a lone surrogate in an output is no UTF-8
