"""A host with small files, and two hosts over one origin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.seal.shared_origin import Origin

__all__ = ["host", "hosts", "origin"]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose origin has small files, a larger one and an empty one; its node is not up."""
    host = Host(tmp_path)
    try:
        for number in range(40):
            host.put(f"images/{number // 10}/{number}.bin", 1000 + number * 997)
        host.put("images/large.tar", (5 << 20) + 321)
        host.put("images/empty", 0)
        host.put("other", 5000)
        yield host
    finally:
        host.close()


@pytest.fixture(params=["directory", "seaweedfs"])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Origin:
    server = request.getfixturevalue("seaweed") if request.param == "seaweedfs" else None
    origin = Origin(tmp_path / "origin", server)
    for number in range(8):
        origin.put(f"images/{number % 2}/{number}.bin", os.urandom(3000 + number))
    origin.put("images/large", os.urandom((2 << 20) + 7))
    origin.put("images/empty", b"")
    return origin


@pytest.fixture
def hosts(tmp_path: Path, origin: Origin) -> Iterator[list[Host]]:
    """Two hosts that have nothing in common but the origin."""
    hosts = []
    try:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            host = Host(tmp_path / name)
            hosts.append(host)
            words = origin.words(host)
            host.up(words[0], host.mount, *words[1:])
        yield hosts
    finally:
        for host in hosts:
            host.close()
