"""`headrace tls`: an authority and its certificates, as files that only their owner reads."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import PathExistsError, PathNotFoundError, StoreError, UsageError
from headrace.cli.examples import FIELDS
from headrace.cli.exit_codes import SOME_FAILED
from headrace.cli.main import build_app
from headrace.identity.authority import Authority, certificates_below, describe_certificate
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import Identity


def files_of(folder: str) -> TlsFiles:
    return TlsFiles(*(os.path.join(folder, name) for name in ("certificate.pem", "key.pem", "authority.pem")))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(str(tmp_path / "authority"), "lab")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """A command of `headrace tls`; its rows."""
    build_app("tls")(args=["tls", *words, "--json"], standalone_mode=False)
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert all(tuple(row) == FIELDS[f"tls {words[0]}"] for row in rows)
    return rows


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--folder", str(tmp_path / "a")]
    (row,) = run(capsys, "init", "lab", *there)
    assert row["who"] == "authority lab" and 9 * 365 < row["left_s"] / 86400 < 11 * 365
    rows = run(capsys, "issue", "n1", "n2", *there)
    assert [row["who"] for row in rows] == ["node n1 of cluster lab", "node n2 of cluster lab"]
    assert all(6.9 < row["left_s"] / 86400 <= 7 for row in rows)
    (row,) = run(capsys, "issue", "me", "--role", "client", "--days", "0.5", "--host", "me.example", *there)
    assert row["names"] == "headrace://lab/client/me me.example"
    before = {row["file"]: Path(row["file"]).read_bytes() for row in run(capsys, "show", *there)[1:]}
    assert len(before) == 3
    after = run(capsys, "renew", *there)
    assert {row["file"] for row in after} == set(before)
    assert all(Path(row["file"]).read_bytes() != before[row["file"]] for row in after)
    assert {row["names"]: round(row["left_s"] / 86400, 1) for row in after} == {
        "headrace://lab/client/me me.example": 0.5,
        "headrace://lab/node/n1": 7,
        "headrace://lab/node/n2": 7,
    }
    assert run(capsys, "show", str(tmp_path / "a/n1"))[1]["who"] == "node n1 of cluster lab"


def test_of_several_names_all_get_a_certificate_or_none(tmp_path: Path, authority: Authority) -> None:
    authority.issue("n1")
    authority.issue("n3")
    folder = tmp_path / "authority"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(
        PathExistsError, match=r"of n1, n3 in .*no other one is issued.*renew n1 n3"
    ) as raised:
        build_app("tls")(
            args=["tls", "issue", "n0", "n1", "n2", "n3", "--folder", str(folder)], standalone_mode=False
        )
    assert "n0" not in str(raised.value)
    with pytest.raises(UsageError, match="name"):
        list(authority.issue_all(["n4", "a/b"]))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert len(list(authority.issue_all(["n5", "n5"]))) == 1, "a name that is given twice"


def test_a_full_disk_leaves_whole_certificates_that_are_printed(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "authority/n2").write_bytes(b"a file where the directory would be")
    with pytest.raises(StoreError, match="n2"):
        run(capsys, "issue", "n1", "n2", "n3", "--folder", str(tmp_path / "authority"))
    (row,) = json.loads(capsys.readouterr().out)
    assert row["who"] == "node n1 of cluster lab"
    assert authority.names() == ["n1"]


def test_a_certificate_that_can_not_be_renewed_keeps_no_other_from_it(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "authority"
    list(authority.issue_all(["n1", "n2", "n3"]))
    (folder / "n2/certificate.pem").write_bytes(b"damaged")
    before = {name: (folder / name / "certificate.pem").read_bytes() for name in ("n1", "n2", "n3")}
    status = build_app("tls")(args=["tls", "renew", "--json", "--folder", str(folder)], standalone_mode=False)
    printed = capsys.readouterr()
    assert status == SOME_FAILED
    assert [row["who"] for row in json.loads(printed.out)] == [
        "node n1 of cluster lab",
        "node n3 of cluster lab",
    ]
    assert "headrace: n2 is not renewed: " in printed.err and "not a PEM file" in printed.err
    after = {name: (folder / name / "certificate.pem").read_bytes() for name in before}
    assert {name for name in before if after[name] != before[name]} == {"n1", "n3"}


def test_a_damaged_certificate_hides_no_other(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody looks for those that expire soon."""
    folder = tmp_path / "authority"
    list(authority.issue_all(["n1", "n2", "n3"]))
    (folder / "n2/certificate.pem").write_bytes(b"damaged")
    words = ["tls", "show", "--json", "--folder", str(folder)]
    assert build_app("tls")(args=words, standalone_mode=False) == SOME_FAILED
    printed = capsys.readouterr()
    assert [row["who"] for row in json.loads(printed.out)] == [
        "authority lab",
        "node n1 of cluster lab",
        "node n3 of cluster lab",
    ]
    assert printed.err.count("\n") == 1 and "n2/certificate.pem: it is not a PEM file" in printed.err
    with pytest.raises(UsageError, match="not a PEM file"):
        build_app("tls")(args=["tls", "show", str(folder / "n2/certificate.pem")], standalone_mode=False)


def test_keys_are_their_owners_only(authority: Authority, tmp_path: Path) -> None:
    authority.issue("n1")
    for path in (tmp_path / "authority", *(tmp_path / "authority").rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_an_authority_is_never_replaced(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "authority"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for missing in (None, "authority.pem", "authority.key"):
        if missing is not None:
            (folder / missing).unlink()
        with pytest.raises(PathExistsError):
            Authority.make(str(folder), "lab")
        if missing is not None:
            (folder / missing).write_bytes(before[folder / missing])
    (folder / "authority.key").unlink()
    (folder / "authority.key").symlink_to(tmp_path / "nothing")
    (folder / "authority.pem").unlink()
    with pytest.raises(PathExistsError):
        Authority.make(str(folder), "lab")
    assert not (tmp_path / "nothing").exists()


def test_what_was_issued_is_replaced_by_renew_only(authority: Authority) -> None:
    authority.issue("n1")
    with pytest.raises(PathExistsError, match="renew"):
        authority.issue("n1")
    with pytest.raises(PathNotFoundError):
        authority.renew("n2")


def test_issued_certificates_are_taken(authority: Authority) -> None:
    for role in ("node", "operator", "client", "service"):
        tls = MutualTls(files_of(authority.issue(f"a-{role}", role=role)))
        assert tls.own == Identity("lab", role, f"a-{role}")
    renewed = MutualTls(files_of(authority.renew("a-node")))
    assert renewed.own == Identity("lab", "node", "a-node")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "ä", "-" * 300, "a\n", ".hidden"])
def test_a_name_that_leads_elsewhere_is_none(authority: Authority, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    for call in (authority.issue, authority.renew):
        with pytest.raises(UsageError):
            call(name)
    with pytest.raises(UsageError):
        Authority.make(str(tmp_path / "new"), name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("days", [0, -1, 1e9, float("nan"), float("inf")])
def test_a_life_without_end_is_none(authority: Authority, days: float) -> None:
    with pytest.raises(UsageError, match="days"):
        authority.issue("n1", days=days)


def test_a_spiffe_id(tmp_path: Path) -> None:
    form = "spiffe://example.org/headrace/{cluster}/{role}/{name}"
    folder = Authority.make(str(tmp_path / "a"), "lab", form=form).issue("n1")
    issued = describe_certificate(os.path.join(folder, "certificate.pem"), form=form)
    assert issued.names == ("spiffe://example.org/headrace/lab/node/n1",)
    assert issued.identity == Identity("lab", "node", "n1")
    assert MutualTls(files_of(folder), form=form).own == issued.identity
    with pytest.raises(UsageError, match="no names of the form"):
        MutualTls(files_of(folder))


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(UsageError, match="other users may write"):
        Authority.make(str(tmp_path / "a"), "lab")


def test_what_is_no_certificate(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "x").write_text("nothing")
    with pytest.raises(UsageError):
        describe_certificate(str(tmp_path / "x"))
    with pytest.raises(PathNotFoundError):
        list(certificates_below(str(tmp_path / "empty")))
    authority.issue("n1")
    other = Authority.make(str(tmp_path / "other"), "lab")
    os.replace(tmp_path / "other/authority.key", tmp_path / "authority/authority.key")
    with pytest.raises(UsageError, match="another certificate"):
        Authority(os.path.dirname(authority.path))
    assert other.cluster == "lab"


@pytest.fixture
def limit_of_files() -> Iterator[Callable[[int], None]]:
    """Call with the most bytes that a file of this process may have from now on, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("written_bytes", [0, 300], ids=["no key", "a key"])
def test_an_authority_that_a_full_disk_can_not_hold_is_made_later(
    written_bytes: int, tmp_path: Path, limit_of_files: Callable[[int], None]
) -> None:
    limit_of_files(written_bytes)
    with pytest.raises(StoreError, match="File too large"):
        Authority.make(str(tmp_path / "a"), "lab")
    assert list((tmp_path / "a").iterdir()) == []
    limit_of_files(1 << 20)
    assert Authority.make(str(tmp_path / "a"), "lab").cluster == "lab"


def test_a_certificate_that_a_full_disk_can_not_hold_is_issued_later(
    authority: Authority, tmp_path: Path, limit_of_files: Callable[[int], None]
) -> None:
    limit_of_files(0)
    with pytest.raises(StoreError, match="File too large"):
        authority.issue("n1")
    assert authority.names() == []
    limit_of_files(1 << 20)
    assert authority.issue("n1") == str(tmp_path / "authority/n1")
    assert authority.names() == ["n1"]
    with pytest.raises(PathExistsError, match="tls renew n1"):
        authority.issue("n1")


@pytest.mark.parametrize(
    "host", ["x y", "", "a..b", "https://a.example", "a.example:2379", "a" * 254, "ä.example"]
)
def test_a_host_that_no_client_can_compare_is_refused(host: str, authority: Authority) -> None:
    with pytest.raises(UsageError, match="neither a name nor an address"):
        authority.issue("etcd", role="service", hosts=[host])
    assert authority.names() == []


def test_names_and_addresses_of_hosts_are_in_the_certificate(authority: Authority) -> None:
    hosts = ["etcd-1.example", "*.example", "localhost", "my_host", "10.0.0.1", "::1"]
    folder = authority.issue("etcd", role="service", hosts=hosts)
    assert sorted(describe_certificate(f"{folder}/certificate.pem").names[1:]) == sorted(hosts)
