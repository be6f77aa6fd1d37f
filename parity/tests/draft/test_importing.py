"""Drafts that `check` imports: nothing runs then, and what their methods and loaders need is made as the script did."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace

import pytest

from .drafts import Engine, draft_of, run, seen

LOADS = """
    import sys
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tok = AutoTokenizer.from_pretrained("m")
    model = AutoModelForCausalLM.from_pretrained("m")

    def answer(question):
        inputs = tok(question, return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
        return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""


def asked(source: str, script: str) -> tuple[Engine, str]:
    """The engine after an import of the draft of a source with this behind it, and the draft's code."""
    text = textwrap.dedent(LOADS) + textwrap.dedent(source)
    draft = draft_of(text, seen(question="x"))
    assert not draft.todos
    value, engine = run(draft, script, "Why?")
    assert value == "ANSWER"
    return engine, draft.code


@pytest.mark.parametrize(
    "source",
    [
        "def main():\n    print(answer('a'))\n\nmain()\n",
        "def main():\n    return [answer(q) for q in 'ab']\n\nsys.exit(main())\n",
        "found = []\nfor q in 'ab':\n    found.append(answer(q))\nprint(found)\n",
        "print(answer('a'))\n\ndef late(text):\n    return text\n",
        "async def main():\n    print(answer('a'))\n\nimport asyncio\nasyncio.run(main())\n",
        "class App:\n    def __init__(self):\n        self.said = answer('a')\n\nApp()\n",
        "class Kept:\n    def get(self, q):\n        return answer(q)\n\nkept = Kept()\nkept.get('a')\n",
        "print(answer('a'))\nif __name__ == '__main__':\n    print(answer('b'))\n",
        "print(answer('a'))\nif '__main__' == __name__: print(answer('b'))\n",
        "if answer.__name__ == 'answer':\n    print(answer('b'))\n",
        "for question in 'ab':\n    out = answer(question)\n    print(out)\n",
    ],
)
def test_importing_a_draft_of_a_script_without_a_guard_asks_nothing(source: str) -> None:
    engine, code = asked(source, "answer")
    assert len(engine.calls) == 1, "the call of the test alone"
    assert code.count("__main__") == 1 and code.rstrip().splitlines()[-1].startswith("    ")


READS = """
    found = [answer(q) for q in "ab"]

    def first():
        return found[0]

    def report(prefix=""):
        return prefix + first()

    print(report())
"""


def test_a_function_that_no_recorded_one_calls_may_read_what_the_script_makes() -> None:
    engine, code = asked(READS, "answer")
    assert len(engine.calls) == 1 and code.index("def report") < code.index("__main__")
    assert not [line for line in code.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("called", ["report(question)", "[report][0]", "Kept().say()"])
def test_a_function_that_a_recorded_one_calls_keeps_what_it_reads_and_the_draft_says_so(called: str) -> None:
    text = textwrap.dedent(LOADS).replace("inputs = tok", f"x = {called}\n    inputs = tok")
    kept = "class Kept:\n    def say(self):\n        return report()\n"
    draft = draft_of(text + textwrap.dedent(READS) + kept, seen(question="x"))
    assert ["`found`" in todo.text for todo in draft.todos] == [True]


def test_a_script_keeps_its_comments_where_its_guard_takes_more_in() -> None:
    source = """
    # 1
    print(answer("a"))  # 2
    # 3
    if __name__ == "__main__":  # 4
        # 5
        print(answer("b"))
        # 6
    """
    _, code = asked(source, "answer")
    assert sorted(line[-1] for line in code.splitlines() if "# " in line) == list("123456")


def test_a_draft_changes_the_lines_under_a_guard() -> None:
    """What a recorded function takes is another thing in the draft; who calls it gives that."""
    source = """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def answer(model, tok, question):
        inputs = tok(question, return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
        return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

    if __name__ == "__main__":
        tok = AutoTokenizer.from_pretrained("m")
        model = AutoModelForCausalLM.from_pretrained("m")
        for question in "ab":  # each
            print(answer(model, tok, question=question))
            # the end
    """
    observed = seen(model={"$object": "x.QwenForCausalLM"}, tok={"$object": "x.QwenTokenizer"}, question="x")
    draft = draft_of(source, observed)
    script = replace(draft, code=draft.code.replace('__name__ == "__main__"', "True"))
    _, engine = run(script, "make_engine")
    assert [requests for requests, _ in engine.calls] == [[{"prompt": "a"}], [{"prompt": "b"}]]
    assert "# each" in draft.code and "# the end" in draft.code


def test_a_draft_runs_as_a_script_what_the_old_one_ran(capsys: pytest.CaptureFixture[str]) -> None:
    source = "found = [answer(q) for q in 'ab']\nprint(found)\n"
    draft = draft_of(textwrap.dedent(LOADS) + source, seen(question="x"))
    run(draft, "answer", "Why?")
    assert capsys.readouterr().out == ""
    script = replace(draft, code=draft.code.replace('__name__ == "__main__"', "True"))
    run(script, "answer", "Why?")
    assert capsys.readouterr().out == "['ANSWER', 'ANSWER']\n"


def test_what_functions_read_of_a_script_that_generates_stays_and_is_said() -> None:
    source = """
    shots = answer("Give an example.")

    def other(question):
        return answer(shots + question)
    """
    draft = draft_of(textwrap.dedent(LOADS) + textwrap.dedent(source), seen(question="x"))
    [todo] = draft.todos
    assert "functions read `shots`" in todo.text and "__main__" not in draft.code


METHOD = """
class Kept:
    def get(self, q):
        return answer(q)
"""


@pytest.mark.parametrize(
    "source",
    [
        "TASKS = {'answer': answer}\nTASKS.update(other=answer)\n",
        METHOD + "import os\nNAME = os.environ.get('NAME')\nSET = {}\nSET.get('a')\nprint(NAME, end='')\n",
        METHOD + "KEPT = Kept()\n",
    ],
)
def test_what_generates_nothing_is_no_script(source: str) -> None:
    _, code = asked(source, "answer")
    assert "__main__" not in code


CLASS = """
    import argparse
    import sys
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Helper:
        def __init__(self, path, budget, style=None):
            self.tok = AutoTokenizer.from_pretrained(path)
            self.model = AutoModelForCausalLM.from_pretrained(path)
            self.budget = budget

        def ask(self, question):
            inputs = self.tok(question, return_tensors="pt")
            out = self.model.generate(**inputs, max_new_tokens=self.budget, do_sample=False)
            return self.tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
"""


@pytest.mark.parametrize(
    "script",
    [
        "def main():\n    helper = Helper(sys.argv[1], int(sys.argv[2]))\n    helper.ask('a')\n",
        "def main():\n    path, budget = sys.argv[1:3]\n    for q in 'ab':\n        budget = int(budget)\n"
        "        Helper(path, budget).ask(q)\n",
        "BUDGET = 9\ndef main():\n    import os\n    style = os.sep\n    Helper('m', BUDGET, style=style)\n",
        "if __name__ == '__main__':\n    parser = argparse.ArgumentParser()\n    parser.add_argument('path')\n"
        "    parser.add_argument('budget', type=int)\n    args = parser.parse_args()\n"
        "    helper = Helper(args.path, args.budget)\n",
        "def main():\n    try:\n        Helper('m', 9).ask('a')\n    finally:\n        pass\n",
        "def main():\n    if not sys.argv:\n        return\n    else:\n        Helper('m', 9).ask('a')\n",
        "def main():\n    try:\n        0\n    except OSError:\n        1\n    finally:\n        Helper('m', 9)\n",
        "def main():\n    match len(sys.argv):\n        case 3:\n            Helper('m', 9).ask('a')\n",
        "import contextlib\ndef main():\n    with contextlib.nullcontext(Helper('m', 9)) as helper:\n"
        "        helper.ask('a')\n",
        "def main(): Helper('m', 9).ask('a')\n",
        "def main():\n    first, *rest = [int(word) for word in sys.argv[2:]]\n    Helper('m', first)\n",
        "def parsed():\n    return sys.argv[1], int(sys.argv[2])\n"
        "def main():\n    args = parsed()\n    with open('x') as out:\n        Helper(*args).ask('a')\n",
    ],
)
def test_a_draft_makes_the_object_of_its_methods_as_the_script_did(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["old.py", "m", "9"])
    observed = seen("Helper.ask", self={"$object": "__main__.Helper"}, question="x")
    draft = draft_of(textwrap.dedent(CLASS) + script, observed)
    assert (draft.todos, draft.factories) == ((), {"Helper.ask": {"self": "make_self"}})
    made, engine = run(draft, "make_self")
    assert (made.budget, [path for path, _ in engine.loads]) == (9, ["m"])


@pytest.mark.parametrize(
    "script",
    [
        "def main(path, budget):\n    Helper(path, budget).ask('a')\n",
        "budget = 9\ndef main(*, budget):\n    Helper('m', budget).ask('a')\n",
        "budget = 9\ndef main(budget, /):\n    Helper('m', budget).ask('a')\n",
        "budget = 9\ndef main(*budget):\n    Helper('m', budget).ask('a')\n",
        "budget = 9\ndef main(**budget):\n    Helper('m', budget).ask('a')\n",
        "def main():\n    for budget in (4, 9):\n        Helper('m', budget).ask('a')\n",
        "def main():\n    if sys.argv:\n        budget = 9\n    Helper('m', budget).ask('a')\n",
    ],
)
def test_an_object_whose_making_is_not_seen_is_left_with_a_line(script: str) -> None:
    observed = seen("Helper.ask", self={"$object": "__main__.Helper"}, question="x")
    draft = draft_of(textwrap.dedent(CLASS) + script, observed)
    assert draft.factories == {} and "what makes a Helper" in draft.todos[-1].text


@pytest.mark.parametrize("name", ["load", "load_engine", "functools"])
def test_a_name_that_the_old_source_has_is_not_taken_from_it(name: str) -> None:
    """A script's own `load` became one that called itself for ever."""
    source = f"""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        def {name}(path):
            return AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)

        def answer(question):
            tok, model = {name}("m")
            inputs = tok(question, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
            return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

        def other(question):
            model = AutoModelForCausalLM.from_pretrained("n")
            tok = AutoTokenizer.from_pretrained("n")
            inputs = tok(question, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
            return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)
    """
    draft = draft_of(source, seen(question="x"))
    for function, path in (("answer", "m"), ("other", "n")):
        value, engine = run(draft, function, "Why?")
        assert (value, [one for one, _ in engine.loads]) == ("ANSWER", [path])


@pytest.mark.parametrize("name", ["make_engine", "make_tokenizer", "make_self"])
def test_a_factory_takes_no_name_of_the_old_source(name: str) -> None:
    """A script's own `make_engine` was the one that was called, or was overwritten."""
    source = f"""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        def {name}():
            return "mine"

        class Helper:
            def __init__(self, path):
                self.tok = AutoTokenizer.from_pretrained(path)

            def count(self, question):
                return len(self.tok.tokenize(question))

        def answer(model, tok, question):
            inputs = tok(question, return_tensors="pt")
            out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
            return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

        def size(tok, question):
            return len(tok.tokenize(question))

        def main():
            Helper("m").count("a")
    """
    model, tok = {"$object": "x.QwenForCausalLM"}, {"$object": "x.QwenTokenizer"}
    observed = seen(model=model, tok=tok, question="x")
    observed = observed.beside(seen("size", tok=tok, question="x"))
    observed = observed.beside(seen("Helper.count", self={"$object": "__main__.Helper"}, question="x"))
    draft = draft_of(source, observed)
    assert run(draft, name)[0] == "mine"
    made = [factory for given in draft.factories.values() for factory in given.values()]
    assert len(set(made)) == 3 and name not in made and f"{name}_2" in made
    assert all(draft.code.count(f"def {factory}():") == 1 for factory in (name, *made))


OBJECT = """
    import sys
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class Bot:
        def __init__(self, path, budget=5):
            self.tok = AutoTokenizer.from_pretrained(path)
            self.model = AutoModelForCausalLM.from_pretrained(path)
            self.budget = budget

        def ask(self, q):
            inputs = self.tok(q, return_tensors="pt")
            out = self.model.generate(**inputs, max_new_tokens=self.budget, do_sample=False)
            return self.tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

    class Other(Bot):
        pass

    def answer(model, tok, question):
        inputs = tok(question, return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
        return tok.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True)

    def main(path, budget=4):
        bot = MADE
        names = sys.modules["argparse"].Namespace(model="kept")
        print(answer(bot.model, bot.tok, "a"), len(bot.tok("b")["input_ids"]), names.model, bot.budget)
"""
GIVEN = {"model": {"$object": "x.QwenForCausalLM"}, "tok": {"$object": "x.QwenTokenizer"}}


@pytest.mark.parametrize("made", ["Bot(path)", "Other(path)"])
def test_a_model_that_an_object_keeps_is_its_engine_where_it_is_given_on(
    made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bot.model` was left, which the draft's object has no more."""
    source = OBJECT.replace("import sys", "import sys, argparse").replace("MADE", made)
    draft = draft_of(source, seen(**GIVEN, question="x"))  # type: ignore[arg-type]
    assert not draft.todos
    run(draft, "main", "m")
    assert capsys.readouterr().out == "ANSWER 1 kept 5\n"


def test_a_model_that_is_not_seen_where_it_is_given_on_is_left_with_a_line() -> None:
    source = OBJECT.replace("MADE", "sys.argv")
    draft = draft_of(source, seen(**GIVEN, question="x"))  # type: ignore[arg-type]
    [todo] = draft.todos
    assert "`bot.model` is given to answer, which takes an engine now" in todo.text


def test_an_object_that_is_given_more_than_its_checkpoint_is_not_made_without_it() -> None:
    observed = seen("Bot.ask", self={"$object": "__main__.Bot"}, q="x")
    source = textwrap.dedent(OBJECT).partition("def answer")[0]
    draft = draft_of(f"{source}def main(path):\n    return Bot(path).ask('a')\n", observed)
    assert draft.factories == {"Bot.ask": {"self": "make_self"}}
    draft = draft_of(f"{source}def main(path, budget=9):\n    return Bot(path, budget=budget)\n", observed)
    assert draft.factories == {} and "what makes a Bot" in draft.todos[-1].text


def test_an_object_is_made_as_a_script_did_that_has_a_comment_between() -> None:
    """The comment was indented without its line: a syntax error in parity."""
    observed = seen("Bot.ask", self={"$object": "__main__.Bot"}, q="x")
    source = textwrap.dedent(OBJECT).partition("def answer")[0]
    script = """

        def main():
            path = "m"
            # TODO: from a file
            path = path.strip()
            bot = Bot(path)
            print(bot.ask("a"))
    """
    draft = draft_of(source + textwrap.dedent(script), observed)
    assert draft.factories == {"Bot.ask": {"self": "make_self"}}
    made = draft.code.partition("def make_self")[2]
    assert "TODO" not in made and "path = path.strip()" in made
