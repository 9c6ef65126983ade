"""Define what a session needs of a client: `client.node_client.NodeClient`, or an in-memory one in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.base.cancel import Cancel
from headrace.base.model import Entry, FileId
from headrace.client.node_client import Miss


class CacheFile(Protocol):
    """Reads an open cache file, whose missing blocks the node fills."""

    @property
    def fd(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    def present(self, start: int, end: int) -> bool:
        """Return whether bytes start to end are cached, so that `wait` returns at once."""
        ...

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int:
        """Wait until bytes start to end are cached, and return the descriptor to read them from."""
        ...

    def close(self) -> None: ...


class ReadingClient(Protocol):
    """Looks up names and opens cache files, as a session of any mount needs."""

    @property
    def generation(self) -> int: ...
    def lookup_fast(self, parent: FileId, name: bytes) -> Entry | Miss | None: ...
    def lookup(self, parent: FileId, name: bytes, cancel: Cancel | None = None) -> Entry | None: ...
    def lookup_stale(self, parent: FileId, name: bytes) -> Entry | None:
        """Look the name up in the index, however old the listing is."""
        ...

    def entry(self, id: FileId) -> Entry | None: ...
    def name_ttl_s(self, parent: FileId) -> float: ...
    def listing_fresh(self, directory: FileId) -> bool: ...
    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None: ...
    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...
    def complete_path(self, id: FileId) -> str | None: ...
    def open(self, id: FileId, cancel: Cancel | None = None) -> CacheFile: ...
    def touch(self, id: FileId, pid: int = 0) -> None:
        """Note that a file was opened. pid: of the process or thread that did it; 0: not known."""
        ...

    def acknowledge(self, receipt: int) -> None:
        """Send the receipt of an event back to the node."""
        ...

    def subscribe(
        self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None] = lambda: None
    ) -> None:
        """Call on_event from a thread of its own. on_subscribed: called from there when events begin to come, first and
        after each loss of the node."""
        ...

    def file_state(self, id: FileId) -> dict[str, str]: ...
    def statistics(self) -> tuple[int, int, int]: ...


class WritingClient(ReadingClient, Protocol):
    """Adds what a session of a writable mount needs. `source` identifies the client that made a change."""

    @property
    def source(self) -> int: ...

    def path_of(self, id: FileId) -> bytes | None: ...
    def mount_of(self, path: bytes) -> str:
        """Return the path of the mount that answers for a path; "" above all mounts."""
        ...

    def key_fits(self, path: bytes) -> bool:
        """Return whether the origin that answers for a path can have an object of that name."""
        ...

    def changed(self, paths: list[bytes]) -> None:
        """Queue a report of changed paths to the node. Never blocks."""
        ...

    def writing(self, path: bytes) -> None:
        """Queue a report to the node that a file whose mode promises replicas is open for writing. Never blocks."""
        ...

    def secure(self, path: bytes, cancel: Cancel | None = None) -> None:
        """Block until the path has the durability that its mode promises: the origin has it, or other nodes do."""
        ...

    def acquire_lease(self, directory: bytes, cancel: Cancel | None = None) -> None:
        """Acquire the directory lease: for a moment at least, only this node may create names in it."""
        ...
