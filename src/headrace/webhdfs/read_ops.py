"""What only looks: bytes, statuses, listings, sums. All waiting is the caller's thread's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from headrace.base.errors import HeadraceError, NotADirectoryPathError, PathNotFoundError, VersionChangedError
from headrace.base.model import Entry, Kind
from headrace.http.messages import Response
from headrace.overlay.upper import join
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.node_client import CHANGED_ATTEMPTS
from headrace.sdk.os_errors import translating_os_errors
from headrace.sdk.streams import Content
from headrace.sdk.vfs_reader import is_directory
from headrace.webhdfs import responses
from headrace.webhdfs.checksum import file_checksum
from headrace.webhdfs.errors import RemoteError, illegal, not_found
from headrace.webhdfs.file_status import BLOCK_BYTES, file_status, is_link, link_status
from headrace.webhdfs.locations import Locations, block_locations, located_blocks
from headrace.webhdfs.routes import WebHdfsCall

BATCH = 1000
"""Names of one LISTSTATUS_BATCH, as HDFS's own; so many of those that are left are counted at most."""
CHECKSUM_TYPE_CRC32C = 2
STORAGE_POLICY_NONE = 0


class Reading:
    def __init__(self, paths: LocalVfs, locations: Locations) -> None:
        self.paths = paths
        self._locations = locations

    # ------------------------------------------------------------ bytes

    def open(self, call: WebHdfsCall) -> Response:
        """Waits for the node where names or bytes are missing."""
        if self.wants_place(call):
            self._file(call)
            return responses.place(call)
        content = self._content(call)
        try:
            return self._bytes(call, content)
        except BaseException:
            content.close()
            raise

    def open_cached(self, call: WebHdfsCall) -> Response | None:
        """As open, of what is whole in the cache; None: that may wait for the node or the disk."""
        if self.wants_place(call):
            return None
        found = self.paths.find_cached(call.path)
        if found is None or found.kind is not Kind.FILE:
            return None
        cached = self.paths.client.complete_path(found.id)
        if cached is None:
            return None
        try:
            fd = os.open(cached, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        self.paths.client.touch(found.id)
        content = Content(found.version.size_bytes, fd=fd)
        try:
            return self._bytes(call, content)
        except BaseException:
            content.close()
            raise

    @staticmethod
    def wants_place(call: WebHdfsCall) -> bool:
        """Whether to be told where the bytes are, instead of the bytes. Hadoop's own client asks so at first, and reads
        nothing of that answer: it names its buffer, and no offset. All others are spared the second request."""
        if call.flag("noredirect"):
            return True
        return call.has("buffersize") and not any(call.has(name) for name in ("offset", "length", "data"))

    def _bytes(self, call: WebHdfsCall, content: Content) -> Response:
        size = content.size_bytes
        start = call.at_least_zero("offset", 0)
        if start > size:
            raise RemoteError(
                "IOException", f"Offset={start} out of the range [0, {size}]; OPEN, path={_text(call.path)}"
            )
        end = min(size, start + call.at_least_zero("length", size)) if call.text("length") else size
        return Response(
            200, [("Content-Type", "application/octet-stream")], content=content, start=start, end=end
        )

    def _content(self, call: WebHdfsCall) -> Content:
        """The bytes of just the version that was found."""
        for attempt in range(CHANGED_ATTEMPTS):
            path, found = self._file(call)
            try:
                return self.paths.content_of(path, found)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def _file(self, call: WebHdfsCall) -> tuple[bytes, FileStat]:
        path, found = self.find(call)
        if is_directory(found):
            raise RemoteError("FileNotFoundException", f"Path is not a file: {_text(call.path)}")
        return path, found

    def find(self, call: WebHdfsCall) -> tuple[bytes, FileStat]:
        """Links resolved. FileNotFoundException."""
        try:
            path, found = self.paths.find(call.path)
        except NotADirectoryPathError:
            found = None
        if found is None:
            raise not_found(call.path)
        return path, found

    def get_checksum(self, call: WebHdfsCall) -> Response:
        content = self._content(call)
        try:
            return responses.of("FileChecksum", file_checksum(content))
        finally:
            content.close()

    # ------------------------------------------------------------ statuses

    def get_status(self, call: WebHdfsCall) -> Response:
        return responses.of("FileStatus", self._status(self.find(call)[1], b""))

    def get_status_cached(self, call: WebHdfsCall) -> Response | None:
        """As get_status; None: that may wait for the node."""
        found = self.paths.find_cached(call.path)
        return None if found is None else responses.of("FileStatus", self._status(found, b""))

    def get_link_status(self, call: WebHdfsCall) -> Response:
        path, found = self._unfollowed(call)
        if is_link(found):
            assert isinstance(found, os.stat_result)
            return responses.of("FileStatus", link_status(found, b"", self.paths.readlink(path)))
        return responses.of("FileStatus", self._status(found, b""))

    def get_link_target(self, call: WebHdfsCall) -> Response:
        path, found = self._unfollowed(call)
        if not is_link(found):
            raise RemoteError("IOException", f"{_text(call.path)} is not a symbolic link")
        return responses.of("Path", _text(self.paths.readlink(path)))

    def _unfollowed(self, call: WebHdfsCall) -> tuple[bytes, FileStat]:
        path, found = self.paths.find(call.path, follow=False)
        if found is None:
            raise not_found(call.path)
        return path, found

    def list_status(self, call: WebHdfsCall) -> Response:
        """A long listing is sent as it is read: its rows are never all in memory."""
        below = self._below(call, b"")
        rows = [self._row(*one) for one in itertools.islice(below, BATCH)]
        if len(rows) < BATCH or not call.request.takes_chunks:
            return responses.of("FileStatuses", {"FileStatus": [*rows, *(self._row(*one) for one in below)]})
        batches = iter(lambda: [self._row(*one) for one in itertools.islice(below, BATCH)], [])
        return responses.of_rows("FileStatuses", "FileStatus", itertools.chain([rows], batches))

    def list_batch(self, call: WebHdfsCall) -> Response:
        below = self._below(call, call.text("startafter").encode("utf-8", "surrogateescape"))
        rows = [self._row(*one) for one in itertools.islice(below, BATCH)]
        left = sum(1 for _ in itertools.islice(below, BATCH))
        listing = {"partialListing": {"FileStatuses": {"FileStatus": rows}}, "remainingEntries": left}
        return responses.of("DirectoryListing", listing)

    def _below(self, call: WebHdfsCall, after: bytes) -> Iterator[tuple[bytes, bytes, FileStat]]:
        """Of a directory itself, each name, and what it is; of a file itself, without a name."""
        path, found = self.find(call)
        if is_directory(found):
            for name, one in self.paths.children(path, after=after):
                yield path, name, one
        elif not after:
            yield path, b"", found

    def _row(self, folder: bytes, name: bytes, found: FileStat) -> dict[str, Any]:
        """A link is shown as what it leads to, where that is a path here."""
        if not is_link(found):
            return self._status(found, name)
        assert isinstance(found, os.stat_result)
        at = join(folder, name)
        try:
            return self._status(self.paths.get(at)[1], name)
        except HeadraceError:
            return link_status(found, name, self.paths.readlink(at))

    def _status(self, found: FileStat, name: bytes) -> dict[str, Any]:
        return file_status(found, name, writable=self.paths.tree.modes.any)

    def get_acl(self, call: WebHdfsCall) -> Response:
        status = self._status(self.find(call)[1], b"")
        about = {name: status[name] for name in ("owner", "group", "permission")}
        sticky = int(status["permission"], 8) & 0o1000 != 0
        return responses.of("AclStatus", {**about, "entries": [], "stickyBit": sticky})

    def get_xattrs(self, call: WebHdfsCall) -> Response:
        """Those of files of the upper layer, set by a mount."""
        asked = [value for name, value in call.request.query if name.lower() == "xattr.name"]
        encoding = call.text("encoding", "hex").lower()
        if encoding not in responses.ENCODINGS:
            raise illegal(f'Invalid value for webhdfs parameter "encoding": {encoding!r}')
        found = self._attributes(call)
        missing = [name for name in asked if name not in found]
        if missing:
            raise RemoteError(
                "IOException", f"At least one of the attributes provided was not found: {missing[0]}"
            )
        rows = [
            {"name": name, "value": responses.ENCODINGS[encoding](value)}
            for name, value in found.items()
            if name in asked or not asked
        ]
        return responses.of("XAttrs", rows)

    def list_xattrs(self, call: WebHdfsCall) -> Response:
        return responses.of("XAttrNames", responses.json_text(list(self._attributes(call))))

    def _attributes(self, call: WebHdfsCall) -> dict[str, bytes]:
        path, found = self.find(call)
        if isinstance(found, Entry):
            return {}
        with translating_os_errors(call.path), self.paths.tree.upper.at(path).pinned() as pin:
            names = [name for name in os.listxattr(pin.proc_path) if name.startswith("user.")]
            return {name: os.getxattr(pin.proc_path, name) for name in names}

    # ------------------------------------------------------------ sums

    def get_summary(self, call: WebHdfsCall) -> Response:
        files, folders, size = self._sum(call)
        about = {"fileCount": files, "directoryCount": folders, "length": size}
        return responses.of("ContentSummary", {**about, **_no_quota(size)})

    def get_quota(self, call: WebHdfsCall) -> Response:
        files, folders, size = self._sum(call)
        return responses.of("QuotaUsage", {"fileAndDirectoryCount": files + folders, **_no_quota(size)})

    def _sum(self, call: WebHdfsCall) -> tuple[int, int, int]:
        """Files, folders (with the one that is asked for) and bytes. Lists all that is below."""
        path, found = self.find(call)
        files = folders = size = 0
        for one in self._walk(path, found):
            if is_directory(one):
                folders += 1
            else:
                files += 1
                size += one.version.size_bytes if isinstance(one, Entry) else one.st_size
        return files, folders, size

    def _walk(self, top: bytes, found: FileStat) -> Iterator[FileStat]:
        yield found
        pending = [top] if is_directory(found) else []
        while pending:
            folder = pending.pop()
            try:
                for name, one in self.paths.children(folder):
                    yield one
                    if is_directory(one):
                        pending.append(join(folder, name))
            except PathNotFoundError:
                continue  # removed meanwhile

    # ------------------------------------------------------------ places

    def get_locations(self, call: WebHdfsCall) -> Response:
        _, parts = self._parts(call)
        return responses.of("BlockLocations", {"BlockLocation": block_locations(parts)})

    def get_located_blocks(self, call: WebHdfsCall) -> Response:
        found, parts = self._parts(call)
        id = int(found.id) if isinstance(found, Entry) else found.st_ino
        return responses.of("LocatedBlocks", located_blocks(parts, id, _size_of(found)))

    def _parts(self, call: WebHdfsCall) -> tuple[FileStat, list[Any]]:
        path, found = self._file(call)
        size = _size_of(found)
        start = call.at_least_zero("offset", 0)
        end = min(size, start + call.at_least_zero("length", size)) if call.text("length") else size
        parts = self._locations.parts(path, start, end, size_bytes=size, part_bytes=BLOCK_BYTES)
        return found, parts

    # ------------------------------------------------------------ the file system

    def get_home(self, call: WebHdfsCall) -> Response:
        return responses.of("Path", f"/user/{call.user}")

    def get_trash(self, call: WebHdfsCall) -> Response:
        return responses.of("Path", f"/user/{call.user}/.Trash")

    def get_token(self, _: WebHdfsCall) -> Response:
        """What HDFS says where security is off: none is issued, and none is needed."""
        return responses.of("Token", None)

    def get_defaults(self, _: WebHdfsCall) -> Response:
        about = {
            "blockSize": BLOCK_BYTES,
            "bytesPerChecksum": 512,
            "checksumType": CHECKSUM_TYPE_CRC32C,
            "defaultStoragePolicyId": STORAGE_POLICY_NONE,
            "encryptDataTransfer": False,
            "fileBufferSize": 4096,
            "keyProviderUri": "",
            "replication": 1,
            "trashInterval": 0,
            "writePacketSize": 65536,
        }
        return responses.of("FsServerDefaults", about)

    def get_room(self, _: WebHdfsCall) -> Response:
        """Of the cache of this node."""
        capacity, free, _entries = self.paths.client.statistics()
        return responses.of("FsStatus", {"capacity": capacity, "remaining": free, "used": capacity - free})


def _size_of(found: FileStat) -> int:
    return found.version.size_bytes if isinstance(found, Entry) else found.st_size


def _no_quota(size_bytes: int) -> dict[str, Any]:
    return {"quota": -1, "spaceConsumed": size_bytes, "spaceQuota": -1, "typeQuota": {}}


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")
