"""Look up and read paths of the origins through a node of this host, for commands."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.errors import IsADirectoryPathError, StaleIdError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId, Kind
from headrace.client.file import OpenFile
from headrace.client.node_client import CHANGED_ATTEMPTS, NodeClient

READ_STEP_BYTES = 8 * BLOCK_SIZE_BYTES


class PathReader:
    """Reads by paths. client: owned by this object. The node resolves each path. Thread-safe."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def resolve(self, path: bytes) -> Entry:
        """Return the entry at a path. Raise PathNotFoundError where there is none."""
        return self._client.resolve(path)

    def file_state(self, id: FileId) -> dict[str, str]:
        """Return the attributes of a file as `NodeClient.file_state` does."""
        return self._client.file_state(id)

    def list_path(self, path: bytes) -> Iterator[Entry]:
        """Yield the children of a directory, or the file itself."""
        entry = self.resolve(path)
        if entry.kind is Kind.FILE:
            yield entry
            return
        self._client.ensure_listed(entry.id)
        yield from self._client.children(entry.id)

    def read(self, path: bytes, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Yield the pieces of a file in order."""
        entry, file = self._open_path(path)
        stop = entry.version.size_bytes if end is None else min(end, entry.version.size_bytes)
        try:
            while start < stop:
                step = min(READ_STEP_BYTES, stop - start)
                yield memoryview(file.pread(step, start))
                start += step
        finally:
            file.close()

    def _open_path(self, path: bytes) -> tuple[Entry, OpenFile]:
        """Resolve a path and open its file. A file that changes between the two requests is resolved again."""
        for attempt in range(CHANGED_ATTEMPTS):
            entry = self.resolve(path)
            if entry.kind is Kind.DIRECTORY:
                raise IsADirectoryPathError(path.decode(errors="replace"), why="it is a directory")
            try:
                return entry, self._client.open(entry.id)
            except (VersionChangedError, StaleIdError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def close(self) -> None:
        self._client.close()
