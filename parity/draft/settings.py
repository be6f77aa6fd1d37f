"""Keywords of `generate` and fields of SamplingParams as options of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import libcst as cst

from parity.draft.decisions import Decision, Decisions
from parity.draft.observed import CHECKPOINT, NEUTRAL, Observed
from parity.draft.roles import Unsure, code_of, constant, parse

# Keywords of generate that change nothing here: the engine pads, and returns what is asked of it.
WITHOUT_EFFECT = {
    "pad_token_id", "use_cache", "return_dict_in_generate", "tokenizer", "output_scores",
    "output_logits", "synced_gpus", "early_stopping", "length_penalty", "bos_token_id",
    "return_dict", "clean_up_tokenization_spaces", "use_tqdm", "batch_size",
    "decoder_start_token_id",
    "num_beam_groups", "truncation", "prompts", "remove_invalid_values",
}  # fmt: skip
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
SAME = ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens")
POSSIBLE = {
    "num_beams": "beam search is not written by itself; see parity/companions/README.md",
    "stopping_criteria": "write it as a Plugin with should_stop, or as stop strings or ids",
    "logits_processor": "write it as a Plugin with logits; load with logits_hooks=True on vLLM",
    "streamer": "companions/streaming.py: stream(engine, requests, options)",
    "assistant_model": 'companions/speculation.py: Speculation("draft_model", ...)',
    "prompt_lookup_num_tokens": 'companions/speculation.py: Speculation("ngram", ...)',
    "bad_words_ids": "companions/penalties.py",
    "suppress_tokens": "companions/penalties.py",
    "sequence_bias": "companions/penalties.py",
    "presence_penalty": "companions/penalties.py",
    "frequency_penalty": "companions/penalties.py",
    "logit_bias": "companions/penalties.py",
    "output_hidden_states": "hidden states have no option: with engine.bare() as model",
    "output_attentions": "attentions have no option: with engine.bare() as model",
    "guided_decoding": '"structured" of a request',
    "structured_outputs": '"structured" of a request',
    "prompt_logprobs": "score_batch",
}
NO_OPTION = "the engine has no option for it"
# What a keyword of a call says with None, whatever the checkpoint sets.
DOES_NOTHING: Mapping[str, object] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": None,
    "min_new_tokens": 0,
}
ZERO_IS_NONE = ("top_k", "min_p", "no_repeat_ngram_size", "min_new_tokens")
# What the draft's function `checkpoint_settings` gives.
READ = ("do_sample", "max_new_tokens", *SAME, "eos_token_id", *SAMPLING)
FALSY: tuple[object, ...] = (False, None, 0, [], ())


@dataclass
class Options:
    """The options of one call, in the order of writing.   comments: by name.   keeps_stop: the old
    text holds the stop strings.   samples: how many rows each request gives.
    whole: an expression that makes them at run time, in place of the fields."""

    fields: dict[str, cst.BaseExpression] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    stop: dict[str, cst.BaseExpression] = field(default_factory=dict)
    samples: cst.BaseExpression | None = None
    keeps_stop: bool = False
    whole: cst.BaseExpression | None = None

    def add(self, name: str, node: cst.BaseExpression, comment: str = "") -> None:
        self.fields[name] = node
        if comment:
            self.comments[name] = comment

    def add_beside(self, name: str, node: cst.BaseExpression, comment: str = "") -> None:
        """Add what no keyword of generate says, also to options that are made at run time."""
        self.add(name, node, comment)
        if self.whole is not None:
            self.whole = parse('{**{whole}, "' + name + '": {node}}', whole=self.whole, node=node)

    def as_dict(self) -> cst.BaseExpression:
        if self.whole is not None:
            return self.whole
        fields = dict(self.fields)
        if self.stop:
            fields["stop"] = mapping(self.stop)
        return mapping(fields, self.comments)


def mapping(
    fields: Mapping[str, cst.BaseExpression], comments: Mapping[str, str] | None = None
) -> cst.BaseExpression:
    """A dict display; one line a field where one has a comment."""
    comments = comments or {}
    parts = [f'"{name}": {code_of(node)}' for name, node in fields.items()]
    one_line = "{" + ", ".join(parts) + "}"
    if not comments and len(one_line) <= 72:
        return cst.parse_expression(one_line)
    lines = []
    parts = [part.replace("\n", "\n    ") for part in parts]
    for part, name in zip(parts, fields):
        comment = f"  # {comments[name]}" if name in comments else ""
        lines.append(f"    {part},{comment}")
    return cst.parse_expression("{\n" + "\n".join(lines) + "\n}")


def literal(value: object) -> cst.BaseExpression:
    return cst.parse_expression(repr(value))


def operand(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression as a part of a larger one: in parentheses where it has to be."""
    kinds = (cst.IfExp, cst.BooleanOperation, cst.Comparison, cst.Lambda)
    if not isinstance(node, kinds) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def refuse(name: str, node: cst.BaseExpression) -> None:
    why = NO_OPTION if name in POSSIBLE else "its meaning is not known here"
    text = code_of(node)
    raise Unsure(f"generate is told {name}={text}", why, POSSIBLE.get(name, ""))


class GenerateOptions:
    """Options of transformers' `generate`, with what the old code inherited.

    settings: an expression for what the call and the checkpoint say together, where run time
    decides which checkpoint it is; None where all loads are of the goldens' own.   optional: names
    that are None by default.   of_config: what a GenerationConfig says, in which None says
    nothing."""

    def __init__(
        self,
        said: dict[str, cst.BaseExpression],
        seen: Observed,
        ask: Decisions,
        settings: cst.BaseExpression | None = None,
        optional: Set[str] = frozenset(),
        of_config: Set[str] = frozenset(),
    ) -> None:
        self.said = said
        self.seen = seen
        self.ask = ask
        self.settings = settings
        self.optional = optional
        self.of_config = of_config
        self.options = Options()
        self.inherited: list[str] = []
        self.notes: list[str] = []

    def build(self, prompt_count: cst.BaseExpression | None) -> Options:
        """prompt_count: an expression for the number of the prompt's tokens.   Raises Unsure."""
        self.add_budget(prompt_count)
        self.add_sampling()
        self.add_same()
        self.add_ends()
        self.add_samples()
        for name, node in self.said.items():
            if name in WITHOUT_EFFECT or constant(node) in FALSY:
                continue
            refuse(name, node)
        self.ask_inherited()
        return self.options

    def take(self, name: str) -> cst.BaseExpression | None:
        node = self.said.pop(name, None)
        return None if node is None or constant(node) is None else node

    def read(self, name: str) -> cst.BaseExpression:
        """What holds at run time."""
        assert self.settings is not None
        return parse('{settings}["' + name + '"]', settings=self.settings)

    # == How long ==

    def add_budget(self, prompt_count: cst.BaseExpression | None) -> None:
        budget = self.take("max_new_tokens")
        longest = self.take("max_length")
        if self.settings is not None and (budget is not None or longest is None):
            self.options.add("max_new_tokens", self.read("max_new_tokens"))
        elif budget is not None:
            self.options.add("max_new_tokens", budget)
        elif longest is not None:
            self.add_longest(longest, prompt_count)
        else:
            inherited = self.seen.settings.get("max_new_tokens")
            source = CHECKPOINT
            if inherited is None and self.seen.settings.get("max_length"):
                what = "the budget is the checkpoint's max_length"
                raise Unsure(what, "it counts the prompt", "say max_new_tokens")
            if inherited is None:
                inherited = 20
                source = "transformers' default: nothing was said"
            self.add_inherited("max_new_tokens", literal(inherited), source)

    def add_longest(
        self, longest: cst.BaseExpression, prompt_count: cst.BaseExpression | None
    ) -> None:
        if prompt_count is None:
            what = f"max_length={code_of(longest)} counts the prompt"
            raise Unsure(what, "the prompt's tokens cannot be counted here", "say max_new_tokens")
        budgets = [str(value) for value in self.seen.values("stop", "max_new_tokens")]
        question = (
            f"max_length={code_of(longest)} counts the prompt; the goldens show room for "
            f"{', '.join(budgets[:4])} new tokens. Go on counting it, or allow that many new ones?"
        )
        answer = self.ask.choose(Decision("max_length", question, ("count", "new")))
        if answer == "new":
            self.options.add("max_new_tokens", longest)
            return
        node = parse("{longest} - {count}", longest=longest, count=prompt_count)
        self.options.add("max_new_tokens", node, "max_length counts the prompt")

    # == Sampling ==

    def add_sampling(self) -> None:
        switch = self.said.pop("do_sample", None)
        said = {name: self.said.pop(name) for name in SAMPLING if name in self.said}
        is_silent = switch is None or constant(switch) is None
        if self.settings is not None and not isinstance(constant(switch), bool):
            switch = self.read("do_sample")
        elif is_silent:
            inherited = self.seen.inherited("do_sample")
            is_sampled = bool(inherited and inherited.value)
            switch = literal(is_sampled)
            if is_sampled:
                self.inherited.append("do_sample=True")
        if constant(switch) is False:
            return  # temperature and the rest have no effect
        assert switch is not None
        for name in SAMPLING:
            self.add_sampling_field(name, said.get(name), switch)
        self.refuse_two_cuts(said)

    def add_sampling_field(
        self, name: str, node: cst.BaseExpression | None, switch: cst.BaseExpression
    ) -> None:
        comment = ""
        if self.settings is not None:
            node = self.read(name)
        elif node is not None:
            node = self.neutral_for_none(name, node, switch)
        else:
            inherited = self.seen.inherited(name)
            if inherited is None or inherited.value in NEUTRAL.get(name, ()):
                return
            node = literal(inherited.value)
            node = all_tokens_as_none(node) if name == "top_k" else node
            comment = inherited.source
        if name == "temperature" and constant(switch) is not True:
            node = parse("{node} if {switch} else 0.0", node=operand(node), switch=operand(switch))
        if comment:
            self.add_inherited(name, node, comment)
        else:
            self.options.add(name, node)

    def neutral_for_none(
        self, name: str, node: cst.BaseExpression, switch: cst.BaseExpression | None = None
    ) -> cst.BaseExpression:
        """A value that a call says. None says that nothing is to be done, whatever the checkpoint
        sets.   switch: whether anything is sampled; where it is not the value has no effect."""
        if isinstance(node, cst.IfExp) and switch and code_of(node.test) == code_of(switch):
            node = node.body
        said = constant(node)
        neutral = literal(DOES_NOTHING[name])
        if said is None or (name in ZERO_IS_NONE and said in (0, -1)):
            return neutral
        if said is not NotImplemented:
            return node
        inherited = self.seen.inherited(name) if name in self.of_config else None
        if inherited is not None and (name in ZERO_IS_NONE or self.may_be_none(node)):
            text = "{inherited} if {node} is None else {node}"
            text += " or None" if name == "top_k" else ""
            return parse(text, node=operand(node), inherited=literal(inherited.value or None))
        if name in ZERO_IS_NONE:
            return parse("{node} or {neutral}", node=operand(node), neutral=neutral)
        if not self.may_be_none(node):
            return node
        return parse("{neutral} if {node} is None else {node}", node=operand(node), neutral=neutral)

    def may_be_none(self, node: cst.BaseExpression) -> bool:
        """Whether the source says that an expression may be None."""
        if isinstance(node, cst.IfExp):
            return self.may_be_none(node.body) or self.may_be_none(node.orelse)
        return constant(node) is None or code_of(node) in self.optional

    def refuse_two_cuts(self, said: Mapping[str, cst.BaseExpression]) -> None:
        """Raise Unsure where top_p and min_p both cut: they leave other tokens in other order."""
        written = {**self.options.fields, **said}
        fields = [constant(written.get(name)) for name in ("min_p", "top_p")]
        least, most = (one if isinstance(one, (int, float)) else None for one in fields)
        is_written = bool(least) and most is not None and most < 1
        if is_written or self.seen.has_two_cuts():
            what = "top_p and min_p are both in effect"
            why = "generate cuts by min_p last, the engine first, which leaves other tokens"
            raise Unsure(what, why, "say one of them, and record again")

    def add_same(self) -> None:
        for name in SAME:
            if self.settings is not None:
                self.said.pop(name, None)
                self.options.add(name, self.read(name))
                continue
            if name in self.said:
                node = self.neutral_for_none(name, self.said.pop(name))
                if constant(node) != DOES_NOTHING[name]:
                    self.options.add(name, node)
                continue
            inherited = self.seen.inherited(name)
            if inherited is not None and inherited.value not in NEUTRAL[name]:
                self.add_inherited(name, literal(inherited.value), inherited.source)

    def add_samples(self) -> None:
        beams = self.take("num_beams")
        if beams is not None and constant(beams) != 1:
            self.add_beams(beams)
        samples = self.take("num_return_sequences")
        if samples is not None and constant(samples) != 1:
            self.options.add("n", samples)
            self.options.samples = samples

    def add_beams(self, beams: cst.BaseExpression) -> None:
        observed = self.seen.values("sampling", "num_beams")
        if isinstance(constant(beams), int) or observed != [1]:
            refuse("num_beams", beams)
        question = (
            f"num_beams={code_of(beams)} was 1 in all goldens, and beam search is not drafted. "
            "Drop it?"
        )
        if self.ask.choose(Decision("num_beams", question, ("drop", "todo"))) == "todo":
            refuse("num_beams", beams)
        self.notes.append(
            f"num_beams={code_of(beams)} was 1 in all goldens; the draft ignores another number"
        )

    # == Ends ==

    def add_ends(self) -> None:
        strings = self.take("stop_strings")
        if strings is not None:
            text = code_of(strings).removesuffix(" or None")
            self.options.stop["strings"] = cst.parse_expression(f"{text} or []")
            if isinstance(strings, (cst.List, cst.SimpleString)):
                self.options.stop["strings"] = strings
            self.options.stop["include_stop"] = literal(True)
            self.options.keeps_stop = True
        ends = self.take("eos_token_id")
        if self.settings is not None:
            self.set_ends(self.read("eos_token_id"))
            return
        observed = self.seen.end_ids
        if ends is None:
            if any(ids != self.seen.eos_ids for ids in observed) and self.seen.checkpoint:
                self.set_ends(literal(sorted(observed[0])))
                self.options.comments["stop"] = "the ids that ended the old code's rows"
            return
        if self.seen.checkpoint and observed == [self.seen.eos_ids]:
            return  # the ids at which the engine ends by itself
        is_list = isinstance(ends, (cst.List, cst.ListComp))
        if is_list or isinstance(constant(ends), int) or code_of(ends).endswith(".eos_token_id"):
            self.set_ends(ends if is_list else parse("[{ends}]", ends=ends))
        else:
            self.set_ends(parse("{ends} if isinstance({ends}, list) else [{ends}]", ends=ends))

    def set_ends(self, ids: cst.BaseExpression) -> None:
        self.options.stop["token_ids"] = ids
        self.options.stop["ignore_eos"] = literal(True)

    # == What nobody said ==

    def add_inherited(self, name: str, node: cst.BaseExpression, source: str) -> None:
        self.options.add(name, node, source)
        self.inherited.append(f"{name}={code_of(node)}")

    def ask_inherited(self) -> None:
        if not self.inherited:
            return
        settings = ", ".join(self.inherited)
        question = (
            f"The old code takes {settings} without saying so, and the goldens were made with it. "
            "Keep it?"
        )
        if self.ask.choose(Decision("inherited", question, ("keep", "drop"))) == "drop":
            for name in list(self.options.comments):
                if name != "stop" and not name.startswith("max_"):
                    self.options.fields.pop(name, None)
                    self.options.comments.pop(name)


def all_tokens_as_none(top_k: cst.BaseExpression) -> cst.BaseExpression:
    """transformers' 0 and vLLM's -1 mean all tokens; the engine's word is None."""
    said = constant(top_k)
    if said in (0, -1):
        return literal(None)
    if isinstance(said, int):
        return top_k
    return parse("{top_k} if {top_k} > 0 else None", top_k=operand(top_k))


# == vLLM ==

VLLM_SAME = {
    "max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "temperature": "temperature",
    "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed", "n": "n",
    "repetition_penalty": "repetition_penalty", "logprobs": "logprobs",
}  # fmt: skip
VLLM_DEFAULTS = {"max_tokens": 16, "temperature": 1.0}


def sampling_params(said: dict[str, cst.BaseExpression]) -> Options:
    """Options of `SamplingParams(...)`; vLLM takes nothing else beside them. Raises Unsure."""
    options = Options()
    for name, new in VLLM_SAME.items():
        node = said.pop(name, None)
        if name == "max_tokens" and constant(node) is None:
            what = "SamplingParams is told max_tokens=None"
            raise Unsure(what, "each row then goes on to the end of the window", "say a number")
        if node is None or constant(node) is None:
            if name in VLLM_DEFAULTS:
                options.add(new, literal(VLLM_DEFAULTS[name]), "the default of SamplingParams")
            continue
        options.add(new, all_tokens_as_none(node) if name == "top_k" else node)
    if "n" in options.fields:
        options.samples = options.fields["n"]
    add_vllm_stops(said, options)
    skip = said.pop("skip_special_tokens", None)
    if skip is not None and constant(skip) is not True:
        options.add("decode", parse('{"skip_special_tokens": {skip}}', skip=skip))
    for name, node in said.items():
        if constant(node) not in FALSY and name not in ("detokenize", "output_kind"):
            refuse(name, node)
    return options


def add_vllm_stops(said: dict[str, cst.BaseExpression], options: Options) -> None:
    names = {
        "stop": "strings",
        "stop_token_ids": "token_ids",
        "include_stop_str_in_output": "include_stop",
        "ignore_eos": "ignore_eos",
    }
    for name, new in names.items():
        node = said.pop(name, None)
        if node is None or constant(node) in FALSY:
            continue
        is_sure = isinstance(node, (cst.List, cst.SimpleString)) or new not in (
            "strings",
            "token_ids",
        )
        options.stop[new] = node if is_sure else parse("{node} or []", node=node)
