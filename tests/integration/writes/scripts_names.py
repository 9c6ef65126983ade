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
def folders(at: Place) -> None:
    os.mkdir(at.path("folder"), 0o750)
    refused(errno.EEXIST, os.mkdir, at.path("folder"))
    at.write("file", b"x")
    refused(errno.EEXIST, os.mkdir, at.path("file"))
    refused(errno.ENOTDIR, os.mkdir, at.path("file/below"))
    refused(errno.ENOENT, os.mkdir, at.path("no/such"))
    refused(errno.ENOTDIR, os.rmdir, at.path("file"))
    refused(errno.EISDIR, os.unlink, at.path("folder"))
    refused(errno.ENOENT, os.rmdir, at.path("missing"))
    refused(errno.EINVAL, os.rmdir, at.path("folder/."))
    at.note_result(os.rmdir, at.path("folder/.."))
    at.write("folder/file", b"x")
    refused(errno.ENOTEMPTY, os.rmdir, at.path("folder"))
    os.unlink(at.path("folder/file"))
    os.rmdir(at.path("folder"))
    refused(errno.ENOENT, os.stat, at.path("folder"))
    os.mkdir(at.path("folder/"))
    os.rmdir(at.path("folder/"))
    refused(errno.ENOENT, os.listdir, at.path("folder"))
    refused(errno.ENOENT, os.unlink, at.path("missing"))
    refused(errno.ENOTDIR, os.unlink, at.path("file/below"))


@script()
def renames_of_files(at: Place) -> None:
    first, second = at.write("first", b"first"), at.write("second", b"second")
    inode = os.stat(first).st_ino
    os.rename(first, at.path("third"))
    refused(errno.ENOENT, os.stat, first)
    equal(read_whole(at.path("third")), b"first")
    equal(os.stat(at.path("third")).st_ino, inode)
    os.rename(at.path("third"), second)
    equal(read_whole(second), b"first")
    equal(os.listdir(at.root), ["second"])
    os.rename(second, second)
    os.link(second, at.path("same"))
    os.rename(second, at.path("same"))  # two names of one file: both stay (rename(2))
    equal(sorted(os.listdir(at.root)), ["same", "second"])
    os.mkdir(at.path("folder"))
    refused(errno.EISDIR, os.rename, second, at.path("folder"))
    refused(errno.ENOTDIR, os.rename, at.path("folder"), second)
    refused(errno.ENOENT, os.rename, at.path("missing"), second)
    refused(errno.ENOENT, os.rename, second, at.path("no/such"))
    refused(errno.ENOTDIR, os.rename, second, at.path("same/below"))
    os.rename(second, at.path("folder/moved"))
    equal(read_whole(at.path("folder/moved")), b"first")


@script()
def renames_of_folders(at: Place) -> None:
    for number in range(3):
        at.write(f"from/below/deep/{number}", b"%d" % number)
    os.mkdir(at.path("empty"))
    at.write("full/file", b"x")
    held = os.open(at.path("from/below/deep/1"), os.O_RDWR)
    refused(errno.ENOTEMPTY, os.rename, at.path("from"), at.path("full"))
    refused(errno.EINVAL, os.rename, at.path("from"), at.path("from/below/child"))
    refused(errno.EINVAL, os.rename, at.path("from"), at.path("from/new"))
    refused(errno.ENOTEMPTY, os.rename, at.path("from/below"), at.path("from"))
    os.rename(at.path("from"), at.path("empty"))
    equal(sorted(os.listdir(at.root)), ["empty", "full"])
    os.pwrite(held, b"held", 0)
    equal(read_whole(at.path("empty/below/deep/1")), b"held")
    os.rename(at.path("empty/below"), at.path("full/moved"))
    os.pwrite(held, b"HELD", 0)
    equal(read_whole(at.path("full/moved/deep/1")), b"HELD")
    refused(errno.ENOENT, os.stat, at.path("empty/below/deep/1"))
    os.close(held)
    os.mkdir(at.path("empty/below"))
    equal(os.listdir(at.path("empty/below")), [])


@script()
def a_folder_is_renamed_below_its_user(at: Place) -> None:
    at.write("folder/below/file", b"x")
    os.chdir(at.path("folder/below"))
    os.rename(at.path("folder"), at.path("renamed"))
    equal(os.getcwd(), at.path("renamed/below"))
    equal(read_whole("file"), b"x")
    with open("new", "wb") as file:
        file.write(b"new")
    equal(read_whole(at.path("renamed/below/new")), b"new")
    equal(sorted(os.listdir("..")), ["below"])


@script()
def a_folder_is_removed_below_its_user(at: Place) -> None:
    os.mkdir(at.path("folder"))
    held = os.open(at.path("folder"), os.O_RDONLY)
    os.chdir(at.path("folder"))
    os.rmdir(at.path("folder"))
    refused(errno.ENOENT, os.getcwd)
    refused(errno.ENOENT, os.open, "file", OPEN_FLAGS)
    refused(errno.ENOENT, os.mkdir, "below")
    equal(os.listdir(held), [])
    os.mkdir(at.path("folder"))
    at.write("folder/another", b"x")
    equal(os.listdir(held), [])
    os.close(held)


@script()
def renames_that_replace_nothing(at: Place) -> None:
    first, second = at.write("first", b"1"), at.write("second", b"2")
    refused(errno.EEXIST, renameat2, first, second, NOREPLACE)
    equal(read_whole(second), b"2")
    renameat2(first, at.path("third"), NOREPLACE)
    equal(sorted(os.listdir(at.root)), ["second", "third"])
    refused(errno.EINVAL, renameat2, second, at.path("x"), NOREPLACE | EXCHANGE)


@script()
def names_are_exchanged(at: Place) -> None:
    """RENAME_EXCHANGE is done truly, or EINVAL."""
    first = at.write("first", b"1")
    at.write("folder/second", b"2")
    got = outcome(renameat2, first, at.path("folder"), EXCHANGE)
    if got == "EINVAL":
        os.rename(first, at.path("aside"))
        os.rename(at.path("folder"), first)
        os.rename(at.path("aside"), at.path("folder"))
    else:
        equal(got, None)
        refused(errno.ENOENT, renameat2, first, at.path("missing"), EXCHANGE)
    equal(read_whole(at.path("first/second")) + read_whole(at.path("folder")), b"21")


@script()
def files_are_exchanged(at: Place) -> None:
    first, second = at.write("first", b"1"), at.write("second", b"22")
    held = os.open(first, os.O_RDWR)
    numbers = os.stat(first).st_ino, os.stat(second).st_ino
    renameat2(first, second, EXCHANGE)
    equal((os.stat(second).st_ino, os.stat(first).st_ino), numbers)
    os.pwrite(held, b"3", 0)
    os.close(held)
    equal((read_whole(first), read_whole(second)), (b"22", b"3"))
    os.symlink("second", at.path("link"))
    os.mkdir(at.path("below"))
    renameat2(at.path("link"), at.path("below"), EXCHANGE)
    equal(os.readlink(at.path("below")), "second")
    at.write("link/third", b"333")
    renameat2(at.path("link/third"), first, EXCHANGE)
    equal((read_whole(first), read_whole(at.path("link/third"))), (b"333", b"22"))
    refused(errno.ENOENT, renameat2, first, at.path("missing"), EXCHANGE)
    refused(errno.EINVAL, renameat2, at.path("link"), at.path("link/third"), EXCHANGE)
    equal(sorted(os.listdir(at.root)), ["below", "first", "link", "second"])


@script()
def hard_links(at: Place) -> None:
    path = at.write("file", b"one")
    os.mkdir(at.path("folder"))
    os.link(path, at.path("folder/link"))
    equal(os.stat(path).st_nlink, 2)
    equal(os.stat(path).st_ino, os.stat(at.path("folder/link")).st_ino)
    with open(at.path("folder/link"), "r+b") as file:
        file.write(b"two")
    equal(read_whole(path), b"two")
    os.chmod(path, 0o600)
    equal(stat.S_IMODE(os.stat(at.path("folder/link")).st_mode), 0o600)
    refused(errno.EEXIST, os.link, path, at.path("folder/link"))
    refused(errno.ENOENT, os.link, at.path("missing"), at.path("x"))
    refused(errno.EPERM, os.link, at.path("folder"), at.path("x"))
    os.unlink(path)
    equal(os.stat(at.path("folder/link")).st_nlink, 1)
    os.link(at.path("folder/link"), path)
    os.rename(path, at.path("folder/other"))
    equal(os.stat(at.path("folder/other")).st_nlink, 2)
    held = os.open(at.path("folder/link"), os.O_RDWR)
    os.unlink(at.path("folder/link"))
    os.pwrite(held, b"three", 0)
    equal(read_whole(at.path("folder/other")), b"three")
    equal(os.fstat(held).st_nlink, 1)
    os.close(held)
    for number in range(20):
        os.link(at.path("folder/other"), at.path(f"{number}"))
    equal(os.stat(at.path("7")).st_nlink, 21)
    at.write("replaced", b"by a link")
    os.link(at.path("replaced"), at.path("beside"))
    os.rename(at.path("3"), at.path("replaced"))
    equal(os.stat(at.path("beside")).st_nlink, 1)


@script()
def symbolic_links(at: Place) -> None:
    at.write("folder/file", b"data")
    os.symlink("folder/file", at.path("relative"))
    os.symlink(at.path("folder"), at.path("absolute"))
    os.symlink("nothing/there", at.path("dangling"))
    os.symlink("self", at.path("self"))
    os.symlink(b"\xff\n x", os.fsencode(at.path("bytes")))
    os.symlink("t" * 4_000, at.path("long"))
    equal(read_whole(at.path("relative")), b"data")
    equal(read_whole(at.path("absolute/file")), b"data")
    equal(os.readlink(at.path("relative")), "folder/file")
    equal(os.readlink(os.fsencode(at.path("bytes"))), b"\xff\n x")
    equal(len(os.readlink(at.path("long"))), 4_000)
    equal(os.lstat(at.path("dangling")).st_size, 13)
    equal(stat.S_IMODE(os.lstat(at.path("dangling")).st_mode), 0o777)
    refused(errno.ENOENT, os.stat, at.path("dangling"))
    refused(errno.ELOOP, os.stat, at.path("self"))
    refused(errno.EINVAL, os.readlink, at.path("folder/file"))
    refused(errno.EINVAL, os.readlink, at.path("folder"))
    refused(errno.EEXIST, os.symlink, "x", at.path("relative"))
    refused(errno.EEXIST, os.mkdir, at.path("dangling"))
    refused(errno.ENOENT, os.symlink, "", at.path("empty"))
    os.mkdir(at.path("nothing"))
    with open(at.path("dangling"), "wb") as file:  # makes what it leads to
        file.write(b"made")
    equal(read_whole(at.path("nothing/there")), b"made")
    os.link(at.path("relative"), at.path("of a link"), follow_symlinks=False)
    os.rename(at.path("relative"), at.path("renamed"))
    equal(os.readlink(at.path("renamed")), "folder/file")
    os.unlink(at.path("absolute"))
    equal(read_whole(at.path("folder/file")), b"data")
    refused(errno.ENOTDIR, os.rmdir, at.path("self"))
    os.symlink(at.lower, at.path("absolute"))  # the tree that is compared must not name a place
    equal(read_whole(at.path("absolute/text")), b"one\ntwo\nthree\n")
    os.unlink(at.path("absolute"))


@script()
def odd_names(at: Place) -> None:
    root = os.fsencode(at.root)
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
    os.mkdir(at.path("a"))
    os.mkdir(at.path("A"))


@script()
def deep_folders(at: Place) -> None:
    """As deep as a path of 3,000 bytes, step by step; a mount has a limit of its own beyond (docs/semantics.md)."""
    os.chdir(at.root)
    for _ in range(DEPTH):
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
    with open("bottom", "wb") as file:
        file.write(b"deep")
    equal(read_whole("bottom"), b"deep")
    equal(read_whole(os.path.join(at.root, *["d" * 100] * DEPTH, "bottom")), b"deep")
    os.chdir(at.root)
    os.rename("d" * 100, "short")
    os.chdir(os.path.join("short", *["d" * 100] * (DEPTH - 1)))
    equal(read_whole("bottom"), b"deep")
    os.chdir(at.root)
    shutil.rmtree("short")
    os.makedirs("/".join(["e" * 20] * 50))


@script()
def a_folder_is_removed_while_it_is_listed(at: Place) -> None:
    """As `rm -rf` does: each name as it is read, until nothing is left."""
    for number in range(1_000):
        os.close(os.open(at.path(f"{number}"), OPEN_FLAGS))
    passes = 0
    while os.listdir(at.root):
        with os.scandir(at.root) as entries:
            for entry in entries:
                assert entry.is_file(follow_symlinks=False)
                os.unlink(entry.path)
        passes += 1
        assert passes < 10, "names come back"
    os.mkdir(at.path("again"))


@script()
def names_are_added_while_it_is_listed(at: Place) -> None:
    """Those that were there are seen once; new ones once or not at all."""
    before = {f"before-{number}" for number in range(600)}
    for name in before:
        os.mkdir(at.path(name))
    seen = []
    with os.scandir(at.root) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number < 200:
                os.mkdir(at.path(f"new-{number}"))
    equal(len(set(seen)), len(seen))
    assert before <= set(seen), before - set(seen)
    equal(len(os.listdir(at.root)), 800)


@script()
def a_large_folder(at: Place) -> None:
    wanted = {f"name-{number:05d}-{'x' * (number % 50)}" for number in range(1_500)}
    for name in wanted:
        os.close(os.open(at.path(name), OPEN_FLAGS))
    for _ in range(2):  # the second time from the kernel's cache, where it keeps one
        names = os.listdir(at.root)
        equal(len(names), 1_500)
        equal(set(names), wanted)
    for name in sorted(wanted)[::2]:
        os.unlink(at.path(name))
    equal(set(os.listdir(at.root)), set(sorted(wanted)[1::2]))
    for name in os.listdir(at.root):
        os.unlink(at.path(name))
    equal(os.listdir(at.root), [])


@script()
def listings_tell_the_truth(at: Place) -> None:
    at.write("file", b"x")
    os.mkdir(at.path("folder"))
    os.symlink("file", at.path("link"))
    os.link(at.path("file"), at.path("hard"))
    with os.scandir(at.root) as entries:
        for entry in entries:
            seen = os.lstat(entry.path)
            equal(entry.inode(), seen.st_ino)
            equal(entry.is_dir(follow_symlinks=False), stat.S_ISDIR(seen.st_mode))
            equal(entry.is_symlink(), stat.S_ISLNK(seen.st_mode))
    equal(os.stat(at.path("folder/..")).st_ino, os.stat(at.root).st_ino)
    equal(os.stat(at.path("folder/.")).st_ino, os.stat(at.path("folder")).st_ino)
    fd = os.open(at.root, os.O_RDONLY)
    equal(sorted(os.listdir(fd)), ["file", "folder", "hard", "link"])
    os.rename(at.path("folder"), at.path("renamed"))
    os.unlink(at.path("hard"))
    equal(sorted(os.listdir(fd)), ["file", "link", "renamed"])  # listdir rewinds
    os.close(fd)
    inodes = [os.lstat(at.path(name)).st_ino for name in os.listdir(at.root)]
    equal(len(set(inodes)), 3)


@script()
def special_files(at: Place) -> None:
    """Pipes and sockets are made, or refused; devices are refused to nobody's harm: the mount is nodev."""
    got = outcome(os.mkfifo, at.path("pipe"), 0o600)
    assert got in (None, "EPERM", "EOPNOTSUPP", "ENOSYS"), got
    if got is None:
        assert stat.S_ISFIFO(os.lstat(at.path("pipe")).st_mode)
        reader = os.open(at.path("pipe"), os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(at.path("pipe"), os.O_WRONLY)
        os.write(writer, b"through")
        equal(os.read(reader, 10), b"through")
        os.close(reader)
        os.close(writer)
        os.unlink(at.path("pipe"))
    os.chdir(at.root)
    with socket.socket(socket.AF_UNIX) as one:
        got = outcome(one.bind, "socket")
        assert got in (None, "EPERM", "EOPNOTSUPP", "ENOSYS"), got
        if got is None:
            assert stat.S_ISSOCK(os.lstat("socket").st_mode)
            os.unlink("socket")
    os.mknod(at.path("plain"), stat.S_IFREG | 0o640)
    held = os.open(at.path("plain"), os.O_RDWR)
    os.write(held, b"made by mknod")
    equal(read_fd(held), b"made by mknod")
    os.close(held)
