"""Python imports this at start-up in every child of a recording: its folder stands on PYTHONPATH.

Starts the observer that PARITY_OBSERVE describes, then runs the sitecustomize that this one hides,
if there is one.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_here = Path(__file__).resolve().parent


def _start_observer() -> None:
    """Load parity from beside this file: its own folder need not be on the path, and is not put
    there."""
    folder = _here.parents[1]
    spec = importlib.util.spec_from_file_location(
        "parity", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules.setdefault("parity", importlib.util.module_from_spec(spec))
    from parity.record.process import observe_this_process

    observe_this_process()


def _run_hidden() -> None:
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != _here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "PARITY_OBSERVE" in os.environ:
    _start_observer()
_run_hidden()
