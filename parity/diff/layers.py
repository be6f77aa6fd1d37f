"""Which layer differs? Every layer of B, and of float32, is given what A's layer was given.

So a fault stays where it is: layers after it read A's states, not B's. What a layer of A makes of
its input is off from float32 by that layer's own rounding, and B's must not be off by more.

    print(compare_layers(a, b, model, prompts, tokens))
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.diff.instruments import decoder_of
from parity.diff.path import EnginePath
from parity.diff.prompts import Prompt
from parity.diff.worker import open_path

MOST_PROMPTS = 8  # a layer's own fault shows in a few hundred tokens; states of all layers are kept
SIZE = 1.25  # times A's rounding in that layer; the referee's margin for errors' size
FLOOR = 1e-5  # of a layer's change: float32's rounding is below it


@dataclass(frozen=True, slots=True)
class Layer:
    """One stage's errors against float32, as parts of what it adds.   apart: of B against A."""

    name: str
    old: float
    new: float
    apart: float

    @property
    def is_beyond(self) -> bool:
        return self.apart > FLOOR and self.new > SIZE * self.old + FLOOR


@dataclass(frozen=True, slots=True)
class Layers:
    stages: tuple[Layer, ...]

    @property
    def first(self) -> Layer | None:
        return next((stage for stage in self.stages if stage.is_beyond), None)

    def __str__(self) -> str:
        beyond = [stage.name for stage in self.stages if stage.is_beyond]
        lines = [f"differs first in {beyond[0]}" if beyond else "no layer is beyond rounding"]
        if len(beyond) > 1:
            lines[0] += f"; beyond rounding: {', '.join(beyond)}"
        lines += ["", "stage        A's rounding   B's error   B against A"]
        for stage in self.stages:
            mark = "  <-- beyond rounding" if stage.is_beyond else ""
            numbers = f"{stage.old:12.2e}   {stage.new:9.2e}   {stage.apart:11.2e}"
            lines.append(f"{stage.name:12} {numbers}{mark}")
        return "\n".join(lines)


def compare_layers(
    a: EnginePath, b: EnginePath, model: str, prompts: Sequence[Prompt], tokens: int
) -> Layers:
    """One model at a time; states wait in a file. Raises ValueError for a path that is not hf's."""
    for path in (a, b):
        if path.backend != "hf" or path.python or path.adapter:
            raise ValueError(f"--layers: {path.text}: expected an hf path of this environment.")
    exact = EnginePath("float32", "hf", model=a.model, dtype="float32")
    asked = prompts[:MOST_PROMPTS]
    with tempfile.TemporaryDirectory(prefix="layers-") as folder:
        file = Path(folder, "states.pt")
        states_of(a, model, asked, tokens, file=file)
        old = load_states(file)
        new = states_of(b, model, asked, tokens, given=old)
        truth = states_of(exact, model, asked, tokens, given=old)
    return Layers(tuple(stages(old, new, truth)))


@dataclass(frozen=True, slots=True)
class States:
    """Of each prompt: ids, and what each stage was given and made, float32, [tokens, width].
    Stages: the embedding (given nothing), layers, the final norm with the head."""

    ids: list[list[int]]
    inputs: list[list[Any]]
    outputs: list[list[Any]]


def load_states(file: Path) -> States:
    import torch

    value = torch.load(file, weights_only=True)
    return States(value["ids"], value["inputs"], value["outputs"])


def states_of(
    path: EnginePath,
    model: str,
    prompts: Sequence[Prompt],
    tokens: int,
    *,
    file: Path | None = None,
    given: States | None = None,
) -> States:
    """given: A's states, whose inputs each layer gets in place of its own."""
    import torch

    found = States([], [], [])
    with open_path(path, model) as engine, torch.inference_mode():
        ids = given.ids if given else prompt_ids(engine, prompts, tokens)
        for k, row in enumerate(ids):
            forced = given.inputs[k] if given else None
            inputs, outputs = read_row(engine.model, row, forced)
            found.ids.append(row)
            found.inputs.append(inputs)
            found.outputs.append(outputs)
    if file:
        value = {"ids": found.ids, "inputs": found.inputs, "outputs": found.outputs}
        torch.save(value, file)
    return found


def prompt_ids(engine: Any, prompts: Sequence[Prompt], tokens: int) -> list[list[int]]:
    results = engine.generate_text_batch(list(prompts), {"max_new_tokens": tokens})
    return [[*result.prompt_token_ids, *result.token_ids] for result in results]


def read_row(
    model: Any, ids: Sequence[int], forced: Sequence[Any] | None
) -> tuple[list[Any], list[Any]]:
    """(what each stage was given, what it made)."""
    import torch

    body = decoder_of(model)
    stages = [*body.layers, body.norm]
    inputs: list[Any] = []
    outputs: list[Any] = []
    with contextlib.ExitStack() as hooks:
        for k, stage in enumerate(stages):
            wanted = forced[k + 1] if forced else None
            hooks.enter_context(watched(stage, inputs, outputs, wanted))
        logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
    outputs[-1] = logits[0].float().cpu()
    return [torch.zeros(1), *inputs], [inputs[0], *outputs]


@contextlib.contextmanager
def watched(stage: Any, inputs: list[Any], outputs: list[Any], wanted: Any) -> Iterator[None]:
    """Keep what a stage is given and makes; give it `wanted` where that is not None."""

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = args[0] if args else kwargs["hidden_states"]
        inputs.append(own[0].float().cpu())
        if wanted is None:
            return None
        state = wanted[None].to(own.device, own.dtype)
        return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": state})

    def after(module: Any, args: Any, made: Any) -> None:
        state = made[0] if isinstance(made, tuple) else made
        outputs.append(state[0].float().cpu())

    handles = (
        stage.register_forward_pre_hook(before, with_kwargs=True),
        stage.register_forward_hook(after),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def stages(old: States, new: States, truth: States) -> Iterator[Layer]:
    count = len(old.outputs[0])
    for k in range(count):
        name = "embedding" if k == 0 else "head" if k == count - 1 else f"layer {k - 1}"
        size = sum(added(old, row, k) for row in range(len(old.ids)))
        errors = [
            sum(squared(one.outputs[row][k] - other.outputs[row][k]) for row in range(len(old.ids)))
            for one, other in ((old, truth), (new, truth), (new, old))
        ]
        yield Layer(name, *(float((error / size) ** 0.5) for error in errors))


def added(states: States, row: int, stage: int) -> float:
    """The square of what a stage adds to the stream; of the first and the last, of all it makes."""
    made = states.outputs[row][stage]
    given = states.inputs[row][stage]
    return squared(made - given if made.shape == given.shape else made)


def squared(values: Any) -> float:
    return float((values.double() ** 2).sum())
