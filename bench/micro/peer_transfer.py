"""Measures how bytes go from one node to another: the ways to receive and to send, and the transfer as it is.

Two processes on loopback. Prints JSON: GB/s and processor seconds a GiB of each side, for each round; small files a
second. `unshare -n` (and `ip link set lo up`) keeps shaped links and other traffic out of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.integration.peer_desk import MIB, Serving, serving

from headrace.base.deadline import Deadline
from headrace.peer.response import buffer_of
from headrace.wire.peer_messages import FileRange

BLOCK = MIB
RANGE = 8 * MIB
SMALL_BYTES = 110 * 1000


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------- senders: one file, over and over


def send_by_sendfile(sock: socket.socket, file: int, length: int) -> None:
    sent = 0
    while sent < length:
        sent += os.sendfile(sock.fileno(), file, sent, length - sent)


def send_by_read(sock: socket.socket, file: int, length: int) -> None:
    for start in range(0, length, BLOCK):
        sock.sendall(os.pread(file, min(BLOCK, length - start), start))


# ---------------------------------------------------------------- receivers: check and write to a file


def receive_to_buffer(sock: socket.socket, file: int, length: int, *, new: Callable[[int], Any]) -> None:
    for start in range(0, length, RANGE):
        body = new(min(RANGE, length - start))
        view = memoryview(body)
        for offset in range(0, len(view), BLOCK):
            block = view[offset : offset + BLOCK]
            assert sock.recv_into(block, 0, socket.MSG_WAITALL) == len(block)
            xxhash.xxh3_64_intdigest(block)
        os.pwrite(file, body, start)


def receive_to_bytearray(sock: socket.socket, file: int, length: int) -> None:
    receive_to_buffer(sock, file, length, new=bytearray)


def receive_to_raw_buffer(sock: socket.socket, file: int, length: int) -> None:
    receive_to_buffer(sock, file, length, new=buffer_of)


def receive_to_one_buffer(sock: socket.socket, file: int, length: int) -> None:
    """Receive to one buffer: it shows what the memory allocator could save at best."""
    body = bytearray(min(RANGE, length))
    receive_to_buffer(sock, file, length, new=lambda size: memoryview(body)[:size])


def receive_by_splice(sock: socket.socket, file: int, length: int) -> None:
    read, write = os.pipe()
    import fcntl

    fcntl.fcntl(read, 1031, MIB)  # F_SETPIPE_SZ
    os.ftruncate(file, length)
    checked = mmap.mmap(file, length, access=mmap.ACCESS_READ)
    received = checked_to = 0
    while received < length:
        taken = os.splice(sock.fileno(), write, min(BLOCK, length - received))
        assert taken, "the sender closed"
        while taken:
            moved = os.splice(read, file, taken, offset_dst=received)
            taken -= moved
            received += moved
        while checked_to + BLOCK <= received:
            with memoryview(checked)[checked_to : checked_to + BLOCK] as view:
                xxhash.xxh3_64_intdigest(view)
            checked_to += BLOCK
    checked.close()
    os.close(read)
    os.close(write)


RECEIVERS = {
    "recv_into a zeroed bytearray + xxh3 + pwrite": receive_to_bytearray,
    "recv_into a raw buffer + xxh3 + pwrite": receive_to_raw_buffer,
    "recv_into one buffer + xxh3 + pwrite": receive_to_one_buffer,
    "splice to the file + xxh3 over mmap": receive_by_splice,
}
SENDERS = {"sendfile": send_by_sendfile, "read + send": send_by_read}


def _sender(port: int, path: str, length: int, way: str, done: Any) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        file = os.open(path, os.O_RDONLY)
        began = processor_s()
        SENDERS[way](sock, file, length)
        done.send(processor_s() - began)
        os.close(file)


def move(source: str, target: str, length: int, sender: str, receiver: str) -> dict[str, float]:
    """One file of that length, through the page cache on both sides; a new target file each time."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here, there = multiprocessing.Pipe()
        port = listening.getsockname()[1]
        process = multiprocessing.Process(target=_sender, args=(port, source, length, sender, there))
        process.start()
        sock, _ = listening.accept()
        file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            began_s, began_processor_s = time.monotonic(), processor_s()
            RECEIVERS[receiver](sock, file, length)
            seconds, used_s = time.monotonic() - began_s, processor_s() - began_processor_s
            sending_s = float(here.recv())
        finally:
            sock.close()
            os.close(file)
            os.unlink(target)
            process.join()
    gib = length / (1 << 30)
    return {
        "gb_s": round(length / seconds / 1e9, 2),
        "receiver_cpu_s_gib": round(used_s / gib, 3),
        "sender_cpu_s_gib": round(sending_s / gib, 3),
    }


def ways(folder: str, length: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
    with open(source, "wb") as file:
        for _ in range(length // MIB):
            file.write(os.urandom(MIB))
    cases = [("sendfile", receiver) for receiver in RECEIVERS]
    cases.append(("read + send", "recv_into a raw buffer + xxh3 + pwrite"))
    results: dict[str, list[dict[str, float]]] = {f"{s} → {r}": [] for s, r in cases}
    for _ in range(rounds):
        for sender, receiver in cases:
            results[f"{sender} → {receiver}"].append(move(source, target, length, sender, receiver))
    os.unlink(source)
    return results


# ---------------------------------------------------------------- the transfer as it is


async def fetch_large(pair: Serving, wanted: FileRange, *, at_once: int) -> float:
    """GB/s of ranges of 8 MiB, several at once; server and client share this process."""
    ranges = [
        FileRange(wanted.path, wanted.size_bytes, 1, '"etag"', start, min(start + RANGE, wanted.size_bytes))
        for start in range(0, wanted.size_bytes, RANGE)
    ]
    limit = asyncio.Semaphore(at_once)

    async def one(part: FileRange) -> None:
        async with limit:
            deadline = Deadline.after(60)
            await pair.peers.fetch(pair.node, part, cached_only=False, epoch=1, deadline=deadline)

    began_s = time.monotonic()
    await asyncio.gather(*map(one, ranges))
    return wanted.size_bytes / (time.monotonic() - began_s) / 1e9


async def fetch_many(pair: Serving, files: list[FileRange], *, count: int, at_once: int) -> float:
    """Small files a second. at_once = 1: one after the other, each a request of its own."""
    limit = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with limit:
            wanted = files[number % len(files)]
            await pair.peers.fetch_small(pair.node, wanted, epoch=1, deadline=Deadline.after(60))

    began_s = time.monotonic()
    await asyncio.gather(*map(one, range(count)))
    return count / (time.monotonic() - began_s)


async def as_it_is(folder: str, length: int, count: int) -> dict[str, Any]:
    async with serving(Path(folder)) as pair:
        large = pair.desk.add("large", length)
        files = [pair.desk.add(f"small{n}", SMALL_BYTES) for n in range(64)]
        await fetch_many(pair, files, count=64, at_once=64)
        results: dict[str, Any] = {}
        for at_once in (1, 4):
            used_s = processor_s()
            speed = await fetch_large(pair, large, at_once=at_once)
            used_s = (processor_s() - used_s) / (length / (1 << 30))
            results[f"large, {at_once} at once"] = {
                "gb_s": round(speed, 2),
                "both_cpu_s_gib": round(used_s, 3),
            }
        results["small one at a time, files/s"] = round(
            await fetch_many(pair, files, count=count // 4, at_once=1)
        )
        for at_once in (64, 256):
            before = len(pair.desk.requests)
            speed = await fetch_many(pair, files, count=count, at_once=at_once)
            requests = len(pair.desk.requests) - before
            results[f"small, {at_once} wait at once, files/s"] = round(speed)
            results[f"small, {at_once} wait at once, files a request"] = round(count / requests, 1)
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", default=None, help="where files go; default: the folder for temporary files"
    )
    options = parser.parse_args()
    import uvloop

    with tempfile.TemporaryDirectory(prefix="headrace-micro-", dir=options.folder) as folder:
        report: dict[str, Any] = {"ways": ways(folder, options.mib * MIB, options.rounds), "transfer": []}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    size, files = options.mib * MIB // 4, options.files
                    report["transfer"].append(runner.run(as_it_is(inner, size, files)))
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
