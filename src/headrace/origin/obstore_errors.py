"""What obstore raises, as our errors. It tells most failures apart only in its message, so that is read here."""

from __future__ import annotations

import re

from obstore import exceptions

from headrace.base.errors import (
    BucketNotFoundError,
    ConflictError,
    HeadraceError,
    NotSupportedError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)

FOREIGN = (exceptions.BaseError, OSError, ValueError)
"""What obstore raises: its own, FileNotFoundError, and ValueError for a key that it can't express."""


INEXPRESSIBLE = "obstore can not express this key (an empty, . or .. part, a control character)"

NOT_ASCII = "its metadata has characters beyond ASCII, with which obstore can't tell of the object"
_NOT_ASCII = re.compile(r"contained non UTF-8 characters")
"""Of headers of an answer: whatever the encoding, obstore takes those of visible ASCII only."""
_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist|FilesystemNotFound")
_SPOILT = re.compile(r"<Code>(BadDigest|XAmzContentSHA256Mismatch|XAmzContentChecksumMismatch)</Code>")
_BROKEN = re.compile(
    r"HTTP error|error sending request|error decoding|timed? ?out|connection|incomplete|unexpected end|broken pipe",
    re.IGNORECASE,
)
_ASKED_HOST_FOR_ROLE = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
_CREDENTIALS_HINT = "give access_key_id and secret_access_key, a profile, or anonymous=true"


def reason(error: BaseException) -> str:
    """One line without what a URL carries behind its `?` (it may be a signature)."""
    text = str(error).split("\n\nDebug source", 1)[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    message = re.search(r"<Message>([^<]*)</Message>", text)
    status = re.search(r"status code: (\d{3}[^:\n]*)", text)
    if status is not None:
        parts = [
            status[1].strip(),
            code[1] if code else "",
            message[1].split("\n", 1)[0].strip() if message else "",
        ]
        return ", ".join(part for part in parts if part)[:300]
    text = re.sub(r"\?\S*", "?…", text.split("\n", 1)[0])
    return text[:300]


def translate(error: BaseException, what: str) -> HeadraceError:
    """what: the URL of the thing, for the message. PathNotFoundError also for a read: the caller knows better."""
    text = str(error)
    why = reason(error)
    if _NO_BUCKET.search(text):
        return BucketNotFoundError(what, why="no such bucket or container")
    if isinstance(error, FileNotFoundError):
        return PathNotFoundError(what, why="no such object")
    if isinstance(error, exceptions.PreconditionError):
        return VersionChangedError(what, why="it is not the version that was asked for")
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return OriginDeniedError(what, why=why, hint="check the credentials and what they allow")
    if _NOT_ASCII.search(text):
        return NotSupportedError(
            what, why=NOT_ASCII, hint="copy it onto itself with other metadata, as RFC 2047 writes it"
        )
    if isinstance(error, exceptions.NotSupportedError):
        return NotSupportedError(what, why=why)
    if isinstance(error, exceptions.InvalidPathError | ValueError):
        return PathNotFoundError(what, why=INEXPRESSIBLE)
    if _ASKED_HOST_FOR_ROLE.search(text):
        return OriginDeniedError(what, why="no credentials found", hint=_CREDENTIALS_HINT)
    return _by_status(text, what, why)


def _by_status(text: str, what: str, why: str) -> HeadraceError:
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if status in (401, 403):
        return OriginDeniedError(what, why=why, hint="check the credentials and what they allow")
    if status == 404:
        return BucketNotFoundError(what, why=why)
    if status == 501:
        return NotSupportedError(what, why=why)
    if status in (412, 416):
        return VersionChangedError(what, why="it is not the version that was asked for")
    if status in (408, 429) or status >= 500 or (not status and _BROKEN.search(text)):
        return OriginUnavailableError(what, why=why)
    return OriginError(what, why=why)


def translate_put(error: BaseException, what: str) -> HeadraceError:
    """Of a put: there a failed precondition is a conflict, and a 404 means the bucket."""
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return ConflictError(what, why="it was changed, made or removed at the origin")
    if _SPOILT.search(str(error)):  # on its way: the store compared it with the checksum that was sent along
        return OriginUnavailableError(what, why=reason(error))
    if "NoSuchUpload" in str(error):  # completed by an attempt whose answer was lost, or aborted by somebody
        return OriginUnavailableError(what, why=reason(error))
    found = translate(error, what)
    if isinstance(found, VersionChangedError):
        return ConflictError(what, why="it was changed at the origin")
    if isinstance(found, PathNotFoundError):
        if found.why == INEXPRESSIBLE:
            return NotSupportedError(what, why=found.why)
        return BucketNotFoundError(what, why="no such bucket or container")
    if found.code == OriginError.code and "status code: 409" in str(error):
        return OriginUnavailableError(what, why=found.why)  # another put of this object is under way
    return found


def translate_listing(error: BaseException, what: str) -> HeadraceError:
    """Of a listing: there a 404 means the bucket, and a key that obstore refuses is some child's."""
    found = translate(error, what)
    if not isinstance(found, PathNotFoundError):
        return found
    if found.why == INEXPRESSIBLE:
        return NotSupportedError(what, why="it holds a name that obstore can not express", hint=reason(error))
    return BucketNotFoundError(what, why=found.why)
