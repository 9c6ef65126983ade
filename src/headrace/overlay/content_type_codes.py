"""What most objects have beside their bytes is a usual Content-Type and nothing else: then one number says it.

Where there is more, `extras.py` keeps it at the file. The numbers are in the index: none is given another meaning, new
ones come at the end.
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
"""By number. "": none is told."""
_NUMBERS = {name: number for number, name in enumerate(CONTENT_TYPES)}
_EXTRAS = tuple(ObjectMetadata({}, {"Content-Type": name} if name else {}, None) for name in CONTENT_TYPES)
_BY_IDENTITY = {id(extras): number for number, extras in enumerate(_EXTRAS)}


def number_of(extras: ObjectMetadata) -> int | None:
    """None: it takes more than a number. At once for what `usual` returned."""
    if (known := _BY_IDENTITY.get(id(extras))) is not None:
        return known
    if extras.metadata or extras.tags is not None or len(extras.headers) > 1:
        return None
    (name,) = extras.headers.values() or ("",)
    if extras.headers and "Content-Type" not in extras.headers:
        return None
    return _NUMBERS.get(name)


def usual(extras: ObjectMetadata) -> ObjectMetadata:
    """The same; of those that have a number, the one object that there is of them."""
    return extras_by(number_of(extras)) or extras


def extras_by(number: int | None) -> ObjectMetadata | None:
    """None: no number, or one of a later release."""
    return _EXTRAS[number] if number is not None and number < len(_EXTRAS) else None
