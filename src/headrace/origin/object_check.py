"""Check once, when an origin is attached, that it exists and can be read, so that a wrong setting is reported at
once."""

from __future__ import annotations

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError
from headrace.origin.origin import Origin


async def check_origin(origin: Origin, deadline: Deadline) -> bool:
    """Request the root up to its first name. Return whether it may have one: object stores can't distinguish a prefix
    that does not exist from an empty one. Raise the errors of every Origin call: BucketNotFoundError,
    OriginDeniedError, OriginUnavailableError (not reachable), DeadlineExceededError."""
    pages = origin.list_directory("", deadline=deadline)
    try:
        async for page in pages:
            if page.objects or page.directories:
                return True
    except NotSupportedError:
        return True  # a web server without an index answered: its files are accessible by name
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()
    return False
