"""evalplus: its transformers decoder, which completes code in an opened answer."""

from __future__ import annotations

import functools
from typing import Any

from parity.proof.foreign.engines import as_generate, engine
from parity.proof.foreign.material import Case, Mistake

INSTRUCTION = "Please provide a self-contained Python script that solves the following problem:"
RESPONSE = "Below is a Python script that solves the problem:"
ENDS = ["<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint("]
OPENED = "\n```\n"
SPLITTER = "-[[]]-"


@functools.cache
def loaded(model_path: str, dtype: str, temperature: float) -> Any:
    from evalplus.provider import base, hf

    base.EOS[:] = ENDS  # each decoder appends to this list
    settings = {
        "dtype": dtype,
        "temperature": temperature,
        "batch_size": 2,
        "max_new_tokens": 40,
        "instruction_prefix": INSTRUCTION,
        "response_prefix": RESPONSE,
    }
    return hf.HuggingFaceDecoder(model_path, "humaneval", attn_implementation="sdpa", **settings)


def old_code(
    model_path: str, dtype: str, prompt: str, samples: int, temperature: float
) -> list[str]:
    decoder = loaded(model_path, dtype, temperature)
    codes: list[str] = decoder.codegen(prompt, do_sample=temperature > 0, num_samples=samples)
    return codes


def code(model_path: str, dtype: str, prompt: str, samples: int, temperature: float) -> list[str]:
    said: dict[str, Any] = {"max_new_tokens": 40, "do_sample": temperature > 0}
    if temperature > 0:
        said |= {"temperature": temperature, "top_p": 0.95}
    options = as_generate(model_path, **said)
    options |= {"n": samples, "stop": [*ENDS, OPENED]}
    model = engine(model_path, dtype)
    [result] = model.generate_text_batch([{"prompt": opened(model, prompt)}], options)
    return [each.text.replace("\t", "    ") for each in result.samples or [result]]


def opened(model: Any, prompt: str) -> str:
    """The chat up to the code of its answer."""
    question = f"{INSTRUCTION}\n```\n{prompt.strip()}\n```\n"
    answer = f"{RESPONSE}\n```python\n{SPLITTER}\n```\n"
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    whole: str = model.render(chat, chat={"add_generation_prompt": False, "enable_thinking": True})
    return whole.partition(SPLITTER)[0]


PROMPTS = (
    'def add(a, b):\n    """The sum of two numbers."""\n',
    'def is_even(n):\n    """Whether n is even."""\n',
    'def first(items):\n    """The first of some items."""\n',
)


def cases(dtype: str) -> list[Case]:
    greedy = {"samples": 1, "temperature": 0.0}
    sampled = {"prompt": PROMPTS[0], "samples": 2, "temperature": 0.8}
    return [
        *(
            Case(f"greedy-{n}", "code", {"prompt": each, **greedy})
            for n, each in enumerate(PROMPTS)
        ),
        Case("sampled", "code", sampled),
    ]


MISTAKES = (
    Mistake("one-sample", "sampled", "sampling.n", '{"n": samples, ', '{"n": 1, '),
    Mistake("prompt-not-stripped", "greedy-0", "prompt.text", "{prompt.strip()}", "{prompt}"),
    Mistake(
        "top-p-lost",
        "sampled",
        "sampling.top_p",
        '{"temperature": temperature, "top_p": 0.95}',
        '{"temperature": temperature}',
    ),
    Mistake("stops-lost", "greedy-1", "stop.strings", ', "stop": [*ENDS, OPENED]'),
)
