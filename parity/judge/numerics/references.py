"""What plain transformers reads of a checkpoint: the reference, its probes and the old path. Each
row is read once, whichever sites and backends ask for it, and kept for the next check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parity.judge.numerics import reading
from parity.judge.numerics.cache import Shelf, reader_key
from parity.judge.numerics.probes import PROBED, PROBES
from parity.judge.numerics.reading import Reader, Reference, Source, TokenRow
from parity.record.taps.models import adapter_print

RIGHT = "batches of like length, padded on the right"
LEFT = f"batches of {reading.OLD_ROWS}, padded on the left"
ADAPTER = "adapter"
IS_THERE = "is there"


@dataclass
class References:
    """Of one checkpoint as a golden ran it.   adapter: a folder, or "".   Raises CannotJudge where
    not even the golden's dtype fits."""

    path: str
    dtype: str
    attention: str | None = None
    adapter: str = ""
    source: Source = field(init=False)
    shelves: dict[str, Shelf] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = reading.reference_source(self.path, self.dtype, attention=self.attention)

    def read(self, rows: Sequence[TokenRow]) -> Reference:
        """In order. A model is loaded only where a row was never read."""
        if not self.source.exact:
            truth = self._read_old(self.attention, "reference", rows)
            other = self._read_old(self.source.other, "old path", rows)
            return Reference(self.source, truth.get(rows), other.get(rows), {})
        self._read_exact(rows)
        truth = self._shelf("float32", None, RIGHT, "reference")
        probes = {}
        for name in PROBES:
            shelf = self._shelf_of_probe(name)
            if shelf.facts.get(IS_THERE):
                probes[name] = shelf.get(rows)
        old = self._read_old(self.attention, "old path", rows)
        loaded = str(truth.facts.get(ADAPTER, ""))
        return Reference(self.source, truth.get(rows), old.get(rows), probes, loaded)

    def _shelf(self, dtype: str, attention: str | None, how: str, role: str) -> Shelf:
        name = f"{role} {dtype} {attention}"
        if name not in self.shelves:
            folder = reading.local_path(self.path)
            key = reader_key(folder, dtype, attention, self.adapter, how, role)
            self.shelves[name] = Shelf(key)
        return self.shelves[name]

    def _shelf_of_probe(self, name: str) -> Shelf:
        return self._shelf("float32", None, RIGHT, f"{name} x {PROBED}")

    def _read_exact(self, rows: Sequence[TokenRow]) -> None:
        """The reference, and the directions that faults have."""
        shelf = self._shelf("float32", None, RIGHT, "reference")
        missing = {"": shelf.lacks(rows)}
        for name in PROBES:
            missing[name] = []
            probe = self._shelf_of_probe(name)
            if probe.facts.get(IS_THERE, True):
                missing[name] = probe.lacks(rows)
        if not any(missing.values()):
            return
        with Reader(self.path, adapter=self.adapter) as reader:
            shelf.facts[ADAPTER] = adapter_print(reader.model)
            shelf.keep(missing[""], reader.read(missing[""]))
            for name, moved in PROBES.items():
                probe = self._shelf_of_probe(name)
                with moved(reader.model, PROBED) as is_there:
                    probe.facts[IS_THERE] = is_there
                    some = missing[name] if is_there else []
                    probe.keep(some, reader.read(some, what=f"probe: {name}"))

    def _read_old(self, attention: str | None, what: str, rows: Sequence[TokenRow]) -> Shelf:
        """As scripts do."""
        shelf = self._shelf(self.dtype, attention, LEFT, "old path")
        missing = shelf.lacks(rows)
        if missing:
            with Reader(self.path, self.dtype, attention=attention, adapter=self.adapter) as reader:
                shelf.keep(missing, reader.read_as_old(missing, what))
        return shelf
