"""How values are followed. Each case is a statement before a call, and the fact of temperature at the call."""

from __future__ import annotations

import pytest

from parity.tests.scan.material import LOAD, fact_of_call, scan_texts, shown

CALL = "model.generate(**inputs, max_new_tokens=9, {})\n"


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ("t = 0.5", "temperature=t", "0.5 <literal>"),
        ("t = 0.5\nt = 0.7", "temperature=t", "0.7 <literal>"),
        ("t = 0.5\nif x:\n    t = 0.7", "temperature=t", "None <computed>"),
        ("if x:\n    t = 0.7\nelse:\n    t = 0.7", "temperature=t", "0.7 <literal>"),
        ("if x:\n    t = 0.7\nelse:\n    raise ValueError", "temperature=t", "0.7 <literal>"),
        ("t = 0.5\nif x:\n    t = 0.7\n    raise ValueError", "temperature=t", "0.5 <literal>"),
        ("t = 0.7 if x else 0.7", "temperature=t", "0.7 <literal>"),
        ("t = 0.7 if x else 0.2", "temperature=t", "None <computed>"),
        ("t = min(0.7, x)", "temperature=t", "None <computed>"),
        ("t = 1 / 2", "temperature=t", "0.5 <literal>"),
        ("t = float('0.5')", "temperature=t", "0.5 <literal>"),
        ("a, t = 1, 0.5", "temperature=t", "0.5 <literal>"),
        ("t = x\nt += 1", "temperature=t", "None <computed>"),
        ("t = 0.5\na = [t for t in (0.1, 0.2)]", "temperature=t", "0.5 <literal>"),
        ("for t in (0.1, 0.2):\n    pass", "temperature=t", "None <computed>"),
        ("k = {'temperature': 0.5}", "**k", "0.5 <literal>"),
        ("k = dict(temperature=0.5)", "**k", "0.5 <literal>"),
        ("k = {**{'temperature': 0.2}, 'temperature': 0.5}", "**k", "0.5 <literal>"),
        ("k = {}\nk['temperature'] = 0.5", "**k", "0.5 <literal>"),
        ("k = {'temperature': 0.2}\nk.update(temperature=0.5)", "**k", "0.5 <literal>"),
        ("k = {'temperature': 0.2}\nk |= {'temperature': 0.5}", "**k", "0.5 <literal>"),
        ("k = {'temperature': 0.2}\nif x:\n    k['temperature'] = 0.5", "**k", "None <computed>"),
        (
            "k = {'temperature': 0.2}\nk.pop('temperature')",
            "**k",
            "None <not said: the checkpoint's generation_config.json>",
        ),
        (
            "k = {'temperature': 0.2}\ndel k['temperature']",
            "**k",
            "None <not said: the checkpoint's generation_config.json>",
        ),
        ("k = {}\nk.setdefault('temperature', 0.5)", "**k", "0.5 <literal>"),
        ("k = {'temperature': 0.2}\nk.setdefault('temperature', 0.5)", "**k", "0.2 <literal>"),
        ("k = {'temperature': 0.2} if x else {'temperature': 0.2}\nk['a'] = 1", "**k", "0.2 <literal>"),
        ("k = {'temperature': 0.2} if x else {}\nk.pop('a')", "**k", "None <computed>"),
        ("k = {'temperature': 0.2}", "temperature=k['temperature']", "0.2 <literal>"),
        ("k = {'a': 0.2}", "temperature=k.get('temperature', 0.3)", "0.3 <literal>"),
        ("t = None", "temperature=t", "None <not said: the checkpoint's generation_config.json>"),
        ("import os\nt = os.environ['T']", "temperature=float(t)", "None <config>"),
        ("t = config.temperature", "temperature=t", "None <config>"),
        ("t = gen_kwargs.get('temperature', 0.4)", "temperature=t", "0.4 <config>"),
    ],
)
def test_value_of_an_assignment_is_followed(before: str, given: str, expected: str) -> None:
    assert shown(fact_of_call(f"{before}\n{CALL.format(given)}", "temperature")) == expected


@pytest.mark.parametrize(
    ("signature", "body", "given", "expected"),
    [
        ("t", "", "temperature=t", "None <arg t>"),
        ("t=0.5", "", "temperature=t", "0.5 <arg t>"),
        ("*, t=0.5", "", "temperature=t", "0.5 <arg t>"),
        ("t=None", "if t is None:\n        t = 0.5", "temperature=t", "0.5 <arg t>"),
        ("t=None", "t = t or 0.5", "temperature=t", "0.5 <arg t>"),
        ("t=0.5", "if greedy:\n        t = 0", "temperature=t", "None <computed>"),
        ("**kwargs", "", "**kwargs", "None <arg kwargs>"),
        ("**kwargs", "", "temperature=kwargs.get('temperature', 0.5)", "0.5 <arg temperature>"),
        ("**kwargs", "kwargs['temperature'] = 0.5", "**kwargs", "0.5 <literal>"),
        (
            "gen_kwargs",
            "if 'temperature' not in gen_kwargs:\n        gen_kwargs['temperature'] = 0.5",
            "temperature=gen_kwargs['temperature']",
            "0.5 <config>",
        ),
        ("t", "t = 0.5", "temperature=t", "0.5 <literal>"),
    ],
)
def test_value_of_an_argument_is_the_argument(signature: str, body: str, given: str, expected: str) -> None:
    code = f"def f({signature}):\n    {body}\n    {CALL.format(given)}"
    assert shown(fact_of_call(code, "temperature")) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--temperature", type=float, default=0.5)
args = parser.parse_args()
model.generate(**inputs, temperature=args.temperature)""",
            "0.5 <arg temperature>",
        ),
        (
            """
def main(args):
    model.generate(**inputs, temperature=args.temp)
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--temp", default=0.5)
main(parser.parse_args())""",
            "0.5 <arg temp>",
        ),
        (
            """
from dataclasses import dataclass
@dataclass
class Config:
    temperature: float = 0.5
def f(config: Config):
    model.generate(**inputs, temperature=config.temperature)""",
            "0.5 <config>",
        ),
        (
            """
class A:
    TEMPERATURE = 0.5
    def f(self):
        model.generate(**inputs, temperature=self.TEMPERATURE)""",
            "0.5 <literal>",
        ),
        (
            """
class A:
    def __init__(self, temperature=0.5):
        self.temperature = temperature
    def f(self):
        model.generate(**inputs, temperature=self.temperature)""",
            "0.5 <arg temperature>",
        ),
        (
            """
class A:
    def setup(self):
        self.k = {"temperature": 0.5}
    def f(self):
        model.generate(**inputs, **self.k)""",
            "0.5 <literal>",
        ),
        (
            """
class A:
    def __init__(self):
        self.t = 0.5
    def change(self):
        self.t = 0.7
    def f(self):
        model.generate(**inputs, temperature=self.t)""",
            "None <computed>",
        ),
        (
            """
class A:
    t = None
    def __init__(self):
        self.t = None
    def f(self):
        model.generate(**inputs, temperature=self.t)
class B(A):
    def setup(self):
        self.t = 0.5""",
            "0.5 <literal>",
        ),
        (
            """
class A:
    def setup(self):
        self.t = 0.5
class B(A):
    t: float | None = None
    def __init__(self):
        self.t = None
        self.setup()
    def f(self):
        model.generate(**inputs, temperature=self.t)""",
            "0.5 <literal>",
        ),
        (
            """
class A:
    @property
    def t(self):
        return 0.5
    def f(self):
        model.generate(**inputs, temperature=self.t)""",
            "0.5 <literal>",
        ),
        (
            """
def settings(t=0.5):
    return {"temperature": t}
model.generate(**inputs, **settings())""",
            "0.5 <literal>",
        ),
        (
            """
from transformers import GenerationConfig
config = GenerationConfig(temperature=0.5)
model.generate(**inputs, generation_config=config)""",
            "0.5 <literal>",
        ),
        (
            """
from transformers import GenerationConfig
config = GenerationConfig(temperature=0.2)
config.temperature = 0.5
model.generate(**inputs, generation_config=config)""",
            "0.5 <literal>",
        ),
        (
            """
from transformers import GenerationConfig
config = GenerationConfig(temperature=0.2)
model.generate(**inputs, generation_config=config, temperature=0.5)""",
            "0.5 <literal>",
        ),
        (
            """
model.generation_config.temperature = 0.5
model.generate(**inputs)""",
            "0.5 <literal>",
        ),
    ],
)
def test_value_is_followed_through_objects(code: str, expected: str) -> None:
    assert shown(fact_of_call(code, "temperature")) == expected


@pytest.mark.parametrize(
    "line",
    [
        "from pkg.settings import T",
        "from .settings import T",
        "from . import settings\nT = settings.T",
        "import pkg.settings\nT = pkg.settings.T",
        "from pkg.settings import *",
        "from pkg import T",
    ],
)
def test_value_is_followed_through_imports(line: str) -> None:
    files = {
        "pkg/__init__.py": "from .settings import T\n",
        "pkg/settings.py": "T = 0.5\n",
        "pkg/old.py": f"{line}\n{LOAD}\nmodel.generate(**inputs, temperature=T)\n",
    }
    [block] = scan_texts(files).blocks
    assert shown(block.facts["temperature"]) == "0.5 <literal>"


def test_value_that_depends_on_itself_is_computed() -> None:
    code = "def a():\n    return b()\ndef b():\n    return a()\nmodel.generate(**inputs, temperature=a())"
    assert fact_of_call(code, "temperature").source == "computed"


def test_value_of_a_global_that_a_function_sets_is_followed() -> None:
    files = {
        "old.py": """
from transformers import AutoModelForCausalLM
model = None
def setup():
    global model
    model = AutoModelForCausalLM.from_pretrained("m", torch_dtype="float16")
def ask(x):
    return model.generate(**x, max_new_tokens=3)
"""
    }
    [block] = scan_texts(files).blocks
    assert block.facts["dtype"].value == "float16"
