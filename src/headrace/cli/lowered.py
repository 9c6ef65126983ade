"""Starts a node as root and runs it as an unprivileged user (`--user`), and runs root's commands to such a node.

The process mounts as root, then becomes the user, and can't become root again. It reads files that the user can write
(state files, sockets, an index) only with that user's rights.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base import capabilities
from headrace.base.account import Account, account_of, account_with
from headrace.base.capabilities import Capability
from headrace.base.errors import MountError, UsageError
from headrace.base.private_folder import hand_over
from headrace.base.trusted_owner import chosen_by_root, only_root_moves
from headrace.config.load import settle_run_folder
from headrace.config.schema import Config, public_folder_of

if TYPE_CHECKING:
    from headrace.cli.process import MountOptions

NOT_WHERE_WRITTEN = "a user's session registers no files on a writable mount"
TO_MOUNT = frozenset({Capability.SYS_ADMIN})
"""Capability that `up` and the FD store keep, to register files and to unmount."""


@dataclass(frozen=True, slots=True)
class RootsMount:
    """Describes a mount that root made and that no process serves yet; calls on it block until one does.

    fds: as in `fuse/fd_store.py`. passthrough: as in `fuse/session_main.py`.
    """

    mountpoint: str
    fds: tuple[int, int]
    passthrough: str

    def undo(self) -> None:
        """Unmount it, if no process could be started to serve it."""
        from headrace.fuse import device

        for fd in self.fds:
            os.close(fd)
        device.unmount(self.mountpoint, detach=True)


def account_for(config: Config) -> Account | None:
    """Return the user to become; None if the settings name none, or this process is that user. Raises UsageError."""
    if config.seal == "auto" and (config.user or os.geteuid()):
        raise UsageError(
            'setting seal = "auto"',
            why="only root can mount seals, and this node runs as another user",
            hint='use seal = "off", or run the node as root',
        )
    if not config.user:
        return None
    account = account_of(config.user)
    if os.geteuid() == account.uid:
        return None
    if os.geteuid():
        raise UsageError(f"user {account.name}", why="only root can start as another user", hint="use sudo")
    return account


def owner_of(folder: str) -> Account | None:
    """Return the user that owns a node's run folder, for a process of root.

    None where the owner is root, or a user that root did not choose.
    """
    uid = chosen_by_root(folder) if os.geteuid() == 0 else None
    return account_with(uid) if uid else None


def become_owner(folder: str, kept: frozenset[Capability] = capabilities.NONE) -> None:
    """Switch from root to the user that owns a node's run folder. kept: capabilities to keep."""
    owner = owner_of(folder)
    if owner is not None:
        settle_run_folder(folder)
        owner.become(kept)


def start_as(account: Account | None, config: Config) -> None:
    """Run a gateway as its node's user; None keeps this process's user. Raises UsageError if the users differ."""
    if account is None:
        return
    owner = owner_of(config.run_folder)
    if owner is None or owner.uid != account.uid:
        whose = "root's" if owner is None else f"of user {owner.name}"
        raise UsageError(f"user {account.name}", why=f"the node in {config.run_folder} is {whose}")
    become_owner(config.run_folder)


def hand_over_folders(config: Config, account: Account) -> None:
    """Create the caches and the run folder as root, and make the user their owner."""
    for volume in config.cache:
        hand_over(volume.folder, account.uid, account.gid)
    hand_over(config.run_folder, account.uid, account.gid)
    if config.open_to_others:
        hand_over(public_folder_of(config.run_folder), account.uid, account.gid, mode=0o755)
    settle_run_folder(config.run_folder)


def check_program() -> None:
    """Raise UsageError if this process's user can't run this program, or may change it.

    A program that the user may change would give that user the capabilities that it keeps.
    """
    if not os.access(sys.executable, os.X_OK) or not os.access(__file__, os.R_OK):
        raise UsageError(
            f"user {os.geteuid()}",
            why=f"the user may not run {sys.executable} or read {os.path.dirname(__file__)}",
            hint="install Headrace where all users can read it",
        )
    for path in {sys.executable, os.path.dirname(__file__), *sys.path}:
        program = os.path.realpath(path)
        if _may_be_changed(program):
            raise UsageError(
                f"user {os.geteuid()}",
                why=f"the user may change {program}, which would run with rights of root",
                hint="install Headrace as root",
            )


def _may_be_changed(path: str) -> bool:
    """Return whether this user may replace a path, or write into it."""
    if os.access(path, os.W_OK):
        return True
    while path != "/":
        path = os.path.dirname(path)
        if os.access(path, os.W_OK) and not os.stat(path).st_mode & stat.S_ISVTX:
            return True
    return False


def mount_as_root(account: Account, mountpoint: str, run_folder: str, options: MountOptions) -> RootsMount:
    """Mount before this process becomes the user. Raises MountError."""
    from headrace.cli.state import may_be_served
    from headrace.fuse import device, handover_state, mount, probe

    path = mount.mountpoint_path(mountpoint)
    if not only_root_moves(path):
        raise MountError(
            f"cannot mount at {path}",
            why="users other than root may replace a directory of this path",
            hint="choose a mountpoint below directories of root",
        )
    if not account.result_of(lambda: os.access(os.path.dirname(path), os.X_OK)):
        raise MountError(f"cannot mount at {path}", why=f"user {account.name} may not enter its directory")
    passthrough = ""
    if options.writable:
        passthrough = f"no {NOT_WHERE_WRITTEN}"
    elif options.io in ("auto", "passthrough"):
        probed = probe.probe()
        passthrough = f"{'yes' if probed.works else 'no'} {probed.reason}"
    path = mount.prepare(
        path,
        is_served=lambda mount_path: bool(account.result_of(lambda: may_be_served(run_folder, mount_path))),
    )
    fds = device.open_device(), handover_state.create()
    device.mount(
        fds[0],
        path,
        allow_other=options.allow_other,
        read_only=not options.writable,
        server_uid=account.uid,
    )
    device.set_read_ahead(path)
    return RootsMount(path, fds, passthrough)
