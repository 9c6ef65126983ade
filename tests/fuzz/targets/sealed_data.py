"""Content lists and records of seals, and the names that users give them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tempfile
from typing import BinaryIO, cast

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import InvalidImageError, UsageError
from headrace.seal.catalogue import Place, SealId, SealRecord
from headrace.seal.shared import LIST_BYTES_MAX, SharedRecord, decode_record, list_key, read_packed
from headrace.seal.snapshot import MAGIC, SnapshotEntry, read_snapshot
from headrace.seal.unpacked_list import write_unpacked
from headrace.seal.verified import VerifiedImage
from headrace.vfs.sealed_list import SealedList
from tests.fuzz.fuzzer import Fuzzer
from tests.unit.seal.snapshots import TREE, written

SEAL = SealId("a", 1)


def _read_list(data: bytes) -> None:
    """The input begins after the magic. What is read can be written, and read again."""
    entries = list(read_snapshot(io.BytesIO(MAGIC + data)))
    assert list(read_snapshot(io.BytesIO(written(entries)[0]))) == entries
    before: list[list[bytes]] = [entry.path.split(b"/") for entry in entries]
    assert before == sorted(before) and all(b".." not in names for names in before)


def _read_record(data: bytes) -> None:
    """A record names a seal that can be parsed, or another one than its directory."""
    text = data.decode("latin-1")
    try:
        assert str(SealId.parse(text)) == text
    except UsageError:
        pass
    for kind in (SealRecord, list[Place], VerifiedImage):
        try:
            decode_json(data, kind)
        except msgspec.DecodeError:
            continue


def _read_shared(data: bytes) -> None:
    """Check that what is accepted names its own seal, and a directory below the root of a mount."""
    record = decode_record(data, SEAL)
    assert record.seal == SEAL and list_key(record.id).count("/") == 3
    assert ".." not in record.path.split("/") and not record.path.startswith("/")
    assert record.list_bytes <= LIST_BYTES_MAX


def _read_packed(data: bytes) -> None:
    """The record allows as much as a list of the corpus has; what is yielded is never more."""
    record = msgspec.structs.replace(_SHARED, packed_bytes=max(1, len(data)))
    size_bytes = sum(len(entry.path) for entry in read_packed(io.BytesIO(data), record))
    assert size_bytes <= record.list_bytes


def _unpack(data: bytes) -> None:
    """Each name of a list that is unpacked is found by its path, and no other is."""
    body = MAGIC + data
    with tempfile.NamedTemporaryFile() as out:
        write_unpacked(io.BytesIO(body), hashlib.sha256(body).hexdigest(), cast("BinaryIO", out))
        out.flush()
        rows = SealedList(out.name)
    entries = list(read_snapshot(io.BytesIO(body)))
    assert len(rows) == len(entries)
    for position, entry in enumerate(entries):
        assert rows.find(entry.path) == position and rows.entry(position) == entry
        assert rows.find(entry.path + b"/") is None


def _lists() -> list[bytes]:
    lists = [TREE, TREE[:1], TREE[:3], [TREE[0], SnapshotEntry(b"a" * 255, TREE[2].mode, 1 << 62)]]
    lists.append([TREE[0], SnapshotEntry(b"a", TREE[2].mode, 5, checksum=None)])
    return [written(entries)[0][len(MAGIC) :] for entries in lists]


_RECORD = msgspec.json.encode(SealRecord("a", 1, "/a", "0" * 64, "1" * 64, 3, 5, 1.5, 2))
_MARK = msgspec.json.encode(VerifiedImage("a-boot", "1" * 64, 1, 2, 3, 4, 5))
_PLACES = msgspec.json.encode([Place("/mnt/a", in_place=True), Place("/b", shared=True)])

_TREE, _TREE_ID = written(TREE)
_SHARED = SharedRecord(1, "a", 1, "d/e", _TREE_ID, 3, 5, 1.5, len(_TREE), 100)

FUZZERS = [
    Fuzzer(
        "seal-lists",
        "content lists of seals (seal/snapshot.py)",
        _read_list,
        (InvalidImageError,),
        _lists(),
        words=[b"..", b"/", b"\0", b"\xc0", b"\xff\xff", b"\xcf" + b"\xff" * 8],
    ),
    Fuzzer(
        "unpacked-lists",
        "content lists that programs map (seal/unpacked_list.py, vfs/sealed_list.py)",
        _unpack,
        (InvalidImageError,),
        _lists(),
        words=[b"..", b"/", b"\0", b"\xc0", b"\xff\xff", b"\xcf" + b"\xff" * 8],
    ),
    Fuzzer(
        "seal-records",
        "names, records, places and marks of seals (seal/catalogue.py, seal/verified.py)",
        _read_record,
        (),
        [_RECORD, _PLACES, _MARK, b"imagenet@3", b"a@1000000000"],
        words=[b"@", b"..", b"/", b"null", b"1e999", b"[" * 20],
    ),
    Fuzzer(
        "origin-seals",
        "records of seals at an origin (seal/shared.py)",
        _read_shared,
        (InvalidImageError,),
        [msgspec.json.encode(_SHARED), msgspec.json.encode(msgspec.structs.replace(_SHARED, path=""))],
        words=[b"..", b"/", b"\\u0000", b"1e999", b"-1", b"9" * 20, b"null", b"[" * 20],
    ),
    Fuzzer(
        "packed-lists",
        "packed content lists at an origin (seal/shared.py)",
        _read_packed,
        (InvalidImageError,),
        [
            gzip.compress(_TREE, mtime=0),
            gzip.compress(_TREE, 1, mtime=0) * 2,
            gzip.compress(bytes(1 << 20), mtime=0),
        ],
        words=[b"\x1f\x8b\x08", b"\0" * 4, b"\xff\xff"],
    ),
]
