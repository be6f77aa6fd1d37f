"""Raw prompts and chats, samples, scores, tools and the texts that tool calls are parsed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.models.tasks import TOOLS

MODEL = "golden/models/tiny-qwen3"
DIFFERS: dict[str, str] = {}
SAMPLED = frozenset({"several-samples"})  # other draws of the same distribution: one generator served all rows


def raw(question: str) -> str:
    """A chat as its template would write it."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def chat(question: str, system: str | None = None) -> list[dict[str, str]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    return [*head, {"role": "user", "content": question}]


FRANCE, COUNT, ODD, DIE = (
    "What is the capital of France?", "Count to 7.", "Is 17 even?", "Throw a die five times.",
)  # fmt: skip
PARIS, ROME, OSLO = "The capital of France is Paris.", "The capital of France is Rome.", "What is the weather in Oslo?"


def cases(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    def case(name: str, function: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        return name, function, {"model_path": MODEL, **arguments}

    def parse(name: str, text: str) -> tuple[str, str, dict[str, Any]]:
        return case(name, "parse", text=text)

    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    weather = [
        *chat(OSLO),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "get_weather", "content": '{"weather": "snowy"}'},
    ]
    return [
        case("raw-prompt", "generate", prompts=[raw(FRANCE)]),
        case("raw-and-chat", "generate", prompts=[raw(ODD), chat(FRANCE)]),
        case("two-prompt-lengths", "generate", prompts=[chat(FRANCE), chat("Name two fruits.")]),
        case("one-new-token", "generate", prompts=[raw(FRANCE), raw(ODD)], max_new_tokens=1),
        case("cut-by-length", "generate", prompts=[raw(COUNT), raw(ODD)], max_new_tokens=6),
        case("stop-at-position-0", "generate", prompts=[raw(FRANCE)], stop_sequences=["The"]),
        case("stop-in-the-middle", "generate", prompts=[raw(COUNT), raw(FRANCE)], stop_sequences=[", 4"]),
        case("two-stops", "generate", prompts=[raw(COUNT)], stop_sequences=["3, 4", ", 4"]),
        case("two-stops-other-order", "generate", prompts=[raw(COUNT)], stop_sequences=[", 4", "3, 4"]),
        case("blanks-at-the-end", "generate", prompts=[raw(FRANCE) + "The capital of France"], max_new_tokens=8),
        case("special-token-inside", "generate", prompts=[raw(FRANCE) + PARIS + "<|im_end|>\n" + raw(ODD)]),
        case("empty-system", "generate", prompts=[chat(FRANCE, "")]),
        case("with-logprobs", "generate", prompts=[raw(FRANCE), raw(ODD)], return_logprobs=True),
        case("cold-samples", "generate", prompts=[raw(FRANCE)], temperature=0.05, num_samples=2, seed=4),
        case("top-1-sample", "generate", prompts=[raw(FRANCE), raw(ODD)], temperature=1.5, top_k=1),
        case("sampled", "generate", prompts=[chat(DIE)], temperature=1.0, seed=21),
        case("several-samples", "generate", prompts=[chat(DIE)], temperature=0.8, top_p=0.9, num_samples=3, seed=8),
        case("from-the-cache", "repeated", prompts=[raw(FRANCE), raw(ODD)], times=3),
        case("cache-cleared", "repeated", prompts=[raw(ODD)], clear=True),
        case("logprobs", "logprobs", prompts=[raw(FRANCE), raw(FRANCE)], responses=[PARIS, ROME]),
        case("logprobs-of-one-token", "logprobs", prompts=[raw(ODD)], responses=["\n"]),
        case("logits", "logits", prompts=[raw(FRANCE), raw(ODD)], responses=["The capital", "17 is odd.\nVerdict: no"]),
        case("tool-call", "tools", prompts=[OSLO, "Use the tool to add 12 and 31."], tools=TOOLS),
        case("after-a-tool-result", "tools", prompts=[weather], tools=TOOLS),
        case("tool-call-cut-off", "tools", prompts=[OSLO], tools=TOOLS, max_new_tokens=12),
        parse("parse-two-tagged", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> then '
              '<tool_call>{"name": "g", "arguments": {}}</tool_call>'),
        parse("parse-json-in-prose", 'I will call {"name": "add", "arguments": {"a": 1, "b": [2, 3]}} now.'),
        parse("parse-invoke", '<function_calls>\n<invoke name="add"><parameter name="a">4</parameter>'
              '<parameter name="why">for tea</parameter></invoke>\n</function_calls>'),
        parse("parse-python", 'get_weather(city="Oslo", days=2)'),
        parse("parse-nothing", "There is nothing to call (really)."),
    ]  # fmt: skip
