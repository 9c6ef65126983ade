"""Where a benchmark's files are: a folder (a disk, a mount), any fsspec URL, or an object store through obstore.

One `BenchStorage` a process and kind. What a read costs is the library's own: nothing is added between it and the
format's reader. Errors of a read are those of READ_ERRORS, whatever the place.
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
"""What TensorFlow's reader of tfrecords asks for at a time, and so MLPerf Storage."""
STREAM_BYTES = 8 << 20
"""Of a large object at a time, where it is streamed: with 256 KiB a request would be all latency."""
WHY_LETTERS_MAX = 200
CREDENTIALS_HINT = (
    "-o access_key_id=… -o secret_access_key=…, --profile NAME, or --anonymous for a public bucket"
)
_CREDENTIALS = re.compile(r"Credential|Unauthenticated|PermissionDenied|TokenRetrieval|latest/api/token")
_NETWORK = re.compile(
    r"Connect|Timeout|Resolv|HTTP error|HTTPClientError|Incomplete|error sending request|\b50[0234]\b"
)
READ_ERRORS: tuple[type[Exception], ...] = (HeadraceError, OSError, ValueError, EOFError, zipfile.BadZipFile)


class Where(msgspec.Struct, frozen=True):
    """kind: "folder", "fsspec" or "obstore". root: a path or a URL. options: of an origin, as `headrace up` has them
    (endpoint, region, access_key_id, secret_access_key, ...); other schemes than s3 get them as fsspec's own."""

    kind: str
    root: str
    options: dict[str, str] = {}


class BenchStorage(Protocol):
    def names(self, below: str) -> dict[str, int]:
        """All files below a folder: name, as from the root → size in bytes. Empty where there is none."""
        ...

    def create(self, name: str) -> IO[bytes]:
        """The file has its name when it is closed, whole."""
        ...

    def get(self, name: str) -> bytes: ...

    def source(self, name: str) -> IO[bytes] | str:
        """What a reader that jumps (numpy's of npz) is given: a path, or all of the object."""
        ...

    def stream(self, name: str) -> IO[bytes]:
        """For one who reads from the beginning to the end."""
        ...

    def window(self, name: str, start: int, end: int) -> bytes: ...


def where(text: str, options: Mapping[str, str] | None = None, *, by: str = "") -> Where:
    """What a user's word names. by: "obstore" for an object store's URL; else fsspec. UsageError."""
    if "://" not in text:
        return Where("folder", os.path.abspath(text))
    if by not in ("", "fsspec", "obstore"):
        raise UsageError(f"--by {by}", why="unknown", hint="fsspec or obstore")
    scheme, _, rest = text.partition("://")
    return Where(by or "fsspec", f"{scheme}://{rest.rstrip('/') or '/'}", dict(options or {}))


def check_folder(place: Where) -> None:
    """PathNotFoundError or NotADirectoryPathError for a folder that is not there: a missing mount, a slip of the
    pen. A benchmark would measure another disk than was meant."""
    if place.kind != "folder" or os.path.isdir(place.root):
        return
    if os.path.lexists(place.root):
        raise NotADirectoryPathError(place.root, why="not a folder")
    raise PathNotFoundError(
        place.root, why="no such folder", hint=f"mkdir -p {place.root}, or mount it first"
    )


def open_place(one: Where) -> BenchStorage:
    if one.kind == "folder":
        return DirectoryStorage(one.root)
    return ObstoreStorage(one) if one.kind == "obstore" else FsspecStorage(one)


class DirectoryStorage:
    def __init__(self, root: str) -> None:
        self.root = root

    def names(self, below: str) -> dict[str, int]:
        found = {}
        for folder, _, files in os.walk(os.path.join(self.root, below)):
            for name in files:
                path = os.path.join(folder, name)
                if not name.endswith(".part"):
                    found[os.path.relpath(path, self.root)] = os.stat(path).st_size
        return found

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
    """A file that gets its name when it is closed."""

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
    def __init__(self, one: Where) -> None:
        with needs_extra(one.root, extra="bench"):
            import fsspec
        scheme = one.root.partition("://")[0]
        options = s3fs_options(one.options) if scheme == "s3" else dict(one.options)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(one.root, **options)
        except (ImportError, ValueError) as error:
            raise NotSupportedError(one.root, why=str(error)) from error
        self._fs.invalidate_cache()

    def names(self, below: str) -> dict[str, int]:
        with _explained(self._path(below)):
            found = self._fs.find(self._path(below), detail=True)
        start = len(self._root.rstrip("/")) + 1
        return {path[start:]: int(about["size"]) for path, about in found.items()}

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
    """S3 and what speaks it."""

    def __init__(self, one: Where) -> None:
        from obstore.store import from_url

        given: dict[str, Any] = dict(one.options)
        if given.get("endpoint", "").startswith("http://"):
            given["client_options"] = {"allow_http": True}
        if given.pop("anonymous", "") in ("true", "1"):
            given["skip_signature"] = True
        self._store: Any = from_url(one.root, **given)

    def names(self, below: str) -> dict[str, int]:
        import obstore

        with _explained(below):
            return {one["path"]: one["size"] for part in obstore.list(self._store, below) for one in part}

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
    """obstore's reader as one of Python's."""

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
    """A library's own errors become ours: of credentials, of an endpoint that can't be reached, others."""
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
    """An S3 origin's options in s3fs's words."""
    words = {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "profile": "profile",
    }
    found: dict[str, Any] = {words[name]: value for name, value in options.items() if name in words}
    client = {"endpoint": "endpoint_url", "region": "region_name"}
    named = {client[name]: value for name, value in options.items() if name in client}
    if options.get("anonymous", "") in ("true", "1"):
        found["anon"] = True
    return {**found, "client_kwargs": named} if named else found
