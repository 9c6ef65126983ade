"""The lab: a cluster that is started, shaped, cut, killed and ended on one machine.

One `Lab` stands for one state file; every call reads nothing but that and the machine, so that it may be another
process than the one that made the lab. Not safe against two calls at a time.
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
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from headrace.base.errors import DeadlineExceededError, HeadraceError, UsageError
from headrace.config.secret_options import option_words
from headrace.lab import network, processes, services, state
from headrace.lab.network import Loopback, Namespaces, Network

NODES_MAX = 64
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0
CACHE_BYTES = 2 << 30
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """rate_bits_s: of each node's link, each way; 0 for unshaped. cache_bytes: of each node. zones: nodes are dealt to
    so many. origin: a URL or a folder; nothing: an object store of the lab's own. alone: no etcd, no cluster. settings:
    more of the configuration, as environment names without HEADRACE_; {node} in a value is the node's id. folder: where
    caches, mounts and logs lie; nothing: a new one that goes with the lab. sample: the lab's own object store gets a
    small data set.
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
    """As a context manager it ends the lab on the way out, whatever happens."""

    def __init__(self, state_path: str, *, progress: Progress | None = None) -> None:
        self._path = os.path.abspath(state_path)
        self._say: Progress = progress or (lambda _line: None)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def record(self) -> state.LabState:
        """UsageError when there is no lab."""
        found = state.read(self._path)
        if found is None:
            raise UsageError("no lab runs", hint="headrace lab up")
        return found

    # ---- the whole of it

    def up(self, plan: LabPlan) -> None:
        """All nodes are ready on return; on any error or ^C all of it is gone. Blocks some seconds. UsageError,
        HeadraceError."""
        if not 1 <= plan.nodes <= NODES_MAX:
            raise UsageError(f"--nodes {plan.nodes}", why=f"1 to {NODES_MAX}")
        if not 0 <= plan.zones <= plan.nodes:
            raise UsageError(f"--zones {plan.zones}", why=f"0 to {plan.nodes}, the number of nodes")
        if state.read(self._path) is not None:
            raise UsageError("a lab runs already", hint="headrace lab down")
        if not network.why_no_namespaces():
            _check_reachable(plan)
        made = not plan.folder
        folder = (
            tempfile.mkdtemp(prefix="headrace-lab-", dir=_large_folder())
            if made
            else os.path.abspath(plan.folder)
        )
        net, why = network.choose(folder, plan.rate_bits_s)
        now = state.LabState(
            folder=folder,
            network=net.kind,
            rate_bits_s=plan.rate_bits_s if not why else 0,
            cache_bytes=plan.cache_bytes,
            zones=plan.zones,
            origin=plan.origin,
            origin_options=dict(plan.origin_options),
            settings=dict(plan.settings),
            made_folder=made,
            why_loopback=why,
        )
        state.write(self._path, now)  # before anything is made, so that `down` finds it
        try:
            self._build(now, net, plan)
        except BaseException:
            self.down()
            raise

    def _build(self, now: state.LabState, net: Network, plan: LabPlan) -> None:
        os.makedirs(now.folder, exist_ok=True)
        if now.why_loopback:
            self._say(f"plain loopback, links not shaped: {now.why_loopback}")
        net.make()
        if not plan.alone:
            self._say("starting etcd")
            now.cluster = services.start_etcd(_part(now, "etcd"), net.gateway)
        if not now.origin:
            self._say("starting an object store (SeaweedFS)")
            store = services.start_object_store(_part(now, "origin"), net.gateway)
            now.origin, now.origin_options = store.url, store.options
            if plan.sample:
                self._say(f"{services.put_sample(store) / 1e6:.0f} MB of data put")
        state.write(self._path, now)
        for number in range(1, plan.nodes + 1):
            net.add(number)
            now.nodes.append(number)
            state.write(self._path, now)
            self._spawn(now, net, number)
        for number in now.nodes:
            self._wait_ready(now, number)
            self._say(f"node {number} ready at {net.address(number)}, {self.mountpoint(number)}")

    def down(self) -> None:
        """Ends all of it; nothing happens where there is none. All is gone on return, also what a crash left."""
        now = state.read(self._path)
        if now is None:
            return
        for number in now.nodes:
            processes.send(_part(now, f"node-{number}"), signal.SIGCONT)
            processes.send(_part(now, f"node-{number}"), signal.SIGTERM, among=_is_supervisor)
        until_s = time.monotonic() + STOP_WITHIN_S
        for number in now.nodes:
            processes.end(_part(now, f"node-{number}"), patience_s=max(0.0, until_s - time.monotonic()))
        for name in ("origin", "etcd"):
            processes.kill(_part(now, name))
        services.clear_object_store(_part(now, "origin"))
        _unmount_below(now.folder)
        _network_of(now).remove()
        if now.made_folder:
            shutil.rmtree(now.folder, ignore_errors=True)
        state.remove(self._path)

    # ---- one node

    def add(self) -> int:
        """One more node, ready on return; its number."""
        now = self.record
        number = max(now.nodes, default=0) + 1
        _network_of(now).add(number)
        now.nodes.append(number)
        state.write(self._path, now)
        self._spawn(now, _network_of(now), number)
        self._wait_ready(now, number)
        return number

    def start(self, number: int) -> None:
        """Again, after it was killed; ready on return. UsageError when it runs."""
        now = self._with(number)
        if processes.marked(self.folder(number)):
            raise UsageError(f"node {number} runs")
        _unmount_below(self.folder(number))
        self._spawn(now, _network_of(now), number)
        self._wait_ready(now, number)

    def kill(self, number: int, *, only_node: bool = False) -> list[int]:
        """SIGKILL; the pids. only_node: the daemon alone: the session stays, and what supervises starts it again."""
        self._with(number)
        if only_node:
            return processes.send(self.folder(number), signal.SIGKILL, among=_is_daemon)
        reached = list(processes.marked(self.folder(number)))
        processes.kill(self.folder(number))
        _unmount_below(self.folder(number))
        return reached

    def stop(self, number: int) -> list[int]:
        """SIGSTOP; the pids. They stand still on return. Who reads its mount hangs until `cont`."""
        self._with(number)
        reached = processes.send(self.folder(number), signal.SIGSTOP)
        until_s = time.monotonic() + STOP_WITHIN_S
        while not all(processes.stopped(pid) for pid in reached if os.path.exists(f"/proc/{pid}")):
            if time.monotonic() > until_s:
                raise DeadlineExceededError(f"node {number} does not stop")
            time.sleep(0.005)  # a signal is seen on the way out of the kernel
        return reached

    def cont(self, number: int) -> list[int]:
        self._with(number)
        return processes.send(self.folder(number), signal.SIGCONT)

    def cut(self, number: int, *, one_way: str = "") -> None:
        """Its packets are dropped without a word until `heal`. one_way: "in" or "out" of the node; nothing: both."""
        if one_way not in ("", *network.DIRECTIONS):
            raise UsageError(f"--one-way {one_way}", why="unknown", hint="in or out")
        now = self._with(number)
        _network_of(now).cut(number, (one_way,) if one_way else network.DIRECTIONS)
        now.cuts[number] = one_way or "both"
        state.write(self._path, now)

    def heal(self, number: int) -> None:
        now = self._with(number)
        _network_of(now).heal(number)
        now.cuts.pop(number, None)
        state.write(self._path, now)

    # ---- looking

    def status(self) -> list[dict[str, Any]]:
        """A row a node."""
        now = self.record
        rows = []
        for number in now.nodes:
            found = processes.marked(self.folder(number))
            rows.append(
                {
                    "node": number,
                    "address": f"{_network_of(now).address(number)}:{network.PORT}",
                    "running": _running(found),
                    "cut": now.cuts.get(number, ""),
                    "pids": sorted(found),
                    "mountpoint": self.mountpoint(number),
                    "zone": _zone(now, number),
                }
            )
        return rows

    def report(self, number: int) -> dict[str, Any]:
        """What `headrace status --json` says of a node. HeadraceError when it does not answer in 30 s."""
        words = [*services.python_words(), "status", "--cache", self._cache(number), "--json"]
        environment = {**os.environ, processes.MARK: self.folder(number)}
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=30, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HeadraceError(f"node {number} does not answer", why="30 s") from error
        if done.returncode != 0:
            raise HeadraceError(f"node {number} does not answer", why=done.stderr.strip()[-300:])
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def environment(self, number: int) -> dict[str, str]:
        """For commands of headrace's that are to speak to this node; marked, so that they end with it."""
        return {**os.environ, processes.MARK: self.folder(number)}

    def inside(self, number: int) -> list[str]:
        """What comes before a command for it to run on the node's network."""
        return _network_of(self._with(number)).inside(number)

    def address(self, number: int) -> str:
        return _network_of(self._with(number)).address(number)

    def store(self) -> services.ObjectStore:
        now = self.record
        return services.ObjectStore(now.origin, now.origin_options)

    def folder(self, number: int) -> str:
        """Of a node: its cache, its mountpoint, its run folder, its logs."""
        return _part(self.record, f"node-{number}")

    def mountpoint(self, number: int) -> str:
        return os.path.join(self.folder(number), "mnt")

    def _cache(self, number: int) -> str:
        return os.path.join(self.folder(number), "cache")

    def _with(self, number: int) -> state.LabState:
        now = self.record
        if number not in now.nodes:
            raise UsageError(f"node {number}", why="there is none", hint=f"there are {_words(now.nodes)}")
        return now

    # ---- starting

    def _spawn(self, now: state.LabState, net: Network, number: int) -> None:
        folder = _part(now, f"node-{number}")
        mountpoint, cache = os.path.join(folder, "mnt"), os.path.join(folder, "cache")
        for one in (mountpoint, cache):
            os.makedirs(one, exist_ok=True)
        words = [*net.inside(number), *services.python_words(), "up", now.origin, mountpoint]
        words += ["--cache", f"{cache}:{now.cache_bytes}", "--json"]
        words += option_words(now.origin_options, folder)
        id = f"node-{number}"
        settings = {key: value.replace("{node}", id) for key, value in now.settings.items()}
        environment = {f"HEADRACE_{key.upper()}": value for key, value in settings.items()}
        if now.cluster:
            environment["HEADRACE_CLUSTER"] = now.cluster
            environment["HEADRACE_CLUSTER_INSECURE"] = "true"  # as nobody else is in the lab's network
            environment["HEADRACE_NODE_ID"] = id
            environment["HEADRACE_LISTEN"] = f"{net.address(number)}:{network.PORT}"
            environment["HEADRACE_ZONE"] = _zone(now, number)
            if "tls_certificate" not in settings:
                environment["HEADRACE_PEERS_INSECURE"] = "true"
        open(processes.log_of(folder, "up"), "wb").close()  # what an earlier run said is not this one's
        processes.spawn(words, folder, name="up", environment=environment)

    def _wait_ready(self, now: state.LabState, number: int) -> None:
        folder = _part(now, f"node-{number}")
        processes.wait_until(lambda: _said_ready(folder), folder, name="up", within_s=READY_WITHIN_S)


def _check_reachable(plan: LabPlan) -> None:
    """A namespace has a loopback of its own. UsageError."""
    endpoint = plan.origin_options.get("endpoint", "")
    host = urllib.parse.urlsplit(endpoint).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        raise UsageError(
            f"endpoint {endpoint}",
            why="the nodes' network namespaces don't reach this machine's loopback",
            hint="serve it on an address of 198.18.0.0/15 or on all, or leave ORIGIN out",
        )


def _part(now: state.LabState, name: str) -> str:
    return os.path.join(now.folder, name)


def _network_of(now: state.LabState) -> Network:
    if now.network == Loopback.kind:
        return Loopback(now.folder)
    return Namespaces(now.folder, now.rate_bits_s)


def _zone(now: state.LabState, number: int) -> str:
    return f"zone-{1 + (number - 1) % now.zones}" if now.zones else ""


def _said_ready(folder: str) -> bool:
    with open(processes.log_of(folder, "up"), "rb") as log:
        return any(line.startswith(b'{"ready": true') for line in log)


def _is_daemon(command: str) -> bool:
    return " -m headrace.node" in command


def _is_supervisor(command: str) -> bool:
    return " -m headrace up " in command


def _running(found: Mapping[int, str]) -> str:
    """yes, no, stopped, or partly: what supervises runs and the daemon does not."""
    if not found:
        return "no"
    if all(processes.stopped(pid) for pid in found):
        return "stopped"
    return "yes" if any(_is_daemon(command) for command in found.values()) else "partly"


def _unmount_below(folder: str) -> None:
    with open("/proc/self/mounts") as mounts:
        found = [line.split()[1] for line in mounts]
    for path in reversed(found):
        if path.startswith(folder + "/"):
            subprocess.run(["umount", "-l", path], capture_output=True, timeout=20, check=False)


def _large_folder() -> str:
    """A cache does not belong on a memory file system where /tmp is one."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def _words(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
