"""What was done with ids after the model: how they became text, and texts the value.

`by_endings` asks which way to decode, cut and strip gives both texts from recorded ids
(endings.py); `after_decoding` names what else was made of equal ids, by the first of `VALUE_RULES`
that answers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from parity.goldens.store import Case
from parity.goldens.verdict import Cause, Certainty, equal
from parity.judge.changed_places import IN_ORDER, in_other_places, of_order, order_of_answers
from parity.judge.endings import (
    ADDED,
    Explainer,
    Found,
    by_hand,
    decoded_both_ways,
    is_within_some,
    leaves,
)
from parity.judge.inquiry import Inquiry
from parity.judge.naming import first_answer, named_cause
from parity.judge.numerics.numbers import SEQUENCES, candidates, number_gap
from parity.judge.row import (
    Row,
    are_prefixes,
    decoded_texts,
    decoding_of,
    end_ids,
    entry,
    is_float32,
    text_of,
    unseen,
)
from parity.judge.stages.sampling import done_to_logits
from parity.judge.stages.stop import may_end_by_criterion, told_stops

SAME_IDS = "the ids are the same"

# == From ids to text ==


def by_endings(inquiry: Inquiry, drawn: bool = False) -> Cause | None:
    """Another way from the same (or longer, or shorter) ids to text.   drawn: the ids are other
    samples, each text is to come from its own in the way that the old text came from the old
    ones."""
    texts = dict(leaves(inquiry.old.value))
    if texts and texts == dict(leaves(inquiry.new.value)):
        return None  # what differs is no text
    if inquiry.decode is None or not (drawn or are_prefixes(inquiry.pairs)):
        return None
    found = Explainer(inquiry.old, inquiry.new, inquiry.pairs, inquiry.decode).explain()
    # Rows of other samples may well be decoded in another way than values.
    if found is None or (drawn and not found.of_value):
        return None
    if is_cut_by_hand(inquiry, found):
        return None
    certainty, proof = certainty_of(inquiry, found)
    name = name_of_ending(inquiry, found)
    return named_cause(name, certainty, found.sentence(), proof)


def is_cut_by_hand(inquiry: Inquiry, found: Found) -> bool:
    """Whether both ways are the library's only in name: it was seen to do otherwise."""
    return is_marker_cut_by_hand(inquiry, found) or is_stop_cut_by_hand(inquiry, found)


def is_marker_cut_by_hand(inquiry: Inquiry, found: Found) -> bool:
    """Whether a marker that is no special token was cut by hand: both were seen to decode alike."""
    ways = {found.old.skip_special, found.new.skip_special}
    if found.cause != "decode.skip_special" or ADDED not in ways:
        return False
    return all("text" in a and a["text"] == b.get("text") for a, b in inquiry.pairs)


def is_stop_cut_by_hand(inquiry: Inquiry, found: Found) -> bool:
    """Whether the new texts were seen with their stops, and the value is without, or the other way
    round: what the engine was told of stops is not what differs."""
    stops = tuple(told_stops(inquiry.new))
    texts = [row["text"] for row in inquiry.new.rows if row.get("text")]
    keeps = any(text.endswith(stops) for text in texts)
    return bool(texts) and "include_stop" in found.fields and keeps != found.new.include_stop


def name_of_ending(inquiry: Inquiry, found: Found) -> str:
    """The cause of two ways; one rule is broken, where both sides were told the same stops."""
    name = found.cause
    if name in ("post.trim", "decode.skip_special"):
        is_by_stop = within_stops(inquiry) or by_a_stop(inquiry)
        name = "stop.rule" if is_by_stop else name
    if name == "stop.strings":
        return name_of_stops(inquiry, {*found.old.stops} ^ {*found.new.stops})
    return "post.trim" if name.startswith("stop.") and is_behind_texts(inquiry) else name


def name_of_stops(inquiry: Inquiry, moved: set[str]) -> str:
    """The cause where stops that one side cuts at are not the other's."""
    told = told_stops(inquiry.new)
    stops = told_or_cut_stops(inquiry.old)
    is_rule = told and (told == stops or moved <= told & stops)
    if is_behind_texts(inquiry) and (is_rule or not moved <= stops):  # not the old code's own
        return "post.trim"
    return "stop.rule" if is_rule else "stop.strings"


def is_behind_texts(inquiry: Inquiry) -> bool:
    """Whether both sides were seen to make the same texts of the same ids, and were told the same
    stops: what differs was made of those texts. A stop that is named is none of them."""
    stops = told_stops(inquiry.new)
    if not inquiry.comparison.has_same_ids or told_stops(inquiry.old) != stops:
        return False
    if all({*pair} <= stops for pair in inquiry.other_texts):
        return False
    return bool(inquiry.pairs) and all(has_same_texts(*pair) for pair in inquiry.pairs)


def has_same_texts(old: Row, new: Row) -> bool:
    texts = decoded_texts(old)
    return None not in texts and texts == decoded_texts(new)


def certainty_of(inquiry: Inquiry, found: Found) -> tuple[Certainty, str]:
    proof = (
        "of all ways to decode, cut and strip the recorded ids, the two that give both texts differ"
        " in this alone"
    )
    if any(map(may_end_by_criterion, inquiry.old.rows)):
        return "likely", f"{proof}; what the old code's own criterion stops at is not seen"
    if found.cause == "post.strip" and lost_tokens(inquiry):
        return "likely", f"{proof}; so would a last token that is blank and lost"
    return ("confirmed" if len(found.fields) == 1 and found.of_value else "likely"), proof


def within_stops(inquiry: Inquiry) -> bool:
    """Whether texts that differ are stops, which both sides were told."""
    stops = told_stops(inquiry.new)
    if not stops or stops != told_or_cut_stops(inquiry.old):
        return False
    texts = inquiry.other_texts
    return bool(texts) and all({*pair} <= stops for pair in texts)


def by_a_stop(inquiry: Inquiry) -> bool:
    """Whether each text differs by a whole stop at its end, that the new code was told, where both
    decode alike."""
    texts = inquiry.other_texts
    stops = told_stops(inquiry.new) | texts_of_told_ends(inquiry)
    for old, new in texts:
        if not any(old + stop == new or new + stop == old for stop in stops):
            return False
    return bool(texts) and all(is_decoded_alike(*pair) for pair in inquiry.pairs)


def texts_of_told_ends(inquiry: Inquiry) -> set[str]:
    """Texts of the end ids that the new code gave to a call that keeps them."""
    if inquiry.decode is None:
        return set()
    ids: set[int] = set()
    for row in inquiry.new.rows:
        if entry(row, "stop", "include_stop") and row["stop"]["end_ids"]["from"] == "caller":
            ids.update(end_ids(row))
    return {inquiry.decode([i], False, False) for i in ids}


def is_decoded_alike(old: Row, new: Row) -> bool:
    flag = decoding_of(old).get("skip_special_tokens")
    return flag is not None and flag == decoding_of(new).get("skip_special_tokens")


def lost_tokens(inquiry: Inquiry) -> bool:
    """Whether each of the new texts that differs is also what all ids but the last would give."""
    decode = inquiry.decode
    if decode is None:
        return False
    lost = []
    for old, new in inquiry.pairs:
        ids = new["output_ids"]
        text = new.get("text")
        if ids and text != old.get("text"):
            lost.append(text == decode(ids[:-1], True, False))
    return bool(lost) and all(lost)


def told_or_cut_stops(case: Case) -> set[str]:
    """Those, or the ones among its arguments, where it cuts by hand."""
    return told_stops(case) or set(by_hand(case))


# == From equal ids to values ==


def after_decoding(inquiry: Inquiry) -> Cause:
    """The ids are the same, so the difference was made after the model."""
    return first_answer(VALUE_RULES, inquiry) or of_anything(inquiry)


def value_cause(name: str, certainty: Certainty, inquiry: Inquiry, proof: str) -> Cause:
    """A cause of how the values differ."""
    return named_cause(name, certainty, inquiry.value_sentence, proof)


def of_places(inquiry: Inquiry) -> Cause | None:
    """Answers, or parts of them, in other places."""
    places = order_of_answers(inquiry.old, inquiry.new)
    if places is None:
        return in_other_places(inquiry)
    order = of_order(places, IN_ORDER)
    if not any(row.get("scored") and not is_float32(row) for row in inquiry.old.rows):
        return order
    proof = f"{IN_ORDER}; rounding of scores may have done that, too"
    return dataclasses.replace(order, certainty="likely", proof=proof)


def of_unseen_choice(inquiry: Inquiry) -> Cause | None:
    if not any(unseen(a, b) for a, b in inquiry.pairs):
        return None
    proof = (
        "nothing else that was seen differs; of the old code only what it reads was seen, not what"
        " it chose"
    )
    return value_cause("post.other", "likely", inquiry, proof)


def of_blanks(inquiry: Inquiry) -> Cause | None:
    texts = inquiry.other_texts
    if not are_of_answers(inquiry) or any(a.strip() != b.strip() for a, b in texts):
        return None
    return of_texts_alone("post.strip", ONE_HOLDS_THE_OTHER, inquiry)


def of_parts(inquiry: Inquiry) -> Cause | None:
    """One text holds the other."""
    if not are_of_answers(inquiry) or not all(holds_other(*pair) for pair in inquiry.other_texts):
        return None
    return first_answer(PART_RULES, inquiry)


def of_told_stops(inquiry: Inquiry) -> Cause | None:
    if not within_stops(inquiry) or is_behind_texts(inquiry):
        return None
    return of_texts_alone("stop.rule", ONE_HOLDS_THE_OTHER, inquiry)


def of_other_answers(inquiry: Inquiry) -> Cause | None:
    if not is_another_answer(inquiry):
        return None
    proof = f"{SAME_IDS}, and each text is that of some answer"
    return value_cause("post.other", "likely", inquiry, proof)


def of_cut_by_hand(inquiry: Inquiry) -> Cause | None:
    if not are_cut_by_hand(inquiry):
        return None
    proof = f"{SAME_IDS}, and the old code cuts by hand"
    return value_cause("stop.strings", "likely", inquiry, proof)


def of_marker(inquiry: Inquiry) -> Cause | None:
    marker = marker_between(inquiry)
    if not marker:
        return None
    proof = f"{SAME_IDS}, and {marker} is all that texts differ by"
    return of_texts_alone("decode.skip_special", proof, inquiry)


def of_what_is_put_around(inquiry: Inquiry) -> Cause | None:
    """A label before an answer, or behind it."""
    if are_parts_of_answers(inquiry):
        return None
    proof = f"{SAME_IDS}, and what one text has more is of no answer"
    return value_cause("post.other", "likely", inquiry, proof)


def of_trimmed_texts(inquiry: Inquiry) -> Cause:
    proof = UNFINISHED if are_unfinished(inquiry) else ONE_HOLDS_THE_OTHER
    return of_texts_alone("post.trim", proof, inquiry)


PART_RULES: tuple[Callable[[Inquiry], Cause | None], ...] = (
    of_told_stops,
    of_other_answers,
    of_cut_by_hand,
    of_marker,
    of_what_is_put_around,
    of_trimmed_texts,
)


def are_of_answers(inquiry: Inquiry) -> bool:
    """Whether texts differ, each of which is a part of an answer of its side, or holds one: a file
    name is none."""
    decode = inquiry.decode
    if decode is None or not inquiry.other_texts:
        return bool(inquiry.other_texts)
    for texts, case in zip(zip(*inquiry.other_texts), (inquiry.old, inquiry.new)):
        answers = [decode(row["output_ids"], True, False) for row in case.rows]
        if not all(is_of_some(text, answers) for text in texts):
            return False
    return True


def is_of_some(text: str, answers: Sequence[str]) -> bool:
    bare, *others = map(bare_text, (text, *answers))
    return not bare or any(bare in one or (one and one in bare) for one in others)


def bare_text(text: str) -> str:
    """Letters and digits: what is done to an answer may rewrite the rest."""
    return re.sub(r"\W", "", text).casefold()


def are_parts_of_answers(inquiry: Inquiry) -> bool:
    """Whether the longer of two texts is a part of what some answer becomes, with its prompt: what
    the code puts around an answer, such as a label, is none."""
    decode = inquiry.decode
    if decode is None:
        return True
    made = [text_of(row) for row in inquiry.rows]
    for row in inquiry.rows:
        ids = row["output_ids"]
        made += decoded_both_ways(ids, decode)
        made += decoded_both_ways([*row["prompt_ids"], *ids], decode)
    wholes = list(map(bare_text, made))
    longer = [bare_text(max(pair, key=len)) for pair in inquiry.other_texts]
    return all(is_within_some(text, wholes) for text in longer)


def holds_other(old: str, new: str) -> bool:
    return bool(old and new) and (old in new or new in old)


def goes_on_with_stop(shorter: str, longer: str, stops: Collection[str]) -> bool:
    """Whether the longer text goes on with a stop where the other one ends."""
    if not longer.startswith(shorter):
        return False
    ends = tuple(stops)
    rest = longer[len(shorter) :]
    return rest.startswith(ends) or rest.lstrip().startswith(ends)


def are_cut_by_hand(inquiry: Inquiry) -> bool:
    """Whether the old code may cut by hand what the new code's stops cut: what texts differ by is
    in what the ids become, and not put behind it; and a new text that is shorter ends where one
    of its stops begins."""
    stops = told_stops(inquiry.new)
    if not stops or told_stops(inquiry.old):
        return False
    for old, new in inquiry.other_texts:
        if len(new) < len(old) and not goes_on_with_stop(new, old, stops):
            return False
    decode = inquiry.decode
    if decode is None:
        return True
    wholes: list[str] = []
    for row in inquiry.rows:
        wholes += decoded_both_ways(row["output_ids"], decode)
    longer = [max(pair, key=len).strip() for pair in inquiry.other_texts]
    return all(is_within_some(text, wholes) for text in longer)


def of_token_order(inquiry: Inquiry) -> Cause | None:
    if not equal(by_token(inquiry.old.value), by_token(inquiry.new.value)):
        return None
    said = "the same best tokens stand in another order"
    proof = f"{SAME_IDS}, and put in order so are the values"
    return named_cause("post.other", "likely", said, proof)


def of_processed_logits(inquiry: Inquiry) -> Cause | None:
    """Numbers of tokens are others, where something is done to the logits."""
    values = inquiry.old.value, inquiry.new.value
    done: list[str] = []
    for row in inquiry.old.rows:
        done += [name for name in done_to_logits(row) if name not in done]
    longest = max((len(row["output_ids"]) for row in inquiry.rows), default=0)
    if not (done and number_gap(*values) and of_tokens(*values, longest)):
        return None
    said = f"numbers among the values are others, where there is {', '.join(done)}"
    proof = f"{SAME_IDS}, and so is all that is no number"
    return named_cause("sampling.processors", "likely", said, proof)


def of_reason(inquiry: Inquiry) -> Cause | None:
    texts = inquiry.other_texts
    reasons = next((pair for pair in texts if {*pair} <= REASONS), None)
    is_another_word = reasons == ("stop", "eos") and not told_stops(inquiry.new)
    if reasons is None or is_another_word:  # for an end of text
        return None
    ended = f"an answer that ended by {reasons[0]!r} ended by {reasons[1]!r}"
    proof = f"{SAME_IDS}, and the reason that is told is another one"
    return named_cause("stop.rule", "likely", ended, proof)


def of_numbers(inquiry: Inquiry) -> Cause | None:
    """The same texts, and other numbers, or another number of them."""
    sides = inquiry.old.value, inquiry.new.value
    texts = [list(leaves(side)) for side in sides]
    has_numbers = any(list(leaves(side, kind=float)) for side in sides)
    if texts[0] != texts[1] or not has_numbers:
        return None
    said = f"what is made of the model's numbers differs: {inquiry.value_sentence}"
    proof = f"{SAME_IDS}, and so are all texts of the value"
    return Cause("post.other", "likely", said, proof)


def of_anything(inquiry: Inquiry) -> Cause:
    proof = f"{SAME_IDS}, and no way of decoding, cutting and stripping them gives both values"
    return value_cause("post.other", "likely", inquiry, proof)


VALUE_RULES: tuple[Callable[[Inquiry], Cause | None], ...] = (
    of_places,
    of_unseen_choice,
    by_endings,
    of_blanks,
    of_parts,
    of_token_order,
    of_processed_logits,
    of_reason,
    of_numbers,
)

ONE_HOLDS_THE_OTHER = f"{SAME_IDS}, and one text holds the other"
UNFINISHED = (
    f"{SAME_IDS}, and end within a character: vLLM's own text leaves out what a tokenizer decodes "
    "as U+FFFD; leave out last tokens until the text ends in none, where no stop string ended it"
)


def of_texts_alone(name: str, proof: str, inquiry: Inquiry) -> Cause:
    """Confirmed, where nothing but texts differs."""
    is_alone = equal(without_texts(inquiry.old.value), without_texts(inquiry.new.value))
    certainty: Certainty = "confirmed" if is_alone and inquiry.old.rows else "likely"
    return value_cause(name, certainty, inquiry, proof)


def of_tokens(old: Any, new: Any, most: int) -> bool:
    """Whether numbers that differ stand in lists, or beside tokens, as those of tokens do, and not
    those of answers, or of a hidden state, which are more.   most: tokens of an answer."""
    if candidates(old) is not None or is_list_with_floats(old):
        return len(old) <= most + 1 and not equal(old, new)
    return any(of_tokens(*parts, most) for parts in parts_of_both(old, new))


def is_list_with_floats(value: Any) -> bool:
    return isinstance(value, SEQUENCES) and any(isinstance(part, float) for part in value)


def parts_of_both(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """Parts of two values that stand at one place."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        shared = old.keys() & new.keys()
        return [(old[key], new[key]) for key in shared]
    if isinstance(old, SEQUENCES) and isinstance(new, SEQUENCES):
        return list(zip(old, new))
    return []


def is_another_answer(inquiry: Inquiry) -> bool:
    """Whether texts that differ are those of other answers of the same case."""
    texts = {row.get("text") for row in inquiry.new.rows}
    return all({one, other} <= texts for one, other in inquiry.other_texts)


def without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_texts(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_texts(part) for part in value]
    return "" if isinstance(value, str) else value


def by_token(value: Any) -> Any:
    """A value in which best tokens stand in the order of their names."""
    if isinstance(value, Mapping):
        return {key: by_token(part) for key, part in value.items()}
    found = candidates(value)
    if found is not None:
        return sorted(found.items(), key=str)
    return [by_token(part) for part in value] if isinstance(value, (list, tuple)) else value


REASONS = {
    "eos", "eos_token", "stop", "stop_sequence", "end_turn", "length", "max_tokens", "plugin",
}  # fmt: skip


def marker_between(inquiry: Inquiry) -> str:
    """A special token of the answers by which texts differ, where nothing else is left of any
    difference."""
    markers = special_texts(inquiry)
    found = ""
    for pair in inquiry.other_texts:
        bare, whole = sorted(pair, key=len)
        left = whole
        for marker in markers:
            if marker in whole and marker not in bare:
                left = left.replace(marker, "")
                found = marker
        if left != bare:
            return ""
    return found


def special_texts(inquiry: Inquiry) -> list[str]:
    """The special tokens of all answers, as text."""
    decode = inquiry.decode
    if decode is None:
        return []
    ids: set[int] = set()
    for row in inquiry.rows:
        ids.update(row["output_ids"])
    texts = [decode([i], False, False) for i in ids if not decode([i], True, False)]
    return [text for text in texts if text]


def are_unfinished(inquiry: Inquiry) -> bool:
    """Whether texts differ by nothing but a character at the new one's end that is not whole."""
    return all(old == new.rstrip("\ufffd") for old, new in inquiry.other_texts)
