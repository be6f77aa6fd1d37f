"""What differs between two checkpoints' files is said before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from parity.diff.files import file_notes
from parity.diff.path import parse_path

from ..conftest import TEXT

CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("generation_config.json", {"temperature": 0.6}, r"temperature 0.7 and 0.6\): without effect here"),
    ("generation_config.json", {"eos_token_id": [7]}, r"answers end at other ids: A at \[.*, B at \[.*7"),
    ("tokenizer_config.json", {"eos_token": "<x>"}, "another EOS token: A at .* B at '<x>'"),
    ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, r"tokenizer.json differs \(normalizer\)"),
]


@pytest.mark.parametrize(("file", "keys", "words"), CHANGES, ids=[words[:20] for _, _, words in CHANGES])
def test_file_notes_of_one_change_says_it_alone(file: str, keys: dict[str, Any], words: str, edited: Any) -> None:
    other = edited(TEXT, {file: keys})
    notes = file_notes(str(TEXT), str(other))
    assert len(notes) == 1
    with pytest.raises(ValueError, match=words):
        raise ValueError(notes[0])


def test_file_notes_of_one_checkpoint_or_hub_names_are_none(edited: Any) -> None:
    assert file_notes(str(TEXT), str(TEXT)) == file_notes(str(TEXT), str(edited(TEXT, {}))) == ()
    assert file_notes("org/a", "org/b") == ()


def test_parse_path_with_words_before_the_adapter_says_the_order() -> None:
    with pytest.raises(ValueError, match=r"Write 'hf\+adapter=D:bfloat16'"):
        parse_path("hf:bfloat16+adapter=D")
