"""Decisions: the probability of each named answer is that of plain transformers, on both backends."""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gen_engine
from gen_engine import GenEngineError, GenerationEngine, OptionError, RequestError, UnsupportedError
from parity.companions import decisions
from parity.companions.batch_files import answer_file
from parity.companions.decisions import Decision, Question, decide, label_logprobs, next_ids
from parity.goldens.store import Case
from parity.models.tasks import drawing
from parity.record.observe import Observer, Site

from ..conftest import TEXT, VL, Load, chat, open_engine
from ..engine.test_lora import make_adapter

CLOSE = 1e-5
PLAIN = chat("What is the capital of France?")
BEGUN = {"role": "assistant", "content": "The capital of France is"}
CAPITAL = {"messages": [*PLAIN["messages"], BEGUN], "continue_final": True}
COUNT = chat("Count to 12.")
JUDGE = {"type": "predicate", "labels": ["no", " Paris"]}
CITY = {"type": "choice", "choices": [" Paris", " Par", " Rome", " Berlin"]}  # " Par" begins " Paris"
NUMBER = {"type": "score", "levels": [{"label": str(k), "value": k} for k in range(1, 13)]}
ASKED = {"type": "choice", "instructions": "Which of these?", "choices": ["red", "blue", "dog"]}
QUESTIONS = [JUDGE, CITY, NUMBER, ASKED]


@functools.cache
def plain_model() -> Any:
    return importlib.import_module("transformers").AutoModelForCausalLM.from_pretrained(TEXT)


def chance(prompt: Sequence[int], label: Sequence[int]) -> float:
    """Of a text's ids behind a prompt, by plain transformers."""
    torch = importlib.import_module("torch")
    with torch.no_grad():
        logits = plain_model()(torch.tensor([[*prompt, *label]])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return math.exp(rows[range(len(label)), list(label)].sum().item())


def plain_chances(decision: Decision) -> list[float]:
    """Of each answer: that the text begins with its label, and with none that is longer."""
    labels = [ids for spellings in decision.label_ids for ids in spellings]
    found = []
    for spellings in decision.label_ids:
        total = 0.0
        for ids in spellings:
            total += chance(decision.prompt_token_ids, ids)
            for other in labels:
                if other != ids and other[: len(ids)] == ids:
                    total -= chance(decision.prompt_token_ids, other)
        found.append(total)
    return found


def test_probabilities_are_those_of_plain_transformers_on_both(text: GenerationEngine) -> None:
    made = decide(text, [CAPITAL, COUNT], QUESTIONS)
    assert [one.question.type for one in made] == ["predicate", "choice", "score", "choice"] * 2
    for one in made:
        chances = plain_chances(one)
        mass = sum(chances)
        assert [math.exp(logprob) for logprob in one.logprobs] == pytest.approx(chances, abs=CLOSE)
        assert one.label_mass == pytest.approx(mass, abs=CLOSE)
        assert one.probabilities == pytest.approx([p / mass for p in chances], abs=CLOSE / mass)


def test_a_label_that_begins_another_does_not_count_for_it(text: GenerationEngine) -> None:
    [city] = decide(text, [CAPITAL], [CITY])
    assert city.choice == " Paris" and city.label_mass > 0.9
    assert city.margin == pytest.approx(city.probabilities[0] - max(city.probabilities[1:]))


def test_reads_are_one_where_labels_begin_differently(text: GenerationEngine) -> None:
    """The cost that a decision says: one position, and one more for each token that labels share."""
    one_token = {"type": "choice", "choices": ["red", "blue", "no"]}
    [first, second] = decide(text, [CAPITAL], [one_token, {"type": "choice", "choices": ["1", "10"]}])
    assert (first.reads, second.reads) == (1, 2)


def model_inputs(engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Gets what each run of the model is given: on hf [rows, tokens], on vllm its number of tokens."""
    found: list[Any] = []
    if engine.backend.name == "hf":
        owner, name = engine.model, "forward"
    else:
        owner, name = engine.model.llm_engine.engine_core.engine_core.model_executor, "execute_model"
    run = getattr(owner, name)

    @functools.wraps(run)
    def watched(*args: Any, **kwargs: Any) -> Any:
        is_hf = engine.backend.name == "hf"
        found.append(tuple(kwargs["input_ids"].shape) if is_hf else args[0].total_num_scheduled_tokens)
        return run(*args, **kwargs)

    monkeypatch.setattr(owner, name, watched)
    return found


def test_labels_of_one_token_cost_what_one_new_token_costs(
    text: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [chat(f"Count to {number}.") for number in range(10, 34)]
    inputs = model_inputs(text, monkeypatch)
    text.generate_text_batch(chats, {"max_new_tokens": 1}, cache=False)
    of_token = list(inputs)
    inputs.clear()
    decide(text, chats, [{"type": "choice", "choices": ["1", "2", "3", "4"]}])
    assert inputs == of_token and of_token


def test_a_choice_is_what_the_engine_generates(text: GenerationEngine) -> None:
    """The position is that behind the chat template."""
    [result] = text.generate_text_batch([PLAIN], {"max_new_tokens": 8})
    [first] = decide(text, [PLAIN], [{"type": "choice", "choices": ["Paris", "The", "A"]}])
    assert result.text.startswith(str(first.choice)) and first.probability > 0.9
    assert first.prompt_token_ids == result.prompt_token_ids


def test_spellings_of_an_answer_are_added(text: GenerationEngine) -> None:
    question = {"type": "choice", "choices": ["a", "b"], "labels": [[" Paris", " Rome"], " Berlin"]}
    [joined] = decide(text, [CAPITAL], [question])
    [apart] = decide(text, [CAPITAL], [{"type": "choice", "choices": [" Paris", " Rome", " Berlin"]}])
    assert joined.probabilities[0] == pytest.approx(sum(apart.probabilities[:2]), abs=CLOSE)


def test_token_ids_are_labels_as_they_are(text: GenerationEngine) -> None:
    ids = text.tokenizer.encode(" Paris", add_special_tokens=False)
    question = {"type": "predicate", "labels": [ids, [5]]}
    [one] = decide(text, [CAPITAL], [question])
    assert one.label_ids == ((tuple(ids),), ((5,),)) and one.choice is True


def test_a_score_is_the_expected_value(text: GenerationEngine) -> None:
    [one] = decide(text, [COUNT], [NUMBER])
    assert one.score == pytest.approx(sum(k * p for k, p in zip(range(1, 13), one.probabilities)))
    [plain] = decide(text, [COUNT], [{"type": "score", "levels": ["1", "2"]}])
    assert plain.score == pytest.approx(plain.probabilities[1])


def test_temperature_flattens_and_content_free_divides(text: GenerationEngine) -> None:
    question = {"type": "choice", "choices": [" Paris", " Rome"]}
    [raw] = decide(text, [CAPITAL], [question])
    [flat] = decide(text, [CAPITAL], [question], temperature=4.0)
    lifted = [p**0.25 for p in raw.probabilities]
    assert flat.probabilities == pytest.approx([p / sum(lifted) for p in lifted], abs=CLOSE)
    assert flat.logprobs == raw.logprobs
    free = [chat("N/A"), chat("?")]
    [shifted] = decide(text, [CAPITAL], [question], content_free=free)
    means = [sum(column) / 2 for column in zip(*[one.probabilities for one in decide(text, free, [question])])]
    divided = [p / mean for p, mean in zip(raw.probabilities, means)]
    assert shifted.probabilities == pytest.approx([p / sum(divided) for p in divided], abs=CLOSE)
    for bad in (0, -1, math.nan, "1", True):
        with pytest.raises(OptionError, match="temperature"):
            decide(text, [CAPITAL], [question], temperature=bad)  # type: ignore[arg-type]


def test_requests_may_have_questions_of_their_own(text: GenerationEngine) -> None:
    both = decide(text, [CAPITAL, COUNT], [[CITY], [NUMBER, ASKED]])
    assert [one.question.type for one in both] == ["choice", "score", "choice"]
    with pytest.raises(OptionError, match="1 lists of questions for 2 requests"):
        decide(text, [CAPITAL, COUNT], [[CITY]])


def close_to(made: Sequence[Decision], others: Sequence[Decision], close: float = CLOSE) -> None:
    for one, other in zip(made, others):
        assert one.probabilities == pytest.approx(other.probabilities, abs=close)
        assert one.label_mass == pytest.approx(other.label_mass, abs=close)


def count_tokens(engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each forward of an hf model."""
    seen: list[int] = []
    forward = engine.model.forward

    @functools.wraps(forward)
    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine.model, "forward", counted)
    return seen


def test_questions_about_one_request_share_its_prefix_on_hf(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared(TEXT, "hf")
    request = chat("You know this. " * 20 + "What is the capital of France?")
    questions = [{**ASKED, "instructions": f"Which of these {k}?"} for k in range(4)]
    apart = []
    for question in questions:
        apart += decide(engine, [request], [question])
    seen = count_tokens(engine, monkeypatch)
    close_to(decide(engine, [request], questions), apart)
    assert sum(seen) < 2 * len(apart[0].prompt_token_ids)


def drawn(colour: str, shape: str) -> dict[str, Any]:
    image = {"type": "image", "image": drawing(colour, shape)}
    text = {"type": "text", "text": "Describe the drawing."}
    return {"messages": [{"role": "user", "content": [image, text]}]}


def test_images_are_read_alike_on_both(shared: Load) -> None:
    requests = [drawn("red", "circle"), drawn("blue", "square"), CAPITAL]
    questions = [ASKED, {**ASKED, "instructions": "What colour is it?"}]
    alone = decide(shared(VL, "hf"), requests, questions)
    close_to(decide(shared(VL, "vllm"), requests, questions), alone, 1e-4)
    with pytest.raises(UnsupportedError, match="this checkpoint is text-only"):
        decide(shared(TEXT, "hf"), [drawn("red", "circle")], questions)


def test_memory_that_runs_out_over_a_shared_prefix_costs_the_sharing_only(
    shared: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = shared(TEXT, "hf")
    expected = decide(engine, [CAPITAL], QUESTIONS)
    monkeypatch.setattr(decisions, "SHARED_TOKENS", 1)

    def too_much(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(decisions, "over_prefix", too_much)
    close_to(decide(engine, [CAPITAL], QUESTIONS), expected)


def test_adapters_are_read_alike_on_both(tmp_path: Path) -> None:
    adapters = {"one": make_adapter(tmp_path / "one", 1)}
    requests = [CAPITAL, {**CAPITAL, "adapter": "one"}]
    made = []
    for backend in ("hf", "vllm"):
        with open_engine(TEXT, backend, adapters=adapters) as engine:
            made.append(decide(engine, requests, [CITY, ASKED]))
    close_to(made[1], made[0], 1e-4)
    assert made[0][0].label_mass != pytest.approx(made[0][2].label_mass, abs=1e-3)


BAD_QUESTIONS: list[tuple[dict[str, Any], str]] = [
    ({"type": "guess"}, "no type of question"),
    ({"type": "choice", "choices": ["a"]}, "a choice with 1 choices"),
    ({"type": "predicate", "choices": ["a", "b"]}, "a predicate with 2 choices"),
    ({"type": "choice", "choices": ["a", "a"]}, "'a' stands twice in choices"),
    ({"type": "choice", "choices": ["a", ""]}, "a label is empty"),
    ({"type": "score", "levels": ["a", "b"], "labels": ["1"]}, "1 labels for 2 answers"),
    ({"type": "predicate", "labels": ["yes", "yes"]}, "label 'yes' stands twice"),
    ({"type": "predicate", "labels": ["yes", []]}, "a label is empty"),
    ({"type": "predicate", "labels": ["yes", "\ud83d"]}, "neither a text of whole characters"),
    ({"type": "score", "levels": [{"label": "a", "value": "1"}, "b"]}, "value of level 'a' is '1'"),
    ({"type": "predicate", "labels": ["yes", 7]}, "label 7 is neither"),
    ({"type": "choice", "choices": [{"value": "a"}, {"valeu": "b"}]}, "Did you mean 'value'"),
]


@pytest.mark.parametrize(("fields", "says"), BAD_QUESTIONS, ids=[says for _, says in BAD_QUESTIONS])
def test_a_bad_question_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        gen_engine.build(Question, {**fields, "name": "relevance"})


def test_an_error_names_the_question() -> None:
    with pytest.raises(OptionError, match="question relevance: label 'x' stands twice"):
        Question("predicate", name="relevance", labels=["x", "x"])


def words_checkpoint() -> Any:
    """Of a tokenizer that knows a few words and nothing else."""
    tokenizers, transformers = importlib.import_module("tokenizers"), importlib.import_module("transformers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "say": 1, "yes": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    return SimpleNamespace(tokenizer=tokenizer, special_tokens={}, vocabulary=3)


def test_a_label_of_unknown_characters_is_refused_by_name() -> None:
    labels = decisions.Labels(words_checkpoint())
    prompt: Any = SimpleNamespace(token_ids=(1,))
    with pytest.raises(OptionError, match="label ' nö' has characters that the tokenizer does not know"):
        labels.ids(Question("predicate", labels=[" yes", " nö"]), prompt)


def positions(**chat_fields: Any) -> dict[str, Any]:
    return {**PLAIN, "chat": chat_fields}


OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>assistant\n<think>\n"
HARMONY = "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant"
NO_POSITION: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (positions(template=OPENS), CITY, "the chat template opens a thought"),
    (positions(template=HARMONY), CITY, "whether a thought or an answer begins"),
    (positions(enable_thinking=True), CITY, "the answer begins with a thought"),
    (positions(add_generation_prompt=False), CITY, "no answer begins behind the prompt"),
    ({"prompt": "France:"}, ASKED, "no user message at its end"),
    ({"prompt_token_ids": [5] * 1020}, NUMBER, "prompt has|prompt and label have"),
    ({**CAPITAL, "seed": 3}, CITY, "for generating, not for deciding"),
]


@pytest.mark.parametrize(("request_", "question", "says"), NO_POSITION, ids=[row[2] for row in NO_POSITION])
def test_a_request_without_a_position_is_refused_with_the_reason(
    shared: Load, request_: dict[str, Any], question: dict[str, Any], says: str
) -> None:
    if "prompt_token_ids" in request_:
        request_ = {"prompt_token_ids": [5] * 1023}
    with pytest.raises(RequestError, match=f"request 1: .*({says})") as caught:
        decide(shared(TEXT, "hf"), [CAPITAL, request_], [question])
    assert caught.value.index == 1


def test_a_label_that_merges_with_the_prompt_is_refused(shared: Load) -> None:
    """The trap of few-shot prompts that end with a blank."""
    engine = shared(TEXT, "hf")
    assert "Ġthe" in engine.tokenizer.get_vocab()
    with pytest.raises(OptionError, match="merges with the end of the prompt"):
        decide(engine, [{"prompt": "It is "}], [{"type": "predicate", "labels": ["the", "#"]}])


def test_a_failing_request_does_not_fail_the_others(text: GenerationEngine) -> None:
    bad = positions(enable_thinking=True)
    first, second, third, fourth = decide(text, [bad, CAPITAL], [CITY, NUMBER], on_error="return")
    assert isinstance(first, RequestError) and first is second and first.index == 0
    assert third.choice == " Paris" and isinstance(fourth, Decision)


def test_releases_of_vllm_without_named_ids_need_the_hook(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = decide(shared(TEXT, "hf"), [CAPITAL], QUESTIONS)
    installed = gen_engine.installed
    monkeypatch.setattr(gen_engine, "installed", lambda text: text == "vllm<0.23" or installed(text))
    with pytest.raises(UnsupportedError, match="logits_hooks=True"):
        decide(shared(TEXT, "vllm"), [CAPITAL], QUESTIONS)
    close_to(decide(shared(TEXT, "vllm", logits_hooks=True), [CAPITAL], QUESTIONS), expected, 1e-4)


def test_more_labels_than_one_request_reports(shared: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = decide(shared(TEXT, "hf"), [COUNT], [NUMBER])
    monkeypatch.setattr(decisions, "MOST_IDS", 4)
    close_to(decide(shared(TEXT, "vllm"), [COUNT], [NUMBER]), expected, 1e-4)


def test_answers_have_openais_shape(shared: Load) -> None:
    body = {
        "model": "tiny",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "It is red."}]}],
        "questions": [
            {"type": "predicate", "instructions": "Is it red?", "name": "p"},
            {"type": "choice", "instructions": "Which?", "choices": [{"value": True}, {"value": False}]},
            {"type": "score", "instructions": "How red?", "levels": [{"label": "a"}, {"label": "b"}]},
        ],
    }
    request, questions = decisions.read_body(body)
    made = decide(shared(TEXT, "hf"), [request], questions)
    answer = json.loads(json.dumps(decisions.reply(made, "tiny")))
    keys = [sorted(one) for one in answer["answers"]]
    beside = ["label_mass", "margin"]
    assert keys[0] == sorted(["type", "name", "probability", *beside])
    assert keys[1] == sorted(["type", "name", "choice", "probabilities", "confidence", *beside])
    assert keys[2] == sorted(["type", "name", "score", "probabilities", "confidence", *beside])
    assert sorted(answer["answers"][2]["probabilities"][0]) == ["label", "probability", "value"]
    assert answer["answers"][1]["choice"] in (True, False)
    read = sum(len(one.prompt_token_ids) for one in made)
    assert answer["usage"] == {"input_tokens": read, "output_tokens": 0, "total_tokens": read} and read
    for bad in ({**body, "joint": True}, {**body, "input": 3}, {**body, "questions": []}):
        with pytest.raises(GenEngineError):
            decisions.read_body(bad)


def test_a_file_takes_decision_lines(shared: Load, tmp_path: Path) -> None:
    """Our own form, OpenAI's, one beside lines that generate, one that is wrong."""
    body = {"model": "tiny-qwen3", "input": "It is red.", "questions": [ASKED]}
    lines = [
        {"id": "own", **PLAIN, "questions": [CITY, NUMBER]},
        {"custom_id": "openai", "method": "POST", "url": "/v1/decisions", "body": body},
        {"id": "text", **PLAIN, "options": {"max_new_tokens": 4}},
        {"id": "bad", **PLAIN, "questions": [{"type": "predicate", "labels": ["x", "x"]}]},
        {"id": "thinks", **positions(enable_thinking=True), "questions": [CITY]},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = shared(TEXT, "hf")
    answer_file(source, tmp_path / "out.jsonl", engine, progress=False)
    own, openai, text, bad, thinks = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    [city, number] = decide(engine, [PLAIN], [CITY, NUMBER])
    assert own["decisions"][0]["choice"] == city.choice
    assert own["decisions"][1]["score"] == pytest.approx(number.score)
    assert openai["response"]["body"]["answers"][0]["type"] == "choice"
    assert text["text"] and "stands twice" in bad["error"]["message"]
    assert "thought" in thinks["error"]["message"]


def observed(function: Callable[[], Any]) -> Case:
    cases: list[Case] = []
    site = Site("labels", f"{__name__}:{function.__name__}")
    with Observer(sites=[site], sink=cases.append, seed=None) as observer:
        importlib.import_module(__name__).__dict__[function.__name__]()
    assert not observer.failures
    [case] = cases
    return case


HELD: dict[str, GenerationEngine] = {}
ONE_TOKEN = {"type": "choice", "choices": ["no", "red"]}


def decided_site() -> list[list[float]]:
    return [list(one.probabilities) for one in decide(HELD["engine"], [PLAIN, COUNT], [ONE_TOKEN])]


def plain_site() -> list[list[float]]:
    torch = importlib.import_module("torch")
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(TEXT)
    labels = tokenizer.convert_tokens_to_ids(["no", "red"])
    found = []
    for request in (PLAIN, COUNT):
        text = tokenizer.apply_chat_template(
            request["messages"], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            logits = plain_model()(**inputs).logits[0, -1]
        found.append(logits[labels].softmax(-1).tolist())
    return found


def stages(row: Mapping[str, Any]) -> list[Any]:
    return [row.get(name) for name in ("messages", "prompt_text", "prompt_ids", "scored", "output_ids")]


def test_reads_of_decide_are_recorded_as_those_of_plain_code(text: GenerationEngine) -> None:
    """One row for each position, with the same stages: prompts are compared, and the value."""
    HELD["engine"] = text
    moved = observed(decided_site)
    plain = observed(plain_site)
    assert [stages(row) for row in moved.rows] == [stages(row) for row in plain.rows]
    assert all(row["scored"] for row in moved.rows) and len(moved.rows) == 2
    for new, old in zip(moved.value, plain.value):
        assert new == pytest.approx(old, abs=CLOSE)


def drawn_site() -> list[float]:
    questions = [ASKED, {**ASKED, "instructions": "What colour is it?"}]
    return [one.label_mass for one in decide(HELD["engine"], [drawn("red", "circle")], questions)]


def test_images_are_recorded_with_their_tokens_also_of_a_shared_prefix(
    vl: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    HELD["engine"] = vl
    whole = observed(drawn_site)
    monkeypatch.setattr(decisions, "SHARED_TOKENS", 1)
    shared_prefix = observed(drawn_site)
    for one, other in zip(whole.rows, shared_prefix.rows):
        assert (one["prompt_ids"], one["images"]) == (other["prompt_ids"], other["images"])
        assert one["prompt_ids"].count(vl.checkpoint.placeholder_id) == one["images"][0]["tokens"] > 1


def test_labels_that_begin_others_are_read_by_hand() -> None:
    read = {(): {1: math.log(0.5), 2: math.log(0.25)}, (1,): {3: math.log(0.4)}}
    labels = [(1,), (1, 3), (2,)]
    assert [math.exp(one) for one in label_logprobs(labels, read)] == pytest.approx([0.3, 0.2, 0.25])
    assert list(next_ids(labels)) == [(), (1,)]


def decision(question: Question, choice: str | bool, score: float | None = None) -> Decision:
    return Decision(question, choice, (0.75, 0.25), (-0.5, -1.5), 0.8, 0.5, score, (), 1, (5,), "hf")


def test_json_of_a_predicate_is_the_probability_that_it_is_true() -> None:
    answer = decision(Question("predicate", name="good"), choice=True).to_json()
    assert answer == {"type": "predicate", "name": "good", "probability": 0.75, "label_mass": 0.8, "margin": 0.5}


def test_json_of_a_choice_lists_its_values_with_their_probabilities() -> None:
    question = gen_engine.build(Question, {"type": "choice", "instructions": "Which?", "choices": ["red", "blue"]})
    answer = decision(question, choice="red").to_json()
    assert answer["choice"] == "red" and answer["confidence"] == pytest.approx(0.6)
    assert answer["probabilities"] == [{"value": "red", "probability": 0.75}, {"value": "blue", "probability": 0.25}]
