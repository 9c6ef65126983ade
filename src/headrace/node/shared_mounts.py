"""Share the mount table in the cluster: a mount attached on one node is attached on all.

Records `mounts/<path>` hold the URL and the options that are not secret; each node has its own credentials. A
removed mount keeps its record, without a URL. A record that is missing was lost with etcd's data, and any node that
has the mount writes it again.

A mount is added, removed or changed under the lock of its path, and `_attached` has the mounts as they are. Nothing is
in it while `add` attaches a mount and records it: a record that comes meanwhile is applied after it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import (
    ClusterUnavailableError,
    HeadraceError,
    PathExistsError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.keyed_lock import KeyedLock
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.config.schema import public_options

log = logging.getLogger(__name__)

PREFIX = "mounts"
AGAIN_S = 1.0
"""Seconds until a lost record is written again after etcd did not answer."""


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
        self._turns = KeyedLock()
        self._calls = OwnedTasks(HeadraceError)
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
        await self._calls.close()
        await self._tasks.close()

    async def add(self, path: str, url: str, options: dict[str, str], *, attach: CheckedAttach) -> str:
        """Attach a mount here, with `attach`, which checks it, and record it. Other nodes attach it within a second.
        Return the warning of `attach`. A caller who is cancelled ends it as long as `attach` runs, and not later."""
        is_attached = asyncio.Event()
        call = self._calls.start(self._add(path, MountRecord(url, options), attach, is_attached))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not is_attached.is_set():
                call.cancel()
            raise

    async def remove(self, path: str) -> None:
        """Detach a mount here and record that. A caller who is cancelled does not end it."""
        await asyncio.shield(self._calls.start(self._remove(path)))

    async def _add(
        self, path: str, record: MountRecord, attach: CheckedAttach, is_attached: asyncio.Event
    ) -> str:
        async with self._turns.at(os.fsencode(path)):
            if path in self._attached:
                raise PathExistsError(f"mount {path}", why=f"{self._attached[path].url} is attached there")
            warning = await attach(path, record.url, record.options)
            is_attached.set()
            try:
                await self._publish(path, record)
            except HeadraceError:
                await self._detach(path)
                raise
            self._attached[path] = record
            return warning

    async def _remove(self, path: str) -> None:
        async with self._turns.at(os.fsencode(path)):
            if path not in self._attached:
                raise PathNotFoundError(f"mount {path}", why="nothing is attached there")
            await self._records.put(_key(path), _encode(MountRecord("")))
            del self._attached[path]
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
                async with self._turns.at(os.fsencode(path)):
                    await self._apply(path, record)
            except ClusterUnavailableError as error:
                # Only a lost record needs etcd. A later change of the path may overtake it: it replaces nothing.
                log.info("a lost mount record will be written again path=%s error=%s", path, error)
                self._changes.put_nowait((path, record))
                await asyncio.sleep(AGAIN_S)
            except HeadraceError as error:
                log.warning("a mount of the cluster could not be attached path=%s error=%s", path, error)
            except Exception:  # the task must continue
                log.exception("a mount of the cluster could not be attached path=%s", path)

    async def _apply(self, path: str, record: MountRecord | None) -> None:
        """Do here what a record says. The caller holds the lock of the path."""
        attached = self._attached.get(path)
        if record is None:
            if attached is not None:
                await self._records.create(_key(path), _encode(attached))
            return
        if self._is_as_recorded(path, attached, record):
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

    def _is_as_recorded(self, path: str, attached: MountRecord | None, record: MountRecord) -> bool:
        """Return whether this node has what a record says. Its own options go with a mount of the configuration."""
        if attached is None:
            return not record.url
        same_options = public_options(attached.options) == public_options(record.options)
        return attached.url == record.url and (path in self._own or same_options)


def _key(path: str) -> str:
    return f"{PREFIX}{path}"


def _encode(record: MountRecord) -> bytes:
    return msgspec.json.encode(MountRecord(record.url, public_options(record.options)))


def _decode(raw: bytes) -> MountRecord:
    return decode_json(raw, MountRecord)


def remembered_mounts(
    attached: Mapping[str, str], kept: Mapping[str, dict[str, str]], *, own: Collection[str]
) -> dict[str, MountRecord]:
    """Return the records of the mounts of an earlier run. attached: URLs by path. kept: what the index remembers of
    them. own: the paths of the configuration."""
    return {
        path: MountRecord(url, public_options(kept.get(path, {})))
        for path, url in attached.items()
        if path not in own
    }
