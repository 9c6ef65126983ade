"""The origins that the suite runs over. A server starts when its first test asks for it and ends with the last test of
this directory: idle servers take processor time from the rest of the suite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.origin import cloud
from headrace.origin.factory import build_origin
from headrace.origin.fsspec_adapter import FsspecOrigin
from headrace.origin.measure import MeasureOrigin
from headrace.origin.memory import MemoryOrigin
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.origin.options import parse_options
from headrace.origin.origin import Origin
from headrace.origin.retry import RetryOrigin
from headrace.origin.throttle import OriginLimits, ThrottleOrigin
from headrace.origin.upload import Sizes
from headrace.testing.servers import S3Server, Server, ServerMissing
from tests import emulators
from tests.conformance.origin.origin_suite import Subject, Traits
from tests.integration.cli.host import Host

Kind = Callable[[], contextlib.AbstractContextManager[Server]]


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("origin"))


def _serve(name: str, start: Kind) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except ServerMissing as error:
            pytest.skip(f"server {name}: {error}")
        yield server


@pytest.fixture(scope="package")
def seaweedfs_server(seaweed: S3Server) -> Server:
    return emulators.new_bucket(seaweed)


@pytest.fixture(scope="package")
def moto_server() -> Iterator[Server]:
    yield from _serve("moto", emulators.moto_s3)


@pytest.fixture(scope="package")
def gcs_server() -> Iterator[Server]:
    yield from _serve("fake-gcs-server", emulators.fake_gcs)


@pytest.fixture(scope="package")
def azure_server() -> Iterator[Server]:
    yield from _serve("azurite", emulators.azurite)


@pytest.fixture(scope="package")
def web_server() -> Iterator[Server]:
    yield from _serve("http folder", emulators.http_folder)


SMALL = Sizes(single_max_bytes=1 << 20, part_min_bytes=5 << 20, in_flight_max=3)


def in_parts(server: Server, prefix: str) -> Origin:
    """Return an origin as build_origin makes it, but with parts as small as S3 takes them."""
    make = {"s3": cloud.s3_stores, "gs": cloud.gcs_stores, "az": cloud.azure_stores}[server.scheme]
    url = server.url(prefix)
    stores = make(url, server.bucket, parse_options(url, server.options()))
    return RetryOrigin(ObjectStoreOrigin(url, stores, prefix, sizes=SMALL))


def on_server(server: Server, traits: Traits) -> Subject:
    return Subject(
        attach_in_parts=None if server.scheme == "http" else lambda prefix: in_parts(server, prefix),
        attach=lambda prefix: build_origin(server.url(prefix), server.options()),
        put=server.put,
        delete=server.delete,
        attach_nowhere=lambda: build_origin(server.url(bucket="no-such-bucket"), server.options()),
        traits=traits,
    )


def in_memory(wrap: Callable[[Origin], Origin]) -> Subject:
    whole = MemoryOrigin("suite")
    return Subject(
        attach=lambda prefix: wrap(whole.below(prefix) if prefix else whole),
        put=whole.hold,
        delete=whole.delete,
        traits=Traits(missing_bucket=None),
    )


_FSSPEC = Traits(both=False, folders=True, keeps_attributes=False, decides_races=False)


def _write(folder: str, key: str, data: bytes) -> None:
    path = Path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def in_folder(folder: str, scheme: str) -> Subject:
    def attach(prefix: str) -> Origin:
        Path(folder, prefix).mkdir(parents=True, exist_ok=True)
        return build_origin(f"{scheme}://{folder}/{prefix}", {})

    return Subject(
        attach=attach,
        put=lambda key, data: _write(folder, key, data),
        delete=lambda key: Path(folder, key).unlink(),
        attach_nowhere=lambda: build_origin(f"{scheme}://{folder}/none", {}),
        traits=Traits(both=False, folders=True) if scheme == "file" else _FSSPEC,
    )


def in_fsspec_memory() -> Subject:
    from fsspec.implementations.memory import MemoryFileSystem

    files = MemoryFileSystem(skip_instance_cache=True)
    files.store, files.pseudo_dirs = {}, [""]  # else they are those of the class

    def attach(prefix: str) -> Origin:
        files.makedirs(f"/{prefix}", exist_ok=True)
        return FsspecOrigin(f"memory://fsspec/{prefix}", lambda: (files, f"/{prefix}"))

    return Subject(
        attach=attach,
        put=lambda key, data: files.pipe_file(f"/{key}", data),
        delete=lambda key: files.rm_file(f"/{key}"),
        traits=replace(_FSSPEC, missing_bucket=None),
    )


def at_far_cluster(folder: str, rest: str) -> Subject:
    """Through the REST API of another node, whose origin is a directory that it lists anew each time."""
    options = {"allow_http": "true"}

    def attach(prefix: str) -> Origin:
        Path(folder, prefix).mkdir(parents=True, exist_ok=True)
        return build_origin(f"headrace://{rest}/data/{prefix}", options)

    return Subject(
        attach=attach,
        put=lambda key, data: _write(folder, key, data),
        delete=lambda key: Path(folder, key).unlink(),
        attach_nowhere=lambda: build_origin(f"headrace://{rest}/data/none", options),
        traits=Traits(both=False, folders=True, writable=False),
    )


@pytest.fixture(scope="package")
def far_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, str]]:
    """A node without a mount of FUSE, and HOST:PORT of its REST API."""
    host = Host(
        tmp_path_factory.mktemp("far"), rest_address="127.0.0.1:0", rest_insecure="true", sync_interval_s=0
    )
    try:
        up = host.start("up", "--cache", f"{host.cache}:256MiB")
        up.wait_ready()
        host.ok("mount", "add", "/data", host.truth)
        yield host, up.ready["rest"].rpartition("/")[2]
    finally:
        host.close()


_BACKSLASH = frozenset({"back\\slash"})  # SeaweedFS and Azure make a slash of it
# A folder is answered with a redirect to its name and a slash, and obstore follows none with these in it.
_WEB = Traits(both=False, strict_folders=True, strange_names=frozenset({"[br]", "a|b", "^"}), writable=False)

KINDS = (
    *("memory", "retry", "throttle", "measure", "folder", "fsspec-memory", "fsspec-local"),
    *("s3-seaweedfs", "s3-moto", "gcs", "azure", "web", "far-cluster"),
)


@pytest.fixture(params=KINDS, scope="package")
def subject(request: pytest.FixtureRequest, folder: str) -> Subject:
    def server(name: str) -> Server:
        server = request.getfixturevalue(name)
        assert isinstance(server, Server)
        return server

    def far_cluster() -> Subject:
        host, rest = request.getfixturevalue("far_node")
        return at_far_cluster(str(host.truth), rest)

    limits = OriginLimits(requests_per_s=1e6, bytes_per_s=1e12, concurrency_max=3)
    makers: dict[str, Callable[[], Subject]] = {
        "memory": lambda: in_memory(lambda inner: inner),
        "retry": lambda: in_memory(RetryOrigin),
        "throttle": lambda: in_memory(lambda inner: ThrottleOrigin(inner, limits)),
        "measure": lambda: in_memory(MeasureOrigin),
        "folder": lambda: in_folder(folder, "file"),
        "fsspec-memory": in_fsspec_memory,
        "fsspec-local": lambda: in_folder(f"{folder}/fsspec", "local"),
        "s3-seaweedfs": lambda: on_server(
            server("seaweedfs_server"), Traits(strange_names=_BACKSLASH, makes_buckets=True)
        ),
        # moto compares in one of its threads, and then writes
        "s3-moto": lambda: on_server(
            server("moto_server"), Traits(page=emulators.MOTO_PAGE, decides_races=False)
        ),
        # fake-gcs-server answers 500 where GCS answers 404
        "gcs": lambda: on_server(server("gcs_server"), Traits(missing_bucket=OriginUnavailableError)),
        "azure": lambda: on_server(server("azure_server"), Traits(strange_names=_BACKSLASH, page=100)),
        "web": lambda: on_server(server("web_server"), _WEB),
        "far-cluster": far_cluster,
    }
    return makers[request.param]()
