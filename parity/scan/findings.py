"""What may change results without anybody noticing, in order of harm."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from parity.scan.blocks import function_text
from parity.scan.facts import Facts
from parity.scan.groups import Group, comparable
from parity.scan.index import called_name, dotted_name, start_of
from parity.scan.origins import Fact, fact_of, not_said
from parity.scan.prompt_facts import TOKENIZER_CONFIG
from parity.scan.site import ScannedBlock
from parity.scan.values import Literal, plain

DRIFT_HARM = {
    "do_sample": 90, "enable_thinking": 78, "padding_side": 74, "template": 72, "temperature": 66,
    "dtype": 56,
    "max_new_tokens": 54, "skip_special_tokens": 52, "repetition_penalty": 50, "prompt_slice": 48,
    "stop": 46,
    "num_beams": 45, "top_p": 44, "top_k": 42, "add_generation_prompt": 60, "quantization": 40,
    "truncation": 36,
    "cuts_by_hand": 34, "strip": 32, "n": 30, "logprobs": 28, "prompt_logprobs": 28,
    "attn": 26, "trust_remote_code": 12, "pad_token": 10,
}  # fmt: skip


@dataclass
class Finding:
    """rule: its name. harm: 1 to 100. places: "file:line" of the blocks. key: its name in a
    baseline."""

    rule: str
    harm: int
    message: str
    fix: str
    places: list[str] = field(default_factory=list)
    group: str = ""
    key: str = ""


@dataclass(frozen=True)
class Rule:
    name: str
    harm: int
    message: str
    fix: str
    applies: Callable[[ScannedBlock, Facts], bool]


# == Conditions on one block ==


def number(fact: Fact) -> float | None:
    is_number = isinstance(fact.value, (int, float)) and not isinstance(fact.value, bool)
    return float(fact.value) if fact.is_literal and is_number else None


def is_hf(block: ScannedBlock) -> bool:
    return block.library in ("transformers", "pipeline") and not block.block.is_remote


def is_batched(block: ScannedBlock) -> bool:
    batch = block.facts["batch"]
    return batch.text == "many" or (isinstance(batch.value, int) and batch.value > 1)


def pads_on_unsaid_side(block: ScannedBlock, facts: Facts) -> bool:
    is_causal = (
        block.library == "transformers"
        and block.kind in ("text", "vlm")
        and not block.block.is_remote
    )
    return is_causal and is_batched(block) and block.facts["padding_side"] == TOKENIZER_CONFIG


def pads_right(block: ScannedBlock, facts: Facts) -> bool:
    is_causal = block.library == "transformers" and block.kind in ("text", "vlm")
    side = block.facts["padding_side"]
    return is_causal and is_batched(block) and side.is_literal and side.value == "right"


def has_idle_temperature(block: ScannedBlock, facts: Facts) -> bool:
    """Greedy is said, and a temperature beside it."""
    sample, temperature = block.facts["do_sample"], block.facts["temperature"]
    value = number(temperature)
    if not is_hf(block) or not (sample.is_literal and sample.value is False):
        return False
    return value is not None and value not in (0.0, 1.0)


def has_undecided_temperature(block: ScannedBlock, facts: Facts) -> bool:
    """A temperature is said, and not whether to sample."""
    sample, temperature = block.facts["do_sample"], block.facts["temperature"]
    value = number(temperature)
    is_given = temperature.is_said and (value is None or value > 0)
    return is_hf(block) and sample.source.startswith("not said") and is_given


def samples_at_zero(block: ScannedBlock, facts: Facts) -> bool:
    return (
        is_hf(block)
        and block.facts["do_sample"].value is True
        and number(block.facts["temperature"]) == 0
    )


def narrows_nothing(block: ScannedBlock, facts: Facts) -> bool:
    """top_k or top_p, and greedy."""
    sample = block.facts["do_sample"]
    is_greedy = sample.is_literal and sample.value is False
    top_p, top_k = number(block.facts["top_p"]), number(block.facts["top_k"])
    is_narrow = (top_p is not None and top_p < 1) or (top_k is not None and top_k > 1)
    return block.library in ("transformers", "pipeline", "vllm") and is_greedy and is_narrow


def has_hidden_top_k(block: ScannedBlock, facts: Facts) -> bool:
    sample = block.facts["do_sample"]
    return (
        is_hf(block)
        and sample.value is True
        and sample.is_literal
        and block.facts["top_k"].source.startswith("not said")
    )


def has_default_budget(block: ScannedBlock, facts: Facts) -> bool:
    is_unsaid = block.facts["max_new_tokens"].source.startswith("not said")
    return block.library == "transformers" and is_unsaid and not block.block.is_remote


def has_sixteen_tokens(block: ScannedBlock, facts: Facts) -> bool:
    return block.library == "vllm" and block.facts["max_new_tokens"].source == "not said: vLLM (16)"


def counts_prompt(block: ScannedBlock, facts: Facts) -> bool:
    return "prompt included" in block.facts["max_new_tokens"].text


def renders_without_opening(block: ScannedBlock, facts: Facts) -> bool:
    """A chat template without the header of the answer."""
    fact = block.facts["add_generation_prompt"]
    is_off = fact.source == "not said: the library (False)" or (
        fact.is_literal and fact.value is False
    )
    call = facts.template_call
    if call is None or not is_off or block.library not in ("transformers", "vllm"):
        return False
    text = ast.unparse(call[0])
    return "continue_final_message" not in text and call[1] in facts.around.near


def doubles_bos(block: ScannedBlock, facts: Facts) -> bool:
    """A rendered chat is given to a tokenizer that surely adds the BOS once more."""
    return tokenizes_rendered_chat(block, facts) and any(facts.doubled_bos)


def may_double_bos(block: ScannedBlock, facts: Facts) -> bool:
    """A rendered chat is given to a tokenizer of which nobody here knows whether it adds a BOS."""
    return (
        tokenizes_rendered_chat(block, facts)
        and not any(facts.doubled_bos)
        and (None in facts.doubled_bos or not facts.doubled_bos)
    )


def tokenizes_rendered_chat(block: ScannedBlock, facts: Facts) -> bool:
    """Whether a chat is rendered as text and given to something that adds special tokens."""
    call = facts.template_call
    if (
        call is None
        or block.kind not in ("text", "vlm")
        or "tokenize" not in {k.arg for k in call[0].keywords}
    ):
        return False
    settings = facts.evaluator.keywords(call[0], facts.evaluator.frame(call[1])).entries
    if plain_value(settings.get("tokenize")) is not False or call[1] not in facts.around.near:
        return False
    if block.library == "vllm":
        return block.block.form == "generate"
    if block.library != "transformers":
        return False
    later = [
        e
        for e in facts.encodings
        if called_name(e.node) != "apply_chat_template" and e.thing.kind != "processor"
    ]
    return bool(later) and all(
        "add_special_tokens" not in encoding.settings.entries for encoding in later
    )


def plain_value(value: object) -> object:
    inner = plain(value) if value is not None else None  # type: ignore[arg-type]
    return inner.value if isinstance(inner, Literal) else None


def keeps_special_tokens(block: ScannedBlock, facts: Facts) -> bool:
    return (
        block.library == "transformers"
        and block.facts["skip_special_tokens"].source == "not said: the library (False)"
    )


def slices_text(block: ScannedBlock, facts: Facts) -> bool:
    return block.library == "transformers" and block.facts["prompt_slice"].value == "by_text"


def casts_after_load(block: ScannedBlock, facts: Facts) -> bool:
    """A cast after the load that gives another dtype than the load was given."""
    for load in block.block.thing.loads:
        first = facts.from_load(load, "torch_dtype", "dtype")
        casts = [cast for cast in map(facts.cast_of, load.effects) if cast is not None]
        if first is None or not casts:
            continue
        before, after = fact_of(first, not_said("")), fact_of(casts[-1], not_said(""))
        if (
            before.is_literal
            and after.is_literal
            and before.value != after.value
            and before.value != "auto"
        ):
            return True
    return False


def casts_tokenizer(block: ScannedBlock, facts: Facts) -> bool:
    for load in facts.tokenizer.loads if facts.tokenizer.kind == "tokenizer" else ():
        if {"torch_dtype", "dtype"} & set(load.settings.entries):
            return True
    return False


def has_idle_criterion(block: ScannedBlock, facts: Facts) -> bool:
    """A stopping criterion is built in the function and not used."""
    scope = block.block.scope
    if (
        block.library != "transformers"
        or not scope.qualname
        or "riteria" not in function_text(scope)
    ):
        return False
    for name, bindings in scope.bindings.items():
        for binding in bindings:
            value = binding.value
            is_criterion = isinstance(value, ast.Call) and "Criteria" in dotted_name(value.func)
            if is_criterion and not is_used(name, block, binding.position):
                return True
    return False


def is_used(name: str, block: ScannedBlock, since: tuple[int, int]) -> bool:
    for node in ast.walk(block.block.scope.node):
        if dotted_name(node) == name and start_of(node) > since:
            return True
    return False


def samples_unseeded(block: ScannedBlock, facts: Facts) -> bool:
    sample = block.facts["do_sample"]
    return (
        sample.is_literal
        and sample.value is True
        and block.facts["seed"].source.startswith("not said: nobody")
    )


def gives_no_mask(block: ScannedBlock, facts: Facts) -> bool:
    """Ids alone, of a padded batch."""
    call = block.block.node
    if (
        block.library != "transformers"
        or not is_batched(block)
        or block.block.is_remote
        or block.kind == "seq2seq"
    ):
        return False
    names = {keyword.arg for keyword in call.keywords}
    text = ast.unparse(call.args[0]) if call.args else ""
    is_ids = re.search(r"input_ids", text) is not None or "input_ids" in names
    return is_ids and "attention_mask" not in names and None not in names


ADD_NO_BOS = "add_special_tokens=False, or apply_chat_template(tokenize=True)"
RULES = (
    Rule(
        "pads-right", 95, "a decoder-only model is padded on the right in a batch",
        "padding_side='left'", pads_right,
    ),
    Rule(
        "vllm-default-budget", 92, "no max_tokens: vLLM ends each answer after 16 tokens",
        "set max_tokens", has_sixteen_tokens,
    ),
    Rule(
        "padding-side-not-said", 85,
        "padding side is not said beside a batch: the checkpoint's tokenizer decides",
        "padding_side='left'", pads_on_unsaid_side,
    ),
    Rule(
        "sampling-at-zero", 82, "do_sample=True at temperature 0: transformers refuses it",
        "do_sample=False, and no temperature", samples_at_zero,
    ),
    Rule(
        "default-budget", 76, "no budget: 20 tokens, unless the checkpoint says otherwise",
        "set max_new_tokens", has_default_budget,
    ),
    Rule(
        "temperature-undecided", 73,
        "a temperature is given and do_sample is not: no effect unless the checkpoint samples",
        "set do_sample", has_undecided_temperature,
    ),
    Rule(
        "idle-criterion", 71, "a stopping criterion is built and not passed",
        "pass it, or delete it", has_idle_criterion,
    ),
    Rule(
        "idle-temperature", 68, "a temperature beside do_sample=False has no effect",
        "delete it, or sample", has_idle_temperature,
    ),
    Rule(
        "doubled-bos", 67,
        "the chat template of this checkpoint writes a BOS, and its tokenizer adds one: prompts"
        " begin with two", ADD_NO_BOS, doubles_bos,
    ),
    Rule(
        "no-attention-mask", 64, "a padded batch without its attention mask",
        "give the tokenizer's output as **inputs", gives_no_mask,
    ),
    Rule(
        "no-generation-prompt", 62, "the chat is rendered without the header of an answer",
        "add_generation_prompt=True", renders_without_opening,
    ),
    Rule(
        "counts-prompt", 60, "max_length counts the prompt: a long prompt leaves no room",
        "max_new_tokens", counts_prompt,
    ),
    Rule(
        "cast-after-load", 58, "the dtype of the load is overridden by a cast behind it",
        "load in the dtype that you want", casts_after_load,
    ),
    Rule(
        "hidden-top-k", 50,
        "do_sample=True without top_k: that of the checkpoint holds, or else 50",
        "set top_k (0 is off)", has_hidden_top_k,
    ),
    Rule(
        "idle-top", 42, "top_k or top_p beside greedy decoding has no effect",
        "delete it, or sample", narrows_nothing,
    ),
    Rule(
        "slices-text", 40,
        "the prompt is cut off the text by its length or words: decoding need not give it back",
        "cut ids: output[:, input_ids.shape[1]:]", slices_text,
    ),
    Rule(
        "special-tokens-kept", 36,
        "skip_special_tokens is not said: EOS and padding stay in the text",
        "set skip_special_tokens", keeps_special_tokens,
    ),
    Rule(
        "perhaps-doubled-bos", 30,
        "only where the tokenizer adds a BOS and the chat template writes one, as those of Llama 3"
        " and Gemma: a chat that is rendered as text, then tokenized, begins with two",
        ADD_NO_BOS, may_double_bos,
    ),
    Rule("unseeded", 24, "it samples, and nothing seeds it", "set a seed", samples_unseeded),
    Rule(
        "dtype-of-tokenizer", 20, "a dtype is given to a tokenizer, which has none",
        "delete it", casts_tokenizer,
    ),
)  # fmt: skip


def block_findings(blocks: Sequence[tuple[ScannedBlock, Facts]]) -> Iterator[Finding]:
    """One finding for each rule that applies, with all places."""
    for rule in RULES:
        places = [block.place for block, facts in blocks if rule.applies(block, facts)]
        if places:
            yield Finding(rule.name, rule.harm, rule.message, rule.fix, places, key=rule.name)


# == Drift ==


def drift_message(group: Group, fact: str) -> str:
    """ "do_sample differs among 5 siblings: True in 3, not said in 2" """
    counts: dict[str, list[str]] = {}
    for block in group.blocks:
        own = block.facts[fact]
        text = "computed" if comparable(own) is None else str(own) if own.is_said else "not said"
        counts.setdefault(text, []).append(block.place)
    parts = [
        f"{text} in {len(places)}"
        for text, places in sorted(counts.items(), key=lambda item: -len(item[1]))
    ]
    more = f", … {len(parts) - 4} more" if len(parts) > 4 else ""
    count = f"{len(group.blocks)} siblings of {group.name}"
    return f"{fact} differs among {count}: {', '.join(parts[:4])}{more}"


def odd_places(group: Group, fact: str) -> list[str]:
    """The blocks outside the majority; all, where there is none."""
    odd = [block.place for block in group.blocks if group.is_odd(block, fact)]
    return odd or [block.place for block in group.blocks]


def drift_key(group: Group, fact: str) -> str:
    """What a drift is known by: it changes when a block with another value joins."""
    values = sorted(f"{block.key}={comparable(block.facts[fact])}" for block in group.blocks)
    return f"{fact}: " + "; ".join(values)


def drift_findings(groups: Sequence[Group]) -> Iterator[Finding]:
    for group in groups:
        for fact in group.differing:
            if fact in DRIFT_HARM:
                yield Finding(
                    rule=f"drift-{fact}",
                    harm=DRIFT_HARM[fact],
                    message=drift_message(group, fact),
                    fix="set it alike, or say why it differs",
                    places=odd_places(group, fact),
                    group=group.name,
                    key=drift_key(group, fact),
                )


def find_all(
    blocks: Sequence[tuple[ScannedBlock, Facts]], groups: Sequence[Group]
) -> list[Finding]:
    found = [*block_findings(blocks), *drift_findings(groups)]
    return sorted(found, key=lambda finding: (-finding.harm, -len(finding.places), finding.rule))
