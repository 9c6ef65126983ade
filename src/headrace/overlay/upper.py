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
from headrace.base.model import Attributes, Version
from headrace.base.private_folder import make_private
from headrace.overlay import workdir
from headrace.overlay.given_mode import as_given, give_mode
from headrace.overlay.lock import LayerLock

REMOVED = "trusted.headrace.removed"
LOWER_ID = "trusted.headrace.id"
"""Of what the origin had when it came into this layer: the id it had. A directory goes on having it; a file goes on
showing it as its inode number, as programs that change a file in place compare that (vim)."""
BASE = "trusted.headrace.base"
"""Which version of the origin's file this one replaces, and at which path: the condition of its put."""
DEMOTED = "trusted.headrace.left"
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


class BaseVersion(msgspec.Struct, frozen=True):
    """A file of several names (hard links) has one for each."""

    path: bytes
    version: Version


class Upper:
    """folder: of this cache; made when `make` is called."""

    def __init__(self, folder: str) -> None:
        self._mount = LinklessMount(os.fsencode(folder))
        self.tree = Root(self._mount.path + b"/tree", self._mount)
        self.work = Root(self._mount.path + b"/work", self._mount)
        self.gone = Root(self._mount.path + b"/gone", self._mount)
        self.lock = LayerLock(f"{folder}/lock")
        """Whoever changes names holds it."""
        self.pressure_path = f"{folder}/pressure"
        self.marks_path = f"{folder}/marks"

    def make(self) -> None:
        """The folders; the node calls it, at its start."""
        make_private(os.fsdecode(self._mount.path))
        self.tree.make(0o755)
        self.work.make(0o700)
        self.gone.make(0o700)

    def close(self) -> None:
        """Descriptors go. It may be used again."""
        self.lock.close()
        for root in (self.tree, self.work, self.gone):
            root.close()
        self._mount.close()

    def at(self, path: bytes) -> SafePath:
        """Where a path of the namespace lies; b"/" and b"" are the root. Users exchange folders and links there at any
        time."""
        return SafePath(self.tree, path)

    def new(self) -> SafePath:
        """A name in `work` that nobody has."""
        return self.work.at(b"/" + workdir.temp_name(next(_serial)))

    def clear_work(self) -> list[bytes]:
        """What processes that are dead left in `work` goes, but for directories that were being moved, or put away:
        those come to their places. The paths of those that were being moved."""
        moved: list[bytes] = []
        for name in self.work.at(b"/").names():
            at = self.work.at(b"/" + name)
            if not workdir.is_orphaned(name):
                continue
            target = _mark(at, MOVING)
            if target is not None:
                if self._finish_move(at, target):
                    moved.append(target)
            elif _mark(at, PATH) is not None:
                at.rename(self._name_in_gone())
            else:
                at.throw_away()
        return moved

    def move_in(self, at: SafePath, target: bytes) -> None:
        """A directory of `work` comes to its place, in one step: that of what hides the name, or of a directory in
        which nothing is visible. FileExistsError for anything else. The lock is held."""
        to = self.at(target)
        try:
            at.rename(to, NOREPLACE)
        except FileExistsError:
            there = self.look(target)
            if isinstance(there, os.stat_result) and (
                not stat.S_ISDIR(there.st_mode) or any(self.names(target).values())
            ):
                raise
            _unmark(to)  # else it would be taken for one that is being moved
            at.rename(to, EXCHANGE)
            at.throw_away()
        _unmark(to)

    def _finish_move(self, at: SafePath, target: bytes) -> bool:
        try:
            with self.lock:
                self.move_in(at, target)
            return True
        except FileNotFoundError:
            if not at.exists():
                return False  # somebody else did it
            why = "its parent is gone"
        except OSError as error:
            why = str(error)
        log.warning(
            "a folder that was being renamed stays aside path=%s at=%s why=%s",
            *(os.fsdecode(target), at, why),
        )
        return False

    # ------------------------------------------------------------ looking

    def look(self, path: bytes) -> os.stat_result | Hidden | None:
        """None: this layer says nothing of the name. The directory that it is in must be a visible one."""
        at = self.at(path)
        found = at.seen()
        if found is None:
            return None
        if is_whiteout(found) or (stat.S_ISDIR(found.st_mode) and is_removed(at)):
            return HIDDEN
        return as_given(found, at)

    def names(self, directory: bytes) -> dict[bytes, bool]:
        """What this layer says of the names of a directory: whether each one is visible."""
        try:
            with self.at(directory).entries() as found:
                return {entry.name: not _hides(entry) for entry in found}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def walk(self, top: bytes = b"/") -> Iterator[tuple[bytes, os.stat_result]]:
        """Everything at and below a path, hidden things too, a directory before what is in it. What goes meanwhile is
        passed by."""
        for at, found in self.at(top).walk():
            yield at.path, as_given(found, at)

    # ------------------------------------------------------------ hiding

    def hide(self, path: bytes, base: Version | None) -> None:
        """A whiteout in the place of a name, or of a file that is there; base: the origin's version that it hides."""
        self.unmark_left(split(path)[0])
        made = self._whiteout(BaseVersion(path, base) if base is not None else None)
        try:
            made.rename(self.at(path))
        except OSError:
            made.unlink()
            raise

    def hide_missing(self, path: bytes, base: Version | None, *, directory: bool = False) -> bytes | None:
        """Something came to the origin whose name is not here any more: it is to be hidden, and removed there.
        Whiteouts and removed directories are made, for the name and for those above it that are gone, too. The topmost
        path that was made, or that has to be looked at; None when the name is here. The lock is held."""
        if self.at(path).exists():
            return None
        top, missing = path, [split(path)[1]]
        while not self.at(split(top)[0]).exists():
            top = split(top)[0]
            missing.insert(0, split(top)[1])
        parent = split(top)[0]
        made = self.new()
        self._make_chain(
            made, missing, BaseVersion(path, base) if base is not None else None, directory=directory
        )
        if self.at(parent).is_folder():
            made.rename(self.at(top), NOREPLACE)
            return top
        aside = self.new()  # a file, or a whiteout, took the place of a directory above
        aside.mkdir(0o700)
        made.rename(aside / missing[0])
        aside.setxattr(PATH, parent)
        aside.rename(self._name_in_gone())
        return parent

    def _make_chain(
        self, at: SafePath, names: list[bytes], base: BaseVersion | None, *, directory: bool
    ) -> None:
        """Removed directories within each other, the last name a whiteout, or one more of them."""
        for name in names[1:]:
            make_removed(at)
            at = at / name
        if directory:
            make_removed(at)
            return
        make_whiteout(at)
        if base is not None:
            set_base(at, base)

    def _name_in_gone(self) -> SafePath:
        return self.gone.at(b"/%d-%d-%d" % (os.getpid(), next(_serial), time.time_ns()))

    def _whiteout(self, base: BaseVersion | None) -> SafePath:
        made = self.new()
        make_whiteout(made)
        if base is not None:
            set_base(made, base)
        return made

    def mark_removed(self, directory: bytes) -> None:
        """The directory it is in shows the change, as if the name were gone from it."""
        self.at(directory).setxattr(REMOVED, b"")
        self.at(split(directory)[0]).utime()

    def unmark_removed(self, directory: bytes) -> None:
        """The directory it is in shows that, too."""
        self.at(directory).removexattr(REMOVED)
        self.at(split(directory)[0]).utime()

    def mark_left(self, directory: bytes) -> None:
        self.at(directory).setxattr(DEMOTED, b"")

    def unmark_left(self, directory: bytes) -> None:
        """Something was removed here: from now on it may be empty because somebody here wants it so."""
        with contextlib.suppress(OSError):
            self.at(directory).removexattr(DEMOTED)

    def was_left(self, directory: bytes) -> bool:
        try:
            self.at(directory).getxattr(DEMOTED)
        except OSError:
            return False
        return True

    def put_away(self, path: bytes) -> None:
        """A removed directory makes room for a file; the node finds it in `gone`. Until the file comes a whiteout hides
        what it hid."""
        at, base = self.at(path), self.base_of(path)
        at.setxattr(PATH, path)
        made = self._whiteout(BaseVersion(path, base) if base is not None else None)
        made.rename(at, EXCHANGE)
        failpoint.hit("tree.away")
        made.rename(self._name_in_gone())

    def put_aside(self) -> list[tuple[SafePath, bytes]]:
        """What is in `gone`: (where it lies, where it was)."""
        found = []
        for name in self.gone.at(b"/").names():
            at = self.gone.at(b"/" + name)
            try:
                found.append((at, at.getxattr(PATH)))
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
        self.at(source).rename(self.at(target), WHITEOUT)
        if base is not None:
            set_base(self.at(source), BaseVersion(source, base))

    def exchange(self, source: bytes, target: bytes) -> None:
        """Two visible things change places, atomically; each goes on knowing what it replaces at the origin."""
        bases = [(source, target, self.base_of(target)), (target, source, self.base_of(source))]
        for path, becomes, base in bases:
            if base is not None:
                set_base(self.at(path), BaseVersion(becomes, base))
        self.at(source).rename(self.at(target), EXCHANGE)

    # ------------------------------------------------------------ placing

    def place(self, made: SafePath, path: bytes) -> bool:
        """A file of `work` gets its name, unless that is taken by something that is not a whiteout: False."""
        at = self.at(path)
        while True:
            try:
                made.rename(at, NOREPLACE)
                return True
            except FileExistsError:
                try:
                    if not is_whiteout(at.lstat()):
                        return False
                except FileNotFoundError:
                    continue
                made.rename(at)  # whoever else takes the whiteout's place just now loses, as if it came first
                return True

    def base_of(self, path: bytes) -> Version | None:
        """What the object of this layer at a path replaces at the origin; None: nothing that it knows of."""
        return base_version(self.at(path), path)


def base_version(at: SafePath | int, path: bytes) -> Version | None:
    """at: or an open file."""
    return next((base.version for base in _bases(at) if base.path == path), None)


def set_base(at: SafePath, base: BaseVersion) -> None:
    others = [one for one in _bases(at) if one.path != base.path]
    value = msgspec.msgpack.encode([*others[-BASES_MAX:], base])
    at.setxattr(BASE, value)


def drop_base(at: SafePath, path: bytes) -> None:
    """It replaces nothing at this path."""
    others = [one for one in _bases(at) if one.path != path]
    at.setxattr(BASE, msgspec.msgpack.encode(others))


def _bases(at: SafePath | int) -> list[BaseVersion]:
    try:
        value = os.getxattr(at, BASE) if isinstance(at, int) else at.getxattr(BASE)
        return decode_msgpack(value, list[BaseVersion])
    except (OSError, msgspec.MsgspecError):
        return []


def apply_attributes(file: int | SafePath, known: Attributes | None) -> None:
    """Mode and owner that a file had when this node put it to its origin, where they are known."""
    if known is None or known.mode is None:
        return
    uid, gid = -1 if known.uid is None else known.uid, -1 if known.gid is None else known.gid
    with contextlib.suppress(PermissionError):  # another's, and we are not root
        os.fchown(file, uid, gid) if isinstance(file, int) else file.chown(uid, gid)
    give_mode(file, known.mode)


def is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def make_whiteout(at: SafePath) -> None:
    at.mknod(stat.S_IFCHR, os.makedev(0, 0))


def make_removed(at: SafePath) -> None:
    """A folder that hides what the origin has there."""
    at.mkdir(0o755)
    at.setxattr(REMOVED, b"")


def is_removed(at: SafePath) -> bool:
    """By a descriptor: a look at each folder of a path is what most calls here do, and by /proc/self/fd it takes
    longer."""
    fd = -1
    try:
        fd = at.open(os.O_RDONLY | os.O_DIRECTORY)
        os.getxattr(fd, REMOVED)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def join(directory: bytes, name: bytes) -> bytes:
    return b"/" + name if directory in (b"/", b"") else directory + b"/" + name


def split(path: bytes) -> tuple[bytes, bytes]:
    """(directory, name); the directory of a top name is b"/"."""
    directory, _, name = path.rpartition(b"/")
    return directory or b"/", name


def _unmark(at: SafePath) -> None:
    """It is on its way to nowhere."""
    for mark in (MOVING, PATH):
        with contextlib.suppress(OSError):
            at.removexattr(mark)


def _mark(at: SafePath, mark: str) -> bytes | None:
    try:
        return at.getxattr(mark)
    except OSError:
        return None


def _hides(entry: os.DirEntry[bytes]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return _has_removed_mark(entry.path)
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    return is_whiteout(entry.stat(follow_symlinks=False))


def _has_removed_mark(path: bytes) -> bool:
    """path: of an entry of a directory that is held."""
    try:
        os.getxattr(path, REMOVED, follow_symlinks=False)
    except OSError:
        return False
    return True
