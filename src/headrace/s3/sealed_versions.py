"""Find the path of a request in the seal that its `versionId` names."""

from __future__ import annotations

import msgspec

from headrace.s3.errors import S3Error
from headrace.s3.routes import S3Call
from headrace.vfs.local_vfs import LocalVfs


def at_version(vfs: LocalVfs, call: S3Call) -> S3Call:
    """Return the request with its path in the seal that it names. Raises NoSuchVersion if no such seal has the path."""
    sealed_path = vfs.sealed.path_of_version(call.version.encode(), call.path)
    if sealed_path is None:
        raise S3Error("NoSuchVersion", "The specified version does not exist.")
    return msgspec.structs.replace(call, sealed_path=sealed_path)
