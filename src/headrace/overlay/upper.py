"""The upper layer: what was written on this node, as a real directory tree on its disk.

Paths of the namespace (b"/a/b") are below `tree`, with the attributes, links and extended attributes that the local
file system stores. The origin is the lower layer; a name of the upper layer hides the same name of the lower one. Some
entries stand for names that do not exist, or are outside the tree, and users never see them:

* a whiteout, a character device 0:0 (as overlayfs and RENAME_WHITEOUT make it): the name was removed. In the layer of a
  user without rights it is a file (`mark_names.py`);
* a directory with the mark `removed`: it was removed, with all names that its whiteouts hide; created again, it loses
  the mark;
* `work`, beside the tree, has entries that are being created or moved; after a crash `clear_work` moves them to their
  place or deletes them;
* `gone`, beside the tree, has removed directories whose place a file took: the node still removes them at the origin.

Sessions write here, and the node reads and persists; both only by steps that the file system makes atomic. All state is
in the directory. Every call may raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
import time
from collections.abc import Iterator

import msgspec

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE, NOREPLACE, WHITEOUT, LinklessMount, Root, SafePath
from headrace.base.decoding import decode_msgpack
from headrace.base.errors import UsageError
from headrace.base.model import Attributes, Version
from headrace.base.namespace_path import split
from headrace.base.private_folder import make_private
from headrace.overlay import workdir
from headrace.overlay.given_mode import as_given, give_mode
from headrace.overlay.lock import LayerLock
from headrace.overlay.mark_names import MARKS, WHITEOUT_MODE

_SINGLE_OWNER = b"/single-owner"
"""A file beside the tree of a layer whose marks and modes are those of a user without rights."""
BASES_MAX = 8

log = logging.getLogger(__name__)
_serial = itertools.count()


class Hidden:
    """The state of a name that the upper layer removed, whatever the lower layer has."""


HIDDEN = Hidden()


class BaseVersion(msgspec.Struct, frozen=True):
    """The version that a file replaces at one path. A file of several names (hard links) has one for each."""

    path: bytes
    version: Version


class Upper:
    """The upper layer in a directory of this cache. `make` creates the directory."""

    def __init__(self, folder: str) -> None:
        MARKS.settle()
        self._mount = LinklessMount(os.fsencode(folder))
        self.tree = Root(self._mount.path + b"/tree", self._mount)
        self.work = Root(self._mount.path + b"/work", self._mount)
        self.gone = Root(self._mount.path + b"/gone", self._mount)
        self.lock = LayerLock(f"{folder}/lock")
        """Held by every thread that changes names."""
        self.pressure_path = f"{folder}/pressure"
        self.marks_path = f"{folder}/marks"

    def make(self) -> None:
        """Create the directories. The node calls it when it starts. UsageError if the layer's marks are of the other
        kind."""
        make_private(os.fsdecode(self._mount.path))
        self.tree.make(0o755)
        self._check_kind()
        self.work.make(0o700)
        self.gone.make(0o700)

    def _check_kind(self) -> None:
        """Refuse a layer whose marks this process can't read, and record the kind of a new one."""
        folder, root = os.fsdecode(self._mount.path), Root(self._mount.path)
        record = root.at(_SINGLE_OWNER)
        is_users = record.exists()
        if MARKS.single_owner and not is_users and not self.tree.at(b"/").names():
            root.at(b"/").setxattr(MARKS.mode, b"")  # a file system without such attributes is refused now
            os.close(record.open(os.O_WRONLY | os.O_CREAT, 0o600))
            root.at(b"/").sync()  # a layer that lost its record would be refused
        elif is_users != MARKS.single_owner:
            writer, reader = ("a user's node", "root's") if is_users else ("root's node", "a user's")
            raise UsageError(
                f"folder {folder}",
                why=f"{writer} wrote its files, and {reader} can't read their marks",
                hint="start the node as before, persist the files, then remove this directory",
            )

    def close(self) -> None:
        """Close all descriptors. The object can be used again."""
        self.lock.close()
        for root in (self.tree, self.work, self.gone):
            root.close()
        self._mount.close()

    def at(self, path: bytes) -> SafePath:
        """Return where a path of the namespace lies; b"/" and b"" are the root. Users may exchange directories and
        links there at any time."""
        return SafePath(self.tree, path)

    def new(self) -> SafePath:
        """Return a new name in `work`."""
        return self.work.at(b"/" + workdir.temp_name(next(_serial)))

    def clear_work(self) -> list[bytes]:
        """Delete what dead processes left in `work`, but move renamed directories, and those on their way to `gone`, to
        their place. Return the paths of renamed ones."""
        moved: list[bytes] = []
        for name in self.work.at(b"/").names():
            entry = self.work.at(b"/" + name)
            if not workdir.is_orphaned(name):
                continue
            target, _, work_name = (_mark(entry, MARKS.moving) or b"").partition(b"\0")
            if target and work_name in (b"", name):
                if self._finish_move(entry, target):
                    moved.append(target)
            elif _mark(entry, MARKS.path) is not None:
                entry.rename(self._name_in_gone())
            else:
                entry.throw_away()
        return moved

    def move_in(self, directory: SafePath, target: bytes) -> None:
        """Move a directory of `work` to its place by one rename, over an entry that hides the name or a directory
        without visible names. FileExistsError for anything else. A file is moved only after a crash; it replaces any
        other file. The caller holds the lock."""
        upper_path = self.at(target)
        try:
            directory.rename(upper_path, NOREPLACE)
        except FileExistsError:
            if directory.is_folder():
                self._move_over(directory, target)
            else:
                directory.rename(upper_path)
        _unmark(upper_path)

    def _move_over(self, directory: SafePath, target: bytes) -> None:
        existing, upper_path = self.look(target), self.at(target)
        if isinstance(existing, os.stat_result) and (
            not stat.S_ISDIR(existing.st_mode) or any(self.names(target).values())
        ):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target))
        _unmark(upper_path)  # else clear_work would treat it as one that is being moved
        directory.rename(upper_path, EXCHANGE)
        directory.throw_away()

    def _finish_move(self, directory: SafePath, target: bytes) -> bool:
        try:
            with self.lock:
                self.move_in(directory, target)
            return True
        except FileNotFoundError:
            if not directory.exists():
                return False  # another process moved it
            why = "its parent does not exist"
        except OSError as error:
            why = str(error)
        log.warning(
            "a directory that was being renamed can't be moved to its new name path=%s old=%s why=%s",
            *(os.fsdecode(target), directory, why),
        )
        return False

    # ------------------------------------------------------------ looking

    def look(self, path: bytes) -> os.stat_result | Hidden | None:
        """Return the status of a name; None if this layer does not have it. The directory of the name must be
        visible."""
        upper_path = self.at(path)
        status = upper_path.seen()
        if status is None:
            return None
        if is_whiteout(status) or (stat.S_ISDIR(status.st_mode) and is_removed(upper_path)):
            return HIDDEN
        return as_given(status, upper_path)

    def names(self, directory: bytes) -> dict[bytes, bool]:
        """Return the names of a directory in this layer, and whether each one is visible."""
        try:
            with self.at(directory).entries() as entries:
                return {entry.name: not _hides(entry) for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def walk(self, top: bytes = b"/") -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield everything at and below a path, hidden entries too, each directory before its entries. Entries that
        disappear meanwhile are skipped."""
        for upper_path, status in self.at(top).walk():
            yield upper_path.path, as_given(status, upper_path)

    # ------------------------------------------------------------ hiding

    def hide(self, path: bytes, base: Version | None) -> None:
        """Put a whiteout in the place of a name, or of an existing file. base: the origin's version that it hides."""
        self.unmark_demoted(split(path)[0])
        whiteout = self._whiteout(BaseVersion(path, base) if base is not None else None)
        try:
            whiteout.rename(self.at(path))
        except OSError:
            whiteout.unlink()
            raise

    def hide_missing(self, path: bytes, base: Version | None, *, directory: bool = False) -> bytes | None:
        """Hide a name that reached the origin after it was removed here, so that the node removes it there. Whiteouts
        and removed directories are created for the name, and for missing directories above it. Return the topmost path
        that was created, or that the caller must examine; None if the name exists here. The caller holds the lock."""
        if self.at(path).exists():
            return None
        top, missing = path, [split(path)[1]]
        while not self.at(split(top)[0]).exists():
            top = split(top)[0]
            missing.insert(0, split(top)[1])
        parent = split(top)[0]
        chain = self.new()
        self._make_chain(
            chain, missing, BaseVersion(path, base) if base is not None else None, directory=directory
        )
        if self.at(parent).is_folder():
            chain.rename(self.at(top), NOREPLACE)
            return top
        container = self.new()  # a file, or a whiteout, took the place of a directory above
        container.mkdir(0o700)
        chain.rename(container / missing[0])
        container.setxattr(MARKS.path, parent)
        container.rename(self._name_in_gone())
        return parent

    def _make_chain(
        self, upper_path: SafePath, names: list[bytes], base: BaseVersion | None, *, directory: bool
    ) -> None:
        """Create removed directories within each other; the last name becomes a whiteout, or one more removed
        directory."""
        for name in names[1:]:
            make_removed(upper_path)
            upper_path = upper_path / name
        if directory:
            make_removed(upper_path)
            return
        make_whiteout(upper_path)
        if base is not None:
            set_base(upper_path, base)

    def _name_in_gone(self) -> SafePath:
        return self.gone.at(b"/%d-%d-%d" % (os.getpid(), next(_serial), time.time_ns()))

    def _whiteout(self, base: BaseVersion | None) -> SafePath:
        whiteout = self.new()
        make_whiteout(whiteout)
        if base is not None:
            set_base(whiteout, base)
        return whiteout

    def mark_removed(self, directory: bytes) -> None:
        """Mark a directory as removed. Its parent gets a new mtime, as if the name were removed from it."""
        self.at(directory).setxattr(MARKS.removed, b"")
        self.at(split(directory)[0]).utime()

    def unmark_removed(self, directory: bytes) -> None:
        """Clear the mark. The parent gets a new mtime."""
        self.at(directory).removexattr(MARKS.removed)
        self.at(split(directory)[0]).utime()

    def mark_demoted(self, directory: bytes) -> None:
        self.at(directory).setxattr(MARKS.demoted, b"")

    def unmark_demoted(self, directory: bytes) -> None:
        """Clear DEMOTED after a removal: from now on the directory may be empty because a user here removed its
        files."""
        with contextlib.suppress(OSError):
            self.at(directory).removexattr(MARKS.demoted)

    def has_demoted_files(self, directory: bytes) -> bool:
        try:
            self.at(directory).getxattr(MARKS.demoted)
        except OSError:
            return False
        return True

    def put_away(self, path: bytes) -> None:
        """Move a removed directory to `gone` to make space for a file; the node finds it there. Until the file comes, a
        whiteout hides what the directory hid."""
        upper_path, base = self.at(path), self.base_of(path)
        upper_path.setxattr(MARKS.path, path)
        whiteout = self._whiteout(BaseVersion(path, base) if base is not None else None)
        whiteout.rename(upper_path, EXCHANGE)
        failpoint.hit("tree.away")
        whiteout.rename(self._name_in_gone())

    def put_aside(self) -> list[tuple[SafePath, bytes]]:
        """Return the directories in `gone` with their former paths."""
        directories = []
        for name in self.gone.at(b"/").names():
            directory = self.gone.at(b"/" + name)
            try:
                directories.append((directory, directory.getxattr(MARKS.path)))
            except OSError:
                continue
        return directories

    def is_going(self, path: bytes) -> bool:
        """Return whether a directory in `gone` was at a path or above it: the node is about to check what the origin
        has there, and may remove it."""
        return any(
            path == former_path or path.startswith(former_path + b"/") for _, former_path in self.put_aside()
        )

    def rename_leaving_whiteout(self, source: bytes, target: bytes, base: Version | None) -> None:
        """Rename source to target atomically and leave a whiteout at the source. base: the version that the whiteout
        hides."""
        self.unmark_demoted(split(source)[0])
        if MARKS.single_owner:
            self._move_by_work(source, target, base)
            return
        self.at(source).rename(self.at(target), WHITEOUT)
        if base is not None:
            set_base(self.at(source), BaseVersion(source, base))

    def _move_by_work(self, source: bytes, target: bytes, base: Version | None) -> None:
        """Rename a file in two steps, as the kernel leaves no whiteout of a user's kind. After a crash, the cleaning of
        `work` takes the second step. The mark names the entry of `work`: one that a crash left at its old place means
        nothing when the file gets another name."""
        moving = self._whiteout(BaseVersion(source, base) if base is not None else None)
        try:
            self.at(source).setxattr(MARKS.moving, target + b"\0" + moving.path[1:])
            moving.rename(self.at(source), EXCHANGE)
        except OSError:
            moving.unlink()
            raise
        failpoint.hit("tree.moved")
        moving.rename(self.at(target))
        _unmark(self.at(target))

    def exchange(self, source: bytes, target: bytes) -> None:
        """Exchange two visible entries atomically; each keeps the record of what it replaces at the origin."""
        bases = [(source, target, self.base_of(target)), (target, source, self.base_of(source))]
        for path, other, base in bases:
            if base is not None:
                set_base(self.at(path), BaseVersion(other, base))
        self.at(source).rename(self.at(target), EXCHANGE)

    # ------------------------------------------------------------ placing

    def place(self, file: SafePath, path: bytes) -> bool:
        """Give a file of `work` its name. Return False if anything but a whiteout has that name."""
        upper_path = self.at(path)
        while True:
            try:
                file.rename(upper_path, NOREPLACE)
                return True
            except FileExistsError:
                try:
                    if not is_whiteout(upper_path.lstat()):
                        return False
                except FileNotFoundError:
                    continue
                # a file that replaces the whiteout at this moment is lost, as if it came first
                file.rename(upper_path)
                return True

    def base_of(self, path: bytes) -> Version | None:
        """Return the version that the entry at a path replaces at the origin; None if none is recorded."""
        return base_version(self.at(path), path)


def base_version(file: SafePath | int, path: bytes) -> Version | None:
    """Return the version that a file replaces at a path. file: a path or an open file."""
    return next((base.version for base in _bases(file) if base.path == path), None)


def set_base(file: SafePath, base: BaseVersion) -> None:
    kept = [previous for previous in _bases(file) if previous.path != base.path]
    value = msgspec.msgpack.encode([*kept[-BASES_MAX:], base])
    file.setxattr(MARKS.base, value)


def drop_base(file: SafePath, path: bytes) -> None:
    """Record that the file replaces nothing at this path."""
    kept = [base for base in _bases(file) if base.path != path]
    file.setxattr(MARKS.base, msgspec.msgpack.encode(kept))


def _bases(file: SafePath | int) -> list[BaseVersion]:
    try:
        value = os.getxattr(file, MARKS.base) if isinstance(file, int) else file.getxattr(MARKS.base)
        return decode_msgpack(value, list[BaseVersion])
    except (OSError, msgspec.MsgspecError):
        return []


def apply_attributes(file: int | SafePath, attributes: Attributes | None) -> None:
    """Set the mode and owner that a file had when this node uploaded it, if they are known."""
    if attributes is None or attributes.mode is None:
        return
    uid, gid = (
        -1 if attributes.uid is None else attributes.uid,
        -1 if attributes.gid is None else attributes.gid,
    )
    with contextlib.suppress(PermissionError):  # another user's file, and this process is not root
        os.fchown(file, uid, gid) if isinstance(file, int) else file.chown(uid, gid)
    give_mode(file, attributes.mode)


def is_of_others(attributes: Attributes | None) -> bool:
    """Return whether a file has another owner by these attributes than the user of this process."""
    return attributes is not None and attributes.uid not in (None, os.geteuid())


def is_whiteout(status: os.stat_result) -> bool:
    if status.st_mode == WHITEOUT_MODE and MARKS.single_owner:
        return True
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def make_whiteout(path: SafePath) -> None:
    """Create a whiteout, in `work` or in a directory that is there."""
    if MARKS.single_owner:
        path.mknod(stat.S_IFREG | 0o600, 0)
        path.chmod(stat.S_IMODE(WHITEOUT_MODE))
    else:
        path.mknod(stat.S_IFCHR, os.makedev(0, 0))


def make_removed(path: SafePath) -> None:
    """Create a directory that hides the origin's."""
    path.mkdir(0o755)
    path.setxattr(MARKS.removed, b"")


def is_removed(path: SafePath) -> bool:
    """Return whether a directory has the mark. It uses a descriptor, which is faster than /proc/self/fd: most calls
    here check each directory of a path."""
    fd = -1
    try:
        fd = path.open(os.O_RDONLY | os.O_DIRECTORY)
        os.getxattr(fd, MARKS.removed)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def _unmark(path: SafePath) -> None:
    """Remove the marks of a move that is complete."""
    for mark in (MARKS.moving, MARKS.path):
        with contextlib.suppress(OSError):
            path.removexattr(mark)


def _mark(path: SafePath, mark: str) -> bytes | None:
    try:
        return path.getxattr(mark)
    except OSError:
        return None


def _hides(entry: os.DirEntry[bytes]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return _has_removed_mark(entry.path)
    if entry.is_file(follow_symlinks=False) and not MARKS.single_owner:
        return False
    if entry.is_symlink():
        return False
    return is_whiteout(entry.stat(follow_symlinks=False))


def _has_removed_mark(path: bytes) -> bool:
    """Return whether an entry of an open directory has the mark."""
    try:
        os.getxattr(path, MARKS.removed, follow_symlinks=False)
    except OSError:
        return False
    return True
