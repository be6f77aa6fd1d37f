"""A golden's checkpoint: where it is, and the plain libraries on it, which invariants are computed
with. The first of them: a golden's texts are what its ids decode to."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import brief
from parity.judge.row import Row, model_in
from parity.judge.stages.stage import Decoder, Tools
from parity.judge.values import leaves
from parity.record.taps.models import FOLDERS

# == Where it is ==


def model_of(case: Case, index: int = 0) -> Row:
    if not case.rows:
        return {}
    model: Row = model_in(case.rows[index])
    return model


def checkpoint_of(case: Case, index: int = 0) -> str | None:
    """Where the checkpoint of a case's row is."""
    return located(case, model_of(case, index).get("path"))


def located(case: Case, path: str | None) -> str | None:
    """Of a folder elsewhere a golden holds the name; an argument may hold it all, or the new code
    has loaded the one folder of this name."""
    if not path:
        return path
    for _, text in leaves(dict(case.arguments)):
        if text.endswith(f"/{path}") and Path(text).is_dir():
            return str(text)
    folders = FOLDERS.get(path, set())
    if len(folders) != 1 or Path(path).is_dir():
        return path
    return next(iter(folders))


# == The plain libraries on it ==

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
        from jinja2 import TemplateError

        try:
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses its input: {error}") from error
        return text

    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    return Tools(
        decode, encode, render, hashlib.sha256(template.encode()).hexdigest() if template else ""
    )


# == What in a golden cannot have been recorded, where no digest tells that it was edited ==

# What a decode was given -> whether a recorded text holds what the row's own ids decode to. It may
# hold more (the prompt, the pads) or less (what an engine had cut).
HOLDS: dict[Any, Callable[[str, str], bool]] = {
    "ended": lambda wanted, text: wanted == text,
    "new": lambda wanted, text: text.startswith(wanted),
    "part": lambda wanted, text: wanted.strip().startswith(text.strip()),
    "whole": lambda wanted, text: wanted in text,
}


def refuse_edited(golden: Case, store: Store, tools: Tools) -> None:
    """Raise GoldenError where a text of a golden is not what its ids decode to, or its environment
    cannot be read. Asked of the release that it was recorded with: another one may decode
    otherwise."""
    decode = tools.decode
    recorded_with = store.environment_of(golden).get("transformers")
    if golden.digest or decode is None or recorded_with != version("transformers"):
        return
    for number, row in enumerate(golden.rows):
        problem = text_problem(row, decode)
        if problem:
            fix = "restore it from version control, or record it again"
            raise GoldenError(f"row {number} of the golden was edited: {problem}; {fix}")


def text_problem(row: Mapping[str, Any], decode: Decoder) -> str:
    """What is wrong with the texts of a row; "" where nothing is, or nobody can tell."""
    if "decode" not in row:
        return ""
    for how in row.get("decodes") or [{**row["decode"], "text": row.get("text")}]:
        text = how.get("text")
        holds = HOLDS.get(how.get("ids"))
        if text is None or holds is None:
            continue
        skip = bool(how.get("skip_special_tokens"))
        wanted = decode(row["output_ids"], skip, bool(how.get("clean_up")))
        if not holds(wanted, text):
            return f"its ids decode to {brief(wanted)}, its text is {brief(text)}"
    return ""
