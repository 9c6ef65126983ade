"""A host a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host

MakeHost = Callable[..., Host]


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[MakeHost]:
    """Call with settings by name."""
    hosts: list[Host] = []

    def make(**settings: object) -> Host:
        hosts.append(Host(tmp_path, **settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def host(make_host: MakeHost) -> Host:
    """With some files at the origin."""
    host = make_host()
    for number in range(6):
        host.put(f"images/{number}.bin", 90_000 + number)
    host.put("large.tar", (5 << 20) + 321)
    host.put("empty", 0)
    return host
