"""Holds what all cases share: the settings, the server, the data, the mounts that are up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import workers
from .data import Data
from .headrace_mount import HeadraceMount
from .machine import Workplace, run_worker
from .mounts import JuiceFS, Plain, Rclone, S3fs
from .results import Results
from .server import Server
from .telling import Telling

GIB = 1 << 30
MODES = ("passthrough", "noopen")


@dataclass
class Bench(Telling):
    place: Workplace
    server: Server
    data: Data
    results: Results
    scale: float
    repeat: int
    opens: int
    end_at: float
    """Monotonic time after which no new case begins."""
    mounts: dict[str, Any] = field(default_factory=dict)

    def worker(self, *words: object, timeout_s: float = 180) -> dict[str, Any]:
        answer: dict[str, Any] = run_worker(workers.__file__, *words, timeout_s=timeout_s)
        return answer

    def headrace(self, mode: str, url: str | None = None) -> HeadraceMount:
        """A mount over a new empty cache, not started yet."""
        if url is not None:
            return HeadraceMount(self.place, url, io=mode)
        server = self.server
        options = {key: str(value) for key, value in server.options().items() if key != "endpoint"}
        return HeadraceMount(self.place, server.url(""), io=mode, endpoint=server.endpoint, options=options)

    @contextmanager
    def up(self, mode: str, url: str | None = None) -> Iterator[HeadraceMount]:
        mount = self.headrace(mode, url)
        try:
            mount.start()
            yield mount
        finally:
            mount.stop()

    def start_cached(self) -> None:
        """Mounts every contender and puts all of the data in its cache (cases 1 to 4)."""
        if self.mounts:
            return
        self.mounts["plain"] = Plain(self.data)
        makers = [lambda m=mode: self.headrace(m) for mode in MODES]
        makers += [lambda k=kind: k(self.place, self.server) for kind in (JuiceFS, Rclone, S3fs)]
        names = [f"headrace-{mode}" for mode in MODES] + ["juicefs", "rclone", "s3fs"]
        for name, make in zip(names, makers, strict=True):
            self.say(f"mount and fill {name}")
            with self.attempt("1-4", name):
                mount = make()
                try:
                    mount.start()
                    self._fill(mount)
                except BaseException:
                    mount.stop()
                    raise
                self.mounts[name] = mount

    def _fill(self, mount: Any) -> None:
        if isinstance(mount, HeadraceMount):
            for folder in ("big", "small"):
                mount.load(folder)
        else:
            mount.put(self.data)
        self.worker("sequential", os.path.join(mount.root, Data.BIG), 1)

    def stop_cached(self) -> None:
        for mount in self.mounts.values():
            mount.stop()
        self.mounts.clear()
