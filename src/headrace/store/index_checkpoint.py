"""Keep the index through a power loss although its commits don't sync.

LMDB writes pages copy-on-write and publishes a commit by one of two meta pages. Without syncs the kernel writes both in
any order, and a meta page may reach the disk before the pages that it names. So the node keeps a *checkpoint*: after an
fdatasync it copies the newest meta page to the file `checkpoint`, and holds a read transaction at that commit. The
transaction keeps LMDB from reusing any page that the commit can see. After a power loss (the boot id differs) both meta
pages are overwritten with the saved one: the index is exactly what it was at the checkpoint. Page layout: LMDB 0.9
mdb.c, MDB_page and MDB_meta. Bytes only; environment.py calls LMDB itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE
from headrace.base.errors import CorruptIndexError
from headrace.base.private_folder import private
from headrace.base.sync_folder import sync_folder
from headrace.base.whole_write import pwrite_all
from headrace.overlay.syscalls import rename
from headrace.store.checksum import block_checksum

PAGE_BYTES = mmap.PAGESIZE
_MAGIC = b"HRCHECK1"
_HEADER = struct.Struct("<8sQ64s")  # magic, xxh3_64 of all that follows; boot id, padded; then the meta page
_META = struct.Struct("<II")  # at 16: magic, version
_META_AT, _META_MAGIC, _META_VERSION = 16, 0xBEEFC0DE, 1
_TXNID_AT = 16 + 24 + 2 * 48 + 8


def newest_meta(data_path: str) -> bytes:
    """Return the meta page of the last commit. The caller keeps others from committing. Raises CorruptIndexError if
    none is valid."""
    with open(data_path, "rb") as file:
        page = newest_of(file.read(2 * PAGE_BYTES))
    if page is None:
        raise CorruptIndexError(f"index {data_path} is corrupt", why="no valid meta page")
    return page


def newest_of(both: bytes) -> bytes | None:
    """Return the newer of the two meta pages at the beginning of a data file; None if neither is valid."""
    pages = [page for page in (both[:PAGE_BYTES], both[PAGE_BYTES:]) if _is_valid(page)]
    return max(pages, key=_txnid, default=None)


def write_checkpoint(directory: str, boot_id: str, page: bytes) -> None:
    """Make the commit of that meta page, which must be synced already, the state after a power loss. Durable on
    return."""
    fresh = f"{directory}/checkpoint.new"
    write_page(fresh, boot_id, page)
    failpoint.hit("checkpoint.written")
    _replace(fresh, f"{directory}/checkpoint")
    failpoint.hit("checkpoint.renamed")
    sync_folder(directory)


def write_page(path: str, boot_id: str, page: bytes) -> None:
    """Write a file for `restore`, durable except its name. An existing file is overwritten."""
    boot = boot_id.encode().ljust(64, b"\0")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        pwrite_all(fd, _HEADER.pack(_MAGIC, block_checksum(boot + page), boot) + page, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _replace(fresh: str, path: str) -> None:
    """Exchange the checkpoint with the new one. The old one stays under the other name: the next checkpoint is written
    to its blocks, also on a full disk."""
    try:
        rename(fresh, path, EXCHANGE)
    except OSError:  # there is no checkpoint yet, or the file system lacks the call
        os.rename(fresh, path)
        with (
            contextlib.suppress(OSError),
            open(path, "rb") as source,
            open(fresh, "wb", opener=private) as target,
        ):
            target.write(source.read())


def restore(directory: str, boot_id: str) -> bool:
    """Reset the index to the checkpoint if the machine was restarted since. Return whether it was. Call it before LMDB
    opens the directory, with no other process in it. Raises CorruptIndexError if there is no valid checkpoint."""
    data_path = f"{directory}/data.mdb"
    if not os.path.exists(data_path):
        return False
    try:
        with open(f"{directory}/checkpoint", "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        # the node was killed, or power was lost, before the first checkpoint: the index had nothing of value
        raise CorruptIndexError(f"index {directory} is incomplete", why="it has no checkpoint") from None
    if len(raw) != _HEADER.size + PAGE_BYTES:
        raise CorruptIndexError(f"index {directory} is corrupt", why="its checkpoint has the wrong length")
    magic, checksum, boot = _HEADER.unpack_from(raw)
    page = raw[_HEADER.size :]
    if magic != _MAGIC or checksum != block_checksum(boot + page) or not _is_valid(page):
        raise CorruptIndexError(f"index {directory} is corrupt", why="its checkpoint is damaged")
    if boot.rstrip(b"\0").decode() == boot_id:
        return False
    with open(data_path, "r+b") as file:
        for number in (0, 1):
            file.seek(number * PAGE_BYTES)
            file.write(struct.pack("<Q", number) + page[8:])
        file.flush()
        os.fdatasync(file.fileno())
    return True


def check_length(data_path: str, last_page: int) -> None:
    """Raise CorruptIndexError if the end of the file is missing: reading there would raise SIGBUS. A commit may leave
    its last pages unwritten if it freed them itself, so a few missing pages are no proof."""
    if os.stat(data_path).st_size < (last_page + 1 - 64) * PAGE_BYTES:
        raise CorruptIndexError(f"index {data_path} is corrupt", why="the file is cut off")


def _is_valid(page: bytes) -> bool:
    return len(page) == PAGE_BYTES and _META.unpack_from(page, _META_AT) == (_META_MAGIC, _META_VERSION)


def _txnid(page: bytes) -> int:
    """Return the number of the commit."""
    return int(struct.unpack_from("<Q", page, _TXNID_AT)[0])
