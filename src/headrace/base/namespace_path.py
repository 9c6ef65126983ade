"""Join and split paths of the namespace, and check those from outside: another node, a record, a client.

Code behind these checks joins a path to a directory of this host. So decoding refuses everything that could lead out of
that directory. Every check raises ValueError, which msgspec turns into its own error while it decodes.
"""

from __future__ import annotations

from typing import AnyStr

PATH_BYTES_MAX = 4095
"""PATH_MAX of Linux without its NUL."""
NAME_BYTES_MAX = 255
"""NAME_MAX of Linux."""
DEPTH_MAX = 512
"""The limit for the names of a path in a request: as many as an S3 key can have. Each costs a lookup, or a directory to
create."""


def join(directory: bytes, name: bytes) -> bytes:
    return b"/" + name if directory in (b"/", b"") else directory + b"/" + name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Return (directory, name); the directory of a top name is b"/"."""
    directory, _, name = path.rpartition(b"/")
    return directory or b"/", name


def is_at_or_below(path: AnyStr, top: AnyStr) -> bool:
    """Return whether a path is `top` or lies below it. A slash at the end of `top` changes nothing."""
    slash = "/" if isinstance(top, str) else b"/"
    return path == top or path.startswith(top.rstrip(slash) + slash)


def names_of(path: bytes) -> list[bytes]:
    """Return the names of a path, from the top."""
    return [name for name in path.split(b"/") if name]


def check_path(path: bytes) -> None:
    """Accept b"/" and absolute paths of plain names, at most PATH_BYTES_MAX bytes long."""
    if path == b"/":
        return
    if not path.startswith(b"/"):
        raise ValueError(f"path {path[:80]!r} is not absolute")
    if len(path) > PATH_BYTES_MAX:
        raise ValueError(f"a path of {len(path)} bytes: {PATH_BYTES_MAX} are allowed")
    for name in path[1:].split(b"/"):
        check_name(name)


def check_long_names(path: bytes) -> None:
    """Accept a path whose names a directory can have, whatever its own length is: a directory may have been moved into
    a deep one."""
    if len(path) > NAME_BYTES_MAX:  # else none of its names is too long
        longest = max(map(len, path.split(b"/")))
        if longest > NAME_BYTES_MAX:
            raise ValueError(f"a name of {longest} bytes: {NAME_BYTES_MAX} are allowed")


def check_name(name: bytes) -> None:
    """Accept a name that a directory can have."""
    if name in (b"", b".", b".."):
        raise ValueError(f"{name!r} is no name of a file")
    if b"/" in name or b"\0" in name:
        raise ValueError(f"name {name[:80]!r} has a slash or a NUL character")
    if len(name) > NAME_BYTES_MAX:
        raise ValueError(f"a name of {len(name)} bytes: {NAME_BYTES_MAX} are allowed")


def check_node_id(node: str) -> None:
    """Accept a node id that can be the name of a directory."""
    check_name(node.encode(errors="surrogateescape"))
    if node.startswith("."):
        raise ValueError(f"node id {node[:80]!r} begins with a dot")
