"""Whom a node and a program believe: records of the cluster, members of a view, attributes of files (2, 8, 14, 17)."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import NotAllowedError
from headrace.base.tokens import Tokens
from headrace.client.node_client import connect
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.config.schema import is_secret, public_options
from headrace.http.node_connection import Address
from headrace.node.shared_mounts import MountRecord, SharedMounts, _decode, _encode
from headrace.sdk.folder import LocalFolder
from headrace.store.index import Index
from headrace.testing.waiting import until
from headrace.vfs.brokered.mounts import SOCKET_ATTRIBUTE
from headrace.vfs.remote.cluster_client import ClusterClient
from tests.security.nobody import BECOME_NOBODY

pytestmark = pytest.mark.expected_warnings("a record does not replace a configured mount")


REAL = MountRecord("s3://training")


@pytest.mark.parametrize("record", [MountRecord("file:///"), MountRecord("s3://evil"), MountRecord("")])
async def test_a_record_replaces_no_mount_of_the_configuration(record: MountRecord) -> None:
    """Whoever reaches etcd attached file:/// in place of the training data."""
    attached: dict[str, str] = {"/data": REAL.url}

    async def attach(path: str, url: str, options: dict[str, str]) -> None:
        attached[path] = url

    async def detach(path: str) -> None:
        del attached[path]

    records = EmbeddedRecords(Followers())
    mounts = SharedMounts(records, attach=attach, detach=detach, check=lambda *_: None)
    await mounts.start({"/data": REAL}, {})
    await records.put("mounts/data", _encode(record))
    await records.put("mounts/other", _encode(MountRecord("s3://other")))
    await until(lambda: "/other" in attached)
    await mounts.stop()
    assert attached == {"/data": REAL.url, "/other": "s3://other"}


@pytest.mark.parametrize(
    "option",
    [
        "passphrase",
        "passwd",
        "pwd",
        "auth",
        "headers",
        "cookies",
        "client_kwargs",
        "secret_access_key",
        "token",
        "new",
    ],
)
def test_an_option_that_nobody_called_public_goes_into_no_record(option: str) -> None:
    record = MountRecord("s3://b", {option: "hidden", "region": "eu-1", "endpoint": "http://me:pass@host"})
    assert b"hidden" not in _encode(record)
    assert _decode(_encode(record)) == MountRecord("s3://b", {"region": "eu-1"})
    assert public_options({option: "hidden"}) == {}
    assert option == "new" or is_secret(option)


class Listener:
    """A server that keeps the first bytes that come, of each connection."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:
                return
            with connection:
                self.heard.append(connection.recv(65536))
                connection.sendall(self.answer())

    def answer(self) -> bytes:
        return b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


class LyingNode(Listener):
    """It names other members of the cluster: whatever an attacker wrote into etcd."""

    def __init__(self, named: list[str]) -> None:
        self.named = named
        super().__init__()

    def answer(self) -> bytes:
        members = ",".join(
            f'{{"id":"n{n}","zone":"","capacity_bytes":1,"draining":false,"api":"{url}","address":""}}'
            for n, url in enumerate(self.named)
        )
        body = f'{{"node":"n0","replicas":1,"members":[{members}]}}'.encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        return head % len(body) + body


def tokens_of(folder: Path) -> Tokens:
    (folder / "token").write_text("the-token")
    (folder / "token").chmod(0o600)
    return Tokens(str(folder / "token"), "rest_token")


def test_the_token_goes_to_no_address_that_a_node_names(tmp_path: Path) -> None:
    evil = Listener()
    node = LyingNode(
        [evil.url, evil.url.replace("http:", "https:"), "gopher://x", "file:///etc/passwd", "http://["]
    )
    nodes = None
    try:
        nodes = ClusterClient([Address(node.url, None)], tokens_of(tmp_path), patience_s=1)
        assert [believed.address.url for believed in nodes._order(b"/a")] == [node.url]
        assert any(b"the-token" in heard for heard in node.heard)
        assert evil.heard == []
    finally:
        if nodes is not None:
            nodes.close()
        node.close()
        evil.close()


def test_after_https_nobody_is_asked_by_http(tmp_path: Path) -> None:
    nodes = object.__new__(ClusterClient)
    tls = ssl.create_default_context()
    for tokens in (None, tokens_of(tmp_path)):
        nodes._tokens, nodes._tls = tokens, tls
        nodes._named = [type("Named", (), {"address": Address("https://a:1", tls)})()]
        assert nodes._may_learn("https://b:1")
        assert not nodes._may_learn("http://b:1")


def test_a_plain_file_with_our_attribute_leads_to_no_socket(tmp_path: Path) -> None:
    """`load_model` connected wherever the attribute of a plain file led, and mapped the index that was named there."""
    heard: list[bytes] = []
    file, socket_path = tmp_path / "model.safetensors", tmp_path / "evil.sock"
    file.write_bytes(b"weights")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(socket_path))
        listening.listen()
        listening.settimeout(0.2)
        os.setxattr(file, SOCKET_ATTRIBUTE, os.fsencode(socket_path))
        assert bytes(LocalFolder(str(tmp_path)).fetch(file.name, Cancel())) == b"weights"
        with pytest.raises(TimeoutError):
            heard.append(listening.accept()[0].recv(100))
    assert heard == []


def test_the_index_of_another_user_is_not_mapped(tmp_path: Path) -> None:
    """A damaged LMDB file ends whoever reads it with SIGBUS, or worse."""
    Index.open(str(tmp_path / "index"), writable=True).close(clean=True)
    Index.open(str(tmp_path / "index"), writable=False).close(clean=True)
    os.chown(tmp_path / "index/data.mdb", 65534, 65534)
    with pytest.raises(NotAllowedError, match="belongs to user 65534"):
        Index.open(str(tmp_path / "index"), writable=False)


def test_a_node_that_another_user_runs_is_not_believed(tmp_path: Path) -> None:
    """Root would read what it names as its index and its cache files."""
    path = str(tmp_path / "node.sock")
    program = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({path!r}); {BECOME_NOBODY};"
        "s.listen(); print('.', flush=True); s.accept()[0].recv(1)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stdout.read(1) == b"."
        with pytest.raises(NotAllowedError, match="user 65534 runs it"):
            connect(path, role="sdk")
        node.kill()
