"""Provide the call of a `Cache` that says which files are on this host."""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.base.model import Entry
from headrace.sdk.seal_calls import SealCalls
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs


class PresenceCalls(SealCalls):
    def are_cached(self, paths: Iterable[str]) -> list[bool]:
        """Return for each file whether all its bytes are on this host. Nothing is fetched but names. Only a node of
        this user or root's can be asked; of other nodes, no file counts as cached. Raise PathNotFoundError."""
        vfs = self._vfs
        if not isinstance(vfs, LocalVfs):
            return [False for _ in paths]
        return [_is_cached(vfs, os.fsencode(path)) for path in paths]


def _is_cached(vfs: LocalVfs, path: bytes) -> bool:
    _, status = vfs.get(path)
    if isinstance(status, Entry):
        return not is_directory(status) and vfs.client.complete_path(status.id) is not None
    return True  # written here
