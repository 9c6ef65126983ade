"""The merged tree of a host: what was written here, over what the origins have. Names in, system calls out.

Doors ask it by path (b"/a/b") and get an `os.stat_result` for what the upper layer has, an `Entry` for what only the
origin has. Nothing here waits for the node but `copy_up` and what says so. Errors are OSErrors with the errno that a
local file system would give. Who calls something that changes names holds `lock`, which is the layer's: one session of
the host, or the node, at a time.
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
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.given_mode import give_mode, make_device
from headrace.overlay.upper import (
    DEMOTED,
    LOWER_ID,
    MOVING,
    PATH,
    BaseVersion,
    Hidden,
    Upper,
    apply_attributes,
    is_removed,
    is_whiteout,
    join,
    set_base,
    split,
)
from headrace.sdk.cancel import Cancel
from headrace.sdk.lease_check import LeaseCheck
from headrace.sdk.whiteouts import WhiteoutBuilder

FileStat = os.stat_result | Entry
COPY_STEP_BYTES = 16 << 20
MOVED_NAMES_MAX = 10_000
"""A folder of the origin with more names is not renamed: EXDEV, and `mv` copies it."""


class Owner(msgspec.Struct, frozen=True):
    """Who made a name."""

    uid: int
    gid: int


class OpenLower(Protocol):
    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int: ...
    def close(self) -> None: ...


class Lower(Protocol):
    """What the tree asks of the client. `known` is the index, however old."""

    def known(self, parent: FileId, name: bytes) -> Entry | None: ...
    def entry(self, id: FileId) -> Entry | None: ...
    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...
    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None: ...
    def listing_fresh(self, directory: FileId) -> bool: ...
    def mount_of(self, path: bytes) -> str: ...
    def takes_name(self, path: bytes) -> bool: ...
    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenLower: ...


SHORT_PATH_BYTES = 512
"""Stores take a key that is so long, and a prefix before it."""


class NeedsContentError(Exception):
    """The operation needs a copy of what is below first: `copy_up`, which may wait; then again."""

    def __init__(self, path: bytes, *, content: bool = True) -> None:
        self.path, self.content = path, content


class MergedTree:
    """on_changed: told the paths that the node has to look at, while the lock is held."""

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
        """For a process that does nothing else: its own umask goes, so that files are made with their modes at once."""
        os.umask(0)
        self._exact_modes = True

    # ------------------------------------------------------------ looking

    def look(self, path: bytes) -> os.stat_result | Hidden | None:
        """What the upper layer says; None: ask the lower one."""
        return None if self.modes.of(path) is WriteMode.OFF else self.upper.look(path)

    def seen(self, path: bytes) -> FileStat | None:
        """What is at a path, by the upper layer and the index; whether the index is fresh is the caller's affair."""
        found = self.look(path)
        if isinstance(found, Hidden):
            return None
        return found if found is not None else self.below(path)

    def below(self, path: bytes) -> Entry | None:
        """What the index has at a path, whatever hides it."""
        entry = self._lower.entry(ROOT_ID)
        for name in filter(None, path.split(b"/")):
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            entry = self._lower.known(entry.id, name)
        return entry

    def names(self, directory: bytes) -> list[tuple[bytes, bool]]:
        """What the upper layer says of names of a directory, sorted: whether each is visible. It says nothing of those
        where nothing can be written, though it has a folder there when something below it can."""
        found = self.upper.names(directory)
        if self.modes.of(directory) is WriteMode.OFF:
            found = {
                n: visible
                for n, visible in found.items()
                if self.modes.of(join(directory, n)) is not WriteMode.OFF
            }
        return sorted(found.items())

    def _must_see(self, path: bytes) -> FileStat:
        found = self.seen(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def _writable(self, *paths: bytes) -> None:
        for path in paths:
            if self.modes.of(path) is WriteMode.OFF:
                raise _error(errno.EROFS, path)

    # ------------------------------------------------------------ copying up

    def ensure_directory(self, path: bytes) -> os.stat_result:
        """The directory is in the upper layer on return; it must be visible."""
        missing: list[bytes] = []
        while (found := self._upper_directory(path)) is None:
            missing.append(path)
            path = split(path)[0]
        while missing:
            found = self._make_as_below(missing.pop())
        return found

    def _folder_for(self, path: bytes) -> os.stat_result:
        """As `ensure_directory`, of the one that a new name comes into. ENAMETOOLONG when no object of that name can be
        put: later only the log would say so."""
        if len(path) > SHORT_PATH_BYTES and self._is_put(path) and not self._lower.takes_name(path):
            raise _error(errno.ENAMETOOLONG, path)
        return self.ensure_directory(split(path)[0])

    def _is_put(self, path: bytes) -> bool:
        return self.modes.of(path) in (WriteMode.BACK, WriteMode.THROUGH)

    def _upper_directory(self, path: bytes) -> os.stat_result | None:
        """None: only the origin may have it."""
        if path in (b"/", b""):
            return self.upper.at(b"/").lstat()
        found = self.upper.look(path)
        if isinstance(found, Hidden):
            raise _error(errno.ENOENT, path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise _error(errno.ENOTDIR, path)
        return found

    def _make_as_below(self, path: bytes) -> os.stat_result:
        entry = self.below(path)
        if entry is None:
            raise _error(errno.ENOENT, path)
        if entry.kind is not Kind.DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        made = self.upper.new()
        made.mkdir(0o755)
        made.setxattr(LOWER_ID, b"%d" % entry.id)
        if not self.upper.place(made, path):
            made.rmdir()
        return self.upper.at(path).lstat()

    def copy_up(self, path: bytes, cancel: Cancel | None, *, content: bool = True) -> None:
        """The file, or the directory, is in the upper layer on return. Waits until the node has the bytes; what a
        Cancel breaks off leaves nothing. content False: an empty file, for who is about to truncate it."""
        entry = self.below(path)
        if self.look(path) is not None or entry is None:
            return  # somebody did it, or it is gone: the caller looks again
        if entry.kind is Kind.DIRECTORY:
            with self.lock:
                self.ensure_directory(path)
            return
        made: SafePath | None = self.upper.new()
        assert made is not None
        fd = made.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if content:
                self._copy_content(entry, fd, cancel)
                os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            apply_attributes(fd, entry.attributes)
            set_base(made, BaseVersion(path, entry.version))
            os.setxattr(fd, LOWER_ID, b"%d" % entry.id)
            with self.lock:
                self.ensure_directory(split(path)[0])
                if self.below(path) == entry and self.upper.look(path) is None:
                    made.rename(self.upper.at(path), NOREPLACE)
                    made = None
        except FileExistsError:
            pass
        finally:
            os.close(fd)
            if made is not None:
                made.unlink()

    def _copy_content(self, entry: Entry, fd: int, cancel: Cancel | None) -> None:
        size = entry.version.size_bytes
        if size == 0:
            return
        file = self._lower.open(entry.id, cancel)
        try:
            at = 0
            while at < size:
                end = min(size, at + COPY_STEP_BYTES)
                source = file.wait(at, end, cancel)
                while at < end:
                    copied = os.copy_file_range(source, fd, end - at, at, at)
                    if copied == 0:
                        raise _error(errno.EIO, b"")
                    at += copied
        finally:
            file.close()

    def at_upper(self, path: bytes, *, content: bool = True) -> SafePath:
        """Where a visible thing lies in the upper layer. NeedsContentError when it is only below."""
        found = self._must_see(path)
        self._writable(path)
        if isinstance(found, Entry):
            if found.kind is Kind.DIRECTORY:
                self.ensure_directory(path)
            else:
                raise NeedsContentError(path, content=content)
        return self.upper.at(path)

    # ------------------------------------------------------------ making

    def create(self, path: bytes, mode: int, owner: Owner, flags: int) -> tuple[int, bool]:
        """An open descriptor, for reading and writing, and whether the file is new. What is there already is opened,
        truncated if flags say so; EEXIST with O_EXCL."""
        self._writable(path)
        while True:
            found = self.seen(path)
            if found is None:
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
        """For reading and writing, whatever the caller wants of it: all who have it open share one registration.
        NeedsContentError."""
        found = self._must_see(path)
        truncate = bool(flags & os.O_TRUNC)
        if isinstance(found, Entry):
            if found.kind is Kind.DIRECTORY:
                raise _error(errno.EISDIR, path)
            self._writable(path)
            raise NeedsContentError(path, content=not truncate)
        if stat.S_ISDIR(found.st_mode):
            raise _error(errno.EISDIR, path)
        at = self.upper.at(path)
        fd = at.open(os.O_RDWR)
        if not _same(fd, at):  # moved into the cache, or replaced, between the two
            os.close(fd)
            return self.open(path, flags)
        if truncate:
            empty(fd)
        return fd

    def _create_new(self, path: bytes, mode: int, owner: Owner, parent: os.stat_result) -> int | None:
        """None when somebody was first."""
        at = self.upper.at(path)
        try:
            fd = at.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, mode & 0o777)
        except FileExistsError:
            return self._create_over_whiteout(path, mode, owner, parent)
        self._dress(fd, mode, owner, parent)
        return fd

    def _create_over_whiteout(
        self, path: bytes, mode: int, owner: Owner, parent: os.stat_result
    ) -> int | None:
        made = self.upper.new()
        fd = made.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, mode & 0o777)
        self._dress(fd, mode, owner, parent)
        if self._place(made, path):
            return fd
        os.close(fd)
        made.unlink()
        return None

    def _place(self, made: SafePath, path: bytes) -> bool:
        """What a whiteout there knew of the origin's file goes over to what takes its place."""
        base = self._base(path)
        self._clear(path)
        if base is not None:
            set_base(made, BaseVersion(path, base))
        return self.upper.place(made, path)

    def _clear(self, path: bytes) -> None:
        """A file can't take the place of a removed directory, which may have things to be removed in it."""
        if isinstance(self.upper.look(path), Hidden) and self.upper.at(path).is_folder():
            self.upper.put_away(path)

    def _base(self, path: bytes) -> Version | None:
        """Which version of the origin whatever is put at a path now would replace."""
        if self.look(path) is not None or self.upper.at(path).exists():
            return self.upper.base_of(path)
        entry = self.below(path)
        return None if entry is None or entry.kind is not Kind.FILE else entry.version

    def _dress(self, file: int | SafePath, mode: int, owner: Owner, parent: os.stat_result) -> None:
        """Owner and mode as the caller's, by the rules of a set-group-id directory; the kernel took off the umask. A
        file that was opened with its mode has it already, where this process has no umask of its own."""
        gid = parent.st_gid if parent.st_mode & stat.S_ISGID else owner.gid
        if (owner.uid, gid) != (os.geteuid(), os.getegid()):
            os.fchown(file, owner.uid, gid) if isinstance(file, int) else file.chown(owner.uid, gid)
        elif isinstance(file, int) and self._exact_modes and not mode & 0o7000:
            return
        kind = stat.S_IFMT(mode)
        if kind == stat.S_IFLNK:
            return
        wanted = mode & 0o7777
        if kind == stat.S_IFDIR and parent.st_mode & stat.S_ISGID:
            wanted |= stat.S_ISGID
        if wanted & 0o7000 or kind in (stat.S_IFCHR, stat.S_IFBLK):
            give_mode(file, wanted)
        elif isinstance(file, int):
            os.fchmod(file, wanted)
        else:
            file.chmod(wanted)

    def put_file(self, made: SafePath, path: bytes, *, replace: bool) -> None:
        """A finished file of `work` gets the name, in the place of the file that has it, if any, whose mode and owner
        it takes over. EEXIST when it may not replace one."""
        self._writable(path)
        found = self.seen(path)
        if found is not None and not replace:
            raise _error(errno.EEXIST, path)
        if found is not None and _is_directory(found):
            raise _error(errno.EISDIR, path)
        parent = self._folder_for(path)
        if not replace:
            self.other_nodes.check_right(path)
        if parent.st_mode & stat.S_ISGID:
            made.chown(-1, parent.st_gid)
        if isinstance(found, os.stat_result) and stat.S_ISREG(found.st_mode):
            made.chown(found.st_uid, found.st_gid)
            give_mode(made, stat.S_IMODE(found.st_mode))
        elif isinstance(found, Entry):
            apply_attributes(made, found.attributes)
        base = self._base(path)
        self._clear(path)
        if base is not None:
            set_base(made, BaseVersion(path, base))
        made.rename(self.upper.at(path))
        self.on_changed([path])

    def make_directory(self, path: bytes, mode: int, owner: Owner) -> None:
        self._writable(path)
        if self.seen(path) is not None:
            raise _error(errno.EEXIST, path)
        parent = self._folder_for(path)
        self.other_nodes.check_right(path)
        at = self.upper.at(path)
        if self._make_again(path, mode, owner, parent):
            self.on_changed([path])
            return
        made = self.upper.new()
        made.mkdir(0o700)
        self._dress(made, stat.S_IFDIR | mode, owner, parent)
        base, entry = self._base(path), self.below(path)
        if base is not None:
            set_base(
                made, BaseVersion(path, base)
            )  # of a removed file, which is still to be removed at the origin
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._shadows.fill(made, path, entry)  # of a folder that a file had taken the place of
        try:
            made.rename(at)
        except NotADirectoryError:
            made.rename(at, EXCHANGE)  # for the whiteout: from here on the directory hides what it hid
            made.unlink()
        self.on_changed([path])

    def _make_again(self, path: bytes, mode: int, owner: Owner, parent: os.stat_result) -> bool:
        """A directory that was removed: what its whiteouts hide stays hidden."""
        at = self.upper.at(path)
        if not is_removed(at):
            return False
        for name in at.listxattr():
            if name.startswith("user.") or name in (
                LOWER_ID,
                DEMOTED,
                PATH,
            ):  # it is another one than the origin's
                at.removexattr(name)
        at.chown(os.geteuid(), os.getegid())  # as a new one is: it has the owner of the one that was removed
        self._dress(at, stat.S_IFDIR | mode, owner, parent)
        at.utime()
        self.upper.unmark_removed(path)
        return True

    def make_node(self, path: bytes, mode: int, device: int, owner: Owner) -> None:
        """A fifo, a socket, a device, or a regular file, closed."""
        if stat.S_ISCHR(mode) and device == 0:
            raise _error(errno.EPERM, path)  # that would be a whiteout
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            self._make(path, mode, owner, lambda made: make_device(made, mode, device))
        else:
            self._make(path, mode, owner, lambda made: made.mknod(mode & ~0o7000, 0))

    def symlink(self, path: bytes, target: bytes, owner: Owner) -> None:
        self._make(path, stat.S_IFLNK | 0o777, owner, lambda made: made.symlink(target))

    def _make(self, path: bytes, mode: int, owner: Owner, make: Callable[[SafePath], None]) -> None:
        self._writable(path)
        if self.seen(path) is not None:
            raise _error(errno.EEXIST, path)
        parent = self._folder_for(path)
        self.other_nodes.check_right(path)
        made = self.upper.new()
        make(made)
        try:
            self._dress(made, mode, owner, parent)
            if not self._place(made, path):
                raise _error(errno.EEXIST, path)
        except BaseException:
            made.unlink()
            raise
        self.on_changed([path])

    def link(self, source: bytes, path: bytes) -> None:
        self._writable(path)
        self._same_area(source, path)
        if self.seen(path) is not None:
            raise _error(errno.EEXIST, path)
        at = self.at_upper(source)
        self._folder_for(path)
        self.other_nodes.check_right(path)
        made = self.upper.new()
        at.link(made)
        if not self._place(made, path):
            made.unlink()
            raise _error(errno.EEXIST, path)
        self.on_changed([path])

    # ------------------------------------------------------------ removing

    def remove(self, path: bytes) -> None:
        found = self._must_see(path)
        self._writable(path)
        if _is_directory(found):
            raise _error(errno.EISDIR, path)
        if self.below(path) is None:
            self.upper.at(path).unlink()
        else:
            self.ensure_directory(split(path)[0])
            self.upper.hide(path, self._base(path))
        self.on_changed([path])

    def remove_directory(self, path: bytes) -> None:
        """The directory's listing in the index must be fresh."""
        found = self._must_see(path)
        self._writable(path)
        if not _is_directory(found):
            raise _error(errno.ENOTDIR, path)
        if not self.is_empty(path):
            raise _error(errno.ENOTEMPTY, path)
        self._take_away_directory(path)
        self.on_changed([path])

    def _take_away_directory(self, path: bytes) -> None:
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
        """flags: NOREPLACE or EXCHANGE. copied: a folder that the origin has is in the upper layer whole
        (`copy_up_all`), and the target's listing is fresh; else NeedsContentError."""
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
        there = self.seen(target)
        if there is not None:
            if flags & NOREPLACE:
                raise _error(errno.EEXIST, target)
            self._check_replace(moved, there, source, target)
            if _same_file(moved, there):
                return
        if isinstance(moved, Entry):
            raise NeedsContentError(source)
        self._folder_for(target)
        if flags & NOREPLACE:
            self.other_nodes.check_right(target)
        if stat.S_ISDIR(moved.st_mode):
            if not copied and (self.below(source) is not None or there is not None):
                raise NeedsContentError(source)
            self._rename_directory(source, target)
        else:
            self._rename_file(source, target)
        self.on_changed([target, source])

    def _exchange(self, source: bytes, target: bytes) -> None:
        """EINVAL for a folder that the origin has, or that hides something of it: those can't change places in one
        step."""
        self._writable(source, target)
        both = {path: self._must_see(path) for path in (source, target)}
        self._same_area(source, target)
        for path, found in both.items():
            if _is_directory(found):
                entry = self.below(path)
                if self._hides_any(path) or (entry is not None and entry.kind is Kind.DIRECTORY):
                    raise _error(errno.EINVAL, path)
            elif isinstance(found, Entry):
                raise NeedsContentError(path)
        for path, becomes in ((source, target), (target, source)):
            hidden = self.below(becomes)  # of a folder that a file has taken the place of
            if _is_directory(both[path]) and hidden is not None and hidden.kind is Kind.DIRECTORY:
                self._shadows.hide_below(self.upper.at(path), becomes, hidden)
        self.upper.exchange(source, target)
        self.on_changed([target, source])

    def _check_replace(self, moved: FileStat, there: FileStat, source: bytes, target: bytes) -> None:
        if _is_directory(there):
            if not _is_directory(moved):
                raise _error(errno.EISDIR, target)
            if source.startswith(target + b"/") or not self.is_empty(target):
                raise _error(errno.ENOTEMPTY, target)
        elif _is_directory(moved):
            raise _error(errno.ENOTDIR, target)

    def _same_area(self, source: bytes, target: bytes) -> None:
        """Between mounts, or modes, `mv` copies."""
        if self.modes.of(source) is not self.modes.of(target) or (
            self._lower.mount_of(source) != self._lower.mount_of(target)
        ):
            raise _error(errno.EXDEV, target)

    def _rename_file(self, source: bytes, target: bytes) -> None:
        left, replaced = self.below(source), self._base(target)
        base = self._base(source)
        if replaced is not None:
            set_base(self.upper.at(source), BaseVersion(target, replaced))
        self._clear(target)
        if left is None and base is None:
            self.upper.at(source).rename(self.upper.at(target))
        else:
            self.upper.rename_leaving_whiteout(source, target, base)

    def _rename_directory(self, source: bytes, target: bytes) -> None:
        entry = self.below(source)
        if entry is not None and not self._is_whole(source, entry):
            raise NeedsContentError(source)  # clean files have left the layer since it was copied
        at, to = self.upper.at(source), self.upper.at(target)
        left = self._shadows.leave(source, entry) if entry is not None or self._hides_any(source) else None
        hidden, is_taken = self.below(target), to.exists()
        if to.is_folder():
            self._shadows.take_over(target, source)
        elif is_taken:  # by a whiteout
            base = self.upper.base_of(target)
            if base is not None:
                set_base(at, BaseVersion(target, base))
        if hidden is not None and hidden.kind is Kind.DIRECTORY:
            self._shadows.hide_below(at, target, hidden)
        if left is None and not is_taken:
            at.rename(to)
            return
        # In between the directory is in `work`. Whoever clears that after a crash ends the move by the mark.
        at.setxattr(MOVING, target)
        failpoint.hit("tree.moving")
        moving = left or self.upper.new()
        at.rename(moving, EXCHANGE if left is not None else 0)
        failpoint.hit("tree.moved")
        self.upper.move_in(moving, target)

    def copy_up_all(self, path: bytes, cancel: Cancel | None) -> None:
        """A directory with all that is in it. EXDEV when that is too much for a rename."""
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
                one = join(directory, child.name)
                found = self.upper.look(one)
                if found is None and child.kind is Kind.FILE:
                    self.copy_up(one, cancel)
                elif child.kind is Kind.DIRECTORY and (
                    found is None or (isinstance(found, os.stat_result) and stat.S_ISDIR(found.st_mode))
                ):
                    pending.append(one)

    def _is_whole(self, path: bytes, entry: Entry) -> bool:
        """Whether all that shows in a directory of the origin is in the upper layer."""
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
    """As O_TRUNC does: the time of modification is set also when there was nothing in the file."""
    os.ftruncate(fd, 0)
    os.utime(fd)


def _is_directory(found: FileStat) -> bool:
    return found.kind is Kind.DIRECTORY if isinstance(found, Entry) else stat.S_ISDIR(found.st_mode)


def _same_file(one: FileStat, other: FileStat) -> bool:
    return (
        isinstance(one, os.stat_result)
        and isinstance(other, os.stat_result)
        and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    )


def _same(fd: int, at: SafePath) -> bool:
    found = at.seen()
    return found is not None and not is_whiteout(found) and found.st_ino == os.fstat(fd).st_ino


def _error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))
