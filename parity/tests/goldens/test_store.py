"""Goldens on disk: what is written comes back, reads well, and nothing broken is taken for a golden."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic
import pytest
from PIL import Image

from gen_engine import ModelLoadConfig
from parity.goldens.store import (
    LOAD_FIELDS,
    Case,
    GoldenError,
    SettingsError,
    Store,
    case_faults,
    coded,
    decoded,
    dump,
    objects_in,
)
from parity.record.values import Keeper

ROW: dict[str, Any] = {
    "prompt_text": "two\nlines",
    "prompt_ids": [1, 2, 3],
    "sampling": {"temperature": {"value": 0.7, "from": "checkpoint"}},
    "output_ids": list(range(200)),
}
CASE = Case("site", "case", "pkg.old:f", {"text": "a\nb", "number": 1}, (ROW,), ["x", {"y": 1.25}])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "golden")


def test_a_case_comes_back_as_it_was_written(store: Store) -> None:
    store.write(CASE)
    assert store.read("site", "case") == CASE


def set_text(said: dict[str, Any]) -> None:
    said["rows"][0]["prompt_text"] = "another"


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no rows": lambda said: said.update(rows=[]),
    "a row cut out": lambda said: said["rows"].pop(),
    "another text": set_text,
    "other ids": lambda said: said["rows"][0]["output_ids"].reverse(),
    "another value": lambda said: said.update(value=["x", {"y": 1.5}]),
    "a part that changes": lambda said: said.update(changing=[{"at": [0]}]),
    "other arguments": lambda said: said.update(arguments={"other": 1}),
    "another function": lambda said: said.update(function="m:other"),
    "another environment": lambda said: said.update(environment="0123456789ab"),
    "another digest": lambda said: said.update(digest="0" * 32),
    "a digest of another kind": lambda said: said.update(digest=5),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_golden_that_was_edited_is_an_error(edit: str, store: Store) -> None:
    path = store.write(dataclasses.replace(CASE, rows=(ROW, ROW)))
    said = json.loads(path.read_text())
    EDITS[edit](said)
    path.write_text(json.dumps(said))
    with pytest.raises(GoldenError, match="was edited|digest is not a text"):
        store.read("site", "case")


def test_a_golden_in_another_layout_is_the_same_golden(store: Store) -> None:
    odd = {"$lines": ["a"], "n": [float("nan"), 1e300, 1 / 3], "\ud800": "\ud800\n"}
    case = dataclasses.replace(CASE, arguments={"a": odd, "b": {"$lines": ["a"]}})
    path = store.write(case)
    said = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(said.items())), indent=None))
    assert store.read("site", "case").digest == said["digest"]


def test_a_golden_of_an_older_release_has_no_digest(store: Store) -> None:
    path = store.write(CASE)
    said = json.loads(path.read_text())
    del said["digest"]
    path.write_text(json.dumps(said))
    assert store.read("site", "case").digest == ""


def test_a_golden_reads_well(store: Store) -> None:
    lines = store.write(CASE).read_text().splitlines()
    assert sum("199" in line for line in lines) == 1, "the ids stand on one line"
    assert any(line.strip() == '"two",' for line in lines), "each line of a text stands on a line of its own"
    assert [line.split('"')[1] for line in lines if line.startswith('  "')][:3] == ["format", "site", "case"]
    assert "/" not in json.dumps(json.loads(store.path("site", "case").read_text())["rows"]), "no paths"


def test_writing_is_deterministic(store: Store) -> None:
    first = store.write(CASE).read_bytes()
    assert store.write(store.read("site", "case")).read_bytes() == first


@pytest.mark.parametrize(
    "value", ["", "a\n", "\n\n", "é😀", [], {}, [[1, 2], []], {"a": "b\nc"}, None, True, 1e-9, -0.5]
)
def test_every_plain_value_survives_the_file(value: Any) -> None:
    assert decoded(json.loads(dump(coded(value)))) == value


def test_what_json_cannot_say_is_said_otherwise() -> None:
    assert str(decoded(json.loads(dump(coded([float("nan"), float("inf")]))))) == "[nan, inf]"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read"),
        ('{"format": 0}', "has format 0"),
        ('{"site": "site"}', "has format None"),
        ("[]", "has format 'list'"),
        ('{"format": 1, "site": "site", "case": "case", "colour": 1}', "is no case"),
        ('{"format": 1, "site": "site", "case": "other"}', "moved by hand"),
        ("[" * 100_000, "nested deeper"),
        ('{"format": 1, "value": {"text": "seen", "text": "taken"}}', "'text' stands twice"),
        ('{"format": 1, "value": ' + "[" * 500 + "]" * 500 + "}", "nested deeper"),
        ('{"format": 1, "value": {"$lines": 5}}', "lines. is not a list of texts"),
        ('{"format": 1, "value": {"$float": 5}}', "float. is not a text"),
        ('{"format": 1, "site": "site", "case": "case", "function": 5}', "function is not a text"),
        ('{"format": 1, "site": "site", "case": "case", "arguments": 5}', "arguments is not an object"),
        ('{"format": 1, "site": "site", "case": "case", "rows": [5]}', r"rows\[0\] is not an object"),
        ('{"format": 1, "site": "site", "case": "case", "rows": [{"junk": 1}]}', r"rows\[0\].junk is nothing that"),
        ('{"format": 1, "site": "site", "case": "case", "rows": [{"prompt_ids": [1]}]}', "output_ids is not a list"),
        ('{"format": 1, "site": "site", "case": "case", "rows": [{"inputs": [1]}]}', r"rows\[0\].inputs is not an obj"),
        (
            '{"format": 1, "site": "site", "case": "case", "rows": [{"prompt_ids": [], "output_ids": [], "loop": 1}]}',
            r"rows\[0\].loop is not a text",
        ),
        ('{"format": 1, "site": "site", "case": "case", "environment": "../../x"}', "environment is not the name of a"),
        ('{"format": 1, "site": "site", "case": "case", "rows": [{"prompt_ids": ["1"], "output_ids": []}]}', "of ids"),
        (
            '{"format": 1, "site": "site", "case": "case", "rows": '
            '[{"prompt_ids": [], "output_ids": [], "finish": {"criteria": {"Own": "4"}}}]}',
            r"rows\[0\].finish has no criteria with a number",
        ),
        ('{"format": 1, "site": "site", "case": "case", "arguments": {"p": {"$image": 5}}}', "p..image is no name"),
        (
            '{"format": 1, "site": "site", "case": "case", "arguments": {"p": {"$scratch": "../x"}}}',
            "below the scratch",
        ),
        ('{"format": 1, "site": "site", "case": "case", "arguments": {"p": {"$scratch": "/x"}}}', "below the scratch"),
    ],
)
def test_a_broken_golden_is_an_error_that_names_the_file(store: Store, content: str, says: str) -> None:
    store.write(CASE).write_text(content)
    with pytest.raises(GoldenError, match=says) as error:
        store.read("site", "case")
    assert "case.json" in str(error.value)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 << 20)  # a hole: it takes no place on the disk


@pytest.mark.parametrize(
    ("make", "says"),
    [(make_device, "is a link to '/dev/zero'"), (make_fifo, "is a pipe"), (make_large, "has more than")],
)
def test_only_a_regular_file_of_bounded_size_is_a_golden(make: Callable[[Path], None], says: str, store: Store) -> None:
    path = store.write(CASE)
    path.unlink()
    make(path)
    with pytest.raises(GoldenError, match=says):
        Store(store.root).read("site", "case")


def test_a_name_that_a_ci_log_would_obey_is_refused(store: Store) -> None:
    name = "a\n::error::b"
    with pytest.raises(GoldenError, match=r"cannot be a golden's name"):
        store.write(dataclasses.replace(CASE, case=name))
    store.write(CASE).rename(store.path("site", name))
    with pytest.raises(GoldenError, match="characters that do not print") as error:
        store.read("site", name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["/tmp/x", "../../x", "a/../../x", "..", "", "a//b", "a/", "a\\b", 5])
def test_a_file_of_a_golden_lands_nowhere_but_in_the_folder_given(store: Store, tmp_path: Path, name: Any) -> None:
    blob = store.put_blob(b"content", ".png")
    photo = {"photo": {"$file": blob, "name": name}}
    with pytest.raises(GoldenError, match="no path below the folder it is put in"):
        store.restore(photo, tmp_path / "files")
    store.write(dataclasses.replace(CASE, arguments=photo))
    with pytest.raises(GoldenError, match=r"case.json is no case: arguments.photo.name"):
        store.read("site", "case")
    assert not (tmp_path / "files").exists()


def test_files_of_a_golden_lie_as_they_lay_and_sort_as_they_did(store: Store, tmp_path: Path) -> None:
    names = ["south/a.png", "a.png", "north/c.png", "north/a.png"]
    blobs = [store.put_blob(name.encode(), ".png") for name in names]
    files = [{"$file": blob, "name": name} for blob, name in zip(blobs, names)]
    restored = store.restore(files, tmp_path / "files")
    assert [Path(path).relative_to(tmp_path / "files").as_posix() for path in restored] == names
    assert store.restore(files, tmp_path / "files") == restored  # each call finds them where the last one did
    other = {"$file": store.put_blob(b"other", ".png"), "name": "a.png"}
    assert Path(store.restore(other, tmp_path / "files")).read_bytes() == b"other"
    assert Path(restored[1]).read_bytes() == b"a.png"
    for name in ("north", "a.png/b"):  # a folder, and below a file
        assert Path(store.restore({**other, "name": name}, tmp_path / "files")).read_bytes() == b"other"


def test_a_blob_is_named_by_its_content_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(GoldenError, match="no name of a blob"):
        store.blob("../../secret")


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"site": 5},
        {"site": {"moved": 5}},
        {"site": {"backends": [5]}},
        {"site": {"backends": ["hf", "vlm"]}},
        {"site": {"cases": {"a": "hf"}}},
        {"site": {"load": {"vlm": {}}}},
        {"site": {"load": {"vllm": 5}}},
        {"site": {"load": {"vllm": {"max_modell_len": 1024}}}},
    ],
)
def test_broken_settings_are_an_error_that_names_the_file(store: Store, said: Any) -> None:
    store.write(CASE)
    (store.root / "sites.json").write_text(json.dumps(said))
    with pytest.raises(SettingsError, match=r"sites.json: .*correct it"):
        store.settings()


def test_a_setting_that_nothing_reads_is_refused_with_a_guess(store: Store) -> None:
    """A site whose backends were misspelt was checked on hf alone, and passed."""
    store.write(CASE)
    (store.root / "sites.json").write_text(json.dumps({"site": {"backend": ["hf", "vllm"]}}))
    with pytest.raises(SettingsError, match=r"site.backend is no setting; did you mean 'backends'"):
        store.settings()


def test_a_load_setting_that_no_engine_has_is_refused_with_a_guess(store: Store) -> None:
    """It was a DRIFT of the moved code, which raised TypeError."""
    store.write(CASE)
    (store.root / "sites.json").write_text(json.dumps({"site": {"load": {"vllm": {"max_modell_len": 1024}}}}))
    said = r"site.load.vllm.max_modell_len is no field of ModelLoadConfig; did you mean 'max_model_len'"
    with pytest.raises(SettingsError, match=said):
        store.settings()


def test_load_fields_are_those_of_the_engine() -> None:
    assert {*LOAD_FIELDS} == {field.name for field in dataclasses.fields(ModelLoadConfig)}


def test_a_changed_blob_is_an_error(store: Store) -> None:
    name = store.put_blob(b"pixels", ".png")
    path = store.folder.place("blobs", name)
    path.write_bytes(b"other pixels")
    with pytest.raises(GoldenError, match="was changed"):
        store.blob(name)
    path.unlink()
    with pytest.raises(GoldenError, match="is missing"):
        store.blob(name)


@pytest.mark.parametrize(("site", "case"), [("models", "a"), ("a/b", "c"), ("a", ".hidden")])
def test_a_golden_never_lands_elsewhere(store: Store, site: str, case: str) -> None:
    with pytest.raises(GoldenError, match="cannot be a golden's name"):
        store.write(dataclasses.replace(CASE, site=site, case=case))


def test_arguments_come_back_as_they_were_given(store: Store, tmp_path: Path) -> None:
    picture = tmp_path / "sub" / "photo.png"
    picture.parent.mkdir()
    Image.new("RGBA", (3, 2), (1, 2, 3, 4)).save(picture)
    image = Image.new("RGB", (2, 2), (9, 8, 7))
    kept = Keeper(store, paths=True).keep({"path": str(picture), "image": image, "raw": b"\0\1", "n": (1, 2)})
    back = store.restore(decoded(json.loads(dump(coded(kept)))), tmp_path / "files")
    assert Path(back["path"]).name == "photo.png"
    assert Path(back["path"]).read_bytes() == picture.read_bytes()
    assert list(back["image"].getdata()) == [(9, 8, 7)] * 4
    assert (back["raw"], back["n"]) == (b"\0\1", [1, 2])


def test_an_argument_that_is_no_data_says_how_to_check_instead(store: Store) -> None:
    kept = Keeper(store, paths=True).keep({"model": object()})
    with pytest.raises(GoldenError, match="check -- python script"):
        store.restore(kept)


def test_files_that_no_case_uses_are_found(store: Store) -> None:
    used, unused = store.put_blob(b"used", ".png"), store.put_blob(b"unused", ".png")
    store.write(dataclasses.replace(CASE, arguments={"image": {"$image": used}}))
    assert store.unused(store.read_all(["site"])[0]) == [("blobs", unused)]


@dataclasses.dataclass(frozen=True)
class Found:
    """As code passes them around."""

    name: str
    notes: list[Found] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        BUILT.append(self.name)


BUILT: list[str] = []


def test_dataclasses_among_arguments_come_back_as_they_were_and_no_code_of_theirs_runs(tmp_path: Path) -> None:
    given = [Found("a", [Found("b")])]
    kept = json.loads(json.dumps(Keeper(None, paths=True).keep(given)))
    BUILT.clear()
    assert Store(tmp_path).restore(kept) == given and BUILT == []
    assert objects_in(kept, "$record") == [f"{__name__}.Found"] * 2


@pytest.mark.parametrize("change", [{"$record": "os.path"}, {"$record": "nowhere.Found"}, {"fields": {"other": 1}}])
def test_what_is_no_dataclass_of_the_code_is_not_built(tmp_path: Path, change: dict[str, Any]) -> None:
    kept = Keeper(None, paths=True).keep(Found("a"))
    with pytest.raises(GoldenError, match="say in sites.json what makes"):
        Store(tmp_path).restore({**kept, **change})


@dataclasses.dataclass
class Goes:
    name: str

    def __del__(self) -> None:
        BUILT.append(self.name)


@dataclasses.dataclass
class GoesToo(Goes):
    pass


class Tells:
    def __get__(self, owner: Any, kind: Any = None) -> str:
        return "told"

    def __set__(self, owner: Any, value: Any) -> None:
        BUILT.append(value)


@dataclasses.dataclass
class Told:
    name: Tells = Tells()


@dataclasses.dataclass(init=False)
class Titled:
    name: str

    @property  # type: ignore[no-redef]
    def name(self) -> str:
        return ""

    @name.setter
    def name(self, value: str) -> None:
        BUILT.append(value)


@dataclasses.dataclass
class Raised(Exception):
    name: str


@pytest.mark.parametrize("kind", [Goes, GoesToo, Told, Titled, Raised, "golden_lazy.Found"])
def test_no_code_of_a_dataclass_runs_with_what_a_golden_says(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = ModuleType("golden_lazy")  # makes what it is asked for, as modules of large libraries do
    lazy.__getattr__ = BUILT.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "golden_lazy", lazy)
    BUILT.clear()
    said = kind if isinstance(kind, str) else f"{__name__}.{kind.__name__}"
    with pytest.raises(GoldenError, match="say in sites.json what makes"):
        Store(tmp_path).restore({"$record": said, "fields": {"name": "evil"}})
    gc.collect()
    assert BUILT == []


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    size: int = 3


class Below(Found):
    """No dataclass by a decorator of its own."""


def test_slots_are_no_code(tmp_path: Path) -> None:
    for given in (Slotted("a"), Below("a")):
        assert Store(tmp_path).restore(Keeper(None, paths=True).keep(given)) == given


# == Settings of libraries ==


def kept_again(value: Any) -> tuple[Any, Any]:
    """What a golden holds of an argument, and what comes out of it."""
    kept = Keeper(None, paths=True).keep(value)
    return kept, Store(".").restore(decoded(json.loads(json.dumps(coded(kept)))))


def test_settings_of_libraries_are_held_by_what_is_not_their_default() -> None:
    import transformers
    import vllm
    from vllm.sampling_params import StructuredOutputsParams

    config = transformers.GenerationConfig(max_new_tokens=5, do_sample=True, eos_token_id=[3, 4])
    kept, again = kept_again({"how": config})
    fields = {"max_new_tokens": 5, "do_sample": True, "eos_token_id": [3, 4]}
    assert kept == {"how": {"$settings": "transformers.GenerationConfig", "fields": fields}}
    assert again["how"].to_dict() == config.to_dict() and [*case_faults({"arguments": kept})] == []
    form = StructuredOutputsParams(choice=["a", "b"])
    params = vllm.SamplingParams(temperature=0.5, seed=3, stop="x", logit_bias={5: 2.0}, structured_outputs=form)
    kept, again = kept_again(params)
    assert kept["fields"]["structured_outputs"]["fields"] == {"choice": ["a", "b"]}
    assert kept["fields"].keys() == {"temperature", "seed", "stop", "logit_bias", "structured_outputs"}
    assert repr(again) == repr(params) and again.logit_bias == {5: 2.0}
    hooked = vllm.SamplingParams(extra_args={"f": len})  # a function is no data
    assert Keeper(None, paths=True).keep(hooked) == {"$object": "vllm.sampling_params.SamplingParams"}


@pytest.mark.parametrize("kind", [argparse.Namespace, types.SimpleNamespace])
def test_a_namespace_is_held_by_its_fields(kind: Any) -> None:
    args = kind(words=3, tags=["a"], _seed=7, inner=kind(deep=None))
    kept, again = kept_again(args)
    name = f"{kind.__module__}.{kind.__qualname__}"
    assert kept["$settings"] == name and kept["fields"]["words"] == 3
    assert again == args and type(again) is kind and [*case_faults({"arguments": {"args": kept}})] == []
    with_function = kind(run=len)  # no data
    assert Keeper(None, paths=True).keep(with_function) == {"$object": name}


class Wish(pydantic.BaseModel):
    words: int
    tags: list[str] = []

    def model_post_init(self, context: Any) -> None:
        BUILT.append("wish")


def test_a_pydantic_model_is_held_by_its_fields_and_made_without_its_code() -> None:
    wish = Wish(words=3, tags=["a"])
    BUILT.clear()
    kept, again = kept_again(wish)
    assert kept == {"$record": f"{__name__}.Wish", "fields": {"words": 3, "tags": ["a"]}}
    assert again == wish and type(again) is Wish and BUILT == []
    with pytest.raises(GoldenError, match="which the moved code does not import"):
        Store(".").restore({**kept, "fields": {"words": 3}})


@pytest.mark.parametrize(
    "said",
    [
        {"$settings": "os.system", "fields": {"command": "x"}},
        {"$settings": "subprocess.Popen", "fields": {"args": "x"}},
        {"$settings": "vllm.LLM", "fields": {"model": "evil/model"}},
        {"$settings": ["vllm.SamplingParams"], "fields": {}},
        {"$settings": "vllm.SamplingParams"},
        {"$settings": "vllm.SamplingParams", "fields": []},
        {"$settings": "vllm.SamplingParams", "fields": {"_eos_token_id": 1}},
        {"$settings": "vllm.SamplingParams", "fields": {"temperature": -5}},
        {"$settings": "transformers.GenerationConfig", "fields": {"from_pretrained": "x"}},
    ],
)
def test_a_golden_makes_no_other_object(said: dict[str, Any]) -> None:
    with pytest.raises(GoldenError):
        Store(".").restore(said)


def test_store_a_lone_surrogate_in_a_text_is_kept(tmp_path: Path) -> None:
    """A text that was cut within a character is a value like any other."""
    store = Store(tmp_path)
    kept = Case("site", "case", "m:f", {}, (), value=["a\ud800\nb", "\udfff"])
    store.write(kept)
    assert store.read(kept.site, kept.case).value == kept.value
