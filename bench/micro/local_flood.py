"""Measures what a user of a host notices while another one asks the node for as much as he can, in rounds.

    .venv/bin/python bench/micro/local_flood.py [--rounds 3] [--seconds 5] [KIND…]

A node of root's, with a mount that is open to others. One program of uid 65533 opens cached files by the broker, reads
cached files by the mount, and cold ones, each with a pause of 2 ms: alone, and beside uid 65534, which does one of:

requests: 256 connections to the broker, each with a request for one file under way, without end
large-requests: the same, for 32 files each
connections: connects to the broker and leaves, from 4 processes
warm-reads, cold-reads: opens and reads files by the mount, from 256 threads

Prints a line of JSON for each: milliseconds, medians of the rounds, and ratios within each round. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

KINDS = ("requests", "large-requests", "connections", "warm-reads", "cold-reads")
ROUNDS_MAX, COLD_FILES, WARM_FILES, HONEST_FILES = 5, 12000, 500, 600
AS_USER = """
import os, sys, time, json, socket, select, threading
from headrace.wire.broker_messages import OpenFiles, encode
uid = int(sys.argv[1]); os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
broker, mount, kind, folder, seconds = sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], float(sys.argv[6])
def connected():
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(broker)
    return sock
def answered(sock):
    _, rights, _, _ = sock.recvmsg(65536, 4096)
    for _, _, data in rights:
        for start in range(0, len(data), 4):
            os.close(int.from_bytes(data[start:start + 4], "little"))
def read(path):
    fd = os.open(mount + path, os.O_RDONLY)
    os.read(fd, 4096)
    os.close(fd)
"""
HONEST = (
    AS_USER
    + """
times = {"broker": [], "warm": [], "cold": []}
sock, until, number = connected(), time.monotonic() + seconds, 0
def timed(name, work):
    begun = time.perf_counter()
    work()
    times[name].append((time.perf_counter() - begun) * 1000)
    time.sleep(0.002)
def by_broker():
    sock.send(encode(OpenFiles([b"/warm/%d" % (number % 500)], 0, 1)))
    answered(sock)
while time.monotonic() < until and number < 600:
    timed("broker", by_broker)
    timed("warm", lambda: read(f"/warm/{number % 500}"))
    timed("cold", lambda: read(f"/{folder}/{number}"))
    number += 1
print(json.dumps(times))
"""
)
FLOOD = (
    AS_USER
    + """
done = 0
def ask_without_end(files):
    global done
    request = encode(OpenFiles([b"/warm/%d" % n for n in range(files)], 0, 1))
    socks = {}
    for _ in range(250):
        sock = connected()
        socks[sock.fileno()] = sock
        sock.send(request)
    epoll = select.epoll()
    for number in socks:
        epoll.register(number, select.EPOLLIN)
    while True:
        for number, _ in epoll.poll():
            answered(socks[number])
            socks[number].send(request)
            done += files
def connect_without_end():
    global done
    while True:
        with connected():
            done += 1
def read_without_end(paths):
    global done
    for path in paths:
        read(path)
        done += 1
work = []
if kind in ("requests", "large-requests"):
    work = [lambda: ask_without_end(1 if kind == "requests" else 32)]
elif kind == "connections":
    for _ in range(3):
        if os.fork() == 0:
            connect_without_end()
    work = [connect_without_end]
else:
    for number in range(256):
        mine = range(number, 12000, 256)
        if kind == "cold-reads":
            work.append(lambda mine=mine: read_without_end(f"/{folder}/{n}" for n in mine))
        else:
            work.append(lambda: read_without_end(f"/warm/{n % 500}" for n in range(1 << 30)))
for step in work:
    threading.Thread(target=step, daemon=True).start()
print("ready", flush=True)
time.sleep(seconds)
print(done, flush=True)
os.killpg(0, 9)
"""
)


@contextlib.contextmanager
def served(base: Path, cold_folders: int) -> Iterator[tuple[str, str]]:
    origin, mount = base / "origin", base / "mnt"
    mount.mkdir()
    folders = {"warm": WARM_FILES}
    folders |= {f"cold{number}": COLD_FILES for number in range(cold_folders)}
    folders |= {f"honest{number}": HONEST_FILES for number in range(2 * ROUNDS_MAX + 1)}
    for name, count in folders.items():
        (origin / name).mkdir(parents=True)
        for number in range(count):
            (origin / name / str(number)).write_bytes(b"x" * 4096)
    environment = os.environ | {"HEADRACE_RUN_FOLDER": str(base / "run")}
    command = [sys.executable, "-m", "headrace"]
    words = ["up", str(origin), str(mount), "--cache", f"{base}/cache:2GiB", "--allow-other", "--detach"]
    subprocess.run([*command, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([*command, "load", "/warm"], env=environment, check=True, stdout=subprocess.DEVNULL)
        (broker,) = {str(path) for path in base.glob("run*/**/*.sock") if path.stat().st_mode & 0o006}
        yield broker, str(mount)
    finally:
        subprocess.run([*command, "down", str(mount)], env=environment, check=True, stdout=subprocess.DEVNULL)


def program(text: str, uid: int, *words: object) -> list[str]:
    return [sys.executable, "-c", text, str(uid), *map(str, words)]


def noticed(broker: str, mount: str, folder: str, seconds: float) -> dict[str, dict[str, float]]:
    words = program(HONEST, 65533, broker, mount, "honest", folder, seconds)
    times = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=300).stdout)
    return {
        name: {
            "p50": statistics.median(row),
            "p99": statistics.quantiles(row, n=100)[98] if len(row) > 20 else max(row),
        }
        for name, row in times.items()
    }


def run(kind: str, given: argparse.Namespace, base: Path) -> dict[str, object]:
    rows: dict[str, list[tuple[float, float]]] = {}
    done = []
    with served(base, given.rounds * (kind == "cold-reads")) as (broker, mount):
        noticed(broker, mount, f"honest{2 * ROUNDS_MAX}", 1)
        for number in range(given.rounds):
            quiet = noticed(broker, mount, f"honest{2 * number}", given.seconds)
            words = program(FLOOD, 65534, broker, mount, kind, f"cold{number}", given.seconds + 2)
            flood = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
            assert flood.stdout is not None
            flood.stdout.readline()
            beside = noticed(broker, mount, f"honest{2 * number + 1}", given.seconds)
            done.append(int(flood.stdout.readline() or 0))
            flood.wait()
            for name, figures in quiet.items():
                for figure, value in figures.items():
                    rows.setdefault(f"{name} {figure}", []).append((value, beside[name][figure]))
    summed: dict[str, object] = {"kind": kind, "load": round(os.getloadavg()[0], 1), "done": done}
    for name, pairs in rows.items():
        quiet_ms, beside_ms = (round(statistics.median(column), 2) for column in zip(*pairs, strict=True))
        ratios = [round(b / a, 1) for a, b in pairs]
        summed[name] = {"quiet": quiet_ms, "beside": beside_ms, "ratios": ratios}
    return summed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="*", help="all, where none is named")
    parser.add_argument("--rounds", type=int, default=3, help="5 at most")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    for kind in given.kind or KINDS:
        base = Path(tempfile.mkdtemp(prefix="headrace-flood-", dir="/var/tmp"))
        base.chmod(0o755)
        try:
            print(json.dumps(run(kind, given, base)), flush=True)
        finally:
            shutil.rmtree(base)


if __name__ == "__main__":
    main()
