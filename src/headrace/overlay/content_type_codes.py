"""Encode the attributes of most objects as one number: they have a usual Content-Type and no other attribute.

`object_metadata.py` keeps all other attributes at the file. The numbers are in the index: no number changes its
meaning, and new ones are appended.
"""

from __future__ import annotations

from headrace.base.model import ObjectMetadata

CONTENT_TYPES = (
    "",
    "application/octet-stream",
    "binary/octet-stream",
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/tiff",
    "image/gif",
    "image/bmp",
    "video/mp4",
    "audio/flac",
    "audio/mpeg",
    "audio/wav",
    "audio/x-wav",
    "text/plain",
    "text/plain; charset=utf-8",
    "text/csv",
    "application/json",
    "application/x-tar",
    "application/gzip",
    "application/x-gzip",
    "application/zip",
    "application/x-directory",
    "application/vnd.apache.parquet",
    "application/x-hdf5",
    "application/x-hdf",
    "application/xml",
    "text/xml",
    "text/html",
    "application/pdf",
    "application/x-www-form-urlencoded",
)
"""Content types by number. "" means that the origin returned none."""
_NUMBERS = {name: number for number, name in enumerate(CONTENT_TYPES)}
_EXTRAS = tuple(ObjectMetadata({}, {"Content-Type": name} if name else {}, None) for name in CONTENT_TYPES)
_BY_IDENTITY = {id(extras): number for number, extras in enumerate(_EXTRAS)}


def number_of(extras: ObjectMetadata) -> int | None:
    """Return the number of an object's attributes; None if they need more than a number. Fast for results of
    `usual`."""
    if (number := _BY_IDENTITY.get(id(extras))) is not None:
        return number
    if extras.metadata or extras.tags is not None or len(extras.headers) > 1:
        return None
    (name,) = extras.headers.values() or ("",)
    if extras.headers and "Content-Type" not in extras.headers:
        return None
    return _NUMBERS.get(name)


def usual(extras: ObjectMetadata) -> ObjectMetadata:
    """Return equal attributes. Attributes with a number are always the same object."""
    return extras_by(number_of(extras)) or extras


def extras_by(number: int | None) -> ObjectMetadata | None:
    """Return the attributes of a number; None for None, and for a number of a later release."""
    return _EXTRAS[number] if number is not None and number < len(_EXTRAS) else None
