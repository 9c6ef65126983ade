"""Define the gateway's error answers: Hadoop's exceptions by name, and the only table HeadraceError → exception.

`ERROR_MAP` has a row for every HeadraceError; a test fails if one is missing. Clients raise the class of that name,
and decide by it whether to continue. The statuses are those of the WebHDFS specification, "Error Responses".
"""

from __future__ import annotations

from headrace.base.errors import HeadraceError
from headrace.http.errors import BadRequestError

STATUS: dict[str, int] = {
    "java.io.FileNotFoundException": 404,
    "java.io.IOException": 403,
    "java.lang.IllegalArgumentException": 400,
    "java.lang.RuntimeException": 500,
    "java.lang.SecurityException": 401,
    "java.lang.UnsupportedOperationException": 400,
    "org.apache.hadoop.fs.FileAlreadyExistsException": 403,
    "org.apache.hadoop.fs.InvalidPathException": 400,
    "org.apache.hadoop.fs.ParentNotDirectoryException": 403,
    "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException": 403,
    "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException": 403,
    "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException": 403,
    "org.apache.hadoop.ipc.RetriableException": 403,
    "org.apache.hadoop.security.AccessControlException": 403,
    "org.apache.hadoop.security.token.SecretManager$InvalidToken": 403,
}
_JAVA_NAMES = {java.rpartition(".")[2].rpartition("$")[2]: java for java in STATUS}

ERROR_MAP: dict[str, str] = {
    "internal": "RuntimeException",
    "usage": "IllegalArgumentException",
    "policy.conflict": "IOException",  # of commands
    "path.not_found": "FileNotFoundException",
    "path.stale": "RetriableException",
    "path.not_a_directory": "ParentNotDirectoryException",
    "path.is_a_directory": "FileAlreadyExistsException",
    "path.exists": "FileAlreadyExistsException",
    "path.not_empty": "PathIsNotEmptyDirectoryException",
    "path.read_only": "AccessControlException",
    "not_supported": "UnsupportedOperationException",
    "path.denied": "AccessControlException",
    "extra.missing": "UnsupportedOperationException",
    "origin.failed": "IOException",
    "origin.unavailable": "RetriableException",
    "origin.denied": "AccessControlException",
    "origin.no_bucket": "FileNotFoundException",
    "origin.version_changed": "RetriableException",
    "origin.conflict": "IOException",
    "origin.corrupt": "IOException",
    "origin.read_only": "AccessControlException",
    "origin.budget_spent": "RetriableException",
    "deadline": "RetriableException",
    "store.no_space": "DSQuotaExceededException",
    "store.failed": "IOException",
    "store.evicted": "RetriableException",
    "store.busy": "RetriableException",
    "store.in_use": "RetriableException",
    "store.corrupt_index": "RetriableException",
    "store.corrupt_block": "RetriableException",
    "node.unavailable": "RetriableException",
    "node.denied": "AccessControlException",
    "protocol": "RuntimeException",
    "mount.failed": "IOException",
    "cluster.unavailable": "RetriableException",
    "cluster.denied": "RetriableException",
    "cluster.id_taken": "IOException",
    "peer.failed": "RetriableException",
    "peer.not_owner": "RetriableException",
    # errors of checkpoints, which no request raises
    "checkpoint.not_found": "FileNotFoundException",
    "checkpoint.corrupt": "IOException",
    "checkpoint.mismatch": "IllegalArgumentException",
    "checkpoint.no_space": "DSQuotaExceededException",
    "checkpoint.failed": "IOException",
    "seal.invalid_image": "IOException",
    "cancelled": "RetriableException",
}


class RemoteError(Exception):
    """Reports a failed request to the client. `name` is an exception of `STATUS`, without its package."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message

    @property
    def java_name(self) -> str:
        return _JAVA_NAMES[self.name]

    @property
    def status(self) -> int:
        return STATUS[self.java_name]


def remote_error_of(error: HeadraceError) -> RemoteError:
    """Return the remote error. It names no path of this host: HeadraceErrors name paths of the namespace and URLs."""
    return RemoteError(ERROR_MAP.get(error.code, "IOException"), str(error))


def remote_error_of_request(error: BadRequestError) -> RemoteError:
    return RemoteError("IllegalArgumentException", error.message)


def path_text(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def not_found(path: bytes) -> RemoteError:
    return RemoteError("FileNotFoundException", f"File does not exist: {path_text(path)}")


def unsupported(why: str) -> RemoteError:
    return RemoteError("UnsupportedOperationException", why)


def illegal(why: str) -> RemoteError:
    return RemoteError("IllegalArgumentException", why)
