"""Tiers of a real node: files move while programs read them, by the policy and by use, also over kills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.host import MIB, READER, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240)]

STEPS = ["move.copied:5", "move.linked", "move.recorded", "move.unlinked:3"]
ON_HDD = '[[rule]]\nmatch = ["/**"]\ntier = ["hdd"]\n'
ON_NVME = '[[rule]]\nmatch = ["/**"]\ntier = ["nvme"]\n'


def put_files(host: Host, count: int) -> list[str]:
    names = [f"{number:03d}" for number in range(count)]
    for number, name in enumerate(names):
        host.put(name, (3 * MIB + 7) if number % 8 == 0 else 300_000)
    return names


def up_tiers(host: Host, *, fast: str = "64MiB", slow: str = "256MiB", io: str = "auto") -> None:
    """The first --cache is the first volume."""
    cache = ["--cache", f"{host.cache}:{fast}:nvme"]
    host.up(host.truth, host.mount, "--io", io, *cache, cache=f"{host.base}/slow:{slow}:hdd")


def set_policy(host: Host, text: str) -> None:
    path = host.base / "policy.toml"
    path.write_text(text)
    host.ok("policy", "set", path)


def tiers_of(host: Host, names: list[str]) -> set[str]:
    return {row["tier"] for row in host.stats(*names)}


def used_bytes(host: Host, tier: str) -> int:
    volumes = host.status()["cache"]["volumes"].values()
    return sum(volume["used_bytes"] for volume in volumes if volume["tier"] == tier)


def cached_bytes(host: Host, folder: Path) -> int:
    total = 0
    for top, _, names in os.walk(folder / "files"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a file moves away meanwhile
                total += 0 if name.endswith(".map") else os.stat(os.path.join(top, name)).st_size
    return total


@contextmanager
def reading(host: Host, names: list[str]) -> Iterator[Callable[[], None]]:
    """Two programs read at random places all the while. The value checks that no read failed or was wrong."""
    programs = [
        subprocess.Popen(
            [sys.executable, str(READER), f"loop{seed}", str(host.mount), str(host.truth), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for seed in range(2)
    ]

    def check() -> None:
        for program in programs:
            out, _ = program.communicate(timeout=60)
            row: dict[str, Any] = json.loads(out)
            assert (row["errors"], row["wrong"]) == ({}, [])
            assert row["rounds"] > 20

    try:
        yield check
    finally:
        for program in programs:
            program.kill()
            program.wait()


def test_no_read_fails_while_all_files_move_to_and_fro(host: Host) -> None:
    names = put_files(host, 48)
    up_tiers(host)
    host.assert_right(*names)
    assert tiers_of(host, names) == {"nvme"}
    with reading(host, names) as check:
        for _ in range(3):
            for text, folder in ((ON_HDD, host.cache), (ON_NVME, host.base / "slow")):
                set_policy(host, text)
                wait_until(lambda folder=folder: cached_bytes(host, folder) == 0, 60)  # type: ignore[misc]
        check()
    assert tiers_of(host, names) == {"nvme"}
    moves = host.status()["cache"]["moves"]
    assert moves["files_replaced"] == 6 * 48
    assert moves["files_dropped"] == moves["files_failed"] == 0
    host.assert_right(*names, mode="mmap")
    assert host.json("fsck")["failed_files"] == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_node_that_is_killed_while_it_moves_files(host: Host, step: str) -> None:
    names = put_files(host, 24)
    host.environment["HEADRACE_FAILPOINT"] = f"{step if ':' in step else step + ':1'}:{host.base}/killed"
    up_tiers(host)
    host.assert_right(*names)
    node = host.wait_pid("node")
    with reading(host, names) as check:
        set_policy(host, ON_HDD)
        wait_until(lambda: (host.base / "killed").exists())
        host.wait_pid("node", other_than=node)
        wait_until(lambda: cached_bytes(host, host.cache) == 0, 60)
        check()
    host.assert_right(*names, mode="mmap")
    assert tiers_of(host, names) == {"hdd"}
    for folder in (host.cache, host.base / "slow"):
        assert not (folder / "moving").exists() or list((folder / "moving").iterdir()) == []
    assert host.json("fsck")["failed_files"] == 0


def test_cold_files_sink_and_rise_when_they_are_used_again(host: Host) -> None:
    first, second = put_files(host, 120), [f"more/{number:03d}" for number in range(120)]
    for name in second:
        host.put(name, 500_000)
    up_tiers(host, io="splice")  # in noopen, the node hears of no use that the page cache serves
    host.assert_right(*first)
    host.assert_right(*second)
    wait_until(lambda: used_bytes(host, "nvme") <= 0.925 * 64 * MIB, 60)
    status = host.status()["cache"]
    assert status["moves"]["files_sunk"] > 0
    assert status["moves"]["files_dropped"] == 0
    assert status["files_evicted"] <= 20  # while large files grew, for 48 MB that sank
    sunk = [name for name, row in zip(first, host.stats(*first), strict=True) if row["tier"] == "hdd"]
    assert sunk
    shown = host.json("stat", host.mount / sunk[0])
    assert (shown["volume"], shown["placed"]) == (str(host.base / "slow"), "moved down as it cooled")
    host.ok("free", host.mount / "more")
    again = sunk[:3]

    def have_risen() -> bool:
        host.assert_right(*again)
        return tiers_of(host, again) == {"nvme"}

    wait_until(have_risen, 60)
    assert "between the tiers" in host.ok("status")
    host.assert_right(*first, *second)


def test_a_full_slow_tier_evicts_the_coldest(host: Host) -> None:
    names = [f"{number:03d}" for number in range(300)]
    for name in names:
        host.put(name, 600_000)
    up_tiers(host, slow="64MiB")
    for start in range(0, 300, 50):
        host.assert_right(*names[start : start + 50])
    volumes = host.status()["cache"]["volumes"]
    assert all(volume["used_bytes"] <= volume["capacity_bytes"] for volume in volumes.values())
    host.assert_right(*names)


def test_a_rule_is_explained_and_tried(host: Host) -> None:
    names = put_files(host, 5)
    up_tiers(host)
    host.assert_right(*names)
    path = host.base / "policy.toml"
    path.write_text(ON_HDD)
    outcomes = {row["effect"]: row for row in host.json("policy", "try", path)["outcomes"]}
    assert (outcomes["move"]["before"], outcomes["move"]["after"], outcomes["move"]["files"]) == (
        "nvme",
        "hdd",
        5,
    )
    assert host.json("stat", host.mount / names[0])["placed"] == "the first tier that had space"
    set_policy(host, ON_HDD)
    wait_until(lambda: tiers_of(host, names) == {"hdd"})
    assert host.json("stat", host.mount / names[0])["placed"] == "rule 1 of the policy, line 1: hdd"
    path.write_text('[[rule]]\nmatch = ["/a/**"]\ntier = ["memory"]\n')
    refused = host.headrace("policy", "set", path)
    assert refused.returncode == 2
    assert "line 1: tier: no volume of this node is of memory, it has nvme and hdd" in refused.stderr


@pytest.mark.expected_warnings("a cache disk has had its writes of a day")
def test_writes_of_a_day_are_limited(host: Host) -> None:
    names = [f"{number:03d}" for number in range(20)]
    for name in names:
        host.put(name, 900_000)
    host.up(host.truth, host.mount, cache=f"{host.cache}:64MiB:nvme:4MiB")
    host.assert_right(*names)
    host.assert_right(*names)
    status = host.status()["cache"]
    (volume,) = status["volumes"].values()
    assert 4 * MIB <= volume["written_bytes_day"] <= 6 * MIB
    wait_until(lambda: host.status()["cache"]["disks_spent"] == [str(host.cache)])
    assert host.ok("status").count("writes of a day") == 1
    host.ok("load", host.mount / names[-1])
    assert host.json("stat", host.mount / names[-1])["cached"] == "yes"


def test_a_memory_tier(host: Host) -> None:
    """On tmpfs, as a host has it, with passthrough where the kernel has that."""
    names = put_files(host, 40)
    with memory_folder() as memory:
        cache = ["--cache", f"{host.cache}:256MiB:nvme"]
        host.up(host.truth, host.mount, *cache, cache=f"{memory}:64MiB:memory")
        path = host.base / "policy.toml"
        path.write_text('[[rule]]\nmatch = ["/**"]\ntier = ["memory", "nvme"]\n')
        host.ok("policy", "set", path)
        host.assert_right(*names)
        assert tiers_of(host, names) == {"memory"}
        with reading(host, names) as check:
            set_policy(host, ON_NVME)
            wait_until(lambda: cached_bytes(host, memory) == 0, 60)
            check()
        host.close()


def test_what_is_sealed_leaves_memory(host: Host) -> None:
    """The memory tier comes first on the command line. A restart of the host empties it: the seal has all bytes."""
    names, sealed = put_files(host, 40), host.base / "sealed"
    with memory_folder() as memory:
        words = (host.truth, host.mount, "--cache", f"{memory}:64MiB:memory")
        host.up(*words, cache=f"{host.cache}:256MiB:nvme")
        host.assert_right(*names)
        assert tiers_of(host, names) == {"memory"}
        assert (host.cache / "index").is_dir() and not (memory / "index").exists()
        with reading(host, names) as check:
            host.ok("seal", host.mount, "--as", "a@1", "--at", sealed)
            check()
        assert tiers_of(host, names) == {"nvme"} and cached_bytes(host, memory) == 0
        host.kill_all()
        shutil.rmtree(memory)
        host.assert_right(*names, mount=sealed)
        host.up(*words, cache=f"{host.cache}:256MiB:nvme")
        host.assert_right(*names, mount=sealed)
        host.assert_right(*names)
        host.ok("seal", "verify", "a@1")
        host.ok("seal", "remove", "a@1")
        host.close()


@contextmanager
def memory_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
