"""How generated ids become text, enumerated: which ids, how decoded, cut at which stops by which
rule, stripped how.

Each way is a `Recipe`, a pure function of recorded ids. Of all pairs of recipes that give the old
text from the old ids and the new text from the new ids, the two that are most alike name the cause:
the step in which they differ. No model is needed, only the checkpoint's tokenizer; a few thousand
recipes take milliseconds.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from parity.goldens.store import Case
from parity.judge.row import Row, decoding_of, end_ids, stop_strings
from parity.record.rows import string_lists

Decoder = Callable[[Sequence[int], Any, bool], str]  # ids, skip_special_tokens, clean_up -> text
ADDED = "all added tokens"  # are skipped, also those that are not special


TextPair = tuple[str, str]  # an old one and the new one in its place
Span = tuple[int, int]  # where a stop begins in a text, and where it is complete
Rule = Callable[[str, Sequence[str]], Span | None]  # text, stops -> the one that cuts


def spans(text: str, stops: Sequence[str]) -> list[Span]:
    """Of each stop that occurs, in the order of the list, the first time that it does."""
    found = [(text.find(stop), stop) for stop in stops]
    return [(start, start + len(stop)) for start, stop in found if start >= 0]


def first_complete(text: str, stops: Sequence[str]) -> Span | None:
    """The stop that is complete first; of several, the longest."""
    return min(spans(text, stops), key=lambda span: span[::-1], default=None)


def earliest_start(text: str, stops: Sequence[str]) -> Span | None:
    return min(spans(text, stops), default=None)


def list_order(text: str, stops: Sequence[str]) -> Span | None:
    """The first of the list that occurs at all."""
    return next(iter(spans(text, stops)), None)


def list_order_inside(text: str, stops: Sequence[str]) -> Span | None:
    """The same with `pos > 0`: a stop at the very beginning does not cut."""
    return next((span for span in spans(text, stops) if span[0]), None)


def last_occurrence(text: str, stops: Sequence[str]) -> Span | None:
    found = [(text.rfind(stop), stop) for stop in stops if stop in text]
    last = [(start, start + len(stop)) for start, stop in found]
    return max(last, default=None)


RULES: dict[str, Rule] = {
    "first complete": first_complete,
    "earliest start": earliest_start,
    "list order": list_order,
    "list order, pos > 0": list_order_inside,
    "last occurrence": last_occurrence,
}
STRIPS: dict[str, Callable[[str], str]] = {
    "no": lambda text: text,
    "both ends": str.strip,
    "left": str.lstrip,
    "right": str.rstrip,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way from ids to text. end: whether the id that ended the row is decoded, too."""

    end: bool
    skip_special: bool | str
    clean_up: bool
    stops: tuple[str, ...]
    rule: str
    include_stop: bool
    strip: str
    strip_first: bool

    def text(self, decoded: str) -> str:
        strip = STRIPS[self.strip]
        text = strip(decoded) if self.strip_first else decoded
        if span := RULES[self.rule](text, self.stops):
            text = text[: span[1] if self.include_stop else span[0]]
        return text if self.strip_first else strip(text)


CAUSE_OF = {
    "end": "post.trim",
    "skip_special": "decode.skip_special",
    "clean_up": "decode.cleanup",
    "stops": "stop.strings",
    "rule": "stop.rule",
    "include_stop": "stop.rule",
    "strip": "post.strip",
    "strip_first": "post.strip",
}


WORDS = {
    "end": "the id that ended the row is decoded, too",
    "skip_special": "special tokens are left out",
    "clean_up": "spaces are cleaned up",
    "include_stop": "the stop is kept",
    "strip_first": "stripped before it is cut",
}


def recipes(stop_lists: Sequence[tuple[str, ...]]) -> Iterator[Recipe]:
    """Every way, none twice: without stops their rule says nothing, without stripping its turn says
    nothing."""
    decodings: Iterator[tuple[bool, Any, bool]] = itertools.product(
        (False, True), (True, False, ADDED), (False, True)
    )
    ways = itertools.product(decodings, cuts(stop_lists))
    for (end, skip, clean), (stops, rule, include) in ways:
        for strip, first in itertools.product(STRIPS, (False, True)):
            if first and (strip == "no" or not stops):
                continue
            yield Recipe(end, skip, clean, stops, rule, include, strip, first)


def cuts(stop_lists: Sequence[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    """Stops, the rule by which they cut, and whether the stop is kept."""
    for stops in stop_lists:
        if stops:
            for rule, include in itertools.product(RULES, (False, True)):
                yield stops, rule, include
        else:
            yield stops, "first complete", False


def stop_lists(old: Case, new: Case) -> list[tuple[str, ...]]:
    """Stop lists that may have been used: those of the library, those among the arguments, all of
    them, and each without one."""
    known: list[tuple[str, ...]] = [()]
    for case in (old, new):
        known += [stop_strings(row) for row in case.rows[:1]]
        known += string_lists(case.arguments)
    union = tuple(dict.fromkeys(itertools.chain.from_iterable(known)))
    if len(union) <= MOST_STOPS:
        known += [union, union[::-1]]
    for stops in list(known):
        if len(stops) > MOST_STOPS:
            continue
        for gone in stops:
            known.append(tuple(stop for stop in stops if stop != gone))
    return list(dict.fromkeys(known))


MOST_STOPS = 8  # of a list that is tried without each of them


@dataclass(frozen=True, slots=True)
class Found:
    """The two most alike recipes that explain both texts, and the fields in which they differ.
    of_value: the texts are those of the value, and not only what a row was decoded to."""

    old: Recipe
    new: Recipe
    fields: tuple[str, ...]
    of_value: bool = True

    @property
    def cause(self) -> str:
        if self.fields[0] == "end" and self.new.stops and self.old.stops:
            return "stop.rule"  # which of the ids that complete a stop is decoded
        return CAUSE_OF[self.fields[0]]

    def sentence(self) -> str:
        said = []
        for name in self.fields:
            before = getattr(self.old, name)
            after = getattr(self.new, name)
            said.append(f"{WORDS.get(name, name)}: {before!r} became {after!r}")
        return "; ".join(said)


Ways = Mapping[Recipe, int]  # recipe -> how much of it is unusual


def smallest(old: Ways, new: Ways, fits: Callable[[Recipe, Recipe], bool]) -> Found | None:
    """The most alike pair that fits; among equals the plainest one. None where one recipe explains
    both sides."""
    new_ways = plainest(new)
    if any(fits(way, way) for way in new_ways if way in old):
        return None

    def unlikeness(pair: tuple[Recipe, Recipe]) -> tuple[int, int, bool, int]:
        before, after = pair
        fields = fields_apart(before, after)
        return len(fields), old[before] + new[after], "end" in fields, len(before.stops)

    pairs = sorted(itertools.product(plainest(old), new_ways), key=unlikeness)
    for before, after in pairs:
        if fits(before, after):
            return Found(before, after, fields_apart(before, after))
    return None


def plainest(ways: Ways) -> list[Recipe]:
    return sorted(ways, key=ways.__getitem__)[:MOST]


MOST = 200  # recipes of a side that are looked at, the plainest first


def fields_apart(old: Recipe, new: Recipe) -> tuple[str, ...]:
    names = (field.name for field in dataclasses.fields(Recipe))
    return tuple(name for name in names if getattr(old, name) != getattr(new, name))


def plainness(way: Recipe, recorded: Mapping[str, Any]) -> int:
    """How much of a recipe is unusual, or contradicts what was recorded of decoding."""
    odd = (
        way.clean_up,
        way.include_stop,
        way.strip_first,
        way.rule != "first complete",
        way.skip_special == ADDED,
        way.strip in ("left", "right"),
    )
    contradicts: tuple[bool, ...] = (
        way.skip_special != recorded.get("skip_special_tokens", way.skip_special),
        way.clean_up != recorded.get("clean_up", way.clean_up),
        bool(recorded["strings"]) and set(way.stops) != set(recorded["strings"]),
    )
    return sum(odd) + 4 * sum(contradicts)


def leaves(
    value: Any, path: tuple[Any, ...] = (), kind: type = str
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every string in a value, or what else it holds of this kind, and where it stands."""
    if type(value) is kind:
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, (*path, key), kind)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from leaves(part, (*path, place), kind)


def texts_in(value: Any) -> list[str]:
    return [text for _, text in leaves(value)]


def is_within_some(text: str, wholes: Sequence[str]) -> bool:
    return any(text in whole for whole in wholes)


def decoded_both_ways(ids: Sequence[int], decode: Decoder) -> list[str]:
    """The text of ids without their special tokens, and with them."""
    return [decode(ids, skip, False) for skip in (True, False)]


def texts_kept(old: Any, new: Any) -> list[str]:
    """Texts that stand at the same place of two values, and are the same."""
    return [text for _, text in {*leaves(old)} & {*leaves(new)}]


def texts_apart(old: Any, new: Any) -> list[TextPair]:
    """Texts that stand at the same place of two values, and differ."""
    new_texts = dict(leaves(new))
    pairs = [(text, new_texts.get(path, text)) for path, text in leaves(old)]
    return [pair for pair in pairs if pair[0] != pair[1]]


def numbers_in(value: Any) -> set[int]:
    return {number for _, number in leaves(value, kind=int)}


def by_hand(case: Case) -> tuple[str, ...]:
    """Stops that a call was given, where it may cut by itself; of several arguments, those of the
    longest list."""
    return max(string_lists(case.arguments), key=len, default=())


@dataclass
class RowTexts:
    """A row's decoded texts by the ways to decode it, each made once.   whole: with the prompt
    before it."""

    row: Row
    decode: Decoder
    whole: bool = False
    made: dict[tuple[bool, bool | str, bool], str] = dataclasses.field(default_factory=dict)

    def decoded(self, way: Recipe) -> str:
        key = way.end, way.skip_special, way.clean_up
        if key not in self.made:
            ids = self.row["output_ids"]
            is_ended = bool(ids) and ids[-1] in end_ids(self.row)
            if is_ended and not way.end:
                ids = ids[:-1]
            if self.whole:
                ids = [*self.row["prompt_ids"], *ids]
            self.made[key] = self.decode(ids, way.skip_special, way.clean_up)
        return self.made[key]

    def text(self, way: Recipe) -> str:
        return way.text(self.decoded(way))

    def ways_to(self, text: str, ways: Sequence[Recipe], case: Case) -> dict[Recipe, int]:
        """The recipes that give a text; those that agree with what was recorded are the plainest.
        case: the row's."""
        strings = stop_strings(self.row) or by_hand(case)
        recorded = {**decoding_of(self.row), "strings": strings}
        found = {}
        for way in ways:
            if self.text(way) == text:
                found[way] = plainness(way, recorded)
        return found


@dataclass(frozen=True)
class Explainer:
    """Looks for the smallest step that turns old texts into new ones, or none if none of ours does.
    What explains one text must give the others, too, from their own ids."""

    old: Case
    new: Case
    pairs: Sequence[tuple[Row, Row]]
    decode: Decoder

    @functools.cached_property
    def ways(self) -> list[Recipe]:
        return list(recipes(stop_lists(self.old, self.new)))

    @functools.cached_property
    def rows(self) -> list[tuple[RowTexts, RowTexts]]:
        """Each pair; where prompts are decoded with their answers, so and alone."""
        found = []
        for old, new in self.pairs:
            if decoding_of(old).get("ids") == "whole":
                found.append(self.texts_of(old, new, whole=True))
            found.append(self.texts_of(old, new))
        return found

    def texts_of(self, old: Row, new: Row, *, whole: bool = False) -> tuple[RowTexts, RowTexts]:
        return RowTexts(old, self.decode, whole), RowTexts(new, self.decode, whole)

    @functools.cached_property
    def made(self) -> set[str]:
        """All that the old rows become in some way."""
        found: set[str] = set()
        for row, _ in self.rows:
            found.update(map(row.text, self.ways))
        return found

    @functools.cached_property
    def of_values(self) -> list[tuple[Any, TextPair]]:
        theirs = dict(leaves(self.new.value))
        given = texts_in(dict(self.old.arguments))
        found = []
        for path, text in leaves(self.old.value):
            if path in theirs:
                pair = without(text, theirs[path], given)
                found.append((path, pair))
        return found

    @functools.cached_property
    def recorded(self) -> list[TextPair]:
        found = []
        for old, new in self.pairs:
            if "text" in old and "text" in new:
                found.append((old["text"], new["text"]))
        return found

    @functools.cached_property
    def names(self) -> dict[TextPair, set[Any]]:
        """Under which names of a value texts stand; recorded ones stand under none."""
        found: dict[TextPair, set[Any]] = {texts: {()} for texts in self.recorded}
        for path, texts in self.of_values:
            names = tuple(name for name in path if isinstance(name, str))
            found.setdefault(texts, set()).add(names)
        return found

    def explain(self) -> Found | None:
        values = [texts for _, texts in self.of_values]
        found = self.explain_texts(values)
        if found is not None:
            return found
        if any(old != new and old in self.made for old, new in values):
            return None  # a decoded text became what no way of ours gives
        found = self.explain_texts(self.recorded)
        return found and dataclasses.replace(found, of_value=False)

    def explain_texts(self, texts: Sequence[TextPair]) -> Found | None:
        for pair, (old, new) in itertools.product(texts, self.rows):
            if pair[0] == pair[1]:
                continue
            found = self.explain_pair(pair, old, new, texts)
            if found is not None:
                return found
        return None

    def explain_pair(
        self, pair: TextPair, old: RowTexts, new: RowTexts, texts: Sequence[TextPair]
    ) -> Found | None:
        before = {text for text, _ in texts}
        wanted = {one for one in texts if self.is_made_alike(one, pair)}

        def fits(one: Recipe, other: Recipe) -> bool:
            made = [(a.text(one), b.text(other)) for a, b in self.rows]
            for texts_made in made:
                if texts_made[0] in before and texts_made not in texts:
                    return False
            return wanted <= {*made}

        ways = old.ways_to(pair[0], self.ways, self.old)
        new_ways = new.ways_to(pair[1], self.ways, self.new)
        return smallest(ways, new_ways, fits)

    def is_made_alike(self, texts: TextPair, pair: TextPair) -> bool:
        """What stands under the same names of a value was made in the same way."""
        if texts[0] == texts[1] or texts[0] not in self.made:
            return False
        return bool(self.names[texts] & self.names[pair])


def without(before: str, after: str, given: Sequence[str]) -> TextPair:
    """Two texts without the argument that both begin with, such as a prompt that is given back with
    its answer."""
    begin = 0
    for text in given:
        if before.startswith(text) and after.startswith(text):
            begin = max(begin, len(text))
    return before[begin:], after[begin:]


@dataclass
class Became:
    """What a golden row's ids and the new row's became.   same: the ids are equal.   texts: by
    every recipe, the golden's text -> the new ones.   wholes: both, decoded whole, cut at
    nothing."""

    same: bool
    texts: Mapping[str, Sequence[str]]
    wholes: Sequence[tuple[str, str]]

    def explains(self, text: str) -> bool:
        """Whether a golden's text comes from its ids; also if it is cut at something that only the
        code knows."""
        if text in self.texts:
            return True
        return bool(text.strip()) and any(begins(text, whole) for whole, _ in self.wholes)

    def gives(self, text: str, new: str | None) -> bool:
        """Whether a new text comes from its ids as the golden's came from its. Of other ids it may
        be the beginning, as they may hold another stop that only the code knows, and be mended a
        little; it is not nothing. A label, which is read out
        of a text, may be any other."""
        if not self.explains(text):
            return False
        if new is None:
            return is_label(text)
        if new in self.texts.get(text, ()):
            return True
        if self.same or not new.strip():
            return self.same and new == text
        is_other_label = is_label(text) and is_label(new)
        return is_other_label or any(resembles(new, whole) for _, whole in self.wholes)


def is_label(text: str) -> bool:
    return len(text) < LABEL and " " not in text


LABEL = 20  # characters


def resembles(text: str, whole: str) -> bool:
    """Whether more than half of a text stands, in its order, where the other begins."""
    begin = whole.strip()[: len(text)]
    return SequenceMatcher(None, text.strip(), begin, autojunk=False).ratio() > 0.5


def begins(text: str, whole: str) -> bool:
    return whole.strip().startswith(text.strip())


def became(old: Row, new: Row, ways: Sequence[Recipe], decode: Decoder) -> Became:
    texts: dict[str, list[str]] = collections.defaultdict(list)
    before = RowTexts(old, decode)
    after = RowTexts(new, decode)
    for way in ways:
        texts[before.text(way)].append(after.text(way))
    is_alike = decoding_of(old).get("ids") == decoding_of(new).get("ids")
    if is_alike and "text" in old and "text" in new:
        texts[old["text"]].append(new["text"])
    plain = [way for way in recipes([()]) if way.strip == "no"]
    wholes = [(before.decoded(way), after.decoded(way)) for way in plain]
    return Became(old["output_ids"] == new["output_ids"], texts, wholes)


@dataclass(frozen=True)
class StrangeTexts:
    """Texts of a new value that do not come from their rows' ids.   rows: what each became."""

    old: Case
    new: Case
    rows: Sequence[Became]

    @functools.cached_property
    def values(self) -> list[tuple[Any, str]]:
        return list(leaves(self.old.value))

    @functools.cached_property
    def new_texts(self) -> dict[Any, str]:
        return dict(leaves(self.new.value))

    @functools.cached_property
    def right(self) -> set[str]:
        """Texts of the golden whose new one comes from its ids at some path."""
        found = set()
        for path, text in self.values:
            new = self.new_texts.get(path)
            if any(row.gives(text, new) for row in self.rows):
                found.add(text)
        return found

    def is_of_same_ids(self, path: Any) -> bool:
        """Whether a text is one of a list, one for each row, and its row's ids are the same."""
        value = self.old.value
        if not isinstance(value, list) or len(value) != len(self.rows):
            return False
        return bool(self.rows[path[0]].same)

    def fault(self, path: Any, text: str) -> str:
        """What is wrong with what stands in a text's place; "" if nothing is."""
        new = self.new_texts.get(path)
        if not any(row.explains(text) for row in self.rows):
            is_other = new != text and self.is_of_same_ids(path)
            return "is another one, and its ids are the same" if is_other else ""
        if text in self.right or (new is None and is_label(text)):
            return ""
        return "is missing" if new is None else f"is not what its ids become: {new[:40]!r}"


def strange_text(old: Case, new: Case, pairs: Sequence[tuple[Row, Row]], decode: Decoder) -> str:
    """Which new text does not come from its row's ids in any way in which the golden's came from
    its; "" if none is strange, or nothing of ours makes the golden's. Rows whose ids are the same
    are to have the same texts."""
    ways = list(recipes(stop_lists(old, new)))
    found = StrangeTexts(old, new, [became(a, b, ways, decode) for a, b in pairs])
    for path, text in found.values:
        if fault := found.fault(path, text):
            return f"{'.'.join(map(str, path)) or 'the value'} {fault}"
    return ""
