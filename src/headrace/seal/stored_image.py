"""Keep the image of a seal on the disk. It follows from the content list and the ids of the cache files. So the images
of older versions are dropped to save space, and written again when they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from headrace.base import failpoint
from headrace.base.cache_names import data_name, lazy_name
from headrace.base.errors import HeadraceError, InvalidImageError
from headrace.base.private_folder import private
from headrace.seal.catalogue import Catalogue, SealRecord
from headrace.seal.erofs import ImageEntry
from headrace.seal.snapshot import SnapshotEntry
from headrace.seal.writer import write_image


def image_entry(entry: SnapshotEntry, id: int) -> ImageEntry:
    """Return what an image shows of a name. id: of the cache file; an empty file and a directory need none. A file that
    the cache lacked has a name that only the layer of a lazy seal knows: on a volume it may lie with holes."""
    target = b""
    if entry.is_file and entry.size_bytes:
        target = b"/" + (lazy_name(id) if entry.is_missing else data_name(id))
    return ImageEntry(
        *(entry.path, entry.mode, entry.size_bytes, entry.uid or 0, entry.gid or 0, entry.mtime_ns, target)
    )


def open_stored_image(catalogue: Catalogue, record: SealRecord) -> int:
    """Return a descriptor of the image of a seal, for reading; the caller closes it. Blocks for 12 s a million files if
    the image must be written again. Raises InvalidImageError or OSError."""
    path = catalogue.path(record.seal, record.file_name("image"))
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        _write_again(catalogue, record, path)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def drop_older_images(catalogue: Catalogue, newest: SealRecord) -> None:
    """Remove the images of older versions of a name that are to be mounted nowhere."""
    for seal in catalogue.seals():
        if seal.name == newest.name and seal < newest.seal and not catalogue.places(seal):
            with suppress(HeadraceError):  # a damaged one is named by `status`
                catalogue.drop_image(catalogue.record(seal))


def _write_again(catalogue: Catalogue, record: SealRecord, path: str) -> None:
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(draft, "w+b", opener=private) as out:
            digest = write_image(_entries(catalogue.entries(record), catalogue.ids(record)), out.fileno())
            os.fsync(out.fileno())
        if digest != record.image:
            raise InvalidImageError(
                f"seal {record.seal}", why="its list and ids give another image", hint="seal again"
            )
        failpoint.hit("seal.image")
        os.rename(draft, path)
    finally:
        if os.path.lexists(draft):
            os.unlink(draft)


def _entries(entries: Iterable[SnapshotEntry], ids: Iterable[int]) -> Iterator[ImageEntry]:
    id_of_file = iter(ids)
    for entry in entries:
        id = next(id_of_file, None) if entry.is_file else 0
        if id is None:
            raise InvalidImageError("the ids of a seal", why="there are too few", hint="seal again")
        yield image_entry(entry, id)
