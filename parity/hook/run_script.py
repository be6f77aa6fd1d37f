"""Stands between Python and a script that defines a call site itself; see parity.record.run_script."""

from parity.record import run_script

run_script()
