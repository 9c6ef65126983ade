"""Decide which records of the cluster this node accepts, whatever etcd holds in their place.

A record counts as it was sealed (`identity/seals.py`). A record that is not accepted changes nothing where an
accepted one was before it; nor does a missing record that only a sealed end may remove. In both cases the first node
that can restores the accepted record. A leased record that is not accepted counts as gone, as it would without its
lease.

A seal may expire while no node runs. A record that is still, byte for byte, as this node accepted it in its last run
stays accepted where this node may seal it anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.clock import monotonic_s
from headrace.base.refusals import Refusals
from headrace.cluster.kept_records import Kept, KeptRecords
from headrace.cluster.records import RecordSeals
from headrace.identity.names import StrangerError
from headrace.identity.record_kinds import kind_of
from headrace.identity.seals import ENDED

log = logging.getLogger(__name__)

PUT_BACK_AGAIN_S = 10.0
"""Two nodes with different authorities or clocks must not overwrite each other without end."""
LOOKS_AT_ONCE = 256
"""Refused records that are looked at again at one time: each takes some 0.3 ms of the loop."""
NOTHING = b""
"""The value of a record that exists but is not accepted."""


@dataclass(frozen=True, slots=True)
class Held:
    """Holds a record. value: the accepted value; None: the record was ended. raw: the bytes in etcd; None: it is
    missing there."""

    value: bytes | None
    raw: bytes | None


class Beliefs:
    """Track which records are accepted. mirror: the values that followers were notified of. seals None: every record is
    accepted. kept: stores the records for the next run."""

    def __init__(self, seals: RecordSeals | None, kept: KeptRecords | None, mirror: dict[str, bytes]) -> None:
        self._seals = seals
        self._kept = kept
        self._mirror = mirror
        self._held: dict[str, Held] = {}
        self._accepted_raw: dict[str, bytes] = {}
        self._remembered: dict[str, bytes] = {}
        self._spoiled: set[str] = set()
        self._next_restore_s: dict[str, float] = {}
        self._changed: set[str] = set()
        self._kept_keys: set[str] = set()
        self._looked_at = 0
        self._refusals = Refusals(log, "records")

    @property
    def are_sealed(self) -> bool:
        return self._seals is not None

    def remember(self) -> None:
        """Load the records that an earlier run accepted, before any record is read. Blocks for some ms."""
        if self._seals is None or self._kept is None:
            return
        kept = self._kept.read()
        self._kept_keys = set(kept)
        self._seals.remember({key: record.mark for key, record in kept.items()})
        self._remembered = {
            key: record.raw for key, record in kept.items() if record.raw and self._seals.may_close(key)
        }
        for key, record in kept.items():
            value = self._opened(key, record.raw) if record.raw else None
            if value:
                self._mirror.setdefault(key, value)

    # ------------------------------------------------------------ writing

    def close(self, key: str, value: bytes) -> bytes:
        return value if self._seals is None else self._seals.close(key, value)

    def wrote(self, key: str, value: bytes, closed: bytes) -> None:
        if self._seals is not None:
            self._held[key] = Held(value, closed)

    def end_of(self, key: str) -> bytes | None:
        """Return the bytes that replace a record to be deleted, or None when it is simply deleted."""
        kind = kind_of(key)
        is_lasting = self._seals is not None and kind is not None and kind.is_lasting
        return self.close(key, ENDED) if is_lasting and key in self._held else None

    def raw_of_ended(self, key: str) -> bytes | None:
        """Return the bytes in etcd of a record that was ended; None: there is no record."""
        held = self._held.get(key)
        return held.raw if held is not None and held.value is None else None

    def held(self, key: str) -> Held | None:
        return self._held.get(key)

    # ------------------------------------------------------------ reading

    def meaning(self, key: str, raw: bytes | None, *, newest: bool = False) -> bytes | None:
        """Return the accepted value of a record with these bytes in etcd; None if it does not exist, NOTHING if it
        exists but is not accepted. newest: from now on no older version is accepted."""
        if self._seals is None:
            return raw
        opened = None if raw is None else self._opened(key, raw, newest=newest)
        if opened is not None:
            self._spoiled.discard(key)
            return opened or None  # ENDED
        kind = kind_of(key)
        persists = kind is not None and not kind.is_leased and (kind.is_lasting or raw is not None)
        if persists and key in self._accepted_raw:
            self._spoiled.add(key)
            self._held[key] = Held(self._mirror.get(key), raw)
            return self._mirror.get(key)
        if newest and (raw is None or raw != self._accepted_raw.get(key)):
            self._seals.gone(key)  # not where only the time of its certificate is over, by this host's clock
            self._changed.add(key)
        if raw is None:
            self._held.pop(key, None)
            self._accepted_raw.pop(key, None)
            return None
        if kind is not None:
            self._held[key] = Held(NOTHING, raw)
        return NOTHING

    def meanings(
        self, records: Mapping[str, bytes], prefix: str = "", *, newest: bool = False
    ) -> dict[str, bytes]:
        """Return the accepted values of all records with a prefix, without records that are not accepted."""
        if self._seals is None:
            return dict(records)
        known_keys = self._mirror.keys() | (self._seals.marks().keys() if newest else set())
        missing = [key for key in known_keys - records.keys() if key.startswith(prefix)]
        values = {key: self.meaning(key, records.get(key), newest=newest) for key in [*records, *missing]}
        return {key: value for key, value in values.items() if value}

    # ------------------------------------------------------------ upkeep

    def to_put_back(self) -> dict[str, tuple[bytes | None, bytes]]:
        """Return the records to restore: by key, the bytes in etcd and the accepted bytes."""
        restorable: dict[str, tuple[bytes | None, bytes]] = {}
        now_s = monotonic_s()
        for key in list(self._spoiled):
            held, accepted = self._held.get(key), self._accepted_raw.get(key)
            if held is None or accepted is None:
                self._spoiled.discard(key)
            elif now_s >= self._next_restore_s.get(key, now_s):
                restorable[key] = held.raw, accepted
        return restorable

    def tried_to_put_back(self, key: str, *, done: bool) -> None:
        """Record an attempt to restore a record. Not done: etcd has another record by now, of which the watch
        notifies this node."""
        self._spoiled.discard(key)
        self._next_restore_s[key] = monotonic_s() + PUT_BACK_AGAIN_S
        if done:
            self._refusals.add("it was changed or deleted, and is restored", address=_address(key))

    def aging(self) -> dict[str, bytes]:
        """Return the records whose seal this node can and should renew."""
        if self._seals is None:
            return {}
        self._seals.forget_old()
        return {
            key: held.value for key, held in self._held.items() if held.value and self._is_aging(key, held)
        }

    def accepted_late(self) -> dict[str, bytes]:
        """Return the values of records that were refused, and are accepted now. By the clock of this host, the
        certificates that sealed them were not valid at that time."""
        refused = [key for key, held in self._held.items() if held.value == NOTHING and held.raw]
        if self._seals is None or not refused:
            return {}
        start = self._looked_at % len(refused)
        batch = (refused[start:] + refused[:start])[:LOOKS_AT_ONCE]
        self._looked_at = start + len(batch)
        accepted: dict[str, bytes] = {}
        for key in batch:
            raw = self._held[key].raw
            if raw is None or not self._is_acceptable(key, raw):
                continue
            value = self.meaning(key, raw, newest=True)
            if value:
                accepted[key] = value
        return accepted

    async def keep_changes(self) -> None:
        """Write the changes since the last call, for the next run."""
        if self._seals is None or self._kept is None or not self._changed:
            return
        marks, changed = self._seals.marks(), self._changed
        self._changed = set()
        removed = [key for key in self._kept_keys if key not in marks]
        self._kept_keys = set(marks)
        records = {key: Kept(marks[key], self._lasting(key)) for key in changed if key in marks}
        if records or removed:
            await asyncio.to_thread(self._kept.write, records, removed)

    # ------------------------------------------------------------ internal

    def _opened(self, key: str, raw: bytes, *, newest: bool = True) -> bytes | None:
        """Return a record without its seal. Log and return None when it is not accepted."""
        assert self._seals is not None
        try:
            opened = self._seals.open(key, raw, newest=newest)
            self._remembered.pop(key, None)
        except StrangerError as error:
            if self._remembered.get(key) != raw:
                self._refusals.add(str(error), address=_address(key))
                return None
            opened = self._seals.body(key, raw)
        self._held[key] = Held(opened or None, raw)
        if newest and self._accepted_raw.get(key) != raw:
            self._accepted_raw[key] = raw
            self._changed.add(key)
        return opened

    def _is_acceptable(self, key: str, raw: bytes) -> bool:
        """Return whether a record is accepted, without a word in the log."""
        assert self._seals is not None
        try:
            self._seals.open(key, raw, newest=False)
        except StrangerError:
            return False
        return True

    def _is_aging(self, key: str, held: Held) -> bool:
        assert self._seals is not None
        if not held.raw or key not in self._mirror or not self._seals.may_close(key):
            return False
        try:
            return self._seals.is_aging(held.raw)
        except StrangerError:  # the seal expired; otherwise the record's author writes it again
            return self._remembered.get(key) == held.raw

    def _lasting(self, key: str) -> bytes:
        kind = kind_of(key)
        return self._accepted_raw.get(key, b"") if kind is not None and kind.is_lasting else b""


def _address(key: str) -> str:
    return key.replace("/", ":", 1)
