"""A user exchanges a directory above a mountpoint between root's look at the path and its use
(docs/security/threat-model.md, U)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base import mount_api
from headrace.base.errors import MountError
from headrace.base.mount_api import attach, closing_descriptor, detached_mount, opened_directory
from headrace.base.mount_table import mount_table
from headrace.fuse import device, mount, probe
from tests.security.nobody import NOBODY

pytestmark = pytest.mark.root


@pytest.fixture
def exchanged(tmp_path: Path) -> Iterator[Path]:
    """Give a directory with `users/mount` and `other/mount`. What a test mounts there is unmounted at its end."""
    for name in ("users", "other"):
        (tmp_path / name / "mount").mkdir(parents=True)
    yield tmp_path
    for path in mounted_below(tmp_path):
        device.unmount(path, detach=True, abort=True)


def exchange(folder: Path, target: str = "other") -> None:
    os.rename(folder / "users", folder / "former")
    os.symlink(target, folder / "users")


def mounted_below(folder: Path) -> list[str]:
    return [row.mountpoint for row in mount_table() if row.mountpoint.startswith(f"{folder}/")]


def mount_memory(path: Path) -> None:
    with closing_descriptor(detached_mount("tmpfs", [])) as memory, opened_directory(str(path)) as directory:
        attach(memory, directory)


@pytest.mark.fuse
@pytest.mark.parametrize("name", ["users/mount", "users"])
def test_root_mounts_on_no_directory_behind_a_link(exchanged: Path, name: str) -> None:
    """It would cover /etc with what an origin has."""
    path = mount.prepare(str(exchanged / "users/mount"), is_served=lambda _: False)
    exchange(exchanged)
    path = path if name == "users/mount" else str(exchanged / "users")
    fd = device.open_device()
    try:
        with pytest.raises(MountError, match="cannot mount at"):
            device.mount(fd, path, allow_other=True)
        assert mounted_below(exchanged) == []
        former = mount.prepare(str(exchanged / "former/mount"), is_served=lambda _: False)
        device.mount(fd, former, allow_other=True)
        assert mounted_below(exchanged) == [former]
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ["link", "link/mount", "users/link", "roots/link"])
def test_root_mounts_nowhere_by_a_link_of_another_user(tmp_path: Path, name: str) -> None:
    """It could lead to any empty directory of root, such as one that sshd reads settings from."""
    (tmp_path / "empty/mount/mount").mkdir(parents=True)
    (tmp_path / "users").mkdir()
    for link, target in (("link", "empty/mount"), ("users/link", "../empty/mount/mount"), ("roots", "users")):
        (tmp_path / link).symlink_to(target)
    for link in ("link", "users/link"):
        os.chown(tmp_path / link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(MountError, match=f"belongs to user {NOBODY}"):
        mount.prepare(str(tmp_path / name), is_served=lambda _: False)
    for link in ("link", "users/link"):
        os.chown(tmp_path / link, 0, 0, follow_symlinks=False)
    prepared = mount.prepare(str(tmp_path / "roots/link"), is_served=lambda _: False)
    assert prepared == str(tmp_path / "empty/mount/mount")


def test_links_without_end_are_no_mountpoint(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(MountError, match="cannot list"):
        mount.prepare(str(tmp_path / "loop"), is_served=lambda _: False)


@pytest.mark.parametrize("name", ["users/mount", "users"])
def test_root_unmounts_nothing_behind_a_link(exchanged: Path, name: str) -> None:
    target = "other" if name == "users/mount" else "other/mount"
    mount_memory(exchanged / "other/mount")
    exchange(exchanged, target)
    assert device.unmount(str(exchanged / name), detach=True) in (errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
    assert mounted_below(exchanged) == [str(exchanged / "other/mount")]
    assert device.unmount(str(exchanged / "other/mount"), detach=True) == 0
    assert mounted_below(exchanged) == []


@pytest.mark.parametrize("name", ["users/mount", "users"])
def test_root_detaches_no_inner_mount_behind_a_link(exchanged: Path, name: str) -> None:
    """Exclusive directories and seals are mounted inside a mount, which a user's directory may hold."""
    target = "other" if name == "users/mount" else "other/mount"
    mount_memory(exchanged / "other/mount")
    exchange(exchanged, target)
    with pytest.raises(OSError):
        mount_api.detach(str(exchanged / name))
    assert mounted_below(exchanged) == [str(exchanged / "other/mount")]
    mount_api.detach(str(exchanged / "other/mount"))
    assert mounted_below(exchanged) == []


@pytest.mark.fuse
def test_a_temporary_directory_behind_a_link_is_probed(
    exchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange(exchanged)
    monkeypatch.setattr("tempfile.tempdir", None)
    before = probe.probe()
    monkeypatch.setenv("TMPDIR", str(exchanged / "users"))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert probe.probe() == before
    monkeypatch.setattr("tempfile.tempdir", None)
