"""Rollouts without guesses, with n-grams and with a draft model, free and with fixed results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL, DRAFT = "golden/models/tiny-qwen3", "golden/models/tiny-qwen3-draft"
DIFFERS = {
    "fixed-while-guessing": "the old worker did not apply fixed results while it guessed; the moved one does",
}
SAMPLED = frozenset({"sampled"})

COUNT, PLANETS, FRANCE, ODD = "Count to 30.", "Name five planets.", "What is the capital of France?", "Is 17 even?"
DIE = "Throw a die five times."
MANY = [COUNT, PLANETS, FRANCE, ODD, "Count to 9.", "Draw a cat.", "Name two trees.", "Count to 21."]
FIXED = [[18, 11, 220, 17, 13], [32, 65, 72, 65]]


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    def case(name: str, prompts: list[str], **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        out = str(directory / "rollouts" / name)
        return name, "rollout", {"model_path": MODEL, "prompts": prompts, "out_dir": out, **arguments}

    return [
        case("one-prompt", [FRANCE]),
        case("more-prompts-than-places", MANY, max_tokens=160),
        case("cut-by-length", [COUNT, FRANCE], max_tokens=7),
        case("sampled", [DIE, "Name a colour."], max_tokens=16, temperature=1.0, seed=11),
        case("fixed-results", [COUNT, FRANCE], fixed=FIXED),
        # Before n-grams: vLLM 0.32 on a CPU loads no further engine in a process that has imported numba.
        case("draft-model", MANY, spec_tokens=3, draft=DRAFT, max_tokens=160),
        case("ngram", MANY, spec_tokens=3),
        case("ngram-cut-by-length", [COUNT, PLANETS], spec_tokens=3, max_tokens=11),
        case("fixed-while-guessing", [COUNT, FRANCE], spec_tokens=3, fixed=FIXED),
    ]
