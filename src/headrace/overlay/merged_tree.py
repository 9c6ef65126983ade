"""Merge the upper layer of a host over the listings of the origins. Each call takes paths and makes system calls.

The gateways, the library and the FUSE session pass a path (b"/a/b"). They get an `os.stat_result` for a name of the
upper layer, and an `Entry` for a name that only the origin has. Only `copy_up`, and the methods that say so, wait for
the node. Errors are OSErrors with the errno of a local file system. A caller that changes names holds `lock`, the lock
of the upper layer. One session of the host, or the node, holds it at a time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

import msgspec

from headrace.base.beneath import EXCHANGE, SafePath
from headrace.base.model import Entry, Kind
from headrace.base.namespace_path import split
from headrace.base.write_modes import WriteModes
from headrace.overlay.copy_up import CopyUp, NeedsContentError
from headrace.overlay.given_mode import apply_attributes, give_mode, make_device
from headrace.overlay.hiding import hide
from headrace.overlay.lease_check import LeaseCheck
from headrace.overlay.mark_names import HIDDEN_FROM_USERS, MARKS
from headrace.overlay.marks import is_removed, is_whiteout, set_base
from headrace.overlay.merged_view import Lower, MergedView, is_directory, os_error
from headrace.overlay.renaming import Renamer
from headrace.overlay.upper import Upper
from headrace.overlay.whiteouts import WhiteoutBuilder


class Owner(msgspec.Struct, frozen=True):
    """Names the user and the group that a new file belongs to."""

    uid: int
    gid: int


class MergedTree:
    """Changes names. view: looks them up. copies: copies them up. on_changed gets the paths for the node to inspect,
    while the lock is held."""

    def __init__(
        self, lower: Lower, upper: Upper, modes: WriteModes, *, on_changed: Callable[[list[bytes]], None]
    ) -> None:
        self.upper = upper
        self.modes = modes
        self.on_changed = on_changed
        self.lock = upper.lock
        self.view = MergedView(lower, upper, modes)
        self.copies = CopyUp(self.view, lower, upper)
        self.other_nodes = LeaseCheck(upper, modes)
        self._exact_modes = False
        self._own_ids = os.geteuid(), os.getegid()
        self._whiteouts = WhiteoutBuilder(upper, lower, self.view.names)
        self.rename = Renamer(
            *(self.view, self.copies, lower, upper),
            whiteouts=self._whiteouts,
            other_nodes=self.other_nodes,
            on_changed=on_changed,
        ).rename

    def take_modes(self, modes: WriteModes) -> None:
        """Take the write modes of a node that restarted with other ones."""
        self.modes = self.view.modes = modes

    def take_umask(self) -> None:
        """Set this process's umask to 0 (it does nothing else), so that new files get their modes at once."""
        os.umask(0)
        self._exact_modes = True

    def at_upper(self, path: bytes, *, content: bool = True) -> SafePath:
        """Return the path in the upper layer of a visible name. Raises NeedsContentError if only the origin has the
        file."""
        status = self.view.lookup_existing(path)
        self.view.check_writable(path)
        if isinstance(status, Entry):
            if status.kind is Kind.DIRECTORY:
                self.copies.ensure_directory(path)
            else:
                raise NeedsContentError(path, content=content)
        return self.upper.at(path)

    def create(
        self, path: bytes, mode: int, owner: Owner, flags: int, folder: os.stat_result | None = None
    ) -> tuple[int, bool]:
        """Open a file for reading and writing. Return its descriptor, and whether the file is new. An existing file is
        opened, and truncated if flags say so. folder: the status of its directory in the upper layer, if the caller has
        it. Raises EEXIST with O_EXCL.

        Raises ESTALE for an existing file of another user. The kernel takes what this opens for a new file, and checks
        none of its rights. After ESTALE it looks the name up again, and checks them."""
        self.view.check_writable(path)
        while True:
            status = self.view.lookup(path)
            if status is None:
                parent = self.copies.folder_for(path, folder)
                if flags & os.O_EXCL:
                    self.other_nodes.check_lease(path)
                fd = self._create_new(path, mode, owner, parent)
                if fd is not None:
                    return fd, True
            elif flags & os.O_EXCL:
                raise os_error(errno.EEXIST, path)
            elif owner.uid and not _is_owned(status, owner):
                raise os_error(errno.ESTALE, path)
            else:
                return self.open(path, flags), False

    def open(self, path: bytes, flags: int) -> int:
        """Open a file for reading and writing, whatever access the caller needs, because all its open handles share one
        registration. Raises NeedsContentError."""
        status = self.view.lookup_existing(path)
        truncate = bool(flags & os.O_TRUNC)
        if isinstance(status, Entry):
            if status.kind is Kind.DIRECTORY:
                raise os_error(errno.EISDIR, path)
            self.view.check_writable(path)
            raise NeedsContentError(path, content=not truncate)
        if stat.S_ISDIR(status.st_mode):
            raise os_error(errno.EISDIR, path)
        if truncate or flags & (os.O_WRONLY | os.O_RDWR):
            self.view.check_writable(path)
        upper_path = self.upper.at(path)
        fd = upper_path.open(os.O_RDWR)
        if not _same(fd, upper_path):  # the file was demoted or replaced after the lookup
            os.close(fd)
            return self.open(path, flags)
        if truncate:
            empty(fd)
        return fd

    def _create_new(self, path: bytes, mode: int, owner: Owner, parent: os.stat_result) -> int | None:
        """Create a file and return its descriptor; None if another thread created the name first."""
        upper_path = self.upper.at(path)
        try:
            fd = upper_path.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, mode & 0o777 | MARKS.owner_bits)
        except FileExistsError:
            return self._create_over_whiteout(path, mode, owner, parent)
        self._set_owner(fd, mode, owner, parent)
        return fd

    def _create_over_whiteout(
        self, path: bytes, mode: int, owner: Owner, parent: os.stat_result
    ) -> int | None:
        new_path = self.upper.new()
        fd = new_path.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, mode & 0o777 | MARKS.owner_bits)
        self._set_owner(fd, mode, owner, parent)
        if self._place(new_path, path):
            return fd
        os.close(fd)
        new_path.unlink()
        return None

    def _place(self, new_path: SafePath, path: bytes) -> bool:
        """Move a new file to its path. It inherits the base version of a whiteout there."""
        base = self.view.base(path)
        self.copies.clear_removed_directory(path)
        set_base(new_path, path, base)
        return self.upper.place(new_path, path)

    def _set_owner(self, file: int | SafePath, mode: int, owner: Owner, parent: os.stat_result) -> None:
        """Give a new file the caller's owner and mode, by the rules of a set-group-id directory. The kernel has
        applied the umask. A file that was opened with its mode has it already, if this process has no umask."""
        if not MARKS.single_owner:
            gid = parent.st_gid if parent.st_mode & stat.S_ISGID else owner.gid
            if (owner.uid, gid) != self._own_ids:
                os.fchown(file, owner.uid, gid) if isinstance(file, int) else file.chown(owner.uid, gid)
            elif isinstance(file, int) and self._exact_modes and not mode & 0o7000:
                return
        kind = stat.S_IFMT(mode)
        if kind == stat.S_IFLNK:
            return
        permissions = mode & 0o7777
        if kind == stat.S_IFDIR and parent.st_mode & stat.S_ISGID:
            permissions |= stat.S_ISGID
        if permissions & 0o7000 or MARKS.single_owner or kind in (stat.S_IFCHR, stat.S_IFBLK):
            give_mode(file, permissions)
        elif isinstance(file, int):
            os.fchmod(file, permissions)
        else:
            file.chmod(permissions)

    def put_file(self, new_path: SafePath, path: bytes, *, replace: bool) -> None:
        """Move a finished file of `work` to a path. It takes the mode and owner of the file that it replaces, if any.
        Raises EEXIST if a file exists and `replace` is False."""
        self.view.check_writable(path)
        status = self.view.lookup(path)
        if status is not None and not replace:
            raise os_error(errno.EEXIST, path)
        if status is not None and is_directory(status):
            raise os_error(errno.EISDIR, path)
        parent = self.copies.folder_for(path)
        if not replace:
            self.other_nodes.check_lease(path)
        if parent.st_mode & stat.S_ISGID and not MARKS.single_owner:
            new_path.chown(-1, parent.st_gid)
        if isinstance(status, os.stat_result) and stat.S_ISREG(status.st_mode):
            if not MARKS.single_owner:
                new_path.chown(status.st_uid, status.st_gid)
            give_mode(new_path, stat.S_IMODE(status.st_mode))
        elif isinstance(status, Entry):
            apply_attributes(new_path, status.attributes)
        base = self.view.base(path)
        self.copies.clear_removed_directory(path)
        set_base(new_path, path, base)
        new_path.rename(self.upper.at(path))
        self.on_changed([path])

    def make_directory(self, path: bytes, mode: int, owner: Owner) -> None:
        """Create a directory. Raises EEXIST, LeaseRequiredError."""
        self.view.check_writable(path)
        if self.view.lookup(path) is not None:
            raise os_error(errno.EEXIST, path)
        parent = self.copies.folder_for(path)
        self.other_nodes.check_lease(path)
        upper_path = self.upper.at(path)
        if self._recreate(path, mode, owner, parent):
            self.on_changed([path])
            return
        directory = self.upper.new()
        directory.mkdir(0o700)
        self._set_owner(directory, stat.S_IFDIR | mode, owner, parent)
        base, entry = self.view.base(path), self.view.lookup_lower(path)
        set_base(directory, path, base)  # the base of a removed file that the origin still has
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._whiteouts.fill(directory, path, entry)  # a file had replaced the origin's directory
        try:
            directory.rename(upper_path)
        except NotADirectoryError:
            directory.rename(upper_path, EXCHANGE)  # the directory now hides the whiteout's name
            directory.unlink()
        self.on_changed([path])

    def _recreate(self, path: bytes, mode: int, owner: Owner, parent: os.stat_result) -> bool:
        """Create a directory where one was removed. Its whiteouts stay, and hide the same names."""
        upper_path = self.upper.at(path)
        if not is_removed(upper_path):
            return False
        for name in upper_path.listxattr():
            is_users = name.startswith("user.") and not name.startswith(HIDDEN_FROM_USERS)
            if is_users or name in (MARKS.lower_id, MARKS.demoted, MARKS.path):  # of the origin's directory
                upper_path.removexattr(name)
        if not MARKS.single_owner:
            upper_path.chown(os.geteuid(), os.getegid())  # it still has the owner of the removed directory
        self._set_owner(upper_path, stat.S_IFDIR | mode, owner, parent)
        upper_path.utime()
        self.upper.unmark_removed(path)
        return True

    def make_node(self, path: bytes, mode: int, device: int, owner: Owner) -> None:
        """Create a fifo, a socket, a device, or a regular file that is not opened."""
        if stat.S_ISCHR(mode) and device == 0:
            raise os_error(errno.EPERM, path)  # that would be a whiteout
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            if MARKS.single_owner:
                raise os_error(errno.EPERM, path)
            self._make(path, mode, owner, lambda node: make_device(node, mode, device))
        else:
            self._make(path, mode, owner, lambda node: node.mknod(mode & ~0o7000 | MARKS.owner_bits, 0))

    def symlink(self, path: bytes, target: bytes, owner: Owner) -> None:
        self._make(path, stat.S_IFLNK | 0o777, owner, lambda link: link.symlink(target))

    def _make(self, path: bytes, mode: int, owner: Owner, make: Callable[[SafePath], None]) -> None:
        self.view.check_writable(path)
        if self.view.lookup(path) is not None:
            raise os_error(errno.EEXIST, path)
        parent = self.copies.folder_for(path)
        self.other_nodes.check_lease(path)
        new_path = self.upper.new()
        make(new_path)
        try:
            self._set_owner(new_path, mode, owner, parent)
            if not self._place(new_path, path):
                raise os_error(errno.EEXIST, path)
        except BaseException:
            new_path.unlink()
            raise
        self.on_changed([path])

    def link(self, source: bytes, path: bytes) -> None:
        """Create another name of a file. Raises EEXIST, EXDEV, LeaseRequiredError, NeedsContentError."""
        self.view.check_writable(path)
        self.view.check_same_area(source, path)
        if self.view.lookup(path) is not None:
            raise os_error(errno.EEXIST, path)
        upper_path = self.at_upper(source)
        self.copies.folder_for(path)
        self.other_nodes.check_lease(path)
        new_path = self.upper.new()
        upper_path.link(new_path)
        if not self._place(new_path, path):
            new_path.unlink()
            raise os_error(errno.EEXIST, path)
        self.on_changed([path])

    def remove(self, path: bytes) -> None:
        """Remove a name that is not a directory."""
        status = self.view.lookup_existing(path)
        self.view.check_writable(path)
        if is_directory(status):
            raise os_error(errno.EISDIR, path)
        if self.view.lookup_lower(path) is None:
            self.upper.at(path).unlink()
        else:
            self.copies.ensure_directory(split(path)[0])
            hide(self.upper, path, self.view.base(path))
        self.on_changed([path])

    def remove_directory(self, path: bytes) -> None:
        """Remove an empty directory. Its listing in the index must be fresh."""
        status = self.view.lookup_existing(path)
        self.view.check_writable(path)
        if not is_directory(status):
            raise os_error(errno.ENOTDIR, path)
        if not self.view.is_empty(path):
            raise os_error(errno.ENOTEMPTY, path)
        self._remove_or_hide_directory(path)
        self.on_changed([path])

    def _remove_or_hide_directory(self, path: bytes) -> None:
        if self.view.lookup_lower(path) is None:
            try:
                self.upper.at(path).rmdir()
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
        self.copies.ensure_directory(path)
        self.upper.mark_removed(path)


def empty(fd: int) -> None:
    """Truncate a file as O_TRUNC does: its mtime is set even if the file was empty."""
    os.ftruncate(fd, 0)
    os.utime(fd)


def _is_owned(status: os.stat_result | Entry, owner: Owner) -> bool:
    return isinstance(status, os.stat_result) and status.st_uid == owner.uid


def _same(fd: int, path: SafePath) -> bool:
    status = path.seen()
    return status is not None and not is_whiteout(status) and status.st_ino == os.fstat(fd).st_ino
