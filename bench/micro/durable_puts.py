"""Measures what `durable_puts` costs: puts per second, and how long one takes, by the S3 gateway and the library.

    .venv/bin/python bench/micro/durable_puts.py [--folder /var/tmp] [--turns 5] [--seconds 2]

A node with a folder as origin, mode `back`, nothing persisted meanwhile. On and off take turns. S3 is asked by
presigned requests over connections that stay, a thread for each client; the library by threads of one process. Prints a
table of medians over the turns, with the least and the most.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ACCESS, SECRET = "AKIABENCH", "secret"
KEYS = 64
"""Of each client; written again and again."""

Put = Callable[[int], None]
Turn = tuple[float, float, float]
"""Puts a second; milliseconds of half of them at most, and of 99 in 100."""


@contextlib.contextmanager
def node(base: Path, *, durable: bool) -> Iterator[str]:
    """Yield the URL of its S3 gateway."""
    (base / "origin").mkdir(exist_ok=True)
    (base / "keys").write_text(f"[bench]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")
    (base / "config.toml").write_text(f'[mounts."/out"]\nurl = "{base / "origin"}"\n')
    os.environ |= {
        "HEADRACE_RUN_FOLDER": str(base / "run"),
        "HEADRACE_DURABLE_PUTS": str(durable).lower(),
        "HEADRACE_WRITE": "back",
        "HEADRACE_PERSIST_DELAY_S": "3600",
    }
    words = ("node", "run", "--config", base / "config.toml", "--cache", f"{base / 'cache'}:4GiB")
    with running(*words), running("s3", "--address", "127.0.0.1:0", "--credentials", base / "keys") as ready:
        yield str(ready["url"])


@contextlib.contextmanager
def running(*words: object) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "headrace", *map(str, words), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def by_s3(url: str, client: int, data: bytes) -> Put:
    import boto3
    from botocore.config import Config

    signer = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    paths = []
    for number in range(KEYS):
        to = {"Bucket": "out", "Key": f"s3/{client}/{number}"}
        signed = urlsplit(signer.generate_presigned_url("put_object", to, 3600))
        paths.append(f"{signed.path}?{signed.query}")
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def put(number: int) -> None:
        connection.request("PUT", paths[number % KEYS], data)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    return put


def by_library(cache: Any, client: int, data: bytes) -> Put:
    return lambda number: cache.put(f"/out/library/{client}/{number % KEYS}", data)


def measure(puts: list[Put], seconds: float) -> Turn:
    took: list[float] = []
    begin = threading.Barrier(len(puts) + 1)

    def run(put: Put) -> None:
        put(0)
        begin.wait()
        for number in itertools.count():
            begun_s = time.perf_counter()
            if begun_s > until_s:
                return
            put(number)
            took.append(time.perf_counter() - begun_s)

    threads = [threading.Thread(target=run, args=(put,)) for put in puts]
    for thread in threads:
        thread.start()
    began_s = time.perf_counter()
    until_s = began_s + 3600
    begin.wait()
    until_s = (began_s := time.perf_counter()) + seconds
    for thread in threads:
        thread.join()
    whole_s = time.perf_counter() - began_s
    ordered = sorted(took)
    return len(took) / whole_s, ordered[len(took) // 2] * 1e3, ordered[len(took) * 99 // 100] * 1e3


def turn(base: Path, seconds: float, *, durable: bool) -> dict[tuple[str, int, int], Turn]:
    import headrace

    measured = {}
    with node(base, durable=durable) as url, headrace.connect() as cache:
        for size in (4096, 8 << 20):
            data = os.urandom(size)
            for clients in (1, 16):
                doors = {
                    "s3": [by_s3(url, client, data) for client in range(clients)],
                    "library": [by_library(cache, client, data) for client in range(clients)],
                }
                for door, puts in doors.items():
                    measured[door, size, clients] = measure(puts, seconds)
    return measured


def shown(turns: list[Turn], place: int) -> str:
    values = [figures[place] for figures in turns]
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="/var/tmp")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    turns: dict[bool, list[dict[tuple[str, int, int], Turn]]] = {True: [], False: []}
    for number in range(given.turns * 2):
        durable = number % 2 == 0
        with tempfile.TemporaryDirectory(dir=given.folder) as base:
            turns[durable].append(turn(Path(base), given.seconds, durable=durable))
    print(
        "| door | bytes | clients | durable_puts | puts/s | p50 ms | p99 ms |\n|---|---|---|---|---|---|---|"
    )
    for case in turns[True][0]:
        for durable in (True, False):
            of_case = [cases[case] for cases in turns[durable]]
            door, size, clients = case
            cells = " | ".join(shown(of_case, place) for place in range(3))
            print(f"| {door} | {size} | {clients} | {'on' if durable else 'off'} | {cells} |")


if __name__ == "__main__":
    main()
