"""Tell whether an image is the one that was written.

The digest is the SHA-256 of the file, as `sha256sum` prints it.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from headrace.base.errors import InvalidImageError

_READ_BYTES = 1 << 20


def digest_image(descriptor: int) -> str:
    """Return the SHA-256 of an image, in hexadecimal."""
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(descriptor, _READ_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def verify_image(descriptor: int, digest: str) -> None:
    """Raise InvalidImageError if an image has another digest."""
    if not hmac.compare_digest(digest_image(descriptor), digest):
        raise InvalidImageError("an image", why="it is not the one that was recorded", hint="seal again")
