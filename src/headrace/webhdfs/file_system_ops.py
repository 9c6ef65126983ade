"""Serve the operations that describe the file system as a whole, without its paths."""

from __future__ import annotations

from headrace.http.messages import Response
from headrace.vfs.local_vfs import LocalVfs
from headrace.webhdfs import responses
from headrace.webhdfs.file_status import BLOCK_BYTES
from headrace.webhdfs.routes import WebHdfsCall

CHECKSUM_TYPE_CRC32C = 2
STORAGE_POLICY_NONE = 0


class FileSystemOperations:
    """Answers the operations that name no path."""

    def __init__(self, vfs: LocalVfs) -> None:
        self._vfs = vfs

    def get_home(self, call: WebHdfsCall) -> Response:
        return responses.of("Path", f"/user/{call.user}")

    def get_trash(self, call: WebHdfsCall) -> Response:
        return responses.of("Path", f"/user/{call.user}/.Trash")

    def get_token(self, _: WebHdfsCall) -> Response:
        """Answer as HDFS does where security is off: no token is issued, and none is needed."""
        return responses.of("Token", None)

    def get_defaults(self, _: WebHdfsCall) -> Response:
        defaults = {
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
        return responses.of("FsServerDefaults", defaults)

    def get_room(self, _: WebHdfsCall) -> Response:
        """Return the space of the cache of this node."""
        capacity, free, _entries = self._vfs.client.statistics()
        return responses.of("FsStatus", {"capacity": capacity, "remaining": free, "used": capacity - free})
