"""A file's attributes as the metadata of an object: mtime in decimal seconds, mode with its file type, uid and gid in
decimal, under the names that s3fs and (for mtime) rclone use on S3; put_id under one of ours. The names are good on
S3, GCS and Azure, which wants identifiers."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping

from headrace.base.model import Attributes

_PUT_ID = "headraceput"
_MTIME = re.compile(r"(-?\d{1,11})(?:\.(\d{1,9})\d*)?")
_NUMBER = re.compile(r"\d{1,10}")


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
    return found


def from_metadata(metadata: Mapping[str, str]) -> Attributes | None:
    """None when there are none of these; one that makes no sense is left out. Names come in any case."""
    values = {str(name).lower(): str(value) for name, value in metadata.items()}
    mode = _number(values.get("mode", ""))
    found = Attributes(
        _mtime_ns(values.get("mtime", "")),
        None if mode is None else stat.S_IMODE(mode),
        _number(values.get("uid", "")),
        _number(values.get("gid", "")),
        values.get(_PUT_ID, ""),
    )
    return found if found != Attributes() or found.put_id else None


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _mtime_ns(text: str) -> int | None:
    found = _MTIME.fullmatch(text)
    return int(found[1]) * 10**9 + int((found[2] or "").ljust(9, "0")) if found else None
