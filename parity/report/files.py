"""Writes the reports of a check that were asked for."""

from __future__ import annotations

import os
from pathlib import Path

from parity.goldens.folder import write_whole
from parity.goldens.store import Store
from parity.goldens.verdict import Check
from parity.report.data import json_text
from parity.report.junit import junit_xml
from parity.report.markdown import markdown_summary
from parity.report.page import html_page


def write_markdown(path: Path, text: str) -> None:
    """$GITHUB_STEP_SUMMARY belongs to all of a step: it is added to. Any other file is written
    anew."""
    if os.environ.get("GITHUB_STEP_SUMMARY") == str(path):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        write_whole(path, text.encode())


def write_reports(
    check: Check,
    *,
    junit: Path | None = None,
    markdown: Path | None = None,
    json_path: Path | None = None,
    html: Path | None = None,
    store: Store | None = None,
) -> None:
    """Write the reports that were asked for. store: the goldens, for the pictures on the page."""
    if junit is not None:
        write_whole(Path(junit), junit_xml(check).encode())
    if markdown is not None:
        write_markdown(Path(markdown), markdown_summary(check))
    if json_path is not None:
        write_whole(Path(json_path), json_text(check).encode())
    if html is not None:
        write_whole(Path(html), html_page(check, store).encode())
