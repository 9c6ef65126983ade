"""Start, shape, cut, kill and end a lab: a cluster on one machine.

A `Lab` stands for one state file. Every call reads only that file and the state of the machine. So it may run in
another process than the one that made the lab. Two concurrent calls are not safe.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from headrace.base.errors import DeadlineExceededError, HeadraceError, UsageError
from headrace.base.mount_table import mount_table
from headrace.config.schema import socket_path_of
from headrace.config.secret_options import option_words
from headrace.lab import network, processes, services, state
from headrace.lab.network import Loopback, Namespaces, Network
from headrace.seal.catalogue import Catalogue
from headrace.seal.mounted import mountpoints
from headrace.seal.mountpoint import remove_mountpoint
from headrace.seal.places import unmount_seal

NODES_MAX = 64
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0
CACHE_BYTES = 2 << 30
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The plan of a lab.

    - `rate_bits_s`: the rate of each node's link in each direction; 0 means unshaped.
    - `cache_bytes`: the cache of each node.
    - `zones`: the number of zones that nodes are distributed to.
    - `origin`: a URL or a directory; empty means an object store of the lab's own.
    - `alone`: no etcd and no cluster.
    - `settings`: further configuration, as environment names without HEADRACE_; {node} in a value is the node's id.
    - `folder`: the directory of caches, mounts and logs; empty means a new one that is removed with the lab.
    - `sample`: the lab's own object store gets a small data set.
    """

    nodes: int = 4
    rate_bits_s: int = 0
    cache_bytes: int = CACHE_BYTES
    zones: int = 0
    origin: str = ""
    origin_options: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    sample: bool = True


class Lab:
    """The lab of one state file. As a context manager it ends the lab on exit, also on an error."""

    def __init__(self, state_path: str, *, progress: Progress | None = None) -> None:
        self._path = os.path.abspath(state_path)
        self._report_progress: Progress = progress or (lambda _line: None)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def record(self) -> state.LabState:
        """Return the state. Raise UsageError if there is no lab."""
        lab_state = state.read(self._path)
        if lab_state is None:
            raise UsageError("no lab is running", hint="start one: headrace lab up")
        return lab_state

    # ---- the whole lab

    def up(self, plan: LabPlan) -> None:
        """Start the lab. All nodes are ready on return; on any error or ^C everything is removed. Blocks for some
        seconds. Raise UsageError or HeadraceError."""
        if not 1 <= plan.nodes <= NODES_MAX:
            raise UsageError(f"--nodes {plan.nodes}", why=f"the number must be 1 to {NODES_MAX}")
        if not 0 <= plan.zones <= plan.nodes:
            raise UsageError(
                f"--zones {plan.zones}", why=f"the number must be 0 to {plan.nodes}, the number of nodes"
            )
        if state.read(self._path) is not None:
            raise UsageError("a lab is running already", hint="end it: headrace lab down")
        if not network.why_no_namespaces():
            _check_reachable(plan)
        directory = _make_folder(plan.folder)
        try:
            net, why_loopback = network.choose(directory, plan.rate_bits_s)
            lab_state = state.LabState(
                folder=directory,
                network=net.kind,
                rate_bits_s=plan.rate_bits_s if not why_loopback else 0,
                cache_bytes=plan.cache_bytes,
                zones=plan.zones,
                origin=plan.origin,
                origin_options=dict(plan.origin_options),
                settings=dict(plan.settings),
                made_folder=not plan.folder,
                why_loopback=why_loopback,
            )
            state.write(self._path, lab_state)  # before any resource is made, so that `down` can remove it
        except BaseException:
            if not plan.folder:
                os.rmdir(directory)
            raise
        try:
            self._build(lab_state, net, plan)
        except processes.NotReadyError as error:
            self.down()
            if not lab_state.made_folder:
                raise
            raise error.without_log() from None
        except BaseException:
            self.down()
            raise

    def _build(self, lab_state: state.LabState, net: Network, plan: LabPlan) -> None:
        if lab_state.why_loopback:
            self._report_progress(f"using plain loopback, links are not shaped: {lab_state.why_loopback}")
        net.make()
        if not plan.alone:
            self._report_progress("starting etcd")
            lab_state.cluster = services.start_etcd(_part(lab_state, "etcd"), net.gateway)
        if not lab_state.origin:
            self._report_progress("starting an object store (SeaweedFS)")
            store = services.start_object_store(_part(lab_state, "origin"), net.gateway)
            lab_state.origin, lab_state.origin_options = store.url, store.options
            if plan.sample:
                self._report_progress(f"put {services.put_sample(store) / 1e6:.0f} MB of sample data")
        state.write(self._path, lab_state)
        pids = []
        for number in range(1, plan.nodes + 1):
            net.add(number)
            lab_state.nodes.append(number)
            state.write(self._path, lab_state)
            pids.append(_start_node(lab_state, net, number))
        for number, pid in zip(lab_state.nodes, pids, strict=True):
            _wait_ready(lab_state, number, pid)
            self._report_progress(f"node {number} ready at {net.address(number)}, {self.mountpoint(number)}")

    def down(self) -> None:
        """End the lab and remove everything, including what a crash left. Do nothing if there is no lab."""
        lab_state = state.read(self._path)
        if lab_state is None:
            return
        for number in lab_state.nodes:
            processes.send(_part(lab_state, f"node-{number}"), signal.SIGCONT)
            processes.send(_part(lab_state, f"node-{number}"), signal.SIGTERM, among=_is_supervisor)
        until_s = time.monotonic() + STOP_WITHIN_S
        for number in lab_state.nodes:
            processes.end(_part(lab_state, f"node-{number}"), patience_s=max(0.0, until_s - time.monotonic()))
        for name in ("origin", "etcd"):
            processes.kill(_part(lab_state, name))
        services.clear_object_store(_part(lab_state, "origin"))
        for number in lab_state.nodes:
            cache = os.path.join(_part(lab_state, f"node-{number}"), "cache")
            self._unmount_seals(Catalogue.of_cache(cache), is_last=lab_state.made_folder)
        _unmount_below(lab_state.folder)
        _network_of(lab_state).remove()
        if lab_state.made_folder:
            shutil.rmtree(lab_state.folder, ignore_errors=True)
        state.remove(self._path)

    def _unmount_seals(self, catalogue: Catalogue, *, is_last: bool) -> None:
        """Unmount the seals of a node, wherever they are. is_last: the node's cache is removed; the directories that
        commands created for the seals are removed, too."""
        mounted = [path for paths in mountpoints(catalogue).values() for path in paths]
        for mountpoint in sorted(mounted, key=lambda path: path.split("/"), reverse=True):
            try:
                unmount_seal(mountpoint)
            except HeadraceError as error:
                self._report_progress(f"a seal stays mounted: {error}")
        with suppress(HeadraceError, OSError):  # a damaged cache can't name the directories
            for seal in catalogue.seals() if is_last else ():
                for place in catalogue.places(seal):
                    remove_mountpoint(place, catalogue)

    # ---- one node

    def add(self) -> int:
        """Add a node, ready on return. Return its number."""
        lab_state = self.record
        number = max(lab_state.nodes, default=0) + 1
        _network_of(lab_state).add(number)
        lab_state.nodes.append(number)
        state.write(self._path, lab_state)
        pid = _start_node(lab_state, _network_of(lab_state), number)
        _wait_ready(lab_state, number, pid)
        return number

    def start(self, number: int) -> None:
        """Start a killed node again, ready on return. Raise UsageError if it is running."""
        lab_state = self._with(number)
        if processes.marked(self.folder(number)):
            raise UsageError(f"node {number} is running")
        _unmount_below(self.folder(number))
        pid = _start_node(lab_state, _network_of(lab_state), number)
        _wait_ready(lab_state, number, pid)

    def kill(self, number: int, *, only_node: bool = False) -> list[int]:
        """Kill a node with SIGKILL and return the pids. `only_node` kills only the daemon: the session stays, and the
        supervisor restarts the daemon."""
        self._with(number)
        if only_node:
            return processes.send(self.folder(number), signal.SIGKILL, among=_is_daemon)
        pids = list(processes.marked(self.folder(number)))
        processes.kill(self.folder(number))
        _unmount_below(self.folder(number))
        return pids

    def stop(self, number: int) -> list[int]:
        """Suspend a node with SIGSTOP and return the pids. All are stopped on return. Readers of its mount hang until
        `cont`."""
        self._with(number)
        pids = processes.send(self.folder(number), signal.SIGSTOP)
        until_s = time.monotonic() + STOP_WITHIN_S
        while not all(processes.stopped(pid) for pid in pids if os.path.exists(f"/proc/{pid}")):
            if time.monotonic() > until_s:
                raise DeadlineExceededError(f"node {number} does not stop")
            time.sleep(0.005)  # a thread takes the signal when it leaves the kernel
        return pids

    def cont(self, number: int) -> list[int]:
        self._with(number)
        return processes.send(self.folder(number), signal.SIGCONT)

    def cut(self, number: int, *, one_way: str = "") -> None:
        """Drop a node's packets silently until `heal`. `one_way` is "in" or "out" as seen by the node; empty means
        both."""
        if one_way not in ("", *network.DIRECTIONS):
            raise UsageError(f"--one-way {one_way}", why="no such direction", hint="use in or out")
        lab_state = self._with(number)
        _network_of(lab_state).cut(number, (one_way,) if one_way else network.DIRECTIONS)
        lab_state.cuts[number] = one_way or "both"
        state.write(self._path, lab_state)

    def heal(self, number: int) -> None:
        lab_state = self._with(number)
        _network_of(lab_state).heal(number)
        lab_state.cuts.pop(number, None)
        state.write(self._path, lab_state)

    # ---- queries

    def status(self) -> list[dict[str, Any]]:
        """Return a row for each node."""
        lab_state = self.record
        rows = []
        for number in lab_state.nodes:
            pids = processes.marked(self.folder(number))
            rows.append(
                {
                    "node": number,
                    "address": f"{_network_of(lab_state).address(number)}:{network.PORT}",
                    "running": _running(pids),
                    "cut": lab_state.cuts.get(number, ""),
                    "pids": sorted(pids),
                    "mountpoint": self.mountpoint(number),
                    "socket": socket_path_of(self.folder(number), self._cache(number)),
                    "zone": _zone(lab_state, number),
                }
            )
        return rows

    def report(self, number: int) -> dict[str, Any]:
        """Return the output of `headrace status --json` of a node. Raise HeadraceError if it does not answer in 30
        s."""
        words = [*services.python_words(), "status", "--cache", self._cache(number), "--json"]
        environment = {**os.environ, processes.MARK: self.folder(number)}
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=30, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HeadraceError(f"node {number} does not answer", why="no answer in 30 s") from error
        if done.returncode != 0:
            raise HeadraceError(f"node {number} does not answer", why=done.stderr.strip()[-300:])
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def environment(self, number: int) -> dict[str, str]:
        """Return the environment of commands that talk to this node; it is marked, so that they end with the node."""
        return {**os.environ, processes.MARK: self.folder(number)}

    def inside(self, number: int) -> list[str]:
        """Return the words before a command that make it run on the node's network."""
        return _network_of(self._with(number)).inside(number)

    def address(self, number: int) -> str:
        return _network_of(self._with(number)).address(number)

    def store(self) -> services.ObjectStore:
        lab_state = self.record
        return services.ObjectStore(lab_state.origin, lab_state.origin_options)

    def folder(self, number: int) -> str:
        """Return the directory of a node: its cache, mountpoint, run directory and logs."""
        return _part(self.record, f"node-{number}")

    def mountpoint(self, number: int) -> str:
        return os.path.join(self.folder(number), "mnt")

    def _cache(self, number: int) -> str:
        return os.path.join(self.folder(number), "cache")

    def _with(self, number: int) -> state.LabState:
        lab_state = self.record
        if number not in lab_state.nodes:
            raise UsageError(
                f"node {number}", why="no such node exists", hint=f"existing nodes: {_words(lab_state.nodes)}"
            )
        return lab_state


def _make_folder(folder: str) -> str:
    """Create the directory of a lab, a temporary one for "". Return its path. Raises OSError."""
    if not folder:
        return tempfile.mkdtemp(prefix="headrace-lab-", dir=_large_folder())
    os.makedirs(folder, exist_ok=True)
    return os.path.abspath(folder)


def _check_reachable(plan: LabPlan) -> None:
    """Raise UsageError if the origin is on this machine's loopback: a namespace has a loopback of its own."""
    endpoint = plan.origin_options.get("endpoint", "")
    host = urllib.parse.urlsplit(endpoint).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        raise UsageError(
            f"endpoint {endpoint}",
            why="the nodes' network namespaces can't reach this machine's loopback",
            hint="serve it on an address of 198.18.0.0/15 or on all addresses, or leave ORIGIN out",
        )


def _part(lab_state: state.LabState, name: str) -> str:
    return os.path.join(lab_state.folder, name)


def _network_of(lab_state: state.LabState) -> Network:
    if lab_state.network == Loopback.kind:
        return Loopback(lab_state.folder)
    return Namespaces(lab_state.folder, lab_state.rate_bits_s)


def _zone(lab_state: state.LabState, number: int) -> str:
    return f"zone-{1 + (number - 1) % lab_state.zones}" if lab_state.zones else ""


def _has_reported_ready(directory: str) -> bool:
    with open(processes.log_of(directory, "up"), "rb") as log:
        return any(line.startswith(b'{"ready": true') for line in log)


def _is_daemon(command: str) -> bool:
    return " -m headrace.node" in command


def _is_supervisor(command: str) -> bool:
    return " -m headrace up " in command


def _running(commands: Mapping[int, str]) -> str:
    """Return yes, no, stopped, or partly: the supervisor is running and the daemon is not."""
    if not commands:
        return "no"
    if all(processes.stopped(pid) for pid in commands):
        return "stopped"
    return "yes" if any(_is_daemon(command) for command in commands.values()) else "partly"


def _unmount_below(directory: str) -> None:
    for row in reversed(mount_table()):
        if row.mountpoint.startswith(directory + "/"):
            subprocess.run(["umount", "-l", row.mountpoint], capture_output=True, timeout=20, check=False)


def _large_folder() -> str:
    """Return a directory for caches. Prefer /var/tmp, because /tmp may be a memory file system."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def _words(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _start_node(lab_state: state.LabState, net: Network, number: int) -> int:
    """Start the `headrace up` of a node, and return its pid."""
    directory = _part(lab_state, f"node-{number}")
    mountpoint, cache = os.path.join(directory, "mnt"), os.path.join(directory, "cache")
    for path in (mountpoint, cache):
        os.makedirs(path, exist_ok=True)
    words = [*net.inside(number), *services.python_words(), "up", lab_state.origin, mountpoint]
    words += ["--cache", f"{cache}:{lab_state.cache_bytes}", "--json"]
    words += option_words(lab_state.origin_options, directory)
    id = f"node-{number}"
    settings = {key: value.replace("{node}", id) for key, value in lab_state.settings.items()}
    environment = {f"HEADRACE_{key.upper()}": value for key, value in settings.items()}
    if lab_state.cluster:
        environment["HEADRACE_CLUSTER"] = lab_state.cluster
        environment["HEADRACE_CLUSTER_INSECURE"] = "true"  # no other machine is in the lab's network
        environment["HEADRACE_NODE_ID"] = id
        environment["HEADRACE_LISTEN"] = f"{net.address(number)}:{network.PORT}"
        environment["HEADRACE_ZONE"] = _zone(lab_state, number)
        if "tls_certificate" not in settings:
            environment["HEADRACE_PEERS_INSECURE"] = "true"
    open(processes.log_of(directory, "up"), "wb").close()  # removes the output of an earlier run
    return processes.spawn(words, directory, name="up", environment=environment)


def _wait_ready(lab_state: state.LabState, number: int, pid: int) -> None:
    directory = _part(lab_state, f"node-{number}")
    try:
        processes.wait_until(
            lambda: _has_reported_ready(directory), pid, directory, name="up", within_s=READY_WITHIN_S
        )
    except processes.NotReadyError as error:
        raise error.of_node(number) from None
