"""smolagents: the transformers model that its agents ask. Its VLLMModel needs an older vLLM."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import TINY, Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM


@functools.cache
def loaded(model_path: str, dtype: str) -> Any:
    import smolagents

    return smolagents.TransformersModel(
        model_path, device_map="cpu", torch_dtype=dtype, max_new_tokens=48
    )


def old_ask(
    model_path: str, dtype: str, messages: list[Any], stops: list[str], settings: dict[str, Any]
) -> str:
    model = loaded(model_path, dtype)
    answer: str = model.generate(messages, stop_sequences=stops, **settings).content
    return answer


def ask(
    model_path: str, dtype: str, messages: list[Any], stops: list[str], settings: dict[str, Any]
) -> str:
    options = as_generate(model_path, **{"max_new_tokens": 48, **settings})
    options["stop"] = stops
    model = engine(model_path, dtype)
    [result] = model.generate_text_batch([request_of(model.tokenizer, messages)], options)
    return result.text


def request_of(tokenizer: Any, messages: list[Any]) -> dict[str, Any]:
    """smolagents joins turns of one role. Its roles are an enum, which some templates print as
    `MessageRole.USER`, so the prompt is rendered as it renders it."""
    from smolagents.models import get_clean_message_list, tool_role_conversions

    turns = get_clean_message_list(messages, tool_role_conversions, flatten_messages_as_text=True)
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return {"prompt": text}


def turns(*texts: str) -> list[dict[str, Any]]:
    """A system turn, and user turns."""
    roles = ["system", *["user"] * (len(texts) - 1)]
    return [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in zip(roles, texts, strict=True)
    ]


def cases(dtype: str) -> list[Case]:
    greedy = {"do_sample": False}
    asked = [turns(SYSTEM, question) for question in QUESTIONS]
    observed = turns(SYSTEM, "Observation: nothing yet.", QUESTIONS[1])
    return [
        *(
            Case(f"greedy-{n}", "ask", {"messages": each, "stops": [], "settings": greedy})
            for n, each in enumerate(asked)
        ),
        Case("stops", "ask", {"messages": asked[1], "stops": ["5", " age"], "settings": greedy}),
        Case("joined", "ask", {"messages": observed, "stops": [], "settings": greedy}),
        Case("unsaid", "ask", {"messages": asked[0], "stops": [], "settings": {}}),
    ]


MISTAKES = (
    Mistake("stops-lost", "stops", "stop.strings", '    options["stop"] = stops\n'),
    Mistake(
        "last-turn-only",
        "joined",
        "prompt.messages",
        "get_clean_message_list(messages,",
        "get_clean_message_list(messages[-1:],",
    ),
    Mistake(
        "roles-as-words",
        "greedy-0",
        "prompt.messages prompt.text",
        '{"prompt": text}',
        '{"messages": turns, "chat": {"enable_thinking": True}}',
        dtypes=TINY,
    ),
)
