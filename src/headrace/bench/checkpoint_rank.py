"""Simulate one rank of `headrace bench checkpoint`: it writes its files and reads them.

`python -m headrace.bench.checkpoint_rank PLAN NUMBER` reads commands from its input: "write K" or "read K" for
checkpoint K. It answers each with the seconds that it took. It writes a file in large parts, flushes it to the disk
(fsync) and closes it; then it flushes the directory. Each MiB begins with its position, which a read checks.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time

import msgspec

from headrace.base.decoding import decode_json

BLOCK_BYTES = 1 << 20
"""Distance of two stamps."""
PART_BYTES = 8 << 20
"""Size of one write or read call."""
_STAMP = struct.Struct("<QQQQ")
"""Numbers of the checkpoint, the rank, the file and the block."""


class CheckpointRankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the files of the ranks of one host. folder: directory of all checkpoints. first: number of the first
    rank. files: sizes in bytes by name, for each rank."""

    folder: str
    first: int
    files: list[dict[str, int]]


def main() -> int:
    with open(sys.argv[1], "rb") as source:
        plan = decode_json(source.read(), CheckpointRankPlan)
    local = int(sys.argv[2])
    rank = plan.first + local
    buffer = bytearray(os.urandom(PART_BYTES))
    _say({"ready": rank})
    for line in sys.stdin:
        verb, number = line.split()
        action = {"write": write, "read": read}[verb]
        begin_s = time.perf_counter()
        size = action(folder_of(plan.folder, int(number)), plan.files[local], (int(number), rank), buffer)
        _say({"took_s": time.perf_counter() - begin_s, "bytes": size})
    return 0


def folder_of(folder: str, number: int) -> str:
    return os.path.join(folder, f"checkpoint-{number}")


def write(folder: str, files: dict[str, int], mark: tuple[int, int], buffer: bytearray) -> int:
    """Write the files and return their bytes. On return they are on the disk, as far as fsync reports it."""
    view = memoryview(buffer)
    for place, (name, size) in enumerate(files.items()):
        with open(os.path.join(folder, name), "wb", buffering=0) as out:
            for start in range(0, size, PART_BYTES):
                for block in range(start, min(size, start + PART_BYTES), BLOCK_BYTES):
                    _STAMP.pack_into(buffer, block - start, *mark, place, block)
                left = view[: min(PART_BYTES, size - start)]
                while left:
                    left = left[out.write(left) :]
            os.fsync(out.fileno())
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
    return sum(files.values())


def read(folder: str, files: dict[str, int], mark: tuple[int, int], buffer: bytearray) -> int:
    """Read the files and return their bytes. Raises ValueError for bytes that differ from those written."""
    view = memoryview(buffer)
    for place, (name, size) in enumerate(files.items()):
        with open(os.path.join(folder, name), "rb", buffering=0) as source:
            for start in range(0, size, PART_BYTES):
                wanted = min(PART_BYTES, size - start)
                got = 0
                while got < wanted and (part := source.readinto(view[got:wanted])):
                    got += part
                if got < wanted:
                    raise ValueError(f"{name} ends at {start + got}, not at {size}")
                _check(buffer, name, (*mark, place), start, min(size, start + PART_BYTES))
    return sum(files.values())


def _check(buffer: bytearray, name: str, mark: tuple[int, int, int], start: int, end: int) -> None:
    for block in range(start, end, BLOCK_BYTES):
        if block + _STAMP.size <= end and _STAMP.unpack_from(buffer, block - start) != (*mark, block):
            raise ValueError(f"{name}: the block at {block} has other bytes than were written")


def _say(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
