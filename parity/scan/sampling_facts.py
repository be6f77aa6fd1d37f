"""What a block says about sampling, budget, stops and seed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from parity.scan.blocks import CHOOSES, function_text
from parity.scan.context import GENERATION_CONFIG
from parity.scan.evaluator import source_text
from parity.scan.index import SEEDS, called_name, dotted_name, end_of, start_of
from parity.scan.load_facts import LoadFacts, is_encoder_decoder
from parity.scan.origins import REMOTE, Fact, fact_of, literal, not_said
from parity.scan.values import (
    Argument,
    Call,
    Changed,
    Frame,
    Function,
    Member,
    Value,
    is_literal,
    options_of,
    plain,
)

NOTHING_GENERATED = not_said("nothing, no token is chosen here")


class SamplingFacts(LoadFacts):
    @property
    def unsaid_setting(self) -> Fact:
        block = self.block
        if block.library == "score":
            return NOTHING_GENERATED
        if block.library == "loop":
            return not_said("the loop, which has none")
        return REMOTE if block.is_remote else GENERATION_CONFIG

    def vllm_default(self, default: str) -> Fact:
        """Without SamplingParams vLLM takes those of the checkpoint, with them its defaults."""
        return not_said(f"vLLM ({default})") if self.has_sampling_params else GENERATION_CONFIG

    def sampling(self, default: str, *names: str) -> Fact:
        if self.block.library == "score":
            return NOTHING_GENERATED
        if self.block.library == "loop":
            return self.loop_setting(names[0])
        if self.block.library == "vllm":
            return self.setting(self.vllm_default(default), *names)
        return self.setting(self.unsaid_setting, *names)

    def loop_setting(self, name: str) -> Fact:
        """A setting of a decode loop: a name of its own function."""
        scope = self.block.scope
        if name in scope.parameters or name in scope.bindings:
            value = self.evaluator.named(
                name, self.evaluator.frame(scope), start_of(self.block.node)
            )
            return fact_of(value, self.unsaid_setting)
        return self.unsaid_setting

    def read_do_sample(self) -> Fact:
        block = self.block
        if block.library == "vllm":
            return self.sampled_by_temperature()
        if block.library == "loop":
            return self.sampled_by_loop()
        return self.sampling("", "do_sample")

    def sampled_by_temperature(self) -> Fact:
        if self.block.form == "beam_search":
            return literal(False)
        temperature = self.read_temperature()
        if temperature.is_literal and isinstance(temperature.value, (int, float)):
            return literal(temperature.value > 0, f"by temperature {temperature.value}")
        if temperature.is_said:
            return Fact(None, "computed", "by temperature")
        if temperature.source == "not said: vLLM (1.0)":
            return not_said("vLLM (samples: temperature 1.0)")
        return temperature

    def sampled_by_loop(self) -> Fact:
        text = function_text(self.block.scope)
        has_sample = re.search(r"multinomial|Categorical|\.sample\(|sample_token", text) is not None
        has_greedy = re.search(r"argmax|topk\([^)]*,\s*1|\.max\(", text) is not None
        if has_sample and has_greedy:
            return Fact(None, "computed", "argmax or multinomial")
        return (
            literal(has_sample)
            if has_sample or has_greedy
            else Fact(None, "computed", "a sampler of its own")
        )

    def read_temperature(self) -> Fact:
        return self.sampling("1.0", "temperature")

    def read_top_p(self) -> Fact:
        return self.sampling("1.0", "top_p")

    def read_top_k(self) -> Fact:
        return self.sampling("none", "top_k")

    def read_repetition_penalty(self) -> Fact:
        return self.sampling("1.0", "repetition_penalty")

    def read_max_new_tokens(self) -> Fact:
        block = self.block
        if block.library == "vllm":
            default = "16" if block.form != "beam_search" else "none"
            return self.setting(self.vllm_default(default), "max_tokens")
        if block.library == "loop":
            return self.loop_budget()
        fact = self.sampling("", "max_new_tokens", "max_new_token")
        if not fact.is_said and "max_length" in self.settings.entries:
            whole = fact_of(self.settings.entries["max_length"], fact)
            if is_encoder_decoder(block):
                return whole  # its prompt is the encoder's
            if whole.is_said:
                return Fact(None, "computed", f"max_length {whole}, prompt included")
        return fact

    def loop_budget(self) -> Fact:
        """How often the loop runs: its range, else what is called a budget."""
        ranges = [self.range_of(node) for node in ast.walk(self.block.scope.node)]
        inner = [fact for fact in ranges if fact is not None]
        return inner[-1] if inner else self.named_budget()

    def range_of(self, node: ast.AST) -> Fact | None:
        """The length of the range that a loop around the block runs over."""
        at = start_of(self.block.node)
        if not isinstance(node, ast.For) or not start_of(node) <= at <= end_of(node):
            return None
        calls = [part for part in ast.walk(node.iter) if isinstance(part, ast.Call)]
        for call in calls:
            if called_name(call) not in ("range", "trange") or not call.args:
                continue
            frame = self.evaluator.frame(self.block.scope)
            first, *others = [self.evaluator.value(argument, frame) for argument in call.args]
            if not others:
                return fact_of(first, self.unsaid_setting)
            if is_literal(first, 0) and len(others) == 1:
                return fact_of(others[0], self.unsaid_setting)
            return Fact(None, "computed", source_text(call))
        return None

    def named_budget(self) -> Fact:
        for name in (
            "max_new_tokens",
            "max_tokens",
            "max_steps",
            "max_gen_len",
            "max_new_token",
            "max_length",
            "steps",
        ):
            fact = self.loop_setting(name)
            if fact.is_said:
                return fact
        return self.unsaid_setting

    def read_num_beams(self) -> Fact:
        if self.block.library == "vllm":
            return self.setting(not_said("vLLM, which has no beams here"), "beam_width")
        return self.sampling("", "num_beams")

    def read_n(self) -> Fact:
        default = REMOTE if self.block.is_remote else not_said("the library (1)")
        if self.block.library in ("score", "loop"):
            return NOTHING_GENERATED if self.block.library == "score" else default
        name = "n" if self.block.library == "vllm" else "num_return_sequences"
        return self.setting(default, name)

    def read_seed(self) -> Fact:
        unsaid = not_said("nobody: the global generator as it stands")
        if self.block.library == "vllm":
            if "seed" in self.settings.entries:
                return self.setting(not_said("vLLM"), "seed")
            engine = not_said("vLLM (0)")
            fact = unsaid = self.load_fact(lambda load: load.settings.entries.get("seed"), engine)
            if fact.is_said and fact.source != "computed":
                return fact
        if self.block.library == "loop" and (own := self.seed_of_generator()) is not None:
            return own
        scopes = [*self.around.near, *self.around.callers]
        cls = self.block.scope.self_class
        if cls is not None:
            scopes += list(cls.methods.values())
        scopes += [
            scope
            for scope in self.block.module.scopes
            if scope.name in ("", "main", "setup", "run", "__init__")
        ]
        for call, scope in self.around.calls(scopes, self.may_seed):
            seed = self.seed_of(call, self.evaluator.frame(scope), 0)
            if seed is not None:
                return fact_of(seed, unsaid)
        return unsaid

    def seed_of_generator(self) -> Fact | None:
        """The seed of the torch.Generator that a loop samples with; None where it is given none."""
        for scope in self.around.near:
            frame = self.evaluator.frame(scope)
            for call in scope.calls:
                value = self.evaluator.keywords(call, frame).entries.get("generator")
                if value is None or not CHOOSES.search(called_name(call)):
                    continue
                facts = [self.seed_in(one) for one in self.generators(value, 0)]
                if facts and all(fact == facts[0] for fact in facts):
                    return facts[0]
                if facts:
                    return Fact(None, "computed", " or ".join(dict.fromkeys(map(str, facts))))
        return None

    def generators(self, value: Value, depth: int) -> Iterator[Value]:
        """What a generator may be: of a parameter, what the callers give it; without None."""
        for option in options_of(value):
            inner = plain(option)
            if not isinstance(inner, Argument) or depth > 3:
                yield from () if is_literal(inner, None) else (option,)
                continue
            given = self.kinds.given(inner.scope, inner.name)
            for one in given:
                yield from self.generators(one, depth + 1)
            if not given and not is_literal(inner.default, None):
                yield option

    def seed_in(self, generator: Value) -> Fact:
        """The seed that `generator.manual_seed(...)` gave."""
        effects = generator.effects if isinstance(generator, Changed) else ()
        seeds = [(e.node, e.frame) for e in effects if e.method == "manual_seed"]
        inner = plain(generator)
        if isinstance(inner, Call) and isinstance(inner.callee, Member):
            seeds[:0] = [(inner.node, inner.frame)] if inner.callee.name == "manual_seed" else []
        unsaid = Fact(None, "computed", "a generator of its own")
        if not seeds or not seeds[-1][0].args:
            return unsaid if not isinstance(inner, Argument) else fact_of(inner, unsaid)
        node, frame = seeds[-1]
        return fact_of(self.evaluator.value(node.args[0], frame), unsaid)

    def may_seed(self, call: ast.Call) -> bool:
        is_known = SEEDS.search(dotted_name(call.func)) is not None
        return is_known or called_name(call) in self.evaluator.repository.seeding_functions

    def seed_of(self, call: ast.Call, frame: Frame, depth: int) -> Value | None:
        """What a call seeds torch's generator with, itself or in a function of the repository."""
        for option in options_of(self.evaluator.value(call.func, frame)):
            if isinstance(option, Function) and depth < 3:
                values = self.evaluator.bind_arguments(option.scope, call, frame, option.bound)
                inside = Frame(option.scope, values, depth + 1)
                seeds = [
                    self.seed_of(c, inside, depth + 1)
                    for c in option.scope.calls
                    if self.may_seed(c)
                ]
                return next((seed for seed in seeds if seed is not None), None)
        if not SEEDS.search(dotted_name(call.func)) or not (call.args or call.keywords):
            return None
        return self.evaluator.value(call.args[0] if call.args else call.keywords[0].value, frame)

    def read_logprobs(self) -> Fact:
        """vLLM: of how many tokens; transformers: "output_scores" or "output_logits"."""
        block = self.block
        if block.library == "vllm":
            return self.setting(not_said("vLLM (none)"), "logprobs")
        if block.library in ("score", "loop"):
            return not_said("nothing, the code reads the logits itself")
        unsaid = REMOTE if block.is_remote else not_said("the library (none)")
        for name in ("output_scores", "output_logits"):
            fact = fact_of(self.settings.entries.get(name), unsaid)
            if fact.is_said and not (fact.is_literal and not fact.value):
                return literal(name) if fact.is_literal else fact
        return self.rest_fact() or unsaid

    def read_prompt_logprobs(self) -> Fact:
        if self.block.library != "vllm":
            return not_said("nothing, only vLLM has them")
        return self.setting(not_said("vLLM (none)"), "prompt_logprobs")

    def read_stop(self) -> Fact:
        block = self.block
        if block.library == "score":
            return NOTHING_GENERATED
        if block.library == "vllm":
            unsaid = not_said("the checkpoint's EOS")
            texts = self.setting(unsaid, "stop")
            return texts if texts.is_said else self.setting(unsaid, "stop_token_ids")
        if block.library == "loop":
            return self.loop_stop()
        for name in (
            "stop_strings",
            "stopping_criteria",
            "stop_sequence",
            "eos_token_id",
            "forced_eos_token_id",
        ):
            if name in self.settings.entries:
                fact = self.setting(self.unsaid_setting, name)
                if fact.is_said:
                    return Fact(fact.value, fact.source, f"{name}: {fact}")
        return self.rest_fact() or self.unsaid_setting

    def loop_stop(self) -> Fact:
        text = function_text(self.block.scope)
        if re.search(r"eos_token|stop|<eos>|eos_id", text):
            return Fact(None, "computed", "checked in the loop")
        return not_said("nobody: the loop ends with its budget")
