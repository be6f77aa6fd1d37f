"""The model: its class, weights, type, attention, adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.judge.row import Row
from parity.judge.stages.stage import Compared, Stage
from parity.verdict import Difference


def model_differences(old: Row, new: Row) -> Iterator[Difference]:
    mine, theirs = old.get("model", {}), new.get("model", {})
    for name in ("class", "dtype", "quantization", "attention", "buffers"):
        if name in ("attention", "buffers") and (name not in mine or name not in theirs):
            continue  # vLLM chooses its own attention, and makes its tables by itself
        if mine.get(name) != theirs.get(name):
            yield Difference("model", name, mine.get(name), theirs.get(name))
    name = "weights" if "weights" in mine and "weights" in theirs else "files"
    same_kind = mine.get("dtype") == theirs.get("dtype") and mine.get("quantization") == theirs.get("quantization")
    if same_kind and name in mine and name in theirs and mine[name] != theirs[name]:
        yield Difference("model", name, mine[name], theirs[name])


def tells_its_adapter(row: Row) -> bool:
    """Of plain code on hf only that there is one, and not which."""
    bare = "inputs" in row and not row["inputs"].get("adapters")
    return bare or row.get("model", {}).get("backend") == "vllm" or "adapter" in (row.get("request") or {})


def adapter_differences(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Difference]:
    """Other adapters: of vLLM's requests, or of an engine's, than were asked for; on hf, of all rows with one prompt
    together, because which of them had which is not to be seen."""
    found: dict[tuple[int, ...], tuple[int, set[str], set[str]]] = {}
    for number, (old, new) in enumerate(pairs):
        named = [(row.get("request") or {}).get("adapter") for row in (old, new)]
        if named[1] == "another":
            yield Difference("model", "adapters", "the one asked for", "another", number)
        elif "inputs" in old and "inputs" in new:
            _, mine, theirs = found.setdefault(tuple(old["prompt_ids"]), (number, set(), set()))
            mine.update(old["inputs"].get("adapters", [""]))
            theirs.update(new["inputs"].get("adapters", [""]))
        elif named[0] != named[1] and all(map(tells_its_adapter, (old, new))):
            yield Difference("model", "adapters", named[0], named[1], number)
    for number, mine, theirs in found.values():
        if mine != theirs:
            yield Difference("model", "adapters", sorted(mine), sorted(theirs), number)


def compare_adapters(comparison: Compared) -> Iterator[Difference]:
    return adapter_differences(comparison.pairs)


STAGE = Stage("model", fields=("model",), compare=model_differences, compare_all=compare_adapters)
