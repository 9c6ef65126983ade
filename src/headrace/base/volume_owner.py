"""Name the cache that a volume belongs to. The index, and the images of seals, name a cache file by its id alone. So a
volume of another cache, mounted in the place of the right one, would give other bytes under the same names.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Sequence

from headrace.base.errors import StoreError
from headrace.base.private_folder import private
from headrace.base.sync_folder import sync_folder

_FILE = "cache"
_ID = re.compile(r"[0-9a-f]{32}")


def claim_volumes(folders: Sequence[str]) -> None:
    """Record the cache in each of its volumes, of which the first one names it. The caller holds their locks. Raises
    StoreError if a volume belongs to another cache."""
    first, *others = folders
    if not others:
        return
    cache = _owner(first) or _record(first, secrets.token_hex(16))
    for folder in others if cache else ():
        if not _owner(folder):
            _record(folder, cache)
    check_volumes(folders)


def check_volumes(folders: Sequence[str]) -> None:
    """Raise StoreError if a volume belongs to another cache than the first one. A volume of an older version, or an
    empty one, belongs to none."""
    owner = _owner(folders[0])
    for folder in folders[1:]:
        if owner and _owner(folder) not in ("", owner):
            raise StoreError(
                f"cache volume {folder}",
                why=f"it belongs to another cache than {folders[0]}",
                hint="mount the right disk there, or empty the directory",
            )


def has_several_volumes(folder: str) -> bool:
    """Return whether the cache of a volume has, or had, other volumes. Raises StoreError."""
    return bool(_owner(folder))


def _owner(folder: str) -> str:
    """Return the id of a volume's cache; "" if it has none, or a damaged one."""
    try:
        with open(f"{folder}/{_FILE}", "rb") as file:
            text = file.read(64).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreError(f"cache volume {folder}", why=error.strerror or str(error)) from error
    return text if _ID.fullmatch(text) else ""


def _record(folder: str, cache: str) -> str:
    """Record the cache of a volume durably, and return its id; "" on a full disk, so that a node starts there."""
    new = f"{folder}/{_FILE}.new"
    try:
        with open(new, "wb", opener=private) as out:
            out.write(f"{cache}\n".encode())
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, f"{folder}/{_FILE}")
        sync_folder(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ""
        raise StoreError(f"cache volume {folder}", why=error.strerror or str(error)) from error
    return cache
