"""Connections over TLS: how long a client with a certificate is served."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.http.errors import ClientLeftError, HungUpError
from headrace.http.tls import ServerTls, TlsConnection, server_tls
from tests.integration.door.certificates import make_certificate

LIMIT_S = 60.0


def wait_readable(connection: TlsConnection) -> None:
    assert select.select([connection.fd], [], [], LIMIT_S)[0]


def receive(connection: TlsConnection) -> bytes:
    while (piece := connection.receive_now(100)) is None:
        wait_readable(connection)
    return piece


def test_a_connection_ends_with_the_certificate_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path, "client")  # which is its own authority
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    tls = server_tls(certificate, key, "x", authority=certificate)
    assert tls is not None
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.load_cert_chain(certificate, key)
    ours, theirs = socket.socketpair()
    theirs.settimeout(LIMIT_S)
    connection = tls.connection(ours, "127.0.0.1")
    with context.wrap_socket(theirs, do_handshake_on_connect=False) as client:
        greeting = threading.Thread(target=client.do_handshake)
        greeting.start()
        wait_readable(connection)
        while not connection.shake_hands():
            wait_readable(connection)
        greeting.join(LIMIT_S)
        client.sendall(b"in time")
        assert receive(connection) == b"in time"
        late_s = time.time() + 3 * 86_400
        monkeypatch.setattr("headrace.http.tls.time", SimpleNamespace(time=lambda: late_s))
        client.sendall(b"too late")
        assert receive(connection) == b""
        connection.close()


@pytest.fixture
def tls(tmp_path: Path) -> ServerTls:
    make_certificate(tmp_path, "server")
    tls = server_tls(str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem"), "x")
    assert tls is not None
    return tls


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
def test_a_client_that_leaves_during_the_handshake_is_not_refused(tls: ServerTls, sent: bytes) -> None:
    """A load balancer connects and leaves every few seconds: that is nothing that an operator should look at."""
    ours, theirs = socket.socketpair()
    connection = tls.connection(ours, "127.0.0.1")
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(ClientLeftError):
        while not connection.shake_hands():
            wait_readable(connection)
    connection.close()


def test_a_client_that_speaks_no_tls_is_refused_with_a_reason(tls: ServerTls) -> None:
    ours, theirs = socket.socketpair()
    connection = tls.connection(ours, "127.0.0.1")
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(HungUpError, match="no TLS connection: http request") as raised:
        while not connection.shake_hands():
            wait_readable(connection)
    assert not isinstance(raised.value, ClientLeftError)
    connection.close()
    theirs.close()
