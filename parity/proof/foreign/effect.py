"""Whether each mistake changes something: the value, or what is asked of the engine.

    python -m parity.proof.foreign.effect lm_eval --dtype float32   exit code 1: one changes nothing

The harness has no part in it: move and mistake run here, on transformers, and are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gen_engine

from parity.proof.foreign.drive import LIBRARIES, cases_of
from parity.proof.foreign.material import DTYPES, Case, Mistake

VERBS = ("generate_text_batch", "generate_vlm_batch", "score_batch")


@contextlib.contextmanager
def requests_seen() -> Iterator[list[str]]:
    """What is asked of every engine meanwhile, as text."""
    seen: list[str] = []

    def watch(verb: str) -> Callable[..., Any]:
        real = getattr(gen_engine.GenerationEngine, verb)

        def asked(engine: Any, *arguments: Any, **named: Any) -> Any:
            seen.append(f"{verb} {engine.config} {arguments} {named}")
            return real(engine, *arguments, **named)

        return asked

    with contextlib.ExitStack() as stack:
        for verb in VERBS:
            patch = mock.patch.object(gen_engine.GenerationEngine, verb, watch(verb))
            stack.enter_context(patch)
        yield seen


def edited(library: str, mistake: Mistake) -> types.ModuleType:
    """The moved module with a mistake in it."""
    source = (Path(__file__).parent / library / "moved.py").read_text(encoding="utf-8")
    module = types.ModuleType(f"edited_{library}")
    exec(compile(mistake.apply(source), f"{library}: {mistake.name}", "exec"), module.__dict__)
    return module


def run(module: types.ModuleType, case: Case) -> tuple[str, str]:
    """(value, what was asked of the engine); an error is a value, too."""
    with requests_seen() as seen:
        try:
            value = repr(getattr(module, case.function)(**case.arguments))
        except gen_engine.GenEngineError as error:
            value = repr(error)
    return value, "\n".join(seen)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity.proof.foreign.effect",
        description="Whether each mistake changes a value or what is asked of the engine.",
        epilog="example: python -m parity.proof.foreign.effect lm_eval --dtype float32",
    )
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    asked = parser.parse_args()
    moved = importlib.import_module(f"parity.proof.foreign.{asked.library}.moved")
    mistakes = importlib.import_module(f"parity.proof.foreign.{asked.library}.mistakes").MISTAKES
    cases = {case.name: case for case in cases_of(asked.library, asked.dtype)}
    idle = 0
    for mistake in mistakes:
        if asked.dtype not in mistake.dtypes:
            continue
        module = edited(asked.library, mistake)
        for name in mistake.cases:
            (was, asked_before), (now, asked_now) = (
                run(moved, cases[name]),
                run(module, cases[name]),
            )
            changes = [
                what
                for what, differs in (
                    ("value", was != now),
                    ("settings", asked_before != asked_now),
                )
                if differs
            ]
            idle += not changes
            print(
                f"{mistake.name}/{name}: changes {' and '.join(changes) or 'NOTHING'}", flush=True
            )
    return int(idle > 0)


if __name__ == "__main__":
    sys.exit(main())
