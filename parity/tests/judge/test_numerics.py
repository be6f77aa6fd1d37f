"""The gate in bfloat16, for real: a random Qwen3 moved from transformers to gen_engine; clean, and with faults.

Old code is recorded as a script by `parity record`, and checked in this process. Faults are planted in the checkpoint
that the moved code loads, where the fingerprint of its files (their ends) does not see them: they are undeclared.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parity.__main__ import main
from parity.diff import plants
from parity.environment.kernels import cuts_bfloat16, known_biases
from parity.goldens.store import Store
from parity.proof import checkpoints
from parity.record.taps import models as recorded

from ..conftest import ROOT, forks_for_python

OLD = """
import random

import torch
import transformers

NAME = "models/flat"
draw = random.Random(3)
CALLS = [[[draw.randrange(540) for _ in range(draw.randrange(8, 24))] for _ in range(4)] for _ in range(6)]


def load():
    model = transformers.AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.bfloat16)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(NAME)


def answer(model, tokenizer, prompts):
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    made = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=64, min_new_tokens=64, do_sample=False)
    return [tokenizer.decode(row[longest:], skip_special_tokens=True) for row in made]


def ask(prompts):
    global loaded
    loaded = globals().get("loaded") or load()
    return answer(*loaded, prompts)


if __name__ == "__main__":
    for prompts in CALLS:
        print(len(ask(prompts)))
"""
MOVED = """
import functools
from pathlib import Path

import gen_engine


@functools.lru_cache
def engine():
    model, dtype = Path("flat.txt").read_text().split()
    return gen_engine.load(model, dtype=dtype, progress=False)


def ask(prompts):
    options = {"max_new_tokens": 64, "min_new_tokens": 64}
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [result.text for result in engine().generate_text_batch(requests, options)]
"""
PLAIN = OLD.replace("dtype=torch.bfloat16", 'dtype=torch.bfloat16, attn_implementation="eager"')
LOAD = {"max_model_len": 256, "vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 32, "enforce_eager": True}}
SITE = "flat_old:ask"
# Half of the 25 M model's depth, and a quarter of its width: what is judged is as many tokens, in a tenth of the time.
SMALL = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
         "num_key_value_heads": 2}  # fmt: skip

Checked = Callable[..., tuple[int, dict[str, Any], str]]


def untied(folder: Path) -> Path:
    """A checkpoint whose file begins with more header than a fingerprint reads, and whose head is its own tensor."""
    from safetensors.torch import load_file, save_file

    shape = checkpoints.Shape("qwen3", "Qwen3Config", {"tie_word_embeddings": False, **SMALL})
    checkpoints.make(shape, "bfloat16", folder)
    file = folder / "model.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt", "filler": "x" * (1 << 17)})
    return folder


def header_bytes(content: bytes) -> int:
    """How long a safetensors file is before its tensors: a length in eight bytes, and that many."""
    return 8 + int.from_bytes(content[:8], "little")


def changed_unseen(kept: Any, made: Any) -> Any:
    """A changed tensor of the old one's type, with what a fingerprint reads as it was."""
    tensor = made.to(kept.dtype).clone()
    recorded.sampled(tensor)[:] = recorded.sampled(kept)
    return tensor


def rewritten(source: Path, target: Path, change: Callable[[str, Any], Any]) -> Path:
    from safetensors.torch import load_file, save

    shutil.copytree(source, target)
    file = target / "model.safetensors"
    tensors = {name: changed_unseen(value, change(name, value)) for name, value in load_file(file).items()}
    made, kept = save(tensors, metadata={"format": "pt", "filler": "x" * (1 << 17)}), file.read_bytes()
    # The header of before: its keys come in another order each time.
    file.write_bytes(kept[: header_bytes(kept)] + made[header_bytes(made) :])
    for fingerprint in (recorded.weights_on_disk, recorded.tensors_on_disk):
        fingerprint.cache_clear()
        assert fingerprint(str(target)) == fingerprint(str(source)), "the fault is undeclared"
    return target


def rounded(name: str, value: Any) -> Any:
    """The last 64 KiB of the file are the last layer's v_proj."""
    is_matrix = "layers." in name and value.dim() == 2 and not name.endswith("3.self_attn.v_proj.weight")
    return plants.fp8(value.float()) if is_matrix else value


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository of somebody else with goldens of its old code."""
    folder = tmp_path_factory.mktemp("flat")
    for name, text in (("flat_old.py", OLD), ("flat_moved.py", MOVED), ("flat_plain.py", PLAIN)):
        (folder / name).write_text(text)
    untied(folder / "models/flat")
    with forks_for_python(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", f"{ROOT}:{folder}")
        patch.setattr(sys, "path", [str(folder), *sys.path])
        code = main(
            [
                "record",
                "--site",
                f"flat={SITE}",
                "--",
                "python",
                "-c",
                f"import {SITE[:8]} as o; [o.ask(c) for c in o.CALLS]",
            ]
        )
        assert code == 4 and len(Store("golden").names("flat")) == 6
        settings = {"flat": {"functions": [SITE], "moved": {"flat_old": "flat_moved"}, "load": {"vllm": LOAD}}}
        Path("golden/sites.json").write_text(json.dumps(settings))
        yield folder
    for name in [name for name in sys.modules if name.startswith("flat_")]:
        del sys.modules[name]


@pytest.fixture
def checked(place: Path, capfd: pytest.CaptureFixture[str]) -> Checked:
    """`checked(backend, model=…, dtype=…)`: exit code, JSON report, console."""

    def run(
        *words: str, asked: str = "flat", model: str = "models/flat", dtype: str = "bfloat16"
    ) -> tuple[int, dict[str, Any], str]:
        Path("flat.txt").write_text(f"{model} {dtype}")  # a variable would start another process each time
        capfd.readouterr()
        code = main(["check", asked, *words, "--json", "report.json", "--html", "parity.html"])
        return code, json.loads(Path("report.json").read_text()), capfd.readouterr().out

    return run


def causes(said: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    return {(o["verdict"], o["cause"]["name"], o["cause"]["certainty"]) for o in said["outcomes"] if o["fails"]}


@pytest.mark.parametrize("backend", ["vllm", "hf"])
def test_a_faithful_move_in_bfloat16_passes_with_near_ties(backend: str, checked: Checked) -> None:
    code, said, told = checked("--backend", backend)
    if backend == "vllm" and cuts_bfloat16():  # nothing is wrong but the machine, and that is said
        assert code == 1 and causes(said) == {("DRIFT", "numeric.shift", "confirmed")}, told
        [cut, *_] = known_biases("vllm", "bfloat16")
        assert all(cut in outcome["cause"]["sentence"] for outcome in said["outcomes"])
        return
    assert code == 0, told
    if backend == "hf":
        assert said["numerics"] == [], "all ids are equal here: nothing is read"
    else:
        [site] = said["numerics"]
        assert site["outcome"] == "holds" and "would have been seen" in site["said"]
        assert said["counts"].get("NEAR-TIE", 0) >= 3 and "holds: " in told
        assert len(site["picture"]["gaps"]) >= 3 and max(site["picture"]["gaps"]) < site["picture"]["allowed"]


def test_an_undeclared_fault_in_the_moved_path_is_a_shift(checked: Checked, place: Path) -> None:
    rewritten(place / "models/flat", place / "models/rounded", rounded)
    code, said, told = checked("--backend", "vllm", model="models/rounded")
    assert code == 1 and causes(said) == {("DRIFT", "numeric.shift", "confirmed")}, told
    assert re.search(r"flat vllm, numerics of models/flat in bfloat16: shifted: ", told)


def test_another_dtype_is_named(checked: Checked) -> None:
    first = Store("golden").names("flat")[0]
    code, said, told = checked("--backend", "hf", asked=f"flat/{first}", dtype="float16")
    assert code == 1 and len(said["outcomes"]) == 1 and {cause for _, cause, _ in causes(said)} == {"model.dtype"}, told
    assert {sure for verdict, _, sure in causes(said)} == {"confirmed"}, told


def test_a_site_whose_ids_are_equal_is_measured_where_that_is_asked_for(checked: Checked) -> None:
    code, said, told = checked("--backend", "hf", "--numerics")
    assert code == 0 and [n["outcome"] for n in said["numerics"]] == ["holds"], told


def test_moved_code_without_gen_engine_is_read_by_plain_transformers(checked: Checked) -> None:
    code, said, told = checked("--backend", "hf", "--moved", "flat_old=flat_plain", "--lenient")
    [site] = said["numerics"]
    assert site["outcome"] == "holds", told
    assert code == 1 and {name for _, name, _ in causes(said)} == {"model.attention"}, "declared, so it is named"
