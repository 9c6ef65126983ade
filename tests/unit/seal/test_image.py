"""Images without a mount: what was written is read, bit for bit the same each time, and erofs-utils find no fault."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings

from headrace.base.errors import InvalidImageError
from headrace.seal.check import check_image
from headrace.seal.digest import verify_image
from headrace.seal.erofs import FILE_BYTES_MAX, SUPERBLOCK_OFFSET, ImageEntry
from tests.unit.seal.trees import (
    ROOT,
    SHAPES,
    TARGET,
    bytes_of,
    descriptor_of,
    directory,
    file,
    image_of,
    in_order,
    link,
    read_back,
    trees,
)


@settings(max_examples=30, deadline=None)
@given(trees())
def test_a_tree_comes_back(entries: list[ImageEntry]) -> None:
    descriptor, digest = image_of(entries)
    try:
        assert check_image(descriptor) == digest
    finally:
        os.close(descriptor)
    assert read_back(entries) == entries


FORMAT_DIGEST = "f8e619bcaed95c06a388bbe4704f6f9094c54732b7b5546fef59bd9ac316f8d2"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_comes_back(shape: str) -> None:
    entries = in_order(SHAPES[shape])
    descriptor, digest = image_of(entries)
    try:
        assert check_image(descriptor) == digest
    finally:
        os.close(descriptor)
    assert read_back(entries) == entries


@pytest.mark.skipif(shutil.which("fsck.erofs") is None, reason="erofs-utils are not installed")
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "more links than 16 bits"])
def test_erofs_utils_find_no_fault(tmp_path: Path, shape: str) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes_of(in_order(SHAPES[shape])))
    checked = subprocess.run(["fsck.erofs", "-d9", image], capture_output=True, text=True, check=False)
    assert (checked.returncode, "<E>" in checked.stdout + checked.stderr) == (0, False), checked
    dumped = subprocess.run(["dump.erofs", "-s", image], capture_output=True, text=True, check=True).stdout
    assert "root nid:                          36" in dumped


def test_the_same_tree_gives_the_same_image() -> None:
    entries = in_order(SHAPES["names before dots"])
    assert bytes_of(entries) == bytes_of(iter(entries))
    digest = hashlib.sha256(bytes_of(entries)).hexdigest()
    assert digest == image_of(entries)[1]
    assert digest != hashlib.sha256(bytes_of(entries[:-1])).hexdigest()


def test_the_format_stays_as_it_is() -> None:
    """Images on disk are checked with digests of before: a change of the writer must keep the bytes."""
    entries = in_order([*SHAPES["sizes"], *SHAPES["names before dots"], *SHAPES["times"], link(b"z", b"t")])
    assert hashlib.sha256(bytes_of(entries)).hexdigest() == FORMAT_DIGEST


def test_a_file_takes_less_than_200_bytes() -> None:
    files = [file(b"n%07d.jpeg" % number, mtime_ns=number) for number in range(20_000)]
    assert len(bytes_of(in_order(files))) / len(files) < 160
    same_time = [entry._replace(mtime_ns=5) for entry in files]
    assert len(bytes_of(in_order(same_time))) / len(files) < 128


REFUSED = {
    "no root": [file(b"a")],
    "a file as the root": [ROOT._replace(mode=stat.S_IFREG)],
    "two roots": [ROOT, ROOT],
    "an absolute path": [ROOT, file(b"/a")],
    "no name": [ROOT, directory(b"a"), file(b"a/")],
    "dot": [ROOT, file(b".")],
    "dot dot": [ROOT, directory(b"..")],
    "dot dot behind dots": [ROOT, file(b".-"), file(b"..")],
    "a NUL": [ROOT, file(b"a\0")],
    "a long name": [ROOT, file(b"n" * 256)],
    "a long path": [ROOT, *(directory(b"/".join([b"n" * 255] * count)) for count in range(1, 18))],
    "twice": [ROOT, file(b"a"), file(b"a")],
    "a directory twice": [ROOT, directory(b"a"), directory(b"a")],
    "not sorted": [ROOT, file(b"b"), file(b"a")],
    "a directory not sorted": [ROOT, file(b"b"), directory(b"a")],
    "sorted as text": [ROOT, directory(b"a"), file(b"a-b"), file(b"a/x")],
    "without its directory": [ROOT, file(b"a/b")],
    "below a file": [ROOT, file(b"a"), file(b"a/b")],
    "a device": [ROOT, file(b"a")._replace(mode=stat.S_IFCHR)],
    "a mode of more bits": [ROOT, file(b"a")._replace(mode=stat.S_IFREG | 1 << 16)],
    "a size below 0": [ROOT, file(b"a", -1)],
    "a size that no hole has": [ROOT, file(b"a", FILE_BYTES_MAX + 1)],
    "bytes nowhere": [ROOT, file(b"a", 1, target=b"")],
    "a relative target": [ROOT, file(b"a", target=b"04/1")],
    "a target that leaves": [ROOT, file(b"a", target=b"/04/../../x")],
    "a target of a directory": [ROOT, file(b"a", target=b"/04/")],
    "an empty part": [ROOT, file(b"a", target=b"/04//1")],
    "a long target": [ROOT, file(b"a", target=b"/" + b"d" * 255)],
    "a link to nothing": [ROOT, link(b"a", b"")],
    "a long link": [ROOT, link(b"a", b"t" * 4096)],
    "a link with a NUL": [ROOT, link(b"a", b"t\0")],
    "a link with a size": [ROOT, link(b"a", b"t")._replace(size_bytes=1)],
    "a directory with a size": [ROOT, directory(b"a")._replace(size_bytes=1)],
    "a directory with a target": [ROOT, directory(b"a")._replace(target=TARGET)],
    "a uid of more bits": [ROOT, file(b"a")._replace(uid=1 << 32)],
    "the uid that means none": [ROOT, file(b"a")._replace(uid=2**32 - 1)],
    "the gid that means none": [ROOT, directory(b"a")._replace(gid=2**32 - 1)],
    "a uid below 0": [ROOT, file(b"a")._replace(uid=-1)],
    "a time of more bits": [ROOT, file(b"a"), file(b"b", mtime_ns=1 << 100)],
    "a first time of more bits": [ROOT, file(b"a", mtime_ns=1 << 100)],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_image_holds_is_refused(case: str) -> None:
    with pytest.raises(InvalidImageError):
        bytes_of(REFUSED[case])


def _changed(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def _hostile(entries: Iterable[ImageEntry]) -> dict[str, bytes]:
    """Return images that make a careless reader loop, leave the image, or take memory. The last block is the root's
    content: dirents of ".", "..", "a" and "b"."""
    data = bytes_of(entries)
    root, content = SUPERBLOCK_OFFSET + 128, len(data) - 4096
    return {
        "a directory in itself": _changed(data, content + 24, (36).to_bytes(8, "little")),
        "an inode beyond the end": _changed(data, content + 24, b"\xff" * 8),
        "the same inode twice": _changed(data, content + 36, data[content + 24 : content + 32]),
        "a root of 2**64 bytes": _changed(data, root + 8, b"\xff" * 8),
        "a root elsewhere": _changed(data, root + 16, b"\xff" * 4),
        "names beyond the block": _changed(data, content + 8, b"\xff\x0f"),
        "no dirents": _changed(data, content + 8, b"\0\0"),
        "half a dirent": _changed(data, content + 8, b"\x06\0"),
        "names that run back": _changed(data, content + 20, b"\x01\0"),
        "truncated": data[:-4096],
        "longer": data + bytes(4096),
        "empty": b"",
        "the head only": data[:1100],
        "another magic": _changed(data, SUPERBLOCK_OFFSET, b"\0"),
        "another checksum": _changed(data, SUPERBLOCK_OFFSET + 4, b"\0\0\0\0"),
        "bytes before the superblock": _changed(data, 0, b"\1"),
        "bytes in the padding": _changed(data, len(data) - 1, b"\1"),
    }


HOSTILE = _hostile([ROOT, directory(b"a"), file(b"a/x"), file(b"b")])


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_image_is_refused(case: str) -> None:
    descriptor = descriptor_of(HOSTILE[case])
    try:
        with pytest.raises(InvalidImageError):
            check_image(descriptor)
    finally:
        os.close(descriptor)


def test_each_byte_of_an_image_counts() -> None:
    """A change is refused, or gives an image that the writer makes; then it has another digest."""
    data = bytes_of([ROOT, directory(b"a"), file(b"a/x"), file(b"b"), link(b"c", b"t")])
    digest = hashlib.sha256(data).hexdigest()
    accepted = 0
    for offset in range(SUPERBLOCK_OFFSET, len(data), 3):
        descriptor = descriptor_of(_changed(data, offset, bytes([data[offset] ^ 1])))
        try:
            with pytest.raises(InvalidImageError):
                verify_image(descriptor, digest)
            accepted += check_image(descriptor) != digest
        except InvalidImageError:
            continue
        finally:
            os.close(descriptor)
    assert accepted < 40  # owners, modes, times, sizes and names have other values, too
