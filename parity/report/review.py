"""What has become of the goldens since a git revision: for whoever reviews a pull request.

A check says whether the code gives what the goldens hold. It cannot say that they are the goldens
of yesterday: a golden that was recorded again, a part of a value that is no longer compared, or a
site that lost a backend hides a drift. These are the lines for that, what can hide one first:

    changes_since("origin/main", Path("golden"))    (Change("accepted.json: new: ...", True), ...)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parity.environment.revision import git, git_output
from parity.goldens.folder import GoldenError
from parity.goldens.safe_text import printable
from parity.goldens.store import (
    ACCEPTED_JSON,
    MOST_JSON,
    RESERVED,
    SITES_JSON,
    SUFFIX,
    Store,
    is_case_file,
    parsed,
)
from parity.goldens.verdict import Change, Difference, brief
from parity.report.words import changing_places

NO_PARTS = ("rows", "environment", "digest")  # compared by their own parts, or made of the others
FIRST, SECOND, THIRD, ROUTINE = range(4)  # ranks of lines; only the routine ones are ever cut
SUBMODULE = "160000"  # git's mode of a folder that is another repository
MOST_PLACES = 100  # of one golden that are not compared; the widest stand first
MOST_REASON = 300  # characters
Ranked = tuple[int, str]


class ChangedFile(NamedTuple):
    """status: A, M, D or T, as git says it.   old_blob: of the revision; "" where it had none."""

    path: str
    status: str
    mode: str
    old_blob: str


def changes_since(revision: str, root: Path) -> tuple[Change, ...]:
    """What each golden and each setting that is new, changed or gone since `revision` means.

    root: the folder of goldens, inside a git repository. Raises ValueError for no such revision,
    GoldenError for a link among the goldens."""
    if not root.is_dir():
        raise ValueError(f"--since: there is no folder {root}")
    store = Store(root)
    store.folder.place()
    commit = revision_in(revision, root)
    lines: list[Ranked] = []
    for file in changed_files(commit, root):
        lines += lines_of(file, store)
    lines.sort(key=lambda ranked: ranked[0])
    return tuple(Change(printable(line), rank != ROUTINE) for rank, line in lines)


def revision_in(revision: str, root: Path) -> str:
    try:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return git(*words, folder=root)
    except ValueError:
        raise ValueError(
            f"--since {revision!r} is no revision of the repository of {root}"
        ) from None


def changed_files(commit: str, root: Path) -> list[ChangedFile]:
    """Each file below `root` that differs, those that git does not track yet among them, sorted by
    path. No .gitmodules or .gitattributes of the pull request hides one."""
    words = ("diff", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
    entries = git_output(*words, "--relative", "-z", commit, "--", ".", folder=root).split("\0")
    found: dict[str, ChangedFile] = {}
    for facts, path in zip(entries[::2], entries[1::2]):
        old_mode, mode, old_blob, _, status = facts.lstrip(":").split()
        blob = old_blob if old_mode.startswith("100") else ""
        found[path] = ChangedFile(path, status[:1], mode, blob)
    new = git_output("ls-files", "--others", "--exclude-standard", "-z", folder=root).split("\0")
    for path in filter(None, new):
        is_repository = path.endswith("/")
        old = found.get(path)
        mode = SUBMODULE if is_repository else ""
        found[path] = ChangedFile(path, "A", mode, old.old_blob if old else "")
    return [found[path] for path in sorted(found)]


def lines_of(file: ChangedFile, store: Store) -> Iterator[Ranked]:
    """What one changed file means."""
    parts = file.path.rstrip("/").split("/")
    if file.mode == SUBMODULE:
        yield FIRST, f"{file.path} is another git repository: what changed in it is not known"
    elif parts == [SITES_JSON]:
        for line in settings_lines(old_json(file, store), new_json(file, store)):
            yield FIRST, f"{SITES_JSON}: {line}"
    elif parts == [ACCEPTED_JSON]:
        for line in acceptance_lines(old_json(file, store), new_json(file, store)):
            yield FIRST, f"{ACCEPTED_JSON}: {line}"
    elif len(parts) == 2 and parts[0] not in RESERVED and is_case_file(parts[1]):
        yield golden_line(file, store)
    elif parts[0] == "models":
        yield THIRD, f"changed checkpoint file {file.path}"


def old_json(file: ChangedFile, store: Store) -> Any:
    """A file of JSON as it was; {} where it was not there, was none, or is too large to read."""
    if not file.old_blob:
        return {}
    size = int(git("cat-file", "-s", file.old_blob, folder=store.root))
    if size > MOST_JSON:
        return {}
    try:
        return parsed(git("cat-file", "blob", file.old_blob, folder=store.root))
    except ValueError:
        return {}


def new_json(file: ChangedFile, store: Store) -> Any:
    """A file of JSON as it is; {} where it is gone or is none: the check itself says so."""
    try:
        return store.read_json(*file.path.split("/"))
    except GoldenError:
        return {}


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# == One golden ==


def golden_line(file: ChangedFile, store: Store) -> Ranked:
    name = file.path.removesuffix(SUFFIX)
    if file.status == "D":
        return FIRST, f"removed golden {name}: no longer compared"
    new = as_mapping(new_json(file, store))
    note = uncompared_note(new)
    if file.status == "A":
        # What was not compared before hides less than what no longer is.
        return (SECOND if note else ROUTINE), f"new golden {name}{note}"
    old = as_mapping(old_json(file, store))
    parts = list(changed_parts(old, new))
    what = ", ".join(parts) or "its layout"
    return rank_of(parts, note), f"changed golden {name}: {what}{note}"


def rank_of(parts: list[str], note: str) -> int:
    """Settings of rows are compared, too; a layout is nothing."""
    if note or any(not part.startswith("rows.") for part in parts):
        return FIRST
    return SECOND if parts else ROUTINE


def changed_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Names of what differs between two goldens of one case: its keys, of its rows their keys."""
    for key in dict.fromkeys([*old, *new]):
        if key not in NO_PARTS and old.get(key) != new.get(key):
            yield key
    if old.get("digest") and not new.get("digest"):
        yield "its digest is gone, so that edits are not seen"
    old_rows = as_list(old.get("rows"))
    new_rows = as_list(new.get("rows"))
    if len(old_rows) != len(new_rows):
        yield f"{len(old_rows)} rows are {len(new_rows)}"
        return
    fields: dict[str, None] = {}
    for old_row, new_row in zip(map(as_mapping, old_rows), map(as_mapping, new_rows)):
        names = [k for k in {**old_row, **new_row} if old_row.get(k) != new_row.get(k)]
        fields |= dict.fromkeys(names)
    yield from (f"rows.{name}" for name in fields)


def uncompared_note(new: Mapping[str, Any]) -> str:
    """What a golden leaves out of the comparison, the widest part first."""
    note = "" if as_list(new.get("rows")) else "; NOT COMPARED in it: any call of the model"
    parts = [part for part in as_list(new.get("changing")) if isinstance(part, Mapping)]
    places = changing_places(sorted(parts, key=lambda part: len(as_list(part.get("at")))))
    if places:
        more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
        note += f"; NOT COMPARED in it: {', '.join(places[:MOST_PLACES])}{more}"
    return note


# == Settings and acceptances ==


def settings_lines(old: Any, new: Any) -> Iterator[str]:
    """What changed in sites.json: a backend or a case that is taken out is no longer compared."""
    before = as_mapping(old)
    after = as_mapping(new)
    for site in sorted({*before, *after}):
        if site in after:
            yield from value_lines(site, before.get(site, {}), after[site])
        else:
            yield f"{site} is gone"


def value_lines(place: str, old: Any, new: Any) -> Iterator[str]:
    """Each entry that differs, by itself: in a long one a reader does not see what changed."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            inner = f"{place}.{key}"
            if key not in new:
                yield f"{inner} is gone; it was {brief(json.dumps(old[key]))}"
            elif key not in old and not isinstance(new[key], (Mapping, list)):
                yield f"{inner} is new: {brief(json.dumps(new[key]))}"
            else:
                yield from value_lines(inner, old.get(key, type(new[key])()), new[key])
    elif isinstance(old, list) and isinstance(new, list):
        yield from (f"{place} has no {json.dumps(one)} any more" for one in old if one not in new)
        yield from (f"{place} has {json.dumps(one)} now" for one in new if one not in old)
        if old != new and sorted(map(repr, old)) == sorted(map(repr, new)):
            yield f"{place} is in another order"
    elif old != new:
        yield Difference(place, "", old, new).sentence()


def acceptance_lines(old: Any, new: Any) -> Iterator[str]:
    before = {acceptance_place(entry): entry for entry in as_list(old)}
    after = {acceptance_place(entry): entry for entry in as_list(new)}
    for place, entry in after.items():
        if place not in before:
            yield f"new: {acceptance_text(entry)}"
        elif entry != before[place]:
            changed = changed_parts(as_mapping(before[place]), as_mapping(entry))
            yield f"changed ({', '.join(changed)}): {acceptance_text(entry)}"
    for place, entry in before.items():
        if place not in after:
            yield f"no longer: {acceptance_text(entry)}"


def acceptance_place(entry: Any) -> str:
    told = as_mapping(entry)
    return f"{told.get('site')}/{told.get('case')} on {told.get('backend')}"


def acceptance_text(entry: Any) -> str:
    told = as_mapping(entry)
    cause, reason = (brief(told.get(name), MOST_REASON) for name in ("cause", "reason"))
    return f"{acceptance_place(entry)}: {cause}: {reason}, until {told.get('until')}"
