"""The verdict of one case: the first line of `TABLE` that answers.

    judge(findings)        ("DRIFT", Cause(...), notes)

Two recordings are compared in the order of time; the first difference, given equal inputs, is the
cause. Where runs of the new code are possible, one with that difference put back proves it. A line
of the table reads what was found of the case, and says a verdict, or None. What one case alone
cannot say is put to the site's numerics or samples (numerics/questions.py, numerics/samples.py);
the verdict that stands meanwhile says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parity.goldens.store import Case
from parity.goldens.verdict import (
    STAGES,
    Cause,
    Certainty,
    Difference,
    Verdict,
    brief,
    equal,
    excerpts,
    place_name,
)
from parity.judge.align import paired
from parity.judge.comparison import Comparison
from parity.judge.equal import asked_otherwise, is_other_samples, latent_cause
from parity.judge.inquiry import NOT_BACK, Inquiry
from parity.judge.naming import broken_cause, difference_cause, named_cause
from parity.judge.numerics.numbers import number_gap
from parity.judge.numerics.questions import (
    Beside,
    Judged,
    Question,
    could_not,
    ends_elsewhere,
    kind_of,
    place_of,
    steps_of,
)
from parity.judge.numerics.samples import FOLLOWS_SETTINGS, Samples
from parity.judge.numerics.weights import OF_SEVERAL, in_float32, most_rounding
from parity.judge.replay import ALONE, UNCACHED
from parity.judge.row import (
    Pairs,
    Row,
    adapters_in,
    are_prefixes,
    decodes_of,
    entry,
    images_in,
    is_drawn,
    model_in,
    prompt_around_pictures,
    prompt_of,
    request_of,
    same_prompt,
    seeds_of,
    text_of,
    unseen,
)
from parity.judge.stages.answer import kind_of_error
from parity.judge.values import (
    Path,
    TextPair,
    first_parting,
    leaves,
    lists_apart,
    moved_parts,
    partings,
    resembles,
    stand_as,
    texts_apart,
    texts_in,
)

if TYPE_CHECKING:
    from parity.judge.numerics.answers import Numerics


@dataclass
class Findings:
    """What is found of one case.

    inquiry: into the case, with further runs.
    samples, numerics: what is asked over all cases of the site.
    changing: parts of the new value that are others when the new code is run again, if they are all
    that differs.
    """

    inquiry: Inquiry
    samples: Samples
    numerics: Numerics | None
    changing: Callable[[], Sequence[str]]

    @property
    def comparison(self) -> Comparison:
        return self.inquiry.comparison

    @property
    def old(self) -> Case:
        return self.inquiry.old

    @property
    def new(self) -> Case:
        return self.inquiry.new


def judge(findings: Findings) -> Judged:
    for line in TABLE:
        found = line(findings)
        if found is not None:
            break
    else:
        found = of_rounding(findings)
    return ask_numerics(findings, found)


def drift(cause: Cause | None) -> Judged | None:
    return None if cause is None else ("DRIFT", cause, ())


# == One side, or both, raise; the old code does not repeat itself ==


def unstable(findings: Findings) -> Judged | None:
    if findings.old.repeats is not False:
        return None
    said = "the old code gave another value when it was recorded twice"
    return "UNSTABLE", Cause("unstable", "confirmed", said), ()


def of_errors(findings: Findings) -> Judged | None:
    old = findings.old.raised
    new = findings.new.raised
    if old == new:
        return None
    if old is None:
        value = brief(findings.old.value)
        said = f"the old code returned {value}, the new code raised {new}"
    elif new is None:
        value = brief(findings.new.value)
        said = f"the old code raised {old}, the new code returned {value}"
    else:
        what = "message" if kind_of_error(old) == kind_of_error(new) else "exception"
        said = f"the old code raised {old}, the new code raises {new}: another {what}"
    return drift(Cause("error", "confirmed", said, "seen directly"))


# == The same value ==


def of_same_value(findings: Findings) -> Judged | None:
    """What differs all the same; else whether ids are equal, too."""
    comparison = findings.comparison
    if not comparison.has_same_value:
        return None
    if cause := latent_cause(comparison) or of_prompts_behind(findings.inquiry):
        return "LATENT", cause, ()
    if is_other_samples(comparison):
        return of_same_value_of_draws(findings)
    has_unseen = any(unseen(*pair) for pair in comparison.pairs)
    is_identical = comparison.has_same_ids and not has_unseen
    return ("IDENTICAL" if is_identical else "TEXT-IDENTICAL"), None, ()


def of_same_value_of_draws(findings: Findings) -> Judged:
    _, cause, notes = findings.samples.judge(findings.old, findings.new)
    if cause is not None and cause.certainty == "confirmed":
        return "LATENT", cause, notes
    return "TEXT-IDENTICAL", None, notes


# == Which requests were asked ==


def of_calls(findings: Findings) -> Judged | None:
    """Another number of requests, where no answer to those that both sides ask differs."""
    comparison = findings.comparison
    if comparison.has_as_many_rows or not comparison.old.rows:
        return None
    if not all(is_same_answer_or_sample(*pair) for pair in comparison.pairs):
        return None
    if comparison.counted:
        return None
    return drift(of_added(comparison) or other_number(comparison.old, comparison.new))


def of_added(comparison: Comparison) -> Cause | None:
    """What made another value, where the new code asks all that the old code does, and besides for
    a greedy answer that does not show in what differs: that it is asked is no cause."""
    paired_rows = {id(new) for _, new in comparison.pairs}
    added = [row for row in comparison.new.rows if id(row) not in paired_rows]
    if len(comparison.pairs) < len(comparison.old.rows):
        return None
    if any(row.get("scored") or is_drawn(row) for row in added):
        return None
    answers = [text_of(row).strip() for row in added]
    for _, old, new in partings(comparison.old.value, comparison.new.value):
        if isinstance(new, (list, Mapping)) or type(old) is not type(new):
            return None
        if any(str(new) in answer or answer in str(new) for answer in answers):
            return None
    proof = "the old requests have their old answers, and what is asked besides does not show"
    return dataclasses.replace(made_of_ids(comparison), certainty="likely", proof=proof)


def other_number(old: Case, new: Case, proof: str = "seen directly") -> Cause:
    counts = f"the old code has {len(old.rows)} answers, the new code {len(new.rows)}"
    return named_cause("calls", "confirmed", f"{counts}: some were added, dropped or kept", proof)


def is_same_answer_or_sample(old: Row, new: Row) -> bool:
    return old["output_ids"] == new["output_ids"] or is_drawn(old) or unseen(old, new)


# == Whose answer it is ==


def of_order(findings: Findings) -> Judged | None:
    """Rows, or parts of the value, whose answers are another request's."""
    comparison = findings.comparison
    moved = [one for one in comparison.differences if one.name == "order"]
    if moved and not comparison.has_same_ids:
        proof = "put back in order, the recorded ids are the same"
        if moved[0].old == "its own request":
            proof = "the engine was seen to give it"
        return drift(difference_cause("confirmed", moved[0], proof))
    if taken := given_to_another(findings.old.rows, findings.new.rows):
        said = f"row {taken[0]} got row {taken[1]}'s"
        return drift(named_cause("order", "confirmed", said, "it came with that one's prompt"))
    is_answered = any(row["output_ids"] for row in findings.old.rows)  # else equal ids say nothing
    is_behind = comparison.counted and not (comparison.has_same_ids and is_answered)
    if is_behind or len(findings.old.rows) < 2 or not are_prefixes(comparison.pairs):
        return None
    found = of_places(comparison)  # what is but likely is behind what a run may prove
    return drift(found) if found is not None and found.certainty == "confirmed" else None


def of_places(comparison: Comparison) -> Cause | None:
    """Parts of the value in other places: all that differ, or a list with an entry for each request
    whose entries stand as the requests are asked now. It is sure of an answer's text, or of numbers
    that no rounding orders otherwise; a flag or a rank that two entries exchange is another value.
    """
    old = comparison.old
    new = comparison.new
    same = same_but_for_rounding(old, new)
    if moved := moved_parts(old.value, new.value, same):
        if not any(texts_in(moved)) and not has_numbers(moved):
            return None
        is_sure = is_made_of_answers(comparison, moved) or has_numbers(moved)
        sentence = value_sentence(comparison)
        proof = "put back in order, the values are the same"
    elif (path := as_asked_now(comparison, same)) is not None:
        is_sure = True
        sentence = f"{place_name(path)} stands in the order in which its requests are asked now"
        proof = "put back in the golden's order, it is the same"
    else:
        return None
    is_read = has_numbers(old.value) or any(row.get("scored") for row in old.rows)
    if is_read and not in_float32(old, new):
        is_sure = False
    return named_cause("order", "confirmed" if is_sure else "likely", sentence, proof)


def has_numbers(value: Any) -> bool:
    """Whether it holds a number with a fraction."""
    return any(not number.is_integer() for _, number in leaves(value, kind=float))


def is_made_of_answers(comparison: Comparison, value: Any) -> bool:
    """Whether a text of it is an answer's, or a part of one."""
    answers = [text_of(row) for row in comparison.old.rows]
    texts = [text.strip() for text in texts_in(value)]
    return any(text and any(text in answer for answer in answers) for text in texts)


def same_but_for_rounding(old: Case, new: Case) -> Callable[[Any, Any], bool]:
    """Whether two parts of their values are the same, or in numbers as near as rounding leaves
    them."""
    most = most_rounding(old, new)

    def same(one: Any, other: Any) -> bool:
        gap = 0.0 if equal(one, other) else number_gap(one, other)
        return gap is not None and gap <= most

    return same


def as_asked_now(comparison: Comparison, same: Callable[[Any, Any], bool]) -> Path | None:
    """Where a list of the value stands that has an entry for each request, in the order in which
    the new code asks them."""
    if not comparison.has_as_many_rows:
        return None
    indices = {id(row): k for k, row in enumerate(comparison.new.rows)}
    places = [indices[id(new)] for _, new in comparison.pairs]
    if places == sorted(places):
        return None
    for path, old, new in lists_apart(comparison.old.value, comparison.new.value):
        if stand_as(places, old, new, same):
            return path
    return None


def given_to_another(old: Sequence[Row], new: Sequence[Row]) -> tuple[int, int] | None:
    """(row, whose answer it got), where the first prompt that differs was seen to come with another
    request's answer: it is that one's, and says nothing of the prompts' own stages."""
    asked = [asked_as(row) for row in old]
    for number, row in enumerate(new):
        given = asked_as(row)
        if asked[number : number + 1] == [given]:
            continue
        is_seen = request_of(row).get("answers") == "another"
        return (number, asked.index(given)) if is_seen and given in asked else None
    return None


def asked_as(row: Row) -> tuple[Any, Any]:
    images = [(image.get("sha256"), image.get("budget")) for image in images_in(row)]
    return prompt_around_pictures(row), images


# == Further runs: an old value put back, nothing from a cache, each request alone ==


def of_put_back(findings: Findings) -> Judged | None:
    return drift(findings.inquiry.by_put_back())


def of_cache(findings: Findings) -> Judged | None:
    return drift(by_cache(findings.inquiry))


def by_cache(inquiry: Inquiry) -> Cause | None:
    """An answer out of a cache that the model would not give."""
    rows = [k for k, (_, row) in enumerate(inquiry.pairs) if request_of(row).get("cached")]
    if not rows:
        return None
    again = inquiry.run({}, {UNCACHED})
    if inquiry.restores(again):
        said = f"row {rows[0]} was answered by the cache"
        proof = "without the cache the old answer comes back"
        return named_cause("cache", "confirmed", said, proof)
    if again is None or again.raised is not None:
        return None
    taken = of_another(inquiry.new, again)
    if not taken:
        return None
    by_whom = "as another model, or another setting, had answered before"
    said = f"row {taken[0]} was answered by the cache {by_whom}"
    return named_cause("cache", "likely", said, "without the cache it gets another answer")


def of_another(new: Case, again: Case) -> list[int]:
    """Rows out of a cache whose answers are not their own, by a run without the cache, but all
    those of others that asked the same of another model or with other settings: between two dtypes
    rounding might explain the ids. Of samples, those with a seed say it."""
    found = []
    for position, (row, own) in enumerate(paired(new.rows, again.rows)):
        if row["output_ids"] == own["output_ids"] or (is_drawn(row) and not seeds_of(row)):
            continue
        if not request_of(row).get("cached"):
            return []  # no cache gave this one: the run says nothing of those that one gave
        if not any(is_same_answer(one, row) for one in new.rows[:position]):
            return []
        found.append(position)
    return found


def is_same_answer(one: Row, row: Row) -> bool:
    """Whether a row that was asked otherwise has the same prompt and answer."""
    is_same = all(one[name] == row[name] for name in ("prompt_ids", "output_ids"))
    return is_same and how_asked(one) != how_asked(row)


def how_asked(row: Row) -> Any:
    model = model_in(row)
    return model.get("path"), model.get("dtype"), row.get("sampling"), row.get("stop")


def of_company(findings: Findings) -> Judged | None:
    """In half precision rounding depends on the rest of the batch: there numerics are asked
    first."""
    if not in_float32(findings.old, findings.new):
        return None
    return drift(by_company(findings.inquiry))


def by_company(inquiry: Inquiry) -> Cause | None:
    """Each request by itself, nothing from a cache: is it the rest of the batch?"""
    if not can_be_company(inquiry):
        return None
    alone = inquiry.run({}, {ALONE})
    if alone is None or not inquiry.restores(alone):
        return None
    proof = "each request by itself gives the old answer"
    rows = inquiry.new.rows
    once = next((k for k, row in enumerate(rows) if request_of(row).get("shared")), None)
    if once is not None:
        said = f"row {once} and an unlike one with this prompt were computed once"
        return named_cause("cache", "confirmed", said, proof)
    batch = STAGES.index("batch")
    counted = [d for _, d in inquiry.comparison.counted if STAGES.index(d.stage) < batch]
    if counted:
        said = f"{counted[0].sentence()}; only beside others"
        return named_cause(counted[0].name, "confirmed", said, proof)
    taken = answers_of_others(rows, alone.rows)
    if taken is not None:
        said = f"row {taken[0]} got row {taken[1]}'s"
        return named_cause("order", "confirmed", said, proof)
    return named_cause("batch", "confirmed", f"the case has {len(rows)} rows", proof)


def can_be_company(inquiry: Inquiry) -> bool:
    rows = inquiry.new.rows
    if inquiry.rerun is None or len(rows) < 2:
        return False
    # Other samples may be the old ones by chance, where something is declared otherwise.
    return not (inquiry.comparison.counted and inquiry.may_be_luck)


def answers_of_others(beside: Sequence[Row], alone: Sequence[Row]) -> tuple[int, int] | None:
    """(row, whose answer it got), where rows that are asked alone get other ones' answers among the
    others. That a row answers as one of the same prompt does says nothing."""
    if len(alone) != len(beside) or prompt_lengths(alone) != prompt_lengths(beside):
        return None
    for number, (row, own) in enumerate(zip(beside, alone)):
        answer = row["output_ids"]
        if answer == own["output_ids"]:
            continue
        for other, one in enumerate(alone):
            if one["output_ids"] == answer and asked_as(one) != asked_as(own):
                return number, other
    return None


def prompt_lengths(rows: Sequence[Row]) -> set[int]:
    return {len(row["prompt_ids"]) for row in rows}


# == Samples ==


def of_draws(findings: Findings) -> Judged | None:
    """Other samples, beside which nothing differs that says how a token is drawn."""
    comparison = findings.comparison
    kept = sampled_part(comparison)
    if kept is None or comparison.broken:
        return None
    named = comparison.counted
    if any(not name.startswith(("model.attention", "batch.", "stop.")) for name, _ in named):
        return None
    if cause := by_cache(findings.inquiry):
        return drift(cause)
    copies = comparison.has_as_many_rows
    judged = findings.samples.judge(*kept, count_copies=copies)
    if judged[0] not in FOLLOWS_SETTINGS:
        return None if named else judged
    return beside_draws(judged, named[0][1]) if named else made_of_draws(findings, judged)


def beside_draws(judged: Judged, difference: Difference) -> Judged:
    """The draws follow the settings: whether a value shows more than them is luck, so a difference
    is LATENT whatever the luck; but where a row ends is no matter of luck, and changes values."""
    proof = "seen directly; the draws follow the golden's settings"
    found: Verdict = "DRIFT" if difference.stage == "stop" else "LATENT"
    return found, difference_cause("confirmed", difference, proof), judged[2]


def made_of_draws(findings: Findings, judged: Judged) -> Judged:
    """What samples say, unless the new code makes something else of the golden's own ids."""
    made = from_other_ids(findings.inquiry)
    allowed = 0.0 if in_float32(findings.old, findings.new) else math.inf
    return ("DRIFT", made.cause, judged[2]) if made.counts(allowed) else judged


def sampled_part(comparison: Comparison) -> tuple[Case, Case] | None:
    """Both without what only follows from samples that differ: other prompts behind them. None
    where no samples differ, or something else differs first."""
    first = comparison.first_call
    if first is None or comparison.has_same_ids:
        return None
    kept = []
    for call, pair in zip(comparison.calls, comparison.pairs):
        is_alike = all(map(is_drawn, pair)) and same_prompt(*pair)
        if call == first and not is_alike:
            return None
        if call <= first or is_alike:
            kept.append(pair)
    follows = bool(comparison.behind)
    if not comparison.has_as_many_rows and not follows and first == max(comparison.calls):
        follows = True  # what was asked with the samples is asked no more, or more often
    if not comparison.has_as_many_rows and not follows:
        return None
    rows = list(zip(*kept))
    return with_rows(comparison.old, rows[0]), with_rows(comparison.new, rows[1])


def with_rows(case: Case, rows: Sequence[Row]) -> Case:
    return dataclasses.replace(case, rows=tuple(rows))


# == The golden's ids, forced ==

FORCED = "the golden's ids were forced, to see what the new code makes of them"


def from_other_ids(inquiry: Inquiry) -> Beside:
    """Where ids are others, as they may be: of the golden's own ids, forced, the new code is to ask
    and to make what the old code did. Where they cannot be forced, each text is to stand to its own
    answer as the golden's does."""
    forced = inquiry.forced()
    if forced is None:
        return Beside(of_prompts_behind(inquiry) or from_own_ids(inquiry))
    inquiry.steps.append(FORCED)
    old = inquiry.old
    made = Comparison(old, forced, inquiry.comparison.tools, is_forced=True)
    if cause := asked_under_force(made):
        return Beside(cause)
    if said := asked_otherwise(old, forced):
        return Beside(named_cause("calls", "confirmed", said, FORCED))
    if equal(old.value, forced.value) or lacks_only_ends(made):
        return Beside()
    gap = number_gap(old.value, forced.value) or 0.0
    if not made.has_as_many_rows:
        return Beside(other_number(old, forced, FORCED), gap)
    return Beside(made_of_ids(made), gap)


def asked_under_force(made: Comparison) -> Cause | None:
    """The first prompt, or picture, that differs though the answers before it do not."""
    batch = STAGES.index("batch")
    for _, difference in made.counted:
        if STAGES.index(difference.stage) < batch:
            proof = "with the golden's ids forced, this differs still"
            return text_held(made, difference) or difference_cause("confirmed", difference, proof)
    return None


def text_held(made: Comparison, difference: Difference) -> Cause | None:
    """What made another text of an earlier answer's own ids, where a prompt behind it holds that
    text: it alone makes the prompt another one, or may."""
    number = difference.row or 0
    before, after = (row.get("prompt_text") for row in made.pairs[number])
    earlier = {k for k, call in enumerate(made.calls) if call < made.calls[number]}
    if None in (before, after) or not earlier:
        return None
    answers = list(texts_of_answers(made, [made.pairs[k] for k in sorted(earlier)]))
    certainty: Certainty = "confirmed"
    proof = "with its new text in the old one's place, the prompt behind it becomes the new one"
    found = first_replaced(str(before), str(after), answers)
    if found is None:
        certainty, proof = "likely", "each prompt behind it holds the text of its own side"
        found = first_held(str(before), str(after), answers)
    if found is None:
        return None
    for one in made.differences:
        if one.stage == "stop" and one.counts and one.row in earlier:
            return difference_cause(certainty, one, proof)
    return text_cause(found, certainty, proof)


def first_held(before: str, after: str, answers: Sequence[OtherText]) -> OtherText | None:
    """The answer of which a prompt holds the old text, and the new prompt the new one."""
    for name, text, new_text in answers:
        old, new = text.strip(), new_text.strip()
        if old != new and len(old) >= LEAST_HELD and old in before and new in after:
            return name, text, new_text
    return None


def lacks_only_ends(made: Comparison) -> bool:
    """Whether texts only end where the new stops end an answer, that a criterion of the old code's
    own had let go on."""
    decode = made.tools.decode
    texts = texts_apart(made.old.value, made.new.value)
    if made.has_same_ids or decode is None or not texts:
        return False
    rests = set()
    for old, new in made.pairs:
        whole = decode(old["output_ids"], True, False)
        part = decode(new["output_ids"], True, False)
        rests |= {whole.removeprefix(part).rstrip()} - {""}
    return all(any(is_without(rest, old, new) for rest in rests) for old, new in texts)


def is_without(rest: str, old: str, new: str) -> bool:
    """Whether a text is another one without what it ends with, and blanks there."""
    kept = old.rstrip().removesuffix(rest)
    return kept != old.rstrip() and kept.rstrip() == new.rstrip()


def of_prompts_behind(inquiry: Inquiry) -> Cause | None:
    """A prompt behind an answer that differs, that differs by itself: also with the golden's ids
    forced; or, where they cannot be forced, though it holds no answer."""
    comparison = inquiry.comparison
    if not comparison.behind:
        return None
    forced = inquiry.forced()
    if forced is not None:
        return asked_under_force(Comparison(inquiry.old, forced, comparison.tools, is_forced=True))
    for difference in comparison.differences:
        number = difference.row
        if number in comparison.behind and not holds_answer(comparison, number):
            proof = "it holds no answer that differs"
            return difference_cause("likely", difference, proof)
    return None


LEAST_HELD = 4  # characters of a whole answer that a prompt does not hold by chance
HELD = 12  # characters, or ids, of an answer's beginning that a prompt does not hold by chance


def holds_answer(comparison: Comparison, number: int | None) -> bool:
    """Whether a prompt holds the beginning of an earlier answer, as text or as ids."""
    old = comparison.pairs[number or 0][0]
    text = f"{old.get('prompt_text') or ''}{old.get('messages') or ''}"
    ids = words(old["prompt_ids"])
    for call, (earlier, _) in zip(comparison.calls, comparison.pairs):
        if call >= comparison.calls[number or 0]:
            break
        said = text_of(earlier).strip()[:HELD]
        if (said and said in text) or words(earlier["output_ids"][:HELD]) in ids:
            return True
    return False


def words(ids: Sequence[int]) -> str:
    return "".join(f" {i}," for i in ids)


def from_own_ids(inquiry: Inquiry) -> Cause | None:
    """Each text that is an answer's, as it is or without blanks, is to be one in the new value, or
    the beginning of one: code may cut at what the old answer does not hold."""
    proof = "the golden's own ids could not be forced"
    if unasked := unasked_rows(inquiry):
        said = f"{len(unasked)} of {len(inquiry.old.rows)} prompts are not asked any more"
        return named_cause("calls", "likely", said, proof)
    if inquiry.new.raised is not None:
        said = f"of other ids the new code makes {inquiry.new.raised}"
        return named_cause("error", "likely", said, proof)
    new_texts = dict(leaves(inquiry.new.value))
    for path, text in leaves(inquiry.old.value):
        for way in (str, str.strip):
            pairs = answers_apart(inquiry.comparison, text, way)
            if pairs and path in new_texts and not begins_one(new_texts[path], {*pairs, text}):
                said = f"{place_name(path)} is {brief(new_texts[path])}"
                return named_cause("value", "likely", f"{said}, and no answer is", proof)
            if pairs:
                break
    return None


def begins_one(text: str, answers: Collection[str]) -> bool:
    if not text.strip():
        return text in answers
    return any(answer.strip().startswith(text.strip()) for answer in answers)


def unasked_rows(inquiry: Inquiry) -> list[Row]:
    """The golden's rows whose prompts the new code does not ask, also not for another row. One that
    holds an answer may not be asked where that answer is another one."""
    asked = {prompt_of(old) for old, _ in inquiry.pairs}
    left = [row for row in inquiry.old.rows if prompt_of(row) not in asked]
    answers = [words(row["output_ids"][:HELD]) for row in inquiry.old.rows if row["output_ids"]]
    return [row for row in left if not any(ids in words(row["prompt_ids"]) for ids in answers)]


def answers_apart(comparison: Comparison, text: str, way: Callable[[str], str]) -> set[str]:
    """What the new answers are in place of one that is this text."""
    if not text.strip():
        return set()
    found = set()
    for old, new in comparison.pairs:
        if text in map(way, possible_texts(comparison, old)):
            found |= set(map(way, possible_texts(comparison, new)))
    return found


def possible_texts(comparison: Comparison, row: Row) -> set[str]:
    """What a row's ids became, each time, and what they are with and without special tokens."""
    texts = {one.get("text") or "" for one in decodes_of(row)}
    if comparison.tools.decode is not None:
        texts |= {
            comparison.tools.decode(row["output_ids"], skips, False) for skips in (True, False)
        }
    return texts


# == Behind the model ==


def of_invariant(findings: Findings) -> Judged | None:
    """The first invariant that the new side alone breaks, unless an earlier stage differs."""
    comparison = findings.comparison
    if not comparison.broken:
        return None
    first = comparison.broken[0]
    place = STAGES.index(first.place)
    if any(STAGES.index(difference.stage) < place for _, difference in comparison.counted):
        return None
    if comparison.has_same_ids and first.law in ("end", "text"):
        return None  # the texts themselves tell it
    return drift(broken_cause(first))


# Stages, and fields of the model, that act by the ids alone: equal ids acquit them.
CHOOSING = ("sampling.", "stop.", "batch.", "model.attention", "model.buffers")


def of_equal_ids(findings: Findings) -> Judged | None:
    """Equal ids, and another value. Where an earlier stage differs, too, only if it chooses ids and
    putting it back was tried in vain: another prompt, or model, is another request, whatever is
    answered."""
    inquiry = findings.inquiry
    comparison = findings.comparison
    if not comparison.has_same_ids:
        return None
    if comparison.counted:
        if not all(name.startswith(CHOOSING) for name, _ in comparison.counted):
            return None
        has_gap = number_gap(findings.old.value, findings.new.value)
        untried = [name for name, _ in comparison.counted if inquiry.why_untried(name)]
        if has_gap or untried:
            return None
    cause = made_of_ids(comparison)
    if cause.name == "value" and (parts := findings.changing()):
        return could_not(
            f"the new code gives another {', '.join(parts)} each time that it is run, and of the"
            " old code that is not known; record it with --repeat 2"
        )
    return drift(cause)


def made_of_ids(comparison: Comparison) -> Cause:
    """Of equal ids: another text, or another value of the same text."""
    if len(comparison.old.rows) > 1 and (order := of_places(comparison)):
        return order
    if found := of_texts(comparison) or of_cut(comparison):
        return found
    is_sure = bool(comparison.pairs) and comparison.has_same_ids and not comparison.counted
    is_sure = is_sure and all(is_seen_alike(*pair) for pair in comparison.pairs)
    proof = "the ids are the same, and so is their text" if is_sure else "the ids are the same"
    if comparison.is_forced:
        proof = f"with the golden's ids forced, {proof}"
    if is_sure and are_fractions_of_no_score(comparison):
        is_sure = False
        proof += "; where the numbers come from was not seen"
    if is_sure and may_be_chosen_by_numbers(comparison):
        is_sure = False
        proof += "; where numbers decide, rounding may"
    certainty: Certainty = "confirmed" if is_sure else "likely"
    return named_cause("value", certainty, value_sentence(comparison), proof)


def are_fractions_of_no_score(comparison: Comparison) -> bool:
    """Whether only numbers with fractions differ, and no row was scored: they may be drawn."""
    apart = list(partings(comparison.old.value, comparison.new.value))
    if any(row.get("scored") for row in comparison.new.rows):
        return False
    return bool(apart) and all(isinstance(old, float) for _, old, _ in apart)


def may_be_chosen_by_numbers(comparison: Comparison) -> bool:
    """Whether a value in half precision holds numbers with fractions beside what differs: the
    likeliest of some labels may be another one where two are as likely."""
    old = comparison.old
    is_number = next(leaves(old.value, kind=float), None) is not None
    return is_number and not in_float32(old, comparison.new)


def is_seen_alike(old: Row, new: Row) -> bool:
    """Whether prompt, text and adapter of a row were seen on both sides, and are the same."""
    if bool(adapters_in(old)) != bool(adapters_in(new)):
        return False  # vLLM's folder is not held against weights that went through transformers
    texts = old.get("text"), new.get("text")
    has_same_text = None not in texts and texts[0] == texts[1]
    is_scored = old.get("scored") and new.get("scored")
    return bool(old["prompt_ids"] == new["prompt_ids"] and (has_same_text or is_scored))


def of_texts(comparison: Comparison) -> Cause | None:
    """The value differs as the texts do that equal ids became: with the new text in the old one's
    place, the old value becomes the new one."""
    old = comparison.old.value
    new = comparison.new.value
    texts = [(a, b) for _, a, b in partings(old, new) if isinstance(a, str) and isinstance(b, str)]
    answers = list(texts_of_answers(comparison, comparison.pairs))
    found = [first_replaced(*pair, answers) for pair in texts]
    if not found or found[0] is None:
        return None
    certainty: Certainty = "confirmed" if None not in found else "likely"
    proof = "with the new text in the old one's place, the old value becomes the new one"
    return text_cause(found[0], certainty, proof)


def of_cut(comparison: Comparison) -> Cause | None:
    """An answer's text that one value holds whole and the other one cut. By what, the code alone
    knows, unless a stop stands there."""
    whole = {text_of(row).strip() for pair in comparison.pairs for row in pair}
    for _, old, new in partings(comparison.old.value, comparison.new.value):
        if not isinstance(old, str) or not isinstance(new, str):
            continue
        short, long = sorted((old, new), key=len)
        rest = long.removeprefix(short)
        if not short.strip() or rest == long or not rest.strip() or long.strip() not in whole:
            continue
        sentence = value_sentence(comparison)
        for stop in sorted(stops_told(comparison), key=len, reverse=True):
            if rest.startswith(stop) or (stop.strip() and rest.lstrip().startswith(stop)):
                proof = f"the ids are the same, and {stop!r} stands where one text ends"
                return named_cause("stop", "likely", sentence, proof)
        proof = "the ids are the same; one text ends within an answer: at a stop, or cut otherwise"
        return named_cause("value", "likely", sentence, proof)
    return None


def stops_told(comparison: Comparison) -> set[str]:
    """Texts that may be stops: those of the rows, and what the call was given."""
    rows = [row for pair in comparison.pairs for row in pair]
    told = {string for row in rows for string in entry(row, "stop", "strings") or ()}
    given = {text for _, text in leaves(comparison.old.arguments)}
    return told | {text for text in given if len(text) > 1 or not text.isalnum()} - {""}


OtherText = tuple[str, str, str]  # a cause's name, and what equal ids became on both sides


def text_cause(found: OtherText, certainty: Certainty, proof: str) -> Cause:
    name, before, after = found
    was, now = excerpts(before, after)
    said = f"the text was {was}, is {now}"
    if name == "stop":
        short, long = sorted((before, after), key=len)
        said = f"{said}, {'with' if after == long else 'without'} the stop {long[len(short) :]!r}"
    return named_cause(name, certainty, said, proof)


def texts_of_answers(comparison: Comparison, pairs: Pairs) -> Iterator[OtherText]:
    """As it was recorded, each time; by the flags of both sides; and with and without special
    tokens, of which a value may hold either."""
    decode = comparison.tools.decode
    for old, new in pairs:
        for one, other in itertools.product(decodes_of(old), decodes_of(new)):
            name = name_of_flags(one, other)
            texts = one.get("text") or "", other.get("text") or ""
            if name == "decode" and is_of_stop(texts, old, new):
                name = "stop"
            yield name, *texts
            if decode is not None and name == OTHER_FLAG:
                ids = old["output_ids"]
                flags = [bool(how["skip_special_tokens"]) for how in (one, other)]
                yield name, decode(ids, flags[0], False), decode(ids, flags[1], False)
        if decode is not None and old["output_ids"] == new["output_ids"]:
            bare, whole = (decode(old["output_ids"], skips, False) for skips in (True, False))
            yield OTHER_FLAG, bare, whole
            yield OTHER_FLAG, whole, bare


OTHER_FLAG = "decode.skip_special_tokens"


def is_of_stop(texts: TextPair, *rows: Row) -> bool:
    """Whether one text is the other one and a stop string."""
    short, long = sorted(texts, key=len)
    strings = {string for row in rows for string in entry(row, "stop", "strings") or ()}
    return any(long == short + string for string in strings)


def name_of_flags(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    for flag in ("skip_special_tokens", "clean_up"):
        if None not in (one.get(flag), other.get(flag)) and one[flag] != other[flag]:
            return f"decode.{flag}"
    return "decode"


def first_replaced(one: str, other: str, answers: Sequence[OtherText]) -> OtherText | None:
    """The answer whose new text, in the place of its old one, makes a text of the value the new
    one."""
    for name, text, new_text in answers:
        if text != new_text and text.strip() and is_replaced(one, other, text, new_text):
            return name, text, new_text
    return None


def is_replaced(one: str, other: str, text: str, new_text: str) -> bool:
    is_whole = one.replace(text, new_text) == other
    return is_whole or one.replace(text.strip(), new_text.strip()) == other


def value_sentence(comparison: Comparison) -> str:
    """Where the values part first, and what each holds there."""
    found = first_parting(comparison.old.value, comparison.new.value)
    if found is None:
        return "the values differ"
    path, old, new = found
    was, now = excerpts(old, new)
    return f"{place_name(path)} was {was}, is {now}"


def of_stop(findings: Findings) -> Judged | None:
    """Of each answer one is the beginning of the other: its end was not the model's choice."""
    comparison = findings.comparison
    if comparison.counted or comparison.has_same_ids or not comparison.has_as_many_rows:
        return None
    if not are_prefixes(comparison.pairs):
        return None
    apart = list(partings(comparison.old.value, comparison.new.value))
    texts = [(old, new) for _, old, new in apart if isinstance(old, str) and isinstance(new, str)]
    has_other_end = any(resembles(*pair) and pair[0].strip() != pair[1].strip() for pair in texts)
    is_end = all(resembles(*pair) or is_label(comparison, *pair) for pair in texts)
    if apart and not (has_other_end and is_end):
        proof = "the ids are the same as far as both go, and the texts are not"
        return drift(named_cause("value", "likely", value_sentence(comparison), proof))
    return drift(of_other_ends(findings.inquiry))


def is_label(comparison: Comparison, *texts: str) -> bool:
    """Whether texts are part of no answer, such as why one ended."""
    rows = [row for pair in comparison.pairs for row in pair]
    answers = {one for row in rows for one in possible_texts(comparison, row)}
    return not any(text.strip() in answer for text in texts for answer in answers)


def of_other_ends(inquiry: Inquiry) -> Cause:
    proof = "one answer is the beginning of the other"
    for _, difference in inquiry.comparison.named:
        if difference.stage == "stop":
            return difference_cause("likely", difference, proof)
    for number, (old, new) in enumerate(inquiry.pairs):
        if old["output_ids"] != new["output_ids"]:
            counts = f"{len(old['output_ids'])} tokens, and has {len(new['output_ids'])}"
            return named_cause("stop", "likely", f"row {number} had {counts}", proof)
    return named_cause("stop", "unattributed", proof)


def of_first(findings: Findings) -> Judged | None:
    """The first difference that counts, where no run proved it."""
    inquiry = findings.inquiry
    for name, difference in findings.comparison.counted:
        if inquiry.is_possible(difference):
            why = inquiry.why_untried(name)
            untried = f"putting it back was not tried, because {why}"
            proof = f"the first difference; {untried if why else why_not_back(inquiry)}"
            return drift(difference_cause("likely", difference, proof))
    return None


def why_not_back(inquiry: Inquiry) -> str:
    """What else may keep the old answer from coming back, where that is known."""
    if any(is_drawn(row) for pair in inquiry.pairs for row in pair):
        return f"{NOT_BACK}: what is sampled comes out otherwise all the same"
    if not in_float32(inquiry.old, inquiry.new):
        return f"{NOT_BACK}: in half precision rounding may part the answers all the same"
    return NOT_BACK


# == Nothing but arithmetic is left ==


def of_rounding(findings: Findings) -> Judged:
    """The site's numerics decide, when all cases were run; until then, no one."""
    inquiry = findings.inquiry
    old = findings.old
    new = findings.new
    if ends_elsewhere(old, new) or not steps_of(old, new):
        cause = by_company(inquiry) or of_prompts_behind(inquiry) or of_other_ends(inquiry)
        return "DRIFT", cause, ()
    if (place := place_of(old, new, "parted")) is None:
        return could_not(OF_SEVERAL)
    judged = could_not("the numerics of its site were not read")
    if findings.numerics is None:
        return judged
    company = by_company(inquiry)
    beside = beside_rounding(inquiry)
    question = Question(
        old, new, findings.samples.backend, "parted", judged, company, beside, place
    )
    findings.numerics.ask(question)
    return judged


def beside_rounding(inquiry: Inquiry) -> Beside:
    """What else differs where ids part, and may do so by rounding: no near tie is to hide it."""
    counted = inquiry.comparison.counted
    if not counted:
        return from_other_ids(inquiry)
    proof = "seen directly; where the ids part it has no say"
    return Beside(difference_cause("likely", counted[0][1], proof))


def ask_numerics(findings: Findings, judged: Judged) -> Judged:
    """Ask for the site's numerics where this verdict hangs on them, beside what `of_rounding`
    asks."""
    numerics = findings.numerics
    old = findings.old
    new = findings.new
    if numerics is None or not old.rows or not new.rows:
        return judged
    kind = kind_of(old, new, judged, numerics.always)
    if kind is None:
        return judged
    if (place := place_of(old, new, kind)) is None:
        return judged if is_beyond_float32(old, new) else could_not(OF_SEVERAL)
    numerics.ask(Question(old, new, findings.samples.backend, kind, judged, place=place))
    return judged


def is_beyond_float32(old: Case, new: Case) -> bool:
    """Whether numbers of a float32 path are further apart than its rounding of a sum over all
    tokens, one of which is off by FLOOR at most."""
    from parity.judge.numerics.errors import FLOOR

    gap = number_gap(old.value, new.value) or 0.0
    tokens = sum(len(row["prompt_ids"]) + len(row["output_ids"]) for row in old.rows)
    return in_float32(old, new) and gap > FLOOR * tokens


TABLE: tuple[Callable[[Findings], Judged | None], ...] = (
    unstable,
    of_errors,
    of_same_value,
    of_order,
    of_draws,
    of_put_back,
    of_cache,
    of_company,
    of_invariant,
    of_calls,
    of_equal_ids,
    of_stop,
    of_first,
)
