"""The facts of a block, each with where it comes from."""

from __future__ import annotations

from textwrap import dedent

import pytest

from parity.tests.scan.material import LOAD, block_of, fact_of_call, facts_of, scan_text, scan_texts, shown

HEAD = "import torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, pipeline\n"
TOKENIZER = "tok = AutoTokenizer.from_pretrained('m')\n"
ASK = "model.generate(**x, max_new_tokens=3)\n"
UNSAID_DTYPE = "None <not said: the library (float32 before transformers 5, then the checkpoint's config.json)>"


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("from_pretrained('m')", UNSAID_DTYPE),
        ("from_pretrained('m', torch_dtype=torch.bfloat16)", "bfloat16 <literal>"),
        ("from_pretrained('m', dtype='auto')", "auto <literal>"),
        ("from_pretrained('m', torch_dtype=torch.bfloat16).half()", "float16 <literal>"),
        ("from_pretrained('m').to(torch.float16)", "float16 <literal>"),
        ("from_pretrained('m').to('cuda', dtype=torch.float16)", "float16 <literal>"),
        ("from_pretrained('m').to('cuda')", UNSAID_DTYPE),
        ("from_pretrained('m', torch_dtype=torch.bfloat16 if x else torch.float16)", "None <computed>"),
        ("from_pretrained('m', **model_kwargs)", "None <config>"),
        ("from_pretrained('m', bf16=True, trust_remote_code=True)", "bfloat16 <literal>"),
        ("from_pretrained('m', bf16=False, trust_remote_code=True)", UNSAID_DTYPE),
    ],
)
def test_dtype_is_what_holds_in_the_end(load: str, expected: str) -> None:
    code = f"{HEAD}model = AutoModelForCausalLM.{load}\n{ASK}"
    assert shown(facts_of(code)["dtype"]) == expected


def test_dtype_of_a_library_that_is_called_at_the_top_of_a_script() -> None:
    load = "AutoModelForCausalLM.from_pretrained('m', torch_dtype=torch.bfloat16)"
    code = f"{HEAD}torch.manual_seed(7)\ndef main():\n    model = {load}\n    {ASK}"
    assert facts_of(code)["dtype"].value == "bfloat16"


def test_dtype_a_cast_in_a_statement_counts() -> None:
    assert fact_of_call("model.half()\n" + ASK, "dtype").value == "float16"


def test_dtype_of_a_model_that_is_wrapped_is_that_of_the_model() -> None:
    wrapper = "class W:\n    def __init__(self, m): ...\n    def __getattr__(self, name): ...\n"
    load = "AutoModelForCausalLM.from_pretrained('m', dtype='float16')"
    assert facts_of(f"{HEAD}{wrapper}W({load}).generate(input_ids=x)")["dtype"].value == "float16"
    unsaid = facts_of(f"{HEAD}{wrapper}W('m').generate(input_ids=x)")["dtype"]
    assert unsaid.source == "not said: W, a class of this repository"


def test_dtype_of_a_model_that_comes_from_elsewhere_is_not_said() -> None:
    code = "def f(model, tok):\n    ids = tok('a').input_ids\n    return model.generate(ids, max_new_tokens=3)"
    assert facts_of(code)["dtype"].source == "not said: whoever makes the argument model"


@pytest.mark.parametrize(
    ("load", "name", "expected"),
    [
        ("device_map='auto'", "device", "auto <literal>"),
        ("attn_implementation='sdpa'", "attn", "sdpa <literal>"),
        ("use_flash_attention_2=True", "attn", "flash_attention_2 <literal>"),
        ("trust_remote_code=True", "trust_remote_code", "True <literal>"),
        ("load_in_8bit=True", "quantization", "load_in_8bit <literal>"),
        ("quantization_config=BitsAndBytesConfig(load_in_4bit=True)", "quantization", "load_in_4bit <literal>"),
        ("quantization_config=BitsAndBytesConfig(load_in_4bit=True) if q else None", "quantization", "None <computed>"),
    ],
)
def test_load_settings_are_read(load: str, name: str, expected: str) -> None:
    code = f"{HEAD}model = AutoModelForCausalLM.from_pretrained('m', {load})\n{ASK}"
    assert shown(facts_of(code)[name]) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("tok = AutoTokenizer.from_pretrained('m', padding_side='left')", "left <literal>"),
        (TOKENIZER + "tok.padding_side = 'left'", "left <literal>"),
        (TOKENIZER + "setattr(tok, 'padding_side', 'left')", "left <literal>"),
        (TOKENIZER, "None <not said: the checkpoint's tokenizer_config.json>"),
    ],
)
def test_padding_side_is_that_of_the_tokenizer(code: str, expected: str) -> None:
    code = f"{LOAD}{code}\nx = tok(['a', 'b'], padding=True, return_tensors='pt')\nout = {ASK}tok.batch_decode(out)"
    assert shown(facts_of(code)["padding_side"]) == expected


def test_padding_side_of_a_call_wins() -> None:
    code = f"{LOAD}x = tokenizer(['a'], padding=True, padding_side='right')\n{ASK}"
    assert facts_of(code)["padding_side"].value == "right"


def test_padding_side_is_followed_through_a_loader() -> None:
    code = """
from transformers import AutoModelForCausalLM, AutoTokenizer
def load(path):
    tok = AutoTokenizer.from_pretrained(path)
    tok.padding_side = "left"
    return AutoModelForCausalLM.from_pretrained(path, dtype="float32"), tok
class Runner:
    def __init__(self, path):
        self.model, self.tok = load(path)
    def ask(self, texts):
        x = self.tok(texts, padding=True, return_tensors="pt")
        return self.tok.batch_decode(self.model.generate(**x, max_new_tokens=3))
"""
    facts = facts_of(code)
    assert facts["padding_side"].value == "left"
    assert facts["dtype"].value == "float32"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "ids = tokenizer.apply_chat_template(m, add_generation_prompt=True)\nmodel.generate(ids)",
            "apply_chat_template",
        ),
        ("x = tokenizer(f'### Instruction:\\n{q}\\n### Response:')\nmodel.generate(**x)", "hand-written"),
        ("x = tokenizer(f'Question: {q} Answer:')\nmodel.generate(**x)", "hand-written"),
        ("x = tokenizer(q)\nmodel.generate(**x)", "none"),
    ],
)
def test_template_is_how_the_prompt_is_rendered(code: str, expected: str) -> None:
    assert fact_of_call(f"q = input()\n{code}", "template").value == expected


TOK = "AutoTokenizer.from_pretrained('m', padding_side='left')"


@pytest.mark.parametrize(
    ("signature", "callers", "expected"),
    [
        ("model, tok", "", "None <not said: whoever makes the argument tok>"),
        ("model, tok", f"run(model, {TOK})", "left <literal>"),
        ("model, tok", "def main(t):\n    t.padding_side = 'left'\n    run(model, t)", "left <literal>"),
        ("bundle, tok=None", f"run({{'tok': {TOK}}})", "left <literal>"),
        (
            "model, tok",
            "if __name__ == '__main__':\n    tokenizer.padding_side = 'left'\n    run(model, tokenizer)",
            "left <literal>",
        ),
    ],
)
def test_padding_side_of_a_parameter_is_that_of_the_callers(signature: str, callers: str, expected: str) -> None:
    first = "tok = bundle['tok']\n    " if "bundle" in signature else ""
    code = (
        f"{LOAD}def run({signature}):\n    {first}x = tok(['a', 'b'], padding=True)\n    return model.generate(**x)\n"
    )
    assert shown(facts_of(code + callers)["padding_side"]) == expected


def test_tokenizer_of_a_data_set_that_a_caller_makes_is_read() -> None:
    code = f"""{LOAD}
class Rows:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
    def __getitem__(self, index):
        return self.tokenizer(self.rows[index], truncation=True)
def run(model, loader):
    for batch in loader:
        model.generate(input_ids=batch)
def main():
    run(model, DataLoader(Rows(tokenizer)))
"""
    assert facts_of(code)["truncation"].value is True


@pytest.mark.parametrize(
    ("callers", "expected"),
    [
        ("def ask(q):\n    run(f'Question: {q} Answer:')", "hand-written <literal>"),
        ("def ask(q):\n    run('Human: ' + q + ' Assistant:')", "hand-written <literal>"),
        ("def two(p):\n    run(p)\ndef one(p):\n    two(p)\none(f'Question: {q} Answer:')", "hand-written <literal>"),
        ("T = {'a': 'Below is {x}'}\nfor q in qs:\n    run(T['a'].format_map(q))", "hand-written <literal>"),
        (
            "def ask(qs):\n    for p in [f'Question: {q} Answer:' for q in qs]:\n        run(p)",
            "hand-written <literal>",
        ),
        (
            "def main(q):\n    def inner(p):\n        return run(p)\n    inner(f'Question: {q} Answer:')",
            "hand-written <literal>",
        ),
        (
            "def three(p):\n    run(p)\ndef two(p):\n    three(p)\ndef one(p):\n    two(p)\n"
            "one(tokenizer.apply_chat_template(q, tokenize=False))",
            "apply_chat_template <literal>",
        ),
        ("from other import build_prompt\ndef ask(q):\n    run(build_prompt(q))", "None <computed>"),
        ("for row in rows:\n    run(row['text'])", "none <literal>"),
        ("run(open(f'data/{name}.txt').read())", "none <literal>"),
    ],
)
def test_template_is_followed_to_the_callers_that_make_the_prompt(callers: str, expected: str) -> None:
    code = f"{LOAD}def run(x):\n    return model.generate(**tokenizer(x))\n{callers}\n"
    assert shown(facts_of(code)["template"]) == expected


@pytest.mark.parametrize(
    ("switch", "expected"),
    [
        ("", "None <not said: the chat template>"),
        (", enable_thinking=False", "False <literal>"),
        (", chat_template_kwargs={'enable_thinking': True}", "True <literal>"),
        (", enable_thinking=thinking", "None <arg thinking>"),
    ],
)
def test_enable_thinking_is_a_switch_of_the_template(switch: str, expected: str) -> None:
    code = f"def f(m, thinking):\n    ids = tokenizer.apply_chat_template(m{switch})\n    return model.generate(ids)"
    assert shown(fact_of_call(code, "enable_thinking")) == expected


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ("do_sample=True", "do_sample", "True <literal>"),
        ("", "do_sample", "None <not said: the checkpoint's generation_config.json>"),
        ("max_length=9", "max_new_tokens", "None <computed>"),
        ("num_return_sequences=4", "n", "4 <literal>"),
        ("stop_strings=['a']", "stop", "['a'] <literal>"),
        ("eos_token_id=[1, 2]", "stop", "[1, 2] <literal>"),
        ("repetition_penalty=1.1", "repetition_penalty", "1.1 <literal>"),
    ],
)
def test_sampling_and_budget_are_read(given: str, name: str, expected: str) -> None:
    assert shown(fact_of_call(f"model.generate(**inputs, {given})", name)) == expected


VLLM = """from vllm import LLM, SamplingParams
llm = LLM('m', dtype='float16')
p = SamplingParams(top_p=0.5) if x else SamplingParams(top_p=0.9)
p.temperature = 0.5
"""


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ("SamplingParams(temperature=0)", "do_sample", "False <literal>"),
        ("SamplingParams(temperature=0.5)", "do_sample", "True <literal>"),
        ("SamplingParams()", "do_sample", "None <not said: vLLM (samples: temperature 1.0)>"),
        ("SamplingParams(top_p=0.5)", "max_new_tokens", "None <not said: vLLM (16)>"),
        ("SamplingParams(max_tokens=5, stop=['a'])", "stop", "['a'] <literal>"),
        ("SamplingParams(seed=3)", "seed", "3 <literal>"),
        ("SamplingParams(logprobs=20)", "logprobs", "20 <literal>"),
        ("SamplingParams(logprobs=20)", "prompt_logprobs", "None <not said: vLLM (none)>"),
        ("SamplingParams(prompt_logprobs=0)", "prompt_logprobs", "0 <literal>"),
        ("p", "temperature", "0.5 <literal>"),
        ("p", "max_new_tokens", "None <not said: vLLM (16)>"),
        ("SamplingParams(top_p=0.5).clone()", "top_p", "0.5 <literal>"),
        ("SamplingParams()", "dtype", "float16 <literal>"),
    ],
)
def test_vllm_settings_are_read(given: str, name: str, expected: str) -> None:
    assert shown(facts_of(f"{VLLM}llm.generate(['a'], {given})")[name]) == expected


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ("tokenizer.decode(out[0, x.input_ids.shape[1]:], skip_special_tokens=True)", ("by_len", False, False)),
        ("[o[len(i):] for i, o in zip(x.input_ids, out)]", ("by_len", False, False)),
        ("tokenizer.decode(out[0])[len(q):].strip()", ("by_text", True, False)),
        ("tokenizer.decode(out[0]).replace(q_prompt, '')", ("by_text", False, False)),
        ("tokenizer.decode(out[0]).split('[/INST]')[-1]", ("by_text", False, False)),
        ("tokenizer.decode(out[0]).split('\\n')[0]", ("none", False, True)),
        ("t = tokenizer.decode(out[0])\nt = t[: t.find('###')].strip()", ("none", True, True)),
        ("print(tokenizer.decode(out[0]))", ("none", False, False)),
        ("t = tokenizer.decode(out[0])\nt[t.find('{') : t.rfind('}') + 1]", ("none", False, True)),
        ("t = tokenizer.decode(out[0])\ni = t.find('END')\nt = t[i + 3 :]", ("none", False, True)),
        ("t = tokenizer.decode(out[0])\nt = t[t.rfind('assistant') :]", ("by_text", False, True)),
        ("t = tokenizer.decode(out[0])\nt = t[t.find(q_prompt) + n :]", ("by_text", False, True)),
        ("t = tokenizer.decode(out[0])\nt = t[t.find('Answer') :]", ("none", False, True)),
        ("t = tokenizer.decode(out[0])\nm = re.search('a', t)\nt = t[m.end() :]", ("none", False, True)),
        ("ids = out[0].tolist()\ntokenizer.decode(ids[: ids.index(eos)])", ("none", False, True)),
        ("ts = tokenizer.batch_decode(out)\nts[:n]", ("none", False, False)),
    ],
)
def test_result_is_followed_to_its_text(behind: str, expected: tuple[str, bool, bool]) -> None:
    facts = facts_of(f"{LOAD}x = tokenizer(q)\nout = {ASK}{behind}")
    assert (facts["prompt_slice"].value, facts["strip"].value, facts["cuts_by_hand"].value) == expected


def test_result_is_followed_into_a_function_and_to_a_caller() -> None:
    code = (
        LOAD
        + """
def clean(text):
    return text.split("</s>")[0].strip()
def run(x):
    return model.generate(**x, max_new_tokens=3)
def ask(q):
    x = tokenizer(q)
    out = run(x)
    return clean(tokenizer.decode(out[0][x.input_ids.shape[1]:], skip_special_tokens=True))
"""
    )
    facts = facts_of(code)
    assert (facts["prompt_slice"].value, facts["skip_special_tokens"].value) == ("by_len", True)
    assert (facts["strip"].value, facts["cuts_by_hand"].value) == (True, True)


def test_streamer_says_how_it_decodes() -> None:
    code = (
        LOAD
        + """
from threading import Thread
from transformers import TextIteratorStreamer
streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
Thread(target=model.generate, kwargs=dict(max_new_tokens=5, streamer=streamer)).start()
"""
    )
    facts = facts_of(code)
    assert facts["prompt_slice"].value == "by_len"
    assert facts["skip_special_tokens"].value is True
    assert facts["max_new_tokens"].value == 5


def test_pipeline_takes_settings_from_its_construction_and_its_call() -> None:
    code = (
        HEAD
        + """
pipe = pipeline("text-generation", model="m", torch_dtype=torch.float16, return_full_text=False, max_new_tokens=9)
pipe(q, do_sample=False, batch_size=4)
"""
    )
    facts = facts_of(code)
    assert [facts[name].value for name in ("dtype", "max_new_tokens", "do_sample", "batch", "prompt_slice")] == [
        "float16",
        9,
        False,
        4,
        "by_text",
    ]


def test_remote_chat_is_inside_the_checkpoint() -> None:
    code = "from transformers import AutoModel\nm = AutoModel.from_pretrained('m', trust_remote_code=True)\n"
    facts = facts_of(code + "m.chat(tok, px, 'q', dict(max_new_tokens=3))")
    assert facts["template"].source == facts["prompt_slice"].source == "inside the checkpoint's code"
    assert facts["max_new_tokens"].value == 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [("AutoModelForCausalLM", "text"), ("AutoModelForSeq2SeqLM", "seq2seq"), ("AutoModelForImageTextToText", "vlm")],
)
def test_kind_is_that_of_the_class(name: str, kind: str) -> None:
    code = f"from transformers import {name}\nmodel = {name}.from_pretrained('m')\n{ASK}"
    assert block_of(code).kind == kind


def test_kind_of_two_classes_is_seq2seq_where_both_are() -> None:
    load = "from transformers import *\nmodel = (AutoModelForSeq2SeqLM if a else {}).from_pretrained('m')\n" + ASK
    kinds = [block_of(load.format(name)).kind for name in ("BartForConditionalGeneration", "AutoModelForCausalLM")]
    assert kinds == ["seq2seq", "text"]


def test_seed_is_found_where_the_script_starts() -> None:
    code = LOAD + "def f():\n    return model.generate(**x)\ndef main():\n    torch.manual_seed(7)\n    f()\n"
    assert facts_of(code)["seed"].value == 7


@pytest.mark.parametrize(
    ("helper", "expected"),
    [
        ("def fix(seed=3):\n    random.seed(seed)\n    torch.manual_seed(seed)", "5 <literal>"),
        ("def fix(seed):\n    torch.manual_seed(seed + 1)", "6 <literal>"),
        ("def fix(seed):\n    hf_set_seed(seed)\nfrom transformers import set_seed as hf_set_seed", "5 <literal>"),
        ("def fix(seed):\n    enable_full_determinism(seed)", "5 <literal>"),
        ("def fix(seed):\n    torch.cuda.manual_seed_all(seed)", "5 <literal>"),
        ("def fix(seed):\n    np.random.seed(seed)", "None <not said: nobody: the global generator as it stands>"),
    ],
)
def test_seed_is_what_a_function_of_the_repository_gives_torch(helper: str, expected: str) -> None:
    files = {
        "helpers.py": f"import torch\n{helper}",
        "old.py": f"{LOAD}from helpers import fix\nfix(5)\nmodel.generate(**x)",
    }
    [block] = scan_texts(files).blocks
    assert shown(block.facts["seed"]) == expected


def test_result_a_name_that_holds_ids_first_and_text_later_is_both() -> None:
    code = f"{LOAD}x = tokenizer(q)\nout = {ASK}out = out[:, n:]\nout = tokenizer.batch_decode(out)"
    assert facts_of(code)["prompt_slice"].value == "by_len"


def test_template_is_found_in_a_function_that_is_handed_on() -> None:
    code = (
        LOAD
        + """
def prepare(row):
    return tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True)
def main(dataset):
    for x in dataset.map(prepare):
        x["input_ids"]
        model.generate(**x, max_new_tokens=3)
"""
    )
    facts = facts_of(code)
    assert facts["template"].value == "apply_chat_template"
    assert facts["temperature"].source == "not said: the checkpoint's generation_config.json"


@pytest.mark.parametrize(
    "behind",
    [
        "try:\n    out = model.generate(**x)\nexcept RuntimeError:\n    out = ''\nt = tokenizer.decode(out[0]).strip()",
        "out = model.generate(**x)\nfor term in until:\n    t = tokenizer.decode(out[0])\n    t = t.strip()",
        "out = accelerator.gather(model.generate(**x).contiguous())\nt = tokenizer.decode(out[0]).strip()",
    ],
)
def test_result_is_followed_through_branches_loops_and_other_functions(behind: str) -> None:
    assert facts_of(f"{LOAD}x = tokenizer(q)\n{behind}")["strip"].value is True


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("tokenizer([a, b], padding=True)", (None, "many")),
        ("tokenizer(a, padding=True)", (False, "one at a time")),
        ("tokenizer([a], padding=True)", (False, "one at a time")),
        (
            "tokenizer.apply_chat_template([{'role': 'system'}, {'role': 'user'}], padding=True)",
            (False, "one at a time"),
        ),
    ],
)
def test_batch_is_how_many_prompts_one_call_has(prompts: str, expected: tuple[int | None, str]) -> None:
    fact = facts_of(f"{LOAD}x = {prompts}\nout = {ASK}tokenizer.decode(out[0])")["batch"]
    assert (fact.value, fact.text) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from vllm import LLM\nllm = LLM('m')\nout = llm.generate(['a'])", False),
        ("from vllm import LLM\nllm = LLM('m')\nps = [t(q) for q in qs]\nout = llm.generate(ps)", True),
        ("from vllm import LLM\nllm = LLM('m')\nout = llm.generate(f'{a} b')", False),
        ("from vllm import LLM\nllm = LLM('m')\nout = llm.chat([{'role': 'user', 'content': q}])", False),
        ("from vllm import LLM\nllm = LLM('m')\nt = [o.outputs[0].text for o in llm.generate(qs)]", None),
        (f"{LOAD}out = model.generate(**tokenizer(q))\nt = tokenizer.batch_decode(out)[0]", False),
        (f"{LOAD}out = model.generate(**tokenizer(qs))\nt = tokenizer.batch_decode(out)", None),
        (f"{LOAD}t, history = model.chat(tokenizer, q)", False),
    ],
)
def test_batch_of_a_single_prompt_is_false_else_computed(code: str, expected: bool | None) -> None:
    assert facts_of(code)["batch"].value is expected


def test_template_in_one_branch_only_is_computed() -> None:
    code = """
    def f(q, use_chat):
        if use_chat:
            q = tokenizer.apply_chat_template(q, tokenize=False)
        else:
            q = q[0]
        return tokenizer.decode(model.generate(**tokenizer(q))[0])
    """
    assert facts_of(LOAD + dedent(code))["template"].source == "computed"


def test_template_of_a_function_that_is_called_in_one_branch_only_is_computed() -> None:
    code = """
    def render(q):
        return tokenizer.apply_chat_template(q, tokenize=False)
    def f(q, use_chat):
        if use_chat:
            q = render(q)
        return tokenizer.decode(model.generate(**tokenizer(q))[0])
    """
    assert facts_of(LOAD + dedent(code))["template"].source == "computed"


def test_strip_in_one_branch_only_is_computed() -> None:
    code = "t = tokenizer.decode(model.generate(**tokenizer(q))[0])\nif name == 'a':\n    t = t.strip()"
    assert facts_of(LOAD + code)["strip"].source == "computed"


def test_ids_without_their_first_token_are_not_sliced_from_the_prompt() -> None:
    code = f"""{LOAD}
def f(x):
    ids = model.generate(**x, max_new_tokens=5)
    return tokenizer.decode(ids[0][1:], skip_special_tokens=True)
"""
    assert facts_of(code)["prompt_slice"].value == "none"


UNSAID = "None <not said: the checkpoint's generation_config.json>"


@pytest.mark.parametrize(
    ("signature", "call", "expected"),
    [
        ("x, cfg", "model.generate(x, cfg)", "None <arg cfg>"),
        ("x, prompt_kwargs", "model.generate(**tokenizer(x), **prompt_kwargs)", "None <arg prompt_kwargs>"),
        ("x, o", "model.generate(x, generation_config=GenerationConfig.from_dict(o))", "None <arg o>"),
        ("x, o", "model.generation_config.update(**o)\n    model.generate(x)", "None <arg o>"),
        ("x", "model.generation_config.update(temperature=0.5)\n    model.generate(x)", "0.5 <literal>"),
        ("x", "g = model.generation_config\n    g.top_p = 0.5\n    model.generate(x, generation_config=g)", UNSAID),
        ("x, o", "model.generate(x, **{k: v for k, v in o.items() if v is not None})", "None <arg o>"),
        (
            "x, t=0",
            "d = {'temperature': t}\n    model.generate(x, **{k: v for k, v in d.items() if v is not None})",
            "0 <arg t>",
        ),
        (
            "x",
            "d = {'temperature': 0}\n    model.generate(x, **{k: v for k, v in d.items() if v})",
            "None <computed>",
        ),
    ],
)
def test_setting_that_may_be_in_what_cannot_be_read_is_not_unsaid(signature: str, call: str, expected: str) -> None:
    code = f"from transformers import GenerationConfig\ndef f({signature}):\n    {call}"
    assert shown(fact_of_call(code, "temperature")) == expected


def test_vllm_setting_that_may_be_in_keyword_arguments_is_not_unsaid() -> None:
    assert facts_of(f"{VLLM}def f(**kw):\n    return llm.generate(**kw)")["temperature"].source == "arg kw"


def test_load_setting_that_may_be_in_model_kwargs_is_not_unsaid() -> None:
    code = f"{HEAD}def f(q, kw):\n    return pipeline('text-generation', model='m', model_kwargs=kw)(q)"
    assert facts_of(code)["dtype"].source == "arg kw"


def test_truncation_that_may_be_in_keyword_arguments_of_the_tokenizer_is_not_unsaid() -> None:
    code = f"{LOAD}def f(q, kw):\n    x = tokenizer(q, **kw)\n    return model.generate(**x)"
    assert facts_of(code)["truncation"].source == "arg kw"


@pytest.mark.parametrize("name", ["do_sample", "temperature", "max_new_tokens", "n", "stop"])
def test_remote_chat_decides_what_the_call_does_not_say(name: str) -> None:
    code = "from transformers import AutoModel\nm = AutoModel.from_pretrained('m', trust_remote_code=True)\n"
    facts = facts_of(code + "m.chat(image=i, msgs=ms, tokenizer=t, sampling=True)")
    assert facts[name].source == "inside the checkpoint's code"


ENGINE = "from vllm import LLM, SamplingParams\nllm = LLM('m')\n"


@pytest.mark.parametrize("change", ["stops.append(more)", "if more:\n        stops.extend(more)", "stops += [more]"])
def test_stop_of_a_list_that_grows_is_computed(change: str) -> None:
    code = f"def f(prompts, more):\n    stops = ['a']\n    {change}\n"
    fact = facts_of(f"{ENGINE}{code}    return llm.generate(prompts, SamplingParams(stop=stops))")["stop"]
    assert fact.source == "computed" and "a" in str(fact)


def test_stop_of_a_list_that_another_method_reads_is_computed_where_it_grows() -> None:
    own = "class W:\n    def __init__(self, more):\n        self.stops = []\n        self.stops.extend(more)\n"
    own += "    def go(self, prompts):\n        return llm.generate(prompts, SamplingParams(stop=self.stops))"
    assert facts_of(ENGINE + own)["stop"].source == "computed"


@pytest.mark.parametrize(
    ("loop", "expected"),
    [("print(args.batch_size)", "computed"), ("for k in range(0, len(rows), args.batch_size): pass", "config")],
)
def test_batch_of_vllm_is_what_code_cuts(loop: str, expected: str) -> None:
    code = f"{ENGINE}def f(rows, args):\n    {loop}\n    return llm.generate(rows)"
    assert facts_of(code)["batch"].source == expected


def test_max_length_of_an_encoder_decoder_counts_no_prompt() -> None:
    code = "from transformers import AutoModelForSeq2SeqLM\nmodel = AutoModelForSeq2SeqLM.from_pretrained('t5')\n"
    assert shown(facts_of(code + "model.generate(input_ids=x, max_length=512)")["max_new_tokens"]) == "512 <literal>"


def test_cuts_and_slices_in_a_decode_of_the_repository_are_followed() -> None:
    own = "def decode(rows, n):\n    for row in rows:\n        text = tokenizer.decode(row[n:]).strip()\n"
    own += "        return text.split('Question:')[0]\n"
    found = facts_of(f"{LOAD}{own}def f(ids):\n    return decode(model.generate(ids, max_new_tokens=3), len(ids))\n")
    assert (found["prompt_slice"].value, found["strip"].value, found["cuts_by_hand"].value) == ("by_len", True, True)


SAMPLING_LOOP = """
def sample(model, ids, generator=None):
    for _ in range(9):
        logits = model(input_ids=ids).logits[:, -1]
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        ids = torch.cat((ids, token), dim=1)
    return ids
def complete(model, ids, g):
    return sample(model, ids, {given})
def main(args):
    g = torch.Generator(){later}
    complete(model, ids, g)
"""


@pytest.mark.parametrize(
    ("given", "later", "expected"),
    [
        ("g", ".manual_seed(args.seed)", "None <config>"),
        ("generator=g", ".manual_seed(7)", "7 <literal>"),
        ("generator=g", "\n    g.manual_seed(8)", "8 <literal>"),
        ("g", "", "None <computed>"),
        ("None", ".manual_seed(7)", "None <not said: nobody: the global generator as it stands>"),
    ],
)
def test_seed_is_that_of_the_generator_that_samples(given: str, later: str, expected: str) -> None:
    found = scan_text(LOAD + SAMPLING_LOOP.format(given=given, later=later))
    [block] = found.blocks
    assert shown(block.facts["seed"]) == expected
    assert ("unseeded" in {finding.rule for finding in found.findings}) == (given == "None")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("output_scores=True", "output_scores <literal>"),
        ("output_logits=True, output_scores=False", "output_logits <literal>"),
        ("output_scores=False", "None <not said: the library (none)>"),
        ("output_scores=args.scores", "None <config>"),
        ("max_new_tokens=3", "None <not said: the library (none)>"),
    ],
)
def test_logprobs_of_transformers_are_its_scores_or_logits(given: str, expected: str) -> None:
    assert shown(fact_of_call(f"model.generate(**inputs, {given})", "logprobs")) == expected


TWO_FORMS = """
class A:
    def gen(self, ids):
        n = ids.shape[1]
        out = model.generate(ids, max_new_tokens=3)
        text = tokenizer.decode(out[0])
{body}
"""
BOTH = "        both = {'text': text, 'ids': out[0]}\n"
FILLED = "        both = {}\n        both['text'] = text\n        both['ids'] = out[0]\n"
PAIR = "        return text, out[0], n\n    def f(self, x):\n        t, i, n = self.gen(x)\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (BOTH + "        return tokenizer.decode(both['ids'][n:])", "by_len"),
        (FILLED + "        return both['ids'][n:]", "by_len"),
        (BOTH + "        return both['text'][n:]", "by_text"),
        ("        text, ids = tokenizer.decode(out[0]), out[0]\n        return ids[n:]", "by_len"),
        (PAIR + "        return i[n:]", "by_len"),
        (PAIR + "        return t[n:]", "by_text"),
        ("        return out.narrow(1, n, out.shape[1] - n)", "by_len"),
        ("        return torch.narrow(out, 1, n, 3)", "by_len"),
        ("        self.out = out\n    def f(self):\n        return tokenizer.decode(self.out[0][self.n:])", "by_len"),
        ("        x = ids[:, n:]\n        return text", "none"),
    ],
)  # fmt: skip
def test_prompt_slice_is_that_of_the_part_that_is_cut(body: str, expected: str) -> None:
    [block] = scan_text(LOAD + TWO_FORMS.format(body=body)).blocks
    assert shown(block.facts["prompt_slice"]) == f"{expected} <literal>"


HELPER = """
def render(tokenizer, text, is_chat):
    if {test}:
        return {early}
    return tokenizer.apply_chat_template([{{'role': 'user', 'content': text}}], tokenize=False)
def f(text, is_chat):
    x = tokenizer(render(tokenizer, text, is_chat))
    return model.generate(**x, max_new_tokens=3)
"""


@pytest.mark.parametrize(
    ("test", "early", "expected"),
    [
        ("not is_chat", "text", "None <computed>"),
        ("not is_chat", "tokenizer.apply_chat_template(text, tokenize=False)", "apply_chat_template <literal>"),
        ("text is None", "None", "apply_chat_template <literal>"),
    ],
)
def test_template_that_a_helper_renders_or_not_is_computed(test: str, early: str, expected: str) -> None:
    assert shown(facts_of(LOAD + HELPER.format(test=test, early=early))["template"]) == expected


TOP_LEVEL = """
def chat(messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return model.generate(**tokenizer(text), max_new_tokens=9)
{top}
out = model.generate(**inputs, max_new_tokens=3)
print(tokenizer.decode(out[0]))
{behind}
"""


@pytest.mark.parametrize(
    ("top", "behind", "expected"),
    [
        ("inputs = tokenizer('Hello')", "", "none"),
        ("inputs = tokenizer('Hello')", "chat(m)", "none"),
        ("inputs = tokenizer('Hello ' * 3)", "chat(m)", "none"),
        ("inputs = tokenizer('Hello')\ninputs = {k: v.to('cuda') for k, v in inputs.items()}", "chat(m)", "none"),
        (
            "def p(m):\n    return tokenizer.apply_chat_template(m)\ninputs = tokenizer(p(m))\nn = tokenizer('x')",
            "",
            "apply_chat_template",
        ),
        ("def p(m):\n    return tokenizer.apply_chat_template(m)\ninputs = tokenizer(p(m))", "", "apply_chat_template"),
    ],
)
def test_template_of_a_known_prompt_is_not_that_of_other_functions(top: str, behind: str, expected: str) -> None:
    [_, block] = scan_text(LOAD + TOP_LEVEL.format(top=top, behind=behind)).blocks
    assert shown(block.facts["template"]) == f"{expected} <literal>"


def test_decode_of_another_generation_is_not_that_of_this_one() -> None:
    code = """
from transformers import pipeline
pipe = pipeline('text-generation', model='m')
def judge(text):
    ids = model.generate(**tokenizer(text), max_new_tokens=3)
    return tokenizer.decode(ids[0], skip_special_tokens=True)
answer = pipe('Why?', max_new_tokens=3)
print(judge(answer))
"""
    [_, block] = scan_text(LOAD + code).blocks
    assert shown(block.facts["skip_special_tokens"]) == "None <not said: the pipeline (True)>"


LOOP = """
def decode(ids, cfg):
    made = []
    out = model(ids, use_cache=True)
    for _ in range({budget}):
        token = int(out.logits[0, -1].argmax())
        made.append(token)
        out = model(torch.tensor([[token]]), past_key_values=out.past_key_values)
    return tokenizer.decode(made, skip_special_tokens=True)
"""


@pytest.mark.parametrize(
    ("budget", "expected"), [("64", "64 <literal>"), ("cfg.length", "None <config>"), ("0, 8", "8 <literal>")]
)
def test_loop_budget_is_the_range_that_it_runs_over(budget: str, expected: str) -> None:
    facts = facts_of(LOAD + LOOP.format(budget=budget))
    assert shown(facts["max_new_tokens"]) == expected
    assert shown(facts["skip_special_tokens"]) == "True <literal>"
