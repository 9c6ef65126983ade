"""The mount table of the cluster: what is attached on one node is attached on all.

Records `mounts/<path>`: the URL, and the options that are no secrets; credentials each node has from its own
surroundings. A mount that was removed leaves its record, with no URL: a record that is not there any more was lost
(etcd's data), and is written again by whoever has the mount.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError, PathExistsError, PathNotFoundError, UsageError
from headrace.cluster.records import Records
from headrace.config.schema import public_options

log = logging.getLogger(__name__)

PREFIX = "mounts"


class MountRecord(msgspec.Struct, frozen=True):
    """url: "" for a mount that was removed."""

    url: str
    options: dict[str, str] = {}


Attach = Callable[[str, str, dict[str, str]], Awaitable[None]]
Detach = Callable[[str], Awaitable[None]]


Check = Callable[[str, Mapping[str, str]], None]


class SharedMounts:
    """attach, detach: do it on this node, for a path that is not, or is, attached here. check: raises OriginDeniedError
    for what a record may not attach, by URL and options."""

    def __init__(self, records: Records, *, attach: Attach, detach: Detach, check: Check) -> None:
        self._records = records
        self._check = check
        self._attach = attach
        self._detach = detach
        self._own: frozenset[str] = frozenset()
        self._here: dict[str, MountRecord] = {}
        self._changes: asyncio.Queue[tuple[str, MountRecord | None]] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None

    async def start(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        """own: what this node's configuration attached; UsageError when the cluster has another origin there.
        remembered: what is attached from an earlier run; where the records say otherwise by now, they are followed."""
        self._own = frozenset(own)
        for path, record in own.items():
            await self._publish(path, record)
        for path, record in remembered.items():
            if not await self._records.create(_key(path), _packed(record)):
                await self._records.replace(_key(path), b"", _packed(record))
        self._here |= {**remembered, **own}
        await self._records.follow(f"{PREFIX}/", self._heard)
        self._work = asyncio.ensure_future(self._follow())

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def add(self, path: str, url: str, options: dict[str, str], *, attach: Attach) -> None:
        """Attached here, by `attach`, which checks it, and in the records on return; on the others within a second."""
        if path in self._here:
            raise PathExistsError(f"mount {path}", why=f"{self._here[path].url} is attached there")
        self._here[path] = record = MountRecord(url, options)
        try:
            await attach(path, url, options)
        except BaseException:
            del self._here[path]
            raise
        try:
            await self._publish(path, record)
        except HeadraceError:
            del self._here[path]
            await self._detach(path)
            raise

    async def remove(self, path: str) -> None:
        if path not in self._here:
            raise PathNotFoundError(f"mount {path}", why="nothing is attached there")
        here = self._here.pop(path)  # first: then what we hear of it ourselves is no news
        try:
            await self._records.put(_key(path), _packed(MountRecord("")))
        except HeadraceError:
            self._here[path] = here
            raise
        await self._detach(path)

    async def _publish(self, path: str, record: MountRecord) -> None:
        if await self._records.create(_key(path), _packed(record)):
            return
        raw = await self._records.get(_key(path))
        try:
            there = _unpacked(raw) if raw else None  # b"": nobody believes what is there
        except msgspec.DecodeError as error:
            raise UsageError(f"mount {path}", why=f"its record is not understood: {error}") from error
        if raw is not None and (there is None or not there.url):
            await self._records.replace(_key(path), raw, _packed(record))
        elif there is not None and there.url != record.url:
            raise UsageError(
                f"mount {path} of {record.url}",
                why=f"the cluster has {there.url} there",
                hint="use that one, or another path",
            )

    def _heard(self, key: str, value: bytes | None) -> None:
        path = key.removeprefix(PREFIX)
        try:
            self._changes.put_nowait((path, None if value is None else _unpacked(value)))
        except msgspec.DecodeError as error:
            log.warning("mount record not understood path=%s error=%s", path, error)

    async def _follow(self) -> None:
        while True:
            path, record = await self._changes.get()
            try:
                await self._take(path, record)
            except HeadraceError as error:
                log.warning("mount of the cluster not taken over path=%s error=%s", path, error)

    async def _take(self, path: str, record: MountRecord | None) -> None:
        here = self._here.get(path)
        if record is None:
            if here is not None:
                await self._records.create(_key(path), _packed(here))
            return
        if record.url == (here.url if here is not None else ""):
            return
        if path in self._own:  # whoever can write records replaces no origin that the operator configured
            log.warning(
                "mount of the configuration stays path=%s url=%s record=%s",
                path,
                here and here.url,
                record.url,
            )
            return
        if record.url:
            self._check(record.url, record.options)
        if here is not None:
            del self._here[path]
            await self._detach(path)
        if record.url:
            await self._attach(path, record.url, record.options)
            self._here[path] = record
        log.info("mount of the cluster path=%s url=%s", path, record.url or "removed")


def _key(path: str) -> str:
    return f"{PREFIX}{path}"


def _packed(record: MountRecord) -> bytes:
    return msgspec.json.encode(MountRecord(record.url, public_options(record.options)))


def _unpacked(raw: bytes) -> MountRecord:
    return decode_json(raw, MountRecord)
