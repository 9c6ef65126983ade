"""The seals of a node, each in a directory of its own on the first cache volume, below `seals/`:

    NAME@VERSION/seal.json    SealRecord
    NAME@VERSION/list         the content list (`seal/snapshot.py`), compressed by gzip
    NAME@VERSION/ids          for each file of the list, in its order, the id of its cache file: 8 bytes, little-endian
    NAME@VERSION/image        the image; it may be absent (`seal/stored_image.py`)
    NAME@VERSION/verified     VerifiedImage: that the image has its digest (`seal/verified.py`); it may be absent
    NAME@VERSION/cover        an empty directory of mode 0700: the top of a view that other users must not enter
    NAME@VERSION/places.json  list of Place: where the seal is to be mounted
    .shared/                  content lists that programs read, unpacked (`seal/shared_lists.py`)

A lazy seal whose missing files have arrived gets a list, ids and an image of the next generation: `list.1` and so on.
The rename of its new record makes them the seal.

A seal appears by the rename of its directory, so it is there as a whole or not at all. The names of unfinished ones
begin with a dot, those of removed ones that are still in use with `.removed-`. Only the owner of the cache may enter
`seals/`.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, BinaryIO, Literal, TypeVar, cast

import msgspec

from headrace.base import failpoint
from headrace.base.decoding import decode_json
from headrace.base.errors import (
    HeadraceError,
    InvalidImageError,
    PathExistsError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.private_folder import make_private, private
from headrace.seal.mount import is_in_use
from headrace.seal.replaced_file import locked, remove_unfinished, replace_file, sync
from headrace.seal.snapshot import SnapshotEntry, read_snapshot
from headrace.seal.unpacked_list import write_unpacked
from headrace.seal.verified import mark_verified

Kind = TypeVar("Kind")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VERSION_MAX = 10**9
RECORD_BYTES_MAX = 1 << 20
_REMOVED = ".removed-"
_OF_GENERATION = ("list", "ids", "image")


class SealId(msgspec.Struct, frozen=True, order=True):
    """The name of a seal, as NAME@VERSION."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> SealId:
        """Parse NAME@VERSION. Raises UsageError."""
        name, _, version = text.partition("@")
        if not _NAME.fullmatch(name) or not re.fullmatch(r"[1-9][0-9]{0,9}", version):
            raise UsageError(
                f"seal {text[:100]!r}",
                why="it is not NAME@VERSION",
                hint="use letters, digits, '.', '_' and '-', and a number: imagenet@3",
            )
        if int(version) > VERSION_MAX:
            raise UsageError(f"seal {text!r}", why=f"the version exceeds {VERSION_MAX}")
        return cls(name, int(version))


class SealRecord(msgspec.Struct, frozen=True):
    """A seal. path: of the namespace. id: of the content list. image: its SHA-256. layout: of the cache files that the
    image names. automatic: the node made it by itself, and removes it. created_s: seconds since 1970. missing: number
    of files that the cache lacked when the list was written; such a seal is lazy. generation: of the list, the ids and
    the image."""

    name: str
    version: int
    path: str
    id: str
    image: str
    files: int
    size_bytes: int
    created_s: float
    layout: Literal[2]
    automatic: bool = False
    missing: Annotated[int, msgspec.Meta(ge=0)] = 0
    generation: Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)] = 0

    @property
    def seal(self) -> SealId:
        return SealId(self.name, self.version)

    @property
    def is_lazy(self) -> bool:
        return self.missing > 0

    def file_name(self, name: str) -> str:
        """Return the name of the list, the ids or the image in the directory of the seal."""
        return f"{name}.{self.generation}" if self.generation else name


class Place(msgspec.Struct, frozen=True):
    """A mount of a seal that comes back with `up`. in_place: it covers the same path of the node's own mount. shared:
    other users may enter it. created_inode: of the directory if a command created it; 0 otherwise."""

    mountpoint: str
    in_place: bool = False
    shared: bool = False
    created_inode: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """An unfinished seal: the directory where its files are written."""

    seal: SealId
    folder: str

    def create(self, name: str) -> BinaryIO:
        return open(os.path.join(self.folder, name), "w+b", opener=private)

    def open(self, name: str) -> BinaryIO:
        return open(os.path.join(self.folder, name), "rb")

    @contextmanager
    def create_list(self, name: str = "list") -> Iterator[BinaryIO]:
        """Create the content list; its bytes depend on the contents only."""
        with self.create(name) as out, gzip.GzipFile("", "wb", 1, out, mtime=0) as packed:
            yield cast("BinaryIO", packed)


class Catalogue:
    """The seals of one node. folder: `seals` on its first volume. Every method blocks for the disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._drafts: set[SealId] = set()

    @classmethod
    def of_cache(cls, cache_folder: str) -> Catalogue:
        return cls(os.path.join(cache_folder, "seals"))

    def seals(self) -> list[SealId]:
        """Return all seals, by name and version."""
        return sorted(seal for name in self._names() if (seal := _seal_of(name)) is not None)

    def next_version(self, name: str) -> int:
        """Return a version that neither a seal of this name has, nor one that this process makes."""
        seals = {*self.seals(), *self._drafts}
        return max((seal.version for seal in seals if seal.name == name), default=0) + 1

    def record(self, seal: SealId) -> SealRecord:
        """Return the record of a seal. Raises PathNotFoundError or InvalidImageError for a damaged one."""
        record = _read(seal, self.path(seal, "seal.json"), SealRecord)
        if record.seal != seal:
            raise InvalidImageError(f"seal {seal}", why=f"its record is of {record.seal}")
        return record

    def entries(self, record: SealRecord) -> Iterator[SnapshotEntry]:
        """Yield the content list; InvalidImageError, at the end if it is not the recorded one."""
        try:
            with gzip.open(self.path(record.seal, record.file_name("list")), "rb") as file:
                yield from read_snapshot(cast("BinaryIO", file), record.id)
        except FileNotFoundError as error:
            raise _missing(record.seal) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidImageError(f"seal {record.seal}", why=f"list: {error}", hint="seal again") from error

    def open_list(self, record: SealRecord) -> BinaryIO:
        """Open the content list as it is stored, packed. Raises PathNotFoundError."""
        try:
            return open(self.path(record.seal, record.file_name("list")), "rb")
        except FileNotFoundError as error:
            raise _missing(record.seal) from error

    def ids(self, record: SealRecord) -> array[int]:
        """Return the ids of the cache files, in the order of the list. Raises InvalidImageError for a damaged file."""
        return self._ids_in(str(record.seal), record.file_name("ids"))

    def ids_in_use(self) -> Iterator[array[int]]:
        """Yield the ids of each removed seal that is still in use."""
        for name in self._removed():
            with suppress(InvalidImageError, FileNotFoundError):  # it is being deleted
                for file_name in _generations(os.path.join(self.folder, name), "ids"):
                    yield self._ids_in(name, file_name)

    def _ids_in(self, directory: str, name: str) -> array[int]:
        ids: array[int] = array("Q")
        try:
            with open(os.path.join(self.folder, directory, name), "rb") as file:
                ids.frombytes(file.read())
        except (FileNotFoundError, ValueError) as error:
            raise InvalidImageError(f"seal {directory}", why=f"{name}: {error}", hint="seal again") from error
        if sys.byteorder == "big":
            ids.byteswap()
        return ids

    def places(self, seal: SealId) -> list[Place]:
        try:
            return _read(seal, self.path(seal, "places.json"), list[Place])
        except PathNotFoundError:
            return []

    def change_places(self, seal: SealId, change: Callable[[list[Place]], list[Place]]) -> None:
        """Replace the places of a seal by what `change` makes of them, durably. Waits for other processes that do so.
        Raises PathNotFoundError."""
        try:
            with locked(os.path.join(self.folder, str(seal))):
                places = change(self.places(seal))
                replace_file(self.path(seal, "places.json"), msgspec.json.encode(places))
        except FileNotFoundError as error:
            raise _missing(seal) from error

    def path(self, seal: SealId, name: str) -> str:
        return os.path.join(self.folder, str(seal), name)

    @contextmanager
    def draft(self, seal: SealId) -> Iterator[Draft]:
        """Give a directory for the files of a new seal, which is removed unless `publish` is called. Until the end of
        the block no other seal of this process gets the name. Raises PathExistsError."""
        if seal in self._drafts:
            raise PathExistsError(
                f"seal {seal}", why="it is being made", hint="wait for its end, or name another version"
            )
        make_private(self.folder)
        if os.path.exists(os.path.join(self.folder, str(seal))):
            raise _exists(seal)
        folder = os.path.join(self.folder, f".{seal}.{os.getpid()}.{os.urandom(4).hex()}")
        os.mkdir(folder, 0o700)
        self._drafts.add(seal)
        try:
            yield Draft(seal, folder)
        finally:
            self._drafts.discard(seal)
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, draft: Draft, record: SealRecord) -> None:
        """Make a draft the seal, durably. Raises PathExistsError if there is one of that name by now."""
        os.mkdir(os.path.join(draft.folder, "cover"), 0o700)
        with draft.create("seal.json") as out:
            out.write(msgspec.json.encode(record) + b"\n")
        for name in os.listdir(draft.folder):
            sync(os.path.join(draft.folder, name))
        sync(draft.folder)
        _mark_image(draft.folder, record)
        failpoint.hit("seal.draft")
        try:
            os.rename(draft.folder, os.path.join(self.folder, str(draft.seal)))
        except OSError as error:
            if os.path.exists(os.path.join(self.folder, str(draft.seal))):
                raise _exists(draft.seal) from error
            raise
        failpoint.hit("seal.published")
        sync(self.folder)

    def renew(self, record: SealRecord) -> None:
        """Make the list, the ids and the image of a generation the seal, durably, and remove those before it. An image
        that is in use stays, so that `remove` finds it. Raises PathNotFoundError if the seal was removed meanwhile."""
        seal = record.seal
        before = self.record(seal)
        for name in _OF_GENERATION:
            sync(self.path(seal, record.file_name(name)))
        _mark_image(self.path(seal, ""), record)
        failpoint.hit("seal.generation")
        replace_file(self.path(seal, "seal.json"), msgspec.json.encode(record))
        failpoint.hit("seal.renewed")
        for name in ("list", "ids"):
            with suppress(FileNotFoundError):
                os.unlink(self.path(seal, before.file_name(name)))
        self.drop_image(before)

    def drop_image(self, record: SealRecord) -> None:
        """Remove the image of a seal, which can be written again, unless it is in use."""
        path = self.path(record.seal, record.file_name("image"))
        with suppress(FileNotFoundError):
            if not is_in_use(path):
                os.unlink(path)

    def remove(self, seal: SealId) -> None:
        """Remove a seal, durably. Its ids are kept while its image is in use: a process reads it still, or another
        mount namespace has it. `remove_unused` deletes them later. Raises PathNotFoundError."""
        self._rename_removed(seal, _REMOVED)
        self.remove_unused()

    def remove_at_once(self, seal: SealId) -> None:
        """Remove a seal, durably, and its ids also if it is in use: whoever reads it then misses what is evicted.
        Raises PathNotFoundError."""
        shutil.rmtree(self._rename_removed(seal, "."), ignore_errors=True)

    def in_use(self) -> list[str]:
        """Return the names of removed seals that are still in use."""
        return sorted(name.removeprefix(_REMOVED).rsplit(".", 2)[0] for name in self._removed())

    def remove_unused(self) -> bool:
        """Delete the removed seals that are in use no longer. Return whether there was one."""
        unused = [name for name in self._removed() if not _is_in_use(os.path.join(self.folder, name))]
        for name in unused:
            shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        return bool(unused)

    def remove_drafts(self) -> bool:
        """Remove what killed processes left, and the removed seals that are in use no longer. Return whether there was
        one of the latter. Only the node may call it, before it makes seals."""
        for name in self._names():
            if name.startswith(".") and not name.startswith(_REMOVED):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        for seal in self.seals():
            remove_unfinished(os.path.join(self.folder, str(seal)))
            with suppress(HeadraceError, OSError):  # a damaged seal stays as it is
                _remove_other_generations(self, self.record(seal))
        return self.remove_unused()

    def _rename_removed(self, seal: SealId, prefix: str) -> str:
        removed = os.path.join(self.folder, f"{prefix}{seal}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            os.rename(os.path.join(self.folder, str(seal)), removed)
        except FileNotFoundError as error:
            raise _missing(seal) from error
        failpoint.hit("seal.removed")
        sync(self.folder)
        return removed

    def _removed(self) -> list[str]:
        return [name for name in self._names() if name.startswith(_REMOVED)]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []


def ids_now(catalogue: Catalogue, seal: SealId) -> array[int]:
    """Return the ids of the cache files of a seal that may be renewed at this moment. Raises PathNotFoundError or
    InvalidImageError."""
    record = catalogue.record(seal)
    while True:
        try:
            return catalogue.ids(record)
        except InvalidImageError:
            before, record = record, catalogue.record(seal)
            if record == before:
                raise


def unpack_list(catalogue: Catalogue, record: SealRecord, out: BinaryIO) -> None:
    """Check the content list of a seal, and unpack it for programs. Raises PathNotFoundError and InvalidImageError."""
    with catalogue.open_list(record) as packed, gzip.GzipFile(fileobj=packed) as file:
        try:
            write_unpacked(cast("BinaryIO", file), record.id, out)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidImageError(f"seal {record.seal}", why=f"list: {error}", hint="seal again") from error


def _mark_image(folder: str, record: SealRecord) -> None:
    mark_verified(
        os.path.join(folder, record.file_name("image")), record.image, os.path.join(folder, "verified")
    )


def _remove_other_generations(catalogue: Catalogue, record: SealRecord) -> None:
    """Remove what a kill left during a renewal: files of the generation before, or of one that never became the seal.
    An image that is in use stays."""
    for name in _OF_GENERATION:
        for file_name in _generations(os.path.join(catalogue.folder, str(record.seal)), name):
            path = catalogue.path(record.seal, file_name)
            if file_name != record.file_name(name) and not (name == "image" and is_in_use(path)):
                os.unlink(path)


def drop_generation(catalogue: Catalogue, record: SealRecord) -> None:
    """Remove the list, the ids and the image of a generation that did not become the seal."""
    for name in _OF_GENERATION:
        with suppress(FileNotFoundError):
            os.unlink(catalogue.path(record.seal, record.file_name(name)))


def _seal_of(name: str) -> SealId | None:
    """Return the seal of a directory; None for what an administrator or an unfinished work left."""
    try:
        return SealId.parse(name)
    except UsageError:
        return None


def _missing(seal: SealId) -> PathNotFoundError:
    return PathNotFoundError(
        f"seal {seal}", why="this node has no such seal", hint="see `headrace seal list`"
    )


def _exists(seal: SealId) -> PathExistsError:
    return PathExistsError(f"seal {seal}", why="it exists already", hint="name another version")


def _read(seal: SealId, path: str, kind: type[Kind]) -> Kind:
    try:
        with open(path, "rb") as file:
            return decode_json(file.read(RECORD_BYTES_MAX), kind)
    except FileNotFoundError as error:
        raise _missing(seal) from error
    except msgspec.MsgspecError as error:
        name = os.path.basename(path)
        raise InvalidImageError(f"seal {seal}", why=f"{name}: {error}", hint="seal again") from error


def _generations(folder: str, name: str) -> list[str]:
    """Return the names of a file of each generation that is left. Raises FileNotFoundError."""
    return [each for each in os.listdir(folder) if each == name or each.startswith(f"{name}.")]


def _is_in_use(folder: str) -> bool:
    """Return whether an image in the directory of a seal is in use."""
    with suppress(FileNotFoundError):
        return any(is_in_use(os.path.join(folder, image)) for image in _generations(folder, "image"))
    return False
