"""Kernels that are known to be biased: whether they are in use here, and who says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from parity.cli import shell
from parity.environment import kernels


def test_known_biases_are_of_bfloat16_on_vllm_alone() -> None:
    assert kernels.known_biases("hf", "bfloat16") == ()
    assert kernels.known_biases("vllm", "float16") == ()


def test_attends_with_amx_is_what_vllm_chooses() -> None:
    pytest.importorskip("vllm")
    assert kernels.attends_with_amx() == (kernels.is_on_cpu() and torch.cpu._is_amx_tile_supported())


@pytest.mark.parametrize("is_here", [True, False])
def test_known_biases_lists_those_that_are_here(is_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    one = dataclasses.replace(kernels.BIASES[0], is_here=lambda: is_here)
    monkeypatch.setattr(kernels, "BIASES", (one,))
    assert kernels.known_biases("vllm", "bfloat16") == ((str(one),) if is_here else ())


@pytest.mark.parametrize(
    ("attention", "config", "is_said"),
    [
        ("sdpa", {"attn_logit_softcapping": 50.0}, True),
        (None, {"text_config": {"attn_logit_softcapping": 50.0}}, True),
        ("eager", {"attn_logit_softcapping": 50.0}, False),
        ("sdpa", {"attn_logit_softcapping": None}, False),
    ],
)
def test_old_path_defects_are_those_of_its_attention(
    attention: str | None, config: object, is_said: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = kernels.old_path_defects(str(tmp_path), attention)
    assert ("attn_logit_softcapping" in "".join(said)) == is_said
    assert kernels.old_path_defects(str(tmp_path / "gone"), attention) == ()


@pytest.mark.usefixtures("forked_python")
def test_doctor_says_which_are_in_use() -> None:
    pytest.importorskip("vllm")
    said = shell.try_backend("vllm", None).libraries["vllm"]
    for bias in kernels.BIASES:
        assert (bias.brief in said) == bias.is_here()
