# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Special tokens in messages, refused or escaped: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="escaping"`, and write

    engine.generate_text_batch([{"messages": chat, "chat": {"special_tokens": "escape"}}])

gen_engine finds this file beside itself. Without it, whoever writes <|im_end|> in a message ends
the turn there.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["encode_pieces", "mark_special_tokens", "marked", "new_mark"]

NOTHING = "(?!)"  # a pattern that matches nowhere

# Between two texts of a message, which a template may write as one text.
BETWEEN_TEXTS = r'(?:"[^{}]*}, {[^{}]*"text": ")*'


def new_mark() -> str:
    """A text that no message contains: random, so that nobody can write it."""
    return secrets.token_hex(8)


def pattern_of(token: str) -> str:
    """What matches a special token in messages that are written as JSON."""
    characters = [json.dumps(character, ensure_ascii=False)[1:-1] for character in token]
    return BETWEEN_TEXTS.join(map(re.escape, characters))


def mark_special_tokens(messages: Sequence[Any], owner: Any, mark: str) -> Any:
    """Messages with a mark after the first character of each special token in them.

    owner: a tokenizer or processor.   mark: from `new_mark`; "" raises RequestError in place of
    marking."""
    tokens = getattr(owner, "tokenizer", owner).added_tokens_decoder.values()
    patterns = [pattern_of(token.content) for token in tokens if token.special]
    first_character = re.compile(f"(?={'|'.join(patterns) or NOTHING}).")
    written = json.dumps(messages, ensure_ascii=False)
    found = first_character.search(written)
    if found and not mark:
        shown = ge.short_repr(written[found.start() :][:30])
        problem = f"the messages hold a special token, at {shown}"
        fix = "take it out, or set chat.special_tokens to 'escape' or 'keep'"
        raise ge.RequestError(problem, fix=fix)
    return json.loads(first_character.sub(lambda match: match[0] + mark, written))


def marked(messages: Sequence[Any], owner: Any, way: str) -> tuple[Any, str]:
    """(messages with marks, the mark) for `special_tokens`, which is "escape" or "refuse"."""
    mark = new_mark() if way == "escape" else ""
    return mark_special_tokens(messages, owner, mark), mark


def encode_pieces(checkpoint: ge.Checkpoint, pieces: Sequence[str]) -> tuple[int, ...]:
    """Token ids of the pieces of one text, none of which reaches over the end of a piece.

    All but the first are tokenized behind an end of line, which is taken off again: many tokenizers
    add a space to the beginning of a text."""
    ids = ge.encode(checkpoint, pieces[0], False)
    if len(pieces) == 1:
        return ids
    line_end = ge.encode(checkpoint, "\n", False)
    for piece in pieces[1:]:
        behind = ge.encode(checkpoint, f"\n{piece}", False)
        if not line_end or behind[: len(line_end)] != line_end:
            fix = "set chat.special_tokens to 'refuse'"
            raise ge.RequestError("this tokenizer cannot escape special tokens", fix=fix)
        ids += behind[len(line_end) :]
    return ids
