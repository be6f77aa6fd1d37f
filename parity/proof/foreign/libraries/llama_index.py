"""llama-index-llms-huggingface: completions, chats and streams of HuggingFaceLLM."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM

WRAPPER = "Question: {query_str}\nAnswer:"


@functools.cache
def loaded(model_path: str, dtype: str, stopping_text: str | None) -> Any:
    import torch
    import transformers
    from llama_index.llms.huggingface import HuggingFaceLLM

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    stopping_ids = None if stopping_text is None else tokenizer(stopping_text).input_ids
    return HuggingFaceLLM(
        model_name=model_path,
        tokenizer_name=model_path,
        device_map="cpu",
        model_kwargs={"dtype": getattr(torch, dtype)},
        max_new_tokens=40,
        generate_kwargs={"do_sample": False},
        system_prompt=SYSTEM,
        query_wrapper_prompt=WRAPPER,
        stopping_ids=stopping_ids,
    )


def old_complete(
    model_path: str, dtype: str, question: str, stopping_text: str | None = None
) -> str:
    answer: str = loaded(model_path, dtype, stopping_text).complete(question).text
    return answer


def complete(model_path: str, dtype: str, question: str, stopping_text: str | None = None) -> str:
    """Without the system prompt, which `complete` leaves out. A stopping id stays in the text."""
    return answer(model_path, dtype, WRAPPER.format(query_str=question), stopping_text)


def answer(model_path: str, dtype: str, prompt: str, stopping_text: str | None = None) -> str:
    model = engine(model_path, dtype)
    options = as_generate(model_path, max_new_tokens=40, do_sample=False)
    if stopping_text is not None:
        options["stop"] = {"token_ids": model.tokenizer(stopping_text).input_ids}
    [result] = model.generate_text_batch([{"prompt": prompt}], options)
    text: str = model.tokenizer.decode(result.token_ids, skip_special_tokens=True)
    return text


def old_stream(model_path: str, dtype: str, question: str) -> str:
    chunks = loaded(model_path, dtype, None).stream_complete(question)
    return "".join(chunk.delta for chunk in chunks)


def stream(model_path: str, dtype: str, question: str) -> str:
    return answer(model_path, dtype, f"{SYSTEM} {WRAPPER.format(query_str=question)}")


def old_chat(model_path: str, dtype: str, question: str) -> str:
    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage(role="user", content=question)]
    answer: str = loaded(model_path, dtype, None).chat(messages).message.content
    return answer


def chat(model_path: str, dtype: str, question: str) -> str:
    """Neither the system prompt nor the wrapper is put around a chat."""
    messages = [{"role": "user", "content": question}]
    request = {"messages": messages, "chat": {"enable_thinking": True}}
    options = as_generate(model_path, max_new_tokens=40, do_sample=False)
    [result] = engine(model_path, dtype).generate_text_batch([request], options)
    return result.text


def cases(dtype: str) -> list[Case]:
    ends = {"float32": "\n", "bfloat16": "4"}  # which its answer reaches
    stop = {"question": QUESTIONS[2], "stopping_text": ends[dtype]}
    return [
        *(
            Case(f"{function}-{n}", function, {"question": question})
            for function in ("complete", "stream", "chat")
            for n, question in enumerate(QUESTIONS)
        ),
        Case("stopped", "complete", stop),
    ]


MISTAKES = (
    Mistake("system-lost", "stream-0", "prompt.text", "{SYSTEM} {WRAPPER", "{WRAPPER"),
    Mistake(
        "system-in-chat",
        "chat-0",
        "prompt.messages",
        '[{"role": "user", "content": question}]',
        '[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]',
    ),
    Mistake(
        "stopping-ids-lost",
        "stopped",
        "stop.criteria stop.end_ids",
        "    if stopping_text is not None:\n"
        '        options["stop"] = {"token_ids": model.tokenizer(stopping_text).input_ids}\n',
    ),
    Mistake(
        "stop-not-in-text",
        "stopped",
        "value stop decode",
        "model.tokenizer.decode(result.token_ids, skip_special_tokens=True)",
        "result.text",
    ),
)
