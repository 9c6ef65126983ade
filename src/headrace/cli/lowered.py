"""Starting as root, and going on as an unprivileged user (`--user`); and root's commands to such a node.

Root makes what only root can, the mount among it, becomes the user, and never is root again. What the user could have
prepared - state files, sockets, an index - is looked at in that user's name only.
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

TO_MOUNT = frozenset({Capability.SYS_ADMIN})
"""What `up` and the holder keep of root's rights, to register files, and to unmount."""


@dataclass(frozen=True, slots=True)
class RootsMount:
    """A mount that root made, and nobody serves yet: a look at it waits until somebody does. fds: of
    `fuse/fd_store.py`. passthrough: of `fuse/session_main.py`."""

    mountpoint: str
    fds: tuple[int, int]
    passthrough: str

    def undo(self) -> None:
        """Where nobody came to serve it."""
        from headrace.fuse import device

        for fd in self.fds:
            os.close(fd)
        device.unmount(self.mountpoint, detach=True)


def account_for(config: Config) -> Account | None:
    """The user that is asked for; None where this process is that user, or none is. UsageError."""
    if not config.user:
        return None
    account = account_of(config.user)
    if os.geteuid() == account.uid:
        return None
    if os.geteuid():
        raise UsageError(f"user {account.name}", why="only root can start as another user", hint="use sudo")
    return account


def owner_of(folder: str) -> Account | None:
    """For a process of root's: the user of the node whose folder it is; None where that is root, or nobody whom root
    chose."""
    uid = chosen_by_root(folder) if os.geteuid() == 0 else None
    return account_with(uid) if uid else None


def become_owner(folder: str, kept: frozenset[Capability] = capabilities.NONE) -> None:
    """Root's command to a node of another user goes on as that user."""
    owner = owner_of(folder)
    if owner is not None:
        settle_run_folder(folder)
        owner.become(kept)


def start_as(account: Account | None, config: Config) -> None:
    """A gateway is of its node's user. None: as this process is."""
    if account is None:
        return
    owner = owner_of(config.run_folder)
    if owner is None or owner.uid != account.uid:
        whose = "root's" if owner is None else f"of user {owner.name}"
        raise UsageError(f"user {account.name}", why=f"the node in {config.run_folder} is {whose}")
    become_owner(config.run_folder)


def hand_over_folders(config: Config, account: Account) -> None:
    """What the node writes is its user's: caches and the run folder, where root makes them."""
    for volume in config.cache:
        hand_over(volume.folder, account.uid, account.gid)
    hand_over(config.run_folder, account.uid, account.gid)
    if config.open_to_others:
        hand_over(public_folder_of(config.run_folder), account.uid, account.gid, mode=0o755)
    settle_run_folder(config.run_folder)


def check_program() -> None:
    """Refuse where this process's user can't run this program, or may change it: what it has of root's rights would be
    anybody's who is that user. UsageError."""
    if not os.access(sys.executable, os.X_OK) or not os.access(__file__, os.R_OK):
        raise UsageError(
            f"user {os.geteuid()}",
            why=f"it may not run {sys.executable} or read {os.path.dirname(__file__)}",
            hint="install Headrace where all users can read it",
        )
    for one in {sys.executable, os.path.dirname(__file__), *sys.path}:
        place = os.path.realpath(one)
        if _may_be_changed(place):
            raise UsageError(
                f"user {os.geteuid()}",
                why=f"it may change {place}, which root's rights would run",
                hint="install Headrace as root",
            )


def _may_be_changed(path: str) -> bool:
    """Whether this user may put something else in a path's place, or into it."""
    if os.access(path, os.W_OK):
        return True
    while path != "/":
        path = os.path.dirname(path)
        if os.access(path, os.W_OK) and not os.stat(path).st_mode & stat.S_ISVTX:
            return True
    return False


def mount_as_root(account: Account, mountpoint: str, run_folder: str, options: MountOptions) -> RootsMount:
    """The mount, made before this process becomes the user. MountError."""
    from headrace.cli.supervise import may_be_served
    from headrace.fuse import device, handover_state, mount, probe

    if options.writable:
        raise MountError(
            f"cannot mount at {mountpoint}",
            why=f"what users write there is kept by root, and the node is of user {account.name}",
            hint="leave --write or --user out",
        )
    path = mount.place_of(mountpoint)
    if not only_root_moves(path):
        raise MountError(
            f"cannot mount at {path}",
            why="others than root may exchange a folder on the way there",
            hint="name one below folders of root's",
        )
    if not account.result_of(lambda: os.access(os.path.dirname(path), os.X_OK)):
        raise MountError(f"cannot mount at {path}", why=f"user {account.name} may not go there")
    passthrough = ""
    if options.io in ("auto", "passthrough"):
        probed = probe.probe()
        passthrough = f"{'yes' if probed.works else 'no'} {probed.reason}"
    path = mount.prepare(
        path, is_served=lambda at: bool(account.result_of(lambda: may_be_served(run_folder, at)))
    )
    fds = device.open_device(), handover_state.create()
    device.mount(fds[0], path, allow_other=options.allow_other, server_uid=account.uid)
    device.set_read_ahead(path)
    return RootsMount(path, fds, passthrough)
