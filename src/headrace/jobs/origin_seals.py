"""Read and write what an origin keeps of seals (`seal/shared.py` has the layout)."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator
from typing import BinaryIO

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    InvalidImageError,
    PathExistsError,
    PathNotFoundError,
)
from headrace.base.model import Attributes, ObjectInfo
from headrace.namespace.mounts import Mount
from headrace.origin.origin import Absent
from headrace.origin.reserved import whole_origin
from headrace.origin.source import BytesPutSource, FilePutSource
from headrace.seal.catalogue import SealId
from headrace.seal.shared import (
    FOLDER,
    PACKED_BYTES_MAX,
    RECORD_BYTES_MAX,
    SharedRecord,
    check_packed,
    decode_record,
    list_key,
    record_key,
    seal_of_record,
)

log = logging.getLogger(__name__)

RECORDS_MAX = 10_000
PIECE_BYTES = 8 << 20
REQUEST_LIMIT_S = 60.0
PUT_LIMIT_S = 600.0


class OriginSeals:
    """The seals that the origin of one mount keeps."""

    def __init__(self, mount: Mount) -> None:
        self._origin = whole_origin(mount.origin)

    async def record(self, seal: SealId) -> SharedRecord:
        """Return the record of a seal. PathNotFoundError, InvalidImageError, OriginError."""
        key = record_key(seal)
        info = await self._origin.head(key, deadline=Deadline.after(REQUEST_LIMIT_S))
        body = await self._read_small(key, info, RECORD_BYTES_MAX)
        return decode_record(body, seal)

    async def records(self) -> AsyncIterator[SharedRecord]:
        """Yield the valid records. An invalid one is logged. OriginError."""
        count = 0
        async for page in self._origin.list_directory(FOLDER, deadline=Deadline.after(REQUEST_LIMIT_S)):
            for info in page.objects:
                seal = seal_of_record(info.key)
                count += 1
                if seal is None or count > RECORDS_MAX:
                    continue
                try:
                    yield decode_record(await self._read_small(info.key, info, RECORD_BYTES_MAX), seal)
                except (InvalidImageError, PathNotFoundError) as error:
                    log.warning("a seal of an origin is ignored url=%s error=%s", self._origin.url, error)
        if count > RECORDS_MAX:
            log.warning("an origin has too many seals url=%s shown=%d", self._origin.url, RECORDS_MAX)

    async def put(self, record: SharedRecord, list_file: BinaryIO) -> bool:
        """Put a seal: its list, then its record. Return whether it is new there. What an origin has is never replaced:
        PathExistsError for another seal of the same name. OriginError."""
        try:
            await self._origin.put(
                list_key(record.id),
                FilePutSource(list_file.fileno(), record.packed_bytes),
                condition=Absent(),
                attributes=Attributes(),
                deadline=Deadline.after(PUT_LIMIT_S),
            )
        except ConflictError:
            record = await self._adopt_list(record)
        try:
            await self._origin.put(
                record_key(record.seal),
                BytesPutSource(msgspec.json.encode(record) + b"\n"),
                condition=Absent(),
                attributes=Attributes(),
                deadline=Deadline.after(REQUEST_LIMIT_S),
            )
        except ConflictError:
            present = await self.record(record.seal)
            if present.id != record.id or present.path != record.path:
                raise PathExistsError(
                    f"seal {record.seal}",
                    why=f"{self._origin.url} has another seal of that name, with the id {present.id[:12]}",
                    hint="make and push the next version",
                ) from None
            return False
        return True

    async def fetch_list(self, record: SharedRecord, out: BinaryIO) -> None:
        """Write the packed list of a seal to a file, which is not checked yet. InvalidImageError for a list of another
        size than the record says, OriginError."""
        key = list_key(record.id)
        try:
            info = await self._origin.head(key, deadline=Deadline.after(REQUEST_LIMIT_S))
        except PathNotFoundError as error:
            raise _damaged(record, "its list is missing") from error
        if info.version.size_bytes != record.packed_bytes or info.version.size_bytes > PACKED_BYTES_MAX:
            raise _damaged(record, "its list has not the size that its record names")
        for start in range(0, record.packed_bytes, PIECE_BYTES):
            end = min(start + PIECE_BYTES, record.packed_bytes)
            arrived = await self._origin.read_range(
                key, start, end, version=info.version, deadline=Deadline.after(REQUEST_LIMIT_S)
            )
            await asyncio.to_thread(out.write, arrived.body)

    async def _adopt_list(self, record: SharedRecord) -> SharedRecord:
        """Check the list that the origin has already, and return the record with its size: another release of zlib may
        have compressed it. PathExistsError if it is not the same list."""
        info = await self._origin.head(list_key(record.id), deadline=Deadline.after(REQUEST_LIMIT_S))
        if not 0 < info.version.size_bytes <= PACKED_BYTES_MAX:
            raise self._other_list(record)
        adopted = msgspec.structs.replace(record, packed_bytes=info.version.size_bytes)
        with tempfile.TemporaryFile() as file:
            await self.fetch_list(adopted, file)
            try:
                await asyncio.to_thread(check_packed, file, adopted)
            except InvalidImageError as error:
                raise self._other_list(record) from error
        return adopted

    def _other_list(self, record: SharedRecord) -> PathExistsError:
        return PathExistsError(
            f"seal {record.seal}",
            why=f"{self._origin.url} has other bytes as its content list",
            hint=f"remove {list_key(record.id)} there, and push again",
        )

    async def _read_small(self, key: str, info: ObjectInfo, bytes_max: int) -> bytes:
        size_bytes = info.version.size_bytes
        if not 0 < size_bytes <= bytes_max:
            raise InvalidImageError(f"{self._origin.url}/{key}", why=f"a record has 1 to {bytes_max} bytes")
        arrived = await self._origin.read_range(
            key, 0, size_bytes, version=info.version, deadline=Deadline.after(REQUEST_LIMIT_S)
        )
        return bytes(arrived.body)


def _damaged(record: SharedRecord, why: str) -> InvalidImageError:
    return InvalidImageError(
        f"seal {record.seal} at the origin", why=why, hint="push it again under another version"
    )
