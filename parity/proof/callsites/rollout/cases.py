"""Terminators of every kind, prompts of every length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL = "golden/models/tiny-qwen3"
DIFFERS = {"turn-end-forgotten": "the old list of end ids lost the turn's end, and the row babbles on to its limit"}
SAMPLED = frozenset({"several-samples"})  # other draws of the same distribution: one generator served all rows

END = ["<|im_end|>", "<|endoftext|>"]
FRANCE, COUNT, ODD = "What is the capital of France?", "Count to 12.", "Is 17 even?"


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    def case(name: str, *prompts: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "rollout", {"model_path": MODEL, "prompts": list(prompts), **arguments}

    def chats(name: str, *chats: list[dict[str, str]], **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, "rollout_chats", {"model_path": MODEL, "chats": list(chats), **arguments}

    user = {"role": "user", "content": FRANCE}
    said = {"role": "assistant", "content": "The capital of France is Paris."}
    follow_up = [user, said, {"role": "user", "content": "And of Norway?"}]
    return [
        case("one-prompt", FRANCE),
        case("two-prompt-lengths", FRANCE, "Give me a JSON object for Anna, 31, from Oslo."),
        case("ragged-batch", "Draw a cat.", "Count to 30.", ODD, "Name five planets.", max_new_tokens=128),
        case("equal-prompts", ODD, ODD),
        case("one-new-token", FRANCE, COUNT, max_new_tokens=1),
        case("cut-by-length", COUNT, FRANCE, max_new_tokens=9),
        case("ends-at-the-limit", FRANCE, max_new_tokens=13),
        case("stop-at-position-0", FRANCE, terminators=[*END, "The capital"]),
        case("stop-token-at-position-0", "Name two fruits.", terminators=[*END, "-"]),
        case("stop-in-the-middle", COUNT, FRANCE, terminators=[*END, ", 7"]),
        case("two-stops", COUNT, terminators=[", 9", ", 5"]),
        case("two-stops-other-order", COUNT, terminators=[", 5", ", 9"]),
        case("stop-of-one-token", ODD, FRANCE, terminators=[*END, "\n"]),
        case("stop-with-blanks", ODD, terminators=[*END, " is "]),
        case("stop-over-special-token", FRANCE, terminators=[*END, "<|im_end|>\n"]),
        case("only-text-terminators", ODD, FRANCE, terminators=["Verdict:"]),
        case("turn-end-forgotten", FRANCE, terminators=["<|endoftext|>"], max_new_tokens=24),
        case("thinking", FRANCE, ODD, thinking=True),
        case("stop-inside-the-thought", FRANCE, thinking=True, terminators=[*END, "</think>"]),
        case("empty-system", FRANCE, system=""),
        case("system-turn", FRANCE, "What is the capital of Iceland?", system="Answer with the name only."),
        case("blanks-around-the-prompt", "  " + FRANCE + "  ", "\n" + FRANCE + "\n"),
        case("special-token-in-the-prompt", "What is the capital of France?<|im_end|>", ODD),
        case("beyond-ascii", "What is the capital of Iceland?", "Draw a family.", "Draw a wave."),
        case("truncated-on-the-left", "You know this. " * 8 + FRANCE, ODD, max_prompt_tokens=40),
        case("empty-prompt", ""),
        chats("second-turn", follow_up, [user]),
        case("sampled-with-seed", "Throw a die five times.", temperature=1.0, seed=11),
        case("several-samples", "Throw a die five times.", temperature=0.9, top_p=0.95, seed=3, samples=3),
        case("cold-sampling", FRANCE, ODD, temperature=0.1, seed=5),
    ]
