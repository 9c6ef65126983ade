"""Mounts that can be written, each new for a turn. All give a `root` to write below."""

from __future__ import annotations

from typing import Protocol

from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import Workplace, discard
from nodebench.mounts import JuiceFS, Rclone
from nodebench.server import Server

PERSIST_LIMIT_S = 600


class Contender(Protocol):
    root: str

    def start(self) -> None: ...
    def stop(self) -> None: ...


class PlainFolder:
    """The disk that all the caches are on."""

    def __init__(self, place: Workplace) -> None:
        self.root = place.folder("plain")

    def start(self) -> None:
        pass

    def stop(self) -> None:
        discard(self.root)


class Headrace(HeadraceMount):
    """mode: of `--write`. folder: of the bucket."""

    def __init__(self, place: Workplace, server: Server, mode: str, folder: str) -> None:
        options = {key: str(value) for key, value in server.options().items() if key != "endpoint"}
        server.put(f"{folder}/.keep", b"")  # an origin that is not there is refused
        super().__init__(
            place, server.url(folder), io="passthrough", endpoint=server.endpoint, options=options
        )
        self._mode = mode

    def command(self) -> list[str]:
        return [*super().command(), "--write", self._mode]

    def persist(self) -> None:
        """Returns when all that was written is at the origin."""
        self._ask("persist", self.mountpoint, "--wait", "--json", timeout_s=PERSIST_LIMIT_S)


class HeadraceLater(Headrace):
    """Nothing is persisted before it is asked for."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "HEADRACE_PERSIST_DELAY_S": "3600"}


class JuiceFSWriteback(JuiceFS):
    """Writes are staged on its cache disk, and uploaded at once, in the background."""

    options = ("--writeback",)

    def __init__(self, place: Workplace, server: Server) -> None:
        super().__init__(place, server)
        self.volume = f"juice-{place.folders}"


class JuiceFSLater(JuiceFSWriteback):
    """The same, and no upload disturbs the writer: the kindest setting for it."""

    options = ("--writeback", "--upload-delay=1h")


class RcloneWrites(Rclone):
    """Uploads begin an hour after a close, so that none disturbs the writer."""

    mode = ("--vfs-cache-mode", "writes", "--vfs-write-back", "1h")

    def __init__(self, place: Workplace, server: Server) -> None:
        super().__init__(place, server)
        self.folder = f"rclone-{place.folders}"
