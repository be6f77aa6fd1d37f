"""Texts of our own, in several languages and forms: what paths are asked and what they read where
nobody gives other ones (`parity diff`, and sites whose goldens are too small)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from parity.judge.numerics.reading import TokenRow

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

TOKENS = 96  # of a row: as many as short answers have with their prompts
ROWS = 96  # about 8,000 tokens


def own_rows(tokenizer: Any, window: float) -> Iterator[TokenRow]:
    """Rows of at most TOKENS ids, all read: each begins with another question, and goes on with the
    others in an order of its own. The same ones for a tokenizer each time, and chosen by no path: a
    greedy token lies high by the rounding of the path that chose it."""
    seen = set()
    for number in range(ROWS):
        first = QUESTIONS[number % len(QUESTIONS)]
        others = [text for text in QUESTIONS if text != first]
        random.Random(number).shuffle(others)
        ids = tuple(tokenizer("\n\n".join([first, *others]))["input_ids"])
        ids = ids[: int(min(TOKENS, window))]
        if len(ids) > 1 and ids not in seen:
            seen.add(ids)
            yield TokenRow(ids, 1, answer=len(ids))
