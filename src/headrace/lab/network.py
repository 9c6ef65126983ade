"""Build the network of a lab: a bridge and a namespace for each node, with links shaped in both directions, or plain
loopback addresses.

`tc tbf` shapes the links: on the node's end the packets that it sends, on the bridge's end those that it receives. A
cut replaces it by the qdisc `blackhole`, which drops packets silently, in each direction separately. A healed link is
shaped again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import zlib
from collections.abc import Iterator
from typing import Protocol

from headrace.base.errors import HeadraceError, UsageError

PORT = 7412
BURST_S = 0.002
BURST_BYTES_MIN = 128 << 10
DIRECTIONS = ("in", "out")
_LOCK = "/run/headrace-lab.lock"
_SIOCGIFADDR = 0x8915
"""Request of linux/sockios.h for the address of a network device."""


class Network(Protocol):
    """The network of a lab. Numbers of nodes begin at 1."""

    kind: str

    @property
    def gateway(self) -> str:
        """Return the address of services that are not nodes, such as etcd. Raise HeadraceError before `make`."""
        ...

    def make(self) -> None:
        """Create what all nodes share. Do nothing if it exists: who needs the addresses first makes it earlier."""
        ...

    def add(self, number: int) -> None: ...

    def address(self, number: int) -> str:
        """Return the address of a node. Raise HeadraceError before `make`."""
        ...

    def inside(self, number: int) -> list[str]:
        """Return the words before a command that make it run in the node's network."""
        ...

    def cut(self, number: int, directions: tuple[str, ...]) -> None: ...

    def heal(self, number: int) -> None: ...

    def remove(self) -> None: ...


class Loopback:
    """The network where namespaces are not available: each node has an address of its own in 127/8, and no link is
    shaped."""

    kind = "loopback"
    gateway = "127.0.0.1"

    def __init__(self, directory: str) -> None:
        self._third = 1 + zlib.crc32(directory.encode()) % 250

    def make(self) -> None:
        pass

    def add(self, number: int) -> None:
        pass

    def address(self, number: int) -> str:
        return f"127.77.{self._third}.{number}"

    def inside(self, number: int) -> list[str]:
        return []

    def cut(self, number: int, directions: tuple[str, ...]) -> None:
        raise UsageError(
            "lab cut", why="nodes on loopback have no links", hint="run the lab as root, with tc installed"
        )

    def heal(self, number: int) -> None:
        raise UsageError("lab heal", why="nodes on loopback have no links")

    def remove(self) -> None:
        pass


class Namespaces:
    """A network of namespaces in the range 198.18.0.0/15, which is reserved for benchmarks (RFC 2544). Needs root."""

    kind = "namespaces"

    def __init__(self, directory: str, rate_bits_s: int) -> None:
        """Prepare the names. `rate_bits_s` is the rate of each link in each direction; 0 means unshaped."""
        self._mark = zlib.crc32(directory.encode())
        self._prefix = f"hr{self._mark & 0xFFFFFF:06x}"  # device names have 15 characters at most
        self._rate_bits_s = rate_bits_s

    @property
    def gateway(self) -> str:
        gateway = _address_of(self._bridge)
        if not gateway:
            raise HeadraceError("the network of the lab is gone", hint="end the lab: headrace lab down")
        return gateway

    def make(self) -> None:
        """Create the bridge, with a free range of addresses. Raise HeadraceError if none is free, or the kernel
        refuses."""
        with _locked():
            if not _address_of(self._bridge):
                self._make(_free_range(self._mark))

    def _make(self, third: int) -> None:
        # Without an address of its own it takes the lowest of its ports. It would change as nodes are added, and those
        # that know the earlier one would not reach it for half a minute.
        address = f"02:00:c6:12:{third:02x}:01"
        kind = ("type", "bridge", "forward_delay", "0", "stp_state", "0")
        _run("ip", "link", "add", self._bridge, "address", address, *kind)
        _run("ip", "addr", "add", f"198.18.{third}.1/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")

    def add(self, number: int) -> None:
        name, outside = self.namespace(number), self._outside(number)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", outside, "master", self._bridge, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "route", "add", "default", "via", self.gateway)
        self.heal(number)

    def address(self, number: int) -> str:
        return f"{self.gateway.rpartition('.')[0]}.{10 + number}"

    def inside(self, number: int) -> list[str]:
        # not `ip netns exec`, which would hide the node's mounts from all other processes
        return ["nsenter", f"--net=/run/netns/{self.namespace(number)}"]

    def namespace(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def cut(self, number: int, directions: tuple[str, ...]) -> None:
        """Drop the packets of these directions; the others work normally."""
        for direction in DIRECTIONS:
            self._shape(number, direction, cut=direction in directions)

    def heal(self, number: int) -> None:
        self.cut(number, ())

    def remove(self) -> None:
        """Remove everything, also of an incomplete network. No process may run in the namespaces any more."""
        namespaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
        for name in namespaces:
            if name.startswith(self._prefix + "-"):
                _run("ip", "netns", "del", name)
        for name in os.listdir("/sys/class/net"):
            if name.startswith(self._prefix):
                # a veth disappears some time after its namespace: delete it in either case
                subprocess.run(["ip", "link", "del", name], capture_output=True, timeout=20, check=False)

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}b"

    def _outside(self, number: int) -> str:
        return f"{self._prefix}v{number}"

    def _shape(self, number: int, direction: str, *, cut: bool) -> None:
        """Set the shaping of one direction. `in` are the packets that the node receives, which the bridge's end
        sends."""
        namespace_options = [] if direction == "in" else ["-n", self.namespace(number)]
        device = self._outside(number) if direction == "in" else "eth0"
        if cut:
            _run("tc", *namespace_options, "qdisc", "replace", "dev", device, "root", "blackhole")
        elif self._rate_bits_s:
            _run("tc", *namespace_options, "qdisc", "replace", "dev", device, "root", *self._tbf())
        else:
            _run(
                "tc", *namespace_options, "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "10000"
            )

    def _tbf(self) -> list[str]:
        burst = max(BURST_BYTES_MIN, int(self._rate_bits_s / 8 * BURST_S))
        return ["tbf", "rate", f"{self._rate_bits_s}bit", "burst", str(burst), "latency", "50ms"]


def choose(directory: str, rate_bits_s: int) -> tuple[Network, str]:
    """Return the network that this machine allows, and why it is plain loopback, if it is."""
    missing = why_no_namespaces()
    if missing:
        return Loopback(directory), missing
    return Namespaces(directory, rate_bits_s), ""


def why_no_namespaces() -> str:
    """Return why namespaces are not available; empty if they are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


def parse_rate(text: str) -> int:
    """Return the bits per second of `1Gbit`, `200Mbit` or `56kbit`. Raise UsageError if the text is invalid."""
    units = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
    number, unit = text[:-4], text[-4:].lower()
    try:
        rate = int(float(number) * units[unit])
    except (KeyError, ValueError):
        rate = 0
    if rate <= 0:
        raise UsageError(f"rate {text!r}", why="not a valid rate", hint="use a rate like 1Gbit or 200Mbit")
    return rate


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Keep other labs from choosing addresses meanwhile. Blocks while another one does."""
    fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _free_range(first: int) -> int:
    """Return the third byte of a range of addresses that no device of this machine has. Raise HeadraceError."""
    addresses = _run("ip", "-o", "addr", "show")
    for third in (number % 256 for number in range(first, first + 256)):
        if f" 198.18.{third}." not in addresses:
            return third
    raise HeadraceError(
        "all addresses of 198.18.0.0/16 are in use on this machine", hint="end other labs: headrace lab down"
    )


def _address_of(device: str) -> str:
    """Return the IPv4 address of a network device; empty if it has none, or does not exist."""
    request = struct.pack("16s240x", device.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.EADDRNOTAVAIL):
                raise
            return ""
    return socket.inet_ntoa(answer[20:24])  # struct ifreq: the name, then a struct sockaddr_in


def _run(*words: str) -> str:
    done = subprocess.run(list(words), capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        why = (done.stderr or done.stdout).strip().splitlines()
        raise HeadraceError(
            f"`{' '.join(words)}` failed", why=why[-1] if why else f"status {done.returncode}"
        )
    return done.stdout
