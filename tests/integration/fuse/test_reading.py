"""Bytes, names and states through a real mount, in each I/O mode."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.integration.cli.host import send, wait_until
from tests.integration.fuse.conftest import Mounter

pytestmark = pytest.mark.fuse
SMALL = os.urandom(110_000)
BIG = os.urandom(9_500_000)
MODES = ["passthrough", "splice", "noopen"]


def mapped(path: object) -> bytes:
    with open(str(path), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return view[:]


@pytest.mark.parametrize("io", MODES)
def test_bytes_are_those_of_the_source(mounter: Mounter, io: str) -> None:
    m = mounter(io, {"small": SMALL, "big": BIG, "empty": b"", "d/deep": b"x"})
    assert m.ready["io"] == io
    for _ in range(2):
        assert (m.mount / "small").read_bytes() == SMALL
        assert (m.mount / "big").read_bytes() == BIG
        assert (m.mount / "empty").read_bytes() == b""
        assert (m.mount / "d/deep").read_bytes() == b"x"
        assert mapped(m.mount / "small") == SMALL
        assert mapped(m.mount / "big") == BIG
    assert (m.mount / "big").stat().st_ino == m.id_of("big")


@pytest.mark.parametrize("io", MODES)
def test_a_mapping_of_an_incomplete_file_never_shows_a_hole(mounter: Mounter, io: str) -> None:
    m = mounter(io, {"big": BIG}, slow_s=0.01)
    assert mapped(m.mount / "big") == BIG


def test_a_complete_file_is_read_without_the_session(mounter: Mounter) -> None:
    m = mounter("passthrough", {"small": SMALL})
    with open(m.mount / "small", "rb") as file:
        send(m.session_pid, signal.SIGSTOP)
        try:
            assert file.read() == SMALL
        finally:
            os.kill(m.session_pid, signal.SIGCONT)


def test_promotion_while_open_and_mapped(mounter: Mounter) -> None:
    """The old open stays in cached mode; a new one gets a new node id by way of ESTALE, which no user
    sees."""
    m = mounter("passthrough", {"big": BIG})
    path = m.mount / "big"
    with open(path, "rb") as old, mmap.mmap(old.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:100] == BIG[:100]
        by_path = os.open(path, os.O_PATH)
        m.order("complete", [m.id_of("big")])
        with open(path, "rb") as new:
            send(m.session_pid, signal.SIGSTOP)
            try:
                assert new.read() == BIG  # passthrough: nobody answers
            finally:
                os.kill(m.session_pid, signal.SIGCONT)
        with open(f"/proc/self/fd/{by_path}", "rb") as again:  # no name to look up: served in the old mode
            assert again.read() == BIG
        directory = os.open(m.mount, os.O_RDONLY)
        relative = os.open("big", os.O_RDONLY, dir_fd=directory)
        assert os.pread(relative, 1000, 5_000_000) == BIG[5_000_000:5_001_000]
        old.close()
        assert path.read_bytes() == BIG
        assert view[:] == BIG  # the closed cached descriptor lives on as this mapping
        for fd in (by_path, directory, relative):
            os.close(fd)
    assert mapped(path) == BIG


def test_eviction_of_an_open_file_keeps_its_bytes(mounter: Mounter) -> None:
    m = mounter("passthrough", {"small": SMALL})
    with open(m.mount / "small", "rb") as old:
        m.order("evict", [m.id_of("small")])
        assert old.read() == SMALL
        assert (m.mount / "small").read_bytes() == SMALL  # the same backing id, still open
    assert (m.mount / "small").read_bytes() == SMALL
    if os.listdir(m.folder / "cache"):
        m.order("evict", [m.id_of("small")])
    assert (m.mount / "small").read_bytes() == SMALL


@pytest.mark.parametrize("io", MODES)
def test_wrong_bytes_that_were_replaced_are_not_read_again(mounter: Mounter, io: str) -> None:
    """Neither by who has the file open, nor by who opens it anew: the kernel has kept them until then."""
    wrong, right = os.urandom(3_500_000), os.urandom(3_500_000)
    m = mounter(io, {"f": wrong})
    path = m.mount / "f"
    with path.open("rb", buffering=0) as file:
        assert file.read() == wrong
        with (m.source / "f").open("r+b") as source:
            source.write(right)
        m.order("replace", [m.id_of("f")])
        wait_until(lambda: path.read_bytes() == right)
        file.seek(0)
        assert file.read() == right


@pytest.mark.parametrize("io", MODES)
def test_many_readers_at_once(mounter: Mounter, io: str) -> None:
    files = {f"f{n}": os.urandom(50_000 + n) for n in range(60)} | {"big": BIG}
    m = mounter(io, files, slow_s=0.002)
    wrong: list[str] = []

    def read() -> None:
        for name, data in files.items():
            try:
                if (m.mount / name).read_bytes() != data:
                    wrong.append(name)
            except OSError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


_READS_ALL = (
    "import os, sys\nwhile True:\n for entry in os.scandir(sys.argv[1]): open(entry.path, 'rb').read()"
)
_FAULTS_PAGE_BY_PAGE = """
import mmap, os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
while True:
    for entry in os.scandir(sys.argv[1]):
        with open(entry.path, 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            sum(mapped[offset] for offset in range(0, len(mapped), mmap.PAGESIZE))
"""


@pytest.mark.parametrize("code", [_READS_ALL, _FAULTS_PAGE_BY_PAGE], ids=["read", "mapped"])
def test_small_reads_are_right_while_readers_are_killed(mounter: Mounter, code: str) -> None:
    """Without open small reads are begun, and answered once nothing else comes. A page that is faulted in without
    read-ahead is asked for by a request that any signal interrupts: an INTERRUPT comes between."""
    files = {f"f{n}": os.urandom(110_000 + n) for n in range(40)}
    m = mounter("noopen", files)
    m.order("complete", [m.id_of(name) for name in files])
    for turn in range(6):
        readers = [subprocess.Popen([sys.executable, "-S", "-c", code, str(m.mount)]) for _ in range(4)]
        for _ in range(20):
            _forget_pages([*(m.folder / "cache").iterdir(), *(m.mount / name for name in files)])
            time.sleep(0.005 + 0.001 * turn)  # the moment is what is tested
        for reader in readers:
            assert reader.poll() is None  # it went on reading till now
            reader.kill()
        for reader in readers:
            reader.wait(60)
        for name, data in files.items():
            assert (m.mount / name).read_bytes() == data


def _forget_pages(paths: list[Path]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.parametrize("miss", [False, True])
def test_names(mounter: Mounter, miss: bool) -> None:
    odd = os.fsdecode(b"\xff\xfe name")
    m = mounter("passthrough", {odd: b"odd", "n" * 255: b"long", "a/b/c": b"1"}, miss=miss)
    assert sorted(os.listdir(m.mount)) == sorted([odd, "n" * 255, "a"])
    assert (m.mount / odd).read_bytes() == b"odd"
    assert (m.mount / ("n" * 255)).read_bytes() == b"long"
    assert (m.mount / "a/b/c").read_bytes() == b"1"
    assert not (m.mount / "absent").exists()
    with pytest.raises(OSError) as caught:
        (m.mount / ("n" * 256)).stat()
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.stat(m.mount / "a/..").st_ino == 1


def test_large_directory(mounter: Mounter) -> None:
    names = {f"d/{n:07d}": b"" for n in range(8_000)}
    m = mounter("passthrough", names)
    assert sorted(os.listdir(m.mount / "d")) == sorted(os.listdir(m.source / "d"))
    with os.scandir(m.mount / "d") as entries:
        assert sum(entry.stat().st_size == 0 for entry in entries) == 8_000


def test_an_invalidated_name_is_gone(mounter: Mounter) -> None:
    m = mounter("passthrough", {"old": b"1"})
    assert (m.mount / "old").read_bytes() == b"1"
    assert not (m.mount / "new").exists()  # the kernel keeps that for an hour
    m.order("rename", [1, "old", "new"])
    wait_until(lambda: (m.mount / "new").exists() and not (m.mount / "old").exists())
    assert os.listdir(m.mount) == ["new"]


def test_read_only_attributes_and_space(mounter: Mounter) -> None:
    m = mounter("passthrough", {"small": SMALL})
    for call in (lambda: (m.mount / "x").write_bytes(b""), lambda: os.unlink(m.mount / "small")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EROFS
    assert os.getxattr(m.mount / "small", "user.headrace.origin") == b"memory://"
    assert "user.headrace.cached" in os.listxattr(m.mount / "small")
    with pytest.raises(OSError) as caught:
        os.getxattr(m.mount / "small", "user.other")
    assert caught.value.errno == errno.ENODATA
    assert os.statvfs(m.mount).f_blocks * 4096 == 1 << 30


def test_an_origin_that_is_away_is_not_eio(mounter: Mounter) -> None:
    m = mounter("passthrough", {"big": BIG})
    (m.folder / "broken").touch()
    with pytest.raises(OSError) as caught:
        (m.mount / "big").read_bytes()
    # the kernel's page cache turns a failed readahead into EIO of its own; a read past it brings ours
    assert caught.value.errno in (errno.EHOSTUNREACH, errno.EIO)
    (m.folder / "broken").unlink()
    assert (m.mount / "big").read_bytes() == BIG


@pytest.mark.parametrize("io", MODES)
def test_an_origin_that_hangs_does_not_hold_up_what_is_cached(mounter: Mounter, io: str) -> None:
    names = [f"stuck{number}" for number in range(90)]
    m = mounter(io, dict.fromkeys(names, BIG[:2_000_000]) | {"small": SMALL, "big": BIG})
    m.order("complete", [m.id_of("small"), m.id_of("big")])
    (m.folder / "stuck").touch()
    readers = [subprocess.Popen(["cat", m.mount / name], stdout=subprocess.DEVNULL) for name in names]
    try:
        wait_until(lambda: sum("mnt/stuck" in "".join(_descriptors(client.pid)) for client in readers) >= 30)
        time.sleep(0.5)  # the files are open; that the reads are blocked shows nowhere
        done: list[bool] = []
        reader = threading.Thread(
            target=lambda: done.append(
                (m.mount / "small").read_bytes() == SMALL and (m.mount / "big").read_bytes() == BIG
            )
        )
        reader.start()
        reader.join(30)
        assert done == [True]
    finally:
        (m.folder / "stuck").unlink()
        for client in readers:
            client.wait(30)


@pytest.mark.parametrize("io", ["passthrough", "noopen"])
def test_a_blocked_reader_can_be_killed(mounter: Mounter, io: str) -> None:
    m = mounter(io, {"big": BIG})
    (m.folder / "stuck").touch()
    reader = subprocess.Popen([sys.executable, "-c", f"open({str(m.mount / 'big')!r}, 'rb').read()"])
    wait_until(lambda: "mnt/big" in "".join(_descriptors(reader.pid)))
    time.sleep(0.1)  # the file is open; that the read is blocked shows nowhere
    reader.kill()
    reader.wait(30)
    (m.folder / "stuck").unlink()
    assert (m.mount / "big").read_bytes() == BIG


def _descriptors(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    targets = []
    for fd in os.listdir(folder):
        try:
            targets.append(os.readlink(f"{folder}/{fd}"))
        except OSError:
            pass
    return targets
