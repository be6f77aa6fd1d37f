"""Log-probabilities of given tokens: from plain transformers, and from a loaded gen_engine.

    rows = [given_of(prompt_ids, answer_ids), …]           of all sites that share a checkpoint
    new = read_engine(engine, rows); engine.close()        the moved path, through engine.score_batch
    reference = read_reference(path, "bfloat16", rows)     float32 and the old path, one model after the other
    referee.judge(readings(reference, new, rows), …)       a site's verdict, from its rows

The golden's own tokens are read, nothing is generated. Whole vocabularies are never kept: the hidden states of a batch
go through the head in pieces of at most PIECE logits, and of each step stay one number and the two or three asked for.
One model at a time: whoever loads closes first. What cannot be measured is CannotJudge, never a guess.

Map: what is asked and what comes back, where the reference fits, plain transformers, probes, the reference, an engine.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.judge.referee import PROBED, Parting, Reading

PIECE = 1 << 25  # logits at a time, float32: 128 MiB, and as much again for their exponentials
BATCH_TOKENS = 4096  # padded tokens in one forward pass of the reference
OLD_ROWS = 4  # rows in a batch of the old path: what scripts usually have, and what the margins were measured with
NOISE_FLOOR = (
    "eager",
    "sdpa",
)  # attention of plain transformers as its own noise floor; batch shapes alone are a tenth
ROOM = 1.25  # memory beside the weights, as a factor of them: activations, the head's pieces, the allocator's slack
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class CannotJudge(Exception):
    """The numerics of a site cannot be measured here. `check` exits with 3."""


class WeightsMissing(CannotJudge):
    """The golden's checkpoint is not on this machine."""


# == What is asked, and what comes back ==


@dataclass(frozen=True, slots=True)
class Given:
    """A row to read.

    ids: prompt and answer, image tokens expanded.   start: the first id whose log-probability is wanted, 1 or more.
    others: (position, id) pairs: what would another id have got at that position? Candidates of parting steps.
    images: PIL pictures.   budget: (min_pixels, max_pixels) of each; None is the checkpoint's, (None, None) is none.
    placeholder: the id of image tokens.   answer: how many ids are the prompt's.
    """

    ids: tuple[int, ...]
    start: int
    others: tuple[tuple[int, int], ...] = ()
    images: tuple[Any, ...] = ()
    budget: tuple[int | None, int | None] | None = None
    placeholder: int | None = None
    answer: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.start < len(self.ids):
            raise ValueError(f"start is {self.start}; it must be at least 1 and below the {len(self.ids)} ids")
        if any(not 1 <= position < len(self.ids) + 1 for position, _ in self.others):
            raise ValueError("others: positions must follow at least one id, and stand in the row or just after it")


@dataclass(frozen=True, slots=True)
class Scored:
    """One row, read.   logprobs: of ids[start:], nats.   others: of Given.others.   normalizers: log of the sum of the
    exponentials of the logits at each of `others`, so that logit = log-probability + normalizer; None where a backend
    does not say. A step that could not be read is None."""

    logprobs: tuple[float | None, ...]
    others: tuple[float | None, ...] = ()
    normalizers: tuple[float | None, ...] = ()


def given_of(prompt: Sequence[int], answer: Sequence[int], *, with_prompt: bool = True, **more: Any) -> Given:
    """A golden's row. with_prompt: read the prompt's tokens too; rounding is the same there, and a site has its number
    of tokens several times over. Not with pictures: log-probabilities of image tokens mean nothing."""
    first = 1 if with_prompt and not more.get("images") else len(prompt)
    return Given((*prompt, *answer), max(1, first), answer=len(prompt), **more)


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """A bar in tokens with an estimate of what is left, on a terminal; elsewhere nothing."""
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit="tok", unit_scale=True, disable=None, leave=False, smoothing=0.1) as bar:
        yield bar.update


# == Where the reference fits ==


@dataclass(frozen=True, slots=True)
class Source:
    """How a checkpoint's reference is read.

    dtype: float32, or the golden's own where float32 does not fit; then `other` is the attention implementation that
    the noise floor is read with, in the same dtype.   said: one line for the report.
    """

    dtype: str
    device: str
    said: str
    other: str = ""

    @property
    def exact(self) -> bool:
        """Whether errors can be taken against it, or only differences between shapes."""
        return self.dtype == "float32"


def weights_of(path: str) -> int:
    """Elements of a checkpoint's tensors, from the headers of its safetensors. Raises WeightsMissing."""
    files = sorted(Path(path).glob("*.safetensors"))
    if not files:
        raise WeightsMissing(f"{path} holds no safetensors: the golden's checkpoint is needed to judge its numerics")
    count = 0
    for file in files:
        with file.open("rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        count += sum(math.prod(tensor["shape"]) for tensor in tensors)
    return count


def local_path(path: str) -> str:
    """The folder of a checkpoint: itself, or what the hub's cache holds of it. Raises WeightsMissing."""
    if Path(path, "config.json").is_file():
        return path
    from transformers.utils.hub import cached_file

    try:
        return str(Path(cached_file(path, "config.json", local_files_only=True)).parent)
    except (OSError, TypeError, ValueError) as error:
        raise WeightsMissing(f"the golden's checkpoint {path!r} is not on this machine") from error


def free_bytes(device: str) -> int:
    """Memory that a model could take now."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def source_of(
    path: str, dtype: str, *, attention: str | None = None, device: str | None = None, free: int | None = None
) -> Source:
    """float32 where it fits, else the golden's dtype, twice. Loads nothing.

    dtype, attention: the golden's.   device: where to read; None is the accelerator if there is one.
    free: bytes of memory there, if known.
    Raises WeightsMissing, and CannotJudge where not even the golden's dtype fits.
    """
    import torch

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    count, room = weights_of(local_path(path)), free_bytes(place) if free is None else free
    need = {name: count * BYTES[name] * ROOM for name in ("float32", dtype)}
    size = f"{count / 1e6:,.0f} M weights on {place}, {room / 2**30:.1f} GiB free"
    if need["float32"] <= room:
        return Source("float32", place, f"reference: plain transformers in float32 ({size})")
    if need[dtype] > room:
        raise CannotJudge(f"{path} does not fit: {need[dtype] / 2**30:.1f} GiB wanted in {dtype}; {size}")
    said = f"float32 does not fit ({size}): plain transformers in {dtype} with another attention is the noise floor"
    return Source(dtype, place, said, other=next(name for name in NOISE_FLOOR if name != (attention or "sdpa")))


# == Plain transformers ==


class Reader:
    """Plain transformers on one checkpoint. A context manager; frees the model when it closes."""

    def __init__(
        self,
        path: str,
        dtype: str = "float32",
        *,
        device: str | None = None,
        attention: str | None = None,
        adapter: str = "",
    ) -> None:
        import torch
        import transformers

        place = local_path(path)
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
        self.vision = hasattr(config, "vision_config")
        auto = transformers.AutoModelForImageTextToText if self.vision else transformers.AutoModelForCausalLM
        if attention is None and getattr(config.get_text_config(), "attn_logit_softcapping", None):
            attention = "eager"  # transformers' sdpa leaves Gemma 2's cap out: 0.05 nats of logit, as much as bfloat16
        more: dict[str, Any] = {"attn_implementation": attention} if attention else {}
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            loaded = auto.from_pretrained(place, dtype=getattr(torch, dtype), local_files_only=True, **more)
            if adapter:
                loaded.load_adapter(adapter)
        except OSError as error:
            raise WeightsMissing(f"{path}: {error}") from error
        self.model: Any = loaded.eval().to(self.device)
        processor = transformers.AutoProcessor
        self.processor = processor.from_pretrained(place, local_files_only=True) if self.vision else None
        self.piece = max(1, PIECE // int(config.get_text_config().vocab_size))  # steps whose logits are made at once
        self.head = head_of(self.model)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        import torch

        self.model = self.head = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def read(
        self, rows: Sequence[Given], *, most_rows: int = 0, side: str = "right", what: str = "reference"
    ) -> list[Scored]:
        """Read rows, in order.   most_rows: in a batch, as they come; 0 is as many of like length as BATCH_TOKENS hold.
        side: where padding stands. Rows with pictures are read alone: how models batch them differs too much."""
        found: dict[int, Scored] = {}
        groups = in_order(rows, most_rows) if most_rows else by_length(rows, self.most_tokens())
        with progress(sum(len(row.ids) for row in rows), what) as done:
            for places in groups:
                some = [rows[k] for k in places]
                found.update(zip(places, self._forward(some, side)))
                done(sum(len(row.ids) for row in some))
        return [found[k] for k in range(len(rows))]

    def most_tokens(self) -> int:
        """Padded tokens in a batch: fewer where logits of all of them are made at once."""
        return BATCH_TOKENS if self.head else min(BATCH_TOKENS, self.piece)

    def _forward(self, rows: Sequence[Given], side: str) -> list[Scored]:
        import torch

        inputs, firsts = padded(rows, side)
        if rows[0].images:
            inputs.update(pictures_for(rows[0], self.processor))
        moved = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        body = self.model.base_model if self.head else self.model
        with torch.inference_mode():
            output = body(**moved, use_cache=False)
            states = output.last_hidden_state if self.head else output.logits
            return [
                score(row, states[k, first:], self._logits, self.piece)
                for k, (row, first) in enumerate(zip(rows, firsts))
            ]

    def _logits(self, states: Any) -> Any:
        """[steps, hidden] -> logits [steps, vocabulary], float32; where the head cannot be had, they are logits."""
        return (self.head(states) if self.head else states).float()


def by_length(rows: Sequence[Given], most_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows, longest first, in batches of at most most_tokens with their padding."""
    batch: list[int] = []
    for k in sorted(range(len(rows)), key=lambda k: -len(rows[k].ids)):
        full = batch and (len(batch) + 1) * len(rows[batch[0]].ids) > most_tokens
        if full or rows[k].images or (batch and rows[batch[0]].images):
            yield from [batch] if batch else []
            batch = []
        batch.append(k)
    yield from [batch] if batch else []


def in_order(rows: Sequence[Given], most_rows: int) -> Iterator[list[int]]:
    """Numbers of rows as they come, most_rows at a time; a row with pictures by itself."""
    batch: list[int] = []
    for k, row in enumerate(rows):
        if batch and (len(batch) == most_rows or row.images or rows[batch[0]].images):
            yield batch
            batch = []
        batch.append(k)
    yield from [batch] if batch else []


def padded(rows: Sequence[Given], side: str) -> tuple[dict[str, Any], list[int]]:
    """Rows -> input_ids, attention_mask and, for text, position_ids, each [rows, longest]; and where each row begins.

    Padding repeats the row's first id: it is masked, and any id will do (not every tokenizer has a pad).
    """
    import torch

    longest = max(len(row.ids) for row in rows)
    ids, mask, firsts = [], [], []
    for row in rows:
        gap = longest - len(row.ids)
        fill, own = [row.ids[0]] * gap, list(row.ids)
        ids.append(fill + own if side == "left" else own + fill)
        ones, zeros = [1] * len(own), [0] * gap
        mask.append(zeros + ones if side == "left" else ones + zeros)
        firsts.append(gap if side == "left" else 0)
    masks = torch.tensor(mask)
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": masks}
    if not rows[0].images:  # with pictures the model counts in three dimensions, by itself
        inputs["position_ids"] = (masks.cumsum(-1) - 1).clamp(min=0)
    return inputs, firsts


def pictures_for(row: Given, processor: Any) -> dict[str, Any]:
    """What the processor makes of a row's pictures. Raises CannotJudge where that is not this row's image tokens."""
    import torch

    least, most = row.budget or (None, None)
    size: dict[str, Any] = {"size": {"shortest_edge": least, "longest_edge": most}} if most else {"do_resize": False}
    size = {} if row.budget is None else size
    text = [processor.image_token * len(row.images)]
    made = processor(text=text, images=[list(row.images)], return_tensors="pt", **size)
    place = row.placeholder
    expanded = int((made["input_ids"] == place).sum()) if place is not None else -1
    if expanded != sum(token == place for token in row.ids):
        raise CannotJudge(f"the processor makes {expanded} image tokens of a row's pictures, the golden has others")
    kept = {k: v for k, v in made.items() if k not in ("input_ids", "attention_mask", "mm_token_type_ids")}
    if "mm_token_type_ids" in made:
        kept["mm_token_type_ids"] = torch.tensor([[int(token == place) for token in row.ids]])
    return kept


def score(row: Given, states: Any, logits_of: Callable[[Any], Any], piece: int) -> Scored:
    """One row out of its hidden states (or logits), [positions, width]: state p says what stands at p + 1."""
    import torch

    asked = [(p, row.ids[p]) for p in range(row.start, len(row.ids))] + list(row.others)
    before = torch.tensor([position - 1 for position, _ in asked], device=states.device)
    wanted = torch.tensor([token for _, token in asked], device=states.device)[:, None]
    chosen, sums = [], []
    for step in range(0, len(asked), piece):
        logits = logits_of(states[before[step : step + piece]])  # [piece, vocabulary]
        chosen.append(logits.gather(1, wanted[step : step + piece])[:, 0])
        sums.append(logits.logsumexp(-1))
    values, norms = torch.cat(chosen), torch.cat(sums)
    steps = len(row.ids) - row.start
    found = (values - norms).tolist()
    return Scored(tuple(found[:steps]), tuple(found[steps:]), tuple(norms[steps:].tolist()))


def head_of(model: Any) -> Callable[[Any], Any] | None:
    """hidden states -> logits, as this architecture makes them; None where that could not be shown on a probe.

    Models scale or cap what their head says (Gemma 2, Cohere, Granite), each with a field of its own. The three known
    are tried, and what is returned gave the model's own logits on the probe.
    """
    import torch

    head, config = model.get_output_embeddings(), model.config.get_text_config()
    if head is None or not hasattr(model.base_model, "forward") or model.base_model is model:
        return None
    cap = getattr(config, "final_logit_softcapping", None)
    factor = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)

    def logits(states: Any) -> Any:
        made = head(states) if factor == 1 else head(states) * factor
        return torch.tanh(made / cap) * cap if cap else made

    probe = torch.tensor([[1, 2, 3, 5]], device=head.weight.device)
    with torch.inference_mode():
        own = model(input_ids=probe, use_cache=False).logits
        states = model.base_model(input_ids=probe, use_cache=False).last_hidden_state
        same = states.shape[-1] == head.weight.shape[-1] and torch.allclose(logits(states), own, rtol=1e-3, atol=1e-3)
    return logits if same else None


# == Probes ==


@contextlib.contextmanager
def moved_theta(model: Any, factor: float) -> Iterator[bool]:
    """The base of the rotary embedding times `factor`. False where the model has none that could be moved."""
    found = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    old = [buffer.clone() for buffer in found]
    for buffer in found:
        share = range(len(buffer))
        buffer.mul_(buffer.new_tensor([factor ** -(k / len(buffer)) for k in share]))
    try:
        yield bool(found)
    finally:
        for buffer, value in zip(found, old):
            buffer.copy_(value)


@contextlib.contextmanager
def moved_attention(model: Any, factor: float) -> Iterator[bool]:
    """The scale of attention times `factor`. False where the model's attention has no such attribute."""
    found = [module for module in model.modules() if isinstance(getattr(module, "scaling", None), float)]
    old = [module.scaling for module in found]
    for module in found:
        module.scaling *= factor
    try:
        yield bool(found)
    finally:
        for module, value in zip(found, old):
            module.scaling = value


@contextlib.contextmanager
def moved_logits(model: Any, factor: float) -> Iterator[bool]:
    """What the head says times `factor`."""
    hook = model.get_output_embeddings().register_forward_hook(lambda module, given, made: made * factor)
    try:
        yield True
    finally:
        hook.remove()


PROBES = {"rope theta": moved_theta, "attention scale": moved_attention, "logits": moved_logits}


def read_probes(reader: Reader, rows: Sequence[Given]) -> dict[str, list[Scored]]:
    """What the reference says of the same tokens with one thing moved by PROBED: the directions that faults have."""
    found: dict[str, list[Scored]] = {}
    for name, moved in PROBES.items():
        with moved(reader.model, PROBED) as there:
            if there:
                found[name] = reader.read(rows, what=f"probe: {name}")
    return found


# == The reference ==


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything that rows are judged against.   truth: of `source`.   old: the old path.   probes: see read_probes."""

    source: Source
    truth: list[Scored]
    old: list[Scored]
    probes: dict[str, list[Scored]]


def read_reference(
    path: str,
    dtype: str,
    rows: Sequence[Given],
    *,
    attention: str | None = None,
    adapter: str = "",
    device: str | None = None,
) -> Reference:
    """Load a golden's checkpoint as the reference, read, close, and again as the old path.

    dtype, attention, adapter (a folder): the golden's. Where float32 does not fit, the old path stands for the truth,
    and the same with another attention implementation for the old path. Raises CannotJudge.
    """
    source = source_of(path, dtype, attention=attention, device=device)
    probes: dict[str, list[Scored]] = {}
    first, second = (None, attention) if source.exact else (attention, source.other)
    with Reader(path, source.dtype, device=source.device, attention=first, adapter=adapter) as reader:
        truth = reader.read(rows) if source.exact else reader.read(rows, most_rows=OLD_ROWS, side="left")
        if source.exact:
            probes = read_probes(reader, rows)
    with Reader(path, dtype, device=source.device, attention=second, adapter=adapter) as reader:
        old = reader.read(rows, most_rows=OLD_ROWS, side="left", what="old path")
    return Reference(source, truth, old, probes)


def readings(reference: Reference, new: Sequence[Scored], rows: Sequence[Given]) -> list[Reading]:
    """What the referee judges, row by row; a site takes its own rows out of these."""
    return [
        Reading(
            reference.truth[k].logprobs,
            reference.old[k].logprobs,
            new[k].logprobs,
            start=row.start,
            prompt=row.answer - row.start,
            probes={name: scores[k].logprobs for name, scores in reference.probes.items()},
            ids=() if row.images else row.ids,
        )
        for k, row in enumerate(rows)
    ]


def parting(truth: Scored, old: Scored, new: Scored) -> Parting:
    """A row's parting step, where `others` asked for the old id and the new one, in this order. Raises CannotJudge."""
    pairs = []
    for side in (truth, old, new):
        values = [value for value in side.others[:2] if value is not None]
        if len(values) < 2:
            raise CannotJudge("the two candidates of a parting step were not read: it lies beyond the engine's window")
        pairs.append((values[0], values[1]))
    return Parting(*pairs)


# == A loaded engine ==

Pair = tuple[Mapping[str, Any], tuple[int, ...]]  # a request, and the answer that is scored


def read_engine(
    engine: Any, rows: Sequence[Given], *, at_once: int = 64, adapter: str | None = None, what: str = "moved code"
) -> list[Scored]:
    """The same through `engine.score_batch`, on either backend, with no logits hook.   adapter: its name there.

    Another candidate at a parting step is asked as an answer of one token. A step beyond the engine's window is None:
    vLLM needs a place for one more token than it is given. Raises what score_batch raises.
    """
    window = (engine.checkpoint.window or 1 << 62) - (engine.backend.name == "vllm")
    asked: list[tuple[int, int | None, Pair]] = [
        (k, None, item) for k, row in enumerate(rows) if (item := whole(row, window)) is not None
    ]
    asked += [(k, n, item) for k, row in enumerate(rows) for n, item in enumerate(candidates(row, window)) if item]
    logprobs: dict[tuple[int, int | None], tuple[float, ...]] = {}
    named = {"adapter": adapter} if adapter else {}
    with progress(sum(len(item[1]) for *_, item in asked), what) as done:
        for some in (asked[k : k + at_once] for k in range(0, len(asked), at_once)):
            pairs = [({**request, **named}, answer) for *_, (request, answer) in some]
            for (k, n, item), scored in zip(some, engine.score_batch(pairs)):
                logprobs[k, n] = tuple(scored.logprobs)
                done(len(item[1]))
    return [assembled(k, row, logprobs) for k, row in enumerate(rows)]


def furthest(one: Scored, other: Scored) -> float:
    """How far two readings of a row are apart at most, in nats."""
    pairs = zip(one.logprobs, other.logprobs)
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def request_for(row: Given, prompt: Sequence[int]) -> Mapping[str, Any]:
    from parity.record.rows import collapsed

    if not row.images:
        return {"prompt_token_ids": tuple(prompt)}
    least, most = row.budget or (None, None)
    vlm: dict[str, Any] = {"min_pixels": least, "max_pixels": most} if most else {"do_resize": False}
    vlm = {} if row.budget is None else vlm
    return {"prompt_token_ids": collapsed(prompt, row.placeholder), "images": list(row.images), "vlm": vlm}


def whole(row: Given, window: int) -> Pair | None:
    answer = row.ids[row.start : window]
    return (request_for(row, row.ids[: row.start]), answer) if answer else None


def candidates(row: Given, window: int) -> list[Pair | None]:
    return [
        (request_for(row, row.ids[:position]), (token,)) if position < window else None
        for position, token in row.others
    ]


def assembled(k: int, row: Given, logprobs: Mapping[tuple[int, int | None], tuple[float, ...]]) -> Scored:
    read = logprobs.get((k, None), ())
    missing = (None,) * (len(row.ids) - row.start - len(read))
    others = tuple(logprobs[k, n][0] if (k, n) in logprobs else None for n in range(len(row.others)))
    return Scored((*read, *missing), others, (None,) * len(others))
