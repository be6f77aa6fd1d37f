"""Log-probabilities of given tokens: from plain transformers, and from a loaded gen_engine.

    rows = [token_row(prompt_ids, answer_ids), ...]        of all sites that share a checkpoint
    new = read_engine(engine, rows); engine.close()        the moved path, by engine.score_batch
    reference = read_reference(path, "bfloat16", rows)     float32 and the old path, one at a time
    referee.judge(readings(reference, new, rows), ...)     a site's verdict, from its rows

The golden's own tokens are read, nothing is generated. Whole vocabularies are never kept: hidden
states go through the head in pieces of at most PIECE logits, and of each step one number stays.
One model at a time: whoever loads closes first. What cannot be measured is CannotJudge.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.goldens.store import GoldenError
from parity.judge.numerics.errors import Reading
from parity.judge.numerics.noise import Parting
from parity.judge.numerics.probes import PROBED, PROBES
from parity.judge.numerics.processed import Tensor
from parity.record.taps.models import adapter_print, tensors_in

ToLogits = Callable[[Tensor], Tensor]  # [..., hidden] -> [..., vocabulary]

PIECE = 1 << 25  # logits at a time, float32: 128 MiB, and as much again for their exponentials
BATCH_TOKENS = 4096  # padded tokens in one forward pass of the reference
OLD_ROWS = 4  # rows in a batch of the old path: what scripts have, and the margins were made with
AT_ONCE = 64  # requests that an engine scores in one call
ROOM = 1.25  # memory beside the weights, as a factor of them: activations, pieces, the allocator
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FLOOR_OF = {"sdpa": "eager", "eager": "sdpa"}  # attention -> the other one, as a noise floor


class CannotJudge(GoldenError):
    """The numerics of a site cannot be measured here. `check` exits with 3."""


class WeightsMissing(CannotJudge):
    """The golden's checkpoint is not on this machine."""


# == What is read ==


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A row to read.

    ids: prompt and answer, image tokens expanded.
    start: the index of the first id whose log-probability is wanted, 1 or more.
    others: (position, id): what would another id have got there? Candidates of parting steps.
    images: PIL images.   placeholder: the id of image tokens.
    budget: (min_pixels, max_pixels) of each; None is the checkpoint's, (None, None) is none.
    answer: how many ids are the prompt's.
    """

    ids: tuple[int, ...]
    start: int
    others: tuple[tuple[int, int], ...] = ()
    images: tuple[Any, ...] = ()
    budget: tuple[int | None, int | None] | None = None
    placeholder: int | None = None
    answer: int = 0

    def __post_init__(self) -> None:
        length = len(self.ids)
        if not 1 <= self.start < length:
            raise ValueError(f"TokenRow: start is {self.start}, expected 1 to {length - 1}.")
        if any(not 1 <= position <= length for position, _ in self.others):
            raise ValueError(f"TokenRow: a position of `others` is not in 1 to {length}.")


Rows = Sequence[TokenRow]


def token_row(
    prompt: Sequence[int], answer: Sequence[int], *, with_prompt: bool = True, **more: Any
) -> TokenRow:
    """with_prompt: read the prompt's tokens, too: rounding is the same there, and a site has
    several times as many tokens. Not with images: image tokens have no log-probability."""
    reads_prompt = with_prompt and not more.get("images")
    start = 1 if reads_prompt else max(1, len(prompt))
    return TokenRow((*prompt, *answer), start, answer=len(prompt), **more)


@dataclass(frozen=True, slots=True)
class Scored:
    """One row, read; None where a step could not be.

    logprobs: of ids[start:], nats.   others: of TokenRow.others, nats.
    normalizers: at each of `others`, logit - log-probability; None where a backend reports none.
    """

    logprobs: tuple[float | None, ...]
    others: tuple[float | None, ...] = ()
    normalizers: tuple[float | None, ...] = ()


def furthest(one: Scored, other: Scored) -> float:
    """How far two readings of a row are apart at most, nats."""
    most = 0.0
    for a, b in zip(one.logprobs, other.logprobs):
        if a is not None and b is not None:
            most = max(most, abs(a - b))
    return most


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], object]]:
    """A bar in tokens with an estimate of the time left, on a terminal; elsewhere nothing."""
    from tqdm import tqdm

    how = {"unit": "tok", "unit_scale": True, "disable": None, "leave": False, "smoothing": 0.1}
    with tqdm(total=total, desc=what, **how) as bar:
        yield bar.update


# == Where the reference fits ==


@dataclass(frozen=True, slots=True)
class Source:
    """How a checkpoint's reference is read.

    dtype: float32, or the golden's where float32 does not fit. Then `other` is the attention that
    the noise floor is read with, in the same dtype.   note: one line for the report.
    """

    dtype: str
    note: str
    other: str = ""

    @property
    def exact(self) -> bool:
        """Whether errors can be taken against it, or only differences between kernels."""
        return self.dtype == "float32"


def parameter_count(path: str) -> int:
    """Elements of a checkpoint's tensors."""
    count: int = sum(tensor.numel() for _, tensor in tensors_in(path))
    if not count:
        raise WeightsMissing(f"{path} holds no safetensors. Its numerics need the checkpoint.")
    return count


def local_path(path: str) -> str:
    """The folder of a checkpoint: itself, or what the hub's cache holds of it."""
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
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    raise CannotJudge("/proc/meminfo does not say how much memory is available")


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def reference_source(
    path: str,
    dtype: str,
    *,
    attention: str | None = None,
) -> Source:
    """float32 where it fits, else the golden's dtype, twice. Loads nothing.

    dtype, attention: the golden's. Raises CannotJudge where not even `dtype` fits.
    """
    place = default_device()
    count = parameter_count(local_path(path))
    room = free_bytes(place)
    size = f"{count / 1e6:,.0f} M weights on {place}, {room / 2**30:.1f} GiB free"
    if count * BYTES["float32"] * ROOM <= room:
        return Source("float32", f"reference: plain transformers in float32 ({size})")
    need = count * BYTES[dtype] * ROOM
    if need > room:
        raise CannotJudge(f"{path} does not fit: {dtype} needs {need / 2**30:.1f} GiB; {size}")
    floor = f"plain transformers in {dtype} with another attention is the noise floor"
    other = FLOOR_OF.get(attention or "sdpa", "eager")
    return Source(dtype, f"float32 does not fit ({size}): {floor}", other)


# == Plain transformers ==


class Reader:
    """Plain transformers on one checkpoint. A context manager; frees the model when it closes.

    attention: None is transformers' own choice, but for Gemma 2, whose cap its sdpa leaves out:
    0.05 nats of logit, as much as bfloat16.   adapter: a folder.
    """

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

        folder = local_path(path)
        here: dict[str, Any] = {"local_files_only": True}
        config = transformers.AutoConfig.from_pretrained(folder, **here)
        text = config.get_text_config()
        kind = transformers.AutoModelForCausalLM
        self.processor: Any = None
        if hasattr(config, "vision_config"):
            kind = transformers.AutoModelForImageTextToText
            self.processor = transformers.AutoProcessor.from_pretrained(folder, **here)
        if attention is None and getattr(text, "attn_logit_softcapping", None):
            attention = "eager"
        if attention is not None:
            here["attn_implementation"] = attention
        self.device = device or default_device()
        try:
            loaded: Any = kind.from_pretrained(folder, dtype=getattr(torch, dtype), **here)
            if adapter:
                loaded.load_adapter(adapter)
        except OSError as error:
            raise WeightsMissing(f"{path}: {error}") from error
        self.model: Any = loaded.eval().to(self.device)
        self.folder = folder
        self.window = getattr(text, "max_position_embeddings", None) or math.inf
        self.piece = max(1, PIECE // int(text.vocab_size))  # steps whose logits are made at once
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

    def tokenizer(self) -> Any:
        import transformers

        return transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    def read(
        self,
        rows: Rows,
        *,
        most_rows: int = 0,
        side: str = "right",
        what: str = "reference",
    ) -> list[Scored]:
        """Read rows, in order.   most_rows: in a batch, as they come; 0 is as many of like length
        as BATCH_TOKENS hold.   side: where padding stands."""
        scored: dict[int, Scored] = {}
        groups = batches(rows, most_rows, self.most_tokens())
        with progress(sum(len(row.ids) for row in rows), what) as done:
            for group in groups:
                batch = [rows[k] for k in group]
                scored.update(zip(group, self._score(batch, side)))
                done(sum(len(row.ids) for row in batch))
        return [scored[k] for k in range(len(rows))]

    def read_as_old(self, rows: Rows, what: str) -> list[Scored]:
        """As scripts do: a few rows in a batch, padded on the left."""
        return self.read(rows, most_rows=OLD_ROWS, side="left", what=what)

    def most_tokens(self) -> int:
        """Padded tokens in a batch: fewer where logits of all of them are made at once."""
        return BATCH_TOKENS if self.head else min(BATCH_TOKENS, self.piece)

    def logits(self, row: TokenRow) -> Tensor:
        """Before each id of ids[start:], float32 [tokens, vocabulary], on the CPU."""
        import torch

        with torch.inference_mode():
            [states] = self._states([row], "right")
            return self._logits(states[row.start - 1 : -1]).cpu()

    def _score(self, rows: Rows, side: str) -> list[Scored]:
        import torch

        with torch.inference_mode():
            states = self._states(rows, side)
            return [score(row, own, self._logits, self.piece) for row, own in zip(rows, states)]

    def _states(self, rows: Rows, side: str) -> list[Tensor]:
        """What the head makes logits of, a row each, [ids, hidden]; logits where there is no
        head."""
        inputs = padded(rows, side)
        if rows[0].images:
            inputs.update(image_inputs(rows[0], self.processor))
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        body = self.model.base_model if self.head else self.model
        output = body(**inputs, use_cache=False)
        states = output.last_hidden_state if self.head else output.logits
        lengths = [len(row.ids) for row in rows]
        if side == "left":
            return [own[-length:] for own, length in zip(states, lengths)]
        return [own[:length] for own, length in zip(states, lengths)]

    def _logits(self, states: Tensor) -> Tensor:
        return (self.head(states) if self.head else states).float()


def batches(rows: Rows, most_rows: int, most_tokens: int) -> Iterator[list[int]]:
    """Indices of rows: most_rows at a time, as they come; of 0, the longest first, in batches of at
    most most_tokens with their padding. A row with images stands alone: how models batch them
    differs too much."""
    order = list(range(len(rows)))
    if not most_rows:
        order.sort(key=lambda k: -len(rows[k].ids))
    batch: list[int] = []
    for k in order:
        if batch:
            first = rows[batch[0]]
            size = len(batch) + 1
            is_full = size > most_rows if most_rows else size * len(first.ids) > most_tokens
            if is_full or first.images or rows[k].images:
                yield batch
                batch = []
        batch.append(k)
    if batch:
        yield batch


def padded(rows: Rows, side: str) -> dict[str, Tensor]:
    """input_ids, attention_mask and, for text, position_ids, each [rows, longest].

    Padding repeats the row's first id: it is masked, and not every tokenizer has a pad.
    """
    import torch

    longest = max(len(row.ids) for row in rows)
    first = torch.tensor([row.ids[0] for row in rows])
    ids = first[:, None].repeat(1, longest)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        length = len(row.ids)
        place = slice(longest - length, longest) if side == "left" else slice(length)
        ids[k, place] = torch.tensor(row.ids)
        mask[k, place] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if not rows[0].images:  # with images the model counts in three dimensions, by itself
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs


def image_inputs(row: TokenRow, processor: Any) -> dict[str, Tensor]:
    """What the processor makes of a row's images. Raises CannotJudge where that is not this row's
    image tokens."""
    import torch

    text = [processor.image_token * len(row.images)]
    budget = pixel_budget(row, "shortest_edge", "longest_edge")
    how = {"size": budget} if "longest_edge" in budget else budget
    made = dict(processor(text=text, images=[list(row.images)], return_tensors="pt", **how))
    is_image = torch.tensor([[token == row.placeholder for token in row.ids]])
    expanded = made.pop("input_ids") == row.placeholder
    count = -1 if row.placeholder is None else int(expanded.sum())
    if count != int(is_image.sum()):
        raise CannotJudge(f"the processor makes {count} image tokens, the golden has others")
    del made["attention_mask"]
    if "mm_token_type_ids" in made:
        made["mm_token_type_ids"] = is_image.long()
    return made


def pixel_budget(row: TokenRow, least: str, most: str) -> dict[str, Any]:
    """A row's pixel budget, under the names that a library has for it; {} is the checkpoint's."""
    if row.budget is None:
        return {}
    if not row.budget[1]:
        return {"do_resize": False}
    return dict(zip((least, most), row.budget))


def score(row: TokenRow, states: Tensor, to_logits: ToLogits, piece: int) -> Scored:
    """One row out of its states [ids, hidden]: state p says what stands at p + 1."""
    import torch

    wanted = list(enumerate(row.ids))[row.start :]
    steps = len(wanted)
    wanted += row.others
    positions, tokens = torch.tensor(wanted, device=states.device).T
    chosen = []
    sums = []
    for first in range(0, len(wanted), piece):
        part = slice(first, first + piece)
        logits = to_logits(states[positions[part] - 1])  # [piece, vocabulary]
        chosen.append(logits.gather(1, tokens[part, None])[:, 0])
        sums.append(logits.logsumexp(-1))
    normalizers = torch.cat(sums)
    logprobs = (torch.cat(chosen) - normalizers).tolist()
    others = tuple(normalizers[steps:].tolist())
    return Scored(tuple(logprobs[:steps]), tuple(logprobs[steps:]), others)


def head_of(model: Any) -> ToLogits | None:
    """hidden states -> logits, as this architecture makes them; None where it cannot be shown.

    Models scale or cap what their head gives (Gemma 2, Cohere, Granite), each with a field of its
    own. The three known ones are applied, and the result has to be the model's own on a probe.
    """
    import torch

    head = model.get_output_embeddings()
    body = model.base_model
    if head is None or body is model or not hasattr(body, "forward"):
        return None
    config = model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    divisor = getattr(config, "logits_scaling", None) or 1
    factor = getattr(config, "logit_scale", None) or 1 / divisor

    def to_logits(states: Tensor) -> Tensor:
        logits = head(states) if factor == 1 else head(states) * factor
        return torch.tanh(logits / cap) * cap if cap else logits

    probe = torch.tensor([[1, 2, 3, 5]], device=head.weight.device)
    with torch.inference_mode():
        own = model(input_ids=probe, use_cache=False).logits
        states = body(input_ids=probe, use_cache=False).last_hidden_state
        if states.shape[-1] != head.weight.shape[-1]:
            return None
        is_own = torch.allclose(to_logits(states), own, rtol=1e-3, atol=1e-3)
        return to_logits if is_own else None


# == The reference ==


@dataclass(frozen=True, slots=True)
class Reference:
    """What rows are judged against.   truth: read by `source`.   old: by the old path.
    probes: by the reference with one thing moved.   adapter: its fingerprint, "" where there is
    none, or the old path stands for the reference."""

    source: Source
    truth: list[Scored]
    old: list[Scored]
    probes: dict[str, list[Scored]]
    adapter: str = ""

    def part(self, start: int, stop: int) -> Reference:
        """Of some of the rows that were read together."""
        rows = slice(start, stop)
        probes = {name: scores[rows] for name, scores in self.probes.items()}
        return Reference(self.source, self.truth[rows], self.old[rows], probes)


def read_probes(reader: Reader, rows: Rows) -> dict[str, list[Scored]]:
    """The directions that faults have: what the reference reads with one thing moved by PROBED."""
    probes: dict[str, list[Scored]] = {}
    for name, moved in PROBES.items():
        with moved(reader.model, PROBED) as is_there:
            if is_there:
                probes[name] = reader.read(rows, what=f"probe: {name}")
    return probes


def read_reference(
    path: str,
    dtype: str,
    rows: Rows,
    *,
    attention: str | None = None,
    adapter: str = "",
) -> Reference:
    """Load a golden's checkpoint as the reference, read, close, and again as the old path.

    dtype, attention, adapter (a folder): the golden's. Where float32 does not fit, the old path
    stands for the truth, and the same with another attention for the old path.
    """
    source = reference_source(path, dtype, attention=attention)

    def read_old(attention: str | None, what: str) -> list[Scored]:
        with Reader(path, dtype, attention=attention, adapter=adapter) as reader:
            return reader.read_as_old(rows, what)

    if not source.exact:
        truth = read_old(attention, "reference")
        return Reference(source, truth, read_old(source.other, "old path"), {})
    with Reader(path, adapter=adapter) as reader:
        truth = reader.read(rows)
        probes = read_probes(reader, rows)
        loaded = adapter_print(reader.model)
    return Reference(source, truth, read_old(attention, "old path"), probes, loaded)


def readings(reference: Reference, new: Sequence[Scored], rows: Rows) -> list[Reading]:
    """What the referee judges, row by row; a site takes its own rows out of these."""
    found = []
    for k, row in enumerate(rows):
        one = Reading(
            reference.truth[k].logprobs,
            reference.old[k].logprobs,
            new[k].logprobs,
            start=row.start,
            prompt=row.answer - row.start,
            probes={name: scored[k].logprobs for name, scored in reference.probes.items()},
            ids=() if row.images else row.ids,
        )
        found.append(one)
    return found


def parting_of(truth: Scored, old: Scored, new: Scored) -> Parting:
    """A row's parting step, where `others` begins with the old id and the new one."""
    pairs = []
    for side in (truth, old, new):
        values = [value for value in side.others[:2] if value is not None]
        if len(values) < 2:
            raise CannotJudge("a parting step was not read: it lies beyond the engine's window")
        pairs.append((values[0], values[1]))
    return Parting(*pairs)


# == A loaded engine ==


Asked = tuple[
    Mapping[str, Any], tuple[int, ...]
]  # a request, and the tokens to be scored behind it


def read_engine(
    engine: Any,
    rows: Rows,
    *,
    at_once: int = AT_ONCE,
    adapter: str | None = None,
    what: str = "moved code",
) -> list[Scored]:
    """The same by `engine.score_batch`, on either backend.   adapter: its name there.

    Another candidate at a parting step is scored as an answer of one token. A step beyond the
    engine's window is None. Raises what score_batch raises.
    """
    more = {"adapter": adapter} if adapter else {}
    window = window_of(engine)
    asked = list(asked_of(rows, window, more))
    logprobs: list[Sequence[float]] = []
    with progress(sum(len(tokens) for _, tokens in asked), what) as done:
        for first in range(0, len(asked), at_once):
            for scored in engine.score_batch(asked[first : first + at_once]):
                logprobs.append(scored.logprobs)
                done(len(scored.logprobs))
    return scored_rows(rows, window, logprobs)


def window_of(engine: Any) -> float:
    """Ids that an engine reads. vLLM needs room for one more than it is given."""
    window = engine.checkpoint.window or math.inf
    return window - 1 if engine.backend.name == "vllm" else window


def asked_of(rows: Rows, window: float, more: dict[str, Any]) -> Iterator[Asked]:
    """What is read of each answer, and each other candidate, as far as the window goes."""
    for row in rows:
        if row.start < window:
            stop = int(min(window, len(row.ids)))
            yield request_for(row, row.start) | more, row.ids[row.start : stop]
        for position, token in row.others:
            if position < window:
                yield request_for(row, position) | more, (token,)


def request_for(row: TokenRow, end: int) -> dict[str, Any]:
    """The ids before index `end` as a prompt of gen_engine."""
    from parity.record.rows import Placeholders, collapsed

    prompt = row.ids[:end]
    if not row.images:
        return {"prompt_token_ids": prompt}
    ids = collapsed(prompt, Placeholders(row.placeholder))
    vlm = pixel_budget(row, "min_pixels", "max_pixels")
    return {"prompt_token_ids": ids, "images": list(row.images), "vlm": vlm}


def scored_rows(rows: Rows, window: float, logprobs: Sequence[Sequence[float]]) -> list[Scored]:
    """logprobs: of the tokens of each request that `asked_of` made of these rows."""
    answers = iter(logprobs)
    found = []
    for row in rows:
        read = next(answers) if row.start < window else ()
        missing = len(row.ids) - row.start - len(read)
        others: list[float | None] = []
        for position, _ in row.others:
            others.append(next(answers)[0] if position < window else None)
        none = (None,) * len(others)
        found.append(Scored((*read, *[None] * missing), tuple(others), none))
    return found
