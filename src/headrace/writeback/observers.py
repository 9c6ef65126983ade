"""Notify observers of writes: this host's sessions, the replicas, and the other nodes of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class WriteObserver:
    """Follow write-back. Calls are on the node's loop; this base class does nothing."""

    def start(self, dirty: Iterable[bytes]) -> None:
        """Begin with the paths that an earlier run left dirty."""

    async def stop(self) -> None:
        """Stop before the upper layer is closed. Other calls may come until then."""

    def on_opened(self, path: bytes) -> None:
        """Handle that a session opened a file for writing."""

    def on_changed(self, paths: list[bytes], source: int) -> None:
        """Handle changed entries. source: the number of the session that changed them; 0 for the node."""

    def on_demoted(self, paths: list[bytes]) -> None:
        """Handle that names left the upper layer, and now show the origin's entries."""

    async def on_persisted(self, paths: list[bytes], directories: set[bytes]) -> None:
        """Handle the end of a round over these paths, with or without errors. directories: the directories whose
        listings at the origin may have changed."""

    async def before_acknowledged(self, path: bytes) -> None:
        """Finish the work that must precede the acknowledgement of a write at or below a path. Raises HeadraceError."""

    def status(self) -> dict[str, object]:
        """Return this observer's fields of `headrace status`."""
        return {}


class WriteObservers(WriteObserver):
    """Pass each call on to several observers, in their order."""

    def __init__(self, observers: Sequence[WriteObserver] = ()) -> None:
        self._observers = tuple(observers)

    def start(self, dirty: Iterable[bytes]) -> None:
        paths = list(dirty)
        for observer in self._observers:
            observer.start(paths)

    async def stop(self) -> None:
        for observer in self._observers:
            await observer.stop()

    def on_opened(self, path: bytes) -> None:
        for observer in self._observers:
            observer.on_opened(path)

    def on_changed(self, paths: list[bytes], source: int) -> None:
        for observer in self._observers:
            observer.on_changed(paths, source)

    def on_demoted(self, paths: list[bytes]) -> None:
        for observer in self._observers:
            observer.on_demoted(paths)

    async def on_persisted(self, paths: list[bytes], directories: set[bytes]) -> None:
        for observer in self._observers:
            await observer.on_persisted(paths, directories)

    async def before_acknowledged(self, path: bytes) -> None:
        for observer in self._observers:
            await observer.before_acknowledged(path)

    def status(self) -> dict[str, object]:
        return {key: value for observer in self._observers for key, value in observer.status().items()}
