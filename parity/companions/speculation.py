# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Tokens guessed cheaply and judged together, the answers those without it: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="speculation"`, and

    engine = load("Qwen/Qwen3-8B", decoder=Speculation("ngram"))
    engine = load("Qwen/Qwen3-8B", backend="vllm", decoder=Speculation("draft_model", model="Qwen/Qwen3-0.6B"))

On vLLM it is vLLM's own. On transformers the loop below guesses for all rows of a batch and judges all guesses in one
forward.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not (__package__ and find_spec(".gen_engine", __package__)):
    from gen_engine import (
        COLUMN_INPUTS,
        Asked,
        Batch,
        Checkpoint,
        Contract,
        DecodeLoop,
        LoadError,
        ModelLoadConfig,
        OptionError,
        Refusal,
        Row,
        UnsupportedError,
        one_of,
        whole,
    )
else:  # the copy beside this file, whatever others the process has
    from .gen_engine import (
        COLUMN_INPUTS,
        Asked,
        Batch,
        Checkpoint,
        Contract,
        DecodeLoop,
        LoadError,
        ModelLoadConfig,
        OptionError,
        Refusal,
        Row,
        UnsupportedError,
        one_of,
        whole,
    )

__version__ = "0.2.0"

__all__ = ["Speculation", "SpeculativeLoop"]

METHODS = ("ngram", "draft_model")
WITHOUT = "load without the decoder, or use backend='hf'"


def samples(asked: Asked) -> bool:
    return asked.options.temperature > 0 and asked.options.replay is None


def seeded(asked: Asked) -> bool:
    return asked.options.seed is not None or any(prompt.seed is not None for prompt in asked.prompts)


REFUSALS = (
    Refusal("vllm", "speculation with its logits hook", lambda a: a.config.logits_hooks,
            "load without one of the two, or use backend='hf'"),
    Refusal("vllm", "speculation with adapters", lambda a: bool(a.config.adapters),
            "load without one of the two, or use backend='hf'"),
    Refusal("vllm", "logits plugins or full logits with speculation",
            lambda a: a.options.logits or any(p.logits for p in a.plugins), WITHOUT),
    Refusal("vllm", "top_k with speculation",  # a step without a guess would raise inside vLLM 0.32
            lambda a: samples(a) and a.options.top_k is not None,
            "use top_p, load without the decoder, or use backend='hf'"),
    Refusal("vllm", "min_p with speculation", lambda a: a.options.min_p > 0, WITHOUT),
    Refusal("vllm", "a seed with speculation",  # it would not give the same sample again
            lambda a: a.options.temperature > 0 and seeded(a),
            "drop the seed, or use backend='hf'"),
    Refusal("vllm", "speculation with a count of each request's guesses", lambda a: True,
            "install vllm>=0.29, load without the decoder, or use backend='hf'", "vllm<0.29"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speculation(Contract):
    """How to guess; a gen_engine.Decoder, for `load(decoder=...)`.

    method: "ngram" guesses what followed the last few tokens where they stood before, in the prompt or the answer;
        "draft_model" asks a smaller model with the same vocabulary.
    num_tokens: guesses in a round.   model: the draft checkpoint, for "draft_model" only.
    lookup_max, lookup_min: for "ngram" only, how many last tokens to look for, at most and at least: the longest run
        that is found.
    """

    method: str = one_of(dataclasses.MISSING, "speculative method", METHODS)
    num_tokens: int = whole(5, 1)  # beyond that the odds that all are right fall faster than the rounds get fewer
    model: str | None = None
    lookup_max: int = whole(3, 1)
    lookup_min: int = whole(1, 1)

    def check(self) -> None:
        if (self.model is not None) != (self.method == "draft_model"):
            raise OptionError(f"Speculation.model is {self.model!r}", fix="ngram has none, draft_model one")
        if self.lookup_min > self.lookup_max:
            raise OptionError(f"Speculation.lookup_min is {self.lookup_min}", fix="it must be 1 to lookup_max")

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return REFUSALS

    def ready(self, config: ModelLoadConfig, checkpoint: Checkpoint) -> None:
        """A draft model must be there and have the model's vocabulary: its guesses are token ids."""
        if self.model is None:
            return
        vocabulary, read = checkpoint.config.get_text_config().vocab_size, transformers().AutoConfig.from_pretrained
        try:
            found = read(self.model, trust_remote_code=config.trust_remote_code).get_text_config().vocab_size
        except (OSError, ValueError) as error:
            problem = f"cannot read the draft model {self.model!r}: {error}"
            raise LoadError(problem, fix="give a checkpoint directory") from error
        if found != vocabulary:
            problem = f"the draft model has a vocabulary of {found} tokens, the model one of {vocabulary}"
            raise OptionError(problem, fix="give a draft model of the same family")

    def hf_loop(self, model: Any, config: ModelLoadConfig, checkpoint: Checkpoint) -> Callable[..., DecodeLoop]:
        """What makes the loop of a call, with DecodeLoop's arguments; the draft model is loaded beside the model."""
        draft = None if self.model is None else self._draft_model(model, config, checkpoint.dtype)
        return lambda *given: self.loop(*given, drafter=Ngrams(self) if draft is None else DraftModel(self, draft))

    def loop(self, *given: Any, **how: Any) -> SpeculativeLoop:
        """A SpeculativeLoop, with its arguments: for a companion whose guesses are made elsewhere."""
        return SpeculativeLoop(*given, **how)

    def lookup(self, ids: Sequence[int]) -> list[int]:
        """What first followed the tokens that the ids end in: the longest run of them that stood before."""
        held = array.array("q", ids)
        text, size = held.tobytes(), held.itemsize
        for run in range(min(self.lookup_max, len(ids) - 1), self.lookup_min - 1, -1):
            place = text.find(text[-run * size :])
            while place % size:  # between two tokens
                place = text.find(text[-run * size :], place + 1)
            behind = place // size + run
            if behind < len(ids):
                return held[behind : behind + self.num_tokens].tolist()
        return []

    def vllm_arguments(self) -> dict[str, Any]:
        """vLLM's words for it, with its count of guesses per request and step, which a trace reads."""
        let_vllm_scan_numba()
        how: dict[str, Any] = {"method": self.method, "num_speculative_tokens": self.num_tokens}
        if self.method == "ngram":
            how.update(prompt_lookup_max=self.lookup_max, prompt_lookup_min=self.lookup_min)
        else:
            how["model"] = self.model
        return {"speculative_config": how, "per_request_spec_decode_metrics": "detailed"}

    def vllm_replay(self, llm: Any, replays: Mapping[str, Sequence[int]]) -> contextlib.AbstractContextManager[None]:
        """A replay while vLLM guesses, which is for the model runner whose samplers we know. replays: by request id."""
        executor = getattr(getattr(llm.llm_engine.engine_core, "engine_core", None), "model_executor", None)
        runner = getattr(getattr(getattr(executor, "driver_worker", None), "worker", None), "model_runner", None)
        if not all(hasattr(runner, name) for name in ("input_batch", "requests", "sampler", "rejection_sampler")):
            fix = "set VLLM_USE_V2_MODEL_RUNNER=0 before loading, or use backend='hf'"
            raise UnsupportedError("this model runner cannot replay beside speculation", fix=fix)
        return forced_sampling(runner, replays)

    def _draft_model(self, model: Any, config: ModelLoadConfig, dtype: str) -> Any:
        """The smaller model, beside the model."""
        auto = transformers().AutoModelForCausalLM
        how = {"dtype": getattr(torch(), dtype), "trust_remote_code": config.trust_remote_code}
        draft = auto.from_pretrained(self.model, **how).eval()
        draft.generation_config = transformers().GenerationConfig(pad_token_id=model.generation_config.pad_token_id)
        return draft.to(model.device)


def torch() -> Any:
    return importlib.import_module("torch")


def transformers() -> Any:
    return importlib.import_module("transformers")


# == transformers ==


def length_of(row: Row) -> int:
    """Tokens of a row: its prompt's and its answer's."""
    return len(row.ids) + len(row.watch.ids)


def forget(cache: Any, columns: int) -> None:
    """Take the last columns out of a cache. transformers 4.57 takes crop(0) for "all"; 5.x must hear of it where it
    keeps what a sliding window has passed."""
    if columns or hasattr(cache, "activate_past_recording"):
        cache.crop(-columns)


def takes_back(layer: Any) -> bool:
    """Whether tokens can be taken out of a layer of a cache again: not of a recurrent state, nor, in transformers 4.57,
    of a sliding window."""
    if getattr(layer, "is_sliding", False):
        return hasattr(layer, "activate_past_recording")
    return bool(getattr(layer, "is_croppable", not hasattr(layer, "recurrent_states")))


def picked(held: Any, columns: Any) -> Any:
    """Columns of a layer, for each row its own, in a tenth of `gather`'s time. held: [rows, heads, columns, size]"""
    rows, heads, width, size = held.shape
    first = torch().arange(rows * heads, device=held.device).view(rows, heads, 1) * width
    flat = (first + columns[:, None]).flatten()
    return held.reshape(-1, size).index_select(0, flat).view(rows, heads, columns.shape[1], size)


class RaggedBatch:
    """Rows over one cache that advance by different lengths, with their ends in one column.

    A row that advanced less than another is moved to the right, over what was guessed wrong: there is padding on the
    left, as in any batch, and no hole. Between rounds the last column of the ids is the newest token of each row, which
    the cache does not have.
    rows: in the batch's order.   width, lengths: columns of the ids, and tokens of each row, when the round began.
    rigid: columns must stay where they are, although the batch's could be moved.
    """

    def __init__(self, batch: Batch, rows: Sequence[Row], rigid: bool = False) -> None:
        self.batch, self.rows, self.rigid = batch, list(rows), rigid
        self.width, self.lengths = batch.ids.shape[1], [length_of(row) for row in rows]
        if batch.state.get("attention_mask") is None:  # 5.x drops one without a zero
            batch.state["attention_mask"] = batch.ids.new_ones(batch.ids.shape)
        if hasattr(batch.cache, "activate_past_recording"):
            batch.cache.activate_past_recording()

    @property
    def elastic(self) -> bool:
        """From the first forward on: whether rows can be moved; where not, they must be `even`."""
        return self.batch.elastic and not self.rigid

    @property
    def even(self) -> bool:
        """Whether all rows that go on have advanced by the same length."""
        return len({length_of(r) - before for r, before in zip(self.rows, self.lengths) if not r.watch.over}) < 2

    def begin(self) -> Any:
        """The first forward, of the prompts: logits [rows, 1, vocabulary]."""
        logits, layers = self.batch.forward().logits[:, -1:], getattr(self.batch.cache, "layers", ())
        if not layers or not all(map(takes_back, layers)):
            fix = "load without the decoder, or use backend='vllm'"
            raise UnsupportedError("this model's cache cannot take back what was guessed wrong", fix=fix)
        return logits

    def forward(self) -> Any:
        """Of all that the cache does not have: logits [rows, such columns, vocabulary]."""
        batch, columns, seen = self.batch, self.batch.ids.shape[1], self.batch.cache.get_seq_length()
        if "cache_position" in batch.state:
            batch.state["cache_position"] = torch().arange(seen, columns, device=batch.ids.device)
        if "logits_to_keep" in batch.state:
            batch.state["logits_to_keep"] = columns - seen
        return batch.forward(columns - seen).logits[:, seen - columns :]

    def extend(self, tokens: Sequence[Sequence[int]]) -> None:
        """Put tokens behind each row. Where one has fewer than another, a masked column stands, at a position that the
        row has already: a model may know no further one."""
        batch, width, most = self.batch, self.batch.ids.shape[1], max(map(len, tokens))
        counts = batch.ids.new_tensor([[len(own)] for own in tokens])
        steps = torch().arange(1, most + 1, device=batch.ids.device)
        filled = batch.ids.new_tensor([[*own, *[0] * (most - len(own))] for own in tokens])
        batch.ids = torch().cat([batch.ids, filled], dim=1)
        for name in held_by_column(batch):
            held = batch.state[name][..., :width]  # without what a forward adds by itself
            last = held[..., -1:]
            more = {
                "attention_mask": steps <= counts,
                "position_ids": last + steps.minimum(counts),
                "token_type_ids": last,
            }[name].expand(*held.shape[:-1], most)
            batch.state[name] = torch().cat([held, more.to(held.dtype)], dim=-1)

    def settle(self) -> None:
        """End a round: rows that are over leave, the others end with their newest token, whatever else stood there."""
        batch, kept = self.batch, [place for place, row in enumerate(self.rows) if not row.watch.over]
        if 0 < len(kept) < len(self.rows):
            batch.keep(kept)
        self.rows, before = [self.rows[place] for place in kept], [self.lengths[place] for place in kept]
        self.lengths = [length_of(row) for row in self.rows]
        if not kept:
            return
        ends = [self.width + now - then for now, then in zip(self.lengths, before)]
        self.width = max(self.lengths) if self.elastic else ends[0]
        seen, starts = batch.cache.get_seq_length(), [end - self.width for end in ends]
        cached = min(self.width - 1, seen - max(starts))
        if any(starts):
            self._move(starts, cached)
        else:
            forget(batch.cache, seen - cached)
            batch.ids = batch.ids[:, : self.width - 1]
        self.extend([row.watch.ids[-1:] for row in self.rows])

    def _move(self, starts: Sequence[int], cached: int) -> None:
        """Begin each row at a column of its own; one below zero is padding. cached: columns that the cache then has."""
        batch = self.batch
        begin = batch.ids.new_tensor(starts)[:, None]
        source = torch().arange(self.width - 1, device=batch.ids.device) + begin  # [rows, columns]
        columns = source.clamp(min=0)  # the first one holds the row's first token, or padding, which is the same
        batch.ids = batch.ids.gather(1, columns)
        for name in held_by_column(batch):
            held = batch.state[name]
            batch.state[name] = held.gather(-1, columns.expand(*held.shape[:-1], -1))
        batch.state["attention_mask"] *= source >= 0
        batch.rope = None if batch.rope is None else batch.rope + begin
        for layer in batch.cache.layers:
            layer.keys, layer.values = (picked(held, columns[:, :cached]) for held in (layer.keys, layer.values))

    def join(self, other: RaggedBatch) -> None:
        """Take in the rows of another one; both are elastic and settled."""
        lacks = [own.width - own.batch.cache.get_seq_length() for own in (self, other)]
        for own, lack in zip((self, other), lacks):
            forget(own.batch.cache, max(lacks) - lack)
        self.batch.join(other.batch)
        self.rows, self.lengths = self.rows + other.rows, self.lengths + other.lengths
        self.width = self.batch.ids.shape[1]


def held_by_column(batch: Batch) -> list[str]:
    return [name for name in COLUMN_INPUTS if batch.state.get(name) is not None]


def settled(parts: Iterable[RaggedBatch]) -> RaggedBatch | None:
    """The rows of all parts that go on, as one batch."""
    for part in parts:
        part.settle()
    going = [part for part in parts if part.rows]
    for part in going[1:]:
        going[0].join(part)
    return going[0] if going else None


# The rows that run, and the most guesses that each can use -> what may come next in each.
Drafter = Callable[[Sequence[Row], Sequence[int]], Sequence[Sequence[int]]]
Guesses = Mapping[Row, Sequence[int]]


class Ngrams:
    """Guesses what followed a row's last tokens where they first stood, in its prompt or its answer."""

    def __init__(self, how: Speculation) -> None:
        self.how = how
        self.known: dict[Row, array.array[int]] = {}  # each row's ids so far

    def __call__(self, rows: Sequence[Row], most: Sequence[int]) -> list[list[int]]:
        self.known = {row: self.known.get(row) or array.array("q", row.ids) for row in rows}
        for row, ids in self.known.items():
            ids.extend(row.watch.ids[len(ids) - len(row.ids) :])
        return [self.how.lookup(ids)[:limit] for ids, limit in zip(self.known.values(), most)]


class DraftModel:
    """Guesses what a smaller model would say, greedily, for all rows together over a cache of its own."""

    def __init__(self, how: Speculation, model: Any) -> None:
        self.how, self.model = how, model
        self.running: RaggedBatch | None = None

    def __call__(self, rows: Sequence[Row], most: Sequence[int]) -> list[list[int]]:
        self.running = running = self._follow(rows)
        guesses: list[list[int]] = [[] for _ in rows]
        for step in range(min(self.how.num_tokens, max(most))):
            tokens = running.forward()[:, -1].argmax(-1).tolist()
            chosen = [[token] if step < limit else [] for token, limit in zip(tokens, most)]
            running.extend(chosen)
            guesses = [[*guess, *own] for guess, own in zip(guesses, chosen)]
        return guesses

    def _follow(self, rows: Sequence[Row]) -> RaggedBatch:
        """The rows as they are now: what was guessed wrong is forgotten, some have left, others have come."""
        parts = [] if self.running is None else [self.running]
        new = [row for row in rows if not any(row in part.rows for part in parts)]
        if parts and not parts[0].elastic and (new or not parts[0].even):
            parts, new = [], list(rows)  # what cannot be moved is read anew
        if new:
            parts.append(RaggedBatch(self._prepare(new), new))
            parts[-1].begin()
        running = settled(parts)
        assert running is not None and running.rows == list(rows)
        return running

    def _prepare(self, rows: Sequence[Row]) -> Batch:
        """transformers' `generate` on all ids of the rows, up to its first forward. A picture is its placeholders."""
        known = [[*row.ids, *row.watch.ids] for row in rows]
        pads = [max(map(len, known)) - len(ids) for ids in known]
        tensor = functools.partial(torch().tensor, device=self.model.device)
        batch: Batch = self.model.generate(
            input_ids=tensor([ids[:1] * pad + ids for ids, pad in zip(known, pads)]),
            attention_mask=tensor([[0] * pad + [1] * len(ids) for ids, pad in zip(known, pads)]),
            max_new_tokens=self.how.num_tokens,
            do_sample=False,
            use_cache=True,
            custom_generate=Batch,
        )
        return batch


class SpeculativeLoop(DecodeLoop):
    """Guesses for all rows pass through the model together; then each place is decided as DecodeLoop does it, for the
    rows whose guesses were right so far. So every option means what it means there, and a seed draws the same sample.

    Where columns cannot come and go (a sliding window, a plugin's transformers objects), all rows of a batch advance by
    what the slowest got.
    Not the library's own loop: it takes one row, looks for ends once a round, and draws from the process's generator.
    """

    def __init__(self, *given: Any, drafter: Drafter, known: Callable[[Row], Sequence[int]] = lambda row: ()) -> None:
        """known: tokens of a row's answer that are judged with its prompt, and not counted as guesses."""
        super().__init__(*given)
        self.drafter, self.known = drafter, known
        self.running: RaggedBatch | None = None

    def run(self) -> None:
        while self.rows or self.waiting:
            self.turn()

    def turn(self) -> None:
        """The rows that run get what was guessed right, and a token; rows that now join them get their first ones."""
        ended = any(row.watch.over for row in self.rows)  # since the last turn, from outside
        if ended and self.running is not None:
            self._push((), self.running.batch.ids)
            self.running = settled([self.running])
        guesses = self._guesses() if self.rows else {}
        with self.observer.timed("verify"):
            parts = self._forward(guesses)
        for part, logits, tokens in parts:
            self._judge(part, logits, tokens, guessed=part is self.running)
        self.running = settled([part for part, *_ in parts])
        if parts or ended:
            self.observer.stepped()

    def _guesses(self) -> Guesses:
        """As many for each row as can be followed by one more token."""
        longest = self.options.max_new_tokens
        most = [len(row.prompt.replay or range(longest)) - len(row.watch.ids) - 1 for row in self.rows]
        with self.observer.timed("draft"):
            return dict(zip(self.rows, self.drafter(self.rows, most)))

    def _forward(self, guesses: Guesses) -> list[tuple[RaggedBatch, Any, Guesses]]:
        """The rows that run and those that now join them, each with its logits and with the tokens to judge."""
        parts, running = [], self.running
        if running is not None:
            running.extend([guesses[row] for row in running.rows])
            parts.append((running, running.forward(), guesses))
        if new := self.admit(None if running is None else running.batch):
            prompts = RaggedBatch(self.prepare(new), new, self.rigid)
            logits, known = prompts.begin(), {row: self.known(row) for row in new}
            if any(known.values()):
                prompts.extend(list(known.values()))
                logits = torch().cat([logits, prompts.forward()], dim=1)
            parts.append((prompts, logits, known))
        return parts

    def _judge(self, part: RaggedBatch, logits: Any, tokens: Guesses, *, guessed: bool) -> None:
        """Give each row its tokens up to the first that is not among `tokens`. logits: [rows, most of them + 1,
        vocabulary]."""
        everyone, waits, at = list(self.rows), set(self.rows) - set(part.rows), list(range(len(part.rows)))
        ids, drafts = part.batch.ids[:, : part.width], [tokens[row] for row in part.rows]
        for row, draft in zip(part.rows, drafts):
            row.watch.drafted += guessed * len(draft)
        self.rows[:] = part.rows  # in place: the logits hooks read this list
        try:
            for place in range(logits.shape[1]):
                ids, kept = self.decide(logits[at, place], part.batch.processors, ids)
                newest = ids[:, -1].tolist()
                right = [k for k, token in enumerate(newest) if list(drafts[at[k]][place : place + 1]) == [token]]
                for k in right:
                    part.rows[at[k]].watch.matched += guessed
                going = [k for k in kept if k in right]
                if not going or (len(going) < len(kept) and not part.elastic):
                    break
                ids, at = ids[going], [at[k] for k in going]
                onward = [part.rows[k] for k in at]
                waits |= set(self.rows) - set(onward)
                self.rows[:] = onward
        finally:
            waits |= set(self.rows)
            self.rows[:] = [row for row in everyone if row in waits]


# == vLLM ==


def let_vllm_scan_numba() -> None:
    """Loading on a CPU, vLLM 0.32 asks vars() of every value in every module; the library handle of numba (which n-gram
    drafting imports) answers with a function in place of a dict, and every later load in the process would fail."""
    if find_spec("llvmlite") is not None:
        library = importlib.import_module("llvmlite.binding.ffi").lib
        getattr(library, "_fntab", {}).setdefault("__dict__", {})


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap a method of one object, for a while."""
    mine, method = name in vars(owner), getattr(owner, name)
    setattr(owner, name, wrap(method))
    try:
        yield
    finally:
        if mine:
            setattr(owner, name, method)
        else:
            delattr(owner, name)


def force_rows(runner: Any, replays: Mapping[str, Sequence[int]], logits: Any, ahead: Iterable[Iterable[int]]) -> Any:
    """Leave no choice to the requests to replay. logits: [rows, vocabulary]; ahead: for each request of the runner's
    batch, how many tokens after its last one each of its rows stands."""
    rows = iter(range(len(logits)))
    for name, places in zip(runner.input_batch.req_ids, ahead):
        done = len(runner.requests[name].output_token_ids)
        for row, place in [(next(rows), place) for place in places]:
            if name in replays:
                forced = replays[name][min(done + place, len(replays[name]) - 1)]
                logits[row] = logits.new_full(logits[row].shape, -math.inf)
                logits[row, forced] = 0
    return logits


@contextlib.contextmanager
def forced_sampling(runner: Any, replays: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Make vLLM's samplers follow recorded ids while it guesses and takes no logits hook: guesses are judged by them.

    Wraps, on these objects, what turns raw logits, which log-probabilities are taken of, into those to sample from.
    """
    guesses: list[int] = []

    def judge(method: Any) -> Any:
        def act(metadata: Any, *rest: Any) -> Any:
            guesses[:] = metadata.num_draft_tokens
            return method(metadata, *rest)

        return act

    def sample(method: Any) -> Any:
        def act(logits: Any, metadata: Any, bonus: bool) -> Any:
            ahead = [[count] for count in guesses] if bonus else [[0]] * len(logits)
            return force_rows(runner, replays, method(logits, metadata, bonus), ahead)

        return act

    def target(method: Any) -> Any:
        def act(logits: Any, *metadata: Any) -> Any:
            return force_rows(runner, replays, method(logits, *metadata), map(range, guesses))

        return act

    with (
        replaced(runner.rejection_sampler, "forward", judge),
        replaced(runner.sampler, "apply_logits_processors", sample),
        replaced(runner.rejection_sampler, "apply_logits_processors", target),
    ):
        yield
