"""A file's attributes as the metadata of an object: mtime in decimal seconds, mode with its file type, uid and gid in
decimal, under the names that s3fs and (for mtime) rclone use on S3; put_id under one of ours. The names are good on
S3, GCS and Azure, which wants identifiers.

What users gave a gateway (`ObjectMetadata`) is metadata, too, under their own names. Tags are put as the store's
tags where it has them, and once more as metadata, as obstore can't ask for tags."""

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
"""Which of these the user gave, not this node."""
_FILES = ("mtime", "mode", "uid", "gid")
HEADERS = ("Content-Type", "Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control")
_MTIME = re.compile(r"(-?\d{1,11})(?:\.(\d{1,9})\d*)?")
_NUMBER = re.compile(r"\d{1,10}")
NUMBER_MAX = (1 << 32) - 2


def to_metadata(attributes: Attributes) -> dict[str, str]:
    found: dict[str, str] = {}
    if attributes.mtime_ns is not None:
        seconds, ns = divmod(attributes.mtime_ns, 10**9)
        found["mtime"] = f"{seconds}.{ns:09d}"
    if attributes.mode is not None:
        found["mode"] = str(stat.S_IFREG | stat.S_IMODE(attributes.mode))
    if attributes.uid is not None:
        found["uid"] = str(attributes.uid)
    if attributes.gid is not None:
        found["gid"] = str(attributes.gid)
    if attributes.put_id:
        found[_PUT_ID] = attributes.put_id
    return found if attributes.extras is None else {**found, **_of_extras(attributes.extras)}


def _of_extras(extras: ObjectMetadata) -> dict[str, str]:
    found = {name: value for name, value in extras.metadata.items() if name not in (_PUT_ID, _TAGS, _USERS)}
    found |= extras.headers
    if users := [name for name in _FILES if name in extras.metadata]:
        found[_USERS] = ",".join(users)
    if extras.tags:
        found[_TAGS] = urlencode(extras.tags)
    return found


def tags_of(attributes: Attributes) -> dict[str, str] | None:
    """To be put with the object; None for none."""
    return (attributes.extras.tags or None) if attributes.extras is not None else None


def extras_of(metadata: Mapping[str, str]) -> ObjectMetadata:
    """As users gave them: what this program added is left out. Of many objects they are the same."""
    return _extras_of(tuple(metadata.items()))


@functools.lru_cache(maxsize=256)
def _extras_of(items: tuple[tuple[str, str], ...]) -> ObjectMetadata:
    metadata = dict(items)
    headers = {name: str(metadata[name]) for name in HEADERS if name in metadata}
    values = {str(name).lower(): str(value) for name, value in metadata.items() if name not in headers}
    tags, users = values.pop(_TAGS, ""), values.pop(_USERS, "").split(",")
    ours = bool(values.pop(_PUT_ID, ""))
    if ours:
        values = {name: value for name, value in values.items() if name not in _FILES or name in users}
    return usual(
        ObjectMetadata(values, headers, dict(parse_qsl(tags, keep_blank_values=True)) if ours else None)
    )


def from_metadata(metadata: Mapping[str, str]) -> Attributes | None:
    """None when there are none of these; one that makes no sense is left out. Names come in any case."""
    values = {str(name).lower(): str(value) for name, value in metadata.items()}
    mode, extras = _number(values.get("mode", "")), extras_of(metadata)
    found = Attributes(
        _mtime_ns(values.get("mtime", "")),
        None if mode is None else stat.S_IMODE(mode),
        _number(values.get("uid", "")),
        _number(values.get("gid", "")),
        values.get(_PUT_ID, ""),
        extras,
    )
    return found if found != Attributes() or found.put_id or not extras.is_empty else None


def _number(text: str) -> int | None:
    """None for what is no number, or none that a file system takes: the last one means "as it is" to chown(2)."""
    number = int(text) if _NUMBER.fullmatch(text) else NUMBER_MAX + 1
    return number if number <= NUMBER_MAX else None


def _mtime_ns(text: str) -> int | None:
    found = _MTIME.fullmatch(text)
    return int(found[1]) * 10**9 + int((found[2] or "").ljust(9, "0")) if found else None
