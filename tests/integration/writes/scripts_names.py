"""Scripts over names: folders, rename, links, listings, odd and long names."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat

from tests.integration.writes.place import (
    EXCHANGE,
    NOREPLACE,
    OPEN_FLAGS,
    Place,
    equal,
    outcome,
    read_fd,
    read_whole,
    refused,
    renameat2,
)
from tests.integration.writes.registry import script

ODD_NAMES = (
    b"with space",
    b" ",
    b"-rf",
    b"...",
    b".hidden",
    b"new\nline",
    b"tab\t\\back*?[a]'\"$(x)",
    "Grüße 世界 🚰".encode(),
    b"not utf-8 \xff\xfe\x80",
    b"\x01\x7f",
    b"a%2Fb",
    b"trailing.",
    b"n" * 255,
    "ü".encode() * 127,
    # names that other layers, caches and our own store give a meaning to
    b".wh.file",
    b".wh..wh..opq",
    b".wh..wh.plnk",
    b".part",
    b"file.part",
    b"file.map",
    b".headrace",
    b".fuse_hidden0000000100000001",
    b".nfs0001",
    b"data.mdb",
    b"work",
    b"upper",
)
DEPTH = 29


@script()
def folders(place: Place) -> None:
    os.mkdir(place.path("folder"), 0o750)
    refused(errno.EEXIST, os.mkdir, place.path("folder"))
    place.write("file", b"x")
    refused(errno.EEXIST, os.mkdir, place.path("file"))
    refused(errno.ENOTDIR, os.mkdir, place.path("file/below"))
    refused(errno.ENOENT, os.mkdir, place.path("no/such"))
    refused(errno.ENOTDIR, os.rmdir, place.path("file"))
    refused(errno.EISDIR, os.unlink, place.path("folder"))
    refused(errno.ENOENT, os.rmdir, place.path("missing"))
    refused(errno.EINVAL, os.rmdir, place.path("folder/."))
    place.note_result(os.rmdir, place.path("folder/.."))
    place.write("folder/file", b"x")
    refused(errno.ENOTEMPTY, os.rmdir, place.path("folder"))
    os.unlink(place.path("folder/file"))
    os.rmdir(place.path("folder"))
    refused(errno.ENOENT, os.stat, place.path("folder"))
    os.mkdir(place.path("folder/"))
    os.rmdir(place.path("folder/"))
    refused(errno.ENOENT, os.listdir, place.path("folder"))
    refused(errno.ENOENT, os.unlink, place.path("missing"))
    refused(errno.ENOTDIR, os.unlink, place.path("file/below"))


@script()
def renames_of_files(place: Place) -> None:
    first, second = place.write("first", b"first"), place.write("second", b"second")
    inode = os.stat(first).st_ino
    os.rename(first, place.path("third"))
    refused(errno.ENOENT, os.stat, first)
    equal(read_whole(place.path("third")), b"first")
    equal(os.stat(place.path("third")).st_ino, inode)
    os.rename(place.path("third"), second)
    equal(read_whole(second), b"first")
    equal(os.listdir(place.root), ["second"])
    os.rename(second, second)
    os.link(second, place.path("same"))
    os.rename(second, place.path("same"))  # two names of one file: both stay (rename(2))
    equal(sorted(os.listdir(place.root)), ["same", "second"])
    os.mkdir(place.path("folder"))
    refused(errno.EISDIR, os.rename, second, place.path("folder"))
    refused(errno.ENOTDIR, os.rename, place.path("folder"), second)
    refused(errno.ENOENT, os.rename, place.path("missing"), second)
    refused(errno.ENOENT, os.rename, second, place.path("no/such"))
    refused(errno.ENOTDIR, os.rename, second, place.path("same/below"))
    os.rename(second, place.path("folder/moved"))
    equal(read_whole(place.path("folder/moved")), b"first")


@script()
def renames_of_folders(place: Place) -> None:
    for number in range(3):
        place.write(f"from/below/deep/{number}", b"%d" % number)
    os.mkdir(place.path("empty"))
    place.write("full/file", b"x")
    held = os.open(place.path("from/below/deep/1"), os.O_RDWR)
    refused(errno.ENOTEMPTY, os.rename, place.path("from"), place.path("full"))
    refused(errno.EINVAL, os.rename, place.path("from"), place.path("from/below/child"))
    refused(errno.EINVAL, os.rename, place.path("from"), place.path("from/new"))
    refused(errno.ENOTEMPTY, os.rename, place.path("from/below"), place.path("from"))
    os.rename(place.path("from"), place.path("empty"))
    equal(sorted(os.listdir(place.root)), ["empty", "full"])
    os.pwrite(held, b"held", 0)
    equal(read_whole(place.path("empty/below/deep/1")), b"held")
    os.rename(place.path("empty/below"), place.path("full/moved"))
    os.pwrite(held, b"HELD", 0)
    equal(read_whole(place.path("full/moved/deep/1")), b"HELD")
    refused(errno.ENOENT, os.stat, place.path("empty/below/deep/1"))
    os.close(held)
    os.mkdir(place.path("empty/below"))
    equal(os.listdir(place.path("empty/below")), [])


@script()
def a_folder_is_renamed_below_its_user(place: Place) -> None:
    place.write("folder/below/file", b"x")
    os.chdir(place.path("folder/below"))
    os.rename(place.path("folder"), place.path("renamed"))
    equal(os.getcwd(), place.path("renamed/below"))
    equal(read_whole("file"), b"x")
    with open("new", "wb") as file:
        file.write(b"new")
    equal(read_whole(place.path("renamed/below/new")), b"new")
    equal(sorted(os.listdir("..")), ["below"])


@script()
def a_folder_is_removed_below_its_user(place: Place) -> None:
    os.mkdir(place.path("folder"))
    held = os.open(place.path("folder"), os.O_RDONLY)
    os.chdir(place.path("folder"))
    os.rmdir(place.path("folder"))
    refused(errno.ENOENT, os.getcwd)
    refused(errno.ENOENT, os.open, "file", OPEN_FLAGS)
    refused(errno.ENOENT, os.mkdir, "below")
    equal(os.listdir(held), [])
    os.mkdir(place.path("folder"))
    place.write("folder/another", b"x")
    equal(os.listdir(held), [])
    os.close(held)


@script()
def renames_that_replace_nothing(place: Place) -> None:
    first, second = place.write("first", b"1"), place.write("second", b"2")
    refused(errno.EEXIST, renameat2, first, second, NOREPLACE)
    equal(read_whole(second), b"2")
    renameat2(first, place.path("third"), NOREPLACE)
    equal(sorted(os.listdir(place.root)), ["second", "third"])
    refused(errno.EINVAL, renameat2, second, place.path("x"), NOREPLACE | EXCHANGE)


@script()
def names_are_exchanged(place: Place) -> None:
    """RENAME_EXCHANGE is done truly, or EINVAL."""
    first = place.write("first", b"1")
    place.write("folder/second", b"2")
    got = outcome(renameat2, first, place.path("folder"), EXCHANGE)
    if got == "EINVAL":
        os.rename(first, place.path("aside"))
        os.rename(place.path("folder"), first)
        os.rename(place.path("aside"), place.path("folder"))
    else:
        equal(got, None)
        refused(errno.ENOENT, renameat2, first, place.path("missing"), EXCHANGE)
    equal(read_whole(place.path("first/second")) + read_whole(place.path("folder")), b"21")


@script()
def files_are_exchanged(place: Place) -> None:
    first, second = place.write("first", b"1"), place.write("second", b"22")
    held = os.open(first, os.O_RDWR)
    numbers = os.stat(first).st_ino, os.stat(second).st_ino
    renameat2(first, second, EXCHANGE)
    equal((os.stat(second).st_ino, os.stat(first).st_ino), numbers)
    os.pwrite(held, b"3", 0)
    os.close(held)
    equal((read_whole(first), read_whole(second)), (b"22", b"3"))
    os.symlink("second", place.path("link"))
    os.mkdir(place.path("below"))
    renameat2(place.path("link"), place.path("below"), EXCHANGE)
    equal(os.readlink(place.path("below")), "second")
    place.write("link/third", b"333")
    renameat2(place.path("link/third"), first, EXCHANGE)
    equal((read_whole(first), read_whole(place.path("link/third"))), (b"333", b"22"))
    refused(errno.ENOENT, renameat2, first, place.path("missing"), EXCHANGE)
    refused(errno.EINVAL, renameat2, place.path("link"), place.path("link/third"), EXCHANGE)
    equal(sorted(os.listdir(place.root)), ["below", "first", "link", "second"])


@script()
def hard_links(place: Place) -> None:
    path = place.write("file", b"one")
    os.mkdir(place.path("folder"))
    os.link(path, place.path("folder/link"))
    equal(os.stat(path).st_nlink, 2)
    equal(os.stat(path).st_ino, os.stat(place.path("folder/link")).st_ino)
    with open(place.path("folder/link"), "r+b") as file:
        file.write(b"two")
    equal(read_whole(path), b"two")
    os.chmod(path, 0o600)
    equal(stat.S_IMODE(os.stat(place.path("folder/link")).st_mode), 0o600)
    refused(errno.EEXIST, os.link, path, place.path("folder/link"))
    refused(errno.ENOENT, os.link, place.path("missing"), place.path("x"))
    refused(errno.EPERM, os.link, place.path("folder"), place.path("x"))
    os.unlink(path)
    equal(os.stat(place.path("folder/link")).st_nlink, 1)
    os.link(place.path("folder/link"), path)
    os.rename(path, place.path("folder/other"))
    equal(os.stat(place.path("folder/other")).st_nlink, 2)
    held = os.open(place.path("folder/link"), os.O_RDWR)
    os.unlink(place.path("folder/link"))
    os.pwrite(held, b"three", 0)
    equal(read_whole(place.path("folder/other")), b"three")
    equal(os.fstat(held).st_nlink, 1)
    os.close(held)
    for number in range(20):
        os.link(place.path("folder/other"), place.path(f"{number}"))
    equal(os.stat(place.path("7")).st_nlink, 21)
    place.write("replaced", b"by a link")
    os.link(place.path("replaced"), place.path("beside"))
    os.rename(place.path("3"), place.path("replaced"))
    equal(os.stat(place.path("beside")).st_nlink, 1)


@script()
def symbolic_links(place: Place) -> None:
    place.write("folder/file", b"data")
    os.symlink("folder/file", place.path("relative"))
    os.symlink(place.path("folder"), place.path("absolute"))
    os.symlink("nothing/there", place.path("dangling"))
    os.symlink("self", place.path("self"))
    os.symlink(b"\xff\n x", os.fsencode(place.path("bytes")))
    os.symlink("t" * 4_000, place.path("long"))
    equal(read_whole(place.path("relative")), b"data")
    equal(read_whole(place.path("absolute/file")), b"data")
    equal(os.readlink(place.path("relative")), "folder/file")
    equal(os.readlink(os.fsencode(place.path("bytes"))), b"\xff\n x")
    equal(len(os.readlink(place.path("long"))), 4_000)
    equal(os.lstat(place.path("dangling")).st_size, 13)
    equal(stat.S_IMODE(os.lstat(place.path("dangling")).st_mode), 0o777)
    refused(errno.ENOENT, os.stat, place.path("dangling"))
    refused(errno.ELOOP, os.stat, place.path("self"))
    refused(errno.EINVAL, os.readlink, place.path("folder/file"))
    refused(errno.EINVAL, os.readlink, place.path("folder"))
    refused(errno.EEXIST, os.symlink, "x", place.path("relative"))
    refused(errno.EEXIST, os.mkdir, place.path("dangling"))
    refused(errno.ENOENT, os.symlink, "", place.path("empty"))
    os.mkdir(place.path("nothing"))
    with open(place.path("dangling"), "wb") as file:  # makes what it leads to
        file.write(b"made")
    equal(read_whole(place.path("nothing/there")), b"made")
    os.link(place.path("relative"), place.path("of a link"), follow_symlinks=False)
    os.rename(place.path("relative"), place.path("renamed"))
    equal(os.readlink(place.path("renamed")), "folder/file")
    os.unlink(place.path("absolute"))
    equal(read_whole(place.path("folder/file")), b"data")
    refused(errno.ENOTDIR, os.rmdir, place.path("self"))
    os.symlink(place.lower, place.path("absolute"))  # the tree that is compared must not name a place
    equal(read_whole(place.path("absolute/text")), b"one\ntwo\nthree\n")
    os.unlink(place.path("absolute"))


@script()
def odd_names(place: Place) -> None:
    root = os.fsencode(place.root)
    for kind in (b"files", b"folders", b"links", b"renamed"):
        os.mkdir(os.path.join(root, kind))
    for number, name in enumerate(ODD_NAMES):
        file = os.path.join(root, b"files", name)
        fd = os.open(file, OPEN_FLAGS)
        os.write(fd, b"%d" % number)
        os.close(fd)
        os.mkdir(os.path.join(root, b"folders", name))
        os.symlink(name, os.path.join(root, b"links", name))
        os.link(file, os.path.join(root, b"renamed", b"x"))
        os.rename(os.path.join(root, b"renamed", b"x"), os.path.join(root, b"renamed", name))
    for kind in (b"files", b"folders", b"links", b"renamed"):
        equal(sorted(os.listdir(os.path.join(root, kind))), sorted(ODD_NAMES))
    for number, name in enumerate(ODD_NAMES):
        equal(read_whole(os.path.join(root, b"files", name)), b"%d" % number)
    for name in ODD_NAMES[::2]:
        os.unlink(os.path.join(root, b"files", name))
        os.rmdir(os.path.join(root, b"folders", name))
    equal(sorted(os.listdir(os.path.join(root, b"files"))), sorted(ODD_NAMES[1::2]))
    for call in (os.mkdir, os.stat, os.unlink, os.rmdir):
        refused(errno.ENAMETOOLONG, call, os.path.join(root, b"n" * 256))
    refused(errno.ENAMETOOLONG, os.open, os.path.join(root, b"n" * 256), OPEN_FLAGS)
    os.mkdir(place.path("a"))
    os.mkdir(place.path("A"))


@script()
def deep_folders(place: Place) -> None:
    """Go as deep as a path of 3,000 bytes, step by step; a mount has its own limit beyond (docs/semantics/names.md)."""
    os.chdir(place.root)
    for _ in range(DEPTH):
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
    with open("bottom", "wb") as file:
        file.write(b"deep")
    equal(read_whole("bottom"), b"deep")
    equal(read_whole(os.path.join(place.root, *["d" * 100] * DEPTH, "bottom")), b"deep")
    os.chdir(place.root)
    os.rename("d" * 100, "short")
    os.chdir(os.path.join("short", *["d" * 100] * (DEPTH - 1)))
    equal(read_whole("bottom"), b"deep")
    os.chdir(place.root)
    shutil.rmtree("short")
    os.makedirs("/".join(["e" * 20] * 50))


@script()
def a_folder_is_removed_while_it_is_listed(place: Place) -> None:
    """Remove all as `rm -rf` does: each name as it is read, until nothing is left."""
    for number in range(500):
        os.close(os.open(place.path(f"{number}"), OPEN_FLAGS))
    passes = 0
    while os.listdir(place.root):
        with os.scandir(place.root) as entries:
            for entry in entries:
                assert entry.is_file(follow_symlinks=False)
                os.unlink(entry.path)
        passes += 1
        assert passes < 10, "names come back"
    os.mkdir(place.path("again"))


@script()
def names_are_added_while_it_is_listed(place: Place) -> None:
    """Those that were there are seen once; new ones once or not at all."""
    before = {f"before-{number}" for number in range(400)}
    for name in before:
        os.mkdir(place.path(name))
    names = []
    with os.scandir(place.root) as entries:
        for number, entry in enumerate(entries):
            names.append(entry.name)
            if number < 100:
                os.mkdir(place.path(f"new-{number}"))
    equal(len(set(names)), len(names))
    assert before <= set(names), before - set(names)
    equal(len(os.listdir(place.root)), 500)


@script()
def a_large_folder(place: Place) -> None:
    wanted = {f"name-{number:05d}-{'x' * (number % 50)}" for number in range(700)}
    for name in wanted:
        os.close(os.open(place.path(name), OPEN_FLAGS))
    for _ in range(2):  # the second time from the kernel's cache, where it keeps one
        names = os.listdir(place.root)
        equal(len(names), 700)
        equal(set(names), wanted)
    for name in sorted(wanted)[::2]:
        os.unlink(place.path(name))
    equal(set(os.listdir(place.root)), set(sorted(wanted)[1::2]))
    for name in os.listdir(place.root):
        os.unlink(place.path(name))
    equal(os.listdir(place.root), [])


@script()
def listings_tell_the_truth(place: Place) -> None:
    place.write("file", b"x")
    os.mkdir(place.path("folder"))
    os.symlink("file", place.path("link"))
    os.link(place.path("file"), place.path("hard"))
    with os.scandir(place.root) as entries:
        for entry in entries:
            status = os.lstat(entry.path)
            equal(entry.inode(), status.st_ino)
            equal(entry.is_dir(follow_symlinks=False), stat.S_ISDIR(status.st_mode))
            equal(entry.is_symlink(), stat.S_ISLNK(status.st_mode))
    equal(os.stat(place.path("folder/..")).st_ino, os.stat(place.root).st_ino)
    equal(os.stat(place.path("folder/.")).st_ino, os.stat(place.path("folder")).st_ino)
    fd = os.open(place.root, os.O_RDONLY)
    equal(sorted(os.listdir(fd)), ["file", "folder", "hard", "link"])
    os.rename(place.path("folder"), place.path("renamed"))
    os.unlink(place.path("hard"))
    equal(sorted(os.listdir(fd)), ["file", "link", "renamed"])  # listdir rewinds
    os.close(fd)
    inodes = [os.lstat(place.path(name)).st_ino for name in os.listdir(place.root)]
    equal(len(set(inodes)), 3)


@script()
def special_files(place: Place) -> None:
    """Pipes and sockets are made, or refused; devices are refused to nobody's harm: the mount is nodev."""
    got = outcome(os.mkfifo, place.path("pipe"), 0o600)
    assert got in (None, "EPERM", "EOPNOTSUPP", "ENOSYS"), got
    if got is None:
        assert stat.S_ISFIFO(os.lstat(place.path("pipe")).st_mode)
        reader = os.open(place.path("pipe"), os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(place.path("pipe"), os.O_WRONLY)
        os.write(writer, b"through")
        equal(os.read(reader, 10), b"through")
        os.close(reader)
        os.close(writer)
        os.unlink(place.path("pipe"))
    os.chdir(place.root)
    with socket.socket(socket.AF_UNIX) as listener:
        got = outcome(listener.bind, "socket")
        assert got in (None, "EPERM", "EOPNOTSUPP", "ENOSYS"), got
        if got is None:
            assert stat.S_ISSOCK(os.lstat("socket").st_mode)
            os.unlink("socket")
    os.mknod(place.path("plain"), stat.S_IFREG | 0o640)
    held = os.open(place.path("plain"), os.O_RDWR)
    os.write(held, b"made by mknod")
    equal(read_fd(held), b"made by mknod")
    os.close(held)
