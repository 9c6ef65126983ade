"""Is an origin there, and may we read it? Asked once, when it is attached, so that a wrong word is told at once."""

from __future__ import annotations

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError
from headrace.origin.origin import Origin


async def check_origin(origin: Origin, deadline: Deadline) -> None:
    """Asks for the first page of the root. Errors: those of every Origin call: BucketNotFoundError,
    OriginDeniedError, OriginUnavailableError (not reachable), DeadlineExceededError."""
    pages = origin.list_directory("", deadline=deadline)
    try:
        async for _ in pages:
            break
    except NotSupportedError:
        return  # a web server without an index answered: files are found by name
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()
