"""Files of 110 KB in an exclusive directory, beside the plain disk: created, looked at and removed, by one and by two
processes. In mode `back` nothing is persisted before the end, so that no upload takes part of the processor."""

from __future__ import annotations

import os

from nodebench.machine import NotRunError

from .bench import Bench
from .contenders import Contender, HeadraceLater, PlainFolder

SIZE_BYTES = 110_000
CREATED, STAT, UNLINKED = "5 created and closed", "5 stat", "5 unlinked"
PROCESSES = (1, 2)
CONTENDERS = ("plain", "headrace-local,exclusive", "headrace-back,exclusive", "headrace-back")


def exclusive(bench: Bench) -> None:
    count = max(200, round(4_000 * bench.scale))
    for turn in range(bench.repeat):
        for name in CONTENDERS[:: 1 if turn % 2 else -1]:
            with bench.attempt(CREATED, name), bench.up(lambda name=name: _contender(bench, name)) as mount:
                for processes in PROCESSES:
                    folder = os.path.join(mount.root, "out", f"by-{processes}")
                    got = bench.worker("many", folder, count, SIZE_BYTES, processes)
                    if got["wrong"]:
                        raise NotRunError("read back wrong bytes")
                    for measure in (CREATED, STAT, UNLINKED):
                        title = f"{measure}, {processes} processes" if processes > 1 else measure
                        bench.results.add(title, name, got["files"] / got[measure], unit="files/s")


def _contender(bench: Bench, name: str) -> Contender:
    if name == "plain":
        return PlainFolder(bench.place)
    mode = name.removeprefix("headrace-")
    return HeadraceLater(bench.place, bench.server, f"off,/out={mode}", bench.new_folder())
