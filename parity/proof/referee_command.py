"""`python -m parity.proof referee`: reprint the table of referee_table.py."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLE = """example:
  python -m parity.proof referee --quick
  python -m parity.proof referee --only qwen3,moe --dtype bfloat16 --out table
"""


def run(args: argparse.Namespace) -> int:
    from parity.proof.referee_table import run_referee  # numpy, and what makes checkpoints

    return run_referee(args)


def add_referee(sub: Any) -> None:
    add_flags(
        sub.add_parser(
            "referee",
            help="reprint what the referee calls rounding and what it calls a fault",
            epilog=EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="one checkpoint, plain transformers only; 2 minutes")
    parser.add_argument("--only", default="", help="checkpoints, for example qwen3,moe")
    parser.add_argument("--dtype", default="", choices=("", "bfloat16", "float16", "float32"))
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    parser.add_argument("--memory", type=int, metavar="ROWS", help="only: what ROWS rows of 256 tokens take to read")
    parser.set_defaults(run=run)
