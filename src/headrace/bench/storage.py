"""Read and write a benchmark's files: in a directory (a disk, a mount), at any fsspec URL, or in an object store
(obstore).

A process has one `BenchStorage`. No layer lies between its library and the reader of the format, so a read costs only
the library's own time. All kinds raise READ_ERRORS.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Protocol

import msgspec

from headrace.base.errors import (
    HeadraceError,
    NotADirectoryPathError,
    NotSupportedError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.missing_extras import needs_extra

BUFFER_BYTES = 256 << 10
"""Size of the reads of TensorFlow's tfrecord reader, and therefore of MLPerf Storage."""
STREAM_BYTES = 8 << 20
"""Size of the requests for a large object that is streamed. Requests of 256 KiB would cost only latency."""
WHY_LETTERS_MAX = 200
"""Most characters of a library's error in a message."""
CREDENTIALS_HINT = (
    "-o access_key_id=… -o secret_access_key=…, --profile NAME, or --anonymous for a public bucket"
)
_CREDENTIALS = re.compile(r"Credential|Unauthenticated|PermissionDenied|TokenRetrieval|latest/api/token")
_NETWORK = re.compile(
    r"Connect|Timeout|Resolv|HTTP error|HTTPClientError|Incomplete|error sending request|\b50[0234]\b"
)
READ_ERRORS: tuple[type[Exception], ...] = (HeadraceError, OSError, ValueError, EOFError, zipfile.BadZipFile)
"""Errors of a failed read, of any storage and format."""


class Where(msgspec.Struct, frozen=True):
    """Name a place of files.

    kind: "folder", "fsspec" or "obstore". root: a path or a URL. options: options of an origin, as for `headrace up`
    (endpoint, region, access_key_id, secret_access_key, ...). For schemes other than s3 they are fsspec's own.
    """

    kind: str
    root: str
    options: dict[str, str] = {}


class BenchStorage(Protocol):
    """Read and write the files of one place."""

    def names(self, below: str) -> dict[str, int]:
        """Return the size in bytes of each file below a directory, by its name relative to the root."""
        ...

    def create(self, name: str) -> IO[bytes]:
        """Open a new file, which gets its name when it is closed."""
        ...

    def get(self, name: str) -> bytes: ...

    def source(self, name: str) -> IO[bytes] | str:
        """Return a path, or the complete object, for a reader that seeks (numpy's for npz)."""
        ...

    def stream(self, name: str) -> IO[bytes]:
        """Open a file for sequential reading."""
        ...

    def window(self, name: str, start: int, end: int) -> bytes: ...


def where(text: str, options: Mapping[str, str] | None = None, *, by: str = "") -> Where:
    """Return the place that a path or URL names. by: "obstore" for an object store's URL; otherwise fsspec.

    Raises UsageError.
    """
    if "://" not in text:
        return Where("folder", os.path.abspath(text))
    if by not in ("", "fsspec", "obstore"):
        raise UsageError(f"--by {by}", why="unknown", hint="fsspec or obstore")
    scheme, _, rest = text.partition("://")
    return Where(by or "fsspec", f"{scheme}://{rest.rstrip('/') or '/'}", dict(options or {}))


def check_folder(place: Where) -> None:
    """Raise PathNotFoundError or NotADirectoryPathError unless the directory exists.

    With a missing mount or a mistyped path, a benchmark would measure another disk than the user meant.
    """
    if place.kind != "folder" or os.path.isdir(place.root):
        return
    if os.path.lexists(place.root):
        raise NotADirectoryPathError(place.root, why="not a directory")
    raise PathNotFoundError(
        place.root, why="no such directory", hint=f"mkdir -p {place.root}, or mount it first"
    )


def open_place(place: Where) -> BenchStorage:
    """Return the storage of a place."""
    if place.kind == "folder":
        return DirectoryStorage(place.root)
    return ObstoreStorage(place) if place.kind == "obstore" else FsspecStorage(place)


class DirectoryStorage:
    def __init__(self, root: str) -> None:
        self.root = root

    def names(self, below: str) -> dict[str, int]:
        sizes = {}
        for folder, _, files in os.walk(os.path.join(self.root, below)):
            for name in files:
                path = os.path.join(folder, name)
                if not name.endswith(".part"):
                    sizes[os.path.relpath(path, self.root)] = os.stat(path).st_size
        return sizes

    def create(self, name: str) -> IO[bytes]:
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return _Renamed(path)

    def get(self, name: str) -> bytes:
        with open(os.path.join(self.root, name), "rb", buffering=0) as source:
            return source.read()

    def source(self, name: str) -> str:
        return os.path.join(self.root, name)

    def stream(self, name: str) -> IO[bytes]:
        return open(os.path.join(self.root, name), "rb", buffering=BUFFER_BYTES)

    def window(self, name: str, start: int, end: int) -> bytes:
        with open(os.path.join(self.root, name), "rb", buffering=0) as source:
            return os.pread(source.fileno(), end - start, start)


class _Renamed(io.FileIO):
    """Write a file that gets its name when it is closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__(path + ".part", "w")

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.rename(self._path + ".part", self._path)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            self.close()
        else:
            super().close()


class FsspecStorage:
    def __init__(self, place: Where) -> None:
        with needs_extra(place.root, extra="bench"):
            import fsspec
        scheme = place.root.partition("://")[0]
        options = s3fs_options(place.options) if scheme == "s3" else dict(place.options)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(place.root, **options)
        except (ImportError, ValueError) as error:
            raise NotSupportedError(place.root, why=str(error)) from error
        self._fs.invalidate_cache()

    def names(self, below: str) -> dict[str, int]:
        with _explained(self._path(below)):
            listed = self._fs.find(self._path(below), detail=True)
        start = len(self._root.rstrip("/")) + 1
        return {path[start:]: int(about["size"]) for path, about in listed.items()}

    def create(self, name: str) -> IO[bytes]:
        with _explained(self._path(name)):
            opened: IO[bytes] = self._fs.open(self._path(name), "wb")
        return opened

    def get(self, name: str) -> bytes:
        with _explained(self._path(name)):
            body: bytes = self._fs.cat_file(self._path(name))
        return body

    def source(self, name: str) -> IO[bytes]:
        return io.BytesIO(self.get(name))

    def stream(self, name: str) -> IO[bytes]:
        with _explained(self._path(name)):
            opened: IO[bytes] = self._fs.open(self._path(name), "rb", block_size=STREAM_BYTES)
        return opened

    def window(self, name: str, start: int, end: int) -> bytes:
        with _explained(self._path(name)):
            body: bytes = self._fs.cat_file(self._path(name), start=start, end=end)
        return body

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


class ObstoreStorage:
    """Use S3, or a store that speaks its protocol."""

    def __init__(self, place: Where) -> None:
        from obstore.store import from_url

        given: dict[str, Any] = dict(place.options)
        if given.get("endpoint", "").startswith("http://"):
            given["client_options"] = {"allow_http": True}
        if given.pop("anonymous", "") in ("true", "1"):
            given["skip_signature"] = True
        self._store: Any = from_url(place.root, **given)

    def names(self, below: str) -> dict[str, int]:
        import obstore

        with _explained(below):
            return {
                entry["path"]: entry["size"] for part in obstore.list(self._store, below) for entry in part
            }

    def create(self, name: str) -> IO[bytes]:
        import obstore

        with _explained(name):
            return obstore.open_writer(self._store, name)  # type: ignore[return-value]  # it has write and close

    def get(self, name: str) -> bytes:
        import obstore

        with _explained(name):
            return bytes(obstore.get(self._store, name).bytes())

    def source(self, name: str) -> IO[bytes]:
        return io.BytesIO(self.get(name))

    def stream(self, name: str) -> IO[bytes]:
        import obstore

        with _explained(name):
            opened: Any = obstore.open_reader(self._store, name, buffer_size=STREAM_BYTES)
        return io.BufferedReader(_Raw(opened, name), BUFFER_BYTES)

    def window(self, name: str, start: int, end: int) -> bytes:
        import obstore

        with _explained(name):
            return bytes(obstore.get_range(self._store, name, start=start, end=end))


class _Raw(io.RawIOBase):
    """Adapt obstore's reader to Python's interface."""

    def __init__(self, opened: Any, name: str) -> None:
        self._opened, self._name = opened, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _explained(self._name):
            body = bytes(self._opened.read(len(buffer)))
        buffer[: len(body)] = body
        return len(body)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Translate a library's errors to those of Headrace: missing credentials, an unreachable endpoint, others."""
    try:
        yield
    except (HeadraceError, OSError, ValueError, EOFError):
        raise
    except Exception as error:
        raise _ours(name, error) from error


def _ours(name: str, error: Exception) -> HeadraceError:
    kind, why = type(error).__name__, " ".join(str(error).split())[:WHY_LETTERS_MAX]
    if _CREDENTIALS.search(f"{kind} {error}"):
        return OriginDeniedError(
            name, why=f"no credentials found, or wrong ones: {why}", hint=CREDENTIALS_HINT
        )
    if _NETWORK.search(f"{kind} {error}"):
        return OriginUnavailableError(name, why=why, hint="is --endpoint right, and does its server run?")
    if kind == "NotFoundError":
        return PathNotFoundError(name, why=why)
    return OriginError(name, why=f"{kind}: {why}")


def s3fs_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Translate the options of an S3 origin to those of s3fs."""
    names = {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "profile": "profile",
    }
    converted: dict[str, Any] = {names[name]: value for name, value in options.items() if name in names}
    client = {"endpoint": "endpoint_url", "region": "region_name"}
    client_options = {client[name]: value for name, value in options.items() if name in client}
    if options.get("anonymous", "") in ("true", "1"):
        converted["anon"] = True
    return {**converted, "client_kwargs": client_options} if client_options else converted
