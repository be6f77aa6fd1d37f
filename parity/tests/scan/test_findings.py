"""What is said without effect, what is left to others, and what drifts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.tests.scan.material import LOAD, scan_text, scan_texts
from parity.tests.scan.test_groups import copies

BATCH = (
    LOAD
    + "texts = [a, b]\nx = tokenizer(texts, padding=True)\nout = model.generate({})\n"
    + "tokenizer.batch_decode(out, skip_special_tokens=True)"
)
VLLM = "from vllm import LLM, SamplingParams\nllm = LLM('m')\nllm.generate(p, {})"
CRITERION = (
    LOAD
    + """
from transformers import StoppingCriteriaList
def f(x):
    stops = StoppingCriteriaList([Stop()])
    return model.generate(**inputs, max_new_tokens=3{})
"""
)
CHAT = (
    LOAD
    + """
def f(m):
    text = tokenizer.apply_chat_template(m, tokenize=False{})
    x = tokenizer(text{})
    return model.generate(**inputs, max_new_tokens=3)
"""
)
RIGHT = "tokenizer.padding_side = 'right'\n"


def rules(code: str) -> set[str]:
    return {finding.rule for finding in scan_text(code).findings}


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (
            "temperature-undecided",
            LOAD + "model.generate(**inputs, temperature=0.7)",
            LOAD + "model.generate(**inputs, temperature=0.7, do_sample=True)",
        ),
        (
            "idle-temperature",
            LOAD + "model.generate(**inputs, temperature=0.7, do_sample=False)",
            LOAD + "model.generate(**inputs, temperature=None, do_sample=False)",
        ),
        (
            "sampling-at-zero",
            LOAD + "model.generate(**inputs, temperature=0, do_sample=True)",
            LOAD + "model.generate(**inputs, temperature=0, do_sample=False)",
        ),
        (
            "idle-top",
            LOAD + "model.generate(**inputs, top_k=5, do_sample=False)",
            LOAD + "model.generate(**inputs, top_k=5, do_sample=True)",
        ),
        (
            "idle-top",
            VLLM.format("SamplingParams(temperature=0, top_k=5)"),
            VLLM.format("SamplingParams(temperature=1, top_k=5)"),
        ),
        (
            "hidden-top-k",
            LOAD + "model.generate(**inputs, do_sample=True)",
            LOAD + "model.generate(**inputs, do_sample=True, top_k=0)",
        ),
        ("default-budget", LOAD + "model.generate(**inputs)", LOAD + "model.generate(**inputs, max_new_tokens=3)"),
        (
            "vllm-default-budget",
            VLLM.format("SamplingParams(temperature=0)"),
            VLLM.format("SamplingParams(max_tokens=5)"),
        ),
        (
            "counts-prompt",
            LOAD + "model.generate(**inputs, max_length=99)",
            LOAD + "model.generate(**inputs, max_new_tokens=99)",
        ),
        (
            "padding-side-not-said",
            BATCH.format("**x"),
            "",
        ),
        ("pads-right", BATCH.format("**x").replace("texts =", RIGHT + "texts ="), BATCH.format("**x")),
        (
            "no-attention-mask",
            BATCH.format("x.input_ids"),
            BATCH.format("x.input_ids, attention_mask=x.attention_mask"),
        ),
        ("idle-criterion", CRITERION.format(""), CRITERION.format(", stopping_criteria=stops")),
        ("no-generation-prompt", CHAT.format("", ""), CHAT.format(", add_generation_prompt=True", "")),
        ("perhaps-doubled-bos", CHAT.format("", ""), CHAT.format("", ", add_special_tokens=False")),
        ("perhaps-doubled-bos", CHAT.format("", ""), CHAT.format("", "").replace('"m"', '"Qwen/Qwen3-8B"')),
        (
            "cast-after-load",
            LOAD.replace("('m')", "").replace(
                'AutoModelForCausalLM.from_pretrained("m")',
                'AutoModelForCausalLM.from_pretrained("m", torch_dtype=torch.bfloat16).half()',
            )
            + "model.generate(**inputs)",
            LOAD + "model.generate(**inputs)",
        ),
        (
            "dtype-of-tokenizer",
            LOAD.replace('AutoTokenizer.from_pretrained("m")', 'AutoTokenizer.from_pretrained("m", torch_dtype="auto")')
            + "x = tokenizer(q)\nmodel.generate(**inputs)",
            LOAD + "x = tokenizer(q)\nmodel.generate(**inputs)",
        ),
        (
            "unseeded",
            LOAD + "model.generate(**inputs, do_sample=True)",
            LOAD + "torch.manual_seed(1)\nmodel.generate(**inputs, do_sample=True)",
        ),
    ],
)
def test_find_all_a_rule_applies_where_it_should(rule: str, bad: str, good: str) -> None:
    assert rule in rules(bad)
    assert rule not in rules(good)


def test_find_all_drift_names_values_and_the_odd_one() -> None:
    found = scan_texts(
        copies(
            "do_sample=False, max_new_tokens=3", "do_sample=False, max_new_tokens=3", "do_sample=True, max_new_tokens=3"
        )
    )
    [drift] = found.drifts
    assert drift.message == "do_sample differs among 3 siblings of ask: False in 2, True in 1"
    assert drift.places == ["app/a2.py:10"]


def test_find_all_the_worst_stands_first() -> None:
    found = scan_text(BATCH.format("**x, max_new_tokens=3, do_sample=True"))
    harms = [finding.harm for finding in found.findings]
    assert harms == sorted(harms, reverse=True) and len(harms) > 2


def test_padding_side_that_whoever_makes_the_tokenizer_decides_is_not_left_to_the_checkpoint() -> None:
    body = BATCH.partition("texts")
    inside = "".join(f"    {line}\n" for line in (body[1] + body[2]).format("**x").split("\n"))
    assert "padding-side-not-said" in rules(BATCH.format("**x"))
    assert "padding-side-not-said" not in rules(f"def run(model, tokenizer, a, b):\n{inside}")


FAST = {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}}


@pytest.mark.parametrize(
    ("config", "tokenizer", "expected"),
    [
        ({"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages }}"}, FAST, {"doubled-bos"}),
        ({"bos_token": {"content": "<s>"}, "chat_template": "<s>{{ messages }}"}, FAST, {"doubled-bos"}),
        ({"bos_token": "<s>", "add_bos_token": True, "chat_template": "<s>[INST]"}, {}, {"doubled-bos"}),
        ({"bos_token": "<s>", "add_bos_token": False, "chat_template": "<s>[INST]"}, FAST, set()),
        ({"bos_token": "<s>", "chat_template": "{{ messages }}"}, FAST, set()),
        ({"bos_token": "<s>", "chat_template": "<s>[INST]"}, {"post_processor": None}, set()),
        ({"bos_token": None, "chat_template": "<s>[INST]"}, FAST, set()),
        ({"chat_template": "<s>[INST]"}, {}, set()),
        ({"bos_token": "<s>", "chat_template": "<s>[INST]"}, {}, {"perhaps-doubled-bos"}),
    ],
)
def test_doubled_bos_of_a_checkpoint_that_is_here_is_read_from_its_files(
    config: dict[str, object], tokenizer: dict[str, object], expected: set[str], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if tokenizer:
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    code = CHAT.format("", "").replace('"m"', repr(str(tmp_path)))
    assert {rule for rule in rules(code) if rule.endswith("doubled-bos")} == expected


def test_doubled_bos_of_a_broken_checkpoint_stays_a_condition(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("[")
    assert "perhaps-doubled-bos" in rules(CHAT.format("", "").replace('"m"', repr(str(tmp_path))))


def test_doubled_bos_is_a_condition_and_no_claim_where_the_tokenizer_is_not_known() -> None:
    [finding] = [f for f in scan_text(CHAT.format("", "")).findings if f.rule == "perhaps-doubled-bos"]
    assert finding.message.startswith("only where the tokenizer adds a BOS")
    assert finding.harm < 40


def test_unseeded_is_not_said_of_vllm_whose_engine_has_a_seed() -> None:
    assert "unseeded" not in rules(VLLM.format("SamplingParams(temperature=1)"))
    assert "unseeded" not in rules(
        "from vllm import SamplingParams\ndef f(llm):\n    llm.generate(p, SamplingParams(temperature=1))"
    )
