"""What is installed beside an interpreter, and environments that are put together from two others.

Nothing is downloaded and nothing installed: a made environment holds links to the files of the
packages that it is made of. Imports the standard library only, for any interpreter may run it.

here = installed(sys.executable, variables)
python = make_environment(folder, {**here.packages, "jinja2": there.packages["jinja2"]}.values())
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import re
import sys
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

OF_INSTALLING = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"}


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution.   folder: the site-packages that it lies in.   files: paths in there, ()
    where its installer kept no list.   requires: as its metadata says.   content: a digest of its
    files, so that two builds of one version are told apart."""

    name: str
    version: str
    folder: str
    files: tuple[str, ...]
    requires: tuple[str, ...]
    content: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment.   python: "3.11".   system: operating system and processor.
    has_vllm: whether vLLM is installed.   packages: by name."""

    python: str
    system: str
    has_vllm: bool
    packages: Mapping[str, Package]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_here() -> Installed:
    """Of this interpreter; the first of a name is the one that is imported."""
    packages: dict[str, Package] = {}
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"]
        if name and normalized(name) not in packages:
            packages[normalized(name)] = package_of(normalized(name), found)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    system = f"{platform.system()} {platform.machine()}"
    return Installed(python, system, find_spec("vllm") is not None, packages)


def package_of(name: str, found: importlib.metadata.Distribution) -> Package:
    files = [file for file in found.files or () if ".." not in file.parts and file.suffix != ".pyc"]
    hashed = sorted(f"{f} {f.hash}" for f in files if f.hash and f.name not in OF_INSTALLING)
    return Package(
        name,
        found.version,
        str(Path(str(found.locate_file(""))).resolve()),
        tuple(map(str, files)),
        tuple(found.requires or ()),
        hashlib.sha256("\n".join(hashed).encode()).hexdigest(),
    )


def to_json(one: Installed) -> str:
    return json.dumps(dataclasses.asdict(one))


def from_json(text: str) -> Installed:
    value: dict[str, Any] = json.loads(text)
    packages = {}
    for name, fields in value["packages"].items():
        lists = {kind: tuple(fields[kind]) for kind in ("files", "requires")}
        packages[name] = Package(**{**fields, **lists})
    return Installed(value["python"], value["system"], value["has_vllm"], packages)


def make_environment(folder: Path, packages: Iterable[Package]) -> Path:
    """An environment of this interpreter with links to these packages. Returns its Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    [site] = folder.glob("lib/python*/site-packages")
    owners: dict[str, set[str]] = {}
    chosen = list(packages)
    for package in chosen:
        for file in package.files:
            owners.setdefault(PurePath(file).parts[0], set()).add(package.name)
    for package in chosen:
        link_package(site, package, owners)
    return folder / "bin/python"


def link_package(site: Path, package: Package, owners: Mapping[str, set[str]]) -> None:
    """Whole folders where no other package has files in them, else file by file."""
    for file in package.files:
        top = PurePath(file).parts[0]
        part = top if len(owners[top]) == 1 else file
        link = site / part
        if not link.exists() and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(package.folder, part))


if __name__ == "__main__":
    print(to_json(installed_here()))
