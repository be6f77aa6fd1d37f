"""What a process does with libraries that stay: imported without collections, and left out of them; vLLM's work on all
modules done once."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parity.environment.libraries import inspect_models_here, replace_kernels_once, settle


def test_kernels_are_replaced_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM does for each of its engines on a CPU, for all modules anew."""
    replaced: list[int] = []

    class Platform:
        @staticmethod
        def register_triton_kernel_overrides() -> None:
            replaced.append(1)

    platforms = SimpleNamespace(current_platform=Platform())
    monkeypatch.setitem(sys.modules, "vllm.platforms", cast(Any, platforms))
    for _ in range(2):
        replace_kernels_once()
        platforms.current_platform.register_triton_kernel_overrides()
    assert len(replaced) == 1


@pytest.mark.parametrize("cpu", [True, False])
def test_only_on_a_cpu_are_vllms_models_inspected_in_this_process(cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SimpleNamespace(_run_in_subprocess=lambda asks: "elsewhere")
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: cpu))
    monkeypatch.setitem(sys.modules, "vllm.model_executor.models.registry", cast(Any, registry))
    monkeypatch.setitem(sys.modules, "vllm.platforms", cast(Any, platforms))
    inspect_models_here()
    assert registry._run_in_subprocess(lambda: "here") == ("here" if cpu else "elsewhere")
    for missing in (SimpleNamespace(), None):  # another release, or no vLLM
        monkeypatch.setitem(sys.modules, "vllm.model_executor.models.registry", cast(Any, missing))
        inspect_models_here()


@pytest.mark.parametrize("is_on", [True, False])
def test_settle_imports_without_collections_and_leaves_them_as_they_were(
    is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks_gc.py").write_text("import gc\nWAS_ON = gc.isenabled()\n")
    (tmp_path / "breaks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    was_on = gc.isenabled()
    try:
        gc.enable() if is_on else gc.disable()
        settle("breaks", "asks_gc")
        assert gc.isenabled() == is_on and not sys.modules.pop("asks_gc").WAS_ON
    finally:
        gc.enable() if was_on else gc.disable()
