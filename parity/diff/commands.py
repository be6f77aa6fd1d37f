"""`python -m parity diff A B --model M`: the arguments, what is printed, and the exit code."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.diff.path import parse_path
from parity.environment.output_paths import file_to_write
from parity.goldens.folder import write_whole
from parity.goldens.safe_text import say

GRAMMAR = """paths: BACKEND[@DIR][+adapter=DIR][:WORD,...], or env:PYTHON[,PATH] (elsewhere)
  hf words     float32 bfloat16 float16, eager sdpa flash_attention_2, and faults to plant:
               int8 fp8 attention=F logits=F theta=F matrix=LAYER
  vllm words   a dtype, transformers (its model code), quantization=... kv_cache_dtype=...

examples:
  python -m parity diff hf vllm --model M
  python -m parity diff hf:bfloat16,eager vllm:transformers --model M --gate tmpe=1.05,kl=0.002
  python -m parity diff hf env:/opt/old/bin/python,hf --model M --html diff.html
  python -m parity diff hf hf@other/checkpoint --model M --layers
  python -m parity diff --invariance vllm --model M

exit codes: 0 equal or the same within rounding, 1 differs or beyond a gate, 2 usage, 3 cannot tell
"""
CODES = {"equal": 0, "rounding": 0, "differs": 1, "cannot tell": 3}
TOKENS = 48
AUDITED_TOKENS = 24  # 64 rows, each alone and in seven other ways
GATES = {"tmpe": "tmpe", "kl": "k3", "mean": "mean", "max": "most"}  # of --gate -> of Mismatch


def add_diff(sub: Any) -> None:
    command = sub.add_parser(
        "diff",
        help="compare any two paths to one model's answers: rounding, or a fault?",
        epilog=GRAMMAR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("paths", nargs="*", metavar="PATH", help="A and B; see below")
    command.add_argument("--model", required=True, help="a checkpoint directory")
    command.add_argument("--prompts", type=Path, metavar="F.jsonl", help="default: 24 of our own")
    command.add_argument("--tokens", type=int, help="of an answer; default: 48, of the audit 24")
    command.add_argument("--layers", action="store_true", help="hf: which layer differs")
    command.add_argument("--invariance", choices=("hf", "vllm"), help="one path, other batches")
    command.add_argument("--gate", default="", metavar="NAME=MOST,...", help="tmpe, kl, mean, max")
    command.add_argument("--json", type=file_to_write, metavar="FILE")
    command.add_argument("--html", type=file_to_write, metavar="FILE")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    gates = read_gates(args.gate)
    refuse_unused(args)
    if args.invariance:
        return run_invariance(args)
    if len(args.paths) != 2:
        raise ValueError(
            f"diff: {len(args.paths)} paths, expected 2. Write: parity diff A B --model M."
        )
    a, b = (parse_path(text) for text in args.paths)
    if args.layers:
        return run_layers(args)
    from parity.diff.comparison import compare

    found = compare(a, b, args.model, prompts_of(args), tokens_of(args, TOKENS))
    beyond = beyond_gates(found.mismatch, gates)
    say(describe(found))
    for line in beyond:
        say(line)
    if args.json:
        values = json.dumps(dataclasses.asdict(found), indent=1)
        write_whole(args.json, f"{values}\n".encode())
    if args.html:
        from parity.diff.page import page

        title = f"{args.paths[0]} and {args.paths[1]}"
        write_whole(args.html, page(title, found).encode())
    return 1 if beyond else CODES[found.outcome]


def refuse_unused(args: argparse.Namespace) -> None:
    """Raises ValueError for a flag that the other flags leave without a meaning."""
    if args.layers and args.invariance:
        raise ValueError("diff: --layers and --invariance are two questions. Ask one at a time.")
    mode = "--layers" if args.layers else "--invariance" if args.invariance else ""
    for name in ("gate", "json", "html"):
        if mode and getattr(args, name):
            raise ValueError(f"diff {mode}: has no --{name}. Leave it out.")


def tokens_of(args: argparse.Namespace, usual: int) -> int:
    """How long an answer may be. Raises ValueError."""
    tokens: int = usual if args.tokens is None else args.tokens
    if tokens < 1:
        raise ValueError(f"diff: --tokens is {tokens}; give a whole number >= 1.")
    return tokens


def prompts_of(args: argparse.Namespace) -> Any:
    from parity.diff.prompts import own_prompts, read_prompts

    return read_prompts(args.prompts) if args.prompts else own_prompts()


def read_gates(text: str) -> dict[str, float]:
    """Raises ValueError for a gate that has no such name, or no number."""
    gates = {}
    for part in filter(None, text.split(",")):
        name, _, most = part.partition("=")
        if name not in GATES:
            raise ValueError(f"--gate {part}: expected one of {', '.join(GATES)}. Write tmpe=1.05.")
        gates[name] = float(most)
    return gates


def beyond_gates(mismatch: Any, gates: Mapping[str, float]) -> list[str]:
    found = []
    for name, most in gates.items():
        value = getattr(mismatch, GATES[name], None)
        if value is None:
            found.append(f"gate {name}: not measured, at most {most:g} is allowed")
        elif not value <= most:
            found.append(f"gate {name}: {value:.4g}, at most {most:g} is allowed")
    return found


def describe(found: Any) -> str:
    """The verdict, and the table behind it."""
    lines = [found.sentence, *(f"note: {note}" for note in found.notes)]
    m = found.mismatch
    if m is not None:
        parted = [f"{k}:{step}" for k, step in enumerate(found.partings) if step is not None]
        lines += [
            "",
            f"answer tokens read by both     {m.tokens}",
            f"mean, max |delta log p|        {m.mean:.2e}, {m.most:.2e} nats",
            f"k3 KL                          {m.k3:.2e}",
            f"mean exp|delta log p|          {m.tmpe:.5f}",
            f"effective sample size          {m.ess:.1%} of the tokens",
            f"worst token                    {found.worst!r}",
            f"rows that part (row:step)      {' '.join(parted) or 'none'} of {len(found.partings)}",
        ]
    return "\n".join([*lines, *(["", found.proof] if found.proof else [])])


def run_layers(args: argparse.Namespace) -> int:
    from parity.diff.layers import compare_layers

    a, b = (parse_path(text) for text in args.paths)
    found = compare_layers(a, b, args.model, prompts_of(args), tokens_of(args, TOKENS))
    say(str(found))
    return 1 if found.first else 0


def run_invariance(args: argparse.Namespace) -> int:
    if args.paths:
        raise ValueError("diff --invariance: takes no paths. Leave them out.")
    from parity.diff.invariance import audit, table

    tokens = tokens_of(args, AUDITED_TOKENS)
    found = audit(args.invariance, args.model, prompts_of(args), tokens)
    say(table(found))
    return 1 if any(not one.within for one in found) else 0
