"""Mount a seal at a place, and unmount it. Only root can."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

from headrace.base import failpoint
from headrace.base.errors import MountError
from headrace.base.mount_api import closing_descriptor, detach, opened_directory
from headrace.base.trusted_owner import only_root_moves
from headrace.seal.catalogue import Catalogue, Place, SealRecord
from headrace.seal.inner_mounts import InnerMounts, inner_mounts
from headrace.seal.mount import attach_view, open_image, open_view
from headrace.seal.mounted import is_exchanged, is_from, source_of, source_on_top
from headrace.seal.mountpoint import MOVABLE
from headrace.seal.stored_image import open_stored_image

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LazyLayer(NamedTuple):
    """A file system that serves what a lazy seal lacks. root: a descriptor of it. pid, began: of its process."""

    root: int
    pid: int
    began: int


def mount_seal(
    catalogue: Catalogue,
    record: SealRecord,
    volumes: Sequence[str],
    place: Place,
    layer: LazyLayer | None = None,
) -> None:
    """Mount a seal; it takes the place of another seal, or of an earlier view of this one. volumes: of the node. layer:
    of a lazy seal. It may read the whole image, or write it again. Open files of what it covers or replaces go on. No
    open sees what is under both. Seals inside it stay on top of it. Only one process may mount at a place at a time.
    Raises InvalidImageError or MountError."""
    on_top = source_on_top(place.mountpoint)
    if on_top and not is_from(on_top, catalogue):
        raise MountError(
            f"cannot mount at {place.mountpoint}",
            why="a seal of another node is mounted there",
            hint=f"choose another directory, or first: umount {place.mountpoint}",
        )
    while is_exchanged(place.mountpoint):
        _unmount_last(place.mountpoint)  # a process was killed before it did this
    replaced = source_on_top(place.mountpoint)
    seal = record.seal
    label = source_of(catalogue, record, layer and (layer.pid, layer.began))
    with ExitStack() as stack:
        folders = [stack.enter_context(_opened(f"{folder}/files")) for folder in volumes]
        target = stack.enter_context(_opened_place(place))
        source = stack.enter_context(closing_descriptor(open_stored_image(catalogue, record)))
        cover = None if place.shared else stack.enter_context(_opened(catalogue.path(seal, "cover")))
        mark = catalogue.path(seal, "verified")
        image = stack.enter_context(closing_descriptor(open_image(source, record.image, mark)))
        data = folders if layer is None else [*folders, layer.root]
        view = stack.enter_context(closing_descriptor(open_view(image, data, source=label, cover=cover)))
        inner = stack.enter_context(inner_mounts(place.mountpoint))
        is_carried = inner.attach_to(view)
        attach_view(view, target, beneath=bool(replaced))
        failpoint.hit("seal.beneath")
        if not is_carried and not inner.attach_to(view):
            raise MountError(
                f"cannot mount the seals inside {place.mountpoint} again", why="the kernel refused"
            )
        if replaced:
            _unmount_last(place.mountpoint)
        else:
            inner.unmount_covered()


def unmount_seal(mountpoint: str) -> None:
    """Unmount the seal that is the last mount at a path; open files go on. Seals inside it are mounted again at once.
    Raises MountError where another file system is, or where a seal inside can't be mounted again."""
    with unmounting_seal(mountpoint) as inner:
        inner.attach_again()


@contextmanager
def unmounting_seal(mountpoint: str) -> Iterator[InnerMounts]:
    """Unmount the seal that is the last mount at a path, and yield the seals inside it. The block mounts them again.
    Raises MountError where another file system is."""
    with inner_mounts(mountpoint) as inner:
        _unmount_last(mountpoint)
        yield inner


def _unmount_last(mountpoint: str) -> None:
    if not source_on_top(mountpoint):
        raise MountError(f"cannot unmount {mountpoint}", why="another file system is mounted over the seal")
    try:
        detach(mountpoint)
    except OSError as error:
        raise MountError(f"cannot unmount {mountpoint}", why=error.strerror or str(error)) from error


def _opened(path: str, flags: int = _FOLDER) -> AbstractContextManager[int]:
    return closing_descriptor(os.open(path, flags))


@contextmanager
def _opened_place(place: Place) -> Iterator[int]:
    """Open the directory of a place. Another user must not be able to put one in its place. Raises MountError."""
    subject = f"cannot mount at {place.mountpoint}"
    if not place.in_place and not only_root_moves(place.mountpoint):
        raise MountError(subject, why=MOVABLE)
    try:
        with opened_directory(place.mountpoint) as target:
            yield target
    except OSError as error:
        raise MountError(subject, why=error.strerror or str(error)) from error
