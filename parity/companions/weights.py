# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""New weights for a loaded engine, as RL training needs them: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="weights"`, and write

    engine.update_weights(model.state_dict(), version="step 200")

gen_engine finds this file beside itself. Names, shapes, types and values are checked before they
are written, and every cached state of the old weights is dropped: vLLM's prefix and encoder caches,
and the answers in a store, whose keys name the version.

    update_weights --> Update.take --> checked pairs --> write_hf | whole groups --> write_vllm
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Update", "Weight"]

Pairs = Iterable[tuple[str, Any]]
Weights = Mapping[str, Any] | Pairs | Callable[[], Pairs]
Table = Mapping[str, "Weight"]

# == What the model expects ==


@dataclass(frozen=True)
class Weight:
    """What a weight must be. Floating point types are converted, as loading a checkpoint does."""

    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, tensor: Any) -> Weight:
        return cls(tuple(tensor.shape), tensor.dtype)


def tied_names(tensors: Mapping[str, Any]) -> dict[str, str]:
    """The first name of each tensor that has several, by its other names."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in tensors.items():
        kept = first.setdefault(id(tensor), name)
        if kept != name:
            tied[name] = kept
    return tied


def meta_weights(checkpoint: ge.Checkpoint) -> dict[str, Any]:
    """The state dict of transformers' model, without data; empty where it has no such model."""
    auto = ge.auto_class(checkpoint)
    if type(checkpoint.config) not in auto._model_mapping:
        return {}
    with ge.lazy_import("torch").device("meta"):
        model = auto.from_config(checkpoint.config)
    return dict(model.state_dict(keep_vars=True))


def stored_weights(checkpoint: ge.Checkpoint) -> dict[str, Weight]:
    """What the checkpoint's safetensors files hold, by their headers; empty where it has none."""
    settings = checkpoint.settings
    find = ge.lazy_import("transformers.utils.hub").cached_file
    how = {"revision": settings.revision, "_raise_exceptions_for_missing_entries": False}
    index = find(settings.model, "model.safetensors.index.json", **how)
    files = ["model.safetensors"]
    if index is not None:
        with open(index, encoding="utf-8") as stream:
            files = sorted(set(json.load(stream)["weight_map"].values()))
    stored = {}
    for file in files:
        path = find(settings.model, file, **how)
        if path is None:
            continue
        with ge.lazy_import("safetensors").safe_open(path, "pt") as tensors:
            for name in list(tensors.keys()):
                part = tensors.get_slice(name)
                shape = tuple(part.get_shape())
                some = part[:0] if shape else tensors.get_tensor(name)
                stored[name] = Weight(shape, some.dtype)
    return stored


EXPERTS = ".experts."


def fused_module(name: str, packed: Mapping[str, str]) -> str:
    """The module of vLLM that a weight goes to: vLLM reads all weights of a module, or none.

    packed: the name of a fused module by those of its parts, of the last component."""
    if EXPERTS in name:
        return name.partition(EXPERTS)[0] + EXPERTS
    module, _, _ = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    return f"{parent}.{packed.get(last, last)}"


def grouped(table: Table, packed: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The names of a table by their modules in vLLM."""
    groups: dict[str, set[str]] = {}
    for name in table:
        groups.setdefault(fused_module(name, packed), set()).add(name)
    return {module: frozenset(names) for module, names in groups.items()}


def packed_modules(model: Any) -> dict[str, str]:
    """The fused module of each part, as vLLM's model names them."""
    packed = {}
    for fused, parts in (getattr(model, "packed_modules_mapping", None) or {}).items():
        for part in parts:
            packed[part] = fused
    return packed


# == What is wrong with a name ==

WRAPPERS = {  # a part of a name -> what puts it there
    "base_model.model.": "PEFT",
    "module.": "DistributedDataParallel",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FSDP",
    "_checkpoint_wrapped_module.": "activation checkpointing",
    ".base_layer": "PEFT",
}


def without_wrappers(names: Sequence[str]) -> tuple[set[str], list[str]]:
    """(the names without what wrappers add to them, what that was)."""
    bare = list(names)
    parts = []
    for part in WRAPPERS:
        if any(part in name for name in bare):
            bare = [name.replace(part, "") for name in bare]
            parts.append(part)
    return set(bare), parts


def unknown_error(names: Sequence[str], table: Table) -> ge.OptionError:
    """For names that the model does not have, with what to do about all of them."""
    name = names[0]
    problem = f"the model has no weight {ge.short_repr(name)}"
    if len(names) > 1:
        problem = f"the model has none of {len(names)} names, such as {ge.short_repr(name)}"
    if any(".lora_" in own for own in names):
        fix = "these are an adapter's: save it and use add_adapter, or send merged weights"
        return ge.OptionError(f"{problem}: {ge.short_repr(names)}", fix=fix)
    bare, parts = without_wrappers(names)
    if not parts or not table.keys() >= bare:
        return ge.OptionError(problem, fix=ge.did_you_mean(name, table))
    wrappers = " and ".join(f"{part!r} ({WRAPPERS[part]})" for part in parts)
    fix = f"send the names of the model inside the wrapper: remove {wrappers}"
    return ge.OptionError(problem, fix=fix)


# == What is wrong with a tensor ==


def is_float(dtype: Any) -> bool:
    return bool(dtype.is_floating_point and dtype.itemsize > 1)


def shape_problem(tensor: Any, weight: Weight) -> tuple[str, str] | None:
    """(what is wrong, what to do) of a tensor's kind, shape or type; None where nothing is."""
    torch = ge.lazy_import("torch")
    if hasattr(tensor, "full_tensor"):
        return "is sharded (DTensor)", "send tensor.full_tensor()"
    shape = tuple(tensor.shape)
    if shape != weight.shape:
        fix = f"it must be {weight.shape}"
        if tensor.numel() == 0:
            fix += ". Gather it first: an empty one is a partition of ZeRO-3 or FSDP"
        return f"has the shape {shape}", fix
    if tensor.is_meta:
        return "is on the meta device, without data", "load or gather it first"
    if tensor.layout != torch.strided:
        return f"is {tensor.layout}", "send a dense tensor"
    both_float = is_float(tensor.dtype) and is_float(weight.dtype)
    if tensor.dtype != weight.dtype and not both_float:
        return f"is {tensor.dtype}", f"it must be {weight.dtype}"
    return None


def value_problem(tensor: Any, weight: Weight) -> tuple[str, str] | None:
    """(what is wrong, what to do) of a tensor's values; None where nothing is."""
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.dtype.itemsize == 1:
        return None
    low, high = ge.lazy_import("torch").aminmax(tensor.detach())  # either is NaN where one is
    fix = "see to the training step: the engine keeps its weights"
    if low.isnan():
        return "has NaN values", fix
    if low.isinf() or high.isinf():
        return "has infinite values", fix
    if low.to(weight.dtype).isinf() or high.to(weight.dtype).isinf():
        return f"has values beyond {weight.dtype}", fix
    return None


def named_weight(item: Any) -> tuple[str, Any]:
    """(name, tensor). Raises OptionError for what is no tensor with a name."""
    is_pair = isinstance(item, tuple) and len(item) == 2
    is_tensor = ge.lazy_import("torch").is_tensor
    if not is_pair or not isinstance(item[0], str) or not is_tensor(item[1]):
        fix = "pass a state dict, or (name, tensor) pairs"
        raise ge.OptionError(f"a weight is {ge.short_repr(item)}", fix=fix)
    return item[0], item[1]


# == An update, in one call or in buckets ==


class Update:
    """New weights on their way into a backend.

    table: what may be sent.   groups: for vllm, the weights of each of its modules.
    tied: names of tensors that have several -> the first.   own: for hf, what is written to.
    storages: addresses of the memory of `own`.
    seen: what has been sent.   of_tied: the first name and tensor of those that are tied.
    waiting: what waits for the rest of its module.   written: how many were written.
    needs_all: an update failed half way, so that this one must have every weight.
    is_open: whether more must come before the engine may answer."""

    def __init__(self, backend: Any) -> None:
        if backend.checkpoint.settings.adapters:
            fix = "send an adapter by remove_adapter and add_adapter, or load without adapters"
            raise ge.UnsupportedError("new weights beside adapters are not supported", fix=fix)
        self.backend = backend
        self.own: Mapping[str, Any] = {}
        self.storages: set[int] = set()
        self.groups: list[dict[str, frozenset[str]]] = []
        self.packed: Mapping[str, str] = {}
        if backend.name == "hf":
            self._read_hf()
        else:
            self._read_vllm()
        self.seen: set[str] = set()
        self.of_tied: dict[str, tuple[str, Any]] = {}
        self.waiting: dict[str, Any] = {}
        self.written = 0
        self.needs_all = False
        self.is_open = False

    def _read_hf(self) -> None:
        """The names of the model's state dict."""
        self.own = self.backend.model.state_dict()
        if any(tensor.is_meta for tensor in self.own.values()):
            fix = "load it whole: leave device_map out"
            raise ge.UnsupportedError("new weights for a model that is offloaded", fix=fix)
        self.storages = {tensor.untyped_storage().data_ptr() for tensor in self.own.values()}
        self.tied = tied_names(self.backend.model.state_dict(keep_vars=True))
        self.table: Table = {name: Weight.of(tensor) for name, tensor in self.own.items()}

    def _read_vllm(self) -> None:
        """The names of transformers' model, and those of the checkpoint's files."""
        check_vllm(self.backend)
        tensors = meta_weights(self.backend.checkpoint)
        own = {name: Weight.of(tensor) for name, tensor in tensors.items()}
        stored = stored_weights(self.backend.checkpoint)
        # vLLM keeps floating point weights in the engine's type, whatever the files have.
        kept = getattr(ge.lazy_import("torch"), self.backend.checkpoint.dtype)
        self.table = {}
        for name, weight in {**own, **stored}.items():
            dtype = kept if is_float(weight.dtype) else weight.dtype
            self.table[name] = Weight(weight.shape, dtype)
        self.tied = tied_names(tensors)
        for first in set(self.tied.values()):
            for name in stored.keys() - own.keys():  # an embedding under an older name
                if name.split(".")[-2:] == first.split(".")[-2:]:
                    self.tied[name] = first
        [self.packed] = self.backend.model.apply_model(packed_modules)
        self.groups = [grouped(table, self.packed) for table in (own, stored) if table]

    # -- checks --

    def checked(
        self, pairs: Iterable[Any], seen: set[str], of_tied: dict[str, tuple[str, Any]]
    ) -> Iterator[tuple[str, Any]]:
        """The pairs, each after its checks.   seen, of_tied: get what came. Raises OptionError."""
        for name, tensor in map(named_weight, pairs):
            if name not in self.table:
                raise unknown_error([name], self.table)
            if name in seen:
                fix = "send each weight once in an update"
                if self.is_open:
                    fix += ", or all of them in one call, as a mapping or a list, to begin anew"
                raise ge.OptionError(f"the weight {name!r} is sent twice", fix=fix)
            weight = self.table[name]
            wrong = shape_problem(tensor, weight) or value_problem(tensor, weight)
            if wrong is not None:
                problem, fix = wrong
                raise ge.OptionError(f"the weight {name!r} {problem}", fix=fix)
            self._check_source(name, tensor)
            seen.add(name)
            if name in self.tied or name in self.tied.values():
                self._check_tied(name, tensor, of_tied)
            yield name, tensor

    def copied(self, pairs: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        """Pairs with tensors of their own: an iterator may write the next one over the last one,
        while vLLM still waits for the rest of a module."""
        for name, tensor in map(named_weight, pairs):
            self._check_source(name, tensor)
            yield name, tensor.detach().clone()

    def _check_source(self, name: str, tensor: Any) -> None:
        """Raise OptionError for a tensor of the engine's own model that is not this weight: it may
        have been written over when its turn comes."""
        own = self.own.get(name)
        if own is None or shape_problem(tensor, self.table[name]) is not None:
            return  # of another kind
        is_itself = tensor.data_ptr() == own.data_ptr() and tensor.stride() == own.stride()
        if tensor.untyped_storage().data_ptr() in self.storages and not is_itself:
            problem = f"the weight {name!r} is another part of the engine's own model"
            raise ge.OptionError(problem, fix="send a copy, tensor.clone(): the model is written")

    def _check_tied(self, name: str, tensor: Any, of_tied: dict[str, tuple[str, Any]]) -> None:
        """Raise OptionError for two values of one tensor."""
        other, same = of_tied.setdefault(self.tied.get(name, name), (name, tensor))
        if tensor is same or ge.lazy_import("torch").equal(tensor, same.to(tensor.device)):
            return
        problem = f"{name!r} differs from {other!r}, which is tied to it in this model"
        fix = "send one of them, or load a checkpoint whose config has tie_word_embeddings false"
        raise ge.OptionError(problem, fix=fix)

    def check_names(self, names: Iterable[Any]) -> None:
        """Raise OptionError that tells of all names that the model does not have."""
        unknown = [name for name in names if isinstance(name, str) and name not in self.table]
        if unknown:
            raise unknown_error(unknown, self.table)

    def check_complete(self, seen: set[str]) -> None:
        """Raise OptionError for weights that are missing beside these."""
        missing = sorted(self._missing_beside(seen))
        if not missing:
            return
        known = ge.short_repr(missing)
        if self.needs_all:
            problem = f"{len(missing)} weights are missing after an update that failed: {known}"
            raise ge.OptionError(problem, fix="send all of the model's weights")
        problem = f"vllm fuses weights of which {len(missing)} are missing: {known}"
        raise ge.OptionError(problem, fix="send them too, in one update")

    def _missing_beside(self, seen: set[str]) -> set[str]:
        have = self._with_tied(seen)
        if self.needs_all:
            return self._all_names() - have
        missing: set[str] = set()
        for module in {fused_module(name, self.packed) for name in seen if self.groups}:
            missing |= self._missing_of(module, have)
        return missing

    def _all_names(self) -> set[str]:
        """The names of a whole model, by transformers' state dict; of tied ones the first."""
        names = set(self.table)
        if self.groups:
            names = set().union(*self.groups[0].values())
        return names - set(self.tied)

    def _missing_of(self, module: str, have: set[str]) -> set[str]:
        """What a module of vLLM still needs: by the nearer of its two lists of names."""
        needs = [set(groups[module]) - have for groups in self.groups if module in groups]
        return min(needs, key=len)

    def _with_tied(self, names: Iterable[str]) -> set[str]:
        """Names, with those that are tied to them."""
        firsts = {self.tied.get(name, name) for name in names}
        others = {name for name, first in self.tied.items() if first in firsts}
        return firsts | others | set(names)

    # -- the call --

    def take(self, weights: Weights, *, partial: bool) -> None:
        """Check and write what one call brings. What can be read twice, a mapping, a list or a
        function, is checked whole before anything is written. Raises OptionError."""
        read = rereading(weights, self.copied)
        written = self.written
        before = set(self.seen), dict(self.of_tied), dict(self.waiting)
        try:
            if read is None:
                pairs: Iterable[Any] = self._not_empty(weights)
            else:
                if self.is_open and not partial and self._is_whole(read()):
                    self._forget_sent()  # of buckets that were left, or failed
                self._check_all(read(), partial)
                pairs = read()
            self._write(self.checked(pairs, self.seen, self.of_tied))
            if not partial:
                self.check_complete(self.seen)
        except BaseException:
            self.seen, self.of_tied, self.waiting = before
            if self.written > written:
                self._start_over()
            raise
        self.is_open = partial
        if partial:  # the caller may write the next bucket over this one
            self.waiting = dict(self.copied(self.waiting.items()))
            self.of_tied = {first: (own, held.clone()) for first, (own, held) in
                            self.of_tied.items()}  # fmt: skip

    def _not_empty(self, weights: Any) -> Iterable[Any]:
        """An iterator's pairs, of which there is one."""
        pairs = self.copied(weights)
        first = list(itertools.islice(pairs, 1))
        self._check_any(first)
        return itertools.chain(first, pairs)

    def _check_all(self, pairs: Iterable[Any], partial: bool) -> None:
        """Raise OptionError for what is wrong in pairs that can be read again."""
        if isinstance(pairs, (Sequence, ItemsView)):
            self.check_names(one[0] for one in pairs if isinstance(one, tuple) and len(one) == 2)
        seen = set(self.seen)
        for _ in self.checked(pairs, seen, dict(self.of_tied)):
            pass
        self._check_any(seen)
        if not partial:
            self.check_complete(seen)

    def _check_any(self, items: Iterable[Any]) -> None:
        """Raise OptionError for an update of nothing; an empty call may end one of several."""
        if not items and not self.is_open:
            fix = "send a state dict; after training in place there is nothing to send"
            raise ge.OptionError("there are no weights in the update", fix=fix)

    def _is_whole(self, pairs: Iterable[Any]) -> bool:
        """Whether a call brings all of the model's weights."""
        names = {name for name, _ in map(named_weight, pairs)}
        return not self._all_names() - self._with_tied(names)

    def _forget_sent(self) -> None:
        """What has been sent does not count."""
        self.seen = set()
        self.of_tied = {}
        self.waiting = {}

    def _start_over(self) -> None:
        """Part of a call was written: nothing is answered until all weights have come."""
        self._forget_sent()
        self.needs_all = True
        self.is_open = True

    def _write(self, pairs: Pairs) -> None:
        if self.backend.name == "hf":
            with ge.lazy_import("torch").no_grad():
                for name, tensor in pairs:
                    self.written += 1
                    self.own[name].copy_(tensor)
            return
        groups = self._whole_groups(pairs)
        first = list(itertools.islice(groups, 1))  # what is wrong here has touched nothing
        if first:
            self.written += 1
            write_vllm(self.backend, itertools.chain(first, groups))

    def _whole_groups(self, pairs: Pairs) -> Iterator[tuple[str, Any]]:
        """Pairs in an order in which all weights of one of vLLM's modules follow each other; what
        is tied follows too."""
        for name, tensor in pairs:
            first = self.tied.get(name, name)
            if self.of_tied.get(first, (name,))[0] != name:
                continue  # it followed the other one
            self.waiting[name] = tensor
            module = fused_module(name, self.packed)
            if self._missing_of(module, self.seen):
                continue
            for own in [own for own in self.waiting if fused_module(own, self.packed) == module]:
                whole = self.waiting.pop(own)
                for tied in self._tied_to(own):
                    yield tied, self._as_loaded(tied, whole)

    def _as_loaded(self, name: str, tensor: Any) -> Any:
        """A tensor with the digits that a load keeps of it. vLLM's reload writes a bias into the
        tensor that its kernels have: on a CPU with AMX that is float32, of a rounded one."""
        return tensor.to(self.table[name].dtype) if name.endswith(".bias") else tensor

    def _tied_to(self, name: str) -> list[str]:
        """The name, and those that are tied to it."""
        return [name, *sorted(self._with_tied([name]) - {name})]

    def problem(self) -> ge.EngineError:
        """Why the engine answers nothing while this is open."""
        if self.needs_all:
            fix = "send all of them again: update_weights(state_dict)"
            return ge.EngineError("the weights are not whole: an update failed half way", fix=fix)
        fix = "send the rest without partial=True; the last call may be update_weights({})"
        return ge.EngineError("an update of the weights is not finished", fix=fix)


def rereading(
    weights: Weights, copied: Callable[[Iterable[Any]], Iterable[Any]]
) -> Callable[[], Iterable[Any]] | None:
    """A function that gives the pairs from their beginning, those of an iterator copied; None for
    an iterator itself, which can be read once. Raises OptionError for what has no pairs."""
    if hasattr(weights, "state_dict"):
        raise ge.OptionError("a model in place of its weights", fix="pass model.state_dict()")
    if isinstance(weights, Mapping):
        return weights.items
    if callable(weights):
        return lambda: copied(weights())
    if isinstance(weights, Sequence):
        return lambda: weights
    if not isinstance(weights, Iterable):
        problem = f"the weights are {ge.short_repr(weights)}"
        raise ge.OptionError(problem, fix="pass a state dict, or (name, tensor) pairs")
    return None


# == vLLM ==

RELOAD = "vllm.model_executor.model_loader.reload"


def put_back(runner: Any) -> None:
    """Give modules of vLLM their weights back that a reload has begun and not finished."""
    kit = ge.lazy_import(f"{RELOAD}.layerwise")
    model = runner.get_model()
    for layer in model.modules():
        info = kit.get_layerwise_info(layer)
        if info.can_load():
            info.load_numel = 0
            info.loaded_weights = []
    kit.finalize_layerwise_reload(model, runner.model_config)


def check_vllm(backend: Any) -> None:
    """Raise UnsupportedError where this vLLM reads weights from disk only."""

    def takes_pairs(worker: Any) -> bool:
        runner = worker.model_runner.__class__
        return bool(ge.takes(runner, "reload_weights", "weights_iterator"))

    if not all(backend.model.collective_rpc(takes_pairs)):
        fix = "install a newer vllm, or use backend='hf'"
        raise ge.UnsupportedError("this vllm reads new weights from disk only", fix=fix)


def write_vllm(backend: Any, pairs: Pairs) -> None:
    """Load weights into vLLM's model through its worker. Raises OptionError for what vLLM
    refuses, and what the pairs raise as it is."""
    raised: list[Exception] = []

    def watched() -> Iterator[tuple[str, Any]]:
        try:
            yield from pairs
        except Exception as error:
            raised.append(error)
            raise

    def reload(worker: Any) -> None:
        runner = worker.model_runner
        with contextlib.ExitStack() as stack:
            stack.callback(put_back, runner)
            runner.reload_weights(weights_iterator=watched())
            stack.pop_all()  # all came

    try:
        with (
            backend.healthy(),
            ge.wrapping_errors(ge.OptionError, "vLLM refused the weights", "see the cause"),
        ):
            backend.model.collective_rpc(reload)
        return
    except ge.OptionError:
        if not raised:
            raise
    raise raised[0]
