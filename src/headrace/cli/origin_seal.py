"""Open seals that only an origin has, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.base.errors import PathNotFoundError

if TYPE_CHECKING:
    from headrace.seal.catalogue import Catalogue, SealId
    from headrace.seal.snapshot import SnapshotEntry


def row_at_origin(seal: SealId, socket: str | None, cache: str | None) -> dict[str, Any]:
    """Return the row of a seal at an origin of the node's mounts. Raises PathNotFoundError and NodeUnavailableError."""
    import msgspec

    from headrace.cli.request import ask
    from headrace.wire.seal_messages import SealList, SealRows

    answer = ask(SealList(from_origin=True), socket, cache)
    assert isinstance(answer, SealRows)
    for row in answer.rows:
        if row.seal == str(seal):
            return {**msgspec.to_builtins(row), "missing": 0, "mounted": "", "image": ""}
    raise PathNotFoundError(
        f"seal {seal}",
        why="this node has no such seal, and no origin of its mounts has it",
        hint="see `headrace seal list` and `headrace seal list --origin`",
    )


def entries_of(
    catalogue: Catalogue, seal: SealId, socket: str | None, cache: str | None
) -> Iterator[SnapshotEntry]:
    """Return the content list of a seal of this node or else of an origin, for which the node must run. Raises
    PathNotFoundError, InvalidImageError and NodeUnavailableError."""
    try:
        return catalogue.entries(catalogue.record(seal))
    except PathNotFoundError:
        return _entries_at_origin(seal, socket, cache)


def _entries_at_origin(seal: SealId, socket: str | None, cache: str | None) -> Iterator[SnapshotEntry]:
    from headrace.cli.request import ask
    from headrace.vfs.sealed_list import SealedList
    from headrace.wire.seal_messages import SealOpen, SealOpened

    answer = ask(SealOpen(seal=str(seal)), socket, cache)
    assert isinstance(answer, SealOpened)
    rows = SealedList(answer.list_path)
    return (rows.entry(position) for position in range(len(rows)))
