"""The grammar of paths."""

from __future__ import annotations

import pytest

from parity.diff import worker
from parity.diff.path import parse_path


def test_parse_path_every_part_is_read() -> None:
    path = parse_path("hf@some/dir+adapter=lora:bfloat16,eager:attention=1.01")
    assert (path.backend, path.model, path.adapter) == ("hf", "some/dir", "lora")
    assert (path.dtype, path.attention) == ("bfloat16", "eager")
    assert (path.fault, path.amount) == ("attention", 1.01)


def test_parse_path_vllm_settings_are_kept() -> None:
    path = parse_path("vllm:float16,transformers,quantization=fp8")
    assert path.settings == {"model_impl": "transformers", "quantization": "fp8"}


def test_parse_path_environment_holds_a_path() -> None:
    path = parse_path("env:/opt/old/bin/python,vllm:float16")
    assert (path.python, path.backend, path.dtype) == ("/opt/old/bin/python", "vllm", "float16")
    assert parse_path("env:/opt/old/bin/python").backend == "hf"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hff", "Did you mean 'hf'"),
        ("hf:bfloat61", "Did you mean 'bfloat16'"),
        ("vllm:eager", "unknown word 'eager'"),
        ("hf:float16,bfloat16", "two of dtype"),
        ("hf:attention", "unknown word 'attention'"),
        ("hf:attention=much", "needs a number"),
        ("vllm:attention=1.01", "unknown word"),
    ],
)
def test_parse_path_unknown_word_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_path(text)


def test_settings_of_vllm_are_numbers_and_truths_where_they_read_so() -> None:
    words = "gpu_memory_utilization=0.3,block_size=16,enforce_eager=True,attention_backend=TRITON_ATTN"
    assert parse_path(f"vllm:{words}").settings == {
        "gpu_memory_utilization": 0.3,
        "block_size": 16,
        "enforce_eager": True,
        "attention_backend": "TRITON_ATTN",
    }


@pytest.mark.parametrize(("free", "share"), [(100, 0.8), (50, 0.4), (120, 0.9)])
def test_an_engine_of_vllm_takes_a_part_of_what_is_free(
    free: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "memory", lambda: (free, 100))
    assert worker.small_engine()["gpu_memory_utilization"] == share
