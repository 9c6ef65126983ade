"""Holds what the cases share: the plain folder, which is also the origin, and the contenders' mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nodebench import server, workers
from nodebench.data import SMALL_BYTES, Data, make_small, s5cmd
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import Workplace, run, run_worker, tool, unmount
from nodebench.mounts import JuiceFS, Rclone
from nodebench.results import Results
from nodebench.telling import Telling

MODES = ("noopen", "passthrough")


@dataclass
class Bench(Telling):
    """scale: of all counts. has_peers: whether other caches are measured, too."""

    place: Workplace
    results: Results
    scale: float
    repeat: int
    has_peers: bool

    def worker(self, *words: object, timeout_s: float = 300) -> dict[str, Any]:
        answer: dict[str, Any] = run_worker(workers.__file__, *words, timeout_s=timeout_s)
        return answer

    def small_files(self) -> Data:
        """Make the small files, once."""
        root, names = self.place.folder("plain"), os.path.join(self.place.root, "names")
        count = max(200, round(20_000 * self.scale))
        if not os.path.exists(names):
            make_small(root, names, count)
        return Data(root, 0, 0, count, names)

    @contextmanager
    def mounted(self, data: Data) -> Iterator[dict[str, str]]:
        """Yield the root of each contender, which has all small files in its cache."""
        roots = {"plain": data.root}
        mounts: list[Any] = []
        sealed = os.path.join(self.place.folder("sealed"), "mount")
        try:
            for mode in MODES:
                with self.attempt("small", f"headrace-{mode}"):
                    mount = HeadraceMount(self.place, f"file://{data.root}", io=mode)
                    mounts.append(mount)
                    mount.start()
                    mount.load("small")
                    roots[mount.name] = mount.root
                    if mode == MODES[0]:
                        words = ["seal", mount.mountpoint, "--as", "bench@1", "--at", sealed]
                        run([tool("headrace"), *words], timeout_s=600)
                        roots["sealed"] = sealed
            if self.has_peers:
                roots |= self._peers(data, mounts)
            yield roots
        finally:
            unmount(sealed)
            for mount in reversed(mounts):
                mount.stop()

    def _peers(self, data: Data, mounts: list[Any]) -> dict[str, str]:
        roots: dict[str, str] = {}
        store = server.start(self.place)
        s5cmd(store, ["cp", f"{data.root}/small/", f"s3://{store.bucket}/small/"], timeout_s=900)
        for kind in (JuiceFS, Rclone):
            with self.attempt("small", kind.name):
                peer = kind(self.place, store)
                mounts.append(peer)
                peer.start()
                if kind is JuiceFS:
                    run(["cp", "-r", f"{data.root}/small", peer.mountpoint], timeout_s=900)
                self.worker("files", data.names_path, peer.root, data.small_count, -1, 2, 600, timeout_s=700)
                roots[peer.name] = peer.root
        return roots


__all__ = ["SMALL_BYTES", "Bench"]
