"""Every setting of a call, each where it has something to show: the untrained checkpoints are unsure at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.callsites.pictures import Pictures

MODELS = "golden/models/"
SURE, VL, LLAMA, GPT2 = (f"{MODELS}{name}" for name in ("tiny-qwen3", "tiny-qwen3-vl", "random-llama", "random-gpt2"))
DIFFERS: dict[str, str] = {}
SAMPLED = frozenset(
    {"warm", "hot", "hot-top-k", "hot-top-p", "hot-min-p", "hot-all", "hot-penalty", "hot-samples", "hot-chat"}
)

RAGGED = ["The", "One two three four five six seven", "a", "Oslo is the", "Draw", "\n\n", "red red red", "12, 13, 14"]
COLOURS, COUNT, FRANCE = "Name three fruits.", "Count to 12.", "What is the capital of France?"
DIE = "Throw a die five times."
BARE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def raw(*prompts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": prompt, **more} for prompt in prompts]


def seeded(rows: list[dict[str, Any]], first: int = 10) -> list[dict[str, Any]]:
    return [{**row, "seed": first + place} for place, row in enumerate(rows)]


def chat(*questions: str, system: str | None = None, **more: Any) -> list[dict[str, Any]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    return [{"messages": [*head, {"role": "user", "content": question}], **more} for question in questions]


def seen(question: str, *images: str, **more: Any) -> dict[str, Any]:
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": content}], "images": list(images), **more}


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    found: list[tuple[str, str, dict[str, Any]]] = []

    def ask(name: str, model: str, rows: list[dict[str, Any]], **settings: Any) -> None:
        found.append((name, "ask", {"model_path": model, "rows": rows, "settings": settings}))

    def often(name: str, model: str, *calls: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
        said = [{"rows": rows, "settings": settings} for rows, settings in calls]
        found.append((name, "ask_often", {"model_path": model, "calls": said}))

    text_cases(ask)
    drawn_cases(ask)
    picture_cases(ask, Pictures(directory))
    several_calls(often)
    found += [(name, "score", arguments) for name, arguments in scored_cases(Pictures(directory))]
    return found


def text_cases(ask: Any) -> None:
    # Rows that join others, and leave at different steps.
    ask("joined", SURE, chat(COUNT, FRANCE, "Is 17 even?", "Count to 30.", COLOURS, "Draw a cat."), max_new_tokens=64)
    ask("joined-llama", LLAMA, raw(*RAGGED), max_new_tokens=20, logprobs=0)
    ask("joined-gpt2", GPT2, raw(*RAGGED), max_new_tokens=20, logprobs=0)
    ask("equal-rows", LLAMA, raw("The", "The", "a", "The"), logprobs=0)
    ask("one-token", LLAMA, raw(*RAGGED), max_new_tokens=1, logprobs=5)
    ask("best-tokens", LLAMA, raw(*RAGGED), max_new_tokens=6, logprobs=3)
    ask("best-tokens-sure", SURE, chat(COUNT, FRANCE), logprobs=2)
    ask("llama-chat", LLAMA, chat("Hello", "What is the time in Oslo?"), max_new_tokens=12)
    ask("llama-system", LLAMA, chat("Hello", system="Be brief."), max_new_tokens=12)
    # Where a text ends.
    ask("stop", SURE, chat(COUNT, FRANCE), stop=[", 7"], max_new_tokens=64)
    ask("stop-kept", SURE, chat(COUNT, FRANCE), stop=[", 7", "Par"], include_stop=True, max_new_tokens=64)
    ask("stop-inside-a-token", SURE, chat(FRANCE, COUNT), stop=["api"], max_new_tokens=64)
    ask("stops-in-any-order", SURE, chat(COUNT, COLOURS), stop=[", 9", ", 4", "\n"], max_new_tokens=64)
    ask("stops-that-overlap", SURE, chat(COUNT), stop=["4, 5, 6", "5"], max_new_tokens=64)
    ask("stop-llama", LLAMA, raw(*RAGGED), stop=["e", "1"], max_new_tokens=20)
    ask("stop-ids", SURE, chat(COUNT, FRANCE), stop_ids=[16, 11], max_new_tokens=40)
    ask("stop-ids-llama", LLAMA, raw(*RAGGED), stop_ids=list(range(0, 60)), max_new_tokens=16)
    ask("goes-on", SURE, chat(FRANCE, "Is 17 even?"), go_on=True, max_new_tokens=30)
    ask("goes-on-to-a-stop", SURE, chat(FRANCE, COUNT), go_on=True, stop=[", 5"], max_new_tokens=30)
    ask("at-least", SURE, chat(FRANCE, "Is 17 even?"), min_new_tokens=20, max_new_tokens=28)
    ask("at-least-exactly", SURE, chat(FRANCE, COUNT), min_new_tokens=12, max_new_tokens=12)
    ask("cut-by-length", SURE, chat(COUNT, FRANCE), max_new_tokens=9)
    # What is decoded.
    ask("specials-kept", LLAMA, raw(*RAGGED), skip_special=False, max_new_tokens=24)
    ask("specials-kept-sure", SURE, chat(FRANCE, COLOURS), go_on=True, skip_special=False, max_new_tokens=24)
    ask("specials-dropped", SURE, chat(FRANCE, COLOURS), go_on=True, max_new_tokens=24)
    ask("tidied", LLAMA, raw(*RAGGED), clean_up=True, max_new_tokens=24)
    ask("tidied-sure", SURE, chat("What is 3 + 4?", "Is 17 even?", "Draw a star."), clean_up=True)
    ask("stripped", LLAMA, raw(*RAGGED), strip=True, max_new_tokens=9)
    ask("stripped-behind-a-stop", SURE, chat(COUNT), strip=True, stop=["5"])
    # What is chosen from.
    ask("penalty", LLAMA, raw(*RAGGED), repetition_penalty=1.4, max_new_tokens=20, logprobs=0)
    ask("penalty-below-one", GPT2, raw(*RAGGED), repetition_penalty=0.8, max_new_tokens=20)
    ask("penalty-gpt2", GPT2, raw(*RAGGED), repetition_penalty=1.3, max_new_tokens=20)
    ask("banned", LLAMA, raw(*RAGGED), banned=list(range(0, 500, 2)), max_new_tokens=12, logprobs=0)
    ask("choice", SURE, chat(FRANCE, COLOURS), form={"choice": ["yes", "no", "perhaps"]})
    ask("choice-llama", LLAMA, raw(*RAGGED), form={"choice": ["yes", "no", "perhaps"]})
    ask("json", SURE, chat("Give me a JSON object for Anna, 31, from Oslo.", COUNT), form={"json": PERSON})
    ask("regex", LLAMA, raw(*RAGGED), form={"regex": "[a-c]{4,6}[0-9]{2}"})
    # What is asked.
    ask("thinking", SURE, chat(FRANCE, "Is 17 even?"), thinking=True, max_new_tokens=48)
    ask("bare-template", SURE, chat(FRANCE, COUNT), template=BARE, max_new_tokens=16)
    ask("no-opening", SURE, chat(FRANCE, COUNT), opening=False, max_new_tokens=16)
    ask("tools", SURE, chat("What is the weather in Oslo?", FRANCE, tools=[TOOL]), max_new_tokens=48)
    said = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": "1, 2, 3"}]
    ask("continued", SURE, [{"messages": said, "continue": True}], max_new_tokens=32)
    ask("second-turn", SURE, [{"messages": [*said, {"role": "user", "content": FRANCE}]}], max_new_tokens=32)
    ask("system", SURE, chat(FRANCE, COUNT, system="Answer in one word."), max_new_tokens=32)
    ask("beyond-ascii", SURE, chat("Draw a family.", "What is the capital of Iceland?"), max_new_tokens=32)
    ask("last-ids", SURE, chat("You know this. " * 8 + FRANCE, COUNT), keep_last=30)
    ask("last-ids-llama", LLAMA, raw(*RAGGED), keep_last=6, max_new_tokens=12)
    ask("bfloat16", SURE, chat(COUNT, FRANCE, COLOURS), dtype="bfloat16", max_new_tokens=32)


def drawn_cases(ask: Any) -> None:
    rows = seeded(raw(*RAGGED))
    ask("warm", LLAMA, rows, temperature=0.7)
    ask("hot", GPT2, rows, temperature=1.3)
    ask("hot-top-k", LLAMA, rows, temperature=1.2, top_k=20)
    ask("hot-top-p", LLAMA, rows, temperature=1.0, top_p=0.7)
    ask("hot-min-p", LLAMA, rows, temperature=1.5, min_p=0.08)
    ask("hot-all", GPT2, rows, temperature=0.9, top_p=0.9, top_k=40, min_p=0.01)
    ask("hot-penalty", LLAMA, rows, temperature=0.8, repetition_penalty=1.3)
    ask("hot-samples", LLAMA, seeded(raw("The", "Oslo is the"), 0), temperature=1.1, n=4)
    ask("hot-chat", SURE, seeded(chat(DIE, DIE, DIE, DIE)), temperature=1.0, max_new_tokens=20)


def picture_cases(ask: Any, pictures: Pictures) -> None:
    red = pictures.drawing("red", "circle", seed=1)
    blue = pictures.drawing("blue", "square", width=128, height=64, seed=2)
    large = pictures.scaled("green", "triangle", (300, 200))
    what = "What do you see?"
    few = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    many = {"shortest_edge": 160 * 160, "longest_edge": 192 * 192}
    ask("pictures", VL, [seen(what, red), seen(what, blue), seen(what, large)], logprobs=0)
    ask("picture-order", VL, [seen(what, red, blue), seen(what, blue, red)], logprobs=0)
    ask("one-and-two-pictures", VL, [seen(what, red), seen(what, large, blue), seen(what, blue)], logprobs=0)
    ask("few-pixels", VL, [seen(what, large), seen(what, blue)], pixels=few, logprobs=0)
    ask("many-pixels", VL, [seen(what, red), seen(what, large)], pixels=many, logprobs=0)
    ask("transparent", VL, [seen(what, pictures.transparent("red", "square", width=96, height=96, seed=4))], logprobs=0)
    ask("turned", VL, [seen(what, pictures.turned("blue", "triangle", width=128, height=64, seed=5))], logprobs=0)
    ask("photograph", VL, [seen(what, pictures.photograph())], logprobs=3)
    ask("picture-stop", VL, [seen(what, red), seen(what, blue)], stop=["circle", "a "], include_stop=True)
    ask("raw-picture", VL, [{"prompt": "<|vision_start|><|image_pad|><|vision_end|>This is", "images": [blue]}])


def several_calls(often: Any) -> None:
    """Calls that differ in one thing: an answer of one of them is no answer to another."""
    rows, short = chat(COUNT, FRANCE), {"max_new_tokens": 8}
    warm = {"temperature": 1.5, "max_new_tokens": 8}
    often("twice", SURE, (rows, {}), (rows, {}))
    often("then-longer", SURE, (rows, short), (rows, {"max_new_tokens": 16}), (rows, short))
    often("then-another-template", SURE, (rows, short), (rows, {**short, "template": BARE}), (rows, short))
    often("then-thinking", SURE, (rows, short), (rows, {**short, "thinking": True}))
    often("then-a-system-turn", SURE, (rows, short), (chat(COUNT, FRANCE, system="Answer in one word."), short))
    often("then-a-stop", SURE, (rows, {}), (rows, {"stop": [", 4"]}), (rows, {"stop": [", 4"], "include_stop": True}))
    often("then-other-stops", SURE, (rows, {"stop": [", 6"]}), (rows, {"stop": [", 4"]}))
    often("then-a-stop-id", SURE, (rows, {}), (rows, {"stop_ids": [16]}), (rows, {"go_on": True}))
    often("then-specials", SURE, (rows, {"go_on": True}), (rows, {"go_on": True, "skip_special": False}))
    often("then-stripped", LLAMA, (raw(*RAGGED), short), (raw(*RAGGED), {**short, "strip": True}))
    often("then-logprobs", LLAMA, (raw("The"), short), (raw("The"), {**short, "logprobs": 0}))
    often("then-more-logprobs", LLAMA, (raw("The"), {**short, "logprobs": 1}), (raw("The"), {**short, "logprobs": 4}))
    often("then-a-penalty", LLAMA, (raw("The"), short), (raw("The"), {**short, "repetition_penalty": 1.5}))
    often("then-a-form", SURE, (rows, short), (rows, {**short, "form": {"choice": ["yes", "no"]}}))
    often("then-raw", SURE, (rows, short), (raw(COUNT, FRANCE), short))
    often("then-drawn", LLAMA, (raw("The", seed=1), short), (raw("The", seed=1), warm))


def scored_cases(pictures: Pictures) -> list[tuple[str, dict[str, Any]]]:
    answers = ["1, 2, 3, 4", "The capital of France is Paris.", "no"]
    pairs = [{**row, "response": answer} for row, answer in zip(raw(*RAGGED), [*answers, " is", "x" * 20, "e", "5", "a b"])]
    chats = [{**row, "response": answer} for row, answer in zip(chat(COUNT, FRANCE, "Is 17 even?"), answers)]
    red, blue = pictures.drawing("red", "circle", seed=1), pictures.drawing("blue", "square", seed=2)
    shown = [{**seen("What do you see?", red, blue), "response": "a red circle"}, {**chats[0]}]
    return [
        ("scores", {"model_path": SURE, "pairs": chats}),
        ("scores-llama", {"model_path": LLAMA, "pairs": pairs}),
        ("scores-gpt2", {"model_path": GPT2, "pairs": pairs}),
        ("scores-pictures", {"model_path": VL, "pairs": shown}),
    ]
