"""Check once, when an origin is attached, that it exists and can be read, so that a wrong setting is reported at
once."""

from __future__ import annotations

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError
from headrace.origin.origin import Origin


async def check_origin(origin: Origin, deadline: Deadline) -> None:
    """Request the first page of the root. Raise the errors of every Origin call: BucketNotFoundError,
    OriginDeniedError, OriginUnavailableError (not reachable), DeadlineExceededError."""
    pages = origin.list_directory("", deadline=deadline)
    try:
        async for _ in pages:
            break
    except NotSupportedError:
        return  # a web server without an index answered: its files are accessible by name
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()
