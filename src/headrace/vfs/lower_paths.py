"""Look paths up in the listings of the origins, which this host's index has or the node fetches."""

from __future__ import annotations

import time

from headrace.base.errors import StaleIdError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind
from headrace.base.namespace_path import join, split
from headrace.client.local import LocalCache
from headrace.client.node_client import Miss, NodeClient

DIRECTORY_KEPT_S = 1.0
"""Seconds that a directory's id is kept, like a kernel keeps names of a mount. Paths are at most this old."""
DIRECTORIES_MAX = 10_000
RACES_MAX = 16
"""Attempts of a lookup that each time meets a replaced directory that another thread has forgotten already."""

RecentDirectory = tuple[FileId, float, LocalCache]
"""A directory of an origin: its id, its expiry (monotonic), and the cache whose index has it."""


class LowerPaths:
    """Finds entries of the lower layer by path, and keeps the directories that it met. Thread-safe.

    local: the cache whose write modes the caller has adopted before the call."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self.directories: dict[bytes, RecentDirectory] = {}
        """The directories that were looked up recently, by their paths; some may have expired."""

    def entry(self, path: bytes, local: LocalCache) -> Entry | None:
        """Return the origins' entry at a path. The node answers if the index is too old."""
        if path == b"/":
            return self._client.entry(ROOT_ID)
        until_s = time.monotonic() + DIRECTORY_KEPT_S  # taken before any lookup
        directory, id, names = self._nearest_directory(path, local)
        races_left = RACES_MAX
        while True:
            name = names.pop()
            child = self._client.lookup_fast(id, name)
            try:
                entry = self._client.lookup(id, name) if isinstance(child, Miss) else child
            except StaleIdError:
                if self.directories.pop(directory, None) is None:  # another thread met the same error
                    races_left -= 1
                    if races_left < 0:
                        raise
                directory, id, names = self._nearest_directory(path, local)  # the name means another by now
                continue
            if not names:
                return entry
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            directory, id = join(directory, name), entry.id
            self._keep(directory, (id, until_s, local))

    def cached_entry(self, path: bytes, local: LocalCache) -> Entry | None:
        """Return the origins' entry at a path, by fresh listings. Never waits. None: the listings don't suffice."""
        entry = self._client.entry(ROOT_ID)
        for name in path.split(b"/")[1:]:
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            child = self._client.lookup_fast(entry.id, name)
            entry = None if isinstance(child, Miss) else child
        if entry is not None and path != b"/":
            self._keep(split(path)[0], (entry.parent, time.monotonic() + DIRECTORY_KEPT_S, local))
        return entry

    def refresh_listing(self, entry: Entry | None) -> None:
        """Have the node list a directory again if its listing is too old."""
        if entry is None or entry.kind is not Kind.DIRECTORY:
            return
        if not self._client.listing_fresh(entry.id):
            self._client.ensure_listed(entry.id)

    def _nearest_directory(self, path: bytes, local: LocalCache) -> tuple[bytes, FileId, list[bytes]]:
        """Return the nearest ancestor that was looked up recently, or the root; its id; and the names from there, the
        last one first."""
        now_s, current, names = time.monotonic(), self._client.local, []
        while True:
            path, name = split(path)
            names.append(name)
            directory = self.directories.get(path)
            if directory is not None and now_s < directory[1] and directory[2] is current:
                return path, directory[0], names
            if path == b"/":
                self._keep(path, (ROOT_ID, now_s + DIRECTORY_KEPT_S, local))
                return path, ROOT_ID, names

    def _keep(self, path: bytes, directory: RecentDirectory) -> None:
        if len(self.directories) >= DIRECTORIES_MAX:
            self.directories.clear()
        self.directories[path] = directory
