"""What is a block, what looks like one and is none."""

from __future__ import annotations

import pytest

from parity.tests.scan.material import LOAD, scan_text, scan_texts

PIPE = "from transformers import pipeline\npipe = pipeline('text-generation', model='m')\n"
REMOTE = "from transformers import AutoModel\nm = AutoModel.from_pretrained('m', trust_remote_code=True)\n"
VLLM = "from vllm import LLM, SamplingParams\nllm = LLM('m')\n"


@pytest.mark.parametrize(
    ("code", "library"),
    [
        (LOAD + "model.generate(**x)", "transformers"),
        (LOAD + "model = model.to('cuda').eval()\nmodel.generate(**x)", "transformers"),
        (LOAD + "models = {'a': model}\nmodels['a'].generate(**x)", "transformers"),
        (
            LOAD + "from threading import Thread\nThread(target=model.generate, kwargs={'max_new_tokens': 3}).start()",
            "transformers",
        ),
        (LOAD + "import functools\nf = functools.partial(model.generate, max_new_tokens=3)", "transformers"),
        (
            LOAD + "from peft import PeftModel\np = PeftModel.from_pretrained(model, 'a')\np.generate(**x)",
            "transformers",
        ),
        (
            REMOTE + "m.chat(tok, px, 'q')",
            "transformers",
        ),
        (
            "def f(model, tokenizer):\n    return model.generate(tokenizer('a').input_ids, max_new_tokens=3)",
            "transformers",
        ),
        (
            "def f(model, tokenizer, q):\n    out = model.generate(q)\n    return tokenizer.decode(out[0])",
            "transformers",
        ),
        ("def f(model, tokenizer, q):\n    return model.chat(tokenizer, q)", "transformers"),
        (VLLM + "llm.generate(['a'])", "vllm"),
        (VLLM + "llm.chat([{'role': 'user', 'content': 'a'}])", "vllm"),
        (VLLM + "llm.beam_search(['a'], p)", "vllm"),
        ("import vllm\nvllm.LLM('m').generate('a')", "vllm"),
        ("from vllm import SamplingParams\ndef f(engine):\n    return engine.generate('a', SamplingParams())", "vllm"),
        ("from vllm import AsyncLLMEngine\ne = AsyncLLMEngine.from_engine_args(a)\ne.generate('a', p, 'id')", "vllm"),
        (PIPE + "pipe('a')", "pipeline"),
        (
            PIPE
            + "class A:\n    def __init__(self):\n        self.p = pipe\n    def f(self):\n        return self.p('a')",
            "pipeline",
        ),
        (
            PIPE + "from langchain_huggingface import HuggingFacePipeline as Llm\nLlm(pipeline=pipe).invoke('a')",
            "pipeline",
        ),
        (
            LOAD
            + """
def decode(ids):
    for _ in range(9):
        logits = model(ids).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], -1)
    return ids""",
            "loop",
        ),
        (
            LOAD
            + """
def decode(ids):
    past = None
    while True:
        out = model(input_ids=ids, past_key_values=past)
        past = out.past_key_values
        ids = torch.multinomial(out.logits[:, -1].softmax(-1), 1)""",
            "loop",
        ),
        (
            LOAD
            + """
def score(ids):
    logits = model(ids).logits
    return logits.log_softmax(-1).gather(-1, ids[..., None])""",
            "score",
        ),
        (LOAD + "def perplexity(ids):\n    return model(ids, labels=ids).loss.exp()", "score"),
    ],
)
def test_find_a_call_of_a_local_model_is_a_block(code: str, library: str) -> None:
    assert [block.library for block in scan_text(code).blocks] == [library]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("from openai import OpenAI\nclient = OpenAI()\nclient.chat(messages=[])", "API client"),
        ("import sglang\ne = sglang.Engine('m')\ne.generate('a', {'temperature': 0})", "another engine"),
        (
            "from diffusers import FluxPipeline\np = FluxPipeline.from_pretrained('m')\np.generate('a')",
            "image",
        ),
        (PIPE.replace("text-generation", "text-classification") + "pipe('a')", "classifier"),
        ("def f(report):\n    return report.generate()", "unknown kind"),
        (
            LOAD + "class A:\n    def generate(self, **kwargs):\n        return model.generate(**kwargs)",
            "passes everything on",
        ),
        (
            """
from transformers import AutoModelForSequenceClassification
rm = AutoModelForSequenceClassification.from_pretrained('m')
def reward(model=rm, **x):
    return model(input_ids=x).logits[:, -1].softmax(-1)""",
            "classifier",
        ),
        (LOAD + "def step(ids):\n    loss = model(input_ids=ids, labels=ids).loss\n    loss.backward()", "training"),
        (
            "from transformers import LlamaForCausalLM\n"
            "class M(LlamaForCausalLM):\n    def chat(self, q):\n        return self.generate(q, max_new_tokens=3)",
            "model class M",
        ),
    ],
)
def test_find_what_looks_like_a_block_is_left_out_with_its_reason(code: str, reason: str) -> None:
    found = scan_text(code)
    assert found.blocks == []
    assert any(reason in look_alike.reason for look_alike in found.look_alikes)


def test_find_a_wrapper_is_followed_to_its_block() -> None:
    files = {
        "acme/llm.py": LOAD
        + "class Llm:\n    def generate(self, q):\n        return model.generate(q, max_new_tokens=3)\n",
        "acme/use.py": "from acme.llm import Llm\ndef run(q):\n    return Llm().generate(q)\n",
    }
    found = scan_texts(files)
    [block] = found.blocks
    assert block.place == "acme/llm.py:8"
    assert block.callers == ["acme/use.py:3"]
    assert ["Llm.generate" in other.reason for other in found.look_alikes] == [True]


@pytest.mark.parametrize(
    "code",
    [
        "for ids in data:\n    logits = model(ids).logits\n    answers.append(logits[:, -1].argmax(-1))",
        "class Net:\n    def fit(self):\n        return self.optimizer.step()",
        "print(model.config)",
    ],
)
def test_find_a_loop_over_prompts_is_no_decode_loop(code: str) -> None:
    assert "loop" not in [block.library for block in scan_text(LOAD + code).blocks]


def test_find_an_argument_is_what_its_caller_gives() -> None:
    code = LOAD + "def f(m, x):\n    return m.generate(x)\nf(model, 'a')\n"
    [block] = scan_text(code).blocks
    assert block.block.thing.name == "AutoModelForCausalLM"


def test_find_an_import_that_may_fail_is_still_known() -> None:
    code = "try:\n    import vllm\nexcept ImportError:\n    vllm = None\nvllm.LLM('m').generate('a')\n"
    assert [block.library for block in scan_text(code).blocks] == ["vllm"]


@pytest.mark.parametrize(
    ("code", "library"),
    [
        (
            """
            class Scorer:
                def __init__(self, model, tokenizer):
                    self.model = model
                def next_word(self, queries):
                    encoded = self.encode(queries)
                    ids = encoded["input_ids"]
                    logits = self.model(**encoded).logits.detach()
                    return logits - logits.logsumexp(1).unsqueeze(1)
            """,
            "score",
        ),
        (
            """
            class Evaluator:
                def __init__(self, args):
                    self.tokenizer = load_tokenizer(args)
                    self.model = load_model(args)
                def batch_inference(self, batch):
                    logits = self.model(**batch).logits
                    lengths = batch["attention_mask"].sum(-1)
                    last = [logits[i, lengths[i] - 1] for i in range(len(lengths))]
                    return [row[self.choice_ids] for row in last]
            """,
            "score",
        ),
        (
            """
            class Inference:
                def __init__(self, tokenizer):
                    self.tokenizer = tokenizer
                def concatenated_forward(self, model, batch):
                    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                    return self.get_batch_logps(logits, batch["labels"])
            """,
            "score",
        ),
        (
            """
            class LLM:
                def generate(self, prompt):
                    raise NotImplementedError
            class Wrapper(LLM):
                def __init__(self, name):
                    from vllm import LLM
                    self.model = LLM(name)
                def generate(self, prompt):
                    return self.model.generate(prompt)
            """,
            "vllm",
        ),
        (
            """
            def rate(prompt, loaded):
                model = loaded["model"]
                return model.generate([prompt], sampling_params=loaded["sampling_params"])
            """,
            "vllm",
        ),
    ],
)
def test_find_model_from_outside_the_function_finds_the_block(code: str, library: str) -> None:
    assert [block.library for block in scan_text(code).blocks] == [library]


@pytest.mark.parametrize(
    "code",
    [
        """
        class MyTrainer(DPOTrainer):
            def concatenated_forward(self, model, batch):
                logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                return self.get_batch_logps(logits, batch["labels"])
        """,
        """
        from transformers import pipeline
        def rewards(texts, task):
            reward_pipeline = pipeline(task, model="m")
            return reward_pipeline(texts)
        """,
        """
        def f(model, prompt):
            return model.generate(prompt, sampling_params={"temperature": 0})
        """,
    ],
)
def test_find_training_reward_pipeline_or_other_engine_is_no_block(code: str) -> None:
    assert scan_text(code).blocks == []


def test_find_attribute_that_is_an_engine_or_a_pipeline_by_a_branch_finds_both_calls() -> None:
    code = """
    class Judge:
        def load(self, backend):
            if backend == "vllm":
                from vllm import LLM
                self.pipe = LLM("m")
            else:
                from transformers import pipeline
                self.pipe = pipeline("text-generation", "m")
        def call(self, prompt):
            return self.pipe(prompt)[0]["generated_text"]
        def generate(self, prompts):
            return self.pipe.generate(prompts)
    """
    assert [block.library for block in scan_text(code).blocks] == ["pipeline", "vllm"]


@pytest.mark.parametrize(
    "code",
    [
        "def f(model, prompts, sampling_params):\n    return model.generate(prompts, sampling_params)",
        "from vllm import SamplingParams\ndef f(model, x, p: SamplingParams):\n    return model.generate(x, p)",
        "from vllm import SamplingParams\ndef f(llm, x, p):\n    return llm.generate(x, p)\nf(m, x, SamplingParams())",
    ],
)
def test_find_sampling_params_tell_of_vllm(code: str) -> None:
    assert [block.library for block in scan_text(code).blocks] == ["vllm"]


def test_find_what_a_call_is_given_decides_among_the_classes_of_a_model() -> None:
    code = """
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
def f(model, prompts):
    return model.generate(prompts, SamplingParams(temperature=0))
def g(model, ids):
    return model.generate(input_ids=ids)
def run(fast, x):
    model = LLM("m", dtype="half") if fast else AutoModelForCausalLM.from_pretrained("m", dtype="bfloat16")
    return f(model, x) if fast else g(model, x)
"""
    found = [(b.library, b.block.thing.name, b.facts["dtype"].value) for b in scan_text(code).blocks]
    assert found == [("vllm", "LLM", "float16"), ("transformers", "AutoModelForCausalLM", "bfloat16")]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("if 'llava' in name:\n    cls = LlavaForConditionalGeneration\nelse:\n    cls = AutoModelForCausalLM", "both"),
        ("cls = AutoModelForCausalLM\nif 'llava' in name:\n    cls = LlavaForConditionalGeneration", "both"),
        ("cls = {'a': LlavaForConditionalGeneration, 'b': AutoModelForCausalLM}[name]", "both"),
        ("cls = getattr(transformers, name)", ""),
    ],
)
def test_find_a_class_that_a_condition_chooses_is_all_of_them(choice: str, expected: str) -> None:
    code = f"import transformers\nfrom transformers import *\n{choice}\n"
    [block] = scan_text(code + "model = cls.from_pretrained(name, dtype='auto')\nmodel.generate(input_ids=x)").blocks
    names = {"LlavaForConditionalGeneration", "AutoModelForCausalLM"} if expected else {""}
    assert set(block.block.thing.name.split(" or ")) == names
    assert block.facts["dtype"].value == "auto"


@pytest.mark.parametrize(
    "code",
    [
        "class Report:\n    def build(self): ...\ndef f(x):\n    return Report().generate(x, max_new_tokens=3)",
        """
class Client:
    def generate(self, x, max_new_tokens): ...
class Pipe:
    def __init__(self, client=None):
        self.client = Client() if client is None else client
    def run(self, x):
        return self.client.generate(x, max_new_tokens=3)
""",
        """
import importlib
class Client:
    def generate(self, x, max_new_tokens): ...
def make(kind):
    return getattr(importlib.import_module("old"), "Client")(kind)
def run(x):
    return make("a").generate(x, max_new_tokens=3)
""",
    ],
)
def test_find_a_method_of_a_class_of_the_repository_that_is_no_model_is_no_block(code: str) -> None:
    assert scan_text(code).blocks == []


def test_find_a_class_that_hands_everything_on_may_be_a_model() -> None:
    code = "class Lazy:\n    def __getattr__(self, name): ...\nLazy().generate(input_ids=x)"
    assert len(scan_text(code).blocks) == 1


def test_find_a_wrapper_that_passes_everything_on_is_its_model() -> None:
    code = (
        "class W:\n    def generate(self, *a, **k):\n        return model.generate(*a, **k)\nW().generate(input_ids=x)"
    )
    assert [block.line for block in scan_text(LOAD + code).blocks] == [9]


def test_find_a_parameter_that_is_given_a_wrapper_may_be_a_model() -> None:
    code = """
class Wrapper:
    def __call__(self, input_ids): ...
    def run(self, ids):
        return decode(self, ids)
def decode(model, ids):
    for _ in range(9):
        ids = model(input_ids=ids).logits[:, -1].argmax(-1)
    return ids
"""
    assert [block.library for block in scan_text(code).blocks] == ["loop"]


def test_find_a_model_or_a_wrapper_of_it_is_a_block() -> None:
    code = "class Wrapper:\n    def generate(self, ids): ...\nmodel = Wrapper() if small else model\nmodel.generate(x)"
    assert len(scan_text(LOAD + code).blocks) == 1


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return model(**x).logits[:, -1]", 1),
        ("out = model(input_ids=x)\n    return {'logits': out['logits']}", 1),
        ("for one in x:\n        yield model(input_ids=one).logits", 1),
        ("parts = []\n    for one in x:\n        parts.append(model(input_ids=one).logits)\n    return parts", 1),
        ("self.logits = model(input_ids=x).logits.cpu()", 1),
        ("probs = model(input_ids=x).logits.softmax(-1)\n    return probs", 1),
        ("probs = model(input_ids=x).logits.softmax(-1)[:, 0]\n    return probs.item()", 1),
        ("logits = model(input_ids=x).logits\n    return logits.argmax(-1)", 0),
        ("logits = model(input_ids=x).logits\n    return logits[0].argmax(-1).item()", 0),
        ("logits = model(input_ids=x).logits\n    return logits.shape", 0),
        ("logits = model(input_ids=x).logits", 0),
    ],
)
def test_find_logits_that_leave_a_function_are_a_score(body: str, count: int) -> None:
    code = f"{LOAD}class A:\n  def read(self, x):\n    {body}\n"
    assert [block.library for block in scan_text(code).blocks] == ["score"] * count


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("model.generate(ids, do_sample=False)", 10),
        ("model.chat(tokenizer, q)", 10),
        ("model.answer(q)", 8),
    ],
)
def test_find_a_model_class_of_the_repository_is_a_model_to_those_who_call_it(call: str, line: int) -> None:
    code = f"""from transformers import LlamaForCausalLM
class Llava(LlamaForCausalLM):
    def generate(self, ids, **kwargs):
        return super().generate(inputs_embeds=ids, **kwargs)
    def chat(self, tokenizer, q):
        return self.generate(tokenizer(q).input_ids, max_new_tokens=5)
    def answer(self, q):
        return self.generate(q, max_new_tokens=5)
model = Llava.from_pretrained("m")
{call}
"""
    assert {block.line for block in scan_text(code).blocks} == {8, line}


def test_find_a_copy_of_named_sampling_params_tells_of_vllm() -> None:
    code = "def f(llm_engine, ids, sampling_params):\n    return llm_engine.generate(ids, deepcopy(sampling_params))"
    assert [block.library for block in scan_text(code).blocks] == ["vllm"]


@pytest.mark.parametrize(
    "body",
    [
        "out = model(**encode(row))\n    return -out.loss.item()",
        "row = row.to('cuda')\n    logits = model(row).logits\n    logits = logits.cpu()\n    return logits",
        "p = model(input_ids=row).logits.softmax(-1)\n    q = other(row)\n    print((p * (p / q).log()).sum())",
    ],
)
def test_find_a_loss_logits_and_a_divergence_are_scores(body: str) -> None:
    [block] = scan_texts({"a.py": f"{LOAD}def f(row):\n    {body}\n"}).blocks
    assert block.library == "score"


LIKELIHOOD = """
from transformers import AutoModelForCausalLM, AutoTokenizer
class {cls}:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.{name} = {loader}.from_pretrained(path)
    def score(self, text):
        full = self.tok(text, return_tensors="pt").input_ids
        logits = self.{name}(full).logits
        return logits.log_softmax(-1).gather(-1, full.unsqueeze(-1)).sum().item()
"""


@pytest.mark.parametrize(
    ("cls", "name", "loader", "count"),
    [
        ("LikelihoodClassifier", "lm", "AutoModelForCausalLM", 1),
        ("RewardByLikelihood", "model", "AutoModelForCausalLM", 1),
        ("Scorer", "inner", "AutoModelForCausalLM", 1),
        ("Scorer", "model", "AutoModelForSequenceClassification", 0),
        ("RewardScorer", "model", "unknown", 0),
    ],
)
def test_find_what_is_loaded_decides_over_names(cls: str, name: str, loader: str, count: int) -> None:
    found = scan_text(LIKELIHOOD.format(cls=cls, name=name, loader=loader))
    assert [block.library for block in found.blocks] == ["score"] * count


CLASSIFIER = "from transformers import AutoModelForSequenceClassification as A, AutoTokenizer\nimport torch, peft\n"


@pytest.mark.parametrize(
    "model",
    [
        "peft.PeftModel.from_pretrained(A.from_pretrained('x'), 'y')",
        "torch.nn.DataParallel(A.from_pretrained('x').cuda())",
        "torch.compile(A.from_pretrained('x')).eval()",
        "peft.AutoPeftModelForSequenceClassification.from_pretrained('x')",
        "library.get_reward_model('x')",
        "library.get_llm_for_sequence_regression('x', 'reward')",
        "library.load_classifier('x')",
    ],
)
def test_find_a_wrapped_classifier_stays_one(model: str) -> None:
    code = f"""{CLASSIFIER}import library
def f(texts):
    tokenizer = AutoTokenizer.from_pretrained('x')
    model = {model}
    return model(**tokenizer(texts)).logits.log_softmax(-1)[:, 1]
"""
    found = scan_text(code)
    assert found.blocks == []
    assert any("classifier or a reward model" in one.reason for one in found.look_alikes)


def test_find_a_loss_that_is_read_by_its_key_is_a_score() -> None:
    code = LOAD + "def f(ids):\n    out = model(ids, labels=ids)\n    return out['loss'].item()\n"
    assert [block.library for block in scan_text(code).blocks] == ["score"]
