# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""The probability of each named answer to a question, in one pass: a companion of gen_engine.py.

Copy it and what finds an open thought, `make vendor DEST=acme/llm WITH="decisions reasoning"`, and

    from acme.llm.decisions import decide

    judge = {"type": "predicate", "instructions": "Is the answer polite?"}
    [decision] = decide(engine, [{"messages": chat}], [judge])
    decision.probability, decision.choice, decision.label_mass, decision.margin

Nothing is generated: the model's distribution is read at the position where its answer begins,
behind the checkpoint's chat template, at the first token of each answer's label. Where labels share
tokens or have several, it is read behind these tokens, too. The names and JSON shapes are those of
OpenAI's /v1/decisions.

    Question + request --ask--> Prompt --label_ids--> Reading --read_labels--> Decision
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["Choice", "Decision", "Level", "Question", "decide", "read_body", "reply"]

log = logging.getLogger("gen_engine")

TYPES = ("predicate", "choice", "score")
Ids = tuple[int, ...]
Label = str | Ids  # a text, or token ids that are taken as they are

REFUSALS = (
    ge.Refusal(
        "vllm",
        "label reads without its hook",  # logprob_token_ids came with 0.20, on a CPU with 0.23
        lambda asked: not asked.config.logits_hooks,
        "install vllm>=0.23, load with logits_hooks=True, or use backend='hf'",
        "vllm<0.23",
    ),
)

# == Questions ==


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a choice.

    value: a string or a bool, different from the others.
    description: for the model, beside the value. Default: none."""

    value: str | bool
    description: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a score's scale.

    label: its name.   description: for the model, beside the name. Default: none.
    value: what it counts in `Decision.score`. Default None: its position, from 0 on."""

    label: str
    description: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answers have names.

    type: "predicate" (true or false), "choice" or "score".
    instructions: the question. It is put behind the last user message, with the labels to answer
        with. Default "": the request asks by itself, and its prompt stays as it is.
    name: stands in errors and in the answer. Default None.
    choices: of a choice: two or more Choices, mappings of their fields, or plain values.
    levels: of a score, in order: two or more Levels, mappings of their fields, or plain names.
    labels: what the model writes for each answer, in their order (of a predicate for true, then for
        false): a text; or token ids, taken as they are; or a list of texts or of lists of token
        ids, whose probabilities are added. Default None: "yes" and "no", the choices' values, the
        levels' names."""

    type: str
    instructions: str = ""
    name: str | None = None
    choices: tuple[Choice, ...] = ()
    levels: tuple[Level, ...] = ()
    labels: Any = None

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            fix = ge.did_you_mean(self.type, TYPES)
            raise ge.OptionError(f"no type of question {ge.short_repr(self.type)}", fix=fix)
        for name in ("instructions", "name"):
            value = getattr(self, name)
            if value and not ge.is_text(value):
                raise self.error(f"{name} is {ge.short_repr(value)}", "give a text")
        set_field = functools.partial(object.__setattr__, self)  # it is frozen
        set_field("choices", as_options(self, "choices", Choice, "value"))
        set_field("levels", as_options(self, "levels", Level, "label"))
        for level in self.levels:
            if level.value is not None and type(level.value) not in (int, float):
                problem = f"value of level {level.label!r} is {ge.short_repr(level.value)}"
                raise self.error(problem, "give a number")
        labels = self.usual_labels() if self.labels is None else self.labels
        set_field("labels", tuple(as_spellings(self, label) for label in listed(labels)))
        check_labels(self)

    def error(self, problem: str, fix: str) -> ge.OptionError:
        """An error of this question, for raising."""
        where = self.name or ge.short_repr(self.instructions) if self.instructions else self.name
        return ge.OptionError(f"question {where or self.type}: {problem}", fix=fix)

    @property
    def answers(self) -> tuple[str | bool, ...]:
        """What a decision may choose, in the order of the labels."""
        if self.type == "predicate":
            return True, False
        if self.type == "choice":
            return tuple(choice.value for choice in self.choices)
        return tuple(level.label for level in self.levels)

    @property
    def values(self) -> tuple[float, ...]:
        """What each level of a score counts."""
        numbers = []
        for position, level in enumerate(self.levels):
            numbers.append(float(position if level.value is None else level.value))
        return tuple(numbers)

    def usual_labels(self) -> Sequence[str]:
        """What the model writes for each answer where the question does not say it."""
        if self.type == "predicate":
            return "yes", "no"
        return [
            answer if isinstance(answer, str) else json.dumps(answer) for answer in self.answers
        ]


def listed(values: Any) -> Sequence[Any]:
    """A list or tuple; of anything else a list of that alone."""
    return values if isinstance(values, (list, tuple)) else [values]


def as_options(question: Question, name: str, kind: Any, field_name: str) -> tuple[Any, ...]:
    """The choices or levels of a question as a `kind`. Raises OptionError."""
    made = []
    for given in listed(getattr(question, name)):
        is_plain = isinstance(given, (str, bool))
        option = ge.build(kind, {field_name: given} if is_plain else given)
        value = getattr(option, field_name)
        if not isinstance(value, bool if kind is Choice and value in (True, False) else str):
            raise question.error(f"{field_name} is {ge.short_repr(value)}", "give a text")
        if not isinstance(option.description, str):
            problem = f"description is {ge.short_repr(option.description)}"
            raise question.error(problem, "give a text")
        made.append(option)
    is_wanted = question.type == {"choices": "choice", "levels": "score"}[name]
    if bool(made) != is_wanted or len(made) == 1:
        fix = "give two or more" if is_wanted else "drop them"
        raise question.error(f"a {question.type} with {len(made)} {name}", fix)
    values = [getattr(option, field_name) for option in made]
    twice = first_double(map(repr, values))
    if twice is not None:
        raise question.error(f"{twice} stands twice in {name}", "name each once")
    return tuple(made)


def first_double(values: Iterable[Any]) -> Any:
    """The first value that stands there twice, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def as_spellings(question: Question, label: Any) -> tuple[Label, ...]:
    """The ways to write one answer. Raises OptionError for what is no label."""
    if isinstance(label, (list, tuple)) and label and not ge.are_ids(label):
        spellings = [tuple(one) if isinstance(one, list) else one for one in label]
    else:
        spellings = [tuple(label) if isinstance(label, list) else label]
    for one in spellings:
        is_ids = isinstance(one, tuple) and bool(one) and ge.are_ids(one)
        if one in ("", ()):
            raise question.error("a label is empty", "name what the model writes")
        if not is_ids and not ge.is_text(one):
            problem = f"label {ge.short_repr(one)} is neither a text of whole characters nor ids"
            raise question.error(problem, "give a text or a list of token ids")
    return tuple(spellings)


def check_labels(question: Question) -> None:
    """Raise OptionError for another number of labels than answers, or one that stands twice."""
    answers = len(question.answers)
    if len(question.labels) != answers:
        problem = f"{len(question.labels)} labels for {answers} answers"
        raise question.error(problem, "give one for each")
    twice = first_double(itertools.chain(*question.labels))
    if twice is not None:
        raise question.error(f"label {ge.short_repr(twice)} stands twice", "name each once")


# == Decisions ==


@dataclass(frozen=True, slots=True)
class Decision:
    """How likely each answer to a question is.

    choice: the likeliest answer: True or False, a choice's value, the name of a level.
    probabilities: of each of `question.answers`, among them: the sum is 1. Calibrated where that
        was asked for.
    logprobs: log-probability of each answer in the whole distribution, in nats, raw.
    label_mass: sum of the answers' probabilities in the whole distribution, raw. Little of it says
        that the model wanted to write something else.
    margin: by how much the first probability is above the second.
    score: of a score, the expected value of its levels.
    label_ids: the token ids that were read, by answer and spelling.
    reads: at how many positions the distribution was read: 1 where all labels begin differently and
        have one token.
    prompt_token_ids: what the model was given; one placeholder for each image."""

    question: Question
    choice: str | bool
    probabilities: tuple[float, ...]
    logprobs: tuple[float, ...]
    label_mass: float
    margin: float
    score: float | None
    label_ids: tuple[tuple[Ids, ...], ...]
    reads: int
    prompt_token_ids: Ids
    backend: str
    fallback_from: str | None = None

    @property
    def probability(self) -> float:
        """Of a predicate, that it is true; else of the choice."""
        index = 0 if self.question.type == "predicate" else self.question.answers.index(self.choice)
        return self.probabilities[index]

    @property
    def confidence(self) -> float:
        """Probability of the choice in the whole distribution, as vLLM reports it."""
        return max(self.probabilities) * self.label_mass

    def to_json(self) -> dict[str, Any]:
        """An answer of OpenAI's /v1/decisions, with label_mass and margin beside its fields."""
        question = self.question
        answer: dict[str, Any] = {"type": question.type, "name": question.name}
        if question.type == "predicate":
            answer["probability"] = self.probability
        elif question.type == "choice":
            answer["choice"] = self.choice
            answer["probabilities"] = self._listed("value", question.answers)
            answer["confidence"] = self.confidence
        else:
            answer["score"] = self.score
            levels = self._listed("label", question.answers)
            for level, value in zip(levels, question.values):
                level["value"] = value
            answer["probabilities"] = levels
            answer["confidence"] = self.confidence
        return {**answer, "label_mass": self.label_mass, "margin": self.margin}

    def _listed(self, name: str, answers: Sequence[Any]) -> list[dict[str, Any]]:
        pairs = zip(answers, self.probabilities)
        return [{name: answer, "probability": probability} for answer, probability in pairs]


# == Asking: question + request -> prompt ==


def question_text(question: Question, checkpoint: ge.Checkpoint) -> str:
    """What is put behind the last user message: the instructions, what each label stands for, and
    the labels to answer with."""
    lines = [question.instructions]
    options: Sequence[Any] = question.choices or question.levels
    shown = [label_text(spellings[0], checkpoint) for spellings in question.labels]
    for label, option, answer in zip(shown, options, question.answers):
        meaning = answer if isinstance(answer, str) else json.dumps(answer)
        texts = [] if meaning == label else [meaning]
        texts += [option.description] if option.description else []
        if texts:
            lines.append(f"{label}: {' - '.join(texts)}")
    lines.append(f"Answer with one of these, and nothing else: {', '.join(shown)}")
    return "\n".join(lines)


def label_text(label: Label, checkpoint: ge.Checkpoint) -> str:
    text = label if isinstance(label, str) else text_of(checkpoint, label)
    return text.strip()


def with_question(request: Any, question: Question, checkpoint: ge.Checkpoint) -> Any:
    """The request with a question behind its last user message. Raises RequestError."""
    messages = list(request.messages or ())
    position = len(messages) - (2 if request.continue_final else 1)
    if position < 0 or messages[position]["role"] != "user":
        problem = "the question has instructions, and the request no user message at its end"
        fix = "give messages, or write the question into the prompt and leave instructions out"
        raise ge.RequestError(problem, fix=fix)
    message = messages[position]
    text = question_text(question, checkpoint)
    content = message["content"]
    if isinstance(content, str):
        content = f"{content}\n\n{text}"
    else:
        content = [*content, {"type": "text", "text": text}]
    messages[position] = {**message, "content": content}
    return dataclasses.replace(request, messages=tuple(messages))


def as_request(source: Any, checkpoint: ge.Checkpoint) -> Any:
    """A request of either kind. Raises RequestError for what has no meaning here."""
    request = ge.build(ge.VlmGenerationRequest, source)
    if request.structured is not None or request.seed is not None:
        problem = "structured and seed are for generating, not for deciding"
        raise ge.RequestError(problem, fix="drop them")
    if ge.holds_images(request):
        _ = checkpoint.vision  # or an UnsupportedError
    return request


# == Labels -> token ids ==

TAIL = 32  # tokens of a prompt that a label is tokenized behind


def text_of(checkpoint: ge.Checkpoint, ids: Sequence[int]) -> str:
    """Token ids as text, with special tokens, as the tokenizer would read them again."""
    how = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    return str(checkpoint.tokenizer.decode(list(ids), **how))


def prompt_tail(prompt: ge.Prompt, checkpoint: ge.Checkpoint) -> Ids:
    """The end of a prompt that decides how a label is tokenized: from its last special token on, or
    the last TAIL ids."""
    tail = prompt.token_ids[-TAIL:]
    specials = checkpoint.special_tokens
    begin = max((k for k, token_id in enumerate(tail) if token_id in specials), default=0)
    return tail[begin:]


def opens_thought(text: str) -> bool:
    """Whether a text ends inside a thought, of any family of models: some share a marker of the
    beginning, and write the end with other white space."""
    formats = ge.companions.reasoning.FORMATS.values()
    begins = re.finditer("|".join(one.begin for one in formats), text)
    ends = re.finditer("|".join(one.end for one in formats), text)
    last_begin = max((found.end() for found in begins), default=-1)
    return last_begin > max((found.end() for found in ends), default=-1)


def check_position(request: Any, prompt: ge.Prompt, checkpoint: ge.Checkpoint) -> None:
    """Raise RequestError where no answer begins behind a prompt."""
    if request.messages is None:
        return
    if not request.chat.add_generation_prompt and not request.continue_final:
        problem = "no answer begins behind the prompt: add_generation_prompt is False"
        raise ge.RequestError(problem, fix="leave it out")
    if request.chat.enable_thinking:
        problem = "the answer begins with a thought: enable_thinking is True"
        raise ge.RequestError(problem, fix="leave it out")
    tail = text_of(checkpoint, prompt_tail(prompt, checkpoint))
    if opens_thought(tail):
        problem = f"the chat template opens a thought ({ge.short_repr(tail)})"
        fix = "end it with continue_final=True and an assistant message that holds an empty one"
        raise ge.RequestError(problem, fix=fix)
    if tail.endswith("<|start|>assistant"):  # gpt-oss names the channel first
        problem = "the chat template leaves it open whether a thought or an answer begins"
        fix = "give a template that ends with <|channel|>final<|message|>"
        raise ge.RequestError(problem, fix=fix)


class Labels:
    """Turns labels into token ids: those that a label's text adds to the end of a prompt."""

    def __init__(self, checkpoint: ge.Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.encode = functools.lru_cache(maxsize=4096)(self._encode)

    def ids(self, question: Question, prompt: ge.Prompt) -> tuple[tuple[Ids, ...], ...]:
        """By answer and spelling. Raises OptionError for a label that cannot be told from another,
        or cannot be read behind this prompt."""
        tail = prompt_tail(prompt, self.checkpoint)
        found = []
        owners: dict[Ids, Label] = {}
        for spellings in question.labels:
            found.append(tuple(self._label(question, label, tail) for label in spellings))
            for label, ids in zip(spellings, found[-1]):
                if ids in owners:
                    problem = f"labels {owners[ids]!r} and {label!r} are the same tokens {ids}"
                    raise question.error(problem, "name one of them otherwise")
                owners[ids] = label
        return tuple(found)

    def _label(self, question: Question, label: Label, tail: Ids) -> Ids:
        if not isinstance(label, str):
            if not all(0 <= i < self.checkpoint.vocabulary for i in label):
                problem = f"label {label} has ids outside the vocabulary"
                raise question.error(problem, f"they are below {self.checkpoint.vocabulary}")
            return label
        ids, why = self.encode(label, tail)
        if why:
            raise question.error(f"label {label!r} {why}", "write another, or give its token ids")
        return ids

    def _encode(self, label: str, tail: Ids) -> tuple[Ids, str]:
        """(the ids that a label adds to a prompt's end, or why there are none)."""
        text = text_of(self.checkpoint, tail)
        before = ge.encode(self.checkpoint, text, False)
        joined = ge.encode(self.checkpoint, text + label, False)
        ids = joined[len(before) :]
        if joined[: len(before)] != before:
            end = ge.short_repr(text[-8:])
            return (), f"merges with the end of the prompt ({end}: does it end with a blank?)"
        if not ids or getattr(self.checkpoint.tokenizer, "unk_token_id", None) in ids:
            return (), "has characters that the tokenizer does not know"
        if not text_of(self.checkpoint, joined).endswith(label):
            written = ge.short_repr(text_of(self.checkpoint, ids))
            return (), f"is not what the tokenizer writes: {written}"
        return ids, ""


# == Reading ==


@dataclass(frozen=True, eq=False)
class Read:
    """One position at which the distribution is read: the end of a prompt.

    group: reads of one request have one number.   wanted: token ids, in order."""

    prompt: ge.Prompt
    group: int
    wanted: dict[int, None] = field(default_factory=dict)


Values = Any  # log-probability by token id, at one position; or the error why there is none


def next_ids(labels: Iterable[Ids]) -> dict[Ids, dict[int, None]]:
    """The positions at which labels are read: the ids of labels so far -> the ids that come next.
    One position, (), where all have one token."""
    found: dict[Ids, dict[int, None]] = {}
    for ids in labels:
        for count, token_id in enumerate(ids):
            found.setdefault(ids[:count], {})[token_id] = None
    return found


def label_logprobs(labels: Sequence[Ids], read: Mapping[Ids, Values]) -> list[float]:
    """Log-probability of each label: that the answer begins with it, and with no longer label that
    begins with it ("1" beside "10")."""
    chances: dict[Ids, float] = {}
    for ids in sorted(labels, key=len, reverse=True):
        logprob = math.fsum(read[ids[:count]][ids[count]] for count in range(len(ids)))
        longer = [other for other in chances if other[: len(ids)] == ids]
        others = math.fsum(math.exp(chances[other] - logprob) for other in longer)
        chances[ids] = logprob + math.log1p(-others) if others < 1 else -math.inf
    return [chances[ids] for ids in labels]


def read_labels(backend: Any, reads: Sequence[Read]) -> list[Values]:
    """Raw log-probabilities of the wanted ids behind each prompt, or the error in their place."""
    if not reads:
        return []
    if backend.name == "hf":
        return hf_reads(backend, reads)
    if ge.installed("vllm<0.23"):  # by the hook
        return completed_reads(backend, reads)
    return vllm_reads(backend, reads)


def completed_reads(backend: Any, reads: Sequence[Read]) -> list[Values]:
    """Out of the logits of one new token."""
    options = ge.GenerationOptions(
        max_new_tokens=1, logits=True, stop=ge.StopOptions(ignore_eos=True)
    )
    plan = ge.make_plan(options, backend.checkpoint)
    found: dict[int, Values] = {}

    def done(place: int, completion: ge.Completion) -> None:
        found[place] = completion.error or values_of(completion.logits[0], reads[place])

    prompts = [read.prompt for read in reads]
    backend.complete(prompts, ge.Call(plan, done, ge.NOBODY))
    return [found[place] for place in range(len(reads))]


# == Reading: transformers, with a prefix that is read once ==

SHARED_TOKENS = 256  # that sharing must save: it takes a forward more, and no other request's rows


def hf_reads(backend: Any, reads: Sequence[Read]) -> list[Values]:
    """Long prefixes of one request's reads are read once, all else in batches."""
    groups: dict[int, list[int]] = {}
    for place, read in enumerate(reads):
        groups.setdefault(read.group, []).append(place)
    found: dict[int, Values] = {}
    for places in groups.values():
        own = [reads[place] for place in places]
        if prefix := shared_prefix(own):
            found.update(zip(places, shared_reads(backend, own, prefix)))
    rest = [place for place in range(len(reads)) if place not in found]
    if rest:
        found.update(zip(rest, completed_reads(backend, [reads[place] for place in rest])))
    return [found[place] for place in range(len(reads))]


def shared_prefix(reads: Sequence[Read]) -> Ids:
    """The ids that the reads of one request begin with; none where sharing them saves little, or
    where they hold images, behind which text has positions of its own."""
    if len(reads) == 1 or reads[0].prompt.images:
        return ()
    rows = [read.prompt.token_ids for read in reads]
    most = min(map(len, rows)) - 1  # each row has a token of its own
    same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*rows))
    prefix = rows[0][: min(most, len(list(same)))]
    saved = (len(reads) - 1) * len(prefix)
    return prefix if saved >= SHARED_TOKENS else ()


def shared_reads(backend: Any, reads: Sequence[Read], prefix: Ids) -> list[Values]:
    """Read the prefix of one request once, and over its cache the rest of each read. Where memory
    runs out, whole prompts are read, in batches that are halved."""
    first = reads[0].prompt
    length = len(prefix)
    shared = dataclasses.replace(first, token_ids=prefix, length=length)
    stack_rows = max(1, backend.budget // first.length)
    previous = backend.adapter
    try:
        backend.adapt(first.adapter)
        with ge.lazy_import("torch").no_grad(), backend.isolated():
            values = over_prefix(backend, reads, shared, stack_rows)
            return [values[place] for place in range(len(reads))]
    except (RuntimeError, MemoryError) as error:
        if not ge.is_oom(error):
            raise
        log.warning("out of memory with a shared prefix of %d tokens; reading each", length)
    finally:
        backend.adapt(previous)
    ge.free_memory()
    return completed_reads(backend, reads)


def over_prefix(
    backend: Any, reads: Sequence[Read], shared: ge.Prompt, most_rows: int
) -> dict[int, Values]:
    """The values of each read by its position, `most_rows` rows at a time over copies of the
    prefix's cache. A read that others go on from is a position of their row."""
    torch = ge.lazy_import("torch")
    model = backend.model
    takes = inspect.signature(model.forward).parameters
    cache_name = "cache" if "cache" in takes else "past_key_values"  # renamed in transformers 5.24
    inputs = ge.collate([ge.Row(shared)], backend.checkpoint, model.device)
    del inputs["attention_mask"]  # one row has no padding
    if "logits_to_keep" in takes:
        inputs["logits_to_keep"] = 1
    prefix_cache = getattr(model(**inputs, use_cache=True), cache_name)
    begin = len(shared.token_ids)
    rows = longest_rows([read.prompt.token_ids[begin:] for read in reads])
    found: dict[int, Values] = {}
    for start in range(0, len(rows), most_rows):
        batch = rows[start : start + most_rows]
        longest = max(map(len, batch))
        # What stands behind a row's end comes after all that counts.
        padded = [[*row, *[row[-1]] * (longest - len(row))] for row in batch]
        is_last = start + most_rows >= len(rows)
        cache = prefix_cache if is_last else copy.deepcopy(prefix_cache)
        cache.batch_repeat_interleave(len(batch))
        inputs = {"input_ids": torch.tensor(padded, device=model.device), cache_name: cache}
        places = rows_of_reads(reads, begin, batch, set(found))
        columns = sorted({column for _, column in places.values()})
        if "logits_to_keep" in takes:
            inputs["logits_to_keep"] = torch.tensor(columns, device=model.device)
        else:
            columns = list(range(longest))
        logits = model(**inputs, use_cache=True).logits  # [rows, columns, vocabulary]
        for place, (row, column) in places.items():
            found[place] = values_of(logits[row, columns.index(column)].float(), reads[place])
    return found


def longest_rows(rows: Iterable[Ids]) -> list[Ids]:
    """Rows without those that another one begins with."""
    kept: list[Ids] = []
    for row in sorted(set(rows), reverse=True):  # a row stands right behind what begins with it
        if not kept or kept[-1][: len(row)] != row:
            kept.append(row)
    return kept


def rows_of_reads(
    reads: Sequence[Read], begin: int, rows: Sequence[Ids], done: set[int]
) -> dict[int, tuple[int, int]]:
    """(row, column) at which each read that is not done ends, of those that a row begins with."""
    found = {}
    for place, read in enumerate(reads):
        rest = read.prompt.token_ids[begin:]
        for row, ids in enumerate(rows):
            if place not in done and ids[: len(rest)] == rest:
                found[place] = row, len(rest) - 1
                break
    return found


def values_of(logits: Any, read: Read) -> Values:
    """logits: [vocabulary], float32."""
    torch = ge.lazy_import("torch")
    if logits.isnan().any():
        return ge.no_token(True, False)
    ids = list(read.wanted)
    return dict(zip(ids, logits.log_softmax(-1)[torch.tensor(ids, device=logits.device)].tolist()))


# == Reading: vLLM, by the log-probabilities of named ids ==

MOST_IDS = 128  # vLLM reports in one request


def vllm_reads(backend: Any, reads: Sequence[Read]) -> list[Values]:
    """One token of each prompt, with the log-probabilities of the wanted ids. vLLM's prefix cache
    holds what prompts share."""
    kit = ge.lazy_import("vllm.sampling_params")
    rows = []
    for place, read in enumerate(reads):
        ids = list(read.wanted)
        for start in range(0, len(ids), MOST_IDS):
            some = ids[start : start + MOST_IDS]
            params = kit.SamplingParams(
                max_tokens=1,
                temperature=0.0,
                logprob_token_ids=some,
                ignore_eos=True,
                detokenize=False,
                output_kind=kit.RequestOutputKind.FINAL_ONLY,
            )
            rows.append(ge.Row(read.prompt, place=place, params=params))
    found: list[dict[int, float]] = [{} for _ in reads]
    errors: dict[int, ge.GenEngineError] = {}

    def take(row: ge.Row, output: Any) -> bool:
        if isinstance(output, ge.GenEngineError):
            errors[row.place] = output
            return True
        [entry] = output.outputs[0].logprobs
        for token_id in row.params.logprob_token_ids:
            found[row.place][token_id] = entry[token_id].logprob
        return True

    backend.run(rows, take, ge.NOBODY)
    return [errors.get(place, values) for place, values in enumerate(found)]


# == The call ==


@dataclass(frozen=True, eq=False)
class Calibration:
    """`decide`'s temperature and content_free."""

    temperature: float
    content_free: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Reading:
    """A question that was put to a request.

    label_ids: by answer and spelling.   reads: by the ids of labels so far."""

    question: Question
    prompt: ge.Prompt
    label_ids: tuple[tuple[Ids, ...], ...]
    reads: Mapping[Ids, Read]


class Session:
    """The readings of one call; equal positions are read once."""

    def __init__(self, engine: ge.GenerationEngine) -> None:
        self.engine = engine
        self.checkpoint = engine.checkpoint
        self.labels = Labels(self.checkpoint)
        options = ge.GenerationOptions(max_new_tokens=1)
        self.plan = ge.make_plan(options, self.checkpoint)
        self.reads: list[Read] = []
        self.values: dict[Read, Values] = {}

    def ask(self, group: int, source: Any, questions: Sequence[Question]) -> list[Reading]:
        """The readings of one request. Raises GenEngineError."""
        request = as_request(source, self.checkpoint)
        positions: dict[Ids, dict[Ids, Read]] = {}  # by the prompt's ids
        readings = []
        for question in questions:
            asked = request
            if question.instructions:
                asked = with_question(request, question, self.checkpoint)
            prompt = ge.prompt_of(asked, self.plan)
            check_position(asked, prompt, self.checkpoint)
            known = positions.setdefault(prompt.token_ids, {})
            readings.append(self._reading(group, question, prompt, known))
        return readings

    def _reading(
        self, group: int, question: Question, prompt: ge.Prompt, known: dict[Ids, Read]
    ) -> Reading:
        """known: reads behind the same prompt, by the ids of labels so far."""
        label_ids = self.labels.ids(question, prompt)
        reads = {}
        for behind, wanted in next_ids(itertools.chain(*label_ids)).items():
            if behind not in known:
                known[behind] = Read(self._longer(prompt, behind), group)
                self.reads.append(known[behind])
            known[behind].wanted.update(wanted)
            reads[behind] = known[behind]
        return Reading(question, prompt, label_ids, reads)

    def _longer(self, prompt: ge.Prompt, ids: Ids) -> ge.Prompt:
        """A prompt with the beginning of a label behind it. Raises PromptTooLongError."""
        length = prompt.length + len(ids)
        window = self.checkpoint.window
        if window and length >= window:
            problem = f"prompt and label have {length} tokens, the window has {window - 1}"
            raise ge.PromptTooLongError(problem, fix="shorten the prompt")
        return dataclasses.replace(prompt, token_ids=prompt.token_ids + ids, length=length)

    def read(self) -> None:
        """Read all positions."""
        self.values = dict(zip(self.reads, read_labels(self.engine.backend, self.reads)))

    def answers(self, reading: Reading) -> list[float]:
        """Log-probability of each answer of a reading, in the whole distribution. Raises the error
        of a position that could not be read."""
        read = {}
        for behind, position in reading.reads.items():
            read[behind] = self.values[position]
            if isinstance(read[behind], ge.GenEngineError):
                raise read[behind]
        chances = iter(label_logprobs(list(itertools.chain(*reading.label_ids)), read))
        return [add_logs([next(chances) for _ in spellings]) for spellings in reading.label_ids]


def add_logs(logprobs: Sequence[float]) -> float:
    """Logarithm of the sum of probabilities."""
    top = max(logprobs)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(one - top) for one in logprobs))


def among(logprobs: Sequence[float]) -> list[float]:
    """Log-probabilities of answers among themselves. Raises EngineError where all are 0."""
    total = add_logs(logprobs)
    if total == -math.inf:
        problem = "each answer has the probability 0"
        raise ge.EngineError(problem, fix="see what the model answers, and name that")
    return [one - total for one in logprobs]


def questions_for(questions: Any, count: int) -> list[list[Question]]:
    """The questions of each request: one list for all of them, or a list of lists, one each."""
    given = ge.batch_of(questions, "questions")
    if given and all(isinstance(one, (list, tuple)) for one in given):
        if len(given) != count:
            problem = f"{len(given)} lists of questions for {count} requests"
            raise ge.OptionError(problem, fix="give one each, or one list for all")
        return [build_questions(own) for own in given]
    return [build_questions(given)] * count


def priors_of(
    session: Session, asked: Sequence[Sequence[Question]], content_free: Sequence[Any]
) -> dict[Question, list[Reading]]:
    """The readings of each question behind content-free requests."""
    questions = list(dict.fromkeys(itertools.chain(*asked)))
    found: dict[Question, list[Reading]] = {}
    for number, source in enumerate(content_free, start=1):
        try:
            readings = session.ask(-number, source, questions)
        except ge.GenEngineError as error:
            error.problem = f"content_free: {error.problem}"
            raise
        for question, reading in zip(questions, readings):
            found.setdefault(question, []).append(reading)
    return found


def mean_logs(rows: Sequence[Sequence[float]]) -> list[float]:
    """Logarithm of the mean probability of each answer, over content-free requests."""
    columns = zip(*[among(row) for row in rows])
    return [add_logs(column) - math.log(len(rows)) for column in columns]


def decide(
    engine: ge.GenerationEngine,
    requests: Sequence[Any],
    questions: Any,
    *,
    temperature: float = 1.0,
    content_free: Sequence[Any] = (),
    on_error: Literal["raise", "return"] = "raise",
) -> list[Any]:
    """How likely each answer to each question is: all questions of the first request, then those of
    the second, ...

    requests: as `generate_text_batch` and `generate_vlm_batch` take them, with and without images;
        messages are rendered by the checkpoint's chat template.
    questions: Questions, or mappings of their fields, for every request; or a list of such lists,
        one for each request.
    temperature: above 0; probabilities among the answers are those of log-probabilities /
        temperature. Default 1.
    content_free: requests without content, e.g. with "N/A" in its place. An answer's probability is
        divided by its mean one there, before temperature. Default: none.
    on_error: "return" gives a request that fails its error in place of each of its decisions.
        Default "raise": it raises; nothing has been read then where the request itself is at fault.
    Raises OptionError for a question, a label or an option that is invalid, RequestError where a
    request has no position at which its answer begins."""
    sources = ge.batch_of(requests, "requests")
    asked = questions_for(questions, len(sources))
    is_number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not is_number or not 0 < temperature < math.inf:
        problem = f"temperature is {ge.short_repr(temperature)}"
        raise ge.OptionError(problem, fix="it must be a finite number above 0")
    if on_error not in ("raise", "return"):
        fix = "known: raise, return"
        raise ge.OptionError(f"no on_error {ge.short_repr(on_error)}", fix=fix)
    free = ge.batch_of(content_free, "content_free")
    calibration = Calibration(float(temperature), tuple(free))
    items = list(zip(sources, asked))
    return decide_all(engine, items, calibration=calibration, on_error=on_error)


Item = tuple[Any, Sequence[Question]]  # a request and its questions


def decide_all(
    engine: ge.GenerationEngine, items: Sequence[Item], *, calibration: Calibration, on_error: str
) -> list[Any]:
    """What `decide` returns, of an engine or its fallback."""
    with engine.bare(read_only=True):
        refused = refusal(engine)
        if refused is None:
            return decided(engine, items, calibration, on_error)
        other = engine.fall_back(refused)
        made = decide_all(other, items, calibration=calibration, on_error=on_error)
    return [with_origin(one, engine.backend.name) for one in made]


def with_origin(decision: Any, backend: str) -> Any:
    """A decision of a fallback; an error stays as it is."""
    if isinstance(decision, Decision):
        return dataclasses.replace(decision, fallback_from=backend)
    return decision


def refusal(engine: ge.GenerationEngine) -> ge.UnsupportedError | None:
    """Why this engine cannot read labels, or None."""
    has_logits = engine.backend.name == "hf" or engine.config.logits_hooks
    asked = ge.Asked(engine.config, ge.GenerationOptions(max_new_tokens=1, logits=has_logits))
    for row in REFUSALS:
        if row.holds(asked):
            problem = f"{row.releases or engine.backend.name} cannot do {row.what}"
            return ge.UnsupportedError(problem, fix=row.fix)
    return ge.refusal_of(asked)


def decided(
    engine: ge.GenerationEngine, items: Sequence[Item], calibration: Calibration, on_error: str
) -> list[Any]:
    """The decisions of one engine."""
    session = Session(engine)
    asked = [questions for _, questions in items]
    rows: list[Any] = [None] * len(items)  # of a request: its readings, then its decisions
    errors = rows if on_error == "return" else None
    for index, (source, questions) in enumerate(items):
        with ge.at_request(index, errors):
            rows[index] = session.ask(index, source, questions)
    priors = priors_of(session, asked, calibration.content_free)
    session.read()
    shifts = {}
    for question, readings in priors.items():
        shifts[question] = mean_logs([session.answers(reading) for reading in readings])
    for index, readings in enumerate(rows):
        if isinstance(readings, ge.GenEngineError):
            rows[index] = [readings] * len(asked[index])
            continue
        with ge.at_request(index, errors):
            rows[index] = [
                decision_of(session, reading, calibration.temperature, shifts)
                for reading in readings
            ]
        if isinstance(rows[index], ge.GenEngineError):
            rows[index] = [rows[index]] * len(asked[index])
    return list(itertools.chain(*rows))


def decision_of(
    session: Session,
    reading: Reading,
    temperature: float,
    shifts: Mapping[Question, Sequence[float]],
) -> Decision:
    """shifts: by question, the log-probability of each answer without content."""
    question = reading.question
    logprobs = session.answers(reading)
    shift = shifts.get(question, [0.0] * len(logprobs))
    scaled = [(one - prior) / temperature for one, prior in zip(logprobs, shift)]
    probabilities = tuple(map(math.exp, among(scaled)))
    order = sorted(range(len(probabilities)), key=lambda k: -probabilities[k])
    score = None
    if question.type == "score":
        score = math.fsum(map(math.prod, zip(question.values, probabilities)))
    return Decision(
        question=question,
        choice=question.answers[order[0]],
        probabilities=probabilities,
        logprobs=tuple(logprobs),
        label_mass=math.fsum(map(math.exp, logprobs)),
        margin=probabilities[order[0]] - probabilities[order[1]],
        score=score,
        label_ids=reading.label_ids,
        reads=len(reading.reads),
        prompt_token_ids=reading.prompt.token_ids,
        backend=session.engine.backend.name,
    )


# == OpenAI's /v1/decisions ==

BODY = ("model", "input", "questions")
UNUSED = ("safety_identifier", "cache_salt")  # they change no answer


def read_body(body: Any) -> tuple[dict[str, Any], list[Question]]:
    """(fields of a request, questions) of a body of /v1/decisions. Raises GenEngineError for a
    field that would not be honoured."""
    if not isinstance(body, Mapping):
        problem = f"the body is {type(body).__name__}"
        raise ge.RequestError(problem, fix="give a JSON object")
    for name, value in body.items():
        is_neutral = value is None or (name == "joint" and value is False)
        if name not in (*BODY, *UNUSED) and not is_neutral:
            fix = ge.did_you_mean(name, BODY)
            raise ge.UnsupportedError(f"body.{name} is {ge.short_repr(value)}", fix=fix)
    message = {"role": "user", "content": input_text(body.get("input"))}
    questions = ge.batch_of(body.get("questions"), "body.questions")
    return {"messages": [message]}, build_questions(questions)


def build_questions(sources: Sequence[Any]) -> list[Question]:
    """Raises OptionError for none, and for what is none."""
    if not sources:
        raise ge.OptionError("there are no questions", fix="give one or more")
    return [ge.build(Question, one) for one in sources]


def input_text(given: Any) -> str:
    """The text of a body's input: a text, or user messages of texts, which blank lines part."""
    if isinstance(given, str):
        return given
    texts = []
    for message in ge.batch_of(given, "body.input"):
        is_users = isinstance(message, Mapping) and message.get("role") == "user"
        content = message.get("content") if is_users else None
        parts = [content] if isinstance(content, str) else content
        if not isinstance(parts, (list, tuple)):
            problem = f"body.input holds {ge.short_repr(message)}"
            raise ge.RequestError(problem, fix="give a text, or messages of the user")
        texts.append("\n".join(map(part_text, parts)))
    return "\n\n".join(texts)


def part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    is_text = isinstance(part, Mapping) and part.get("type") == "input_text"
    text = part.get("text") if is_text else None
    if not isinstance(text, str):
        problem = f"body.input holds the part {ge.short_repr(part)}"
        raise ge.RequestError(problem, fix="give parts of the type input_text")
    return text


def reply(decisions: Sequence[Decision], model: str) -> dict[str, Any]:
    """The body that answers one request of /v1/decisions."""
    read = sum(len(decision.prompt_token_ids) for decision in decisions)
    usage = {"input_tokens": read, "output_tokens": 0, "total_tokens": read}
    answers = [decision.to_json() for decision in decisions]
    return {"model": model, "answers": answers, "usage": usage}
