"""Ten mistakes that somebody who moves lm-eval's calls could make."""

from __future__ import annotations

from parity.proof.foreign.material import Mistake

MISTAKES = (
    Mistake(
        "first-stop-only",
        "Takes the first of the stop strings for all of them.",
        '"stop": gen_kwargs["until"],\n    }\n    if gen_kwargs.get("do_sample"):',
        '"stop": gen_kwargs["until"][:1],\n    }\n    if gen_kwargs.get("do_sample"):',
        ("stop",),
        ("stops",),
    ),
    Mistake(
        "settings-of-the-first",
        "Runs all requests with the settings of the first one.",
        'key = json.dumps(request["gen_kwargs"], sort_keys=True)',
        'key = ""',
        ("stop",),
        ("mixed-settings",),
    ),
    Mistake(
        "default-budget",
        "Reads `max_new_tokens`, which the task file does not have, and falls back to 16.",
        '"max_new_tokens": gen_kwargs.get("max_gen_toks", DEFAULT_MAX_GEN_TOKS),\n'
        '        "repetition',
        '"max_new_tokens": gen_kwargs.get("max_new_tokens", 16),\n        "repetition',
        ("stop",),
        ("few-shot",),
    ),
    Mistake(
        "checkpoint-sampling-lost",
        "Says neither the penalty nor the top_k that `generate` takes by itself.",
        "    defaults = sampling_defaults(model_path)\n",
        "    from parity.proof.foreign.engines import SamplingDefaults\n\n"
        "    defaults = SamplingDefaults(repetition_penalty=1.0, top_k=None, top_p=1.0)\n",
        ("sampling",),
        ("sampled",),
    ),
    Mistake(
        "wrapped-again",
        "Hands the context, which is text already, to the chat template.",
        'prompts = [{"prompt": context} for context in contexts]',
        'prompts = [{"messages": [{"role": "user", "content": context}]} for context in contexts]',
        ("prompt",),
        ("few-shot",),
    ),
    Mistake(
        "cut-from-the-end",
        "Cuts a long context behind its first tokens, so that its end is lost.",
        'prompts = [{"prompt": context} for context in contexts]',
        'limit = (max_length or 10_000) - options["max_new_tokens"]\n'
        "        tokenizer = engine(model_path, dtype).tokenizer\n"
        "        prompts = [\n"
        '            {"prompt_token_ids": tokenizer(text).input_ids[:limit]}\n'
        "            for text in contexts\n"
        "        ]",
        ("prompt",),
        ("truncated",),
    ),
    Mistake(
        "always-greedy",
        "Forgets do_sample: the engine's default is greedy.",
        'if gen_kwargs.get("do_sample"):\n'
        '        options["temperature"] = gen_kwargs["temperature"]',
        'if gen_kwargs.get("do_sample"):\n        options["temperature"] = 0.0',
        ("sampling",),
        ("sampled",),
    ),
    Mistake(
        "thinking-off",
        "Leaves the thinking switch at the engine's default, which is off.",
        '"chat": {"enable_thinking": True}',
        '"chat": {}',
        ("prompt",),
        ("chat",),
        dtypes=("float32",),
    ),
    Mistake(
        "parts-tokenized-apart",
        "Encodes context and continuation each by itself, the blank at the context's end.",
        "    whole = tokenizer.encode(stripped + continuation)\n"
        "    return context_ids, whole[len(context_ids) :]",
        "    tail = context[len(stripped) :]\n"
        "    said = continuation[len(tail) :]\n"
        "    return context_ids + tokenizer.encode(tail), tokenizer.encode(said)",
        ("prompt",),
        ("endings",),
    ),
    Mistake(
        "mean-for-sum",
        "Gives the mean log-probability of a continuation instead of the sum.",
        "total = float(sum(logprobs))",
        "total = float(sum(logprobs)) / len(score.token_ids)",
        (
            "value",
            "calls",
        ),
        ("endings",),
    ),
    Mistake(
        "strips-the-answer",
        "Strips the answer, which lm-eval leaves to the task's filter.",
        "            answers[index] = result.text\n    return answers\n\n\ndef equal_settings",
        "            answers[index] = result.text.strip()\n"
        "    return answers\n\n\ndef equal_settings",
        (
            "value",
            "decode",
        ),
        ("few-shot",),
        dtypes=("bfloat16",),
    ),
)
