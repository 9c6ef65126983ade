"""The directories that a start creates. One that fails leaves none of them behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.base.errors import HeadraceError
from headrace.cli.state import make_run_folder
from headrace.config.load import remember_capacity
from headrace.config.schema import Config


class StartFolders:
    """The cache directories, the run folder and the log of a node that begins. log: "" if it writes none."""

    def __init__(self, config: Config, log: str = "") -> None:
        self._config = config
        self._log = "" if os.path.lexists(log or "/") else log
        self._caches: list[str] = []
        self._run_folder = ""
        self._has_started = False

    def create(self) -> None:
        """Create what is missing. Raises StoreError or UsageError; nothing is created where a disk is missing."""
        from headrace.base.volume_owner import check_volumes

        check_volumes([volume.folder for volume in self._config.cache])
        remember_capacity(self._config, self._caches.append)
        if make_run_folder(self._config.run_folder):
            self._run_folder = self._config.run_folder

    def keep(self) -> None:
        """Keep all, because the start succeeded."""
        self._has_started = True

    def remove_unless_started(self) -> None:
        """Remove what this start created and nobody else uses; a log only if it is empty."""
        if self._has_started:
            return
        from headrace.node.cache import remove_new_cache

        for cache in self._caches:
            with suppress(OSError, HeadraceError):  # another node uses it
                remove_new_cache(cache)
        with suppress(OSError):
            if self._log and os.lstat(self._log).st_size == 0:
                os.unlink(self._log)
        with suppress(OSError):
            if self._run_folder:
                os.rmdir(self._run_folder)


@contextmanager
def removed_if_it_fails(config: Config, log: str) -> Iterator[StartFolders]:
    """Give the folders of a start, and remove them at the end of the block unless it called `keep`."""
    folders = StartFolders(config, log)
    try:
        yield folders
    finally:
        folders.remove_unless_started()
