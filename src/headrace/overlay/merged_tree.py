"""Merges the upper layer of a host over the listings of the origins. Paths come in, system calls go out.

The gateways, the library and the FUSE session pass a path (b"/a/b"). They get an `os.stat_result` for a name of the
upper layer, and an `Entry` for a name that only the origin has. Only `copy_up`, and the methods that say so, wait for
the node. Errors are OSErrors with the errno of a local file system. A caller that changes names holds `lock`, the
lock of the upper layer. One session of the host, or the node, holds it at a time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE, NOREPLACE, SafePath
from headrace.base.cancel import Cancel
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.given_mode import give_mode, make_device
from headrace.overlay.lease_check import LeaseCheck
from headrace.overlay.mark_names import HIDDEN_FROM_USERS, MARKS
from headrace.overlay.upper import (
    BaseVersion,
    Hidden,
    Upper,
    apply_attributes,
    is_of_others,
    is_removed,
    is_whiteout,
    join,
    set_base,
    split,
)
from headrace.overlay.whiteouts import WhiteoutBuilder

FileStat = os.stat_result | Entry
COPY_STEP_BYTES = 16 << 20
MOVED_NAMES_MAX = 10_000
"""A directory of the origin with more names is not renamed: the call fails with EXDEV, and `mv` copies it."""


class Owner(msgspec.Struct, frozen=True):
    """Names the user and the group that a new file belongs to."""

    uid: int
    gid: int


class OpenLower(Protocol):
    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int: ...
    def close(self) -> None: ...


class Lower(Protocol):
    """Gives the names and bytes of the origins, as the client has them. `known` reads the index, however old it is."""

    def known(self, parent: FileId, name: bytes) -> Entry | None: ...
    def entry(self, id: FileId) -> Entry | None: ...
    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...
    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None: ...
    def listing_fresh(self, directory: FileId) -> bool: ...
    def mount_of(self, path: bytes) -> str: ...
    def takes_name(self, path: bytes) -> bool: ...
    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenLower: ...


SHORT_PATH_BYTES = 512
"""Every store takes a key of this length with a prefix before it."""


class NeedsContentError(Exception):
    """Says that the operation needs a copy of the origin's file: `copy_up`, which may wait, then a retry."""

    def __init__(self, path: bytes, *, content: bool = True) -> None:
        self.path, self.content = path, content


class MergedTree:
    """Looks up and changes names. on_changed gets the paths for the node to inspect, while the lock is held."""

    def __init__(
        self, lower: Lower, upper: Upper, modes: WriteModes, *, on_changed: Callable[[list[bytes]], None]
    ) -> None:
        self._lower = lower
        self.upper = upper
        self.modes = modes
        self.on_changed = on_changed
        self.lock = upper.lock
        self._exact_modes = False
        self.other_nodes = LeaseCheck(upper, modes)
        self._shadows = WhiteoutBuilder(upper, lower, self.names)

    def take_umask(self) -> None:
        """Set this process's umask to 0 (it does nothing else), so that new files get their modes at once."""
        os.umask(0)
        self._exact_modes = True

    # ------------------------------------------------------------ looking

    def look(self, path: bytes) -> os.stat_result | Hidden | None:
        """Return what the upper layer has at a path. None: the origin decides."""
        return None if self.modes.of(path) is WriteMode.OFF else self.upper.look(path)

    def seen(self, path: bytes) -> FileStat | None:
        """Return what is visible at a path. The caller makes sure that the index is fresh."""
        status = self.look(path)
        if isinstance(status, Hidden):
            return None
        return status if status is not None else self.below(path)

    def below(self, path: bytes) -> Entry | None:
        """Return the entry that the index has at a path, even where the upper layer hides it."""
        entry = self._lower.entry(ROOT_ID)
        for name in filter(None, path.split(b"/")):
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            entry = self._lower.known(entry.id, name)
        return entry

    def names(self, directory: bytes) -> list[tuple[bytes, bool]]:
        """List the names that the upper layer has in a directory, sorted, and whether each is visible. Names that are
        read-only by their mode of writing are left out."""
        names = self.upper.names(directory)
        if self.modes.of(directory) is WriteMode.OFF:
            names = {
                n: visible
                for n, visible in names.items()
                if self.modes.of(join(directory, n)) is not WriteMode.OFF
            }
        return sorted(names.items())

    def _must_see(self, path: bytes) -> FileStat:
        status = self.seen(path)
        if status is None:
            raise _error(errno.ENOENT, path)
        return status

    def _writable(self, *paths: bytes) -> None:
        for path in paths:
            if self.modes.of(path) is WriteMode.OFF:
                raise _error(errno.EROFS, path)

    # ------------------------------------------------------------ copying up

    def ensure_directory(self, path: bytes) -> os.stat_result:
        """Create a visible directory in the upper layer, if it is missing, and return its status."""
        missing: list[bytes] = []
        while (status := self._upper_directory(path)) is None:
            missing.append(path)
            path = split(path)[0]
        while missing:
            status = self._make_as_below(missing.pop())
        return status

    def _folder_for(self, path: bytes) -> os.stat_result:
        """Create the directory that a new name comes into, as `ensure_directory`. ENAMETOOLONG when the store can
        have no object of that name: later only the log would report it."""
        if len(path) > SHORT_PATH_BYTES and self._is_put(path) and not self._lower.takes_name(path):
            raise _error(errno.ENAMETOOLONG, path)
        return self.ensure_directory(split(path)[0])

    def _is_put(self, path: bytes) -> bool:
        return self.modes.of(path) in (WriteMode.BACK, WriteMode.THROUGH)

    def _upper_directory(self, path: bytes) -> os.stat_result | None:
        """Return the status of a directory in the upper layer. None: only the origin may have it."""
        if path in (b"/", b""):
            return self.upper.at(b"/").lstat()
        status = self.upper.look(path)
        if isinstance(status, Hidden):
            raise _error(errno.ENOENT, path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise _error(errno.ENOTDIR, path)
        return status

    def _make_as_below(self, path: bytes) -> os.stat_result:
        entry = self.below(path)
        if entry is None:
            raise _error(errno.ENOENT, path)
        if entry.kind is not Kind.DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        folder = self.upper.new()
        folder.mkdir(0o755)
        folder.setxattr(MARKS.lower_id, b"%d" % entry.id)
        if not self.upper.place(folder, path):
            folder.rmdir()
        return self.upper.at(path).lstat()

    def copy_up(self, path: bytes, cancel: Cancel | None, *, content: bool = True) -> None:
        """Copy a file, or a directory, of the origin to the upper layer. Waits until the node has the bytes. A Cancel
        leaves nothing behind. content False: makes an empty file, for a caller that is about to truncate it."""
        entry = self.below(path)
        if self.look(path) is not None or entry is None:
            return  # another thread copied it, or it was removed: the caller looks again
        if MARKS.single_owner and is_of_others(entry.attributes):
            raise _error(errno.EPERM, path)
        if entry.kind is Kind.DIRECTORY:
            with self.lock:
                self.ensure_directory(path)
            return
        copy: SafePath | None = self.upper.new()
        assert copy is not None
        fd = copy.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if content:
                self._copy_content(entry, fd, cancel)
                os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            apply_attributes(fd, entry.attributes)
            set_base(copy, BaseVersion(path, entry.version))
            os.setxattr(fd, MARKS.lower_id, b"%d" % entry.id)
            with self.lock:
                self.ensure_directory(split(path)[0])
                if self.below(path) == entry and self.upper.look(path) is None:
                    copy.rename(self.upper.at(path), NOREPLACE)
                    copy = None
        except FileExistsError:
            pass
        finally:
            os.close(fd)
            if copy is not None:
                copy.unlink()

    def _copy_content(self, entry: Entry, fd: int, cancel: Cancel | None) -> None:
        size = entry.version.size_bytes
        if size == 0:
            return
        file = self._lower.open(entry.id, cancel)
        try:
            offset = 0
            while offset < size:
                end = min(size, offset + COPY_STEP_BYTES)
                source = file.wait(offset, end, cancel)
                while offset < end:
                    copied = os.copy_file_range(source, fd, end - offset, offset, offset)
                    if copied == 0:
                        raise _error(errno.EIO, b"")
                    offset += copied
        finally:
            file.close()

    def at_upper(self, path: bytes, *, content: bool = True) -> SafePath:
        """Return the path in the upper layer of a visible name. NeedsContentError when only the origin has the file."""
        status = self._must_see(path)
        self._writable(path)
        if isinstance(status, Entry):
            if status.kind is Kind.DIRECTORY:
                self.ensure_directory(path)
            else:
                raise NeedsContentError(path, content=content)
        return self.upper.at(path)

    # ------------------------------------------------------------ making

    def create(self, path: bytes, mode: int, owner: Owner, flags: int) -> tuple[int, bool]:
        """Open a file for reading and writing. Return its descriptor, and whether the file is new. An existing file
        is opened, and truncated if flags say so. EEXIST with O_EXCL."""
        self._writable(path)
        while True:
            status = self.seen(path)
            if status is None:
                parent = self._folder_for(path)
                if flags & os.O_EXCL:
                    self.other_nodes.check_right(path)
                fd = self._create_new(path, mode, owner, parent)
                if fd is not None:
                    return fd, True
            elif flags & os.O_EXCL:
                raise _error(errno.EEXIST, path)
            else:
                return self.open(path, flags), False

    def open(self, path: bytes, flags: int) -> int:
        """Open a file for reading and writing, whatever access the caller needs, because all its open handles share
        one registration. NeedsContentError."""
        status = self._must_see(path)
        truncate = bool(flags & os.O_TRUNC)
        if isinstance(status, Entry):
            if status.kind is Kind.DIRECTORY:
                raise _error(errno.EISDIR, path)
            self._writable(path)
            raise NeedsContentError(path, content=not truncate)
        if stat.S_ISDIR(status.st_mode):
            raise _error(errno.EISDIR, path)
        upper_path = self.upper.at(path)
        fd = upper_path.open(os.O_RDWR)
        if not _same(fd, upper_path):  # demoted to the cache, or replaced, since it was opened
            os.close(fd)
            return self.open(path, flags)
        if truncate:
            empty(fd)
        return fd

    def _create_new(self, path: bytes, mode: int, owner: Owner, parent: os.stat_result) -> int | None:
        """Create a file and return its descriptor. None when another thread created the name first."""
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
        """Move a new file to its path. It inherits the base version that a whiteout at that path had."""
        base = self._base(path)
        self._clear(path)
        if base is not None:
            set_base(new_path, BaseVersion(path, base))
        return self.upper.place(new_path, path)

    def _clear(self, path: bytes) -> None:
        """Move a removed directory, which may hold whiteouts, out of the way: a file can't replace it by a rename."""
        if isinstance(self.upper.look(path), Hidden) and self.upper.at(path).is_folder():
            self.upper.put_away(path)

    def _base(self, path: bytes) -> Version | None:
        """Return the version of the origin that a file would replace if it were put at a path now."""
        if self.look(path) is not None or self.upper.at(path).exists():
            return self.upper.base_of(path)
        entry = self.below(path)
        return None if entry is None or entry.kind is not Kind.FILE else entry.version

    def _set_owner(self, file: int | SafePath, mode: int, owner: Owner, parent: os.stat_result) -> None:
        """Give a new file the caller's owner and mode, by the rules of a set-group-id directory. The kernel has
        applied the umask. A file that was opened with its mode has it already, if this process has no umask."""
        if not MARKS.single_owner:
            gid = parent.st_gid if parent.st_mode & stat.S_ISGID else owner.gid
            if (owner.uid, gid) != (os.geteuid(), os.getegid()):
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
        EEXIST when a file exists and replace is False."""
        self._writable(path)
        status = self.seen(path)
        if status is not None and not replace:
            raise _error(errno.EEXIST, path)
        if status is not None and _is_directory(status):
            raise _error(errno.EISDIR, path)
        parent = self._folder_for(path)
        if not replace:
            self.other_nodes.check_right(path)
        if parent.st_mode & stat.S_ISGID and not MARKS.single_owner:
            new_path.chown(-1, parent.st_gid)
        if isinstance(status, os.stat_result) and stat.S_ISREG(status.st_mode):
            if not MARKS.single_owner:
                new_path.chown(status.st_uid, status.st_gid)
            give_mode(new_path, stat.S_IMODE(status.st_mode))
        elif isinstance(status, Entry):
            apply_attributes(new_path, status.attributes)
        base = self._base(path)
        self._clear(path)
        if base is not None:
            set_base(new_path, BaseVersion(path, base))
        new_path.rename(self.upper.at(path))
        self.on_changed([path])

    def make_directory(self, path: bytes, mode: int, owner: Owner) -> None:
        self._writable(path)
        if self.seen(path) is not None:
            raise _error(errno.EEXIST, path)
        parent = self._folder_for(path)
        self.other_nodes.check_right(path)
        upper_path = self.upper.at(path)
        if self._make_again(path, mode, owner, parent):
            self.on_changed([path])
            return
        folder = self.upper.new()
        folder.mkdir(0o700)
        self._set_owner(folder, stat.S_IFDIR | mode, owner, parent)
        base, entry = self._base(path), self.below(path)
        if base is not None:
            set_base(folder, BaseVersion(path, base))  # of a removed file, which the origin still has
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._shadows.fill(folder, path, entry)  # a file had replaced the origin's directory
        try:
            folder.rename(upper_path)
        except NotADirectoryError:
            folder.rename(upper_path, EXCHANGE)  # the directory now hides what the whiteout hid
            folder.unlink()
        self.on_changed([path])

    def _make_again(self, path: bytes, mode: int, owner: Owner, parent: os.stat_result) -> bool:
        """Create a directory where one was removed. Its whiteouts stay, and hide what they hid."""
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
            raise _error(errno.EPERM, path)  # that would be a whiteout
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            if MARKS.single_owner:
                raise _error(errno.EPERM, path)
            self._make(path, mode, owner, lambda node: make_device(node, mode, device))
        else:
            self._make(path, mode, owner, lambda node: node.mknod(mode & ~0o7000 | MARKS.owner_bits, 0))

    def symlink(self, path: bytes, target: bytes, owner: Owner) -> None:
        self._make(path, stat.S_IFLNK | 0o777, owner, lambda link: link.symlink(target))

    def _make(self, path: bytes, mode: int, owner: Owner, make: Callable[[SafePath], None]) -> None:
        self._writable(path)
        if self.seen(path) is not None:
            raise _error(errno.EEXIST, path)
        parent = self._folder_for(path)
        self.other_nodes.check_right(path)
        new_path = self.upper.new()
        make(new_path)
        try:
            self._set_owner(new_path, mode, owner, parent)
            if not self._place(new_path, path):
                raise _error(errno.EEXIST, path)
        except BaseException:
            new_path.unlink()
            raise
        self.on_changed([path])

    def link(self, source: bytes, path: bytes) -> None:
        self._writable(path)
        self._same_area(source, path)
        if self.seen(path) is not None:
            raise _error(errno.EEXIST, path)
        upper_path = self.at_upper(source)
        self._folder_for(path)
        self.other_nodes.check_right(path)
        new_path = self.upper.new()
        upper_path.link(new_path)
        if not self._place(new_path, path):
            new_path.unlink()
            raise _error(errno.EEXIST, path)
        self.on_changed([path])

    # ------------------------------------------------------------ removing

    def remove(self, path: bytes) -> None:
        status = self._must_see(path)
        self._writable(path)
        if _is_directory(status):
            raise _error(errno.EISDIR, path)
        if self.below(path) is None:
            self.upper.at(path).unlink()
        else:
            self.ensure_directory(split(path)[0])
            self.upper.hide(path, self._base(path))
        self.on_changed([path])

    def remove_directory(self, path: bytes) -> None:
        """Remove an empty directory. Its listing in the index must be fresh."""
        status = self._must_see(path)
        self._writable(path)
        if not _is_directory(status):
            raise _error(errno.ENOTDIR, path)
        if not self.is_empty(path):
            raise _error(errno.ENOTEMPTY, path)
        self._remove_or_hide_directory(path)
        self.on_changed([path])

    def _remove_or_hide_directory(self, path: bytes) -> None:
        if self.below(path) is None:
            try:
                self.upper.at(path).rmdir()
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
        self.ensure_directory(path)
        self.upper.mark_removed(path)

    def is_empty(self, path: bytes) -> bool:
        hidden = set()
        for name, visible in self.names(path):
            if visible:
                return False
            hidden.add(name)
        entry = self.below(path)
        if entry is None or entry.kind is not Kind.DIRECTORY:
            return True
        return all(child.name in hidden for child in self._lower.children(entry.id))

    # ------------------------------------------------------------ renaming

    def rename(self, source: bytes, target: bytes, flags: int, *, copied: bool) -> None:
        """Rename a name. flags: NOREPLACE or EXCHANGE. copied: `copy_up_all` has copied the origin's directory, and
        the target's listing is fresh. NeedsContentError where that is needed."""
        if flags == EXCHANGE:
            self._exchange(source, target)
            return
        if flags & ~NOREPLACE:
            raise _error(errno.EINVAL, source)
        self._writable(source, target)
        moved = self._must_see(source)
        self._same_area(source, target)
        if target.startswith(source + b"/"):
            raise _error(errno.EINVAL, target)
        replaced = self.seen(target)
        if replaced is not None:
            if flags & NOREPLACE:
                raise _error(errno.EEXIST, target)
            self._check_replace(moved, replaced, source, target)
            if _same_file(moved, replaced):
                return
        if isinstance(moved, Entry):
            raise NeedsContentError(source)
        self._folder_for(target)
        if flags & NOREPLACE:
            self.other_nodes.check_right(target)
        if stat.S_ISDIR(moved.st_mode):
            if not copied and (self.below(source) is not None or replaced is not None):
                raise NeedsContentError(source)
            self._rename_directory(source, target)
        else:
            self._rename_file(source, target)
        self.on_changed([target, source])

    def _exchange(self, source: bytes, target: bytes) -> None:
        """Exchange two names. EINVAL for a directory that the origin has, or that hides something of it: no single
        step can exchange those."""
        self._writable(source, target)
        statuses = {path: self._must_see(path) for path in (source, target)}
        self._same_area(source, target)
        for path, status in statuses.items():
            if _is_directory(status):
                entry = self.below(path)
                if self._hides_any(path) or (entry is not None and entry.kind is Kind.DIRECTORY):
                    raise _error(errno.EINVAL, path)
            elif isinstance(status, Entry):
                raise NeedsContentError(path)
        for path, new_name in ((source, target), (target, source)):
            hidden = self.below(new_name)  # a file has replaced the origin's directory
            if _is_directory(statuses[path]) and hidden is not None and hidden.kind is Kind.DIRECTORY:
                self._shadows.hide_below(self.upper.at(path), new_name, hidden)
        self.upper.exchange(source, target)
        self.on_changed([target, source])

    def _check_replace(self, moved: FileStat, replaced: FileStat, source: bytes, target: bytes) -> None:
        if _is_directory(replaced):
            if not _is_directory(moved):
                raise _error(errno.EISDIR, target)
            if source.startswith(target + b"/") or not self.is_empty(target):
                raise _error(errno.ENOTEMPTY, target)
        elif _is_directory(moved):
            raise _error(errno.ENOTDIR, target)

    def _same_area(self, source: bytes, target: bytes) -> None:
        """Raise EXDEV between mounts of origins, or modes of writing. `mv` then copies."""
        if self.modes.of(source) is not self.modes.of(target) or (
            self._lower.mount_of(source) != self._lower.mount_of(target)
        ):
            raise _error(errno.EXDEV, target)

    def _rename_file(self, source: bytes, target: bytes) -> None:
        lower_entry, replaced = self.below(source), self._base(target)
        base = self._base(source)
        if replaced is not None:
            set_base(self.upper.at(source), BaseVersion(target, replaced))
        self._clear(target)
        if lower_entry is None and base is None:
            self.upper.at(source).rename(self.upper.at(target))
        else:
            self.upper.rename_leaving_whiteout(source, target, base)

    def _rename_directory(self, source: bytes, target: bytes) -> None:
        entry = self.below(source)
        if entry is not None and not self._is_whole(source, entry):
            raise NeedsContentError(source)  # clean files were demoted since it was copied
        source_path, target_path = self.upper.at(source), self.upper.at(target)
        whiteout = (
            self._shadows.leave(source, entry) if entry is not None or self._hides_any(source) else None
        )
        hidden, is_taken = self.below(target), target_path.exists()
        if target_path.is_folder():
            self._shadows.take_over(target, source)
        elif is_taken:  # by a whiteout
            base = self.upper.base_of(target)
            if base is not None:
                set_base(source_path, BaseVersion(target, base))
        if hidden is not None and hidden.kind is Kind.DIRECTORY:
            self._shadows.hide_below(source_path, target, hidden)
        if whiteout is None and not is_taken:
            source_path.rename(target_path)
            return
        # Until `move_in` the directory is in `work`. After a crash, the cleaning of `work` ends the move by this mark.
        source_path.setxattr(MARKS.moving, target)
        failpoint.hit("tree.moving")
        moving = whiteout or self.upper.new()
        source_path.rename(moving, EXCHANGE if whiteout is not None else 0)
        failpoint.hit("tree.moved")
        self.upper.move_in(moving, target)

    def copy_up_all(self, path: bytes, cancel: Cancel | None) -> None:
        """Copy a directory and everything in it to the upper layer. EXDEV when it has too many names for a rename."""
        pending, names = [path], 0
        while pending:
            directory = pending.pop()
            entry = self.below(directory)
            self.copy_up(directory, cancel)
            if entry is None or entry.kind is not Kind.DIRECTORY:
                continue
            self._lower.ensure_listed(entry.id, cancel)
            for child in self._lower.children(entry.id):
                names += 1
                if names > MOVED_NAMES_MAX:
                    raise _error(errno.EXDEV, path)
                child_path = join(directory, child.name)
                status = self.upper.look(child_path)
                if status is None and child.kind is Kind.FILE:
                    self.copy_up(child_path, cancel)
                elif child.kind is Kind.DIRECTORY and (
                    status is None or (isinstance(status, os.stat_result) and stat.S_ISDIR(status.st_mode))
                ):
                    pending.append(child_path)

    def _is_whole(self, path: bytes, entry: Entry) -> bool:
        """Return whether everything visible in a directory of the origin is in the upper layer."""
        pending = [(path, entry)]
        while pending:
            path, entry = pending.pop()
            for child in self._lower.children(entry.id):
                child_path = join(path, child.name)
                status = self.upper.look(child_path)
                if status is None:
                    return False
                is_folder = isinstance(status, os.stat_result) and stat.S_ISDIR(status.st_mode)
                if is_folder and child.kind is Kind.DIRECTORY:
                    pending.append((child_path, child))
        return True

    def _hides_any(self, path: bytes) -> bool:
        return any(not visible for _, visible in self.names(path))


def empty(fd: int) -> None:
    """Truncate a file as O_TRUNC does: the time of modification is set even if the file was empty."""
    os.ftruncate(fd, 0)
    os.utime(fd)


def _is_directory(status: FileStat) -> bool:
    return status.kind is Kind.DIRECTORY if isinstance(status, Entry) else stat.S_ISDIR(status.st_mode)


def _same_file(first: FileStat, second: FileStat) -> bool:
    return (
        isinstance(first, os.stat_result)
        and isinstance(second, os.stat_result)
        and (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    )


def _same(fd: int, path: SafePath) -> bool:
    status = path.seen()
    return status is not None and not is_whiteout(status) and status.st_ino == os.fstat(fd).st_ino


def _error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))
