"""Keywords of generate that are known at run time only: the function that makes options of them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Set

import libcst as cst

from parity.draft.observed import NEUTRAL, Observed
from parity.draft.roles import Unsure, code_of
from parity.draft.settings import NO_OPTION, POSSIBLE, READ, WITHOUT_EFFECT

# Keyword of generate -> what it is where nobody decides.
FIELDS: Mapping[str, object] = {
    "max_new_tokens": 20,
    "do_sample": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "repetition_penalty": 1.0,
}
# The same of keywords that a draft has where the source or a golden names them.
MORE: Mapping[str, object] = {
    "min_p": 0.0,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "num_return_sequences": 1,
    "eos_token_id": None,
    "stop_strings": None,
}
OPTIONS = {
    "max_new_tokens": "max_new_tokens",
    "repetition_penalty": "1.0 if repetition_penalty is None else repetition_penalty",
    "num_return_sequences": "num_return_sequences",
}
SAMPLED_OPTIONS = {
    "temperature": "1.0 if temperature is None else temperature",
    "top_p": "1.0 if top_p is None else top_p",
    "top_k": "top_k or None",
    "min_p": "min_p or 0.0",
}
IF_SET = ("no_repeat_ngram_size", "min_new_tokens")  # None and 0 mean nothing
STOPS = {
    "stop_strings": """
    if stop_strings:
        stop |= {"strings": stop_strings, "include_stop": True}""",
    "eos_token_id": """
    if eos_token_id is not None:
        ids = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
        stop |= {"token_ids": ids, "ignore_eos": True}""",
}
NO_BUDGET_OF_FREE = """    if max_new_tokens is None:
        raise ValueError("max_length counts the prompt, too: say max_new_tokens")
"""
NO_BUDGET = """    if max_new_tokens is None:
        max_new_tokens = 20
"""
CHECKPOINT_SETTINGS = '''
def checkpoint_settings(engine, config=None, **said):
    """What generate takes: of its call, and else of the checkpoint. Refuses the rest."""
    from transformers import GenerationConfig

    # None of a GenerationConfig's field says nothing; None of a keyword switches it off.
    given = {name: value for name, value in (config or {}).items() if value is not None}
    said = {**given, **said}
    model, revision = engine.config.model, engine.config.revision
    try:
        config = GenerationConfig.from_pretrained(model, revision=revision)
    except OSError:  # the checkpoint has none
        config = GenerationConfig.from_model_config(engine.checkpoint.config)
    found = config.to_diff_dict()
    off = {
        "do_sample": False,
        "max_new_tokens": 20,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": None,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": None,
        "min_new_tokens": 0,
    }
    settings = {**off, "top_k": 50}
    settings |= {name: found[name] for name in off if found.get(name) is not None}
    settings |= said
    settings |= {name: off[name] for name in off if settings[name] is None}
    settings |= {name: settings[name] or None for name in ("top_k", "no_repeat_ngram_size")}
    passed = {
        *settings,
IDLE
    }
NEUTRAL
    left = [
        name
        for name in vars(GenerationConfig()).keys() & found.keys() - passed
        if found[name] not in (None, False, 0, [], {}, neutral.get(name))
    ]
    budget = said.get("max_new_tokens", found.get("max_new_tokens"))
    if said.get("max_new_tokens") is None and said.get("max_length") is not None:
        settings["max_new_tokens"] = None  # it is what max_length leaves
        if budget is not None:
            left.append("max_new_tokens, which wins over max_length")
    elif budget is None and found.get("max_length"):
        left.append("max_length")  # it would count the prompt
    if left:
        what = f"generation_config.json sets {', '.join(sorted(left))}"
        raise ValueError(f"{model}: {what}: say it in the options, and to checkpoint_settings")
    top_p, min_p = settings["top_p"], settings["min_p"]
    if settings["do_sample"] and min_p and top_p is not None and top_p < 1:
        what = f"top_p={top_p} and min_p={min_p}: generate cuts by min_p last, the engine first"
        raise ValueError(f"{model}: {what}, which leaves other tokens: say min_p=0.0 or top_p=1.0")
    ends = said["eos_token_id"] if "eos_token_id" in said else found.get("eos_token_id")
    ends = [one for one in (ends if isinstance(ends, list) else [ends]) if one is not None]
    settings["eos_token_id"] = ends
    pad = said["pad_token_id"] if "pad_token_id" in said else found.get("pad_token_id")
    # A call without a mask says attention_mask=None.
    is_unmasked = said.get("attention_mask", ()) is None and pad is not None
    if is_unmasked and pad == engine.tokenizer.bos_token_id and pad not in ends:
        what = f"generate has no mask, and hides the pad id {pad} in its prompt, which is the BOS"
        raise ValueError(f"{model}: {what}: give prompt_token_ids without it")
    return settings
'''
THINKS_UNASKED = '''
def thinks_unasked(owner):
    """Whether a chat template thinks where nobody says if it is to.   owner: of the template."""

    def text(**said):
        chat = [{"role": "user", "content": "?"}]
        return owner.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **said)

    if text() == text(enable_thinking=False):
        return False
    if text() == text(enable_thinking=True):
        return True
    raise ValueError("the chat template makes a third prompt unless enable_thinking is said")
'''
# Of a call of generate or a GenerationConfig: what changes no answer of a causal model here.
IDLE = (
    *sorted(WITHOUT_EFFECT),
    "attention_mask",
    "max_length",
    "cache_implementation",
    "transformers_version",
    "_from_model_config",
)
NEUTRAL_WORDS = """    neutral = dict.fromkeys(["num_beams", "num_return_sequences"], 1)
    neutral |= {"typical_p": 1, "encoder_repetition_penalty": 1, "guidance_scale": 1}"""


def idle_lines(names: Iterable[str]) -> str:
    """Names as elements of a set, eight columns in."""
    text = ", ".join(f'"{name}"' for name in names) + ","
    return textwrap.fill(text, 88, initial_indent=" " * 8, subsequent_indent=" " * 8)


def checkpoint_settings() -> str:
    """The function of a draft that reads what a checkpoint says when it runs."""
    text = CHECKPOINT_SETTINGS.replace("IDLE", idle_lines((*IDLE, "eos_token_id")))
    return text.replace("NEUTRAL", NEUTRAL_WORDS)


def said_words(said: Mapping[str, cst.BaseExpression], of_config: Set[str]) -> str:
    """What a call of generate says, as arguments of `checkpoint_settings`, which come behind the
    engine.   of_config: what of it is in a GenerationConfig."""
    idle = set(WITHOUT_EFFECT) - ({"pad_token_id"} if "attention_mask" in said else set())
    kept = {name: node for name, node in said.items() if name not in idle}
    config = {name: kept.pop(name) for name in list(kept) if name in of_config}
    first = f", {display_text(config)}" if config else ""
    if any(name.startswith("**") for name in kept):
        [star, *further] = kept.values()
        return f"{first}, **{display_text(kept) if further else code_of(star)}"
    return first + "".join(f", {name}={code_of(node)}" for name, node in kept.items())


def display_text(said: Mapping[str, cst.BaseExpression]) -> str:
    """A dict display of keywords and of mappings, whose names begin with `**`."""
    words = [
        f"**{code_of(node)}" if name.startswith("**") else f'"{name}": {code_of(node)}'
        for name, node in said.items()
    ]
    return f"{{{', '.join(words)}}}"


VERSION = {"transformers_version"}
ENDS = "the ids that ended the old code's rows"


def keywords(seen: Observed, source: str, is_free: bool = False) -> list[str]:
    """Keywords that the function of a draft takes by name.   is_free: where it is given what the
    checkpoint says, for run time decides which one it is."""
    named = {*re.findall(r"\w+", source), *config_fields(seen, source), *seen.argument_words}
    named |= {*READ} if is_free else set()
    more = [name for name in MORE if name in named or is_inherited(name, seen)]
    return [*FIELDS, *more]


def said_keys(source: str) -> dict[str, list[ast.expr]]:
    """What the source writes as a key, a keyword or a field: its values."""
    pairs: list[tuple[object, ast.expr]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword):
            pairs.append((node.arg, node.value))
        elif isinstance(node, ast.Dict):
            pairs += [(getattr(key, "value", None), v) for key, v in zip(node.keys, node.values)]
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            key = getattr(getattr(target, "slice", None), "value", None)
            pairs.append((getattr(target, "attr", key), node.value))
    found: dict[str, list[ast.expr]] = {}
    for name, value in pairs:
        if isinstance(name, str):
            found.setdefault(name, []).append(value)
    return found


def is_key(name: str, source: str) -> bool:
    """Whether the source puts something into a mapping under a name."""
    for node in ast.walk(ast.parse(source)):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = node.keys
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
            keys = [ast.Constant(word.arg) for word in node.keywords]
        if any(isinstance(key, ast.Constant) and key.value == name for key in keys):
            return True
    return False


def without_option(source: str) -> list[str]:
    """Keywords that the source writes, and the engine has nothing for; not what says nothing, as
    `num_beams=1`."""
    said = said_keys(source)
    idle = ("1", "None", "False")
    return [
        name
        for name in POSSIBLE
        if any(ast.unparse(value) not in idle for value in said.get(name, ()))
    ]


def config_fields(seen: Observed, source: str) -> set[str]:
    """Fields of the GenerationConfigs that reach generate, as far as they are seen."""
    is_read = "GenerationConfig.from_pretrained" in source
    own = seen.settings.keys() if is_read else ()
    return {*seen.settings_fields, *(name for name in own if not name.startswith("_"))} - VERSION


def is_inherited(name: str, seen: Observed) -> bool:
    """Whether the old code took a keyword, and it does something."""
    if name == "eos_token_id":
        return bool(other_ends(seen))
    inherited = seen.inherited(name)
    return name in NEUTRAL and inherited is not None and inherited.value not in NEUTRAL[name]


def ends_seen(seen: Observed) -> list[set[int]]:
    """The distinct sets of ids that ended rows where the caller did not say them."""
    entries = [row.get("stop", {}).get("end_ids") for row in seen.rows]
    found: list[set[int]] = []
    for one in entries:
        if one is not None and one["from"] != "caller" and set(one["value"]) not in found:
            found.append(set(one["value"]))
    return found


def other_ends(seen: Observed) -> list[int]:
    """The ids that ended rows where nobody said them and the engine would not end."""
    found = ends_seen(seen)
    is_other = bool(found) and found[0] != seen.eos_ids and seen.checkpoint is not None
    return sorted(found[0]) if is_other else []


def refuse_unlisted(seen: Observed, source: str, stars: str, is_free: bool = False) -> None:
    """Raise Unsure where the keywords would need more than the function of a draft has."""
    known = {*keywords(seen, source), *IDLE} - {"max_length"}
    for name in sorted(config_fields(seen, source) - known):
        raise Unsure(f"a GenerationConfig sets {name}", NO_OPTION, POSSIBLE.get(name, ""))
    what = f"`{stars}` holds keywords that are known at run time only"
    for beams in seen.values("sampling", "num_beams"):
        if beams != 1:
            raise Unsure(f"{what}; num_beams was {beams}", NO_OPTION, POSSIBLE["num_beams"])
    if is_free:
        return  # the rest is read at run time
    if len(ends_seen(seen)) > 1:
        raise Unsure(what, "the goldens' rows end at different ids", "write them out")
    if seen.settings.get("max_length"):
        raise Unsure(what, "the checkpoint sets max_length, too", "write them out")


def default_of(name: str, seen: Observed) -> tuple[object, str]:
    """(value, source) of a keyword that a call does not say."""
    if name == "eos_token_id":
        ends = other_ends(seen)
        return (ends, ENDS) if ends else (None, "")
    neutral = {**FIELDS, **MORE}[name]
    inherited = seen.inherited(name)
    if inherited is None:
        return neutral, ""
    is_told = inherited.value not in (1.0, False) or inherited.value is True
    return inherited.value, inherited.source if is_told else ""


def generation_options(seen: Observed, source: str, name: str, is_free: bool = False) -> str:
    """The function of a draft, called `name`."""
    known = keywords(seen, source, is_free)
    lines = []
    for keyword in known:
        if is_free and keyword in READ:
            lines.append(f"    {keyword},")
            continue
        value, origin = default_of(keyword, seen)
        lines.append(f"    {keyword}={value!r},{f'  # {origin}' if origin else ''}")
    fields = option_lines(OPTIONS, known, 8)
    sampled = option_lines(SAMPLED_OPTIONS, known, 12)
    if_set = "".join(
        f'    if {word}:\n        options["{word}"] = {word}\n' for word in IF_SET if word in known
    )
    stops = "".join(text for word, text in STOPS.items() if word in known)
    if stops:
        stops = f'    stop = {{}}{stops}\n    if stop:\n        options["stop"] = stop\n'
    body = "\n".join(lines)
    idle = [word for word in IDLE if is_free or word != "max_length"]
    return f'''
def {name}(
    *,
{body}
    **others,
):
    """Options of the engine for keywords of generate, by default those that the old code took."""
    idle = {{
{idle_lines(idle)}
    }}
{NEUTRAL_WORDS}
    for name in others.keys() - idle:
        if others[name] not in (None, False, 0, [], {{}}, neutral.get(name)):
            what = f"the engine has no option {{name}}, which is {{others[name]!r}}"
            raise ValueError(f"{{what}}, by the call or the checkpoint's generation_config.json")
{NO_BUDGET_OF_FREE if is_free else NO_BUDGET}    options = {{
{fields}    }}
    if do_sample:
        options |= {{
{sampled}        }}
{if_set}{stops}    return options
'''


def option_lines(texts: Mapping[str, str], known: Iterable[str], indent: int) -> str:
    """Entries of a mapping: the options of those keywords that are known."""
    names = {"num_return_sequences": "n"}
    return "".join(
        f'{" " * indent}"{names.get(word, word)}": {text},\n'
        for word, text in texts.items()
        if word in known
    )
