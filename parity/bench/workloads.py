"""What `parity bench` lets models work on: requests, how long the answers may be, and which ids end them.

    text or images  x  even      every answer has the same length
                       ragged    answers of very different lengths
                       shared    even, and every prompt begins with the same long instruction (or image)
                       repeated  even, and each request stands there four times

at a load: so many requests are given to a contender in one call, and the next ones when all of these are answered.

The questions are those of parity/models/tasks.py, or the lines of a prompts file. Any model can take them: where its
own answers are not ragged, ids that it often says are made ends, until they are.
"""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.environment.libraries import clone_file
from parity.models.tasks import Task, text_tasks, vision_tasks

KINDS = ("text", "images")
SHAPES = ("even", "ragged", "shared", "repeated")
TIMES = 4  # a repeated request stands there
FEWEST = 4  # requests at a load below it: one after the other
SHORTEST = 8  # tokens of a ragged answer
RAGGED_MEAN = 0.3  # of the longest answer, on average
INSTRUCTION = "Read the question, think of what is asked, and give one short answer in plain words. "
MADE = {"random-25m": 0.1, "repeating-25m": 0.02}  # how wide the weights of a model are drawn that is made on the spot
TOKENIZER = "golden/models/tiny-qwen3"

Ids = tuple[int, ...]
Request = Mapping[str, Any]


def engine_module() -> Any:
    """gen_engine, at first use: what else parity does, it also does where the file has another name."""
    return importlib.import_module("gen_engine")


class WorkError(ValueError):
    """A prompts file that cannot be used. Says where, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Work:
    """Requests, and when their answers end: at an id of `ends`, or after max_new_tokens. The checkpoint's own ends are
    in `ends` or do not count.   load: requests in one call."""

    name: str
    requests: tuple[Request, ...]
    max_new_tokens: int
    ends: frozenset[int] = frozenset()
    load: int = 1

    @property
    def label(self) -> str:
        return f"{self.name} × {self.load}"

    def at_load(self, load: int) -> Work:
        """Its first requests, in whole calls."""
        count = min(len(self.requests), requests_at(load)) // load * load
        return replace(self, load=load, requests=self.requests[:count])

    def with_length(self, tokens: int) -> Work:
        return replace(self, max_new_tokens=tokens)

    def calls(self) -> Iterator[Work]:
        """One call's requests at a time."""
        for start in range(0, len(self.requests), self.load):
            yield replace(self, requests=self.requests[start : start + self.load])

    @property
    def has_images(self) -> bool:
        return any(images_of(request) for request in self.requests)


def requests_at(load: int) -> int:
    """How many there are at a load: whole calls, and at least FEWEST."""
    return load * math.ceil(FEWEST / load)


def images_of(request: Request) -> list[Any]:
    """A request's images, in order: of parts {"type": "image", "image": PATH or PIL image}."""
    contents = [message.get("content") or "" for message in request.get("messages") or ()]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    pictures = [part for part in parts if part["type"] != "text"]
    if not all("image" in part for part in pictures):
        raise WorkError('an image is written {"type": "image", "image": "PATH"}')
    return [part["image"] for part in pictures]


def is_plain(task: Task) -> bool:
    """Whether plain code renders it with nothing but its messages."""
    return not task.tools and not task.enable_thinking


def tasks_of(kind: str, count: int) -> list[Task]:
    many = text_tasks(4 * count + 64) if kind == "text" else vision_tasks(2 * count + 12)
    fit = [task for task in many if is_plain(task) and (kind == "images") == bool(images_of(request_of(task)))]
    unlike = {repr(task.messages) if kind == "text" else number: task for number, task in enumerate(fit)}
    return list(unlike.values())[:count]  # equal requests are answered once by us: only "repeated" may hold some


def request_of(task: Task) -> Request:
    return {"messages": task.messages}


def with_shared_start(kind: str, tasks: Sequence[Task]) -> Iterator[Request]:
    """Every chat behind one long instruction; with images, every question about one image."""
    first = images_of(request_of(tasks[0]))[0] if kind == "images" else None
    for number, task in enumerate(tasks):
        if first is None:
            turns = [message for message in task.messages if message["role"] != "system"]
            yield {"messages": [{"role": "system", "content": INSTRUCTION * 6}, *turns]}
        else:
            question = [{"type": "image", "image": first}, {"type": "text", "text": f"What do you see? ({number})"}]
            yield {"messages": [{"role": "user", "content": question}]}


def make_work(kind: str, shape: str, count: int, max_new_tokens: int) -> Work:
    """A workload of `count` requests; a ragged one has no ends yet, see `with_ends`."""
    tasks = tasks_of(kind, max(1, count // TIMES) if shape == "repeated" else count)
    if shape == "shared":
        requests = tuple(with_shared_start(kind, tasks))
    else:
        times = TIMES if shape == "repeated" else 1
        requests = tuple(request_of(task) for task in tasks for _ in range(times))
    return Work(f"{kind}/{shape}", requests, max_new_tokens)


def length_with(answer: Sequence[int], ends: frozenset[int] | set[int]) -> int:
    """Tokens of an answer up to its first end, which counts."""
    return next((place for place, token in enumerate(answer, 1) if token in ends), len(answer))


def ragged_ends(answers: Sequence[Ids], own: frozenset[int], longest: int) -> frozenset[int]:
    """The checkpoint's own ends, and as many other ids as it takes for ragged answers.

    answers: what is said if nothing ends it. The most widespread ids first, and none that would end an answer before
    its eighth token; until the mean length is 0.3 of the longest.
    """
    ends = set(own)
    early = {token for answer in answers for token in answer[: SHORTEST - 1]}
    spread = Counter(token for answer in answers for token in set(answer))
    rest = [token for token, _ in sorted(spread.items(), key=lambda item: (-item[1], item[0])) if token not in early]
    while rest and sum(length_with(answer, ends) for answer in answers) > RAGGED_MEAN * longest * len(answers):
        ends.add(rest.pop(0))
    return frozenset(ends)


def with_ends(work: Work, answers: Sequence[Ids], own: frozenset[int]) -> Work:
    return replace(work, ends=ragged_ends(answers, own, work.max_new_tokens))


# == A prompts file, a model made on the spot ==


def read_line(number: int, line: str, file: Path) -> Request:
    engine = engine_module()
    try:
        request = json.loads(line)
        if isinstance(request, str):
            request = {"prompt": request}
        if not isinstance(request, dict) or set(request) - {"messages", "prompt", "prompt_token_ids"}:
            raise WorkError('it is no request; write {"messages": [...]}, {"prompt": "..."} or a string')
        engine.TextGenerationRequest(**request)  # its shape, which a request with images has, too
        for part in image_parts_of(request):
            part["image"] = Path(part["image"])  # the file is the user's own: so is what it names
        if images_of(request):
            engine.VlmGenerationRequest(**request)
    except (engine.GenEngineError, ValueError) as error:
        raise WorkError(f"{file}, line {number}: {error}") from error
    return dict(request)


def image_parts_of(request: Request) -> list[dict[str, Any]]:
    """The parts that name an image by a path."""
    messages = request.get("messages") or []
    contents = [m["content"] for m in messages if isinstance(m, dict) and isinstance(m.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    return [part for part in parts if isinstance(part.get("image"), str) and not part["image"].startswith("data:")]


def read_prompts(file: Path, max_new_tokens: int) -> Work:
    """One request a line: {"messages": [...]}, {"prompt": "..."}, {"prompt_token_ids": [...]}, or a JSON string.
    Images are parts {"type": "image", "image": "path"} of messages. Raises WorkError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkError(f"{file} cannot be read: {error}; name a file of one JSON request a line") from error
    requests = tuple(read_line(number, line, file) for number, line in enumerate(lines, 1) if line.strip())
    if not requests:
        raise WorkError(f"{file} holds no request; write one JSON request a line")
    return Work(file.stem, requests, max_new_tokens)


def make_random_model(folder: Path, width: float = MADE["random-25m"], layers: int = 8) -> Path:
    """A Qwen3 of 25 million random weights with the tiny checkpoint's tokenizer: what it says means nothing, but costs
    what a small model costs. With weights drawn wide (0.1) it never says the same again, else a few tokens for ever."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(clone_file(TOKENIZER))
    config = transformers.Qwen3Config(
        vocab_size=576,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=width,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.Qwen3ForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
