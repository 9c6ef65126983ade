"""Keep the maps of data sets by the keys that their workers use, also for a while after their last stream.

A program may make its loader anew for each epoch, or stop in the middle of an epoch to validate. Its next stream goes
on with what was learned before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from headrace.base.clock import monotonic_s
from headrace.prefetch.sample_map import SampleMap

KEPT_S = 600.0
"""Seconds for which a map without a stream is kept."""
KEPT_MAX = 16


class LearnedMaps:
    """Maps by key; None: several data sets have the key. on_forgotten: called when maps without a stream are forgotten.
    It is used on the node's loop."""

    def __init__(self, on_forgotten: Callable[[], None]) -> None:
        self._maps: dict[str, SampleMap | None] = {}
        self._kept_until_s: dict[str, float] = {}
        """Keys without a stream, and when their maps are forgotten: the first one first."""
        self._on_forgotten = on_forgotten
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._maps)

    def __contains__(self, key: str) -> bool:
        return key in self._maps

    def get(self, key: str) -> SampleMap | None:
        return self._maps.get(key)

    def take(self, key: str, samples: int) -> SampleMap | None:
        """Return the map for a stream that begins. One without a stream is forgotten if its data set had another size,
        or if it has become unreliable."""
        kept = self._maps.get(key)
        is_fit = kept is not None and kept.samples == samples and kept.is_reliable
        if key in self._kept_until_s and not is_fit:
            self._forget(key)
            return None
        return kept

    def begin(self, key: str, sample_map: SampleMap) -> None:
        """Note the map of a stream that begins."""
        is_left = self._kept_until_s.pop(key, None) is not None
        is_shared = not is_left and self._maps.get(key, sample_map) is not sample_map
        self._maps[key] = None if is_shared else sample_map

    def end(self, key: str, *, is_learned: bool) -> None:
        """Note that the last stream with a key has ended. is_learned: only workers could tell its files."""
        sample_map = self._maps.get(key)
        if sample_map is None or not (is_learned and sample_map.has_files and sample_map.is_reliable):
            self._maps.pop(key, None)
            return
        self._kept_until_s[key] = monotonic_s() + KEPT_S
        if len(self._kept_until_s) > KEPT_MAX:
            self._forget(next(iter(self._kept_until_s)))
        self._wait()

    def kept(self) -> Iterator[SampleMap]:
        """Yield the maps without a stream."""
        return (sample_map for key in self._kept_until_s if (sample_map := self._maps[key]) is not None)

    def forget_kept(self) -> None:
        """Forget the maps without a stream: their memory is needed."""
        for key in list(self._kept_until_s):
            self._forget(key)

    def _forget(self, key: str) -> None:
        del self._kept_until_s[key], self._maps[key]

    def _wait(self) -> None:
        if self._kept_until_s and self._timer is None:
            wait_s = max(0.0, next(iter(self._kept_until_s.values())) - monotonic_s())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s = monotonic_s()
        for key, until_s in list(self._kept_until_s.items()):
            if until_s <= now_s:
                self._forget(key)
        self._wait()
        self._on_forgotten()
