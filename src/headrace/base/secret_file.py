"""Read files that hold secrets: keys, tokens, passwords. A file that other users can read or write is refused.
reloaded.py builds values from them, and again when they change."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from headrace.base.errors import UsageError
from headrace.base.private_folder import make_parents
from headrace.base.reloaded import FILE_BYTES_MAX
from headrace.base.trusted_owner import is_trusted

if TYPE_CHECKING:
    import ssl


def read_secret(path: str, subject: str) -> str:
    """Return the file's text. subject: names the file in the message. Raises UsageError for a file that can't be read,
    is too large or not UTF-8, or that another user owns, reads or writes."""
    with open_secret(path, subject) as file:
        try:
            data = file.read(FILE_BYTES_MAX + 1)
            text = data.decode("utf-8")
        except OSError as error:
            raise UsageError(f"{subject} = {path}", why=error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{subject} = {path}", why="it is not UTF-8") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{subject} = {path}", why=f"it has more than {FILE_BYTES_MAX} bytes")
    return text


@contextlib.contextmanager
def open_secret(path: str, subject: str) -> Iterator[BinaryIO]:
    """Yield the open file, so that the caller reads the same file that was checked. UsageError as in read_secret."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{subject} = {path}", why=error.strerror or str(error)) from error
    if why := exposure_of(fd):
        hint = f"chmod 600 {path}" if stat.S_ISREG(os.fstat(fd).st_mode) else "name a file"
        os.close(fd)
        raise UsageError(f"{subject} = {path}", why=why, hint=hint)
    with open(fd, "rb") as file:
        yield file


def load_key(context: ssl.SSLContext, certificate: str, key: str, subject: str) -> None:
    """Load a certificate and its key into a context. subject: of the key. Raises UsageError if the key may not be used;
    OSError and ssl.SSLError if a file is invalid. A key with a password fails instead of prompting for it."""
    with open_secret(key or certificate, subject) as file:
        context.load_cert_chain(certificate, f"/proc/self/fd/{file.fileno()}", password=lambda: "")


def create_secret(path: str, make: Callable[[], str]) -> bool:
    """Write a new file of mode 0600 with the text that make returns. Return False, with nothing changed, if the file
    exists. If two processes create it at the same time, one succeeds. Raises UsageError if it can't be written."""
    if os.path.lexists(path):
        return False
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        make_parents(path, 0o700)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="ascii") as out:
                out.write(make())
                out.flush()
                os.fsync(fd)
            os.link(draft, path)
        finally:
            os.unlink(draft)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"file of credentials {path}", why=error.strerror or str(error)) from error
    return True


def exposure_of(fd: int) -> str:
    """Return which other users read or write an open file; "" for none. Two readers are permitted for a file of root's.
    Members of a group of this process may read it, as service managers pass secrets to a process. Everybody may read it
    where kubelet put it: its volume belongs to the container alone."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if not is_trusted(status.st_uid):
        return f"it belongs to user {status.st_uid}"
    allowed = 0o700
    if status.st_uid == 0 and status.st_gid in (os.getegid(), *os.getgroups()):
        allowed |= 0o040
    if status.st_uid == 0 and _is_of_kubelet(fd):
        allowed |= 0o044
    if status.st_mode & 0o777 & ~allowed:
        return f"other users can read or write it (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def writers_of(fd: int) -> str:
    """Return which other users write an open file; "" for none. A user's own group does not count."""
    status = os.fstat(fd)
    shared = 0o002 if status.st_gid in (os.getegid(), status.st_uid) else 0o022
    if status.st_mode & shared:
        return f"other users can write it (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _is_of_kubelet(fd: int) -> bool:
    """Return whether a file is in a volume of Kubernetes, VOLUME/..TIME/NAME, where a link of root's, VOLUME/..data,
    leads to the directory of the latest time. Nobody but root creates that link."""
    directory = os.path.dirname(os.readlink(f"/proc/self/fd/{fd}"))
    if not os.path.basename(directory).startswith(".."):
        return False
    try:
        link = os.lstat(os.path.join(os.path.dirname(directory), "..data"))
    except OSError:
        return False
    return stat.S_ISLNK(link.st_mode) and link.st_uid == 0
