"""Translate obstore's exceptions to Headrace's. obstore distinguishes most failures only in its messages, so this
module parses them."""

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
from headrace.origin.origin import NO_CREDENTIALS

FOREIGN = (exceptions.BaseError, OSError, ValueError)
"""Exceptions of obstore: its own, FileNotFoundError, and ValueError for a key that it can't express."""


INEXPRESSIBLE = "obstore can't express this key (an empty, . or .. component, or a control character)"

NOT_ASCII = "its metadata has characters beyond ASCII, and obstore can't read such an object"
_NOT_ASCII = re.compile(r"contained non UTF-8 characters")
"""Matches the message for response headers: obstore accepts only visible ASCII in them, whatever the encoding."""
_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist|FilesystemNotFound")
_CORRUPT_BODY = re.compile(r"<Code>(BadDigest|XAmzContentSHA256Mismatch|XAmzContentChecksumMismatch)</Code>")
_BROKEN = re.compile(
    r"HTTP error|error sending request|error decoding|timed? ?out|connection|incomplete|unexpected end|broken pipe"
    r"|invalid (list|multipart) response|(ETag|Last-Modified) header missing",
    re.IGNORECASE,
)
_TRANSIENT_CODE = re.compile(
    r"<Code>(ConditionalRequestConflict|OperationAborted|RequestTimeout|IncompleteBody|InternalError|SlowDown"
    r"|ServiceUnavailable)</Code>"
)
"""Matches the codes of S3 that ask for another attempt, whatever the status: some come with 400, 409, or 200."""
_EXPIRED_CODE = re.compile(r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>")
_ROLE_REQUEST = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
_CREDENTIALS_HINT = "give access_key_id and secret_access_key, a profile, or anonymous=true"


def reason(error: BaseException) -> str:
    """Return one line of the error, without the query of a URL (it may hold a signature)."""
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


def translate(error: BaseException, target: str) -> HeadraceError:
    """Return the error of a call. `target` is the URL in the message. It may be a PathNotFoundError for a read, too,
    which the caller translates."""
    text = str(error)
    why = reason(error)
    if _NO_BUCKET.search(text):
        return BucketNotFoundError(target, why="no such bucket or container")
    if isinstance(error, FileNotFoundError):
        return PathNotFoundError(target, why="no such object")
    if isinstance(error, exceptions.PreconditionError):
        return VersionChangedError(target, why="the origin has another version")
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return OriginDeniedError(target, why=why, hint="check the credentials and what they allow")
    if _NOT_ASCII.search(text):
        return NotSupportedError(
            target, why=NOT_ASCII, hint="copy the object onto itself with metadata encoded by RFC 2047"
        )
    if isinstance(error, exceptions.NotSupportedError):
        return NotSupportedError(target, why=why)
    if isinstance(error, exceptions.InvalidPathError | ValueError):
        return PathNotFoundError(target, why=INEXPRESSIBLE)
    if _ROLE_REQUEST.search(text):
        return OriginDeniedError(target, why=NO_CREDENTIALS, hint=_CREDENTIALS_HINT)
    return _by_status(text, target, why)


def _by_status(text: str, target: str, why: str) -> HeadraceError:
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    if _TRANSIENT_CODE.search(text):
        return OriginUnavailableError(target, why=why)
    if status in (401, 403) or _EXPIRED_CODE.search(text):
        return OriginDeniedError(target, why=why, hint="check the credentials and what they allow")
    if status == 404:
        return BucketNotFoundError(target, why=why)
    if status == 501:
        return NotSupportedError(target, why=why)
    if status in (412, 416):
        return VersionChangedError(target, why="the origin has another version")
    if status in (408, 429) or status >= 500 or (not status and _BROKEN.search(text)):
        return OriginUnavailableError(target, why=why)
    return OriginError(target, why=why)


def is_unauthenticated(error: HeadraceError) -> bool:
    """Return whether the answer asked for other credentials, and thus is no verdict about one object."""
    return isinstance(error, OriginDeniedError) and (
        error.why == NO_CREDENTIALS or error.why.startswith("401")
    )


def translate_put(error: BaseException, target: str) -> HeadraceError:
    """Return the error of a put: a failed precondition is a conflict, and a 404 means the bucket."""
    if _TRANSIENT_CODE.search(
        str(error)
    ):  # another request for this object is in progress, or the body came too late
        return OriginUnavailableError(target, why=reason(error))
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return ConflictError(target, why="the object was changed, created or removed at the origin")
    if _CORRUPT_BODY.search(
        str(error)
    ):  # the body was damaged in transit: the store compared it with the checksum in the request
        return OriginUnavailableError(target, why=reason(error))
    if "NoSuchUpload" in str(
        error
    ):  # completed by an attempt whose answer was lost, or aborted by another client
        return OriginUnavailableError(target, why=reason(error))
    translated = translate(error, target)
    if isinstance(translated, VersionChangedError):
        return ConflictError(target, why="the object was changed at the origin")
    if isinstance(translated, PathNotFoundError):
        if translated.why == INEXPRESSIBLE:
            return NotSupportedError(target, why=translated.why)
        return BucketNotFoundError(target, why="no such bucket or container")
    if translated.code == OriginError.code and "status code: 409" in str(error):
        return OriginUnavailableError(target, why=translated.why)  # another put of this object is in progress
    return translated


def translate_listing(error: BaseException, target: str) -> HeadraceError:
    """Return the error of a listing: a 404 means the bucket, and a key that obstore refuses is that of a child."""
    translated = translate(error, target)
    if not isinstance(translated, PathNotFoundError):
        return translated
    if translated.why == INEXPRESSIBLE:
        return NotSupportedError(target, why="a name in it can't be expressed by obstore", hint=reason(error))
    return BucketNotFoundError(target, why=translated.why)
