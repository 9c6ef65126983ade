"""A cluster in front of another one, over a link of 200 Mbit/s: bytes over the link, and warm reads."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial

from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import Workplace, drop_page_cache

from headrace.testing.servers import free_ports

from .cases import Bench

RATE_BYTES_S = 200e6 / 8
FILES, LARGE_BYTES = 1000, 64 << 20
OVER_LINK = "two levels over 200 Mbit/s: bytes over the link, of the data set"
WARM = "the same: warm reads"
WARM_ROUNDS = 15
LINK_USED = "the same: throughput of the first read, of the link"
STEP_BYTES = 64 << 10


class WideLink:
    """Forwards connections to a server at a limited rate, and counts the bytes from it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.bytes_down = 0
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                down, _ = self._listening.accept()
                up = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            for source, target in ((down, up), (up, down)):
                forward = partial(self._forward, source, target, is_down=source is up)
                threading.Thread(target=forward, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, *, is_down: bool) -> None:
        with contextlib.suppress(OSError):
            while body := source.recv(STEP_BYTES):
                if is_down:
                    time.sleep(self._wait_s(len(body)))
                target.sendall(body)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait_s(self, count: int) -> float:
        with self._lock:
            self.bytes_down += count
            now_s = time.monotonic()
            self._free_at_s = max(self._free_at_s, now_s) + count / RATE_BYTES_S
            return self._free_at_s - now_s


class LevelMount(HeadraceMount):
    """A node of a level. settings: of the configuration, by name."""

    def __init__(self, place: Workplace, url: str, level: str, **settings: object) -> None:
        options = {"allow_http": "true", "token": str(settings.pop("token"))} if "token" in settings else {}
        super().__init__(place, url, io="auto", options=options)
        self.name = level
        own = {"run_folder": place.folder(f"run-{level}"), "sync_interval_s": 3600, **settings}
        self._environment = {f"HEADRACE_{name.upper()}": str(value) for name, value in own.items()}

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._environment}


def levels(bench: Bench) -> None:
    """A thousand files of 100 kB and one of 64 MiB. All are read by the mount of the region, then read again, file by
    file in turns with a cluster that has the same files and no other behind it."""
    place = bench.place
    folder, size = _data_set(place, bench)
    (port,) = free_ports(1)
    token = secrets.token_hex()
    token_path = os.path.join(place.folder("token"), "rest-token")
    with open(os.open(token_path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)
    central = LevelMount(place, folder, "central", rest_address=f"127.0.0.1:{port}", rest_token=token_path)
    link = WideLink(port)
    place.undo.callback(link.close)
    region = LevelMount(place, f"headrace://{link.address}/", "region", token=token)
    alone = LevelMount(place, folder, "alone")
    for mount in (central, region, alone):
        mount.start()
    first_s = _read_all(region.mountpoint)
    bench.results.add(LINK_USED, "headrace", size / first_s / RATE_BYTES_S, unit="share")
    _read_all(alone.mountpoint)
    for _ in range(max(5, bench.repeat)):
        drop_page_cache()
        _compare(bench, region.mountpoint, alone.mountpoint, size)
    bench.results.add(OVER_LINK, "headrace", link.bytes_down / size, unit="share")


def _compare(bench: Bench, region: str, alone: str, size: int) -> None:
    """Read each file from one mount and at once from the other, round after round. Reads from memory take half or twice
    the time from one second to the next, so a file counts by its median. They also depend on where the memory is, so
    the caller has dropped the page cache."""
    names = [os.path.relpath(path, region) for path in _files(region)]
    mounts = [("of two levels", region), ("alone", alone)]
    taken_s = {(contender, name): [0.0] * WARM_ROUNDS for contender, _ in mounts for name in names}
    for number in range(WARM_ROUNDS):
        for name in names:
            for contender, mount in mounts[:: 1 if number % 2 else -1]:
                taken_s[contender, name][number] = _read(os.path.join(mount, name))
    for contender, _ in mounts:
        seconds = sum(statistics.median(taken_s[contender, name]) for name in names)
        bench.results.add(WARM, contender, size / seconds / 1e9, unit="GB/s")


def _data_set(place: Workplace, bench: Bench) -> tuple[str, int]:
    folder = place.folder("data")
    chance = random.Random(22)
    files = bench.count(FILES, 20)
    for number in range(files):
        path = os.path.join(folder, f"d{number % 10}", f"{number:04d}.jpg")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(chance.randbytes(100_000))
    large = bench.count(LARGE_BYTES, 4 << 20)
    with open(os.path.join(folder, "large.bin"), "wb") as file:
        file.write(chance.randbytes(large))
    return folder, files * 100_000 + large


def _read_all(mountpoint: str) -> float:
    """Read all files, and return the seconds that it took."""
    return sum(map(_read, _files(mountpoint)))


def _read(path: str) -> float:
    """Read a file, and return the seconds that it took."""
    start_s = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    return time.monotonic() - start_s


def _files(top: str) -> Iterator[str]:
    for where, _, names in os.walk(top):
        for name in sorted(names):
            yield os.path.join(where, name)
