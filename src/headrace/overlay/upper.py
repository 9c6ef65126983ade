"""Hold the files that were written on this node, as a real directory tree on its disk.

Paths of the namespace (b"/a/b") are below `tree`, with the attributes, links and extended attributes that the local
file system stores. The origin is the lower layer; a name of the upper layer hides the same name of the lower one. Some
entries stand for names that do not exist, or are outside the tree, and users never see them:

* A whiteout, a character device 0:0 as in overlayfs, means that the name was removed. In the layer of a user without
  rights it is a file (`mark_names.py`).
* A directory with the mark `removed` was removed, with all names that its whiteouts hide. If it is created again, it
  loses the mark.
* `work`, beside the tree, has entries that are being created or moved. After a crash `clear_work` (`moves.py`) moves
  them to their place or deletes them.
* `gone`, beside the tree, has removed directories whose place a file took. The node still removes them at the origin.

Sessions write here, and the node reads and persists, both only by steps that the file system makes atomic. All state is
in the directory. Every call may raise OSError.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
import time
from collections.abc import Iterator

from headrace.base.beneath import NOREPLACE, LinklessMount, Root, SafePath
from headrace.base.errors import UsageError
from headrace.base.model import Version
from headrace.base.namespace_path import split
from headrace.base.private_folder import make_private
from headrace.overlay import workdir
from headrace.overlay.given_mode import as_given
from headrace.overlay.lock import LayerLock
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import base_version, is_marked, is_removed, is_whiteout, mark_value

TREES = ("tree", "work", "gone")
"""Names of the directories in a layer's directory."""
_LOCK, _PRESSURE, _MARKS = "lock", "pressure", "marks"
_SINGLE_OWNER = "single-owner"
"""Name of a file that exists if the layer's marks and modes are those of a user without rights."""
SMALL_FILES = (_LOCK, _PRESSURE, _MARKS, _SINGLE_OWNER)
"""Names of the files beside the directories."""

log = logging.getLogger(__name__)
_serial = itertools.count()


class Hidden:
    """Mark a name that the upper layer removed, whatever the lower layer has."""


HIDDEN = Hidden()


class Upper:
    """Hold the upper layer in a directory of this cache. `make` creates the directory."""

    def __init__(self, directory: str) -> None:
        MARKS.choose()
        self._mount = LinklessMount(os.fsencode(directory))
        self.tree, self.work, self.gone = (
            Root(self._mount.path + b"/" + name.encode(), self._mount) for name in TREES
        )
        self._beside = Root(self._mount.path)
        self.lock = LayerLock(f"{directory}/{_LOCK}")
        """Held by a thread while it changes names."""
        self.pressure_path = f"{directory}/{_PRESSURE}"
        self.marks_path = f"{directory}/{_MARKS}"

    def make(self) -> None:
        """Create the directories. The node calls it when it starts. Raises UsageError if the layer's marks are of the
        other kind."""
        make_private(os.fsdecode(self._mount.path))
        self.tree.make(0o755)
        self._check_kind()
        self.work.make(0o700)
        self.gone.make(0o700)

    def _check_kind(self) -> None:
        """Refuse a layer whose marks this process can't read, and record the kind of a new one."""
        directory, root = os.fsdecode(self._mount.path), self._beside
        record = root.at(b"/" + _SINGLE_OWNER.encode())
        is_users = record.exists()
        if MARKS.single_owner and not is_users and not self.tree.at(b"/").names():
            root.at(b"/").setxattr(MARKS.mode, b"")  # a file system without such attributes is refused now
            os.close(record.open(os.O_WRONLY | os.O_CREAT, 0o600))
            root.at(b"/").sync()  # a layer that lost its record would be refused
        elif is_users != MARKS.single_owner:
            writer, reader = ("a user's node", "root's") if is_users else ("root's node", "a user's")
            raise UsageError(
                f"directory {directory}",
                why=f"{writer} wrote its files, and {reader} can't read their marks",
                hint="start the node as before, persist the files, then remove this directory",
            )

    def close(self) -> None:
        """Close all descriptors. The object can be used again."""
        self.lock.close()
        for root in (self.tree, self.work, self.gone, self._beside):
            root.close()
        self._mount.close()

    def at(self, path: bytes) -> SafePath:
        """Return where a path of the namespace lies; b"/" and b"" are the root. Users may exchange directories and
        links there at any time."""
        return SafePath(self.tree, path)

    def beside(self, path: bytes) -> SafePath:
        """Return where a file beside the tree lies, which only this process's user reaches."""
        return self._beside.at(path)

    def new(self) -> SafePath:
        """Return a new name in `work`."""
        return self.work.at(b"/" + workdir.temp_name(next(_serial)))

    # ------------------------------------------------------------ looking

    def lookup(self, path: bytes) -> os.stat_result | Hidden | None:
        """Return the status of a name; None if this layer does not have it. The directory of the name must be
        visible."""
        status = self.tree.seen(path)
        if status is None:
            return None
        upper_path = self.at(path)
        if is_whiteout(status) or (stat.S_ISDIR(status.st_mode) and is_removed(upper_path)):
            return HIDDEN
        return as_given(status, upper_path)

    def names(self, directory: bytes) -> dict[bytes, bool]:
        """Return the names of a directory in this layer, and whether each one is visible. A name that disappears
        meanwhile is left out."""
        names: dict[bytes, bool] = {}
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self.at(directory).entries() as entries,
        ):
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    names[entry.name] = not _hides(entry)
        return names

    def walk(
        self, top: bytes = b"/", unread: dict[bytes, OSError] | None = None
    ) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield everything at and below a path, hidden entries too, each directory before its entries. Entries that
        disappear meanwhile are skipped. unread: gets the errors of paths that can't be read, and of directories whose
        names can't; by default the first one is raised."""

        def on_error(upper_path: SafePath, error: OSError) -> None:
            if unread is None:
                raise error
            unread[upper_path.path] = error

        for upper_path, status in self.at(top).walk(on_error):
            try:
                given = as_given(status, upper_path)
            except OSError as error:
                on_error(upper_path, error)
            else:
                yield upper_path.path, given

    # ------------------------------------------------------------ marks

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
        """Clear DEMOTED after a removal: from now on the directory may be empty because a user on this host removed its
        files."""
        with contextlib.suppress(OSError):
            self.at(directory).removexattr(MARKS.demoted)

    def has_demoted_files(self, directory: bytes) -> bool:
        """Return whether files of a directory were demoted to the cache. Raises OSError if that is not known now."""
        return mark_value(self.at(directory), MARKS.demoted) is not None

    # ------------------------------------------------------------ placing

    def new_in_gone(self) -> SafePath:
        """Return a new name in `gone`."""
        return self.gone.at(b"/%d-%d-%d" % (os.getpid(), next(_serial), time.time_ns()))

    def place(self, file: SafePath, path: bytes) -> bool:
        """Give a file of `work` its name. Return False if the name exists and is no whiteout."""
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
                # a file that replaces the whiteout at this moment is lost, as if it had been created and replaced
                file.rename(upper_path)
                return True

    def base_of(self, path: bytes) -> Version | None:
        """Return the version that the entry at a path replaces at the origin; None if none is recorded."""
        return base_version(self.at(path), path)


def _hides(entry: os.DirEntry[bytes]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return _has_removed_mark(entry.path)
    if entry.is_file(follow_symlinks=False) and not MARKS.single_owner:
        return False
    if entry.is_symlink():
        return False
    return is_whiteout(entry.stat(follow_symlinks=False))


def _has_removed_mark(path: bytes) -> bool:
    """Return whether an entry of an open directory has the mark. Raises OSError as `is_removed` does."""
    try:
        os.getxattr(path, MARKS.removed, follow_symlinks=False)
    except OSError as error:
        return is_marked(error)
    return True
