"""The cases of writing. All contenders in each turn, one after the other, each with a new cache on the same disk.

1 `large`: one file of 4 GiB, written in order, fsync, close. 2 `small`: 10,000 files created, written and closed.
3 `persist`: what was written to a mount in mode `back`, until all is at the origin, against s5cmd of the same data that
is on the disk already. Once while it is written (the time is from the first byte on), once after. What was written is
read back, and what was persisted is looked at in the object store.
4 `copies`: as 1, in mode `back:2` over a link: `copies.py`.
5 `exclusive`: small files in an exclusive directory: `exclusive.py`.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import obstore
from nodebench.data import s5cmd
from nodebench.machine import NotRunError, discard, run

from .bench import Bench
from .contenders import Headrace, HeadraceLater

GIB, MIB = 1 << 30, 1 << 20
SMALL_BYTES = 16 << 10
SMALL_LIMIT_S = 60
BIG_FILES = 8
LARGE = "1 write, fsync, close"
SMALL = "2 small files written"
PERSIST = "3 at the origin"


def large(bench: Bench) -> None:
    size = max(16, round(4096 * bench.scale)) * MIB
    for turn in range(bench.repeat):
        for name, make in in_turn(bench, turn):
            with bench.attempt(LARGE, name), bench.up(make) as mount:
                path = os.path.join(mount.root, "large")
                got = bench.worker("large", path, size)
                if bench.worker("check_large", path, size)["wrong"]:
                    raise NotRunError("read back wrong bytes")
                bench.results.add(LARGE, name, size / got["seconds"] / 1e9, unit="GB/s")
                bench.results.add(f"{LARGE}: until fsync", name, size / got["write_s"] / 1e9, unit="GB/s")
                bench.results.add(f"{LARGE}: processor time", name, got["busy_s"] / size * GIB, unit="s/GiB")
                os.unlink(path)


def small(bench: Bench) -> None:
    count = max(200, round(10_000 * bench.scale))
    for turn in range(bench.repeat):
        for name, make in in_turn(bench, turn):
            with bench.attempt(SMALL, name), bench.up(make) as mount:
                folder = os.path.join(mount.root, "small")
                got = bench.worker("small", folder, count, SMALL_BYTES, SMALL_LIMIT_S)
                if bench.worker("check_small", folder, got["files"], SMALL_BYTES)["wrong"]:
                    raise NotRunError("read back wrong bytes")
                bench.results.add(SMALL, name, got["files"] / got["seconds"], unit="files/s")
                if got["files"] < count:
                    bench.results.note(f"2: {name} wrote a part of the files, for {SMALL_LIMIT_S} s")


def in_turn(bench: Bench, turn: int) -> list[tuple[str, Any]]:
    """Every other turn backwards. Were they rotated, each would always follow the same one, and the disk may still have
    to recover from what that one wrote."""
    makers = list(bench.contenders().items())
    return makers[::-1] if turn % 2 else makers


def persist(bench: Bench) -> None:
    source = bench.place.folder("source")
    big_bytes = max(8, round(256 * bench.scale)) * MIB
    os.mkdir(os.path.join(source, "big"))
    for number in range(BIG_FILES):
        bench.worker("large", os.path.join(source, "big", f"{number}"), big_bytes)
    count = max(200, round(10_000 * bench.scale))
    bench.worker("small", os.path.join(source, "small"), count, SMALL_BYTES, SMALL_LIMIT_S)
    bench.results.note(
        "3: headrace-back's time is from the first byte that is written to the mount; what headrace-later persists and "
        "s5cmd copies is on the disk already"
    )
    for data in ("big", "small"):
        for turn in range(bench.repeat):
            for name in ("headrace-back", "headrace-later", "s5cmd")[:: 1 if turn % 2 else -1]:
                with bench.attempt(f"{PERSIST}, {data}", name):
                    if name == "s5cmd":
                        _upload(bench, source, data)
                    else:
                        _write_and_persist(bench, source, data, later=name == "headrace-later")
    discard(source)


def _upload(bench: Bench, source: str, data: str) -> None:
    os.sync()
    folder = bench.new_folder()
    start = time.perf_counter()
    words = ["cp", f"{source}/{data}/", f"s3://{bench.server.bucket}/{folder}/{data}/"]
    s5cmd(bench.server, words, timeout_s=600)
    seconds = time.perf_counter() - start
    size = _checked(bench, source, data, folder)
    bench.results.add(f"{PERSIST}, {data}", "s5cmd", size / seconds / 1e6, unit="MB/s")
    bench.empty_bucket()


def _write_and_persist(bench: Bench, source: str, data: str, *, later: bool) -> None:
    folder = bench.new_folder()
    make = HeadraceLater if later else Headrace
    with bench.up(lambda: make(bench.place, bench.server, "back", folder)) as mount:
        assert isinstance(mount, Headrace)
        start = time.perf_counter()
        run(["cp", "-r", f"{source}/{data}", mount.root], timeout_s=600)
        written = time.perf_counter()
        if later:
            os.sync()
            start = time.perf_counter()
        mount.persist()
        end = time.perf_counter()
        size = _checked(bench, source, data, folder)
    add = bench.results.add
    if later:
        add(f"{PERSIST}, {data}", "headrace-later", size / (end - start) / 1e6, unit="MB/s")
        return
    add(f"{PERSIST}, {data}", "headrace-back", size / (end - start) / 1e6, unit="MB/s")
    add(f"{PERSIST}, {data}: written after", "headrace-back", written - start, unit="s")
    add(f"{PERSIST}, {data}: persisted after", "headrace-back", end - start, unit="s")


def _checked(bench: Bench, source: str, data: str, folder: str) -> int:
    """Return the bytes of all files, once each is at the origin with its size, and some with their bytes."""
    store = bench.server.store
    assert store is not None
    sizes: dict[str, int] = {}
    for batch in obstore.list(store, prefix=f"{folder}/{data}"):
        sizes |= {entry["path"]: entry["size"] for entry in batch}
    top = os.path.join(source, data)
    wanted = {}
    for where, _, names in os.walk(top):
        for name in names:
            path = os.path.join(where, name)
            wanted[f"{folder}/{data}/{os.path.relpath(path, top)}"] = os.path.getsize(path)
    if sizes != wanted:
        raise NotRunError(f"{len(sizes)} of {len(wanted)} files are at the origin, or of another size")
    for key in random.Random(2).sample(sorted(wanted), min(3, len(wanted))):
        with open(os.path.join(top, key.removeprefix(f"{folder}/{data}/")), "rb") as file:
            if bytes(obstore.get(store, key).bytes()) != file.read():
                raise NotRunError(f"{key} has other bytes at the origin")
    return sum(wanted.values())
