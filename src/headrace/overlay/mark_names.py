"""Name the extended attributes that mark entries of the upper layer.

The layers of root have marks in `trusted.headrace.`, which the kernel keeps from users. Another user's node may not set
those, so its layers have the marks in `user.headrace.`. Nobody else enters their directory, and the mount hides these
names. The two kinds differ on disk in more than names, so a process opens layers of one kind only, that of its user:

* all entries of a user's layer belong to that user, whoever made them;
* that user can read and write all files and directories on disk; `given_mode.py` keeps the modes that the mount shows;
* a whiteout is a plain file with the mode WHITEOUT_MODE, because a device has no attribute in `user.`. Neither has a
  link, a fifo or a socket. Such an entry can't record what it replaces, and the call that would need it fails (EPERM).
"""

from __future__ import annotations

import os
import stat

WHITEOUT_MODE = stat.S_IFREG | stat.S_ISVTX | 0o640
"""No other file of a user's layer has it: those with a sticky bit are 01600 (`given_mode.py`)."""
HIDDEN_FROM_USERS = ("trusted.headrace.", "user.headrace.")
"""The prefixes of attributes that no caller of a mount or a gateway sees or sets."""


class MarkNames:
    """The names that this process uses; `MARKS` is the only object. single_owner: its layers are a user's."""

    __slots__ = (
        *("base", "copy", "demoted", "extras", "leased", "lower_id", "mode", "moving", "owner_bits"),
        *("path", "published", "removed", "s3", "s3_folder", "single_owner"),
    )

    def __init__(self) -> None:
        self.settle()

    def settle(self) -> None:
        """Choose the names for the user of this process, which may have been root when it started."""
        self.single_owner = os.geteuid() != 0
        self.owner_bits = 0o600 if self.single_owner else 0
        """Permissions that every plain file has on disk."""
        prefix = "user.headrace." if self.single_owner else "trusted.headrace."
        self.removed = prefix + "removed"
        """A directory was removed, with all names that its whiteouts hide."""
        self.lower_id = prefix + "id"
        """The id of the origin's entry that was copied up. A directory keeps that id. A file keeps showing it as its
        inode number, as programs that change a file in place compare it (vim)."""
        self.base = prefix + "base"
        """The version of the origin's file that this one replaces, and its path: the precondition of the upload."""
        self.demoted = prefix + "left"
        """On a directory: the node demoted files of it to the cache. A directory without entries exists only because
        the origin has it, and is removed when the origin has it no more."""
        self.path = prefix + "path"
        """On a directory in `gone`, or in `work` on its way there: its former path."""
        self.moving = prefix + "moving"
        """On a directory: the path that it moves to. The mark is valid only while the directory is in `work`. On a
        file: likewise, and NUL with its name in `work`."""
        self.mode = prefix + "mode"
        self.extras = prefix + "extras"
        self.published = prefix + "told"
        self.leased = prefix + "right"
        self.copy = prefix + "copy"
        self.s3 = prefix + "s3"
        self.s3_folder = prefix + "folder"
        """On a directory that was put as an object, `key/`: it stays when it is empty."""


MARKS = MarkNames()
