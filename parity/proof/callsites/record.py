"""Record the goldens of this project's call sites from their old code: `make goldens`.

Any other repository uses `python -m parity record`; this does the same for each site in turn, and says in sites.json
where the moved code is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from parity.goldens.store import Store
from parity.proof.callsites.drive import SITES, cases_of
from parity.record.observe import Site
from parity.record.recorder import record

# A small window and few cache blocks: loading takes a second instead of ten, and nothing here is longer.
LOAD: dict[str, Any] = {
    "vllm": {
        "max_model_len": 1024,
        "vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 64, "gpu_memory_utilization": 0.1},
    }
}

# Fewer places than a case has rows, so that rows join others.
FEW = {**LOAD["vllm"]["vllm_kwargs"], "max_num_seqs": 3, "gpu_memory_utilization": 0.3}  # several engines at once
# Rows join by a decoder on transformers alone.
LOADS: dict[str, Any] = {
    "selftest": {"vllm": {"decoder": None, "vllm_kwargs": FEW}},
    "service": {"vllm": {"vllm_kwargs": FEW}},
}

# In bfloat16 vLLM's kernels do not round on every CPU (parity.environment.kernels), which many unsure tokens show.
COARSE = ("adapters-bfloat16", "bfloat16-best-tokens", "scores-bfloat16", "then-bfloat16")

# Of one backend by nature: memory, gradients and equal samples are transformers' alone.
ONE_BACKEND = {
    name: ["hf"]
    for name in (
        "halved",
        "one-too-large",
        "gradient",
        "log-of-samples",
        "described",
    )
}
ONE_BACKEND |= {name: ["vllm"] for name in ("log-of-the-spare", "gradient-by-the-spare")}
CASES = {"selftest": {name: ["hf"] for name in COARSE}, "service": ONE_BACKEND}

# The rollout worker's old way is vLLM itself, with limits of its own.
BACKENDS = {"rollout_worker": ["vllm"]}


def record_site(name: str, store: Store, overwrite: bool, only: str | None = None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        functions = sorted({function for _, function, _ in cases_of(name, Path(folder))})
    module = f"parity.proof.callsites.{name}"
    done = record(
        [sys.executable, "-m", "parity.proof.callsites.drive", name, "old", *(["--only", only] if only else [])],
        store,
        sites=[Site(name, f"{module}.old:{function}") for function in functions],
        repeat=2,
        overwrite=overwrite,
    )
    backends = BACKENDS.get(name, ["hf", "vllm"])
    load = LOADS.get(name, LOAD) if "hf" in backends else {}
    store.set_site(
        name, moved={f"{module}.old": f"{module}.moved"}, backends=backends, load=load, cases=CASES.get(name)
    )
    counts = f"{len(done.written)} written, {len(done.same)} unchanged, {len(done.refused)} not replaced"
    print(f"{name}: {counts}", *done.seen.failures, sep="\n  ", file=sys.stderr)
    return done.exit_code


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity.proof.callsites.record", description=__doc__.splitlines()[0]
    )
    parser.add_argument("sites", nargs="*", metavar="SITE", help=f"default: {', '.join(SITES)}")
    parser.add_argument("--goldens", default="golden")
    parser.add_argument("--only", metavar="CASE", help="record this case of the site alone")
    parser.add_argument("--overwrite", action="store_true", help="replace goldens that differ")
    asked = parser.parse_args()
    return max(record_site(name, Store(asked.goldens), asked.overwrite, asked.only) for name in asked.sites or SITES)


if __name__ == "__main__":
    sys.exit(main())
