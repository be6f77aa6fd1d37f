"""gen_engine.py as a file: its map is true, definitions come before their uses, importing it costs nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gen_engine

from ..conftest import ROOT, TEXT

SOURCE = (ROOT / "gen_engine.py").read_text(encoding="utf-8")
TREE = ast.parse(SOURCE)
DEFINITIONS = [node for node in TREE.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def banners() -> list[tuple[str, str]]:
    return re.findall(r"^# == (\d+)\. (.+?) =+$", SOURCE, re.MULTILINE)


def test_the_banners_are_a_map() -> None:
    assert "grep '^# =='" in (gen_engine.__doc__ or "") and all(": " in said for _, said in banners())
    assert [int(number) for number, _ in banners()] == list(range(1, len(banners()) + 1))


def test_nothing_refers_downward() -> None:
    first: dict[str, int] = {}
    for node in TREE.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        names = [node.name] if node in DEFINITIONS else [t.id for t in targets if isinstance(t, ast.Name)]
        for name in names:
            first.setdefault(name, node.lineno)
    downward = [
        f"{definition.name} uses {use.id}"
        for definition in DEFINITIONS
        for use in ast.walk(definition)
        if isinstance(use, ast.Name) and first.get(use.id, 0) > (definition.end_lineno or 0)
    ]
    assert downward == []


def test_nothing_prints() -> None:
    assert not [n.lineno for n in ast.walk(TREE) if isinstance(n, ast.Call) and ast.unparse(n.func) == "print"]


def test_every_public_name_is_there_and_documented() -> None:
    for name in gen_engine.__all__:
        assert getattr(gen_engine, name).__doc__


def test_a_star_import_gives_what_users_call_and_nothing_else() -> None:
    given: dict[str, object] = {}
    exec("from gen_engine import *", given)
    assert {"load", "render", "GenerationOptions", "OptionError", "Plugin"} <= given.keys()
    assert not {*gen_engine.FOR_COMPANIONS, "check_int", "Row", "Call"} & given.keys() and len(given) <= 32


def test_the_reviewers_page_names_what_is_private_or_outside() -> None:
    page = (ROOT / "parity/engine.md").read_text(encoding="utf-8").partition("\n## For the reviewer")[2]
    own = {node.name for node in ast.walk(TREE) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    attributes = [node for node in ast.walk(TREE) if isinstance(node, ast.Attribute)]
    own |= {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"}
    used = {node.attr for node in attributes if re.match("_[a-z]", node.attr)} - own
    used |= set(re.findall(r"\bVLLM_[A-Z0-9_]+", SOURCE))
    assert used and used <= set(re.findall(r"\w+", page))
    rows = re.findall(r"^\| (?:transformers|torch|vLLM): (.+?) \|", page, re.MULTILINE)
    names = {name.rpartition(".")[2] for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert len(names) > 25 and not {name for name in names if name not in SOURCE}


LEFT = """
import json, os, sys
from gen_engine import load
from parity.tests.conftest import SMALL, TEXT

before = json.load(sys.stdin)
for backend, settings in SMALL.items():
    with load(TEXT, backend=backend, max_model_len=512, **settings) as engine:
        requests = [{"prompt": "a"}, {"prompt": "a", "structured": {"choice": ["a", "b"]}}]
        engine.generate_text_batch(requests, {"max_new_tokens": 2})
        engine.generate_text_batch(requests[:1], {"max_new_tokens": 2, "logprobs": 2, "temperature": 1.0, "top_p": 0.5})
changed = [name for name in {**before, **os.environ} if before.get(name) != os.environ.get(name)]
print(json.dumps(sorted(changed)))
"""


@pytest.mark.usefixtures("forked_python")
def test_the_page_names_every_variable_that_engines_leave() -> None:
    page = (ROOT / "parity/engine.md").read_text(encoding="utf-8").partition("**What it touches")[2]
    stays = {name for row in re.findall(r"^\| (.+?) \|.*\| stays", page, re.MULTILINE) for name in row.split("`")}
    clean = {name: value for name, value in os.environ.items() if name not in stays}  # which other tests have left
    command = [sys.executable, "-c", LEFT]
    done = subprocess.run(
        command, input=json.dumps(clean), capture_output=True, text=True, cwd=ROOT, check=False, env=clean
    )
    assert done.returncode == 0, done.stderr
    left = set(json.loads(done.stdout.splitlines()[-1]))
    assert left and not left - stays, left - stays


def test_importing_costs_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'vllm', 'PIL', 'numpy', 'tqdm', 'jinja2'}"
    command = [sys.executable, "-c", f"import gen_engine, sys; print(sorted({heavy} & set(sys.modules)))"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_nothing_in_the_project_names_a_registry_host() -> None:
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    hosts = re.compile("py" + r"pi\.org|python" + "hosted|index" + "-url|find" + "-links")
    kinds = (".safetensors", ".png", ".jpg", ".mp4")
    text = [ROOT / name for name in files.stdout.split() if not name.endswith(kinds)]
    assert [file.name for file in text if file.exists() and hosts.search(file.read_text(encoding="utf-8"))] == []


ALONE = """
import sys
from pathlib import Path
sys.path += sys.argv[2:]
from gen_engine import BackendMissing, Plugin, load, load_image

ask = {"messages": [{"role": "user", "content": "a"}]}
with load(sys.argv[1]) as engine:
    answer = engine.generate_text_batch
    calls = {
        "adapters": lambda: load(sys.argv[1], adapters={"a": "b"}),
        "answer_cache": lambda: load(sys.argv[1], cache={}),
        "escaping": lambda: answer([{**ask, "chat": {"special_tokens": "refuse"}}]),
        "fallback": lambda: load(sys.argv[1], backend="auto"),
        "forcing": lambda: answer([ask], {"replay": [[5]]}),
        "image_urls": lambda: load_image("data:image/png;base64,"),
        "plugin_hooks": lambda: answer([ask], plugins=[Plugin()]),
        "scoring": lambda: engine.score_batch([("a", "b")]),
        "structured": lambda: answer([{**ask, "structured": {"json_object": True}}]),
        "tool_calls": lambda: answer([{"messages": [*ask["messages"], {"role": "assistant", "tool_calls": [{}]}]}]),
        "weights": lambda: engine.update_weights({}),
    }
    for name, call in calls.items():
        try:
            call()
        except BackendMissing as error:
            print(error.fix)
    can = engine.capabilities
    print(can.supports_structured, can.supports_logits_plugins, can.supports_hf_plugins, can.supports_logits)
    print(answer([ask], {"max_new_tokens": 2})[0].completion_tokens)
"""


@pytest.mark.usefixtures("forked_python")
def test_the_file_alone_names_the_companion_that_a_call_needs(tmp_path: Path) -> None:
    """Though the companions of parity could be imported: production has no parity."""
    shutil.copy(ROOT / "gen_engine.py", tmp_path)
    (tmp_path.parent / "parity").symlink_to(ROOT / "parity")  # as beside a package among installed ones
    command = [sys.executable, "-c", ALONE, str(TEXT), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    names = ["adapters", "answer_cache", "escaping", "fallback", "forcing", "image_urls", "plugin_hooks", "scoring"]
    fixes = [f"copy parity/companions/{name}.py there" for name in (*names, "structured", "tool_calls", "weights")]
    assert done.stdout.splitlines() == [*fixes, "False False False True", "2"], done.stderr


def test_a_module_that_only_has_a_companions_name_is_not_taken_for_it(tmp_path: Path) -> None:
    for folder, files in {"lib": ("gen_engine.py", "parity/companions/scoring.py"), "other": ()}.items():
        (tmp_path / folder).mkdir()
        for file in files:
            shutil.copy(ROOT / file, tmp_path / folder)
    (tmp_path / "other/scoring.py").write_text("print('ran')\n")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "other"), str(tmp_path / "lib")])}
    command = [sys.executable, "-c", "import gen_engine; gen_engine.companions.scoring"]
    done = subprocess.run(command, capture_output=True, text=True, env=paths, cwd=tmp_path, check=False)
    assert "BackendMissing" in done.stderr and "other/scoring.py" in done.stderr, done.stderr
    assert done.stdout == "", "nothing of it runs"
    by_file = f"from importlib.machinery import SourceFileLoader as S; S('g', {str(tmp_path / 'lib/gen_engine.py')!r})"
    command = [sys.executable, "-c", f"{by_file}.load_module().companions.scoring"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.parent, check=False)
    assert "BackendMissing: scoring would be imported from nowhere, not from" in done.stderr, done.stderr
