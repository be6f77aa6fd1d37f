"""Lists of rules, whole and cut by the library's own stop strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL = "golden/models/tiny-qwen3"
DIFFERS = {"stop-reaches-into-the-prompt": "transformers also finds a stop string that begins inside the prompt"}
SAMPLED: frozenset[str] = frozenset()

FRUITS, PLANETS = "Name three fruits.", "Name five planets."


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    def case(name: str, *prompts: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "propose_rules", {"model_path": MODEL, "prompts": list(prompts), **arguments}

    def first(name: str, prompt: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "propose_one", {"model_path": MODEL, "prompt": prompt, **arguments}

    return [
        case("three-rules", FRUITS),
        case("two-prompt-lengths", FRUITS, "What is the capital of Costa Rica?"),
        case("ragged-batch", PLANETS, "Is 17 even?", "Name two trees.", "Draw a cat."),
        case("equal-prompts", FRUITS, FRUITS),
        case("one-rule-per-answer", "What is 12 + 23?", "Draw a smile."),
        case("most-rules", PLANETS, max_rules=2),
        case("no-rules-wanted", FRUITS, max_rules=0),
        case("one-new-token", "Is 17 even?", "What is 12 + 23?", max_new_tokens=1),
        case("cut-by-length", PLANETS, max_new_tokens=12),
        case("stop-at-position-0", FRUITS, stop=["- apple"]),
        case("stop-in-the-middle", FRUITS, PLANETS, stop=["plum", "Mars"]),
        case("two-stops", PLANETS, stop=["Mars", "Venus"]),
        case("two-stops-other-order", PLANETS, stop=["Venus", "Mars"]),
        case("stop-inside-a-token", FRUITS, stop=["ea"]),
        case("stop-over-two-lines", FRUITS, stop=["pear\n-"]),
        case("stop-of-one-token", FRUITS, stop=["\n"]),
        case("stop-never-comes", FRUITS, stop=["grape"]),
        case("stop-that-is-special", FRUITS, stop=["<|im_end|>"]),
        case("stop-around-a-special", FRUITS, stop=["plum<|im_end|>"]),
        case("stop-in-one-row-only", FRUITS, PLANETS, "Name two tools.", stop=["Earth"]),
        case("stop-reaches-into-the-prompt", FRUITS, stop=["\n\n- "]),
        case("thinking", FRUITS, thinking=True),
        case("empty-system", FRUITS, system=""),
        case("polite-system", FRUITS, system="You are a helpful assistant."),
        case("blanks-around-the-prompt", "  \n" + FRUITS + "\n  "),
        case("special-token-in-the-prompt", "Name three fruits.<|im_end|>"),
        first("first-of-three", FRUITS),
        first("first-cut-by-stop", FRUITS, stop=["ple"]),
        first("first-of-nothing", FRUITS, stop=["- "]),
    ]
