"""Map HeadraceError.code to errno: the only such table of the FUSE session."""

from __future__ import annotations

import errno

from headrace.base.errors import HeadraceError

ERRNO: dict[str, int] = {
    "internal": errno.EIO,
    "usage": errno.EINVAL,
    "policy.conflict": errno.EAGAIN,  # of commands, which no program waits for
    "path.not_found": errno.ENOENT,
    "path.stale": errno.ESTALE,  # on OPEN and LOOKUP the kernel looks the path up again
    "path.not_a_directory": errno.ENOTDIR,
    "path.is_a_directory": errno.EISDIR,
    "path.exists": errno.EEXIST,
    "path.not_empty": errno.ENOTEMPTY,
    "path.read_only": errno.EROFS,
    "not_supported": errno.ENOTSUP,
    "path.denied": errno.EACCES,
    "extra.missing": errno.ENOTSUP,
    "origin.failed": errno.EIO,
    "origin.unavailable": errno.EHOSTUNREACH,
    "origin.denied": errno.EACCES,
    "origin.no_bucket": errno.ENXIO,
    "origin.version_changed": errno.ESTALE,
    "origin.conflict": errno.ESTALE,
    "origin.read_only": errno.EROFS,
    "origin.budget_spent": errno.EDQUOT,  # of background work, which no program waits for
    "origin.corrupt": errno.EIO,
    "deadline": errno.ETIMEDOUT,
    "store.no_space": errno.ENOSPC,
    "store.failed": errno.EIO,
    "store.evicted": errno.EAGAIN,
    "store.busy": errno.EBUSY,
    "store.in_use": errno.EBUSY,
    "store.corrupt_index": errno.EUCLEAN,
    "store.corrupt_block": errno.EBADMSG,
    "node.unavailable": errno.EHOSTDOWN,
    "node.denied": errno.EACCES,
    "protocol": errno.EPROTO,
    "mount.failed": errno.EIO,
    "cluster.unavailable": errno.EHOSTUNREACH,
    "cluster.denied": errno.EHOSTUNREACH,
    "cluster.id_taken": errno.EBUSY,
    "peer.failed": errno.EIO,
    "peer.not_owner": errno.EIO,
    # errors of checkpoints and seals, which no mount raises
    "checkpoint.not_found": errno.ENOENT,
    "checkpoint.corrupt": errno.EBADMSG,
    "checkpoint.mismatch": errno.EINVAL,
    "checkpoint.no_space": errno.ENOSPC,
    "checkpoint.failed": errno.EIO,
    "seal.invalid_image": errno.EBADMSG,
    "cancelled": errno.ECANCELED,  # the caller was killed, so no program sees it
}


def errno_of(error: HeadraceError) -> int:
    return ERRNO.get(error.code, errno.EIO)
