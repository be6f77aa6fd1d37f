"""Companions that are lent to a copy of gen_engine.py which stands alone."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.environment.companion_loader import Lender
from parity.tests.conftest import ROOT, SMALL, TEXT, chat


@pytest.fixture(params=["bot.engine", "bot.gen_engine"])
def copy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A vendored copy, alone in a package of another repository."""
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot/__init__.py").touch()
    shutil.copy(ROOT / "gen_engine.py", tmp_path / f"{request.param.replace('.', '/')}.py")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield importlib.import_module(request.param)
    for name in set(sys.modules) - before:
        if name.startswith("bot"):
            del sys.modules[name]


def test_a_copy_scores_and_forces_with_what_it_is_lent(copy: Any, backend: Any) -> None:
    import gen_engine

    pair = (chat("Count to 3."), " 1, 2")
    hooks = {"logits_hooks": True} if backend == "vllm" else {}
    settings = {"max_model_len": 512, **SMALL[backend], **hooks}
    ours = gen_engine.load(TEXT, backend=backend, **settings)
    with ours as engine:
        [expected] = engine.score_batch([pair], logits=True)
    lender = Lender()
    lender.serve(copy)
    if hooks:
        with pytest.raises(copy.BackendMissing, match="vllm_hooks.py, which is not beside"):
            copy.load(TEXT, backend=backend, **settings)
    lender.active = True
    with copy.load(TEXT, backend=backend, **settings) as engine:
        [found] = engine.score_batch([pair], logits=True)
        assert found.logprobs == expected.logprobs
        assert (found.logits == expected.logits).all()
        assert isinstance(found, copy.ScoreResult)
        [forced] = engine.generate_text_batch([chat("Hi")], {"replay": [[5, 6]], "max_new_tokens": 2})
        assert forced.token_ids == (5, 6)
        lender.active = False
        with pytest.raises(
            copy.BackendMissing, match=r"score_batch needs scoring.py, which is not beside gen_engine.py"
        ):
            engine.score_batch([pair])
    lender.end()
    assert type(copy.companions) is copy.Companions


def test_a_copy_of_another_version_has_to_bring_its_own(copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "__version__", "0.1.9")
    lender = Lender()
    lender.serve(copy)
    lender.active = True
    with pytest.raises(copy.BackendMissing):
        _ = copy.companions.scoring


def test_a_copy_of_a_release_without_companions_is_left_alone(copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(copy, "companions")
    lender = Lender()
    lender.serve(copy)
    lender.end()
    assert not hasattr(copy, "companions")
