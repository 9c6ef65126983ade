"""Access files below a directory that others change meanwhile, so that no link leads out of it.

A path may lead elsewhere between a check and its use: its owner exchanges a directory with a symbolic link in between.
So `Root` holds the directory itself by a descriptor. Each call walks from there without links to the directory of the
name (openat2(2), or name by name on an older kernel). Then it acts on that name by the *at calls, which follow no link
either. A process that may mount, and uses a directory for long, makes a private mount of it in which the kernel follows
no link at all (`LinklessMount`). Then one call does both. A caller that checks a file before it changes it pins the
file. So both calls reach the same file, even if another one has the name by then.

Paths are absolute, as in the namespace: b"/" is the root. Calls raise the OSErrors of the plain calls. A link in the
path raises ELOOP, or ENOTDIR if it is above the last name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headrace.base.libc import AT_EMPTY_PATH, c_library, c_struct, last_errno

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
LINKS_MAX = 40
_SLASH = 0x2F
_PATH_MAX = 4096
"""The kernel's limit for one call. A directory that was moved into a deep one has longer paths below it."""
_SYS_OPENAT2 = 437  # on every architecture but alpha; since Linux 5.6
_SYS_OPEN_TREE, _SYS_MOUNT_SETATTR = 428, 442  # likewise; since Linux 5.2 and 5.12
_OPEN_TREE_CLONE = 1
_NOSUID, _NODEV, _NOSYMFOLLOW = 0x02, 0x04, 0x200000
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = os.O_PATH | _OPEN
_opening = threading.Lock()
Result = TypeVar("Result")


class LinklessMount:
    """A private mount of a directory, attached nowhere. The kernel follows no link in it, opens no device and ignores
    set-user-id bits (open_tree(2), mount_setattr(2)). Creating one costs some 30 µs, closing it some milliseconds.
    Nothing can be renamed or linked from it into another mount."""

    __slots__ = ("_fd", "_was_tried", "path")

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._fd = -1
        self._was_tried = False

    @property
    def fd(self) -> int:
        """Return its descriptor, created at the first call; -1 if this process may not create one: it lacks
        CAP_SYS_ADMIN, or the kernel is older than 5.12."""
        with _opening:
            if not self._was_tried:
                self._fd = _linkless_mount(self.path)
                self._was_tried = True
            return self._fd

    def close(self) -> None:
        fd, self._fd, self._was_tried = self._fd, -1, False
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Root:
    """A directory below which paths are safe. path: of the directory, which is trusted itself. It is opened at the
    first use and stays that directory. mount: of the directory that contains it."""

    __slots__ = ("_fd", "_is_linkless", "_mount", "path")

    def __init__(self, path: bytes, mount: LinklessMount | None = None) -> None:
        self.path = path
        self._mount = mount
        self._fd = -1
        self._is_linkless = False

    def at(self, path: bytes) -> SafePath:
        return SafePath(self, path)

    @property
    def fd(self) -> int:
        return self._fd if self._fd >= 0 else self._open()

    def make(self, mode: int) -> None:
        """Create the directory and its missing parents; an existing one stays as it is."""
        os.makedirs(self.path, mode=mode, exist_ok=True)

    def folder(self, path: bytes) -> int:
        """Return a descriptor (O_PATH) of a directory below. The caller closes it, unless it is `fd`, the root's
        own."""
        if path in (b"/", b""):
            return self.fd
        return (_walk() if len(path) < _PATH_MAX else _by_names)(self.fd, path)

    def parent_of(self, path: bytes) -> tuple[int, bytes]:
        """Return a descriptor of a directory, for `leave`, and a relative path from there for the *at calls. Together
        they reach the path and nothing else."""
        fd = self._fd if self._fd >= 0 else self._open()
        if self._is_linkless and b"/.." not in path and 1 < len(path) < _PATH_MAX and path[0] == _SLASH:
            return fd, path[1:]
        slash = path.rfind(b"/")
        name = path[slash + 1 :]
        if slash <= 0:
            if name == b".." or (slash < 0 and name):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            return fd, name or b"."
        if name in (b"", b".", b".."):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return self.folder(path[:slash]), name

    def seen(self, path: bytes) -> os.stat_result | None:
        """Return lstat of a path; None if there is nothing, or if the path is below a link."""
        directory = -1
        try:
            directory, name = self.parent_of(path)
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return None
        finally:
            if directory >= 0 and directory != self._fd:
                os.close(directory)

    def leave(self, directory: int) -> None:
        """Close a descriptor of `parent_of`, unless it is the root's own."""
        if directory != self._fd:
            os.close(directory)

    def _open(self) -> int:
        mount = -1 if self._mount is None else self._mount.fd
        with _opening:
            if self._fd < 0:
                self._is_linkless = mount >= 0
                if mount >= 0:
                    self._fd = os.open(os.path.basename(self.path), _DIRECTORY | os.O_NOFOLLOW, dir_fd=mount)
                else:
                    self._fd = os.open(self.path, _DIRECTORY)
        return self._fd

    def close(self) -> None:
        """Close the descriptor. The object can be used again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class SafePath:
    """A path below a root, with calls like pathlib's. None of them follows a link."""

    __slots__ = ("path", "root")

    def __init__(self, root: Root, path: bytes) -> None:
        self.root = root
        self.path = path

    def __truediv__(self, name: bytes) -> SafePath:
        return SafePath(self.root, b"/" + name if self.path in (b"/", b"") else self.path + b"/" + name)

    def __repr__(self) -> str:
        return os.fsdecode(self.root.path + self.path)

    @property
    def parent(self) -> SafePath:
        """Return the directory of the name; the root is its own."""
        return SafePath(self.root, self.path[: self.path.rfind(b"/")] or b"/")

    def _in_parent(self, call: Callable[[int, bytes], Result]) -> Result:
        """Return the result of a call that gets a descriptor of a directory and a path relative to it."""
        directory, name = self.root.parent_of(self.path)
        try:
            return call(directory, name)
        finally:
            self.root.leave(directory)

    # ------------------------------------------------------------ looking

    def lstat(self) -> os.stat_result:
        # as _in_parent, without its calls: most requests of a mount need this
        directory, name = self.root.parent_of(self.path)
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        finally:
            self.root.leave(directory)

    def seen(self) -> os.stat_result | None:
        """Return lstat; None if there is nothing, or if the path is below a link."""
        return self.root.seen(self.path)

    def exists(self) -> bool:
        """Return whether anything is there; a link counts too, whatever its target is."""
        return self.seen() is not None

    def is_directory(self) -> bool:
        status = self.seen()
        return status is not None and stat.S_ISDIR(status.st_mode)

    def readlink(self) -> bytes:
        return self._in_parent(lambda parent, name: os.readlink(name, dir_fd=parent))

    def names(self) -> list[bytes]:
        with self.entries() as entries:
            return [entry.name for entry in entries]

    @contextlib.contextmanager
    def entries(self) -> Iterator[Iterator[os.DirEntry[bytes]]]:
        """Yield the entries of a directory. Their paths are valid within the context, for calls that follow no
        links."""
        directory = self.root.folder(self.path)
        try:
            with os.scandir(_by(directory)) as entries:
                yield entries
        finally:
            self.root.leave(directory)

    def resolved(self, *, last: bool = True) -> SafePath:
        """Return the target of the path by its present links; absolute ones count from the root's own path. last: also
        follow a link that is the last name. Missing names stay as they are. EXDEV for a link that leads out of the
        root; ELOOP. The result has no links: if one is created there later, calls fail, and none of them leaves the
        root."""
        if self._is_direct(last=last):
            return self
        names, resolved, links = self.path.split(b"/"), SafePath(self.root, b"/"), 0
        while names:
            name = names.pop(0)
            if name in (b"", b"."):
                continue
            if name == b"..":
                if resolved.path == b"/":
                    raise OSError(errno.EXDEV, "a symbolic link leads out of the directory", self.path)
                resolved = SafePath(self.root, resolved.path[: resolved.path.rfind(b"/")] or b"/")
                continue
            resolved = resolved / name
            if not names and not last:
                break
            target = resolved._target()
            if target is None:
                continue
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
            if target.startswith(b"/"):
                target, resolved = self._below(target), SafePath(self.root, b"/")
            else:
                resolved = SafePath(self.root, resolved.path[: resolved.path.rfind(b"/")] or b"/")
            names = target.split(b"/") + names
        return resolved

    def _is_direct(self, *, last: bool) -> bool:
        """Return whether the path has no link now, by one system call."""
        if b"/." in self.path:
            return False  # perhaps b".."; most paths have none
        try:
            status = self.lstat()  # also for last=False: it fails if a name above the last is a link
            return not (last and stat.S_ISLNK(status.st_mode))
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _target(self) -> bytes | None:
        """Return the target of a link; None for anything else."""
        try:
            return self.readlink()
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                raise
            return None

    def _below(self, target: bytes) -> bytes:
        top = self.root.path.rstrip(b"/")
        if target != top and not target.startswith(top + b"/"):
            raise OSError(errno.EXDEV, "a symbolic link leads out of the directory", self.path)
        return target[len(top) :]

    def walk(self, on_error: OnError | None = None) -> Iterator[tuple[SafePath, os.stat_result]]:
        """Yield the path and everything below it, each directory before its entries. Entries that disappear meanwhile
        are skipped. on_error: called with each path that can't be read, and the walk continues; by default it raises
        the error. A directory whose names can't be read has been yielded by then."""
        try:
            status = self.seen()
        except OSError as error:
            _report(self, error, on_error)
            return
        if status is None:
            return
        yield self, status
        pending = [self] if stat.S_ISDIR(status.st_mode) else []
        while pending:
            directory = pending.pop()
            for name, status in directory._rows(on_error):
                path = directory / name
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(path)

    def _rows(self, on_error: OnError | None) -> list[tuple[bytes, os.stat_result]]:
        rows: list[tuple[bytes, os.stat_result]] = []
        directory = -1
        try:
            directory = self.root.folder(self.path)
            with os.scandir(_by(directory)) as entries:
                for entry in entries:
                    try:
                        status = os.stat(entry.name, dir_fd=directory, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        _report(self / entry.name, error, on_error)
                        continue
                    rows.append((entry.name, status))
        except (FileNotFoundError, NotADirectoryError):
            pass  # removed just now
        except OSError as error:
            _report(self, error, on_error)
        finally:
            if directory >= 0:
                self.root.leave(directory)
        return rows

    # ------------------------------------------------------------ opening

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open the file and return a descriptor, which the caller closes."""
        directory, name = self.root.parent_of(self.path)  # as in lstat
        try:
            return os.open(name, flags | _OPEN, mode, dir_fd=directory)
        finally:
            self.root.leave(directory)

    def held(self) -> Root:
        """Open the directory as a root of its own, which stays that directory wherever it is moved. Each call on a name
        in it is one system call. The caller closes it."""
        root = Root(self.root.path + self.path)
        root._fd = self.open(_DIRECTORY)
        return root

    def pinned(self) -> Pin:
        """Pin the file of any type that is there now. A device or a fifo is not opened by it."""
        return Pin(self.open(_NAME))

    def sync(self) -> None:
        """Make a file's bytes, or a directory's names, durable. Blocks for the disk."""
        fd = self.open(os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # ------------------------------------------------------------ making and removing

    def mkdir(self, mode: int) -> None:
        self._in_parent(lambda parent, name: os.mkdir(name, mode, dir_fd=parent))

    def make_directories(self, mode: int) -> None:
        """Create the directory and its missing parents; existing ones stay as they are."""
        for end in [index for index, byte in enumerate(self.path) if byte == _SLASH and index] + [
            len(self.path)
        ]:
            if end > 1:
                with contextlib.suppress(FileExistsError):
                    SafePath(self.root, self.path[:end]).mkdir(mode)

    def mknod(self, mode: int, device: int) -> None:
        self._in_parent(lambda parent, name: os.mknod(name, mode, device, dir_fd=parent))

    def symlink(self, target: bytes) -> None:
        """Create a symbolic link to a target."""
        self._in_parent(lambda parent, name: os.symlink(target, name, dir_fd=parent))

    def link(self, new: SafePath) -> None:
        """Create another name for the file."""
        self._in_parent(
            lambda parent, name: new._in_parent(
                lambda target, new_name: os.link(
                    name, new_name, src_dir_fd=parent, dst_dir_fd=target, follow_symlinks=False
                )
            )
        )

    def link_open_file(self, fd: int) -> None:
        """Create this name for an open file that has none (O_TMPFILE)."""
        # src_dir_fd is not needed, but only with it does Python call linkat(2) and follow the link
        self._in_parent(
            lambda parent, name: os.link(
                _by(fd), name, src_dir_fd=fd, dst_dir_fd=parent, follow_symlinks=True
            )
        )

    def unlink(self) -> None:
        self._in_parent(lambda parent, name: os.unlink(name, dir_fd=parent))

    def rmdir(self) -> None:
        self._in_parent(lambda parent, name: os.rmdir(name, dir_fd=parent))

    def remove_tree(self) -> None:
        """Delete the file or the directory with everything below it, if it still exists. One descriptor suffices at any
        depth."""
        for path, status in reversed(list(self.walk())):
            with contextlib.suppress(FileNotFoundError):
                (path.rmdir if stat.S_ISDIR(status.st_mode) else path.unlink)()

    def rename(self, new: SafePath, flags: int = 0) -> None:
        """Rename the file. flags: of the kernel (linux/fs.h). WHITEOUT leaves a character device 0:0 at the source."""
        self._in_parent(
            lambda parent, name: new._in_parent(
                lambda target, new_name: rename_at(parent, name, target, new_name, flags)
            )
        )

    def rename_out(self, target: bytes | str) -> None:
        """Rename the file to a path in a directory that nobody else changes; it may be in another mount of the file
        system."""
        outside = SafePath(Root(self.root.path), self.path)
        outside._in_parent(lambda parent, name: os.rename(name, target, src_dir_fd=parent))

    # ------------------------------------------------------------ attributes

    def chown(self, uid: int, gid: int) -> None:
        self._in_parent(lambda parent, name: os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False))

    def chmod(self, mode: int) -> None:
        """Set the mode. EOPNOTSUPP for a link, which has no mode."""
        with self.pinned() as pin:
            os.chmod(pin.proc_path, mode)

    def utime(self, ns: tuple[int, int] | None = None) -> None:
        """Set the times of access and modification, in ns; None: now."""
        times: dict[str, Any] = {} if ns is None else {"ns": ns}
        self._in_parent(lambda parent, name: os.utime(name, dir_fd=parent, follow_symlinks=False, **times))

    def getxattr(self, attribute: str | bytes) -> bytes:
        return self._in_parent(
            lambda parent, name: os.getxattr(_by(parent, name), attribute, follow_symlinks=False)
        )

    def listxattr(self) -> list[str]:
        return self._in_parent(lambda parent, name: os.listxattr(_by(parent, name), follow_symlinks=False))

    def setxattr(self, attribute: str | bytes, value: bytes, flags: int = 0) -> None:
        self._in_parent(
            lambda parent, name: os.setxattr(
                _by(parent, name), attribute, value, flags, follow_symlinks=False
            )
        )

    def removexattr(self, attribute: str | bytes) -> None:
        self._in_parent(
            lambda parent, name: os.removexattr(_by(parent, name), attribute, follow_symlinks=False)
        )


OnError = Callable[[SafePath, OSError], None]
"""Take a path that can't be read now."""


def _report(path: SafePath, error: OSError, on_error: OnError | None) -> None:
    if on_error is None:
        raise error
    on_error(path, error)


class Pin:
    """A file, of any type, that has or had a name. proc_path: a path by which plain calls reach exactly this file; they
    follow no link if it is one. It is valid within `with`."""

    __slots__ = ("fd", "proc_path")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.proc_path = _by(fd)

    def fstat(self) -> os.stat_result:
        return os.fstat(self.fd)

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _linkless_mount(path: bytes) -> int:
    """Create a private mount of a directory and return its descriptor; -1 if that is impossible."""
    how, size = c_struct(_NOSUID | _NODEV | _NOSYMFOLLOW, 0, 0, 0)
    call = c_library().syscall
    fd: int = call(_SYS_OPEN_TREE, -1, path, _OPEN_TREE_CLONE | os.O_CLOEXEC)
    if fd >= 0 and call(_SYS_MOUNT_SETATTR, fd, b"", AT_EMPTY_PATH, how, size) != 0:
        os.close(fd)
        return -1
    return fd


def _by(fd: int, name: bytes = b"") -> bytes:
    """Return a path for calls that take no descriptor of a directory. With a name: only for calls that follow no
    link."""
    return b"/proc/self/fd/%d/%s" % (fd, name) if name else b"/proc/self/fd/%d" % fd


def rename_at(directory: int, name: bytes, target: int, new_name: bytes, flags: int) -> None:
    """Call renameat2(2). ENOSYS if the C library lacks it."""
    if not flags:
        os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=target)
        return
    library = c_library()
    if not hasattr(library, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if library.renameat2(directory, name, target, new_name, flags) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number), name, None, new_name)


@functools.cache
def _walk() -> Callable[[int, bytes], int]:
    """Return the function that opens a directory: `_by_names` where openat2 is unknown, or forbidden by an old filter
    of system calls."""
    root = os.open("/", _DIRECTORY)
    try:
        os.close(_by_kernel(root, b"/."))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return _by_names
    finally:
        os.close(root)
    return _by_kernel


def _by_kernel(root: int, path: bytes) -> int:
    how, size = c_struct(_DIRECTORY, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)  # struct open_how
    if b"\0" in path:
        raise ValueError("embedded null byte")
    fd: int = c_library().syscall(_SYS_OPENAT2, root, path[1:], how, size)
    if fd < 0:
        number = last_errno()
        if number == errno.ELOOP:
            number = errno.ENOTDIR
        raise OSError(number, os.strerror(number), path)
    return fd


def _by_names(root: int, path: bytes) -> int:
    directory = os.dup(root)
    try:
        for name in path.split(b"/")[1:]:
            if name == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            above, directory = directory, os.open(name or b".", _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(above)
    except BaseException:
        os.close(directory)
        raise
    return directory
