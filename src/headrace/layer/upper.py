"""The upper layer: what was written on this node, as a real directory tree on its disk.

Paths of the namespace (b"/a/b") lie below `tree`, with the attributes, links and extended attributes that the local
file system keeps for us. What the origin has is the lower layer; a name of the upper one hides that of the lower one.
Three things of the tree stand for what is not there, and are never shown:

* a whiteout, a character device 0:0 (as overlayfs and RENAME_WHITEOUT make it): the name was removed;
* a directory marked REMOVED: it was removed, with all that its whiteouts hide; made anew, it loses the mark;
* `work`, beside the tree, holds what is being made or moved; what a crash left there is put where it was on its way
  to, or thrown away (`clear_work`);
* `gone`, beside it, holds removed directories in whose place a file was put: what is to be removed at the origin still.

Sessions write here and the node reads and persists; both only by steps that the file system makes atomic. No state
but the folder. Every call may raise OSError.
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
from headrace.base.model import Attributes, Version
from headrace.layer.calls import EXCHANGE, NOREPLACE, WHITEOUT, rename
from headrace.layer.lock import LayerLock
from headrace.layer.work import is_left, owner

REMOVED = "trusted.headrace.removed"
LOWER_ID = "trusted.headrace.id"
"""Of what the origin had when it came into this layer: the id it had. A directory goes on having it; a file goes on
showing it as its inode number, as programs that change a file in place compare that (vim)."""
BASE = "trusted.headrace.base"
"""Which version of the origin's file this one replaces, and at which path: the condition of its put."""
LEFT = "trusted.headrace.left"
"""Of a directory: files of it left the layer for the cache. When nothing is left in it, it is there for the origin's
sake, and goes when that has it no more."""
PATH = "trusted.headrace.path"
"""Of a directory in `gone`, or in `work` on its way there: where it was."""
MOVING = "trusted.headrace.moving"
"""Of a directory: where it is on its way to. It means something only while that one lies in `work`."""
OURS = "trusted.headrace."
BASES_MAX = 8

log = logging.getLogger(__name__)
_serial = itertools.count()


class Hidden:
    """The name is not there, whatever the lower layer says."""


HIDDEN = Hidden()


class Base(msgspec.Struct, frozen=True):
    """A file of several names (hard links) has one for each."""

    path: bytes
    version: Version


class Upper:
    """folder: of this cache; made when `make` is called."""

    def __init__(self, folder: str) -> None:
        self.tree = os.fsencode(folder) + b"/tree"
        self.work = os.fsencode(folder) + b"/work"
        self.gone = os.fsencode(folder) + b"/gone"
        self.lock = LayerLock(f"{folder}/lock")
        """Whoever changes names holds it."""
        self.pressure_path = f"{folder}/pressure"
        self.marks_path = f"{folder}/marks"

    def make(self) -> None:
        """The folders; the node calls it, at its start."""
        os.makedirs(self.tree, mode=0o755, exist_ok=True)
        os.makedirs(self.work, mode=0o700, exist_ok=True)
        os.makedirs(self.gone, mode=0o700, exist_ok=True)

    def at(self, path: bytes) -> bytes:
        """Where a path of the namespace lies; b"/" and b"" are the root."""
        return self.tree + path if path != b"/" else self.tree

    def at_without_links(self, path: bytes) -> bytes:
        """Return where a path lies that another node named; the last name may be a link. NotADirectoryError where a
        link is above it: the links of a layer lead wherever its writer wanted. For layers that only this node
        changes."""
        self.directory_without_links(split(path)[0])
        return self.at(path)

    def directory_without_links(self, path: bytes) -> bytes:
        """Return the same of a directory, which is no link either."""
        at = self.tree
        for name in path.split(b"/")[1:] if path != b"/" else ():
            at = join(at, name)
            if os.path.islink(at):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), at)
        return at

    def new(self) -> bytes:
        """A name in `work` that nobody has."""
        return b"%s/%s-%d" % (self.work, owner(), next(_serial))

    def clear_work(self) -> list[bytes]:
        """What processes that are dead left in `work` goes, but for directories that were being moved, or put away:
        those come to their places. The paths of those that were being moved."""
        moved: list[bytes] = []
        for name in os.listdir(self.work):
            at = join(self.work, name)
            if not is_left(at):
                continue
            target = _mark(at, MOVING)
            if target is not None:
                if self._finish_move(at, target):
                    moved.append(target)
            elif _mark(at, PATH) is not None:
                os.rename(at, self._name_in_gone())
            else:
                throw_away(at)
        return moved

    def move_in(self, at: bytes, target: bytes) -> None:
        """A directory of `work` comes to its place, in one step: that of what hides the name, or of a directory in
        which nothing is visible. FileExistsError for anything else. The lock is held."""
        to = self.at(target)
        try:
            rename(at, to, NOREPLACE)
        except FileExistsError:
            there = self.look(target)
            if isinstance(there, os.stat_result) and (
                not stat.S_ISDIR(there.st_mode) or any(self.names(target).values())
            ):
                raise
            _unmark(to)  # else it would be taken for one that is being moved
            rename(at, to, EXCHANGE)
            throw_away(at)
        _unmark(to)

    def _finish_move(self, at: bytes, target: bytes) -> bool:
        try:
            with self.lock:
                self.move_in(at, target)
            return True
        except FileNotFoundError:
            if not os.path.lexists(at):
                return False  # somebody else did it
            why = "its parent is gone"
        except OSError as error:
            why = str(error)
        log.warning(
            "a folder that was being renamed stays aside path=%s at=%s why=%s",
            *(os.fsdecode(target), os.fsdecode(at), why),
        )
        return False

    # ------------------------------------------------------------ looking

    def look(self, path: bytes) -> os.stat_result | Hidden | None:
        """None: this layer says nothing of the name. The directory that it is in must be a visible one."""
        at = self.at(path)
        try:
            found = os.lstat(at)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if is_whiteout(found) or (stat.S_ISDIR(found.st_mode) and is_removed(at)):
            return HIDDEN
        return found

    def names(self, directory: bytes) -> dict[bytes, bool]:
        """What this layer says of the names of a directory: whether each one is visible."""
        try:
            with os.scandir(self.at(directory)) as found:
                return {entry.name: not _hides(entry) for entry in found}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def walk(self, top: bytes = b"/") -> Iterator[tuple[bytes, os.stat_result]]:
        """Everything at and below a path, hidden things too, a directory before what is in it. What goes meanwhile is
        passed by."""
        try:
            found = os.lstat(self.at(top))
        except (FileNotFoundError, NotADirectoryError):
            return
        yield top, found
        pending = [top] if stat.S_ISDIR(found.st_mode) else []
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(self.at(directory)) as entries:
                    rows = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                continue
            for name, one in rows:
                path = join(directory, name)
                yield path, one
                if stat.S_ISDIR(one.st_mode):
                    pending.append(path)

    # ------------------------------------------------------------ hiding

    def hide(self, path: bytes, base: Version | None) -> None:
        """A whiteout in the place of a name, or of a file that is there; base: the origin's version that it hides."""
        self.unmark_left(split(path)[0])
        made = self._whiteout(Base(path, base) if base is not None else None)
        try:
            rename(made, self.at(path))
        except OSError:
            os.unlink(made)
            raise

    def hide_missing(self, path: bytes, base: Version | None, *, directory: bool = False) -> bytes | None:
        """Something came to the origin whose name is not here any more: it is to be hidden, and removed there.
        Whiteouts and removed directories are made, for the name and for those above it that are gone, too. The topmost
        path that was made, or that has to be looked at; None when the name is here. The lock is held."""
        if os.path.lexists(self.at(path)):
            return None
        top, missing = path, [split(path)[1]]
        while not os.path.lexists(self.at(split(top)[0])):
            top = split(top)[0]
            missing.insert(0, split(top)[1])
        parent = split(top)[0]
        made = self.new()
        self._make_chain(made, missing, Base(path, base) if base is not None else None, directory=directory)
        if is_folder(self.at(parent)):
            rename(made, self.at(top), NOREPLACE)
            return top
        aside = self.new()  # a file, or a whiteout, took the place of a directory above
        os.mkdir(aside, 0o700)
        os.rename(made, join(aside, missing[0]))
        os.setxattr(aside, PATH, parent)
        os.rename(aside, self._name_in_gone())
        return parent

    def _make_chain(self, at: bytes, names: list[bytes], base: Base | None, *, directory: bool) -> None:
        """Removed directories within each other, the last name a whiteout, or one more of them."""
        if len(names) > 1 or directory:
            os.mkdir(at, 0o755)
            os.setxattr(at, REMOVED, b"")
            if len(names) > 1:
                self._make_chain(join(at, names[1]), names[1:], base, directory=directory)
            return
        os.mknod(at, stat.S_IFCHR, os.makedev(0, 0))
        if base is not None:
            set_base(at, base)

    def _name_in_gone(self) -> bytes:
        return b"%s/%d-%d-%d" % (self.gone, os.getpid(), next(_serial), time.time_ns())

    def _whiteout(self, base: Base | None) -> bytes:
        made = self.new()
        os.mknod(made, stat.S_IFCHR, os.makedev(0, 0))
        if base is not None:
            set_base(made, base)
        return made

    def mark_removed(self, directory: bytes) -> None:
        """The directory it is in shows the change, as if the name were gone from it."""
        os.setxattr(self.at(directory), REMOVED, b"")
        os.utime(self.at(split(directory)[0]))

    def unmark_removed(self, directory: bytes) -> None:
        """The directory it is in shows that, too."""
        os.removexattr(self.at(directory), REMOVED)
        os.utime(self.at(split(directory)[0]))

    def mark_left(self, directory: bytes) -> None:
        os.setxattr(self.at(directory), LEFT, b"")

    def unmark_left(self, directory: bytes) -> None:
        """Something was removed here: from now on it may be empty because somebody here wants it so."""
        with contextlib.suppress(OSError):
            os.removexattr(self.at(directory), LEFT)

    def was_left(self, directory: bytes) -> bool:
        try:
            os.getxattr(self.at(directory), LEFT)
        except OSError:
            return False
        return True

    def put_away(self, path: bytes) -> None:
        """A removed directory makes room for a file; the node finds it in `gone`. Until the file comes a whiteout hides
        what it hid."""
        at, base = self.at(path), self.base_of(path)
        os.setxattr(at, PATH, path)
        made = self._whiteout(Base(path, base) if base is not None else None)
        rename(made, at, EXCHANGE)
        failpoint.hit("tree.away")
        os.rename(made, self._name_in_gone())

    def put_aside(self) -> list[tuple[bytes, bytes]]:
        """What is in `gone`: (where it lies, where it was)."""
        found = []
        for name in os.listdir(self.gone):
            at = join(self.gone, name)
            try:
                found.append((at, os.getxattr(at, PATH)))
            except OSError:
                continue
        return found

    def is_going(self, path: bytes) -> bool:
        """Whether what is in `gone` was at a path, or above it: what the origin has there is about to be looked at,
        and may go."""
        return any(path == was or path.startswith(was + b"/") for _, was in self.put_aside())

    def rename_leaving_whiteout(self, source: bytes, target: bytes, base: Version | None) -> None:
        """source → target, atomic, with a whiteout where the source was; base: what that one hides."""
        self.unmark_left(split(source)[0])
        rename(self.at(source), self.at(target), WHITEOUT)
        if base is not None:
            set_base(self.at(source), Base(source, base))

    def exchange(self, source: bytes, target: bytes) -> None:
        """Two visible things change places, atomically; each goes on knowing what it replaces at the origin."""
        bases = [(source, target, self.base_of(target)), (target, source, self.base_of(source))]
        for path, becomes, base in bases:
            if base is not None:
                set_base(self.at(path), Base(becomes, base))
        rename(self.at(source), self.at(target), EXCHANGE)

    # ------------------------------------------------------------ placing

    def place(self, made: bytes, path: bytes) -> bool:
        """A file of `work` gets its name, unless that is taken by something that is not a whiteout: False."""
        at = self.at(path)
        while True:
            try:
                rename(made, at, NOREPLACE)
                return True
            except FileExistsError:
                try:
                    if not is_whiteout(os.lstat(at)):
                        return False
                except FileNotFoundError:
                    continue
                os.rename(
                    made, at
                )  # whoever else takes the whiteout's place just now loses, as if it came first
                return True

    def base_of(self, path: bytes) -> Version | None:
        """What the object of this layer at a path replaces at the origin; None: nothing that it knows of."""
        return base_at(self.at(path), path)


def seen_at(at: bytes) -> os.stat_result | None:
    """None: nothing is there."""
    try:
        return os.lstat(at)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_folder(at: bytes) -> bool:
    """Whether a directory is there itself, not by a link."""
    found = seen_at(at)
    return found is not None and stat.S_ISDIR(found.st_mode)


def base_at(at: bytes | int, path: bytes) -> Version | None:
    """at: or an open file."""
    return next((base.version for base in _bases(at) if base.path == path), None)


def set_base(at: bytes, base: Base) -> None:
    others = [one for one in _bases(at) if one.path != base.path]
    value = msgspec.msgpack.encode([*others[-BASES_MAX:], base])
    os.setxattr(at, BASE, value, follow_symlinks=False)


def drop_base(at: bytes, path: bytes) -> None:
    """It replaces nothing at this path."""
    others = [one for one in _bases(at) if one.path != path]
    os.setxattr(at, BASE, msgspec.msgpack.encode(others), follow_symlinks=False)


def _bases(at: bytes | int) -> list[Base]:
    try:
        value = os.getxattr(at, BASE, follow_symlinks=isinstance(at, int))
        return msgspec.msgpack.decode(value, type=list[Base])
    except (OSError, msgspec.MsgspecError):
        return []


def dress_as(file: int | bytes, known: Attributes | None) -> None:
    """Mode and owner that a file had when this node put it to its origin, where they are known."""
    if known is None or known.mode is None:
        return
    with contextlib.suppress(PermissionError):  # another's, and we are not root
        os.chown(file, -1 if known.uid is None else known.uid, -1 if known.gid is None else known.gid)
    os.chmod(file, known.mode)


def is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_removed(at: bytes) -> bool:
    try:
        os.getxattr(at, REMOVED)
    except OSError:
        return False
    return True


def join(directory: bytes, name: bytes) -> bytes:
    return b"/" + name if directory in (b"/", b"") else directory + b"/" + name


def split(path: bytes) -> tuple[bytes, bytes]:
    """(directory, name); the directory of a top name is b"/"."""
    directory, _, name = path.rpartition(b"/")
    return directory or b"/", name


def throw_away(at: bytes) -> None:
    """Whatever it is; it may be gone by now."""
    try:
        if stat.S_ISDIR(os.lstat(at).st_mode):
            from shutil import rmtree  # rarely wanted, and a fifth of what else this module brings along

            rmtree(at)
        else:
            os.unlink(at)
    except FileNotFoundError:
        pass


def _unmark(at: bytes) -> None:
    """It is on its way to nowhere."""
    for mark in (MOVING, PATH):
        with contextlib.suppress(OSError):
            os.removexattr(at, mark, follow_symlinks=False)


def _mark(at: bytes, mark: str) -> bytes | None:
    try:
        return os.getxattr(at, mark, follow_symlinks=False)
    except OSError:
        return None


def _hides(entry: os.DirEntry[bytes]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return is_removed(entry.path)
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    return is_whiteout(entry.stat(follow_symlinks=False))
