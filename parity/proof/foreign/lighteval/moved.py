"""lighteval's generation on the engine."""

from __future__ import annotations

from typing import Any

from parity.proof.foreign.engines import engine, sampling_defaults, saved_sampling


def greedy_until(
    model_path: str,
    dtype: str,
    docs: list[dict[str, Any]],
    parameters: dict[str, Any],
    chat: bool = True,
    system: str | None = None,
    torch_seed: int | None = None,
) -> list[list[str]]:
    """Documents of one call have equal budgets and stops, as lighteval assumes, too."""
    model = engine(model_path, dtype)
    options = options_of(model_path, parameters, docs[0])
    options["seed"] = torch_seed
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


def options_of(model_path: str, parameters: dict[str, Any], doc: dict[str, Any]) -> dict[str, Any]:
    """A temperature alone does not make lighteval sample: that takes the checkpoint's do_sample."""
    defaults = sampling_defaults(model_path)
    penalty = parameters.get("repetition_penalty", defaults.repetition_penalty)
    options: dict[str, Any] = {
        "max_new_tokens": doc["generation_size"],
        "repetition_penalty": penalty,
    }
    if parameters.get("temperature") and saved_sampling(model_path).do_sample:
        options["temperature"] = parameters["temperature"]
        options["top_k"] = parameters.get("top_k", defaults.top_k)
        options["top_p"] = parameters.get("top_p", defaults.top_p)
    return options
