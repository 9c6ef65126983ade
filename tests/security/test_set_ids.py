"""Files that the host sees of the upper layer run with nobody's rights and are no devices (finding 5). The mount shows
what its users gave."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.base.beneath import Root
from headrace.overlay.given_mode import as_given, give_mode, make_device
from tests.integration.cli.host import Host
from tests.security.nobody import as_nobody

pytestmark = pytest.mark.root
NULL = os.makedev(1, 3)


def dangerous(folder: Path) -> list[str]:
    """Return what `find -perm /6000 -type f -o -type b -o -type c` says, but for whiteouts, which can't be opened."""
    return [
        str(path)
        for path in folder.rglob("*")
        for status in [path.lstat()]
        if (stat.S_ISREG(status.st_mode) and status.st_mode & 0o6000)
        or stat.S_ISBLK(status.st_mode)
        or (stat.S_ISCHR(status.st_mode) and status.st_rdev != 0)
    ]


def shown(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_mode, status.st_rdev


def test_a_set_user_id_program_is_one_in_the_mount_only(host: Host) -> None:
    """`tar xp` of an image by root left programs below the cache that ran as root."""
    host.put("a", 10)
    host.up(host.truth, host.mount, "--allow-other", "--write", "back,/keep=local")
    mount = host.mount
    modes = {"suid": 0o4755, "sgid": 0o2755, "both": 0o6711, "sticky": 0o1644, "plain": 0o640}
    for name, mode in modes.items():
        (mount / name).write_bytes(b"#!/bin/sh\n")
        (mount / name).chmod(mode)
    opened = os.open(mount / "opened", os.O_CREAT | os.O_WRONLY, 0o4777)
    os.fchmod(opened, 0o4755)
    os.close(opened)
    expected = {name: (stat.S_IFREG | mode, 0) for name, mode in {**modes, "opened": 0o4755}.items()}
    os.mknod(mount / "null", stat.S_IFCHR | 0o666, NULL)
    os.mknod(mount / "disk", stat.S_IFBLK | 0o600, os.makedev(8, 1))
    os.link(mount / "suid", mount / "linked")
    devices = {
        "null": (stat.S_IFCHR | 0o666 & ~_umask(), NULL),
        "disk": (stat.S_IFBLK | 0o600, os.makedev(8, 1)),
    }
    assert {name: shown(mount / name) for name in expected} == expected
    assert {name: shown(mount / name) for name in devices} == devices
    assert shown(mount / "linked") == expected["suid"]
    assert dangerous(host.cache) == []
    assert (
        as_nobody("result = refused(lambda: os.open(path, os.O_RDONLY))", path=f"{mount}/null")
        == "PermissionError"
    )

    (mount / "null").chmod(0o4600)
    (mount / "both").chmod(0o755)
    expected["both"] = stat.S_IFREG | 0o755, 0
    (mount / "disk").unlink()
    os.chown(mount / "sgid", 1, 1)  # takes the bits, as chown(2) does
    expected["sgid"] = stat.S_IFREG | 0o755, 0
    assert stat.S_IFMT((mount / "null").lstat().st_mode) == stat.S_IFCHR
    os.unlink(mount / "linked")
    host.ok("persist", "/")
    host.ok("load", "/")
    assert {name: shown(mount / name) for name in expected} == expected
    assert dangerous(host.cache) == []
    with open(mount / "suid", "ab") as file:  # comes back into the layer
        file.write(b"exit\n")
    (mount / "suid").chmod(0o4755)
    host.ok("down", str(mount))
    host.up(host.truth, host.mount, "--allow-other", "--write", "back,/keep=local")
    assert {name: shown(mount / name) for name in expected} == expected
    assert shown(mount / "null")[1] == NULL
    assert dangerous(host.cache) == []
    host.ok("down", str(mount))


def test_whoever_writes_loses_the_bits(host: Host) -> None:
    """The kernel tells the session to drop them, as of a file that has them."""
    host.put("a", 10)
    host.up(host.truth, host.mount, "--allow-other", "--write", "back")
    program = host.mount / "program"
    program.write_bytes(b"theirs")
    program.chmod(0o4777)
    as_nobody("result = os.write(os.open(path, os.O_WRONLY), b'mine')", path=str(program))
    assert shown(program) == (stat.S_IFREG | 0o777, 0)
    host.ok("down", str(host.mount))


@pytest.mark.parametrize("mode", [0o4755, 0o2711, 0o1600, 0o7777, 0o644, 0])
def test_a_mode_is_told_as_it_was_given(tmp_path: Path, mode: int) -> None:
    path = os.fsencode(tmp_path / "file")
    (tmp_path / "file").touch()
    for before in (0o6755, 0o600):
        give_mode(path, before)
        give_mode(path, mode)
        status = os.lstat(path)
        assert stat.S_IMODE(as_given(status, path).st_mode) == mode
        assert status.st_mode & 0o6000 == 0
        assert as_given(status, path).st_mtime_ns == status.st_mtime_ns


def test_a_device_is_a_fifo_on_the_disk(tmp_path: Path) -> None:
    path = Root(os.fsencode(tmp_path)).at(b"/device")
    make_device(path, stat.S_IFBLK | 0o640, os.makedev(259, 70000))
    for mode in (0o640, 0o4600, 0o1777, 0):
        give_mode(path, mode)
        status = as_given(path.lstat(), path)
        assert (status.st_mode, status.st_rdev) == (stat.S_IFBLK | mode, os.makedev(259, 70000))
        assert stat.S_ISFIFO(path.lstat().st_mode)


def test_a_directory_keeps_its_bits(tmp_path: Path) -> None:
    give_mode(os.fsencode(tmp_path), 0o3775)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o3775


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
