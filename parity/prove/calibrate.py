"""`python -m parity calibrate`: how far an engine is from itself, which is what rounding is allowed to move."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gen_engine import load
from parity.judge import ties

CALIBRATION = (
    "The capital of France is",
    "Count to five: one, two,",
    "A list of colours: red, green, blue,",
    "def add(a, b):",
    "Once upon a time there was a small house at the edge of a wood, and in the house there lived",
    "2 + 2 =",
)


def run_calibrate(args: argparse.Namespace) -> int:
    prompts = Path(args.prompts).read_text(encoding="utf-8").splitlines() if args.prompts else list(CALIBRATION)
    hooks = {"logits_hooks": True} if args.on == "vllm" else {}
    with load(args.model, backend=args.on, max_model_len=args.max_model_len, **hooks) as engine:
        ids = [engine.tokenizer(text)["input_ids"] for text in prompts if text]
        found = ties.calibrate(engine, ids)
    print(f"{args.on}: tau {found['tau']:.2e} from {found['steps']:.0f} steps, in one batch against one by one")
    print(f"use it with: python -m parity check --tau {found['tau']:.2e}")
    return 0


def add_calibrate(sub: Any) -> None:
    example = "example: python -m parity calibrate --model Qwen/Qwen3-0.6B --on vllm"
    parser = sub.add_parser("calibrate", help="measure how far an engine is from itself", epilog=example)
    parser.add_argument("--model", required=True)
    parser.add_argument("--on", choices=("hf", "vllm"), default="hf", help="the backend")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--prompts", metavar="FILE", help="a prompt per line")
    parser.set_defaults(run=run_calibrate)
