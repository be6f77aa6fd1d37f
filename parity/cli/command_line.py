"""The command line, `python -m parity`: prove that a moved call site still gives what it gave.

    python -m parity scan                                                        which call sites a repository has
    python -m parity record --site pkg.old:summarize -- python old_script.py     what the old code does, as goldens
    python -m parity check                                                       the moved code, against them
    python -m parity explain summarize/summarize-001                             why a case differs, step by step

Exit codes: 0 all within policy, 1 drift, 2 usage, 3 could not judge, 4 missing or unused (or goldens were just
written), 5 nothing compared.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import gen_engine
from parity.environment import libraries
from parity.goldens.safe_text import forget_stdout, say
from parity.goldens.store import GoldenError, SettingsError

GENERATE = "parity.cli.shell:add_generate"
BATCH = "parity.companions.batch_files:add_batch"
DOCTOR = "parity.cli.shell:add_doctor"
VENDOR = "parity.environment.vendor:add_vendor"
# Group -> command -> the function that adds its parser; only what a line names is imported.
COMMANDS = {
    "migrate": {
        "scan": "parity.scan.commands:add_scan",
        "record": "parity.record.commands:add_record",
        "draft": "parity.draft.commands:add_draft",
        "check": "parity.report.commands:add_check",
        "explain": "parity.report.commands:add_explain",
        "accept": "parity.report.commands:add_accept",
        "migrate": "parity.draft.commands:add_migrate",
        "skill": "parity.draft.commands:add_skill",
    },
    "goldens": {
        "list": "parity.record.inventory:add_list",
        "prune": "parity.record.inventory:add_prune",
        "rename": "parity.record.rename:add_rename",
        "upgrade": "parity.cli.upgrade.commands:add_upgrade",
    },
    "compare": {
        "diff": "parity.diff.commands:add_diff",
        "compare": "parity.report.answers:add_compare",
        "bench": "parity.bench.bench:add_bench",
    },
    "engine": {
        "generate": GENERATE,
        "batch": BATCH,
        "vendor": VENDOR,
        "doctor": DOCTOR,
        "demo": "parity.cli.demo:add_demo",
        "laws": "parity.cli.laws:add_laws",
    },
    "rollouts": {
        "trace": "parity.rollout.report:add_trace",
        "schedule": "parity.rollout.schedule:add_schedule",
    },
}
NEEDED = {  # command -> the libraries without which it can do nothing
    **dict.fromkeys(("check", "explain", "accept", "upgrade", "diff", "bench", "generate", "batch"), libraries.MODEL),
    "demo": libraries.EXTRA,
}
USAGE = 2
CANNOT = 3  # judge, read, or run
NOBODY_READS = 141  # what a shell says of a program whose reader went away: `parity list | head`; no verdict of ours
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # vLLM logs to stdout, where the report is


@dataclass(frozen=True, slots=True)
class Program:
    """A console script.   commands: by group and name, what adds a subcommand whose `run` takes the
    parsed arguments and returns the exit code.   has_goldens: whether they look into a folder of
    goldens."""

    name: str
    about: str
    commands: Mapping[str, Mapping[str, str]]
    has_goldens: bool

    @property
    def started_as(self) -> str:
        """As a module of a clone, or by its name."""
        return f"python -m {self.name}" if Path(sys.argv[0]).name == "__main__.py" else self.name


ENGINE_ABOUT = """gen_engine from the command line: one answer, a file of requests, what works here.

    gen-engine doctor                                        which backends work on this machine
    gen-engine generate --model M "What is 2 + 2?"           one answer
    gen-engine batch requests.jsonl answers.jsonl --model M  a file, resumed where it was stopped

`parity` has these and all that proves a migration.
"""
ENGINE_COMMANDS = {"engine": {"doctor": DOCTOR, "generate": GENERATE, "batch": BATCH, "vendor": VENDOR}}
PROGRAMS = {
    "parity": Program("parity", __doc__, COMMANDS, has_goldens=True),
    "gen-engine": Program("gen-engine", ENGINE_ABOUT, ENGINE_COMMANDS, has_goldens=False),
}


class Parsers:
    """The parser of a command line.   names: of all commands.   users: name -> its parser, of the
    commands that the words name; of all where they name none."""

    def __init__(self, program: Program = PROGRAMS["parity"], words: Sequence[str] = ()) -> None:
        self.program = program
        form = argparse.RawDescriptionHelpFormatter
        self.top = argparse.ArgumentParser(prog=program.started_as, description=program.about, formatter_class=form)
        version = f"{program.name} {gen_engine.__version__}"
        self.top.add_argument("--version", action="version", version=version)
        places = {name: where for group in program.commands.values() for name, where in group.items()}
        self.names = [*places]
        users = self.top.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS)
        for name in [name for name in places if name in words] or places:
            load_function(places[name])(users)
        self.users = users.choices
        helps = {action.dest: action.help or "" for action in users._choices_actions}
        self.top.usage = f"{program.started_as} [-h] [--version] COMMAND ..."
        self.top.epilog = commands_in_groups(program.commands, helps)
        if program.has_goldens:
            self.top.add_argument("--goldens", default="golden", metavar="DIR", help="default: golden")
        for name, command in self.users.items():
            command.set_defaults(command_name=name)
            if program.has_goldens:  # on either side of the command; SUPPRESS: what stood before it stays
                command.add_argument("--goldens", default=argparse.SUPPRESS, metavar="DIR", help="default: golden")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        if words and (problem := self.problem_of(words[0])):
            say(f"{self.program.started_as}: {problem}", sys.stderr)
            raise SystemExit(USAGE)
        args, unknown = self.top.parse_known_args(words)
        if unknown:
            self.refuse(args.command_name, unknown)
        return args

    def refuse(self, command: str, unknown: Sequence[str]) -> NoReturn:
        """Say which words a command does not know, with a guess for an option. Ends the program."""
        parser = self.users[command]
        problem = f"unrecognized arguments: {' '.join(unknown)}"
        known = re.findall(r"--[\w-]+", parser.format_help())
        if close := difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1):
            problem += f"; did you mean {close[0]}?"
        parser.error(problem)

    def problem_of(self, word: str) -> str | None:
        """What is wrong with a word that stands for a command; None if it is one, or an option."""
        if word.startswith("-") or word in self.names:
            return None
        return f"there is no command {word!r}; {gen_engine.did_you_mean(word, self.names)}"


def load_function(place: str) -> Callable[[Any], None]:
    """The function of "module:name"."""
    module, _, name = place.partition(":")
    function: Callable[[Any], None] = getattr(importlib.import_module(module), name)
    return function


def commands_in_groups(groups: Mapping[str, Mapping[str, str]], helps: Mapping[str, str]) -> str:
    """The list of commands that `--help` shows."""
    lines = []
    for group, commands in groups.items():
        lines.append(f"{group}:")
        for name in commands:
            text = textwrap.fill(helps.get(name, ""), 66, subsequent_indent=" " * 14)
            lines.append(f"  {name:<11} {text}")
        lines.append("")
    return "\n".join(lines)


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and the command after `--`."""
    words = list(words)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def print_error(program: str, error: Exception) -> None:
    """What went wrong, with nothing in it that a terminal or a CI log would obey. Where it cannot be
    written, the exit code says so alone."""
    try:
        say(f"{program}: {error}", sys.stderr)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def run(program: Program, argv: Sequence[str] | None) -> int:
    mine, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = Parsers(program, mine).parse(mine)
    if problem := libraries.problem_of(NEEDED.get(args.command_name, ()), libraries.EXTRA):
        print(f"{program.name} {args.command_name}: {problem}", file=sys.stderr)
        return CANNOT
    before = getattr(args, "command", [])
    if command and before:
        problem = f"{before[0]!r} stands before `--`, where nothing reads it"
        problem += f"; write --site {before[0]}, or the whole command behind `--`"
        print_error(program.name, ValueError(problem))
        return USAGE
    args.command = command or before
    return exit_code_of(program.name, args)


def absent_argument(error: Exception, args: argparse.Namespace) -> str:
    """The argument that an error says is no file; "" where it says something else."""
    name = str(error.filename) if isinstance(error, FileNotFoundError) else ""
    return name if name in map(str, vars(args).values()) else ""


def exit_code_of(program: str, args: argparse.Namespace) -> int:
    """Carry the command out; what it raises is printed without a traceback."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())  # as `python -m` does, also under an installed command
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        forget_stdout()
        return NOBODY_READS
    except (GoldenError, ValueError, LookupError) as error:
        print_error(program, error)
        return USAGE if isinstance(error, (SettingsError, ValueError, LookupError)) else CANNOT
    except (OSError, gen_engine.GenEngineError) as error:
        if name := absent_argument(error, args):
            print_error(program, ValueError(f"there is no file {name}; check its path"))
            return USAGE
        print_error(program, error)
        try:
            sys.stdout.flush()
        except OSError:  # a full disk
            forget_stdout()
        return CANNOT
