"""langchain-huggingface: its pipeline as an LLM, and as a chat model."""

from __future__ import annotations

import functools
import json
from typing import Any

from parity.proof.foreign.engines import PIPELINE, as_generate, engine
from parity.proof.foreign.material import Case, Mistake
from parity.proof.foreign.prompts import QUESTIONS, SYSTEM, contexts

GREEDY = {"do_sample": False, "max_new_tokens": 32}


@functools.cache
def loaded(model_path: str, dtype: str, settings: str) -> Any:
    from langchain_huggingface import HuggingFacePipeline

    return HuggingFacePipeline.from_model_id(
        model_path,
        "text-generation",
        model_kwargs={"dtype": dtype},
        pipeline_kwargs=json.loads(settings),
        batch_size=2,
    )


def old_texts(
    model_path: str, dtype: str, prompts: list[str], settings: dict[str, Any], skip_prompt: bool
) -> list[str]:
    llm = loaded(model_path, dtype, json.dumps(settings))
    answers: list[str] = llm.batch(prompts, skip_prompt=skip_prompt)
    return answers


def texts(
    model_path: str, dtype: str, prompts: list[str], settings: dict[str, Any], skip_prompt: bool
) -> list[str]:
    options = as_generate(model_path, PIPELINE, **settings)
    requests = [{"prompt": prompt} for prompt in prompts]
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    answers = [result.text for result in results]
    if skip_prompt:
        return answers
    return [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]


def old_chat(model_path: str, dtype: str, system: str, question: str) -> str:
    from langchain_huggingface import ChatHuggingFace

    llm = loaded(model_path, dtype, json.dumps({**GREEDY, "return_full_text": False}))
    model = ChatHuggingFace(llm=llm, model_id=model_path)
    answer: str = model.invoke([("system", system), ("human", question)]).content
    return answer


def chat(model_path: str, dtype: str, system: str, question: str) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    request = {"messages": messages, "chat": {"enable_thinking": True}}
    options = as_generate(model_path, PIPELINE, **GREEDY)
    [result] = engine(model_path, dtype).generate_text_batch([request], options)
    return result.text


def cases(dtype: str) -> list[Case]:
    prompts = contexts(dtype)
    asked = {"prompts": prompts, "settings": GREEDY}
    unsaid = {"prompts": prompts[:1], "settings": {}, "skip_prompt": True}
    return [
        Case("full-text", "texts", {**asked, "skip_prompt": False}),
        Case("answers", "texts", {**asked, "skip_prompt": True}),
        Case("unsaid", "texts", unsaid),
        *(
            Case(f"chat-{n}", "chat", {"system": SYSTEM, "question": question})
            for n, question in enumerate(QUESTIONS)
        ),
    ]


MISTAKES = (
    Mistake(
        "prompt-lost",
        "full-text",
        "value",
        "return [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]",
        "return answers",
    ),
    Mistake(
        "budget-of-generate",
        "unsaid",
        "stop.max_new_tokens",
        "as_generate(model_path, PIPELINE, **settings)",
        'as_generate(model_path, **{**PIPELINE, "max_new_tokens": 20, **settings})',
    ),
    Mistake(
        "system-lost",
        "chat-0 chat-1",
        "prompt.messages",
        '{"role": "system", "content": system}, ',
    ),
    Mistake(
        "stripped",
        "answers",
        "value",
        "[result.text for result",
        "[result.text.strip() for result",
        dtypes=("bfloat16",),
    ),
)
