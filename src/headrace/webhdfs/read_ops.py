"""Serve the operations that read the bytes of a file, sum them up and locate them. The caller's thread does all
waiting."""

from __future__ import annotations

import os
from typing import Any

from headrace.base.errors import VersionChangedError
from headrace.base.model import Entry, Kind
from headrace.client.node_client import CHANGED_ATTEMPTS
from headrace.http.messages import Response
from headrace.overlay.merged_view import FileStat
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content
from headrace.webhdfs import responses
from headrace.webhdfs.checksum import file_checksum
from headrace.webhdfs.errors import RemoteError, path_text
from headrace.webhdfs.file_status import BLOCK_BYTES
from headrace.webhdfs.locations import Locations, block_locations, located_blocks
from headrace.webhdfs.routes import WebHdfsCall
from headrace.webhdfs.status_ops import find


class ReadOperations:
    """Answers the operations that read files."""

    def __init__(self, vfs: LocalVfs, locations: Locations) -> None:
        self.vfs = vfs
        self._locations = locations

    def open(self, call: WebHdfsCall) -> Response:
        """Answer OPEN. Waits for the node where names or bytes are missing."""
        if self.wants_location(call):
            self._file(call)
            return responses.location(call)
        content = self._content(call)
        try:
            return self._bytes(call, content)
        except BaseException:
            content.close()
            raise

    def open_cached(self, call: WebHdfsCall) -> Response | None:
        """Answer as `open` does, from a complete cached file; None if that may wait for the node or the disk."""
        if self.wants_location(call):
            return None
        entry = self.vfs.find_cached(call.path)
        if entry is None or entry.kind is not Kind.FILE:
            return None
        cache_path = self.vfs.client.complete_path(entry.id)
        if cache_path is None:
            return None
        try:
            fd = os.open(cache_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        self.vfs.client.touch(entry.id)
        content = Content(entry.version.size_bytes, fd=fd)
        try:
            return self._bytes(call, content)
        except BaseException:
            content.close()
            raise

    @staticmethod
    def wants_location(call: WebHdfsCall) -> bool:
        """Return whether to send the location of the bytes instead. Hadoop's own client first requests that, and reads
        nothing of the response: it names its buffer, and no offset. Other clients need no second request."""
        if call.flag("noredirect"):
            return True
        return call.has("buffersize") and not any(call.has(name) for name in ("offset", "length", "data"))

    def _bytes(self, call: WebHdfsCall, content: Content) -> Response:
        size = content.size_bytes
        start = call.at_least_zero("offset", 0)
        if start > size:
            raise RemoteError(
                "IOException",
                f"Offset={start} out of the range [0, {size}]; OPEN, path={path_text(call.path)}",
            )
        end = min(size, start + call.at_least_zero("length", size)) if call.text("length") else size
        return Response(
            200, [("Content-Type", "application/octet-stream")], content=content, start=start, end=end
        )

    def _content(self, call: WebHdfsCall) -> Content:
        """Return the bytes of the version that `find` returned."""
        for attempt in range(CHANGED_ATTEMPTS):
            path, file_stat = self._file(call)
            try:
                return self.vfs.content_of(path, file_stat)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def _file(self, call: WebHdfsCall) -> tuple[bytes, FileStat]:
        path, file_stat = find(self.vfs, call)
        if is_directory(file_stat):
            raise RemoteError("FileNotFoundException", f"Path is not a file: {path_text(call.path)}")
        return path, file_stat

    def get_checksum(self, call: WebHdfsCall) -> Response:
        content = self._content(call)
        try:
            return responses.of("FileChecksum", file_checksum(content))
        finally:
            content.close()

    # ------------------------------------------------------------ locations

    def get_locations(self, call: WebHdfsCall) -> Response:
        _, parts = self._parts(call)
        return responses.of("BlockLocations", {"BlockLocation": block_locations(parts)})

    def get_located_blocks(self, call: WebHdfsCall) -> Response:
        file_stat, parts = self._parts(call)
        id = int(file_stat.id) if isinstance(file_stat, Entry) else file_stat.st_ino
        return responses.of("LocatedBlocks", located_blocks(parts, id, _size_of(file_stat)))

    def _parts(self, call: WebHdfsCall) -> tuple[FileStat, list[Any]]:
        path, file_stat = self._file(call)
        size = _size_of(file_stat)
        start = call.at_least_zero("offset", 0)
        end = min(size, start + call.at_least_zero("length", size)) if call.text("length") else size
        parts = self._locations.parts(path, start, end, size_bytes=size, part_bytes=BLOCK_BYTES)
        return file_stat, parts


def _size_of(file_stat: FileStat) -> int:
    return file_stat.version.size_bytes if isinstance(file_stat, Entry) else file_stat.st_size
