"""The plain libraries on a golden's checkpoint, which invariants are computed with."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from parity.goldens.store import Case
from parity.judge.numerics.weights import checkpoint_of
from parity.judge.stages.stage import Tools

MOST_DECODED = 4096  # decoded texts that are kept: a case has some ways to decode each of its rows
_tokenizers: dict[str, Any] = {}


def tools_of(old: Case) -> Tools:
    """The golden's tokenizer and template as plain transformers has them; nothing where its
    checkpoint is not here."""
    path = checkpoint_of(old)
    if path is None:
        return Tools()
    if path not in _tokenizers:
        import transformers

        _tokenizers[path] = None
        with contextlib.suppress(OSError, ValueError):  # neither here nor downloaded
            _tokenizers[path] = transformers.AutoTokenizer.from_pretrained(
                path, local_files_only=True
            )
    if (tokenizer := _tokenizers[path]) is None:
        return Tools()

    @functools.lru_cache(MOST_DECODED)
    def decode_once(ids: tuple[int, ...], skip: bool, clean: bool) -> str:
        text: str = tokenizer.decode(
            list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=clean
        )
        return text

    def decode(ids: Sequence[int], skip: bool, clean: bool) -> str:
        return decode_once(tuple(ids), skip, clean)

    def encode(text: str, special: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    def render(messages: Any, arguments: Mapping[str, Any]) -> str:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        return text

    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    return Tools(
        decode, encode, render, hashlib.sha256(template.encode()).hexdigest() if template else ""
    )
