"""Every error that Headrace raises on purpose.

An error says what happened, where, why and what to do, in one line each; doors translate it (errno, exit code,
wire) by one table of codes. Foreign exceptions are turned into these in the file that called the library.
"""

from __future__ import annotations

from typing import ClassVar, Self


class HeadraceError(Exception):
    """Base of all. `code` is stable and documented in docs/errors.md; `retryable` says the same call may work later.

    what: what failed, with the path or URL. why: the cause. hint: what the user can do ("" when nothing).
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        self.what = what
        self.why = why
        self.hint = hint
        super().__init__(what)

    def copied(self) -> Self:
        """For one more who waits. Without its trace, which would keep alive what was in use when it was raised."""
        return type(self)(self.what, why=self.why, hint=self.hint)

    def __str__(self) -> str:
        line = self.what
        if self.why:
            line += f": {self.why}"
        if self.hint:
            line += f" ({self.hint})"
        return line


class UsageError(HeadraceError, ValueError):
    """The user's words are off: an unknown scheme, a bad size, an unknown setting."""

    code = "usage"


class PathNotFoundError(HeadraceError, FileNotFoundError):
    code = "path.not_found"

    __str__ = HeadraceError.__str__


class StaleIdError(PathNotFoundError):
    """An id that names nothing any more: its file was replaced or removed at the origin. The name may mean
    another file by now: look it up again."""

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
    """The system does not let this user read or write there."""

    code = "path.denied"

    __str__ = HeadraceError.__str__


class DirectoryNotEmptyError(HeadraceError, OSError):
    code = "path.not_empty"

    __str__ = HeadraceError.__str__


class ReadOnlyError(HeadraceError, OSError):
    code = "path.read_only"

    __str__ = HeadraceError.__str__


class NotSupportedError(HeadraceError, OSError):
    """What can't be done truly is refused."""

    code = "not_supported"

    __str__ = HeadraceError.__str__


class MissingExtraError(HeadraceError, ModuleNotFoundError):
    """An optional package is not installed; the line says which extra of Headrace brings it."""

    code = "extra.missing"

    __str__ = HeadraceError.__str__


class OriginError(HeadraceError, OSError):
    """The origin answered with an error that trying again won't mend."""

    code = "origin.failed"

    __str__ = HeadraceError.__str__


class OriginUnavailableError(OriginError):
    """The origin could not be reached, was overloaded (500, 503, 429), or broke off an answer."""

    code = "origin.unavailable"
    retryable = True


class OriginDeniedError(OriginError, PermissionError):
    """Credentials are missing, wrong, or don't allow this; or the configuration allows no such origin."""

    code = "origin.denied"

    __str__ = HeadraceError.__str__


class BucketNotFoundError(OriginError, FileNotFoundError):
    code = "origin.no_bucket"

    __str__ = HeadraceError.__str__


class VersionChangedError(OriginError):
    """The object is no longer the version that was asked for; what is cached of that version stays readable."""

    code = "origin.version_changed"


class CorruptOriginError(OriginError):
    """What the origin sends does not match the checksum that it names, and differs from read to read."""

    code = "origin.corrupt"


class ConflictError(OriginError):
    """What was to be replaced or removed at the origin is not what it was: somebody else changed it, or made a file
    of that name. Nothing was changed there."""

    code = "origin.conflict"


class OriginReadOnlyError(OriginError):
    """The origin can't be written to."""

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
    """A cache volume can't be used: unwritable, an I/O error, too small."""

    code = "store.failed"

    __str__ = HeadraceError.__str__


class EvictedError(StoreError):
    """The cache file went, to make room or because somebody freed it, while it was being filled."""

    code = "store.evicted"
    retryable = True


class StoreBusyError(StoreError):
    """Another node uses this cache folder."""

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
    """Who asks a node shows no token or certificate, or a wrong one, or says to be somebody else; or a file's mode does
    not let this user read it."""

    code = "node.denied"

    __str__ = HeadraceError.__str__


class ProtocolError(HeadraceError):
    """The other side speaks another version, or nonsense."""

    code = "protocol"


class MountError(HeadraceError, OSError):
    """A mountpoint that is missing, busy or not empty, or a kernel that refuses."""

    code = "mount.failed"

    __str__ = HeadraceError.__str__


class ClusterUnavailableError(HeadraceError, ConnectionError):
    """The cluster's records (etcd) can't be reached. Reads go on by the last view; what needs a record fails."""

    code = "cluster.unavailable"
    retryable = True

    __str__ = HeadraceError.__str__


class ClusterDeniedError(ClusterUnavailableError):
    """etcd refuses this node (no role for the cluster's records, a wrong password or certificate), or shows a
    certificate of another authority."""

    code = "cluster.denied"
    retryable = False


class NodeIdTakenError(HeadraceError):
    """Another node that is alive has this id in the cluster."""

    code = "cluster.id_taken"


class PeerError(HeadraceError, OSError):
    """A peer did not do what it was asked: broke off, sent bytes that don't match their checksum, has no room."""

    code = "peer.failed"
    retryable = True

    def __init__(self, what: str, *, why: str = "", hint: str = "", silent: bool = False) -> None:
        """silent: nothing came in the time allowed; to ask again at once would be in vain."""
        super().__init__(what, why=why, hint=hint)
        self.silent = silent

    __str__ = HeadraceError.__str__


class NotOwnerError(PeerError):
    """The peer does not own what it was asked for, and has none of it: the two have different views."""

    code = "peer.not_owner"


class CheckpointNotFoundError(HeadraceError, FileNotFoundError):
    """No checkpoint of that step, or none at all, in the folder."""

    code = "checkpoint.not_found"

    __str__ = HeadraceError.__str__


class CorruptCheckpointError(HeadraceError, OSError):
    """A checkpoint's bytes or its manifest do not match their checksum, or a file of it is gone."""

    code = "checkpoint.corrupt"

    __str__ = HeadraceError.__str__


class CheckpointFailedError(HeadraceError, OSError):
    """A checkpoint could not be saved: an I/O error, or a rank that did not deliver. The ones before it are whole."""

    code = "checkpoint.failed"
    retryable = True

    __str__ = HeadraceError.__str__


class CheckpointNoSpaceError(CheckpointFailedError):
    """The disk is full. The checkpoints before this one are whole."""

    code = "checkpoint.no_space"


class CheckpointMismatchError(HeadraceError, ValueError):
    """What is to be restored into is not shaped as what was saved."""

    code = "checkpoint.mismatch"


class CancelledByUserError(HeadraceError):
    code = "cancelled"


def error_classes() -> dict[str, type[HeadraceError]]:
    """All classes by code: what a client needs to turn a wire failure back into the same exception."""
    found: dict[str, type[HeadraceError]] = {}
    pending: list[type[HeadraceError]] = [HeadraceError]
    while pending:
        one = pending.pop()
        found[one.code] = one
        pending.extend(one.__subclasses__())
    return found
