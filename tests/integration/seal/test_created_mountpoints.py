"""The directory that `headrace seal --at` created goes with its seal, and no other one does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


def assert_goes(host: Host, place: Path, *commands: tuple[object, ...]) -> None:
    """Assert that a directory goes with the last one of these commands. A container of another test that begins
    meanwhile has a copy of each mount, so that the directory stays, and all is done once more."""

    def is_gone() -> bool:
        if place.exists():
            place.rmdir()
        for words in commands:
            host.ok("seal", *words)
        return not place.exists()

    wait_until(is_gone, 60)


def test_a_created_directory_goes_with_its_seal(host: Host) -> None:
    """Parents stay, and so does a directory that was there before."""
    host.up()
    created, existing = host.base / "above/created", host.base / "existing"
    assert_goes(host, created, ("/images", "--at", created), ("remove", "images@1"))
    assert os.listdir(created.parent) == []
    existing.mkdir()
    host.ok("seal", "/images", "--at", existing)
    assert (existing / "0/1.bin").read_bytes() == (host.truth / "images/0/1.bin").read_bytes()
    host.ok("seal", "remove", "images@1")
    assert os.listdir(existing) == []


def test_the_last_seal_at_a_place_takes_the_directory_with_it(host: Host) -> None:
    host.up()
    place = host.base / "sealed"
    assert_goes(
        host,
        place,
        ("/images", "--at", place, "--as", "images@1"),
        ("/images", "--at", place, "--as", "images@2"),
        ("mount", "images@1", "--at", place),
        ("mount", "images@2", "--at", place),
        ("remove", "images@1"),
        ("remove", "images@2"),
    )


def test_what_a_user_put_there_stays(host: Host) -> None:
    """The seal was unmounted by hand, and then the directory got a file, or became another one, or a link."""
    host.up()
    filled, another, link, target = (host.base / name for name in ("filled", "another", "link", "target"))
    target.mkdir()
    for place in (filled, another, link):
        host.ok("seal", "/images", "--at", place)
        subprocess.run(["umount", place], check=True)
    (filled / "file").write_bytes(b"of a user")
    another.rename(host.base / "moved")
    another.mkdir()
    link.rmdir()
    link.symlink_to(target)
    for version in (1, 2, 3):
        host.ok("seal", "remove", f"images@{version}")
    assert (filled / "file").read_bytes() == b"of a user"
    assert another.is_dir() and link.is_symlink() and target.is_dir()


def test_a_failed_mount_leaves_no_directory(host: Host) -> None:
    host.up()
    host.ok("seal", "/images")
    image = Path(host.cache) / "seals/images@1/image"
    image.write_bytes(image.read_bytes()[:-4096] + bytes(4096))
    done = host.headrace("seal", "mount", "images@1", "--at", host.base / "sealed")
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 1
    assert not (host.base / "sealed").exists()
