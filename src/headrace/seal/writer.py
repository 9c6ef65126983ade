"""Write an image from a stream of entries.

Entries come in the order of a walk: a directory before its contents, the entries of a directory by their names as
bytes, and everything below an entry before the next one. So there is one image for a tree, bit for bit.

Directories are written after their contents, because dirents need the numbers of inodes, which are places in the
image. Memory holds the dirents of the directories that are open: the one that gets entries, and those above it.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from headrace.base.errors import InvalidImageError
from headrace.seal import erofs
from headrace.seal.digest import digest_image
from headrace.seal.dirents import DirectoryBuilder
from headrace.seal.erofs import BLOCK_BYTES, COMPACT, EXTENDED, SLOT_BYTES, ImageEntry
from headrace.seal.output import NID_BYTES, FileSink, ImageOutput, ImageSink

_SECOND_NS = 10**9
_FILE, _LINK = erofs.FILE_TYPES[stat.S_IFREG], erofs.FILE_TYPES[stat.S_IFLNK]
_SAFE_TARGET = re.compile(rb"(?:/(?!\.{1,2}(?:/|\Z))[^/\0]+)+")
"""A path without "..", so that it can't leave a data-only layer."""


class _Inode(NamedTuple):
    """Holds what an inode has beside the attributes of its entry. location: i_u of the kernel's structures."""

    size_bytes: int
    links: int
    data_layout: int
    location: int = 0
    attribute_words: int = 0


def write_image(entries: Iterable[ImageEntry], descriptor: int) -> str:
    """Write an image to an empty file that is open for reading and writing, and return its digest. Nothing is durable
    on return. InvalidImageError as of `ImageWriter`. Raises OSError. What was written before an error stays."""
    writer = ImageWriter(FileSink(descriptor))
    writer.add(entries)
    writer.finish()
    return digest_image(descriptor)


class ImageWriter:
    """Writes one image: `add` for all entries, then `finish`. It is of no use after an error."""

    def __init__(self, sink: ImageSink) -> None:
        self._output = ImageOutput(sink)
        self._stack: list[DirectoryBuilder] = []
        self._inodes = 0
        self._build_ns: int | None = None

    def add(self, entries: Iterable[ImageEntry]) -> None:
        """Add entries after those that were added. InvalidImageError: the order or a value is not possible. The sink's
        errors."""
        try:
            for entry in entries:
                self._add(entry)
        except struct.error as error:
            raise InvalidImageError(
                "an entry of an image", why=f"a value is out of range: {error}"
            ) from error

    def finish(self) -> None:
        """Write the rest: the directories that are open, the root, and the first block. Errors as of `add`."""
        if not self._stack:
            raise InvalidImageError("an image", why="it has no root")
        try:
            while len(self._stack) > 1:
                self._close_directory()
            self._close_root(self._stack.pop())
        except struct.error as error:
            raise InvalidImageError(
                "an entry of an image", why=f"a value is out of range: {error}"
            ) from error

    def _add(self, entry: ImageEntry) -> None:
        path, mode = entry.path, entry.mode
        if b"\0" in path or len(path) > erofs.PATH_BYTES_MAX or path.startswith(b"/"):
            raise _refused(entry, "its path is not possible")
        if entry.uid > erofs.ID_MAX or entry.gid > erofs.ID_MAX:
            raise _refused(entry, "its owner is no user, or its group none")
        parent, _, name = path.rpartition(b"/")
        kind = stat.S_IFMT(mode)
        if not self._stack:
            if path or kind != stat.S_IFDIR:
                raise _refused(entry, "the root comes first")
            self._open_directory(entry)
            return
        while parent != self._stack[-1].entry.path:
            if len(self._stack) == 1:
                raise _refused(entry, "it is not below the directory before it")
            self._close_directory()
        if kind == stat.S_IFREG:
            self._stack[-1].add(name, self._write_file(entry), _FILE)
        elif kind == stat.S_IFDIR:
            self._stack[-1].check(name)
            self._open_directory(entry)
        elif kind == stat.S_IFLNK:
            self._stack[-1].add(name, self._write_link(entry), _LINK)
        else:
            raise _refused(entry, "it is no file, directory or link")

    def _open_directory(self, entry: ImageEntry) -> None:
        if entry.size_bytes or entry.target:
            raise _refused(entry, "a directory has no size and no target")
        self._stack.append(DirectoryBuilder(entry))

    def _write_file(self, entry: ImageEntry) -> int:
        """Write a file's inode and attributes; return its nid."""
        size_bytes, target = entry.size_bytes, entry.target
        if not 0 <= size_bytes <= erofs.FILE_BYTES_MAX:
            raise _refused(entry, "its size is not possible")
        if size_bytes and not target:
            raise _refused(entry, "no cache file is named")
        if target and (len(target) > erofs.REDIRECT_BYTES_MAX or not _SAFE_TARGET.fullmatch(target)):
            raise _refused(entry, "the path of its cache file is not possible")
        if self._build_ns is None:
            self._build_ns = entry.mtime_ns
        layout = self._layout(entry, size_bytes, 1)
        file_layout, words = erofs.file_struct(layout, len(target), 1 if size_bytes else 0)
        if size_bytes:
            inode = _Inode(size_bytes, 1, erofs.CHUNK_BASED, erofs.hole_format(size_bytes), words)
        else:
            inode = _Inode(0, 1, erofs.FLAT_PLAIN, 0, words)
        fields = self._fields(entry, inode, layout)
        if target:
            fields += erofs.file_attributes(target)
        if size_bytes:
            fields += (erofs.HOLE,)
        return self._output.append(file_layout.pack(*fields)) // SLOT_BYTES

    def _write_link(self, entry: ImageEntry) -> int:
        target = entry.target
        if not 0 < len(target) <= erofs.LINK_BYTES_MAX or b"\0" in target or entry.size_bytes:
            raise _refused(entry, "its target is not possible")
        return self._write_content(entry, bytearray(target), 1, {})[0]

    def _close_directory(self) -> None:
        """Write the directory that gets entries, and add it to its parent."""
        directory = self._stack.pop()
        links = 2 + len(directory.parent_offsets)
        nid, offset = self._write_content(directory.entry, directory.finish(), links, directory.dots)
        for parent_offset in directory.parent_offsets:
            self._output.set_nid(parent_offset, nid)
        self._stack[-1].add_directory(directory.entry.path.rpartition(b"/")[2], nid, offset)

    def _write_content(
        self, entry: ImageEntry, content: bytearray, links: int, dots: dict[bytes, int]
    ) -> tuple[int, int]:
        """Write the inode of a directory or a link, and its content: full blocks before the inode, the rest behind it
        if one block holds both. Return the nid, and the offset of the dirent ".."."""
        output = self._output
        layout = self._layout(entry, len(content), links)
        tail_bytes = len(content) % BLOCK_BYTES
        is_inline = 0 < tail_bytes <= BLOCK_BYTES - layout.size
        block_bytes = len(content) - tail_bytes if is_inline else len(content)
        start = inode_offset = output.offset
        if block_bytes:
            start = _aligned(start, BLOCK_BYTES)
            inode_offset = _aligned(start + block_bytes, BLOCK_BYTES)
        elif inode_offset % BLOCK_BYTES + layout.size + tail_bytes > BLOCK_BYTES:
            inode_offset = _aligned(
                inode_offset, BLOCK_BYTES
            )  # the kernel refuses content that crosses blocks
        nid, parent_offset = inode_offset // SLOT_BYTES, 0
        if dots:
            _set_nid(content, dots[b"."], nid)
            is_behind = dots[b".."] >= block_bytes
            parent_offset = dots[b".."] + (inode_offset + layout.size - block_bytes if is_behind else start)
            output.defer(parent_offset)
        if block_bytes:
            output.pad_to(start)
            output.append(content[:block_bytes])
        inode = _Inode(
            len(content),
            links,
            erofs.FLAT_INLINE if is_inline else erofs.FLAT_PLAIN,
            start // BLOCK_BYTES if block_bytes else 0,
        )
        output.pad_to(inode_offset)
        output.append(layout.pack(*self._fields(entry, inode, layout)))
        output.append(content[block_bytes:])
        output.pad_to(_aligned(output.offset, SLOT_BYTES))
        return nid, parent_offset

    def _close_root(self, root: DirectoryBuilder) -> None:
        """Write the content of the root in blocks of its own, its inode and the superblock in the first block."""
        content = root.finish()
        for offset in root.dots.values():
            _set_nid(content, offset, erofs.ROOT_NID)
        for offset in root.parent_offsets:
            self._output.set_nid(offset, erofs.ROOT_NID)
        start = _aligned(self._output.offset, BLOCK_BYTES)
        self._output.pad_to(start)
        self._output.append(content)
        self._output.pad_to(_aligned(self._output.offset, BLOCK_BYTES))
        links = 2 + len(root.parent_offsets)
        inode = _Inode(len(content), links, erofs.FLAT_PLAIN, start // BLOCK_BYTES)
        self._output.finish(self._first_block(root.entry, inode))

    def _first_block(self, root: ImageEntry, inode: _Inode) -> bytearray:
        block = bytearray(BLOCK_BYTES)
        EXTENDED.pack_into(block, erofs.ROOT_OFFSET, *self._fields(root, inode, EXTENDED))
        build_ns = root.mtime_ns if self._build_ns is None else self._build_ns
        blocks = self._output.offset // BLOCK_BYTES
        erofs.pack_superblock(block, inodes=self._inodes, build_ns=build_ns, blocks=blocks)
        return block

    def _layout(self, entry: ImageEntry, size_bytes: int, links: int) -> Struct:
        """Return the smaller layout of an inode if it holds these values. Its time is the build time, which is that of
        the first file: often all files have the same."""
        numbers = entry.uid | entry.gid | links
        if entry.mtime_ns == self._build_ns and numbers < 1 << 16 and size_bytes < 1 << 32:
            return COMPACT
        return EXTENDED

    def _fields(self, entry: ImageEntry, inode: _Inode, layout: Struct) -> tuple[int | bytes, ...]:
        """Return the fields of a new inode."""
        size_bytes, links, data_layout, location, words = inode
        self._inodes += 1
        if layout is COMPACT:
            head = data_layout << 1, words, entry.mode, links, size_bytes, location
            return *head, self._inodes, entry.uid, entry.gid
        seconds, nanoseconds = divmod(entry.mtime_ns, _SECOND_NS)
        head = data_layout << 1 | 1, words, entry.mode, size_bytes, location, self._inodes
        return *head, entry.uid, entry.gid, seconds, nanoseconds, links


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _set_nid(content: bytearray, offset: int, nid: int) -> None:
    content[offset : offset + NID_BYTES] = nid.to_bytes(NID_BYTES, "little")


def _refused(entry: ImageEntry, why: str) -> InvalidImageError:
    return InvalidImageError(f"entry {entry.path!r} of an image", why=why)
