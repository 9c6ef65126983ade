"""Measures how long readers of cached files wait for listings that are too old, at an origin that answers late.

    .venv/bin/python bench/micro/stale_listings.py [--directories 200] [--delay-ms 30] [--seconds 60] [--rounds 3]

A node with a SeaweedFS behind a relay that delays each answer. All files are loaded; then one thread opens and
reads them in random order and compares each with what was put. Prints a line of JSON for each round of both: with
listings that are used for --sync-s, and with those that last. rate: files/s of the median second;
slow_s: seconds with less than half of that; longest_ms: the longest open and read. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))

from stallsbench.slow import Relay

from headrace.testing.servers import S3Server, seaweedfs_s3

FILES = 3
"""In each directory."""
FILE_BYTES = 20_000
NEVER_S = 86_400.0


def put_files(server: S3Server, directories: int) -> dict[str, bytes]:
    """Put the files, and return their bytes by path."""
    chance = random.Random(7)
    names = [f"{directory:04d}/{number}" for directory in range(directories) for number in range(FILES)]
    bodies = {name: chance.randbytes(FILE_BYTES) for name in names}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: server.put(f"listings/{name}", bodies[name]), names))
    return bodies


@contextlib.contextmanager
def relayed(server: S3Server, delay_s: float) -> Iterator[str]:
    """Yield the URL of a relay that delays each answer of the server."""
    endpoint = urlsplit(server.endpoint)
    relay = Relay((endpoint.hostname or "", endpoint.port or 80), delay_s)
    try:
        yield f"http://127.0.0.1:{relay.port}"
    finally:
        relay.close()


@contextlib.contextmanager
def mounted(base: Path, server: S3Server, endpoint: str, sync_s: float) -> Iterator[Path]:
    """Mount what an endpoint serves, with all its files cached."""
    mount, configuration = base / "mnt", base / "config.toml"
    mount.mkdir(parents=True)
    configuration.write_text(f"sync_interval_s = {sync_s}\n")
    environment = os.environ | {
        "HEADRACE_RUN_FOLDER": str(base / "run"),
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
    }

    def headrace(*words: str) -> None:
        command = [sys.executable, "-m", "headrace", *words]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

    origin = [server.url("listings"), str(mount), "--endpoint", endpoint, "--region", "us-east-1"]
    headrace("up", *origin, "--cache", f"{base}/cache:2GiB", "--config", str(configuration), "--detach")
    try:
        headrace("load", "/")
        yield mount
    finally:
        headrace("down", str(mount))


def read_for(seconds: float, mount: Path, bodies: dict[str, bytes]) -> dict[str, float]:
    """Read files in random order, and return the figures."""
    names, chance = list(bodies), random.Random(3)
    for name in names:  # the first open of each, and the page cache
        (mount / name).read_bytes()
    reads: Counter[int] = Counter()
    longest_s, begun_s = 0.0, time.perf_counter()
    ended_s = begun_s
    while ended_s < begun_s + seconds:
        name, last_s = chance.choice(names), ended_s
        body = (mount / name).read_bytes()
        ended_s = time.perf_counter()
        longest_s = max(longest_s, ended_s - last_s)
        reads[int(ended_s - begun_s)] += 1
        if body != bodies[name]:
            raise SystemExit(f"{name} has other bytes than its origin")
    by_second = [reads[second] for second in range(int(seconds))]
    rate = statistics.median(by_second)
    slow_s = sum(count < rate / 2 for count in by_second)
    return {"rate": rate, "slow_s": slow_s, "longest_ms": round(longest_s * 1000, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directories", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=30.0)
    parser.add_argument("--sync-s", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-listings-", dir="/var/tmp") as base,
        seaweedfs_s3() as server,
    ):
        bodies = put_files(server, given.directories)
        with relayed(server, given.delay_ms / 1000) as endpoint:
            for number in range(given.rounds):
                for kind, sync_s in (("aging", given.sync_s), ("lasting", NEVER_S)):
                    with mounted(Path(base) / f"{kind}-{number}", server, endpoint, sync_s) as mount:
                        figures = read_for(given.seconds, mount, bodies)
                    print(json.dumps({"listings": kind, "round": number, **figures}), flush=True)


if __name__ == "__main__":
    main()
