"""lm-eval: its two model classes, called as its evaluator calls them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from parity.proof.foreign.engines import as_generate, as_vllm, engine
from parity.proof.foreign.material import REAL, TINY, Case, Mistake
from parity.proof.foreign.prompts import ARITHMETIC, FACTS, LETTERS, VLLM_ROOM, chats, contexts

DEFAULT_BUDGET = 256


@functools.cache
def loaded(
    kind: str,
    model_path: str,
    dtype: str,
    max_length: int | None = None,
    softmax_dtype: str | None = None,
) -> Any:
    if kind == "vllm":
        from lm_eval.models.vllm_causallms import VLLM

        return VLLM(pretrained=model_path, dtype=dtype, max_logprobs=20, **VLLM_ROOM)
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=model_path,
        dtype=dtype,
        device="cpu",
        batch_size=4,
        max_length=max_length,
        softmax_dtype=softmax_dtype,
    )


def instances(kind: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def generation_requests(requests: list[dict[str, Any]]) -> list[Any]:
    pairs = [(request["context"], request["gen_kwargs"]) for request in requests]
    return instances("generate_until", pairs)


def old_generate_until(
    model_path: str,
    dtype: str,
    requests: list[dict[str, Any]],
    max_length: int | None = None,
    torch_seed: int | None = None,
) -> list[str]:
    """requests: {"context": str, "gen_kwargs": ...}. torch_seed: as the evaluator sets it, once."""
    import torch

    model = loaded("hf", model_path, dtype, max_length)
    if torch_seed is not None:
        torch.manual_seed(torch_seed)
    answers: list[str] = model.generate_until(generation_requests(requests), disable_tqdm=True)
    return answers


def generate_until(
    model_path: str,
    dtype: str,
    requests: list[dict[str, Any]],
    max_length: int | None = None,
    torch_seed: int | None = None,
) -> list[str]:
    def options_of(gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        options = hf_options(model_path, gen_kwargs) | {"seed": torch_seed}
        if max_length is not None:
            options["max_prompt_tokens"] = max_length - options["max_new_tokens"]
            options["truncate_prompt"] = True
        return options

    return by_settings(engine(model_path, dtype), requests, options_of)


def by_settings(
    model: Any, requests: list[dict[str, Any]], options_of: Callable[..., Any]
) -> list[str]:
    """Answers in the order of the requests; those of equal settings share a call."""
    groups: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(json.dumps(request["gen_kwargs"], sort_keys=True), []).append(index)
    answers = [""] * len(requests)
    for indices in groups.values():
        prompts = [{"prompt": requests[index]["context"]} for index in indices]
        options = options_of(requests[indices[0]]["gen_kwargs"])
        results = model.generate_text_batch(prompts, options)
        for index, result in zip(indices, results, strict=True):
            answers[index] = result.text
    return answers


def hf_options(model_path: str, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What HFLM hands to `generate`. A request that does not say do_sample is greedy."""
    sampling = ("temperature", "top_p")
    said: dict[str, Any] = {name: gen_kwargs[name] for name in sampling if name in gen_kwargs}
    said["do_sample"] = gen_kwargs.get("do_sample", False)
    said["max_new_tokens"] = gen_kwargs.get("max_gen_toks", DEFAULT_BUDGET)
    return as_generate(model_path, **said) | {"stop": gen_kwargs["until"]}


def old_chat_until(
    model_path: str, dtype: str, chats: list[Any], gen_kwargs: dict[str, Any]
) -> list[str]:
    model = loaded("hf", model_path, dtype)
    requests = [(model.apply_chat_template(chat), gen_kwargs) for chat in chats]
    given = instances("generate_until", requests)
    answers: list[str] = model.generate_until(given, disable_tqdm=True)
    return answers


def chat_until(
    model_path: str, dtype: str, chats: list[Any], gen_kwargs: dict[str, Any]
) -> list[str]:
    """lm-eval says nothing of thinking, so the template's own default holds: to think."""
    requests = [{"messages": chat, "chat": {"enable_thinking": True}} for chat in chats]
    options = hf_options(model_path, gen_kwargs)
    results = engine(model_path, dtype).generate_text_batch(requests, options)
    return [result.text for result in results]


def old_loglikelihood(
    model_path: str, dtype: str, pairs: list[list[str]], softmax_dtype: str | None = "float32"
) -> list[tuple[float, bool]]:
    """pairs: [context, continuation]."""
    model = loaded("hf", model_path, dtype, None, softmax_dtype)
    requests = instances("loglikelihood", [tuple(pair) for pair in pairs])
    scores: list[tuple[float, bool]] = model.loglikelihood(requests, disable_tqdm=True)
    return scores


def loglikelihood(
    model_path: str, dtype: str, pairs: list[list[str]], softmax_dtype: str | None = "float32"
) -> list[tuple[float, bool]]:
    model = engine(model_path, dtype)
    items = [encode_pair(model.tokenizer, context, said) for context, said in pairs]
    answers = []
    for score in model.score_batch(items, logits=True):
        logprobs = score.logprobs if softmax_dtype else logprobs_in(dtype, score)
        best = score.logits.argmax(-1).tolist()
        answers.append((float(sum(logprobs)), best == list(score.token_ids)))
    return answers


def encode_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Ids of both parts of a pair, split where the context's own ids end."""
    if not context:
        ids = tokenizer.encode(continuation, add_special_tokens=False)
        prefix = tokenizer.bos_token_id
        if prefix is None:
            prefix = tokenizer.eos_token_id
        return ([prefix], ids) if ids[0] != prefix else (ids[:1], ids[1:])
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    context_ids = tokenizer.encode(stripped)
    whole = tokenizer.encode(stripped + continuation)
    return context_ids, whole[len(context_ids) :]


def logprobs_in(dtype: str, score: Any) -> list[float]:
    """HFLM's log-softmax is in the model's dtype where no softmax_dtype is given."""
    import torch

    logprobs = score.logits.to(getattr(torch, dtype)).log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(score.token_ids).unsqueeze(1))
    return [float(chosen.sum())]


def old_vllm_generate_until(
    model_path: str, dtype: str, requests: list[dict[str, Any]]
) -> list[str]:
    model = loaded("vllm", model_path, dtype)
    answers: list[str] = model.generate_until(generation_requests(requests), disable_tqdm=True)
    return answers


def vllm_generate_until(model_path: str, dtype: str, requests: list[dict[str, Any]]) -> list[str]:
    return by_settings(engine(model_path, dtype), requests, vllm_options)


def vllm_options(gen_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What lm-eval's VLLM class hands to SamplingParams. Where nothing is said, it samples at 1."""
    said = {
        name: gen_kwargs[name] for name in ("temperature", "top_p", "seed") if name in gen_kwargs
    }
    if gen_kwargs.get("do_sample") is False:
        said["temperature"] = 0.0
    options = as_vllm(max_tokens=gen_kwargs.get("max_gen_toks", DEFAULT_BUDGET), **said)
    return options | {"stop": gen_kwargs["until"], "decode": {"skip_special_tokens": False}}


def old_vllm_loglikelihood(
    model_path: str, dtype: str, pairs: list[list[str]]
) -> list[tuple[float, bool]]:
    model = loaded("vllm", model_path, dtype)
    requests = instances("loglikelihood", [tuple(pair) for pair in pairs])
    scores: list[tuple[float, bool]] = model.loglikelihood(requests, disable_tqdm=True)
    return scores


def vllm_loglikelihood(
    model_path: str, dtype: str, pairs: list[list[str]]
) -> list[tuple[float, bool]]:
    return loglikelihood(model_path, dtype, pairs)


GREEDY = {"until": ["\n\n", "Question:"], "max_gen_toks": 32, "do_sample": False}
MULTIPLE_CHOICE = (
    "The following are multiple choice questions (with answers).\n\n"
    "What is the capital of Norway?\nA. Oslo\nB. Rome\nC. Paris\nD. Bergen\nAnswer: A\n\n"
)
CHOICES = (
    "What is 3 + 4?\nA. 5\nB. 6\nC. 7\nD. 8\nAnswer:",
    "What is the capital of the country whose flag is blue, white and red, from left to right?\n"
    "A. Rome\nB. Paris\nC. Oslo\nD. Madrid\nAnswer:",
)
ENDINGS = [
    ["The capital of France is", " Paris."],
    ["The capital of France is", " a very large city in the north of the country."],
    ["Count to five: 1, 2, 3, ", "4, 5."],
    ["She put the kettle on and waited until the water", " was boiling, then she made tea."],
]
MMLU = [[MULTIPLE_CHOICE + question, letter] for question in CHOICES for letter in LETTERS]


def asked(contexts: list[str], **gen_kwargs: Any) -> list[dict[str, Any]]:
    return [{"context": context, "gen_kwargs": {**GREEDY, **gen_kwargs}} for context in contexts]


def cases(dtype: str) -> list[Case]:
    texts = contexts(dtype)
    sampled = asked(texts, do_sample=True, temperature=0.8)
    stops = asked(texts, until=[", 7", " is", "apple", "."])
    mixed = asked(texts[:2]) + asked(texts[2:], until=["e"], max_gen_toks=12)
    answered = {"chats": chats(), "gen_kwargs": {**GREEDY, "until": ["\n\n"], "max_gen_toks": 40}}
    long = asked([FACTS * 6 + context for context in texts])
    no_context = [["", " Paris"], ["", " 4, 5."], [ARITHMETIC, "Question"]]
    seeded = asked(texts, do_sample=True, temperature=0.8, top_p=0.9, seed=11)
    how = {"until": ["\n\n"], "max_gen_toks": 24}
    unsaid = [{"context": text, "gen_kwargs": how} for text in texts]
    own = {"pairs": MMLU[:4], "softmax_dtype": None}
    vllm = ("vllm",)
    return [
        Case("few-shot", "generate_until", {"requests": asked(texts)}),
        Case("stops", "generate_until", {"requests": stops}),
        Case("mixed-settings", "generate_until", {"requests": mixed}),
        Case("chat", "chat_until", answered),
        Case("truncated", "generate_until", {"requests": long, "max_length": 128}),
        Case("sampled", "generate_until", {"requests": sampled}),
        Case("sampled-seeded", "generate_until", {"requests": sampled[:1], "torch_seed": 1234}),
        Case("mmlu", "loglikelihood", {"pairs": MMLU}),
        Case("endings", "loglikelihood", {"pairs": ENDINGS}),
        Case("no-context", "loglikelihood", {"pairs": no_context}),
        Case("own-softmax", "loglikelihood", own),
        Case("vllm-few-shot", "vllm_generate_until", {"requests": asked(texts)}, vllm),
        Case("vllm-seeded", "vllm_generate_until", {"requests": seeded}, vllm),
        Case("vllm-unsaid", "vllm_generate_until", {"requests": unsaid}, vllm),
        Case("vllm-mmlu", "vllm_loglikelihood", {"pairs": MMLU}, vllm),
    ]


SAID = '| {"stop": gen_kwargs["until"]}'
PROMPTS = '{"prompt": requests[index]["context"]}'
MISTAKES = (
    Mistake("first-stop-only", "stops", "stop", SAID, SAID.replace("]}", "][:1]}")),
    Mistake(
        "settings-of-the-first",
        "mixed-settings",
        "stop",
        'json.dumps(request["gen_kwargs"], sort_keys=True)',
        '""',
    ),
    Mistake(
        "default-budget",
        "few-shot",
        "stop",
        'said["max_new_tokens"] = gen_kwargs.get("max_gen_toks", DEFAULT_BUDGET)',
        'said["max_new_tokens"] = gen_kwargs.get("max_new_tokens", 16)',
    ),
    Mistake(
        "checkpoint-sampling-lost",
        "sampled",
        "sampling",
        SAID,
        f'{SAID} | {{"repetition_penalty": 1.0, "top_k": None, "top_p": 1.0}}',
    ),
    Mistake(
        "wrapped-again",
        "few-shot",
        "prompt",
        PROMPTS,
        '{"messages": [{"role": "user", "content": requests[index]["context"]}]}',
    ),
    Mistake(
        "cut-from-the-end",
        "truncated",
        "prompt",
        PROMPTS,
        '{"prompt_token_ids": model.tokenizer(requests[index]["context"]).input_ids[:96]}',
    ),
    Mistake("always-greedy", "sampled", "sampling", SAID, f'{SAID} | {{"temperature": 0.0}}'),
    Mistake(
        "thinking-off",
        "chat",
        "prompt",
        '"chat": {"enable_thinking": True}',
        '"chat": {}',
        dtypes=TINY,
    ),
    Mistake(
        "parts-tokenized-apart",
        "endings",
        "prompt",
        "    whole = tokenizer.encode(stripped + continuation)\n"
        "    return context_ids, whole[len(context_ids) :]",
        "    tail = context[len(stripped) :]\n"
        "    said = continuation[len(tail) :]\n"
        "    return context_ids + tokenizer.encode(tail), tokenizer.encode(said)",
    ),
    Mistake(
        "mean-for-sum",
        "endings",
        "value calls",
        "float(sum(logprobs))",
        "float(sum(logprobs)) / len(score.token_ids)",
    ),
    Mistake(
        "strips-the-answer",
        "few-shot",
        "value decode",
        "answers[index] = result.text",
        "answers[index] = result.text.strip()",
        dtypes=REAL,
    ),
)
