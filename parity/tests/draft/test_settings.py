"""Drafts of settings that old code collects before it generates: dicts, GenerationConfigs, masks beside them."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
import transformers

from gen_engine import GenerationOptions

from .drafts import PROMPT, Tokenizer, body, draft_of, row, run, seen

IDS = "ids = tok(question, return_tensors='pt').input_ids\n"
GREEDY = {"max_new_tokens": 5, "repetition_penalty": 1.05}


def decoded(length: str) -> str:
    return f"\nreturn tok.decode(out[0][{length}:], skip_special_tokens=True)"


@pytest.mark.parametrize(
    "mask",
    [
        "torch.ones_like(ids)",
        "torch.ones(ids.shape, dtype=torch.long, device=model.device)",
        "torch.ones((1, ids.shape[1]), dtype=torch.long)",
        "(ids != tok.pad_token_id).long()",
        "ids.ne(tok.pad_token_id).int().to(model.device)",
    ],
)
def test_draft_of_a_mask_that_is_made_of_the_ids_leaves_it_out(mask: str) -> None:
    code = IDS + f"mask = {mask}\nout = model.generate(ids, attention_mask=mask, max_new_tokens=5)"
    value, engine = run(body(code + decoded("ids.shape[1]"), question="x"), "answer", "Why?")
    assert (value, engine.calls) == ("ANSWER", [([{"prompt": "Why?"}], {"max_new_tokens": 5})])


def test_draft_of_a_mask_that_is_read_otherwise_is_refused() -> None:
    code = IDS + "mask = torch.ones_like(ids)\nout = model.generate(ids, max_new_tokens=5)\nreturn mask.sum()"
    draft = body(code, question="x")
    assert not draft.is_moved and "the attention mask" in draft.todos[0].text


@pytest.mark.parametrize(
    "made",
    [
        "words = {'max_new_tokens': 5}",
        "words = dict(max_new_tokens=5)",
        "words = {}\nwords['max_new_tokens'] = 5",
    ],
)
@pytest.mark.parametrize(
    "sampled",
    [
        "words.update(do_sample=True, temperature=heat)",
        "words.update({'do_sample': True, 'temperature': heat})",
        "words |= {'do_sample': True, 'temperature': heat}",
        "words['do_sample'] = True\n    words['temperature'] = heat",
        "words = {**words, 'do_sample': True, 'temperature': heat}",
        "words = dict(words, do_sample=True, temperature=heat)",
    ],
)
def test_draft_of_a_dict_that_is_changed_in_a_branch_asks_what_each_branch_said(made: str, sampled: str) -> None:
    code = IDS + made + f"\nif heat > 0:\n    {sampled}\nelse:\n    words.update(do_sample=False)\n"
    code += "out = model.generate(ids, attention_mask=torch.ones_like(ids), **words)" + decoded("ids.shape[-1]")
    observed = [row(penalty=1.05)]
    draft = body(code, parameters="question, heat=0.0", rows=observed, question="x", heat=0.0)
    value, engine = run(draft, "answer", "Why?")
    assert (value, engine.calls[0][1]) == ("ANSWER", GREEDY)
    _, engine = run(draft, "answer", "Why?", 0.7)
    assert engine.calls[0][1] == {**GREEDY, "temperature": 0.7, "top_p": 1.0, "top_k": 50}


@pytest.mark.parametrize(
    "words",
    [
        "dict(**inputs, max_new_tokens=5)",
        "{**inputs, 'max_new_tokens': 5}",
        "{'input_ids': inputs.input_ids, 'attention_mask': inputs.attention_mask, 'max_new_tokens': 5}",
    ],
)
def test_draft_of_inputs_and_settings_in_one_dict_asks_both(words: str) -> None:
    code = PROMPT + f"words = {words}\nout = model.generate(**words)" + decoded("inputs.input_ids.shape[1]")
    value, engine = run(body(code, question="x"), "answer", "Why?")
    assert (value, engine.calls) == ("ANSWER", [([{"prompt": "Why?"}], {"max_new_tokens": 5})])


def test_draft_of_samples_that_a_dict_asks_for_gives_each() -> None:
    code = PROMPT + (
        "words = {'max_new_tokens': 5}\nif many:\n    words.update(do_sample=True, num_return_sequences=3)\n"
        "out = model.generate(**inputs, **words)\n"
        "return [tok.decode(o[inputs.input_ids.shape[1]:], skip_special_tokens=True) for o in out]"
    )
    draft = body(code, parameters="question, many", question="x", many=False)
    assert run(draft, "answer", "Why?", False)[0] == ["ANSWER"]
    assert run(draft, "answer", "Why?", True)[0] == ["ANSWER 0", "ANSWER 1", "ANSWER 2"]


# == GenerationConfig ==

MADE = "GenerationConfig(max_new_tokens=5, do_sample=False)"
ENDS = "\nout = model.generate(**inputs, generation_config=config)" + decoded("inputs.input_ids.shape[1]")
SAID = ENDS.replace("config)", "config, max_new_tokens=7)")
IMPORT = "from transformers import GenerationConfig"


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (f"config = {MADE}{ENDS}", GREEDY),
        (f"config = {MADE}\nconfig.max_new_tokens = budget{ENDS}", {**GREEDY, "max_new_tokens": 9}),
        (f"config = {MADE}\nsetattr(config, 'max_new_tokens', budget){ENDS}", {**GREEDY, "max_new_tokens": 9}),
        (f"config = {MADE}\nconfig.update(max_new_tokens=budget){ENDS}", {**GREEDY, "max_new_tokens": 9}),
        (f"config = GenerationConfig(**{{'max_new_tokens': budget, 'do_sample': False}}){ENDS}",
         {**GREEDY, "max_new_tokens": 9}),
        (f"config = make(budget){ENDS}", {**GREEDY, "max_new_tokens": 9}),
        (f"config = make(budget){SAID}", {**GREEDY, "max_new_tokens": 7}),
        (f"config = {MADE}{SAID}", {**GREEDY, "max_new_tokens": 7}),
        (f"config = {MADE}\nif budget:\n    config = GenerationConfig(max_new_tokens=budget){ENDS}",
         {**GREEDY, "max_new_tokens": 9}),
    ],
)  # fmt: skip
def test_draft_of_a_generation_config_asks_what_it_holds(code: str, options: dict[str, object]) -> None:
    before = IMPORT + "\ndef make(n):\n    return GenerationConfig(max_new_tokens=n, do_sample=False)\n"
    draft = body(PROMPT + code, before, "question, budget=9", rows=[row(penalty=1.05)], question="x")
    value, engine = run(draft, "answer", "Why?")
    assert (value, [asked for _, asked in engine.calls]) == ("ANSWER", [options])


def test_draft_of_a_generation_config_that_is_known_needs_none() -> None:
    draft = body(PROMPT + f"config = {MADE}{ENDS}", IMPORT, question="x")
    assert "GenerationConfig" not in draft.code


def config_golden(**fields: object) -> dict[str, object]:
    return {"$settings": "transformers.GenerationConfig", "fields": fields}


GIVEN = """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    tok = AutoTokenizer.from_pretrained("m")
    model = AutoModelForCausalLM.from_pretrained("m")

    def answer(question, config):
        inputs = tok(question, return_tensors="pt")
        out = model.generate(**inputs, generation_config=config)
        rows = tok.batch_decode(out[:, inputs.input_ids.shape[1]:], skip_special_tokens=True)
        return rows, config.num_return_sequences

    def main(n):
        config = GenerationConfig(max_new_tokens=5, do_sample=True, temperature=0.5, top_k=0, num_return_sequences=n,
                                  eos_token_id=tok.eos_token_id)
        return answer("Why?", config)
"""


def test_draft_of_a_generation_config_that_is_an_argument_reads_it_at_run_time() -> None:
    fields = config_golden(max_new_tokens=5, do_sample=True, num_return_sequences=2, eos_token_id=6)
    draft = draft_of(GIVEN, seen(rows=[row(penalty=1.05)], question="x", config=fields))
    value, engine = run(draft, "main", 2)
    assert value == (["ANSWER 0", "ANSWER 1"], 2)
    ends = {"stop": {"token_ids": [6], "ignore_eos": True}}
    sampled = {"temperature": 0.5, "top_p": 1.0, "top_k": None}
    assert engine.calls[0][1] == {**GREEDY, **sampled, **ends, "n": 2}


def test_draft_of_a_generation_config_with_what_has_no_option_is_refused() -> None:
    draft = draft_of(GIVEN, seen(question="x", config=config_golden(max_new_tokens=5, num_beams=4)))
    assert not draft.is_moved and "num_beams" in draft.todos[0].text


def test_draft_of_a_generation_config_that_may_be_absent_asks_what_is_inherited() -> None:
    code = PROMPT + f"out = model.generate(**inputs, generation_config=config){decoded('inputs.input_ids.shape[1]')}"
    draft = body(code, IMPORT, "question, config=None", rows=[row(penalty=1.05)], question="x", config=None)
    _, engine = run(draft, "answer", "Why?")
    assert engine.calls[0][1] == {**GREEDY, "max_new_tokens": 20}


def test_draft_of_a_method_whose_object_keeps_a_generation_config_asks_what_it_holds() -> None:
    source = """
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        class Asker:
            def __init__(self, path, budget):
                self.tok = AutoTokenizer.from_pretrained(path)
                self.model = AutoModelForCausalLM.from_pretrained(path)
                self.config = GenerationConfig(max_new_tokens=budget, do_sample=False)

            def ask(self, question):
                inputs = self.tok(question, return_tensors="pt")
                out = self.model.generate(**inputs, generation_config=self.config)
                return self.tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

        def answer(question):
            return Asker("m", 5).ask(question)
    """
    value, engine = run(draft_of(source, seen(question="x")), "answer", "Why?")
    assert (value, engine.calls[0][1]["max_new_tokens"]) == ("ANSWER", 5)


BATCH = """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    def config_of(path, **more):
        config = GenerationConfig()
        config.max_new_tokens = 5
        for name, value in more.items():
            setattr(config, name, value)
        return config

    def answer(path, questions, **more):
        tok = AutoTokenizer.from_pretrained(path, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(path)
        chats = []
        for q in questions:
            chat = [{"role": "system", "content": "S"}] if path else []
            chat.append({"role": "user", "content": q})
            chats.append(chat)
        inputs = tok.apply_chat_template(chats, add_generation_prompt=True, padding=True, return_dict=True,
                                         return_tensors="pt", enable_thinking=False).to(model.device)
        out = model.generate(**inputs, generation_config=config_of(path, **more))
        return tok.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""


def test_draft_of_a_batch_of_chats_with_settings_of_a_helper_asks_each() -> None:
    draft = draft_of(BATCH, seen(path="m", questions=["a"], max_new_tokens=7))
    value, engine = run(draft, "answer", "m", ["a", "b"])
    assert value == ["ANSWER", "ANSWER"]
    requests, options = engine.calls[0]
    assert [len(request["messages"]) for request in requests] == [2, 2]
    assert options["max_new_tokens"] == 5


FILE = """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    tok = AutoTokenizer.from_pretrained("m")
    model = AutoModelForCausalLM.from_pretrained("m")

    def answer(question):
        config = GenerationConfig.from_pretrained("m")
        config.max_new_tokens = 5
        inputs = tok(question, return_tensors="pt")
        out = model.generate(**inputs, generation_config=config)
        return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)
"""
OF_THE_FILE = {"eos_token_id": [6, 7], "bos_token_id": 1, "pad_token_id": 7, "repetition_penalty": 1.05}


def test_draft_of_a_generation_config_that_is_read_from_a_checkpoint_takes_what_that_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        transformers.GenerationConfig, "from_pretrained", lambda path: transformers.GenerationConfig(**OF_THE_FILE)
    )
    value, engine = run(draft_of(FILE, replace(seen(question="x"), settings=OF_THE_FILE)), "answer", "Why?")
    assert value == "ANSWER"
    assert engine.calls[0][1] == {**GREEDY, "stop": {"token_ids": [6, 7], "ignore_eos": True}}


def test_draft_of_a_generation_config_of_a_checkpoint_with_what_has_no_option_is_refused() -> None:
    draft = draft_of(FILE, replace(seen(question="x"), settings={"suppress_tokens": [5]}))
    assert not draft.is_moved and "suppress_tokens" in draft.todos[0].text


def test_draft_of_keywords_of_run_time_whose_rows_end_at_different_ids_is_refused() -> None:
    ends = [{**row(), "stop": {"end_ids": {"value": ids, "from": "checkpoint"}}} for ids in ([6], [6, 7])]
    code = PROMPT + "words = {}\nif budget:\n    words['max_new_tokens'] = budget\n"
    code += "out = model.generate(**inputs, **words)" + decoded("inputs.input_ids.shape[1]")
    draft = body(code, parameters="question, budget=5", rows=ends, question="x")
    assert not draft.is_moved and "end at different ids" in draft.todos[0].text


HELPER = """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tok = AutoTokenizer.from_pretrained("m")
    model = AutoModelForCausalLM.from_pretrained("m")
    PRESET = {"do_sample": False, "max_new_tokens": 9PRESET}

    def answer(question, **kwargs):
        inputs = tok(question, return_tensors="pt")
        CODE
        return tok.decode(out[0][inputs.input_ids.shape[1]:], skip_special_tokens=True)

    def ask(question):
        return answer(question, max_new_tokens=7)
"""
PLAIN = "out = model.generate(**inputs, do_sample=False, **kwargs)"
MERGED = "said = {**PRESET, **kwargs}\n        out = model.generate(**inputs, **said)"


LOCAL = 'said = {"max_new_tokens": 9, "do_sample": False, **kwargs}\n        out = model.generate(**inputs, **said)'
INPUTS = LOCAL.replace("{", "{**inputs, ").replace("**inputs, **said", "**said")


@pytest.mark.parametrize("code", [PLAIN, MERGED, LOCAL, INPUTS, LOCAL.replace("9,", "9, **PRESET,")])
@pytest.mark.parametrize("preset", ["", ', "use_cache": True', ', "early_stopping": True, "num_beams": 1'])
def test_draft_of_a_helper_gives_on_the_keywords_of_each_caller(code: str, preset: str) -> None:
    source = HELPER.replace("CODE", code).replace("9PRESET", "9" + preset)
    draft = draft_of(source, seen(rows=[row(penalty=1.05)], question="x"))
    value, engine = run(draft, "ask", "Why?")
    assert value == "ANSWER" and not draft.todos
    assert engine.calls == [([{"prompt": "Why?"}], {"max_new_tokens": 7, "repetition_penalty": 1.05})]


@pytest.mark.parametrize("word", ["num_beams", "bad_words_ids", "assistant_model"])
def test_draft_says_which_keyword_of_a_mapping_has_no_option(word: str) -> None:
    source = HELPER.replace("CODE", MERGED).replace("9PRESET", f'9, "{word}": tok.other')
    draft = draft_of(source, seen(question="x"))
    assert [f"may hold {word}" in todo.text for todo in draft.todos] == [True]
    with pytest.raises(ValueError, match=f"no option {word}"):
        run(draft_of(source.replace("tok.other", "4"), seen(question="x")), "ask", "Why?")


def test_draft_of_a_mapping_that_the_goldens_saw_with_beams_is_refused() -> None:
    beams = {**row(), "sampling": {**row()["sampling"], "num_beams": {"value": 3, "from": "caller"}}}
    source = HELPER.replace("CODE", MERGED).replace("9PRESET", '9, "num_beams": 3')
    draft = draft_of(source, seen(rows=[beams], question="x"))
    assert not draft.is_moved and "num_beams was 3" in draft.todos[0].text
    assert "# TODO parity: " in draft.code


CONSTANTS = """
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
    from vllm import LLM, SamplingParams
    tok = AutoTokenizer.from_pretrained("m")
    model = AutoModelForCausalLM.from_pretrained("m")
    pipe = pipeline("text-generation", model="m")
    llm = LLM("m")
    GREEDY = dict(max_new_tokens=7, do_sample=False)
    PARAMS = {"max_tokens": 7, "temperature": 0, "stop": ["x"]}
    ELSEWHERE

    def answer(question):
        CODE
"""


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (PROMPT + f"out = model.generate(**inputs, **GREEDY){decoded('inputs.input_ids.shape[1]')}", {}),
        ("return pipe(question, return_full_text=False, **GREEDY)[0]['generated_text']", {}),
        ("return llm.generate([question], SamplingParams(**PARAMS))[0].outputs[0].text",
         {"temperature": 0, "stop": {"strings": ["x"]}}),
    ],
)  # fmt: skip
def test_draft_of_constants_in_a_mapping_has_them_in_its_options(code: str, options: dict[str, object]) -> None:
    source = textwrap.dedent(CONSTANTS).replace("CODE", textwrap.indent(code, "    ").strip())
    draft = draft_of(source.replace("ELSEWHERE", ""), seen(question="x"))
    value, engine = run(draft, "answer", "Why?")
    assert value == "ANSWER" and engine.calls[0][1] == {"max_new_tokens": 7, **options}
    assert "generation_options" not in draft.code and not draft.todos


def test_draft_of_a_mapping_that_something_changes_reads_none_of_it() -> None:
    code = "return llm.generate([question], SamplingParams(**PARAMS))[0].outputs[0].text"
    source = textwrap.dedent(CONSTANTS).replace("CODE", code).replace("ELSEWHERE", "PARAMS['n'] = 2")
    draft = draft_of(source, seen(question="x"))
    assert not draft.is_moved and "what `**PARAMS` holds is not seen here" in draft.todos[0].text


CHANGED = f"config = {MADE}\nconfig.FIELD\nout = model.generate(**inputs, generation_config=config)"


def test_draft_of_scores_that_a_changed_config_asks_for_is_refused_as_scores() -> None:
    code = CHANGED.replace("FIELD", "output_scores = True") + "\nreturn out.sequences, out.scores"
    draft = body(PROMPT + code, IMPORT, "question, budget=9", rows=[row(penalty=1.05)], question="x")
    assert not draft.is_moved and "the scores of generate are read" in draft.todos[0].text


def test_draft_of_a_config_whose_field_has_no_option_says_so() -> None:
    code = CHANGED.replace("FIELD", "num_beams = budget") + decoded("inputs.input_ids.shape[1]")
    draft = body(PROMPT + code, IMPORT, "question, budget=9", question="x")
    assert ["may hold num_beams" in todo.text for todo in draft.todos] == [True]


def test_a_keyword_that_is_called_as_what_became_the_engine_stays() -> None:
    """It was `words.update(engine.tokenizer=engine.tokenizer)`."""
    code = PROMPT + "words = {'max_new_tokens': 5}\nif stop:\n    words.update(stop_strings=stop, tok=tok)\n"
    code += "out = model.generate(**inputs, **words)" + decoded("inputs.input_ids.shape[1]")
    draft = body(code, parameters="question, stop=None", question="x", stop=None)
    assert draft.is_moved and "words.update(stop_strings=stop, tok=engine.tokenizer)" in draft.code


NONES = "min_new_tokens=None, no_repeat_ngram_size=None, repetition_penalty=None, heat=None, top_p=None, top_k=None"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": None, "repetition_penalty": 1.0}),
        ({"min_new_tokens": 0, "no_repeat_ngram_size": 0, "top_k": 0},
         {"temperature": 1.0, "top_p": 1.0, "top_k": None, "repetition_penalty": 1.0}),
        ({"min_new_tokens": 2, "no_repeat_ngram_size": 3, "top_k": 4, "repetition_penalty": 1.5, "heat": 0.5},
         {"temperature": 0.5, "top_p": 1.0, "top_k": 4, "repetition_penalty": 1.5, "min_new_tokens": 2,
          "no_repeat_ngram_size": 3}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["named", "mapping"])
def test_none_means_in_options_what_it_means_to_generate(
    way: str, given: dict[str, object], options: dict[str, object]
) -> None:
    words = [name.partition("=")[0] for name in NONES.split(", ")]
    said = {("temperature" if word == "heat" else word): word for word in words} | {"do_sample": "True"}
    call = ", ".join(f"{name}={value}" for name, value in said.items())
    if way == "mapping":
        call = f"**({{}} if question is None else dict({call}))"
    code = PROMPT + f"out = model.generate(**inputs, max_new_tokens=5, {call})" + decoded("inputs.input_ids.shape[1]")
    code = f"def ask(given):\n    return answer('Why?', **given)\n\ndef answer(question, {NONES}):\n" + textwrap.indent(
        code, "    "
    )
    source = "from transformers import AutoModelForCausalLM, AutoTokenizer\ntok = AutoTokenizer.from_pretrained('m')\n"
    source += "model = AutoModelForCausalLM.from_pretrained('m')\n\n" + code
    _, engine = run(draft_of(source, seen(question="x")), "ask", given)
    nothing = {"min_new_tokens": 0, "no_repeat_ngram_size": None}
    asked = {name: value for name, value in engine.calls[0][1].items() if nothing.get(name, ()) != value}
    assert asked == {"max_new_tokens": 5, **options}
    GenerationOptions(**engine.calls[0][1])


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("do_sample=hot, temperature=heat if hot else None", "heat if hot else 0.0"),
        ("do_sample=hot, temperature=heat if question else 0.5", "(heat if question else 0.5) if hot else 0.0"),
    ],
)
def test_a_temperature_that_is_chosen_by_a_condition_is_sampled_at_where_the_call_samples(
    said: str, written: str
) -> None:
    code = PROMPT + f"out = model.generate(**inputs, {said})" + decoded("inputs.input_ids.shape[1]")
    draft = body(code, parameters="question, hot=False, heat=0.7", question="x", hot=False)
    assert f'"temperature": {written},' in draft.code


@pytest.mark.parametrize("call", ["do_sample=True, min_p=0.1, top_p=0.9", "do_sample=True, min_p=least, top_p=most"])
def test_min_p_beside_top_p_is_refused_where_the_source_or_a_golden_shows_both(call: str) -> None:
    cuts = {"temperature": 0.5, "min_p": 0.1, "top_p": 0.9}
    sampling = {name: {"value": value, "from": "caller"} for name, value in cuts.items()}
    code = PROMPT + f"out = model.generate(**inputs, {call})" + decoded("inputs.input_ids.shape[1]")
    rows = [{**row(), "sampling": sampling}] if "least" in call else ()
    draft = body(code, parameters="question, least=0.1, most=0.9", rows=rows, question="x")
    assert not draft.is_moved and "top_p and min_p are both in effect" in draft.todos[0].text


@pytest.mark.parametrize(
    ("words", "call", "most"),
    [
        ("truncation=True, max_length=512", "max_new_tokens=5", 512),
        ("truncation=True, max_length=most", "max_new_tokens=5", 9),
        ("truncation=True", "max_new_tokens=5", 64),
        ("truncation=True, max_length=512", "**words", 512),
        ("truncation=False, max_length=512", "max_new_tokens=5", None),
    ],
)
def test_prompts_that_a_tokenizer_cut_are_refused_when_the_draft_runs(words: str, call: str, most: int | None) -> None:
    """Those that fit into the window passed uncut."""
    code = f"inputs = tok(question, return_tensors='pt', {words})\nout = model.generate(**inputs, {call})\n"
    code += "return tok.decode(out[0][inputs.input_ids.shape[1]:])"
    draft = body(code, parameters="question, most=9, **words", question="x")
    tokenizer = Tokenizer()
    tokenizer.model_max_length = 64  # type: ignore[attr-defined]
    _, engine = run(draft, "answer", "Why?", tokenizer=tokenizer)
    assert engine.calls[0][1].get("max_prompt_tokens") == most
    says = ["the draft refuses those" in todo.text for todo in draft.todos]
    assert says == ([True] if most else [])


def test_no_budget_of_a_call_is_that_of_generate() -> None:
    code = "out = model.generate(**inputs, **words)\nreturn tok.decode(out[0])"
    _, engine = run(body(PROMPT + code, parameters="question, **words"), "answer", "Why?")
    assert engine.calls[0][1]["max_new_tokens"] == 20


def test_the_window_of_a_tokenizer_that_encodes_is_its_own() -> None:
    code = "ids = tok.encode(question, return_tensors='pt', truncation=True)\n"
    code += "out = model.generate(ids, max_new_tokens=5)\nreturn tok.decode(out[0][ids.shape[1]:])"
    tokenizer = Tokenizer()
    tokenizer.model_max_length = 64  # type: ignore[attr-defined]
    _, engine = run(body(code, question="x"), "answer", "Why?", tokenizer=tokenizer)
    assert engine.calls[0][1]["max_prompt_tokens"] == 64


def test_vllm_without_a_budget_is_refused() -> None:
    source = """
        from vllm import LLM, SamplingParams
        llm = LLM("m")

        def answer(question):
            return llm.generate([question], SamplingParams(max_tokens=None))[0].outputs[0].text
    """
    draft = draft_of(source, seen(question="x"))
    assert not draft.is_moved and "max_tokens=None, because each row then goes on" in draft.todos[0].text
