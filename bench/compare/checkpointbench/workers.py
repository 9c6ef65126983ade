"""Runs in a process of its own and prints one JSON line: the trainer that is stopped, the job that restores.

Memory is there before anything is timed: the state, the target of the memcpy, the staging memory. Of each turn
everything is measured one after the other, so that a busy moment hits all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.checkpoint import PosixStorage, SaveOptions, Saver, load
from headrace.checkpoint.memory import page_aligned

MIB = 1 << 20
DROP = Path("/proc/sys/vm/drop_caches")


def state_of(size_bytes: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return tensors as a model has them: large matrices, smaller ones, vectors; ten layers at least. All are views of
    the first one, which is what a plain memcpy and torch.save are fastest with."""
    shapes = [(4096, 4096), (4096, 1024), (1024, 4096), (4096,), (4096,)]
    layer = sum(int(np.prod(shape)) for shape in shapes)
    layers = max(10, size_bytes // (4 * layer))
    torch.manual_seed(1)
    flat = torch.randn(layers * layer)
    state, offset = {}, 0
    for number in range(layers):
        for place, shape in enumerate(shapes):
            count = int(np.prod(shape))
            state[f"layers.{number}.{place}"] = flat[offset : offset + count].view(shape)
            offset += count
    return flat, state


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def torch_save(state: dict[str, torch.Tensor], file: str, *, sync: bool) -> None:
    with open(file, "wb") as out:
        torch.save(state, out)
        if sync:
            out.flush()
            os.fsync(out.fileno())


def save(folder: str, size: str, repeat: str) -> dict[str, Any]:
    """Seconds that the trainer is stopped, a list each; and what the checkpoint took until it was committed."""
    flat, state = state_of(int(size))
    whole, source = flat.nbytes, flat.numpy()
    target = np.ones_like(source)
    result: dict[str, list[float]] = {
        name: [] for name in ("headrace", "memcpy", "torch.save", "torch.save, fsync")
    }
    committed: list[float] = []
    with Saver(f"{folder}/headrace", options=SaveOptions(budget_bytes=whole + 256 * MIB)) as saver:
        saver.reserve(whole + 256 * MIB)
        for turn in range(int(repeat)):
            os.sync()
            result["memcpy"].append(timed(lambda: np.copyto(target, source)))
            saving = saver.save(state, turn, full=True)
            result["headrace"].append(saving.stopped_s)
            committed.append(saving.wait().took_s)
            shutil.rmtree(f"{folder}/headrace/packs")
            os.mkdir(f"{folder}/headrace/packs")
            os.sync()
            for name, sync in (("torch.save", False), ("torch.save, fsync", True)):
                file = f"{folder}/torch.pt"
                result[name].append(timed(lambda sync=sync, file=file: torch_save(state, file, sync=sync)))  # type: ignore[misc]
                os.unlink(file)
                os.sync()
    return {"bytes": whole, "stopped_s": result, "committed_s": committed}


def changed(folder: str, size: str) -> dict[str, Any]:
    """Bytes on the disk of a full checkpoint, and of one after a tenth of the parameters changed."""
    _, state = state_of(int(size))
    layers = sorted({name.split(".")[1] for name in state}, key=int)
    tenth = layers[: max(1, len(layers) // 10)]
    share = sum(t.nbytes for name, t in state.items() if name.split(".")[1] in tenth) / sum(
        t.nbytes for t in state.values()
    )
    sizes: list[int] = []
    with Saver(folder) as saver:
        for step in (1, 2, 3):
            before = used_bytes(folder) if step > 1 else 0
            saver.save(state, step).wait()
            sizes.append(used_bytes(folder) - before)
            if step == 1:
                for name, tensor in state.items():
                    if name.split(".")[1] in tenth:
                        tensor += 1
            else:
                for tensor in state.values():
                    flat = tensor.reshape(-1)
                    flat[: len(flat) // 10] += 1
    return {
        "full": sizes[0],
        "a tenth of the layers": sizes[1],
        "the first tenth of each": sizes[2],
        "share": share,
    }


def used_bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def fill(folder: str, size: str) -> dict[str, Any]:
    """A checkpoint to be restored."""
    with Saver(folder) as saver:
        saved = saver.save(state_of(int(size))[1], 1).wait()
    return {"bytes": saved.stored_bytes}


def restore(folder: str, how: str, way: str) -> dict[str, Any]:
    """how: dropped or warm. way: copied, mapped, or read: the packs into new memory, by two threads, and no more. A
    first load of a small part has imported and started everything."""
    load(folder, only=["layers.0.4"])
    packs = list(Path(folder, "packs").iterdir())
    if how == "dropped":
        os.sync()
        DROP.write_text("3")
    else:
        for path in packs:
            _read_through(path)
    start = time.perf_counter()
    if way == "read":
        kept: Any = [_read_whole(path) for path in packs]
    else:
        kept = load(PosixStorage(folder), mapped=way == "mapped")
    return {"seconds": time.perf_counter() - start, "tensors": len(kept)}


def restore_new(folder: str, size: str) -> dict[str, Any]:
    """Restore a checkpoint of which nothing was read here. Another one has imported and started everything."""
    with tempfile.TemporaryDirectory() as other:
        with Saver(other) as saver:
            saver.save({"one": torch.ones(1 << 20)}, 1).wait()
        load(other)
    start = time.perf_counter()
    state = load(folder)
    seconds = time.perf_counter() - start
    for name, tensor in state_of(int(size))[1].items():
        if not torch.equal(tensor, state[name]):
            raise OSError(f"{folder}: {name} came back with other values")
    return {"seconds": seconds}


def _read_whole(path: Path) -> Any:
    memory = page_aligned(path.stat().st_size)
    step = 8 * MIB
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(2) as pool:
        fd = file.fileno()
        places = range(0, len(memory), step)
        done = sum(pool.map(lambda start: os.preadv(fd, [memory[start : start + step].data], start), places))
    if done != len(memory):
        raise OSError(f"{path}: {done} of {len(memory)} bytes")
    return memory


def _read_through(path: Path) -> None:
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


COMMANDS = {"save": save, "changed": changed, "fill": fill, "restore": restore, "restore_new": restore_new}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
