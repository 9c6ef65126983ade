"""Nodes that come and go faster than what they own can be handed over, while others read."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.cli.host import Host

from .conftest import MakeTown
from .town import Town

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(300)]

OLD, NEW = 60, 12
FILE_BYTES = 80_000
HAND_OVER_BYTES_S = 256 << 10
"""Slow: a node that joins is to get some 2 MB, and the next change comes after one or two seconds."""
LIMIT_S = 90.0


def crash(town: Town, host: Host) -> None:
    """All of the host's processes at once."""
    town.ups[-1].signal(signal.SIGKILL)
    host.close()


def leave(town: Town, host: Host) -> None:
    host.ok("down", host.mount)


def names_of(town: Town, folder: str, count: int) -> list[str]:
    names = [f"{folder}/{number}" for number in range(count)]
    for number, name in enumerate(names):
        town.put(name, FILE_BYTES + number)
    return names


def size_bytes(town: Town, names: list[str]) -> int:
    return sum((town.truth / name).stat().st_size for name in names)


def read_at_once(hosts: list[Host], names: list[str], meanwhile: Callable[[], object] = lambda: None) -> None:
    with ThreadPoolExecutor(len(hosts)) as pool:
        reading = [pool.submit(host.assert_right, *names, limit_s=LIMIT_S) for host in hosts]
        meanwhile()
        for one in reading:
            one.result()


def test_members_change_faster_than_the_hand_over(make_town: MakeTown) -> None:
    town = make_town(rebalance_bytes_s=HAND_OVER_BYTES_S)
    old = names_of(town, "old", OLD)
    new = [names_of(town, f"new-{number}", NEW) for number in range(6)]
    fresh = names_of(town, "fresh", NEW)
    town.start(2)
    staying = town.hosts[:2]
    read_at_once(staying, old)
    assert town.origin() == size_bytes(town, old)
    third, fourth = town.add(), town.add()
    changes: list[Callable[[], object]] = [
        lambda: town.up(third),
        lambda: crash(town, third),
        lambda: town.up(fourth),
        lambda: town.up(third),
        lambda: leave(town, fourth),
        lambda: town.up(fourth),
    ]
    for names, change in zip(new, changes, strict=True):
        read_at_once(staying, [*names, *old], change)
    town.wait_members(4)
    for host in town.hosts:
        town.wait_for(lambda host=host: not town.status(host)["rebalance"]["running"], LIMIT_S)  # type: ignore[misc]
        host.assert_right(*old, *(name for names in new for name in names), limit_s=LIMIT_S)
    assert all(town.status(host)["cluster"]["epoch"] >= len(changes) - 1 for host in staying)
    read = size_bytes(town, [*old, *(name for names in new for name in names)])
    for host in staying:  # in the turmoil a file may have two owners, but nobody fetches a byte twice
        assert town.origin(hosts=[host]) <= read
    before, missed = town.origin(), town.misses()
    read_at_once(town.hosts, fresh)
    fetched = town.origin() - before
    assert fetched >= size_bytes(town, fresh)
    assert fetched <= size_bytes(town, fresh) + (town.misses() - missed) * (FILE_BYTES + NEW)
