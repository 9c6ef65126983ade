"""Programs without a mount create no name that no origin accepts: the node would put the file under another one."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace.base.errors import UsageError
from headrace.vfs.local_vfs import LocalVfs

OpenVfs = Callable[..., LocalVfs]

REFUSED = [b"nl\nx", b"\xff", b"tab\t", b"del\x7f", b".headrace-put-x"]
ACCEPTED = ["ü %".encode(), b".hidden", "\u00a0".encode(), "no-break\u200b".encode()]


def write(vfs: LocalVfs, path: bytes) -> None:
    with vfs.create(path, replace=True, parents=True) as stream:
        stream.write(b"bytes")


@pytest.mark.parametrize("mode", ["back", "through"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", [b"/%s", b"/%s/below"])
def test_a_name_that_no_origin_accepts_is_refused(
    open_vfs: OpenVfs, mode: str, name: bytes, place: bytes
) -> None:
    vfs, path = open_vfs(mode), place % name
    for create in (
        lambda: write(vfs, path),
        lambda: vfs.append(path),
        lambda: vfs.make_directories(path),
        lambda: vfs.open_in_place(path, os.O_EXCL),
    ):
        with pytest.raises(UsageError, match="no origin accepts a name"):
            create()
    assert [entry for entry, _ in vfs.children(b"/") if entry == name] == []


@pytest.mark.parametrize("name", REFUSED)
def test_no_file_is_renamed_to_such_a_name(vfs: LocalVfs, name: bytes) -> None:
    write(vfs, b"/good")
    with pytest.raises(UsageError, match="no origin accepts a name"):
        vfs.rename(b"/good", b"/" + name)
    assert vfs.read(b"/good", 0, None) == b"bytes"


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_stay_on_this_node_have_any_name(open_vfs: OpenVfs, name: bytes) -> None:
    vfs = open_vfs("local")
    write(vfs, b"/" + name)
    assert vfs.read(b"/" + name, 0, None) == b"bytes"


@pytest.mark.parametrize("name", ACCEPTED)
def test_other_names_are_created(vfs: LocalVfs, name: bytes) -> None:
    write(vfs, b"/new/" + name)
    assert vfs.read(b"/new/" + name, 0, None) == b"bytes"


def test_a_file_that_a_mount_gave_such_a_name_is_read_and_replaced(vfs: LocalVfs) -> None:
    file = vfs.tree.upper.at(b"/nl\nx").open(os.O_CREAT | os.O_WRONLY)
    os.write(file, b"by a mount")
    os.close(file)
    assert vfs.read(b"/nl\nx", 0, None) == b"by a mount"
    write(vfs, b"/nl\nx")
    assert vfs.read(b"/nl\nx", 0, None) == b"bytes"
    vfs.remove(b"/nl\nx")
