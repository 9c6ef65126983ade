"""Mount and unmount the seals of a node of this host, and mount them again after a restart or a change."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import (
    HeadraceError,
    MountError,
    NodeUnavailableError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.mount_table import mount_table
from headrace.base.namespace_path import is_at_or_below
from headrace.base.uninterrupted import uninterrupted
from headrace.cli.render import warn
from headrace.cli.repeated_failure import RepeatedFailure
from headrace.fuse.mount import keep_mountpoints

if TYPE_CHECKING:
    from headrace.cli.state import RunState
    from headrace.cli.target import Target
    from headrace.seal.catalogue import Catalogue, Place, SealId, SealRecord


BUSY = "another command mounts a seal"
RETRY_S_MAX = 8.0
"""Longest pause, in seconds, before a mount that failed is tried again. The first pause is one second."""


class _Retry(NamedTuple):
    """Describes a seal whose mount failed: why, how often in a row, and when it is tried again (`time.monotonic`)."""

    failures: list[str]
    times: int
    at_s: float


class SealMounts:
    """Keeps the mounts of a node's seals up to date; a supervisor calls `check` once a second.

    It mounts an automatic seal in place as soon as the node has made it. It mounts a lazy seal again after its layer
    died, or when the seal lacks fewer files than before. A mount that failed is tried again after growing pauses.
    It waits for no other command that mounts a seal, because the user may have stopped that command. state: the state
    of the command that runs the node.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._known: set[SealId] = set()
        self._lazy: set[SealId] = set()
        self._retries: dict[SealId, _Retry] = {}
        self._waiting: list[tuple[Place, SealId]] = []
        """Places of an earlier `up` where seals are mounted as soon as no other command mounts one."""
        self._unreadable = RepeatedFailure()

    def restore(self) -> None:
        """Mount the seals of the node at their places again, after `up` started it. A seal that can't be mounted stays
        unmounted, and stderr names it; while another command mounts a seal, `check` tries again."""
        node = self._node()
        if node is None:
            return
        try:
            places = node.known_places()
        except OSError as error:
            self._warn_unreadable(error)
            return
        top = self._state.mountpoint
        wanted = [row for row in places if not row[0].in_place or _is_below(row[0].mountpoint, top)]
        self._waiting = _mount_again(node, wanted, is_first=True)

    def check(self) -> None:
        """Mount the seals that need it. Stderr names a failure once for each reason. Blocks on the disk, and on the
        start of a layer."""
        node = self._node()
        if node is None:
            return
        try:
            seals = set(node.catalogue.seals())
        except OSError as error:
            self._warn_unreadable(error)
            return
        self._unreadable.end()
        if self._waiting:
            waiting = [(place, seal) for place, seal in self._waiting if _has_place(node, seal, place)]
            self._waiting = _mount_again(node, waiting, is_first=False)
        self._lazy &= seals
        self._retries = {seal: retry for seal, retry in self._retries.items() if seal in seals}
        for seal in sorted((seals - self._known) | self._lazy):
            if seal not in self._retries or time.monotonic() >= self._retries[seal].at_s:
                self._mount(node, seal)
        self._known = seals - self._retries.keys()

    def _node(self) -> SealNode | None:
        """Return the node of the state; None where this process can't mount its seals."""
        state = self._state
        if os.geteuid() != 0 or not state.cache:
            return None
        return SealNode(state.socket, "/", state.cache, [state], is_running=True, waits=False)

    def _warn_unreadable(self, error: OSError) -> None:
        """Say once why the directory of the seals can't be read. Its disk may be broken; all else continues."""
        line = f"the seals can't be read: {error} (tried again every second)"
        self._unreadable.report(str(error), line)

    def _mount(self, node: SealNode, seal: SealId) -> None:
        try:
            record = node.catalogue.record(seal)
            if self._state.mountpoint and record.automatic and seal not in self._known:
                node.mount_automatic(record)
            failures = node.renew_mounts(record)
            (self._lazy.add if record.is_lazy else self._lazy.discard)(seal)
        except PathNotFoundError:
            failures = []  # the node removed it meanwhile
            self._lazy.discard(seal)
        except (HeadraceError, OSError) as error:
            failures = [f"the mounts of seal {seal} are not renewed: {error}"]
        if not failures:
            self._retries.pop(seal, None)
            return
        before = self._retries.get(seal, _Retry([], 0, 0.0))
        for failure in failures:
            if failure not in before.failures:
                warn(failure)
        pause_s = min(RETRY_S_MAX, 2.0 ** min(before.times, 8))
        self._retries[seal] = _Retry(failures, before.times + 1, time.monotonic() + pause_s)


def _mount_again(
    node: SealNode, places: list[tuple[Place, SealId]], *, is_first: bool
) -> list[tuple[Place, SealId]]:
    """Mount seals at places that they had before, outer places first. Return those that wait for another command, which
    stderr names the first time only."""
    for place, seal in reversed(places):  # inner ones first: readers of them never meet the one around them
        with suppress(HeadraceError, OSError):
            node.mount_again(seal, place)
    waiting = []
    for place, seal in places:  # the path of an inner one may exist in the one around it only
        try:
            node.mount_again(seal, place)
        except (HeadraceError, OSError) as error:
            is_busy = isinstance(error, MountError) and error.why == BUSY
            waiting += [(place, seal)] * is_busy
            if is_first or not is_busy:
                again = " (tried again every second)" * is_busy
                warn(f"seal {seal} is not mounted at {place.mountpoint}: {error}{again}")
    return waiting


def _has_place(node: SealNode, seal: SealId, place: Place) -> bool:
    """Return whether a seal still has a place. An error is for the attempt to mount it."""
    try:
        return place in node.catalogue.places(seal)
    except (HeadraceError, OSError):
        return True


def uncover(mountpoint: str) -> None:
    """Unmount the seals over a mount that begins or ends. Open files can still be read. Without a session the kernel
    resolves no path below the mount: seals there are unmounted with it, when it is detached."""
    from headrace.seal.mounted import seals_below
    from headrace.seal.places import unmount_seal

    if os.geteuid() != 0:
        return  # only root mounts seals
    for place in sorted(seals_below(mountpoint), key=lambda path: path.split("/"), reverse=True):
        try:
            unmount_seal(place)
        except HeadraceError as error:
            if place == mountpoint:
                warn(f"a seal stays mounted: {error}")


def _is_below(path: str, top: str) -> bool:
    return bool(top) and is_at_or_below(path, top)


@dataclass(frozen=True, slots=True)
class SealNode:
    """Mounts the seals of one node of this host. path: a path of its namespace. folders: the directories of its
    volumes. states: the states of the commands that mount its namespace. waits: it waits while another command mounts a
    seal. A supervisor must not: the user may have stopped that command."""

    socket: str
    path: str
    folders: list[str]
    states: list[RunState]
    is_running: bool
    waits: bool = True

    @property
    def catalogue(self) -> Catalogue:
        from headrace.seal.catalogue import Catalogue

        return Catalogue.of_cache(self.folders[0])

    def places(self, mountpoint: str | None, path: str, *, in_place: bool, shared: bool) -> list[Place]:
        """Return the places to mount a seal at. mountpoint: the directory of --at. path: the path that was sealed.
        Raises UsageError for `in_place` if nothing of the node is mounted."""
        from headrace.seal.catalogue import Place

        places = [] if mountpoint is None else [Place(_recordable(mountpoint), shared=shared)]
        if not in_place:
            return places
        tops = dict.fromkeys(state.mountpoint for state in self.states if state.mountpoint)
        if not tops:
            raise UsageError(
                "seal --in-place", why="the node has no mount on this host", hint="use --at MOUNTPOINT"
            )
        for top in tops:
            below = os.path.join(top, path.strip("/")).rstrip("/")
            places.append(Place(below, in_place=True, shared=_is_shared(top)))
        return places

    def mount(self, record: SealRecord, place: Place) -> None:
        """Mount a seal. Its place is recorded first, so that each mount has a record. Another seal loses the place only
        after this one is mounted. Raises MountError if the directory is not empty."""
        import msgspec

        from headrace.seal.mounted import source_on_top
        from headrace.seal.mountpoint import make_mountpoint, remove_mountpoint

        created, replaced = 0, source_on_top(place.mountpoint)
        before = [kept for kept in self.catalogue.places(record.seal) if kept.mountpoint == place.mountpoint]
        try:
            if not place.in_place:
                with uninterrupted():  # nobody else knows what it created
                    created = make_mountpoint(place.mountpoint)
                    place = msgspec.structs.replace(
                        place, created_inode=created or self._created_at(place.mountpoint)
                    )
            self._record(record.seal, place.mountpoint, [place])
            self._mount_view(record, place)
        except BaseException:
            with uninterrupted():
                self._record(record.seal, place.mountpoint, before)
                self._take_back(record.seal, place, replaced)
                if created:
                    remove_mountpoint(place, self.catalogue)
            raise
        self._take_place_from_others(record.seal, place)
        for inner, seal in self.known_places():
            if inner.mountpoint != place.mountpoint and _is_below(inner.mountpoint, place.mountpoint):
                self.try_mount(seal, inner)  # its path may exist in this view only

    def _take_back(self, seal: SealId, place: Place, replaced: str) -> None:
        """Unmount a seal that has no place there, where ^C came just after its mount, and mount the one that it
        replaced. replaced: the device of that one; "" for none."""
        from headrace.seal.mounted import source_on_top

        with suppress(HeadraceError):  # the error that led here is the one to report
            self.unmount_unrecorded(place.mountpoint)
        if replaced and not source_on_top(place.mountpoint):
            for known, other in self.known_places():
                if other != seal and known.mountpoint == place.mountpoint:
                    self.try_mount(other, known)

    def mount_automatic(self, record: SealRecord) -> None:
        """Mount a seal of this node in place, unless it has places. If the node removes the seal at this moment, it
        does not stay mounted."""
        from headrace.seal.mounted import is_of, source_on_top
        from headrace.seal.places import unmount_seal

        if self.catalogue.places(record.seal):
            return
        for place in self.places(None, record.path, in_place=True, shared=False):
            source = source_on_top(place.mountpoint)
            if source and not is_of(source, self.catalogue, record.seal):
                continue  # a user mounted a seal there
            self._record(record.seal, place.mountpoint, [place])
            try:
                self._mount_view(record, place)
            except BaseException:
                self._record(record.seal, place.mountpoint, [])  # so that the next call tries again
                raise
            if record.seal not in self.catalogue.seals():
                unmount_seal(place.mountpoint)

    def renew_mounts(self, record: SealRecord) -> list[str]:
        """Mount the seal's present generation over its earlier views. Return the views that could not be replaced, each
        with the reason."""
        from headrace.seal.mounted import is_of, serves, source_on_top

        failures = []
        for place in self.catalogue.places(record.seal):
            source = source_on_top(place.mountpoint)
            if is_of(source, self.catalogue, record.seal) and not serves(source, self.catalogue, record):
                failures.append(self._failure_to_mount(record.seal, place))
        return [failure for failure in failures if failure]

    def try_mount(self, seal: SealId, place: Place) -> None:
        """Mount a seal at a place that it had before. If that fails, stderr names the reason."""
        if failure := self._failure_to_mount(seal, place):
            warn(failure)

    def _failure_to_mount(self, seal: SealId, place: Place) -> str:
        """Mount a seal at a place that it had before. Return why that failed; "" if it did not."""
        try:
            self.mount_again(seal, place)
        except (HeadraceError, OSError) as error:
            return f"seal {seal} is not mounted at {place.mountpoint}: {error}"
        return ""

    def mount_again(self, seal: SealId, place: Place) -> None:
        """Mount a seal at a place that it had before. Raises HeadraceError or OSError."""
        self._mount_view(self.catalogue.record(seal), place)

    def _mount_view(self, record: SealRecord, place: Place) -> None:
        """Mount the seal's present generation, unless it is mounted there already. Raises MountError."""
        from headrace.base.volume_owner import check_volumes, has_several_volumes
        from headrace.cli.lazy_layer import lazy_layer
        from headrace.seal.mounted import is_exchanged, serves, source_on_top
        from headrace.seal.places import mount_seal
        from headrace.seal.replaced_file import locked

        check_volumes(self.folders)
        if not self.is_running and len(self.folders) == 1 and has_several_volumes(self.folders[0]):
            raise MountError(
                f"cannot mount seal {record.seal}",
                why="its node does not run, and has cache directories that are not named",
                hint="start the node, or name all its directories in the configuration",
            )
        with locked(self.catalogue.folder, wait=self.waits) as is_locked:
            if not is_locked:
                raise MountError(f"cannot mount seal {record.seal}", why=BUSY)
            if serves(source_on_top(place.mountpoint), self.catalogue, record) and not is_exchanged(
                place.mountpoint
            ):
                return
            self._keep_names(place)
            log_path = self.states[0].log if self.states else ""
            with lazy_layer(self.catalogue, record, node_socket=self.socket, log_path=log_path) as layer:
                mount_seal(self.catalogue, record, self.folders, place, layer)
            self.unmount_unrecorded(place.mountpoint)

    def unmount_unrecorded(self, top: str) -> None:
        """Unmount the seals at or below a directory that have no place there. A command that was killed left them under
        another seal, and by now readers may meet them."""
        from headrace.seal.catalogue import SealId
        from headrace.seal.mounted import mountpoints
        from headrace.seal.places import unmount_seal

        for name, paths in mountpoints(self.catalogue).items():
            with suppress(HeadraceError):  # its places can't be read
                places = {place.mountpoint for place in self.catalogue.places(SealId.parse(name))}
                for path in paths:
                    if is_at_or_below(path, top) and path not in places:
                        unmount_seal(path)

    def _keep_names(self, place: Place) -> None:
        """Have the session of the mount below a place keep its name, also if the origin has lost the directory."""
        for state in self.states if place.in_place else ():
            if state.mountpoint and _is_below(place.mountpoint, state.mountpoint):
                keep_mountpoints(state.mountpoint)

    def remove_mountpoints(self, places: list[Place]) -> None:
        """Remove the directories that commands created for a removed seal, unless another seal has its place there."""
        from headrace.seal.mountpoint import remove_mountpoint

        taken = {place.mountpoint for place, _ in self.known_places()}
        for place in places:
            if place.mountpoint not in taken:
                remove_mountpoint(place, self.catalogue)

    def _created_at(self, mountpoint: str) -> int:
        """Return the inode of a mountpoint that a command created for an earlier seal; 0 if none did."""
        return max(
            (place.created_inode for place, _ in self.known_places() if place.mountpoint == mountpoint),
            default=0,
        )

    def known_places(self) -> list[tuple[Place, SealId]]:
        """Return all places with their seals, outer places first."""
        places: list[tuple[Place, SealId]] = []
        for seal in self.catalogue.seals():
            try:
                places += [(place, seal) for place in self.catalogue.places(seal)]
            except HeadraceError as error:
                warn(f"seal {seal} is not mounted: {error}")
        return sorted(places, key=lambda row: row[0].mountpoint.split("/"))

    def _take_place_from_others(self, mounted: SealId, place: Place) -> None:
        for other, seal in self.known_places():
            if seal != mounted and other.mountpoint == place.mountpoint:
                self._record(seal, place.mountpoint, [])

    def _record(self, seal: SealId, mountpoint: str, places: list[Place]) -> None:
        """Replace the place that a seal has at a mountpoint."""
        self.catalogue.change_places(
            seal, lambda before: [*(kept for kept in before if kept.mountpoint != mountpoint), *places]
        )


def running_node(socket: str | None, cache: str | None, path: str | None) -> SealNode:
    from headrace.cli.target import find_target

    return _node_of(find_target(socket, cache, path), is_running=True)


def known_node(socket: str | None, cache: str | None) -> SealNode:
    """Return the node that a command names, even if it does not run: its seals are on the disk. Raises
    NodeUnavailableError for one that runs and does not answer, as it uses its seals."""
    from headrace.cli.target import find_target
    from headrace.client.discovery import answers
    from headrace.config.load import load

    try:
        target = find_target(socket, cache)
    except NodeUnavailableError:
        target = None
    if target is not None:
        try:
            return _node_of(target, is_running=True)
        except NodeUnavailableError:
            if answers(target.socket):
                raise
    folders = [volume.folder for volume in load().config.cache]
    named = None if cache is None else cache.split(":", 1)[0]
    if named is not None:
        if os.path.realpath(named) != os.path.realpath(folders[0]):
            folders = [named]  # the configuration is of another node
        return SealNode("", "/", folders, [], is_running=False)
    return _restarting_node(socket) or SealNode("", "/", folders, [], is_running=False)


def _restarting_node(socket: str | None) -> SealNode | None:
    """Return the node that a running command starts again, by the cache that the command recorded; None if there is no
    such command. Raises UsageError if several could be meant."""
    from headrace.cli.state import read_states
    from headrace.cli.target import CHOOSE
    from headrace.config.load import load

    states = [state for state in read_states(load().config.run_folder) if state.alive() and state.cache]
    if socket is not None:
        states = [state for state in states if state.socket == os.path.abspath(socket)]
    caches = {tuple(state.cache) for state in states}
    if len(caches) > 1:
        names = ", ".join(sorted(cache[0] for cache in caches))
        raise UsageError("seal", why=f"the nodes of {names} are restarting", hint=CHOOSE)
    if not caches:
        return None
    return SealNode("", "/", list(caches.pop()), states, is_running=False)


def _node_of(target: Target, *, is_running: bool) -> SealNode:
    from headrace.cli.state import read_states
    from headrace.client.connection import Connection
    from headrace.config.load import load
    from headrace.config.schema import spill_of

    if "://" in target.socket or target.socket.startswith("unix:"):
        raise UsageError("seal", why="the node runs on another host", hint="run the command there")
    connection = Connection(target.socket, role="cli")
    try:
        spill = f"/{spill_of(target.socket)[1]}.spill"
        folders = [folder for folder in connection.welcome.volumes if not folder.endswith(spill)]
    finally:
        connection.close()
    states = read_states(load().config.run_folder)
    used = [state for state in states if state.socket == target.socket and state.alive()]
    return SealNode(target.socket, target.path, folders, used, is_running=is_running)


def _recordable(mountpoint: str) -> str:
    """Return the real path of a mountpoint. Raises UnicodeEncodeError, before a directory is created, for one that no
    record can hold."""
    path = os.path.realpath(mountpoint)
    path.encode()
    return path


def _is_shared(mountpoint: str) -> bool:
    """Return whether other users may enter a mount of a session (allow_other)."""
    rows = [row for row in mount_table() if row.mountpoint == mountpoint and row.kind == "fuse.headrace"]
    return bool(rows) and "allow_other" in rows[-1].options
