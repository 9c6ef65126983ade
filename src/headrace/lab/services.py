"""Run what a lab needs beside its nodes: an etcd, and an object store with a small data set if no origin is named."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from dataclasses import dataclass

from headrace.base.errors import MissingExtraError
from headrace.base.interpreter import module_command
from headrace.lab import processes
from headrace.testing import etcd, servers

READY_WITHIN_S = 60.0
PORTS = "ports"
"""The file with the object store's ports, one for each line, in its directory."""
EXTRA_HINT = "pip install 'headrace[lab]'"
SAMPLE_SMALL = 200
SAMPLE_SMALL_BYTES = 110_000
SAMPLE_LARGE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ObjectStore:
    url: str
    options: dict[str, str]


def start_etcd(directory: str, address: str) -> str:
    """Start etcd and return its URL as the setting `cluster`; it answers on return. `directory` is its own directory;
    existing data is used again. Raise MissingExtraError if it is not installed."""
    program = _program("etcd", "put it on PATH")
    ports = servers.free_ports(2)
    words = [*etcd.etcd_command(program, directory, address, ports), "--log-level", "warn"]
    pid = processes.spawn(words, directory, name="etcd", environment={})
    processes.wait_until(
        lambda: _connects(address, ports[0]), pid, directory, name="etcd", within_s=READY_WITHIN_S
    )
    return f"etcd://{address}:{ports[0]}/lab"


def start_object_store(directory: str, address: str) -> ObjectStore:
    """Start SeaweedFS with an empty bucket; it accepts uploads on return. Raise MissingExtraError if it is not
    installed."""
    weed = _program("weed", "name an ORIGIN")
    key, secret, bucket = "headrace", "headrace-secret", "data"
    ports = servers.free_ports(8)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, PORTS), "w", encoding="ascii") as out:
        out.write("\n".join(map(str, ports)))
    config = servers.write_weed_config(directory, key, secret)
    words = [
        word.replace("127.0.0.1", address) for word in servers.weed_command(weed, directory, ports, config)
    ]
    pid = processes.spawn(words, directory, name="origin", environment={})
    endpoint = f"http://{address}:{ports[6]}"
    options = servers.s3_options(endpoint, key, secret)
    store = servers.s3_store(endpoint, bucket, key, secret)
    server = servers.S3Server("s3", endpoint, bucket, store, options)
    processes.wait_until(
        lambda: _connects(address, ports[6]) and servers.takes_object(server),
        pid,
        directory,
        name="origin",
        within_s=READY_WITHIN_S,
    )
    return ObjectStore(server.url(), options)


def clear_object_store(directory: str) -> None:
    """Remove what a killed object store leaves outside its directory."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open(os.path.join(directory, PORTS), encoding="ascii") as ports,
    ):
        servers.remove_weed_sockets([int(port) for port in ports])


def client_of(store: ObjectStore) -> servers.S3Server:
    """Return a client that can put objects."""
    options = store.options
    bucket = store.url.partition("://")[2].partition("/")[0]
    client = servers.s3_store(
        options["endpoint"], bucket, options["access_key_id"], options["secret_access_key"]
    )
    return servers.S3Server("s3", options["endpoint"], bucket, client, options)


def put_sample(store: ObjectStore) -> int:
    """Put a small data set and return its size in bytes."""
    client, rng, total = client_of(store), random.Random(11), 0
    sizes = {
        f"images/{n % 4}/{n:05d}.bin": SAMPLE_SMALL_BYTES + rng.randrange(-9000, 9000)
        for n in range(SAMPLE_SMALL)
    }
    sizes["shards/0.tar"] = SAMPLE_LARGE_BYTES
    for name, size in sizes.items():
        client.put(name, rng.randbytes(size))
        total += size
    return total


def python_words() -> list[str]:
    return module_command("headrace")


def _program(name: str, alternative: str) -> str:
    try:
        return servers.find_program(name, hint=EXTRA_HINT)
    except servers.ServerMissing:
        raise MissingExtraError(
            "lab", why=f"{name} is not installed", hint=f"{EXTRA_HINT}, or {alternative}"
        ) from None


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
