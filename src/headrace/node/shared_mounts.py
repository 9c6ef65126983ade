"""Share the mount table in the cluster: a mount attached on one node is attached on all.

Records `mounts/<path>` hold the URL and the options that are not secret; each node has its own credentials. A
removed mount keeps its record, without a URL. A record that is missing was lost with etcd's data, and any node that
has the mount writes it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError, PathExistsError, PathNotFoundError, UsageError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.config.schema import public_options

log = logging.getLogger(__name__)

PREFIX = "mounts"


class MountRecord(msgspec.Struct, frozen=True):
    """Holds the content of a record. url: "" for a mount that was removed."""

    url: str
    options: dict[str, str] = {}


Attach = Callable[[str, str, dict[str, str]], Awaitable[None]]
CheckedAttach = Callable[[str, str, dict[str, str]], Awaitable[str]]
Detach = Callable[[str], Awaitable[None]]


Check = Callable[[str, Mapping[str, str]], None]


class SharedMounts:
    """Follows the records of mounts. attach, detach: change a mount on this node. check: raises OriginDeniedError
    for a URL and options that a record may not attach."""

    def __init__(self, records: Records, *, attach: Attach, detach: Detach, check: Check) -> None:
        self._records = records
        self._check = check
        self._attach = attach
        self._detach = detach
        self._own: frozenset[str] = frozenset()
        self._attached: dict[str, MountRecord] = {}
        self._changes: asyncio.Queue[tuple[str, MountRecord | None]] = asyncio.Queue()
        self._tasks = OwnedTasks()

    async def start(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        """Publish this node's mounts and follow the records. own: the mounts of the configuration; raise UsageError
        when the cluster has another origin there. remembered: the mounts of an earlier run; where records differ,
        the records win."""
        self._own = frozenset(own)
        for path, record in own.items():
            await self._publish(path, record)
        for path, record in remembered.items():
            if not await self._records.create(_key(path), _encode(record)):
                await self._records.replace(_key(path), b"", _encode(record))
        self._attached |= {**remembered, **own}
        await self._records.follow(f"{PREFIX}/", self._on_record)
        self._tasks.start(self._follow())

    async def stop(self) -> None:
        await self._tasks.close()

    async def add(self, path: str, url: str, options: dict[str, str], *, attach: CheckedAttach) -> str:
        """Attach a mount here, with `attach`, which checks it, and record it. Other nodes attach it within a second.
        Return the warning of `attach`."""
        if path in self._attached:
            raise PathExistsError(f"mount {path}", why=f"{self._attached[path].url} is attached there")
        self._attached[path] = record = MountRecord(url, options)
        try:
            warning = await attach(path, url, options)
        except BaseException:
            del self._attached[path]
            raise
        try:
            await self._publish(path, record)
        except HeadraceError:
            del self._attached[path]
            await self._detach(path)
            raise
        return warning

    async def remove(self, path: str) -> None:
        if path not in self._attached:
            raise PathNotFoundError(f"mount {path}", why="nothing is attached there")
        record = self._attached.pop(path)  # first, so that the record's change means nothing new here
        try:
            await self._records.put(_key(path), _encode(MountRecord("")))
        except HeadraceError:
            self._attached[path] = record
            raise
        await self._detach(path)

    async def _publish(self, path: str, record: MountRecord) -> None:
        if await self._records.create(_key(path), _encode(record)):
            return
        raw = await self._records.get(_key(path))
        try:
            other = _decode(raw) if raw else None  # b"": no node accepts that record
        except msgspec.DecodeError as error:
            raise UsageError(f"mount {path}", why=f"its record can't be decoded: {error}") from error
        if raw is not None and (other is None or not other.url):
            await self._records.replace(_key(path), raw, _encode(record))
        elif other is not None and other.url != record.url:
            raise UsageError(
                f"mount {path} of {record.url}",
                why=f"the cluster has {other.url} there",
                hint="use that origin, or another path",
            )

    def _on_record(self, key: str, value: bytes | None) -> None:
        path = key.removeprefix(PREFIX)
        try:
            self._changes.put_nowait((path, None if value is None else _decode(value)))
        except msgspec.DecodeError as error:
            log.warning("a mount record can't be decoded path=%s error=%s", path, error)

    async def _follow(self) -> None:
        while True:
            path, record = await self._changes.get()
            try:
                await self._apply(path, record)
            except HeadraceError as error:
                log.warning("a mount of the cluster could not be attached path=%s error=%s", path, error)

    async def _apply(self, path: str, record: MountRecord | None) -> None:
        attached = self._attached.get(path)
        if record is None:
            if attached is not None:
                await self._records.create(_key(path), _encode(attached))
            return
        if record.url == (attached.url if attached is not None else ""):
            return
        if path in self._own:  # a record must not replace an origin that the operator configured
            log.warning(
                "a record does not replace a configured mount path=%s url=%s record=%s",
                path,
                attached and attached.url,
                record.url,
            )
            return
        if record.url:
            self._check(record.url, record.options)
        if attached is not None:
            del self._attached[path]
            await self._detach(path)
        if record.url:
            await self._attach(path, record.url, record.options)
            self._attached[path] = record
        log.info("a mount of the cluster changed path=%s url=%s", path, record.url or "removed")


def _key(path: str) -> str:
    return f"{PREFIX}{path}"


def _encode(record: MountRecord) -> bytes:
    return msgspec.json.encode(MountRecord(record.url, public_options(record.options)))


def _decode(raw: bytes) -> MountRecord:
    return decode_json(raw, MountRecord)
