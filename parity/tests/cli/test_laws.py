"""`python -m parity laws`: whose cutter breaks which law, and how the counterexample is told."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import hypothesis
import pytest

from parity.cli.laws import LAWS, Sample, add_laws, cut_by_scanning, try_law, try_laws


def first_in_list(text: str, stops: list[str]) -> str:
    """What was vendored in five places: the first stop of the list wins, and one at the very start is not seen."""
    for stop in stops:
        place = text.find(stop)
        if place > 0:
            return text[:place]
    return text


def earliest_start(text: str, stops: list[str]) -> str:
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text


def earliest_and_stripped(text: str, stops: list[str]) -> str:
    return earliest_start(text, stops).strip()


def until_none_is_left(text: str, stops: list[str]) -> str:
    for stop in stops:
        text = text.split(stop)[0]
    return text


def fails_on_none(text: str, stops: list[str]) -> str:
    return text[: min(text.index(stop) for stop in stops if stop in text)]


BROKEN_BY = {
    first_in_list: {
        "first-complete", "start-counts", "twice-is-once", "none-survives", "order-is-nothing", "later-is-nothing",
    },
    earliest_start: {"first-complete", "later-is-nothing"},
    earliest_and_stripped: {"first-complete", "untouched", "later-is-nothing", "prefix"},
    until_none_is_left: {"first-complete", "order-is-nothing"},
    fails_on_none: {law.name for law in LAWS} - {"start-counts"},
}  # fmt: skip


def command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    parser = argparse.ArgumentParser(prog="parity")
    add_laws(parser.add_subparsers())
    args = parser.parse_args(["laws", *argv])
    code = args.run(args)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def no_shrinking() -> Iterator[None]:
    """A counterexample of any size will do: to make it small takes most of the time."""
    usual = hypothesis.settings()
    hypothesis.settings.register_profile("as-found", usual, phases=[hypothesis.Phase.generate])
    hypothesis.settings.load_profile("as-found")
    yield
    hypothesis.settings.register_profile("as-before", usual)
    hypothesis.settings.load_profile("as-before")


@pytest.mark.usefixtures("no_shrinking")
@pytest.mark.parametrize("cutter", BROKEN_BY, ids=lambda cutter: cutter.__name__)
def test_a_legacy_cutter_breaks_the_right_laws(cutter: object) -> None:
    broken = {trial.law.name for trial in try_laws(cutter, examples=60) if trial.broken}  # type: ignore[arg-type]
    assert broken == BROKEN_BY[cutter]  # type: ignore[index]


@pytest.mark.usefixtures("no_shrinking")
def test_the_pins_alone_find_the_known_bugs() -> None:
    for law in LAWS[:2]:
        assert try_law(law, first_in_list, examples=1).broken is not None


def test_each_law_has_a_pin_and_the_definition_keeps_it() -> None:
    for law in LAWS:
        assert law.pins and all(law.holds(cut_by_scanning, pin) for pin in law.pins)


def test_the_counterexample_is_small_and_can_be_repeated() -> None:
    trial = try_law(LAWS[1], first_in_list, examples=100)
    assert len(trial.calls) == 1 and re.fullmatch(r"cut\('(.)', \['\1'\]\) is '\1', should be ''", trial.calls[0])


@pytest.mark.usefixtures("no_shrinking")
def test_the_same_seed_finds_the_same() -> None:
    first, again = (try_law(LAWS[0], earliest_start, examples=60, seed=3) for _ in range(2))
    assert first.broken is not None and str(first) == str(again)


def test_a_cutter_that_changes_its_list_does_not_disturb_the_trial() -> None:
    def empties(text: str, stops: list[str]) -> str:
        found = cut_by_scanning(text, stops)
        stops.clear()
        return found

    trial = try_law(LAWS[0], empties, examples=50)
    assert trial.broken is None


def test_a_sample_without_another_order_is_turned_round() -> None:
    assert Sample("", ["a", "b"]).other_order == ["b", "a"]


def test_the_command_on_our_own_cutter(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = command(capsys, "--examples", "50")
    assert code == 0
    assert re.findall(r"^(\w+) +([\w-]+) .*\(\d+ examples\)$", said, re.MULTILINE) == [
        ("holds", law.name) for law in LAWS
    ]


@pytest.mark.usefixtures("no_shrinking")
def test_the_command_on_a_legacy_cutter(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = command(capsys, "--cutter", f"{__name__}:fails_on_none", "--examples", "50")
    assert code == 1
    assert "BROKEN  untouched" in said and "raises ValueError" in said


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--cutter", "nowhere.to.be:found"], "No module named 'nowhere'"),
        (["--cutter", f"{__name__}:missing"], "no function missing"),
        (["--cutter", "truncate"], "no call site: write pkg.mod:func"),
        (["--examples", "0"], "--examples is 0"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str) -> None:
    code, _, said = command(capsys, *argv)
    assert code == 2 and complaint in said
