"""Gives the whole files of a folder of a node of another user (`sdk/mapped_files.py`)."""

from __future__ import annotations

import os

from headrace.base.cancel import Cancel
from headrace.sdk.mapped_files import URL, ModelFolder, mapped
from headrace.vfs.brokered.broker_registry import open_brokered_vfs
from headrace.vfs.brokered.brokered_vfs import BrokeredVfs
from headrace.vfs.vfs_reader import is_directory


class BrokeredModelFolder:
    """Reads the files of a folder. The connection belongs to the process, and stays open."""

    def __init__(self, paths: BrokeredVfs, folder: bytes) -> None:
        self._paths = paths
        self._folder = folder

    @property
    def name(self) -> str:
        return URL + os.fsdecode(self._folder)

    def names(self) -> list[str]:
        return [
            os.fsdecode(name)
            for name, status in self._paths.children(self._folder)
            if not is_directory(status)
        ]

    def read(self, name: str) -> bytes:
        return self._paths.read(self._path(name), 0, None)

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        content = self._paths.content(self._path(name))
        try:
            return mapped(content.wait_whole(), content.size_bytes)
        finally:
            content.close()

    def _path(self, name: str) -> bytes:
        return self._folder.rstrip(b"/") + b"/" + os.fsencode(name)

    def close(self) -> None: ...


def open_brokered_model_folder(
    path: bytes, socket: str | None, *, patience_s: float
) -> tuple[ModelFolder, str] | None:
    """Open a folder, or the folder of a file, as `files_at` of sdk/mapped_files.py does. None: no node of another
    user is open to others."""
    paths = open_brokered_vfs(cache=None, socket=socket, patience_s=patience_s)
    if paths is None:
        return None
    full_path, status = paths.get(path)
    if is_directory(status):
        return BrokeredModelFolder(paths, full_path), ""
    folder, _, name = full_path.rpartition(b"/")
    return BrokeredModelFolder(paths, folder or b"/"), os.fsdecode(name)
