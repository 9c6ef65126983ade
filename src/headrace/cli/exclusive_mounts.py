"""Mounts the exclusive directories of a node over its mount, and unmounts them.

The kernel then serves them from the upper layer itself, and no session. Only root mounts them.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.base.beneath import Root
from headrace.base.errors import MountError
from headrace.base.mount_api import attach, closing_descriptor, detach, detached_directory
from headrace.base.mount_table import MountTableRow, mount_table
from headrace.cli.render import warn
from headrace.cli.repeated_failure import RepeatedFailure
from headrace.fuse.mount import keep_mountpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.base.write_modes import WriteModes

TREE = "/upper/tree"
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ExclusiveMounts:
    """The exclusive directories below a mount. upper: the directory of the upper layer."""

    def __init__(self, upper: str, modes: WriteModes) -> None:
        self._tops = modes.exclusive_tops
        self._tree = f"{upper}/tree"

    def __bool__(self) -> bool:
        return bool(self._tops)

    def mount(self, mountpoint: str) -> list[str]:
        """Mount those that are not mounted. Return where. MountError."""
        mounted = {row.mountpoint for row in _rows_below(mountpoint)}
        places = []
        if any(mountpoint + os.fsdecode(top) not in mounted for top in self._tops):
            keep_mountpoints(mountpoint)
        for top in self._tops:
            place = mountpoint + os.fsdecode(top)
            if place not in mounted:
                self._mount_at(place, top)
                places.append(place)
        return places

    def _mount_at(self, place: str, top: bytes) -> None:
        source = Root(os.fsencode(self._tree))
        try:
            with closing_descriptor(source.at(top).open(_FOLDER)) as directory:
                with closing_descriptor(detached_directory(directory)) as mount, _opened(place) as target:
                    attach(mount, target)
        except OSError as error:
            raise MountError(
                f"cannot mount the exclusive directory {place}", why=error.strerror or str(error)
            ) from error
        finally:
            source.close()


class ExclusiveWatch:
    """Mounts exclusive directories again that were lost. The kernel drops a mount when the name below it changes."""

    def __init__(self, mounts: ExclusiveMounts, mountpoint: str) -> None:
        self._mounts = mounts
        self._mountpoint = mountpoint
        self._failure = RepeatedFailure()

    def look(self) -> None:
        """Mount what is not mounted; stderr names it, and a failure once."""
        try:
            for place in self._mounts.mount(self._mountpoint):
                warn(f"the exclusive directory {place} was unmounted; it is mounted again")
            self._failure.end()
        except (MountError, OSError) as error:
            self._failure.report(str(error))


def unmount_exclusive(mountpoint: str) -> None:
    """Unmount all exclusive directories below a mount that begins or ends. Open files go on."""
    if os.geteuid() != 0:
        return  # only root mounts them
    for row in reversed(_rows_below(mountpoint)):
        try:
            detach(row.mountpoint)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # no session lives, and it goes with the mount below it
                warn(f"cannot unmount {row.mountpoint}: {error.strerror}")


def _rows_below(mountpoint: str) -> list[MountTableRow]:
    """Return the rows of the mount table of directories of an upper layer below a mountpoint."""
    prefix = mountpoint.rstrip("/") + "/"
    return [
        row
        for row in mount_table()
        if row.mountpoint.startswith(prefix)
        and (row.root + "/").endswith(f"{TREE}/{row.mountpoint.removeprefix(prefix)}/")
    ]


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a directory without following a link anywhere in its path."""
    root = Root(b"/")
    try:
        with closing_descriptor(root.at(os.fsencode(path)).open(_FOLDER)) as descriptor:
            yield descriptor
    finally:
        root.close()
