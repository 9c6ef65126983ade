"""Tell observers of writes: the sessions of this host, the nodes with replicas, and the other nodes of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class WriteObserver:
    """Follow what write-back does. Calls are on the node's loop; those of this class do nothing."""

    def start(self, dirty: Iterable[bytes]) -> None:
        """Begin with the paths that an earlier node left dirty."""

    async def stop(self) -> None:
        """End before the upper layer is closed. Calls may come until then."""

    def on_opened(self, path: bytes) -> None:
        """Learn that a session has the file open for writing."""

    def on_changed(self, paths: list[bytes], source: int) -> None:
        """Learn that paths mean something else. source: the session that wrote them; 0: the node."""

    def on_demoted(self, paths: list[bytes]) -> None:
        """Learn that names left the upper layer: they mean what the origin has."""

    async def on_persisted(self, paths: list[bytes], folders: set[bytes]) -> None:
        """Learn that a round over these paths ended, with or without errors. folders: those whose listings at the
        origin may have changed."""

    async def before_acknowledged(self, path: bytes) -> None:
        """Do what must be done before a write at or below a path is acknowledged. HeadraceError."""

    def status(self) -> dict[str, object]:
        """Return what `headrace status` shows of it."""
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

    async def on_persisted(self, paths: list[bytes], folders: set[bytes]) -> None:
        for observer in self._observers:
            await observer.on_persisted(paths, folders)

    async def before_acknowledged(self, path: bytes) -> None:
        for observer in self._observers:
            await observer.before_acknowledged(path)

    def status(self) -> dict[str, object]:
        return {key: value for observer in self._observers for key, value in observer.status().items()}
