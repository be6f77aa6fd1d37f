"""`python -m parity draft`, `migrate` and `skill`: their command lines."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parity.draft import skill
from parity.environment.output_paths import file_to_write, folder_to_write
from parity.goldens.safe_text import say

BACKENDS = ("hf", "vllm")
CANNOT = 3
EXAMPLE = """examples:
  parity draft answers                       print the moved module
  parity draft answers --out acme/new.py     write it; an existing file is an error
  parity draft answers --yes --check         write it beside the old one, and check it
  parity draft answers --diff | git apply    as a patch
  parity draft answers --in-place            edit the file; the old functions stay as NAME_before

exit codes: 0 moved; with --check that of `check`; 2 usage; 3 something is left to you: it is
marked `# TODO parity:` in the draft and listed."""


def is_ready(command: str) -> bool:
    """Whether the library that edits source is there; says so where it is not."""
    if find_spec("libcst") is not None:
        return True
    say(f"parity {command}: libcst is not installed. Run: pip install libcst", sys.stderr)
    return False


def run_draft(args: argparse.Namespace) -> int:
    if not is_ready("draft"):
        return CANNOT
    from parity.draft import running

    if args.backend and not args.check:
        raise ValueError("--backend says where --check runs: give --check, or leave it out")
    if args.diff and args.check:
        raise ValueError(
            "--diff writes no file that could be checked: leave out one of --check, --diff"
        )
    return running.run_draft(args)


def run_migrate(args: argparse.Namespace) -> int:
    if not is_ready("migrate"):
        return CANNOT
    from parity.draft import running

    return running.run_migrate(args)


def run_skill(args: argparse.Namespace) -> int:
    if args.agents:
        print(skill.agents_section(), end="")
        return 0
    out = (args.folder or Path()) / "SKILL.md"
    try:
        with out.open("x", encoding="utf-8") as file:  # "x": not through a link either
            file.write(skill.page())
    except FileExistsError:
        problem = f"{out} is there already. Give another folder, or delete it"
        raise ValueError(problem) from None
    say(f"wrote {out}")
    return 0


def add_draft(sub: Any) -> None:
    parser = sub.add_parser(
        "draft",
        help="write the moved function, from its goldens and its old source",
        description="Edit the old source of a site so that it uses the engine: what renders, "
        "tokenizes, generates and decodes becomes one call; all else stays. What the old code took "
        "without saying so is written out, with its source.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("site", metavar="SITE")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out", type=file_to_write, metavar="FILE", help="where to; it must not exist"
    )
    place.add_argument("--in-place", action="store_true", help="edit the file itself")
    place.add_argument("--diff", action="store_true", help="print a patch")
    add_draft_flags(parser)
    add("--check", action="store_true", help="run the draft on the goldens, on hf and on vLLM")
    parser.set_defaults(run=run_draft)


def add_draft_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--yes", action="store_true", help="answer each question with what the goldens showed")
    add(
        "--stops", action="store_true", help="cut at stops by the engine where the rule is the same"
    )
    add("--engine", default="gen_engine", metavar="MODULE", help="default: gen_engine")
    add("--backend", action="append", choices=BACKENDS, help="of --check; default: both")


def add_migrate(sub: Any) -> None:
    parser = sub.add_parser(
        "migrate",
        help="scan a script, record it, draft its moved code, check that",
        epilog="example: parity migrate --yes -- python summarize.py models/tiny-qwen3",
    )
    add_draft_flags(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- python old.py ARGS")
    parser.set_defaults(run=run_migrate)


def add_skill(sub: Any) -> None:
    parser = sub.add_parser("skill", help="write SKILL.md, one page for coding agents")
    add = parser.add_mutually_exclusive_group().add_argument
    add("folder", nargs="?", type=folder_to_write, metavar="DIR", help="default: .")
    add("--agents", action="store_true", help="print a section for AGENTS.md")
    parser.set_defaults(run=run_skill)
