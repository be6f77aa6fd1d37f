# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Draft tokens, verified together; answers are as without them: a companion of gen_engine.py.

Copy it, joining.py, which it needs, and gen_engine.py into your repository, `make vendor
DEST=acme/llm WITH="speculation joining"`, and

    engine = load("Qwen/Qwen3-8B", decoder=Speculation("ngram"))
    draft = Speculation("draft_model", model="Qwen/Qwen3-0.6B")
    engine = load("Qwen/Qwen3-8B", backend="vllm", decoder=draft)

On vLLM it is vLLM's own. On transformers the loop below drafts for all rows of a batch and verifies
all draft tokens in one forward.
"""

from __future__ import annotations

import array
import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

if TYPE_CHECKING:
    from parity.companions.joining import ElasticBatch, JoiningLoop
else:
    ElasticBatch = ge.companions.joining.ElasticBatch
    JoiningLoop = ge.companions.joining.JoiningLoop

__version__ = "0.3.1"

__all__ = ["Speculation", "SpeculativeLoop"]

METHODS = ("ngram", "draft_model")
WITHOUT = "load without the decoder, or use backend='hf'"
ONE_OF_TWO = "load without one of the two, or use backend='hf'"


def samples(asked: ge.Asked) -> bool:
    return asked.options.temperature > 0 and asked.options.replay is None


def seeded(asked: ge.Asked) -> bool:
    seeds = [asked.options.seed, *(prompt.seed for prompt in asked.prompts)]
    return any(seed is not None for seed in seeds)


def wants_logits(asked: ge.Asked) -> bool:
    return asked.options.logits or any(plugin.logits for plugin in asked.plugins)


REFUSALS = (
    ge.Refusal(
        "vllm",
        "speculation with its logits hook",
        lambda asked: asked.config.logits_hooks,
        ONE_OF_TWO,
    ),
    ge.Refusal(
        "vllm",
        "speculation with adapters",
        lambda asked: bool(asked.config.adapters),
        ONE_OF_TWO,
    ),
    ge.Refusal(
        "vllm",
        "logits plugins or full logits with speculation",
        wants_logits,
        WITHOUT,
    ),
    ge.Refusal(  # a step without a draft would raise inside vLLM 0.32
        "vllm",
        "top_k with speculation",
        lambda asked: samples(asked) and asked.options.top_k is not None,
        "use top_p, load without the decoder, or use backend='hf'",
    ),
    ge.Refusal(
        "vllm",
        "min_p with speculation",
        lambda asked: asked.options.min_p > 0,
        WITHOUT,
    ),
    ge.Refusal(  # it would not give the same sample again
        "vllm",
        "a seed with speculation",
        lambda asked: asked.options.temperature > 0 and seeded(asked),
        "drop the seed, or use backend='hf'",
    ),
    ge.Refusal(
        "vllm",
        "speculation with a count of each request's guesses",
        lambda asked: True,
        "install vllm>=0.29, load without the decoder, or use backend='hf'",
        "vllm<0.29",
    ),
)


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to draft; a gen_engine.Decoder, for `load(decoder=...)`.

    method: "ngram" drafts what followed the last few tokens where they stood before, in the prompt
        or the answer; "draft_model" asks a smaller model with the same vocabulary.
    num_tokens: draft tokens in a round.   model: the draft checkpoint, for "draft_model" only.
    lookup_max, lookup_min: for "ngram" only, how many last tokens to look for, at most and at
        least: the longest run that is found."""

    method: str
    # Beyond 5 the odds that all are right fall faster than the rounds get fewer.
    num_tokens: int = 5
    model: str | None = None
    lookup_max: int = 3
    lookup_min: int = 1

    def __post_init__(self) -> None:
        ge.check_choice(self, "method", METHODS, "speculative method")
        ge.check_texts(self, "model", optional=True)
        for name in ("num_tokens", "lookup_max", "lookup_min"):
            ge.check_int(self, name, 1)
        if (self.model is not None) != (self.method == "draft_model"):
            problem = f"Speculation.model is {self.model!r}"
            raise ge.OptionError(problem, fix="ngram has none, draft_model one")
        if self.lookup_min > self.lookup_max:
            problem = f"Speculation.lookup_min is {self.lookup_min}"
            raise ge.OptionError(problem, fix="it must be 1 to lookup_max")

    @property
    def refusals(self) -> tuple[ge.Refusal, ...]:
        return REFUSALS

    def ready(self, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint) -> None:
        """A draft model must be there and have the model's vocabulary: a draft is token ids."""
        if self.model is None:
            return
        vocabulary = checkpoint.config.get_text_config().vocab_size
        read = transformers().AutoConfig.from_pretrained
        try:
            draft_config = read(self.model, trust_remote_code=config.trust_remote_code)
            found = draft_config.get_text_config().vocab_size
        except (OSError, ValueError) as error:
            problem = f"cannot read the draft model {self.model!r}: {error}"
            raise ge.LoadError(problem, fix="give a checkpoint directory") from error
        if found != vocabulary:
            sizes = f"{found} tokens, the model one of {vocabulary}"
            problem = f"the draft model has a vocabulary of {sizes}"
            raise ge.OptionError(problem, fix="give a draft model of the same family")

    def hf_loop(
        self,
        model: Any,
        config: ge.ModelLoadConfig,
        checkpoint: ge.Checkpoint,
    ) -> Callable[..., JoiningLoop]:
        """What makes the loop of a call, with DecodeLoop's arguments; the draft model is loaded
        beside the model."""
        if self.model is None:
            return lambda *given: self.loop(*given, drafter=Ngrams(self))
        draft = self._draft_model(model, config, checkpoint)
        return lambda *given: self.loop(*given, drafter=DraftModel(self, draft))

    def loop(self, *given: Any, **how: Any) -> SpeculativeLoop:
        """A SpeculativeLoop, with its arguments: for a companion that drafts elsewhere."""
        return SpeculativeLoop(*given, **how)

    def lookup(self, ids: Sequence[int]) -> list[int]:
        """What first followed the tokens that the ids end in: the longest run of them that stood
        before."""
        held = array.array("q", ids)
        text = held.tobytes()
        size = held.itemsize
        for run in range(min(self.lookup_max, len(ids) - 1), self.lookup_min - 1, -1):
            place = text.find(text[-run * size :])
            while place % size:  # between two tokens
                place = text.find(text[-run * size :], place + 1)
            behind = place // size + run
            if behind < len(ids):
                return held[behind : behind + self.num_tokens].tolist()
        return []

    def vllm_arguments(self) -> dict[str, Any]:
        """vLLM's words for it, with its count of draft tokens per request and step, which a trace
        reads."""
        let_vllm_scan_numba()
        how: dict[str, Any] = {}
        how["method"] = self.method
        how["num_speculative_tokens"] = self.num_tokens
        if self.method == "ngram":
            how.update(prompt_lookup_max=self.lookup_max, prompt_lookup_min=self.lookup_min)
        else:
            how["model"] = self.model
        return {"speculative_config": how, "per_request_spec_decode_metrics": "detailed"}

    def vllm_run(
        self,
        llm: Any,
        prompts: Mapping[str, ge.Prompt],
    ) -> contextlib.AbstractContextManager[None]:
        """A replay while vLLM drafts, which is for the model runner whose samplers we know.
        prompts: by request id."""
        replays = {name: prompt.replay for name, prompt in prompts.items() if prompt.replay}
        if not replays:
            return contextlib.nullcontext()
        runner = llm.llm_engine.engine_core
        for name in ("engine_core", "model_executor", "driver_worker", "worker", "model_runner"):
            runner = getattr(runner, name, None)
        used = ("input_batch", "requests", "sampler", "rejection_sampler")
        if not all(hasattr(runner, name) for name in used):
            fix = "set VLLM_USE_V2_MODEL_RUNNER=0 before loading, or use backend='hf'"
            raise ge.UnsupportedError("this model runner cannot replay beside speculation", fix=fix)
        return forced_sampling(runner, replays)

    def _draft_model(
        self, model: Any, config: ge.ModelLoadConfig, checkpoint: ge.Checkpoint
    ) -> Any:
        """The smaller model, beside the model."""
        auto = transformers().AutoModelForCausalLM
        dtype = getattr(torch(), checkpoint.dtype)
        how = {"dtype": dtype, "trust_remote_code": config.trust_remote_code}
        draft = auto.from_pretrained(self.model, **how).eval()
        generation = transformers().GenerationConfig
        draft.generation_config = generation(pad_token_id=checkpoint.pad_id)
        return draft.to(model.device)


def torch() -> Any:
    return importlib.import_module("torch")


def transformers() -> Any:
    return importlib.import_module("transformers")


# == transformers ==


def length_of(row: ge.Row) -> int:
    """Tokens of a row: its prompt's and its answer's."""
    return len(row.ids) + len(row.watch.ids)


def forget(cache: Any, columns: int) -> None:
    """Take the last columns out of a cache. transformers 4.57 takes crop(0) for "all"; 5.x must
    hear of it where it keeps what a sliding window has passed."""
    if columns or hasattr(cache, "activate_past_recording"):
        cache.crop(-columns)


def takes_back(layer: Any) -> bool:
    """Whether tokens can be taken out of a layer of a cache again: not of a recurrent state, nor,
    in transformers 4.57, of a sliding window."""
    if getattr(layer, "is_sliding", False):
        return hasattr(layer, "activate_past_recording")
    return bool(getattr(layer, "is_croppable", not hasattr(layer, "recurrent_states")))


def picked(held: Any, columns: Any) -> Any:
    """Columns of a layer, for each row its own, in a tenth of `gather`'s time.
    held: [rows, heads, columns, size]"""
    rows, heads, width, size = held.shape
    first = torch().arange(rows * heads, device=held.device).view(rows, heads, 1) * width
    flat = (first + columns[:, None]).flatten()
    return held.reshape(-1, size).index_select(0, flat).view(rows, heads, columns.shape[1], size)


class RaggedBatch:
    """Rows over one cache that advance by different lengths, with their ends in one column.

    A row that advanced less than another is moved to the right, over what was drafted wrong: there
    is padding on the left, as in any batch, and no hole. Between rounds the last column of the ids
    is the newest token of each row, which the cache does not have.
    rows: in the batch's order.   width, lengths: columns of the ids, and tokens of each row, when
    the round began.   rigid: columns must stay where they are, although the batch's could be moved.
    """

    def __init__(self, batch: ElasticBatch, rows: Sequence[ge.Row], rigid: bool = False) -> None:
        self.batch = batch
        self.rows = list(rows)
        self.rigid = rigid
        self.width = batch.ids.shape[1]
        self.lengths = [length_of(row) for row in rows]
        if hasattr(batch.cache, "activate_past_recording"):
            batch.cache.activate_past_recording()

    @property
    def elastic(self) -> bool:
        """From the first forward on: whether rows can be moved; where not, they must be `even`."""
        return self.batch.elastic and not self.rigid

    @property
    def even(self) -> bool:
        """Whether all rows that go on have advanced by the same length."""
        advances = set()
        for row, before in zip(self.rows, self.lengths):
            if not row.watch.over:
                advances.add(length_of(row) - before)
        return len(advances) < 2

    def begin(self) -> Any:
        """Logits of the prompts: [rows, 1, vocabulary]."""
        layers = getattr(self.batch.cache, "layers", ())
        if not layers or not all(map(takes_back, layers)):
            problem = "this model's cache cannot take back what was guessed wrong"
            fix = "load without the decoder, or use backend='vllm'"
            raise ge.UnsupportedError(problem, fix=fix)
        return self.batch.logits[:, None]

    def forward(self) -> Any:
        """Logits of all that the cache does not have: [rows, such columns, vocabulary]."""
        return self.batch.forward(self.batch.ids.shape[1] - self.batch.cache.get_seq_length())

    def extend(self, tokens: Sequence[Sequence[int]]) -> None:
        """Put tokens behind each row. Where one has fewer than another, a masked column stands, at
        a position that the row has already: a model may know no further one."""
        ids = self.batch.ids
        most = max(map(len, tokens))
        counts = ids.new_tensor([[len(own)] for own in tokens])
        filled = ids.new_tensor([[*own, *[0] * (most - len(own))] for own in tokens])
        self.batch.append(filled, torch().arange(1, most + 1, device=ids.device) <= counts)

    def settle(self) -> None:
        """End a round: rows that are over leave, the others end with their newest token, whatever
        else stood there."""
        before = self._drop_ended()
        if not self.rows:
            return
        ends = [self.width + now - then for now, then in zip(self.lengths, before)]
        self.width = max(self.lengths) if self.elastic else ends[0]
        starts = [end - self.width for end in ends]
        seen = self.batch.cache.get_seq_length()
        cached = min(self.width - 1, seen - max(starts))
        if any(starts):
            self._move(starts, cached)
        else:
            forget(self.batch.cache, seen - cached)
            self.batch.ids = self.batch.ids[:, : self.width - 1]
            self.batch.mask = self.batch.mask[:, : self.width - 1]
        self.extend([row.watch.ids[-1:] for row in self.rows])

    def _drop_ended(self) -> list[int]:
        """Take out the rows that are over. The lengths that the others had before the round."""
        kept = [index for index, row in enumerate(self.rows) if not row.watch.over]
        if 0 < len(kept) < len(self.rows):
            self.batch.keep(kept)
        before = [self.lengths[index] for index in kept]
        self.rows = [self.rows[index] for index in kept]
        self.lengths = [length_of(row) for row in self.rows]
        return before

    def _move(self, starts: Sequence[int], cached: int) -> None:
        """Begin each row at a column of its own; one below zero is padding.
        cached: columns that the cache then has."""
        batch = self.batch
        begin = batch.ids.new_tensor(starts)[:, None]
        offsets = torch().arange(self.width - 1, device=batch.ids.device)
        source = offsets + begin  # [rows, columns]
        columns = source.clamp(min=0)  # the first one holds a row's first token, or padding
        batch.ids = batch.ids.gather(1, columns)
        batch.mask = batch.mask.gather(1, columns) * (source >= 0)
        for layer in batch.cache.layers:
            layer.keys = picked(layer.keys, columns[:, :cached])
            layer.values = picked(layer.values, columns[:, :cached])

    def join(self, other: RaggedBatch) -> None:
        """Take in the rows of another one; both are elastic and settled."""
        lacks = [own.width - own.batch.cache.get_seq_length() for own in (self, other)]
        for own, lack in zip((self, other), lacks):
            forget(own.batch.cache, max(lacks) - lack)
        self.batch.join(other.batch)
        self.rows = self.rows + other.rows
        self.lengths = self.lengths + other.lengths
        self.width = self.batch.ids.shape[1]


def settled(parts: Iterable[RaggedBatch]) -> RaggedBatch | None:
    """The rows of all parts that go on, as one batch."""
    for part in parts:
        part.settle()
    going = [part for part in parts if part.rows]
    for part in going[1:]:
        going[0].join(part)
    return going[0] if going else None


# The rows that run, and the most draft tokens that each can use -> the draft of each.
Drafter = Callable[[Sequence[ge.Row], Sequence[int]], Sequence[Sequence[int]]]
Guesses = Mapping[ge.Row, Sequence[int]]


class Ngrams:
    """Drafts what followed a row's last tokens where they first stood, in its prompt or answer."""

    def __init__(self, how: Speculation) -> None:
        self.how = how
        self.known: dict[ge.Row, array.array[int]] = {}  # each row's ids so far

    def __call__(self, rows: Sequence[ge.Row], most: Sequence[int]) -> list[list[int]]:
        known = self.known
        self.known = {row: known.get(row) or array.array("q", row.ids) for row in rows}
        for row, ids in self.known.items():
            ids.extend(row.watch.ids[len(ids) - len(row.ids) :])
        held = self.known.values()
        return [self.how.lookup(ids)[:limit] for ids, limit in zip(held, most)]


def must_be_read_anew(running: RaggedBatch, new: Sequence[ge.Row]) -> bool:
    """Whether rows that cannot be moved would have to be."""
    return not running.elastic and (bool(new) or not running.even)


class DraftModel:
    """Drafts what a smaller model would say, greedily, for all rows together over a cache of its
    own."""

    def __init__(self, how: Speculation, model: Any) -> None:
        self.how = how
        self.model = model
        self.running: RaggedBatch | None = None

    def __call__(self, rows: Sequence[ge.Row], most: Sequence[int]) -> list[list[int]]:
        running = self._follow(rows)
        self.running = running
        guesses: list[list[int]] = [[] for _ in rows]
        for step in range(min(self.how.num_tokens, max(most))):
            tokens = running.forward()[:, -1].argmax(-1).tolist()
            chosen = [[token] if step < limit else [] for token, limit in zip(tokens, most)]
            running.extend(chosen)
            guesses = [[*guess, *own] for guess, own in zip(guesses, chosen)]
        return guesses

    def _follow(self, rows: Sequence[ge.Row]) -> RaggedBatch:
        """The rows as they are now: what was drafted wrong is forgotten, some have left, others
        have come."""
        parts = [] if self.running is None else [self.running]
        new = [row for row in rows if not any(row in part.rows for part in parts)]
        if any(must_be_read_anew(part, new) for part in parts):
            parts = []
            new = list(rows)
        if new:
            parts.append(RaggedBatch(self._prepare(new), new))
            parts[-1].begin()
        running = settled(parts)
        assert running is not None and running.rows == list(rows)
        return running

    def _prepare(self, rows: Sequence[ge.Row]) -> ElasticBatch:
        """The first forward, of all ids of the rows but the newest, which the cache shall not have:
        a sliding window could not take it back. An image is its placeholders."""
        known = [[*row.ids, *row.watch.ids[:-1]] for row in rows]
        longest = max(map(len, known))
        padded = []
        masks = []
        for ids in known:
            pads = longest - len(ids)
            padded.append(ids[:1] * pads + ids)
            masks.append([0] * pads + [1] * len(ids))
        tensor = functools.partial(torch().tensor, device=self.model.device)
        inputs = {"input_ids": tensor(padded), "attention_mask": tensor(masks)}
        batch = ElasticBatch(self.model, inputs)
        newest = tensor([row.watch.ids[-1:] for row in rows])
        batch.append(newest, newest.new_ones(newest.shape))
        return batch


class SpeculativeLoop(JoiningLoop):
    """Drafts for all rows pass through the model together; then each token is decided as DecodeLoop
    does it, for the rows whose drafts were right so far. So every option means what it means there,
    and a seed draws the same sample.

    Where columns cannot come and go (a sliding window, a plugin's transformers objects), all rows
    of a batch advance by what the slowest got.
    Not the library's own loop: it takes one row, looks for ends once a round, and draws from the
    process's generator."""

    def __init__(
        self,
        *given: Any,
        drafter: Drafter,
        known: Callable[[ge.Row], Sequence[int]] = lambda row: (),
    ) -> None:
        """known: tokens of a row's answer that are verified with its prompt, and not counted as
        draft tokens."""
        super().__init__(*given)
        self.drafter = drafter
        self.known = known
        self.running: RaggedBatch | None = None

    def run(self) -> None:
        while self.rows or self.waiting:
            self.turn()

    def turn(self) -> None:
        """The rows that run get what was drafted right, and a token; rows that now join them get
        their first ones."""
        ended = any(row.watch.over for row in self.rows)  # since the last turn, from outside
        if ended:
            self.answer_ended()
            self.running = settled([self.running] if self.running else [])
        guesses = self._guesses() if self.rows else {}
        with self.observer.timed("verify"):
            parts = self._forward(guesses)
        for part, logits, tokens in parts:
            is_draft = part is self.running
            for row in part.rows:
                row.watch.drafted += is_draft * len(tokens[row])
            self._judge(part, logits, tokens, guessed=is_draft)
        self.running = settled([part for part, *_ in parts])
        if parts or ended:
            self.observer.stepped()

    def _guesses(self) -> Guesses:
        """As many for each row as can be followed by one more token."""
        most = []
        for row in self.rows:
            length = len(row.prompt.replay or range(self.options.max_new_tokens))
            most.append(length - len(row.watch.ids) - 1)
        with self.observer.timed("draft"):
            return dict(zip(self.rows, self.drafter(self.rows, most)))

    def _forward(self, guesses: Guesses) -> list[tuple[RaggedBatch, Any, Guesses]]:
        """The rows that run and those that now join them, each with its logits and with the tokens
        to verify."""
        parts = []
        running = self.running
        if running is not None:
            running.extend([guesses[row] for row in running.rows])
            parts.append((running, running.forward(), guesses))
        if new := self.admit(None if running is None else running.batch):
            prompts = RaggedBatch(self.prepare(new), new, self.rigid)
            logits = prompts.begin()
            known = {row: self.known(row) for row in new}
            if any(known.values()):
                prompts.extend(list(known.values()))
                logits = torch().cat([logits, prompts.forward()], dim=1)
            parts.append((prompts, logits, known))
        return parts

    def _judge(self, part: RaggedBatch, logits: Any, tokens: Guesses, *, guessed: bool) -> None:
        """Give each row its tokens up to the first that is not among `tokens`.
        logits: [rows, most of them + 1, vocabulary]."""
        ids = part.batch.ids[:, : part.width]
        onward = list(part.rows)
        at = list(range(len(onward)))  # where those are in `part`
        for place in range(logits.shape[1]):
            self.batch[:] = onward  # in place: the logits processors read this list
            chosen = self.decide(logits[at, place], ids)
            ids = torch().cat([ids, chosen], dim=1)
            right = right_rows(onward, chosen[:, 0].tolist(), tokens, place)
            for index in right:
                onward[index].watch.matched += guessed
            kept = [index for index, row in enumerate(onward) if not row.watch.over]
            going = [index for index in kept if index in right]
            if not going or (len(going) < len(kept) and not part.elastic):
                break
            ids = ids[going]
            at = [at[index] for index in going]
            onward = [onward[index] for index in going]


def right_rows(
    rows: Sequence[ge.Row],
    newest: Sequence[int],
    tokens: Guesses,
    place: int,
) -> set[int]:
    """Of these rows, those whose newest token is the one at `place` of its draft."""
    right = set()
    for index, (row, token) in enumerate(zip(rows, newest)):
        if list(tokens[row][place : place + 1]) == [token]:
            right.add(index)
    return right


# == vLLM ==


def let_vllm_scan_numba() -> None:
    """Loading on a CPU, vLLM 0.32 asks vars() of every value in every module; the library handle of
    numba (which n-gram drafting imports) answers with a function in place of a dict, and every
    later load in the process would fail."""
    if find_spec("llvmlite") is not None:
        library = importlib.import_module("llvmlite.binding.ffi").lib
        getattr(library, "_fntab", {}).setdefault("__dict__", {})


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap a method of one object, for a while."""
    mine = name in vars(owner)
    method = getattr(owner, name)
    setattr(owner, name, wrap(method))
    try:
        yield
    finally:
        if mine:
            setattr(owner, name, method)
        else:
            delattr(owner, name)


def force_rows(
    runner: Any,
    replays: Mapping[str, Sequence[int]],
    logits: Any,
    ahead: Iterable[Iterable[int]],
) -> Any:
    """Leave no choice to the requests to replay.
    logits: [rows, vocabulary].   ahead: for each request of the runner's batch, how many tokens
    after its last one each of its rows stands."""
    rows = iter(range(len(logits)))
    for name, places in zip(runner.input_batch.req_ids, ahead):
        done = len(runner.requests[name].output_token_ids)
        for place in places:
            row = next(rows)
            if name in replays:
                forced = replays[name][min(done + place, len(replays[name]) - 1)]
                logits[row] = logits.new_full(logits[row].shape, -math.inf)
                logits[row, forced] = 0
    return logits


@contextlib.contextmanager
def forced_sampling(runner: Any, replays: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Make vLLM's samplers follow recorded ids while it drafts and takes no logits hook: drafts are
    verified by them.

    Wraps, on these objects, what turns raw logits, which log-probabilities are taken of, into those
    to sample from."""
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
