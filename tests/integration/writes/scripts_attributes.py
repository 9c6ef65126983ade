"""Scripts over modes, owners, times and extended attributes, and what other users may."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial

from tests.integration.writes import place as calls
from tests.integration.writes.place import (
    OPEN_FLAGS,
    OTHER_USER,
    Place,
    elsewhere,
    equal,
    outcome,
    read_whole,
    refused,
)
from tests.integration.writes.registry import script

PAST_NS = 1_234_567_890_123_456_789
"""2009; the last digits show whether nanoseconds are kept."""


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@script()
def modes(place: Place) -> None:
    path = place.write("file", b"x")
    os.mkdir(place.path("folder"))
    for mode in (0o600, 0o000, 0o777, 0o4755, 0o2755, 0o1777, 0o444):
        for target in (path, place.path("folder")):
            os.chmod(target, mode)
            equal(mode_of(target), mode)
    fd = os.open(path, os.O_RDONLY)
    os.fchmod(fd, 0o640)
    equal(stat.S_IMODE(os.fstat(fd).st_mode), 0o640)
    os.close(fd)
    os.chmod(place.path("folder"), 0o755)
    refused(errno.ENOENT, os.chmod, place.path("missing"), 0o600)
    os.symlink("file", place.path("link"))
    os.chmod(place.path("link"), 0o611)
    equal(mode_of(path), 0o611)


@script()
def the_umask(place: Place) -> None:
    for mask in (0o000, 0o022, 0o077, 0o777):
        os.umask(mask)
        os.close(os.open(place.path(f"file{mask:o}"), OPEN_FLAGS, 0o666))
        os.mkdir(place.path(f"folder{mask:o}"))
        equal(mode_of(place.path(f"file{mask:o}")), 0o666 & ~mask)
        equal(mode_of(place.path(f"folder{mask:o}")), 0o777 & ~mask)
    os.umask(0o022)
    os.close(os.open(place.path("set"), OPEN_FLAGS, 0o4755))
    equal(mode_of(place.path("set")), 0o4755)


@script()
def owners(place: Place) -> None:
    path = place.write("file", b"x")
    os.chmod(path, 0o6755)
    os.chown(path, 1_234, 5_678)
    place.note("mode after chown", mode_of(path))  # the kernel takes the set-id bits
    os.chown(path, -1, 99)
    os.chown(path, 77, -1)
    status = os.stat(path)
    equal((status.st_uid, status.st_gid), (77, 99))
    os.mkdir(place.path("folder"))
    os.chown(place.path("folder"), 5, 6)
    os.symlink("file", place.path("link"))
    os.lchown(place.path("link"), 8, 9)
    equal((os.lstat(place.path("link")).st_uid, os.lstat(place.path("link")).st_gid), (8, 9))
    equal(os.stat(path).st_uid, 77)
    fd = os.open(path, os.O_RDWR)
    os.fchown(fd, 10, 11)
    equal((os.stat(path).st_uid, os.stat(path).st_gid), (10, 11))
    os.close(fd)


@script()
def times_are_set_to_the_nanosecond(place: Place) -> None:
    path = place.write("file", b"x")
    os.mkdir(place.path("folder"))
    os.symlink("file", place.path("link"))
    for target in (path, place.path("folder")):
        os.utime(target, ns=(PAST_NS - 5, PAST_NS))
        equal(os.stat(target).st_mtime_ns, PAST_NS)
    os.utime(place.path("link"), ns=(PAST_NS, PAST_NS - 10**9), follow_symlinks=False)
    equal(os.lstat(place.path("link")).st_mtime_ns, PAST_NS - 10**9)
    equal(os.stat(path).st_mtime_ns, PAST_NS)
    fd = os.open(path, os.O_RDWR)
    os.utime(fd, ns=(PAST_NS, PAST_NS + 1))
    equal(os.fstat(fd).st_mtime_ns, PAST_NS + 1)
    calls.set_times(path, (0, calls.UTIME_OMIT), (0, calls.UTIME_OMIT))
    equal(os.fstat(fd).st_mtime_ns, PAST_NS + 1)
    calls.set_times(path, (5, 5), (0, calls.UTIME_NOW))
    assert os.fstat(fd).st_mtime_ns > calls.SET_BEFORE_NS
    calls.set_times(path, (0, calls.UTIME_OMIT), (1_000, 999_999_999))
    equal(os.fstat(fd).st_mtime_ns, 1_000_999_999_999)
    os.close(fd)
    os.utime(path, ns=(PAST_NS, PAST_NS))


def moved(of: str, change: str, call: object, *args: object) -> None:
    """The change moves its time, which is set to the past first: no clock is fine enough to compare two changes."""
    os.utime(of, ns=(PAST_NS, PAST_NS))
    assert callable(call)
    result = call(*args)
    if change == "open":
        os.close(result)
    assert os.stat(of).st_mtime_ns > calls.SET_BEFORE_NS, change


@script()
def a_change_moves_the_times(place: Place) -> None:
    path = place.write("file", b"x")
    fd = os.open(path, os.O_RDWR)
    moved(path, "write", os.write, fd, b"data")
    moved(path, "ftruncate", os.ftruncate, fd, 2)
    moved(path, "truncate", os.truncate, path, 1)
    moved(path, "open", os.open, path, os.O_WRONLY | os.O_TRUNC)
    os.utime(path, ns=(PAST_NS, PAST_NS))
    changed = os.stat(path).st_ctime_ns
    os.chmod(path, 0o600)
    equal(os.stat(path).st_mtime_ns, PAST_NS)
    assert os.stat(path).st_ctime_ns >= changed > calls.SET_BEFORE_NS
    equal(read_whole(path), b"")
    equal(os.stat(path).st_mtime_ns, PAST_NS)
    os.close(fd)
    folder = place.path("folder")
    os.mkdir(folder)
    moved(folder, "create", place.write, "folder/one", b"")
    moved(folder, "mkdir", os.mkdir, f"{folder}/below")
    moved(folder, "rename", os.rename, f"{folder}/one", f"{folder}/two")
    moved(folder, "link", os.link, f"{folder}/two", f"{folder}/three")
    moved(folder, "unlink", os.unlink, f"{folder}/two")
    moved(folder, "rmdir", os.rmdir, f"{folder}/below")
    moved(folder, "symlink", os.symlink, "x", f"{folder}/link")


@script()
def a_change_moves_the_times_of_a_lower_folder(place: Place) -> None:
    folder = place.low("folder")
    below, first, second = (f"{folder}/{name}" for name in ("below", "one", "two"))
    for name in ("three", "deep/four"):
        os.unlink(f"{below}/{name}")
    moved(below, "rmdir", os.rmdir, f"{below}/deep")
    moved(folder, "rmdir", os.rmdir, below)
    moved(folder, "mkdir, of one that was removed", os.mkdir, below)
    moved(folder, "rmdir again", os.rmdir, below)
    moved(folder, "unlink", os.unlink, first)
    moved(folder, "mkdir, of a file that was removed", os.mkdir, first)
    moved(folder, "rename", os.rename, second, f"{folder}/moved")
    moved(folder, "open", os.open, second, os.O_CREAT | os.O_EXCL)


@script()
def groups_are_inherited(place: Place) -> None:
    folder = place.path("shared")
    os.mkdir(folder)
    os.chown(folder, 0, 4_242)
    os.chmod(folder, 0o2775)
    place.write("shared/file", b"x")
    os.mkdir(f"{folder}/below")
    os.symlink("file", f"{folder}/link")
    equal(os.stat(f"{folder}/file").st_gid, 4_242)
    equal(os.stat(f"{folder}/below").st_gid, 4_242)
    equal(mode_of(f"{folder}/below") & 0o2000, 0o2000)
    equal(os.lstat(f"{folder}/link").st_gid, 4_242)


@script()
def what_another_user_may(place: Place) -> None:
    secret = place.write("secret", b"secret", 0o600)
    shown = place.write("shown", b"shown", 0o644)
    theirs = place.write("theirs", b"theirs")
    os.chown(theirs, OTHER_USER, OTHER_USER)
    os.mkdir(place.path("closed"), 0o700)
    place.write("closed/file", b"x")

    def other() -> None:
        equal(read_whole("shown"), b"shown")
        for number, call, args in (
            (errno.EACCES, os.open, ("secret", os.O_RDONLY)),
            (errno.EACCES, os.open, ("shown", os.O_RDWR)),
            (errno.EACCES, os.open, ("new", OPEN_FLAGS)),
            (errno.EACCES, os.stat, ("closed/file",)),
            (errno.EACCES, os.listdir, ("closed",)),
            (errno.EACCES, os.unlink, ("shown",)),
            (errno.EACCES, os.rename, ("shown", "renamed")),
            (errno.EACCES, os.mkdir, ("folder",)),
            (errno.EACCES, os.truncate, ("shown", 0)),
            (errno.EPERM, os.chmod, ("shown", 0o777)),
            (errno.EPERM, os.chown, ("shown", OTHER_USER, -1)),
            (errno.EPERM, os.chown, ("theirs", 0, -1)),
            (errno.EACCES, os.setxattr, ("shown", "user.a", b"b")),
            (errno.EACCES, os.utime, ("shown",)),
        ):
            refused(number, call, *args)
        equal([os.access("shown", mode) for mode in (os.R_OK, os.W_OK, os.X_OK)], [True, False, False])
        with open("theirs", "ab") as file:
            file.write(b" too")
        os.chmod("theirs", 0o600)
        os.utime("theirs", ns=(PAST_NS, PAST_NS))

    elsewhere(other, user=OTHER_USER)
    equal(read_whole(theirs), b"theirs too")
    equal(read_whole(secret) + read_whole(shown), b"secretshown")
    equal(os.access(place.path("shown"), os.X_OK), False)


@script()
def what_another_user_makes_is_theirs(place: Place) -> None:
    os.mkdir(place.path("open"), 0o777)
    os.chmod(place.path("open"), 0o777)
    place.write("open/ours", b"ours", 0o666)

    def other() -> None:
        os.umask(0o027)
        with open("open/file", "wb") as file:
            file.write(b"data")
        os.mkdir("open/folder")
        os.symlink("file", "open/link")
        os.rename("open/ours", "open/renamed")

    elsewhere(other, user=OTHER_USER)
    for name in ("file", "folder", "link"):
        status = os.lstat(place.path(f"open/{name}"))
        equal((status.st_uid, status.st_gid), (OTHER_USER, OTHER_USER))
    equal(mode_of(place.path("open/file")), 0o640)


@script()
def sticky_folders(place: Place) -> None:
    os.mkdir(place.path("sticky"))
    os.chmod(place.path("sticky"), 0o1777)
    place.write("sticky/ours", b"ours")

    def other() -> None:
        with open("sticky/theirs", "wb") as file:
            file.write(b"theirs")
        refused(errno.EPERM, os.unlink, "sticky/ours")
        refused(errno.EPERM, os.rename, "sticky/ours", "sticky/renamed")
        refused(errno.EPERM, os.rename, "sticky/theirs", "sticky/ours")
        os.rename("sticky/theirs", "sticky/still")
        os.link("sticky/still", "sticky/linked")
        os.unlink("sticky/still")

    elsewhere(other, user=OTHER_USER)
    equal(sorted(os.listdir(place.path("sticky"))), ["linked", "ours"])


@script()
def set_id_bits_end_with_a_write_of_another(place: Place) -> None:
    path = place.write("file", b"x")
    os.chmod(path, 0o6777)

    def other() -> None:
        with open("file", "r+b") as file:
            file.write(b"y")

    elsewhere(other, user=OTHER_USER)
    place.note("mode after a write", mode_of(path))
    os.chmod(path, 0o6777)
    elsewhere(lambda: os.truncate("file", 0), user=OTHER_USER)
    place.note("mode after a truncate", mode_of(path))


@script()
def extended_attributes(place: Place) -> None:
    path = place.write("file", b"x")
    os.mkdir(place.path("folder"))
    for target in (path, place.path("folder")):
        equal([name for name in os.listxattr(target) if not name.startswith("user.headrace.")], [])
        refused(errno.ENODATA, os.getxattr, target, "user.a")
        refused(errno.ENODATA, os.setxattr, target, "user.a", b"1", os.XATTR_REPLACE)
        os.setxattr(target, "user.a", b"1", os.XATTR_CREATE)
        refused(errno.EEXIST, os.setxattr, target, "user.a", b"2", os.XATTR_CREATE)
        os.setxattr(target, "user.a", b"22", os.XATTR_REPLACE)
        equal(os.getxattr(target, "user.a"), b"22")
        os.setxattr(target, "user.empty", b"")
        equal(os.getxattr(target, "user.empty"), b"")
        os.setxattr(target, "user.\udcff bytes", bytes(range(256)))
        os.setxattr(target, "user.long", b"v" * 2_000)
        equal(os.getxattr(target, "user.long"), b"v" * 2_000)
        os.removexattr(target, "user.empty")
        refused(errno.ENODATA, os.removexattr, target, "user.empty")
        names = {name for name in os.listxattr(target) if not name.startswith("user.headrace.")}
        equal(names, {"user.a", "user.\udcff bytes", "user.long"})
        refused(errno.ENODATA, os.getxattr, target, "user.empty")
    fd = os.open(path, os.O_RDONLY)
    os.setxattr(fd, "user.fd", b"by descriptor")
    equal(os.getxattr(path, "user.fd"), b"by descriptor")
    os.close(fd)
    os.symlink("file", place.path("link"))
    refused(errno.EPERM, os.setxattr, place.path("link"), "user.a", b"1", 0, follow_symlinks=False)
    refused(errno.EOPNOTSUPP, os.setxattr, path, "nonsense", b"1")
    os.rename(path, place.path("renamed"))
    equal(os.getxattr(place.path("renamed"), "user.a"), b"22")


@script()
def attributes_of_ours_are_not_set(place: Place) -> None:
    path = place.write("file", b"x")
    if place.mounted:
        for number in {
            outcome(os.setxattr, path, f"user.headrace.{name}", b"1") for name in ("cached", "any")
        }:
            assert number in ("EPERM", "EACCES", "EOPNOTSUPP", "EROFS"), number


def _truncate_by_open(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def _through_descriptor(path: str, change: Callable[[int], object]) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        change(fd)
    finally:
        os.close(fd)


@script()
def set_id_bits_after_a_write(place: Place) -> None:
    """The kernel takes them of a file that is changed, unless root changes it."""
    changes: dict[str, Callable[[str], object]] = {
        "write": lambda path: _through_descriptor(path, lambda fd: os.pwrite(fd, b"y", 0)),
        "writes": lambda path: _through_descriptor(path, lambda fd: [os.pwrite(fd, b"y", n) for n in (0, 9)]),
        "truncate": lambda path: os.truncate(path, 3),
        "ftruncate": lambda path: _through_descriptor(path, lambda fd: os.ftruncate(fd, 9_000)),
        "open": _truncate_by_open,
        "fallocate": lambda path: _through_descriptor(path, lambda fd: os.posix_fallocate(fd, 0, 9_000)),
    }
    for user in (0, OTHER_USER):
        for name, change in changes.items():
            for mode in (0o6777, 0o2777, 0o4766):
                path = place.write(f"{name}-{user}-{mode:o}", b"x" * 100)
                os.chmod(path, mode)
                elsewhere(partial(change, path), user=user)
                place.note(f"mode of {name} by {user}, before {mode:o}", f"{mode_of(path):o}")
    path = place.write("again", b"x")
    for _ in range(
        2
    ):  # what the kernel remembers of the first write doesn't hold for bits that are set later
        os.chmod(path, 0o6777)
        elsewhere(partial(changes["write"], path), user=OTHER_USER)
        place.note("mode of a file that was written before", f"{mode_of(path):o}")
