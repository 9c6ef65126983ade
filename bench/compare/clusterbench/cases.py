"""The eight rows of what a cluster must reach. Every case has labs of its own, and readers check every byte.

Rates are low on purpose: eight links of 100 Mbit/s are 100 MB/s together, which two cores carry; so the links are the
limit, as in a cluster, and not the processors that all nodes share here.
"""

from __future__ import annotations

import os
import time

from nodebench.machine import NotRunError, tool
from nodebench.machine import run as run_tool

from headrace.lab.lab import Lab

from . import links
from .bench import MIB, Bench, Files, Readers, grown, raw_seconds, read_all

OURS = "headrace"
NODES = 8
RATE_MBIT = 100
SMALL_BYTES = 110_000
SMALL_FILES = 1000
MANY = (16, 64)
READERS = (1, 2, 4, 8)
SCALING_FILES = 384
SCALING_BYTES = 512 << 10
LOAD_MBIT = 20
LOAD_BYTES = 10_000
THREADS = 16
SETTLE_WITHIN_S = 120.0


def scaled(bench: Bench, count: int, least: int = 1) -> int:
    return max(least, round(count * bench.scale))


def origin_once(bench: Bench) -> None:
    """All nodes read all of the data set, cold, at once."""
    numbers = range(1, NODES + 1)
    for _ in range(bench.repeat):
        with bench.lab(NODES, RATE_MBIT) as lab:
            files = bench.put(lab, "set", scaled(bench, 96, 8), MIB)
            before = bench.counts(lab, numbers)
            results = read_all(bench, lab, dict.fromkeys(numbers, files))
            asked = grown(before, bench.counts(lab, numbers))
            total = sum(size for size, _ in files.values())
            bench.results.add("1 origin bytes of data set", OURS, asked["origin_bytes"] / total, unit="")
            slowest = max(result["seconds"] for result in results.values())
            bench.results.add("1 read by all nodes, cold", OURS, NODES * total / slowest / 1e6, unit="MB/s")


def one_request(bench: Bench) -> None:
    """One object, all nodes at once."""
    numbers = range(1, NODES + 1)
    with bench.lab(NODES, RATE_MBIT) as lab:
        for turn in range(max(3, bench.repeat)):
            files = bench.put(lab, f"one-{turn}", 1, 512 << 10)
            before = bench.counts(lab, numbers)
            read_all(bench, lab, dict.fromkeys(numbers, files))
            asked = grown(before, bench.counts(lab, numbers))
            bench.results.add("2 origin requests for one object", OURS, asked["origin_reads"], unit="")


def scaling(bench: Bench) -> None:
    """Warm at its owners, read by 1, 2, 4, 8 nodes that have none of it but what they own; against raw sendfile.

    The sum of what each reader had a second while it read. Each reads a set of its own, so large that how it begins and
    ends weighs little. When all eight read, their links give as much as they take; but a ring spreads a set evenly
    only in the mean, and whoever reads all of it waits for the fullest link (see `links.py`). So what came in all,
    by the time of the slowest reader, is also compared with what that link allows, and with raw sendfile of the same
    bytes between the same nodes at once, a connection for each two: what TCP makes of these links.
    """
    each = scaled(bench, SCALING_FILES, 16)
    for turn in range(bench.repeat):
        with bench.lab(NODES, RATE_MBIT) as lab:  # a new one: what was read before takes no room
            size = each * SCALING_BYTES
            link = size / raw_seconds(bench, lab, {(2, 1): size})
            bench.results.add("4 one link", "sendfile", link / 1e6, unit="MB/s")
            sets = {
                readers: {
                    n: bench.put_unseen(lab, f"w{turn}-{readers}-{n}", each, SCALING_BYTES)
                    for n in range(1, readers + 1)
                }
                for readers in READERS
            }
            bench.look_again(lab)
            for readers, files in sets.items():
                for number in files:
                    bench.load(lab, f"/w{turn}-{readers}-{number}")
                scaling_turn(bench, lab, files, link)


def scaling_turn(bench: Bench, lab: Lab, sets: dict[int, Files], link: float) -> None:
    """link: what one carries, in bytes a second."""
    before, used_s = {number: lab.report(number) for number in sets}, links.processor_s(lab)
    results = read_all(bench, lab, sets, threads=THREADS)
    used_s = links.processor_s(lab) - used_s + sum(result["processor_s"] for result in results.values())
    after = {number: lab.report(number) for number in sets}
    rate = 0.0
    for number in sets:
        came = sum(links.carried({number: before[number]}, {number: after[number]}).values())
        rate += came / results[number]["seconds"] / 1e6
        origin = after[number]["origin"]["bytes_read"] - before[number]["origin"]["bytes_read"]
        if origin:
            bench.results.note(f"case 3: {origin:.0f} bytes came from the origin")
    readers, add = len(sets), bench.results.add
    add(f"3 remote read, {readers} nodes", OURS, rate, unit="MB/s")
    carried, slowest_s = links.carried(before, after), max(result["seconds"] for result in results.values())
    allowed = links.allowed_bytes_s(carried, link)
    together = sum(carried.values()) / slowest_s
    add(f"3 fullest link allows, {readers} nodes", "limit", allowed / 1e6, unit="MB/s")
    add(f"3 until the slowest has all, {readers} nodes", OURS, together / 1e6, unit="MB/s")
    add(f"3 of what the fullest link allows, {readers} nodes", OURS, together / allowed, unit="")
    raw_s = raw_seconds(bench, lab, {links.numbers(pair): size for pair, size in carried.items()})
    add(
        f"3 until the slowest has all, {readers} nodes",
        "sendfile",
        sum(carried.values()) / raw_s / 1e6,
        unit="MB/s",
    )
    add(f"3 of sendfile of the same bytes, {readers} nodes", OURS, raw_s / slowest_s, unit="")
    add(f"3 processors used, {readers} nodes", OURS, used_s / slowest_s, unit=f"of {os.cpu_count()}")


def small_files(bench: Bench) -> None:
    """Read from one peer's cache, links not shaped: many at a time against one after the other, both through the mount.
    Only files that the reader does not own are read."""
    count = scaled(bench, 2 * SMALL_FILES, 200)
    for turn in range(bench.repeat):
        with bench.lab(2, 0) as lab:
            for threads in (1, *MANY):
                prefix = f"small-{turn}-{threads}"
                files = bench.put(lab, prefix, count, SMALL_BYTES)
                bench.load(lab, f"/{prefix}")
                small_turn(bench, lab, files, threads)


def small_turn(bench: Bench, lab: Lab, files: Files, threads: int) -> None:
    mountpoint = lab.mountpoint(1)
    remote = {
        name: size
        for name, size in files.items()
        if os.getxattr(os.path.join(mountpoint, name), "user.headrace.cached") == b"no"
    }
    before, used_s = bench.counts(lab, (1, 2)), links.processor_s(lab)
    result = read_all(bench, lab, {1: remote}, threads=threads)[1]
    used_s = links.processor_s(lab) - used_s + result["processor_s"]
    asked = grown(before, bench.counts(lab, (1, 2)))
    if asked["peer_bytes"] != len(remote) * SMALL_BYTES:
        raise NotRunError(f"{asked['peer_bytes']} bytes came from the peer, of {len(remote)} files")
    name, add = contender(threads), bench.results.add
    add("5 small files, remote", name, len(remote) / result["seconds"], unit="files/s")
    add("5 processor time a small file", name, used_s * 1e3 / len(remote), unit="ms")
    add("5 processors used", name, used_s / result["seconds"], unit=f"of {os.cpu_count()}")


def contender(threads: int) -> str:
    return f"{OURS}, {threads} at a time" if threads > 1 else "one at a time"


def join(bench: Bench) -> None:
    """A fifth node while readers go on."""
    count = scaled(bench, 2000, 200)
    with bench.lab(4, RATE_MBIT) as lab:
        files = bench.put(lab, "join", count, SMALL_BYTES)
        bench.load(lab, "/join")
        parts = part(files, 4)
        calm = read_all(bench, lab, parts, threads=1)
        before = bench.counts(lab, range(1, 5))
        shifted = {
            number: parts[1 + number % 4] for number in parts
        }  # of other nodes' parts: not borrowed yet
        readers = Readers(bench, lab, shifted, threads=1)
        readers.go()
        lab.add()
        moving = readers.results()
        settle(bench, lab, 5)
        after = bench.counts(lab, range(1, 5))
        moved = grown(before, after)
        origin_bytes = moved["origin_bytes"] + bench.counts(lab, (5,))["origin_bytes"]
        bench.results.add("6 join: bytes moved", OURS, moved["moved_bytes"] / 1e6, unit="MB")
        if moved["moved_bytes"]:
            bench.results.add(
                "6 join: origin bytes of moved", OURS, 100 * origin_bytes / moved["moved_bytes"], unit="%"
            )
        for name, results in (("before", calm), ("join", moving)):
            slow = max(result["p99_s"] for result in results.values())
            bench.results.add("6 p99 of a read", name, slow * 1e3, unit="ms")


def settle(bench: Bench, lab: object, nodes: int) -> None:
    """Wait until no node hands over any more. NotRunError when it takes too long."""
    until_s = time.monotonic() + SETTLE_WITHIN_S
    last, calm = -1.0, 0
    while calm < 3:
        now = bench.counts(lab, range(1, nodes + 1))["moved_bytes"]  # type: ignore[arg-type]
        calm, last = (calm + 1 if now == last else 0), now
        if time.monotonic() > until_s:
            raise NotRunError(f"the hand-over did not end in {SETTLE_WITHIN_S:.0f} s")
        time.sleep(1)  # between two looks


def killed(bench: Bench) -> None:
    """kill -9 of one of four nodes in the middle of an epoch; the readers are at the three others."""
    with bench.lab(4, RATE_MBIT, lease_s="5") as lab:
        files = bench.put(lab, "epoch", scaled(bench, 20_000, 300), LOAD_BYTES)
        readers = Readers(bench, lab, part(files, 3), threads=4)
        readers.go()
        readers.wait_for("half")
        lab.kill(4)
        results = readers.results(timeout_s=600)
        for key in ("failed", "wrong"):
            total = sum(result[key] for result in results.values())
            bench.results.add(f"7 kill: reads {key}", OURS, total, unit="")
        errors = sorted({text for result in results.values() for text in result["errors"]})
        if errors:
            bench.results.note(f"case 7: {', '.join(errors)}")


def load(bench: Bench) -> None:
    """Small objects into the cache of four nodes, against s5cmd in one node's namespace. What a link carries of such
    objects is what s5cmd gets through one; four links, four times that."""
    program = tool("s5cmd")
    with bench.lab(4, LOAD_MBIT) as lab:
        files = bench.put(lab, "many", scaled(bench, 100_000, 500), LOAD_BYTES)
        total = sum(size for size, _ in files.values())
        took_s = bench.load(lab, "/many", timeout_s=1200)
        bench.results.add("8 load", OURS, total / took_s / 1e6, unit="MB/s")
        options = lab.store().options
        words = ["--endpoint-url", options["endpoint"], "cp", "s3://data/many/*"]
        target = bench.place.folder("s5cmd")
        keys = {"AWS_ACCESS_KEY_ID": options["access_key_id"], "AWS_REGION": "us-east-1"}
        keys["AWS_SECRET_ACCESS_KEY"] = options["secret_access_key"]
        began_s = time.perf_counter()
        run_tool([*lab.inside(1), program, *words, target + os.sep], timeout_s=1200, env=keys)
        alone = total / (time.perf_counter() - began_s)
        bench.results.add("8 load", "s5cmd", alone / 1e6, unit="MB/s")
        bench.results.add("8 load, of links' limit", OURS, total / took_s / (4 * alone), unit="")


def part(files: Files, parts: int) -> dict[int, Files]:
    """Dealt to nodes 1, 2, …"""
    names = list(files)
    return {n + 1: {name: files[name] for name in names[n::parts]} for n in range(parts)}
