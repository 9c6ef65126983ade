"""Scripts over names that the origin has: changed, removed, made anew, moved. `place.LOWER` says what is there."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat

from tests.integration.writes.place import (
    BLOCK,
    EXCHANGE,
    LOWER,
    LOWER_LARGE,
    LOWER_MANY,
    LOWER_TIME_NS,
    MANY,
    NOREPLACE,
    OPEN_FLAGS,
    OTHER_USER,
    SET_BEFORE_NS,
    Place,
    bytes_of,
    equal,
    outcome,
    pwrite_all,
    read_fd,
    read_whole,
    refused,
    renameat2,
)
from tests.integration.writes.registry import script

TOP = ["alone", "bare", "empty", "file", "folder", "other", "second", "text"]


def edit(path: str, data: bytes, offset: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    pwrite_all(fd, data, offset)
    os.close(fd)


@script()
def lower_names_are_there(at: Place) -> None:
    equal(sorted(os.listdir(at.lower)), TOP)
    for name, data in LOWER.items():
        equal(read_whole(at.low(name)), data)
        equal(os.stat(at.low(name)).st_mtime_ns, LOWER_TIME_NS)
    fd = os.open(at.low("second"), os.O_RDWR)  # opened to write and not written
    equal(read_fd(fd), LOWER["second"])
    os.close(fd)
    equal(os.stat(at.low("second")).st_mtime_ns, LOWER_TIME_NS)


@script()
def lower_files_are_overwritten(at: Place) -> None:
    with open(at.low("file"), "wb") as file:
        file.write(b"all new")
    equal(read_whole(at.low("file")), b"all new")
    assert os.stat(at.low("file")).st_mtime_ns > SET_BEFORE_NS
    data = bytearray(read_whole(at.low("second")))
    edit(at.low("second"), b"IN THE MIDDLE", 300)
    data[300:313] = b"IN THE MIDDLE"
    equal(read_whole(at.low("second")), bytes(data))
    edit(at.low("empty"), b"filled", 0)
    edit(at.low("folder/below/deep/four"), b"beyond", 10_000)  # never read before
    wanted = LOWER["folder/below/deep/four"]
    equal(read_whole(at.low("folder/below/deep/four")), wanted + bytes(10_000 - len(wanted)) + b"beyond")
    equal(sorted(os.listdir(at.lower)), TOP)


@script()
def lower_files_are_appended_to(at: Place) -> None:
    for _ in range(3):
        with open(at.low("text"), "ab") as file:
            file.write(b"more\n")
    equal(read_whole(at.low("text")), b"one\ntwo\nthree\n" + b"more\n" * 3)
    with open(at.low("folder/one"), "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"!")
    equal(read_whole(at.low("folder/one")), b"one of the folder!")


@script(lower=LOWER_LARGE)
def a_large_lower_file_is_changed(at: Place) -> None:
    """Of more than one block, never read before: what is not written must be fetched."""
    wanted = bytearray(LOWER_LARGE["large"])
    edit(at.low("large"), b"here", BLOCK - 2)
    wanted[BLOCK - 2 : BLOCK + 2] = b"here"
    equal(read_whole(at.low("large")), bytes(wanted))
    with open(at.low("large"), "ab") as file:
        file.write(bytes_of("tail", 5_000))
    wanted += bytes_of("tail", 5_000)
    equal(read_whole(at.low("large")), bytes(wanted))
    os.truncate(at.low("large"), BLOCK + 1)
    equal(read_whole(at.low("large")), bytes(wanted[: BLOCK + 1]))


@script(lower=LOWER_LARGE)
def lower_files_are_truncated(at: Place) -> None:
    os.truncate(at.low("file"), 100)
    equal(read_whole(at.low("file")), LOWER["file"][:100])
    os.truncate(at.low("second"), 0)
    equal(os.stat(at.low("second")).st_size, 0)
    os.truncate(at.low("text"), 20)
    equal(read_whole(at.low("text")), LOWER["text"] + bytes(6))
    os.truncate(at.low("large"), 2 * BLOCK)
    equal(read_whole(at.low("large")), LOWER_LARGE["large"][: 2 * BLOCK])
    os.truncate(at.low("folder/two"), len(LOWER["folder/two"]))  # to what it has
    equal(read_whole(at.low("folder/two")), LOWER["folder/two"])
    fd = os.open(at.low("folder/one"), os.O_RDWR)
    os.ftruncate(fd, 3)
    equal(read_fd(fd), b"one")
    os.close(fd)
    os.close(os.open(at.low("empty"), os.O_RDWR | os.O_TRUNC))


@script(lower=LOWER_LARGE)
def a_lower_file_is_mapped_and_written(at: Place) -> None:
    wanted = bytearray(LOWER_LARGE["large"])
    fd = os.open(at.low("large"), os.O_RDWR)
    with mmap.mmap(fd, 0) as mapped:
        equal(mapped[BLOCK : BLOCK + 10], bytes(wanted[BLOCK : BLOCK + 10]))
        mapped[5:9] = b"here"
        mapped[2 * BLOCK + 3 : 2 * BLOCK + 6] = b"too"
        mapped.flush()
    os.close(fd)
    wanted[5:9] = b"here"
    wanted[2 * BLOCK + 3 : 2 * BLOCK + 6] = b"too"
    equal(read_whole(at.low("large")), bytes(wanted))


@script()
def lower_attributes_are_changed(at: Place) -> None:
    """Of files and folders, and the bytes stay."""
    for name in ("file", "folder", "folder/below/three", "bare"):
        path = at.low(name)
        os.chmod(path, 0o750)
        equal(stat.S_IMODE(os.stat(path).st_mode), 0o750)
        os.chown(path, 33, 44)
        equal((os.stat(path).st_uid, os.stat(path).st_gid), (33, 44))
        os.setxattr(path, "user.mine", b"value")
        equal(os.getxattr(path, "user.mine"), b"value")
        os.utime(path, ns=(5, 1_111_111_111_222_333_444))
        equal(os.stat(path).st_mtime_ns, 1_111_111_111_222_333_444)
    os.utime(at.low("second"), ns=(5, 77))  # only that
    os.chmod(at.low("text"), 0o600)
    equal(os.stat(at.low("text")).st_mtime_ns, LOWER_TIME_NS)
    os.setxattr(at.low("folder/one"), "user.only", b"x")
    equal(os.stat(at.low("folder/one")).st_mtime_ns, LOWER_TIME_NS)
    equal(sorted(os.listdir(at.low("folder"))), ["below", "one", "two"])
    for name, data in LOWER.items():
        equal(read_whole(at.low(name)), data)


@script()
def lower_files_are_renamed(at: Place) -> None:
    os.rename(at.low("file"), at.low("renamed"))
    refused(errno.ENOENT, os.stat, at.low("file"))
    equal(read_whole(at.low("renamed")), LOWER["file"])
    equal(os.stat(at.low("renamed")).st_mtime_ns, LOWER_TIME_NS)
    os.rename(at.low("second"), at.low("text"))  # over another of the origin's
    equal(read_whole(at.low("text")), LOWER["second"])
    os.rename(at.low("folder/two"), at.path("moved"))  # never read before
    equal(read_whole(at.path("moved")), LOWER["folder/two"])
    new = at.write("new", b"new")
    os.rename(new, at.low("other/five"))  # a new one over the origin's
    equal(read_whole(at.low("other/five")), b"new")
    os.rename(at.low("alone/only"), at.path("moved"))  # the origin's over a new one
    equal(read_whole(at.path("moved")), b"only")
    equal(os.listdir(at.low("alone")), [])
    os.rename(at.low("renamed"), at.low("file"))  # and back
    equal(read_whole(at.low("file")), LOWER["file"])
    equal(sorted(os.listdir(at.lower)), [name for name in TOP if name != "second"])


@script()
def lower_names_refuse_as_others(at: Place) -> None:
    refused(errno.EEXIST, os.open, at.low("file"), OPEN_FLAGS | os.O_EXCL)
    refused(errno.EEXIST, os.mkdir, at.low("file"))
    refused(errno.EEXIST, os.mkdir, at.low("folder"))
    refused(errno.EEXIST, os.symlink, "x", at.low("file"))
    refused(errno.EEXIST, os.link, at.low("file"), at.low("second"))
    refused(errno.EEXIST, renameat2, at.low("file"), at.low("second"), NOREPLACE)
    refused(errno.ENOTDIR, os.rmdir, at.low("file"))
    refused(errno.EISDIR, os.unlink, at.low("folder"))
    refused(errno.ENOTEMPTY, os.rmdir, at.low("folder"))
    refused(errno.ENOTEMPTY, os.rename, at.low("other"), at.low("folder"))
    refused(errno.EISDIR, os.rename, at.low("file"), at.low("folder"))
    refused(errno.ENOTDIR, os.rename, at.low("folder"), at.low("file"))
    refused(errno.EINVAL, os.rename, at.low("folder"), at.low("folder/below/x"))
    refused(errno.EISDIR, os.open, at.low("folder"), os.O_RDWR)
    refused(errno.ENOTDIR, os.open, at.low("file/x"), OPEN_FLAGS)
    refused(errno.EINVAL, os.readlink, at.low("file"))
    refused(errno.ENODATA, os.getxattr, at.low("file"), "user.none")


@script()
def lower_files_are_removed_and_made_anew(at: Place) -> None:
    for name in ("file", "second", "text", "empty"):
        os.unlink(at.low(name))
        refused(errno.ENOENT, os.stat, at.low(name))
        refused(errno.ENOENT, os.open, at.low(name), os.O_RDWR)
        refused(errno.ENOENT, os.unlink, at.low(name))
    equal(sorted(os.listdir(at.lower)), ["alone", "bare", "folder", "other"])
    fd = os.open(at.low("file"), OPEN_FLAGS | os.O_EXCL, 0o600)
    os.write(fd, b"anew")
    os.close(fd)
    equal(read_whole(at.low("file")), b"anew")
    equal([name for name in os.listxattr(at.low("file")) if not name.startswith("user.headrace.")], [])
    os.unlink(at.low("file"))
    refused(errno.ENOENT, os.stat, at.low("file"))  # the old one must not come back
    os.mkdir(at.low("second"))
    equal(os.listdir(at.low("second")), [])
    os.symlink("other/five", at.low("text"))
    equal(read_whole(at.low("text")), b"five")
    os.rename(at.low("other/five"), at.low("empty"))
    equal(read_whole(at.low("empty")), b"five")
    refused(errno.ENOENT, read_whole, at.low("text"))


@script()
def lower_folders_are_removed_and_made_anew(at: Place) -> None:
    """What was in a folder that was removed does not show in the one of the same name."""
    refused(errno.ENOTEMPTY, os.rmdir, at.low("folder"))
    for name in ("below/deep/four", "below/three", "one"):
        os.unlink(at.low(f"folder/{name}"))
    refused(errno.ENOTEMPTY, os.rmdir, at.low("folder"))
    refused(errno.ENOTEMPTY, os.rmdir, at.low("folder/below"))
    os.rmdir(at.low("folder/below/deep"))
    os.rmdir(at.low("folder/below"))
    os.unlink(at.low("folder/two"))
    os.rmdir(at.low("folder"))
    refused(errno.ENOENT, os.listdir, at.low("folder"))
    os.mkdir(at.low("folder"))
    equal(os.listdir(at.low("folder")), [])
    refused(errno.ENOENT, os.stat, at.low("folder/one"))
    refused(errno.ENOENT, os.stat, at.low("folder/below/three"))
    os.mkdir(at.low("folder/below"))
    equal(os.listdir(at.low("folder/below")), [])
    with open(at.low("folder/one"), "xb") as file:
        file.write(b"another")
    equal(sorted(os.listdir(at.low("folder"))), ["below", "one"])
    shutil.rmtree(at.low("folder"))
    with open(at.low("folder"), "xb") as file:  # a file where a folder was
        file.write(b"file")
    os.unlink(at.low("folder"))
    os.mkdir(at.low("folder"))
    equal(os.listdir(at.low("folder")), [])
    os.rmdir(at.low("bare"))
    os.mkdir(at.low("bare"), 0o700)
    shutil.rmtree(at.low("alone"))
    os.rename(at.low("bare"), at.low("alone"))
    equal(os.listdir(at.low("alone")), [])


@script()
def a_lower_tree_is_removed(at: Place) -> None:
    shutil.rmtree(at.low("folder"))
    refused(errno.ENOENT, os.stat, at.low("folder/below/deep/four"))
    for name in TOP:
        if name != "folder":
            path = at.low(name)
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)
    equal(os.listdir(at.lower), [])
    os.makedirs(at.low("folder/below"))
    equal(os.listdir(at.low("folder/below")), [])


@script()
def lower_folders_are_renamed(at: Place) -> None:
    """With all that is in them, looked at before or not."""
    equal(read_whole(at.low("folder/below/three")), b"three")
    held = os.open(at.low("folder/below/three"), os.O_RDWR)
    os.rename(at.low("folder"), at.low("moved"))
    refused(errno.ENOENT, os.stat, at.low("folder"))
    refused(errno.ENOENT, os.stat, at.low("folder/one"))
    for name in ("one", "two", "below/three", "below/deep/four"):
        equal(read_whole(at.low(f"moved/{name}")), LOWER[f"folder/{name}"])
        equal(os.stat(at.low(f"moved/{name}")).st_mtime_ns, LOWER_TIME_NS)
    os.pwrite(held, b"THREE and more", 0)
    os.close(held)
    equal(read_whole(at.low("moved/below/three")), b"THREE and more")
    os.mkdir(at.low("folder"))  # its place is empty
    equal(os.listdir(at.low("folder")), [])
    os.rename(at.low("moved/below"), at.path("deeper"))
    equal(sorted(os.listdir(at.low("moved"))), ["one", "two"])
    edit(at.path("deeper/deep/four"), b"edited", 0)
    equal(read_whole(at.path("deeper/deep/four"))[:8], b"edited" + LOWER["folder/below/deep/four"][6:8])
    os.rename(at.low("other"), at.low("bare"))  # over an empty one
    equal(read_whole(at.low("bare/five")), b"five")
    os.rename(at.low("bare"), at.low("other"))
    equal(os.listdir(at.low("other")), ["five"])
    os.rename(at.low("moved"), at.low("folder"))  # and back, over the new empty one
    equal(sorted(os.listdir(at.low("folder"))), ["one", "two"])
    refused(errno.ENOENT, os.stat, at.low("folder/below"))


@script()
def new_and_lower_names_are_listed_together(at: Place) -> None:
    os.mkdir(at.low("folder/new folder"))
    with open(at.low("folder/new"), "wb") as file:
        file.write(b"new")
    edit(at.low("folder/one"), b"x", 0)
    os.unlink(at.low("folder/two"))
    names = os.listdir(at.low("folder"))
    equal(len(names), 4)
    equal(set(names), {"below", "new", "new folder", "one"})
    with os.scandir(at.low("folder")) as entries:
        for entry in entries:
            seen = os.lstat(entry.path)
            equal(entry.inode(), seen.st_ino)
            equal(entry.is_dir(follow_symlinks=False), stat.S_ISDIR(seen.st_mode))
    os.rename(at.low("folder/new"), at.low("folder/two"))
    equal(set(os.listdir(at.low("folder"))), {"below", "new folder", "one", "two"})
    equal(read_whole(at.low("folder/two")), b"new")


@script()
def hard_links_to_lower_files(at: Place) -> None:
    os.link(at.low("file"), at.low("linked"))
    equal(os.stat(at.low("file")).st_nlink, 2)
    equal(os.stat(at.low("file")).st_ino, os.stat(at.low("linked")).st_ino)
    edit(at.low("linked"), b"both", 0)
    equal(read_whole(at.low("file")), b"both" + LOWER["file"][4:])
    os.unlink(at.low("file"))
    equal(read_whole(at.low("linked")), b"both" + LOWER["file"][4:])
    equal(os.stat(at.low("linked")).st_nlink, 1)
    os.link(at.low("linked"), at.low("file"))
    os.link(at.low("folder/below/three"), at.path("three"))
    equal(read_whole(at.path("three")), b"three")
    os.rename(at.path("three"), at.low("folder/two"))
    equal(os.stat(at.low("folder/below/three")).st_nlink, 2)


@script()
def an_open_lower_file_is_removed(at: Place) -> None:
    reader = os.open(at.low("file"), os.O_RDONLY)
    writer = os.open(at.low("second"), os.O_RDWR)
    os.unlink(at.low("file"))
    os.unlink(at.low("second"))
    equal(read_fd(reader), LOWER["file"])
    os.pwrite(writer, b"written", 0)
    equal(read_fd(writer), b"written" + LOWER["second"][7:])
    with open(at.low("file"), "wb") as file:
        file.write(b"another")
    equal(read_fd(reader), LOWER["file"])
    os.close(reader)
    os.close(writer)
    equal(read_whole(at.low("file")), b"another")


@script()
def an_open_lower_file_is_renamed_over(at: Place) -> None:
    reader = os.open(at.low("file"), os.O_RDONLY)
    os.rename(at.write("new", b"new"), at.low("file"))
    equal(read_fd(reader), LOWER["file"])
    os.rename(at.low("second"), at.low("file"))
    equal(read_fd(reader), LOWER["file"])
    os.close(reader)
    equal(read_whole(at.low("file")), LOWER["second"])


@script(lower=LOWER_LARGE)
def a_reader_from_before_a_write(at: Place) -> None:
    """Who opened the file before its first write reads what was, or what is; never a mixture of both."""
    for name in ("file", "large"):
        old = LOWER_LARGE[name]
        reader = os.open(at.low(name), os.O_RDONLY)
        equal(os.pread(reader, 100, 0), old[:100])
        fd = os.open(at.low(name), os.O_RDWR)
        pwrite_all(fd, bytes(len(old)), 0)
        equal(read_fd(fd), bytes(len(old)))
        got = read_fd(reader)
        assert got in (old, bytes(len(old))), "a mixture"
        os.close(fd)
        equal(read_whole(at.low(name)), bytes(len(old)))
        os.close(reader)


@script()
def inode_numbers_of_lower_names(at: Place) -> None:
    """All keep them, also a file that comes into the upper layer with its first change."""
    for name in ("file", "second"):
        number = os.stat(at.low(name)).st_ino
        if name == "file":
            edit(at.low(name), b"x", 0)
        else:
            os.chmod(at.low(name), 0o600)
        equal(os.stat(at.low(name)).st_ino, number)
        with os.scandir(at.lower) as entries:
            equal([entry.inode() for entry in entries if entry.name == name], [number])
        edit(at.low(name), b"again", 0)
        os.chmod(at.low(name), 0o644)
        os.rename(at.low(name), at.low(f"{name}-renamed"))
        equal(os.stat(at.low(f"{name}-renamed")).st_ino, number)
    number = os.stat(at.low("folder")).st_ino
    with open(at.low("folder/new"), "wb") as file:
        file.write(b"new")
    os.chmod(at.low("folder"), 0o700)
    os.unlink(at.low("folder/two"))
    equal(os.stat(at.low("folder")).st_ino, number)
    os.rename(at.low("folder"), at.low("renamed"))
    equal(os.stat(at.low("renamed")).st_ino, number)
    number = os.stat(at.low("renamed/one")).st_ino
    fd = os.open(at.low("renamed/one"), os.O_RDWR)
    equal(os.fstat(fd).st_ino, number)
    os.write(fd, b"x")
    equal(os.fstat(fd).st_ino, number)
    equal(os.stat(at.low("renamed/one")).st_ino, number)
    os.close(fd)


@script()
def lower_names_are_exchanged(at: Place) -> None:
    got = outcome(renameat2, at.low("file"), at.low("folder"), EXCHANGE)
    if got == "EINVAL":
        os.rename(at.low("file"), at.low("aside"))
        os.rename(at.low("folder"), at.low("file"))
        os.rename(at.low("aside"), at.low("folder"))
    else:
        equal(got, None)
    equal(read_whole(at.low("folder")), LOWER["file"])
    equal(read_whole(at.low("file/one")), LOWER["folder/one"])


@script()
def lower_files_are_exchanged(at: Place) -> None:
    """With each other, and with one that was written here."""
    renameat2(at.low("file"), at.low("second"), EXCHANGE)
    equal(read_whole(at.low("file")) + read_whole(at.low("second")), LOWER["second"] + LOWER["file"])
    with open(at.low("new"), "wb") as file:
        file.write(b"new")
    renameat2(at.low("new"), at.low("folder/one"), EXCHANGE)
    equal(read_whole(at.low("folder/one")), b"new")
    equal(read_whole(at.low("new")), LOWER["folder/one"])
    os.unlink(at.low("file"))
    equal(os.path.exists(at.low("file")), False)


@script(lower=LOWER_LARGE)
def copies_from_lower_files(at: Place) -> None:
    for name in ("large", "file"):
        data = LOWER_LARGE[name]
        source = os.open(at.low(name), os.O_RDONLY)
        target = os.open(at.path(name), OPEN_FLAGS)
        offset = 0
        try:
            while count := os.copy_file_range(source, target, len(data) - offset, offset, offset):
                offset += count
        except OSError as error:
            assert error.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS), error
            pwrite_all(target, data, 0)
        equal(read_fd(target), data)
        over = os.open(at.low("second"), os.O_WRONLY | os.O_TRUNC)
        offset = 0
        while count := os.sendfile(over, source, offset, BLOCK):
            offset += count
        os.close(over)
        equal(read_whole(at.low("second")), data)
        os.close(source)
        os.close(target)


@script()
def whole_files_are_replaced_many_times(at: Place) -> None:
    """Removed, made, renamed over, in turns: one name, and only its last bytes."""
    for number in range(30):
        name = ("file", "second", "folder/one")[number % 3]
        if number % 2:
            os.rename(at.write("new", b"by rename %d" % number), at.low(name))
        else:
            os.unlink(at.low(name))
            with open(at.low(name), "xb") as file:
                file.write(b"anew %d" % number)
    equal(read_whole(at.low("file")), b"by rename 27")
    equal(read_whole(at.low("second")), b"anew 28")
    equal(read_whole(at.low("folder/one")), b"by rename 29")
    equal(sorted(os.listdir(at.lower)), TOP)


@script(lower=LOWER_MANY)
def lower_files_are_changed_right_after_a_rename(at: Place) -> None:
    """The next call finds the file under its new name, each time."""
    for number in range(0, MANY, 4):
        names = [at.low(f"many/{number + one}") for one in range(4)]
        os.rename(names[0], at.path(f"truncated-{number}"))
        os.truncate(at.path(f"truncated-{number}"), 1)
        os.rename(names[1], names[2])
        edit(names[2], b"edited", 0)
        os.link(names[2], at.path(f"linked-{number}"))
        os.rename(names[3], at.path(f"linked-{number}"))
        refused(errno.ENODATA, os.removexattr, at.path(f"linked-{number}"), "user.a")
        os.unlink(at.path(f"linked-{number}"))
        equal(read_whole(names[2]), b"edited" + (b"%03d" % (number + 1) * 10)[6:])


@script()
def lower_folders_made_again_are_their_makers(at: Place) -> None:
    """Also where another user had the one that was removed."""
    ours = (os.geteuid(), os.getegid())
    for theirs in ((OTHER_USER, OTHER_USER), (OTHER_USER, ours[1]), (ours[0], OTHER_USER)):
        os.chown(at.low("folder"), *theirs)
        shutil.rmtree(at.low("folder"))
        os.mkdir(at.low("folder"), 0o700)
        found = os.stat(at.low("folder"))
        equal((found.st_uid, found.st_gid), ours)
        equal(stat.S_IMODE(found.st_mode), 0o700)
