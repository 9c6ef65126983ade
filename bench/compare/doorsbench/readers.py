"""Runs in a process of its own: programs that read as users' do. Each prints one JSON line.

Times are taken inside, around the loop, so that the start of Python is in none. `where` is the plain folder or a mount,
or `cache:FOLDER` for the library.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

LIBRARY = "cache:"
STEP_BYTES = 1 << 20
IMAGE_SIDE = 224
BATCH = 64
LEAST_S = 0.5


def start() -> dict[str, float]:
    """`import headrace` and the first `connect` of a process, which finds the node by itself."""
    begin = time.perf_counter()
    import headrace

    imported = time.perf_counter()
    headrace.connect()
    return {"import_ms": (imported - begin) * 1e3, "connect_ms": (time.perf_counter() - imported) * 1e3}


def _names(path: str, seed: int) -> list[str]:
    with open(path) as source:
        names = source.read().split()
    random.Random(seed).shuffle(names)
    return names


def _plain_read(paths: Iterable[str]) -> int:
    size = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        while chunk := os.read(fd, STEP_BYTES):
            size += len(chunk)
        os.close(fd)
    return size


def _plain_open(paths: Iterable[str]) -> int:
    size = 0
    for path in paths:
        with open(path, "rb") as file:
            size += len(file.read())
    return size


def _by_library(cache: str, call: str) -> Callable[[Iterable[str]], int]:
    import headrace

    connected = headrace.connect(cache=cache)

    def read(paths: Iterable[str]) -> int:
        return sum(len(connected.read(path)) for path in paths)

    def opened(paths: Iterable[str]) -> int:
        size = 0
        for path in paths:
            with connected.open(path) as file:
                size += len(file.read())
        return size

    def many(paths: Iterable[str]) -> int:
        return sum(len(part.data) for part in connected.read_many(paths))

    return {"read": read, "open": opened, "read_many": many}[call]


def _work(where: str, call: str, names: list[str]) -> Callable[[], int]:
    if where.startswith(LIBRARY):
        work, root = _by_library(where.removeprefix(LIBRARY), call), ""
    else:
        work, root = (_plain_read if call == "read" else _plain_open), where
    paths = [f"{root}/{name}" for name in names]
    return lambda: work(paths)


def small(names_path: str, turns: str, *contenders: str) -> list[dict[str, Any]]:
    """Each contender is WHERE|CALL. All in this process, turn and turn about, a pass over all files each, in shuffled
    order; the first turn is not measured. Seconds and processor seconds of each pass."""
    works = [
        _work(*contender.rsplit("|", 1), _names(names_path, number))
        for number, contender in enumerate(contenders)
    ]
    passes: list[dict[str, Any]] = [{"wall": [], "busy": []} for _ in works]
    for turn in range(int(turns) + 1):
        for work, rates in zip(works, passes, strict=True):
            busy, begin = time.process_time(), time.perf_counter()
            work()
            if turn:
                rates["wall"].append(time.perf_counter() - begin)
                rates["busy"].append(time.process_time() - busy)
    return passes


def compare(cache: str, root: str, names_path: str) -> dict[str, int]:
    """Each file by each call of the library, against what the origin was given."""
    import headrace

    connected = headrace.connect(cache=cache)
    names, wrong = _names(names_path, 0), 0
    parts = connected.read_many([f"/{name}" for name in names])
    for name, part in zip(names, parts, strict=True):
        with open(f"{root}/{name}", "rb") as truth:
            body = truth.read()
        with connected.open(part.path) as file:
            wrong += file.read() != body
        wrong += (part.data != body) + (part.path != f"/{name}") + (connected.read(f"/{name}") != body)
    return {"files": len(names), "wrong": wrong}


def cold(cache: str, names_path: str) -> dict[str, float]:
    """`read_many` of files that are not cached, in shuffled order."""
    import headrace

    names = _names(names_path, 1)
    busy, begin = os.times(), time.perf_counter()
    connected = headrace.connect(cache=cache)
    size = sum(len(part.data) for part in connected.read_many([f"/{name}" for name in names]))
    return {"seconds": time.perf_counter() - begin, "bytes": size, "busy_s": _busy_since(busy)}


def _busy_since(before: os.times_result) -> float:
    now = os.times()
    return now.user + now.system - before.user - before.system


def s3fs_cat(options: str, bucket: str, names_path: str) -> dict[str, float]:
    """fsspec's own client for S3, as it is: all at once."""
    import s3fs

    given = json.loads(options)
    fs = s3fs.S3FileSystem(
        key=given["access_key_id"],
        secret=given["secret_access_key"],
        endpoint_url=given["endpoint"],
        skip_instance_cache=True,
    )
    names = _names(names_path, 1)
    busy, begin = os.times(), time.perf_counter()
    bodies = fs.cat([f"{bucket}/{name}" for name in names])
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "bytes": sum(map(len, bodies.values())), "busy_s": _busy_since(busy)}


# ---------------------------------------------------------------- training


def decoded(body: bytes, _name: str = "") -> Any:
    """Decode a JPEG as a trainer does."""
    import io

    import numpy as np
    import torch
    from PIL import Image

    with Image.open(io.BytesIO(body)) as image:
        image.draft("RGB", (IMAGE_SIDE, IMAGE_SIDE))
        small = image.convert("RGB").resize((IMAGE_SIDE, IMAGE_SIDE))
    return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)


def untouched(body: bytes, _name: str = "") -> Any:
    """Do the least that a trainer can do: of each sample 64 bytes are wanted."""
    import torch

    return torch.frombuffer(bytearray(body[-64:]), dtype=torch.uint8)


class PlainImages:
    """Is what most write who have a folder of images: a map-style data set."""

    def __init__(self, paths: list[str], decode: Callable[[bytes], Any]) -> None:
        self._paths = paths
        self._decode = decode

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with open(self._paths[index], "rb") as file:
            return self._decode(file.read()), 0


def _samples(where: str, kind: str, folder: str) -> Any:
    decode = decoded if kind == "decoded" else untouched
    if where.startswith(LIBRARY):
        from headrace.integrations.torch_data import Samples

        return Samples(f"headrace:///{folder}", decode=decode, cache=where.removeprefix(LIBRARY))
    root = f"{where}/{folder}"
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    return PlainImages(sorted(paths), decode)


def loader(kind: str, folder: str, turns: str, *contenders: str) -> list[dict[str, Any]]:
    """Samples a second of DataLoaders of torch's with two workers, which are kept: epochs, turn and turn about, each
    from its first batch to its last. The sum is of all that came in the first epoch, which is not measured, and the
    same for all who read the same."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loaders = [
        DataLoader(
            _samples(where, kind, folder),
            batch_size=BATCH,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
        )
        for where in contenders
    ]
    rows: list[dict[str, Any]] = [{"sum": _epoch(batches)[1], "rates": []} for batches in loaders]
    for _ in range(int(turns)):
        for batches, row in zip(loaders, rows, strict=True):
            count, seconds = 0, 0.0
            while seconds < LEAST_S:
                more, _, took_s = _epoch(batches)
                count, seconds = count + more, seconds + took_s
            row["rates"].append(count / seconds)
    return rows


def _epoch(batches: Any) -> tuple[int, float, float]:
    count, total, begin = 0, 0.0, 0.0
    for batch, _labels in batches:
        if not begin:
            begin = time.perf_counter()
        else:
            count += len(batch)
        total += float(batch.sum())
    return count, total, time.perf_counter() - begin


COMMANDS: dict[str, Callable[..., Any]] = {
    "start": start,
    "small": small,
    "compare": compare,
    "cold": cold,
    "s3fs_cat": s3fs_cat,
    "loader": loader,
}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
