"""Disks, the kernel and earlier processes of this host left these: index, attributes, handover, FUSE requests."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from unittest import mock

import msgspec

from headrace.base import volume_owner
from headrace.base.decoding import decode_json
from headrace.base.errors import CorruptIndexError
from headrace.base.model import FILE_ID_MAX, Attributes, FileId, Kind, ObjectMetadata, Version
from headrace.fuse import abi, codec, generations, handover_state
from headrace.fuse.node_ids import NODE_SHIFT
from headrace.overlay import marks, object_metadata
from headrace.overlay.mark_names import MARKS
from headrace.s3 import object_attributes, uploads
from headrace.store import index_checkpoint, schema, written_bytes
from headrace.store.block_map import BlockMap, map_bytes
from headrace.store.checksum import block_checksum
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

_FILE = os.memfd_create("headrace-fuzz", os.MFD_CLOEXEC)
_TOKEN = '"0123456789abcdef0123456789abcdef-12"'
_VERSION = Version(5 << 20, 1_700_000_000_000_000_000, _TOKEN)
_CACHED = schema.CachedFile(
    FileId(7), 0, 5 << 20, 5, _TOKEN, True, False, False, False, 17, 18, content_type_code=3
)
_BLOCKS_BYTES = 5 << 20
_SLOTS = 8
_RELEASES_AT = 64 + _SLOTS * 16
_NAMES_AT = _RELEASES_AT + 512
_GENERATIONS_AT = _NAMES_AT + 128
_GENERATIONS_BYTES = generations._HEAD_BYTES + _SLOTS * generations._SLOT_BYTES
_EXCHANGES_AT = _GENERATIONS_AT + _GENERATIONS_BYTES
"""The size of a small handover state: a real one has 65536 slots, and takes 0.1 s to read."""


def _index_values(data: bytes) -> None:
    """A value of the index. It is the node's own file, behind checksums of its file system: one that is cut off is a
    ValueError or a struct.error, and hurts nobody."""
    if len(data) > 2:
        schema.content_type_code_of(data)
    with contextlib.suppress(ValueError, struct.error):
        assert schema.unpack_cached(FileId(7), data).volume < 1 << 16
    entry = schema.unpack_entry(FileId(1), b"name", data)
    assert schema.unpack_entry(
        FileId(1), b"name", schema.pack_entry(entry.kind, entry.id, entry.version)
    ).version


def _checkpoint(data: bytes) -> None:
    """Read the file that an index is restored from after a power loss."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("data.mdb", bytes(2 * index_checkpoint.PAGE_BYTES)), ("checkpoint", data)):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(content)
        index_checkpoint.restore(folder, "boot")
    index_checkpoint.newest_of(data)


def _block_map(data: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        blocks = BlockMap(file.fileno(), _BLOCKS_BYTES, 7, writable=False)
        for block in range(blocks.blocks):
            blocks.has(block)
            blocks.checksum(block)
        assert blocks.count() <= blocks.blocks + 64
        blocks.close()


def _attributes(data: bytes) -> None:
    """Extended attributes of files of the layer: of one that a user, or an earlier release, wrote."""
    for name in (MARKS.extras, MARKS.base, MARKS.s3):
        with contextlib.suppress(OSError):  # longer than the file system keeps
            os.setxattr(_FILE, name, data)
    stat = os.stat(_FILE)
    extras = object_metadata.extras_of(_FILE, stat)
    assert extras is None or isinstance(extras, ObjectMetadata)
    marks.base_version(_FILE, b"/a")
    assert object_attributes.attributes_of(stat, _FILE).size_bytes == stat.st_size


def _handover(data: bytes) -> None:
    """Read the memfd that sessions hand on: its beginning is the input, the rest zeros. It is of the node's own making,
    so that only what a killed session may leave is refused silently."""
    with (
        mock.patch.multiple(generations, SLOTS=_SLOTS, BYTES=_GENERATIONS_BYTES),
        mock.patch.multiple(
            handover_state,
            SLOTS=_SLOTS,
            _RELEASES_AT=_RELEASES_AT,
            _NAMES_AT=_NAMES_AT,
            _GENERATIONS_AT=_GENERATIONS_AT,
            _EXCHANGES_AT=_EXCHANGES_AT,
            BYTES=_EXCHANGES_AT + handover_state._REQUESTS_BYTES,
        ),
    ):
        _hand_over(data)


def _hand_over(data: bytes) -> None:
    fd = handover_state.create()
    try:
        os.pwrite(fd, data[: handover_state.BYTES], 0)
        state = handover_state.HandoverState(fd)
        for slot, _, _, opens in state.inherited_slots():
            assert 0 <= slot < handover_state.SLOTS and opens >= 0
        assert state.raise_incarnation(state.incarnation + 1) > 0
        state.releases.record(5)
        state.exchanges.record(5)
        assert len(state.kept_names) <= handover_state.NAMES_BYTES_MAX
        _use_generations(state.generations)
    finally:
        os.close(fd)


def _use_generations(kept: generations.Generations) -> None:
    assert 0 < kept.begin_at(3) < 1 << 32
    for inode in (1, 5):
        newest = kept.node_of(inode)
        later = kept.renew(newest, is_known=True, is_counted=True)
        assert (later ^ newest) >> NODE_SHIFT and (later ^ newest) & FILE_ID_MAX == 0
        assert kept.is_newest(later) and not kept.is_newest(newest)
        kept.learn(later)
        kept.forget(later)
        assert kept.node_of(inode) == later and 0 <= kept.generation_of(later) < 1 << 16


def _fuse(data: bytes) -> None:
    """A request of the kernel, in a buffer of full length."""
    request = bytearray(data[: abi.REQUEST_BYTES_MAX].ljust(abi.REQUEST_BYTES_MAX, b"\0"))
    offered = codec.decode_init(bytes(request[:80]))
    assert offered.flags < 1 << 64
    first, second = codec.decode_names(request)
    assert b"\0" not in first + second
    for layout in (abi.SETATTR_IN, abi.WRITE_IN, abi.FALLOCATE_IN, abi.SETXATTR_IN, abi.RENAME2_IN):
        layout.unpack_from(request, 40)
    os.major(codec.decode_device(abi.MKNOD_IN.unpack_from(request, 40)[1]))


def _upload(data: bytes) -> None:
    """about.json of an upload in parts."""
    about = decode_json(data, uploads.About)
    msgspec.json.encode(about)


_MSGPACK = mutate_tree(msgspec.msgpack.decode, msgspec.msgpack.encode)
_META = bytes(16) + index_checkpoint._META.pack(index_checkpoint._META_MAGIC, index_checkpoint._META_VERSION)
_PAGE = _META.ljust(index_checkpoint.PAGE_BYTES, b"\0")
_BOOT = b"other".ljust(64, b"\0")
_KEPT = index_checkpoint._HEADER.pack(b"HRCHECK1", block_checksum(_BOOT + _PAGE), _BOOT) + _PAGE
_MAP = b"HRMAP\0\0\1" + b"".join(number.to_bytes(8, "little") for number in (_BLOCKS_BYTES, 7, 5))
_RECORD = ["etag", 3, 0, "", None, []]


def _written_bytes(data: bytes) -> None:
    """Decode the counts of bytes that were written to a volume."""
    assert written_bytes.decode_record(data).total >= 0


def _volume_record(data: bytes) -> None:
    """Decode what a volume says of itself."""
    record = volume_owner.decode_record(data)
    assert volume_owner.decode_record(msgspec.json.encode(record)) == record


FUZZERS = [
    Fuzzer(
        "volume-records",
        "which volume of which cache a directory is (base/volume_owner.py)",
        _volume_record,
        (msgspec.DecodeError,),
        [
            b"ab" * 16 + b"\n",
            msgspec.json.encode(volume_owner.VolumeRecord("ab" * 16, 0, {1: "/nvme1", 2: "/nvme2"})),
        ],
        input_bytes_max=1024,
    ),
    Fuzzer(
        "written-bytes",
        "the counts of written bytes beside a volume (store/written_bytes.py)",
        _written_bytes,
        (msgspec.DecodeError,),
        [msgspec.json.encode(written_bytes.WrittenRecord(5, {480_000: 3, 480_001: 2}))],
        input_bytes_max=1024,
    ),
    Fuzzer(
        "index-values",
        "values of the index (store/schema.py)",
        _index_values,
        (ValueError, struct.error),
        [
            schema.pack_entry(Kind.FILE, 5, _VERSION),
            schema.pack_entry(Kind.FILE, 5, _VERSION, Attributes(5, 0o644, 0, 0)),
            schema.pack_cached(_CACHED),
        ],
    ),
    Fuzzer(
        "index-checkpoint",
        "what an index is restored from after a power loss (store/index_checkpoint.py)",
        _checkpoint,
        (CorruptIndexError,),
        [_KEPT],
        input_bytes_max=8192,
    ),
    Fuzzer(
        "block-maps",
        "the map beside a cache file (store/block_map.py)",
        _block_map,
        (ValueError,),
        [_MAP.ljust(map_bytes(5), b"\x05")],
    ),
    Fuzzer(
        "attributes",
        "extended attributes of the upper layer (overlay/object_metadata.py, overlay/marks.py)",
        _attributes,
        (),
        [
            msgspec.msgpack.encode([0, None, {"a": "b"}, {"Content-Type": "x"}, None]),
            msgspec.msgpack.encode([marks.BaseVersion(b"/a", _VERSION)]),
            json.dumps(_RECORD).encode(),
            msgspec.json.encode(object_attributes.Record("etag", 0, 0)),
        ],
        mutate=_MSGPACK,
        input_bytes_max=2048,
    ),
    Fuzzer(
        "handover",
        "what a session hands on to the next one (fuse/handover_state.py)",
        _handover,
        (),
        [
            handover_state._HEAD.pack(b"HRFUSE2\0", 5, 7, b"passthrough").ljust(64, b"\0")
            + handover_state._SLOT.pack(5, 6, 7),
            handover_state._HEAD.pack(b"HRFUSE2\0", 5, 7, b"passthrough").ljust(_GENERATIONS_AT, b"\0")
            + struct.pack("<4Q", 1, 3, 5, 1 << 32 | 0xFFFFFFFF),
        ],
        input_bytes_max=1024,
    ),
    Fuzzer(
        "fuse-requests",
        "requests of the kernel (fuse/codec.py, fuse/abi.py)",
        _fuse,
        (ValueError,),
        [abi.IN_HEADER.pack(80, 1, 1, 1, 0, 0, 0, 0, 0) + b"first\0second\0"],
    ),
    Fuzzer(
        "uploads",
        "what is kept of an upload in parts (s3/uploads.py)",
        _upload,
        (msgspec.DecodeError,),
        [msgspec.json.encode(uploads.About(b"/b", b"/b/k", 1.5, "17.5", ObjectMetadata({"a": "b"})))],
        mutate=mutate_tree(json.loads, lambda tree: json.dumps(tree).encode()),
    ),
]
