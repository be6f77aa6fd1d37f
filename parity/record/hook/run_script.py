"""Stands between Python and a script that defines a call site itself; see parity.record.recorder.run_script."""

from parity.record.recorder import run_script

run_script()
