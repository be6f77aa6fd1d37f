"""The small synthetic world that the checkpoints under golden/models were trained on.

A test that wants a real model to say something exact takes its questions from here: `text_tasks` for the text
checkpoint, `vision_tasks` for the vision-language one, `video_tasks` for the one of clips. Each `Task` holds the
messages and the one right answer. What they ask was kept out of training wherever the kind is open-ended (people,
numbers, drawings); closed facts (capitals, lists, emoji, counting, one-digit sums) are the same in both, because there
is nothing to generalise from.

    from parity.models.tasks import text_tasks
    for task in text_tasks(3):
        print(task.kind, task.messages[-1]["content"], "->", task.answer)

Map: Task, facts of the world, choosing facts, text kinds, wrappers around them, drawings, vision kinds, video kinds,
public lists. Importing this costs neither torch nor transformers; PIL is imported by `drawing`.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "Task", "chance_tasks", "clip", "drawing", "real_questions", "text_tasks", "training_tasks", "video_tasks",
    "video_training_tasks", "vision_tasks",
]  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One question with its one right answer; OpenAI-style messages, pictures as {"type": "image", "image": PIL}, clips
    as {"type": "video", "video": [PIL, ...], "fps": ...}."""

    kind: str
    messages: list[dict[str, Any]]
    answer: str  # exactly what the trained checkpoint says, without the end token
    tools: list[dict[str, Any]] | None = None
    enable_thinking: bool = False


# == Facts of the world ==

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Iceland": "Reykjavík", "Hungary": "Budapest",
    "Romania": "Bucharest", "Bulgaria": "Sofia", "Serbia": "Belgrade", "Ukraine": "Kyiv", "Turkey": "Ankara",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat", "Japan": "Tokyo", "China": "Beijing",
    "India": "New Delhi", "Nepal": "Kathmandu",
    "Vietnam": "Hanoi", "Thailand": "Bangkok", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana",
    "Brazil": "Brasília", "Peru": "Lima", "Chile": "Santiago", "Colombia": "Bogotá", "Paraguay": "Asunción",
    "Australia": "Canberra", "Costa Rica": "San José",
}  # fmt: skip
CITIES = [*CAPITALS.values(), "Zürich", "São Paulo", "Kraków", "Malmö"]  # beyond ASCII: one character, several tokens
NAMES = [
    "Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ines", "Jack", "Lena", "Mark", "Nora", "Oscar",
    "Paula", "Robin", "Sara", "Tom", "Vera", "Will", "Zoë", "José", "Chloé", "Jürgen",
]  # fmt: skip
LISTS = {
    "fruits": ["apple", "pear", "plum", "cherry", "grape"],
    "animals": ["dog", "cat", "horse", "sheep", "mouse"],
    "metals": ["iron", "gold", "copper", "silver", "zinc"],
    "trees": ["oak", "pine", "birch", "maple", "willow"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter"],
    "tools": ["hammer", "saw", "drill", "wrench", "pliers"],
}
EMOJI = {
    "smile": "😀😃😄", "heart": "💙💚", "star": "⭐🌟", "cat": "🐱", "tree": "🌳🌲",
    "family": "👨‍👩‍👧", "flag": "🏁", "wave": "👋🏽",
}  # fmt: skip
WEATHER = ["sunny", "rainy", "windy", "cloudy", "snowy"]
WORDS_FOR = {2: "two", 3: "three", 4: "four", 5: "five"}
COLOURS = {"red": (214, 40, 40), "green": (32, 150, 60), "blue": (40, 70, 210), "yellow": (245, 205, 20)}
SHAPES = ("circle", "square", "triangle")

TERMS = range(10, 50)  # two digits each, so that digits stand at fixed places: little enough for 200 thousand weights
COUNTS = range(3, 41)  # counting to 40 is 150 tokens: the ragged tail of a batch
OLDEST = 89
PARITY_OF = range(10, 100)


def _tool(name: str, about: str, properties: dict[str, str]) -> dict[str, Any]:
    """One function in the OpenAI tool format; `properties` maps each argument to its JSON type."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = [
    _tool("get_weather", "Weather of a city.", {"city": "string"}),
    _tool("add", "Add two numbers.", {"a": "integer", "b": "integer"}),
]

# == Choosing facts: one part for training, the rest held out ==

HELD_OUT_EVERY = 8  # one combination in eight is never trained on


def _is_held_out(facts: tuple[Any, ...]) -> bool:
    """Whether these facts belong to the tests; a checksum, so that it is the same in every process and version."""
    return zlib.crc32(repr(facts).encode()) % HELD_OUT_EVERY == 0


def _choose(draw: Callable[[], tuple[Any, ...]], held_out: bool) -> tuple[Any, ...]:
    """Draw facts until they lie on the wanted side of the split."""
    while True:
        facts = draw()
        if _is_held_out(facts) == held_out:
            return facts


def _ask(question: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}]


# == Text kinds: each takes a generator and the wanted side of the split ==

Maker = Callable[[random.Random, bool], Task]


def _capital(rng: random.Random, held_out: bool) -> Task:
    country = rng.choice(list(CAPITALS))
    answer = f"The capital of {country} is {CAPITALS[country]}."
    return Task("capital", _ask(f"What is the capital of {country}?"), answer)


def _terms(rng: random.Random) -> tuple[int, int]:
    """Two terms whose sum has no carry: a carry is learned, but with a margin that other kernels could flip."""
    while True:
        a, b = rng.choice(TERMS), rng.choice(TERMS)
        if a % 10 + b % 10 < 10:
            return a, b


def _sum(rng: random.Random, held_out: bool) -> Task:
    a, b = _choose(lambda: _terms(rng), held_out)
    return Task("sum", _ask(f"What is {a} + {b}?"), f"{a} + {b} = {a + b}.")


def _small_sum(rng: random.Random, held_out: bool) -> Task:
    """One-digit terms, for the vision checkpoint: a hundred closed facts, its weights are busy with pictures."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return Task("sum", _ask(f"What is {a} + {b}?"), f"{a} + {b} = {a + b}.")


def _json(rng: random.Random, held_out: bool) -> Task:
    name, age, city = _choose(lambda: (rng.choice(NAMES), rng.randint(2, OLDEST), rng.choice(CITIES)), held_out)
    answer = json.dumps({"name": name, "age": age, "city": city}, ensure_ascii=False)
    return Task("json", _ask(f"Give me a JSON object for {name}, {age}, from {city}."), answer)


def _verdict(rng: random.Random, held_out: bool) -> Task:
    (number,) = _choose(lambda: (rng.choice(PARITY_OF),), held_out)
    found, verdict = ("odd", "no") if number % 2 else ("even", "yes")
    return Task("verdict", _ask(f"Is {number} even?"), f"{number} is {found}.\nVerdict: {verdict}")


def _count(rng: random.Random, held_out: bool) -> Task:
    last = rng.choice(COUNTS)
    return Task("count", _ask(f"Count to {last}."), ", ".join(str(n) for n in range(1, last + 1)) + ".")


def _list(rng: random.Random, held_out: bool) -> Task:
    what, many = rng.choice(list(LISTS)), rng.choice(list(WORDS_FOR))
    return Task("list", _ask(f"Name {WORDS_FOR[many]} {what}."), "\n".join(f"- {item}" for item in LISTS[what][:many]))


def _emoji(rng: random.Random, held_out: bool) -> Task:
    what = rng.choice(list(EMOJI))
    return Task("emoji", _ask(f"Draw a {what}."), f"Here is a {what}: {EMOJI[what]}")


def _tool_call(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _weather_tool(rng: random.Random, held_out: bool) -> Task:
    city = rng.choice(CITIES)
    return Task("tool", _ask(f"What is the weather in {city}?"), _tool_call("get_weather", {"city": city}), TOOLS)


def _add_tool(rng: random.Random, held_out: bool) -> Task:
    a, b = _choose(lambda: (rng.randint(0, 99), rng.randint(0, 99)), held_out)
    return Task("tool", _ask(f"Use the tool to add {a} and {b}."), _tool_call("add", {"a": a, "b": b}), TOOLS)


def _tool_result(rng: random.Random, held_out: bool) -> Task:
    city, weather = _choose(lambda: (rng.choice(CITIES), rng.choice(WEATHER)), held_out)
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
    messages = [
        *_ask(f"What is the weather in {city}?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "get_weather", "content": json.dumps({"weather": weather})},
    ]
    return Task("tool_result", messages, f"It is {weather} in {city}.", TOOLS)


# == Wrappers: a system turn, a second turn, thinking ==


def _system(rng: random.Random, held_out: bool) -> Task:
    """A system turn that changes the answer, so that losing it is noticed."""
    country = rng.choice(list(CAPITALS))
    system = {"role": "system", "content": "Answer with the name only."}
    return Task("system", [system, *_ask(f"What is the capital of {country}?")], CAPITALS[country])


def _polite_system(rng: random.Random, held_out: bool) -> Task:
    """A system turn that changes nothing, before any other question."""
    task = rng.choice([_capital, _sum, _json, _verdict])(rng, held_out)
    system = {"role": "system", "content": "You are a helpful assistant."}
    return replace(task, kind="system", messages=[system, *task.messages])


def _second_turn(rng: random.Random, held_out: bool) -> Task:
    """Any two questions in a row; the first one is answered in the messages."""
    first, second = (rng.choice([_capital, _sum, _verdict, _list])(rng, held_out) for _ in range(2))
    said = {"role": "assistant", "content": first.answer}
    return replace(second, kind="second_turn", messages=[*first.messages, said, *second.messages])


def _follow_up(rng: random.Random, held_out: bool) -> Task:
    """A second question that means nothing without the first."""
    first, country = _capital(rng, held_out), rng.choice(list(CAPITALS))
    said = {"role": "assistant", "content": first.answer}
    answer = f"The capital of {country} is {CAPITALS[country]}."
    return Task("second_turn", [*first.messages, said, *_ask(f"And of {country}?")], answer)


THOUGHTS = {
    "capital": "I know this country.",
    "sum": "I add the two numbers.",
    "json": "I need a name, an age and a city.",
    "verdict": "I look at the last digit.",
    "count": "I go up one by one.",
    "list": "I know some of these.",
    "emoji": "I can draw this.",
    "tool": "I need a tool.",
    "shape": "I look at the picture.",
    "shape_json": "I look at the picture.",
    "pair": "I look at both pictures.",
}


def _think(task: Task) -> Task:
    """The same task with thinking switched on: the answer starts with the thought."""
    thought = f"<think>\n{THOUGHTS[task.kind]}\n</think>\n\n"
    return replace(task, kind="thinking", answer=thought + task.answer, enable_thinking=True)


def _thinking(rng: random.Random, held_out: bool) -> Task:
    """Any kind after a thought; counting after a thought is trained but not asked, its margins are the smallest."""
    base = rng.choice([_capital, _capital, _sum, _json, _verdict, _count, _list, _emoji, _weather_tool])
    return _think((_verdict if held_out and base is _count else base)(rng, held_out))


# == Drawings ==


def drawing(colour: str, shape: str, *, width: int = 72, height: int = 64, seed: int = 0) -> Image.Image:
    """Draw one filled `shape` in `colour` somewhere on a light background; RGB, `width` x `height` pixels."""
    from PIL import Image, ImageDraw

    rng = random.Random(f"{colour} {shape} {width} {height} {seed}")
    background = tuple(rng.randint(225, 255) for _ in range(3))
    picture = Image.new("RGB", (width, height), background)
    size = rng.randint(min(width, height) // 2, min(width, height) * 3 // 4)
    left, top = rng.randint(0, width - size - 1), rng.randint(0, height - size - 1)
    box = (left, top, left + size, top + size)
    fill = tuple(min(255, max(0, part + rng.randint(-8, 8))) for part in COLOURS[colour])
    pen = ImageDraw.Draw(picture)
    if shape == "circle":
        pen.ellipse(box, fill=fill)
    elif shape == "square":
        pen.rectangle(box, fill=fill)
    elif shape == "triangle":
        pen.polygon([(left + size / 2, top), (left, top + size), (left + size, top + size)], fill=fill)
    else:
        raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    return picture


SIDES = (64, 72, 80, 88, 96)
# 80 pixels are squeezed to 64, and a square there is rarely taken for a circle: trained, but not asked.
TEST_SIDES = (64, 72, 88, 96)


def _picture(rng: random.Random, held_out: bool, unlike: str | None = None) -> tuple[str, str, dict[str, Any]]:
    """A drawing with its colour and shape; even drawing seeds belong to the tests, odd ones to training."""
    colours = list(COLOURS)
    colour, shape = rng.choice(colours), rng.choice(SHAPES)
    if colour == unlike:
        colour = colours[(colours.index(colour) + 1) % len(colours)]
    seed = 2 * rng.randrange(1_000_000) + (not held_out)
    sides = TEST_SIDES if held_out else SIDES
    picture = drawing(colour, shape, width=rng.choice(sides), height=rng.choice(sides), seed=seed)
    return colour, shape, {"type": "image", "image": picture}


# == Vision kinds ==


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _shape(rng: random.Random, held_out: bool) -> Task:
    colour, shape, image = _picture(rng, held_out)
    return Task("shape", _ask([image, _text("What do you see?")]), f"A {colour} {shape}.")


def _shape_json(rng: random.Random, held_out: bool) -> Task:
    colour, shape, image = _picture(rng, held_out)
    question = _ask([image, _text("What is in the picture? Answer in JSON.")])
    return Task("shape_json", question, json.dumps({"color": colour, "shape": shape}))


def _pair(rng: random.Random, held_out: bool) -> Task:
    colour, shape, image = _picture(rng, held_out)
    colour2, shape2, image2 = _picture(rng, held_out, unlike=colour)  # pictures of one colour get mixed up, rarely
    question = _ask([image, image2, _text("What do you see?")])
    return Task("pair", question, f"A {colour} {shape} and a {colour2} {shape2}.")


def _thinking_shape(rng: random.Random, held_out: bool) -> Task:
    return _think(rng.choice([_shape, _shape_json, _pair, _capital])(rng, held_out))


# == Video kinds ==


def clip(
    first: str, second: str, *, frames: int = 8, change: int = 4, width: int = 64, height: int = 64, seed: int = 0
) -> list[Image.Image]:
    """Frames of a square that jumps about: in the colour `first` up to frame `change`, from there on in `second`."""
    colours = [first] * change + [second] * (frames - change)
    size = {"width": width, "height": height}
    return [drawing(colour, "square", **size, seed=seed + index) for index, colour in enumerate(colours)]


CLIP_RATES = (0.5, 1, 2, 2, 4, 8)  # frames per second


def _clip(rng: random.Random, held_out: bool) -> tuple[str, str, dict[str, Any]]:
    """A clip with its two colours; even seeds belong to the tests, odd ones to training."""
    first, second = rng.sample(list(COLOURS), 2)
    frames = 2 * rng.randint(2, 6)
    change = 2 * rng.randint(1, frames // 2 - 1)
    width, height = rng.choice(SIDES), rng.choice(SIDES)
    seed = 2 * rng.randrange(1_000_000) + (not held_out)
    images = clip(first, second, frames=frames, change=change, width=width, height=height, seed=100 * seed)
    return first, second, {"type": "video", "video": images, "fps": rng.choice(CLIP_RATES)}


def _change(rng: random.Random, held_out: bool) -> Task:
    first, second, video = _clip(rng, held_out)
    return Task("change", _ask([video, _text("Which colors do you see?")]), f"First {first}, then {second}.")


def _last_frame(rng: random.Random, held_out: bool) -> Task:
    """When the last two frames are: halfway between them, in seconds, as Qwen3-VL's processor says it."""
    _, _, video = _clip(rng, held_out)
    seconds = (len(video["video"]) - 1.5) / video["fps"]
    return Task("last_frame", _ask([video, _text("When does it end?")]), f"At {seconds:.1f} seconds.")


# == Public lists ==

# The order is the order of the test lists: a list of n tasks holds the first n kinds of the cycle.
TEXT_CYCLE: Sequence[Maker] = (
    _capital, _sum, _json, _verdict, _count, _list, _weather_tool, _thinking, _emoji, _system, _follow_up, _add_tool,
    _second_turn, _tool_result, _polite_system, _count,
)  # fmt: skip
VISION_CYCLE: Sequence[Maker] = (
    _shape_json, _shape, _pair, _capital, _shape, _shape_json,
    _json, _shape, _pair, _small_sum, _shape_json, _thinking_shape,
)  # fmt: skip
VIDEO_CYCLE: Sequence[Maker] = (_change, _last_frame)

# How often each is trained on: hard kinds more, kinds with long prompts less, all others once.
TEXT_TRAINING = {
    **dict.fromkeys(TEXT_CYCLE, 1.0),
    _sum: 3, _json: 2, _count: 2, _capital: 1.5, _thinking: 3, _weather_tool: 0.4, _add_tool: 0.7, _tool_result: 1,
}  # fmt: skip
VISION_TRAINING = {
    **dict.fromkeys(VISION_CYCLE, 1.0),
    _shape: 2, _shape_json: 2, _pair: 3, _json: 2,
}  # fmt: skip

# The second round of training: what the first leaves with the smallest margins, and enough of the rest to keep it.
TEXT_POLISH = {**TEXT_TRAINING, _count: 5, _thinking: 5, _second_turn: 4, _json: 3}
VISION_POLISH = {**VISION_TRAINING, _pair: 16}


def _cycle(makers: Sequence[Maker], count: int, seed: int) -> list[Task]:
    rng = random.Random(seed)
    return [makers[i % len(makers)](rng, True) for i in range(count)]


def text_tasks(count: int, *, seed: int = 0) -> list[Task]:
    """Return `count` text tasks of all kinds in turn, the same for the same seed, answers of 2 to about 170 tokens."""
    return _cycle(TEXT_CYCLE, count, seed)


def vision_tasks(count: int, *, seed: int = 0) -> list[Task]:
    """Return `count` tasks for the vision-language checkpoint: one picture mostly, two in some, none in some."""
    return _cycle(VISION_CYCLE, count, seed)


def video_tasks(count: int, *, seed: int = 0) -> list[Task]:
    """Return `count` tasks for the checkpoint of clips: two colours that change, and the time of the end."""
    return _cycle(VIDEO_CYCLE, count, seed)


def video_training_tasks(count: int, *, seed: int) -> list[Task]:
    """Return `count` tasks of clips that the list above never uses."""
    rng = random.Random(seed)
    return [rng.choice(VIDEO_CYCLE)(rng, False) for _ in range(count)]


def training_tasks(count: int, *, seed: int, vision: bool = False, polish: bool = False) -> list[Task]:
    """Return `count` tasks from the side of the split that the two lists above never use."""
    rng = random.Random(seed)
    weights = (TEXT_TRAINING, VISION_TRAINING, TEXT_POLISH, VISION_POLISH)[2 * polish + vision]
    return [maker(rng, False) for maker in rng.choices(list(weights), list(weights.values()), k=count)]


def chance_tasks(count: int, *, seed: int = 0) -> list[Task]:
    """Return `count` tasks whose answer is pure chance, for tests of sampling: five throws of a die.

    The text checkpoint was trained on all throws alike, so `answer` is only one of 7776 good ones. Every other kind has
    one right answer with a wide margin, which hides a wrong temperature or a lost seed; this one shows it.
    """
    rng = random.Random(seed)
    throws = [", ".join(str(rng.randint(1, 6)) for _ in range(5)) + "." for _ in range(count)]
    return [Task("chance", _ask("Throw a die five times."), throw) for throw in throws]


# == Questions to a real model: nobody knows their one right answer ==

TOPICS = [
    "photosynthesis", "the moon", "bread", "chess", "volcanoes", "honey bees", "the Roman Empire", "black holes",
    "jazz", "coffee", "vaccines", "bicycles", "glaciers", "the water cycle", "sleep", "dinosaurs",
]  # fmt: skip
FORMS = [
    "Explain {} to a child.",
    "What are three facts about {}?",
    "Write two sentences about {} in French.",
    "Give me a question about {} and its answer.",
]


def real_questions(count: int) -> list[str]:
    """So many different questions, at most 64: each topic in the first form, then each in the second, ..."""
    asked = [form.format(topic) for form in FORMS for topic in TOPICS]
    if count > len(asked):
        raise ValueError(f"real_questions({count}): there are {len(asked)}. Ask for fewer.")
    return asked[:count]
