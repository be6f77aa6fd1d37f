"""Numbers of a policy-gradient loss, turns by ids, and the GRPO steps of rl.md."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from typing import Any

import pytest

from gen_engine import GenerationResult, OptionError, RequestError
from parity.companions import rl
from parity.companions.rl import (
    Episode,
    clipped_loss,
    clipped_tokens,
    continuation_ids,
    group_advantages,
    importance_ratio,
    rollout_weights,
)

from ..conftest import ROOT, TEXT, Load, chat

PAGE = ROOT / "parity/companions/rl.md"
NEW, OLD = [-1.0, -2.0, -0.5], [-1.5, -1.0, -0.5]
GAPS = [0.5, -1.0, 0.0]


def test_importance_ratio_is_by_token_or_by_the_mean_of_the_sequence() -> None:
    assert importance_ratio(NEW, OLD).tolist() == pytest.approx([math.exp(gap) for gap in GAPS])
    assert importance_ratio(NEW, OLD, "sequence").tolist() == pytest.approx([math.exp(sum(GAPS) / 3)] * 3)


@pytest.mark.parametrize(
    ("new", "old"), [([-1.0], [-1.0, -2.0]), ([], []), ([math.nan], [-1.0]), ([-1.0], [-math.inf])], ids=repr
)
def test_importance_ratio_of_other_tokens_or_no_numbers_is_refused(new: Any, old: Any) -> None:
    with pytest.raises(RequestError):
        importance_ratio(new, old)


def test_names_and_bounds_that_are_unknown_are_refused() -> None:
    with pytest.raises(OptionError, match="no level 'tokens'"):
        importance_ratio(NEW, OLD, "tokens")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no mode 'token'"):
        rollout_weights(NEW, OLD, "token", high=2.0)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="low is 3.0, high 2.0"):
        rollout_weights(NEW, OLD, low=3.0, high=2.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_clipped_loss_has_gradient_only_where_nothing_is_clipped(advantage: float) -> None:
    """As TRL computes `per_token_loss` and its clip ratios."""
    torch = importlib.import_module("torch")
    ratio = torch.tensor([0.7, 0.9, 1.1, 1.4], requires_grad=True)
    losses = clipped_loss(ratio, advantage, 0.2, 0.3)
    expected = [-min(r * advantage, min(max(r, 0.8), 1.3) * advantage) for r in ratio.tolist()]
    assert losses.tolist() == pytest.approx(expected)
    losses.sum().backward()
    low, high = clipped_tokens(ratio, advantage, 0.2, 0.3)
    assert (ratio.grad == 0).tolist() == ((low | high) | (advantage == 0)).tolist()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [1.5, math.exp(-1.0), 1.0]),
        ("token_mask", [0.0, 0.0, 1.0]),
        ("sequence_truncate", [math.exp(-0.5)] * 3),
        ("sequence_mask", [math.exp(-0.5)] * 3),
        ("geometric_mask", [math.exp(gap) for gap in GAPS]),
        ("worst_token_mask", [0.0, 0.0, 0.0]),
    ],
)
def test_rollout_weights_of_each_mode(mode: Any, expected: list[float]) -> None:
    assert rollout_weights(NEW, OLD, mode, high=1.5, low=0.4).tolist() == pytest.approx(expected)


def test_rollout_weights_of_a_whole_answer_outside_are_zero() -> None:
    for mode in ("sequence_mask", "geometric_mask"):
        assert rollout_weights(NEW, OLD, mode, high=1.5, low=0.9).tolist() == [0.0] * 3


def test_rollout_weights_carry_no_gradient() -> None:
    torch = importlib.import_module("torch")
    assert not rollout_weights(torch.tensor(NEW, requires_grad=True), OLD, high=2.0).requires_grad


def test_group_advantages_are_those_of_trl() -> None:
    rewards = [0.0, 1.0, 1.0, 0.0]
    assert group_advantages(rewards) == pytest.approx(
        [gap / (math.sqrt(1 / 3) + 1e-4) for gap in (-0.5, 0.5, 0.5, -0.5)]
    )
    assert group_advantages(rewards, scale=False) == [-0.5, 0.5, 0.5, -0.5]
    assert group_advantages([1.0, 1.0]) == [0.0, 0.0]
    with pytest.raises(RequestError, match="two or more"):
        group_advantages([1.0])


def known(result: GenerationResult) -> tuple[float, ...]:
    return result.logprobs or ()


TOOL = {"role": "tool", "content": "4"}


def test_episode_goes_on_with_the_sampled_ids(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    options = {"max_new_tokens": 24, "logprobs": 0}
    [first] = engine.generate_text_batch([chat("Count to 5.")], options)
    episode = Episode.of(first)
    request = episode.request(engine, [TOOL])
    assert request["prompt_token_ids"][: len(episode.token_ids)] == episode.token_ids
    rendered = engine.render([*chat("Count to 5.")["messages"], {"role": "assistant", "content": first.text}, TOOL])
    text = engine.tokenizer.decode(request["prompt_token_ids"], skip_special_tokens=False)
    assert text.endswith(rendered[rendered.rindex(first.text) :]), "what the template writes behind the answer, once"
    [second] = engine.generate_text_batch([request], options)
    whole = episode.extended(second)
    assert whole.token_ids == (*second.prompt_token_ids, *second.token_ids)
    assert sum(whole.sampled) == first.completion_tokens + second.completion_tokens
    assert [value for value, own in zip(whole.logprobs, whole.sampled) if own] == [*known(first), *known(second)]
    assert [i for i, own in zip(whole.token_ids, whole.sampled) if own] == [*first.token_ids, *second.token_ids]


def test_what_stands_behind_an_answer_begins_with_no_bos(shared: Load) -> None:
    engine = shared(ROOT / "golden/models/random-llama", "hf", max_model_len=512)
    bos = engine.tokenizer.bos_token_id
    assert engine.tokenizer("a")["input_ids"][0] == bos
    assert continuation_ids(engine, [{"role": "user", "content": "Go on."}])[0] != bos


def test_episode_of_an_answer_that_was_cut_closes_it(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    [first] = engine.generate_text_batch([chat("Count to 5.")], {"max_new_tokens": 3})
    request = Episode.of(first).request(engine, [{"role": "user", "content": "Go on."}])
    assert request["prompt_token_ids"][len(Episode.of(first).token_ids)] in engine.checkpoint.eos_ids


def test_episode_with_an_answer_to_a_prompt_that_was_tokenized_again_is_refused(shared: Load) -> None:
    engine = shared(TEXT, "hf")
    [first] = engine.generate_text_batch([chat("Count to 5.")], {"max_new_tokens": 3})
    again = [*chat("Count to 5.")["messages"], {"role": "assistant", "content": "Other."}, TOOL]
    [second] = engine.generate_text_batch([{"messages": again}], {"max_new_tokens": 3})
    with pytest.raises(RequestError, match="ids part at .* history was tokenized again"):
        Episode.of(first).extended(second)


BLOCKS = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["hf", "vllm"])
def test_a_step_of_the_page_runs_and_moves_the_weights(
    block: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(block.splitlines()) <= 40
    monkeypatch.chdir(ROOT)
    exec(compile(block, PAGE.name, "exec"), {"__name__": "page"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    versions = [re.split("version |of ", line)[-1] for line in lines]
    assert versions[0] == "None" and len(set(versions)) == 3
    assert all(float(re.search("gradient ([^,]*)", line)[1]) > 0 for line in lines)  # type: ignore[index]
    if "mismatch" in lines[0]:
        assert all(float(re.search("mismatch ([^,]*)", line)[1]) < 1e-4 for line in lines)  # type: ignore[index]


def test_the_page_says_every_mode(tmp_path: Path) -> None:
    assert set(rl.MODES) == {row.split("|")[1].strip() for row in (rl.rollout_weights.__doc__ or "").splitlines()
                             if row.strip().startswith("|") and "here" not in row}  # fmt: skip
