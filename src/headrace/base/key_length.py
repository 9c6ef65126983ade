"""Limit the length of an object's key when its name is created, as an object store reports it only at the upload."""

from __future__ import annotations

import os

KEY_BYTES_MAX = {"s3": 1024, "gs": 1024, "az": 1024}
"""Bytes of a key in UTF-8 at most, by scheme of an origin. Azure counts characters, as many as bytes for most names."""


def key_room(url: str) -> int | None:
    """Return the bytes that a key below an origin of that URL may have; None: as many as a path."""
    scheme, _, rest = url.partition("://")
    limit = KEY_BYTES_MAX.get(scheme)
    if limit is None:
        return None
    prefix = rest.partition("/")[2].strip("/")
    return limit - (len(os.fsencode(prefix)) + 1 if prefix else 0)
