"""Name the errors of the operating system that mean that an origin is unavailable for a while: a disk or a file server
that fails, a mount that is gone, a network without a route, too many open files."""

from __future__ import annotations

import errno

TRANSIENT = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
        *(errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO, errno.ECONNREFUSED, errno.ECONNRESET),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
    }
)
