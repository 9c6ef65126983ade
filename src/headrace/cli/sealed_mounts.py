"""The seals of a node of this host, for commands: where they are mounted, mounted again and unmounted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, MountError, NodeUnavailableError, UsageError
from headrace.cli.render import warn

if TYPE_CHECKING:
    from headrace.cli.state import RunState
    from headrace.cli.target import Target
    from headrace.seal.catalogue import Catalogue, Place, SealRecord


def restore(state: RunState) -> None:
    """Mount the seals of a node at their places again, after `up` started it. A seal that can't be mounted is named on
    stderr, and stays unmounted."""
    if os.geteuid() != 0 or not state.cache:
        return
    node = SealNode(state.socket, "/", state.cache, [state], is_running=True)
    for seal in node.catalogue.seals():
        try:
            for place in node.catalogue.places(seal):
                if not place.in_place or _is_below(place.mountpoint, state.mountpoint):
                    node.mount(node.catalogue.record(seal), place)
        except (HeadraceError, OSError) as error:
            warn(f"seal {seal} is not mounted: {error}")


def uncover(mountpoint: str) -> None:
    """Unmount the seals that lie over a mount which begins or ends. Open files can still be read. Without a session the
    kernel finds no path below the mount: the seals there go with it, when it is detached."""
    from headrace.seal.mounted import seals_below
    from headrace.seal.places import unmount_seal

    if os.geteuid() != 0:
        return  # only root mounts seals
    for place in reversed(seals_below(mountpoint)):
        try:
            unmount_seal(place)
        except HeadraceError as error:
            if place == mountpoint:
                warn(f"a seal stays mounted: {error}")


def _is_below(path: str, top: str) -> bool:
    return bool(top) and (path == top or path.startswith(top.rstrip("/") + "/"))


@dataclass(frozen=True, slots=True)
class SealNode:
    """A node of this host as seals need it. path: of its namespace. folders: its volumes. states: of the commands that
    use it, for their mounts."""

    socket: str
    path: str
    folders: list[str]
    states: list[RunState]
    is_running: bool

    @property
    def catalogue(self) -> Catalogue:
        from headrace.seal.catalogue import Catalogue

        return Catalogue.of_cache(self.folders[0])

    def places(self, mountpoint: str | None, path: str, *, in_place: bool, shared: bool) -> list[Place]:
        """Return where to mount a seal. mountpoint: as --at names it. path: of the namespace, which it was made of.
        UsageError where nothing of the node is mounted."""
        from headrace.seal.catalogue import Place

        places = [] if mountpoint is None else [Place(os.path.realpath(mountpoint), shared=shared)]
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
        """Mount a seal, and record the place first, so that no mount is left that nobody knows."""
        from headrace.seal.places import mount_seal

        if not place.in_place:
            os.makedirs(place.mountpoint, exist_ok=True)
            if not os.path.ismount(place.mountpoint) and os.listdir(place.mountpoint):
                raise MountError(f"cannot mount at {place.mountpoint}", why="the directory is not empty")
        for seal in self.catalogue.seals():
            places = self.catalogue.places(seal)
            wanted = [other for other in places if other.mountpoint != place.mountpoint]
            if seal == record.seal:
                wanted.append(place)
            if wanted != places:
                self.catalogue.set_places(seal, wanted)
        mount_seal(self.catalogue, record, self.folders, place)


def running_node(socket: str | None, cache: str | None, path: str | None) -> SealNode:
    from headrace.cli.target import find_target

    return _node_of(find_target(socket, cache, path), is_running=True)


def known_node(socket: str | None, cache: str | None) -> SealNode:
    """Return the node that a command names, even if it does not run: its seals are on the disk."""
    from headrace.config.load import load

    try:
        return running_node(socket, cache, None)
    except NodeUnavailableError:
        if cache is not None:
            return SealNode("", "/", [cache.split(":", 1)[0]], [], is_running=False)
        folders = [volume.folder for volume in load().config.cache]
        return SealNode("", "/", folders, [], is_running=False)


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


def _is_shared(mountpoint: str) -> bool:
    """Return whether other users may enter a mount of a session (allow_other)."""
    with open("/proc/self/mounts", "rb") as file:
        rows = [line.split(b" ") for line in file]
    target = os.fsencode(mountpoint).replace(b" ", b"\\040")
    options_of = [row[3] for row in rows if row[1] == target and row[2] == b"fuse.headrace"]
    return bool(options_of) and b"allow_other" in options_of[-1].split(b",")
