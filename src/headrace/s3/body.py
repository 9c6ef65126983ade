"""Decode and check a request's body, without a socket: aws-chunked framing, signatures of chunks, checksums.

Each layer is an iterator of bytes over another. An error is raised at the end of the iterator at the latest, so a
writer must not name the object before.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator

from headrace.http.admission import WHOLE_BODIES
from headrace.http.body import TRAILERS_MAX, Stream, chunk_size
from headrace.http.messages import Request, is_number
from headrace.s3.checksums import ALGORITHMS, Checksum, Hash, make_checksum, text_of
from headrace.s3.errors import S3Error
from headrace.s3.signature import ChunkSigner

OBJECT_BYTES_MAX = 5 << 30
"""Most bytes of one put, of one part and of a form's file, as in S3."""


def too_large() -> S3Error:
    return S3Error(
        "EntityTooLarge", f"Your proposed upload exceeds the maximum size of {OBJECT_BYTES_MAX} bytes"
    )


class AwsChunks:
    """Decodes the bytes of `Content-Encoding: aws-chunked`. `signer` checks signed chunks; None for unsigned ones.
    `trailers` is complete when the iterator has ended."""

    def __init__(self, stream: Stream, signer: ChunkSigner | None, *, has_trailers: bool) -> None:
        self._stream = stream
        self._signer = signer
        self._has_trailers = has_trailers
        self.trailers: dict[str, str] = {}

    def __iter__(self) -> Iterator[bytes]:
        while True:
            words = self._stream.line().split(b";")
            size = chunk_size(words[0])
            hashed = hashlib.sha256()
            for piece in self._stream.exactly(size):
                if self._signer is not None:
                    hashed.update(piece)
                yield piece
            if self._signer is not None:
                self._signer.check_chunk(_extension(words[1:], b"chunk-signature"), hashed.hexdigest())
            if size == 0:
                break
            if self._stream.line():
                raise S3Error("InvalidRequest", "a chunk of the body is longer than its size")
        self._read_trailers()

    def _read_trailers(self) -> None:
        """Read the trailers. Some clients leave out the empty line at the end where there are no trailers."""
        if not self._has_trailers:
            return
        signature = ""
        for _ in range(TRAILERS_MAX):
            line = self._stream.line()
            if not line:
                break
            name, _, value = line.decode("latin-1").strip().partition(":")
            if name.lower() == "x-amz-trailer-signature":
                signature = value.strip()
            else:
                self.trailers[name.lower()] = value.strip()
        if self._signer is not None:
            self._signer.check_trailer(signature, self.trailers)


def _extension(words: list[bytes], name: bytes) -> str:
    for word in words:
        key, _, value = word.partition(b"=")
        if key.strip() == name:
            return value.strip().decode("latin-1")
    return ""


class Payload:
    """Yields a request's decoded bytes, and checks them against the request's length and checksums. `payload_hash` is
    the request's x-amz-content-sha256 (signature.payload_hash_of), or "". `signer` checks signed chunks. `also` names
    a checksum to calculate even if the request has none."""

    def __init__(
        self,
        request: Request,
        pieces: Iterator[bytes],
        payload_hash: str,
        signer: ChunkSigner | None,
        *,
        also: str = "",
    ) -> None:
        self.md5 = hashlib.md5(usedforsecurity=False)
        self.size_bytes = 0
        self._held_bytes = 0
        self._payload_hash = payload_hash
        if request.headers.get("content-md5") == "":
            raise S3Error("InvalidDigest", "content-md5 is empty")
        self._md5_expected = _from_base64(request.header("content-md5"), 16, "content-md5")
        self._sums: dict[str, Hash] = {}
        self._expected: dict[str, str] = {}
        self._chunks: AwsChunks | None = None
        self._announced_trailer = request.header("x-amz-trailer").lower()
        self._declared_bytes = _decoded_length(request)
        if payload_hash.startswith("STREAMING-"):
            self._chunks = AwsChunks(Stream(pieces), signer, has_trailers=payload_hash.endswith("-TRAILER"))
            self._pieces: Iterator[bytes] = iter(self._chunks)
        else:
            self._pieces = pieces
        self._sha256 = hashlib.sha256() if _is_hex(payload_hash) else None
        for name in ALGORITHMS:
            expected = request.header(f"x-amz-checksum-{name}")
            if expected or name == also or self._announced_trailer == f"x-amz-checksum-{name}":
                self._sums[name] = make_checksum(name)
                self._expected[name] = expected

    def __iter__(self) -> Iterator[bytes]:
        hashes: list[Hash] = [self.md5, *self._sums.values()]
        if self._sha256 is not None:
            hashes.append(self._sha256)
        for piece in self._pieces:
            self.size_bytes += len(piece)
            if self.size_bytes > OBJECT_BYTES_MAX:
                raise too_large()
            for hasher in hashes:
                hasher.update(piece)
            yield piece
        self._check()

    def read_all(self, bytes_max: int) -> bytes:
        """Read a small body as a whole; `release` releases its memory. Raises EntityTooLarge or SlowDown."""
        parts = []
        for piece in self:
            if self._held_bytes + len(piece) > bytes_max:
                raise S3Error("EntityTooLarge", f"the body has more than {bytes_max} bytes")
            if not WHOLE_BODIES.reserve(len(piece)):
                raise S3Error("SlowDown", "Please reduce your request rate.")
            self._held_bytes += len(piece)
            parts.append(piece)
        return b"".join(parts)

    def release(self) -> None:
        """Release the memory of the body that was read."""
        WHOLE_BODIES.release(self._held_bytes)
        self._held_bytes = 0

    def checksums(self) -> list[Checksum]:
        """Return all checksums that were checked or requested, once the bytes have ended."""
        return [Checksum(name, text_of(hasher.digest())) for name, hasher in self._sums.items()]

    def _check(self) -> None:
        if self._declared_bytes is not None and self._declared_bytes != self.size_bytes:
            raise S3Error(
                "IncompleteBody", f"the body has {self.size_bytes} bytes, not {self._declared_bytes}"
            )
        if self._sha256 is not None and self._sha256.hexdigest() != self._payload_hash:
            raise S3Error("XAmzContentSHA256Mismatch", "x-amz-content-sha256 is not the hash of the body")
        if self._md5_expected is not None and self._md5_expected != self.md5.digest():
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received.")
        trailers = self._chunks.trailers if self._chunks is not None else {}
        for name, hasher in self._sums.items():
            text = self._expected[name] or trailers.get(f"x-amz-checksum-{name}", "")
            expected = _from_base64(text, len(hasher.digest()), f"x-amz-checksum-{name}")
            if expected is None and self._announced_trailer == f"x-amz-checksum-{name}":
                raise S3Error(
                    "InvalidRequest", f"the trailer {self._announced_trailer} was announced but not sent"
                )
            if expected is not None and expected != hasher.digest():
                raise S3Error(
                    "BadDigest", f"The {name.upper()} you specified did not match what we received."
                )


def _is_hex(payload_hash: str) -> bool:
    return len(payload_hash) == 64 and not payload_hash.startswith("STREAMING-")


def _decoded_length(request: Request) -> int | None:
    text = request.header("x-amz-decoded-content-length")
    if not text:
        return None
    if not is_number(text):
        raise S3Error("InvalidArgument", "x-amz-decoded-content-length is not a number")
    return int(text)


def _from_base64(text: str, size_bytes: int, name: str) -> bytes | None:
    if not text:
        return None
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != size_bytes:
        raise S3Error("InvalidDigest", f"{name} is not {size_bytes} bytes in base64")
    return value
