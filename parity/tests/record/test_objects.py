"""Foreign code as it is: `infer_one_image(model, processor, …)`, methods, and scripts whose functions were renamed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from parity.__main__ import main
from parity.goldens.store import Store

OLD = """
import sys

class Model:
    def __init__(self, folder):
        self.folder = folder

    def generate(self, text):
        return text.upper()

class Processor:
    def decode(self, text):
        return text + "!"

def infer_one_image(model, processor, question, *, times=1):
    return processor.decode(model.generate(question)) * times

class Runner:
    def __init__(self, model):
        self.model = model

    def ask(self, question):
        return self.model.generate(question)

if __name__ == "__main__":
    model, processor = Model("m"), Processor()
    print(infer_one_image(model, processor, "what?"), infer_one_image(model, processor, "who?", times=2))
    print(Runner(model).ask("why?"))
"""
NEW = OLD.replace("infer_one_image", "describe").replace("class Model", "class Engine").replace("= Model(", "= Engine(")
SETUP = """
from old import Model, Processor, Runner

def load_model():
    return Model("m")

def load_runner():
    return Runner(load_model())
"""
MOVED = "def infer_one_image(question, engine, *, times=1):\n    return (engine.generate(question) + '!') * times\n"
SITES = ["--site", "images=old.py:infer_one_image", "--site", "asks=old.py:Runner.ask"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Store:
    for name, text in (("old", OLD), ("setup_acme", SETUP), ("moved", MOVED)):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "new.py").write_text(NEW + "    open('runs', 'a').write('x')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["record", *SITES, "--", "python", "old.py"]) == 4
    said = " ".join(capfd.readouterr().out.split())
    for name, kind in (("model", "Model"), ("processor", "Processor"), ("self", "Runner")):
        assert f"the argument '{name}' is a __main__.{kind}, which no golden can hold" in said
    assert '"images": {"arguments": {"model": "pkg.setup:make"}}' in said
    return Store("golden")


def test_arguments_that_are_objects_come_from_factories(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    assert store.settings()["images"] == {"functions": ["old.py:infer_one_image"]}
    assert main(["check"]) == 3
    said = " ".join(capfd.readouterr().out.split())
    assert "the argument 'model' was a __main__.Model, which is no data" in said and "3 ERROR" in said
    store.set_site("images", arguments={"model": "setup_acme:load_model", "processor": "setup_acme:Processor"})
    store.set_site("asks", arguments={"self": "setup_acme:load_runner"})
    assert main(["check"]) == 0, capfd.readouterr().out
    store.set_site("images", moved={"old.py": "moved"}, arguments={"engine": "setup_acme:load_model"})
    assert main(["check", "images"]) == 0, "objects that the new function does not take are left out"
    store.set_site("images", moved={"old.py": "moved"}, arguments={})
    assert main(["check", "images"]) == 3
    assert "missing a required argument: 'engine'" in " ".join(capfd.readouterr().out.split())
    store.set_site("images", arguments={"engine": "setup_acme:gone"})
    assert main(["check", "images"]) == 2
    said = "sites.json: images.arguments: 'engine': setup_acme has no function gone"
    assert said in capfd.readouterr().err


def test_a_script_with_renamed_functions_is_paired_and_runs_once(
    store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    moved = ["--moved", "old.py:infer_one_image=new.py:describe", "--moved", "old.py=new.py"]
    assert main(["check", "images", "asks", *moved, "--", "python", "new.py"]) == 0, capfd.readouterr().out
    assert Path("runs").read_text() == "x"
    Path("new.py").write_text(Path("new.py").read_text().replace("upper", "title"))
    command = ["check", "images", *moved, "--json", "check.json", "--", "python", "new.py"]
    assert main(command) == 1
    assert Path("runs").read_text() == "xx"
    found = json.loads(Path("check.json").read_text())["outcomes"]
    assert [(o["case"], o["verdict"]) for o in found] == [(f"infer_one_image-00{k}", "DRIFT") for k in (1, 2)]
    assert main(["check", "images", "--site", "images=new.py:describe", "--", "python", "new.py"]) == 2


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ("old.py:infer_one_imag", "did you mean old.py:infer_one_image?"),
        ("old:Runner.aks", "did you mean old:Runner.ask?"),
        ("oldd.py:infer_one_image", "did you mean old.py:infer_one_image?"),
        ("oldd:infer_one_image", "did you mean old:infer_one_image?"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("older.text.py:f", "there is no file older.text.py"),  # like none of those that are there
    ],
)
def test_a_misspelt_site_is_guessed_before_the_script_runs(
    site: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.py").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--site", site, "--", "python", "old.py"]) == 2
    out, err = capfd.readouterr()
    assert says in err and out == ""


def test_goldens_that_cannot_be_written_are_told_before_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.py").write_text("open('ran', 'w')")
    (tmp_path / "taken").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--goldens", "taken", "--", "python", "old.py"]) == 2
    assert "--goldens: nothing can be written into 'taken'" in capfd.readouterr().err
    assert not Path("ran").exists()


def test_a_script_that_fails_is_told_with_the_exit_code_that_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.py").write_text("def f():\n    return 1\n\nif __name__ == '__main__':\n    f()\n    exit(7)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--site", "old.py:f", "--", "python", "old.py"]) == 7
    assert "does not pass (exit 7)" in capfd.readouterr().out


LISTING = """
import os
from pathlib import Path

def listed(pictures, out):
    sizes = {picture: Path(picture).stat().st_size for picture in pictures}
    whole = [os.path.abspath(picture) for picture in pictures]
    return {"read": pictures, "sizes": sizes, "said": f"read {pictures[0]} into {out}", "whole": whole}

if __name__ == "__main__":
    listed(["pictures/a.png", "pictures/b.png"], "/tmp/somewhere/out")
    listed([os.path.abspath("pictures/b.png"), "c"], "out")
"""


def test_files_that_a_value_names_are_the_same_where_a_replay_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pictures").mkdir()
    for length, name in enumerate(("pictures/a.png", "pictures/b.png", "c"), start=1):
        (tmp_path / name).write_bytes(b"x" * length)
    (tmp_path / "listing.py").write_text(LISTING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["record", "--site", "listed=listing.py:listed", "--", "python", "listing.py"]) == 4
    assert main(["check"]) == 0, capfd.readouterr().out
    assert main(["check", "listed", "--", "python", "listing.py"]) == 0, capfd.readouterr().out
    (tmp_path / "turned.py").write_text(LISTING.replace('{"read": pictures,', '{"read": pictures[::-1],'))
    assert main(["check", "--moved", "listing.py=turned.py"]) == 1, "of two files, the other one"


LABELS = """
from pathlib import Path

def label(paths):
    return [[Path(path).parent.name, Path(path).name, Path(path).read_text()] for path in sorted(paths)]

if __name__ == "__main__":
    print(label(["in/south/a.txt", "in/north/z.txt", "in/north/a.txt"]))
"""


def test_files_lie_in_their_folders_in_a_check_and_goldens_of_before_that_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Labels are read off folders, and paths are sorted, by old and new code alike."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("south/a", "north/z", "north/a"):
        file = tmp_path / f"in/{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    Path("labels.py").write_text(LABELS)
    record = ["record", "--site", "labels=labels.py:label", "--", "python", "labels.py"]
    assert main(record) == 4 and main(["check"]) == 0, capfd.readouterr()
    [golden] = Path("golden/labels").glob("*.json")
    text = golden.read_text()
    assert '"in/north/z.txt"' in text
    said = json.loads(text)
    for file in said["arguments"]["paths"]:
        file["name"] = file["name"].rpartition("/")[2]
    del said["digest"]
    golden.write_text(json.dumps(said))
    assert main(record) == 0, "an older golden says the same"
    assert main(["check", "labels", "--moved", "labels.py=labels.py", "--", "python", "labels.py"]) == 0
    overwriting = [*record[:1], "--overwrite", *record[1:]]
    assert main(overwriting) == 4 and golden.read_text() == text, "and is given what it lacks where that is wanted"
    assert main(overwriting) == 0
