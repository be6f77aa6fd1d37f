"""The model: its class, weights, type, attention, adapters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parity.goldens.verdict import Difference
from parity.judge.row import Row, model_in, prompt_of, request_of
from parity.judge.stages.stage import Stage

DECLARED = ("class", "dtype", "quantization", "attention", "buffers")
OF_WEIGHTS = ("dtype", "quantization")  # where these differ, so do the weights
# Of the weights in memory, and on disk: the first that both sides have is compared.
FINGERPRINTS = ("weights", "tensors", "files")
# vLLM chooses its own attention, and makes its tables by itself; older goldens have no config.
SEEN_ON_BOTH = ("attention", "buffers", "config")


def model_differences(old: Row, new: Row) -> Iterator[Difference]:
    model = model_in(old)
    new_model = model_in(new)
    both = model.keys() & new_model.keys()
    names = list(DECLARED)
    if all(model.get(name) == new_model.get(name) for name in OF_WEIGHTS):
        names += [name for name in FINGERPRINTS if name in both][:1]
    names.append("config")
    for name in names:
        if name in SEEN_ON_BOTH and name not in both:
            continue
        before = model.get(name)
        after = new_model.get(name)
        if before != after:
            told = weights_words(before, model), weights_words(after, new_model)
            words = told if name in (*FINGERPRINTS, "config") else None
            # Of equal weights that answer alike, another config.json is no matter.
            counts = name != "config" or old["output_ids"] != new["output_ids"]
            yield Difference("model", name, before, after, counts=counts, words=words)


def weights_words(fingerprint: Any, model: Mapping[str, Any]) -> str:
    path = model.get("path")
    return f"{fingerprint} of {path}" if path else str(fingerprint)


def tells_its_adapter(row: Row) -> bool:
    """Of plain code on hf only that there is one, and not which."""
    is_bare = "inputs" in row and not row["inputs"].get("adapters")
    is_vllm = model_in(row).get("backend") == "vllm"
    return is_bare or is_vllm or "adapter" in request_of(row)


def adapter_differences(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Difference]:
    """Other adapters: of vLLM's requests, or of an engine's, than were asked for; on hf, of all
    rows with one prompt together, because which of them had which is not to be seen."""
    folders = folders_of(pairs)
    found: dict[tuple[int, ...], tuple[int, set[str], set[str]]] = {}
    for number, (old, new) in enumerate(pairs):
        if request_of(new).get("adapter") == "another":
            yield Difference("model", "adapters", "the one asked for", "another", number)
        elif "inputs" in old and "inputs" in new:
            prompt = prompt_of(old)
            _, mine, theirs = found.setdefault(prompt, (number, set(), set()))
            mine.update(old["inputs"].get("adapters", [""]))
            theirs.update(new["inputs"].get("adapters", [""]))
        else:
            yield from named_adapters(number, old, new, folders)
    for number, mine, theirs in found.values():
        if mine != theirs:
            before, after = sorted(mine), sorted(theirs)
            words = adapter_words(before, folders), adapter_words(after, folders)
            yield Difference("model", "adapters", before, after, number, words=words)


def folders_of(pairs: Sequence[tuple[Row, Row]]) -> dict[str, str]:
    """Fingerprint -> folder, of the adapters of rows that say both."""
    found = {}
    for row in itertools.chain.from_iterable(pairs):
        folder = request_of(row).get("adapter")
        prints = row.get("inputs", {}).get("adapters", ())
        if folder and folder != "another" and len(prints) == 1:
            found[prints[0]] = folder
    return found


def adapter_words(told: Any, folders: Mapping[str, str]) -> str:
    """What `adapter_told` says, for a person."""
    if not told:
        return "no adapter"
    if isinstance(told, str):
        return told
    return " and ".join(print_words(one, folders) for one in told)


def print_words(fingerprint: str, folders: Mapping[str, str]) -> str:
    if not fingerprint:
        return "no adapter"
    unseen = f"an adapter whose folder was not seen (weights {fingerprint})"
    return folders.get(fingerprint, unseen)


def named_adapters(
    number: int, old: Row, new: Row, folders: Mapping[str, str]
) -> Iterator[Difference]:
    before = adapter_told(old)
    after = adapter_told(new)
    if before == after or "" in (before, after):
        return
    if None in (before, after) or type(before) is type(after):  # no folder is a fingerprint
        words = adapter_words(before, folders), adapter_words(after, folders)
        yield Difference("model", "adapters", before, after, number, words=words)


def adapter_told(row: Row) -> Any:
    """The folder of a row's adapter, or its fingerprints; None: it has none; "": not known."""
    if tells_its_adapter(row):
        return request_of(row).get("adapter")
    prints = row.get("inputs", {}).get("adapters", [""])
    return "" if "" in prints else prints


STAGE = Stage(
    fields=("model",),
    compare=model_differences,
    compare_all=lambda case: adapter_differences(case.pairs),
)
