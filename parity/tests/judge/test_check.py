"""Checking for real, on transformers: the life of goldens, what is written (nothing), causes with their proof."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gen_engine
from gen_engine import UnsupportedError
from parity.__main__ import main
from parity.goldens.store import Case, Store, coded, dump
from parity.judge.case import Judge
from parity.judge.check import check_sites
from parity.judge.replay import Engines, Replay
from parity.proof.selftest import NAMED_RIGHT, Score, run_site_mutation
from parity.proof.site_mutations import SITE_MUTATIONS
from parity.record.observe import Observer
from parity.tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("forked_python")

CASES = ("rollout/one-prompt", "rollout/two-prompt-lengths", "runner/two-stops")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A few of the project's goldens, to be spoiled."""
    monkeypatch.chdir(ROOT)  # goldens name their checkpoints from here
    whole, few = Store(ROOT / "golden"), Store(tmp_path / "golden")
    for name in CASES:
        site, _, case = name.partition("/")
        few.write(whole.read(site, case))
        few.set_site(site, **whole.settings()[site])
    shutil.copytree(whole.root / "environments", few.root / "environments")
    return few


def content(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def verdicts(store: Store, **how: Any) -> dict[str, str]:
    return {o.label: o.verdict for o in check_sites(store, backends=("hf",), **how).outcomes}


def test_the_committed_goldens_are_as_they_would_be_written() -> None:
    store = Store(ROOT / "golden")
    for site in store.sites():
        for name in store.names(site):
            text = store.path(site, name).read_text(encoding="utf-8")
            case = store.read(site, name)
            said = case.to_json()
            if case.digest:
                said["digest"] = case.digest
            assert text == dump(coded(said)) + "\n", f"{site}/{name} was edited by hand"
    assert store.unused(store.read_all(store.sites())[0]) == []


def test_a_check_passes_and_writes_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(store.root)
    assert main(["--goldens", str(store.root), "check", "--backend", "hf"]) == 0
    assert content(store.root) == before
    assert "PASSED (exit 0" in capsys.readouterr().out


def test_what_is_not_there_fails(store: Store) -> None:
    shutil.rmtree(store.root / "runner")
    check = check_sites(store, backends=("hf",))
    assert [o.label for o in check.outcomes if o.verdict == "MISSING"] == ["runner/*"]
    assert check.exit_code == 4


def test_a_golden_that_cannot_be_read_could_not_be_judged(store: Store) -> None:
    store.path("runner", "two-stops").write_text("{")
    check = check_sites(store, backends=("hf",))
    assert {o.verdict for o in check.outcomes if o.site == "runner"} == {"ERROR"}
    assert check.exit_code == 3


def test_a_golden_that_was_edited_could_not_be_judged(store: Store) -> None:
    path = store.path("runner", "two-stops")
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "rows": []}))
    assert verdicts(store, sites=["runner"]) == {"runner/two-stops": "ERROR"}


def test_a_text_that_is_not_what_its_ids_decode_to_was_not_recorded(store: Store) -> None:
    """An older release wrote no digest."""
    path = store.path("runner", "two-stops")
    said = json.loads(path.read_text())
    del said["digest"]
    path.write_text(json.dumps(said))
    assert verdicts(store, sites=["runner"]) == {"runner/two-stops": "IDENTICAL"}
    said["rows"][0]["text"] = "another"
    path.write_text(json.dumps(said))
    [outcome] = check_sites(store, backends=("hf",), sites=["runner"]).outcomes
    assert outcome.verdict == "ERROR" and outcome.cause is not None
    assert "row 0 of the golden was edited: its ids decode to" in outcome.cause.sentence


def test_nothing_compared_is_no_success(tmp_path: Path) -> None:
    assert main(["--goldens", str(tmp_path), "check"]) == 5


@pytest.mark.parametrize(
    "words",
    [
        ["--site", "a=b:c"],
        ["--name", "a"],
        ["runner", "--name", "a", "--", "python", "new.py"],
        ["--moved", "a=b", "--name", "a", "--", "python", "new.py"],
        ["--site", "a=b:c", "--name", "a", "--", "python", "new.py"],
    ],
)
def test_what_would_change_nothing_is_refused(words: list[str], tmp_path: Path) -> None:
    assert main(["--goldens", str(tmp_path), "check", *words]) == 2


def test_moved_code_that_is_nowhere_is_a_wrong_setting(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """It was an ERROR of each case, "No module named ...", and exit 3."""
    store.set_site("runner", moved={"parity.proof.callsites.runner.old": "parity.proof.callsites.runner.move"})
    assert main(["--goldens", str(store.root), "check", "runner", "--backend", "hf"]) == 2
    place = "sites.json: runner.moved: 'parity.proof.callsites.runner.old'"
    guess = "there is no module parity.proof.callsites.runner.move; did you mean 'parity.proof.callsites.runner.moved'?"
    assert f"{place}: {guess}" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1024", -1])
def test_a_load_setting_that_the_engine_refuses_is_a_wrong_setting(
    value: Any, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where moved code catches what its engine raises, too: it is nothing that the code did."""
    store.set_site("runner", load={"hf": {"max_model_len": value}})
    assert main(["--goldens", str(store.root), "check", "runner", "--backend", "hf"]) == 2
    assert "sites.json: runner.load.hf: ModelLoadConfig.max_model_len is" in capsys.readouterr().err


def test_old_against_new_here_and_now(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """A golden that another torch has made stale does not matter: --ab runs the old code itself."""
    stale = dataclasses.replace(store.read("runner", "two-stops"), value=[["what an older torch gave"]])
    store.write(stale)
    assert main(["--goldens", str(store.root), "check", "runner", "--backend", "hf"]) == 1
    assert main(["--goldens", str(store.root), "check", "runner", "--backend", "hf", "--ab"]) == 0


def test_explaining_tells_the_chain_and_accepting_ends_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    golden = ROOT / "golden"
    store.write(Store(golden).read("rollout", "turn-end-forgotten"))
    flags = ["--goldens", str(store.root)]
    case = "rollout/turn-end-forgotten"
    assert main([*flags, "explain", case, "--backend", "hf"]) == 1
    said = capsys.readouterr().out
    assert "stop.end_ids; confirmed" in said
    assert "the same on both sides: messages, template, prompt_text, prompt_ids" in said
    assert "reproduce:" in said
    assert main([*flags, "accept", case, "--backend", "hf", "--reason", "wanted", "--until", "2999-01-01"]) == 0
    assert main([*flags, "check", "rollout", "--backend", "hf"]) == 0
    assert main([*flags, "accept", case, "--backend", "hf", "--reason", "wanted", "--until", "2001-01-01"]) == 2
    store.accept(dataclasses.replace(store.accepted()[0], until="2001-01-01"))
    assert main([*flags, "check", "rollout", "--backend", "hf"]) == 1, "it has expired"


def test_engines_are_closed_and_modules_are_put_back(store: Store) -> None:
    mine = importlib.import_module("parity.proof.callsites.rollout.moved")
    check_sites(store, sites=["rollout"], backends=("hf",))
    assert sys.modules["parity.proof.callsites.rollout.moved"] is mine
    assert mine.engine.cache_info().currsize == 0, "the check used a copy of its own"


@pytest.mark.parametrize("name", ["thinking back on", "half precision", "padded on the right", "lower case"])
def test_a_mutation_of_a_call_site_is_named(name: str, store: Store) -> None:
    """The whole table is `make selftest`; here is one of each stage, on goldens of old code."""
    [mutation] = [mutation for mutation in SITE_MUTATIONS if mutation.name == name]
    mutation = dataclasses.replace(mutation, cases=("rollout/two-prompt-lengths",))
    outcomes = run_site_mutation(store, mutation)
    score = Score(mutation.name, mutation.causes, outcomes)
    assert score.named, score.line()
    assert not hasattr(gen_engine.GenerationEngine.generate_text_batch, "__wrapped__"), "everything is put back"


def test_the_gate_of_the_selftest_is_what_was_promised() -> None:
    assert len(SITE_MUTATIONS) >= 40
    assert NAMED_RIGHT >= 0.95
    assert len({mutation.name for mutation in SITE_MUTATIONS}) == len(SITE_MUTATIONS)


def drawn(text: str) -> Case:
    """A recording of eleven drawn texts whose logits cannot be had."""
    sampling = {"temperature": {"value": 1.0, "from": "caller"}}
    row = {"prompt_ids": [1], "output_ids": [ord(text)], "sampling": sampling}
    return Case("s", "c", rows=(row,), value=[text] * 11)


@pytest.mark.parametrize(
    ("again", "samples", "verdict"),
    [("ab", 20, "SAME-DISTRIBUTION"), ("cd", 20, "DRIFT"), ("ab", 2, "ERROR")],  # too few samples tell nothing
)
def test_draws_without_logits_are_compared_by_their_texts(again: str, samples: int, verdict: str, store: Store) -> None:
    old = dataclasses.replace(drawn("a"), samples=tuple(["ab"[k % 2]] * 11 for k in range(samples)))

    def resample(case: Case, seed: int) -> Case:
        return drawn(again[seed % 2])

    judge = Judge(store, "hf", lambda *_: None, resample=resample)
    assert judge.outcome(old, drawn("b")).verdict == verdict


ENCODED, KINDS, PIXELS = "mm_encoder_outputs", "mm_token_type_ids", ("image_grid_thw", "pixel_values")


@pytest.mark.parametrize(
    ("recorded", "here", "old", "new", "verdict"),
    [
        ("5.19.0", "5.19.0", [ENCODED, KINDS], [KINDS, *PIXELS], "LATENT"),
        ("5.19.0", "5.10.4", [ENCODED, KINDS], [KINDS, *PIXELS], "IDENTICAL"),
        ("5.19.0", "5.10.4", [ENCODED, KINDS], PIXELS, "LATENT"),  # both have it, and the moved code dropped it
        ("5.19.0", "4.57.1", [ENCODED, KINDS], PIXELS, "IDENTICAL"),
        ("4.57.1", "5.19.0", PIXELS, [ENCODED, KINDS], "IDENTICAL"),
        ("5.19.0", "4.57.1", [ENCODED, KINDS], [], "LATENT"),  # no picture reaches the model
        ("5.19.0", "4.57.1", ["token_type_ids"], [], "LATENT"),
        ("5.19.0", "4.57.1", [], ["inputs_embeds"], "LATENT"),
    ],
)
def test_only_what_pictures_are_called_is_another_transformers_own(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    recorded: str,
    here: str,
    old: Sequence[str],
    new: Sequence[str],
    verdict: str,
) -> None:
    monkeypatch.setattr("parity.judge.site_facts.version", {"transformers": here}.get)
    kept = store.put_environment({"transformers": recorded})
    row = {"prompt_ids": [1], "output_ids": [2], "text": "b"}
    then, now = (
        Case("s", "c", rows=({**row, "inputs": {"keys": [*keys]}},), value="b", environment=kept) for keys in (old, new)
    )
    assert Judge(store, "hf", lambda *_: None).outcome(then, now).verdict == verdict


def test_a_replay_on_another_backend_is_refused_what_its_release_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_engine.lazy_import("vllm"), "__version__", "0.11.0")
    gen_engine.installed.cache_clear()
    replay = Replay(Engines(), {"backend": "vllm"})
    words = "vllm>=0.11,<0.12 cannot do a sliding window on a CPU"
    with Observer(sink=lambda case: None, seed=None) as observer, pytest.raises(UnsupportedError, match=words):
        observer.replay = replay
        gen_engine.load(ROOT / "golden/models/random-mistral")
    gen_engine.installed.cache_clear()
