"""Inference module for RL: one class for the policy, the reference model and the environments."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class InferenceModule:
    def __init__(self, model_path: str, device: str = "cpu") -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token_id = self.tokenizer.eos_token_id
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).to(device).eval()
        self.cache: dict[str, Any] = {}
        self.cache_hits = 0

    def _render(self, prompt: str | list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        if isinstance(prompt, str) and tools is None:
            return prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text: str = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return text

    def generate(
        self,
        prompts: str | list[Any],
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        num_samples: int = 1,
        seed: int = 0,
        stop_sequences: list[str] | None = None,
        return_logprobs: bool = False,
        use_cache: bool = False,
        tools: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        prompts = [prompts] if isinstance(prompts, str) else prompts
        texts = [self._render(prompt, tools) for prompt in prompts]
        knobs = [max_new_tokens, temperature, top_p, top_k, num_samples, seed, stop_sequences, return_logprobs]
        key = json.dumps([texts, knobs])
        if use_cache and key in self.cache:
            self.cache_hits += len(texts)
            cached: dict[str, Any] = self.cache[key]
            return cached
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True).to(self.model.device)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            torch.manual_seed(seed)
            sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": top_k}
        with torch.no_grad():
            output = self.model.generate(
                **inputs,
                max_new_tokens=max_new_tokens,
                repetition_penalty=1.0,
                num_return_sequences=num_samples,
                pad_token_id=self.tokenizer.pad_token_id,
                return_dict_in_generate=True,
                output_logits=return_logprobs,
                **sampling,
            )
        new_ids = output.sequences[:, inputs["input_ids"].shape[1] :]  # [prompts x samples, longest], padded
        decoded = self.tokenizer.batch_decode(new_ids, skip_special_tokens=True)
        result: dict[str, Any] = {"texts": [_cut(text, stop_sequences or []) for text in decoded]}
        result["token_ids"] = new_ids.tolist()
        if return_logprobs:
            steps = torch.stack(output.logits, dim=1).float().log_softmax(-1)
            chosen = steps.gather(2, new_ids[:, :, None])[:, :, 0]
            mask = new_ids != self.tokenizer.pad_token_id
            result["logprobs"] = [row[kept].tolist() for row, kept in zip(chosen, mask)]
        if use_cache:
            self.cache[key] = result
        return result

    def get_logits(self, prompts: list[str], responses: list[str]) -> Any:
        """[batch, longest response, vocabulary]; row t is what token t of the response was drawn from, zeros after."""
        ids = [self.tokenizer(self._render(prompt))["input_ids"] for prompt in prompts]
        answers = [self.tokenizer(r, add_special_tokens=False)["input_ids"] for r in responses]
        rows = []
        with torch.no_grad():
            for prompt_ids, answer_ids in zip(ids, answers):
                logits = self.model(torch.tensor([prompt_ids + answer_ids])).logits[0].float()
                rows.append(logits[len(prompt_ids) - 1 : -1])
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def get_logprobs(self, prompts: list[str], responses: list[str]) -> list[list[float]]:
        """Of each token of each response."""
        answers = [self.tokenizer(r, add_special_tokens=False)["input_ids"] for r in responses]
        scores = self.get_logits(prompts, responses).log_softmax(-1)
        return [[row[t, i].item() for t, i in enumerate(answer)] for row, answer in zip(scores, answers)]

    def batch_generate_with_tools(
        self, prompts: list[Any], tools: list[dict[str, Any]], max_new_tokens: int = 64
    ) -> list[dict[str, Any]]:
        texts = self.generate(prompts, max_new_tokens=max_new_tokens, tools=tools)["texts"]
        return [{"text": text, "tool_calls": self.parse_tool_calls(text)} for text in texts]

    def parse_tool_calls(self, text: str) -> list[dict[str, Any]]:
        for parse in (_tagged_calls, _xml_calls, _json_calls, _python_calls):
            if calls := parse(text):
                return calls
        return []

    def clear_cache(self) -> None:
        self.cache.clear()
        self.cache_hits = 0


def _cut(text: str, stops: list[str]) -> str:
    """Before the stop that begins first."""
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text


def _call(name: str, arguments: Any, match: re.Match[str]) -> dict[str, Any]:
    span = {"raw_text": match.group(0), "start": match.start(), "end": match.end()}
    return {"name": name, "arguments": arguments, **span}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _tagged_calls(text: str) -> list[dict[str, Any]]:
    calls = []
    for match in re.finditer(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", text, re.DOTALL):
        try:
            data = json.loads(match.group(1))
        except json.JSONDecodeError:
            continue
        calls.append(_call(data["name"], data["arguments"], match))
    return calls


def _xml_calls(text: str) -> list[dict[str, Any]]:
    calls = []
    for match in re.finditer(r'<invoke name="([^"]+)">(.*?)</invoke>', text, re.DOTALL):
        pairs = re.findall(r'<parameter name="([^"]+)">(.*?)</parameter>', match.group(2), re.DOTALL)
        calls.append(_call(match.group(1), {key: _value(value) for key, value in pairs}, match))
    return calls


def _json_calls(text: str) -> list[dict[str, Any]]:
    calls = []
    for match in re.finditer(r'\{\s*"name":\s*"([^"]+)",\s*"arguments":\s*(\{[^{}]*\})\s*\}', text):
        try:
            calls.append(_call(match.group(1), json.loads(match.group(2)), match))
        except json.JSONDecodeError:
            continue
    return calls


def _python_calls(text: str) -> list[dict[str, Any]]:
    calls = []
    for match in re.finditer(r"\b([A-Za-z_]\w*)\(((?:\w+=[^()]*)?)\)", text):
        pairs = re.findall(r"(\w+)=(\"[^\"]*\"|'[^']*'|[^,\s]+)", match.group(2))
        arguments = {key: value[1:-1] if value[0] in "\"'" else _value(value) for key, value in pairs}
        calls.append(_call(match.group(1), arguments, match))
    return calls


_modules: dict[str, InferenceModule] = {}


def create_inference_module(model_path: str, device: str = "cpu") -> InferenceModule:
    if model_path not in _modules:
        _modules[model_path] = InferenceModule(model_path, device)
    return _modules[model_path]


def generate(model_path: str, prompts: list[Any], **options: Any) -> dict[str, Any]:
    return create_inference_module(model_path).generate(prompts, **options)


def repeated(model_path: str, prompts: list[Any], times: int = 2, clear: bool = False) -> dict[str, Any]:
    """The same call several times over the cache: the last answer, and how many prompts the cache served."""
    module = create_inference_module(model_path)
    module.clear_cache()
    for _ in range(times):
        texts = module.generate(prompts, use_cache=True)["texts"]
    hits = module.cache_hits
    if clear:
        module.clear_cache()
        module.generate(prompts, use_cache=True)
        hits = module.cache_hits
    return {"texts": texts, "hits": hits}


def logprobs(model_path: str, prompts: list[str], responses: list[str]) -> list[list[float]]:
    return create_inference_module(model_path).get_logprobs(prompts, responses)


def logits(model_path: str, prompts: list[str], responses: list[str]) -> dict[str, Any]:
    """What fits on a page: the shape, and for each position the best token and its logit."""
    scores = create_inference_module(model_path).get_logits(prompts, responses)
    return {"shape": list(scores.shape), "best": scores.argmax(-1).tolist(), "top": scores.max(-1).values.tolist()}


def tools(model_path: str, prompts: list[Any], tools: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    return create_inference_module(model_path).batch_generate_with_tools(prompts, tools, **options)


def parse(model_path: str, text: str) -> list[dict[str, Any]]:
    return create_inference_module(model_path).parse_tool_calls(text)
