"""Name the sealed versions of data that a checkpoint was trained on: `imagenet@3`, with the id of its content list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.base.errors import PathNotFoundError, UsageError
from headrace.seal.catalogue import SealId

Data = Mapping[str, str] | Iterable[str] | None
"""The sealed versions that a state was trained on, as `resolve_versions` takes them."""
VERSIONS_MAX = 100
_ID = re.compile(r"[0-9a-f]{64}")


def resolve_versions(data: Data) -> dict[str, str]:
    """Return the id of each version by its name. data: names as NAME@VERSION, which the node of this host or the
    origins of its mounts have; or names with ids, for which no node is needed. Raise UsageError, PathNotFoundError,
    NodeUnavailableError."""
    if not data:
        return {}
    if isinstance(data, str):
        data = [data]
    versions = dict(data) if isinstance(data, Mapping) else _ids_of(list(data))
    try:
        check_versions(versions)
    except ValueError as error:
        raise UsageError("data of a checkpoint", why=str(error)) from None
    return versions


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise ValueError unless all are names and ids of seals."""
    if len(versions) > VERSIONS_MAX:
        raise ValueError(f"{len(versions)} versions of data: {VERSIONS_MAX} are allowed")
    for name, id in versions.items():
        try:
            SealId.parse(name)
        except UsageError as error:
            raise ValueError(str(error)) from None
        if not _ID.fullmatch(id):
            raise ValueError(f"the id of {name} is no hash: {id[:80]!r}")


def _ids_of(names: list[str]) -> dict[str, str]:
    from headrace.sdk.cache import connect  # a save that names no data needs no node

    with connect() as cache:
        ids = {row.seal: row.id for row in cache.seals()}
        if not ids.keys() >= set(names):
            ids = {row.seal: row.id for row in cache.seals(from_origin=True)} | ids
    for name in names:
        if name not in ids:
            raise PathNotFoundError(
                f"seal {name}",
                why="neither the node nor an origin has such a seal",
                hint="see `headrace seal list`",
            )
    return {name: ids[name] for name in names}
