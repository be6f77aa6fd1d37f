"""Run the cases of a library the old way: the script that the recorder watches.

python -m parity.proof.foreign.drive lm_eval --dtype float32
"""

from __future__ import annotations

import argparse
import importlib
import sys

from parity.proof.foreign.material import DTYPES, Case
from parity.record.observe import case

LIBRARIES = ("lm_eval", "outlines", "trl", "lighteval", "ms_swift")


def cases_of(library: str, dtype: str) -> list[Case]:
    module = importlib.import_module(f"parity.proof.foreign.{library}.cases")
    cases: list[Case] = module.cases(dtype)
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity.proof.foreign.drive",
        description="Run the cases of a library the old way, for the recorder.",
        epilog="example: python -m parity.proof.foreign.drive lm_eval --dtype float32",
    )
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--way", choices=("old", "moved"), default="old")
    parser.add_argument("--only", metavar="CASE", help="run this case alone")
    asked = parser.parse_args()
    module = importlib.import_module(f"parity.proof.foreign.{asked.library}.{asked.way}")
    for each in cases_of(asked.library, asked.dtype):
        if asked.only in (None, each.name):
            with case(each.name):
                answer = getattr(module, each.function)(**each.arguments)
            print(each.name, repr(answer)[:2000])
    return 0


if __name__ == "__main__":
    sys.exit(main())
