"""Events of a call -> rows: one per sequence that a model generated (see parity.goldens.store).

The same code reads the old code and the moved code, so that a difference between two rows is one of
behaviour. What a library does not tell is absent from a row, never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parity.goldens import store as golden
from parity.record.events import (
    Decode,
    Event,
    Events,
    Forward,
    ForwardRow,
    Ids,
    ModelCall,
    Output,
    Template,
    Tokens,
    is_model_call,
)
from parity.record.rows import (
    BUT_THE_LAST,
    CHOSEN,
    LIKELIEST,
    Fields,
    Placeholders,
    Row,
    by_itself,
    collapsed,
)
from parity.record.taps.images import is_clip, kept_picture, pictures_of, placed_pictures, take_next
from parity.record.taps.text import (
    decode_stages,
    folded_images,
    joined_text,
    longest_beginning,
)


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a prompt. behind: how many ids stand behind it, put there by hand or scored."""

    text: str | None
    behind: int = 0


class Before:
    """What happened before a model call, to be asked for by the ids of a prompt."""

    def __init__(self, events: Events, placeholders: Placeholders) -> None:
        self.placeholders = placeholders
        self.templates = list[Template]()
        self.texts = dict[Ids, str]()
        # Without the first id, which may be one that is masked as a pad.
        self.unmarked = dict[Ids, str]()
        self.pictures = {placeholders.image: list[Fields](), placeholders.clip: list[Fields]()}
        for picture in pictures_of(events):
            token = placeholders.clip if is_clip(picture) else placeholders.image
            self.pictures[token].append(picture)
        self.taken = list[Fields]()
        self.forwards = dict[Ids, list[ForwardRow]]()
        for event in events:
            if isinstance(event, Forward):
                for row in event.rows:
                    self.forwards.setdefault(row.ids, []).append(row)
        self.turns = Counter[Ids]()  # how often these ids were asked for
        self.know(events)

    def know(self, events: Events) -> None:
        """The templates of these events alone, and their texts, too."""
        self.templates = [event for event in events if isinstance(event, Template)]
        for event in events:
            if isinstance(event, Tokens):
                for raw, text in zip(event.ids, event.texts):
                    ids = collapsed(raw, self.placeholders)
                    self.texts[ids] = text
                    self.unmarked[ids[1:]] = text

    def chat_stages(self, text: str) -> Fields:
        """The text of a prompt, and the chat that it was rendered from."""
        folded = folded_images(text)
        for event in reversed(self.templates):
            for chat, rendered in zip(event.chats, event.texts):
                if folded_images(rendered) == folded:
                    return {"messages": chat, "template": event.stage, "prompt_text": rendered}
        return {"prompt_text": text}

    def text_of(self, prompt_ids: Sequence[int], scored: bool = False) -> Text:
        """scored: the ids are a response behind its prompt."""
        ids = collapsed(prompt_ids, self.placeholders)
        text = self.texts.get(ids, self.unmarked.get(ids))
        if text is not None:
            return Text(text)
        begin = longest_beginning(self.texts, ids)
        if begin and (scored or self._is_rendered(self.texts[begin])):
            return Text(self.texts[begin], len(ids) - len(begin))
        # Markers were tokenized apart from what stands between them.
        joined = joined_text(self.texts, ids)
        if joined or self.cut(ids):
            return Text(joined or None)
        return Text(self.texts.get(begin))

    def _is_rendered(self, text: str) -> bool:
        """Whether a chat template gave this text."""
        folded = folded_images(text)
        return any(folded in map(folded_images, event.texts) for event in self.templates)

    def cut(self, prompt_ids: Sequence[int]) -> str:
        """Which part of a text these ids are, where they are its beginning or its end; else ""."""
        ids = collapsed(prompt_ids, self.placeholders)
        if not ids:
            return ""
        for text in self.texts:
            if text[: len(ids)] == ids:
                return f"first {len(ids)} of {len(text)}"
            if text[-len(ids) :] == ids:
                return f"last {len(ids)} of {len(text)}"
        return ""

    def inputs(self, prompt_ids: Sequence[int]) -> Fields | None:
        """What reached the model with a prompt; of rows with one prompt, each has the next.

        adapters: all that these ids went through, if any.   hidden: how many of the ids the model
        was given, and may not attend to.
        """
        ids = tuple(prompt_ids)
        rows = self.forwards.get(ids) or self._rows_with_masked(ids)
        if not rows:
            return None
        row = rows[min(self.turns[ids], len(rows) - 1)]
        self.turns[ids] += 1
        inputs = dict(row.inputs)
        if row.ids != ids:
            inputs["hidden"] = len(ids) - len(row.ids)
        adapters = sorted({row.adapter for row in rows})
        return {**inputs, "adapters": adapters} if any(adapters) else inputs

    def _rows_with_masked(self, ids: Ids) -> list[ForwardRow]:
        """The first row that ends or begins with these ids, some of which are masked."""
        if not ids:
            return []
        for rows in self.forwards.values():
            for row in rows:
                beginning = row.whole[: len(ids)]
                end = row.whole[-len(ids) :]
                if ids in (beginning, end):
                    return [row]
        return []

    def take_pictures(self, output: Output) -> list[Fields]:
        """The next images and clips, one for each in the prompt; of one prompt's samples, the
        same."""
        if not output.request.get("sample"):
            places = self.placeholders.places(output.prompt_ids)
            self.taken = take_next(self.pictures, [token for token, _ in places])
        return self.taken

    def check_clips(self, outputs: Sequence[Output]) -> None:
        """Raise GoldenError where clips are left that no prompt has taken: the wrong ones may have
        been."""
        clip = self.placeholders.clip
        left = len(self.pictures[clip])
        are_reported = any(one.reported.get("images") for one in outputs)
        if left and clip and not are_reported:
            raise golden.GoldenError(
                f"{left} videos more went through a processor than the prompts hold, so which is "
                "whose is not known: process each once, right before it is asked about"
            )


def complete_loop(output: Output, later: Events) -> None:
    """Give a loop's row the last of its ids, where it was decoded with the others: the model never
    reads it, and that it is the likeliest is a guess."""
    own = output.output_ids
    if output.reported.get("loop") == LIKELIEST and own[:-1] == output.new_ids:
        own = own[:-1]
    elif output.reported.get("loop") != BUT_THE_LAST:
        return
    decoded = [ids for event in later if isinstance(event, Decode) for ids in event.ids]
    found = [ids for ids in decoded if len(ids) > 1 and ids[:-1] == own]
    if found and output.output_ids not in found:
        output.output_ids = output.new_ids = found[0]
        output.reported["loop"] = CHOSEN


def prompt_stages(output: Output, before: Before) -> Fields:
    """What is known of a prompt by its ids; which of them are not its text's, its request says."""
    is_scored = bool(output.reported.get("scored"))
    found = before.text_of(output.prompt_ids, is_scored)
    if found.behind and is_scored:
        output.request.setdefault("response", found.behind)
    elif found.behind and "prompt_text" not in output.reported:
        output.request["behind"] = found.behind
    return {} if found.text is None else before.chat_stages(found.text)


def row_of(output: Output, call: ModelCall, before: Before, later: Events) -> Fields:
    complete_loop(output, later)
    stages = prompt_stages(output, before) | decode_stages(output, later)
    stages |= {name: stage for name, stage in output.reported.items() if stage is not None}
    if "prompt_text" in stages:
        stages["prompt_text"] = folded_images(stages["prompt_text"])
    elif cut := before.cut(output.prompt_ids):
        output.request["cut"] = cut
    pictures = stages.get("images") or before.take_pictures(output)
    own = {
        "images": placed_pictures(pictures, output.prompt_ids, call.placeholders),
        "batch": output.batch,
        "request": output.request,
        "sampling": output.sampling or call.sampling,
        "stop": output.stop or call.stop,
    }
    return {
        **stages,
        **{name: stage or None for name, stage in own.items()},
        "prompt_ids": output.prompt_ids,
        "model": call.model,
        "inputs": before.inputs(output.prompt_ids),
        "output_ids": output.output_ids,
    }


def rows_of(events: Events, store: golden.Store | None) -> list[Fields]:
    """All rows of one call, in the order in which the model was asked."""
    found = []
    since = 0
    for index, event in enumerate(events):
        if not isinstance(event, ModelCall) or event.nested:
            continue
        before = Before(events[since:index], event.placeholders)
        since = index
        if any(by_itself(output.reported) for output in event.outputs):
            before.know(events[:index])  # their texts may be older than what was read last
        later = events[index:]
        for output in event.outputs:
            row = row_of(output, event, before, later)
            found.append(stored_row(row, store))
        before.check_clips(event.outputs)
    return found


def stored_row(row: Row, store: golden.Store | None) -> Fields:
    """A row in the order of a golden, its images with blobs."""
    kept = {key: row[key] for key in golden.ROW_KEYS if row.get(key) is not None}
    if "images" in kept:
        kept["images"] = [kept_picture(picture, store) for picture in kept["images"]]
    return kept


def with_script_seed(rows: Sequence[Row], seed: int | None) -> Iterator[Any]:
    """Rows that name the seed that a script gave before their call: they would have been sampled
    with it, had the recorder not given its own."""
    for row in rows:
        own = row.get("sampling", {}).get("seed", {})
        if seed is None or own.get("from") != "script":
            yield row
        else:
            request = {**row.get("request", {}), "script_seed": seed}
            yield {**row, "request": request}


def split_calls(events: list[Event], keep: int) -> tuple[list[list[Event]], list[Event]]:
    """Events of many model calls -> one list per call (what led to it, and all decoding after it),
    and the rest, with the last `keep` calls."""
    places = [index for index, event in enumerate(events) if is_model_call(event)]
    found = []
    since = 0
    for place in places[: len(places) - keep]:
        later = [event for event in events[place + 1 :] if isinstance(event, Decode)]
        found.append([*events[since : place + 1], *later])
        since = place + 1
    return found, events[since:]
