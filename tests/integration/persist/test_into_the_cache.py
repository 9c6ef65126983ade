"""Clean files that leave the layer become the cache's: nobody fetches them from the origin, also not after kill -9 at
any step of it."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.persist.conftest import MakeHost, Writer, settled, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

STEPS = ("adopt.map", "adopt.recorded", "adopt.renamed")
LARGE, SMALL = 2_500_000, 100_000
CACHE = "64MiB"


def written(host: Host) -> Writer:
    """More than the layer may keep is there and persisted; the node is stopped."""
    up = host.up(host.truth, host.mount, cache=f"{host.cache}:{CACHE}")
    writer = Writer(host.mount)
    writer.run(f"[open(f'l{{n}}', 'wb').write(os.urandom({LARGE})) for n in range(16)]")
    writer.run(f"[open(f's{{n}}', 'wb').write(os.urandom({SMALL})) for n in range(12)]; open('empty', 'w')")
    settled(host)
    up.signal(15)
    assert up.wait() == 0
    return writer


def same(host: Host) -> None:
    """Every byte of the mount is that of the origin."""
    names = sorted(os.listdir(host.truth))
    shown = Writer(host.mount).run(
        "from hashlib import blake2b\n"
        "print(json.dumps([[n, blake2b(open(n, 'rb').read()).hexdigest()] for n in sorted(os.listdir('.'))]))"
    )
    assert json.loads(shown) == [[n, blake2b((host.truth / n).read_bytes()).hexdigest()] for n in names]


def left(host: Host) -> int:
    return sum(one.stat().st_size for one in (host.cache / "upper/tree").iterdir())


def bytes_fetched(host: Host) -> int:
    return int(host.json("status")["origin"]["bytes_read"])


def test_what_left_the_layer_is_not_fetched(make_host: MakeHost, tmp_path: Path) -> None:
    """The node looks over the layer at its start, and dies there; once at each step."""
    host = make_host(write="back", persist_delay_s=0.05)
    writer = written(host)
    before = left(host)
    for step in STEPS:
        died = tmp_path / step
        host.environment["HEADRACE_FAILPOINT"] = f"{step}:1:{died}"
        dying = host.start("up", host.truth, host.mount, "--cache", f"{host.cache}:{CACHE}")
        wait_until(died.exists, 30.0, what=lambda step=step: f"{step} was not hit")
        dying.process.kill()
        dying.process.wait()
        host.close()
    host.up(host.truth, host.mount, cache=f"{host.cache}:{CACHE}")
    wait_until(lambda: left(host) <= 32 << 20 < before, 30.0)
    settled(host)
    same(host)
    assert bytes_fetched(host) == 0
    gone = sorted({one.name for one in host.truth.iterdir()} - set(os.listdir(host.cache / "upper/tree")))
    assert any(name.startswith("l") for name in gone)
    writer.run(f"open({gone[-1]!r}, 'ab').write(b'more')")  # copied up, from the cache
    settled(host)
    same(host)
    assert bytes_fetched(host) == 0
    host.ok("fsck")
