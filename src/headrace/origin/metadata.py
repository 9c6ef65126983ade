"""Map a file's attributes to the metadata of an object.

mtime is in decimal seconds, mode includes the file type, uid and gid are decimal. Their names are those that s3fs and
(for mtime) rclone use on S3; put_id has a name of Headrace's own. The names are valid on S3, GCS and Azure, which
requires identifiers.

Metadata that users gave a gateway (`ObjectMetadata`) is stored under the users' own names. Tags are stored as the
store's tags where it has them, and again as metadata, because obstore can't read tags.
"""

from __future__ import annotations

import functools
import re
import stat
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from headrace.base.model import Attributes, ObjectMetadata
from headrace.overlay.content_type_codes import usual

_PUT_ID = "headraceput"
_TAGS = "headracetags"
_USERS = "headraceusers"
"""Name of the metadata that lists which file attributes the user gave, and not this node."""
_FILES = ("mtime", "mode", "uid", "gid")
HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control")
_MTIME = re.compile(r"(-?\d{1,11})(?:\.(\d{1,9})\d*)?")
_NUMBER = re.compile(r"\d{1,10}")
NUMBER_MAX = (1 << 32) - 2


def to_metadata(attributes: Attributes) -> dict[str, str]:
    metadata: dict[str, str] = {}
    if attributes.mtime_ns is not None:
        seconds, ns = divmod(attributes.mtime_ns, 10**9)
        metadata["mtime"] = f"{seconds}.{ns:09d}"
    if attributes.mode is not None:
        metadata["mode"] = str(stat.S_IFREG | stat.S_IMODE(attributes.mode))
    if attributes.uid is not None:
        metadata["uid"] = str(attributes.uid)
    if attributes.gid is not None:
        metadata["gid"] = str(attributes.gid)
    if attributes.put_id:
        metadata[_PUT_ID] = attributes.put_id
    return metadata if attributes.extras is None else {**metadata, **_of_extras(attributes.extras)}


def _of_extras(extras: ObjectMetadata) -> dict[str, str]:
    metadata = {
        name: value for name, value in extras.metadata.items() if name not in (_PUT_ID, _TAGS, _USERS)
    }
    metadata |= extras.headers
    if user_names := [name for name in _FILES if name in extras.metadata]:
        metadata[_USERS] = ",".join(user_names)
    if extras.tags:
        metadata[_TAGS] = urlencode(extras.tags)
    return metadata


def tags_of(attributes: Attributes) -> dict[str, str] | None:
    """Return the tags to put with the object; None if there are none."""
    return (attributes.extras.tags or None) if attributes.extras is not None else None


def extras_of(metadata: Mapping[str, str]) -> ObjectMetadata:
    """Return the metadata as users gave it, without what this program added. Many objects share equal metadata, so
    results are cached."""
    return _extras_of(tuple(metadata.items()))


@functools.lru_cache(maxsize=256)
def _extras_of(items: tuple[tuple[str, str], ...]) -> ObjectMetadata:
    metadata = dict(items)
    headers = {name: str(metadata[name]) for name in HEADERS if name in metadata}
    values = {str(name).lower(): str(value) for name, value in metadata.items() if name not in headers}
    tags, user_names = values.pop(_TAGS, ""), values.pop(_USERS, "").split(",")
    is_ours = bool(values.pop(_PUT_ID, ""))
    if is_ours:
        values = {name: value for name, value in values.items() if name not in _FILES or name in user_names}
    return usual(
        ObjectMetadata(values, headers, dict(parse_qsl(tags, keep_blank_values=True)) if is_ours else None)
    )


def from_metadata(metadata: Mapping[str, str]) -> Attributes | None:
    """Return the attributes in the metadata; None if there are none. Invalid values are ignored. Names may have any
    case."""
    values = {str(name).lower(): str(value) for name, value in metadata.items()}
    mode, extras = _number(values.get("mode", "")), extras_of(metadata)
    attributes = Attributes(
        _mtime_ns(values.get("mtime", "")),
        None if mode is None else stat.S_IMODE(mode),
        _number(values.get("uid", "")),
        _number(values.get("gid", "")),
        values.get(_PUT_ID, ""),
        extras,
    )
    return attributes if attributes != Attributes() or attributes.put_id or not extras.is_empty else None


def _number(text: str) -> int | None:
    """Return a number; None if the text is invalid or out of range for a file system: chown(2) takes the largest one
    as "unchanged"."""
    number = int(text) if _NUMBER.fullmatch(text) else NUMBER_MAX + 1
    return number if number <= NUMBER_MAX else None


def _mtime_ns(text: str) -> int | None:
    match = _MTIME.fullmatch(text)
    return int(match[1]) * 10**9 + int((match[2] or "").ljust(9, "0")) if match else None
