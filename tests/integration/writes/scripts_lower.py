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
def lower_names_are_there(place: Place) -> None:
    equal(sorted(os.listdir(place.lower)), TOP)
    for name, data in LOWER.items():
        equal(read_whole(place.low(name)), data)
        equal(os.stat(place.low(name)).st_mtime_ns, LOWER_TIME_NS)
    fd = os.open(place.low("second"), os.O_RDWR)  # opened to write and not written
    equal(read_fd(fd), LOWER["second"])
    os.close(fd)
    equal(os.stat(place.low("second")).st_mtime_ns, LOWER_TIME_NS)


@script()
def lower_files_are_overwritten(place: Place) -> None:
    with open(place.low("file"), "wb") as file:
        file.write(b"all new")
    equal(read_whole(place.low("file")), b"all new")
    assert os.stat(place.low("file")).st_mtime_ns > SET_BEFORE_NS
    data = bytearray(read_whole(place.low("second")))
    edit(place.low("second"), b"IN THE MIDDLE", 300)
    data[300:313] = b"IN THE MIDDLE"
    equal(read_whole(place.low("second")), bytes(data))
    edit(place.low("empty"), b"filled", 0)
    edit(place.low("folder/below/deep/four"), b"beyond", 10_000)  # never read before
    wanted = LOWER["folder/below/deep/four"]
    equal(read_whole(place.low("folder/below/deep/four")), wanted + bytes(10_000 - len(wanted)) + b"beyond")
    equal(sorted(os.listdir(place.lower)), TOP)


@script()
def lower_files_are_appended_to(place: Place) -> None:
    for _ in range(3):
        with open(place.low("text"), "ab") as file:
            file.write(b"more\n")
    equal(read_whole(place.low("text")), b"one\ntwo\nthree\n" + b"more\n" * 3)
    with open(place.low("folder/one"), "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"!")
    equal(read_whole(place.low("folder/one")), b"one of the folder!")


@script(lower=LOWER_LARGE)
def a_large_lower_file_is_changed(place: Place) -> None:
    """Change a file of more than one block that was never read: what is not written must be fetched."""
    wanted = bytearray(LOWER_LARGE["large"])
    edit(place.low("large"), b"here", BLOCK - 2)
    wanted[BLOCK - 2 : BLOCK + 2] = b"here"
    equal(read_whole(place.low("large")), bytes(wanted))
    with open(place.low("large"), "ab") as file:
        file.write(bytes_of("tail", 5_000))
    wanted += bytes_of("tail", 5_000)
    equal(read_whole(place.low("large")), bytes(wanted))
    os.truncate(place.low("large"), BLOCK + 1)
    equal(read_whole(place.low("large")), bytes(wanted[: BLOCK + 1]))


@script(lower=LOWER_LARGE)
def lower_files_are_truncated(place: Place) -> None:
    os.truncate(place.low("file"), 100)
    equal(read_whole(place.low("file")), LOWER["file"][:100])
    os.truncate(place.low("second"), 0)
    equal(os.stat(place.low("second")).st_size, 0)
    os.truncate(place.low("text"), 20)
    equal(read_whole(place.low("text")), LOWER["text"] + bytes(6))
    os.truncate(place.low("large"), 2 * BLOCK)
    equal(read_whole(place.low("large")), LOWER_LARGE["large"][: 2 * BLOCK])
    os.truncate(place.low("folder/two"), len(LOWER["folder/two"]))  # to what it has
    equal(read_whole(place.low("folder/two")), LOWER["folder/two"])
    fd = os.open(place.low("folder/one"), os.O_RDWR)
    os.ftruncate(fd, 3)
    equal(read_fd(fd), b"one")
    os.close(fd)
    os.close(os.open(place.low("empty"), os.O_RDWR | os.O_TRUNC))


@script(lower=LOWER_LARGE)
def a_lower_file_is_mapped_and_written(place: Place) -> None:
    wanted = bytearray(LOWER_LARGE["large"])
    fd = os.open(place.low("large"), os.O_RDWR)
    with mmap.mmap(fd, 0) as mapped:
        equal(mapped[BLOCK : BLOCK + 10], bytes(wanted[BLOCK : BLOCK + 10]))
        mapped[5:9] = b"here"
        mapped[2 * BLOCK + 3 : 2 * BLOCK + 6] = b"too"
        mapped.flush()
    os.close(fd)
    wanted[5:9] = b"here"
    wanted[2 * BLOCK + 3 : 2 * BLOCK + 6] = b"too"
    equal(read_whole(place.low("large")), bytes(wanted))


@script()
def lower_attributes_are_changed(place: Place) -> None:
    """Change attributes of files and directories: the bytes stay."""
    for name in ("file", "folder", "folder/below/three", "bare"):
        path = place.low(name)
        os.chmod(path, 0o750)
        equal(stat.S_IMODE(os.stat(path).st_mode), 0o750)
        os.chown(path, 33, 44)
        equal((os.stat(path).st_uid, os.stat(path).st_gid), (33, 44))
        os.setxattr(path, "user.mine", b"value")
        equal(os.getxattr(path, "user.mine"), b"value")
        os.utime(path, ns=(5, 1_111_111_111_222_333_444))
        equal(os.stat(path).st_mtime_ns, 1_111_111_111_222_333_444)
    os.utime(place.low("second"), ns=(5, 77))  # only that
    os.chmod(place.low("text"), 0o600)
    equal(os.stat(place.low("text")).st_mtime_ns, LOWER_TIME_NS)
    os.setxattr(place.low("folder/one"), "user.only", b"x")
    equal(os.stat(place.low("folder/one")).st_mtime_ns, LOWER_TIME_NS)
    equal(sorted(os.listdir(place.low("folder"))), ["below", "one", "two"])
    for name, data in LOWER.items():
        equal(read_whole(place.low(name)), data)


@script()
def lower_files_are_renamed(place: Place) -> None:
    os.rename(place.low("file"), place.low("renamed"))
    refused(errno.ENOENT, os.stat, place.low("file"))
    equal(read_whole(place.low("renamed")), LOWER["file"])
    equal(os.stat(place.low("renamed")).st_mtime_ns, LOWER_TIME_NS)
    os.rename(place.low("second"), place.low("text"))  # over another of the origin's
    equal(read_whole(place.low("text")), LOWER["second"])
    os.rename(place.low("folder/two"), place.path("moved"))  # never read before
    equal(read_whole(place.path("moved")), LOWER["folder/two"])
    new = place.write("new", b"new")
    os.rename(new, place.low("other/five"))  # a new one over the origin's
    equal(read_whole(place.low("other/five")), b"new")
    os.rename(place.low("alone/only"), place.path("moved"))  # the origin's over a new one
    equal(read_whole(place.path("moved")), b"only")
    equal(os.listdir(place.low("alone")), [])
    os.rename(place.low("renamed"), place.low("file"))  # and back
    equal(read_whole(place.low("file")), LOWER["file"])
    equal(sorted(os.listdir(place.lower)), [name for name in TOP if name != "second"])


@script()
def lower_names_refuse_as_others(place: Place) -> None:
    refused(errno.EEXIST, os.open, place.low("file"), OPEN_FLAGS | os.O_EXCL)
    refused(errno.EEXIST, os.mkdir, place.low("file"))
    refused(errno.EEXIST, os.mkdir, place.low("folder"))
    refused(errno.EEXIST, os.symlink, "x", place.low("file"))
    refused(errno.EEXIST, os.link, place.low("file"), place.low("second"))
    refused(errno.EEXIST, renameat2, place.low("file"), place.low("second"), NOREPLACE)
    refused(errno.ENOTDIR, os.rmdir, place.low("file"))
    refused(errno.EISDIR, os.unlink, place.low("folder"))
    refused(errno.ENOTEMPTY, os.rmdir, place.low("folder"))
    refused(errno.ENOTEMPTY, os.rename, place.low("other"), place.low("folder"))
    refused(errno.EISDIR, os.rename, place.low("file"), place.low("folder"))
    refused(errno.ENOTDIR, os.rename, place.low("folder"), place.low("file"))
    refused(errno.EINVAL, os.rename, place.low("folder"), place.low("folder/below/x"))
    refused(errno.EISDIR, os.open, place.low("folder"), os.O_RDWR)
    refused(errno.ENOTDIR, os.open, place.low("file/x"), OPEN_FLAGS)
    refused(errno.EINVAL, os.readlink, place.low("file"))
    refused(errno.ENODATA, os.getxattr, place.low("file"), "user.none")


@script()
def lower_files_are_removed_and_made_anew(place: Place) -> None:
    for name in ("file", "second", "text", "empty"):
        os.unlink(place.low(name))
        refused(errno.ENOENT, os.stat, place.low(name))
        refused(errno.ENOENT, os.open, place.low(name), os.O_RDWR)
        refused(errno.ENOENT, os.unlink, place.low(name))
    equal(sorted(os.listdir(place.lower)), ["alone", "bare", "folder", "other"])
    fd = os.open(place.low("file"), OPEN_FLAGS | os.O_EXCL, 0o600)
    os.write(fd, b"anew")
    os.close(fd)
    equal(read_whole(place.low("file")), b"anew")
    equal([name for name in os.listxattr(place.low("file")) if not name.startswith("user.headrace.")], [])
    os.unlink(place.low("file"))
    refused(errno.ENOENT, os.stat, place.low("file"))  # the old one must not come back
    os.mkdir(place.low("second"))
    equal(os.listdir(place.low("second")), [])
    os.symlink("other/five", place.low("text"))
    equal(read_whole(place.low("text")), b"five")
    os.rename(place.low("other/five"), place.low("empty"))
    equal(read_whole(place.low("empty")), b"five")
    refused(errno.ENOENT, read_whole, place.low("text"))


@script()
def lower_folders_are_removed_and_made_anew(place: Place) -> None:
    """Entries of a folder that was removed do not show in the one of the same name."""
    refused(errno.ENOTEMPTY, os.rmdir, place.low("folder"))
    for name in ("below/deep/four", "below/three", "one"):
        os.unlink(place.low(f"folder/{name}"))
    refused(errno.ENOTEMPTY, os.rmdir, place.low("folder"))
    refused(errno.ENOTEMPTY, os.rmdir, place.low("folder/below"))
    os.rmdir(place.low("folder/below/deep"))
    os.rmdir(place.low("folder/below"))
    os.unlink(place.low("folder/two"))
    os.rmdir(place.low("folder"))
    refused(errno.ENOENT, os.listdir, place.low("folder"))
    os.mkdir(place.low("folder"))
    equal(os.listdir(place.low("folder")), [])
    refused(errno.ENOENT, os.stat, place.low("folder/one"))
    refused(errno.ENOENT, os.stat, place.low("folder/below/three"))
    os.mkdir(place.low("folder/below"))
    equal(os.listdir(place.low("folder/below")), [])
    with open(place.low("folder/one"), "xb") as file:
        file.write(b"another")
    equal(sorted(os.listdir(place.low("folder"))), ["below", "one"])
    shutil.rmtree(place.low("folder"))
    with open(place.low("folder"), "xb") as file:  # a file where a folder was
        file.write(b"file")
    os.unlink(place.low("folder"))
    os.mkdir(place.low("folder"))
    equal(os.listdir(place.low("folder")), [])
    os.rmdir(place.low("bare"))
    os.mkdir(place.low("bare"), 0o700)
    shutil.rmtree(place.low("alone"))
    os.rename(place.low("bare"), place.low("alone"))
    equal(os.listdir(place.low("alone")), [])


@script()
def a_lower_tree_is_removed(place: Place) -> None:
    shutil.rmtree(place.low("folder"))
    refused(errno.ENOENT, os.stat, place.low("folder/below/deep/four"))
    for name in TOP:
        if name != "folder":
            path = place.low(name)
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)
    equal(os.listdir(place.lower), [])
    os.makedirs(place.low("folder/below"))
    equal(os.listdir(place.low("folder/below")), [])


@script()
def lower_folders_are_renamed(place: Place) -> None:
    """With all that is in them, looked at before or not."""
    equal(read_whole(place.low("folder/below/three")), b"three")
    held = os.open(place.low("folder/below/three"), os.O_RDWR)
    os.rename(place.low("folder"), place.low("moved"))
    refused(errno.ENOENT, os.stat, place.low("folder"))
    refused(errno.ENOENT, os.stat, place.low("folder/one"))
    for name in ("one", "two", "below/three", "below/deep/four"):
        equal(read_whole(place.low(f"moved/{name}")), LOWER[f"folder/{name}"])
        equal(os.stat(place.low(f"moved/{name}")).st_mtime_ns, LOWER_TIME_NS)
    os.pwrite(held, b"THREE and more", 0)
    os.close(held)
    equal(read_whole(place.low("moved/below/three")), b"THREE and more")
    os.mkdir(place.low("folder"))  # its place is empty
    equal(os.listdir(place.low("folder")), [])
    os.rename(place.low("moved/below"), place.path("deeper"))
    equal(sorted(os.listdir(place.low("moved"))), ["one", "two"])
    edit(place.path("deeper/deep/four"), b"edited", 0)
    equal(read_whole(place.path("deeper/deep/four"))[:8], b"edited" + LOWER["folder/below/deep/four"][6:8])
    os.rename(place.low("other"), place.low("bare"))  # over an empty one
    equal(read_whole(place.low("bare/five")), b"five")
    os.rename(place.low("bare"), place.low("other"))
    equal(os.listdir(place.low("other")), ["five"])
    os.rename(place.low("moved"), place.low("folder"))  # and back, over the new empty one
    equal(sorted(os.listdir(place.low("folder"))), ["one", "two"])
    refused(errno.ENOENT, os.stat, place.low("folder/below"))


@script()
def new_and_lower_names_are_listed_together(place: Place) -> None:
    os.mkdir(place.low("folder/new folder"))
    with open(place.low("folder/new"), "wb") as file:
        file.write(b"new")
    edit(place.low("folder/one"), b"x", 0)
    os.unlink(place.low("folder/two"))
    names = os.listdir(place.low("folder"))
    equal(len(names), 4)
    equal(set(names), {"below", "new", "new folder", "one"})
    with os.scandir(place.low("folder")) as entries:
        for entry in entries:
            status = os.lstat(entry.path)
            equal(entry.inode(), status.st_ino)
            equal(entry.is_dir(follow_symlinks=False), stat.S_ISDIR(status.st_mode))
    os.rename(place.low("folder/new"), place.low("folder/two"))
    equal(set(os.listdir(place.low("folder"))), {"below", "new folder", "one", "two"})
    equal(read_whole(place.low("folder/two")), b"new")


@script()
def hard_links_to_lower_files(place: Place) -> None:
    os.link(place.low("file"), place.low("linked"))
    equal(os.stat(place.low("file")).st_nlink, 2)
    equal(os.stat(place.low("file")).st_ino, os.stat(place.low("linked")).st_ino)
    edit(place.low("linked"), b"both", 0)
    equal(read_whole(place.low("file")), b"both" + LOWER["file"][4:])
    os.unlink(place.low("file"))
    equal(read_whole(place.low("linked")), b"both" + LOWER["file"][4:])
    equal(os.stat(place.low("linked")).st_nlink, 1)
    os.link(place.low("linked"), place.low("file"))
    os.link(place.low("folder/below/three"), place.path("three"))
    equal(read_whole(place.path("three")), b"three")
    os.rename(place.path("three"), place.low("folder/two"))
    equal(os.stat(place.low("folder/below/three")).st_nlink, 2)


@script()
def an_open_lower_file_is_removed(place: Place) -> None:
    reader = os.open(place.low("file"), os.O_RDONLY)
    writer = os.open(place.low("second"), os.O_RDWR)
    os.unlink(place.low("file"))
    os.unlink(place.low("second"))
    equal(read_fd(reader), LOWER["file"])
    os.pwrite(writer, b"written", 0)
    equal(read_fd(writer), b"written" + LOWER["second"][7:])
    with open(place.low("file"), "wb") as file:
        file.write(b"another")
    equal(read_fd(reader), LOWER["file"])
    os.close(reader)
    os.close(writer)
    equal(read_whole(place.low("file")), b"another")


@script()
def an_open_lower_file_is_renamed_over(place: Place) -> None:
    reader = os.open(place.low("file"), os.O_RDONLY)
    os.rename(place.write("new", b"new"), place.low("file"))
    equal(read_fd(reader), LOWER["file"])
    os.rename(place.low("second"), place.low("file"))
    equal(read_fd(reader), LOWER["file"])
    os.close(reader)
    equal(read_whole(place.low("file")), LOWER["second"])


@script(lower=LOWER_LARGE)
def a_reader_from_before_a_write(place: Place) -> None:
    """A handle opened before the first write of its file reads what was, or what is; never a mixture of both."""
    for name in ("file", "large"):
        old = LOWER_LARGE[name]
        reader = os.open(place.low(name), os.O_RDONLY)
        equal(os.pread(reader, 100, 0), old[:100])
        fd = os.open(place.low(name), os.O_RDWR)
        pwrite_all(fd, bytes(len(old)), 0)
        equal(read_fd(fd), bytes(len(old)))
        got = read_fd(reader)
        assert got in (old, bytes(len(old))), "a mixture"
        os.close(fd)
        equal(read_whole(place.low(name)), bytes(len(old)))
        os.close(reader)


@script()
def inode_numbers_of_lower_names(place: Place) -> None:
    """All keep them, also a file that comes into the upper layer with its first change."""
    for name in ("file", "second"):
        number = os.stat(place.low(name)).st_ino
        if name == "file":
            edit(place.low(name), b"x", 0)
        else:
            os.chmod(place.low(name), 0o600)
        equal(os.stat(place.low(name)).st_ino, number)
        with os.scandir(place.lower) as entries:
            equal([entry.inode() for entry in entries if entry.name == name], [number])
        edit(place.low(name), b"again", 0)
        os.chmod(place.low(name), 0o644)
        os.rename(place.low(name), place.low(f"{name}-renamed"))
        equal(os.stat(place.low(f"{name}-renamed")).st_ino, number)
    number = os.stat(place.low("folder")).st_ino
    with open(place.low("folder/new"), "wb") as file:
        file.write(b"new")
    os.chmod(place.low("folder"), 0o700)
    os.unlink(place.low("folder/two"))
    equal(os.stat(place.low("folder")).st_ino, number)
    os.rename(place.low("folder"), place.low("renamed"))
    equal(os.stat(place.low("renamed")).st_ino, number)
    number = os.stat(place.low("renamed/one")).st_ino
    fd = os.open(place.low("renamed/one"), os.O_RDWR)
    equal(os.fstat(fd).st_ino, number)
    os.write(fd, b"x")
    equal(os.fstat(fd).st_ino, number)
    equal(os.stat(place.low("renamed/one")).st_ino, number)
    os.close(fd)


@script()
def lower_names_are_exchanged(place: Place) -> None:
    got = outcome(renameat2, place.low("file"), place.low("folder"), EXCHANGE)
    if got == "EINVAL":
        os.rename(place.low("file"), place.low("aside"))
        os.rename(place.low("folder"), place.low("file"))
        os.rename(place.low("aside"), place.low("folder"))
    else:
        equal(got, None)
    equal(read_whole(place.low("folder")), LOWER["file"])
    equal(read_whole(place.low("file/one")), LOWER["folder/one"])


@script()
def lower_files_are_exchanged(place: Place) -> None:
    """With each other, and with one that was written here."""
    renameat2(place.low("file"), place.low("second"), EXCHANGE)
    equal(read_whole(place.low("file")) + read_whole(place.low("second")), LOWER["second"] + LOWER["file"])
    with open(place.low("new"), "wb") as file:
        file.write(b"new")
    renameat2(place.low("new"), place.low("folder/one"), EXCHANGE)
    equal(read_whole(place.low("folder/one")), b"new")
    equal(read_whole(place.low("new")), LOWER["folder/one"])
    os.unlink(place.low("file"))
    equal(os.path.exists(place.low("file")), False)


@script(lower=LOWER_LARGE)
def copies_from_lower_files(place: Place) -> None:
    for name in ("large", "file"):
        data = LOWER_LARGE[name]
        source = os.open(place.low(name), os.O_RDONLY)
        target = os.open(place.path(name), OPEN_FLAGS)
        offset = 0
        try:
            while count := os.copy_file_range(source, target, len(data) - offset, offset, offset):
                offset += count
        except OSError as error:
            assert error.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS), error
            pwrite_all(target, data, 0)
        equal(read_fd(target), data)
        over = os.open(place.low("second"), os.O_WRONLY | os.O_TRUNC)
        offset = 0
        while count := os.sendfile(over, source, offset, BLOCK):
            offset += count
        os.close(over)
        equal(read_whole(place.low("second")), data)
        os.close(source)
        os.close(target)


@script()
def whole_files_are_replaced_many_times(place: Place) -> None:
    """Removed, made, renamed over, in turns: one name, and only its last bytes."""
    for number in range(30):
        name = ("file", "second", "folder/one")[number % 3]
        if number % 2:
            os.rename(place.write("new", b"by rename %d" % number), place.low(name))
        else:
            os.unlink(place.low(name))
            with open(place.low(name), "xb") as file:
                file.write(b"anew %d" % number)
    equal(read_whole(place.low("file")), b"by rename 27")
    equal(read_whole(place.low("second")), b"anew 28")
    equal(read_whole(place.low("folder/one")), b"by rename 29")
    equal(sorted(os.listdir(place.lower)), TOP)


@script(lower=LOWER_MANY)
def lower_files_are_changed_right_after_a_rename(place: Place) -> None:
    """The next call finds the file under its new name, each time."""
    for number in range(0, MANY, 4):
        names = [place.low(f"many/{number + step}") for step in range(4)]
        os.rename(names[0], place.path(f"truncated-{number}"))
        os.truncate(place.path(f"truncated-{number}"), 1)
        os.rename(names[1], names[2])
        edit(names[2], b"edited", 0)
        os.link(names[2], place.path(f"linked-{number}"))
        os.rename(names[3], place.path(f"linked-{number}"))
        refused(errno.ENODATA, os.removexattr, place.path(f"linked-{number}"), "user.a")
        os.unlink(place.path(f"linked-{number}"))
        equal(read_whole(names[2]), b"edited" + (b"%03d" % (number + 1) * 10)[6:])


@script()
def lower_folders_made_again_are_their_makers(place: Place) -> None:
    """Also where another user had the one that was removed."""
    ours = (os.geteuid(), os.getegid())
    for theirs in ((OTHER_USER, OTHER_USER), (OTHER_USER, ours[1]), (ours[0], OTHER_USER)):
        os.chown(place.low("folder"), *theirs)
        shutil.rmtree(place.low("folder"))
        os.mkdir(place.low("folder"), 0o700)
        status = os.stat(place.low("folder"))
        equal((status.st_uid, status.st_gid), ours)
        equal(stat.S_IMODE(status.st_mode), 0o700)
