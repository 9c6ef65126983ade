"""Checksums of objects as S3 has them: of a whole object, or of the checksums of its parts.

Source: "Checking object integrity for data uploads" of the Amazon S3 User Guide. A CRC of the whole object is put
together from those of its parts; of a SHA that can't be done, so that it is COMPOSITE, with the number of parts behind.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from headrace.base.missing_extras import missing_extra
from headrace.http.messages import Request
from headrace.s3.errors import S3Error

ALGORITHMS = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}
"""With the bytes of each."""
FULL_OBJECT, COMPOSITE = "FULL_OBJECT", "COMPOSITE"
_CRCS = ("crc32", "crc32c", "crc64nvme")


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Checksum(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """value: base64, followed by -N where it is COMPOSITE of N parts."""

    algorithm: str
    value: str
    kind: str = FULL_OBJECT

    @property
    def element(self) -> str:
        """As XML names it."""
        return f"Checksum{self.algorithm.upper()}"

    def headers(self) -> list[tuple[str, str]]:
        return [(f"x-amz-checksum-{self.algorithm}", self.value), ("x-amz-checksum-type", self.kind)]


class ChecksumRequest(msgspec.Struct, frozen=True):
    """What an upload in parts is to have. algorithm: "" for none."""

    algorithm: str = ""
    kind: str = ""


class _Crc:
    """step: (data, the sum so far) → the sum."""

    def __init__(self, step: Callable[[bytes, int], int], size_bytes: int) -> None:
        self._step, self._size_bytes = step, size_bytes
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size_bytes, "big")


def make_checksum(algorithm: str) -> Hash:
    """One of ALGORITHMS. NotImplemented where the library for it is not installed."""
    if algorithm == "crc32":
        return _Crc(zlib.crc32, 4)
    if algorithm in ("sha1", "sha256"):
        return hashlib.new(algorithm, usedforsecurity=False)
    return _Crc(getattr(_library(algorithm), algorithm), ALGORITHMS[algorithm])


def _library(algorithm: str) -> Any:
    try:
        from awscrt import checksums
    except ImportError:
        raise S3Error("NotImplemented", str(missing_extra("awscrt", algorithm, extra="s3"))) from None
    return checksums


def text_of(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def check_kind_of_put(request: Request) -> None:
    """InvalidRequest for a put in one piece that is to be COMPOSITE: it has no parts."""
    kind = request.header("x-amz-checksum-type", FULL_OBJECT).upper()
    if kind != FULL_OBJECT:
        raise S3Error("InvalidRequest", f"x-amz-checksum-type of an object in one piece is {FULL_OBJECT}")


def wish_of(request: Request) -> ChecksumRequest:
    """Of CreateMultipartUpload. InvalidRequest for what S3 does not have either."""
    algorithm = request.header("x-amz-checksum-algorithm").lower()
    kind = request.header("x-amz-checksum-type").upper()
    if not algorithm:
        if kind:
            raise S3Error("InvalidRequest", "x-amz-checksum-type needs x-amz-checksum-algorithm")
        return ChecksumRequest()
    if algorithm not in ALGORITHMS:
        raise S3Error("InvalidRequest", "Checksum algorithm provided is unsupported.")
    kind = kind or (FULL_OBJECT if algorithm == "crc64nvme" else COMPOSITE)
    fits = algorithm in _CRCS if kind == FULL_OBJECT else kind == COMPOSITE and algorithm != "crc64nvme"
    if not fits:
        raise S3Error("InvalidRequest", f"x-amz-checksum-type {kind} can't be used with {algorithm}")
    make_checksum(algorithm)
    if kind == FULL_OBJECT:
        _library(algorithm)
    return ChecksumRequest(algorithm, kind)


def of_parts(wish: ChecksumRequest, parts: Sequence[tuple[int, Checksum]]) -> Checksum:
    """parts: size in bytes and checksum of each, in order; one at least."""
    digests = [base64.b64decode(checksum.value) for _, checksum in parts]
    if wish.kind == COMPOSITE:
        whole = make_checksum(wish.algorithm)
        whole.update(b"".join(digests))
        return Checksum(wish.algorithm, f"{text_of(whole.digest())}-{len(parts)}", COMPOSITE)
    combine = getattr(_library(wish.algorithm), f"combine_{wish.algorithm}")
    value = int.from_bytes(digests[0], "big")
    for (size_bytes, _), digest in zip(parts[1:], digests[1:], strict=True):
        value = combine(value, int.from_bytes(digest, "big"), size_bytes)
    return Checksum(wish.algorithm, text_of(value.to_bytes(ALGORITHMS[wish.algorithm], "big")))


def without_checksums(request: Request) -> Request:
    headers = {
        name: value for name, value in request.headers.items() if not name.startswith("x-amz-checksum-")
    }
    return msgspec.structs.replace(request, headers=headers)


def check_completed(request: Request, wish: ChecksumRequest, whole: Checksum | None, size_bytes: int) -> None:
    """What a completion says of the object, against what it is. InvalidRequest, BadDigest."""
    kind, size = request.header("x-amz-checksum-type").upper(), request.header("x-amz-mp-object-size")
    if kind and kind != wish.kind:
        raise S3Error(
            "InvalidRequest", f"x-amz-checksum-type is {kind}, and of the upload {wish.kind or 'none'}"
        )
    if size and size != str(size_bytes):
        raise S3Error("InvalidRequest", f"x-amz-mp-object-size is {size}, and the parts have {size_bytes}")
    for algorithm in ALGORITHMS:
        given = request.header(f"x-amz-checksum-{algorithm}")
        if given and whole is None:
            raise S3Error("InvalidRequest", "the upload was begun without x-amz-checksum-algorithm")
        if given and whole is not None:
            bare = whole.value.partition("-")[0]
            if algorithm != whole.algorithm or given not in (whole.value, bare):
                raise S3Error(
                    "BadDigest",
                    f"The {algorithm.upper()} you specified did not match the calculated checksum.",
                )
