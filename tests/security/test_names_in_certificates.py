"""A certificate of the authority makes nobody a node but the one that it names (finding 4 of the audit)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base import reloaded
from headrace.base.errors import NotAllowedError, PeerError, UsageError
from headrace.config.load import load
from headrace.config.schema import Config
from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import CLIENT, NODE, Identity, NameForm, StrangerError, uris_of
from headrace.node.member import node_id_of, node_tls
from headrace.peer.client import PeerClient
from headrace.testing.waiting import until
from headrace.wire import peer_frame
from headrace.wire.message import Message
from headrace.wire.messages import Failure
from headrace.wire.peer_messages import (
    DirtyNamesChanged,
    PeerHello,
    PeerWelcome,
    Ping,
    QueryFailover,
    Replicate,
    ReplicateAhead,
)
from tests.certificates import authority, issued, mutual, settings_of
from tests.integration.peer_desk import CLUSTER, Serving, serving, soon

pytestmark = [
    pytest.mark.expected_warnings("refused interface", "the old content stays in use"),
    pytest.mark.timeout(60),
    pytest.mark.uvloop,
]
SPIFFE = "spiffe://example.org/headrace/{cluster}/{role}/{name}"


@pytest.fixture
def lab(tmp_path: Path) -> Authority:
    return authority(tmp_path / "lab")


class Attacker:
    """A client that believes everybody and shows a certificate; None: none. It says what it likes."""

    def __init__(self, files: TlsFiles | None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        if files is not None:
            self._context.load_cert_chain(files.certificate, files.key)

    def say(self, address: str, *messages: Message) -> list[Message]:
        """The answers, up to the end of the connection; what broke it off is none."""
        host, _, port = address.rpartition(":")
        answers: list[Message] = []
        with contextlib.suppress(OSError):
            with self._context.wrap_socket(socket.create_connection((host, int(port)), timeout=60)) as tls:
                for message in messages:
                    tls.sendall(peer_frame.encode(message))
                    answers.append(self._answer(tls))
        return answers

    def _answer(self, tls: ssl.SSLSocket) -> Message:
        head = self._exactly(tls, peer_frame.HEADER_BYTES)
        return peer_frame.decode_answer(self._exactly(tls, peer_frame.body_length(head)))

    def _exactly(self, tls: ssl.SSLSocket, count: int) -> bytes:
        body = b""
        while len(body) < count:
            part = tls.recv(count - len(body))
            if not part:
                raise ConnectionResetError
            body += part
        return body


def hello(node: str, cluster: str = CLUSTER) -> PeerHello:
    return PeerHello(peer_frame.SPOKEN, cluster, node)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused ")]


def attackers(lab: Authority, folder: Path) -> dict[str, tuple[TlsFiles | None, str]]:
    """Return what each shows, and what the log says of it."""
    stranger = authority(folder / "stranger")
    return {
        "no certificate": (None, "peer did not return a certificate"),
        "another authority": (issued(stranger, "a"), "unable to get local issuer certificate"),
        "expired": (issued(lab, "a", days=-0.001, file="expired"), "certificate has expired"),
        "another cluster": (
            issued(lab, "a", uri="headrace://other/node/a", file="cluster"),
            "node a of cluster other",
        ),
        "a client": (issued(lab, "a", role="client"), "client a of cluster lab, which is no node"),
        "an operator": (issued(lab, "a", role="operator"), "operator a of cluster lab, which is no node"),
        "a service": (issued(lab, "a", role="service"), "service a of cluster lab, which is no node"),
        "no name": (issued(lab, "a", uri="https://a.example/", file="none"), "but https://a.example/"),
        "a role that is none": (
            issued(lab, "a", uri="headrace://lab/admin/a", file="admin"),
            "but headrace://lab/admin/a ",
        ),
        "a name with more to it": (
            issued(lab, "a", uri="headrace://lab/node/a/b", file="more"),
            "but headrace://lab/node/a/b",
        ),
        "another node": (issued(lab, "c"), "its hello node a"),
    }


async def test_whoever_is_no_node_of_the_cluster_is_told_nothing(
    lab: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    served = mutual(lab, "b")

    async def attack(pair: Serving, files: TlsFiles | None) -> list[Message]:
        return await asyncio.to_thread(Attacker(files).say, pair.node.address, hello("a"), Ping())

    (tmp_path / "files").mkdir()
    async with serving(tmp_path / "files", server_tls=served) as pair:
        reasons = []
        for name, (files, reason) in attackers(lab, tmp_path).items():
            reasons.append(reason)
            for _ in range(3):
                answers = await attack(pair, files)
                assert len(answers) <= 1, name
                for answer in answers:
                    assert answer == Failure(NotAllowedError.code, "this connection", "refused", ""), name
        await until(lambda: len(refusals(caplog)) >= len(reasons))
        for reason in reasons:
            assert len([line for line in refusals(caplog) if reason in line]) == 1, reason
        assert len(refusals(caplog)) == len(reasons)
        assert pair.desk.requests == []
        right = await attack(pair, issued(lab, "a"))
        assert [type(answer) for answer in right] == [PeerWelcome, PeerWelcome]


@pytest.mark.parametrize(
    "request_",
    [Replicate("c", []), ReplicateAhead("c", 1, 0, 1), QueryFailover("c"), DirtyNamesChanged("c", [b"/"])],
    ids=lambda call: type(call).__name__,
)
@pytest.mark.parametrize("tls", [True, False])
async def test_a_node_speaks_for_no_other(
    lab: Authority, tmp_path: Path, request_: Message, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`Replicate` of another writer emptied the only second copy of what it had written."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "files").mkdir()
    contexts = (mutual(lab, "b"), mutual(lab, "a")) if tls else (None, None)
    async with serving(tmp_path / "files", server_tls=contexts[0], client_tls=contexts[1]) as pair:
        with pytest.raises((NotAllowedError, PeerError)):
            await pair.peers.notify(pair.node, request_, soon())  # type: ignore[arg-type]
    assert [line for line in refusals(caplog) if "in the name of node c" in line]


async def test_an_asker_takes_no_other_node_for_the_one_that_it_asks(
    lab: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that moves into a node's address gets no question that was for it."""
    caplog.set_level(logging.WARNING)
    impostors = {
        "another node": (issued(lab, "c"), "not b"),
        "a service": (issued(lab, "b", role="service"), "which is no node"),
        "a client": (issued(lab, "b", role="client"), "not taken"),  # nor may it be a server
        "another cluster": (issued(lab, "b", uri="headrace://other/node/b", file="cluster"), "cluster other"),
        "another authority": (issued(authority(tmp_path / "stranger"), "b"), "not taken"),
    }
    asker = mutual(lab, "a")
    for name, (files, reason) in impostors.items():
        heard: list[bytes] = []
        listening = socket.create_server(("127.0.0.1", 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)

        def impersonate(
            listening: socket.socket = listening,
            context: ssl.SSLContext = context,
            heard: list[bytes] = heard,
        ) -> None:
            sock = listening.accept()[0]
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
                heard.append(tls.recv(4096))
            sock.close()

        caplog.clear()
        impostor = asyncio.ensure_future(asyncio.to_thread(impersonate))
        peers = PeerClient("a", CLUSTER, tls=asker)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(PeerError):
            await peers.ping_any(address, soon(), node="b")
        peers.close()
        await impostor
        listening.close()
        assert [body for body in heard if body] == [], name
        assert len(refusals(caplog)) == 1, (name, refusals(caplog))
        assert reason in refusals(caplog)[0], name


async def test_a_node_that_greets_as_another_is_left(lab: Authority, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    async with serving(
        tmp_path / "files", server_tls=mutual(lab, "c"), client_tls=mutual(lab, "a")
    ) as pair:  # it says to be b
        with pytest.raises(PeerError, match="its welcome node b"):
            await pair.peers.ping_any(pair.node.address, soon())


async def test_older_tls_is_not_spoken(lab: Authority, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    async with serving(tmp_path / "files", server_tls=mutual(lab, "b")) as pair:
        old = Attacker(issued(lab, "a"))
        old._context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await asyncio.to_thread(old.say, pair.node.address, hello("a")) == []


async def test_a_connection_ends_with_its_certificate(
    lab: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that never ends keeps no certificate valid that is revoked by its short life."""
    (tmp_path / "files").mkdir()
    async with serving(tmp_path / "files", server_tls=mutual(lab, "b"), client_tls=mutual(lab, "a")) as pair:
        wanted = pair.desk.add("f", 1000)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        (link,) = pair.peers.table.peer(pair.node).idle
        assert not link.is_stale()
        files = issued(lab, "a", file="again")
        steady = Attacker(files)

        def attack() -> list[Message]:
            return steady.say(pair.node.address, hello("a"), Ping(), Late(), Ping())

        real = time.time

        class Late(Ping, frozen=True, tag="Ping"):
            """Encoded when a day and a half have gone by."""

            def __post_init__(self) -> None:
                monkeypatch.setattr(time, "time", lambda: real() + 1.5 * 86400)

        first = steady.say(pair.node.address, hello("a"), Ping())
        assert len(first) == 2
        late = await asyncio.to_thread(attack)
        assert len(late) < 4
        assert link.is_stale()
        monkeypatch.undo()


# ---------------------------------------------------------------- at the start


def config_of(files: TlsFiles, **more: object) -> Config:
    return msgspec.structs.replace(load().config, **settings_of(files), **more)


def test_a_node_does_not_start_with_a_certificate_that_others_would_refuse(
    lab: Authority, tmp_path: Path
) -> None:
    wrong = {
        "expired": issued(lab, "a", days=-0.001, file="expired"),
        "names client a": issued(lab, "a", role="client"),
        "names service a": issued(lab, "a", role="service"),
        "no names of the form": issued(lab, "a", uri="https://a.example/", file="none"),
        "this node is in cluster lab": issued(lab, "a", uri="headrace://other/node/a", file="cluster"),
        "would refuse it": TlsFiles(*issued(authority(tmp_path / "stranger"), "a").names()[:2], lab.path),
    }
    for why, files in wrong.items():
        with pytest.raises(UsageError, match=why):
            node_tls(config_of(files), "lab")


def test_the_id_of_a_node_is_that_of_its_certificate(lab: Authority) -> None:
    files = issued(lab, "gpu-7")
    tls = node_tls(config_of(files), "lab")
    assert node_id_of(config_of(files), tls) == "gpu-7"
    assert node_id_of(config_of(files, node_id="gpu-7"), tls) == "gpu-7"
    with pytest.raises(UsageError, match="gpu-8"):
        node_id_of(config_of(files, node_id="gpu-8"), tls)


# ---------------------------------------------------------------- files that change


async def test_certificates_are_taken_anew_when_their_files_change(
    lab: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the files of both sides, and the authority, without a restart."""
    monkeypatch.setattr(reloaded, "CHECK_INTERVAL_S", 0.0)
    other = authority(tmp_path / "next")
    server, client = (MutualTls(_copied(issued(lab, name), tmp_path / name)) for name in "ba")
    (tmp_path / "files").mkdir()
    async with serving(tmp_path / "files", server_tls=server, client_tls=client) as pair:
        wanted = pair.desk.add("f", 1000)

        async def fetch() -> None:
            pair.peers.table.peer(pair.node).close_idle()
            assert await pair.fetch(wanted) == pair.desk.body(wanted)

        await fetch()
        _spoil(server.files.key)
        await fetch()
        _copied(issued(other, "b"), tmp_path / "b")
        with pytest.raises(PeerError):
            await fetch()
        _copied(issued(other, "a"), tmp_path / "a")
        await fetch()
        assert server.renewals and client.renewals
        _copied(issued(other, "mallory"), tmp_path / "b")  # of another node: not taken
        await fetch()
        assert server.own.name == "b"


def _spoil(path: str) -> None:
    Path(path).write_text("half of a renewal")


def _copied(files: TlsFiles, folder: Path) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    for source, name in zip(files.names(), ("certificate.pem", "key.pem", "authority.pem"), strict=True):
        (folder / f"{name}.new").write_bytes(Path(source).read_bytes())
        (folder / f"{name}.new").chmod(0o600)
        os.replace(folder / f"{name}.new", folder / name)
    return TlsFiles(*(str(folder / name) for name in ("certificate.pem", "key.pem", "authority.pem")))


# ---------------------------------------------------------------- names

PARTS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}", fullmatch=True)


@given(PARTS, st.sampled_from([NODE, CLIENT]), PARTS, st.sampled_from([NameForm(), NameForm(SPIFFE)]))
def test_a_name_is_read_as_it_was_written(cluster: str, role: str, name: str, form: NameForm) -> None:
    identity = Identity(cluster, role, name)
    assert form.read(form.uri_of(identity)) == identity


@given(st.text(max_size=80) | st.text(max_size=40).map(lambda tail: f"headrace://lab/node/{tail}"))
def test_any_text_is_a_name_or_none(text: str) -> None:
    form = NameForm()
    identity = form.read(text)
    assert identity is None or form.uri_of(identity) == text
    assert not {"/", "\0", "\n", " ", "%"} & set(identity.name if identity else "")


@pytest.mark.parametrize(
    "uri",
    [
        "headrace://lab/node/a/", "headrace://lab/node/", "headrace://lab/node/..", "headrace://lab/node/.a",
        "headrace://lab/node/a%2fb", "headrace://lab/node/a\n", "headrace://lab/node/a\0.evil", "headrace://lab/NODE/a",
        "HEADRACE://lab/node/a", "headrace://lab//node/a", "headrace://lab/node/a?x", "headrace://lab/node/a#x",
        "xheadrace://lab/node/a", "headrace://u@lab/node/a", "headrace://lab:1/node/a", "spiffe://lab/node/a",
        "headrace://lab/node/" + "a" * 254, "headrace://lab/node/ä",
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_one_is_none(uri: str) -> None:
    assert NameForm().read(uri) is None


def test_a_certificate_with_two_names_has_none() -> None:
    certificate = {"subjectAltName": (("URI", "headrace://lab/node/a"), ("DNS", "headrace://lab/node/x"))}
    assert NameForm().of_uris(uris_of(certificate)).name == "a"
    for uris in ([], ["https://a"], ["headrace://lab/node/a", "headrace://lab/node/b"]):
        with pytest.raises(StrangerError):
            NameForm().of_uris(uris)


@pytest.mark.parametrize(
    "text",
    [
        "", "headrace", "headrace://{cluster}", "headrace://{role}{name}", "headrace://x/{role}/{name}x",
        "headrace://{role}/{name}/{name}", "headrace://{role}/{name}/{0}", "headrace://{role}/{name}/}",
        "headrace://{role}/{name}/{other}", "://{role}/{name}",
    ],
)  # fmt: skip
def test_a_form_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="tls_identity"):
        NameForm(text)
