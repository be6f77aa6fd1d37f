"""Mutations of gen_engine.py: they apply, goldens show them, and what became of them is told."""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import symtable
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.goldens.causes import TABLE, stage_of
from parity.goldens.store import Store
from parity.goldens.verdict import Cause, Outcome, Verdict
from parity.proof.__main__ import main
from parity.proof.callsites import probe
from parity.proof.engine_mutations import Mutation, mutations, outcomes_of, sampled
from parity.proof.forks import ENGINE, Died, forked
from parity.proof.score import Score, table
from parity.proof.selftest import judged_in_forks
from parity.proof.syntax import Code, pair_of
from parity.tests.conftest import ROOT

MUTATIONS = mutations()


def located_in(sources: Mapping[str, str]) -> list[ast.AST]:
    """What each mutation changes, in the text of its file. Raises ValueError for one that does not
    match once."""
    codes = {name: Code(text) for name, text in sources.items()}
    found = []
    for one in MUTATIONS:
        how = {"find": one.find, "replace": one.replace, "name": one.name}
        found.append(codes[one.file].located(one.where, **how).owner)
    return found


SOUND = {one.file: (ROOT / one.file).read_text() for one in MUTATIONS}
MODULE_NAMES = {file: set(symtable.symtable(text, file, "exec").get_identifiers()) for file, text in SOUND.items()}


def test_every_mutation_is_located_once_and_names_causes_that_there_are() -> None:
    assert len(located_in(SOUND)) == len(MUTATIONS)
    stages = {stage_of(entry.name) for entry in TABLE}
    assert {stage for one in MUTATIONS for stage in one.causes} <= stages
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


def test_every_mutation_changes_something() -> None:
    for one in MUTATIONS:
        old, new = pair_of(one.find, one.replace)
        assert ast.dump(as_module(old)) != ast.dump(as_module(new)), one.name


def test_a_mutation_uses_names_that_there_are() -> None:
    """Else it is an error at that place, whatever it was meant to be, as when the engine names a variable anew."""
    codes = {file: Code(text) for file, text in SOUND.items()}
    for one in MUTATIONS:
        _, new = pair_of(one.find, one.replace)
        scopes = codes[one.file].scopes
        parts = one.where.split(".")
        outer = [".".join(parts[:k]) for k in range(1, len(parts))]
        around = [scope for name in outer for scope in scopes.get(name, []) if not isinstance(scope, ast.ClassDef)]
        around += scopes[one.where]
        known = {*dir(builtins), *MODULE_NAMES[one.file], *names_in(as_module(new), ast.Store)}
        known = known.union(*map(names_in, around))
        assert names_in(as_module(new), ast.Load) <= known, one.name


def names_in(tree: ast.AST, *contexts: type[ast.expr_context]) -> set[str]:
    """Names of variables and parameters; with contexts, those that are read or set so."""
    nodes = list(ast.walk(tree))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and (not contexts or isinstance(n.ctx, contexts))}
    if ast.Load not in contexts:
        found |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return found


def as_module(pattern: ast.expr | list[ast.stmt]) -> ast.Module:
    body: list[ast.stmt] = [ast.Expr(pattern)] if isinstance(pattern, ast.expr) else pattern
    return ast.Module(body, [])


def test_mutations_are_located_in_a_reformatted_engine_and_make_the_same_of_it() -> None:
    ruff = [sys.executable, "-m", "ruff", "format", "--line-length", "140", "-"]
    formatted = {}
    for name, text in SOUND.items():
        done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True)
        formatted[name] = done.stdout
    assert formatted[ENGINE.name] != SOUND[ENGINE.name]
    before, after = located_in(SOUND), located_in(formatted)
    assert [type(owner) for owner in before] == [type(owner) for owner in after]
    for one in MUTATIONS[::40]:
        assert one.source(formatted[one.file]) == one.source(SOUND[one.file])


def test_every_case_of_a_mutation_is_a_golden(tmp_path: Path) -> None:
    store = Store(ROOT / "golden")
    probes = {f"probe/{name}" for name, *_ in probe.cases(tmp_path)}
    goldens = {f"{site}/{name}" for site in store.sites() for name in store.names(site)}
    assert {case for one in MUTATIONS for case in one.cases} <= goldens | probes


def test_goldens_show_every_mutation_and_sections_and_backends_have_their_share() -> None:
    assert [one.name for one in MUTATIONS if not one.cases] == []
    assert min(Counter(one.section for one in MUTATIONS).values()) >= 3
    backends = Counter(backend for one in MUTATIONS for backend in one.backends)
    assert backends["hf"] >= 80 and backends["vllm"] >= 80


SAMPLES = [sampled(MUTATIONS, 3, turn) for turn in range(6)]


def test_samples_hold_all_mutations_in_turn() -> None:
    names = [one.name for sample in SAMPLES[:3] for one in sample]
    assert sorted(names) == sorted(one.name for one in MUTATIONS)
    held = {(one.name, one.backends[0]) for sample in SAMPLES for one in sample}
    assert held == {(one.name, backend) for one in MUTATIONS for backend in one.backends}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_has_some_of_every_section_and_backend(sample: list[Mutation]) -> None:
    assert {one.section for one in sample} == {one.section for one in MUTATIONS}
    counts = Counter(backend for one in sample for backend in one.backends)
    assert sum(counts.values()) == len(sample) >= 80
    assert min(counts["hf"], counts["vllm"]) >= 40


def test_a_mutation_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--only", "contents-stripped"]) == 2
    assert "content-stripped" in capsys.readouterr().err


def test_a_mutation_whose_code_is_gone_is_refused() -> None:
    how: Any = {"backends": ("hf",), "causes": ("stop",)}
    gone = Mutation("gone", "Stops", "", "finish", "no_such_name()", "None", **how)
    with pytest.raises(ValueError, match="gone: the pattern matches 0 times in 'finish'"):
        gone.source("def finish():\n    return 1")


@pytest.mark.usefixtures("forked_python")
def test_a_mutated_engine_is_judged_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process of its own: this one has threads that a fork would wait for."""
    monkeypatch.chdir(ROOT)
    [score] = judged_in_forks(Store("golden"), "hf", "content-stripped")
    assert score.named, score.line()
    found = {(o.verdict, o.cause and o.cause.name) for o in score.outcomes}
    assert found == {("DRIFT", "prompt.messages")}


def test_a_fork_that_dies_is_an_error_and_is_not_taken_for_caught() -> None:
    [(_, died, _)] = forked({0: lambda: os._exit(3)})
    assert died == Died(3)
    score = Score("dies", ("sampling",), outcomes_of(died), 0.0)
    assert [o.verdict for o in score.outcomes] == ["ERROR"]
    assert not score.caught
    assert "NOT CAUGHT" in score.line()
    assert "ERROR the mutated engine ended its process: exit code 3" in score.line()


def test_a_fork_sets_its_threads_where_vllm_has_taken_the_name_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the threads that load a checkpoint in a fork race for torch's pool: once in 60 forks one found none."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    jobs: dict[int, Any] = {0: torch.get_num_threads}
    try:
        found = list(forked(jobs))
    finally:
        torch._C.set_num_threads(before)
    threads: list[Any] = [made for _, made, _ in found]
    assert threads == [1]


def test_the_table_counts_by_section_and_shows_what_was_surely_wrong() -> None:
    def score(name: str, cause: Cause | None, section: str) -> Score:
        verdict: Verdict = "DRIFT" if cause else "IDENTICAL"
        return Score(name, ("sampling",), (Outcome("s", "c", "hf", verdict, cause=cause),), 0.0, section)

    right, wrong = Cause("sampling.seed", "likely", ""), Cause("value", "confirmed", "")
    lines = table([score("a", right, "Stops"), score("b", wrong, "Stops"), score("c", None, "Chat")])
    assert [line.split() for line in lines[1:]] == [
        ["Stops", "2", "100%", "50%", "1"],
        ["Chat", "1", "0%", "0%", "0"],
        ["all", "3", "67%", "33%", "1"],
    ]
