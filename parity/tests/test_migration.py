"""The full migration of parity/README.md, followed literally in a repository of somebody else.

The files and the commands are those of its blocks and of parity/ci.md. Commands of parity run in this process, which
has its libraries loaded; what they record runs as the processes that it says.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from parity.__main__ import main
from parity.goldens.store import Store
from parity.models.tasks import drawing

from .conftest import ROOT, TEXT, VL
from .documents import blocks

pytestmark = pytest.mark.usefixtures("forked_python")

BLOCKS = blocks(ROOT / "parity/README.md")
WORKFLOW = next(code for kind, code in blocks(ROOT / "parity/ci.md") if kind == "yaml")
FILES = {
    code.partition("\n")[0].removeprefix("# "): code
    for kind, code in (*BLOCKS, *blocks(ROOT / "parity/ci.md"))
    if kind == "py"
}
COMMANDS = [line for kind, code in BLOCKS if kind == "bash" for line in code.splitlines()]
QUESTIONS = "What is the capital of France?\nIs 28 even?|Verdict\nCount to 12.\n"
PRINTED = "The capital of France is Paris.\n28 is even.\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n"
SMALL = {"max_model_len": 1024, "vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 64}}

Said = Callable[..., tuple[int, str]]


def command(begin: str) -> str:
    """The document's first command that begins so."""
    return next(line for line in COMMANDS if line.startswith(begin))


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents show what a terminal of 100 columns shows."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The stranger's repository, with parity importable and nothing of acme left loaded."""
    folder = tmp_path_factory.mktemp("acme-repo")
    (folder / "acme").mkdir()
    (folder / "acme/__init__.py").touch()
    (folder / "models").mkdir()
    (folder / "models/tiny-qwen3").symlink_to(TEXT)
    (folder / "questions.txt").write_text(QUESTIONS)
    for name, code in FILES.items():
        (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)  # files are edited faster than their times tell
        yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


@pytest.fixture
def parity(acme: Path, capfd: pytest.CaptureFixture[str]) -> Said:
    """`parity(command line, *more words)`: its exit code, and what it and the processes below it printed."""

    def run(line: str, *more: str) -> tuple[int, str]:
        python, m, module, *words = shlex.split(line, comments=True)
        assert (python, m, module) == ("python", "-m", "parity")
        capfd.readouterr()
        code = main([*words, *more])
        return code, capfd.readouterr().out

    return run


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """FILES' version of a file with these replacements."""
    text = FILES[path.relative_to(path.parents[1]).as_posix()]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


# == In the document's order; each test goes on where the one before ended ==


def test_1_recording_leaves_the_script_as_it_is(parity: Said, acme: Path) -> None:
    code, said = parity(command("python -m parity record"))
    assert said.startswith(PRINTED) and "written  answers: 3 cases, 3 model rows" in said
    assert code == 4, said
    assert Store("golden").names("answers") == ["answer-001", "answer-002", "answer-003"]
    code, said = parity(command("python -m parity record"))
    assert code == 0 and "unchanged  answers: 3 cases" in said and said.startswith(PRINTED), said


def test_2_the_moved_code_is_green(parity: Said, acme: Path) -> None:
    vendored = subprocess.run(
        command("make").replace("../gen-engine", str(ROOT)), shell=True, capture_output=True, text=True, check=False,
        env={**os.environ, "PWD": str(acme), "MAKEFLAGS": ""},
    )  # fmt: skip
    assert vendored.returncode == 0, vendored.stderr
    code, said = parity(command("python -m parity check --moved"))
    assert code == 0 and "PASSED (exit 0, within policy): 3 cases" in said, said
    [settings] = [json.loads(code) for kind, code in BLOCKS if kind == "json"]
    assert settings["answers"]["load"]["vllm"].items() <= SMALL.items()
    settings["answers"]["load"]["vllm"] = SMALL
    Path("golden/sites.json").write_text(json.dumps(settings))


def test_2_it_is_green_on_vllm_too(parity: Said) -> None:
    code, said = parity("python -m parity check answers/answer-003 --backend vllm")
    assert code == 0 and re.search(r"answers +vllm .* 1 IDENTICAL", said), said


BREAKS = {
    "an end is lost": (
        ('"stop": [stop] if stop else []', '"stop": {"strings": [stop] if stop else [], "ignore_eos": True}'),
        {"stop.end_ids"},
    ),
    "thinking is on": (("chat}", 'chat, "chat": {"enable_thinking": True}}'), {"prompt.template"}),
    "strip is lost": ((".strip()", ""), {"value"}),
    "half the budget": (("64", "32"), {"stop.max_new_tokens"}),
    "a temperature": (('"max_new_tokens"', '"temperature": 0.7, "seed": 1, "max_new_tokens"'), {"sampling.mode"}),
    "the penalty is lost": (('"repetition_penalty": 1.05,', ""), {"sampling.repetition_penalty"}),
    "the stop is lost": (("[stop] if stop else []", "[]"), {"stop"}),
    "the system turn is lost": (('{"role": "system", "content": "Be brief."}, ', ""), {"prompt.messages"}),
    "another dtype": (('"float32"', '"bfloat16"'), {"model.dtype"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_3_each_break_is_named(name: str, parity: Said, acme: Path) -> None:
    change, causes = BREAKS[name]
    edit(acme / "acme/answers.py", change)
    code, said = parity("python -m parity check --backend hf --json report.json")
    found = [
        (outcome["cause"]["name"], outcome["cause"]["certainty"])
        for outcome in json.loads((acme / "report.json").read_text())["outcomes"]
        if outcome["verdict"] in ("DRIFT", "LATENT")
    ]
    assert code == 1 and {cause for cause, _ in found} == causes, said
    is_guess = name in ("strip is lost", "the stop is lost")  # the engine's stop took the place of a cut by hand
    assert {certainty for _, certainty in found} == {"likely" if is_guess else "confirmed"}, said


def test_4_explain_prints_what_is_shown_and_accept_covers_this_cause_until_its_day(parity: Said, acme: Path) -> None:
    edit(acme / "acme/answers.py", ("64", "16"))
    code, said = parity(command("python -m parity check --backend hf --html"))
    assert code == 1 and (acme / "parity.html").exists()
    code, said = parity(command("python -m parity explain"))
    shown = next(code for kind, code in BLOCKS if not kind)
    assert (code, said.strip()) == (1, shown.strip())
    code, said = parity(command("python -m parity accept"))
    assert code == 0 and "accepted answers/answer-003 on hf: stop.max_new_tokens, until " in said
    code, said = parity("python -m parity check answers/answer-003 --backend hf")
    assert code == 0 and "1 ACCEPTED" in said, said
    accepted = acme / "golden/accepted.json"
    yesterday = (datetime.date.today() - datetime.timedelta(days=1)).isoformat()
    accepted.write_text(re.sub(r'"until": "[^"]*"', f'"until": "{yesterday}"', accepted.read_text()))
    code, said = parity("python -m parity check answers/answer-003 --backend hf")
    assert code == 1 and "DRIFT  answers/answer-003" in said, "an acceptance that has ended"
    parity(command("python -m parity accept"))
    edit(acme / "acme/answers.py", BREAKS["the system turn is lost"][0])
    code, said = parity("python -m parity check answers/answer-003 --backend hf")
    assert code == 1 and "prompt.messages" in said, "another cause"


def test_5_what_gates_it(parity: Said, acme: Path) -> None:
    edit(acme / "acme/answers.py")
    runs = [step.get("run", "") for step in yaml.safe_load(WORKFLOW)["jobs"]["parity"]["steps"]]
    steps = [run for run in runs if run.startswith("python ")]
    git = ["git", "-c", "user.name=acme", "-c", "user.email=acme@acme.example"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "before"], check=True)
    subprocess.run(["git", "add", "golden"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "goldens"], check=True)
    code, said = parity(steps[0].replace("$GITHUB_STEP_SUMMARY", "summary.md"), "--backend", "hf")
    assert code == 0, said
    summary = (acme / "summary.md").read_text()
    assert "3 cases" in summary and "answer-003" in summary and (acme / "parity.log").exists()
    assert 'tests="3"' in (acme / "parity.xml").read_text()
    code, said = parity(steps[1])
    assert code == 0 and "current" in said
    before = sorted(Store("golden").root.rglob("*"))
    code, _ = parity("python -m parity check nowhere")
    assert code == 4 and sorted(Store("golden").root.rglob("*")) == before


def test_6_the_fixture_says_the_same(acme: Path) -> None:
    edit(acme / "acme/answers.py", BREAKS["strip is lost"][0])
    (acme / "test_one.py").write_text("def test_one(parity):\n    parity.case('answers', 'answer-001')\n")
    asked = [
        "-p",
        "parity.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "--parity-backend=hf",
        "test_parity.py",
        "test_one.py",
    ]
    done = subprocess.run([sys.executable, "-m", "pytest", *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "value; likely" in done.stdout, done.stdout
    assert "1 failed, 1 passed" in done.stdout and "FAILED test_parity.py::test_answers" in done.stdout


INFER = """
import sys
from pathlib import Path

from PIL import Image
from setup_parity import load_model, load_processor


def infer_one_image(model, processor, image, question):
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    return processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)[0]


if __name__ == "__main__":
    model, processor = load_model(), load_processor()
    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(infer_one_image(model, processor, Image.open(path), "What do you see?"))
"""
DESCRIBE = """
import sys
from functools import cache
from pathlib import Path

from PIL import Image

from acme.engine import load

engine = cache(load)


def describe(image, question):
    content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    options = {"max_new_tokens": 32, "repetition_penalty": 1.05}
    request = {"messages": [{"role": "user", "content": content}]}
    [result] = engine("models/tiny-qwen3-vl").generate_vlm_batch([request], options)
    return result.text


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(describe(Image.open(path), "What do you see?"))
"""


def document_block(begin: str) -> str:
    """The document's block without a language that begins so."""
    found: str
    [found] = [code.strip() for kind, code in BLOCKS if not kind and code.startswith(begin)]
    return found


def test_7_code_that_takes_objects(parity: Said, acme: Path) -> None:
    """`(model, processor, …)` on the real model: the old function by the factories of the document, the moved one
    without them, on both backends, wrong, and as a whole script."""
    (acme / "models/tiny-qwen3-vl").symlink_to(VL)
    (acme / "photos").mkdir()
    for colour, shape in (("red", "circle"), ("blue", "square")):
        drawing(colour, shape).save(acme / f"photos/{colour}.png")
    (acme / "infer.py").write_text(INFER)
    code, said = parity("python -m parity record --site images=infer.py:infer_one_image -- python infer.py photos")
    assert code == 4 and "2 cases, 2 model rows" in said, said
    for name in ("model", "processor"):
        assert re.search(rf"images: the argument '{name}' is a .*, which no golden can hold", said), said
    store, settings = Store("golden"), json.loads("{" + document_block('"images"') + "}")
    assert list(settings) == ["images"]
    store.set_site("images", **settings["images"])
    code, said = parity("python -m parity check images --backend hf")
    assert code == 0 and "2 IDENTICAL" in said, said
    (acme / "new.py").write_text(DESCRIBE)
    store.set_site("images", moved={"infer.py:infer_one_image": "new.py:describe"}, load={"vllm": SMALL})
    code, said = parity("python -m parity check images --backend hf --backend vllm")
    assert code == 0 and re.search(r"images +hf .* 2 IDENTICAL", said) and re.search(r"images +vllm", said), said
    (acme / "new.py").write_text(
        DESCRIBE.replace('"user", "content": content}]', '"user", "content": content}], "vlm": {"max_pixels": 32 * 32}')
    )
    code, said = parity("python -m parity check images --backend hf")
    assert code == 1 and said.count("image.budget; confirmed") == 2, said
    (acme / "new.py").write_text(DESCRIBE)
    store.set_site("images", moved=None)
    code, said = parity(document_block("python -m parity check images"))
    assert code == 0 and "2 IDENTICAL" in said, said


# == Processes, ranks, and runs that end badly ==

WORKER = """
import sys

def shout(word):
    if word == "crash":
        raise KeyError(word)
    return word.upper()

class Odd(dict):
    def items(self):
        raise RuntimeError("not for you")

def take(odd):
    return type(odd).__name__

if __name__ == "__main__":
    print(shout("one"), take(Odd()), flush=True)
    shout(sys.argv[1])
"""
LAUNCH = """
import os, subprocess, sys

codes = []
for rank, word in enumerate(("two", "crash")):
    environment = {**os.environ, "RANK": str(rank)}
    codes.append(subprocess.run([sys.executable, "-m", "worker", word], env=environment).returncode)
raise SystemExit(40 + sum(codes))
"""


def test_ranks_in_child_processes_a_crash_and_a_failing_recorder(acme: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in (("worker.py", WORKER), ("launch.py", LAUNCH)):
        (acme / name).write_text(text)
    sites = ["--site", "worker:shout", "--site", "worker:take"]
    code = main(["--goldens", "ranks", "record", *sites, "--", "python", "launch.py"])
    said = capfd.readouterr()
    assert code == 41 and "the script itself ended with 41" in said.out
    assert said.out.startswith("ONE Odd\nONE Odd\n") and "KeyError: 'crash'" in said.err
    assert "RuntimeError" not in said.err
    failure = "arguments of worker:take: RuntimeError: not for you"
    assert f"recorder failure (the script was not disturbed): {failure}" in said.out
    store = Store("ranks")
    assert store.names("shout") == ["r0-shout-001", "r0-shout-002", "r1-shout-001", "r1-shout-002"]
    assert [store.read("shout", name).value for name in store.names("shout")] == ["ONE", "TWO", "ONE", None]
    assert store.read("shout", "r1-shout-002").raised == "KeyError: 'crash'"
    assert "take/take-001 is no golden: not all of it was seen" in said.out
    assert store.names("take") == []


def test_what_cannot_be_recorded_is_said(acme: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "def stream(text):\n    yield from text\n\nif __name__ == '__main__':\n    print(*stream('abc'))\n"
    (acme / "streams.py").write_text(text)
    sites = ["--site", "streams.py:stream", "--site", "nowhere:stream"]
    assert main(["--goldens", "ranks", "record", *sites, "--", "python", "streams.py"]) == 2
    said, complaint = capfd.readouterr()
    assert said == "" and "stream is a generator" in complaint, "before it runs"
    code = main(["--goldens", "ranks", "record", "--site", "nowhere:stream", "--", "python", "streams.py"])
    said = capfd.readouterr().out
    assert code == 5 and said.startswith("a b c\n") and "nothing of nowhere:stream was recorded" in said
    (acme / "tell.py").write_text("def tell(text):\n    print(text)\n")
    (acme / "main.py").write_text("import tell\n\ntell.tell('told')\n")
    assert main(["--goldens", "told", "record", "--site", "tell.py:tell", "--", "python", "main.py"]) == 5
    said = capfd.readouterr().out
    assert "nothing of tell.py:tell was recorded; if it is imported, write tell:tell" in said
    assert main(["--goldens", "told", "record", "--site", "tell:tell", "--", "python", "main.py"]) == 4
    assert "tell returns nothing: its prompts and tokens are compared" in capfd.readouterr().out
    assert main(["--goldens", "ranks", "record", "--site", "strems:stream", "--", "python", "streams.py"]) == 2
    said, complaint = capfd.readouterr()
    assert said == "" and "did you mean streams:stream?" in complaint, "before it runs"
    assert main(["--goldens", "ranks", "record", "--", "no-such-program"]) == 2
    assert "no-such-program" in capfd.readouterr().err
