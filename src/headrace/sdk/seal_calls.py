"""Make and list sealed versions of directories: the part of `Cache` that is about seals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headrace.base.errors import NotSupportedError, StoreError, UsageError
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.vfs import Vfs
from headrace.wire.messages import JobStart, JobState
from headrace.wire.seal_messages import SealList, SealRow, SealRows

OnProgress = Callable[[JobState], None] | None


class SealCalls:
    """Seals by the namespace of a node. vfs: stays the caller's."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs

    def seal(
        self, path: str, name: str | None = None, *, push: bool = False, on_progress: OnProgress = None
    ) -> SealRow:
        """Fetch all files below a path, and freeze the tree as a version, which `/NAME@VERSION/…` reads. name: NAME, or
        NAME@VERSION; the default is the directory's name, with the next version. push: put its list to the origin, for
        other clusters. Raise StoreError if a file can't be sealed. Raises PathExistsError for a version that exists."""
        seal = name or path.rstrip("/").rpartition("/")[2] or "all"
        state = run_to_end(self._vfs, JobStart(kind="seal", path=path, options={"seal": seal}), on_progress)
        if state.failed:
            failed_path, why = state.failed[0]
            raise StoreError(
                f"seal {path}", why=f"{state.failed_files} files could not be sealed; {failed_path}: {why}"
            )
        (seal,) = state.data  # the node chose the version
        if push:
            run_to_end(self._vfs, JobStart(kind="push-seal", path=path, options={"seal": seal}), None)
        return next(row for row in self.seals() if row.seal == seal)

    def seals(self, *, from_origin: bool = False) -> list[SealRow]:
        """Return the sealed versions of the node, or those at the origins of its mounts. Of several nodes on other
        hosts, any of them answers."""
        if isinstance(self._vfs, LocalVfs):
            answer = self._vfs.client.ask(SealList(from_origin=from_origin))
            assert isinstance(answer, SealRows)
            return answer.rows
        from headrace.vfs.remote.remote_vfs import RemoteVfs  # not needed on a host with a node
        from headrace.wire.api import ApiSeals

        if not isinstance(self._vfs, RemoteVfs):
            raise NotSupportedError("seals", why="another user runs the node", hint="ask that user")
        nodes, word = self._vfs.nodes, "true" if from_origin else "false"
        return nodes.ask("listSeals", ApiSeals, on=nodes.only, origin=word).seals


def run_to_end(vfs: Vfs, start: JobStart, on_progress: OnProgress) -> JobState:
    """Run a job, and return its last state. Raises UsageError for an empty path, as of an unset variable: it would mean
    the whole namespace."""
    if not start.path:
        raise UsageError("path ''", why="it is empty", hint="use '/' for the whole namespace")
    last: JobState | None = None
    with contextlib.closing(vfs.run_job(start)) as states:
        for state in states:
            last = state
            if on_progress is not None:
                on_progress(state)
    assert last is not None
    return last
