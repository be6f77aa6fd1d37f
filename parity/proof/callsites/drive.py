"""Run every case of a call site, in order, the old way or the moved way: the script that a recorder watches.

python -m parity.proof.callsites.drive SITE old|moved [--only CASE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from parity.record.observe import case

SITES = (
    "stage_a", "rollout", "reflection", "runner", "visual_dump", "inference_module", "rollout_worker", "selftest",
    "service", "clips", "live_answers",
)  # fmt: skip
WAYS = ("old", "moved")


def cases_of(site: str, directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """(case, function, keyword arguments) of a site; its pictures are written into `directory`."""
    module = importlib.import_module(f"parity.proof.callsites.{site}.cases")
    cases: list[tuple[str, str, dict[str, Any]]] = module.cases(directory)
    return cases


def run(site: str, way: str, directory: Path, only: str | None = None) -> dict[str, Any]:
    """What each case returned, by name."""
    module = importlib.import_module(f"parity.proof.callsites.{site}.{way}")
    returned = {}
    for name, function, arguments in cases_of(site, directory):
        if only in (None, name):
            with case(name):
                returned[name] = getattr(module, function)(**arguments)
    return returned


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m parity.proof.callsites.drive", description=__doc__.splitlines()[0])
    parser.add_argument("site", choices=SITES)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--only", metavar="CASE", help="run this case alone")
    parser.add_argument("--pictures", metavar="DIR", type=Path, help="write them here, and leave them")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        returned = run(asked.site, asked.way, asked.pictures or Path(directory), asked.only)
    if not returned:
        parser.error(f"{asked.site} has no case {asked.only!r}")
    for name, value in returned.items():
        print(name, json.dumps(value, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
