"""A block as it is reported: where it stands, its facts, and how to record it."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from parity.goldens.functions import unrecordable
from parity.scan.blocks import Block
from parity.scan.index import Module, Repository, Scope
from parity.scan.kinds import Kinds
from parity.scan.origins import Fact

MAX_CALLERS = 4  # functions between a block and the top level of a script


@dataclass
class ScannedBlock:
    """record: the command that records it. note: what stands in the way of that. key: its name in
    a baseline."""

    block: Block
    kind: str
    facts: dict[str, Fact]
    record: str = ""
    note: str = ""
    site: str = ""
    target: str = ""
    key: str = ""
    group: str | None = None
    callers: list[str] = field(default_factory=list)

    @property
    def file(self) -> str:
        return self.block.module.path

    @property
    def line(self) -> int:
        return self.block.line

    @property
    def function(self) -> str:
        return self.block.function

    @property
    def library(self) -> str:
        return self.block.library

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class Recording:
    """Says how a block is recorded: its site and the command that reaches it."""

    def __init__(self, repository: Repository, kinds: Kinds) -> None:
        self.repository = repository
        self.kinds = kinds

    def describe(self, scanned: ScannedBlock) -> None:
        module = scanned.block.module
        scope = self.function_to_record(scanned.block.scope, 0)
        entry = self.entry(scanned.block.scope)
        if module.source.is_notebook:
            self.describe_notebook(scanned)
            return
        command = f"python {shlex.quote(entry)}" if entry else "python YOUR_SCRIPT.py"
        if scope is None:
            scanned.site = site_name(module.path, "")
            scanned.note = problem_of(outermost(scanned.block.scope))
            own = f"python {shlex.quote(module.path)}"
            script = command if scanned.block.scope.qualname else own
            scanned.record = f"python -m parity record --name {scanned.site} -- {script} …"
            return
        is_script = entry == scope.module.path
        where = scope.module.path if is_script else import_name(scope.module)
        scanned.target = f"{where}:{scope.qualname}"
        scanned.site = site_name(scope.module.path, scope.qualname)
        if scope is not scanned.block.scope:
            scanned.note = (
                f"recorded at {scope.qualname}, the function around it that returns a value"
            )
        if not entry:
            entry_package = self.package_entry(module)
            command = f"-m {entry_package}" if entry_package else command
        scanned.record = (
            f"python -m parity record --site {scanned.site}={shlex.quote(scanned.target)}"
            f" -- {command} …"
        )

    @staticmethod
    def describe_notebook(scanned: ScannedBlock) -> None:
        path = scanned.file
        script = shlex.quote(path.removesuffix(".ipynb") + ".py")
        scanned.site = site_name(path, "")
        scanned.note = f"a notebook: first `jupyter nbconvert --to script {shlex.quote(path)}`"
        scanned.record = f"python -m parity record --name {scanned.site} -- python {script} …"

    def function_to_record(self, scope: Scope, depth: int) -> Scope | None:
        """The function around a block, or one that calls it, that gives goldens."""
        scope = outermost(scope)
        if not scope.qualname:
            return None
        if not problem_of(scope):
            return scope
        for caller, _ in self.kinds.calls_of(scope, 3) if depth < 3 else ():
            found = self.function_to_record(caller, depth + 1)
            if found is not None:
                return found
        return None

    def entry(self, scope: Scope) -> str:
        """A script that reaches a block: its own file, one that calls it as it is run, or one that
        imports it; "" where none does."""
        callers = self.modules_that_run(scope)
        for module in (scope.module, *callers, *self.importers(scope.module, 2)):
            if module in callers or is_script(module):
                return module.path
        return ""

    def modules_that_run(self, scope: Scope) -> list[Module]:
        """The files whose top level calls a function, itself or through others, the nearest
        first; without notebooks, which no command runs."""
        found = list[Module]()
        seen = {id(scope)}
        level = [scope]
        for _ in range(MAX_CALLERS):
            callers = [caller for one in level for caller, _ in self.kinds.calls_of(one, 6)]
            level = [one for one in callers if one.qualname and id(one) not in seen]
            seen.update(map(id, level))
            tops = [one.module for one in callers if not one.qualname]
            found += [one for one in tops if not one.source.is_notebook and one not in found]
        return found

    def importers(self, module: Module, depth: int) -> Iterator[Module]:
        tail = module.name.rpartition(".")[2]
        found = list[Module]()
        for other in self.repository.importers.get(tail, ())[:20]:
            targets = [target for target in other.imports.values() if tail in target.split(".")]
            if other is not module and any(
                self.reaches(target, other, module) for target in targets
            ):
                found.append(other)
        yield from found
        for other in found[:6] if depth > 1 else ():
            yield from self.importers(other, depth - 1)

    def reaches(self, target: str, importer: Module, module: Module) -> bool:
        found = self.repository.find_module(target, importer)
        found = found or self.repository.find_module(target.rpartition(".")[0], importer)
        return found is module

    def package_entry(self, module: Module) -> str:
        """The package above a module that can be run by `python -m`; "" where there is none."""
        parts = module.path.replace(os.sep, "/").split("/")[:-1]
        for end in range(len(parts), 0, -1):
            path = "/".join([*parts[:end], "__main__.py"])
            if os.path.exists(path):
                return import_name_of(path).removesuffix(".__main__")
        return ""


def outermost(scope: Scope) -> Scope:
    """The function at the top of a file, or the method, that a scope is inside of."""
    while scope.parent is not None and scope.parent.qualname:
        scope = scope.parent
    return scope


def problem_of(scope: Scope) -> str:
    """Why a function gives no goldens; "" where it does, and of the top level of a file."""
    assert isinstance(scope.module.scope.node, ast.Module)
    return unrecordable(scope.module.scope.node, scope.qualname, is_script=is_script(scope.module))


def is_script(module: Module) -> bool:
    return (
        re.search(r"^if __name__ *== *['\"]__main__['\"]", module.source.text, re.MULTILINE)
        is not None
    )


def import_name(module: Module) -> str:
    return import_name_of(module.path)


def import_name_of(path: str) -> str:
    """The dotted name that a file is imported by: from the highest folder that is a package;
    folders within it
    need no __init__.py."""
    parts = path.replace(os.sep, "/").removesuffix(".py").split("/")
    tops = [
        end
        for end in range(1, len(parts))
        if os.path.exists("/".join([*parts[:end], "__init__.py"]))
    ]
    names = parts[tops[0] - 1 :] if tops else parts[-1:]
    return ".".join(names[:-1] if names[-1] == "__init__" and len(names) > 1 else names)


def site_name(path: str, qualname: str) -> str:
    """A name for the goldens of a block: "llava-generate_until"."""
    stem = os.path.splitext(os.path.basename(path))[0]
    if stem == "__init__":
        stem = os.path.basename(os.path.dirname(path))
    last = qualname.rpartition(".")[2]
    name = f"{stem}-{last}" if last else stem
    return re.sub(r"[^\w.-]+", "-", name).lstrip("-.") or "site"
