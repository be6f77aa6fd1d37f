"""What callers may say and what is refused: a row of a table for each, most without a model.

A row of a table of refusals is (what is said, words that its error needs to hold).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LLAMA, SURE, VL = (f"golden/models/{name}" for name in ("random-llama", "tiny-qwen3", "tiny-qwen3-vl"))
DIFFERS: dict[str, str] = {}
SAMPLED: frozenset[str] = frozenset()

Refused = list[tuple[Any, list[str]]]
MOST = sys.maxsize
FLAGS: list[Any] = [True, False, None, 0, 1, "yes"]
NAMES: list[Any] = ["a", "", 3, True, ["a"], {"a": "b"}]
BOUNDS: list[tuple[str, list[Any], list[str]]] = [
    # field, values, words of its refusals
    ("GenerationOptions.max_new_tokens", [0, 1, 2, MOST, MOST + 1, True, 2.5, "3", None], [">= 1"]),
    ("GenerationOptions.min_new_tokens", [-1, 0, 1, 256, 257, False, 0.5], []),
    ("GenerationOptions.temperature", [-0.1, 0, 0.0, 1, 1e300, True, "1", None], [">= 0"]),
    ("GenerationOptions.top_p", [0, 0.0, 1e-9, 1, 1.0, 1.01, True], ["above 0, at most 1"]),
    ("GenerationOptions.top_k", [-1, 0, 1, None, 2.0, MOST + 1], [">= 1", "or None"]),
    ("GenerationOptions.min_p", [-0.1, 0, 1, 1.01, "0"], ["0 to 1"]),
    ("GenerationOptions.repetition_penalty", [0, 0.0, 0.1, 2, -1, None], ["above 0"]),
    ("GenerationOptions.no_repeat_ngram_size", [0, 1, 2, None, 1.0], [">= 1", "or None"]),
    ("GenerationOptions.seed", [-1, 0, 1, MOST, MOST + 1, None, 1.0], [">= 0", str(MOST)]),
    ("GenerationOptions.n", [0, 1, 2, 16_384, 16_385, None], [">= 1", "16384"]),
    ("GenerationOptions.logprobs", [-1, 0, 1, None, True], [">= 0", "or None"]),
    ("GenerationOptions.max_prompt_tokens", [0, 1, 2, None], [">= 1", "or None"]),
    ("GenerationOptions.logits", FLAGS, ["True or False"]),
    ("GenerationOptions.truncate_prompt", FLAGS, ["True or False"]),
    ("StopOptions.include_stop", FLAGS, ["True or False"]),
    ("StopOptions.ignore_eos", FLAGS, ["True or False"]),
    ("StopOptions.token_ids", [[], [0], [3, 3, 1], [-1], [True], [1.0], "12", {"1": 2}, 3, None],
     ["a list of token ids"]),
    ("StopOptions.strings", [[], "ab", ["b", "a", "b"], [""], "", [3], 3, {"a": "b"}, None],
     ["non-empty strings"]),
    ("DecodeOptions.skip_special_tokens", FLAGS, ["True or False"]),
    ("DecodeOptions.clean_up_tokenization_spaces", FLAGS, ["True or False"]),
    ("DecodeOptions.strip", FLAGS, ["True or False"]),
    ("ChatTemplateOptions.enable_thinking", FLAGS, ["True or False"]),
    ("ChatTemplateOptions.add_generation_prompt", FLAGS, ["True or False"]),
    ("ChatTemplateOptions.kwargs", [{}, {"a": 1}, [], "a", None], ["a mapping"]),
    ("ChatTemplateOptions.special_tokens", ["keep", "refuse", "escape", "escpe", 3, None], []),
    ("ChatTemplateOptions.template", [None, "{{ a }}", "chat.jinja", "", 3], []),
    ("VlmPreprocessOptions.min_pixels", [0, 1, None, True], [">= 1", "or None"]),
    ("VlmPreprocessOptions.max_pixels", [0, 1, None, 1.5], [">= 1", "or None"]),
    ("VlmPreprocessOptions.do_resize", FLAGS, ["True or False"]),
    ("TextGenerationRequest.prompt", ["", "a", 3, ["a"]], ["a string"]),
    ("TextGenerationRequest.seed", [-1, 0, MOST, MOST + 1, None, 1.0], [">= 0"]),
    ("TextGenerationRequest.continue_final", [False, 1, None], ["True or False"]),
    ("TextGenerationRequest.adapter", [*NAMES, None], ["a non-empty string"]),
    ("ModelLoadConfig.model", [*NAMES, None], ["a non-empty string"]),
    ("ModelLoadConfig.revision", [*NAMES, None], ["a non-empty string"]),
    ("ModelLoadConfig.attn_implementation", [*NAMES, None], ["a non-empty string"]),
    ("ModelLoadConfig.backend", ["hf", "vllm", "auto", "HF", "", 3, None], []),
    ("ModelLoadConfig.dtype", ["float32", "bfloat16", "float16", "float", "int8", None, 3], []),
    ("ModelLoadConfig.fallback_backend", ["hf", None, "vllm", "auto", 3], []),
    ("ModelLoadConfig.max_model_len", [1, 2, None, "9"], [">= 2", "or None"]),
    ("ModelLoadConfig.max_batch_tokens", [0, 1, None], [">= 1", "or None"]),
    ("ModelLoadConfig.max_batch_size", [0, 1, None], [">= 1", "or None"]),
    ("ModelLoadConfig.trust_remote_code", FLAGS, ["True or False"]),
    ("ModelLoadConfig.logits_hooks", FLAGS, ["True or False"]),
    ("ModelLoadConfig.progress", FLAGS, ["True or False"]),
    ("ModelLoadConfig.adapters", [{}, {"a": "b"}, {"": "b"}, {"a": 3}, ["a"], None],
     ["names to directories"]),
    ("ModelLoadConfig.hf_kwargs", [{}, {"a": 1}, [], None], ["a mapping"]),
    ("ModelLoadConfig.vllm_kwargs", [{}, {"a": 1}, "a"], ["a mapping"]),
]  # fmt: skip


def load_keywords() -> Refused:
    """Keywords of the libraries that are fields of ours, and settings that do not go together."""
    fields = {
        "dtype": "dtype",
        "torch_dtype": "dtype",
        "attn_implementation": "attn_implementation",
        "revision": "revision",
        "trust_remote_code": "trust_remote_code",
        "max_model_len": "max_model_len",
        "model": "model",
        "enable_lora": "adapters",
        "max_loras": "adapters",
        "max_lora_rank": "adapters",
        "speculative_config": "decoder",
    }
    rows: Refused = [
        ({library: {keyword: 1}}, [library, f"'{keyword}'", f"the field '{field}'"])
        for keyword, field in fields.items()
        for library in ("hf_kwargs", "vllm_kwargs")
    ]
    beside = {"device": "cpu", "hf_kwargs": {"device_map": "auto"}}
    return [
        *rows,
        ({"device": "meta"}, ["'meta'"]),
        ({"hf_kwargs": {"return_dict": False}}, ["return_dict"]),
        (beside, ["hf_kwargs", "'device_map'", "device 'cpu'"]),
        ({"cache": {"a": 1}}, ["cache", "str to str"]),
        ({"max_model_len": 513}, ["max_model_len", "513", "512"]),
        ({"devise": "cpu"}, ["'devise'", "'device'"]),
    ]


def option_rows() -> Refused:
    """Options that mean nothing together, or nothing on this checkpoint."""
    return [
        ({"min_new_tokens": 3, "max_new_tokens": 2}, ["min_new_tokens", "3", "max_new_tokens"]),
        ({"replay": [[5], [6]], "n": 2}, ["replay", "n 2"]),
        ({"replay": [[5]]}, ["2 requests", "replays for 1"]),
        ({"replay": [[], [5]]}, ["replay", "one token id or more"]),
        ({"replay": [[5], [True]]}, ["replay", "one token id or more"]),
        ({"replay": [5, 6]}, ["replay", "one token id or more"]),
        ({"stop": {"strings": ["a\ufffd"]}}, ["stop string", "U+FFFD"]),
        ({"stop": {"token_ids": [562, 563, 600]}}, ["[563, 600]", "563"]),
        ({"logprobs": 564}, ["logprobs", "564", "563"]),
        ({"max_tokens": 4}, ["GenerationOptions", "'max_tokens'", "max_new_tokens"]),
        ({"zzz": 4}, ["'zzz'", "Known: ", "temperature", "top_p"]),
        ({"stop": 3}, ["StopOptions", "int", "mapping"]),
        ({"decode": "strip"}, ["DecodeOptions", "str", "mapping"]),
    ]


def prompt_rows() -> Refused:
    """A request that is refused, behind one that is not: its error names it."""
    one = {"role": "user", "content": "Hello"}

    def said(*messages: Any, **more: Any) -> dict[str, Any]:
        return {"messages": list(messages), **more}

    def user(content: Any, role: Any = "user") -> dict[str, Any]:
        return said({"role": role, "content": content})

    tool = {"type": "function", "function": {"name": "weather"}}
    return [
        ({}, ["none", "messages, prompt, prompt_token_ids"]),
        ({"prompt": "a", "prompt_token_ids": [5]}, ["prompt and prompt_token_ids"]),
        (said(one, prompt_token_ids=[5]), ["messages and prompt_token_ids"]),
        ({"prompt": "a", "continue_final": True}, ["continue_final", "prompt"]),
        ({"prompt": "a", "tools": [tool]}, ["tools", "prompt"]),
        ({"prompt_token_ids": [5], "chat": {"enable_thinking": True}}, ["prompt_token_ids"]),
        ({"prompt_token_ids": "12"}, ["prompt_token_ids", "'12'", "list of token ids"]),
        ({"prompt_token_ids": [5.0]}, ["prompt_token_ids", "list of token ids"]),
        ({"prompt_token_ids": [5, 9_999]}, ["9999"]),
        ({"prompt_token_ids": [-1]}, ["-1"]),
        ({"prompt_token_ids": []}, ["no tokens"]),
        ("Hello", ["TextGenerationRequest", "str", "mapping"]),
        ({"prompt": "a", "seed": -1}, ["seed", "-1", ">= 0"]),
        ({"prompt": "a", "images": []}, ["'images'"]),
        (said(), ["messages is empty"]),
        ({"messages": "Hello"}, ["messages", "a list"]),
        ({"messages": one}, ["messages", "a list"]),
        (said("Hello"), ["message 0", "str", "role and content"]),
        (said(one, ["user", "Hello"]), ["message 1", "list"]),
        (user("Hello", "usr"), ["message 0", "'usr'", "'user'"]),
        (user("Hello", None), ["message 0", "role", "None"]),
        (user("Hello", ["user"]), ["message 0", "role"]),
        (user(None), ["message 0", "no content"]),
        (said({"role": "assistant", "tool_calls": []}), ["message 0", "no content"]),
        (said({"role": "assistant", "tool_calls": "a"}), ["message 0", "no content"]),
        (user(3), ["message 0", "int", "list of parts"]),
        (user({"type": "text"}), ["message 0", "dict", "list of parts"]),
        (user(["Hello"]), ["message 0", "list of parts"]),
        (user([{"text": "Hello"}]), ["message 0", "type", "None"]),
        (user([{"type": "txt", "text": "a"}]), ["message 0", "'txt'", "'text'"]),
        (user([{"type": "audio"}]), ["message 0", "'audio'", "image_url"]),
        (user([{"type": "text"}]), ["message 0", "text part"]),
        (user([{"type": "text", "text": 3}]), ["message 0", "text part"]),
        (said(one, continue_final=True), ["continue_final", "assistant"]),
        (said(one, chat={"template": "a.jinja"}), ["template", "'a.jinja'", "read_text"]),
        (said(one, chat={"template": "{{ nothing.at.all }}"}), ["template failed", "UndefinedError"]),
        (said(one, chat={"kwargs": {"enable_thinking": 1}}), ["kwargs", "enable_thinking"]),
        ({"prompt": "a", "adapter": "one"}, ["adapter", "'one'", "adapters={...}"]),
        ({"prompt": "a", "structured": {}}, ["0 forms", "exactly one"]),
        ({"prompt": "a", "structured": {"choice": []}}, ["0 forms"]),
        ({"prompt": "a", "structured": {"choice": ["a"], "regex": "a"}}, ["2 forms"]),
        ({"prompt": "a", "structured": {"choice": [""]}}, ["choice", "non-empty"]),
        ({"prompt": "a", "structured": {"choice": "yes"}}, ["choice", "'yes'"]),
        ({"prompt": "a", "structured": {"json": 3}}, ["json", "3", "schema"]),
        ({"prompt": "a", "structured": {"json": "{"}}, ["json", "JSONDecodeError"]),
        ({"prompt": "a", "structured": {"regex": "("}}, ["regex"]),
        ({"prompt": "a", "structured": {"grammar": "a"}}, ["grammar"]),
    ]  # fmt: skip


def schema_rows() -> Refused:
    """JSON schemas that no grammar sees to, at each depth where a keyword can stand."""
    number, text, whole = ({"type": name} for name in ("number", "string", "integer"))
    twice = {"uniqueItems": True, "type": "array", "items": whole}
    of_a = {"type": "object", "properties": {"a": whole}}
    schemas: list[tuple[str, Any]] = [
        ("multipleOf", {**whole, "multipleOf": 5}),
        ("uniqueItems", twice),
        ("contains", {"type": "array", "contains": whole}),
        ("minContains", {"type": "array", "minContains": 1}),
        ("maxContains", {"type": "array", "maxContains": 1}),
        ("not", {"not": text}),
        ("if", {"if": text}),
        ("dependentRequired", {**of_a, "dependentRequired": {"a": ["b"]}}),
        ("dependentSchemas", {**of_a, "dependentSchemas": {"a": text}}),
        ("b", {**of_a, "required": ["a", "b"]}),
        ("minimum", {"minimum": 1}),
        ("maximum", {"maximum": 1}),
        ("exclusiveMinimum", {"exclusiveMinimum": 1}),
        ("exclusiveMaximum", {"exclusiveMaximum": 1}),
        ("pattern", {"pattern": "a"}),
        ("minProperties", {"minProperties": 1}),
        ("maxProperties", {"maxProperties": 1}),
        ("minimum", {"enum": [1, 2], "type": "integer", "minimum": 2}),
        ("maximum", {"const": 1, "maximum": 2}),
        ("properties", {"anyOf": [of_a], "properties": {"b": whole}}),
        ("items", {"oneOf": [{"type": "array"}], "items": whole}),
        ("required", {"allOf": [of_a], "required": []}),
        ("additionalProperties", {"anyOf": [of_a], "additionalProperties": False}),
        ("patternProperties", {"anyOf": [of_a], "patternProperties": {"a": whole}}),
        ("minItems", {"anyOf": [{"type": "array"}], "minItems": 1}),
        ("maxItems", {"anyOf": [{"type": "array"}], "maxItems": 1}),
        ("minimum", {"$ref": "#/$defs/a", "minimum": 2, "$defs": {"a": whole}}),
        ("allOf", {"allOf": [of_a, {"type": "object"}]}),
    ]
    deep = {**number, "multipleOf": 2}
    nested: list[Any] = [
        {"type": "object", "properties": {"a": deep}},
        {"type": "object", "patternProperties": {"a": deep}},
        {"type": "object", "additionalProperties": deep},
        {"type": "array", "items": deep},
        {"type": "array", "prefixItems": [deep]},
        {"anyOf": [text, deep]},
        {"oneOf": [text, deep]},
        {"allOf": [deep]},
        {"$defs": {"a": deep}, "$ref": "#/$defs/a"},
        {"definitions": {"a": deep}, "$ref": "#/definitions/a"},
        {"type": "object", "properties": {"items": {"type": "array", "items": deep}}},
    ]
    tower: dict[str, Any] = text
    for _ in range(99):  # the word "array" in the last is the 101st
        tower = {"type": "array", "items": tower}
    rows = [*schemas, *(("multipleOf", schema) for schema in nested)]
    found: Refused = [(schema, [f"'{word}'"]) for word, schema in rows]
    return [*found, (tower, ["100 deep"])]


def pair_rows() -> Refused:
    """What cannot be scored."""
    named = {"prompt": "a", "seed": 1}
    formed = {"prompt": "a", "structured": {"regex": "a"}}
    return [
        ("Hello", ["str", "response"]),
        (["a"], ["tuple", "response"]),
        (["a", "b", "c"], ["tuple", "response"]),
        (["a", ""], ["response", "no tokens"]),
        (["a", None], ["response", "no tokens"]),
        (["a", [5, 563]], ["563"]),
        (["a", [-1]], ["-1"]),
        (["a", [1.5]], ["list of token ids"]),
        ([[], "b"], ["messages is empty"]),
        ([[600], "b"], ["600"]),
        ([{"promt": "a"}, "b"], ["'promt'", "'prompt'"]),
        ([named, "b"], ["seed", "scoring"]),
        ([formed, "b"], ["structured", "scoring"]),
        ([[40] * 510, [5] * 4], ["514", "512"]),
    ]


def plugin_rows() -> Refused:
    """Objects that are no plugins, by their names in the moved code, or break as they run."""
    return [
        ("a class", ["Ending", "class"]),
        ("no hook", ["object", "should_stop", "logits", "post_decode"]),
        ("backends as text", ["'odd'", "backends", "list"]),
        ("kinds as text", ["'odd'", "kinds", "list"]),
        ("criteria as one", ["'odd'", "hf_stopping_criteria", "list"]),
        ("processors as one", ["'odd'", "hf_logits_processors", "list"]),
        ("should_stop is text", ["'odd'", "should_stop", "called"]),
        ("logits is a number", ["'odd'", "logits", "called"]),
        ("criterion is text", ["'odd'", "hf_stopping_criteria", "called"]),
        ("field that raises", ["backends", "KeyError"]),
        ("beside a replay", ["replay", "plugins"]),
    ]


def broken_rows() -> Refused:
    """Plugins that fail on a row while it runs: its error stands in its place."""
    return [
        ("logits of one", ["'odd'", "logits"]),
        ("logits of nothing", ["'odd'", "logits", "None"]),
        ("logits of whole numbers", ["'odd'", "logits", "float tensor"]),
        ("logits all banned", ["'odd'", "logits", "-inf"]),
        ("logits of NaN", ["'odd'", "logits", "NaN"]),
    ]


def unsupported_loads() -> Refused:
    """Settings of one backend at the other."""
    rows: Refused = [
        ({"device": "cpu"}, ["cannot do device", "backend='hf'"]),
        ({"attn_implementation": "eager"}, ["cannot do attn_implementation", "backend='hf'"]),
        ({"max_batch_tokens": 8}, ["cannot do max_batch_tokens", "max_num_batched_tokens"]),
        ({"max_batch_size": 8}, ["cannot do max_batch_size", "max_num_seqs"]),
        ({"hf_kwargs": {"a": 1}}, ["cannot do hf_kwargs", "backend='hf'"]),
    ]
    found: Refused = [({"backend": "vllm", **what}, [f"vllm {words[0]}", *words[1:]]) for what, words in rows]
    return [*found, ({"backend": "hf", "vllm_kwargs": {"a": 1}}, ["hf cannot do vllm_kwargs", "backend='vllm'"])]


CHANGED: list[dict[str, Any]] = [  # file -> changes of a checkpoint; None takes a field out
    {"config.json": {"dtype": "bfloat16", "eos_token_id": [5, 9], "max_position_embeddings": 64}},
    {
        "config.json": {"dtype": None, "eos_token_id": [9, 900]},
        "generation_config.json": {"eos_token_id": 7},
        "tokenizer_config.json": {"pad_token": None},
    },
    {
        "config.json": {"dtype": "float16", "eos_token_id": 552},
        "tokenizer_config.json": {"pad_token": None},
        "generation_config.json": {"pad_token_id": None},
    },
]


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    bounds = {name: {"values": values, "about": about} for name, values, about in BOUNDS}
    tables: list[tuple[str, str, str, Refused]] = [
        ("load-keywords", LLAMA, "load", load_keywords()),
        ("options", LLAMA, "options", option_rows()),
        ("prompts", SURE, "request", prompt_rows()),
        ("schemas", LLAMA, "schema", schema_rows()),
        ("pairs", LLAMA, "pair", pair_rows()),
        ("plugins", LLAMA, "plugin", plugin_rows()),
        ("plugins-that-break", LLAMA, "broken", broken_rows()),
        ("unsupported-loads", LLAMA, "other backend", unsupported_loads()),
    ]
    return [
        ("defaults", "defaults", {}),
        ("bounds", "bounds", {"fields": bounds}),
        *((name, "refuse", {"model_path": model, "what": what,
                            "calls": [{"said": said, "about": about} for said, about in rows]})
          for name, model, what, rows in tables),
        ("checkpoints", "checkpoints", {"model_path": LLAMA, "changes": CHANGED}),
    ]  # fmt: skip
