"""Supervises the processes of `up` and `fuse`: starts node and FD store, restarts a dead node, ends both in order.

One thread waits by one `select` for signals, ready pipes and the exit of each process. The FD store restarts its
session. A session replaces an FD store that was killed, and the supervisor then follows the new one. If both were
killed, the supervisor starts another FD store: it keeps the descriptors of the mount, so no reader sees an error.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import CancelledByUserError, DeadlineExceededError, HeadraceError
from headrace.base.hangup import unless_ignored
from headrace.base.mount_table import mounted_at
from headrace.base.trusted_owner import only_root_moves
from headrace.cli.exclusive_mounts import ExclusiveMounts, ExclusiveWatch, unmount_exclusive
from headrace.cli.gateways import KeptGateway, configured_kinds
from headrace.cli.process import Child, MountOptions, start_fd_store, start_node
from headrace.cli.render import warn
from headrace.cli.repeated_failure import RepeatedFailure
from headrace.cli.sealed_mounts import SealMounts, uncover
from headrace.cli.state import (
    RunState,
    drop_socket,
    encoded_state,
    make_run_folder,
    may_be_served,
    remove_replaced,
    remove_state,
    send,
    write_state,
)
from headrace.config.schema import Config

if TYPE_CHECKING:
    from headrace.cli.lowered import RootsMount
    from headrace.fuse.servers import Servers

READY_WITHIN_S = 60.0
"""Seconds within which a process must be ready."""
STEADY_S = 30.0
"""A node that ran for this many seconds did not fail at its start: it is started again after the shortest pause."""
SAVE_AGAIN_S = 5.0
"""Seconds before a state that could not be written is written again."""
FD_STORE_AGAIN_S = 1.0
"""Seconds before the start of an FD store that failed is tried again."""
BACKOFF_S_MAX = 10.0
"""Longest pause before a node is started again, in seconds."""
FD_STORE_STOP_S = 10.0
"""Seconds that the FD store has to end after SIGTERM."""
REPLACED_WITHIN_S = 5.0
"""Seconds within which a session must have replaced an FD store that died; after that it is killed."""
MOUNT_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks of the mounts of seals and of exclusive directories."""
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
"""Exit statuses of a node that LMDB crashed."""
NODE_STOP_S = 20.0
"""Seconds that a node has to end after SIGTERM."""


class Supervisor:
    """Runs a node, its mount and its gateways until a signal arrives. Handles SIGTERM, SIGINT, and SIGHUP unless it is
    ignored.

    config: the configuration of the node to run; None if the node runs already and listens at `state.socket`. state: it
    is written to run_folder when all is ready. mounted: the mount that root made before this process became another
    user. exclusive: the exclusive directories to mount over the mount.
    """

    def __init__(
        self,
        state: RunState,
        run_folder: str,
        *,
        config: Config | None,
        mount: MountOptions,
        mounted: RootsMount | None = None,
        exclusive: ExclusiveMounts | None = None,
    ) -> None:
        make_run_folder(run_folder)
        encoded_state(state)  # a path that is not UTF-8 fails now, and not when all processes run
        self.state = state
        self._run_folder = run_folder
        self._config = config
        self._mount = mount
        self._mounted = mounted
        self._exclusive = exclusive
        self._exclusive_watch: ExclusiveWatch | None = None
        self._node: Child | None = None
        self._fd_store: Child | None = None
        self._gateways: list[KeptGateway] = []
        self._fd_store_exit_fd = -1
        self._mount_fds: tuple[int, int] | None = None
        self._servers: Servers | None = None
        self._stopping = False
        self._deaths = 0
        self._node_began_s = 0.0
        self._again_at_s: float | None = None
        self._save_at_s: float | None = None
        self._seal_mounts = SealMounts(self.state) if config is not None else None
        self._mount_check_at_s = 0.0 if config is not None and os.geteuid() == 0 else None
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in unless_ignored(signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def run(self, on_ready: Callable[[RunState], None]) -> None:
        """Run until a signal, or until the mount is unmounted by another program.

        All processes that it started have ended when it returns or raises.
        """
        try:
            self._start()
            write_state(self._run_folder, self.state)
            remove_replaced(self._run_folder, self.state)
            on_ready(self.state)
            while not self._stopping:
                self._step()
        finally:
            self._stop()

    def restore_seals(self) -> None:
        """Mount the seals of the node at the places that they had before. Call it when the mount is ready."""
        if self._seal_mounts is not None:
            self._seal_mounts.restore()

    def _on_signal(self, *_: object) -> None:
        self._stopping = True

    # ------------------------------------------------------------ start

    def _start(self) -> None:
        kinds = configured_kinds(self._config) if self._config is not None else []
        if self._config is not None:
            self._start_node()
        if self.state.mountpoint:
            from headrace.fuse import device, handover_state, mount
            from headrace.fuse.servers import Servers

            self._servers = Servers.open(self._run_folder, mount.mountpoint_path(self.state.mountpoint))
            if self._mounted is not None:
                self.state.mountpoint, self._mount_fds = self._mounted.mountpoint, self._mounted.fds
            else:
                self._uncover_dead(mount.mountpoint_path(self.state.mountpoint))
                self.state.mountpoint = mount.prepare(  # while the node starts
                    self.state.mountpoint,
                    is_served=lambda path: may_be_served(self._run_folder, path),
                )
                self._mount_fds = device.open_device(), handover_state.create()
        if self._node is not None:
            self._await_node()
        if self.state.mountpoint:
            self._fd_store = self._start_fd_store(mounted=False)
            answer = self._await(self._fd_store)
            self.state.fd_store_pid = int(str(answer.get("pid", self._fd_store.pid)))
            self.state.session_pid = int(str(answer.get("session_pid", 0)))
            self.state.io, self.state.why = str(answer.get("io", "")), str(answer.get("why", ""))
            self._fd_store_exit_fd = self._fd_store.exit_fd
            self._mount_exclusive()
        for kind in kinds:
            assert self._config is not None
            gateway = KeptGateway(kind, self._config, self.state.socket, self.state.log)
            self._gateways.append(gateway)
            answer = self._await(gateway.child)
            setattr(self.state, kind.word, kind.url(self._config, answer["address"]))
            if answer["credentials"]:
                self.state.credentials[kind.word] = str(answer["credentials"])

    def _mount_exclusive(self) -> None:
        if not self._exclusive:
            return
        self._exclusive.mount(self.state.mountpoint)
        self._exclusive_watch = ExclusiveWatch(self._exclusive, self.state.mountpoint)
        self._mount_check_at_s = time.monotonic() + MOUNT_CHECK_INTERVAL_S

    def _uncover_dead(self, mountpoint: str) -> None:
        """Unmount the seals and exclusive directories over a mount that killed processes left."""
        if not may_be_served(self._run_folder, mountpoint):
            uncover(mountpoint)
            unmount_exclusive(mountpoint)

    def _await_node(self) -> None:
        """Wait for the node. Restart it once with a new index if it crashed: LMDB crashes on a damaged index."""
        assert self._node is not None
        try:
            self._await(self._node)
        except HeadraceError:
            if self._node.process.returncode not in CRASHES:
                raise
            self._suspect_index()
            self._start_node()
            self._await(self._node)

    def _suspect_index(self) -> None:
        from headrace.node.cache import mark_index_corrupt

        assert self._config is not None
        assert self._node is not None
        warn(f"the node crashed (status {self._node.process.returncode}); it restarts with a new index")
        mark_index_corrupt(self._config)

    def _start_fd_store(self, *, mounted: bool) -> Child:
        assert self._mount_fds is not None
        assert self._servers is not None
        return start_fd_store(
            self.state.mountpoint,
            self.state.socket,
            self.state.log,
            self._mount,
            fds=self._mount_fds,
            lock_fd=self._servers.fd,
            passthrough=None if self._mounted is None else self._mounted.passthrough,
            mounted=mounted,
        )

    def _start_node(self, *, again: bool = False) -> None:
        assert self._config is not None
        self._node = start_node(self._config, self.state.log, again=again)
        self._node_began_s = time.monotonic()
        self.state.node_pid = self._node.pid

    def _await(self, child: Child) -> dict[str, object]:
        until_s = time.monotonic() + READY_WITHIN_S
        while True:
            ready, _, _ = select.select(
                [child.ready_fd, self._wake], [], [], max(0.0, until_s - time.monotonic())
            )
            if self._stopping:
                raise CancelledByUserError(f"headrace {self.state.kind}", why="stopped before it was ready")
            if child.ready_fd in ready and (answer := child.read_ready()) is not None:
                return answer
            if not ready:
                raise DeadlineExceededError(
                    f"the {child.name} process is not ready after {READY_WITHIN_S:.0f} s",
                    hint=f"see {child.log_path}",
                )

    # ------------------------------------------------------------ while it runs

    def _step(self) -> None:
        ready = self._wait()
        if self._stopping:
            return
        self._check_mounts()
        if self._save_at_s is not None and time.monotonic() >= self._save_at_s:
            self._save_state()
        if self._wake in ready:
            os.read(self._wake, 64)
        for gateway in self._gateways:
            gateway.handle(ready)
        if self._fd_store_exit_fd in ready:
            self._on_fd_store_ended()
        elif self._again_at_s is not None and time.monotonic() >= self._again_at_s:
            self._start_node_again()
        elif self._node is not None and self._node.ready_fd in ready:
            self._read_ready_again()
        elif self._node is not None and self._node.exit_fd in ready:
            self._on_node_ended(f"status {self._node.process.wait()}")

    def _check_mounts(self) -> None:
        """Mount the seals and exclusive directories over the mount that are not mounted, or have changed."""
        if self._mount_check_at_s is None or time.monotonic() < self._mount_check_at_s:
            return
        if self._seal_mounts is not None:
            self._seal_mounts.check()
        if self._exclusive_watch is not None:
            self._exclusive_watch.look()
        self._mount_check_at_s = time.monotonic() + MOUNT_CHECK_INTERVAL_S

    def _wait(self) -> list[int]:
        """Wait for a descriptor or the next restart that is due; return the descriptors that are ready."""
        fds = [self._wake, self._fd_store_exit_fd]
        if self._node is not None:
            fds += [self._node.ready_fd, self._node.exit_fd]
        for gateway in self._gateways:
            fds += gateway.descriptors()
        dues_s = [
            self._again_at_s,
            self._mount_check_at_s,
            self._save_at_s,
            *(gateway.again_at_s for gateway in self._gateways),
        ]
        due_s = [due for due in dues_s if due is not None]
        wait_s = max(0.0, min(due_s) - time.monotonic()) if due_s else None
        return select.select([fd for fd in fds if fd >= 0], [], [], wait_s)[0]

    def _start_node_again(self) -> None:
        """Start the node again. If the system has no memory or process for it, try again after the longest pause."""
        try:
            self._start_node(again=True)
        except OSError as error:
            self._again_at_s = time.monotonic() + BACKOFF_S_MAX
            warn(f"the node can't be started: {error} (tried again in {BACKOFF_S_MAX:.0f} s)")
        else:
            self._again_at_s = None
            self._save_state()

    def _save_state(self) -> None:
        """Write the state. If the disk is full, for one, say so once, and write it later: all processes continue."""
        try:
            write_state(self._run_folder, self.state)
        except OSError as error:
            if self._save_at_s is None:
                warn(
                    f"the state of this command can't be written: {error} (tried every {SAVE_AGAIN_S:.0f} s)"
                )
            self._save_at_s = time.monotonic() + SAVE_AGAIN_S
        else:
            self._save_at_s = None

    def _read_ready_again(self) -> None:
        assert self._node is not None
        try:
            if self._node.read_ready() is not None:
                warn("the node is ready again")
        except HeadraceError as error:
            self._on_node_ended(str(error))

    def _on_node_ended(self, why: str) -> None:
        assert self._node is not None
        self._node.stop(1)
        steady = time.monotonic() - self._node_began_s > STEADY_S
        self._deaths = 0 if steady else self._deaths + 1
        if self._deaths > 1 and self._node.process.returncode in CRASHES:
            self._suspect_index()
        self._node = None
        pause_s = min(BACKOFF_S_MAX, 0.1 * 2.0 ** min(self._deaths, 8))
        self._again_at_s = time.monotonic() + pause_s
        warn(f"the node ended: {why} (it restarts in {pause_s:.1f} s)")

    def _on_fd_store_ended(self) -> None:
        """Follow the FD store that the session started, or start one if the session is dead, too."""
        os.close(self._fd_store_exit_fd)
        if self._fd_store is not None:
            self._fd_store.process.wait()
            self._fd_store.drop_ready()
            self._fd_store.exit_fd = -1
            self._fd_store = None
        self._fd_store_exit_fd = -1
        failure = RepeatedFailure()
        while not self._stopping and self._fd_store_exit_fd < 0:
            try:
                self._find_fd_store()
            except OSError as error:  # no memory, process or descriptor is free
                line = f"no FD store can be started: {error} (tried every {FD_STORE_AGAIN_S:.0f} s)"
                failure.report(str(error), line)
                time.sleep(FD_STORE_AGAIN_S)

    def _find_fd_store(self) -> None:
        """Wait for the next FD store, or start one, and record it. Return without one if the supervisor stops.

        Stops the supervisor if nothing is mounted any more. Raises OSError.
        """
        from headrace.fuse.servers import Role

        assert self._servers is not None
        until_s, before = time.monotonic() + REPLACED_WITHIN_S, (-1, -1)
        while mounted_at(self.state.mountpoint) is not None:
            if self._stopping:
                return
            # A session that the FD store forked just before it died takes its lock a moment later. So a result counts
            # only if two rounds agree; one look could miss that session, and start a second one on the same mount.
            pid = _first(self._servers.pids(Role.FD_STORE))
            session_pid = _first(self._servers.pids(Role.SESSION))
            if before != (pid, session_pid):
                before = pid, session_pid
            elif pid:
                self._fd_store_exit_fd = self._servers.pidfd(Role.FD_STORE, pid)
            elif not session_pid:
                self._fd_store = self._start_fd_store(mounted=True)
                self._fd_store_exit_fd, pid = self._fd_store.exit_fd, self._fd_store.pid
            elif time.monotonic() > until_s:  # the session did not start one; the next round does
                send(self._servers.pidfd(Role.SESSION, session_pid), signal.SIGKILL)
            if self._fd_store_exit_fd >= 0:
                self.state.fd_store_pid = pid
                self._save_state()
                return
            time.sleep(0.02)
        warn(f"{self.state.mountpoint} was unmounted")
        self._stopping = True

    # ------------------------------------------------------------ end

    def _stop(self) -> None:
        """End all processes in order. Further signals do not interrupt it."""
        self._stopping = True
        for gateway in self._gateways:
            gateway.stop()
        if self.state.mountpoint:
            uncover(self.state.mountpoint)
            unmount_exclusive(self.state.mountpoint)
        if self._fd_store is not None:
            self._fd_store.stop(FD_STORE_STOP_S)
        elif self._fd_store_exit_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd_store_exit_fd, signal.SIGTERM)
            select.select([self._fd_store_exit_fd], [], [], FD_STORE_STOP_S)
        for fd in self._mount_fds or ():
            os.close(fd)  # an open one would block users of the mount forever
        if self._servers is not None:
            self._servers.close()
        # With these descriptors, nobody else serves the place. An FD store that hung mounts, and reports nothing.
        if self._mount_fds is not None:
            detach(self.state.mountpoint)
        if self._node is not None:
            self._node.stop(NODE_STOP_S)
        if self._config is not None:
            drop_socket(self.state.socket)
        remove_state(self._run_folder, self.state.pid)


def _first(pids: list[int]) -> int:
    """Return the first process id; 0 for none."""
    return pids[0] if pids else 0


def detach(mountpoint: str) -> None:
    """Unmount what is left of a mount of Headrace, even if it is in use."""
    from headrace.fuse import device

    uncover(mountpoint)
    unmount_exclusive(mountpoint)
    mounted = mounted_at(mountpoint)
    if os.geteuid() and not only_root_moves(mountpoint):
        return  # the path is from a file that this user can write, and may be another directory by now
    if mounted is not None and mounted.kind == "fuse.headrace":
        device.unmount(mountpoint, detach=True)
