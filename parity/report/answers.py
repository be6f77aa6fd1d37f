"""`python -m parity compare OLD NEW`: two files of answers, line by line, and what differs in
groups.

    python -m parity compare before.jsonl after.jsonl                          what differs, and by
                                                                               how much
    python -m parity compare before.jsonl after.jsonl --model Qwen/Qwen3-8B    whether rounding
                                                                               explains it, too

The files are what `parity batch` wrote, or OpenAI batch results. Lines are paired by their ids, in
any order. With a model, the greedy tokens of OLD are read again by plain transformers, in float32
and in the dtype of the run; for that, write the files with `parity batch --ids`.

Exit codes: 0 the same, or explained by rounding; 1 lines differ and rounding does not explain it; 2
usage; 3 cannot tell whether it does; 5 nothing was compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from parity.diff import choices
from parity.diff.partings import Pair, PairResult, PairsOutcome
from parity.goldens.safe_text import say
from parity.judge.numerics import reading, referee
from parity.judge.numerics.noise import Noise
from parity.record.events import Ids

SHOWN = 3  # examples of a group
WIDTH = 40  # characters of a text, from where it differs
LOGPROB = 1e-3  # nats: what batches of other sizes make of the same logits stays well below
# lines that a model reads again: a minute on one CPU thread for 40 lines of a model of 135 M
# weights
MOST_READ = 200
GIVE = "give what `parity batch` wrote"
SAME_CODE, FAULT_CODE, UNKNOWN_CODE, NOTHING_CODE = 0, 1, 3, 5

# Whether rounding can be why a line differs: never; if the tokens that part, or the
# log-probabilities of equal tokens, lie close enough; not to be told, for the line has no token
# ids.
Kind = Literal["never", "tokens", "numbers", "unknown"]


class Answer(NamedTuple):
    """What is compared of a line: all samples, or the error."""

    texts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    ids: tuple[Any, ...] = ()
    logprobs: tuple[float, ...] = ()
    error: str | None = None
    prompt: Ids = ()


def answer_of(line: Mapping[str, Any]) -> Answer:
    """Of a line of our own, or an OpenAI result. Raises KeyError or TypeError for one that is
    neither."""
    if line.get("error"):
        return Answer(error=line["error"]["message"])
    return openai_answer(line["response"]["body"]) if "response" in line else own_answer(line)


def openai_answer(body: Mapping[str, Any]) -> Answer:
    choices = body["choices"]
    tokens = [token for choice in choices for token in tokens_of(choice)]
    return Answer(
        texts=tuple(choice["message"]["content"] for choice in choices),
        reasons=tuple(choice["finish_reason"] for choice in choices),
        ids=tuple(token["token"] for token in tokens),
        logprobs=tuple(token["logprob"] for token in tokens),
    )


def tokens_of(choice: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """An OpenAI choice's tokens with their log-probabilities, where they were asked for."""
    told = choice.get("logprobs") or {}
    return told.get("content") or ()


def own_answer(line: Mapping[str, Any]) -> Answer:
    samples = line.get("samples") or [line]
    return Answer(
        texts=tuple(sample["text"] for sample in samples),
        reasons=tuple(sample["finish_reason"] for sample in samples),
        ids=tuple(token for sample in samples for token in sample.get("token_ids") or ()),
        logprobs=tuple(value for sample in samples for value in sample.get("logprobs") or ()),
        prompt=tuple(samples[0].get("prompt_token_ids") or ()),
    )


class Place(NamedTuple):
    """Where a line stands: in memory are places only, so that files may be of any length."""

    start: int
    length: int


def places_of(path: Path) -> dict[str, Place]:
    """id -> its line. Raises ValueError for a file that holds no answers, or an id twice."""
    found: dict[str, Place] = {}
    start = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = json.loads(raw)
                name = json.dumps(line.get("custom_id", line["id"]))
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is no answer: {error!r}; {GIVE}") from None
            if name in found:
                raise ValueError(
                    f"{path}, line {number}: the id {name} stands there twice; nothing can be"
                    " paired"
                )
            found[name] = Place(start, len(raw))
            start += len(raw)
    return found


def read(file: Any, path: Path, place: Place) -> Answer:
    file.seek(place.start)
    try:
        return answer_of(json.loads(file.read(place.length)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}, at byte {place.start}: no answer: {error!r}; {GIVE}") from None


@dataclass
class Group:
    """Lines that differ in one way. sizes: by how much, in `unit`.   examples: (id, what there is
    to see). kinds: whether rounding can be why, and of how many lines."""

    unit: str
    sizes: list[float] = field(default_factory=list)
    examples: list[tuple[str, str]] = field(default_factory=list)
    kinds: Counter[Kind] = field(default_factory=Counter)

    def add(self, name: str, found: Found, kind: Kind) -> None:
        self.sizes.append(found.size)
        self.kinds[kind] += 1
        if len(self.examples) < SHOWN:
            self.examples.append((name, found.seen))


class Found(NamedTuple):
    """One difference: the group, by how much, in what unit, and what there is to see."""

    group: str
    size: float
    unit: str
    seen: str


def parting(old: Sequence[Any], new: Sequence[Any]) -> int:
    """The first character or token that differs."""
    return next((k for k, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))


def texts_part(old: Answer, new: Answer) -> Found:
    before, after = next(pair for pair in zip(old.texts, new.texts) if pair[0] != pair[1])
    place = parting(before, after)
    seen = (
        f"at character {place}: was {before[place : place + WIDTH]!r}, is"
        f" {after[place : place + WIDTH]!r}"
    )
    if before.strip() == after.strip():
        return Found(
            "only white space at the ends differs",
            abs(len(before) - len(after)),
            "characters",
            seen,
        )
    if place in (len(before), len(after)):
        kind = "longer" if place == len(before) else "shorter"
        return Found(
            f"the same beginning, {kind} now", abs(len(before) - len(after)), "characters", seen
        )
    return Found("another text", place, "characters that are the same before", seen)


def difference(old: Answer, new: Answer) -> Found | None:
    """The first thing that differs, the weightiest first."""
    if old.error is not None or new.error is not None:
        return errors_differ(old.error, new.error)
    if len(old.texts) != len(new.texts):
        return Found(
            "another number of samples", abs(len(old.texts) - len(new.texts)), "samples", ""
        )
    if old.prompt and new.prompt and old.prompt != new.prompt:
        return Found(
            "another prompt", parting(old.prompt, new.prompt), "tokens that are the same before", ""
        )
    if old.texts != new.texts:
        return texts_part(old, new)
    return values_differ(old, new)


def errors_differ(old: str | None, new: str | None) -> Found | None:
    if old == new:
        return None
    if old is None:
        return Found("an error now", 1, "line", str(new))
    if new is None:
        return Found("an error before, an answer now", 1, "line", old)
    return Found("another error", 1, "line", f"was {old!r}, is {new!r}")


def values_differ(old: Answer, new: Answer) -> Found | None:
    """Of equal texts."""
    if old.reasons != new.reasons:
        return Found(
            "the same text, another end", 1, "line", f"was {old.reasons[0]}, is {new.reasons[0]}"
        )
    if old.ids and new.ids and old.ids != new.ids:
        size = parting(old.ids, new.ids)
        return Found("the same text from other tokens", size, "tokens that are the same before", "")
    gap = max((abs(a - b) for a, b in zip(old.logprobs, new.logprobs)), default=0.0)
    return (
        Found("the same tokens, other logprobs", gap, "nats at most", "") if gap > LOGPROB else None
    )


def pair_of(old: Answer, new: Answer) -> Pair | None:
    """What a model can read again: one answer each, with its token ids, to the same prompt."""
    is_single = len(old.texts) == len(new.texts) == 1
    if not is_single or not old.prompt or old.prompt != new.prompt or not old.ids or not new.ids:
        return None
    return Pair(old.prompt, old.ids, new.ids)


def kind_of(old: Answer, new: Answer) -> Kind:
    """Of a line that differs."""
    if old.error is not None or new.error is not None or len(old.texts) != len(new.texts):
        return "never"
    if old.prompt and new.prompt and old.prompt != new.prompt:
        return "never"
    pair = pair_of(old, new)
    if pair is None:
        return "unknown"
    if pair.step is None:
        return "numbers" if (old.texts, old.reasons) == (new.texts, new.reasons) else "never"
    return "never" if pair.candidates is None else "tokens"


@dataclass
class Comparison:
    """paired: lines in both.   same: of those, lines that do not differ.   only_old, only_new: ids.
    readable: (line, its group or "" if it does not differ, token ids), of the first MOST_READ that
    a model can read.
    """

    paired: int
    same: int
    groups: dict[str, Group]
    only_old: list[str]
    only_new: list[str]
    readable: list[tuple[str, str, Pair]] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        return not (self.groups or self.only_old or self.only_new)

    @property
    def kinds(self) -> Counter[Kind]:
        return sum((group.kinds for group in self.groups.values()), Counter[Kind]())

    def take(self, name: str, old: Answer, new: Answer) -> None:
        self.paired += 1
        found = difference(old, new)
        if found is None:
            self.same += 1
        else:
            group = self.groups.setdefault(found.group, Group(found.unit))
            group.add(name, found, kind_of(old, new))
        pair = pair_of(old, new)
        if pair is not None and len(self.readable) < MOST_READ:
            self.readable.append((name, found.group if found else "", pair))


def pairs(
    old: Path, new: Path, before: Mapping[str, Place], after: Mapping[str, Place]
) -> Iterator[Any]:
    with old.open("rb") as mine, new.open("rb") as theirs:
        for name, place in before.items():
            if name in after:
                yield name, read(mine, old, place), read(theirs, new, after[name])


def compared(old: Path, new: Path) -> Comparison:
    """Raises ValueError for files that hold no answers, OSError."""
    before = places_of(old)
    after = places_of(new)
    only_old = [name for name in before if name not in after]
    only_new = [name for name in after if name not in before]
    result = Comparison(0, 0, {}, only_old, only_new)
    for name, was, now in pairs(old, new, before, after):
        result.take(name, was, now)
    return result


# == Is it rounding? ==


@dataclass(frozen=True)
class Explanation:
    """groups: of each group, whether rounding explains its lines.   sentence: of all of them
    together."""

    exit_code: int
    sentence: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)


NEVER = "no rounding makes this"
WITHOUT_MODEL = "cannot tell rounding from a fault: name the model that wrote OLD, --model M"
WITHOUT_IDS = (
    "cannot tell rounding from a fault: without token ids (write both files with `parity batch"
    " --ids`)"
)


def explained(found: Comparison, model: str | None, dtype: str | None) -> Explanation:
    """Raises reading.CannotJudge where the model cannot be read."""
    if not found.paired:
        return Explanation(NOTHING_CODE)
    if found.is_same:
        return Explanation(SAME_CODE)
    readable = found.kinds["tokens"] + found.kinds["numbers"]
    if model is not None and readable:
        return read_again(found, model, dtype or dtype_of(model))
    groups = {name: words_without_model(group) for name, group in found.groups.items()}
    if found.kinds["never"] or found.only_old or found.only_new:
        return Explanation(FAULT_CODE, "", groups)
    return Explanation(UNKNOWN_CODE, WITHOUT_MODEL if readable else WITHOUT_IDS, groups)


def words_without_model(group: Group) -> str:
    return NEVER if set(group.kinds) == {"never"} else ""


def dtype_of(model: str) -> str:
    """The dtype that a checkpoint was saved in."""
    config = json.loads(
        (Path(reading.local_path(model)) / "config.json").read_text(encoding="utf-8")
    )
    text = config.get("text_config", {})
    return str(config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or "float32")


def read_again(found: Comparison, model: str, dtype: str) -> Explanation:
    pairs = [pair for _, _, pair in found.readable]
    read = choices.read_choices(reading.local_path(model), dtype, pairs)
    judged = choices.judge_choices(read, pairs)
    rows: dict[str, list[tuple[str, PairResult]]] = {}
    for (name, group, _), row in zip(found.readable, judged.rows):
        rows.setdefault(group, []).append((name, row))
    numbers = numbers_outcome(found, read.noise)
    groups = {
        name: words_of_group(group, rows.get(name, ()), read.noise)
        for name, group in found.groups.items()
    }
    parts = [judged.outcome] if found.kinds["tokens"] else []
    parts += [numbers] if found.kinds["numbers"] else []
    sentence = sentence_of(judged, dtype) if found.kinds["tokens"] else ""
    if found.kinds["never"] or found.only_old or found.only_new or "fault" in parts:
        return Explanation(FAULT_CODE, sentence, groups)
    if found.kinds["unknown"] or "cannot tell" in parts:
        return Explanation(UNKNOWN_CODE, sentence or WITHOUT_IDS, groups)
    return Explanation(SAME_CODE, sentence, groups)


def numbers_outcome(found: Comparison, noise: Noise) -> PairsOutcome:
    """Of log-probabilities of equal tokens."""
    if noise.tokens < referee.LEAST:
        return "cannot tell"
    gaps = [
        size for group in found.groups.values() if group.kinds["numbers"] for size in group.sizes
    ]
    return "rounding" if max(gaps, default=0.0) <= noise.of_number else "fault"


def words_of_group(group: Group, rows: Sequence[tuple[str, PairResult]], noise: Noise) -> str:
    """Of single lines: what all of them say together stands in the last line."""
    if set(group.kinds) == {"never"}:
        return NEVER
    if group.kinds["numbers"]:
        return f"rounding explains {noise.of_number:.2g} nats"
    beyond = [(name, row) for name, row in rows if row.is_fault]
    if beyond:
        name, row = beyond[0]
        return f"{len(beyond)} of {len(rows)} are beyond rounding; line {name} {row}"
    within = sum(row.parted is not None and row.parted.within for _, row in rows)
    unread = sum(group.kinds.values()) - within
    words = f"at {within} of them float32 finds both tokens close enough for rounding to choose"
    return words + (f"; {unread} were not read" if unread else "")


def sentence_of(judged: choices.ChoicesJudged, dtype: str) -> str:
    to_dtype = f"to {dtype}"
    if judged.outcome == "fault":
        side, size = ("OLD", judged.old) if judged.old.outcome == "fault" else ("NEW", judged.new)
        if size.outcome != "fault":
            return (
                f"ROUNDING DOES NOT EXPLAIN IT: an answer parts where rounding {to_dtype} turns no"
                " choice"
            )
        like = (
            "as of sampled answers, another model or fewer bits"
            if side == "OLD"
            else "as of fewer bits, for one"
        )
        return f"ROUNDING DOES NOT EXPLAIN IT: {side}'s errors are {size} {to_dtype}, {like}"
    if judged.outcome == "rounding":
        return f"ROUNDING EXPLAINS IT: NEW's errors are {judged.new} {to_dtype}"
    widest = max(judged.old, judged.new, key=lambda size: size.high)
    side = "OLD" if widest is judged.old else "NEW"
    return (
        f"CANNOT TELL: {side}'s errors are {widest} {to_dtype}; up to {choices.ROUNDING:.0f} is"
        " explained. Compare more lines"
    )


# == The command ==


def described(found: Comparison, explanation: Explanation) -> str:
    """The comparison as it is printed, the largest group first."""
    share = f"{found.same:,} of {found.paired:,} lines are the same"
    lines = [share if found.paired else "no line stands in both files"]
    for name, group in sorted(found.groups.items(), key=lambda entry: -len(entry[1].sizes)):
        lines.append(f"  {len(group.sizes):,}  {name}{size_words(group)}")
        if explanation.groups.get(name):
            lines.append(f"      {explanation.groups[name]}")
        lines += [
            f"      {example}: {seen}" if seen else f"      {example}"
            for example, seen in group.examples
        ]
    for names, where in ((found.only_old, "OLD"), (found.only_new, "NEW")):
        if names:
            lines.append(
                f"  {len(names):,}  only in {where}:"
                f" {', '.join(names[:SHOWN])}{' …' * (len(names) > SHOWN)}"
            )
    return "\n".join([*lines, *([explanation.sentence] if explanation.sentence else [])])


def size_words(group: Group) -> str:
    if group.unit == "line":
        return ""
    middle = statistics.median(group.sizes)
    return f" ({group.unit}: median {middle:.4g}, most {max(group.sizes):.4g})"


def run_compare(args: argparse.Namespace) -> int:
    found = compared(args.old, args.new)
    try:
        explanation = explained(found, args.model, args.dtype)
    except reading.CannotJudge as error:
        say(described(found, Explanation(UNKNOWN_CODE, f"CANNOT TELL: {error}")))
        return UNKNOWN_CODE
    say(described(found, explanation))
    return explanation.exit_code


def add_compare(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="two files of answers, line by line; with a model: is it rounding?",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "example: python -m parity compare before.jsonl after.jsonl --model Qwen/Qwen3-8B"
            " --dtype bfloat16"
        ),
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument(
        "--model", metavar="M", help="the checkpoint that wrote OLD: reads its greedy tokens again"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of OLD; default: the checkpoint's",
    )
    parser.set_defaults(run=run_compare)
