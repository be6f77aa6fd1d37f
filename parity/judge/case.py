"""Judges one case: two recordings become a verdict, or a question to be asked over all cases of the
site."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from parity.edited import contradiction
from parity.golden import Case, GoldenError, Store
from parity.judge import own_loops
from parity.judge.align import paired, same_ids
from parity.judge.comparison import Comparison
from parity.judge.counterfactual import beside_rounding, by_cache, by_company, from_other_ids
from parity.judge.endings import ADDED
from parity.judge.explain import also_differs, cause_of, declared_end
from parity.judge.faults import COULD_NOT_JUDGE, raise_own_fault
from parity.judge.followers import up_to_draws
from parity.judge.inquiry import Inquiry, up_to_followers
from parity.judge.naming import difference_cause, named_cause
from parity.judge.numerics.golden_rows import moved_by_batch
from parity.judge.numerics.questions import (
    NOT_SHOWN,
    Judged,
    Question,
    could_not,
    ends_elsewhere,
    kind_of,
    place_of,
    steps_of,
)
from parity.judge.numerics.samples import FOLLOWS_SETTINGS, Ledgers, Samples
from parity.judge.numerics.weights import OF_SEVERAL, checkpoint_of, in_float32
from parity.judge.row import (
    criteria,
    drew,
    entry,
    is_drawn,
    prompt_of,
    request_of,
    script_seed,
    seed_source,
    seeds_of,
    stop_strings,
    text_of,
    unseen,
)
from parity.judge.session import Run
from parity.judge.stages.prompt import may_be_written
from parity.judge.stages.stage import Tools
from parity.record import observe
from parity.record.changing import changing, place_name, unchanged
from parity.record.rows import LIKELIEST
from parity.verdict import Cause, Certainty, Difference, Outcome, equal

if TYPE_CHECKING:
    from parity.judge.numerics.answers import Numerics


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
class Judge:
    """Turns two recordings into an Outcome; asks the model again only where they differ."""

    store: Store
    backend: str
    run: Run
    numerics: Numerics | None = None
    engine: Callable[[], Any] = lambda: (
        None
    )  # the engine of the last run, on which logits can be had
    resample: Callable[[Case, int], Case] | None = None  # the new code again, with another seed
    ledgers: Ledgers = dataclasses.field(default_factory=dict)
    greedy: dict[str, bool] = dataclasses.field(
        default_factory=dict
    )  # site -> its own loops take the likeliest
    seeded: dict[str, bool] = dataclasses.field(
        default_factory=dict
    )  # site -> its script seeds before each call
    samples: Samples = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.samples = Samples(self.store, self.backend, self.engine, self.resample, self.ledgers)

    def outcome(
        self, old: Case, new: Case, seconds: float = 0.0, more: tuple[Difference, ...] = ()
    ) -> Outcome:
        """more: what differs over all cases of the site."""
        greedy = own_loops.of_own_loop(old) and self.only_the_likeliest(old.site)
        old, new = own_loops.as_declared(*own_loops.of_one_kind(old, new), greedy)
        comparison = self.compared(Comparison(old, new, tools_of(old)), more)
        steps: list[str] = []
        verdict, cause, notes = self.asked(old, new, self.verdict(comparison, steps))
        if old.changing:
            parts = ", ".join(place_name(part["at"]) for part in old.changing)
            notes = (*notes, f"not compared, for the old code gives another one each time: {parts}")
        also: tuple[str, ...] = ()
        if cause is not None and verdict in ("DRIFT", "LATENT"):
            also = also_differs(comparison, cause)
        return Outcome(
            old.site,
            old.case,
            self.backend,
            verdict,
            comparison.differences,
            cause,
            old.to_json(),
            new.to_json(),
            notes=notes,
            seconds=seconds,
            steps=tuple(steps),
            also=also,
        )

    def compared(self, comparison: Comparison, more: tuple[Difference, ...]) -> Comparison:
        """With what the release of transformers, chance and the site say of the differences."""
        old, new = comparison.old, comparison.new
        found = self.without_chance(old, new, self.of_this_release(old, comparison.differences))
        found = (*found, *more, *self.seeds_of_the_script(comparison))
        return dataclasses.replace(comparison, found=found)

    def only_the_likeliest(self, site: str) -> bool:
        """Whether a loop of the old code's own never took any other token, over enough of them to
        say so, nor random numbers of the process: what is drawn may well be the likeliest."""
        if site not in self.greedy:
            loops = [row for golden in self.goldens(site) for row in golden.rows if row.get("loop")]
            enough = sum(len(row["output_ids"]) for row in loops) >= LEAST_CHOSEN
            self.greedy[site] = enough and all(
                row["loop"] == LIKELIEST and not drew(row) for row in loops
            )
        return self.greedy[site]

    def goldens(self, site: str) -> Iterator[Case]:
        for name in self.store.names(site):
            with contextlib.suppress(GoldenError):  # said when its turn comes
                yield self.store.read(site, name)

    def of_this_release(self, old: Case, found: tuple[Difference, ...]) -> tuple[Difference, ...]:
        """Under which names pictures reach a forward pass is up to transformers' release: against a
        golden of another one they are told, and fail nothing by themselves. All other names
        count."""
        there, here = self.store.environment_of(old).get("transformers"), version("transformers")
        if there is None or there == here:
            return found
        unnamed = () if there.partition(".")[0] == here.partition(".")[0] else SINCE_5

        def names(keys: Sequence[str]) -> set[str]:
            return {
                "pictures" if name in PICTURES else name for name in keys if name not in unnamed
            }

        def renamed(d: Difference) -> bool:
            return (d.stage, d.field) == ("batch", "keys") and names(d.old) == names(d.new)

        return tuple(dataclasses.replace(d, counts=d.counts and not renamed(d)) for d in found)

    def without_chance(
        self, old: Case, new: Case, found: tuple[Difference, ...]
    ) -> tuple[Difference, ...]:
        """Seeds that the new code draws by itself, where the old code had none, say no more than
        none: those are others when the process has another seed."""

        def added(d: Difference) -> bool:
            return (d.stage, d.field, d.old) == ("sampling", "seed", None)

        if self.resample is None or not any(map(added, found)):
            return found
        pairs = paired(new.rows, self.resample(old, observe.SEED + 1).rows)
        drawn = bool(pairs) and all(not seeds_of(a) & seeds_of(b) for a, b in pairs)
        return tuple(
            dataclasses.replace(d, counts=d.counts and not (drawn and added(d))) for d in found
        )

    def seeds_of_the_script(self, comparison: Comparison) -> Iterator[Difference]:
        """The seed that a script gave before each call of a site and that the new rows lack: as
        their own, or, where the whole script runs again, as its. A function that is called alone
        and samples with the process's generator cannot have it."""
        if not self.is_seeded_each_time(comparison.old.site):
            return
        for number, (mine, theirs) in enumerate(comparison.pairs):
            seed, again = script_seed(mine), script_seed(theirs)
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
            drawn = [[row for row in golden.rows if is_drawn(row)] for golden in self.goldens(site)]
            calls = [rows for rows in drawn if rows]
            told = all(script_seed(row) is not None for rows in calls for row in rows)
            self.seeded[site] = told and len(calls) > 1
        return self.seeded[site]

    def inquiry(self, comparison: Comparison, steps: list[str]) -> Inquiry:
        old = comparison.old
        return Inquiry(
            comparison, functools.partial(self.again, old), steps, lambda: self.company(old)
        )

    def verdict(self, comparison: Comparison, steps: list[str]) -> Judged:
        old, new = comparison.old, comparison.new
        if problem := contradiction(old, self.store, comparison.tools.decode):
            return could_not(problem)
        if old.repeats is False:
            said = "the old code gave another value when it was recorded twice"
            return "UNSTABLE", Cause("nondeterminism", "confirmed", said), ()
        if old.raised is not None and new.raised is not None and old.raised != new.raised:
            return "DRIFT", raised_cause(old.raised, new.raised, steps), ()
        if (followed := self.followed_draws(comparison, steps)) is not None:
            return followed
        if not any(d.stage == "value" for d in comparison.differences):
            return self.same_value(comparison)
        return self.other_value(self.inquiry(comparison, steps))

    def other_value(self, inquiry: Inquiry) -> Judged:
        comparison = inquiry.comparison
        if self.only_drawn(comparison) and not comparison.broken:
            return self.other_draws(inquiry)
        if (beside := self.drawn_beside(comparison)) is not None and not comparison.broken:
            return beside
        first = up_to_followers(inquiry)
        cause = cause_of(first)
        if (
            cause is not None
            and cause.name == "post.other"
            and (parts := self.changing(comparison.old, comparison.new))
        ):
            return could_not(
                f"the new code gives another {', '.join(parts)} each time that it is run, and of"
                " the old code that is not known; record it with --repeat 2"
            )
        return ("DRIFT", cause, ()) if cause is not None else self.rounding(first, inquiry)

    def other_draws(self, inquiry: Inquiry) -> Judged:
        """Other samples, and nothing else that differs."""
        old, new = inquiry.old, inquiry.new
        if (known := by_cache(inquiry) or own_loops.own_ends(old, new, inquiry.decode)) is not None:
            return "DRIFT", known, ()
        judged = self.samples.judge(old, new)
        if judged[0] not in FOLLOWS_SETTINGS:
            return judged
        return self.made_of(inquiry, judged)

    def made_of(self, inquiry: Inquiry, judged: Judged, *, followed: bool = False) -> Judged:
        """What samples say, unless the new code makes something else of the golden's own ids."""
        texts, gap = from_other_ids(inquiry, followed=followed)
        by_rounding = gap and not in_float32(inquiry.old, inquiry.new)
        return judged if texts is None or by_rounding else ("DRIFT", texts, judged[2])

    def followed_draws(self, comparison: Comparison, steps: list[str]) -> Judged | None:
        """Draws that are others, where more was asked with what they gave: those draws are judged,
        and of the golden's own ones the new code is to ask for, and to make, what the old code
        did."""
        if (parts := up_to_draws(comparison.old, comparison.new)) is None:
            return None
        asked = Comparison(*parts, comparison.tools)
        if not self.only_drawn(asked) or asked.broken:
            return None
        verdict, cause, notes = self.samples.judge(*parts)
        if verdict not in FOLLOWS_SETTINGS:
            return verdict, cause, notes
        inquiry = self.inquiry(comparison, steps)
        steps.append(
            f"of {len(asked.old.rows)} rows nothing but draws differs, and the rest follows from"
            " them"
        )
        return self.made_of(inquiry, (verdict, None, notes), followed=True)

    def again(self, old: Case, load: Mapping[str, Any], parts: frozenset[str]) -> Case | None:
        """A replay, whose rows are of the golden's kind; None where it cannot be made."""
        try:
            made = self.run(old, load, parts)
        except GoldenError:
            return None
        return made and own_loops.of_one_kind(old, made)[1]

    def changing(self, old: Case, new: Case) -> list[str]:
        """Parts of the new value that are others when the new code is run again, if they are all
        that differs."""
        time.sleep(1)  # for a clock of whole seconds
        again = self.again(old, {}, frozenset())
        if again is None or not same_ids(new, again) or not same_ids(old, new):
            return []
        try:
            parts = changing([new.value, again.value])
        except ValueError:
            return []
        same = equal(old.value, unchanged(parts, old.value, new.value))
        return [place_name(part["at"]) for part in parts] if same else []

    def same_value(self, comparison: Comparison) -> Judged:
        for find in SEEN_WITHOUT_VALUE:
            cause = find(comparison)
            if cause is not None:
                return "LATENT", cause, ()
        if self.only_drawn(comparison):
            _, cause, notes = self.samples.judge(comparison.old, comparison.new)
            is_wrong = cause is not None and cause.certainty == "confirmed"
            return ("LATENT", cause, notes) if is_wrong else ("TEXT-IDENTICAL", None, notes)
        has_unseen = any(unseen(*pair) for pair in comparison.pairs)
        is_identical = comparison.has_same_ids and not has_unseen
        return ("IDENTICAL" if is_identical else "TEXT-IDENTICAL"), None, ()

    def asked(self, old: Case, new: Case, judged: Judged) -> Judged:
        """Ask for the site's numerics where this verdict hangs on them, beside what `rounding`
        asks."""
        if self.numerics is None or not old.rows or not new.rows:
            return judged
        kind = kind_of(old, new, judged, self.numerics.always)
        if kind is None:
            return judged
        if (place := place_of(old, new, kind)) is None:
            return could_not(OF_SEVERAL)
        self.numerics.ask(Question(old, new, self.backend, kind, judged, place=place))
        return judged

    def company(self, old: Case) -> float | None:
        """How far neighbours move the log-probabilities of the golden's tokens, in nats; None: not
        to be had."""
        try:
            # On the site's own engine: that of a replay may have one place only.
            self.run(old, {}, frozenset())
            engine = self.engine()
            return None if engine is None else moved_by_batch(engine, old.rows, self.store)
        except (*COULD_NOT_JUDGE, ValueError, RuntimeError) as error:  # an engine's are these, too
            raise_own_fault(error)
            return None

    def rounding(self, inquiry: Inquiry, whole: Inquiry) -> Judged:
        """Nothing but arithmetic is left: the site's numerics decide, when all cases were run;
        until then, no one.   whole: with what follows from the answers that part."""
        old, new = inquiry.old, inquiry.new
        if ends_elsewhere(old, new) or not steps_of(old, new):
            return "DRIFT", why_it_ends(inquiry, whole), ()
        if (place := place_of(old, new, "parted")) is None:
            return could_not(OF_SEVERAL)
        judged = could_not("the numerics of its site were not read")
        if self.numerics is None:
            return judged
        company = by_company(inquiry)
        cause, apart = beside_rounding(whole)
        question = Question(
            old, new, self.backend, "parted", judged, company, cause, apart, place=place
        )
        self.numerics.ask(question)
        return judged

    def only_drawn(self, comparison: Comparison) -> bool:
        """Whether there are other draws under equal settings (L0) and seeds (L1), and nothing else
        that differs."""
        return is_other_samples(comparison) and not comparison.counted

    def drawn_beside(self, comparison: Comparison) -> Judged | None:
        """Other draws, and differences that are no settings of drawing: where the draws follow the
        settings, whether a value shows more than them is luck, so such a difference is LATENT
        whatever the luck; but where a row ends is no matter of luck, and changes values."""
        named = comparison.counted
        if not is_other_samples(comparison) or not named:
            return None
        if any(not name.startswith(("model.attn", "batch.", "stop.")) for name, _ in named):
            return None
        verdict, _, notes = self.samples.judge(comparison.old, comparison.new)
        if verdict not in FOLLOWS_SETTINGS:
            return None
        name, difference = named[0]
        proof = "seen directly; the draws follow the golden's settings"
        verdict = "DRIFT" if name.startswith("stop.") else "LATENT"
        return verdict, difference_cause(name, "confirmed", difference, proof), notes


def why_it_ends(inquiry: Inquiry, whole: Inquiry) -> Cause:
    """Why one answer is the beginning of the other."""
    ended = own_loops.ended_by(inquiry.old, inquiry.new, inquiry.decode)
    cause = ended or declared_end(whole) or by_company(inquiry)
    if cause is not None:
        return cause
    said = "one answer is the beginning of the other: where it ends was not the model's choice"
    has_stops = any(stop_strings(row) or criteria(row) for row in inquiry.old.rows)
    return Cause("stop.rule", "likely" if has_stops else "unattributed", said)


def is_other_samples(comparison: Comparison) -> bool:
    """Whether both sides sample, as many rows, and other ids."""
    old, new = comparison.old, comparison.new
    drawn = own_loops.is_sampled(old) and own_loops.is_sampled(new) and not comparison.has_same_ids
    return drawn and len(old.rows) == len(new.rows)


def seen_directly(comparison: Comparison) -> Cause | None:
    """The first difference that counts, where the value does not show it."""
    if not comparison.counted:
        return None
    name, difference = comparison.counted[0]
    # Of a loop of the old code's own no settings were seen; and a value may be cut by hand, too.
    is_own_choice = name == "sampling.mode" and own_loops.of_own_loop(comparison.old)
    is_criterion = (difference.stage, difference.field) == ("stop", "criteria")
    is_written = may_be_written(name, *comparison.pairs[difference.row or 0])
    is_unsure = is_own_choice or is_criterion or is_written
    certainty: Certainty = "likely" if is_unsure else "confirmed"
    return difference_cause(name, certainty, difference, f"seen directly; {NOT_SHOWN}")


def broken_unseen(comparison: Comparison) -> Cause | None:
    """The first invariant that the new side alone breaks, but for those of which the value and the
    ids themselves would tell."""
    told = ("text", "end") if comparison.has_same_ids else ("text",)
    broken = next((b for b in comparison.broken if b.law not in told), None)
    if broken is None:
        return None
    law = f"the law of the stage '{broken.law}' is broken by the new side alone"
    proof = f"{law}; the value does not show it"
    return named_cause(broken.cause, "likely", f"row {broken.row}: {broken.sentence}", proof)


def other_prompts(comparison: Comparison) -> Cause | None:
    """Prompts that only one side asks for."""
    old, new = comparison.old, comparison.new
    if not old.rows or len(old.rows) == len(new.rows):
        return None
    said = asked_otherwise(old, new)
    proof = "seen directly; the value does not show it"
    return Cause("post.other", "likely", said, proof) if said else None


def other_flag(comparison: Comparison) -> Cause | None:
    """Special tokens that only one side drops, where each row became text once."""
    for flag in comparison.differences:
        if (flag.stage, flag.field) == ("decode", "skip_special_tokens"):
            return flag_that_shows_elsewhere(flag) if decoded_once(comparison) else None
    return None


SEEN_WITHOUT_VALUE = (seen_directly, broken_unseen, other_prompts, other_flag)


def asked_otherwise(old: Case, new: Case) -> str:
    """Which prompt only one side asks for; what is asked for twice may be answered once."""
    before, after = asked_prompts(old), asked_prompts(new)
    if before == after or may_read_anything(old, new):
        return ""
    read = {prompt_of(row) for row in old.rows if row.get("scored")}
    # Not one that was only read, and is read as the beginning of another one.
    gone = [ids for ids in before - after if ids not in read or not begins_one_of(ids, after)]
    if gone:
        return f"of {len(before)} prompts {len(gone)} did not reach the model"
    # What was read as a whole may be asked in parts: a prompt, and its answer.
    more = [ids for ids in after - before if not begins_one_of(ids, before)]
    return f"{len(more)} prompts reached the model that had not" if more else ""


Prompt = tuple[int, ...]


def may_read_anything(old: Case, new: Case) -> bool:
    """Whether a loop became logits processors, which read what they like."""
    has_processors = any(entry(row, "sampling", "processors") for row in new.rows)
    return has_processors and own_loops.of_own_loop(old)


def asked_prompts(case: Case) -> set[Prompt]:
    """But for those whose loss was asked for, where no token counts."""
    counted = [row for row in case.rows if request_of(row).get("labels") != "none"]
    return {prompt_of(row) for row in counted}


def begins_one_of(ids: Prompt, prompts: set[Prompt]) -> bool:
    return any(ids == whole[: len(ids)] for whole in prompts)


def flag_that_shows_elsewhere(difference: Difference) -> Cause:
    """Special tokens that only one side drops, where no answer of the case holds any. Code that
    takes an engine's raw text has them whatever its options say, so where they went it is
    likely."""
    proof = f"seen directly; {NOT_SHOWN}"
    if not difference.new:
        return difference_cause("decode.skip_special", "confirmed", difference, proof)
    unless = f"{proof}; unless the new code takes the engine's raw text"
    return difference_cause("decode.skip_special", "likely", difference, unless)


def decoded_once(comparison: Comparison) -> bool:
    """Whether each row became text once, and the same text (with or without its prompt): of several
    ways the value may use any."""
    if not all(
        "decode" in row and "decodes" not in row
        for case in (comparison.old, comparison.new)
        for row in case.rows
    ):
        return False
    texts = [(text_of(a), text_of(b)) for a, b in comparison.pairs]
    return all(one.endswith(other) or other.endswith(one) for one, other in texts)


def raised_cause(old: str, new: str, steps: list[str]) -> Cause:
    """Both sides raise, and not the same: by type and message, as they are printed."""
    what = "exception" if old.partition(":")[0] != new.partition(":")[0] else "message"
    steps.append(f"both sides raise; the {what} is another one")
    return Cause(
        "error",
        "confirmed",
        f"the old code raised {old}, the new code raises {new}",
        "seen directly",
    )


MOST_DECODED = 4096  # decoded texts that are kept: a case has some ways to decode each of its rows
_tokenizers: dict[str, Any] = {}


def tools_of(old: Case) -> Tools:
    """The golden's tokenizer and template as plain transformers has them; nothing where its
    checkpoint is not here."""
    path = checkpoint_of(old)
    if path is None:
        return Tools()
    if path not in _tokenizers:
        import transformers

        _tokenizers[path] = None
        with contextlib.suppress(OSError, ValueError):  # neither here nor downloaded
            _tokenizers[path] = transformers.AutoTokenizer.from_pretrained(
                path, local_files_only=True
            )
    if (tokenizer := _tokenizers[path]) is None:
        return Tools()
    added = tokenizer.added_tokens_decoder

    @functools.lru_cache(MOST_DECODED)
    def decode_once(ids: tuple[int, ...], skip: bool | str, clean: bool) -> str:
        own = [i for i in ids if i not in added] if skip == ADDED else list(ids)
        text: str = tokenizer.decode(
            own, skip_special_tokens=bool(skip), clean_up_tokenization_spaces=clean
        )
        return text

    def decode(ids: Sequence[int], skip: bool | str, clean: bool) -> str:
        return decode_once(tuple(ids), skip, clean)

    def encode(text: str, special: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    def render(messages: Any, arguments: Mapping[str, Any]) -> str:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        return text

    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    return Tools(
        decode, encode, render, hashlib.sha256(template.encode()).hexdigest() if template else ""
    )
