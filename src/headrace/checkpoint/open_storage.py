"""Open the storage of checkpoints at a directory or a URL."""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.checkpoint.posix_storage import PosixStorage
from headrace.checkpoint.storage import CheckpointStorage


def storage_at(where: str | CheckpointStorage) -> CheckpointStorage:
    """Return the storage at `where`: a directory, or headrace:///DIRECTORY of this host's node.

    Raises NodeUnavailableError or UsageError.
    """
    if not isinstance(where, str):
        return where
    if where.startswith("headrace://"):
        from headrace.checkpoint.node_storage import NodeStorage  # a directory does not need its imports

        return NodeStorage(where)
    if "://" in where:  # as a path it would be a directory below the working directory
        raise UsageError(
            where,
            why="checkpoints are saved in a directory, or at headrace:///DIRECTORY",
            hint="mount the object store with `headrace up --write back`, and name a directory of the mount",
        )
    return PosixStorage(where)
