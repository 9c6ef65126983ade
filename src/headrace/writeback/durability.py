"""Secure a write before it is acknowledged: on this host's disk, by replicas on other nodes, or at the origin."""

from __future__ import annotations

from typing import Protocol

from headrace.base.write_modes import WriteMode, WriteModes


class Durability(Protocol):
    """Give a write what its mode promises, where that is not the origin."""

    def covers(self, path: bytes) -> bool:
        """Return whether `secure` is enough for the path. Otherwise the origin must have it."""
        ...

    async def secure(self, path: bytes) -> None:
        """Return when what is at the path, and below it, is as safe as its mode promises. HeadraceError."""
        ...


class LocalDurability:
    """Acknowledge mode `back` by the disk of this host, which has the bytes already."""

    def __init__(self, modes: WriteModes) -> None:
        self._modes = modes

    def covers(self, path: bytes) -> bool:
        return self._modes.of(path) is WriteMode.BACK and self._modes.copies(path) < 2

    async def secure(self, path: bytes) -> None:
        return None
