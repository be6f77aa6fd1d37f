"""Small repositories in memory, scanned."""

from __future__ import annotations

from textwrap import dedent

from parity.scan.files import Found, source_of
from parity.scan.origins import Fact
from parity.scan.scan import Scan, scan_files
from parity.scan.site import ScannedBlock

LOAD = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("m")
model = AutoModelForCausalLM.from_pretrained("m")
"""


def scan_texts(files: dict[str, str]) -> Scan:
    sources = [source_of(path, dedent(text).encode()) for path, text in files.items()]
    found = scan_files(Found(sources))
    assert found.failures == []
    return found


def scan_text(text: str) -> Scan:
    return scan_texts({"old.py": text})


def block_of(text: str) -> ScannedBlock:
    """The only block of a file."""
    [block] = scan_text(text).blocks
    return block


def facts_of(text: str) -> dict[str, Fact]:
    return block_of(text).facts


def fact_of_call(call: str, name: str) -> Fact:
    """A fact of a call of a model that is loaded above it.   call: statements."""
    return facts_of(LOAD + dedent(call))[name]


def shown(fact: Fact) -> str:
    """A fact and where it comes from: "0.7 <literal>", "0.7 <arg temperature>"."""
    return f"{fact.value} <{fact.source}>"
