"""The notebook's calls on the engine: all rows of a call in one batch."""

from __future__ import annotations

import base64
import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from gen_engine import GenerationEngine, ModelLoadConfig, PromptTooLongError, companions, load

WINDOW = 512  # of every checkpoint here
PLACES = 3  # rows at a time, so that rows of a case join those that are under way
OPTIONS = {
    "max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "no_repeat_ngram_size", "n", "logprobs", "seed",
}  # fmt: skip


ANSWERS: dict[str, str] = {}  # of all engines that keep answers
STOPS = {"stop": "strings", "include_stop": "include_stop", "stop_ids": "token_ids", "go_on": "ignore_eos"}
PIXELS = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
DECODES = {"skip_special": "skip_special_tokens", "strip": "strip", "clean_up": "clean_up_tokenization_spaces"}


LOADED: dict[tuple[Any, ...], GenerationEngine] = {}


def engine(
    model_path: str,
    dtype: Any,
    hooks: bool = False,
    cached: bool = False,
    adapters: tuple[str, ...] = (),
    window: int = WINDOW,
    spare: str | None = None,
) -> GenerationEngine:
    """One of the six that were used last; the one before them is closed."""
    key = model_path, dtype, hooks, cached, adapters, window, spare
    model = LOADED.pop(key, None)
    if model is None:
        if len(LOADED) == 6:
            LOADED.pop(next(iter(LOADED))).close()
        config = ModelLoadConfig(model=model_path, dtype=dtype, max_batch_size=PLACES, max_model_len=window)
        adapted = {name: path for path, name in names_of(adapters).items()}
        how: dict[str, Any] = {"logits_hooks": hooks, "adapters": adapted, "fallback_backend": spare}
        how["decoder"] = companions.joining.Joining()
        model = load(config, cache=ANSWERS if cached else None, **how)
    LOADED[key] = model
    return model


def names_of(adapters: Sequence[str]) -> dict[str, str]:
    """Folder -> name: the same names for the adapters of each call."""
    return {path: f"adapter-{place}" for place, path in enumerate(adapters)}


def request_of(row: Mapping[str, Any], settings: Mapping[str, Any], adapters: Sequence[str]) -> dict[str, Any]:
    how = {**settings, **row}
    request: dict[str, Any] = {"seed": row.get("seed"), "adapter": names_of(adapters).get(how.get("adapter", ""))}
    if "messages" in row:
        chat = {"enable_thinking": how.get("thinking", False), "add_generation_prompt": how.get("opening", True)}
        chat |= {"template": how.get("template"), "kwargs": how.get("variables", {})}
        chat |= {"special_tokens": "escape"} if how.get("markers_as_text") else {}
        messages = list(map(joined, row["messages"])) if how.get("joined") else row["messages"]
        request |= {"messages": messages, "chat": chat}
        request |= {"tools": row.get("tools"), "continue_final": bool(row.get("continue"))}
    elif "ids" in row:
        request["prompt_token_ids"] = row["ids"]
    else:
        request["prompt"] = row["prompt"]
    if row.get("images"):
        images = [picture_as(how.get("given_as"), path) for path in row["images"]]
        request |= {"messages": filled(row["messages"], images)} if row.get("inside") else {"images": images}
        request["vlm"] = {"background": None}  # alpha is dropped, as convert("RGB") does
        if how.get("as_it_is"):
            request["vlm"]["do_resize"] = False
        if pixels := how.get("pixels"):
            request["vlm"] |= {PIXELS[edge]: size for edge, size in pixels.items() if size > 1}  # no least is none
    if how.get("form"):
        request["structured"] = how["form"]
    return request


def joined(message: Mapping[str, Any]) -> dict[str, Any]:
    """The old code wrote the parts of a message without anything between them."""
    return {**message, "content": "".join(part["text"] for part in message["content"])}


def filled(messages: Sequence[Any], images: Sequence[Any]) -> list[Any]:
    """Messages with their pictures in the parts, the first of them as a URL."""
    left: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    left[0] = {"type": "image_url", "image_url": {"url": images[0]}}
    parts = [[left.pop(0) if p["type"] == "image" else p for p in m["content"]] for m in messages]
    return [{**message, "content": content} for message, content in zip(messages, parts)]


def picture_as(form: str | None, path: str) -> Any:
    if form == "bytes":
        return Path(path).read_bytes()
    if form == "data":
        return "data:image/png;base64," + base64.b64encode(Path(path).read_bytes()).decode()
    return Image.open(path) if form == "pil" else Path(path)


def options_of(how: Mapping[str, Any]) -> dict[str, Any]:
    stop = {there: how[here] for here, there in STOPS.items() if here in how}
    if len(stop.get("strings", ())) == 1:  # one is taken as it is, too
        [stop["strings"]] = stop["strings"]
    decode = {there: how[here] for here, there in DECODES.items() if here in how}
    cut = {"truncate_prompt": bool(how.get("keep_last") or how.get("window"))}
    cut |= {"max_prompt_tokens": most} if (most := how.get("keep_last", how.get("most"))) else {}
    own = {name: how[name] for name in OPTIONS & how.keys()}
    own |= {"logits": True} if how.get("best") else {}
    return {"max_new_tokens": 24, **own, **cut, "stop": stop, "decode": decode}


class Enough:
    """A plugin that ends a row after so many tokens."""

    name = "enough"

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return len(token_ids) >= self.tokens


class Widths:
    """Where the answers of a padded batch begin: it grows by a column each step, until another one is made."""

    first = last = 0

    def since(self, input_ids: Any) -> int:
        width = input_ids.shape[1]
        self.first, self.last = self.first if width == self.last + 1 else width, width
        return self.first


class EnoughOfTransformers:
    """The same as a criterion of transformers, which sees the padded batch."""

    name, backends = "enough", ("hf",)

    def __init__(self, tokens: int) -> None:
        self.tokens, self.widths = tokens, Widths()
        self.hf_stopping_criteria = [self.ends]

    def ends(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        tokens = input_ids.shape[1] - self.widths.since(input_ids) + 1  # asked for the first time with one
        return input_ids.new_full((len(input_ids),), tokens >= self.tokens).bool()


class Until:
    """A plugin that ends a row as soon as its text says this."""

    name = "until"

    def __init__(self, said: str) -> None:
        self.said = said

    def should_stop(self, token_ids: Sequence[int], text: str) -> bool:
        return self.said in text


class UntilOfTransformers:
    """The same as a criterion of transformers, which sees the padded batch."""

    name, backends = "until", ("hf",)

    def __init__(self, said: str, tokenizer: Any) -> None:
        self.said, self.tokenizer, self.widths = said, tokenizer, Widths()
        self.hf_stopping_criteria = [self.ends]

    def ends(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        answers = input_ids[:, self.widths.since(input_ids) - 1 :]  # asked for the first time with one
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return input_ids.new_tensor([self.said in text for text in texts]).bool()


class Then:
    """A plugin that changes the text."""

    def __init__(self, change: str) -> None:
        self.name = self.change = change

    def post_decode(self, text: str) -> str:
        return text.upper() if self.change == "upper" else text + self.change


class Without:
    """A plugin that never lets these ids be chosen."""

    name = "without"

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        logits[self.ids] = -float("inf")
        return logits


class WithoutOfTransformers:
    """The same as two logits processors of transformers, which see the padded batch, each with some of the ids."""

    name, backends = "without", ("hf",)

    def __init__(self, ids: Sequence[int]) -> None:
        self.hf_logits_processors = [functools.partial(self.without, ids[k::2]) for k in (0, 1)]

    def without(self, ids: Sequence[int], input_ids: Any, scores: Any) -> Any:
        scores[:, list(ids)] = -float("inf")
        return scores


class NeverTwice:
    """A plugin that lets no token of the answer come again in it."""

    name = "never twice"

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        return logits.index_fill(0, logits.new_tensor(token_ids).long(), -float("inf"))


class Centred:
    """A plugin after which the likeliest token has 0, before penalties."""

    name = "centred"

    def logits(self, token_ids: Sequence[int], logits: Any) -> Any:
        return logits - logits.amax()


class NeverTwiceOfTransformers:
    """The same as a logits processor of transformers, for rows that begin together."""

    name, backends = "never twice", ("hf",)

    def __init__(self) -> None:
        self.widths, self.hf_logits_processors = Widths(), [self.never]

    def never(self, input_ids: Any, scores: Any) -> Any:
        return scores.scatter(1, input_ids[:, self.widths.since(input_ids) :], -float("inf"))


def told(result: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    said = {"text": result.text, "tokens": result.completion_tokens, "prompt": result.prompt_tokens}
    said |= {"raw": result.raw_text, "reason": result.finish_reason, "stop": result.stop_reason}
    if how.get("best"):
        said["best"] = [] if result.logits is None else result.logits.argmax(-1).tolist()
    if "logprobs" in how:
        said["logprobs"] = list(result.logprobs or ())
        said["top"] = [[[i, v] for i, v in best.items()] for best in result.top_logprobs or () if best]
    return said


@contextlib.contextmanager
def templates_of(how: Mapping[str, Any], tokenizer: Any) -> Iterator[None]:
    """Named templates on the tokenizer; a call without them leaves it alone, so that a leak shows."""
    if "templates" not in how:
        yield
        return
    own = tokenizer.chat_template
    tokenizer.chat_template = how["templates"]
    try:
        yield
    finally:
        tokenizer.chat_template = own


def ask(model_path: str, rows: list[dict[str, Any]], settings: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return answers(model_path, rows, settings, cached=False)


def answers(
    model_path: str, rows: list[dict[str, Any]], settings: dict[str, Any], *, cached: bool
) -> list[list[dict[str, Any]]]:
    banned, adapters = settings.get("banned", ()), tuple(sorted({row["adapter"] for row in rows if row.get("adapter")}))
    spare = "hf" if settings.get("spare") else None  # for what is of transformers
    wanted = ("banned", "never_twice", "no_repeat_ngram_size", "best", "centred")
    hooks = not spare and any(settings.get(name) for name in wanted)
    dtype, window = settings.get("dtype", "float32"), settings.get("window", WINDOW)
    model = engine(model_path, dtype, hooks, cached, adapters, window, spare)
    requests = [request_of(row, settings, adapters) for row in rows]
    theirs = spare or (settings.get("of_transformers") and model.config.backend == "hf")
    plugins: list[Any] = [NeverTwiceOfTransformers() if theirs else NeverTwice()] if settings.get("never_twice") else []
    plugins += [Centred()] if settings.get("centred") else []
    plugins += [(WithoutOfTransformers if theirs else Without)(banned)] if banned else []
    plugins += [(EnoughOfTransformers if theirs else Enough)(settings["enough"])] if settings.get("enough") else []
    if settings.get("until"):
        plugins += [UntilOfTransformers(settings["until"], model.tokenizer) if theirs else Until(settings["until"])]
    plugins += [Then(change) for change in settings.get("then", ())]
    generate = model.generate_vlm_batch if any(row.get("images") for row in rows) else model.generate_text_batch
    given: dict[str, Any] = {"plugins": plugins, "on_error": "return" if settings.get("most") else "raise"}
    with templates_of(settings, model.tokenizer):
        results: list[Any] = generate(requests, options_of(settings), cache=not settings.get("fresh"), **given)
    failed = {error.index for error in results if isinstance(error, PromptTooLongError)}
    again = settings.get("first_again")  # what is said of a request itself is its first sample
    return [
        [told(sample, settings) for sample in (*(result.samples or (result,)), *([result] if again else ()))]
        if place not in failed
        else [{"error": "too long"}]
        for place, result in enumerate(results)
    ]


def ask_often(model_path: str, calls: list[dict[str, Any]]) -> list[list[list[dict[str, Any]]]]:
    """Several calls in a row over one cache, which answers none of them for another."""
    ANSWERS.clear()
    return [answers(call.get("model_path", model_path), call["rows"], call["settings"], cached=True) for call in calls]


def chat(model_path: str, questions: list[str]) -> list[str]:
    """Answers with nothing set."""
    requests = [{"messages": [{"role": "user", "content": question}]} for question in questions]
    return [result.text for result in engine(model_path, None).generate_text_batch(requests)]


def score(
    model_path: str, pairs: list[dict[str, Any]], dtype: str = "float32", best: bool = False
) -> list[dict[str, Any]]:
    """Log-probability of each token of each given response. best: and the token that the model would have said."""
    items, adapters = list[Any](), tuple(sorted({pair["adapter"] for pair in pairs if pair.get("adapter")}))
    for pair in pairs:
        request = {name: value for name, value in request_of(pair, {}, adapters).items() if value is not None}
        alone = not pair.keys() - {"messages", "response", "types"}
        bare = pair.get("prompt") or (pair["messages"] if alone else None)
        items.append((bare or request, pair["response"]))
    scores = engine(model_path, dtype, bool(adapters) or best, adapters=adapters).score_batch(items, logits=best)
    return [
        {
            "prompt": len(s.prompt_token_ids), "tokens": len(s.token_ids), "logprobs": list(s.logprobs),
            **({"best": s.logits.argmax(-1).tolist()} if best else {}),
            **({"types": sorted({type(value).__name__ for value in s.logprobs})} if pair.get("types") else {}),
        } for s, pair in zip(scores, pairs)
    ]  # fmt: skip
