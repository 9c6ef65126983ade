"""The seals that are mounted inside a directory. A seal that comes or goes there would take them away from readers.

Each is copied as a mount, with all that is mounted on it: nothing is opened again, and its readers meet the same bytes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from headrace.base.errors import MountError
from headrace.base.mount_api import (
    attach,
    closing_descriptor,
    copied_mounts,
    detach_opened,
    opened_below,
    opened_directory,
)
from headrace.base.mount_table import mount_id
from headrace.base.namespace_path import is_at_or_below
from headrace.seal.mounted import views_by_id


class _InnerMount(NamedTuple):
    """A mounted seal. path: below the directory. mounted: a descriptor of its root. copy: one of a copy of it, which is
    mounted nowhere yet."""

    path: str
    mounted: int
    copy: int


class InnerMounts:
    """Copies of the outermost seals inside a directory, each with what is mounted on it."""

    def __init__(self, mountpoint: str, mounts: list[_InnerMount]) -> None:
        self._mountpoint = mountpoint
        self._mounts = mounts

    def __bool__(self) -> bool:
        return bool(self._mounts)

    def attach_to(self, view: int) -> bool:
        """Mount the copies in a view that is mounted nowhere. Return False, with nothing done, where the kernel can't:
        Linux 6.15 can. A seal whose directory the view lacks is left out. Raises MountError."""
        attached = 0
        for inner in self._mounts:
            try:
                with (
                    suppress(FileNotFoundError, NotADirectoryError),
                    opened_below(view, inner.path) as target,
                ):
                    attach(inner.copy, target)
                    attached += 1
            except OSError as error:
                if error.errno == errno.EINVAL and not attached:
                    return False
                raise MountError(
                    f"cannot mount at {self._mountpoint}/{inner.path}", why=error.strerror or str(error)
                ) from error
        return True

    def unmount_covered(self) -> None:
        """Unmount the seals that were copied. What covers them by now stays."""
        for inner in self._mounts:
            with suppress(OSError):  # somebody unmounted it
                detach_opened(inner.mounted)

    def attach_again(self) -> None:
        """Mount the copies at their paths, unless a seal is there. Raises MountError after the last one."""
        failed: MountError | None = None
        for inner in self._mounts:
            path = f"{self._mountpoint.rstrip('/')}/{inner.path}"
            try:
                with opened_directory(path) as target:
                    if views_by_id().get(mount_id(target)) != path:
                        attach(inner.copy, target)
            except OSError as error:
                failed = MountError(
                    f"the seal at {path} is no longer mounted",
                    why=error.strerror or str(error),
                    hint="mount it again with `headrace seal mount`",
                )
        if failed is not None:
            raise failed


@contextmanager
def inner_mounts(mountpoint: str) -> Iterator[InnerMounts]:
    """Copy the seals inside a directory that readers of it meet now. Call it after the seal that is to cover them was
    opened: the mount table has outer mounts first then. Raises MountError."""
    rows = {id: path for id, path in views_by_id().items() if path != mountpoint}
    inside = {id: path for id, path in rows.items() if is_at_or_below(path, mountpoint)}
    mounts: list[_InnerMount] = []
    with ExitStack() as stack:
        for path in sorted(set(inside.values()), key=lambda path: path.split("/")):
            below = os.path.relpath(path, mountpoint)
            if any(is_at_or_below(f"/{below}", f"/{outer.path}") for outer in mounts):
                continue  # it is copied with the outer one
            with suppress(OSError):  # it is covered, or was unmounted
                mounted = stack.enter_context(opened_directory(path))
                if inside.get(mount_id(mounted)) == path:
                    mounts.append(_InnerMount(below, mounted, stack.enter_context(_copied(mounted, path))))
        yield InnerMounts(mountpoint, mounts)


@contextmanager
def _copied(mounted: int, path: str) -> Iterator[int]:
    try:
        copy = copied_mounts(mounted)
    except OSError as error:
        raise MountError(f"cannot keep the seal at {path}", why=error.strerror or str(error)) from error
    with closing_descriptor(copy):
        yield copy
