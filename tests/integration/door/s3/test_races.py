"""Requests for one key at the same time: another one comes between the steps of the first, by the gateway's own code
over a real node."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client.node_client import NodeClient
from headrace.http.messages import Request, parse_head
from headrace.s3.body import Payload
from headrace.s3.buckets import Buckets
from headrace.s3.errors import S3Error
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call, route
from headrace.vfs.local_vfs import LocalVfs
from tests.integration.cli.host import Host

BUCKET = "out"
PATIENCE_S = 60.0


class Door:
    """Serves requests in this process. `between` lets another request run before the next call of a function of the
    namespace."""

    def __init__(self, vfs: LocalVfs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vfs = vfs
        self.objects = Objects(vfs, reads_origin_metadata=True)
        self._monkeypatch = monkeypatch

    def between(self, name: str, other: Callable[[], object]) -> None:
        function = getattr(self.vfs, name)

        def first_the_other(*words: Any, **options: Any) -> Any:
            self._monkeypatch.setattr(self.vfs, name, function)
            other()
            return function(*words, **options)

        self._monkeypatch.setattr(self.vfs, name, first_the_other)

    def put(self, key: str, data: bytes, **headers: str) -> str:
        request, call = self.call("PUT", key, **headers)
        response = self.objects.put(request, call, Payload(request, iter([data]), "", None))
        return dict(response.headers)["ETag"].strip('"')

    def head(self, key: str) -> dict[str, str]:
        return dict(self.objects.get(*self.call("HEAD", key)).headers)

    def read(self, key: str) -> bytes:
        content = self.objects.opened(self.call("GET", key)[1])[1]
        try:
            return content.read(0, content.size_bytes)
        finally:
            content.close()

    def call(self, method: str, key: str, **headers: str) -> tuple[Request, S3Call]:
        lines = [f"{method} /{BUCKET}/{key} HTTP/1.1", "Host: h"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        request = parse_head("\r\n".join([*lines, "", ""]).encode())
        return request, route(request, ())


@pytest.fixture(scope="module")
def node(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base: Path = tmp_path_factory.mktemp("races")
    host = Host(base, write=f"off,/{BUCKET}=local")
    (base / "origin").mkdir()
    config = base / "config.toml"
    config.write_text(f'[mounts."/{BUCKET}"]\nurl = "{base / "origin"}"\n')
    try:
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        (socket,) = host.run_folder.glob("*.sock")
        yield str(socket)
    finally:
        host.close()


@pytest.fixture
def door(node: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    vfs = LocalVfs(NodeClient(node, role="s3", patience_s=PATIENCE_S))
    try:
        yield Door(vfs, monkeypatch)
    finally:
        vfs.close()


def function_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.mark.parametrize("new", [b"of another size", b"new bytes"])
def test_tags_that_are_set_beside_a_put_belong_to_the_new_object(door: Door, new: bytes) -> None:
    assert door.put("tagged", b"old bytes", x_amz_meta_colour="red") == md5(b"old bytes")
    door.between("edit_attributes", lambda: door.put("tagged", new, x_amz_meta_colour="blue"))
    door.objects.set_tags(door.call("PUT", "tagged")[1], {"a": "b"}, status=200)
    head = door.head("tagged")
    assert door.read("tagged") == new
    assert head["ETag"].strip('"') == md5(new)
    assert (head["x-amz-meta-colour"], head["x-amz-tagging-count"]) == ("blue", "1")


def test_tags_of_a_file_that_a_mount_changed_give_it_no_etag_of_other_bytes(door: Door) -> None:
    door.put("written", b"old bytes")
    other = door.vfs.create(f"/{BUCKET}/written".encode(), replace=True)

    def write() -> None:
        other.write(b"new bytes")
        other.close()

    door.between("edit_attributes", write)
    door.objects.set_tags(door.call("PUT", "written")[1], {"a": "b"}, status=200)
    assert door.read("written") == b"new bytes"
    assert door.head("written")["ETag"].strip('"') != md5(b"old bytes")


def test_a_delete_of_one_version_leaves_the_next_one(door: Door) -> None:
    etag = door.put("deleted", b"old bytes")
    door.between("remove", lambda: door.put("deleted", b"new bytes"))
    with pytest.raises(S3Error) as raised:
        door.objects.delete(*door.call("DELETE", "deleted", If_Match=f'"{etag}"'))
    assert raised.value.code == "PreconditionFailed"
    assert door.read("deleted") == b"new bytes"
    door.objects.delete(*door.call("DELETE", "deleted", If_Match=f'"{md5(b"new bytes")}"'))
    with pytest.raises(S3Error) as raised:
        door.read("deleted")
    assert raised.value.code == "NoSuchKey"


def test_a_delete_of_many_versions_leaves_those_that_were_replaced(door: Door) -> None:
    keys = ("many/kept", "many/gone")
    body = "".join(
        f"<Object><Key>{key}</Key><ETag>{door.put(key, b'old bytes')}</ETag></Object>" for key in keys
    )
    door.between("remove", lambda: door.put(keys[0], b"new bytes"))
    buckets = Buckets(door.vfs, door.objects)
    answer = buckets.delete_objects(
        S3Call("delete_objects", BUCKET.encode(), b""), f"<Delete>{body}</Delete>".encode()
    )
    assert b"<Error><Key>many/kept</Key><Code>PreconditionFailed</Code>" in answer.body
    assert b"<Deleted><Key>many/gone</Key></Deleted>" in answer.body
    assert door.read(keys[0]) == b"new bytes"


def test_a_head_beside_a_put_describes_one_of_the_two_objects(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are read one after the other: the file's status, the record of its ETag, and its metadata."""
    for name in ("headrace.s3.objects.attributes_of", "headrace.s3.object_metadata.extras_of"):
        door.put("described", b"old bytes", x_amz_meta_colour="red")
        function = function_of(name)
        with monkeypatch.context() as patched:

            def first_a_put(*words: Any, function: Any = function, patched: Any = patched) -> Any:
                patched.undo()
                door.put("described", b"new ones", x_amz_meta_colour="blue")
                return function(*words)

            patched.setattr(name, first_a_put)
            head = door.head("described")
        shown = head["ETag"].strip('"'), head.get("x-amz-meta-colour"), head["Content-Type"]
        assert shown == (md5(b"new ones"), "blue", "binary/octet-stream"), name
