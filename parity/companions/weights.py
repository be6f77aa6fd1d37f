# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""New weights for a loaded engine, as RL training needs them: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="weights"`, and write

    engine.update_weights(model.state_dict(), version="step 200")

gen_engine finds this file beside itself. Every cached state of the old weights is dropped: vLLM's
prefix cache, and the answers in a store, whose keys name the version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.0"

__all__ = ["update"]

Weights = Mapping[str, Any] | Iterable[tuple[str, Any]]


def named_weights(weights: Weights) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of each weight. Raises OptionError for what is no tensor with a name."""
    is_tensor = ge.lazy_import("torch").is_tensor
    for item in weights.items() if isinstance(weights, Mapping) else weights:
        is_pair = isinstance(item, tuple) and len(item) == 2
        if not is_pair or not isinstance(item[0], str) or not is_tensor(item[1]):
            fix = "pass a state dict, or (name, tensor) pairs"
            raise ge.OptionError(f"a weight is {ge.short_repr(item)}", fix=fix)
        yield item


def check_adapters(backend: Any) -> None:
    if backend.checkpoint.settings.adapters:
        fix = "load without adapters, or load the checkpoint that has the new weights"
        raise ge.UnsupportedError("new weights beside adapters are not supported", fix=fix)


def update_hf(backend: Any, weights: Weights) -> None:
    """Copy weights into a transformers model in place. The names are those of its state dict; what
    is not named stays. Raises OptionError for an unknown name or another shape, after the weights
    before it have been copied."""
    check_adapters(backend)
    own = backend.model.state_dict()
    with ge.lazy_import("torch").no_grad():
        for name, tensor in named_weights(weights):
            if name not in own:
                raise ge.OptionError(
                    f"the model has no weight {name!r}", fix=ge.did_you_mean(name, own)
                )
            if own[name].shape != tensor.shape:
                expected = tuple(own[name].shape)
                problem = f"the weight {name!r} has the shape {tuple(tensor.shape)}"
                raise ge.OptionError(problem, fix=f"it must be {expected}")
            own[name].copy_(tensor)


def update_vllm(backend: Any, weights: Weights) -> None:
    """Load weights into vLLM's model through its worker, and forget the prefix cache. The names are
    those of the checkpoint. Raises UnsupportedError where this vLLM only reads from disk."""
    check_adapters(backend)
    pairs = list(named_weights(weights))

    def reload(worker: Any) -> None:
        runner = worker.model_runner
        if not ge.takes(runner.__class__, "reload_weights", "weights_iterator"):
            fix = "install a newer vllm, or use backend='hf'"
            raise ge.UnsupportedError("this vllm reads new weights from disk only", fix=fix)
        runner.reload_weights(weights_iterator=iter(pairs))

    with (
        backend.healthy(),
        ge.wrapping_errors(ge.OptionError, "vLLM refused the weights", "see the cause"),
    ):
        backend.model.collective_rpc(reload)
        backend.model.reset_prefix_cache()


def update(backend: Any, weights: Weights) -> None:
    """Replace the weights of an engine's backend."""
    updates = {"hf": update_hf, "vllm": update_vllm}
    updates[backend.name](backend, weights)
