"""Keep the policy of a node, or of its cluster: set it, follow its record, and remember it for the next run.

The record `policies/cluster` has the policy of a cluster. Each node also keeps it in a file beside its cache: one that
starts while etcd is away obeys the last policy. Without a cluster, the file is all there is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

import msgspec

from headrace.base.errors import HeadraceError, PolicyConflictError, StoreError, UsageError
from headrace.base.kept_file import KeptFile
from headrace.base.printable import printable
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.node.space_policy import NodeCapacity
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import PolicyDocument, parse_policy
from headrace.policy.limits import POLICY_AUTHOR_MAX
from headrace.policy.record import RECORD_BYTES_MAX, PolicyRecord, decode_record, encode_record
from headrace.policy.rule_text import without_rule_of_mount
from headrace.store.space import CacheSpace

log = logging.getLogger(__name__)

PREFIX = "policies"
KEY = f"{PREFIX}/cluster"
FILE = "policy.json"
AGAIN_S = 5.0
"""Seconds until a lost record is restored after etcd did not answer."""
ATTEMPTS = 16
"""Attempts to set a policy while others set one, too."""


class PolicyRecords(Protocol):
    """Stores the one record of a policy."""

    async def read(self) -> bytes | None: ...

    async def replace(self, old: bytes | None, new: bytes) -> bool:
        """Replace the record. Return False, and write nothing, when it is not `old`."""
        ...


class PolicyFile:
    """Keeps the record in a file. folder: of this user only; it is created at the first write. Threads of the default
    executor wait for the disk."""

    def __init__(self, folder: str) -> None:
        self._file = KeptFile(folder, FILE, bytes_max=RECORD_BYTES_MAX)

    async def read(self) -> bytes | None:
        return await asyncio.to_thread(self._file.read)

    async def replace(self, old: bytes | None, new: bytes) -> bool:
        """Write the record; it is durable on return."""
        return await asyncio.to_thread(self._file.replace, old, new)

    async def keep(self, record: PolicyRecord) -> None:
        """Replace the record, whatever it is."""
        await asyncio.to_thread(self._file.write, encode_record(record))


async def load_policy(policy: CurrentPolicy, file: PolicyFile) -> None:
    """Put the policy of the last run in force. A damaged file is an error in the log, and then no
    policy is in force."""
    try:
        raw = await file.read()
        if raw is not None:
            policy.adopt(decode_record(raw))
    except (OSError, msgspec.DecodeError, UsageError) as error:
        log.error("the policy of the last run can't be read, none is in force error=%s", error)


class ClusterPolicyRecords:
    """Keeps the record in the cluster. Calls raise ClusterUnavailableError."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def read(self) -> bytes | None:
        return await self._records.get(KEY)

    async def replace(self, old: bytes | None, new: bytes) -> bool:
        if old is None:
            return await self._records.create(KEY, new)
        return await self._records.replace(KEY, old, new)


class Policies:
    """Sets and follows the policy. capacity: of the node. records: of the cluster; None without one. Belongs to the
    node's loop."""

    def __init__(
        self, current: CurrentPolicy, capacity: NodeCapacity, file: PolicyFile, records: Records | None
    ) -> None:
        self.current = current
        self.capacity = capacity
        self._file = file
        self._records = records
        self._shared: PolicyRecords = file if records is None else ClusterPolicyRecords(records)
        self._keeping = asyncio.Lock()
        self._tasks = OwnedTasks()

    def start(self, joined: asyncio.Event) -> None:
        """Follow the record of the cluster, from the moment on that the node has joined it."""
        self._tasks.start(self._follow(joined))

    async def _follow(self, joined: asyncio.Event) -> None:
        assert self._records is not None
        await joined.wait()
        await self._records.follow(f"{PREFIX}/", self._on_record)
        await self._restore()

    async def stop(self) -> None:
        await self._tasks.close()

    async def set(self, text: str, *, author: str, base: int | None = None) -> PolicyRecord:
        """Put a policy in force on all nodes, durably. base: the version that it was made from; None: any. Raise
        PolicyFaultsError for a text with faults, PolicyConflictError when another version is in force than base, and
        ClusterUnavailableError. After a conflict this node obeys the other version: who asks for it gets it."""
        parse_policy(text)
        for _ in range(ATTEMPTS):
            raw, record = await self._read()
            if record.number and record.text == text:  # a repeated request of a client that heard no answer
                await self._obey(record)
                return record
            if base is not None and record.number != base:
                await self._take(encode_record(record))
                raise PolicyConflictError(
                    f"a policy made from version {base}",
                    why=f"version {record.number} is in force by now",
                    hint="look at it with `headrace policy show`, then set yours again",
                )
            new = record.followed_by(text, author=author, now_s=time.time())
            if await self._replaced(raw, new):
                await self._obey(new)
                return new
        raise PolicyConflictError("the policy", why="others set it at the same time", hint="try again")

    async def _read(self) -> tuple[bytes | None, PolicyRecord]:
        """Return the shared record and what it says, after this node put it right if it is an earlier one."""
        raw = await self._shared.read()
        record = self._decoded(raw)
        if raw and record.number < self.current.record.number:
            await self._take(raw)
            raw = await self._shared.read()
            record = self._decoded(raw)
        return raw, record

    async def _replaced(self, old: bytes | None, new: PolicyRecord) -> bool:
        try:
            return await self._shared.replace(old, encode_record(new))
        except OSError as error:
            if isinstance(error, HeadraceError):
                raise
            raise StoreError("the policy", why=f"it can't be written: {error.strerror}") from error

    async def roll_back(self, number: int, *, author: str) -> PolicyRecord:
        """Put an earlier version in force again, as a new one; 0: the one before."""
        record = self.current.record
        version = record.version(number or record.number - 1)
        return await self.set(version.text, author=author, base=record.number)

    async def end_rule_of_mount(self, path: str) -> None:
        """Remove the rule that was given when a mount was attached, if there is one. Raises as `set` does. The rule may
        be so new, on another node, that this one does not obey it yet."""
        for attempt in range(1, ATTEMPTS + 1):
            record = self.current.record if self._records is None else (await self._read())[1]
            text = without_rule_of_mount(record.text, path)
            if text == record.text:
                return
            try:
                await self.set(
                    text, author=printable(f"mount remove {path}")[:POLICY_AUTHOR_MAX], base=record.number
                )
                return
            except PolicyConflictError:
                if attempt == ATTEMPTS:
                    raise

    def status(self, space: CacheSpace) -> dict[str, object]:
        """Return the version in force, and what each tenant uses and may have on this node."""
        entitlements = self.capacity.entitlements(self.current.resolver.document.tenants)
        tenants = {
            name: {
                "used_bytes": space.tenant_bytes(name),
                "guaranteed_bytes": int(entitled.guaranteed),
                "limit_bytes": None if entitled.limit is None else int(entitled.limit),
            }
            for name, entitled in entitlements.items()
        }
        return {
            "version": self.current.record.number,
            "tenants": tenants,
            "warnings": self.warnings(self.current.resolver.document),
        }

    def warnings(self, document: PolicyDocument) -> list[str]:
        """Return a line for each rule that asks for more replicas than there are nodes."""
        nodes = 1 if self._records is None else self.capacity.members
        if not nodes:
            return []  # the members are not known yet
        have = f"the cluster has {nodes}" if self._records is not None else "this node belongs to no cluster"
        return [
            f"rule {rule.number}, line {rule.line}: replicas = {wanted} needs as many nodes, and {have}"
            for rule in document.rules
            if (wanted := rule.effects.get("replicas")) is not None and wanted > nodes
        ]

    def _decoded(self, raw: bytes | None) -> PolicyRecord:
        """Return what a record says; of one that can't be decoded what this node obeys."""
        if not raw:
            return self.current.record
        try:
            return decode_record(raw)
        except msgspec.DecodeError as error:
            log.warning("the policy record is invalid and will be replaced error=%s", error)
            return self.current.record

    def _on_record(self, key: str, value: bytes | None) -> None:
        if key != KEY:
            return
        self._tasks.start(self._restore() if value is None else self._take(value))

    async def _take(self, value: bytes) -> None:
        """Put a record of another node in force. One that is damaged, or that this release does not
        understand, is ignored."""
        try:
            record = decode_record(value)
            await self._obey(record)
        except (msgspec.DecodeError, UsageError) as error:
            log.warning("a policy of the cluster is refused, the one before stays error=%s", error)
            return
        if record.number < self.current.record.number:
            await self._put_later_back(value)

    async def _put_later_back(self, earlier: bytes) -> None:
        """Replace an earlier record by the one in force. A node that had not heard of the later one restored it after
        etcd lost its data. If the record is another by now, as after a late report, nothing changes. Numbers only
        grow, so nodes with other histories do not replace each other's for ever."""
        try:
            await self._replaced(earlier, self.current.record)
        except HeadraceError as error:
            log.info("an earlier policy record is not replaced error=%s", error)

    async def _obey(self, record: PolicyRecord) -> None:
        """Put a shared record in force. Ignore an earlier one than the current: what etcd reports of a change may
        arrive after the answer to the next. Raise PolicyFaultsError for a text that this release does not
        understand."""
        if not self.current.record.includes(record):
            await self._adopt(record)

    async def _restore(self) -> None:
        """Write the record again if it was lost with etcd's data."""
        while self.current.record.number:
            try:
                if not await self._shared.read():
                    await self._shared.replace(None, encode_record(self.current.record))
                return
            except HeadraceError as error:
                log.info("the lost policy record is not restored yet error=%s", error)
                await asyncio.sleep(AGAIN_S)

    async def _adopt(self, record: PolicyRecord) -> None:
        self.current.adopt(record)
        log.info("a policy is in force version=%d author=%s", record.number, record.versions[-1].author)
        if self._records is None:
            return
        try:
            async with self._keeping:
                await self._file.keep(self.current.record)
        except OSError as error:
            log.warning("the policy can't be kept for the next run error=%s", error)
