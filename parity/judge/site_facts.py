"""What a site, chance and the release of a library say of the differences of one of its cases."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from parity.goldens.store import Case, GoldenError, Store
from parity.goldens.verdict import Difference
from parity.judge import loops
from parity.judge.align import paired
from parity.judge.comparison import Comparison
from parity.judge.row import Row, drew, has_loop, is_drawn, script_seed, seed_source, seeds_of
from parity.record import observe
from parity.record.rows import LIKELIEST

Differences = tuple[Difference, ...]

# tokens of a loop's own, all of them the likeliest: fewer tell nothing of how they were chosen
LEAST_CHOSEN = 20

# Newer releases encode pictures before the forward pass, which is then given one name for all of
# them.
PICTURES = {
    "pixel_values",
    "pixel_values_videos",
    "image_grid_thw",
    "video_grid_thw",
    "mm_encoder_outputs",
}
SINCE_5 = {"mm_token_type_ids"}  # transformers 4 counts the kinds of tokens by itself


@dataclass
class SiteFacts:
    """Read from all goldens of a site, once.

    resample: the new code again, with another seed of the process.
    greedy: site -> its own loops take the likeliest.
    seeded: site -> its script seeds before each call.
    """

    store: Store
    resample: Callable[[Case, int], Case] | None = None
    greedy: dict[str, bool] = field(default_factory=dict)
    seeded: dict[str, bool] = field(default_factory=dict)

    def alike(self, old: Case, new: Case) -> tuple[Case, Case]:
        """Both recordings, a loop of the code's own held against what the other side declares."""
        greedy = has_loop(old) and self.only_the_likeliest(old.site)
        return loops.as_declared(*loops.of_one_kind(old, new), greedy)

    def weighed(self, comparison: Comparison, more: Differences) -> Comparison:
        """more: what differs over all cases of the site."""
        old = comparison.old
        new = comparison.new
        found = self.without_chance(old, new, self.of_this_release(old, comparison.differences))
        found = (*found, *more, *self.seeds_of_the_script(comparison))
        return dataclasses.replace(comparison, found=found)

    def goldens(self, site: str) -> Iterator[Case]:
        for name in self.store.names(site):
            with contextlib.suppress(GoldenError):  # said when its turn comes
                yield self.store.read(site, name)

    def only_the_likeliest(self, site: str) -> bool:
        """Whether a loop of the old code's own never took any other token, over enough of them to
        say so, nor random numbers of the process: what is drawn may well be the likeliest."""
        if site not in self.greedy:
            taken: list[Row] = []
            for golden in self.goldens(site):
                taken += [row for row in golden.rows if row.get("loop")]
            is_greedy = all(row["loop"] == LIKELIEST and not drew(row) for row in taken)
            count = sum(len(row["output_ids"]) for row in taken)
            self.greedy[site] = is_greedy and count >= LEAST_CHOSEN
        return self.greedy[site]

    def of_this_release(self, old: Case, found: Differences) -> Differences:
        """Under which names pictures reach a forward pass is up to transformers' release: against a
        golden of another one they are told, and fail nothing by themselves. All other names
        count."""
        here = version("transformers")
        there = self.store.environment_of(old).get("transformers")
        if there is None or there == here:
            return found
        unnamed: set[str] = set()
        if there.partition(".")[0] != here.partition(".")[0]:
            unnamed = SINCE_5

        def renamed(d: Difference) -> bool:
            if (d.stage, d.field) != ("batch", "keys"):
                return False
            return tensor_names(d.old, unnamed) == tensor_names(d.new, unnamed)

        return uncounted(found, renamed)

    def without_chance(self, old: Case, new: Case, found: Differences) -> Differences:
        """Seeds that the new code draws by itself, where the old code had none, say no more than
        none: those are others when the process has another seed."""

        def added(d: Difference) -> bool:
            return (d.stage, d.field, d.old) == ("sampling", "seed", None)

        if self.resample is None or not any(map(added, found)):
            return found
        again = self.resample(old, observe.SEED + 1)
        pairs = paired(new.rows, again.rows)
        has_other_seeds = all(seeds_of(a).isdisjoint(seeds_of(b)) for a, b in pairs)
        return uncounted(found, added) if pairs and has_other_seeds else found

    def seeds_of_the_script(self, comparison: Comparison) -> Iterator[Difference]:
        """The seed that a script gave before each call of a site and that the new rows lack: as
        their own, or, where the whole script runs again, as its. A function that is called alone
        and samples with the process's generator cannot have it."""
        if not self.is_seeded_each_time(comparison.old.site):
            return
        for number, (mine, theirs) in enumerate(comparison.pairs):
            seed = script_seed(mine)
            again = script_seed(theirs)
            left_out = self.resample is not None and seed_source(theirs) == "nobody"
            if seed is None or not is_drawn(theirs) or left_out:
                continue
            if seed != again and seed not in seeds_of(theirs):
                new_seed = min(seeds_of(theirs), default=again)
                yield Difference("sampling", "seed", seed, new_seed, number)
                return

    def is_seeded_each_time(self, site: str) -> bool:
        """Whether a script gave a seed before each of several calls. One that was given before the
        first call alone says nothing of the others."""
        if site not in self.seeded:
            calls = 0
            seeds = []
            for golden in self.goldens(site):
                drawn = [script_seed(row) for row in golden.rows if is_drawn(row)]
                calls += bool(drawn)
                seeds += drawn
            self.seeded[site] = calls > 1 and None not in seeds
        return self.seeded[site]


def uncounted(found: Differences, is_excused: Callable[[Difference], bool]) -> Differences:
    """Differences, of which those that are excused fail nothing by themselves."""
    return tuple(dataclasses.replace(d, counts=d.counts and not is_excused(d)) for d in found)


def tensor_names(keys: Sequence[str], unnamed: Collection[str]) -> set[str]:
    """Names of the tensors of a forward pass, but for those unnamed; pictures have one name."""
    return {"pictures" if name in PICTURES else name for name in keys if name not in unnamed}
