"""Mistakes that somebody who moves lighteval's generation could make: ten for each dtype."""

from __future__ import annotations

from parity.proof.foreign.material import Mistake

TINY = ("float32",)
REAL = ("bfloat16",)
RETURNED = "[[result.text] for result in results]"

MISTAKES = (
    Mistake(
        "stops-lost",
        "Stops at the end of text only, as for chats.",
        '"strings": [] if chat else docs[0].get("stop_sequences", []),',
        '"strings": [],',
        ("stop",),
        ("plain",),
    ),
    Mistake(
        "all-ends",
        "Lets all end-of-text ids of the checkpoint end a row; lighteval names one.",
        '        "ignore_eos": True,\n',
        "",
        ("stop",),
        ("chats",),
        dtypes=TINY,
    ),
    Mistake(
        "budget-of-the-engine",
        "Does not say the documents' generation_size.",
        '        "max_new_tokens": doc["generation_size"],\n',
        "",
        ("stop",),
        ("chats",),
    ),
    Mistake(
        "instruction-lost",
        "Forgets the documents' instruction.",
        '    instruction = doc.get("instruction") or ""\n    for shot',
        '    instruction = ""\n    for shot',
        ("prompt",),
        ("few-shot",),
    ),
    Mistake(
        "examples-in-one-turn",
        "Puts examples and question into one user turn.",
        '        return {"prompt": plain_text(doc)}\n    return {"messages": turns_of(doc, system)',
        '        return {"prompt": plain_text(doc)}\n'
        '    one_turn = [{"role": "user", "content": plain_text(doc)}]\n'
        '    return {"messages": one_turn',
        ("prompt",),
        ("few-shot",),
    ),
    Mistake(
        "system-lost",
        "Forgets the system prompt of the model's configuration.",
        'turns = [] if system is None else [{"role": "system", "content": system}]',
        "turns: list[dict[str, str]] = []",
        ("prompt",),
        ("system",),
    ),
    Mistake(
        "penalty-lost",
        "Does not say the repetition penalty that the run asks for.",
        'parameters.get("repetition_penalty", defaults.repetition_penalty)',
        "defaults.repetition_penalty",
        ("sampling",),
        ("penalty",),
    ),
    Mistake(
        "greedy-samples",
        "Takes the name greedy_until at its word.",
        'options["temperature"] = parameters["temperature"]',
        'options["temperature"] = 0.0',
        ("sampling",),
        ("samples",),
        dtypes=TINY,
    ),
    Mistake(
        "sampled-after-all",
        "Samples where a temperature is given; lighteval asks the checkpoint.",
        'if parameters.get("temperature") and saved_sampling(model_path).do_sample:',
        'if parameters.get("temperature"):',
        ("sampling",),
        ("samples",),
        dtypes=REAL,
    ),
    Mistake(
        "sorted-answers",
        "Sorts the documents by length and does not put the answers back.",
        "    requests = [request_of(doc, chat, system) for doc in docs]\n",
        '    longest_first = sorted(docs, key=lambda doc: -len(doc["query"]))\n'
        "    requests = [request_of(doc, chat, system) for doc in longest_first]\n",
        ("order",),
        ("chats",),
    ),
    Mistake(
        "raw-text",
        "Returns the text with its special tokens.",
        RETURNED,
        RETURNED.replace("result.text", "result.raw_text"),
        ("decode",),
        ("system",),
    ),
    Mistake(
        "stripped",
        "Strips the answers and ends them with a line break, as a log wants them.",
        RETURNED,
        RETURNED.replace("result.text", 'result.text.strip() + "\\n"'),
        ("value", "calls", "decode"),
        ("chats",),
        dtypes=REAL,
    ),
)
