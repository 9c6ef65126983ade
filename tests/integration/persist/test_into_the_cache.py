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
    writer.run(  # the oldest leave first
        """
os.chmod('l3', 0o640); os.chown('l3', 1234, 4321); os.utime('l3', ns=(5, 123456789_987654321))
open('named', 'w').write('named'); os.setxattr('named', 'user.name', b'value'); os.utime('named', (1, 1))
"""
    )
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


def attributes(host: Host, name: str) -> list[int]:
    output = Writer(host.mount).run(
        f"s = os.stat({name!r}); print(json.dumps([s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns]))"
    )
    shown: list[int] = json.loads(output)
    return shown


def left(host: Host) -> int:
    return sum(path.stat().st_size for path in (host.cache / "upper/tree").iterdir())


def bytes_fetched(host: Host) -> int:
    return int(host.status()["origin"]["bytes_read"])


def test_what_left_the_layer_is_not_fetched(make_host: MakeHost, tmp_path: Path) -> None:
    """The node looks over the layer at its start, and dies there; once at each step."""
    host = make_host(write="back", persist_delay_s=0.05)
    writer = written(host)
    before = left(host)
    for step in STEPS:
        died = tmp_path / step
        host.environment["HEADRACE_FAILPOINT"] = f"{step}:1:{died}"
        dying = host.start("up", host.truth, host.mount, "--cache", f"{host.cache}:{CACHE}")
        wait_until(died.exists, 30.0)  # else it was not hit
        dying.process.kill()
        dying.process.wait()
        host.close()
    host.up(host.truth, host.mount, cache=f"{host.cache}:{CACHE}")
    wait_until(lambda: left(host) <= 32 << 20 < before, 30.0)
    settled(host)
    same(host)
    assert bytes_fetched(host) == 0
    assert attributes(host, "l3") == [0o100640, 1234, 4321, 123456789_987654321]
    gone = sorted({path.name for path in host.truth.iterdir()} - set(os.listdir(host.cache / "upper/tree")))
    assert "l3" in gone
    assert "named" not in gone  # the origin can't hold its extended attribute
    assert writer.run("print(os.getxattr('named', 'user.name'))") == "b'value'\n"
    writer.run("open('l3', 'ab').write(b'more')")  # copied up, from the cache
    settled(host)
    same(host)
    assert attributes(host, "l3")[:3] == [0o100640, 1234, 4321]
    assert bytes_fetched(host) == 0
    host.ok("load", host.mount)
    assert set(os.listdir(host.cache / "upper/tree")) == {"named"}  # the cache has the others
    same(host)
    assert bytes_fetched(host) == len("named")
    host.ok("fsck")
