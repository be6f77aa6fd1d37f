"""The commands for developers of this project: parity dev ..."""

from __future__ import annotations

from parity.prove import campaign, frozen, matrix, mutants, power, referee_command, selftest
from parity.prove.real import ground

COMMANDS = (
    selftest.add_selftest,
    mutants.add_mutants,
    frozen.add_frozen,
    ground.add_real,
    referee_command.add_referee,
    power.add_power,
    campaign.add_campaign,
    matrix.add_matrix,
)
