"""The object store of the run: SeaweedFS, as the tests start it."""

from __future__ import annotations

from headrace.testing.servers import S3Server, ServerMissing, seaweedfs_s3

from .machine import NotRunError, Workplace

Server = S3Server


def start(place: Workplace) -> S3Server:
    """Runs until the workplace is cleaned up."""
    try:
        return place.undo.enter_context(seaweedfs_s3(place.folder("seaweedfs")))
    except (ServerMissing, RuntimeError) as error:
        raise NotRunError(str(error)) from error
