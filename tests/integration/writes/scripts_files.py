"""Scripts over the bytes of new files: create, write, truncate, holes, mmap, copies by the kernel."""

from __future__ import annotations

import errno
import mmap
import os
import random

from tests.integration.writes import place as calls
from tests.integration.writes.place import (
    BLOCK,
    OPEN_FLAGS,
    Place,
    bytes_of,
    equal,
    outcome,
    pwrite_all,
    read_fd,
    read_whole,
    refused,
    write_all,
)
from tests.integration.writes.registry import script


@script()
def a_file_is_created_written_and_read(place: Place) -> None:
    fd = os.open(place.path("new"), os.O_CREAT | os.O_WRONLY, 0o640)
    equal(os.fstat(fd).st_size, 0)
    equal(os.write(fd, b"0123456789"), 10)
    equal(os.stat(place.path("new")).st_size, 10)  # before the close
    equal(os.lseek(fd, 0, os.SEEK_CUR), 10)
    equal(os.lseek(fd, -4, os.SEEK_END), 6)
    os.write(fd, b"X")
    refused(errno.EBADF, os.read, fd, 1)
    os.close(fd)
    equal(read_whole(place.path("new")), b"012345X789")
    equal(os.listdir(place.root), ["new"])
    fd = os.open(place.path("new"), os.O_RDONLY)
    refused(errno.EBADF, os.write, fd, b"x")
    equal(os.read(fd, 100), b"012345X789")
    equal(os.read(fd, 100), b"")
    equal(os.pread(fd, 100, 8), b"89")
    equal(os.pread(fd, 100, 1000), b"")
    refused(errno.EINVAL, os.lseek, fd, -1, os.SEEK_SET)
    os.close(fd)
    os.close(os.open(place.path("none"), os.O_CREAT | os.O_RDONLY))
    equal(read_whole(place.path("none")), b"")


@script()
def exclusive_creation(place: Place) -> None:
    flags = OPEN_FLAGS | os.O_EXCL
    os.close(os.open(place.path("one"), flags))
    refused(errno.EEXIST, os.open, place.path("one"), flags)
    os.mkdir(place.path("folder"))
    refused(errno.EEXIST, os.open, place.path("folder"), flags)
    os.symlink("nothing", place.path("dangling"))
    refused(errno.EEXIST, os.open, place.path("dangling"), flags)
    refused(errno.ENOENT, os.open, place.path("no/such"), flags)
    refused(errno.ENOTDIR, os.open, place.path("one/below"), flags)
    os.unlink(place.path("one"))
    os.close(os.open(place.path("one"), flags))


@script()
def opens_that_are_refused(place: Place) -> None:
    place.write("file", b"x")
    os.mkdir(place.path("folder"))
    os.symlink("file", place.path("link"))
    refused(errno.ENOENT, os.open, place.path("missing"), os.O_RDWR)
    refused(errno.EISDIR, os.open, place.path("folder"), os.O_RDWR)
    refused(errno.EISDIR, os.open, place.path("folder"), os.O_CREAT | os.O_WRONLY)
    refused(errno.ENOTDIR, os.open, place.path("file"), os.O_DIRECTORY)
    refused(errno.ELOOP, os.open, place.path("link"), os.O_RDWR | os.O_NOFOLLOW)
    refused(errno.ENOTDIR, os.open, place.path("file/"), os.O_RDONLY)
    place.note_result(os.open, place.path("new/"), os.O_CREAT | os.O_WRONLY)
    fd = os.open(place.path("folder"), os.O_RDONLY)
    refused(errno.EISDIR, os.read, fd, 1)
    refused(errno.EINVAL, os.ftruncate, fd, 0)
    os.close(fd)


@script()
def an_open_truncates(place: Place) -> None:
    path = place.write("file", b"0123456789")
    reader = os.open(path, os.O_RDONLY)
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    equal(os.fstat(reader).st_size, 0)
    equal(os.read(reader, 10), b"")
    os.write(fd, b"abc")
    equal(os.pread(reader, 10, 0), b"abc")
    os.close(fd)
    os.close(reader)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.close(fd)
    equal(os.stat(path).st_size, 0)
    equal(os.stat(path).st_mode & 0o777, 0o644)  # that of its creation


@script()
def appending(place: Place) -> None:
    path = place.write("file", b"start ")
    first = os.open(path, os.O_WRONLY | os.O_APPEND)
    second = os.open(path, os.O_RDWR | os.O_APPEND)
    for number in range(50):
        os.write(first if number % 3 else second, b"%d," % number)
    os.lseek(second, 0, os.SEEK_SET)
    os.write(second, b"end")
    os.pwrite(second, b"!", 0)  # Linux appends this one too: pwrite(2), BUGS
    wanted = b"start " + b"".join(b"%d," % number for number in range(50)) + b"end!"
    equal(read_fd(second), wanted)
    os.close(first)
    os.close(second)
    equal(read_whole(path), wanted)


@script()
def writes_at_any_offset(place: Place) -> None:
    """Write random sizes over blocks and pages, and compare with the same in memory."""
    chance = random.Random(3)
    wanted = bytearray()
    fd = os.open(place.path("file"), OPEN_FLAGS)
    for _ in range(60):
        offset = chance.randrange(3 * BLOCK)
        data = chance.randbytes(chance.choice([1, 100, 4_096, 5_001, 70_000, 300_001]))
        if offset > len(wanted):
            wanted += bytes(offset - len(wanted))
        wanted[offset : offset + len(data)] = data
        pwrite_all(fd, data, offset)
        start = chance.randrange(len(wanted))
        equal(os.pread(fd, 9_000, start), bytes(wanted[start : start + 9_000]))
    equal(read_fd(fd), bytes(wanted))
    os.close(fd)
    equal(read_whole(place.path("file")), bytes(wanted))


@script()
def vectors(place: Place) -> None:
    fd = os.open(place.path("file"), OPEN_FLAGS)
    equal(os.writev(fd, [b"one", b"", b"two" * 3_000]), 9_003)
    equal(os.pwritev(fd, [b"A", b"B"], 4), 2)
    first, second = bytearray(5), bytearray(10_000)
    equal(os.preadv(fd, [first, second], 0), 9_003)
    equal(bytes(first), b"onetA")
    equal(bytes(second[:4]), b"Bwot"[:1] + b"two"[:3])
    os.close(fd)


@script()
def holes_read_as_zeros(place: Place) -> None:
    fd = os.open(place.path("file"), OPEN_FLAGS)
    pwrite_all(fd, b"end", 3 * BLOCK)
    equal(os.fstat(fd).st_size, 3 * BLOCK + 3)
    pwrite_all(fd, b"middle", BLOCK + 5)
    wanted = bytes(BLOCK + 5) + b"middle" + bytes(2 * BLOCK - 11) + b"end"
    equal(read_fd(fd), wanted)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        equal(mapped[:], wanted)
    os.close(fd)


@script()
def seeks_to_data_and_holes(place: Place) -> None:
    """Either the truth, or that all of it is data; never that data is a hole."""
    fd = os.open(place.path("file"), OPEN_FLAGS)
    pwrite_all(fd, bytes_of("first", 4_096), BLOCK)
    os.ftruncate(fd, 4 * BLOCK)
    assert os.lseek(fd, 0, os.SEEK_DATA) in (0, BLOCK)
    assert BLOCK + 4_096 <= os.lseek(fd, BLOCK, os.SEEK_HOLE) <= 4 * BLOCK
    equal(os.lseek(fd, BLOCK + 7, os.SEEK_DATA), BLOCK + 7)
    refused(errno.ENXIO, os.lseek, fd, 4 * BLOCK, os.SEEK_DATA)
    refused(errno.ENXIO, os.lseek, fd, 4 * BLOCK, os.SEEK_HOLE)
    os.close(fd)


@script()
def sparse_files_take_no_room(place: Place) -> None:
    fd = os.open(place.path("file"), OPEN_FLAGS)
    os.ftruncate(fd, 1 << 32)
    pwrite_all(fd, b"here", 1 << 31)
    status = os.fstat(fd)
    equal(status.st_size, 1 << 32)
    assert status.st_blocks * 512 < BLOCK, status.st_blocks
    equal(os.pread(fd, 10, (1 << 31) - 3), b"\0\0\0here\0\0\0")
    os.ftruncate(fd, 100)
    os.close(fd)


@script()
def truncation(place: Place) -> None:
    data = bytes_of("data", 2 * BLOCK + 100)
    path = place.write("file", data)
    os.truncate(path, BLOCK + 3)
    equal(read_whole(path), data[: BLOCK + 3])
    os.truncate(path, BLOCK + 50)  # the old bytes must not come back
    equal(read_whole(path), data[: BLOCK + 3] + bytes(47))
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 10)
    equal(os.fstat(fd).st_size, 10)
    os.lseek(fd, 20, os.SEEK_SET)
    os.write(fd, b"x")
    equal(read_fd(fd), data[:10] + bytes(10) + b"x")
    refused(errno.EINVAL, os.ftruncate, fd, -1)
    os.close(fd)
    os.truncate(path, 0)
    equal(read_whole(path), b"")
    reader = os.open(path, os.O_RDONLY)
    refused(errno.EINVAL, os.ftruncate, reader, 5)
    os.close(reader)
    refused(errno.EISDIR, os.truncate, place.root, 0)
    refused(errno.ENOENT, os.truncate, place.path("missing"), 0)


@script()
def allocation(place: Place) -> None:
    """Allocate, keep the size, punch; what a file system need not know is known, or EOPNOTSUPP."""
    data = bytes_of("data", 64 << 10)
    fd = os.open(place.write("file", data), os.O_RDWR)
    calls.fallocate(fd, 0, 0, 128 << 10)
    equal(os.fstat(fd).st_size, 128 << 10)
    calls.fallocate(fd, calls.KEEP_SIZE, 128 << 10, 1 << 20)
    equal(os.fstat(fd).st_size, 128 << 10)
    calls.fallocate(fd, calls.KEEP_SIZE | calls.PUNCH_HOLE, 8 << 10, 10_000)
    wanted = data[: 8 << 10] + bytes(10_000) + data[(8 << 10) + 10_000 :] + bytes(64 << 10)
    equal(read_fd(fd), wanted)
    refused(errno.EINVAL, calls.fallocate, fd, 0, 0, 0)
    refused(errno.EINVAL, calls.fallocate, fd, 0, -1, 5)
    if outcome(calls.fallocate, fd, calls.ZERO_RANGE, 0, 5_000) is None:
        wanted = bytes(5_000) + wanted[5_000:]
    else:
        refused(errno.EOPNOTSUPP, calls.fallocate, fd, calls.ZERO_RANGE, 0, 5_000)
        os.pwrite(fd, bytes(5_000), 0)
        wanted = bytes(5_000) + wanted[5_000:]
    equal(read_fd(fd), wanted)
    os.posix_fallocate(fd, 0, 256 << 10)
    equal(os.fstat(fd).st_size, 256 << 10)
    os.close(fd)
    reader = os.open(place.path("file"), os.O_RDONLY)
    refused(errno.EBADF, calls.fallocate, reader, 0, 0, 10)
    os.close(reader)


@script()
def syncs(place: Place) -> None:
    fd = os.open(place.path("file"), OPEN_FLAGS)
    write_all(fd, b"data")
    os.fsync(fd)
    os.fdatasync(fd)
    os.close(fd)
    reader = os.open(place.path("file"), os.O_RDONLY)
    os.fsync(reader)
    os.close(reader)
    folder = os.open(place.root, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.fdatasync(folder)
    os.close(folder)
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = os.open(place.path("file"), os.O_WRONLY | os.O_APPEND | flag)
        write_all(fd, b" more")
        os.close(fd)
    equal(read_whole(place.path("file")), b"data more more")


@script()
def an_open_file_outlives_its_name(place: Place) -> None:
    path = place.write("file", b"first")
    fd = os.open(path, os.O_RDWR)
    os.unlink(path)
    refused(errno.ENOENT, os.stat, path)
    equal(os.fstat(fd).st_nlink, 0)
    equal(read_fd(fd), b"first")
    os.pwrite(fd, b"second time", 0)
    os.ftruncate(fd, 6)
    equal(read_fd(fd), b"second")
    os.fchmod(fd, 0o600)
    os.fsync(fd)
    place.write("file", b"another one")
    calls.removed_file_is_whole(fd, b"second")
    equal(read_whole(path), b"another one")
    os.close(fd)
    equal(read_whole(path), b"another one")


@script()
def an_open_file_that_is_renamed_over(place: Place) -> None:
    old = os.open(place.write("file", b"old"), os.O_RDWR)
    new = os.open(place.write("new", b"new one"), os.O_RDWR)
    os.rename(place.path("new"), place.path("file"))
    equal(read_fd(old), b"old")
    os.pwrite(old, b"OLD", 0)
    os.pwrite(new, b"NEW", 0)
    calls.removed_file_is_whole(old, b"OLD")
    equal(read_whole(place.path("file")), b"NEW one")
    equal(os.fstat(old).st_nlink, 0)
    equal(os.fstat(new).st_nlink, 1)
    os.close(old)
    os.close(new)


@script()
def all_descriptors_see_a_write(place: Place) -> None:
    path = place.write("file", b"....")
    fds = [os.open(path, os.O_RDWR) for _ in range(4)]
    for number, fd in enumerate(fds):
        os.pwrite(fd, b"%d" % number, number)
        for other in fds:
            equal(os.pread(other, 10, 0), b"0123"[: number + 1] + b"...."[number + 1 :])
    again = os.open(path, os.O_RDONLY)
    equal(os.pread(again, 10, 0), b"0123")
    equal(read_whole(f"/proc/self/fd/{fds[0]}"), b"0123")
    for fd in [*fds, again]:
        os.close(fd)


@script()
def mapped_writes(place: Place) -> None:
    data = bytearray(bytes_of("data", 3 * BLOCK + 5))
    path = place.write("file", bytes(data))
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0) as mapped:
        for offset in (0, 4_095, BLOCK, 2 * BLOCK + 77, len(data) - 3):
            mapped[offset : offset + 3] = b"xyz"
            data[offset : offset + 3] = b"xyz"
        mapped.flush()
        equal(os.pread(fd, len(data), 0), bytes(data))
        os.pwrite(fd, b"by write", 5_000)
        data[5_000:5_008] = b"by write"
        equal(mapped[5_000:5_008], b"by write")
        os.close(fd)  # a mapping outlives the descriptor
        mapped[10:14] = b"late"
        data[10:14] = b"late"
    equal(read_whole(path), bytes(data))
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE) as mapped:
        mapped[0:3] = b"own"
    os.close(fd)
    equal(read_whole(path), bytes(data))


@script()
def a_mapped_file_grows(place: Place) -> None:
    fd = os.open(place.path("file"), OPEN_FLAGS)
    os.ftruncate(fd, 8_192)
    with mmap.mmap(fd, 8_192) as mapped:
        mapped[8_000:8_004] = b"data"
        mapped.flush()
        mapped.resize(20_000)
        mapped[19_990:19_994] = b"more"
    equal(read_fd(fd), bytes(8_000) + b"data" + bytes(11_986) + b"more" + bytes(6))
    os.close(fd)


@script()
def copies_by_the_kernel(place: Place) -> None:
    """sendfile, copy_file_range, splice: within, and from a plain folder."""
    data = bytes_of("data", BLOCK + 4_321)
    source = os.open(place.write("source", data), os.O_RDONLY)
    path = os.path.join(place.outside, "source")
    with open(path, "wb") as file:
        file.write(data[::-1])
    plain = os.open(path, os.O_RDONLY)
    for name, fd, wanted in (("within", source, data), ("into", plain, data[::-1])):
        target = os.open(place.path(f"sendfile-{name}"), OPEN_FLAGS)
        offset = 0
        while count := os.sendfile(target, fd, offset, BLOCK):
            offset += count
        equal(read_fd(target), wanted)
        os.close(target)
        target = os.open(place.path(f"range-{name}"), OPEN_FLAGS)
        offset = 0
        try:
            while count := os.copy_file_range(fd, target, len(data) - offset, offset, offset):
                offset += count
        except OSError as error:
            assert error.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS), error
            pwrite_all(target, wanted, 0)
        equal(read_fd(target), wanted)
        os.close(target)
    read, write = os.pipe()
    target = os.open(place.path("splice"), OPEN_FLAGS)
    os.write(write, b"through a pipe")
    os.splice(read, target, 14)
    equal(read_fd(target), b"through a pipe")
    for descriptor in (read, write, target, source, plain):
        os.close(descriptor)


@script()
def direct_io(place: Place) -> None:
    """Aligned, 4 KiB: as the disk has it."""
    fd = os.open(place.path("file"), OPEN_FLAGS | os.O_DIRECT)
    data = bytes_of("data", 64 << 10)
    with mmap.mmap(-1, 64 << 10) as buffer:
        buffer[:] = data
        equal(os.pwrite(fd, buffer, 0), 64 << 10)
        equal(os.pwrite(fd, buffer, 64 << 10), 64 << 10)
        buffer[:] = bytes(64 << 10)
        equal(os.preadv(fd, [buffer], 64 << 10), 64 << 10)
        equal(buffer[:], data)
    os.close(fd)
    equal(read_whole(place.path("file")), data * 2)


@script()
def files_without_a_name(place: Place) -> None:
    """O_TMPFILE works as it should, or is refused as where it is not known."""
    try:
        fd = os.open(place.root, os.O_TMPFILE | os.O_RDWR, 0o640)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP, error
        fd = os.open(place.path("named"), os.O_CREAT | os.O_RDWR, 0o640)
        os.write(fd, b"data")
    else:
        equal(os.listdir(place.root), [])
        os.write(fd, b"data")
        equal(os.fstat(fd).st_nlink, 0)
        calls.link_of_descriptor(fd, place.path("named"))
        os.close(os.open(place.root, os.O_TMPFILE | os.O_RDWR))
    os.close(fd)
    equal(read_whole(place.path("named")), b"data")
    equal(os.listdir(place.root), ["named"])


@script()
def a_file_made_read_only_is_written_by_its_maker(place: Place) -> None:
    fd = os.open(place.path("file"), os.O_CREAT | os.O_WRONLY, 0o444)
    os.write(fd, b"once")
    os.close(fd)
    equal(os.stat(place.path("file")).st_mode & 0o777, 0o444)
    equal(read_whole(place.path("file")), b"once")


@script()
def a_large_file_written_at_once(place: Place) -> None:
    data = bytes_of("data", 12 * BLOCK)
    fd = os.open(place.path("file"), OPEN_FLAGS)
    write_all(fd, data)
    os.fsync(fd)
    os.close(fd)
    equal(read_whole(place.path("file")), data)


@script()
def many_open_files(place: Place) -> None:
    fds = [os.open(place.path(f"{number}"), OPEN_FLAGS) for number in range(200)]
    for number, fd in enumerate(fds):
        os.write(fd, b"%d" % number)
    for number, fd in enumerate(fds):
        equal(os.pread(fd, 9, 0), b"%d" % number)
        os.close(fd)


@script()
def the_file_system_tells_its_size(place: Place) -> None:
    volume = os.statvfs(place.root)
    equal(volume.f_namemax, 255)
    assert volume.f_bsize > 0
    assert 0 < volume.f_bavail <= volume.f_bfree <= volume.f_blocks, volume
    assert not volume.f_flag & os.ST_RDONLY
    fd = os.open(place.path("file"), OPEN_FLAGS)
    equal(os.fstatvfs(fd).f_namemax, 255)
    os.close(fd)
