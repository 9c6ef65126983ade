"""Find the operation, path and parameters of a request, without I/O.

Hadoop's "WebHDFS REST API" is the specification. Messages that clients look for have Hadoop's wording.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

from headrace.base.namespace_path import DEPTH_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX
from headrace.http.messages import Request
from headrace.webhdfs.errors import RemoteError, illegal, unsupported

PREFIX = b"/webhdfs/v1"
OPERATIONS = {
    ("GET", "OPEN"): "open",
    ("GET", "GETFILESTATUS"): "get_status",
    ("GET", "GETFILELINKSTATUS"): "get_link_status",
    ("GET", "GETLINKTARGET"): "get_link_target",
    ("GET", "LISTSTATUS"): "list_status",
    ("GET", "LISTSTATUS_BATCH"): "list_batch",
    ("GET", "GETCONTENTSUMMARY"): "get_summary",
    ("GET", "GETQUOTAUSAGE"): "get_quota",
    ("GET", "GETFILECHECKSUM"): "get_checksum",
    ("GET", "GETFILEBLOCKLOCATIONS"): "get_locations",
    ("GET", "GET_BLOCK_LOCATIONS"): "get_located_blocks",
    ("GET", "GETHOMEDIRECTORY"): "get_home",
    ("GET", "GETTRASHROOT"): "get_trash",
    ("GET", "GETSERVERDEFAULTS"): "get_defaults",
    ("GET", "GETSTATUS"): "get_room",
    ("GET", "GETACLSTATUS"): "get_acl",
    ("GET", "GETXATTRS"): "get_xattrs",
    ("GET", "LISTXATTRS"): "list_xattrs",
    ("GET", "CHECKACCESS"): "check_access",
    ("GET", "GETDELEGATIONTOKEN"): "get_token",
    ("PUT", "CREATE"): "create",
    ("PUT", "MKDIRS"): "make_directories",
    ("PUT", "RENAME"): "rename",
    ("PUT", "SETPERMISSION"): "set_permission",
    ("PUT", "SETOWNER"): "set_owner",
    ("PUT", "SETTIMES"): "set_times",
    ("PUT", "SETREPLICATION"): "set_replication",
    ("POST", "APPEND"): "append",
    ("POST", "TRUNCATE"): "truncate",
    ("DELETE", "DELETE"): "delete",
}
REFUSED = {
    "CONCAT": "files can't be concatenated and removed in one step",
    "CREATESYMLINK": "Symlinks not supported",
    "SETXATTR": "extended attributes would be lost when the file is persisted",
    "REMOVEXATTR": "extended attributes would be lost when the file is persisted",
    "RENEWDELEGATIONTOKEN": "no delegation tokens are issued here",
    "CANCELDELEGATIONTOKEN": "no delegation tokens are issued here",
}
"""Operations of the protocol that are refused, with the reason."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_OCTAL = re.compile(r"[01]?[0-7]{1,3}")


@dataclass(frozen=True, slots=True)
class WebHdfsCall:
    """Holds a routed request. `operation` is a value of OPERATIONS. `path` is in the namespace, without a slash at
    its end. `parameters` has the first value of each name, in lower case: Hadoop ignores the case of names too."""

    operation: str
    path: bytes
    parameters: dict[str, str]
    request: Request

    @property
    def user(self) -> str:
        """Return the user that the client names, without proof."""
        return self.text("doas") or self.text("user.name") or default_user()

    def text(self, name: str, default: str = "") -> str:
        return self.parameters.get(name) or default

    def has(self, name: str) -> bool:
        return name in self.parameters

    def flag(self, name: str, *, default: bool = False) -> bool:
        text = self.text(name, "true" if default else "false").lower()
        if text not in ("true", "false"):
            raise _invalid(name, text, "must be true or false")
        return text == "true"

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if text and not _INTEGER.fullmatch(text):
            raise _invalid(name, text, f'Failed to parse "{text}" as a number')
        return int(text) if text else default

    def at_least_zero(self, name: str, default: int) -> int:
        value = self.number(name, default)
        if value < 0:
            raise _invalid(name, str(value), "must be at least 0")
        return value

    def permission(self, default: int) -> int:
        text = self.text("permission")
        if text and not _OCTAL.fullmatch(text):
            raise _invalid("permission", text, "must be an octal number up to 1777")
        return int(text, 8) if text else default

    def path_of(self, name: str) -> bytes:
        """Return the absolute path that a parameter names."""
        text = self.text(name)
        if not text.startswith("/"):
            raise _invalid(name, text, "must be an absolute path")
        return clean_path(text.encode("utf-8", "surrogateescape"))

    @property
    def is_secure(self) -> bool:
        """Return whether the client speaks TLS, with this gateway or with a proxy in front of it."""
        return self.request.secure or self.request.header("x-forwarded-proto").lower() == "https"

    def url_of_data(self) -> str:
        """Return the URL of the bytes, to read or send them: this gateway, with a mark against another redirect."""
        scheme = "https" if self.is_secure else "http"
        path, _, query = self.request.target.partition(b"?")
        if not path.startswith(b"/"):
            path = PREFIX + quote_from_bytes(self.path).encode()
        words = [word for word in query.split(b"&") if word and not word.lower().startswith(b"noredirect=")]
        target = path + b"?" + b"&".join([*words, b"data=true"])
        return f"{scheme}://{self.request.header('host')}{target.decode('latin-1')}"


def route(request: Request) -> WebHdfsCall:
    """Return the routed request. Raises RemoteError for an unknown operation or an invalid path."""
    path = request.path
    if path != PREFIX and not path.startswith(PREFIX + b"/"):
        raise RemoteError("FileNotFoundException", "paths begin with /webhdfs/v1")
    parameters = {name.lower(): value for name, value in reversed(request.query)}
    operation_name = parameters.get("op", "").upper()
    operation = OPERATIONS.get((request.method, operation_name))
    if operation is None:
        raise _no_operation(request.method, operation_name)
    return WebHdfsCall(operation, clean_path(path[len(PREFIX) :]), parameters, request)


def clean_path(path: bytes) -> bytes:
    """Return the path without repeated slashes. Raises RemoteError for what can't be a path."""
    names = [name for name in path.split(b"/") if name]
    if any(name in (b".", b"..") for name in names) or b"\0" in path:
        raise RemoteError("InvalidPathException", f"Invalid path name {path.decode('utf-8', 'replace')}")
    if len(names) > DEPTH_MAX or len(path) > PATH_BYTES_MAX:
        raise RemoteError(
            "InvalidPathException", f"a path has at most {DEPTH_MAX} names and {PATH_BYTES_MAX} bytes"
        )
    if any(len(name) > NAME_BYTES_MAX for name in names):
        raise RemoteError("InvalidPathException", f"a name has more than {NAME_BYTES_MAX} bytes")
    return b"/" + b"/".join(names)


@functools.lru_cache(maxsize=1)
def default_user() -> str:
    """Return the user for requests that name none: the one who runs the gateway."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def _no_operation(method: str, name: str) -> RemoteError:
    if name in REFUSED:
        return unsupported(f"{name}: {REFUSED[name]}")
    if any(name == known for _, known in OPERATIONS):
        return illegal(f'Invalid value for webhdfs parameter "op": {name} is not an operation of {method}')
    if not name:
        return illegal('Required param "op" for this request is missing')
    return illegal(f'Invalid value for webhdfs parameter "op": No operation {name} here')


def _invalid(name: str, text: str, why: str) -> RemoteError:
    return illegal(f'Invalid value for webhdfs parameter "{name}": {text!r}, {why}')
