"""The bytes of the index: keys, values, their meaning. This module is the authority; docs/format/ explains the
commits.

All integers are big-endian in keys (so that they sort) and little-endian in values. Format 1.

    entries:     parent(8) name        → entry value
    names:       id(8)                 → parent(8) name
    directories: id(8)                 → number of the boot, and until when in it the listing is fresh(8)
    files:       id(8)                 → cached value
    mounts:      path                  → msgpack map of url and options
    meta:        word                  → value
"""

from __future__ import annotations

import struct

import msgspec

from headrace.base.model import Attributes, Entry, FileId, Kind, Version

FORMAT = 1

KEY = struct.Struct(">Q")
_ENTRY = struct.Struct("<BQQq")  # kind | token form << 4 | HAS_ATTRIBUTES, id, size, mtime_ns; then the token
_ATTRIBUTES = struct.Struct("<qIII")  # between them, with HAS_ATTRIBUTES: mtime_ns, mode, uid, gid
_CACHED = struct.Struct("<HBQqQQ")  # volume, flags, size, mtime_ns, checksum, sequence; then the token
_CACHED_HEAD = struct.Struct("<HB")

HAS_ATTRIBUTES = 128
COMPLETE, PINNED, UNVERIFIED, SUPERSEDED, BORROWED, SUNK = 1, 2, 4, 8, 64, 128
"""Bits 4 and 5 are the form of the token."""

_RAW, _MD5, _MD5_PARTS = 0, 1, 2
_CODE_AT = (1 << 30, _CACHED.size + 16, _CACHED.size + 18, 1 << 30)
"""The offset of the content type code behind the token, by the token's form. A raw token extends to the end of the
value. Older releases ignore the code."""


KIND_BITS = 15
KIND_FILE = int(Kind.FILE)
entry_head = _ENTRY.unpack_from
"""Unpack an entry's value: the kind (in KIND_BITS), id, size, mtime_ns. A hit needs no other field, and calls of Python
functions cost time: these two are none."""
cached_head = _CACHED_HEAD.unpack_from
"""Unpack a cached value: volume and flags."""


FOREVER_NS = (1 << 63) - 1
_FRESH_MS_BITS = 40
_FRESH_MS_MAX = (1 << _FRESH_MS_BITS) - 1
_BOOTS_MAX = (1 << 20) - 1


def next_boot(number: int) -> int:
    """Return the number of the boot after that one; never 0."""
    return number % _BOOTS_MAX + 1


def fresh_range(boot: int) -> tuple[int, int]:
    """Return the limits of a fresh listing's value, as a number: above the first plus the current milliseconds, and not
    above the second.

    Older releases wrote wall clock time: such a value belongs to no boot. For them, values of this release are in the
    past.
    """
    first = boot << _FRESH_MS_BITS
    return first, first + _FRESH_MS_MAX


def pack_fresh_until(boot: int, until_ns: int) -> bytes:
    """Pack a time of CLOCK_BOOTTIME in that boot, with a precision of a millisecond."""
    return (boot << _FRESH_MS_BITS | min(until_ns // 1_000_000, _FRESH_MS_MAX)).to_bytes(8, "little")


def unpack_fresh_until(boot: int, value: bytes) -> int:
    """Return nanoseconds of CLOCK_BOOTTIME; 1, which is past, for a value of another boot."""
    number, until_ms = divmod(int.from_bytes(value, "little"), 1 << _FRESH_MS_BITS)
    if until_ms == _FRESH_MS_MAX and number == boot:
        return FOREVER_NS
    return max(1, until_ms * 1_000_000) if number == boot else 1


class CachedFile(msgspec.Struct, frozen=True, gc=False):
    """The record of what is cached of one id. checksum: xxh3_64 of a complete file of at most one block, else 0.
    sequence: grows with every completed file; files above the synced one are not trusted after a power loss. borrowed:
    another node owns it. content_type_code: the attributes of the object, by `overlay/content_type_codes.py`; None:
    they are stored at the cache file, or unknown. sunk: it was moved to its volume from a faster tier as it cooled."""

    id: FileId
    volume: int
    size_bytes: int
    mtime_ns: int
    token: str
    complete: bool
    pinned: bool
    unverified: bool
    superseded: bool
    checksum: int
    sequence: int
    borrowed: bool = False
    content_type_code: int | None = None
    sunk: bool = False

    @classmethod
    def of(
        cls,
        entry: Entry,
        *,
        volume: int,
        sequence: int,
        complete: bool,
        checksum: int = 0,
        borrowed: bool = False,
        content_type_code: int | None = None,
    ) -> CachedFile:
        """Return the record of a new file."""
        version = entry.version
        return cls(
            id=entry.id,
            volume=volume,
            size_bytes=version.size_bytes,
            mtime_ns=version.mtime_ns,
            token=version.token,
            complete=complete,
            pinned=False,
            unverified=False,
            superseded=False,
            checksum=checksum,
            sequence=sequence,
            borrowed=borrowed,
            content_type_code=content_type_code,
        )

    @property
    def trusted(self) -> bool:
        return self.complete and not self.unverified


def entry_key(parent: int, name: bytes) -> bytes:
    return KEY.pack(parent) + name


def pack_entry(kind: Kind, id: int, version: Version, attributes: Attributes | None = None) -> bytes:
    form, token = _pack_token(version.token)
    attribute_bytes = _pack_attributes(attributes)
    head = kind | form << 4 | (HAS_ATTRIBUTES if attribute_bytes else 0)
    return _ENTRY.pack(head, id, version.size_bytes, version.mtime_ns) + attribute_bytes + token


def unpack_entry(parent: FileId, name: bytes, value: bytes) -> Entry:
    kind, id, size_bytes, mtime_ns = _ENTRY.unpack_from(value)
    if kind & HAS_ATTRIBUTES:
        attributes = Attributes(*_ATTRIBUTES.unpack_from(value, _ENTRY.size))
        token = _unpack_token(kind >> 4 & 3, value[_ENTRY.size + _ATTRIBUTES.size :])
        return Entry(
            FileId(id), parent, name, Kind(kind & 15), Version(size_bytes, mtime_ns, token), attributes
        )
    token = _unpack_token(kind >> 4, value[_ENTRY.size :])
    return Entry(FileId(id), parent, name, Kind(kind & 15), Version(size_bytes, mtime_ns, token))


def _pack_attributes(attributes: Attributes | None) -> bytes:
    """Return the attributes' bytes; b"" if one of them is unknown or exceeds its field."""
    if attributes is None:
        return b""
    values = (attributes.mtime_ns, attributes.mode, attributes.uid, attributes.gid)
    if any(value is None for value in values):
        return b""
    try:
        return _ATTRIBUTES.pack(*values)
    except struct.error:
        return b""


def pack_cached(cached: CachedFile) -> bytes:
    flags = (
        COMPLETE * cached.complete
        | PINNED * cached.pinned
        | UNVERIFIED * cached.unverified
        | SUPERSEDED * cached.superseded
        | BORROWED * cached.borrowed
        | SUNK * cached.sunk
    )
    form, token = _pack_token(cached.token)
    head = _CACHED.pack(
        cached.volume, flags | form << 4, cached.size_bytes, cached.mtime_ns, cached.checksum, cached.sequence
    )
    code = cached.content_type_code
    return head + token if code is None or form == _RAW else head + token + bytes((code,))


def unpack_cached(id: FileId, value: bytes) -> CachedFile:
    volume, flags, size_bytes, mtime_ns, checksum, sequence = _CACHED.unpack_from(value)
    return CachedFile(
        id,
        volume,
        size_bytes,
        mtime_ns,
        _unpack_token(flags >> 4 & 3, value[_CACHED.size :]),
        bool(flags & COMPLETE),
        bool(flags & PINNED),
        bool(flags & UNVERIFIED),
        bool(flags & SUPERSEDED),
        checksum,
        sequence,
        bool(flags & BORROWED),
        _code_at(value, flags),
        bool(flags & SUNK),
    )


def _code_at(value: bytes, flags: int) -> int | None:
    end = _CODE_AT[flags >> 4 & 3]
    return value[end] if len(value) > end else None


def can_hold_code(token: str) -> bool:
    """Return whether the record of such a version has space for the content type code: behind a token of fixed length,
    such as an MD5. It guesses by the token's length, which costs nothing; after a wrong guess the code is not
    stored."""
    return len(token) >= 34 and token[0] == '"'


def content_type_code_of(value: bytes) -> int | None:
    """Return the content type code of a cached value."""
    return _code_at(value, value[2])


def _pack_token(token: str) -> tuple[int, bytes]:
    """Return the form and the bytes of a token. An ETag of 32 hex digits in quotes, with or without a part count, takes
    16 or 18 bytes instead of 34 and more."""
    inner = token[1:-1]
    digest, dash, parts = inner.partition("-")
    if (
        len(token) < 34
        or token[0] != '"'
        or token[-1] != '"'
        or len(digest) != 32
        or digest != digest.lower()
    ):
        return _RAW, token.encode()
    try:
        packed = bytes.fromhex(digest)  # which skips spaces
        if len(packed) != 16:
            return _RAW, token.encode()
        if not dash:
            return _MD5, packed
        if str(int(parts)) == parts and 0 <= int(parts) < 65536:
            return _MD5_PARTS, packed + int(parts).to_bytes(2, "little")
    except ValueError:
        pass
    return _RAW, token.encode()


def _unpack_token(form: int, value: bytes) -> str:
    if form == _RAW:
        return value.decode()
    digest = value[:16].hex()
    return f'"{digest}"' if form == _MD5 else f'"{digest}-{int.from_bytes(value[16:18], "little")}"'
