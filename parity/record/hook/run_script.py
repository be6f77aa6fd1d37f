"""Stands between Python and a script that defines a call site itself; see process.run_script."""

from parity.record.process import run_script

run_script()
