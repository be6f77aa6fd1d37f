"""lighteval: documents as its pipeline asks its transformers model.

One sample of a document: with more, lighteval's criterion looks at the first rows of the batch only
and cuts the others where those have ended, which no move can give.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import REAL, TINY, Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM, contexts


@functools.cache
def loaded(model_path: str, dtype: str, parameters: str, chat: bool, system: str | None) -> Any:
    """parameters: GenerationParameters as JSON. Answers are kept in a folder of this process."""
    from lighteval.models.model_input import GenerationParameters
    from lighteval.models.transformers import transformers_model

    config = transformers_model.TransformersModelConfig(
        model_name=model_path,
        dtype=dtype,
        batch_size=4,
        override_chat_template=chat,
        system_prompt=system,
        cache_dir=tempfile.mkdtemp(prefix="lighteval-"),
        generation_parameters=GenerationParameters(**json.loads(parameters)),
    )
    return transformers_model.TransformersModel(config)


def document(fields: dict[str, Any], call: str) -> Any:
    """A document whose id names it and its call: lighteval answers equal ids from its cache."""
    from lighteval.tasks.requests import Doc

    name = hashlib.sha256(f"{call} {fields}".encode()).hexdigest()
    shots = [Doc(**shot, gold_index=0) for shot in fields.get("fewshot_samples", [])]
    given = {**fields, "fewshot_samples": shots}
    return Doc(**given, choices=[], gold_index=0, id=name, task_name="task|0")


def old_greedy_until(
    model_path: str,
    dtype: str,
    docs: list[dict[str, Any]],
    parameters: dict[str, Any],
    chat: bool = True,
    system: str | None = None,
    torch_seed: int | None = None,
) -> list[list[str]]:
    """The samples of each document. docs: fields of Doc. parameters: of GenerationParameters."""
    import torch

    model = loaded(model_path, dtype, json.dumps(parameters), chat, system)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    call = f"{parameters} {chat} {system} {torch_seed}"
    responses = model.greedy_until([document(fields, call) for fields in docs])
    return [response.text for response in responses]


def greedy_until(
    model_path: str,
    dtype: str,
    docs: list[dict[str, Any]],
    parameters: dict[str, Any],
    chat: bool = True,
    system: str | None = None,
    torch_seed: int | None = None,
) -> list[list[str]]:
    """Documents of one call have equal budgets and stops, as lighteval assumes, too. A temperature
    alone does not make it sample: that takes the checkpoint's do_sample."""
    model = engine(model_path, dtype)
    said = {"max_new_tokens": docs[0]["generation_size"], **parameters}
    if not parameters.get("temperature"):
        said["do_sample"] = False
    options = {**as_generate(model_path, **said), "seed": torch_seed}
    options["stop"] = {
        "strings": [] if chat else docs[0].get("stop_sequences", []),
        "token_ids": [model.tokenizer.eos_token_id],
        "ignore_eos": True,
    }
    requests = [request_of(doc, chat, system) for doc in docs]
    results = model.generate_text_batch(requests, options)
    return [[result.text] for result in results]


def request_of(doc: dict[str, Any], chat: bool, system: str | None) -> dict[str, Any]:
    if not chat:
        return {"prompt": plain_text(doc)}
    return {"messages": turns_of(doc, system), "chat": {"enable_thinking": True}}


def plain_text(doc: dict[str, Any]) -> str:
    """Instruction, examples and question, with an empty line between them."""
    instruction = doc.get("instruction") or ""
    parts = [f"{shot['query']} {shot['choices'][0]}" for shot in doc.get("fewshot_samples", [])]
    parts.append(doc["query"])
    if instruction:
        parts.insert(0, instruction)
    return "\n\n".join(parts)


def turns_of(doc: dict[str, Any], system: str | None) -> list[dict[str, str]]:
    """The instruction stands before the first question, an example's or the document's own."""
    turns = [] if system is None else [{"role": "system", "content": system}]
    instruction = doc.get("instruction") or ""
    for shot in doc.get("fewshot_samples", []):
        turns.append({"role": "user", "content": instruction + shot["query"]})
        turns.append({"role": "assistant", "content": shot["choices"][0]})
        instruction = ""
    turns.append({"role": "user", "content": instruction + doc["query"]})
    return turns


def documents(questions: list[str], **fields: Any) -> list[dict[str, Any]]:
    return [{"query": question, "generation_size": 32, **fields} for question in questions]


def cases(dtype: str) -> list[Case]:
    questions, texts = list(QUESTIONS), contexts(dtype)
    shots = [
        {"query": "What is the capital of Norway?", "choices": ["Oslo."]},
        {"query": "What is 12 + 30?", "choices": ["42."]},
    ]
    word = {"instruction": "Answer in one word. "}
    few = documents(questions[:2], fewshot_samples=shots, **word)
    few += documents(questions[2:], fewshot_samples=shots[:1], **word)
    stops = documents(texts, stop_sequences=[", 7", " is", "apple", ". "])
    plain = {"docs": documents(questions), "parameters": {}}
    warm = {"parameters": {"temperature": 0.7}}
    penalty = {"parameters": {"repetition_penalty": 1.2}}
    one = documents(questions[1:2])
    return [
        Case("chats", "greedy_until", plain),
        Case("few-shot", "greedy_until", {"docs": few, "parameters": {}}),
        Case("system", "greedy_until", {**plain, "system": SYSTEM}),
        Case("plain", "greedy_until", {"docs": stops, "parameters": {}, "chat": False}),
        Case("penalty", "greedy_until", {**plain, **penalty}),
        Case("samples", "greedy_until", {**plain, **warm}),
        Case("seeded", "greedy_until", {"docs": one, **warm, "torch_seed": 9}),
    ]


SAID = "as_generate(model_path, **said)"
TURNS = '{"messages": turns_of(doc, system), "chat"'
STOPS = '[] if chat else docs[0].get("stop_sequences", [])'
TEXTS = "[[result.text] for result in results]"
SHORTEST = 'sorted(docs, key=lambda doc: -len(doc["query"]))'
MISTAKES = (
    Mistake("stops-lost", "plain", "stop", STOPS, "[]"),
    Mistake("all-ends", "chats", "stop", '        "ignore_eos": True,\n', dtypes=TINY),
    Mistake("budget-of-the-engine", "chats", "stop", SAID, f'{SAID}, "max_new_tokens": 256'),
    Mistake(
        "instruction-lost",
        "few-shot",
        "prompt",
        'doc.get("instruction") or ""\n    for shot',
        '""\n    for shot',
    ),
    Mistake(
        "examples-in-one-turn",
        "few-shot",
        "prompt",
        TURNS,
        '{"messages": [{"role": "user", "content": plain_text(doc)}], "chat"',
    ),
    Mistake("system-lost", "system", "prompt", TURNS, TURNS.replace("system", "None")),
    Mistake("penalty-lost", "penalty", "sampling", SAID, f'{SAID}, "repetition_penalty": 1.0'),
    Mistake(
        "greedy-samples", "samples", "sampling", SAID, f'{SAID}, "temperature": 0.0', dtypes=TINY
    ),
    Mistake(
        "sampled-after-all",
        "samples",
        "sampling",
        "**parameters}\n",
        '**parameters, "do_sample": True}\n',
        dtypes=REAL,
    ),
    Mistake("sorted-answers", "chats", "order", "for doc in docs]", f"for doc in {SHORTEST}]"),
    Mistake("raw-text", "system", "decode", TEXTS, TEXTS.replace("text", "raw_text")),
    Mistake(
        "stripped",
        "chats",
        "value calls decode",
        TEXTS,
        TEXTS.replace("result.text", 'result.text.strip() + "\\n"'),
        dtypes=REAL,
    ),
)
