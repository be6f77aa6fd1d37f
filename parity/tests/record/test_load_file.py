"""A script whose import fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.record.calls import load_function


def test_load_function_of_a_script_that_does_not_import_fails_alike_each_time(tmp_path: Path) -> None:
    """The second time half of a module was found, and said to have no such function."""
    script = tmp_path / "speak.py"
    script.write_text("import nothing_of_this_name\n\ndef loud(text): return text\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
            load_function(f"{script}:loud")
