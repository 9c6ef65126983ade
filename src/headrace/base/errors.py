"""Every error that Headrace raises on purpose.

An error says what failed, where, why and what to do, in one line each. Interfaces translate it (errno, exit code, wire)
by one table of codes. A foreign exception becomes one of these in the file that called the library.
"""

from __future__ import annotations

from typing import ClassVar, Self


class HeadraceError(Exception):
    """Base of all. `code` is stable and documented in docs/errors.md; `retryable`: the same call may succeed later.

    what: what failed, with the path or URL. why: the cause. hint: what the user can do ("" if nothing).
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        self.what = what
        self.why = why
        self.hint = hint
        super().__init__(what)

    def copied(self) -> Self:
        """Return a copy for another waiting caller, without the trace: that would keep alive the objects in use when it
        was raised."""
        return type(self)(self.what, why=self.why, hint=self.hint)

    def as_report(self) -> dict[str, object]:
        """Return the fields of the JSON line by which a process reports its failure to the one that started it."""
        return {"error": self.code, "what": self.what, "why": self.why, "hint": self.hint}

    def __str__(self) -> str:
        line = self.what
        if self.why:
            line += f": {self.why}"
        if self.hint:
            line += f" ({self.hint})"
        return line


class UsageError(HeadraceError, ValueError):
    """The user's input is invalid: an unknown scheme, a bad size, an unknown setting."""

    code = "usage"


class PolicyConflictError(UsageError):
    """Another version of the policy is in force than the one that the new text was made from. Nothing changed."""

    code = "policy.conflict"


class PathNotFoundError(HeadraceError, FileNotFoundError):
    code = "path.not_found"

    __str__ = HeadraceError.__str__


class StaleIdError(PathNotFoundError):
    """The id is no longer valid: its file was replaced or removed at the origin. The name may belong to another file
    now, so look it up again."""

    code = "path.stale"


class NotADirectoryPathError(HeadraceError, NotADirectoryError):
    code = "path.not_a_directory"

    __str__ = HeadraceError.__str__


class IsADirectoryPathError(HeadraceError, IsADirectoryError):
    code = "path.is_a_directory"

    __str__ = HeadraceError.__str__


class PathExistsError(HeadraceError, FileExistsError):
    code = "path.exists"

    __str__ = HeadraceError.__str__


class PathDeniedError(HeadraceError, PermissionError):
    """The operating system does not permit this user to read or write there."""

    code = "path.denied"

    __str__ = HeadraceError.__str__


class DirectoryNotEmptyError(HeadraceError, OSError):
    code = "path.not_empty"

    __str__ = HeadraceError.__str__


class ReadOnlyError(HeadraceError, OSError):
    code = "path.read_only"

    __str__ = HeadraceError.__str__


class NotSupportedError(HeadraceError, OSError):
    """Headrace does not support this operation, and refuses it rather than imitate it."""

    code = "not_supported"

    __str__ = HeadraceError.__str__


class MissingExtraError(HeadraceError, ModuleNotFoundError):
    """An optional package is not installed; the message names the extra of Headrace that installs it."""

    code = "extra.missing"

    __str__ = HeadraceError.__str__


class OriginError(HeadraceError, OSError):
    """The origin answered with an error that a retry does not fix."""

    code = "origin.failed"

    __str__ = HeadraceError.__str__


class OriginUnavailableError(OriginError):
    """The origin could not be reached, was overloaded (500, 503, 429), or broke off a response."""

    code = "origin.unavailable"
    retryable = True


class OriginDeniedError(OriginError, PermissionError):
    """Credentials are missing, wrong or insufficient; or the configuration does not allow this origin."""

    code = "origin.denied"

    __str__ = HeadraceError.__str__


class BucketNotFoundError(OriginError, FileNotFoundError):
    code = "origin.no_bucket"

    __str__ = HeadraceError.__str__


class VersionChangedError(OriginError):
    """The object is no longer the requested version; cached bytes of that version stay readable."""

    code = "origin.version_changed"


class CorruptOriginError(OriginError):
    """The origin's bytes do not match the checksum that it sends, and differ from read to read."""

    code = "origin.corrupt"


class ConflictError(OriginError):
    """Another writer changed the object that was to be replaced or removed at the origin, or created one of that name.
    Headrace changed nothing there."""

    code = "origin.conflict"


class OriginBudgetSpentError(OriginError):
    """The month's budget of an origin is spent, and nobody waits for these bytes."""

    code = "origin.budget_spent"


class OriginReadOnlyError(OriginError):
    """The origin does not accept writes."""

    code = "origin.read_only"


class DeadlineExceededError(HeadraceError, TimeoutError):
    code = "deadline"
    retryable = True

    __str__ = HeadraceError.__str__


class NoSpaceError(HeadraceError, OSError):
    """The cache is full and nothing can be evicted."""

    code = "store.no_space"
    retryable = True

    __str__ = HeadraceError.__str__


class StoreError(HeadraceError, OSError):
    """A cache volume can't be used: it is not writable, too small, or has I/O errors."""

    code = "store.failed"

    __str__ = HeadraceError.__str__


class FileInUseError(StoreError):
    """A program writes a file that is being uploaded, or has it open for writing; it is uploaded later."""

    code = "store.in_use"


class EvictedError(StoreError):
    """The cache file was evicted or freed while it was being filled."""

    code = "store.evicted"
    retryable = True


class StoreBusyError(StoreError):
    """Another node uses this cache directory."""

    code = "store.busy"


class CorruptIndexError(StoreError):
    code = "store.corrupt_index"


class CorruptBlockError(StoreError):
    """A cached block does not match its checksum."""

    code = "store.corrupt_block"
    retryable = True


class NodeUnavailableError(HeadraceError, ConnectionError):
    """No node answers on its socket."""

    code = "node.unavailable"
    retryable = True

    __str__ = HeadraceError.__str__


class NotAllowedError(HeadraceError, PermissionError):
    """The client presents no valid token or certificate, or claims another identity than its own. Or the mode of a file
    does not let this user read it."""

    code = "node.denied"

    __str__ = HeadraceError.__str__


class ProtocolError(HeadraceError):
    """The other side speaks another version of the protocol, or sent an invalid message."""

    code = "protocol"


class MountError(HeadraceError, OSError):
    """The mountpoint is missing, busy or not empty, or the kernel refuses the mount."""

    code = "mount.failed"

    __str__ = HeadraceError.__str__


class ClusterUnavailableError(HeadraceError, ConnectionError):
    """The cluster's records (etcd) can't be reached. Reads continue with the last view; operations that need a record
    fail."""

    code = "cluster.unavailable"
    retryable = True

    __str__ = HeadraceError.__str__


class ClusterDeniedError(ClusterUnavailableError):
    """etcd refuses this node (no role for the cluster's records, a wrong password or certificate), or presents a
    certificate of another authority."""

    code = "cluster.denied"
    retryable = False


class NodeIdTakenError(HeadraceError):
    """Another live node has this id in the cluster."""

    code = "cluster.id_taken"


class PeerError(HeadraceError, OSError):
    """A peer failed to carry out a request: it broke off, sent bytes that don't match their checksum, or has no
    space."""

    code = "peer.failed"
    retryable = True

    def __init__(self, what: str, *, why: str = "", hint: str = "", silent: bool = False) -> None:
        """Create the error. silent: the peer timed out, so an immediate retry would be useless."""
        super().__init__(what, why=why, hint=hint)
        self.silent = silent

    __str__ = HeadraceError.__str__


class NotOwnerError(PeerError):
    """The peer neither owns nor caches the requested file: the two nodes have different views."""

    code = "peer.not_owner"


class CheckpointNotFoundError(HeadraceError, FileNotFoundError):
    """The directory has no checkpoint, or none of that step."""

    code = "checkpoint.not_found"

    __str__ = HeadraceError.__str__


class CorruptCheckpointError(HeadraceError, OSError):
    """A checkpoint's bytes or its manifest do not match their checksum, or one of its files is missing."""

    code = "checkpoint.corrupt"

    __str__ = HeadraceError.__str__


class CheckpointFailedError(HeadraceError, OSError):
    """A checkpoint could not be saved: an I/O error, or a rank that did not deliver. Earlier checkpoints are
    complete."""

    code = "checkpoint.failed"
    retryable = True

    __str__ = HeadraceError.__str__


class CheckpointNoSpaceError(CheckpointFailedError):
    """The disk is full. Earlier checkpoints are complete."""

    code = "checkpoint.no_space"


class CheckpointMismatchError(HeadraceError, ValueError):
    """The state to restore into does not have the shape of the saved one."""

    code = "checkpoint.mismatch"


class InvalidImageError(HeadraceError, ValueError):
    """The image of a seal is damaged, is not the recorded one, or can't hold an entry."""

    code = "seal.invalid_image"


class CancelledByUserError(HeadraceError):
    code = "cancelled"


def error_classes() -> dict[str, type[HeadraceError]]:
    """Return the classes by code, so that a client can turn a failure on the wire back into the same exception. A
    subclass without a code of its own is raised only in the process that defines it."""
    classes: dict[str, type[HeadraceError]] = {}
    pending: list[type[HeadraceError]] = [HeadraceError]
    while pending:
        error_class = pending.pop()
        if "code" in vars(error_class):
            classes[error_class.code] = error_class
        pending.extend(error_class.__subclasses__())
    return classes
