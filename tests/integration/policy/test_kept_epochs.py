"""A job without a plan reads more than the cache holds: the cached part stays, on a real mount."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

FILES, CACHE_FILES = 160, 80


def cached(host: Host, names: list[str]) -> int:
    return sum(row["cached"] == "yes" for row in host.stats(*names))


def is_reported(host: Host, epoch: int) -> bool:
    """Return whether the node knows of all reads of an epoch: a mount reports what is opened within a second."""
    return [(row["epoch"], row["position"]) for row in host.plans()] == [(epoch, FILES)]


def test_a_second_epoch_finds_what_the_first_one_left(host: Host) -> None:
    names = [f"set/{number:03d}" for number in range(FILES)]
    for name in names:
        host.put(name, MIB - 4096)
    host.up(host.truth, host.mount, "--io", "splice", cache=f"{host.cache}:{CACHE_FILES}MiB")
    read_bytes = []
    for epoch in range(3):
        random.Random(epoch).shuffle(names)
        before = host.status()["origin"]["bytes_read"]
        for start in range(0, FILES, 20):
            host.assert_right(*names[start : start + 20])
        wait_until(partial(is_reported, host, epoch))
        read_bytes.append(host.status()["origin"]["bytes_read"] - before)
    kept = min(
        cached(host, names), CACHE_FILES
    )  # what a reader has in the spill is cached, too, and not kept
    assert kept >= 50
    assert host.status()["predictions"]["files_kept_out"] > FILES // 4
    assert read_bytes[-1] <= (FILES - 0.75 * kept) * MIB
