"""What tells a checkpoint from another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from parity.record.taps.models import config_on_disk, tensors_on_disk, weights_on_disk


def checkpoint(folder: Path, tensors: Mapping[str, Any], name: str = "model.safetensors") -> str:
    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / name, metadata={"format": "pt"})
    return str(folder)


@pytest.fixture
def tensors() -> dict[str, Any]:
    made = torch.Generator().manual_seed(0)
    return {
        f"layers.{k}.weight": torch.randn(300, 301, generator=made).bfloat16() for k in range(3)
    }


def test_tensors_on_disk_an_adapter_merged_into_a_tensor_in_the_middle_is_seen(
    tmp_path: Path, tensors: dict[str, Any]
) -> None:
    old = checkpoint(tmp_path / "old", tensors)
    left, right = torch.randn(300, 1), torch.randn(1, 301)
    merged = tensors["layers.1.weight"] + (left @ right).bfloat16() * 0.1
    new = checkpoint(tmp_path / "new", {**tensors, "layers.1.weight": merged})
    assert weights_on_disk(old) == weights_on_disk(new), "the ends of the files are equal"
    assert tensors_on_disk(old) != tensors_on_disk(new)


def test_tensors_on_disk_are_the_same_in_whichever_files(
    tmp_path: Path, tensors: dict[str, Any]
) -> None:
    old = checkpoint(tmp_path / "old", tensors)
    for number, (name, tensor) in enumerate(tensors.items()):
        new = checkpoint(tmp_path / "new", {name: tensor}, f"model-{number}.safetensors")
    assert tensors_on_disk(old) == tensors_on_disk(new)


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (7, 9)])
def test_tensors_on_disk_a_tensor_of_any_size_is_read_to_its_end(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    zeros = torch.zeros(shape, dtype=torch.int8)
    old = checkpoint(tmp_path / "old", {"a": zeros, "b": torch.ones(3)})
    changed = zeros.clone()
    changed.flatten()[-1:] = 1
    new = checkpoint(tmp_path / "new", {"a": changed, "b": torch.ones(3)})
    assert (tensors_on_disk(old) == tensors_on_disk(new)) is (zeros.numel() == 0)


def test_tensors_on_disk_of_what_is_no_checkpoint_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no such file")
    assert tensors_on_disk(str(tmp_path)) is None
    assert tensors_on_disk("acme/a-hub-name") is None


@pytest.mark.parametrize(
    ("said", "is_same"),
    [
        ({"rope_theta": 100.0, "transformers_version": "5.24.0", "dtype": "float32"}, True),
        ({"rope_theta": 10000.0}, False),
        ({"rope_theta": 100.0, "rms_norm_eps": 0.01}, False),
        ({"rope_theta": 100.0, "pad_token_id": 0, "architectures": ["M"]}, True),
    ],
)
def test_config_on_disk_is_what_the_file_says_of_the_model(
    tmp_path: Path, said: dict[str, Any], is_same: bool
) -> None:
    found = []
    for name, config in (("old", {"rope_theta": 100.0, "torch_dtype": "bfloat16"}), ("new", said)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        found.append(config_on_disk(str(tmp_path / name)))
    assert (found[0] == found[1]) is is_same
    assert config_on_disk(str(tmp_path / "gone")) is None


@pytest.mark.parametrize("text", ["[1, 2]", "{ // a comment"])
def test_config_on_disk_of_no_checkpoint_is_none(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was made of a config has no path, and the project may have a config.json."""
    (tmp_path / "config.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert config_on_disk("") is None
    assert config_on_disk(str(tmp_path)) is None
