"""Images of seals, of which somebody may have changed any byte. Their checksum is right: whoever changes bytes can
calculate it."""

from __future__ import annotations

import itertools
import os

from headrace.base.errors import InvalidImageError
from headrace.seal import erofs
from headrace.seal.check import check_image
from headrace.seal.reader import read_entries
from tests.fuzz.fuzzer import Fuzzer
from tests.unit.seal.trees import ROOT, bytes_of, descriptor_of, directory, file, in_order, link

_TREES = [
    [ROOT],
    in_order([file(b"a"), file(b"b", 0, target=b""), link(b"c", b"target"), directory(b"d")]),
    in_order([directory(b"d"), *(file(b"d/" + b"n" * 250 + b"%03d" % number) for number in range(30))]),
    in_order(
        [directory(b"d"), directory(b"d/d"), directory(b"d/d/d"), file(b"d/d/d/f", 1 << 40, mtime_ns=5)]
    ),
]


def _check(data: bytes) -> None:
    """The input begins with the superblock. What passes is what the writer makes of its entries."""
    image = bytearray(erofs.SUPERBLOCK_OFFSET) + data
    image[erofs.CHECKSUM_OFFSET : erofs.CHECKSUM_OFFSET + 4] = bytes(4)
    checksum = erofs.superblock_checksum(image)
    image[erofs.CHECKSUM_OFFSET : erofs.CHECKSUM_OFFSET + 4] = checksum.to_bytes(4, "little")
    descriptor = descriptor_of(image)
    try:
        check_image(descriptor)
        entries = list(itertools.islice(read_entries(descriptor), len(image)))
    finally:
        os.close(descriptor)
    assert bytes_of(entries) == image


FUZZERS = [
    Fuzzer(
        "images",
        "images of seals (seal/check.py, seal/reader.py)",
        _check,
        (InvalidImageError,),
        [bytes_of(entries)[erofs.SUPERBLOCK_OFFSET :] for entries in _TREES],
        words=[
            erofs.MAGIC.to_bytes(4, "little"),
            erofs.HOLE,
            erofs.METACOPY,
            erofs.REDIRECT_NAME,
            b"\x24\0\0\0\0\0\0\0",
            b"..",
            b"/../",
            b"\xff" * 8,
        ],
        input_bytes_max=1 << 15,
    ),
]
