"""What a node believes of the cluster's records, whatever etcd has in their place.

A record counts as it was sealed (`identity/seals.py`). One that is not believed changes nothing where another was
before it; nor does one that is not there any more, where only a sealed end takes it away. Both are put back, by the
first node that can. A leased record that is not believed counts as gone, as it would without its lease.

A seal may end while no node runs. A record that is still there, byte for byte as this node believed it in its last run,
is believed on, where this node may seal it anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.refusals import Refusals
from headrace.cluster.kept_records import Kept, KeptRecords
from headrace.cluster.records import RecordSeals
from headrace.identity.names import StrangerError
from headrace.identity.record_kinds import kind_of
from headrace.identity.seals import ENDED

log = logging.getLogger(__name__)

PUT_BACK_AGAIN_S = 10.0
"""Two nodes that believe different authorities, or clocks, must not fight."""
NOTHING = b""
"""What is believed of a record where there is something that nobody believes."""


@dataclass(frozen=True, slots=True)
class Held:
    """value: what is believed of a record; None: it was ended. raw: as etcd has it; None: it has none."""

    value: bytes | None
    raw: bytes | None


class Beliefs:
    """mirror: what followers were told. seals None: everything is believed. kept: for the next run."""

    def __init__(self, seals: RecordSeals | None, kept: KeptRecords | None, mirror: dict[str, bytes]) -> None:
        self._seals = seals
        self._kept = kept
        self._mirror = mirror
        self._held: dict[str, Held] = {}
        self._good: dict[str, bytes] = {}
        self._remembered: dict[str, bytes] = {}
        self._wrong: set[str] = set()
        self._put_back_s: dict[str, float] = {}
        self._changed: set[str] = set()
        self._written: set[str] = set()
        self._refusals = Refusals(log, "records")

    @property
    def are_sealed(self) -> bool:
        return self._seals is not None

    def remember(self) -> None:
        """What an earlier run believed; before anything is heard. Blocks for some ms."""
        if self._seals is None or self._kept is None:
            return
        kept = self._kept.read()
        self._written = set(kept)
        self._seals.remember({key: one.mark for key, one in kept.items()})
        self._remembered = {
            key: one.raw for key, one in kept.items() if one.raw and self._seals.may_close(key)
        }
        for key, one in kept.items():
            value = self._opened(key, one.raw) if one.raw else None
            if value:
                self._mirror.setdefault(key, value)

    # ------------------------------------------------------------ what is written

    def close(self, key: str, value: bytes) -> bytes:
        return value if self._seals is None else self._seals.close(key, value)

    def wrote(self, key: str, value: bytes, closed: bytes) -> None:
        if self._seals is not None:
            self._held[key] = Held(value, closed)

    def end_of(self, key: str) -> bytes | None:
        """What is written in the place of a record that is to go; None: it is taken away."""
        kind = kind_of(key)
        lasts = self._seals is not None and kind is not None and kind.is_lasting
        return self.close(key, ENDED) if lasts and key in self._held else None

    def held(self, key: str) -> Held | None:
        return self._held.get(key)

    # ------------------------------------------------------------ what is read

    def meaning(self, key: str, raw: bytes | None, *, newest: bool = False) -> bytes | None:
        """What a record means that is so in etcd: None: that it is not there; NOTHING: there is something that
        nobody believes. newest: nothing older is believed from now on."""
        if self._seals is None:
            return raw
        opened = None if raw is None else self._opened(key, raw, newest=newest)
        if opened is not None:
            self._wrong.discard(key)
            return opened or None  # ENDED
        kind = kind_of(key)
        stays = kind is not None and not kind.is_leased and (kind.is_lasting or raw is not None)
        if stays and key in self._good:
            self._wrong.add(key)
            self._held[key] = Held(self._mirror.get(key), raw)
            return self._mirror.get(key)
        if newest:
            self._seals.gone(key)
            self._changed.add(key)
        if raw is None:
            self._held.pop(key, None)
            self._good.pop(key, None)
            return None
        if kind is not None:
            self._held[key] = Held(NOTHING, raw)
        return NOTHING

    def meanings(
        self, records: Mapping[str, bytes], prefix: str = "", *, newest: bool = False
    ) -> dict[str, bytes]:
        """Of all records with a prefix. Those that nobody believes are left out."""
        if self._seals is None:
            return dict(records)
        known = self._mirror.keys() | (self._seals.marks().keys() if newest else set())
        gone = [key for key in known - records.keys() if key.startswith(prefix)]
        meant = {key: self.meaning(key, records.get(key), newest=newest) for key in [*records, *gone]}
        return {key: value for key, value in meant.items() if value}

    # ------------------------------------------------------------ upkeep

    def to_put_back(self) -> dict[str, tuple[bytes | None, bytes]]:
        """By key what etcd has, and what it had."""
        found: dict[str, tuple[bytes | None, bytes]] = {}
        now_s = time.monotonic()
        for key in list(self._wrong):
            held, good = self._held.get(key), self._good.get(key)
            if held is None or good is None:
                self._wrong.discard(key)
            elif now_s >= self._put_back_s.get(key, now_s):
                found[key] = held.raw, good
        return found

    def tried_to_put_back(self, key: str, *, done: bool) -> None:
        """Not done: etcd has another one by now, which is heard of."""
        self._wrong.discard(key)
        self._put_back_s[key] = time.monotonic() + PUT_BACK_AGAIN_S
        if done:
            self._refusals.add("it was changed or taken away, and is put back", address=_address(key))

    def aging(self) -> dict[str, bytes]:
        """Records whose seal this node can, and should, make anew."""
        if self._seals is None:
            return {}
        self._seals.forget_old()
        return {
            key: held.value for key, held in self._held.items() if held.value and self._is_aging(key, held)
        }

    def changes(self) -> tuple[dict[str, Kept], list[str]]:
        """What is to be kept since this was asked last, and the keys of what is not any more."""
        if self._seals is None or self._kept is None or not self._changed:
            return {}, []
        marks, changed = self._seals.marks(), self._changed
        self._changed = set()
        gone = [key for key in self._written if key not in marks]
        self._written = set(marks)
        return {key: Kept(marks[key], self._lasting(key)) for key in changed if key in marks}, gone

    def keep(self, changed: dict[str, Kept], gone: list[str]) -> None:
        """Blocks."""
        if self._kept is not None and (changed or gone):
            self._kept.write(changed, gone)

    # ------------------------------------------------------------ inside

    def _opened(self, key: str, raw: bytes, *, newest: bool = True) -> bytes | None:
        """None, and a line in the log, for what is not believed."""
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
        if newest and self._good.get(key) != raw:
            self._good[key] = raw
            self._changed.add(key)
        return opened

    def _is_aging(self, key: str, held: Held) -> bool:
        assert self._seals is not None
        if not held.raw or key not in self._mirror or not self._seals.may_close(key):
            return False
        try:
            return self._seals.is_aging(held.raw)
        except StrangerError:  # it has ended: else whoever has what it says writes it anew
            return self._remembered.get(key) == held.raw

    def _lasting(self, key: str) -> bytes:
        kind = kind_of(key)
        lasts = kind is not None and kind.is_lasting
        return self._good.get(key, b"") if lasts else b""


def _address(key: str) -> str:
    return key.replace("/", ":", 1)
