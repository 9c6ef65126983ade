"""Check that a directory can be exclusive. Its programs see only the upper layer, so that layer must have every name of
the origin.

A directory is claimed when that was checked once. The claim is kept beside the tree: names that are missing later were
removed by programs of this node, perhaps while no node ran. In a cluster it has the token of the node's claim in etcd
(`coherence/directory_claims.py`): with another token, another node may have written there, so the directory is checked
again.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.decoding import decode_json
from headrace.base.errors import DeadlineExceededError, OriginUnavailableError, UsageError
from headrace.base.model import Version
from headrace.base.namespace_path import join
from headrace.base.write_modes import WriteMode
from headrace.namespace.namespace import Namespace
from headrace.origin.origin import Origin
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.hiding import hide_missing
from headrace.overlay.kept_times import keeping_times
from headrace.overlay.marks import is_removed, is_whiteout
from headrace.overlay.upper import Upper
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

_CLAIMS = b"/exclusive"
_NEW = _CLAIMS + b".new"
NAMES_MAX = 1000
"""Foreign names after which the search ends."""
_Foreign = list[bytes]


class _Kept(msgspec.Struct, frozen=True):
    """Hold what the record says of a directory. inode: of the directory. token: of the claim in etcd; "" without a
    cluster."""

    inode: int
    token: str = ""


class ExclusiveClaims:
    """Claim the exclusive directories of a layer. limit_s: time limit of a listing."""

    def __init__(self, namespace: Namespace, layer: WritableLayer, *, limit_s: float) -> None:
        self._mounts = namespace.tree.mounts
        self._upper = layer.upper
        self._journal = layer.journal
        self._modes = layer.modes
        self._limit_s = limit_s

    def tokens(self) -> dict[bytes, str]:
        """Return the tokens of the claims in etcd that were recorded."""
        return {top: token for top, token in self._read().items() if token}

    async def claim(self, *, again: bool, tokens: Mapping[bytes, str] | None = None) -> None:
        """Check all exclusive directories, and record them. again: the node was killed, and programs may use the
        directories now, so a claimed one is not refused. tokens: of the claims in etcd. Raises UsageError if the origin
        has names that this node did not write, or if this process is not root; and the errors of a listing."""
        tokens = tokens or {}
        self._remove_unfinished()
        if self._modes.exclusive_tops and os.geteuid():
            raise UsageError(
                f"exclusive directory {os.fsdecode(self._modes.exclusive_tops[0])}",
                why="only root can mount it",
                hint="leave out exclusive, or run the node as root",
            )
        recorded = self._read()
        claimed = {top for top, token in recorded.items() if token == tokens.get(top, "")}
        for top in self._modes.exclusive_tops:
            await self._check(top, is_claimed=top in claimed, again=again)
        kept = {top for top in recorded if self._modes.of(top) is WriteMode.OFF}  # they can't change
        for top in recorded.keys() - kept - {*self._modes.exclusive_tops}:
            self._hide_vanished(top)
        now = {top: recorded[top] for top in kept}
        now |= {top: tokens.get(top, "") for top in self._modes.exclusive_tops}
        if recorded != now:
            self._write(now)

    async def _check(self, top: bytes, *, is_claimed: bool, again: bool) -> None:
        self._check_mounts(top)
        foreign = await self._foreign(top, is_claimed=is_claimed)
        if foreign and not (again and is_claimed):
            raise _not_empty(top, foreign)
        if foreign:
            log.warning(
                "an exclusive directory lacks names of its origin path=%s name=%s",
                *(os.fsdecode(top), os.fsdecode(foreign[0])),
            )
        if not is_claimed:
            drop_markers(self._upper, top)
            self._upper.at(top).make_directories(0o755)

    def _hide_vanished(self, top: bytes) -> None:
        """Hide names that programs removed from a directory that is no longer exclusive, and that its origin still
        has."""
        with self._upper.lock:
            for path, row in sorted(self._journal.below(top).items()):
                if not row.is_absent:
                    version = row.version if row.is_file and row.is_there else None
                    hide_missing(self._upper, path, version, directory=row.is_directory)

    def _check_mounts(self, top: bytes) -> None:
        for mount in self._mounts.all():
            if os.fsencode(mount.path).startswith(top + b"/"):
                raise UsageError(
                    f"exclusive directory {os.fsdecode(top)}",
                    why=f"an origin is attached below it, at {mount.path}",
                    hint="leave out exclusive, or attach the origin elsewhere",
                )

    async def _foreign(self, top: bytes, *, is_claimed: bool) -> _Foreign:
        """Return names that the origin has but the directory would not show. Only the first level of a claimed
        directory is compared, because it may have millions of names."""
        place = self._mounts.find(top)
        if place is None:
            return []
        mount, key = place
        foreign: _Foreign = []
        waiting = [(top, key)]
        try:
            while waiting and len(foreign) < NAMES_MAX:
                folder, folder_key = waiting.pop()
                below = await self._compare(mount.origin, folder, folder_key, foreign, is_claimed=is_claimed)
                waiting += [] if is_claimed else below
        except (OriginUnavailableError, DeadlineExceededError) as error:
            if not is_claimed:
                raise
            log.warning(
                "an exclusive directory is not compared with its origin path=%s error=%s",
                *(os.fsdecode(top), error),
            )
        return foreign

    async def _compare(
        self, origin: Origin, folder: bytes, key: str, foreign: _Foreign, *, is_claimed: bool
    ) -> list[tuple[bytes, str]]:
        """Add the foreign names of a directory of the origin. Return its directories that this node wrote."""
        below: list[tuple[bytes, str]] = []
        deadline = Deadline.after(self._limit_s, patience_s=PATIENCE_S)
        async for page in origin.list_directory(key, deadline=deadline):
            files = {item.key.rsplit("/", 1)[-1]: item.version for item in page.objects}
            for name in [*files, *page.directories]:
                path = join(folder, os.fsencode(name))
                version = None if is_claimed else files.get(name)
                if not self._is_ours(path, version) or not (is_claimed or self._upper.at(path).exists()):
                    foreign.append(path)
            below += [(join(folder, os.fsencode(n)), f"{key}/{n}" if key else n) for n in page.directories]
        return below

    def _is_ours(self, path: bytes, version: Version | None) -> bool:
        """Return whether this node wrote an entry. version: which version of it, too; None for any."""
        row = self._journal.get(path)
        if row is None or row.is_absent:
            return False
        return version is None or row.begun or not row.is_file or row.version == version

    # ------------------------------------------------------------ the record

    def _read(self) -> dict[bytes, str]:
        """Return the claimed directories, with the tokens of their claims. A directory that was created again is not
        claimed: its missing names were lost with the first one, and no program removed them."""
        try:
            with open(self._upper.beside(_CLAIMS).open(os.O_RDONLY), "rb") as file:
                kept = decode_json(file.read(), dict[str, int | _Kept])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            log.warning("the record of exclusive directories is damaged error=%s", error)
            return {}
        claims = {
            os.fsencode(path): _Kept(claim) if isinstance(claim, int) else claim
            for path, claim in kept.items()
        }
        return {top: claim.token for top, claim in claims.items() if self._inode(top) == claim.inode}

    def _inode(self, top: bytes) -> int:
        """Return the inode number of a directory; 0 if it does not exist."""
        status = self._upper.at(top).seen()
        return 0 if status is None else status.st_ino

    def _remove_unfinished(self) -> None:
        """Remove the record that a kill left before its rename."""
        with suppress(FileNotFoundError):
            self._upper.beside(_NEW).unlink()

    def _write(self, tokens: dict[bytes, str]) -> None:
        new = self._upper.beside(_NEW)
        with open(new.open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            kept = {os.fsdecode(top): _Kept(self._inode(top), token) for top, token in sorted(tokens.items())}
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._upper.beside(_CLAIMS))
        self._upper.beside(b"/").sync()


def _not_empty(top: bytes, foreign: _Foreign) -> UsageError:
    count = f"{len(foreign)}{' or more' if len(foreign) >= NAMES_MAX else ''}"
    return UsageError(
        f"exclusive directory {os.fsdecode(top)}",
        why=f"the origin has {count} names there that this node did not write, {os.fsdecode(foreign[0])} among them",
        hint="name a directory that is empty at the origin, or leave out exclusive: see docs/semantics/exclusive.md",
    )


def drop_markers(upper: Upper, top: bytes) -> None:
    """Remove whiteouts and removed directories of other write modes from a directory, because programs would see
    them."""
    for path, status in reversed(list(upper.walk(top))):
        safe_path = upper.at(path)
        try:
            with upper.lock, keeping_times(safe_path.parent):
                if is_whiteout(status):
                    safe_path.unlink()
                elif path != top and stat.S_ISDIR(status.st_mode) and is_removed(safe_path):
                    safe_path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
