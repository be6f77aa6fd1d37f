"""Run the cases of a library the old way: the script that the recorder watches.

python -m parity.proof.foreign.drive lm_eval --dtype float32
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from parity.proof.foreign.material import BACKENDS, DTYPES
from parity.proof.foreign.prompts import checkpoint
from parity.record.observe import case

LIBRARIES = tuple(
    sorted(file.stem for file in (Path(__file__).parent / "libraries").glob("[!_]*.py"))
)


def module_of(library: str) -> ModuleType:
    return importlib.import_module(f"parity.proof.foreign.libraries.{library}")


def recorded_name(case: str, dtype: str) -> str:
    """The name of the golden of a case."""
    return f"{case}-{dtype}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity.proof.foreign.drive",
        description="Run the cases of a library the old way, for the recorder.",
        epilog="example: python -m parity.proof.foreign.drive lm_eval --dtype float32",
    )
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: both")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="default: both")
    parser.add_argument("--moved", action="store_true", help="run the moved functions")
    parser.add_argument("--only", metavar="CASE", help="run this case alone")
    asked = parser.parse_args()
    module = module_of(asked.library)
    for dtype in asked.dtype or DTYPES:
        for each in module.cases(dtype):
            if asked.only not in (None, each.name) or not {*each.backends} & {
                *(asked.backend or BACKENDS)
            }:
                continue
            function = getattr(module, each.function if asked.moved else f"old_{each.function}")
            model = {"model_path": checkpoint(dtype), "dtype": dtype}
            with case(recorded_name(each.name, dtype)):
                answer = function(**{**model, **each.arguments})
            print(each.name, dtype, repr(answer)[:2000])
    return 0


if __name__ == "__main__":
    sys.exit(main())
