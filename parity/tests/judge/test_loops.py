"""Loops over model(...) of the code's own, and code that asks on with its answers: judged on transformers."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.goldens.store import Case, Store
from parity.goldens.verdict import Outcome
from parity.judge.loops import of_one_kind
from parity.judge.numerics.processed import why_not_greedy
from parity.judge.numerics.samples import settle_samples
from parity.judge.session import Session
from parity.judge.site import Pending, check_site
from parity.models.tasks import drawing
from parity.record.commands import recorded_text
from parity.record.observe import Observer, Site, case
from parity.record.rows import CHOSEN, LIKELIEST
from parity.tests.conftest import ROOT, TEXT, VL

OLD = """
import copy
import functools
import itertools

import numpy
import torch
import transformers


@functools.cache
def loaded(path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval(), tokenizer


def rendered(tokenizer, question):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)


@torch.no_grad()
def said(model, tokenizer, ids, past, most):
    found = []
    while len(found) < most:
        out = model(ids, past_key_values=past, use_cache=True)
        ids, past = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        if ids.item() in (550, 552):
            break
        found.append(ids.item())
    return tokenizer.decode(found, skip_special_tokens=True)


def cached(path, question, most=24):
    model, tokenizer = loaded(path)
    ids = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids
    return said(model, tokenizer, ids, None, most)


@torch.no_grad()
def whole(path, questions, most=24):
    \"""Everything is read again at each step; rows that ended are filled with pads.\"""
    model, tokenizer = loaded(path)
    given = tokenizer([rendered(tokenizer, one) for one in questions], return_tensors="pt", padding=True)
    ids, mask, width = given.input_ids, given.attention_mask, given.input_ids.shape[1]
    over = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(most):
        best = model(ids, attention_mask=mask, use_cache=False).logits[:, -1].argmax(-1)
        best = best.masked_fill(over, tokenizer.pad_token_id)
        ids = torch.cat([ids, best[:, None]], 1)
        mask = torch.cat([mask, torch.ones_like(best)[:, None]], 1)
        over |= best == 552
        if over.all():
            break
    return tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)


@torch.no_grad()
def leaving(path, questions, most=24):
    \"""Rows that ended leave the batch.\"""
    model, tokenizer = loaded(path)
    given = tokenizer([rendered(tokenizer, one) for one in questions], return_tensors="pt", padding=True)
    ids, mask, width, there = given.input_ids, given.attention_mask, given.input_ids.shape[1], [*range(len(questions))]
    texts = [""] * len(questions)
    for step in range(most):
        best = model(ids, attention_mask=mask, use_cache=False).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, best[:, None]], 1)
        mask = torch.cat([mask, torch.ones_like(best)[:, None]], 1)
        for row, place in zip(ids, there):
            texts[place] = tokenizer.decode(row[width:], skip_special_tokens=True)
        left = best != 552
        ids, mask, there = ids[left], mask[left], [place for place, on in zip(there, left) if on]
        if not there:
            break
    return texts


@torch.no_grad()
def penalized(path, question, most=24, penalty=2.0):
    model, tokenizer = loaded(path)
    ids = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids
    begin = ids.shape[1]
    while ids.shape[1] < begin + most and ids[0, -1] != 552:
        logits = model(ids, use_cache=False).logits[0, -1]
        seen = ids[0].unique()
        logits[seen] = torch.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
        ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    return tokenizer.decode(ids[0, begin:], skip_special_tokens=True)


@torch.no_grad()
def private(path, question, seed=3, most=192):
    \"""Draws from a generator of its own.\"""
    model, tokenizer = loaded(path)
    ids, past, found = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids, None, []
    generator = torch.Generator().manual_seed(seed)
    while len(found) < most:
        out = model(ids, past_key_values=past, use_cache=True)
        ids = (out.logits[:, -1] / 4.0).softmax(-1).multinomial(1, generator=generator)
        past = out.past_key_values
        found.append(ids.item())
    return tokenizer.decode(found, skip_special_tokens=True)


@torch.no_grad()
def dice(path, question, most=24):
    \"""Draws with numpy.\"""
    model, tokenizer = loaded(path)
    ids, past, found = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids, None, []
    while len(found) < most:
        out = model(ids, past_key_values=past, use_cache=True)
        odds = (out.logits[0, -1].double() / 4.0).softmax(-1).numpy()
        ids, past = torch.tensor([[numpy.random.choice(len(odds), p=odds)]]), out.past_key_values
        found.append(ids.item())
    return tokenizer.decode(found, skip_special_tokens=True)


@torch.no_grad()
def guided(path, question, most=24, scale=4.0):
    \"""Away from what would be said without the question.\"""
    model, tokenizer = loaded(path)
    asked, plain = (tokenizer(rendered(tokenizer, one), return_tensors="pt").input_ids for one in (question, ""))
    found = []
    while len(found) < most and 552 not in found:
        more = torch.tensor([found], dtype=torch.long)
        with_it, without = (model(torch.cat([one, more], 1)).logits[0, -1] for one in (asked, plain))
        found.append((without + scale * (with_it - without)).argmax().item())
    return tokenizer.decode(found, skip_special_tokens=True)


@torch.no_grad()
def direct(path, question):
    \"""A number, then which of two words is likelier behind it: by `forward` itself.\"""
    model, tokenizer = loaded(path)
    given = tokenizer(rendered(tokenizer, question), return_tensors="pt")
    ids = model.generate(**given, max_new_tokens=3, do_sample=False, repetition_penalty=1.0)
    yes, no = model.forward(ids).logits[0, -1, [tokenizer.encode(word)[0] for word in ("yes", "no")]]
    return [tokenizer.decode(ids[0, given.input_ids.shape[1] :]), bool(yes > no)]


def proxied(path, other, question):
    \"""Another model is asked at each step.\"""
    (model, tokenizer), (small, _) = loaded(path), loaded(other)
    given = tokenizer(rendered(tokenizer, question), return_tensors="pt")

    class Proxy(transformers.LogitsProcessor):
        def __call__(self, ids, scores):
            return scores + 0.1 * small(ids).logits[:, -1]

    ids = model.generate(**given, max_new_tokens=8, do_sample=False, repetition_penalty=1.0,
                         logits_processor=transformers.LogitsProcessorList([Proxy()]))
    return tokenizer.decode(ids[0, given.input_ids.shape[1] :], skip_special_tokens=True)


def clipped(path, question, keep=9, most=8):
    \"""Only the end of a prompt is asked.\"""
    model, tokenizer = loaded(path)
    ids = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids[:, -keep:]
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False,
                           repetition_penalty=1.0, pad_token_id=0)
    return tokenizer.decode(found[0, keep:], skip_special_tokens=True)


@torch.no_grad()
def drawn(path, question, temperature=1.0, most=24, seed=None):
    model, tokenizer = loaded(path)
    if seed is not None:
        torch.manual_seed(seed)
    ids, past, found = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids, None, []
    while len(found) < most:
        out = model(ids, past_key_values=past, use_cache=True)
        ids, past = torch.multinomial((out.logits[:, -1] / temperature).softmax(-1), 1), out.past_key_values
        found.append(ids.item())
    return tokenizer.decode(found, skip_special_tokens=True)


def cold(path, question):
    return drawn(path, question, temperature=0.01)


@torch.no_grad()
def sure(path, question):
    \"""Only the prompt is read, once for both words.\"""
    model, tokenizer = loaded(path)
    logits = model(**tokenizer(rendered(tokenizer, question), return_tensors="pt")).logits[0, -1]
    return float(logits[[tokenizer.encode(word)[0] for word in ("yes", "no")]].softmax(-1)[0])


@torch.no_grad()
def rare(path, question):
    \"""How likely two words are, of all that may come.\"""
    model, tokenizer = loaded(path)
    logits = model(**tokenizer(rendered(tokenizer, question), return_tensors="pt")).logits[0, -1]
    return {word: float(logits.softmax(-1)[tokenizer.encode(word)[0]]) for word in ("yes", "no")}


@torch.no_grad()
def apart(path, question, most=24):
    \"""The last id of the prompt is read by itself.\"""
    model, tokenizer = loaded(path)
    given = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids
    past = model(given[:, :-1], use_cache=True).past_key_values
    return said(model, tokenizer, given[:, -1:], past, most)


KEPT = {}


@torch.no_grad()
def kept(path, question, most=24):
    \"""The past of the call before, as far as both prompts begin alike.\"""
    model, tokenizer = loaded(path)
    ids = tokenizer(rendered(tokenizer, question)).input_ids
    past, before = KEPT.get(path, (transformers.DynamicCache(), []))
    same = sum(itertools.takewhile(bool, map(int.__eq__, before, ids[:-1])))
    if past.get_seq_length() > same:
        past.crop(same - past.get_seq_length())
    KEPT[path] = past, ids
    return said(model, tokenizer, torch.tensor([ids[same:]]), past, most)


@functools.cache
@torch.no_grad()
def prefix(path):
    model, tokenizer = loaded(path)
    ids = tokenizer("<|im_start|>system\\nBe brief.", return_tensors="pt").input_ids
    return ids.shape[1], model(ids, use_cache=True).past_key_values


def prefixed(path, question, most=24):
    \"""A copy of a past that was read before any call.\"""
    model, tokenizer = loaded(path)
    count, past = copy.deepcopy(prefix(path))
    ids = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids
    return said(model, tokenizer, ids[:, count:], past, most)


def turns(path, questions, most=12):
    \"""One past for a whole chat.\"""
    model, tokenizer = loaded(path)
    past, text, answers, read = transformers.DynamicCache(), "", [], 0
    for question in questions:
        text += f"<|im_start|>user\\n{question}<|im_end|>\\n<|im_start|>assistant\\n"
        given = tokenizer(text, return_tensors="pt").input_ids
        answers.append(said(model, tokenizer, given[:, read:], past, most))
        read = given.shape[1]
        past.crop(read - past.get_seq_length())
        text += f"{answers[-1]}<|im_end|>\\n"
    return answers


@torch.no_grad()
def guessed(path, draft, question, most=24):
    \"""Another model guesses three ids, and this one reads all of them at once.\"""
    (model, tokenizer), (small, _) = loaded(path), loaded(draft)
    ids = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids
    begin = ids.shape[1]
    while ids.shape[1] < begin + most and ids[0, -1] != 552:
        guess, count = ids, ids.shape[1]
        for _ in range(3):
            guess = torch.cat([guess, small(guess).logits[:, -1:].argmax(-1)], 1)
        for place, best in enumerate(model(guess).logits[0, count - 1 :].argmax(-1), count):
            ids = torch.cat([ids, best[None, None]], 1)
            if best == 552 or place == guess.shape[1] or best != guess[0, place]:
                break
    return tokenizer.decode(ids[0, begin : begin + most], skip_special_tokens=True)


@torch.no_grad()
def surprise(path, question, answer):
    model, tokenizer = loaded(path)
    given = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids
    ids = torch.cat([given, tokenizer(answer, return_tensors="pt").input_ids], 1)
    labels = ids.clone()
    labels[:, : given.shape[1]] = -100
    return float(model(ids, labels=labels).loss)


@torch.no_grad()
def losses(path, texts, most=6):
    # of each text alone; of one that is cut nothing counts, and of one id nothing can
    model, tokenizer = loaded(path)
    found = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=most).input_ids
        labels = ids.clone()
        labels[:, : 1 if ids.shape[1] < most else most] = -100
        loss = float(model(ids, labels=labels).loss)
        found.append(0.0 if loss != loss else loss)
    return found


@torch.no_grad()
def embedded(path, question, most=16):
    model, tokenizer = loaded(path)
    ids, past, found = tokenizer(rendered(tokenizer, question), return_tensors="pt").input_ids, None, []
    while len(found) < most:
        out = model(inputs_embeds=model.get_input_embeddings()(ids), past_key_values=past, use_cache=True)
        ids, past = out.logits[:, -1:].argmax(-1), out.past_key_values
        if ids.item() == 552:
            break
        found.append(ids.item())
    return tokenizer.decode(found, skip_special_tokens=True)


@torch.no_grad()
def seen(path, picture, most=12):
    processor = transformers.AutoProcessor.from_pretrained(path)
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype="float32").eval()
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    given, found = dict(processor(text=[text], images=[picture], return_tensors="pt")), []
    while len(found) < most and 552 not in found:
        best = model(**given, use_cache=False).logits[:, -1].argmax(-1)
        found.append(best.item())
        given["input_ids"] = torch.cat([given["input_ids"], best[:, None]], 1)
        for name, value in {"attention_mask": 1, "mm_token_type_ids": 0}.items():
            if name in given:
                given[name] = torch.cat([given[name], torch.full_like(best, value)[:, None]], 1)
    return processor.tokenizer.decode(found, skip_special_tokens=True)


@torch.no_grad()
def looked(path, picture, options):
    processor = transformers.AutoProcessor.from_pretrained(path)
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype="float32").eval()
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which colour?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    logits = model(**processor(text=[text], images=[picture], return_tensors="pt")).logits[0, -1]
    ids = [processor.tokenizer.encode(option)[0] for option in options]
    return logits[ids].softmax(-1).tolist()


def refined(path, question, times=3):
    \"""Each answer is in the next prompt.\"""
    model, tokenizer = loaded(path)
    chat = [{"role": "user", "content": question}]
    for _ in range(times):
        text = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        given = tokenizer(text, return_tensors="pt")
        ids = model.generate(
            **given, max_new_tokens=16, do_sample=False, repetition_penalty=1.0, stop_strings=["."], tokenizer=tokenizer
        )
        said = tokenizer.decode(ids[0, given.input_ids.shape[1] :], skip_special_tokens=True)
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"Again, better: {said}"}]
    return said
"""

MOVED = """
import functools
import math

import gen_engine

loaded = functools.cache(gen_engine.load)


def asked(path, chats, **options):
    options = {"temperature": 0, "repetition_penalty": 1.0, "top_p": 1.0, "top_k": None, **options}
    return loaded(path).generate_text_batch([{"messages": chat} for chat in chats], options)


def chat(question):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]


def cached(path, question, most=24):
    return asked(path, [chat(question)], max_new_tokens=most)[0].text


def whole(path, questions, most=24):
    return [answer.text for answer in asked(path, [chat(one) for one in questions], max_new_tokens=most)]


leaving = whole


def penalized(path, question, most=24, penalty=2.0):
    return asked(path, [chat(question)], max_new_tokens=most, repetition_penalty=penalty)[0].text


def clipped(path, question, keep=9, most=8):
    engine = loaded(path)
    text = engine.tokenizer.apply_chat_template(
        chat(question), tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    ids = engine.tokenizer.encode(text)[-keep:]
    options = {"temperature": 0, "repetition_penalty": 1.0, "max_new_tokens": most}
    return engine.generate_text_batch([{"prompt_token_ids": ids}], options)[0].text


def drawn(path, question, temperature=1.0, most=24, seed=None):
    options = {"temperature": temperature, "stop": {"ignore_eos": True}, "seed": seed}
    return asked(path, [chat(question)], max_new_tokens=most, **options)[0].text


def direct(path, question):
    engine = loaded(path)
    first = asked(path, [chat(question)], max_new_tokens=3)[0]
    ids = [*first.prompt_token_ids, *first.token_ids]
    [then] = engine.generate_text_batch([{"prompt_token_ids": ids}], {"max_new_tokens": 1, "logits": True})
    yes, no = then.logits[0][[engine.tokenizer.encode(word)[0] for word in ("yes", "no")]]
    return [first.text, bool(yes > no)]


def proxied(path, other, question):
    class Proxy(gen_engine.Plugin):
        name = "proxy"

        def logits(self, token_ids, logits, prompt_token_ids):
            request = {"prompt_token_ids": [*prompt_token_ids, *token_ids]}
            [small] = loaded(other).generate_text_batch([request], {"max_new_tokens": 1, "logits": True})
            return logits + 0.1 * small.logits[0]

    options = {"temperature": 0, "repetition_penalty": 1.0, "max_new_tokens": 8}
    return loaded(path).generate_text_batch([{"messages": chat(question)}], options, plugins=[Proxy()])[0].text


def private(path, question, seed=3, most=192):
    return drawn(path, question, 4.0, most, seed)


def dice(path, question, most=24):
    return asked(path, [chat(question)], max_new_tokens=most)[0].text


guided = dice


def cold(path, question):
    return drawn(path, question, temperature=0.01)


def sure(path, question):
    engine = loaded(path)
    words = [engine.tokenizer.encode(word)[:1] for word in ("yes", "no")]
    scores = engine.score_batch([({"messages": chat(question)}, word) for word in words])
    yes, no = (math.exp(score.logprobs[0]) for score in scores)
    return yes / (yes + no)


def rare(path, question):
    engine = loaded(path)
    words = {word: engine.tokenizer.encode(word)[:1] for word in ("yes", "no")}
    scores = engine.score_batch([({"messages": chat(question)}, ids) for ids in words.values()])
    return {word: math.exp(score.logprobs[0]) for word, score in zip(words, scores)}


def embedded(path, question, most=16):
    return cached(path, question, most)


apart = kept = prefixed = cached


def turns(path, questions, most=12):
    text, answers = "", []
    options = {"temperature": 0, "repetition_penalty": 1.0, "max_new_tokens": most}
    for question in questions:
        text += f"<|im_start|>user\\n{question}<|im_end|>\\n<|im_start|>assistant\\n"
        answers.append(loaded(path).generate_text_batch([{"prompt": text}], options)[0].text)
        text += f"{answers[-1]}<|im_end|>\\n"
    return answers


def guessed(path, draft, question, most=24):
    return asked(path, [chat(question)], max_new_tokens=most)[0].text


def surprise(path, question, answer):
    engine = loaded(path)
    [score] = engine.score_batch([({"messages": chat(question)}, engine.tokenizer.encode(answer))])
    return -sum(score.logprobs) / len(score.logprobs)


def losses(path, texts, most=6):
    engine = loaded(path)
    ids = [engine.tokenizer(text)["input_ids"] for text in texts]
    pairs = [(one[:1], one[1:]) for one in ids if 1 < len(one) < most]
    scores = iter(engine.score_batch(pairs))
    means = ((-sum(score.logprobs) / len(score.logprobs)) for score in scores)
    return [next(means) if 1 < len(one) < most else 0.0 for one in ids]


def seen(path, picture, most=12):
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "What do you see?"}]
    request = {"messages": [{"role": "user", "content": content}]}
    options = {"max_new_tokens": most, "temperature": 0, "repetition_penalty": 1.0}
    return loaded(path).generate_vlm_batch([request], options)[0].text


def looked(path, picture, options):
    engine = loaded(path)
    ids = [engine.tokenizer.encode(option)[0] for option in options]
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "Which colour?"}]
    request = {"messages": [{"role": "user", "content": content}]}
    [score] = engine.score_batch([(request, ids[:1])], logits=True)
    return score.logits[0][ids].softmax(-1).tolist()


def refined(path, question, times=3):
    turns = [{"role": "user", "content": question}]
    for _ in range(times):
        stop = {"strings": ["."], "include_stop": True}
        said = asked(path, [turns], max_new_tokens=16, stop=stop)[0].text
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": f"Again, better: {said}"}]
    return said
"""

QUESTIONS = ["What is the capital of France?", "Is 28 even?", "Count to 12."]
ASKED = (
    "cached",
    "cold",
    "refined",
    "sure",
    "rare",
    "apart",
    "embedded",
    "penalized",
    "clipped",
    "private",
    "dice",
    "guided",
    "direct",
    "kept",
    "prefixed",
)  # of each question
READ = ["a", "ab", "1, 2", "1, 2,", "What is the capital of France?", "b"]  # some are others and an id more
DRAFT = ROOT / "golden/models/tiny-qwen3-draft"
SITES = (*ASKED, "proxied", "whole", "leaving", "drawn", "seen", "looked", "turns", "guessed", "surprise", "losses")
Judged = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """old_loops.py, and what it gave."""
    folder = tmp_path_factory.mktemp("loops")
    (folder / "old_loops.py").write_text(OLD)
    store, found = Store(folder / "golden"), list[Case]()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        sites = [Site(name, f"old_loops:{name}") for name in SITES]
        with Observer(sites=sites, sink=found.append, store=store) as observer:
            old = importlib.import_module("old_loops")
            old.prefix(str(TEXT))
            for number, question in enumerate(QUESTIONS):
                with case(f"q{number}"):
                    for name in ASKED:
                        getattr(old, name)(str(TEXT), question)
                    old.guessed(str(TEXT), str(DRAFT), question)
                    old.surprise(str(TEXT), question, "1, 2, 3")
                    old.proxied(str(TEXT), str(DRAFT), question)
            with case("circle"):
                old.seen(str(VL), drawing("red", "circle"))
                old.looked(str(VL), drawing("red", "circle"), ["red", "blue", "A"])
            with case("all"):
                old.whole(str(TEXT), QUESTIONS)
                old.leaving(str(TEXT), QUESTIONS)
                old.turns(str(TEXT), QUESTIONS)
                old.losses(str(TEXT), READ)
            for temperature in (1.0, 4.0):
                with case(f"at-{temperature:.0f}"):
                    old.drawn(str(TEXT), QUESTIONS[0], temperature, most=192)
            with case("short"):
                old.drawn(str(TEXT), QUESTIONS[0], 4.0, most=4)
            with case("seeded"):
                old.drawn(str(TEXT), QUESTIONS[0], 4.0, most=192, seed=3)
        assert observer.failures == []
        for one in found:
            store.write(one)
        for name in SITES:
            store.set_site(name, functions=[f"old_loops:{name}"])
        yield folder


@pytest.fixture
def judged(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """`judged(site, case, (old, new), …)`: the outcome with these edits of the moved code."""
    monkeypatch.syspath_prepend(tmp_path)
    store = Store(folder / "golden")

    def run(site: str, name: str, *edits: tuple[str, str]) -> Outcome:
        code = MOVED
        for before, after in edits:
            assert before in code
            code = code.replace(before, after)
        (tmp_path / "new_loops.py").write_text(code)
        importlib.invalidate_caches()
        settings = {**store.settings()[site], "moved": {"old_loops": "new_loops"}}
        pending = Pending.of(store)
        with Session(store, {f"new_loops:{site}": site}) as session:
            found = list(check_site(session, site, [name], "hf", settings, pending))
        [outcome] = settle_samples(found, pending.ledgers)
        print(outcome.verdict, outcome.cause, outcome.cause and outcome.cause.sentence, outcome.notes)
        return outcome

    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return run


def rows_of(folder: Path, site: str, name: str) -> list[Any]:
    return list(Store(folder / "golden").read(site, name).rows)


def test_a_loop_is_recorded_as_generate_would_be(folder: Path) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(TEXT, dtype="float32").eval()
    alone = [rows_of(folder, "cached", f"q{number}")[0] for number in range(3)]
    together = rows_of(folder, "whole", "all")
    for one, beside in zip(alone, together, strict=True):
        ids = model.generate(
            model.dummy_inputs["input_ids"].new_tensor([one["prompt_ids"]]), do_sample=False, max_new_tokens=24,
            repetition_penalty=1.0,
        )  # fmt: skip
        wanted = ids[0, len(one["prompt_ids"]) :].tolist()
        assert one["output_ids"] == beside["output_ids"] == wanted and one["prompt_ids"] == beside["prompt_ids"]
        assert one["loop"] == beside["loop"] == LIKELIEST and "sampling" not in one
        assert one["prompt_text"].startswith("<|im_start|>system\nBe brief.") and one["model"]["dtype"] == "float32"


def test_what_a_loop_draws_is_known_to_the_end_where_it_was_decoded(folder: Path) -> None:
    [row] = rows_of(folder, "drawn", "at-4")
    assert row["loop"] == CHOSEN and len(row["output_ids"]) == 192


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("cached", "q0"), ("whole", "all"), ("refined", "q0"), ("seen", "circle"), ("looked", "circle"),
        *((site, f"q{number}") for site in ("apart", "surprise", "penalized", "clipped") for number in range(3)),
        ("turns", "all"), ("leaving", "all"), *(("proxied", f"q{number}") for number in range(3)),
    ],
)  # fmt: skip
def test_loops_that_are_moved_rightly_are_identical(site: str, name: str, judged: Judged) -> None:
    assert judged(site, name).verdict == "IDENTICAL"


def test_a_picture_of_a_moved_loop_that_is_another_one_is_named(judged: Judged) -> None:
    outcome = judged("seen", "circle", ('"image": picture', '"image": picture.transpose(0)'))
    assert outcome.verdict in ("DRIFT", "LATENT") and str(outcome.cause) == "image.pixels; confirmed"


@pytest.mark.parametrize(
    ("site", "verdict"),
    [
        ("rare", "IDENTICAL"), ("guessed", "TEXT-IDENTICAL"),
        ("embedded", "LATENT"), ("prefixed", "LATENT"),  # the old model call was not seen
    ],
)  # fmt: skip
def test_of_what_a_model_only_reads_its_prompt_and_itself_are_held(site: str, verdict: str, judged: Judged) -> None:
    """A prompt that is read more often on one side is the same reading, as in `rare`."""
    for number in range(len(QUESTIONS)):
        assert (number, judged(site, f"q{number}").verdict) == (number, verdict)
    if verdict == "LATENT":  # no model call of the old code was seen: no stage of it can be compared
        other = judged(site, "q1", ("Be brief.", "Be brief!"))
        assert other.cause is not None and other.cause.name in ("golden.empty", "value")
        return
    coarse = judged(site, "q0", ("gen_engine.load)", "lambda path: gen_engine.load(path, dtype='bfloat16'))"))
    assert coarse.cause is not None and coarse.cause.name == "model.dtype"
    other = judged(site, "q1", ("Be brief.", "Be brief!"))
    assert other.cause is not None and other.cause.name == "prompt.messages"


def test_the_text_on_top_of_an_answer_is_a_prompt(folder: Path, judged: Judged) -> None:
    """A past that was kept over the turns of a chat."""
    rows = rows_of(folder, "turns", "all")
    assert len(rows) == 3 and all(row["loop"] == LIKELIEST and "Is 28" in row["prompt_text"] for row in rows[1:])
    lost = judged("turns", "all", ("{answers[-1]}<|im_end|>", "<|im_end|>"))
    assert str(lost.cause) == "prompt.text; confirmed"


def test_a_loop_goes_on_with_the_past_of_an_earlier_call(folder: Path, judged: Judged) -> None:
    for number in range(len(QUESTIONS)):
        [kept], [whole] = (rows_of(folder, site, f"q{number}") for site in ("kept", "cached"))
        assert (kept["prompt_ids"], kept["output_ids"]) == (whole["prompt_ids"], whole["output_ids"])
        assert judged("kept", f"q{number}").verdict == "IDENTICAL"
    other = judged("kept", "q1", ("Be brief.", "Be brief!"))
    assert str(other.cause) == "prompt.messages; confirmed"


def test_what_is_read_for_its_loss_is_no_loop_and_may_count_for_nothing(folder: Path, judged: Judged) -> None:
    rows = rows_of(folder, "losses", "all")
    assert [(row.get("request") or {}).get("labels") for row in rows] == ["none", None, None, None, "none", "none"]
    assert all(row["scored"] and not row["output_ids"] for row in rows)
    assert judged("losses", "all").verdict in ("IDENTICAL", "TEXT-IDENTICAL")
    lost = judged("losses", "all", ("if 1 < len(one) < most]", "if 2 < len(one) < most]"), ("if 1 <", "if 2 <"))
    assert lost.verdict == "DRIFT"


def test_an_id_that_a_text_goes_on_with_is_not_chosen(folder: Path) -> None:
    for number in range(len(QUESTIONS)):
        [fed], [whole] = (rows_of(folder, site, f"q{number}") for site in ("apart", "cached"))
        assert (fed["prompt_ids"], fed["output_ids"]) == (whole["prompt_ids"], whole["output_ids"])


def test_numbers_are_held_by_their_size(judged: Judged) -> None:
    """Words that hardly may come: 1e-9 is another probability than 1e-6."""
    swapped = judged("rare", "q0", ("zip(words, scores)", "zip(reversed(words), scores)"))
    assert swapped.verdict == "DRIFT" and swapped.cause is not None and swapped.cause.name == "value"
    assert judged("rare", "q0", ("math.exp(score.logprobs[0])", "0.0")).verdict == "DRIFT"


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (("max_new_tokens=most", "max_new_tokens=most - 92"), "stop.max_new_tokens; likely"),
        (("max_new_tokens=most", "max_new_tokens=most + 92"), "stop; likely"),
        (('"stop": {"ignore_eos": True}, ', ""), "stop.end_ids; likely"),
        (('"seed": seed', '"seed": 7 if seed is None else None'), "sampling.seed"),
        ((".text", ".raw_text"), "decode.skip_special_tokens; confirmed"),
    ],
    ids=["shorter", "longer", "ends", "seed", "special tokens"],
)
@pytest.mark.parametrize("name", ["at-4", "seeded"])
def test_what_is_wrong_beside_the_draws_of_a_loop_is_named(
    name: str, edit: tuple[str, str], cause: str, judged: Judged
) -> None:
    outcome = judged("drawn", name, edit)
    assert outcome.verdict == "DRIFT" and str(outcome.cause).startswith(cause)


def test_a_loop_that_draws_may_take_the_likeliest(judged: Judged) -> None:
    """As it does where it draws coldly: that the new code draws is no difference."""
    assert judged("cold", "q0").verdict in ("IDENTICAL", "TEXT-IDENTICAL")


def test_a_loop_that_only_takes_the_likeliest_does_not_draw(judged: Judged) -> None:
    for name in ("q0", "q2"):
        outcome = judged("cached", name, ('"temperature": 0', '"temperature": 0.7'))
        assert outcome.verdict in ("LATENT", "DRIFT") and outcome.cause is not None
        assert outcome.cause.name == "sampling.mode"


@pytest.mark.parametrize(
    ("edit", "verdict", "cause"),
    [
        (("Be brief.", "Be brief!"), None, "prompt.messages; confirmed"),
        (("gen_engine.load)", "lambda path: gen_engine.load(path, dtype='bfloat16'))"), None, "model.dtype; confirmed"),
        (("max_new_tokens=most", "max_new_tokens=most - 20"), "DRIFT", "stop; likely"),
        ((".text", ".text.upper()"), "DRIFT", "value; confirmed"),
        (
            (', "repetition_penalty": 1.0', ', "repetition_penalty": 3.0'),
            None,
            "sampling.repetition_penalty; confirmed",
        ),
    ],
    ids=["prompt", "dtype", "length", "text", "penalty"],
)
def test_what_is_wrong_about_a_moved_loop_is_named(edit: Any, verdict: Any, cause: str, judged: Judged) -> None:
    outcome = judged("cached", "q0", edit)
    assert outcome.verdict in ((verdict,) if verdict else ("DRIFT", "LATENT")) and str(outcome.cause) == cause


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ('stop=["5"]', "stop; likely"),
        ('stop={"token_ids": loaded(path).tokenizer.encode("5")}', "stop; likely"),
        ("", "stop; likely"),
    ],
)
def test_where_a_moved_loop_ends_too_soon_says_why(more: str, cause: str, judged: Judged) -> None:
    most = "max_new_tokens=most" if more else "max_new_tokens=most // 2"
    edit = (
        "[chat(question)], max_new_tokens=most)[0].text\n\n\ndef whole",
        f"[chat(question)], {most}, {more})[0].text\n\n\ndef whole",
    )
    outcome = judged("cached", "q2", edit)
    assert outcome.verdict == "DRIFT" and str(outcome.cause) == cause


def test_rows_that_left_a_batch_have_the_order_in_which_they_came(judged: Judged) -> None:
    outcome = judged("leaving", "all", ("most)]\n\n\nleaving", "most)][::-1]\n\n\nleaving"))
    assert outcome.verdict == "DRIFT" and str(outcome.cause) == "order; confirmed"


@pytest.mark.parametrize("number", [0, 1])
def test_a_few_tokens_that_were_passed_over_are_a_penalty_and_no_draws(number: int, judged: Judged) -> None:
    outcome = judged("penalized", f"q{number}", ("repetition_penalty=penalty", "repetition_penalty=1.0"))
    assert outcome.cause is not None and outcome.cause.name == "sampling.processors"


@pytest.mark.parametrize(("site", "cause"), [("guided", "sampling.processors"), ("dice", "sampling.mode")])
def test_whether_a_loop_draws_is_known_by_the_random_numbers_it_takes(site: str, cause: str, judged: Judged) -> None:
    outcome = judged(site, "q0")  # it takes the likeliest now
    assert outcome.verdict == "DRIFT" and outcome.cause is not None and outcome.cause.name == cause


def test_a_generator_of_a_loops_own_has_a_seed(folder: Path, judged: Judged) -> None:
    [drawn] = rows_of(folder, "private", "q0")
    assert drawn["request"]["process"] == {"value": 3, "from": "process"}
    assert judged("private", "q0").verdict == "IDENTICAL"
    assert str(judged("private", "q0", ("4.0, most, seed", "4.0, most, seed + 1")).cause).startswith("sampling.seed")


@pytest.mark.parametrize("number", range(3))
def test_a_model_whose_forward_is_called_is_seen(number: int, folder: Path, judged: Judged) -> None:
    """What it reads there, the new code may ask for as an answer."""
    assert [bool(row.get("scored")) for row in rows_of(folder, "direct", f"q{number}")] == [False, True]
    assert judged("direct", f"q{number}").verdict in ("IDENTICAL", "TEXT-IDENTICAL")
    other = judged("direct", f"q{number}", ("*first.token_ids]", "*first.token_ids[:-1]]"))
    assert other.verdict in ("LATENT", "DRIFT") and other.cause is not None and other.cause.name.startswith("prompt.")


def test_a_model_that_a_plugin_asks_hides_nothing(judged: Judged) -> None:
    other = judged("proxied", "q0", ("Be brief.", "Be brief!"))
    assert str(other.cause) == "prompt.messages; confirmed"


def test_the_other_end_of_a_prompt_is_named(judged: Judged) -> None:
    outcome = judged("clipped", "q0", ("[-keep:]", "[:keep]"))
    assert outcome.cause is not None and outcome.cause.name == "prompt.ids"


def test_a_prompt_that_was_read_alone_is_that_of_what_is_scored(judged: Judged) -> None:
    assert judged("sure", "q1").verdict == "IDENTICAL"  # what is read more often says all the first time
    assert str(judged("sure", "q1", ("Be brief.", "Be brief!")).cause) == "prompt.messages; likely"
    assert judged("sure", "q1", ("yes / (yes", "no / (yes")).verdict == "DRIFT"


def test_draws_of_a_loop_are_held_against_the_new_settings(judged: Judged) -> None:
    assert judged("drawn", "at-4").verdict == "SAME-DISTRIBUTION"
    cold = judged("drawn", "at-4", ('"temperature": temperature', '"temperature": min(temperature, 1.0)'))
    assert cold.verdict == "DRIFT" and cold.cause is not None and cold.cause.name == "sampling.draws"
    greedy = judged("drawn", "at-4", ('"temperature": temperature', '"temperature": 0'))
    assert greedy.verdict == "DRIFT" and greedy.cause is not None and greedy.cause.name == "sampling.mode"


def test_draws_of_a_loop_that_are_too_few_are_no_pass(judged: Judged) -> None:
    other = judged("drawn", "short", ('"temperature": temperature', '"temperature": 2.0'))
    assert other.verdict == "ERROR" and other.cause is not None
    assert "a loop of its own, by settings that are not seen" in other.cause.sentence


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        ((', "include_stop": True', ""), "stop; confirmed"),
        (('"strings": ["."]', '"strings": [" is"]'), "stop.strings; likely"),
        (("max_new_tokens=16", "max_new_tokens=5"), "stop.max_new_tokens; likely"),
        (("Again, better", "Again, worse"), "prompt.messages; confirmed"),
    ],
    ids=["an answer is cut", "another stop", "a budget", "a later prompt"],
)
def test_of_prompts_that_hold_answers_the_first_answer_has_the_cause(edit: Any, cause: str, judged: Judged) -> None:
    assert str(judged("refined", "q0", edit).cause) == cause


@pytest.mark.parametrize(
    ("old", "is_seen"),
    [
        ({"prompt_text": "ab"}, True),  # all of its text was read, and the new side scores more
        ({}, False),
        ({"prompt_text": "abc", "request": {"cut": [0, 2]}}, False),
        ({"prompt_text": "a", "request": {"behind": 1}}, False),
        ({"prompt_text": "a", "request": {"response": 1}}, False),
    ],
)
def test_an_id_more_behind_what_is_scored_is_seen_where_the_old_code_left_none_out(old: Any, is_seen: bool) -> None:
    read = {"prompt_ids": [1, 2], "output_ids": [], "scored": True, **old}
    more = {"prompt_ids": [1, 2, 3], "output_ids": [], "scored": True, "request": {"response": 2}}
    _, new = of_one_kind(*(Case("s", "c", rows=(one,)) for one in (read, more)))
    assert (new.rows[0]["prompt_ids"] == [1, 2, 3]) is is_seen


def test_an_id_that_the_new_code_does_not_score_any_more_is_seen() -> None:
    """As where the end of a turn is left out: what the old code reads last is read by an engine, too."""
    read = {"prompt_ids": [1, 2, 3], "output_ids": [], "scored": True, "request": {"response": 2}}
    less = {"prompt_ids": [1, 2], "output_ids": [], "scored": True, "request": {"response": 1}}
    old, new = of_one_kind(*(Case("s", "c", rows=(one,)) for one in (read, less)))
    assert (old.rows[0]["prompt_ids"], new.rows[0]["prompt_ids"]) == ([1, 2, 3], [1, 2])


def test_choices_of_a_loop_that_were_not_the_likeliest_are_not_computed_again() -> None:
    assert why_not_greedy({"loop": CHOSEN}) and not why_not_greedy({"loop": LIKELIEST})
    assert not why_not_greedy({"loop": CHOSEN, "sampling": {"repetition_penalty": {"value": 1.3}}}), (
        "so says the moved code"
    )


def test_record_says_what_is_not_seen_of_a_loop(folder: Path) -> None:
    store = Store(folder / "golden")
    cases = [store.read("drawn", "at-4"), store.read("cached", "q0"), store.read("embedded", "q0")]
    cases += [store.read("prefixed", "q0"), store.read("kept", "q1"), store.read("guessed", "q0")]
    seen = SimpleNamespace(overhead=(0.0, 1.0), failures=[], not_held=[], cases=cases, returncode=0)
    done: Any = SimpleNamespace(seen=seen, written=cases, same=[], refused=[], exit_code=4)
    said = recorded_text(done, store)
    assert "drawn chooses other tokens than the likeliest in a loop of its own (at-4)" in said
    assert "embedded gives its model embeddings, not ids, or a cache" in said
    assert "prefixed gives its model embeddings, not ids, or a cache" in said
    assert not any(f"\n{name} " in said for name in ("cached", "kept"))


def row(prompt: str, text: str, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"prompt_text": prompt, "prompt_ids": [ord(c) for c in prompt], "output_ids": ids, "text": text, **more}


LOOPS: dict[str, Any] = {}


def looped(kind: str, folder: Path) -> list[Any]:
    """What a loop of this kind records."""
    holder: Any = importlib.import_module("old_loops")
    import torch
    import transformers

    model, tokenizer = holder.loaded(str(TEXT))
    ids = tokenizer("Count to 12. " * 3, return_tensors="pt").input_ids

    def in_chunks() -> None:
        past, pasts = transformers.DynamicCache(), []
        model(ids[:, :5], past_key_values=past)
        best = model(ids[:, 5:], past_key_values=past).logits[:, -1:].argmax(-1)
        pasts.append(weakref.ref(past))
        for _ in range(4):
            best = model(best, past_key_values=past).logits[:, -1:].argmax(-1)
        del past
        gc.collect()
        LOOPS["held"] = pasts[0]() is not None

    def rows_dropped() -> None:
        past = model(torch.cat([ids, ids + 1])).past_key_values
        model(ids[:1, :1].expand(2, 1), past_key_values=past)
        past.batch_select_indices(torch.tensor([1]))
        model(ids[:1, :1], past_key_values=past)

    def ids_taken_back() -> None:
        past = transformers.DynamicCache()
        best = model(ids, past_key_values=past).logits[:, -1:].argmax(-1)
        model(best, past_key_values=past)
        past.crop(-1)
        model(best, past_key_values=past)

    def options() -> None:
        """Each of two options is read behind one prompt."""
        past = transformers.DynamicCache()
        model(ids, past_key_values=past)
        for option in ("yes, it is", "no, it is not"):
            more = tokenizer(option, return_tensors="pt").input_ids
            model(more, past_key_values=past)
            past.crop(-more.shape[1])

    def not_for_text() -> None:
        config = transformers.BertConfig(vocab_size=600, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        transformers.BertForSequenceClassification(config).eval()(input_ids=ids)

    LOOPS["length"] = ids.shape[1]
    loops = (in_chunks, rows_dropped, ids_taken_back, options, not_for_text)
    run = next(loop for loop in loops if loop.__name__ == kind.replace(" ", "_"))
    found: list[Case] = []
    vars(holder)["run"] = run
    with torch.no_grad(), Observer(sites=[Site("s", "old_loops:run")], sink=found.append) as observer:
        holder.run()
    assert observer.failures == []
    return list(found[0].rows)


def test_a_prompt_that_is_read_in_parts_is_one(folder: Path) -> None:
    [row] = looped("in chunks", folder)
    assert len(row["prompt_ids"]) > 5 and len(row["output_ids"]) == 5 and row["loop"] == LIKELIEST
    assert not LOOPS["held"], "seeing a loop does not keep its past"


@pytest.mark.parametrize(("kind", "count"), [("rows dropped", 2), ("ids taken back", 1), ("options", 1)])
def test_what_cannot_be_followed_is_known_by_its_prompt(kind: str, count: int, folder: Path) -> None:
    rows = looped(kind, folder)
    assert [len(one["output_ids"]) for one in rows] == [0] * count and all(one["scored"] for one in rows)
    assert [len(one["prompt_ids"]) for one in rows] == [LOOPS["length"]] * count


def test_a_model_that_tells_no_next_token_only_reads(folder: Path) -> None:
    [row] = looped("not for text", folder)
    assert row["scored"] and row["model"]["class"] == "BertForSequenceClassification"
