"""What has become of the goldens since a git revision: for whoever reviews a pull request.

A check says whether the code gives what the goldens hold. It cannot say that they are the goldens
of yesterday: a golden that was recorded again, a part of a value that is no longer compared, or a
site that lost a backend hides a drift. These are the lines for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.goldens.store import RESERVED, parsed
from parity.goldens.verdict import brief, printable
from parity.judge.revision import git
from parity.report.words import changing_places

JSON = ".json"
NO_PARTS = ("rows", "environment", "digest")  # compared by their own parts, or made of the others


def changes_since(revision: str, root: Path) -> list[str]:
    """A line for each golden that is new, changed or gone since `revision`, and for each setting.

    root: the folder of goldens, inside a git repository. Raises ValueError for no such revision.
    """
    if not root.is_dir():
        raise ValueError(f"--since: there is no folder {root}")
    commit = revision_in(revision, root)
    lines: list[str] = []
    for status, path in changed_files(commit, root):
        lines += lines_of(status, path, commit, root)
    return [printable(line) for line in lines]


def revision_in(revision: str, root: Path) -> str:
    try:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return git(*words, folder=root)
    except ValueError:
        raise ValueError(
            f"--since {revision!r} is no revision of the repository of {root}"
        ) from None


def changed_files(commit: str, root: Path) -> Iterator[tuple[str, Path]]:
    """(A, M or D, path below `root`) of each file that differs, those that git does not track yet
    among them, sorted by path."""
    found: dict[str, str] = {}
    words = ("diff", "--name-status", "--no-renames", "--relative", "-z", commit, "--", ".")
    entries = git(*words, folder=root).split("\0")
    for status, path in zip(entries[::2], entries[1::2]):
        found[path] = status[:1]
    new = git("ls-files", "--others", "--exclude-standard", "-z", folder=root).split("\0")
    for path in filter(None, new):
        found[path] = "A"
    for path in sorted(found):
        yield found[path], Path(path)


def lines_of(status: str, path: Path, commit: str, root: Path) -> Iterator[str]:
    """What one changed file means."""
    if str(path) == "sites.json":
        yield from settings_lines(read_then(path, commit, root), read_now(root / path))
    elif str(path) == "accepted.json":
        yield from acceptance_lines(read_then(path, commit, root), read_now(root / path))
    elif len(path.parts) == 2 and path.parts[0] not in RESERVED and path.suffix == JSON:
        name = f"{path.parent}/{path.stem}"
        if status == "D":
            yield f"removed golden {name}: no longer compared"
        elif status == "A":
            yield f"new golden {name}{changing_note(read_now(root / path))}"
        else:
            now = read_now(root / path)
            what = ", ".join(changed_parts(read_then(path, commit, root), now))
            yield f"changed golden {name}: {what or 'its layout'}{changing_note(now)}"
    elif path.parts[0] == "models":
        yield f"changed checkpoint file {path}"


def read_then(path: Path, commit: str, root: Path) -> Any:
    """A file of JSON as it was; {} where it was not there or was none."""
    try:
        return parsed(git("show", f"{commit}:./{path}", folder=root))
    except ValueError:
        return {}


def read_now(path: Path) -> Any:
    """A file of JSON as it is; {} where it is gone or is none: the check itself says so."""
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# == One golden ==


def changed_parts(then: Any, now: Any) -> Iterator[str]:
    """Names of what differs between two goldens of one case: its keys, of its rows their keys."""
    before, after = as_mapping(then), as_mapping(now)
    for key in dict.fromkeys([*before, *after]):
        if key not in NO_PARTS and before.get(key) != after.get(key):
            yield key
    if before.get("digest") and not after.get("digest"):
        yield "its digest is gone, so that edits are not seen"
    old_rows, new_rows = before.get("rows", []), after.get("rows", [])
    if len(old_rows) != len(new_rows):
        yield f"{len(old_rows)} rows are {len(new_rows)}"
        return
    fields: dict[str, None] = {}
    for old, new in zip(old_rows, new_rows):
        old, new = as_mapping(old), as_mapping(new)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        fields |= dict.fromkeys(names)
    yield from (f"rows.{name}" for name in fields)


def changing_note(golden: Any) -> str:
    places = changing_places(as_mapping(golden).get("changing", ()))
    return f"; NOT COMPARED in it: {', '.join(places)}" if places else ""


# == Settings and acceptances ==


def settings_lines(then: Any, now: Any) -> Iterator[str]:
    """What changed in sites.json: a backend or a case that is taken out is no longer compared."""
    before, after = as_mapping(then), as_mapping(now)
    for site in sorted({*before, *after}):
        old, new = as_mapping(before.get(site)), as_mapping(after.get(site))
        if not new:
            yield f"sites.json: {site} is gone"
            continue
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                was, now_is = (brief(json.dumps(side.get(key))) for side in (old, new))
                yield f"sites.json: {site}.{key} was {was}, is {now_is}"


def acceptance_lines(then: Any, now: Any) -> Iterator[str]:
    before = then if isinstance(then, list) else []
    after = now if isinstance(now, list) else []
    places = [acceptance_place(entry) for entry in before]
    for entry in after:
        if entry not in before:
            word = "changed" if acceptance_place(entry) in places else "new"
            yield f"accepted.json: {word}: {acceptance_text(entry)}"
    kept = [acceptance_place(entry) for entry in after]
    for entry in before:
        if acceptance_place(entry) not in kept:
            yield f"accepted.json: no longer: {acceptance_text(entry)}"


def acceptance_place(entry: Any) -> str:
    told = as_mapping(entry)
    return f"{told.get('site')}/{told.get('case')} on {told.get('backend')}"


def acceptance_text(entry: Any) -> str:
    told = as_mapping(entry)
    return f"{acceptance_place(entry)}: {told.get('cause')}: {told.get('reason')}"
