"""Files that the policy does not admit are read right and leave nothing on the disk."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

DROP_PAGES = """
import os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
"""
SMALL, LARGE = "d/small", "d/large"


def start(host: Host, admit: str) -> None:
    host.put(SMALL, 100_000)
    host.put(LARGE, 5 * MIB + 17)
    host.put("other/a", 1000)
    host.up()
    path = host.base / "policy.toml"
    path.write_text(f'[[rule]]\nmatch = ["/d/**"]\nadmit = "{admit}"\n')
    host.ok("policy", "set", path)


def cached(host: Host, *names: str) -> list[str]:
    rows = zip(names, host.stats(*names), strict=True)
    return [name for name, row in rows if row["cached"] not in ("no", "0%")]


def whole(host: Host, *names: str) -> bool:
    return all(row["cached"] == "yes" for row in host.stats(*names))


def drop_pages(host: Host) -> None:
    """Let the kernel ask for each byte again."""
    paths = [str(host.mount / name) for name in (SMALL, LARGE)]
    subprocess.run([sys.executable, "-c", DROP_PAGES, *paths], check=True, timeout=30)


def disk_bytes(host: Host) -> int:
    """Return the size of all cache files, which fills and copies would leave."""
    return sum(path.stat().st_size for path in (host.cache / "files").rglob("*") if path.is_file())


def spill_is_empty(host: Host) -> bool:
    return not host.status()["cache"]["spilled_bytes"]


def test_never_is_never(host: Host) -> None:
    start(host, "never")
    for _ in range(3):
        drop_pages(host)
        host.assert_right()
        wait_until(lambda: spill_is_empty(host))
    assert cached(host, SMALL, LARGE, "other/a") == ["other/a"]
    assert disk_bytes(host) == 1000


def test_the_second_read_enters(host: Host) -> None:
    start(host, "second-read")
    host.assert_right()
    wait_until(lambda: spill_is_empty(host))
    assert cached(host, SMALL, LARGE) == []
    drop_pages(host)
    host.assert_right()
    wait_until(lambda: whole(host, SMALL, LARGE))
    read = host.status()["origin"]["bytes_read"]
    drop_pages(host)
    host.assert_right()
    assert host.status()["origin"]["bytes_read"] == read


def test_a_load_enters_whatever_the_rule(host: Host) -> None:
    start(host, "never")
    host.ok("load", "/d")
    assert whole(host, SMALL, LARGE)
    host.assert_right()


def test_more_than_the_spill_has_is_read_right(host: Host) -> None:
    names = [f"d/{number}" for number in range(12)]
    for name in names:
        host.put(name, 9 * MIB + 5)
    start(host, "never")
    host.assert_right(*names)
    assert not (host.cache / "files").exists() or disk_bytes(host) == 0
