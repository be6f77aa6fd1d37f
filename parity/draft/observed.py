"""What the goldens of a site, and the files of their checkpoints, say of the old code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gen_engine

from parity.goldens.store import Case, Store
from parity.record.taps.models import tensors_on_disk, weights_on_disk

CHECKPOINT = "the checkpoint's generation_config.json"
# What transformers' generate takes where neither the caller nor the checkpoint says anything.
LIBRARY = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50, "max_new_tokens": 20}
SAMPLED = ("temperature", "top_p", "top_k", "min_p")  # nothing is seen of them in greedy rows
NEUTRAL = {
    "top_p": (1.0, None),
    "top_k": (0, None),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0, None),
    "no_repeat_ngram_size": (0, None),
    "min_new_tokens": (0, None),
}


CONFIG = "GenerationConfig"
LOOPED = (
    "a loop that chooses each token is generate_text_batch with its max_new_tokens, temperature and"
    ' top_k, and "stop": {"token_ids": [...], "ignore_eos": True} for where it ends; nothing of'
    " generation_config.json reaches a loop"
)
SCORED = (
    "engine.score_batch([(prompt, answer)]) for the log-probability of given answers, "
    "companions/decisions.py for the probability of named ones"
)
PROBE = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


class DraftError(ValueError):
    """A site that cannot be drafted at all, and what to do."""


@dataclass(frozen=True)
class Inherited:
    """A setting that the old code took without saying so.   source: who decided."""

    value: Any
    source: str


@dataclass(frozen=True)
class Observed:
    """All goldens of a site together.

    arguments: parameter -> class name of what was an object.   texts: parameter -> "text" or
    "list", of plain arguments.   models: paths of checkpoints.   settings: what each checkpoint's
    generation_config.json holds, where all agree.
    """

    site: str
    cases: tuple[Case, ...]
    rows: tuple[Mapping[str, Any], ...]
    models: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Any = None
    problem: str = ""

    def beside(self, other: Observed) -> Observed:
        """These goldens with those of another site of the same file."""
        cases = (*self.cases, *other.cases)
        models = tuple(dict.fromkeys((*self.models, *other.models)))
        return replace(self, cases=cases, rows=(*self.rows, *other.rows), models=models)

    @property
    def functions(self) -> list[str]:
        return sorted({case.function for case in self.cases if case.function})

    def objects(self, function: str) -> dict[str, str]:
        """Arguments that were objects, and their classes."""
        found = {}
        for case in self.cases:
            if case.function != function:
                continue
            for name, value in case.arguments.items():
                if isinstance(value, Mapping) and "$object" in value:
                    found[name] = str(value["$object"])
        return found

    @property
    def settings_fields(self) -> set[str]:
        """Fields of the GenerationConfigs that were arguments."""
        found: set[str] = set()
        for case in self.cases:
            for value in case.arguments.values():
                if isinstance(value, Mapping) and str(value.get("$settings")).endswith(CONFIG):
                    found |= value["fields"].keys()
        return found

    @property
    def argument_words(self) -> set[str]:
        """Names of arguments, and keys of those that were mappings."""
        given = [case.arguments for case in self.cases]
        inner = [one for all_of in given for one in all_of.values() if isinstance(one, Mapping)]
        return {word for mapping in (*given, *inner) for word in mapping}

    @property
    def instead(self) -> str:
        """What stands in place of code that calls the model by itself, and not its generate."""
        if any(row.get("loop") for row in self.rows):
            return LOOPED
        return SCORED if any(row.get("scored") for row in self.rows) else ""

    def argument_kind(self, name: str) -> str:
        """ "text" or "list" where each recorded value of a parameter was one."""
        kinds = set()
        for case in self.cases:
            if name in case.arguments:
                kinds.add(kind_of(case.arguments[name]))
        return kinds.pop() if len(kinds) == 1 else ""

    # == Sampling ==

    def values(self, part: str, name: str) -> list[Any]:
        """The distinct observed values of a setting."""
        found: list[Any] = []
        for row in self.rows:
            entry = row.get(part, {}).get(name)
            if entry is not None and entry["value"] not in found:
                found.append(entry["value"])
        return found

    def inherited(self, name: str) -> Inherited | None:
        """What was taken for a setting that the code does not name; None: nothing.

        What the goldens show comes first; of what they do not reach, the checkpoint's file."""
        shown = self.shown(name)
        if shown is not None:
            return shown
        if name in self.settings:
            return Inherited(self.settings[name], CHECKPOINT)
        if name in LIBRARY:
            return Inherited(LIBRARY[name], "transformers' default")
        return None

    def shown(self, name: str) -> Inherited | None:
        """The one value that the goldens show where the caller did not give it."""
        found: list[tuple[Any, str]] = []
        for row in self.rows:
            sampling = row.get("sampling", {})
            is_greedy = not sampling.get("temperature", {}).get("value")
            entry = sampling.get(name) or row.get("stop", {}).get(name)
            if entry is None or entry["from"] == "caller" or (name in SAMPLED and is_greedy):
                continue
            found.append((entry["value"], entry["from"]))
        if not found or any(pair != found[0] for pair in found):
            return None
        value, who = found[0]
        return Inherited(value, CHECKPOINT if who == "checkpoint" else "transformers' default")

    @property
    def is_sampled(self) -> bool:
        return any(row.get("sampling", {}).get("temperature", {}).get("value") for row in self.rows)

    def has_two_cuts(self) -> bool:
        """Whether a sampled row was cut by top_p and by min_p."""
        return any(is_cut_twice(row.get("sampling", {})) for row in self.rows)

    # == Ends ==

    @property
    def eos_ids(self) -> set[int]:
        """Ids at which the engine ends a row by itself."""
        return set(self.checkpoint.eos_ids) if self.checkpoint else set()

    @property
    def end_ids(self) -> list[set[int]]:
        found: list[set[int]] = []
        for value in self.values("stop", "end_ids"):
            if set(value) not in found:
                found.append(set(value))
        return found

    def has_special_ends(self) -> bool:
        """Whether each end is a special token, which decoding leaves out."""
        if self.checkpoint is None:
            return True
        special = self.checkpoint.special_tokens.keys()
        return all(ids <= special for ids in self.end_ids) and self.eos_ids <= special

    # == Prompts ==

    def thinking(self) -> bool | None:
        """The switch that renders what a template renders where nobody says one; None where it
        reads none. Raises DraftError for one that renders a third thing."""
        if "enable_thinking" not in template_of(self.checkpoint):
            return None
        silent = self.rendered()
        for switch in (True, False):
            if self.rendered(enable_thinking=switch) == silent:
                return switch
        raise DraftError(
            f"{self.site}: the chat template renders another prompt where enable_thinking is not "
            "said than with True and with False. Say it in the old code, and record again"
        )

    def rendered(self, **said: bool) -> str:
        """A probe chat by the checkpoint's template."""
        owner = self.checkpoint.template_owner
        text = owner.apply_chat_template(PROBE, tokenize=False, add_generation_prompt=True, **said)
        return str(text)

    def has_several_prompts(self) -> bool:
        """Whether a recorded call of a function asked more than one."""
        first = [
            [row for row in case.rows if not row.get("request", {}).get("sample")]
            for case in self.cases
        ]
        return any(len(rows) > 1 for rows in first)

    def has_image_each(self) -> bool:
        return all(len(row.get("images", ())) == 1 for row in self.rows)

    def has_double_bos(self) -> bool:
        bos = getattr(getattr(self.checkpoint, "tokenizer", None), "bos_token_id", None)
        if bos is None:
            return False
        return any(list(row.get("prompt_ids", ())[:2]) == [bos, bos] for row in self.rows)

    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer puts a token before or behind a text by itself."""
        if self.checkpoint is None:
            return True
        tokenizer = self.checkpoint.tokenizer
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        return list(tokenizer("a")["input_ids"]) != list(bare)

    def is_padded_right(self) -> bool:
        batches = [row.get("batch", {}) for row in self.rows]
        return any(batch.get("side") == "right" and batch.get("pads") for batch in batches)

    def has_masked_bos(self) -> bool:
        """Whether a prompt that is alone in its batch has a token that counts as padding."""
        batches = [row.get("batch", {}) for row in self.rows]
        return any(batch.get("rows") == 1 and batch.get("pads") for batch in batches)

    def is_unmasked(self) -> bool:
        batches = [row.get("batch", {}) for row in self.rows]
        return any(batch.get("pads") and not batch.get("masked", True) for batch in batches)

    # == Model ==

    def dtype(self) -> str | None:
        found = {row["model"].get("dtype") for row in self.rows if row.get("model")}
        return str(found.pop()) if len(found) == 1 else None

    def has_full_buffers(self) -> bool:
        return all(row.get("model", {}).get("buffers", "float32") == "float32" for row in self.rows)

    def default_dtype(self) -> str | None:
        return self.checkpoint.dtype if self.checkpoint else None

    @property
    def classes(self) -> set[str]:
        return {str(row["model"].get("class", "")) for row in self.rows if row.get("model")}


def is_cut_twice(sampling: Mapping[str, Any]) -> bool:
    """Of what a row was sampled with."""
    values = {name: entry["value"] for name, entry in sampling.items()}
    top_p = values.get("top_p")
    is_cut = top_p is not None and top_p < 1 and bool(values.get("min_p"))
    return is_cut and bool(values.get("temperature"))


def kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "text" if "$lines" in value else ""
    return "list" if isinstance(value, list) else ""


def template_of(checkpoint: Any) -> str:
    if checkpoint is None:
        return ""
    return str(getattr(checkpoint.template_owner, "chat_template", None) or "")


def observe(store: Store, site: str) -> Observed:
    """What the goldens of a site hold. Raises DraftError where there are none."""
    names = store.names(site) if site in store.sites() else []
    if not names:
        problem = f"{site}: no goldens in {store.root}. Record the old code first"
        raise DraftError(f"{problem}: parity record --site {site}=MOD:FUNCTION -- python old.py")
    cases = tuple(store.read(site, name) for name in names)
    rows = tuple(row for case in cases for row in case.rows)
    return Observed(site, cases, rows, model_paths(rows))


def model_paths(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    paths = [str(row.get("model", {}).get("path") or "") for row in rows]
    return tuple(dict.fromkeys(path for path in paths if path))


def weights_of(rows: Iterable[Mapping[str, Any]], model: str) -> list[set[str]]:
    """Digests of the weight files, and of their tensors, of the checkpoints that goldens call by
    one path."""
    stages = [row.get("model", {}) for row in rows]
    of_path = [one for one in stages if one.get("path") == model]
    return [{one[field] for one in of_path if one.get(field)} for field in ("files", "tensors")]


@dataclass(frozen=True)
class Mention:
    """A text that may be the path of a checkpoint, and where it stands."""

    text: str
    place: str


def with_checkpoint(seen: Observed, mentions: Sequence[Mention]) -> Observed:
    """The same with what the files of the checkpoint say; `problem` says why they do not.

    mentions: texts of the source, the command line and the arguments. A golden has only the name of
    a folder outside the project; they have its path."""
    if not seen.models:
        return seen
    digests = {model: weights_of(seen.rows, model) for model in seen.models}
    for model, of_one_name in digests.items():
        count = max(map(len, of_one_name))
        if count > 1:
            said = f"the goldens were made with {count} checkpoints that are called {model}"
            return replace(seen, problem=said)
    found = [
        checkpoint_path(model, mentions, set().union(*digests[model])) for model in seen.models
    ]
    absent = [mention for mention in found if mention.place]
    models = tuple(dict.fromkeys(mention.text for mention in found))
    seen = replace(seen, models=models)
    if absent:
        return replace(seen, problem=absent_words(absent[0]))
    settings = [generation_settings(path) for path in models]
    if any(other != settings[0] for other in settings):
        said = f"the goldens' checkpoints ({', '.join(models)}) have different settings"
        return replace(seen, problem=said)
    try:
        checkpoint = gen_engine.read_checkpoint(gen_engine.ModelLoadConfig(models[0]))
    except gen_engine.GenEngineError as error:
        is_there = Path(models[0]).is_dir()
        return replace(seen, problem=str(error) if is_there else nowhere_words(models[0]))
    return replace(seen, settings=settings[0], checkpoint=checkpoint)


def checkpoint_path(model: str, mentions: Sequence[Mention], digests: Set[str]) -> Mention:
    """Where a golden's checkpoint is; with its place where it is mentioned and is not there.

    digests: of the weight files that the goldens were made with. A folder is no more than named
    alike where its own are others."""
    named = [one for one in mentions if is_path_of(one.text, model)]
    for one in (Mention(model, "the goldens"), *named):
        folder = Path(one.text).expanduser()
        if not folder.is_dir():
            continue
        own = {weights_on_disk(str(folder)), tensors_on_disk(str(folder))} - {None}
        if not own or digests <= own:
            return Mention(one.text, "")
    return next(iter(named), Mention(model, "the goldens" if Path(model).is_dir() else ""))


def is_path_of(text: str, model: str) -> bool:
    """Whether a text is the path of a folder that a golden calls so."""
    if not text.startswith(("/", "~")) or "\n" in text:
        return False
    return Path(text).name == Path(model).name


def absent_words(mention: Mention) -> str:
    return (
        f"the checkpoint {mention.text} ({mention.place}) is not there any more, or its weights are"
        " others: put it back, or make a link there to where it is now, and draft again"
    )


def nowhere_words(model: str) -> str:
    return (
        f"the checkpoint {model!r} is no folder here and not in the hub's cache: run draft where"
        " the old code was recorded, or put it there, and draft again"
    )


def generation_settings(model: str) -> dict[str, Any]:
    """What a checkpoint's generation_config.json sets, of a folder or of the hub's cache."""
    path = Path(model) / "generation_config.json"
    if not path.is_file():
        with contextlib.suppress(ImportError, ValueError):
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(model, "generation_config.json")
            path = Path(cached) if isinstance(cached, str) else path
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
