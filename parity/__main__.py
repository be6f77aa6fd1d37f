"""python -m parity: prove that a moved call site still gives what it gave.

    python -m parity record --site pkg.old:summarize -- python old_script.py     what the old code does, as goldens
    python -m parity check                                                       the moved code, against them
    python -m parity explain summarize/summarize-001                             why a case differs, step by step

Exit codes: 0 all within policy, 1 drift, 2 usage, 3 could not judge, 4 missing or unused (or goldens were just
written), 5 nothing compared.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from parity import shell, vendor
from parity.bench import bench
from parity.companions import batch_files
from parity.diff import commands as differing
from parity.golden import GoldenError
from parity.prove import campaign, frozen, matrix, mutants, referee_command, selftest, stop_laws
from parity.prove.real import ground
from parity.record import commands as recording
from parity.record import inventory
from parity.report import answers
from parity.report import commands as judging
from parity.rollout import report as rollout
from parity.rollout import schedule

# Each adds a subcommand whose `run` takes the parsed arguments and returns the exit code.
COMMANDS = (
    recording.add_record,
    judging.add_check,
    judging.add_explain,
    judging.add_accept,
    inventory.add_list,
    inventory.add_prune,
    shell.add_doctor,
    shell.add_generate,
    batch_files.add_batch,
    answers.add_compare,
    differing.add_diff,
    selftest.add_selftest,
    mutants.add_mutants,
    referee_command.add_referee,
    ground.add_real,
    frozen.add_frozen,
    bench.add_bench,
    stop_laws.add_laws,
    campaign.add_campaign,
    matrix.add_matrix,
    vendor.add_vendor,
    rollout.add_trace,
    schedule.add_schedule,
)
USAGE = 2
NOBODY_READS = 141  # what a shell says of a program whose reader went away: `parity list | head`; no verdict of ours
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # vLLM logs to stdout, where the report is


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--goldens", default="golden", metavar="DIR", help="default: golden")
    sub = parser.add_subparsers(metavar="COMMAND", required=True)
    for add_command in COMMANDS:
        add_command(sub)
    for command in sub.choices.values():  # on either side of the command; SUPPRESS: what stood before it stays
        command.add_argument("--goldens", default=argparse.SUPPRESS, metavar="DIR", help="default: golden")
    return parser


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and the command after `--`."""
    words = list(words)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def main(argv: Sequence[str] | None = None) -> int:
    mine, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = make_parser().parse_args(mine)
    args.command = command or getattr(args, "command", [])
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())  # as `python -m` does, also under an installed command
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it once more when it ends
        return NOBODY_READS
    except (GoldenError, ValueError, LookupError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return USAGE if isinstance(error, (ValueError, LookupError)) else 3
    except OSError as error:
        print(f"parity: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
