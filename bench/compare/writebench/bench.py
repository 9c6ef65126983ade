"""Holds what the cases share: settings, the object store, contenders that come and go, workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nodebench.data import s5cmd
from nodebench.machine import NotRunError, Workplace, run_worker
from nodebench.results import Results
from nodebench.server import Server
from nodebench.telling import Telling

from . import writers
from .contenders import Contender, Headrace, JuiceFSLater, JuiceFSWriteback, PlainFolder, RcloneWrites

OURS = "headrace-local"


@dataclass
class Bench(Telling):
    place: Workplace
    server: Server
    results: Results
    scale: float
    repeat: int
    end_at: float
    """Monotonic time after which no new case begins."""
    turns: int = 0

    def worker(self, *words: object, timeout_s: float = 600) -> dict[str, Any]:
        answer: dict[str, Any] = run_worker(writers.__file__, *words, timeout_s=timeout_s)
        return answer

    def new_folder(self) -> str:
        """Return a folder of the bucket that was never used before."""
        self.turns += 1
        return f"turn-{self.turns}"

    def contenders(self) -> dict[str, Callable[[], Contender]]:
        """Name → who makes it, not started. Each is new for each turn, and so is its cache."""
        place, server = self.place, self.server
        return {
            "plain": lambda: PlainFolder(place),
            OURS: lambda: Headrace(place, server, "local", self.new_folder()),
            "headrace-back": lambda: Headrace(place, server, "back", self.new_folder()),
            "juicefs": lambda: JuiceFSWriteback(place, server),
            "juicefs-later": lambda: JuiceFSLater(place, server),
            "rclone": lambda: RcloneWrites(place, server),
        }

    @contextmanager
    def up(self, make: Callable[[], Contender]) -> Iterator[Contender]:
        """Nothing of who was before is still to be written to the disk when it starts."""
        os.sync()
        mount = make()
        try:
            mount.start()
            yield mount
        finally:
            mount.stop()
            self.empty_bucket()

    def empty_bucket(self) -> None:
        try:
            s5cmd(self.server, ["rm", f"s3://{self.server.bucket}/*"], timeout_s=300)
        except NotRunError:
            pass  # there was nothing
