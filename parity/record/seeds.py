"""Seeds of the process's random generators, and whose they are."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

from parity.record.rows import sourced

SEED = 0
# Added to torch's seed to mark its owner: generators on a CPU use its lower 32 bits only.
NOBODY = 1 << 32
SCRIPT = 1 << 33


def seed_everything(seed: int, owner: int = NOBODY) -> None:
    """Seed Python's generator, and those of numpy and torch where they are loaded."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(owner + seed)


def process_seed() -> dict[str, Any]:
    """The seed of the process's generator, and who gave it.

    "nobody": the recorder, or torch by chance.   "script": the recorder, in place of a seed that
    the script gave before the call.   "process": the observed code.
    """
    seed = sys.modules["torch"].initial_seed()
    if seed < NOBODY:
        return sourced(seed, "process")
    owner = "script" if seed >> 32 << 32 == SCRIPT else "nobody"
    return sourced(seed % NOBODY, owner)


def generator_states() -> list[bytes]:
    """The states of the generators that code samples from where it names none."""
    torch = sys.modules["torch"]
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    others: list[Any] = [random.getstate()]
    if numpy := sys.modules.get("numpy.random"):
        others.append(numpy.get_state())
    found = [bytes(state.numpy()) for state in states]
    found += map(pickle.dumps, others)
    return found
