"""Secure a write before it is acknowledged: on this host's disk, by replicas on other nodes, or at the origin."""

from __future__ import annotations

from typing import Protocol

from headrace.base.write_modes import WriteMode, WriteModes


class Durability(Protocol):
    """Provide what a mode promises without the origin."""

    def covers(self, path: bytes) -> bool:
        """Return whether `secure` fulfils the promise of the path's mode. Otherwise the origin must have it."""
        ...

    async def secure(self, path: bytes) -> None:
        """Return when everything at and below the path is as safe as its mode promises. Raises HeadraceError."""
        ...


class LocalDurability:
    """Acknowledge mode `back` as soon as this host's disk has the bytes, which it has already."""

    def __init__(self, modes: WriteModes) -> None:
        self._modes = modes

    def covers(self, path: bytes) -> bool:
        return self._modes.of(path) is WriteMode.BACK and self._modes.copies(path) < 2

    async def secure(self, path: bytes) -> None:
        return None
