"""Name the extended attributes that mark entries of the upper layer.

The layers of root have marks in `trusted.headrace.`, which the kernel hides from users. Another user's node may not set
those, so its layers have marks in `user.headrace.`. Only that user can enter their directory, and the mount hides these
names. The two kinds differ on disk in more than names. A process therefore opens layers of one kind only, that of its
user:

* All entries of a user's layer belong to that user.
* That user can read and write all files and directories on disk; `given_mode.py` keeps the modes that the mount shows.
* A whiteout is a plain file with the mode WHITEOUT_MODE, because a device has no attributes in `user.`.
* A link, a fifo or a socket has none either. It can't record which version it replaces, and a call that needs that
  fails (EPERM).
"""

from __future__ import annotations

import os
import stat

WHITEOUT_MODE = stat.S_IFREG | stat.S_ISVTX | 0o640
"""Mode of a whiteout in a user's layer. No other file has it: those with a sticky bit are 01600 (`given_mode.py`)."""
HIDDEN_FROM_USERS = ("trusted.headrace.", "user.headrace.")
"""Prefixes of attributes that no caller of a mount or a gateway can read or set."""


class MarkNames:
    """Hold the names that this process uses; `MARKS` is the only object. single_owner: its layers belong to a user
    without rights."""

    __slots__ = (
        *("base", "copy", "demoted", "extras", "leased", "lower_id", "mode", "moving", "owner_bits"),
        *("path", "published", "removed", "s3", "s3_folder", "single_owner"),
    )

    def __init__(self) -> None:
        self.choose()

    def choose(self) -> None:
        """Choose the names for the user of this process, which may have been root when it started."""
        self.single_owner = os.geteuid() != 0
        self.owner_bits = 0o600 if self.single_owner else 0
        """Permissions that every plain file has on disk."""
        prefix = "user.headrace." if self.single_owner else "trusted.headrace."
        self.removed = prefix + "removed"
        """A directory was removed, with all names that its whiteouts hide."""
        self.lower_id = prefix + "id"
        """The id of the origin's entry that was copied up. A directory keeps that id. A file still shows it as its
        inode number, because programs that change a file in place compare it (vim)."""
        self.base = prefix + "base"
        """The version of the origin's file that this one replaces, and its path: the precondition of the upload."""
        self.demoted = prefix + "left"
        """The node demoted files of this directory to the cache. Without entries it exists only because the origin
        has it. It is removed once the origin no longer has it."""
        self.path = prefix + "path"
        """The former path of a directory in `gone`, or on its way there in `work`."""
        self.moving = prefix + "moving"
        """The path that the entry moves to. A file also has NUL and its name in `work`. The mark is valid only while
        the entry is in `work`."""
        self.mode = prefix + "mode"
        """The mode of an entry whose mode on disk differs (`given_mode.py`)."""
        self.extras = prefix + "extras"
        """The attributes of an S3 object besides those of a file (`object_metadata.py`)."""
        self.published = prefix + "told"
        """The cluster's records cover the dirty names of this directory (`lease_marks.py`)."""
        self.leased = prefix + "right"
        """This node has the lease to create names in this directory exclusively (`lease_marks.py`)."""
        self.copy = prefix + "copy"
        """The inode number, ctime in ns and size of the writer's file of which this is a replica."""
        self.s3 = prefix + "s3"
        self.s3_folder = prefix + "folder"
        """The directory was uploaded as an object, `key/`: it stays when it is empty."""


MARKS = MarkNames()
