"""Runs in a process of its own: readers and loaders. Prints one JSON line.

Time and processor time are taken inside, around the loop, so that the start of Python is in neither.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import multiprocessing
import os
import random
import sys
import time
from typing import Any

MIB = 1 << 20
RANGE_BYTES = 8 * MIB
RANGES_IN_FLIGHT = 16


def busy_s() -> float:
    """Processor time of the whole machine since boot: user, nice, system, irq, softirq, steal."""
    with open("/proc/stat") as stat:
        fields = [int(value) for value in stat.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def sequential(path: str, passes: str) -> dict[str, float]:
    buffer = bytearray(MIB)
    total = 0
    busy, start = busy_s(), time.perf_counter()
    for _ in range(int(passes)):
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": total, "busy_s": busy_s() - busy}


def _read_files(paths: list[str], limit_s: float, barrier: Any, answers: Any) -> None:
    barrier.wait()
    start = time.perf_counter()
    done = size = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        while chunk := os.read(fd, MIB):
            size += len(chunk)
        os.close(fd)
        done += 1
        if done % 64 == 0 and time.perf_counter() - start > limit_s:
            break
    answers.put((start, time.perf_counter(), done, size))


def files(list_path: str, root: str, count: str, seed: str, processes: str, limit_s: str) -> dict[str, float]:
    """Opens, reads and closes the first `count` files of the list; a negative seed keeps the list's order."""
    with open(list_path) as names:
        paths = [os.path.join(root, name) for name in names.read().split()[: int(count)]]
    if int(seed) >= 0:
        random.Random(int(seed)).shuffle(paths)
    workers = int(processes)
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(workers), context.Queue()
    running = [
        context.Process(target=_read_files, args=(paths[i::workers], float(limit_s), barrier, answers))
        for i in range(workers)
    ]
    busy = busy_s()
    for process in running:
        process.start()
    got = [answers.get(timeout=float(limit_s) + 60) for _ in running]
    for process in running:
        process.join(5)
    seconds = max(end for _, end, _, _ in got) - min(start for start, _, _, _ in got)
    return {
        "seconds": seconds,
        "files": sum(g[2] for g in got),
        "bytes": sum(g[3] for g in got),
        "busy_s": busy_s() - busy,
    }


def random_mmap(path: str, count: str, seed: str) -> dict[str, float]:
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    chooser = random.Random(int(seed))
    offsets = [chooser.randrange(0, size - 8192) for _ in range(int(count))]
    mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    start = time.perf_counter()
    for offset in offsets:
        mapped[offset : offset + 8192]
    return {"seconds": time.perf_counter() - start, "reads": len(offsets)}


def load_model_whole(path: str) -> dict[str, float]:
    """Load a model by headrace.integrations.safetensors, every value used."""
    from headrace.integrations.safetensors import iter_model

    start = time.perf_counter()
    total = sum(float(tensor.numpy().sum()) for _, tensor in iter_model(path))
    return {"seconds": time.perf_counter() - start, "sum": total}


def _touch_tensors(path: str) -> float:
    from safetensors import safe_open

    total = 0.0
    with safe_open(path, framework="numpy") as model:
        for name in model.keys():  # noqa: SIM118
            total += float(model.get_tensor(name).sum())
    return total


def load_model(path: str) -> dict[str, float]:
    import safetensors.numpy  # noqa: F401

    start = time.perf_counter()
    total = _touch_tensors(path)
    return {"seconds": time.perf_counter() - start, "sum": total}


def download(config: str, key: str, destination: str, then_load: str) -> dict[str, float]:
    """One object by obstore in parallel ranges, written in place as they come; then loads it where asked."""
    import safetensors.numpy  # noqa: F401
    from obstore.store import S3Store

    options = json.loads(config)
    store = S3Store(options.pop("bucket"), config=options, client_options={"allow_http": True})
    start = time.perf_counter()
    asyncio.run(_download(store, key, destination))
    seconds = time.perf_counter() - start
    size = os.path.getsize(destination)
    if then_load == "load":
        _touch_tensors(destination)
    return {"seconds": time.perf_counter() - start, "download_s": seconds, "bytes": size}


async def _download(store: Any, key: str, destination: str) -> None:
    size = (await store.head_async(key))["size"]
    gate = asyncio.Semaphore(RANGES_IN_FLIGHT)
    fd = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    async def part(start: int) -> None:
        async with gate:
            data = await store.get_range_async(key, start=start, end=min(start + RANGE_BYTES, size))
            await asyncio.to_thread(os.pwrite, fd, data, start)

    async with asyncio.TaskGroup() as parts:
        for start in range(0, size, RANGE_BYTES):
            parts.create_task(part(start))
    os.close(fd)


def opens(list_path: str, root: str, count: str, limit_s: str) -> dict[str, float]:
    with open(list_path) as names:
        paths = [os.path.join(root, name) for name in names.read().split()]
    start, done = time.perf_counter(), 0
    wanted = int(count)
    while done < wanted:
        for path in paths[: wanted - done]:
            os.close(os.open(path, os.O_RDONLY))
        done += min(len(paths), wanted - done)
        if time.perf_counter() - start > float(limit_s):
            break
    return {"seconds": time.perf_counter() - start, "opens": done}


def list_and_stat(folder: str, stats: str, limit_s: str) -> dict[str, float]:
    """Lists the folder (descends one level when it has folders only), then stats names in shuffled order."""
    start = time.perf_counter()
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with os.scandir(entry.path) as below:
                    names.extend(f"{entry.name}/{e.name}" for e in below)
            else:
                names.append(entry.name)
    listed = time.perf_counter() - start
    chosen = random.Random(1).sample(names, min(int(stats), len(names)))
    start, done = time.perf_counter(), 0
    for name in chosen:
        os.stat(f"{folder}/{name}")
        done += 1
        if done % 256 == 0 and time.perf_counter() - start > float(limit_s):
            break
    return {"list_s": listed, "entries": len(names), "stat_s": time.perf_counter() - start, "stats": done}


def walk(root: str) -> dict[str, float]:
    """Stats every name below the folder, in the order of the listings."""
    start, entries, pending = time.perf_counter(), 0, [root]
    while pending:
        with os.scandir(pending.pop()) as names:
            for name in names:
                entries += 1
                name.stat(follow_symlinks=False)
                if name.is_dir(follow_symlinks=False):
                    pending.append(name.path)
    return {"seconds": time.perf_counter() - start, "entries": entries}


COMMANDS = {
    "sequential": sequential,
    "files": files,
    "random_mmap": random_mmap,
    "load_model": load_model,
    "load_model_whole": load_model_whole,
    "download": download,
    "opens": opens,
    "list_and_stat": list_and_stat,
    "walk": walk,
}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
