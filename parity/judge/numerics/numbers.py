"""Numbers among the values of two recordings: how far they are apart, and what was rounded off."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from parity.goldens.store import as_written
from parity.goldens.verdict import Cause, equal
from parity.judge.naming import named_cause
from parity.judge.values import content, leaves

OF_ONE_STEP = 2  # best tokens: no rounding puts others in the place of all of more than these
DIGITS = 4  # behind the point: what code rounds to
HALF_BITS = 11  # float16 holds as many, bfloat16 eight
SEQUENCES = (list, tuple)
OF_TWO = 2  # numbers that a third one is the difference of
MORE_THAN_SURE = 0.01  # of probabilities of one step, by rounding

BestTokens = Mapping[Any, float]  # token -> log-probability
Ranking = Mapping[str, Sequence[float]]  # what a thing holds beside its numbers -> those
Measure = Callable[[float, float, bool], "float | None"]  # old, new, is_open -> how far apart


# == How far apart ==


def float_gap(old: float, new: float, is_open: bool = False) -> float | None:
    """Nats. is_open: they stand beside numbers above 1, and are no probabilities."""
    if math.isnan(old) or math.isnan(new):
        return None
    if is_open and max(old, new) <= 1:
        return abs(old - new)
    return 0.0 if old == new else gap_in_nats(old, new)


def part_of(noise: float) -> Measure:
    """float_gap as a part of what rounding may make of these numbers: noise, or FLOOR; of one
    below 1 that part of FLOOR, for what moves a logit moves the log-probability of a token of which
    the model is sure less by as much; but of a difference of two the noise of both."""
    from parity.judge.numerics.errors import FLOOR  # numpy, which `record` does without

    def measured(old: float, new: float, is_open: bool = False) -> float | None:
        gap = float_gap(old, new, is_open)
        if not gap:
            return gap
        of_size = max(FLOOR * size_in_nats(old, new, is_open), OF_TWO * noise)
        return gap / max(noise, min(FLOOR, of_size))

    return measured


def size_in_nats(old: float, new: float, is_open: bool) -> float:
    """How large the larger one is; of probabilities, whose gap is that of their logits, 1."""
    size = max(abs(old), abs(new))
    if is_open or max(old, new) <= 0:
        return size
    return math.log(size) if min(old, new) > 1 else 1.0


def number_gap(
    old: Any, new: Any, measure: Measure = float_gap, is_open: bool = False
) -> float | None:
    """The largest difference of two values that differ in their floats only; None where anything
    else does.   is_open: they stand in a list of numbers some of which are above 1."""
    if are_all(float, old, new):
        return measure(old, new, is_open)
    if are_all(Mapping, old, new) and old.keys() == new.keys():
        return largest(number_gap(old[key], new[key], measure) for key in old)
    old_best = candidates(old)
    new_best = candidates(new)
    if old_best and new_best and len(old_best) == len(new_best):
        return candidates_gap(old_best, new_best, measure)
    if are_all(SEQUENCES, old, new):
        return gap_of_lists(old, new, measure, is_open)
    return 0.0 if are_same(old, new) else None


def are_same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new)


def are_all(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def gap_in_nats(old: float, new: float) -> float:
    """How far numbers are apart, in what rounding is measured in: a log-probability's nats are
    nats, and no other is below zero; those of a probability are its logit's, and those of a
    perplexity a part of it."""
    apart = abs(old - new)
    size = max(abs(old), abs(new))
    if max(old, new) <= 0:
        return apart
    if size <= 1:
        return apart if equal(old, new) else gap_of_probabilities(old, new)
    if min(old, new) <= 1:
        return apart
    return min(apart, abs(math.log(old / new)))


def gap_of_probabilities(old: float, new: float) -> float:
    """In nats of logit: where a model is sure a probability moves little, and all of the rest."""
    from parity.judge.numerics.errors import SURE  # numpy, which `record` does without

    if min(old, new) <= 0:
        return abs(old - new)
    unsure = 1 - (old + new) / 2
    return abs(math.log(old / new)) / math.hypot(unsure, SURE)


def float_pairs(old: Any, new: Any) -> Iterator[tuple[tuple[Any, ...], float, float]]:
    """(path, old, new) of each float of two values of one form; none of others."""
    before = list(leaves(old, kind=float))
    after = list(leaves(new, kind=float))
    if [path for path, _ in before] == [path for path, _ in after]:
        for (path, one), (_, other) in zip(before, after):
            yield path, one, other


def candidates(value: Any) -> BestTokens | None:
    """Best tokens with their log-probabilities, or probabilities, as a mapping or as pairs; None of
    anything else."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, SEQUENCES) or not pairs or not all(map(is_scored_token, pairs)):
        return None
    tokens = dict(pairs)
    return tokens if len(tokens) == len(pairs) else None


def is_scored_token(pair: Any) -> bool:
    if not isinstance(pair, SEQUENCES) or len(pair) != 2:
        return False
    token, logprob = pair
    return isinstance(token, (int, str)) and isinstance(logprob, float)


def candidates_gap(old: BestTokens, new: BestTokens, measure: Measure) -> float | None:
    """How far they moved at least, each and by rank: one that is among the best of one side only is
    no better on the other than the last one there. None of two steps."""
    shared = old.keys() & new.keys()
    if len(old) > OF_ONE_STEP and not shared:
        return None
    if not is_one_step(old, new):
        return None
    gaps = [measure(old[key], new[key], False) for key in shared]
    gaps += [measure(one, other, False) for one, other in zip(old.values(), new.values())]
    for here, there in ((old, new), (new, old)):
        last = min(there.values())
        for key in here.keys() - there.keys():
            gaps.append(measure(max(here[key], last), last, False))
    return largest(gaps)


def is_one_step(old: BestTokens, new: BestTokens) -> bool:
    """Whether the model may say all of this at one step: by the least that it says of each token on
    either side it is not more than sure."""
    least = []
    for token in old.keys() | new.keys():
        least.append(min(side.get(token, min(side.values())) for side in (old, new)))
    if max(least) <= 0:
        least = list(map(math.exp, least))
    elif max(least) > 1 or min(least) < 0:
        return True  # neither log-probabilities nor probabilities
    return sum(least) < 1 + MORE_THAN_SURE


def gap_of_lists(
    old: Sequence[Any], new: Sequence[Any], measure: Measure, is_open: bool
) -> float | None:
    if len(old) != len(new):
        return None
    is_open = is_open or holds_more_than_1(old) or holds_more_than_1(new)
    gap = largest(number_gap(one, other, measure, is_open) for one, other in zip(old, new))
    return ranking_gap(old, new, measure) if gap is None else gap


def holds_more_than_1(numbers: Sequence[Any]) -> bool:
    """Whether a list of numbers, or of lists of them, holds one."""
    for one in numbers:
        if isinstance(one, SEQUENCES) and holds_more_than_1(one):
            return True
        if isinstance(one, float) and one > 1:
            return True
    return False


def ranking_gap(old: Sequence[Any], new: Sequence[Any], measure: Measure) -> float | None:
    """Where things stand in the order of one of their numbers on both sides: how far each moved,
    and of two that changed places both together, for an order is of differences."""
    before = by_name(old)
    after = by_name(new)
    if not before or before.keys() != after.keys():
        return None
    if any(len(before[name]) != len(after[name]) for name in before):
        return None
    found = []
    for column, best_first in itertools.product(range(count_of_numbers(before)), (True, False)):
        if all(is_ranked(side, column, best_first) for side in (before, after)):
            found.append(gap_of_order(before, after, column, measure))
    return min((gap for gap in found if gap is not None), default=None)


def by_name(things: Sequence[Any]) -> Ranking:
    """The numbers of each by all else that it holds; nothing where two have one name."""
    numbers = dict(map(content, things))
    return numbers if len(numbers) == len(things) else {}


def count_of_numbers(ranking: Ranking) -> int:
    return min(map(len, ranking.values()))


def is_ranked(ranking: Ranking, column: int, best_first: bool) -> bool:
    numbers = [numbers[column] for numbers in ranking.values()]
    return numbers == sorted(numbers, reverse=best_first)


def gap_of_order(before: Ranking, after: Ranking, column: int, measure: Measure) -> float | None:
    """None where two changed places whose numbers are no reason to, for they are as large on both
    sides."""
    moved: dict[str, float] = {}
    for name in before:
        gap = number_gap(before[name], after[name], measure)
        if gap is None:
            return None
        moved[name] = gap
    ranks = {name: rank for rank, name in enumerate(after)}
    most = max(moved.values())
    for one, other in itertools.combinations(before, 2):
        if ranks[one] > ranks[other]:
            if all(side[one][column] == side[other][column] for side in (before, after)):
                return None
            most = max(most, moved[one] + moved[other])
    return most


def largest(gaps: Iterable[float | None]) -> float | None:
    most = 0.0
    for gap in gaps:
        if gap is None:
            return None
        most = max(most, gap)
    return most


# == What was rounded off ==


def fewer_bits(old: Any, new: Any) -> Cause | None:
    if not rounded_off(old, new, has_few_bits) or fewer_digits(old, new):
        return None
    bits = "numbers among the values hold fewer bits, as if computed in half precision"
    proof = "no rounding of a model takes bits from every number"
    return named_cause("numeric.shift", "likely", bits, proof)


def fewer_digits(old: Any, new: Any) -> bool:
    return rounded_off(old, new, has_few_digits)


def rounded_off(old: Any, new: Any, has_few: Callable[[float], bool]) -> bool:
    """Whether numbers came with all their digits, or bits, and come with few: what a code does, and
    no rounding of a model."""
    after = uneven_numbers(new)
    if not after or not all(map(has_few, after)):
        return False
    return not all(map(has_few, uneven_numbers(old)))


def uneven_numbers(value: Any) -> list[float]:
    """But for zeros and ones, which have few digits and bits, whatever was done."""
    return [number for _, number in leaves(value, kind=float) if number not in (0, 1)]


def has_few_digits(number: float) -> bool:
    return round(number, DIGITS) == number


def has_few_bits(number: float) -> bool:
    """Whether it is one of few bits, as far as a golden's digits tell."""
    mantissa, exponent = math.frexp(number)
    bits = round(mantissa * 2**HALF_BITS)
    nearest = math.ldexp(bits, exponent - HALF_BITS)
    return as_written(nearest) == as_written(number)
