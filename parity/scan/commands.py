"""`python -m parity scan`: which call sites a repository has, and how they have drifted."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from parity.environment.output_paths import file_to_write
from parity.goldens.folder import write_whole
from parity.scan.baseline import (
    Baseline,
    read_baseline,
    refuse_link_in_goldens,
    write_baseline,
    write_sites,
)
from parity.scan.page import page
from parity.scan.report import Console, counted
from parity.scan.scan import Scan, scan

DRIFT = 1
NOTHING_FOUND = 5
EXAMPLE = """examples:
  python -m parity scan                                  the folder you are in
  python -m parity scan src notebooks --html scan.html   two folders, and a page with the matrix of
  siblings
  python -m parity scan --write                          golden/sites.json to begin with
  python -m parity scan --write-baseline                 golden/scan.json, to be committed; then in
  CI:
  python -m parity scan --fail-on new                    fails where a block was added

exit codes: 0 blocks were found, and nothing that --fail-on asks for; 1 drift or a new block, as
--fail-on asks; 2 usage; 5 no block was found. A file that cannot be parsed is
named and changes no exit code."""


def run_scan(args: argparse.Namespace) -> int:
    found = scan(args.paths or ["."])
    if args.baseline and not (args.fail_on or args.write_baseline):
        raise ValueError("--baseline is read by --fail-on and written by --write-baseline; add one")
    baseline_path = Path(args.baseline or Path(args.goldens) / "scan.json")
    refuse_link_in_goldens(baseline_path, args.goldens)
    baseline = baseline_for(args, baseline_path)
    if args.json is not None:
        write_json(args.json, found)
    if args.json != "-":
        is_terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        has_next = not args.fail_on
        print(Console(colour=is_terminal, is_full=args.all, has_next=has_next).text(found))
    if args.html is not None:
        scanned = ", ".join(os.path.abspath(path) for path in args.paths or ["."])
        write_whole(args.html, page(found, scanned).encode("utf-8", "replace"))
        say(args, f"wrote {args.html}")
    if args.write:
        added, known = write_sites(args.goldens, found.blocks)
        sites = Path(args.goldens) / "sites.json"
        say(args, f"{sites}: {counted(added, 'site')} added, {known} functions were there")
    if args.write_baseline:
        write_baseline(baseline_path, found)
        say(args, f"wrote {baseline_path}: commit it")
    return exit_code(args, found, baseline)


def say(args: argparse.Namespace, text: str) -> None:
    """A line beside the report; on standard error where standard output is JSON."""
    print(text, file=sys.stderr if args.json == "-" else sys.stdout)


def baseline_for(args: argparse.Namespace, path: Path) -> Baseline:
    """The baseline; an empty one where there is none. Raises ValueError where one is needed."""
    if (
        args.write_baseline
        or not args.fail_on
        or (not path.exists() and args.fail_on == "drift" and not args.baseline)
    ):
        return Baseline(frozenset(), frozenset())
    if not path.exists():
        raise ValueError(
            f"there is no baseline {path}; write one with --write-baseline and commit it"
        )
    return read_baseline(path)


def json_target(text: str) -> str:
    """A file that can be written, or "-"."""
    return text if text == "-" else str(file_to_write(text))


def write_json(target: str, found: Scan) -> None:
    text = json.dumps(found.as_json(), indent=1, ensure_ascii=True)
    if target == "-":
        print(text)
    else:
        write_whole(Path(target), f"{text}\n".encode())


def exit_code(args: argparse.Namespace, found: Scan, baseline: Baseline) -> int:
    if not found.blocks:
        return NOTHING_FOUND
    if args.write_baseline or not args.fail_on:
        return 0
    if args.fail_on == "new":
        news = [
            f"new block: {block.place} {block.function}" for block in baseline.new_blocks(found)
        ]
    else:
        news = [f"new drift: {finding.message}" for finding in baseline.new_drifts(found)]
    for line in news or [f"no new {'block' if args.fail_on == 'new' else 'drift'}"]:
        say(args, line)
    return DRIFT if news else 0


def add_scan(sub: Any) -> None:
    parser = sub.add_parser(
        "scan",
        help="which call sites a repository has, and how they have drifted; nothing is run",
        description="Find every place where a repository generates or scores with a local model, "
        "what it sets, what it leaves to the checkpoint or the library, and how copies of one "
        "block differ. Reads source, and the tokenizer's files of a checkpoint that is a folder.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders, Python and notebooks (default: .)",
    )
    add(
        "--all",
        action="store_true",
        help="show every finding, group and block, with its record line",
    )
    add(
        "--json",
        nargs="?",
        const="-",
        type=json_target,
        metavar="FILE",
        help="the whole inventory as JSON (default: standard output)",
    )
    add(
        "--html",
        type=file_to_write,
        metavar="FILE",
        help="one page with the matrix of each group of siblings",
    )
    add("--write", action="store_true", help="add the sites to sites.json in the folder of goldens")
    add(
        "--fail-on",
        choices=("drift", "new"),
        help="exit with 1 for drift, or for blocks, that the baseline has not",
    )
    add("--baseline", metavar="FILE", help="default: scan.json in the folder of goldens")
    add(
        "--write-baseline",
        action="store_true",
        help="write the baseline: what is there now is accepted",
    )
    parser.set_defaults(run=run_scan)
