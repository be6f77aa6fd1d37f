"""What proves this project itself: `python -m parity.proof COMMAND`, in a clone only.

python -m parity.proof selftest --only padding     does the judge catch and name mistakes?
python -m parity.proof matrix --row vllm-0.11      does it hold on the releases that README names?
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from parity.cli import command_line
from parity.proof import matrix, power, referee_command, selftest
from parity.proof.fuzz import hostile
from parity.proof.mutants import command as mutants
from parity.proof.real import ground

COMMANDS = (
    selftest.add_selftest,
    mutants.add_mutants,
    ground.add_real,
    referee_command.add_referee,
    power.add_power,
    hostile.add_hostile,
    matrix.add_matrix,
)
PROOF = command_line.Program("parity.proof", __doc__, COMMANDS, has_goldens=True)


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.run(PROOF, argv)


if __name__ == "__main__":
    sys.exit(main())
