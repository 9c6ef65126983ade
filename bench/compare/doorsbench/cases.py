"""The cases of the library. What each contender reads is what the object store was given; that is compared, too.

1 `start`: a process imports headrace and connects. 2 `small`: files of 110 KB in one process, all in the page cache.
3 `loader`: torch's DataLoader with two workers over images, likewise. 4 `cold`: many objects that are not cached, each
turn with a new node; s5cmd writes them to the disk, as the node does, s3fs keeps them in memory.
"""

from __future__ import annotations

import json
import os
import time

from nodebench.data import s5cmd
from nodebench.machine import NotRunError, discard

from .bench import OURS, PLAIN, Bench
from .readers import LIBRARY

START = "1 start"
SMALL = "2 cached small files, 1 process"
LOADER = "3 DataLoader, 2 workers"
COLD = "4 cold small objects"
MOUNT = "headrace-mount"
STARTS = 15
TURNS = 7
KINDS = ("decoded", "untouched")
CALLS = ("read", "read_many", "open")


def start(bench: Bench) -> None:
    bench.make_small()
    with bench.up():
        with bench.attempt(START, OURS):
            bench.worker("start")  # modules are compiled
            for _ in range(max(3, STARTS * bench.repeat // 3)):
                got = bench.worker("start")
                bench.results.add(f"{START}: import headrace", OURS, got["import_ms"], unit="ms")
                bench.results.add(f"{START}: connect", OURS, got["connect_ms"], unit="ms")


def small(bench: Bench) -> None:
    bench.make_small()
    with bench.up() as mount:
        mount.load("small")
        ours = LIBRARY + mount.cache
        answer = bench.worker("compare", mount.cache, bench.root, bench.names)
        if answer["wrong"]:
            raise NotRunError(f"{answer['wrong']} of {answer['files']} files are wrong")
        contenders = {PLAIN: f"{bench.root}|read", f"{PLAIN}, open()": f"{bench.root}|open"}
        contenders[MOUNT] = f"{mount.root}|read"
        for call in CALLS:
            contenders[OURS if call == "read" else f"{OURS}, {call}"] = f"{ours}|{call}"
        count = len(_names_of(bench))
        passes = bench.worker("small", bench.names, TURNS * bench.repeat, *contenders.values())
        for name, rates in zip(contenders, passes, strict=True):
            for seconds in rates["wall"]:
                bench.results.add(SMALL, name, count / seconds, unit="files/s")
            if name != MOUNT:  # whose session is another process
                for seconds in rates["busy"]:
                    bench.results.add(f"{SMALL}: processor time", name, seconds / count * 1e6, unit="µs/file")


def make_images(bench: Bench, count: int) -> None:
    """JPEGs that scikit-learn ships, each with some bytes behind its end, which decoders pass by: no two are equal."""
    import sklearn.datasets

    pictures = os.path.join(os.path.dirname(sklearn.datasets.__file__), "images")
    bodies = []
    for name in sorted(os.listdir(pictures)):
        if name.endswith(".jpg"):
            with open(f"{pictures}/{name}", "rb") as source:
                bodies.append(source.read())
    os.makedirs(f"{bench.root}/images")
    for number in range(count):
        with open(f"{bench.root}/images/{number:05d}.jpg", "wb") as out:
            out.write(bodies[number % len(bodies)] + os.urandom(64))


def loader(bench: Bench) -> None:
    count = max(4, round(12 * bench.scale)) * 64
    make_images(bench, count)
    bench.bytecode = bench.bytecode or bench.place.folder("bytecode")
    bench.upload("images")
    with bench.up() as mount:
        mount.load("images")
        contenders = {PLAIN: bench.root, OURS: LIBRARY + mount.cache, MOUNT: mount.root}
        for kind in KINDS:
            measure = f"{LOADER}, {kind}"
            with bench.attempt(measure, "all"):
                answers = bench.worker("loader", kind, "images", 3 * bench.repeat, *contenders.values())
                if len({answer["sum"] for answer in answers}) > 1:
                    raise NotRunError(f"the contenders read different bytes: {answers}")
                for name, answer in zip(contenders, answers, strict=True):
                    for rate in answer["rates"]:
                        bench.results.add(measure, name, rate, unit="samples/s")


def cold(bench: Bench) -> None:
    bench.make_small()
    with open(bench.names) as names:
        count = len(names.read().split())
    for turn in range(bench.repeat):
        with bench.attempt(COLD, OURS), bench.up() as mount:
            got = bench.worker("cold", mount.cache, bench.names)
            bench.add(COLD, OURS, count / got["seconds"], unit="files/s")
            bench.results.add(f"{COLD}: processor time of the reader", OURS, got["busy_s"], unit="s")
            if turn == 0 and bench.worker("compare", mount.cache, bench.root, bench.names)["wrong"]:
                raise NotRunError("read wrong bytes")
        with bench.attempt(COLD, "s5cmd"):
            folder = bench.place.folder("download")
            begin = time.perf_counter()
            s5cmd(bench.server, ["cp", f"s3://{bench.server.bucket}/small/*", folder], timeout_s=120)
            bench.add(COLD, "s5cmd", count / (time.perf_counter() - begin), unit="files/s")
            discard(folder)
        with bench.attempt(COLD, "s3fs cat"):
            options = json.dumps(bench.server.options())
            got = bench.worker("s3fs_cat", options, bench.server.bucket, bench.names)
            if got["bytes"] != sum(os.path.getsize(f"{bench.root}/{name}") for name in _names_of(bench)):
                raise NotRunError("s3fs gave other bytes")
            bench.add(COLD, "s3fs cat", count / got["seconds"], unit="files/s")
            bench.results.add(f"{COLD}: processor time of the reader", "s3fs cat", got["busy_s"], unit="s")


def _names_of(bench: Bench) -> list[str]:
    with open(bench.names) as names:
        return names.read().split()
