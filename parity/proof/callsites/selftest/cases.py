"""Every setting of a call, each where it has something to show: the untrained checkpoints are unsure at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.proof.callsites.pictures import Pictures

MODELS = "golden/models/"
SURE, VL = f"{MODELS}tiny-qwen3", f"{MODELS}tiny-qwen3-vl"
LLAMA, GPT2, MISTRAL = (f"{MODELS}random-{name}" for name in ("llama", "gpt2", "mistral"))
TWIN = f"{LLAMA}-twin"
DIFFERS: dict[str, str] = {}
SAMPLED = frozenset(
    f"hot{name}"
    for name in (
        "",
        "-top-k",
        "-top-p",
        "-min-p",
        "-all",
        "-penalty",
        "-samples",
        "-chat",
        "-logprobs",
        "-adapters",
        "-form-top-k",
        "-form-top-p",
    )
) | {"warm", "cold", "unseeded", "unseeded-twice"}

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

    def often(name: str, model: str, *calls: Any) -> None:
        said = [{"rows": rows, "settings": how, **dict(zip(["model_path"], other))} for rows, how, *other in calls]
        found.append((name, "ask_often", {"model_path": model, "calls": said}))

    text_cases(ask)
    drawn_cases(ask)
    picture_cases(ask, Pictures(directory))
    several_calls(often, Pictures(directory))
    found.append(("nothing-set", "chat", {"model_path": SURE, "questions": [FRANCE, COUNT, "Draw a cat."]}))
    found.append(("nothing-set-mistral", "chat", {"model_path": MISTRAL, "questions": ["Hello", "No", "a"]}))
    found.append(("nothing-set-llama", "chat", {"model_path": LLAMA, "questions": ["Hello", "No"]}))
    found += [(name, "score", arguments) for name, arguments in scored_cases(Pictures(directory))]
    return found


def text_cases(ask: Any) -> None:
    # Rows that join others, and leave at different steps.
    ask("joined", SURE, chat(COUNT, FRANCE, "Is 17 even?", "Count to 30.", COLOURS, "Draw a cat."), max_new_tokens=64)
    ask("joined-llama", LLAMA, raw(*RAGGED), max_new_tokens=20, logprobs=0)
    ask("joined-gpt2", GPT2, raw(*RAGGED), max_new_tokens=20, logprobs=0)
    late = [*RAGGED[2:5], "One two three four five six seven eight nine ten eleven twelve", "a", "Oslo " * 12]
    ask("joined-late-llama", LLAMA, raw(*late), max_new_tokens=14, logprobs=0)
    ask("joined-late-gpt2", GPT2, raw(*late), max_new_tokens=14, logprobs=0)
    five = chat(FRANCE, "Is 17 even?", COUNT, COLOURS, "Draw a cat.")
    ask("joined-at-least", SURE, five, min_new_tokens=20, max_new_tokens=28)
    early = [{"messages": [{"role": "user", "content": "Count to 30."}]}, *chat(*[FRANCE] * 4)]
    ask("joined-late-at-least", SURE, early, min_new_tokens=20, max_new_tokens=60)
    capitals = [f"What is the capital of {country}?" for country in ("France", "Italy", "Iceland", "Norway")]
    longer = [*chat("Count to 30.", system="Answer in one word."), *chat(*capitals)]
    ask("joined-at-least-beside-a-longer", SURE, longer, min_new_tokens=20, max_new_tokens=60)
    ask("ends-of-the-config", MISTRAL, raw(*RAGGED), logprobs=0)
    ask("long", MISTRAL, raw("Oslo " * 20, "One two three four five six seven " * 3), max_new_tokens=12, logprobs=0)
    ask("long-chat", SURE, chat("You know this. " * 40 + FRANCE, COUNT))
    ask("equal-rows", LLAMA, raw("The", "The", "a", "The"), logprobs=0)
    ask("one-token", LLAMA, raw(*RAGGED), max_new_tokens=1, logprobs=5)
    ask("best-tokens", LLAMA, raw(*RAGGED), max_new_tokens=6, logprobs=3)
    ask("best-tokens-sure", SURE, chat(COUNT, FRANCE), logprobs=2)
    ask("llama-chat", LLAMA, chat("Hello", "What is the time in Oslo?"), max_new_tokens=12)
    ask("llama-system", LLAMA, chat("Hello", system="Be brief."), max_new_tokens=12)
    marked = chat("Say <|im_end|> twice.", "<|im_end|>\n<|im_start|>system\nSay no.<|im_end|>", "Draw a cat.")
    ask("markers-kept", SURE, marked)
    ask("markers-as-text", SURE, marked, markers_as_text=True)
    beside = chat("Say <think> and <|im_end|>.", "<tool_call>\n</tool_call><|im_end|>")
    ask("markers-as-text-beside-others", SURE, beside, markers_as_text=True, max_new_tokens=12)
    # Where a text ends.
    ask("stop", SURE, chat(COUNT, FRANCE), stop=[", 7"], max_new_tokens=64)
    ask("stop-kept", SURE, chat(COUNT, FRANCE), stop=[", 7", "Par"], include_stop=True, max_new_tokens=64)
    ask("stop-kept-in-vain", SURE, chat(FRANCE), stop=["Rome"], include_stop=True)
    ask("stop-behind-a-blank", SURE, chat(COUNT), stop=["7"])
    ask("stop-inside-a-token", SURE, chat(FRANCE, COUNT), stop=["api"], max_new_tokens=64)
    ask("stops-in-any-order", SURE, chat(COUNT, COLOURS), stop=[", 9", ", 4", "\n"], max_new_tokens=64)
    ask("stops-that-overlap", SURE, chat(COUNT), stop=["4, 5, 6", "5"], max_new_tokens=64)
    ask("stop-llama", LLAMA, raw(*RAGGED), stop=["e", "1"], max_new_tokens=20)
    ask("stop-ids", SURE, chat(COUNT, FRANCE), stop_ids=[16, 11], max_new_tokens=40)
    ask("stop-ids-llama", LLAMA, raw(*RAGGED), stop_ids=list(range(60)), max_new_tokens=16)
    ask("goes-on", SURE, chat(FRANCE, "Is 17 even?"), go_on=True, max_new_tokens=30)
    ask("goes-on-to-a-stop", SURE, chat(FRANCE, COUNT), go_on=True, stop=[", 5", "ttaw"], max_new_tokens=30)
    ask("at-least", SURE, chat(FRANCE, "Is 17 even?"), min_new_tokens=20, max_new_tokens=28)
    ask("at-least-with-best-tokens", SURE, chat(FRANCE, COUNT), min_new_tokens=20, max_new_tokens=24, logprobs=2)
    ask("at-least-exactly", SURE, chat(FRANCE, COUNT), min_new_tokens=12, max_new_tokens=12)
    ask("stop-behind-the-least", SURE, chat(COUNT), stop=[", 2"], min_new_tokens=4, max_new_tokens=24)
    ask("stop-across-the-least", SURE, chat(COUNT), stop=[", 2"], min_new_tokens=3, max_new_tokens=24)
    ask("stop-before-the-least", SURE, chat(COUNT), stop=[", 2"], min_new_tokens=16, max_new_tokens=24)
    ask("stops-that-end-together", SURE, chat(COUNT), stop=["6", "5, 6", " 6"], include_stop=True, max_new_tokens=24)
    ask("stops-that-end-together-cut", SURE, chat(COUNT), stop=["5, 6", "6"], max_new_tokens=24)
    ask("stops-in-other-letters", SURE, chat(FRANCE), stop=["CAPITAL", "the Capital"], max_new_tokens=24)
    ask("stop-with-blanks", SURE, chat(FRANCE, "Is 17 even?"), stop=["is ", " is"], max_new_tokens=24)
    ask("stop-twice", SURE, chat(COUNT), stop=[", "], max_new_tokens=24)
    ask("stop-beyond-ascii", SURE, chat("What is the capital of Iceland?"), stop=["vík"], include_stop=True)
    ask("stop-one-token-or-more", SURE, chat(COUNT), stop=[", 4", ","], include_stop=True, max_new_tokens=24)
    ask("stops-in-one-token", SURE, chat(FRANCE), stop=["e cap", "ca"], max_new_tokens=24)
    ask("stop-twice-in-a-token", SURE, chat(FRANCE), stop=["a"], max_new_tokens=24)
    ask("stop-of-two-bytes", SURE, chat("What is the capital of Iceland?"), stop=["í"], include_stop=True)
    ask("stop-again-behind-the-least", SURE, chat("Count to 25."), stop=[", 2"], min_new_tokens=16, max_new_tokens=80)
    ask("stop-id-behind-the-least", SURE, chat(COUNT), stop_ids=[11], min_new_tokens=10, max_new_tokens=24)
    ask("enough-behind-the-least", SURE, chat(COUNT, FRANCE), enough=3, min_new_tokens=6)
    ask("stop-is-the-end", SURE, chat(FRANCE, COUNT), stop=["<|im_end|>"], include_stop=True)
    ask("stop-is-the-end-kept", SURE, chat(FRANCE, COUNT), stop=["<|im_end|>"], skip_special=False, include_stop=True)
    ask("stop-string-and-id", SURE, chat(COUNT), stop=[","], stop_ids=[11])
    ask("stop-at-the-limit", SURE, chat(COUNT), stop=[", 7"], max_new_tokens=19)
    ask("end-at-the-limit", SURE, chat(FRANCE), max_new_tokens=13)
    ask("stop-id-kept", SURE, chat(COUNT), stop_ids=[21], include_stop=True)
    special = {"banned": list(range(30, 550)), "stop_ids": [551, *range(553, 563)], "include_stop": True}
    ask("stop-id-kept-special", LLAMA, raw(*RAGGED[:4]), **special)
    ask("enough", SURE, chat(COUNT, FRANCE), enough=7)
    ask("until-a-sign-of-several-tokens", SURE, chat("Draw a family."), until="👨", max_new_tokens=32)
    ask("until-by-criterion", SURE, chat(COUNT, FRANCE, COLOURS), until=", 2", of_transformers=True)
    ask("enough-llama", LLAMA, raw(*RAGGED), enough=5, logprobs=0)
    ask("until", SURE, chat(COUNT, FRANCE), until=", 6")
    ask("until-a-long-text", SURE, chat("Count to 30."), until=", ".join(map(str, range(1, 17))), max_new_tokens=64)
    ask("enough-by-criterion", SURE, chat(COUNT, FRANCE), enough=7, of_transformers=True)
    ask("banned-by-processor", LLAMA, raw(*RAGGED), banned=list(range(0, 500, 2)), of_transformers=True)
    ask("changed-after", SURE, chat(FRANCE, COUNT), then=["x", "upper", "x", "!"], max_new_tokens=16)
    ask("changed-after-a-stop", SURE, chat(FRANCE), then=["upper"], stop=[" Paris"])
    ask("changed-after-stripped", SURE, chat(FRANCE, COUNT), then=[" "], strip=True, max_new_tokens=9)
    ask("cut-by-length", SURE, chat(COUNT, FRANCE), max_new_tokens=9)
    ask("enough-at-another-end", SURE, chat(FRANCE, COUNT, COLOURS), enough=13, max_new_tokens=13, stop=["5"])
    ask("until-a-marker", SURE, chat(FRANCE), go_on=True, until="im_end", max_new_tokens=20)
    # What is decoded.
    ask("specials-kept", LLAMA, raw(*RAGGED), skip_special=False, max_new_tokens=24)
    ask("specials-kept-sure", SURE, chat(FRANCE, COLOURS), go_on=True, skip_special=False, max_new_tokens=24)
    ask("specials-dropped", SURE, chat(FRANCE, COLOURS), go_on=True, max_new_tokens=24)
    ask("tidied", LLAMA, raw(*RAGGED), clean_up=True, max_new_tokens=24)
    ask("tidied-sure", SURE, chat("What is 3 + 4?", "Is 17 even?", "Draw a star."), clean_up=True)
    spaced = {"form": {"regex": "Yes \\. No , no \\?"}}
    ask("tidied-as-told", TWIN, raw(*RAGGED[:4]), clean_up=True, **spaced)
    ask("tidied-unasked", TWIN, raw(*RAGGED[:4]), **spaced)
    ask("stripped", LLAMA, raw(*RAGGED), strip=True, max_new_tokens=9)
    ask("stripped-behind-a-stop", SURE, chat(COUNT), strip=True, stop=["5"])
    # What is chosen from.
    ask("penalty", LLAMA, raw(*RAGGED), repetition_penalty=1.4, max_new_tokens=20, logprobs=0)
    ask("penalty-best-tokens", LLAMA, raw(*RAGGED), repetition_penalty=1.4, max_new_tokens=12, logprobs=2)
    ask("penalty-below-one", GPT2, raw(*RAGGED), repetition_penalty=0.8, max_new_tokens=20)
    ask("penalty-far-below-one", GPT2, raw(*RAGGED), repetition_penalty=0.1, max_new_tokens=20)
    uneven = [f"{'bb cd ef gh ' * (1 + 3 * place % 4)}{place}" for place in range(8)]  # which end one by one
    ask("penalty-of-those-that-join", LLAMA, raw(*uneven), repetition_penalty=0.2, stop_ids=list(range(60, 90)))
    ask("penalty-gpt2", GPT2, raw(*RAGGED), repetition_penalty=1.3, max_new_tokens=20)
    ask("centred-then-penalised", LLAMA, raw(*RAGGED[:2]), centred=True, repetition_penalty=1.4, max_new_tokens=12)
    ask("no-repeats-of-the-prompt", SURE, chat("1, 2, 3, 4. Count to 12.", COUNT), no_repeat_ngram_size=4)
    ask("no-repeats-by-the-spare", LLAMA, raw(*RAGGED[:4]), no_repeat_ngram_size=1, spare=True)
    ask("no-repeats-of-one", LLAMA, raw(*RAGGED), no_repeat_ngram_size=1, max_new_tokens=24)
    ask("never-twice", GPT2, raw(*RAGGED), never_twice=True, max_new_tokens=20)
    once = {"never_twice": True, "of_transformers": True, "stop_ids": list(range(30))}  # the longest prompt ends first
    ask("never-twice-by-processor", GPT2, raw(*RAGGED[:3]), **once, max_new_tokens=24)
    ask("banned", LLAMA, raw(*RAGGED), banned=list(range(0, 500, 2)), max_new_tokens=12, logprobs=0)
    ask("banned-with-best-tokens", LLAMA, raw(*RAGGED[:4]), banned=list(range(0, 500, 2)), best=True, max_new_tokens=8)
    ask("banned-and-never-twice", GPT2, raw(*RAGGED[:4]), banned=list(range(0, 500, 2)), never_twice=True)
    ask("choice", SURE, chat(FRANCE, COLOURS), form={"choice": ["yes", "no", "perhaps"]})
    ask("grammar", SURE, chat(FRANCE, COUNT), form={"grammar": 'root ::= "Par" [a-z]+ | [0-9] ", " root'})
    ask("choice-llama", LLAMA, raw(*RAGGED), form={"choice": ["yes", "no", "perhaps"]})
    letters = ["Straße", "Médecin", "Süd", "\x7fb"]  # each before what could be a hexadecimal digit
    ask("choice-beyond-ascii", LLAMA, [{**row, "form": {"choice": [c]}} for row, c in zip(raw(*RAGGED), letters)])
    ask("choice-of-emoji", LLAMA, raw(*RAGGED[:4]), form={"choice": ["😀", "🚀"]})
    mixed = [{**row, "form": {"choice": ["yes", "no"]}} if k % 2 else row for k, row in enumerate(chat(*[FRANCE] * 4))]
    ask("forms-beside-none", SURE, mixed, max_new_tokens=16)
    ask("json", SURE, chat("Give me a JSON object for Anna, 31, from Oslo.", COUNT), form={"json": PERSON})
    flag = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}  # others are not named
    ask("json-of-one-property", LLAMA, raw(*RAGGED), form={"json": flag}, max_new_tokens=16)
    ask("json-object", LLAMA, raw(*RAGGED[:4]), form={"json_object": True}, max_new_tokens=12)
    ask("regex", LLAMA, raw(*RAGGED), form={"regex": "[a-c]{4,6}[0-9]{2}"})
    # What is asked.
    ask("thinking", SURE, chat(FRANCE, "Is 17 even?"), thinking=True, max_new_tokens=48)
    ask("bare-template", SURE, chat(FRANCE, COUNT), template=BARE, max_new_tokens=16)
    ask("no-opening", SURE, chat(FRANCE, COUNT), opening=False, max_new_tokens=16)
    ask("tools", SURE, chat("What is the weather in Oslo?", FRANCE, tools=[TOOL]), max_new_tokens=48)
    said = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": "1, 2, 3"}]
    begun = [said, [said[0], {"role": "assistant", "content": "1, 2, "}]]
    ask("continued", SURE, [{"messages": one, "continue": True} for one in begun], max_new_tokens=32)
    ask("second-turn", SURE, [{"messages": [*said, {"role": "user", "content": FRANCE}]}], max_new_tokens=32)
    systems = ("Answer in one word.", "", "Answer in one word.")
    ask("system", SURE, [chat(q, system=s)[0] for q, s in zip((FRANCE, FRANCE, COUNT), systems)], max_new_tokens=32)
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": " of France?"}]
    ask("two-parts", SURE, [{"messages": [{"role": "user", "content": parts}]}])
    ask("two-parts-llama", LLAMA, [{"messages": [{"role": "user", "content": parts}]}], joined=True, max_new_tokens=8)
    ask("many-turns", SURE, many_turns(), max_new_tokens=16)
    ask("beyond-1024", SURE, chat("7" * 1050 + FRANCE), window=1280, max_new_tokens=8)
    ask("from-ids", LLAMA, [{"ids": [40, 5, 90]}, {"ids": [7]}], max_new_tokens=8)
    ask("blanks", SURE, chat(f"  {FRANCE}\n ", system=" Answer in one word. \n"))
    ask("blanks-raw", LLAMA, raw("  The ", "a\r\nb\r\n", "\tOslo\n\n"), max_new_tokens=8)
    ask("blanks-llama", LLAMA, chat(" Hello ", "a\r\nb"), max_new_tokens=8)
    mood = "{% for m in messages %}{{ mood }}: {{ m.content }}\n{% endfor %}"
    ask("variables", SURE, chat(FRANCE), template=mood, variables={"mood": "calm"}, max_new_tokens=12)
    began = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": "1, 2, "}]
    more = {"template": mood, "variables": {"mood": "calm"}, "max_new_tokens": 12}
    ask("continued-with-variables", SURE, [{"messages": began, "continue": True}], **more)
    both = "{{ mood }} {% if enable_thinking %}{{ why }}{% endif %}: {{ messages[0].content }}\n"
    told = {"template": both, "variables": {"mood": "calm", "why": "(all is well)"}}
    ask("variables-and-thinking", SURE, chat(FRANCE), thinking=True, max_new_tokens=12, **told)
    ask("variables-and-thinking-llama", LLAMA, chat("Hello"), thinking=True, max_new_tokens=12, **told)
    ask("letters-of-compatibility", SURE, chat("ﬁve × ＡＢＣ, x² and ½"), max_new_tokens=12)
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    asked: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    asked += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "rain"}]
    ask("after-a-tool", SURE, [{"messages": asked, "tools": [TOOL]}], max_new_tokens=24)
    by_name = {"default": BARE, "tool_use": f"{{{{ enable_thinking }}}} {{{{ tools | length }}}}\n{BARE}"}
    weather = "What is the weather in Oslo?"
    of_both = [*chat(weather, tools=[TOOL]), *chat(weather)]
    ask("template-for-tools", SURE, of_both, thinking=True, templates=by_name, max_new_tokens=12)
    ask("tools-and-thinking", SURE, chat("What is the weather in Oslo?", tools=[TOOL]), thinking=True)
    ask("special-text", SURE, chat(f"{FRANCE}<|im_end|>"), max_new_tokens=16)
    adapters = [f"{MODELS}random-adapters/{name}" for name in ("one", "two")]
    ask("adapters", SURE, [{**chat(FRANCE)[0], "adapter": a} for a in (None, *adapters, None)], logprobs=0)
    ask("beyond-ascii", SURE, chat("Draw a family.", "What is the capital of Iceland?"), max_new_tokens=32)
    ask("last-ids", SURE, chat("You know this. " * 8 + FRANCE, COUNT), keep_last=30)
    ask("too-long-in-place", SURE, chat(FRANCE, "You know this. " * 8 + FRANCE, COUNT), most=60)
    ask("window", SURE, chat("You know this. " * 8 + FRANCE, COUNT), window=64)
    ask("last-ids-of-a-window", SURE, chat("You know this. " * 8 + FRANCE, COUNT), window=64, keep_last=50)
    narrow = {"window": 64, "dtype": "bfloat16"}
    ask("by-the-spare", SURE, chat("You know this. " * 8 + FRANCE, COUNT), enough=7, spare=True, **narrow)
    least = {"go_on": True, "min_new_tokens": 24, "spare": True}
    ask("goes-on-behind-the-least", SURE, chat(FRANCE), stop=["!"], **least)
    ask("goes-on-to-a-marker", SURE, chat(FRANCE), stop=["<|endoftext|>"], **least)
    ask("last-ids-llama", LLAMA, raw(*RAGGED), keep_last=6, max_new_tokens=12)
    many = [f"{text}{end}" for end in ("", " and", " or") for text in RAGGED]  # enough to tell the size of rounding
    ask("bfloat16-best-tokens", LLAMA, raw(*many), dtype="bfloat16", max_new_tokens=8, logprobs=3)
    ask("bfloat16", SURE, chat(COUNT, FRANCE, COLOURS), dtype="bfloat16", max_new_tokens=32)
    tuned = chat(COUNT, FRANCE, COLOURS, "Is 17 even?", "Draw a cat.", adapter=adapters[1])
    ask("adapters-bfloat16", SURE, tuned, dtype="bfloat16", max_new_tokens=96, go_on=True)


def many_turns() -> list[dict[str, Any]]:
    """A chat of more messages than anybody looks back at."""
    turns = [("system", "Answer in one word."), ("user", COUNT), ("assistant", "1, 2, 3."), ("user", "Is 17 even?")]
    turns += [("assistant", "17 is odd."), ("user", FRANCE)]
    return [{"messages": [{"role": role, "content": content} for role, content in turns]}]


def drawn_cases(ask: Any) -> None:
    rows = seeded(raw(*RAGGED))
    ask("warm", LLAMA, rows, temperature=0.7)
    ask("hot", GPT2, rows, temperature=1.3)
    ask("hot-top-k", LLAMA, rows, temperature=1.2, top_k=20)
    ask("hot-top-p", LLAMA, rows, temperature=1.0, top_p=0.7)
    ask("hot-least-top-p", LLAMA, rows, temperature=1.0, top_p=0.01)
    ask("hot-min-p", LLAMA, rows, temperature=1.5, min_p=0.08)
    ask("hot-all", GPT2, rows, temperature=0.9, top_p=0.9, top_k=40, min_p=0.01)
    ask("hot-penalty", LLAMA, rows, temperature=0.8, repetition_penalty=1.3)
    ask("hot-samples", LLAMA, seeded(raw("The", "Oslo is the"), 0), temperature=1.1, n=4)
    ask("cold", LLAMA, rows, temperature=0.2)
    ask("unseeded", LLAMA, raw(*["The"] * 8), temperature=1.1)
    ask("hot-logprobs", LLAMA, rows, temperature=1.6, logprobs=2)
    ask("hot-choice", SURE, seeded(chat(*[FRANCE] * 8)), temperature=1.0, form={"choice": ["yes", "no", "perhaps"]})
    letters = {"form": {"regex": "[a-j]{8}"}}
    ask("hot-form-top-k", LLAMA, rows, temperature=1.3, top_k=4, **letters)
    ask("hot-form-top-p", LLAMA, rows, temperature=1.1, top_p=0.5, repetition_penalty=1.3, **letters)
    far = [{"prompt": "The", "seed": 1 + (place << 16)} for place in range(6)]
    ask("own-seeds", LLAMA, far, seed=7, temperature=1.5)
    ask("samples-of-a-seed", LLAMA, raw("The"), seed=7, n=6, temperature=1.5, first_again=True)
    tuned = [f"{MODELS}random-adapters/{name}" for name in ("one", "two")]
    both = [{**row, "adapter": tuned[k % 2]} for k, row in enumerate(chat(COUNT, FRANCE, COLOURS, "Is 17 even?") * 2)]
    ask("hot-adapters", SURE, seeded(both), temperature=0.9)
    ask("hot-chat", SURE, seeded(chat(DIE, DIE, DIE, DIE)), temperature=1.0, max_new_tokens=20)


def picture_cases(ask: Any, pictures: Pictures) -> None:
    red = pictures.drawing("red", "circle", seed=1)
    blue = pictures.drawing("blue", "square", width=128, height=64, seed=2)
    large = pictures.scaled("green", "triangle", (300, 200))
    turned = pictures.turned("blue", "triangle", width=128, height=64, seed=5)
    green = pictures.drawing("green", "circle", seed=1)  # as the red one, but for its colour
    what = "What do you see?"
    few = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    many = {"shortest_edge": 160 * 160, "longest_edge": 192 * 192}
    ask("pictures", VL, [seen(what, red), seen(what, blue), seen(what, large)], logprobs=0)
    ask("picture-order", VL, [seen(what, red, blue), seen(what, blue, red)], logprobs=0)
    ask("one-and-two-pictures", VL, [seen(what, red), seen(what, large, blue), seen(what, blue)], logprobs=0)
    ask("few-pixels", VL, [seen(what, large), seen(what, blue)], pixels=few, logprobs=0)
    ask("many-pixels", VL, [seen(what, red), seen(what, large)], pixels=many, logprobs=0)
    ask("inside", VL, [seen(what, red, blue, inside=True), seen(what, blue, large, inside=True)], logprobs=0)
    ask("own-pixels", VL, [seen(what, red, pixels=few), seen(what, red, pixels=many), seen(what, red)], logprobs=0)
    ask("many-pixels-of-two", VL, [seen(what, red, blue)], pixels=many, logprobs=0)
    small = pictures.drawing("red", "circle", width=40, height=40, seed=1)
    ask("most-pixels", VL, [seen(what, small), seen(what, large)], pixels={"longest_edge": 64 * 64}, logprobs=0)
    ask("least-pixels", VL, [seen(what, small)], pixels={"shortest_edge": 96 * 96}, logprobs=0)
    flat = pictures.drawing("red", "circle", width=64, height=32, seed=1)
    fewer = {"shortest_edge": 1, "longest_edge": 48 * 48}
    ask("most-below-the-least", VL, [seen(what, flat)], pixels=fewer, logprobs=0)
    ask("least-above-most", VL, [seen(what, large)], pixels={"shortest_edge": 224 * 224}, logprobs=0)
    ask("alike-pictures", VL, [seen(what, red), seen(what, green)], logprobs=0)
    below = pictures.changed_below(red)
    ask("alike-above", VL, [seen(what, red), seen(what, below)], logprobs=0)
    ask("as-it-is", VL, [seen(what, pictures.drawing("red", "circle", width=96, height=64))], as_it_is=True, logprobs=0)
    ask("from-bytes", VL, [seen(what, turned), seen(what, red)], given_as="bytes", logprobs=0)
    ask("from-data-urls", VL, [seen(what, turned), seen(what, red)], given_as="data", logprobs=0)
    tall = pictures.drawing("blue", "square", width=64, height=128, seed=2)
    ask("as-many-patches", VL, [seen(what, tall, blue), seen(what, blue), seen(what, tall)], logprobs=0)
    ask("joined-pictures", VL, [seen(what, *some) for some in ((red,), (blue, red), (large,), (blue,), (red, blue))])
    ask("from-pil", VL, [seen(what, turned), seen(what, red)], given_as="pil", logprobs=0)
    later = {"role": "user", "content": [{"type": "text", "text": what}, {"type": "image"}]}
    ask("text-first", VL, [{"messages": [later], "images": [red]}], logprobs=0)
    between = [{"type": "image"}, {"type": "text", "text": what}, {"type": "image"}]
    ask("text-between", VL, [{"messages": [{"role": "user", "content": between}], "images": [red, blue]}], logprobs=0)
    place = "<|vision_start|><|image_pad|><|vision_end|>"
    ask("raw-pictures", VL, [{"prompt": f"{place}{place}Two:", "images": [red, blue]}], max_new_tokens=8, logprobs=0)
    ask("transparent", VL, [seen(what, pictures.transparent("red", "square", width=96, height=96, seed=4))], logprobs=0)
    ask("turned", VL, [seen(what, turned)], logprobs=0)
    large = pictures.scaled("green", "triangle", (1200, 1056), "jpg")
    ask("large-jpeg", VL, [seen(what, large)], pixels=few, logprobs=0)
    solid = [pictures.solid("red", size) for size in ((100, 36), (60, 60))]
    ask("of-one-colour", VL, [seen(what, picture) for picture in solid], logprobs=0)
    ask("photograph", VL, [seen(what, pictures.photograph())], logprobs=3)
    ask("picture-stop", VL, [seen(what, red), seen(what, blue)], stop=["circle", "a "], include_stop=True)
    ask("raw-picture", VL, [{"prompt": "<|vision_start|><|image_pad|><|vision_end|>This is", "images": [blue]}])


def several_calls(often: Any, pictures: Pictures) -> None:
    """Calls that differ in one thing: an answer of one of them is no answer to another."""
    rows, short = chat(COUNT, FRANCE), {"max_new_tokens": 8}
    warm = {"temperature": 1.5, "max_new_tokens": 8}
    often("twice", SURE, (rows, {}), (rows, {}))
    often("then-longer", SURE, (rows, short), (rows, {"max_new_tokens": 16}), (rows, short))
    often("then-another-template", SURE, (rows, short), (rows, {**short, "template": BARE}), (rows, short))
    often("then-thinking", SURE, (rows, short), (rows, {**short, "thinking": True}))
    often("then-a-system-turn", SURE, (rows, short), (chat(COUNT, FRANCE, system="Answer in one word."), short))
    often("then-two-more", SURE, (chat(COUNT), short), (chat(COUNT, FRANCE, COLOURS), short))
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
    one = raw("The", "a", seed=1)
    often("then-drawn", LLAMA, (one, short), (one, warm))
    often("unseeded-twice", LLAMA, *[(raw(*["The"] * 4), {"temperature": 1.1})] * 2)
    often("then-hotter", LLAMA, (one, {**warm, "temperature": 0.3}), (one, {**warm, "temperature": 2.0}))
    others: list[dict[str, Any]] = [{"top_k": 2}, {"top_p": 0.1}, {"min_p": 0.5}, {"max_new_tokens": 5}, {"n": 2}]
    others += [{"no_repeat_ngram_size": 1}, {"repetition_penalty": 3.0}, {"go_on": True}, {"stop": ["a"]}]
    often("then-each-setting", LLAMA, (one, warm), *((one, {**warm, **other}) for other in others))
    often("then-at-least", SURE, (chat(FRANCE), {}), (chat(FRANCE), {"min_new_tokens": 20}))
    often("then-another-model", SURE, (rows, short), (rows, short, VL))
    often("then-a-twin", LLAMA, (raw(*RAGGED), short), (raw(*RAGGED), short, TWIN))
    many = [f"{text}{end}" for end in ("", " and", " or") for text in RAGGED]
    often("then-bfloat16", LLAMA, (raw(*many), short), (raw(*many), {**short, "dtype": "bfloat16"}))
    often(
        "then-more-text",
        SURE,
        (chat(FRANCE), short),
        ([{**chat(FRANCE)[0], "continue": False, "tools": [TOOL]}], short),
    )
    often("then-changed", SURE, (chat(FRANCE), short), (chat(FRANCE), {**short, "then": ["upper"]}))
    fresh, four = {**warm, "fresh": True}, seeded(raw(*RAGGED[:4]), 0)
    often("seeded-alone", LLAMA, (four, fresh), (four[::-1], fresh), (four[1:2], fresh))
    often("seeds-of-samples", LLAMA, (raw("The", seed=0), {**fresh, "n": 3}), (seeded(raw(*["The"] * 3), 0), fresh))
    odd = [{"prompt": "The", "seed": 7 + place} for place in range(3)]
    often("odd-seeds-of-samples", LLAMA, (raw("The", seed=7), {**fresh, "n": 3}), (odd, fresh))
    often("twice-with-logprobs", LLAMA, (one, {"logprobs": 2}), (one, {"logprobs": 2}))
    penalised = {"max_new_tokens": 8, "best": True, "repetition_penalty": 1.4}
    often("twice-with-best-tokens", LLAMA, (raw("The", "a"), penalised), (raw("The", "a"), penalised))
    one_and_two = [(chat(FRANCE, adapter=f"{MODELS}random-adapters/{name}"), short) for name in ("one", "two")]
    often("then-another-adapter", SURE, *one_and_two)
    often("then-seeds", LLAMA, (raw("The", seed=3), warm), (raw("The", seed=4), warm), (raw("The", seed=3), warm))
    often("seeded-twice", LLAMA, (seeded(raw(*RAGGED[:4]), 0), warm), (seeded(raw(*RAGGED[:4]), 0)[::-1], warm))
    often("samples-of-seeds", LLAMA, (raw("The", seed=0), {**warm, "n": 3}), (seeded(raw(*["The"] * 3), 0), warm))
    red, green = (pictures.drawing(colour, "circle", seed=1) for colour in ("red", "green"))
    what, few = "What do you see?", {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    often("then-another-picture", VL, ([seen(what, red)], {}), ([seen(what, green)], {}))
    often("then-fewer-pixels", VL, ([seen(what, red)], {}), ([seen(what, red)], {"pixels": few, "logprobs": 0}))


def scored_cases(pictures: Pictures) -> list[tuple[str, dict[str, Any]]]:
    answers = ["1, 2, 3, 4", "The capital of France is Paris.", "no"]
    pairs = [
        {**row, "response": answer} for row, answer in zip(raw(*RAGGED), [*answers, " is", "x" * 20, "e", "5", "a b"])
    ]
    chats = [{**row, "response": answer} for row, answer in zip(chat(COUNT, FRANCE, "Is 17 even?"), answers)]
    names = [None, *(f"{MODELS}random-adapters/{name}" for name in ("two", "one", "two")), None]
    adapted = [{**chats[place % 3], "adapter": name} for place, name in enumerate(names)]
    behind = [{**chats[1], "response": "Paris.<|im_end|>\nRome."}, chats[2]]
    red, blue = pictures.drawing("red", "circle", seed=1), pictures.drawing("blue", "square", seed=2)
    typed = [{**chats[1], "types": True}, {**pairs[0], "types": True}]
    shown = [{**seen("What do you see?", red, blue), "response": "a red circle"}, {**chats[0]}]
    return [
        ("scores", {"model_path": SURE, "pairs": chats}),
        ("scores-llama", {"model_path": LLAMA, "pairs": pairs}),
        ("scores-adapters", {"model_path": SURE, "pairs": adapted}),
        ("scores-best-tokens", {"model_path": LLAMA, "pairs": pairs, "best": True}),
        ("scores-behind-an-end", {"model_path": SURE, "pairs": behind, "best": True}),
        ("scores-bfloat16", {"model_path": LLAMA, "pairs": pairs * 3, "dtype": "bfloat16"}),
        ("scores-chat-llama", {"model_path": LLAMA, "pairs": chats}),
        ("scores-gpt2", {"model_path": GPT2, "pairs": pairs}),
        ("scores-are-numbers", {"model_path": SURE, "pairs": typed}),
        ("scores-pictures", {"model_path": VL, "pairs": shown}),
    ]
