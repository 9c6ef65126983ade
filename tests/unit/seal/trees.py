"""Entries of images for tests, and strategies that make them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable

from hypothesis import strategies as st

from headrace.seal.erofs import FILE_BYTES_MAX, ImageEntry
from headrace.seal.reader import read_entries
from headrace.seal.writer import write_image

DIRECTORY, FILE, LINK = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
ROOT = ImageEntry(b"", DIRECTORY, 0, 0, 0, 7, b"")
TARGET = b"/04/000000000004"


def directory(path: bytes, mtime_ns: int = 5) -> ImageEntry:
    return ImageEntry(path, DIRECTORY, 0, 1, 2, mtime_ns, b"")


def file(path: bytes, size_bytes: int = 3, mtime_ns: int = 10**18 + 1, target: bytes = TARGET) -> ImageEntry:
    return ImageEntry(path, FILE, size_bytes, 1000, 1001, mtime_ns, target)


def link(path: bytes, target: bytes) -> ImageEntry:
    return ImageEntry(path, LINK, 0, 0, 0, 9, target)


def in_order(entries: Iterable[ImageEntry]) -> list[ImageEntry]:
    """Sort as a walk does, with the root first."""
    return [ROOT, *sorted(entries, key=lambda entry: entry.path.split(b"/"))]


def image_of(entries: Iterable[ImageEntry]) -> tuple[int, str]:
    """Return a descriptor of an image without a name, and its digest."""
    descriptor = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600)
    return descriptor, write_image(entries, descriptor)


def bytes_of(entries: Iterable[ImageEntry]) -> bytes:
    descriptor, _ = image_of(entries)
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def read_back(entries: Iterable[ImageEntry]) -> list[ImageEntry]:
    descriptor, _ = image_of(entries)
    try:
        return list(read_entries(descriptor))
    finally:
        os.close(descriptor)


def descriptor_of(data: bytes | bytearray) -> int:
    descriptor = os.memfd_create("image")
    os.write(descriptor, data)
    return descriptor


def _long_names(count: int, name_bytes: int, prefix: bytes = b"n") -> list[ImageEntry]:
    return [file(prefix + b"%0*d" % (name_bytes - len(prefix), number)) for number in range(count)]


def _chain(depth: int) -> list[ImageEntry]:
    """Return directories within one another, and a file in each."""
    paths = [b"/".join([b"d"] * level) for level in range(1, depth + 1)]
    return [directory(path) for path in paths] + [file(path + b"/e") for path in paths]


SHAPES = {
    "empty": [],
    "empty directories": [directory(b"a"), directory(b"a/b"), directory(b"c")],
    "sizes": [file(b"%d" % size, size) for size in (1, 4095, 4096, 4097, 2**32, 2**40, FILE_BYTES_MAX)],
    "empty files": [file(b"a", 0), file(b"b", 0, target=b"")],
    "names before dots": [*_long_names(500, 20, b"!"), *_long_names(3, 20, b".-"), *_long_names(3, 9)],
    "a name between dots": [file(b".-"), directory(b"d"), file(b"d/.!"), file(b"d/...")],
    "long names": _long_names(100, 255),
    "times": [file(b"a", mtime_ns=-1), file(b"b", mtime_ns=-1), file(b"c", mtime_ns=0), file(b"d", mtime_ns=2**62)],
    "links": [link(b"%d" % count, b"t" * count) for count in (1, 100, 4031, 4032, 4033, 4063, 4064, 4095)],
    "sorted by part": [directory(b"a"), file(b"a/x"), file(b"a-b"), file(b"a.b")],
    "300 deep": _chain(300),
    **{f"{count} entries": _long_names(count, 28) for count in range(96, 104)},
    **{f"{size} bytes of names": _long_names(15, size) for size in range(245, 256)},
    "more links than 16 bits": [
        file(b"a", mtime_ns=5), directory(b"d"), *(directory(b"d/%06d" % number) for number in range(65_534)),
    ],
}  # fmt: skip


_TIMES = st.sampled_from([0, 5, -1, 10**18 + 1]) | st.integers(-(2**62), 2**62)
_IDS = st.sampled_from([0, 65535, 65536, 2**32 - 2])
_SIZES = st.sampled_from([0, 1, 4096, 2**32 - 1, 2**32, 2**40, FILE_BYTES_MAX]) | st.integers(
    0, FILE_BYTES_MAX
)
_BITS = st.integers(0, 0o7777)
_NAMES = st.one_of(
    st.sampled_from(
        [
            b"!",
            b"-",
            b".-",
            b"...",
            b".a",
            b"a",
            b"a-b",
            "\N{SNOWMAN}é".encode(),
            b"\xff",
            b"n" * 255,
        ]
    ),
    st.binary(min_size=1, max_size=20)
    .map(lambda name: name.translate(bytes.maketrans(b"\0/", b"xy")))
    .filter(lambda name: name not in (b".", b"..")),
)


def _files(path: bytes) -> st.SearchStrategy[ImageEntry]:
    targets = st.sampled_from([TARGET, b"/x", b"/" + b"d" * 254])
    return st.builds(
        lambda bits, *values: ImageEntry(path, stat.S_IFREG | bits, *values),
        _BITS,
        _SIZES,
        _IDS,
        _IDS,
        _TIMES,
        targets,
    )


def _links(path: bytes) -> st.SearchStrategy[ImageEntry]:
    targets = st.integers(1, 4095).map(lambda count: b"t" * count)
    return st.builds(
        lambda uid, time, target: ImageEntry(path, LINK, 0, uid, 0, time, target), _IDS, _TIMES, targets
    )


@st.composite
def trees(draw: st.DrawFn) -> list[ImageEntry]:
    """Return the entries of a random tree, in the order of a walk."""
    entries: list[ImageEntry] = []
    pending = [b""]
    for _ in range(draw(st.integers(0, 20))):
        parent = draw(st.sampled_from(pending))
        name = draw(_NAMES)
        path = parent + b"/" + name if parent else name
        if len(path) > 2000 or path in (entry.path for entry in entries):
            continue
        kind = draw(st.sampled_from(["file", "file", "directory", "link"]))
        if kind == "directory":
            entries.append(ImageEntry(path, stat.S_IFDIR | draw(_BITS), 0, draw(_IDS), 3, draw(_TIMES), b""))
            pending.append(path)
        else:
            entries.append(draw(_files(path) if kind == "file" else _links(path)))
    return in_order(entries)
