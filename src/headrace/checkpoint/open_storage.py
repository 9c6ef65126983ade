"""Open the storage of checkpoints at a directory or a URL."""

from __future__ import annotations

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
    return PosixStorage(where)
