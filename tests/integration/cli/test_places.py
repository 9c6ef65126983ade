"""`headrace up` where the folders that it is given lie in each other: one line, and nothing was made."""

from __future__ import annotations

import pytest

from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    ("cache", "mount", "place"),
    [
        ("way/cache", "mnt", "the origin"),
        ("mnt/cache", "mnt", "the mountpoint"),
    ],
)
def test_folders_that_would_loop_are_refused(host: Host, cache: str, mount: str, place: str) -> None:
    (host.base / "way").symlink_to(host.truth)
    before = host.names()
    done = host.headrace("up", host.truth, host.base / mount, "--cache", f"{host.base / cache}:1GiB")
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1
    assert f"lies in {place}" in done.stderr
    assert host.names() == before
    assert list(host.mount.iterdir()) == []
    host.assert_nothing_left()


def test_an_origin_around_the_cache_is_not_attached(host: Host) -> None:
    host.up()
    done = host.headrace("mount", "add", "/more", host.base)
    assert done.returncode == 2, done
    assert "lies in the origin" in done.stderr


@pytest.mark.expected_warnings("the capacity exceeds the disk", "is limited to its disk")
def test_more_than_the_disk_has_is_said(host: Host) -> None:
    up = host.up(host.truth, host.mount, cache=f"{host.cache}:900TiB")
    assert [line for line in up.said.splitlines() if "WARNING" in line and str(host.cache) in line] == (
        up.said.splitlines()
    )
    status = host.json("status")["cache"]
    assert status["disks_too_small"] == [str(host.cache)]
    assert status["capacity_bytes"] < 900 << 40
    assert "smaller than its configured capacity" in host.ok("status")
    host.assert_right()
