"""Belady's algorithm as libcachesim has it, on the trace of the simulated jobs."""

from __future__ import annotations

import os
import struct

from .jobs import trace

_RECORD = struct.Struct("<IQIq")  # time, id, bytes, number of the request that is next for this id
_NEVER = -1


def write_trace(path: str, files: int, jobs: int, epochs: int) -> int:
    """Write libcachesim's format oracleGeneral. Return the number of requests."""
    reads = [file for _, _, file in trace(files, jobs, epochs)]
    following, next_of = [_NEVER] * len(reads), dict[int, int]()
    for number in range(len(reads) - 1, -1, -1):
        following[number] = next_of.get(reads[number], _NEVER)
        next_of[reads[number]] = number
    with open(path, "wb") as file:
        for number, (read, later) in enumerate(zip(reads, following, strict=True)):
            file.write(_RECORD.pack(number, read + 1, 1, later))
    return len(reads)


def misses_of_libcachesim(folder: str, files: int, jobs: int, epochs: int) -> float:
    """Return the misses of all epochs, in data sets. Raises ImportError without libcachesim."""
    import libcachesim

    path = os.path.join(folder, f"trace-{jobs}.oracleGeneral")
    count = write_trace(path, files, jobs, epochs)
    reader = libcachesim.TraceReader(path, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    ratio, _ = libcachesim.Belady(files // 4).process_trace(reader)
    return ratio * count / files
