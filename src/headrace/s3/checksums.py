"""Compute checksums of objects as S3 defines them: of a whole object, or of the checksums of its parts.

Source: "Checking object integrity for data uploads" of the Amazon S3 User Guide. The CRC of a whole object is
combined from those of its parts. A SHA can't be combined, so the checksum of an upload in parts is then COMPOSITE,
followed by the number of parts.
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
"""Size of a digest in bytes, by algorithm."""
FULL_OBJECT, COMPOSITE = "FULL_OBJECT", "COMPOSITE"
_CRCS = ("crc32", "crc32c", "crc64nvme")


class Hash(Protocol):
    """Computes a digest, as the objects of hashlib do."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class Checksum(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Holds one checksum of an object. `value` is base64, followed by -N where it is COMPOSITE of N parts."""

    algorithm: str
    value: str
    kind: str = FULL_OBJECT

    @property
    def element(self) -> str:
        """Return the name of its XML element."""
        return f"Checksum{self.algorithm.upper()}"

    def headers(self) -> list[tuple[str, str]]:
        return [(f"x-amz-checksum-{self.algorithm}", self.value), ("x-amz-checksum-type", self.kind)]


class ChecksumRequest(msgspec.Struct, frozen=True):
    """Names the checksum that an upload in parts requests. `algorithm` is "" for none."""

    algorithm: str = ""
    kind: str = ""


class _Crc:
    """Accumulates a CRC. `step` maps (data, the sum so far) to the new sum."""

    def __init__(self, step: Callable[[bytes, int], int], size_bytes: int) -> None:
        self._step, self._size_bytes = step, size_bytes
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size_bytes, "big")


def make_checksum(algorithm: str) -> Hash:
    """Return a hash of one of ALGORITHMS. Raises NotImplemented where its library is not installed."""
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
    """Raise InvalidRequest for a COMPOSITE checksum of a put in one piece, which has no parts."""
    kind = request.header("x-amz-checksum-type", FULL_OBJECT).upper()
    if kind != FULL_OBJECT:
        raise S3Error("InvalidRequest", f"x-amz-checksum-type of an object in one piece is {FULL_OBJECT}")


def checksum_request_of(request: Request) -> ChecksumRequest:
    """Return the checksum that a CreateMultipartUpload requests. Raises InvalidRequest for combinations that S3
    lacks."""
    algorithm = request.header("x-amz-checksum-algorithm").lower()
    kind = request.header("x-amz-checksum-type").upper()
    if not algorithm:
        if kind:
            raise S3Error("InvalidRequest", "x-amz-checksum-type needs x-amz-checksum-algorithm")
        return ChecksumRequest()
    if algorithm not in ALGORITHMS:
        raise S3Error("InvalidRequest", "Checksum algorithm provided is unsupported.")
    kind = kind or (FULL_OBJECT if algorithm == "crc64nvme" else COMPOSITE)
    is_allowed = algorithm in _CRCS if kind == FULL_OBJECT else kind == COMPOSITE and algorithm != "crc64nvme"
    if not is_allowed:
        raise S3Error("InvalidRequest", f"x-amz-checksum-type {kind} can't be used with {algorithm}")
    make_checksum(algorithm)
    if kind == FULL_OBJECT:
        _library(algorithm)
    return ChecksumRequest(algorithm, kind)


def checksum_of_parts(requested: ChecksumRequest, parts: Sequence[tuple[int, Checksum]]) -> Checksum:
    """Return the checksum of an object from the (size in bytes, checksum) of its parts, in order; at least one."""
    digests = [base64.b64decode(checksum.value) for _, checksum in parts]
    if requested.kind == COMPOSITE:
        hasher = make_checksum(requested.algorithm)
        hasher.update(b"".join(digests))
        return Checksum(requested.algorithm, f"{text_of(hasher.digest())}-{len(parts)}", COMPOSITE)
    combine = getattr(_library(requested.algorithm), f"combine_{requested.algorithm}")
    value = int.from_bytes(digests[0], "big")
    for (size_bytes, _), digest in zip(parts[1:], digests[1:], strict=True):
        value = combine(value, int.from_bytes(digest, "big"), size_bytes)
    return Checksum(requested.algorithm, text_of(value.to_bytes(ALGORITHMS[requested.algorithm], "big")))


def without_checksums(request: Request) -> Request:
    headers = {
        name: value for name, value in request.headers.items() if not name.startswith("x-amz-checksum-")
    }
    return msgspec.structs.replace(request, headers=headers)


def check_completed(
    request: Request, requested: ChecksumRequest, checksum: Checksum | None, size_bytes: int
) -> None:
    """Check what a completion names against the object's checksum, kind and size. Raises InvalidRequest or
    BadDigest."""
    kind, size = request.header("x-amz-checksum-type").upper(), request.header("x-amz-mp-object-size")
    if kind and kind != requested.kind:
        raise S3Error(
            "InvalidRequest", f"x-amz-checksum-type is {kind}, but the upload's is {requested.kind or 'none'}"
        )
    if size and size != str(size_bytes):
        raise S3Error(
            "InvalidRequest", f"x-amz-mp-object-size is {size}, but the parts have {size_bytes} bytes"
        )
    for algorithm in ALGORITHMS:
        expected = request.header(f"x-amz-checksum-{algorithm}")
        if expected and checksum is None:
            raise S3Error("InvalidRequest", "the upload was created without x-amz-checksum-algorithm")
        if expected and checksum is not None:
            bare = checksum.value.partition("-")[0]
            if algorithm != checksum.algorithm or expected not in (checksum.value, bare):
                raise S3Error(
                    "BadDigest",
                    f"The {algorithm.upper()} you specified did not match the calculated checksum.",
                )
