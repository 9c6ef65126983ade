"""A job without a plan reads more than the cache holds: the cached part stays, on a real mount."""

from __future__ import annotations

import random

import pytest

from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

FILES, CACHE_FILES = 160, 80


def cached(host: Host, names: list[str]) -> int:
    return sum(row["cached"] == "yes" for row in host.stats(*names))


def test_a_second_epoch_finds_what_the_first_one_left(host: Host) -> None:
    names = [f"set/{number:03d}" for number in range(FILES)]
    for name in names:
        host.put(name, MIB - 4096)
    host.up(host.truth, host.mount, "--io", "splice", cache=f"{host.cache}:{CACHE_FILES}MiB")
    read_bytes = []
    for epoch in range(4):
        random.Random(epoch).shuffle(names)
        before = host.status()["origin"]["bytes_read"]
        for start in range(0, FILES, 20):
            host.assert_right(*names[start : start + 20])
            wait_until(lambda: host.status()["predictions"]["data_sets"])  # opens are reported after a second
        read_bytes.append(host.status()["origin"]["bytes_read"] - before)
    kept = min(
        cached(host, names), CACHE_FILES
    )  # what a reader has in the spill is cached, too, and not kept
    assert kept >= 50
    assert host.status()["predictions"]["files_kept_out"] > FILES // 4
    assert read_bytes[-1] <= (FILES - 0.75 * kept) * MIB
