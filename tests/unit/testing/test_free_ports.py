"""Ports for servers of tests: two processes that ask at the same moment never get one port."""

import subprocess
import sys

from headrace.testing.servers import free_ports

_ASK = """
import sys
from headrace.testing.servers import free_ports
print(*free_ports(200), flush=True)
sys.stdin.read()
"""


def test_two_processes_never_get_one_port() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", _ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    try:
        given = [free_ports(200)]
        for other in others:
            assert other.stdout is not None
            given.append([int(port) for port in other.stdout.readline().split()])
    finally:
        for other in others:
            other.communicate()
    ports = [port for each in given for port in each]
    assert len(ports) == 800
    assert len(set(ports)) == 800


def test_ports_lie_below_those_of_connections() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as bounds:
        first_of_connections = int(bounds.read().split()[0])
    assert max(free_ports(200)) < first_of_connections
