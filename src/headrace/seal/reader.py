"""Read the entries of an image, without a mount.

The reader follows offsets of an image that anybody may have written, so each one is compared with the size of the
image. It does not ask whether the image is as the writer makes it: `headrace.seal.check` does. From a hostile image it
may yield entries without end; each of them has a path of at most PATH_BYTES_MAX bytes.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from headrace.base.errors import InvalidImageError
from headrace.seal import erofs
from headrace.seal.erofs import BLOCK_BYTES, COMPACT, EXTENDED, SLOT_BYTES, ImageEntry

_WINDOW_BYTES = 1 << 18
_WINDOWS = 16
_SECOND_NS = 10**9


class _Inode(NamedTuple):
    """Holds an inode. content_offset: where its attributes or inline content begin."""

    mode: int
    size_bytes: int
    uid: int
    gid: int
    mtime_ns: int
    data_layout: int
    location: int
    attribute_words: int
    content_offset: int


def read_entries(descriptor: int) -> Iterator[ImageEntry]:
    """Yield the entries in the order of `ImageWriter`. InvalidImageError: an offset or a length is not possible.
    Raises OSError. The image must not change meanwhile."""
    return _Reader(descriptor).entries()


class _Reader:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size
        self._window = functools.lru_cache(maxsize=_WINDOWS)(self._read_window)
        superblock = erofs.SUPERBLOCK.unpack(self._read(erofs.SUPERBLOCK_OFFSET, erofs.SUPERBLOCK.size))
        if superblock[0] != erofs.MAGIC:
            raise _invalid("it is no EROFS image")
        self._build_ns = superblock[7] * _SECOND_NS + superblock[8]

    def entries(self) -> Iterator[ImageEntry]:
        root = self._read_inode(erofs.ROOT_NID)
        yield _directory_entry(b"", root)
        pending = [(b"", self._read_dirents(root))]
        while pending:
            prefix, dirents = pending[-1]
            for name, nid in dirents:
                path, inode = prefix + name, self._read_inode(nid)
                if stat.S_ISDIR(inode.mode):
                    if len(path) > erofs.PATH_BYTES_MAX:
                        raise _invalid("a path in it is too long")
                    yield _directory_entry(path, inode)
                    pending.append((path + b"/", self._read_dirents(inode)))
                    break
                yield self._leaf_entry(path, inode)
            else:
                pending.pop()

    def _leaf_entry(self, path: bytes, inode: _Inode) -> ImageEntry:
        """Return the entry of a file or a link. The mode is not looked at further."""
        if stat.S_ISLNK(inode.mode):
            if inode.size_bytes > erofs.LINK_BYTES_MAX:
                raise _invalid("the target of a link is too long")
            target, size_bytes = b"".join(self._read_content(inode)), 0
        else:
            target, size_bytes = self._read_redirect(inode), inode.size_bytes
        return ImageEntry(path, inode.mode, size_bytes, inode.uid, inode.gid, inode.mtime_ns, target)

    def _read_redirect(self, inode: _Inode) -> bytes:
        if not inode.attribute_words:
            return b""
        offset = inode.content_offset + erofs.INLINE_ATTRIBUTES_OFFSET
        entry_bytes = erofs.ATTRIBUTE_ENTRY.size
        name_bytes, _, value_bytes = erofs.ATTRIBUTE_ENTRY.unpack(self._read(offset, entry_bytes))
        if value_bytes > erofs.REDIRECT_BYTES_MAX:
            raise _invalid("the path of a cache file is too long")
        return self._read(offset + entry_bytes + name_bytes, value_bytes)

    def _read_inode(self, nid: int) -> _Inode:
        offset = nid * SLOT_BYTES
        head = self._read(offset, COMPACT.size)
        if head[0] & 1:
            fields = EXTENDED.unpack(head + self._read(offset + COMPACT.size, EXTENDED.size - COMPACT.size))
            form, words, mode, size_bytes, location, _, uid, gid, seconds, nanoseconds, _ = fields
            mtime_ns, content_offset = seconds * _SECOND_NS + nanoseconds, offset + EXTENDED.size
        else:
            form, words, mode, _, size_bytes, location, _, uid, gid = COMPACT.unpack(head)
            mtime_ns, content_offset = self._build_ns, offset + COMPACT.size
        return _Inode(mode, size_bytes, uid, gid, mtime_ns, form >> 1, location, words, content_offset)

    def _read_dirents(self, directory: _Inode) -> Iterator[tuple[bytes, int]]:
        """Yield names and nids, without "." and ".."."""
        for block in self._read_content(directory):
            if len(block) < erofs.DIRENT.size:
                raise _invalid("a block of a directory is too short")
            names_offset = erofs.DIRENT.unpack_from(block)[1]
            if not 0 < names_offset <= len(block) or names_offset % erofs.DIRENT.size:
                raise _invalid("a block of a directory has no dirents")
            dirents = list(erofs.DIRENT.iter_unpack(block[:names_offset]))
            ends = [offset for _, offset, _ in dirents[1:]] + [len(block.rstrip(b"\0"))]
            for (nid, offset, _), end in zip(dirents, ends, strict=True):
                name = block[offset:end]
                if not name:
                    raise _invalid("an entry has no name")
                if name not in (b".", b".."):
                    yield name, nid

    def _read_content(self, inode: _Inode) -> Iterator[bytes]:
        """Yield the content of a directory or a link in blocks."""
        is_inline = inode.data_layout == erofs.FLAT_INLINE
        tail_bytes = inode.size_bytes % BLOCK_BYTES if is_inline else 0
        offset, end = inode.location * BLOCK_BYTES, inode.size_bytes - tail_bytes
        for start in range(0, end, BLOCK_BYTES):
            yield self._read(offset + start, min(BLOCK_BYTES, end - start))
        if tail_bytes:
            yield self._read(inode.content_offset, tail_bytes)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes of the image, at most a block. InvalidImageError beyond its end."""
        end = offset + size_bytes
        if end > self._size_bytes:
            raise _invalid("an offset in it is beyond its end")
        index, start = divmod(offset, _WINDOW_BYTES)
        data: bytes = self._window(index)[start : start + size_bytes]
        if len(data) < size_bytes:
            data += self._window(index + 1)[: size_bytes - len(data)]
        if len(data) < size_bytes:
            raise _invalid("it was truncated meanwhile")
        return data

    def _read_window(self, index: int) -> bytes:
        return os.pread(self._descriptor, _WINDOW_BYTES, index * _WINDOW_BYTES)


def _directory_entry(path: bytes, inode: _Inode) -> ImageEntry:
    return ImageEntry(path, inode.mode, 0, inode.uid, inode.gid, inode.mtime_ns, b"")


def _invalid(why: str) -> InvalidImageError:
    return InvalidImageError("an image", why=why)
