"""The digest of a recorded function's source: what it covers, and what it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parity.record.source import source_digest

FILES = {
    "acme/__init__.py": "",
    "acme/ask.py": """
import json
from . import prompts
from acme.texts import clean as tidy
from acme.stars import *

LIMITS = {"most": 16}
LIMITS["least"] = 1
UNUSED = 1


class Asker:
    mark = "!"

    def ask(self, text):
        return tidy(json.dumps(text)) + prompts.system() + star()


def ask(text, most=LIMITS):
    from acme.lazy import later

    return later(f"{text} {'a'}"), most


if __name__ == "__main__":
    ask("a")
""",
    "acme/prompts.py": 'def system():\n    return """Be\n\n  brief."""\n\n\ndef other():\n    return 1\n',
    "acme/texts.py": "def clean(text):\n    return text.strip()\n",
    "acme/stars.py": "def star():\n    return 1\n",
    "acme/lazy.py": "import acme.texts\n\n\ndef later(text):\n    return acme.texts.clean(text)\n",
}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.mark.parametrize("function", ["acme.ask:ask", "acme/ask.py:ask"])
@pytest.mark.parametrize(
    ("name", "before", "after", "is_same"),
    [
        ("acme/ask.py", "import later", "import  later  # now", True),
        ("acme/ask.py", "class Asker:", "# a class\n\n\nclass Asker:", True),
        ("acme/ask.py", "UNUSED = 1", "UNUSED = 2", True),
        ("acme/ask.py", 'ask("a")\n', 'ask("b")\n', True),
        ("acme/ask.py", 'mark = "!"', 'mark = "?"', True),
        ("acme/prompts.py", "Be", "Do be", True),
        ("acme/ask.py", '"most": 16', '"most": 64', False),
        ("acme/ask.py", '["least"] = 1', '["least"] = 2', False),
        ("acme/ask.py", "{text} {'a'}", "{text}  {'a'}", False),
        ("acme/ask.py", "    return later", "    if most:\n        return later", False),
        ("acme/lazy.py", "acme.texts.clean(text)", "acme.texts.clean(text)[:9]", False),
        ("acme/texts.py", "strip()", "rstrip()", False),
    ],
)
def test_source_digest_changes_with_what_the_function_uses_and_nothing_else(
    function: str, name: str, before: str, after: str, is_same: bool, acme: Path
) -> None:
    was = source_digest(function)
    text = (acme / name).read_text()
    assert was and before in text
    (acme / name).write_text(text.replace(before, after))
    assert (source_digest(function) == was) == is_same


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("acme/ask.py", 'mark = "!"', 'mark = "?"'),
        ("acme/prompts.py", "Be\n\n", "Be\n"),
        ("acme/stars.py", "return 1", "return 2"),
    ],
    ids=["another member", "a blank line in a text", "a star import"],
)
def test_source_digest_of_a_method_covers_its_class(name: str, before: str, after: str, acme: Path) -> None:
    was = source_digest("acme.ask:Asker.ask")
    text = (acme / name).read_text()
    assert was and before in text
    (acme / name).write_text(text.replace(before, after))
    assert source_digest("acme.ask:Asker.ask") != was


@pytest.mark.parametrize("function", ["acme.ask:nothing", "acme.nowhere:ask", "json:dumps", "", "acme/none.py:ask"])
def test_source_digest_of_what_is_no_function_of_the_user_is_empty(function: str, acme: Path) -> None:
    assert source_digest(function) == ""


def test_source_digest_of_a_file_that_cannot_be_parsed_is_empty(acme: Path) -> None:
    (acme / "acme/texts.py").write_text("def clean(:\n")
    assert source_digest("acme.ask:ask") == ""
