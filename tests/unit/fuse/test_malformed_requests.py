"""Requests that no kernel sends: each is answered once, and nothing outside the mount is read or changed."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError
from headrace.fuse.abi import Opcode
from headrace.fuse.operations import Mode
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import ROOT, Part, decoded_reply, encoded
from tests.unit.fuse.memory_mount import MemoryMount

OpenMount = Callable[..., MemoryMount]
NAMES = [b"", b".", b"..", b"a/b", b"/", b"../outside", b"dir/../../outside", b"small/below", b"x" * 5000]
WITH_NAME: dict[Opcode, tuple[Part, ...]] = {
    Opcode.LOOKUP: (),
    Opcode.UNLINK: (),
    Opcode.RMDIR: (),
    Opcode.MKDIR: (layout.MkdirIn(0o755),),
    Opcode.MKNOD: (layout.MknodIn(0o100644),),
    Opcode.CREATE: (layout.CreateIn(os.O_RDWR, 0o100644),),
}


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, bytes]:
    """Return what lies beside the layer's tree and beside the mount's directories."""
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "upper").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "upper/outside").write_bytes(b"outside")
    return _files(tmp_path)


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files that no request may change."""
    kept = [*folder.glob("outside"), *folder.glob("upper/outside"), *folder.glob("source/**/*")]
    return {str(path): path.read_bytes() for path in kept if path.is_file()}


def answered(mount: MemoryMount, opcode: int, node: int, *parts: Part, unique: int = 2) -> int:
    """Return the errno of the answer; fail unless there is exactly one that the kernel would take."""
    try:
        answer = mount.finish(mount.begin(opcode, node, *parts, unique=unique))
    except (
        HeadraceError,
        ValueError,
        OverflowError,
        struct.error,
    ) as error:  # the session replies with an errno
        return error.errno or errno.EIO if isinstance(error, OSError) else errno.EIO
    if isinstance(answer, int):
        assert 0 <= answer < 512
        return answer
    message = answer if answer is not None else b"" if mount.device.is_silent() else mount.device.receive()
    if message:
        decoded_reply(message, unique)
    assert mount.device.is_silent()
    return 0


@pytest.mark.parametrize("opcode", WITH_NAME)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_leads_nowhere(
    writable: MemoryMount, outside: dict[str, bytes], tmp_path: Path, opcode: Opcode, name: bytes
) -> None:
    for node in (ROOT, writable.kernel.node("dir")):
        answered(writable, opcode, node, *WITH_NAME[opcode], name + b"\0")
    assert _files(tmp_path) == outside


@pytest.mark.parametrize("name", NAMES)
def test_a_rename_to_or_from_a_name_that_is_none_leads_nowhere(
    writable: MemoryMount, outside: dict[str, bytes], tmp_path: Path, name: bytes
) -> None:
    writable.kernel.write_file(b"new", b"x")
    for old, new in ((b"new", name), (name, b"new"), (name, name)):
        body = (layout.Rename2In(ROOT, 0), old + b"\0" + new + b"\0")
        answered(writable, Opcode.RENAME2, ROOT, *body)
    node = writable.kernel.write_file(b"other", b"x")
    answered(writable, Opcode.LINK, ROOT, layout.LinkIn(node), name + b"\0")
    answered(writable, Opcode.SYMLINK, ROOT, name + b"\0", b"/etc/passwd\0")
    assert _files(tmp_path) == outside


def test_a_link_out_of_the_layer_is_never_followed(
    writable: MemoryMount, outside: dict[str, bytes], tmp_path: Path
) -> None:
    """The session works with paths, and a user of the mount chooses where a link leads."""
    target = os.fsencode(tmp_path)
    link = (
        writable.kernel.call(Opcode.SYMLINK, ROOT, b"link\0", target + b"\0").decoded(layout.EntryOut).nodeid
    )
    assert writable.kernel.lookup(b"outside", link).nodeid == 0
    for opcode, parts in WITH_NAME.items():
        if opcode is not Opcode.LOOKUP:
            number = answered(writable, opcode, link, *parts, b"outside\0")
            assert number in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT), opcode
    for opcode, part in ((Opcode.OPEN, layout.OpenIn(os.O_RDWR)), (Opcode.READ, layout.ReadIn(0, 0, 10))):
        assert answered(writable, opcode, link, part) in (errno.ELOOP, errno.ENOTDIR, errno.ESTALE), opcode
    assert _files(tmp_path) == outside


# A writable mount is never without OPEN.
@pytest.mark.parametrize(("mode", "write"), [(Mode.SPLICE, ""), (Mode.SPLICE, "back"), (Mode.NOOPEN, "")])
def test_every_opcode_with_an_empty_body_is_answered(open_mount: OpenMount, mode: Mode, write: str) -> None:
    """The kernel sends no short request. What a short one lacks reads as zeros, or as an earlier request's bytes."""
    mount = open_mount(mode, write=write)
    nodes = [0, ROOT, mount.kernel.node("small"), mount.kernel.node("dir"), (1 << 64) - 1, 1 << 47, 12345]
    for opcode in mount.table:
        for node in nodes:
            answered(mount, opcode, node)
    assert mount.kernel.node("big")


@pytest.mark.parametrize(
    "opcode, body",
    [
        (Opcode.READ, layout.ReadIn(0, (1 << 64) - 1, (1 << 32) - 1)),
        (Opcode.READ, layout.ReadIn(0, 1 << 63, 4096)),
        (Opcode.READDIR, layout.ReadIn((1 << 64) - 1, (1 << 64) - 1, 4096)),
        (Opcode.READDIRPLUS, layout.ReadIn(5, 1 << 40, 0)),
        (Opcode.WRITE, layout.WriteIn(0, (1 << 64) - 1, 10)),
        (Opcode.FALLOCATE, layout.FallocateIn(0, (1 << 64) - 1, (1 << 64) - 1, (1 << 32) - 1)),
        (Opcode.LSEEK, layout.LseekIn(0, (1 << 64) - 1, (1 << 32) - 1)),
        (Opcode.SETATTR, layout.SetattrIn(valid=8, size=(1 << 64) - 1)),
        (Opcode.SETATTR, layout.SetattrIn(valid=48, atime=1 << 62, mtime=1 << 62, atimensec=(1 << 32) - 1)),
        (Opcode.SETATTR, layout.SetattrIn(valid=(1 << 32) - 1, uid=(1 << 32) - 1, gid=(1 << 32) - 1)),
        (Opcode.RELEASE, layout.ReleaseIn((1 << 64) - 1)),
        (Opcode.RELEASEDIR, layout.ReleaseIn((1 << 64) - 1)),
        (Opcode.FORGET, layout.ForgetIn((1 << 64) - 1)),
        (Opcode.LINK, layout.LinkIn((1 << 64) - 1)),
    ],
)
def test_numbers_that_lie_are_an_error_and_not_a_defect(
    writable: MemoryMount, opcode: Opcode, body: layout.ReadIn
) -> None:
    upper, lower = writable.kernel.write_file(b"new", b"x" * 100), writable.kernel.node("small")
    for node in (upper, lower, ROOT):
        answered(writable, opcode, node, body, b"name\0")
    assert writable.kernel.node("big")


def test_a_write_whose_size_lies_is_invalid(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"")
    assert answered(writable, Opcode.WRITE, node, layout.WriteIn(0, 0, 1 << 20), b"short") == errno.EINVAL
    assert Path(writable.client.upper, "tree/new").read_bytes() == b""


def test_a_name_without_an_end_is_refused(mount: MemoryMount) -> None:
    request = bytearray(encoded(Opcode.LOOKUP, ROOT, (b"x" * 100,), 2))
    with pytest.raises(ValueError):
        mount.table[Opcode.LOOKUP](2, ROOT, request)


def test_a_count_of_forgets_that_lies_forgets_what_is_there(writable: MemoryMount) -> None:
    node = writable.kernel.write_file(b"new", b"")
    with pytest.raises(Exception, match="unpack_from requires a buffer"):
        writable.begin(
            Opcode.BATCH_FORGET, 0, layout.BatchForgetIn(1 << 31), layout.ForgetOne(node, 1), unique=2
        )
    assert writable.kernel.node("new") == node


@pytest.mark.parametrize("write", ["", "back"])
def test_random_bodies_are_answered(open_mount: OpenMount, tmp_path: Path, write: str) -> None:
    mount, chance = open_mount(write=write), random.Random(5)
    source = _files(tmp_path)
    nodes = [ROOT, mount.kernel.node("small"), mount.kernel.node("dir/sub"), 7]
    if write:
        nodes.append(mount.kernel.write_file(b"new", b"x"))
    for _ in range(1500):
        opcode = chance.choice(list(mount.table))
        body = bytes(chance.choice((0, 0, 0, 1, 47, 255, 97)) for _ in range(chance.randrange(140)))
        answered(mount, opcode, chance.choice(nodes), body, unique=2)
    assert _files(tmp_path) == source
    assert mount.kernel.node("big")
