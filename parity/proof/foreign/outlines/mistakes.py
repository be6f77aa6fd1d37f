"""Mistakes that somebody who moves outlines' calls could make: ten for each dtype."""

from __future__ import annotations

from parity.proof.foreign.material import Mistake

STRUCTURE = ("sampling",)  # README has no cause for a structure: it is a logits processor there
RETURNED = "    return [result.text for result in results]"
TINY = ("float32",)
REAL = ("bfloat16",)

MISTAKES = (
    Mistake(
        "structure-lost",
        "Drops the output type and trusts the prompt.",
        "    structured = at_once(structure_of(form))\n    requests",
        "    structured = None\n    requests",
        STRUCTURE,
        ("labels",),
    ),
    Mistake(
        "looser-regex",
        "Writes the regular expression anew, and allows any number of digits.",
        '        return {"regex": form["regex"]}\n    from',
        '        return {"regex": form["regex"].replace("{2}", "{2,}")}\n    from',
        STRUCTURE,
        ("year",),
    ),
    Mistake(
        "own-json",
        "Uses the engine's compact JSON, where outlines' expression allows blanks.",
        '    return {"regex": build_regex_from_schema(json.dumps(form["json"]))}',
        '    return {"json": form["json"]}',
        STRUCTURE,
        ("people",),
    ),
    Mistake(
        "no-chat",
        "Sends a bare string as it is, which outlines makes a chat of.",
        '        {"messages": chat, "chat": {"enable_thinking": True}, "structured": structured}\n',
        '        {"prompt": chat[-1]["content"], "structured": structured}\n',
        ("prompt",),
        ("text",),
    ),
    Mistake(
        "system-lost",
        "Sends the last turn only.",
        '{"messages": chat, "chat": {"enable_thinking": True}, "structured": structured}',
        '{"messages": chat[-1:], "chat": {"enable_thinking": True}, "structured": structured}',
        ("prompt",),
        ("texts",),
    ),
    Mistake(
        "thinking-off",
        "Leaves the thinking switch at the engine's default, which is off.",
        '"chat": {"enable_thinking": True}, "structured": structured}',
        '"structured": structured}',
        ("prompt",),
        ("text",),
        dtypes=TINY,
    ),
    Mistake(
        "engine-budget",
        "Leaves the budget to the engine, whose default is another one.",
        '"max_new_tokens": settings.get("max_new_tokens", TOKENS_OF_TRANSFORMERS),',
        '"max_new_tokens": settings.get("max_new_tokens", 256),',
        ("stop",),
        ("unsaid",),
        dtypes=REAL,
    ),
    Mistake(
        "penalty-lost",
        "Does not say the repetition penalty that stands in the checkpoint.",
        '"repetition_penalty": defaults.repetition_penalty,',
        '"repetition_penalty": 1.0,',
        ("sampling",),
        ("texts",),
        dtypes=TINY,
    ),
    Mistake(
        "greedy-by-default",
        "Takes a call without settings to be greedy; the checkpoint says to sample.",
        'settings.get("do_sample", saved.do_sample)',
        'settings.get("do_sample", False)',
        ("sampling",),
        ("unsaid",),
        dtypes=TINY,
    ),
    Mistake(
        "top-k-lost",
        "Does not say the top_k of 50 that `generate` has by itself.",
        '        options["top_k"] = settings.get("top_k", defaults.top_k)\n',
        "",
        ("sampling",),
        ("sampled",),
        dtypes=REAL,
    ),
    Mistake(
        "seed-given",
        "Gives a seed where the old code had none.",
        'options["seed"] = seed\n',
        'options["seed"] = seed or 42\n',
        ("sampling",),
        ("sampled",),
        dtypes=REAL,
    ),
    Mistake(
        "raw-text",
        "Returns the text with its special tokens.",
        RETURNED,
        "    return [result.raw_text for result in results]",
        ("decode",),
        ("texts",),
    ),
    Mistake(
        "first-line",
        "Keeps the first line of an answer, as another call site did.",
        RETURNED,
        '    return [result.text.split("\\n")[0] for result in results]',
        ("value", "decode", "calls"),
        ("texts",),
    ),
)
