"""Drafts of old sources in the shapes of public code: what their engine is asked, what they return."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

import pytest

from parity.draft.decisions import Decisions
from parity.draft.module import draft_module

from .drafts import PROMPT, DecodedAnswer, body, draft_of, row, run, seen

STRAIGHT = """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer


    def answer(path, question, budget=64):
        tokenizer = AutoTokenizer.from_pretrained(path)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32, device_map="auto").eval()
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, return_tensors="pt").to(model.device)
        with torch.no_grad():
            out = model.generate(**inputs, max_new_tokens=budget, do_sample=False)
        return tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True).strip()
"""
ONE_MODEL = STRAIGHT.replace("answer(path, question", "answer(question").replace("(path", '("m"')
CHAT = [{"role": "user", "content": "Why?"}]


def test_draft_of_a_straight_function_asks_the_engine_once() -> None:
    value, engine = run(draft_of(STRAIGHT), "answer", "m", "Why?")
    assert value == "ANSWER"
    assert engine.loads == [("m", {"dtype": "float32"})]
    assert [requests for requests, _ in engine.calls] == [[{"prompt": "<Why?>"}]]
    assert engine.options == {"max_new_tokens": 64, "repetition_penalty": 1.0}


def test_draft_goes_on_counting_a_rendered_prompt_where_max_length_does() -> None:
    draft = draft_of(ONE_MODEL.replace("max_new_tokens=budget", "max_length=budget"))
    _, engine = run(draft, "answer", "Why?")
    prompt = engine.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert engine.calls[0][1] == {"max_new_tokens": 64 - len(engine.tokenizer(prompt)["input_ids"])}


def test_draft_of_a_straight_function_keeps_no_library() -> None:
    assert "torch" not in draft_of(ONE_MODEL).code and "transformers" not in draft_of(ONE_MODEL).code


def test_draft_writes_what_the_checkpoint_decided_with_its_source() -> None:
    draft = draft_of(ONE_MODEL, seen(rows=[row(penalty=1.05)]))
    assert '"repetition_penalty": 1.05,  # the checkpoint\'s generation_config.json' in draft.code
    assert not draft.todos


def test_draft_without_an_answer_to_a_decision_marks_it() -> None:
    draft = draft_of(ONE_MODEL, seen(rows=[row(penalty=1.05)]), Decisions())
    assert "# TODO parity: decide: The old code takes repetition_penalty=1.05" in draft.code
    assert len(draft.todos) == 1


def test_draft_with_an_inherited_setting_that_is_dropped_leaves_it_out() -> None:
    decisions = Decisions(read=lambda question: "drop")
    _, engine = run(draft_of(ONE_MODEL, seen(rows=[row(penalty=1.05)]), decisions), "answer", "Why?")
    assert engine.calls[0][1] == {"max_new_tokens": 64}


@pytest.mark.parametrize(
    ("code", "value", "options"),
    [
        pytest.param(
            PROMPT + "out = model.generate(**inputs, max_new_tokens=5)\n"
            "return tok.decode(out[0, inputs.input_ids.shape[-1]:], skip_special_tokens=True)",
            "ANSWER", {"max_new_tokens": 5}, id="greedy by default",
        ),
        pytest.param(
            PROMPT + "out = model.generate(**inputs, max_new_tokens=5)\n"
            "return tok.decode(out[0][len(inputs.input_ids[0]):])",
            "ANSWER<end>", {"max_new_tokens": 5}, id="special tokens kept",
        ),
        pytest.param(
            PROMPT + "out = model.generate(**inputs, max_new_tokens=5)\n"
            "return tok.decode(out[0], skip_special_tokens=True)",
            "decoded [1, 2, 3, 5, 6] {'skip_special_tokens': True}", {"max_new_tokens": 5}, id="prompt and answer",
        ),
        pytest.param(
            PROMPT + "out = model.generate(inputs['input_ids'], max_new_tokens=5, stop_strings=['x'], tokenizer=tok)\n"
            "return tok.decode(out[0, inputs['input_ids'].shape[1]:], skip_special_tokens=True)",
            DecodedAnswer("ANSWER"),
            {"max_new_tokens": 5, "stop": {"strings": ["x"], "include_stop": True}}, id="the stop stays in the text",
        ),
        pytest.param(
            PROMPT + "out = model.generate(**inputs, max_new_tokens=5, do_sample=True, temperature=0.7, top_p=0.9)\n"
            "return tok.batch_decode(out[:, inputs['input_ids'].shape[1]:], skip_special_tokens=True)[0]",
            "ANSWER", {"max_new_tokens": 5, "temperature": 0.7, "top_p": 0.9, "top_k": 50}, id="the library's top_k",
        ),
        pytest.param(
            PROMPT + "out = model.generate(**inputs, do_sample=False)\n"
            "new = [o[len(i):] for i, o in zip(inputs.input_ids, out)]\n"
            "return tok.batch_decode(new, skip_special_tokens=True)[0]",
            "ANSWER", {"max_new_tokens": 20}, id="the library's budget",
        ),
        pytest.param(
            PROMPT + "out = model.generate(**inputs, max_length=30)\nreturn len(out[0][inputs.input_ids.shape[1]:])",
            2, {"max_new_tokens": 26}, id="max_length counts the prompt",
        ),
        pytest.param(
            PROMPT + "inputs = {k: v.to(model.device) for k, v in inputs.items()}\n"
            "moved = {k: v.cuda() if hasattr(v, 'cuda') else v for k, v in inputs.items()}\n"
            "out = model.generate(**moved, max_new_tokens=5)\n"
            "return tok.decode(out[0][inputs['input_ids'].shape[1]:], skip_special_tokens=True)",
            "ANSWER", {"max_new_tokens": 5}, id="inputs are moved one by one",
        ),
        pytest.param(
            PROMPT + "torch.manual_seed(3)\n"
            "out = model.generate(**inputs, max_new_tokens=5, do_sample=True, num_return_sequences=2)\n"
            "return [tok.decode(o[inputs.input_ids.shape[1]:], skip_special_tokens=True) for o in out]",
            ["ANSWER 0", "ANSWER 1"],
            {"max_new_tokens": 5, "temperature": 1.0, "top_k": 50, "n": 2, "seed": 3}, id="samples and a seed",
        ),
    ],
)  # fmt: skip
def test_draft_of_a_raw_prompt_asks_what_the_old_code_asked(code: str, value: Any, options: Any) -> None:
    result, engine = run(body(code, question="Why?"), "answer", "Why?")
    assert (result, type(result)) == (value, type(value))
    assert engine.calls == [([{"prompt": "Why?"}], options)]


@pytest.mark.parametrize("ids", ["tok(question)['input_ids']", "tok(question, add_special_tokens=False)['input_ids']"])
def test_draft_of_a_prompt_whose_tokens_are_counted_counts_them(ids: str) -> None:
    code = (
        f"if len({ids}) > 9:\n    return ''\n{PROMPT}out = model.generate(**inputs, max_new_tokens=5)\n"
        f"return len({ids}), tok.decode(out[0][inputs['input_ids'].shape[1]:], skip_special_tokens=True)"
    )
    assert run(body(code, question="Why?"), "answer", "Why?")[0] == (4, "ANSWER")


RENDER = "text = tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)\n"
GENERATE = """
inputs = tok(text, return_tensors='pt')
out = model.generate(**inputs, max_new_tokens=5)
answer = tok.decode(out[0][inputs['input_ids'].shape[1]:], skip_special_tokens=True)
"""


def test_draft_of_a_prompt_that_is_continued_as_text_keeps_it_text() -> None:
    code = f"messages = [{{'role': 'user', 'content': question}}]\n{RENDER}text += 'So'\n{GENERATE}return answer"
    _, engine = run(body(code), "answer", "Why?")
    assert engine.calls[0][0] == [{"prompt": "<Why?>So"}]


def test_draft_of_messages_that_change_before_generate_sends_those_that_were_rendered() -> None:
    change = "messages.append({'role': 'assistant', 'content': 'x'})\n"
    code = f"messages = [{{'role': 'user', 'content': question}}]\n{RENDER}{change}{GENERATE}return answer"
    _, engine = run(body(code), "answer", "Why?")
    assert engine.calls[0][0] == [{"messages": CHAT}]


def test_draft_of_a_loop_over_turns_sends_all_of_them() -> None:
    loop = textwrap.indent(
        "messages.append({'role': 'user', 'content': q})\n" + RENDER + GENERATE.strip()
        + "\nmessages.append({'role': 'assistant', 'content': answer})", "    "
    )  # fmt: skip
    value, engine = run(body(f"messages = []\nfor q in question:\n{loop}\nreturn messages"), "answer", ["a", "b"])
    assert [m["content"] for m in value] == ["a", "ANSWER", "b", "ANSWER"]
    assert [len(requests[0]["messages"]) for requests, _ in engine.calls] == [1, 3]


def test_draft_of_batches_sends_each_chat() -> None:
    code = """
        chats = [[{"role": "user", "content": q}] for q in question]
        texts = [tok.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        enc = tok(texts, padding=True, return_tensors="pt")
        out = model.generate(**enc, max_new_tokens=5)
        return tok.batch_decode(out[:, enc["input_ids"].shape[1]:], skip_special_tokens=True)
    """
    value, engine = run(body(code), "answer", ["a", "b"])
    assert value == ["ANSWER", "ANSWER"]
    assert [r["messages"][0]["content"] for r in engine.calls[0][0]] == ["a", "b"]


def test_draft_of_keywords_that_are_known_at_run_time_takes_them_with_the_inherited_ones() -> None:
    code = """
        inputs = tok(question, return_tensors="pt")
        words = {"max_new_tokens": 9}
        if sampled:
            words["do_sample"] = True
            words["temperature"] = 0.3
        out = model.generate(**inputs, **words)
        return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
    """
    draft = body(code, parameters="question, sampled", rows=[row(penalty=1.05)], question="x", sampled=False)
    greedy = {"max_new_tokens": 9, "repetition_penalty": 1.05}
    _, engine = run(draft, "answer", "Why?", False)
    assert engine.calls[0][1] == greedy
    _, engine = run(draft, "answer", "Why?", True)
    assert engine.calls[0][1] == {**greedy, "temperature": 0.3, "top_p": 1.0, "top_k": 50}


def test_draft_of_a_class_keeps_its_constructor() -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        class Asker:
            def __init__(self, path):
                self.model = AutoModelForCausalLM.from_pretrained(path)
                self.tokenizer = AutoTokenizer.from_pretrained(path)
                self.asked = 0

            def ask(self, question):
                self.asked += 1
                inputs = self.tokenizer(question, return_tensors="pt")
                out = self.model.generate(**inputs, max_new_tokens=5)
                return self.tokenizer.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

        def answer(path, question):
            return Asker(path).ask(question)
    """
    value, engine = run(draft_of(source), "answer", "m", "Why?")
    assert (value, engine.loads) == ("ANSWER", [("m", {})])


def test_draft_of_a_loader_with_a_cache_is_one_cached_load() -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer
        LOADED = {}

        def get(path):
            if path not in LOADED:
                tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
                LOADED[path] = AutoModelForCausalLM.from_pretrained(path, dtype="float16").eval(), tokenizer
            return LOADED[path]

        def answer(path, question):
            model, tokenizer = get(path)
            enc = tokenizer([question], return_tensors="pt")
            out = model.generate(**enc, max_new_tokens=5)
            return tokenizer.batch_decode(out[:, enc["input_ids"].shape[1]:], skip_special_tokens=True)[0]
    """
    value, engine = run(draft_of(source), "answer", "m", "Why?")
    assert (value, engine.loads) == ("ANSWER", [("m", {"dtype": "float16"})])
    assert "LOADED" not in draft_of(source).code


@pytest.mark.parametrize(
    "tokenizer", ["x.QwenTokenizerFast", "transformers.tokenization_utils_tokenizers.TokenizersBackend"]
)
def test_draft_of_a_function_that_takes_a_model_takes_an_engine_with_a_factory(tokenizer: str) -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        def answer(model, tokenizer, question):
            inputs = tokenizer(question, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5)
            return tokenizer.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

        if __name__ == "__main__":
            model = AutoModelForCausalLM.from_pretrained("m", dtype="bfloat16")
            tokenizer = AutoTokenizer.from_pretrained("m")
            print(answer(model, tokenizer, "Why?"))
    """
    objects: dict[str, Any] = {
        "model": {"$object": "x.QwenForCausalLM"},
        "tokenizer": {"$object": tokenizer},
    }
    draft = draft_of(source, seen(**objects, question="Why?"))
    assert [*draft.factories.values()] == [{"engine": "make_engine"}]
    assert run(draft, "make_engine")[1].loads == [("m", {"dtype": "bfloat16"})]
    assert "def answer(engine, question):" in draft.code


def test_draft_of_vllm_keeps_its_backend_and_the_defaults_of_its_settings() -> None:
    source = """
        from vllm import LLM, SamplingParams
        llm = LLM(model="m", dtype="float16", tensor_parallel_size=2)

        def answer(questions):
            outputs = llm.generate(questions, SamplingParams(top_p=0.9, stop=["x"]))
            return [o.outputs[0].text for o in outputs]
    """
    value, engine = run(draft_of(source, seen(questions=["a"])), "answer", ["a", "b"])
    assert value == ["ANSWER", "ANSWER"]
    loaded = {"backend": "vllm", "dtype": "float16", "vllm_kwargs": {"tensor_parallel_size": 2}}
    assert engine.loads == [("m", loaded)]
    options = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 0.9, "stop": {"strings": ["x"]}}
    assert engine.calls == [([{"prompt": "a"}, {"prompt": "b"}], options)]


def test_draft_of_vllm_chat_with_samples_gives_each() -> None:
    source = """
        from vllm import LLM, SamplingParams
        llm = LLM("m")

        def answer(question):
            params = SamplingParams(n=2, temperature=0.5, max_tokens=9)
            out = llm.chat([{"role": "user", "content": question}], params)
            return [o.text for o in out[0].outputs]
    """
    value, engine = run(draft_of(source), "answer", "Why?")
    assert value == ["ANSWER 0", "ANSWER 1"]
    assert engine.calls[0][0] == [{"messages": CHAT}]


# == What is left to a person ==


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("return model(**tok(question, return_tensors='pt')).logits", "a distribution is no text"),
        ("return model.chat(tok, question, history=[])", "code of the checkpoint"),
        (PROMPT + "return model.generate(**inputs, num_beams=4)", "num_beams=4"),
        (PROMPT + "return model.generate(**inputs, logits_processor=[x])", "logits_processor"),
        (PROMPT + "return model.generate(**inputs, stopping_criteria=[x])", "stopping_criteria"),
        (PROMPT + "return model.generate(**inputs, output_hidden_states=True)", "hidden states"),
        (PROMPT + "out = model.generate(**inputs)\nreturn out.mean()", "what generate returns"),
        ("return tok(question, return_tensors='pt').input_ids.sum()", "is used here"),
    ],
)
def test_draft_that_is_not_sure_leaves_the_old_code_and_says_why(code: str, says: str) -> None:
    draft = body(code, question="Why?")
    assert not draft.is_moved
    assert says in " ".join(todo.text for todo in draft.todos)
    assert "# TODO parity: " in draft.code and "from_pretrained" in draft.code


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("from transformers import T5ForConditionalGeneration\n"
         "model = T5ForConditionalGeneration.from_pretrained('m')\n",
         "an encoder-decoder model"),
        ("from transformers import WhisperForConditionalGeneration as W\nimport transformers\n"
         "model = transformers.WhisperForConditionalGeneration.from_pretrained('m')\n", "an audio model"),
        ("from transformers import AutoModel\nmodel = AutoModel.from_pretrained('m', trust_remote_code=True)\n",
         "runs code of the checkpoint"),
    ],
)  # fmt: skip
def test_draft_of_a_model_that_no_engine_runs_is_refused(source: str, says: str) -> None:
    draft = draft_of(source + "def answer(x):\n    return x\n")
    assert not draft.is_moved and says in draft.todos[0].text


def test_draft_of_right_padded_goldens_is_refused() -> None:
    padded = {**row(), "batch": {"rows": 2, "side": "right", "pads": 3, "masked": True}}
    draft = body(
        PROMPT + "return tok.decode(model.generate(**inputs, max_new_tokens=5)[0])", rows=[padded], question="x"
    )
    assert not draft.is_moved and "padded on the right" in draft.todos[0].text


def test_draft_of_a_row_of_a_batch_that_is_counted_with_its_padding_is_refused() -> None:
    code = """
        enc = tok(question, padding=True, return_tensors="pt")
        out = model.generate(**enc, max_new_tokens=5)
        return [len(row[enc["input_ids"].shape[1]:]) for row in out]
    """
    draft = body(code, question=["a", "b"])
    assert not draft.is_moved and "padding behind it" in draft.todos[0].text


def test_draft_of_a_seed_that_is_set_once_says_so() -> None:
    code = PROMPT + (
        "out = model.generate(**inputs, max_new_tokens=5, do_sample=True)\n"
        "return tok.decode(out[0, inputs.input_ids.shape[1]:], skip_special_tokens=True)"
    )
    draft = body(code, before="torch.manual_seed(0)", question="x")
    assert [todo.text.split(";")[0] for todo in draft.todos] == ["the seed is set once for all calls"]


# == Faults that were found ==


def test_draft_of_prompt_and_answer_that_are_cleaned_up_keeps_the_prompt() -> None:
    code = PROMPT + (
        "out = model.generate(**inputs, max_new_tokens=5)\n"
        "return tok.decode(out[0], skip_special_tokens=True, clean_up_tokenization_spaces=tidy)"
    )
    value, _ = run(body(code, parameters="question, tidy", question="x"), "answer", "Why?", True)
    assert value.startswith("decoded [1, 2, 3, 5, 6] ")


def test_draft_of_a_row_that_lives_into_the_next_round_is_refused() -> None:
    code = """
        kept = None
        texts = []
        for q in question:
            inputs = tok(q, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5)
            if kept is not None:
                texts.append(tok.decode(kept))
            kept = out[0]
        return texts
    """
    draft = body(code, question=["a", "b"])
    assert not draft.is_moved and "changes in a loop" in draft.todos[0].text


def test_draft_of_a_result_that_is_made_anew_in_a_loop_is_refused() -> None:
    code = (
        PROMPT
        + """
out = model.generate(**inputs, max_new_tokens=5)
for _ in range(2):
    text = tok.decode(out[0], skip_special_tokens=True)
    inputs = tok(text, return_tensors='pt')
    out = model.generate(**inputs, max_new_tokens=5)
return text
"""
    )
    assert not body(code, question="x").is_moved


def test_draft_of_two_branches_that_generate_reads_the_one_that_ran() -> None:
    code = (
        PROMPT
        + """
if sampled:
    out = model.generate(**inputs, max_new_tokens=5, do_sample=True, temperature=0.5)
else:
    out = model.generate(**inputs, max_new_tokens=9)
return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)
"""
    )
    draft = body(code, parameters="question, sampled", question="x")
    for sampled, budget in ((True, 5), (False, 9)):
        value, engine = run(draft, "answer", "Why?", sampled)
        assert (value, engine.calls[0][1]["max_new_tokens"]) == ("ANSWER", budget)


def test_draft_of_a_seed_that_a_caller_sets_says_that_it_is_lost() -> None:
    source = """
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        tok = AutoTokenizer.from_pretrained("m")
        model = AutoModelForCausalLM.from_pretrained("m")

        def sample(question):
            inputs = tok(question, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5, do_sample=True)
            return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

        def answer(question):
            torch.manual_seed(3)
            return sample(question)
    """
    sampled = {**row(), "sampling": {"temperature": {"value": 1.0, "from": "default"}}}
    draft = draft_of(source, seen(rows=[sampled], question="x"))
    assert "torch.manual_seed(3)" in draft.code
    assert [todo.text for todo in draft.todos] == [
        "the seed that is set here reaches no call of generate in this function"
    ]


def test_draft_of_half_precision_that_no_golden_shows_says_so() -> None:
    code = PROMPT + "out = model.generate(**inputs, max_new_tokens=5)\nreturn tok.decode(out[0])"
    draft = body(code, before="if torch.cuda.is_available():\n    model.half()", question="x")
    assert "changes the dtype" in draft.todos[0].text


CUT = (
    PROMPT
    + """
out = model.generate(**inputs, max_new_tokens=5)
return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True).split("###")[0]
"""
)


def test_draft_keeps_a_cut_by_hand() -> None:
    _, engine = run(body(CUT, question="x"), "answer", "Why?")
    assert "stop" not in engine.calls[0][1] and 'split("###")' in body(CUT, question="x").code


@pytest.mark.parametrize("penalty", [1.0, 1.05])
def test_draft_with_stops_moves_a_cut_by_the_same_rule(penalty: float) -> None:
    observed = seen(rows=[row(penalty=penalty)], question="x")
    text = "\n".join(["from transformers import AutoModelForCausalLM as M, AutoTokenizer as T",
                      "tok = T.from_pretrained('m')", "model = M.from_pretrained('m')",
                      "def answer(question):", textwrap.indent(CUT, "    ")])  # fmt: skip
    text = text.replace("M.from_", "AutoModelForCausalLM.from_").replace("T.from_", "AutoTokenizer.from_")
    draft = draft_module(text, observed, Decisions(yes=True), "the_engine", is_cut_moved=True)
    value, engine = run(draft, "answer", "Why?")
    assert (value, engine.calls[0][1]["stop"]) == ("ANSWER", ["###"])
    assert "split" not in draft.code
    assert 'the cut at "###" is a stop' in draft.changes[0], "check will say LATENT"


def test_draft_of_beams_that_an_argument_may_ask_for_says_that_they_are_ignored() -> None:
    code = PROMPT + (
        "out = model.generate(**inputs, max_new_tokens=5, num_beams=beams)\n"
        "return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)"
    )
    one = {**row(), "sampling": {**row()["sampling"], "num_beams": {"value": 1, "from": "caller"}}}
    draft = body(code, parameters="question, beams=1", rows=[one], question="x")
    assert ["num_beams=beams" in todo.text for todo in draft.todos] == [True]


def test_draft_without_the_checkpoint_says_what_is_not_known() -> None:
    observed = replace(seen(question="x"), problem="it has no config.json")
    draft = draft_of(STRAIGHT, observed)
    assert draft.is_moved and "it has no config.json" in draft.todos[0].text


def test_draft_of_a_prompt_whose_bos_is_masked_is_refused() -> None:
    code = PROMPT + "return tok.decode(model.generate(inputs['input_ids'], max_new_tokens=5)[0])"
    masked = {**row(), "batch": {"rows": 1, "side": "left", "pads": 1, "masked": True}}
    draft = body(code, rows=[masked], question="x")
    assert not draft.is_moved and "the BOS is the pad id" in draft.todos[0].text


def test_draft_of_a_model_that_a_class_keeps_asks_the_engine_under_that_name() -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        class Holder:
            model = None
            tokenizer = None

        def get(path):
            if Holder.model is None:
                Holder.tokenizer = AutoTokenizer.from_pretrained(path)
                Holder.model = AutoModelForCausalLM.from_pretrained(path)
                Holder.model.eval()
            return Holder.model, Holder.tokenizer

        def answer(path, question):
            model, tokenizer = get(path)
            ids = tokenizer.encode(question, return_tensors="pt")
            out = model.generate(ids, max_new_tokens=5, do_sample=False)
            return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
    """
    value, engine = run(draft_of(source), "answer", "m", "Why?")
    assert value == "ANSWER" and [requests for requests, _ in engine.calls] == [[{"prompt": "Why?"}]]
    assert engine.options == {"max_new_tokens": 5, "repetition_penalty": 1.0}
    assert len(engine.loads) == 1


@pytest.mark.parametrize(
    "returned",
    [
        "tok.decode(model.generate(**inputs, max_new_tokens=5)[0], skip_special_tokens=True)",
        "tok.decode(model.generate(**inputs, max_new_tokens=5)[0]), 1",
        "[tok.decode(model.generate(**inputs, max_new_tokens=5)[0])]",
        "tok.decode(model.generate(**inputs, max_new_tokens=5)[0]) if question else ''",
        "[tok.decode(model.generate(**tok(q, return_tensors='pt'), max_new_tokens=5)[0]) for q in [question]]",
    ],
)
def test_draft_of_a_call_inside_a_call_asks_once(returned: str) -> None:
    """The ids of prompt and answer were written as two calls of the engine."""
    draft = body(PROMPT + f"return {returned}", question="x")
    value, engine = run(draft, "answer", "Why?")
    assert len(engine.calls) == 1 and "decoded [1, 2, 3, 5, 6]" in str(value)
    assert draft.code.count("max_new_tokens") == 1


def test_draft_of_a_loader_that_takes_an_object_caches_by_what_it_loads() -> None:
    """A dataclass has no hash, as this class."""
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        class Config:
            __hash__ = None
            path = "m"

        def get(config):
            tokenizer = AutoTokenizer.from_pretrained(config.path)
            return AutoModelForCausalLM.from_pretrained(config.path), tokenizer

        def answer(question):
            for _ in range(2):
                model, tokenizer = get(Config())
            inputs = tokenizer(question, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5)
            return tokenizer.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)
    """
    value, engine = run(draft_of(source, seen(question="x")), "answer", "Why?")
    assert (value, engine.loads) == ("ANSWER", [("m", {})])


@pytest.mark.parametrize("of", ["loop", "scored"])
def test_draft_of_code_that_calls_its_model_by_itself_says_what_stands_in_its_place(of: str) -> None:
    code = "ids = tok(question, return_tensors='pt').input_ids\nall_ids = torch.cat([ids, ids])\nreturn model(all_ids)"
    draft = body(code, rows=[{**row(), of: True}], question="x")
    assert not draft.is_moved and "# TODO parity: " in draft.code
    says = {
        "loop": "is generate_text_batch with its max_new_tokens",
        "scored": "engine.score_batch([(prompt, answer)])",
    }
    assert says[of] in draft.todos[0].text


def test_draft_of_a_class_of_the_file_that_is_called_a_model_is_one_of_the_file() -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        class HFModel:
            def __init__(self, path="m"):
                self.tok = AutoTokenizer.from_pretrained(path)
                self.model = AutoModelForCausalLM.from_pretrained(path)
                self.words = {"do_sample": False, "max_new_tokens": 9}

            def ask(self, question, **words):
                inputs = self.tok(question, return_tensors="pt")
                out = self.model.generate(**inputs, **{**self.words, **words})
                return self.tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

        def answer(question):
            return HFModel().ask(question, max_new_tokens=7)
    """
    observed = seen("HFModel.ask", self={"$object": "__main__.HFModel"}, question="x")
    draft = draft_of(source, observed)
    value, engine = run(draft, "answer", "Why?")
    assert value == "ANSWER" and [requests for requests, _ in engine.calls] == [[{"prompt": "Why?"}]]
    assert engine.options == {"max_new_tokens": 7, "repetition_penalty": 1.0}
    assert draft.factories == {"HFModel.ask": {"self": "make_self"}}


def test_draft_of_a_seed_that_the_script_sets_once_says_so() -> None:
    """It stood behind the functions, under the guard."""
    guard = """
        if __name__ == "__main__":
            torch.manual_seed(0)
            print(answer("x"), answer("y"))
    """
    source = ONE_CALL.replace("CALL", "do_sample=True") + textwrap.dedent(guard)
    assert [todo.text.split(";")[0] for todo in draft_of(source).todos] == ["the seed is set once for all calls"]
    assert not draft_of(source.replace("do_sample=True", "do_sample=False")).todos


ONE_CALL = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("m")
model = AutoModelForCausalLM.from_pretrained("m")

def answer(question):
    inputs = tok(question, return_tensors="pt")
    out = model.generate(**inputs, CALL)
    return tok.decode(out[0])
"""


def test_draft_of_a_length_that_counts_the_prompt_in_a_mapping_of_run_time_says_so() -> None:
    code = "words = {'max_length': most} if most else {'max_new_tokens': 5}\n" + PROMPT
    draft = body(
        code + "out = model.generate(**inputs, **words)\nreturn tok.decode(out[0])", parameters="question, most=None"
    )
    assert ["`**words` may hold max_length, for which the draft raises" in todo.text for todo in draft.todos] == [True]


VLLM = """
    from collections import Counter
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams
    llm = LLM("m", dtype="float32")
    tok = AutoTokenizer.from_pretrained("m")

    def answer(question, n=2):
        params = SamplingParams(temperature=0, n=n, max_tokens=5)
        BODY
"""


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("outs = sorted(llm.generate([question], params), key=lambda o: int(o.request_id))\n"
         "        return outs[0].outputs[0].text", "ANSWER"),
        ("out = llm.generate([question], params)[0]\n"
         "        return len(out.outputs), Counter(c.text for c in out.outputs)", (2, {"ANSWER 0": 1, "ANSWER 1": 1})),
    ],
)  # fmt: skip
def test_draft_of_vllm_outputs_takes_them_apart(code: str, value: Any) -> None:
    assert run(draft_of(VLLM.replace("BODY", code)), "answer", "Why?")[0] == value


@pytest.mark.parametrize("how", ["key=lambda o: o.request_id", "key=lambda o: int(o.request_id), reverse=True"])
def test_draft_of_outputs_in_another_order_is_not_sure(how: str) -> None:
    code = f"outs = sorted(llm.generate([question], params), {how})\n        return outs[0].outputs[0].text"
    assert draft_of(VLLM.replace("BODY", code)).todos


def test_draft_of_ids_that_vllm_is_given_keeps_them() -> None:
    code = 'ids = tok.apply_chat_template([{"role": "user", "content": question}], return_dict=False)\n'
    code += '        return llm.generate([{"prompt_token_ids": ids}], params)[0].outputs[0].text'
    _, engine = run(draft_of(VLLM.replace("BODY", code)), "answer", "Why?")
    assert engine.calls[0][0] == [{"prompt_token_ids": list("<Why?>")}]  # of the test's tokenizer


def test_draft_that_keeps_an_output_of_vllm_says_that_results_are_others() -> None:
    draft = draft_of(VLLM.replace("BODY", "return llm.generate([question], params)"))
    assert not draft.is_moved and "results of the engine have another form" in draft.todos[0].text
