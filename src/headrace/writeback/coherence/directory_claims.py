"""Claim exclusive directories in the cluster: no other node persists anything there.

A claim is a record without an end of its own. Only its holder has what its programs wrote, so a node that is dead or
cut off keeps its directories. The holder gives a claim up when it stops and has persisted everything there; otherwise
an operator breaks it. A claim that was given up keeps its record, so that a missing one means that etcd lost it.

The holder persists there only while its own lease in etcd lasts and the record names it. So after a claim was broken,
at most one node still begins uploads. Those under way are fenced by their preconditions. All calls run on the node's
loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headrace.base import boot_clock
from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError, HeadraceError, UsageError
from headrace.base.namespace_path import check_node_id, check_path, is_at_or_below
from headrace.base.printable import path_text
from headrace.base.tasks import OwnedTasks
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.cluster.membership import PREFIX as MEMBERS
from headrace.cluster.records import LeasedRecords
from headrace.ring.view import NodeInfo
from headrace.writeback.coherence.dirty_scope import PREFIX as WRITTEN
from headrace.writeback.coherence.dirty_scope import DirtyScope
from headrace.writeback.observers import WriteObserver
from headrace.writeback.replication.placement import PREFIX as COPIES

log = logging.getLogger(__name__)

PREFIX = "claims"
"""Prefix of the keys of claims."""
TOKEN_CHARACTERS_MAX = 64
UNREADABLE = "?"
"""Stands for the holder in a record that nobody can decode."""
ATTEMPTS_MAX = 5
"""Attempts to write a record that other nodes change at the same time."""
RETRY_S = 0.5
"""Pause before a claim is confirmed again, in seconds."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """Hold the content of a record. node: the holder; "" if the claim was given up or broken. token: random; another
    one means that the directory may have had another writer in between."""

    node: str
    token: str

    def __post_init__(self) -> None:
        if self.node:
            check_node_id(self.node)
        if not self.token.isalnum() or len(self.token) > TOKEN_CHARACTERS_MAX:
            raise ValueError("the token of a claim is invalid")

    @classmethod
    def decode(cls, raw: bytes) -> ClaimRecord:
        """Parse a record. Raise ClusterUnavailableError if it is invalid."""
        try:
            return decode_json(raw, cls)
        except msgspec.DecodeError as error:
            raise ClusterUnavailableError(f"record {PREFIX}", why=str(error)) from error

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Hold a record as it was read. node: UNREADABLE if nobody can decode it."""

    raw: bytes
    node: str
    token: str = ""

    @classmethod
    def of(cls, raw: bytes) -> _Stored:
        try:
            record = ClaimRecord.decode(raw)
        except ClusterUnavailableError as error:
            log.warning("the record of a claim is invalid error=%s", error)
            return cls(raw, UNREADABLE)
        return cls(raw, record.node, record.token)


@dataclass(slots=True)
class _Claim:
    """Hold the state of this node's claim. record: what this node wrote. confirmed: how often this node had lost its
    lease when it read the record last; None if it must read it again. doubts: number of times that the record seemed to
    change. trouble: why nothing is persisted there for the rest of this run; "" for no reason."""

    record: ClaimRecord
    confirmed: int | None = None
    doubts: int = 0
    trouble: str = ""

    def confirm(self, leases_lost: int, doubts: int) -> None:
        """Confirm the claim by what was read when it had been doubted that often. A later doubt stays."""
        if doubts == self.doubts:
            self.confirmed = leases_lost

    def doubt(self) -> None:
        self.confirmed, self.doubts = None, self.doubts + 1

    def lose(self, why: str) -> None:
        self.trouble = why


class DirectoryClaims(WriteObserver):
    """Hold this node's claims, and follow those of the others. modes: this node's."""

    def __init__(self, me: str, records: LeasedRecords, modes: WriteModes) -> None:
        self._me = me
        self._records = records
        self._modes = modes
        self._tops = [top for top in modes.exclusive_tops if modes.of(top) is WriteMode.BACK]
        self._held: dict[bytes, _Claim] = {}
        self._others: dict[bytes, str] = {}
        self._tasks = OwnedTasks()

    # ------------------------------------------------------------ start and stop

    async def acquire(self, kept: Mapping[bytes, str]) -> dict[bytes, str]:
        """Claim the exclusive directories, and follow the claims of others. kept: the tokens of an earlier run. Return
        the tokens; one that differs means that the directory may have had another writer.

        If etcd is unavailable, a directory with a kept token counts as claimed. Nothing is persisted there before etcd
        has confirmed it. Raises UsageError, which names the other node, and ClusterUnavailableError.
        """
        leases_lost = self._records.leases_lost
        try:
            await self._check_own_modes()
            for top in self._tops:
                self._held[top] = _Claim(await self._claim(top, kept.get(top, "")), leases_lost)
        except ClusterUnavailableError:
            if any(top not in kept for top in self._tops):
                raise
            self._held = {top: _Claim(ClaimRecord(self._me, kept[top])) for top in self._tops}
            if self._tops:
                log.warning("etcd has not confirmed the exclusive directories, they are not persisted yet")
        await self._records.follow(f"{PREFIX}/", self._on_record)
        self._tasks.start(self._maintain())
        return {top: claim.record.token for top, claim in self._held.items()}

    async def stop(self) -> None:
        await self._tasks.close()

    async def give_up(self, is_done: Callable[[bytes], Awaitable[bool]]) -> None:
        """Give up the claims of the directories for which `is_done` returns True. Does not raise HeadraceError."""
        await self._tasks.close()
        for top, claim in list(self._held.items()):
            if claim.trouble:
                continue
            try:  # a record that is no longer this node's stays
                if not await is_done(top):
                    log.info("a claim is kept, not everything is persisted path=%s", os.fsdecode(top))
                    continue
                released = ClaimRecord("", claim.record.token)
                claim.lose("this node has given up its claim")  # first: nothing is persisted any more
                await self._records.replace(_key(top), claim.record.encode(), released.encode())
            except HeadraceError as error:
                log.info("a claim was not given up path=%s error=%s", os.fsdecode(top), error)

    # ------------------------------------------------------------ questions

    def trouble_at(self, path: bytes) -> str:
        """Return why this node may not persist a path now; "" if it may."""
        for top, holder in self._others.items():
            if is_at_or_below(path, top):
                return f"node {holder} has claimed {os.fsdecode(top)}"
        for top, claim in self._held.items():
            if is_at_or_below(path, top):
                return self._trouble(claim)
        return ""

    def status(self) -> dict[str, object]:
        """Return the path and the trouble of each claim."""
        rows = [
            {"path": path_text(top), "trouble": self._trouble(claim)} for top, claim in self._held.items()
        ]
        return {"claims": rows}

    def _trouble(self, claim: _Claim) -> str:
        if claim.trouble:
            return claim.trouble
        if claim.confirmed != self._records.leases_lost:
            return "etcd has not confirmed the claim of this directory"
        if boot_clock.now_s() >= self._records.lease_until_s:
            return "etcd is unavailable, so another node may have this directory by now"
        return ""

    # ------------------------------------------------------------ to claim

    async def _check_own_modes(self) -> None:
        """Raise UsageError if this node would persist files in a directory that another node has claimed. A claim that
        was given up gets a new token, so that its former holder compares the directory with the origin."""
        for top, stored in (await self._all()).items():
            if top in self._tops or not self._modes.persists_shared_below(top):
                continue
            if stored.node in ("", self._me):
                await self._records.replace(_key(top), stored.raw, _new("").encode())
                continue
            raise UsageError(
                f"setting write = {self._modes.text()!r}",
                why=f"node {stored.node} has claimed the directory {os.fsdecode(top)}",
                hint=f"add {os.fsdecode(top)}=off, or {_break_hint(top)}",
            )

    async def _claim(self, top: bytes, kept: str) -> ClaimRecord:
        """Write the record of a claim, or find that of an earlier run. Raise UsageError if another node holds it, or
        persists files there."""
        for _ in range(ATTEMPTS_MAX):
            claims = await self._all()
            for other, stored in claims.items():
                if stored.node not in ("", self._me) and (
                    is_at_or_below(top, other) or is_at_or_below(other, top)
                ):
                    raise UsageError(
                        f"exclusive directory {os.fsdecode(top)}",
                        why=f"node {stored.node} has claimed {os.fsdecode(other)}",
                        hint=_break_hint(other),
                    )
            before = claims.get(top)
            if before is None:
                record = ClaimRecord(self._me, kept or secrets.token_hex(8))
            elif self._me == before.node or before.token == kept:
                record = ClaimRecord(self._me, before.token)
            else:
                record = _new(self._me)
            if await self._write(top, b"" if before is None else before.raw, record):
                is_new = before is None or before.node != self._me
                await self._check_others(top, record, is_new=is_new)
                return record
        raise ClusterUnavailableError(
            f"claim of {os.fsdecode(top)}", why="other nodes write it at the same time"
        )

    async def _write(self, top: bytes, raw: bytes, record: ClaimRecord) -> bool:
        """Write a record over another one; raw b"": none, or one that no node accepts. Return False if it is not
        there."""
        if not raw and await self._records.create(_key(top), record.encode()):
            return True
        return await self._records.replace(_key(top), raw, record.encode())

    async def _check_others(self, top: bytes, record: ClaimRecord, *, is_new: bool) -> None:
        """Raise UsageError if another node may persist files there, or has some left, and give a new claim up. The
        claim comes first, and a node that joins looks at the claims. So at least one of the two notices the other."""
        why = await self._writer_near(top)
        if why and is_new:
            await self._records.replace(_key(top), record.encode(), ClaimRecord("", record.token).encode())
        if why:
            raise UsageError(
                f"exclusive directory {os.fsdecode(top)}",
                why=why,
                hint=f"persist its files, and give that node the setting write with {os.fsdecode(top)}=off",
            )

    async def _writer_near(self, top: bytes) -> str:
        """Return which other node persists files in a directory; "" for none."""
        for raw in (await self._records.list(MEMBERS)).values():
            info = _member(raw)
            if info is not None and info.id != self._me and _persists(info, top):
                return f"node {info.id} writes there, too"
        replicated = {key.removeprefix(f"{COPIES}/") for key in await self._records.list(f"{COPIES}/")}
        for key, raw in (await self._records.list(f"{WRITTEN}/")).items():
            writer = key.removeprefix(f"{WRITTEN}/")
            if writer in replicated - {self._me} and _has_written(raw, top):
                return f"replicas of files of node {writer} there are not persisted"
        return ""

    async def _all(self) -> dict[bytes, _Stored]:
        """Read all claims. Keys of other paths than nodes write are ignored."""
        records = await self._records.list(f"{PREFIX}/")
        return {top: _Stored.of(raw) for key, raw in records.items() if (top := _top_of(key))}

    # ------------------------------------------------------------ to keep, and to break

    def _on_record(self, key: str, raw: bytes | None) -> None:
        """Note a record. The event may be old, so `_maintain` reads the record of a claim of this node."""
        top = _top_of(key)
        if not top:
            return
        claim = self._held.get(top)
        if claim is not None:
            if raw != claim.record.encode():
                claim.doubt()
            return
        self._others.pop(top, None)
        node = "" if raw is None else _Stored.of(raw).node
        if node not in ("", self._me):
            self._others[top] = node

    async def _maintain(self) -> None:
        """Confirm doubted claims until the task is cancelled."""
        while True:
            await asyncio.sleep(RETRY_S)
            for top, claim in list(self._held.items()):
                if claim.trouble or claim.confirmed == self._records.leases_lost:
                    continue
                try:
                    await self._confirm(top, claim)
                except HeadraceError as error:
                    log.debug("a claim was not confirmed, retrying error=%s", error)
                except Exception:
                    log.exception("a claim was not confirmed, retrying")

    async def _confirm(self, top: bytes, claim: _Claim) -> None:
        """Read the record of a claim. Write it again if etcd lost it, or if this node gave it up in an earlier run."""
        leases_lost, doubts = self._records.leases_lost, claim.doubts
        raw = await self._records.get(_key(top))
        stored = _Stored.of(raw) if raw else None
        if stored is None or (stored.node == "" and stored.token == claim.record.token):
            if await self._write(top, raw or b"", claim.record):
                claim.confirm(leases_lost, doubts)
        elif (stored.node, stored.token) == (self._me, claim.record.token):
            claim.confirm(leases_lost, doubts)
        else:
            holder = "nobody" if stored.node == "" else f"node {stored.node}"
            claim.lose(f"the claim of this directory was broken, {holder} has it now; restart this node")
            log.error(
                "the claim of an exclusive directory was broken, it is not persisted path=%s node=%s",
                *(os.fsdecode(top), stored.node),
            )

    async def break_claim(self, top: bytes, *, force: bool) -> str:
        """Break the claim of a node that is lost, and return its id. force: also if that node is in the cluster.
        Raises UsageError."""
        subject = f"claim of {os.fsdecode(top)}"
        raw = await self._records.get(_key(top))
        stored = _Stored.of(raw) if raw else _Stored(b"", UNREADABLE if raw == b"" else "")
        if not stored.node:
            raise UsageError(subject, why="no node has claimed this directory")
        if stored.node == self._me and top in self._held:
            raise UsageError(subject, why="this node holds it", hint="stop this node, or leave out exclusive")
        if not force and await self._records.get(f"{MEMBERS}{stored.node}") is not None:
            raise UsageError(
                subject,
                why=f"node {stored.node} is in the cluster, and may be writing there",
                hint="stop that node first; --force breaks the claim nevertheless",
            )
        if not await self._write(top, stored.raw, _new("")):
            raise ClusterUnavailableError(
                subject, why="another node changed it at the same time", hint="try again"
            )
        log.warning("an operator broke a claim path=%s node=%s", os.fsdecode(top), stored.node)
        return stored.node


def _new(node: str) -> ClaimRecord:
    return ClaimRecord(node, secrets.token_hex(8))


def _key(top: bytes) -> str:
    return f"{PREFIX}/{quote(top)}"


def _top_of(key: str) -> bytes:
    """Return the directory of a key; b"" for a key that no node writes."""
    top = unquote_to_bytes(key.removeprefix(f"{PREFIX}/"))
    try:
        check_path(top)
    except ValueError:
        return b""
    return top if top != b"/" and _key(top) == key else b""


def _break_hint(top: bytes) -> str:
    return f"stop that node; if it is lost: headrace node break-claim {os.fsdecode(top)}"


def _member(raw: bytes) -> NodeInfo | None:
    try:
        return decode_json(raw, NodeInfo)
    except msgspec.DecodeError:
        return None  # membership ignores it, too


def _persists(info: NodeInfo, top: bytes) -> bool:
    """Return whether a member persists files at or below a directory that no claim protects."""
    if not info.writes:
        return False
    try:
        return WriteModes.parse(os.fsdecode(unquote_to_bytes(info.writes))).persists_shared_below(top)
    except UsageError:
        return True  # a newer version has modes that this one does not know


def _has_written(raw: bytes, top: bytes) -> bool:
    """Return whether a record names a directory at or below another one."""
    try:
        scope = DirtyScope.decode(raw)
    except ClusterUnavailableError:
        return False  # its readers ignore it, too
    folders = (*scope.folders, *scope.below)
    return scope.covers(top) or any(is_at_or_below(folder, top) for folder in folders)


def writes_of(modes: WriteModes) -> str:
    """Return the write modes of a node as its record has them: percent-encoded, because paths are any bytes."""
    return quote(os.fsencode(modes.text()), safe="/=,:")
