"""Nodes share what they cached; every byte read through every mount is held against the origin."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from tests.integration.cli.host import Host, wait_until

from .conftest import MakeTown
from .town import Town

MIB = 1 << 20


def filled(town: Town, *, small: int = 40, large: int = 2) -> None:
    for number in range(small):
        town.put(f"small/{number % 4}/{number}", 50_000 + number)
    for number in range(large):
        town.put(f"large/{number}", 9 * MIB + number)


def read_all_at_once(hosts: list[Host]) -> None:
    with ThreadPoolExecutor(len(hosts)) as pool:
        for done in [pool.submit(host.assert_right) for host in hosts]:
            done.result()


def test_each_byte_leaves_the_origin_once(town: Town) -> None:
    filled(town)
    town.start(4)
    read_all_at_once(town.hosts)
    assert town.origin() == town.truth_bytes()
    from_peers = sum(town.status(host)["peers"]["bytes_read"] for host in town.hosts)
    assert from_peers == 3 * town.truth_bytes()
    assert all(town.status(host)["peers"]["reads_failed"] == 0 for host in town.hosts)


def test_a_killed_node_costs_no_read(make_town: MakeTown) -> None:
    town = make_town(replicas=2)
    filled(town)
    town.start(3)
    town.hosts[0].assert_right()
    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(host.assert_right) for host in town.hosts[1:]]
        town.ups[0].signal(signal.SIGKILL)  # the supervisor: nobody starts the node again
        town.hosts[0].kill("node")
        for one in reading:
            one.result()
    town.wait_members(2, town.hosts[1:])
    town.put("late", 70_000)
    for host in town.hosts[1:]:
        host.ok("sync", host.mount)
    read_all_at_once(town.hosts[1:])


def test_a_stopped_node_costs_time_only(town: Town) -> None:
    filled(town, small=12, large=1)
    town.start(3)
    pid = town.hosts[0].kill("node", signal.SIGSTOP)
    try:
        read_all_at_once(town.hosts[1:])
    finally:
        os.kill(pid, signal.SIGCONT)
    town.wait_members(3)
    town.hosts[0].assert_right()


def test_a_change_is_seen_everywhere_after_a_sync(town: Town) -> None:
    filled(town, small=8, large=1)
    town.start(3)
    read_all_at_once(town.hosts)
    town.put("small/0/0", 60_000, seed=1)
    town.put("large/0", 8 * MIB, seed=1)
    town.put("new", 1000)
    (town.truth / "small/1/1").unlink()
    town.hosts[1].ok("sync", town.hosts[1].mount)
    for host in town.hosts:
        wait_until(lambda host=host: (host.read("small/1/1")["small/1/1"]["error"]) == "ENOENT")  # type: ignore[misc]
        host.assert_right()


def test_a_mount_that_one_node_adds_is_there_on_all(town: Town) -> None:
    town.put("sub/a", 1000)
    town.start(2)
    first, second = town.hosts
    other = town.base / "other"
    other.mkdir()
    (other / "x").write_bytes(b"other x")
    first.ok("mount", "add", "/more", other)
    wait_until(lambda: len(second.json("mount", "list")) == 2)
    assert second.headrace("cat", "/more/x").stdout == "other x"
    second.ok("mount", "remove", "/more")
    wait_until(lambda: len(first.json("mount", "list")) == 1)


def test_a_mount_that_was_removed_while_a_node_was_down_stays_removed(town: Town) -> None:
    town.put("sub/a", 1000)
    town.start(2)
    first, second = town.hosts
    other = town.base / "other"
    other.mkdir()
    for path in ("/more", "/kept"):
        first.ok("mount", "add", path, other)
    wait_until(lambda: len(second.json("mount", "list")) == 3)
    town.ups[1].signal(signal.SIGTERM)
    town.ups[1].wait()
    first.ok("mount", "remove", "/more")
    town.up(second)
    town.wait_members(2)
    for host in town.hosts:
        wait_until(lambda host=host: {one["path"] for one in host.json("mount", "list")} == {"/", "/kept"})  # type: ignore[misc]


def test_a_node_that_joins_takes_over_from_the_others(town: Town) -> None:
    filled(town, small=80, large=1)
    town.start(2)
    read_all_at_once(town.hosts)
    before = town.origin()
    assert before == town.truth_bytes()
    joined = town.add()
    town.up(joined)
    town.wait_members(3)
    for host in town.hosts[:2]:
        wait_until(lambda host=host: not town.status(host)["rebalance"]["running"])  # type: ignore[misc]
    moved = sum(town.status(host)["rebalance"]["files_handed_over"] for host in town.hosts[:2])
    assert moved > 5
    joined.assert_right()
    assert town.origin() == before


def test_a_drained_node_leaves_nothing_to_fetch_again(town: Town) -> None:
    filled(town, small=60, large=1)
    town.start(3)
    for host in town.hosts:
        host.ok("load", host.mount)
    before = town.origin()
    last = town.hosts[2]
    state = last.json("node", "drain", limit_s=60)
    assert state["failed_files"] == 0
    assert state["files_done"] > 0
    last.ok("down", last.mount)
    town.wait_members(2, town.hosts[:2])
    for host in town.hosts[:2]:
        host.assert_right()
    assert town.origin(hosts=town.hosts[:2]) <= before


def test_an_id_that_is_taken_is_refused(town: Town) -> None:
    town.put("a", 10)
    town.start(1)
    twin = town.add(node_id="n0")
    done = twin.start("up", town.truth, twin.mount, "--cache", f"{twin.cache}:256MiB")
    assert done.wait() == 33
    assert "n0" in done.said
    assert "Traceback" not in done.said
    town.hosts[0].assert_right()
