"""What proves this project itself: `python -m parity.proof COMMAND`, in a clone only.

python -m parity.proof selftest --only padding     does the judge catch and name mistakes?
python -m parity.proof matrix --row vllm-0.11      does it hold on the releases that README names?
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from parity.cli import command_line

COMMANDS = {
    "proof": {
        "selftest": "parity.proof.selftest:add_selftest",
        "mutants": "parity.proof.mutants.command:add_mutants",
        "real": "parity.proof.real.ground:add_real",
        "referee": "parity.proof.referee_command:add_referee",
        "power": "parity.proof.power:add_power",
        "hostile": "parity.proof.fuzz.hostile:add_hostile",
        "matrix": "parity.proof.matrix:add_matrix",
    }
}
PROOF = command_line.Program("parity.proof", __doc__, COMMANDS, has_goldens=True)


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.run(PROOF, argv)


if __name__ == "__main__":
    sys.exit(main())
