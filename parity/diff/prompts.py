"""What both paths are asked: our own small set, or a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Prompt = Mapping[str, Any]  # {"messages": [...]} or {"prompt": "..."}

QUESTIONS = (
    "Why is the sky blue?",
    "Tell me a short story about a lighthouse keeper who finds a message in a bottle.",
    "List five things to take on a hike.",
    "Explain to a child how a boat made of steel can float.",
    "Write a polite letter to a neighbour about a loud dog.",
    "Summarise the water cycle in three sentences.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "What does this do?\n\nfor (int i = 0; i < n; ++i)\n    sum += a[i] * b[i];",
    "Write an SQL query for the three customers with the highest total of orders.",
    'Give me a JSON object with the fields "name", "age" and "city".',
    "What is 17 + 25? And 125 * 48?",
    "Continue: 1, 1, 2, 3, 5, 8, 13,",
    "A train leaves at 09:45 and takes 2 hours 37 minutes. When does it arrive?",
    "Convert 3.75 km to miles, to three digits.",
    "Translate into French: The weather is beautiful today.",
    "¿Cuál es la capital del Perú y cuántos habitantes tiene?",
    "Was ist der Unterschied zwischen einem Fluss und einem Kanal?",
    "Почему листья желтеют осенью?",
    "日本で一番高い山は何ですか。",
    "请用一句话介绍长城。",
    "ما هي عاصمة مصر؟",
    "हिमालय कहाँ है?",
    "Write a limerick about a cat that is afraid of mice 🐭.",
    'Repeat exactly: \t<a href="x">  two  spaces </a> — naïve café №7',
)


def own_prompts() -> list[Prompt]:
    return [{"messages": [{"role": "user", "content": text}]} for text in QUESTIONS]


def read_prompts(file: Path) -> list[Prompt]:
    """Raises ValueError for a line that is neither a chat nor a text."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [read_line(f"{file}:{k}", line) for k, line in enumerate(lines, 1) if line.strip()]


def read_line(where: str, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: no JSON ({error}). Write one object a line.") from None
    if not isinstance(value, dict) or set(value) not in ({"messages"}, {"prompt"}):
        raise ValueError(f'{where}: expected {{"messages": [...]}} or {{"prompt": "..."}}.')
    return value
