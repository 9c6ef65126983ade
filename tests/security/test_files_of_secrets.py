"""Finding 31: a key, a password or a configuration that another user can read or change is refused in one line, and
the volumes that Kubernetes makes of a Secret go on working.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base import reloaded
from headrace.base.errors import UsageError
from headrace.base.secret_file import read_secret
from headrace.cluster.etcd_client import EtcdAccess, EtcdConnector
from headrace.config import load as loading
from headrace.config.load import load
from headrace.http.tls import server_tls
from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.seals import Seals
from tests.certificates import authority, issued
from tests.security.nobody import as_nobody

pytestmark = pytest.mark.expected_warnings("the old content stays in use")


ANOTHER = 65534
OTHERS_READ = r"other users can read or write it \(mode 0644\)"
WITH_SECRET = '[mounts."/a"]\nurl = "s3://b/"\noptions = { secret_access_key = "x" }\n'


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return issued(authority(tmp_path / "authority"), "n1")


def etcd(files: TlsFiles, password: str = "") -> EtcdConnector:
    access = EtcdAccess(tls=True, certificate=files.certificate, key=files.key, password=password)
    return EtcdConnector(access, timeout_s=1)


# ------------------------------------------------------------ keys


@pytest.mark.parametrize(
    "use",
    [
        lambda files: MutualTls(files),
        lambda files: server_tls(files.certificate, files.key, "s3_tls_certificate"),
        lambda files: etcd(files),
    ],
    ids=["nodes", "gateway", "etcd"],
)
def test_a_key_that_others_read_is_refused(files: TlsFiles, use: Callable[[TlsFiles], object]) -> None:
    use(files)
    os.chmod(files.certificate, 0o644)  # which everybody is shown
    use(files)
    os.chmod(files.key, 0o644)
    with pytest.raises(UsageError, match=f"_key = {files.key}: {OTHERS_READ}"):
        use(files)
    if os.geteuid() == 0:
        os.chmod(files.key, 0o600)
        os.chown(files.key, ANOTHER, ANOTHER)
        with pytest.raises(UsageError, match=f"_key = {files.key}: it belongs to user {ANOTHER}"):
            use(files)


def test_the_key_of_an_authority_and_a_password(tmp_path: Path, files: TlsFiles) -> None:
    os.chmod(tmp_path / "authority/authority.key", 0o644)
    with pytest.raises(UsageError, match=OTHERS_READ):
        Authority(str(tmp_path / "authority"))
    password = tmp_path / "password"
    password.write_text("x")
    password.chmod(0o644)
    with pytest.raises(UsageError, match=OTHERS_READ):
        etcd(files, str(password))


def test_a_key_that_is_opened_to_others_later(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that is in use stays in use; the log says so once."""
    monkeypatch.setattr(reloaded, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(reloaded, "UNSETTLED_S", 0.0)
    tls = MutualTls(files)
    seals = Seals(tls)
    context = tls.server()
    os.chmod(files.key, 0o644)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert tls.server() is context
        seals.close("mounts/a", b'{"url":"x"}')
    refusals = [record.getMessage() for record in caplog.records if "stays in use" in record.getMessage()]
    assert len(refusals) == 2  # of the certificate, and of the sealing key
    assert all("mode 0644" in refusal for refusal in refusals)
    caplog.clear()
    os.chmod(files.key, 0o600)
    assert tls.server() is context  # the same bytes
    assert not caplog.records


# ------------------------------------------------------------ Kubernetes


def volume(folder: Path, name: str, text: str, mode: int) -> Path:
    """Return a volume as kubelet writes it: NAME → ..data/NAME, ..data → ..TIME."""
    (folder / "..2026_11_23").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026_11_23")
    (folder / name).symlink_to(f"..data/{name}")
    file = folder / "..2026_11_23" / name
    file.write_text(text)
    file.chmod(mode)
    return folder / name


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o644, 0o440, 0o444, 0o400, 0o600])
def test_volumes_of_kubernetes(tmp_path: Path, files: TlsFiles, mode: int) -> None:
    """0644 is what a Secret has unless told otherwise, 0440 with a group of the pod's."""
    key = volume(tmp_path / "tls", "tls.key", Path(files.key).read_text(), mode)
    MutualTls(TlsFiles(files.certificate, str(key), files.authority))
    assert server_tls(files.certificate, str(key), "s3_tls_certificate")


@pytest.mark.root
def test_a_user_makes_no_such_volume(tmp_path: Path) -> None:
    secret = volume(tmp_path / "a", "token", "x", 0o644)
    assert read_secret(str(secret), "setting x") == "x"
    os.chown(tmp_path / "a/..data", ANOTHER, ANOTHER, follow_symlinks=False)
    with pytest.raises(UsageError, match=OTHERS_READ):
        read_secret(str(secret), "setting x")
    writable = volume(tmp_path / "b", "token", "x", 0o646)
    with pytest.raises(UsageError, match="other users can read or write it"):
        read_secret(str(writable), "setting x")
    os.chmod(writable, 0o644)
    os.chown(writable, ANOTHER, 0)
    with pytest.raises(UsageError, match=f"belongs to user {ANOTHER}"):
        read_secret(str(writable), "setting x")


# ------------------------------------------------------------ the configuration


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "SYSTEM_FILE", str(tmp_path / "system.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "headrace/headrace.toml"
    path.parent.mkdir()
    return path


def test_a_configuration_that_others_write(user_file: Path) -> None:
    for mode in (0o666, 0o602, 0o646):
        user_file.write_text("sync_interval_s = 1")
        user_file.chmod(mode)
        with pytest.raises(UsageError, match=r"other users can write it \(mode"):
            load({})
        with pytest.raises(UsageError, match=r"other users can write it \(mode"):
            load({}, file=str(user_file))
    for mode in (0o644, 0o664, 0o600):  # 0664: umask 002, and a group of the user's own
        user_file.chmod(mode)
        assert load({}).config.sync_interval_s == 1
    if os.geteuid() == 0:
        os.chown(user_file, 0, 12345)
        user_file.chmod(0o664)
        with pytest.raises(UsageError, match=r"other users can write it \(mode 0664\)"):
            load({})


@pytest.mark.root
def test_a_configuration_of_another_user_is_taken_where_it_is_named(user_file: Path) -> None:
    """`sudo` may keep HOME: then the file that is looked for is another user's."""
    user_file.write_text("sync_interval_s = 1")
    os.chown(user_file, ANOTHER, ANOTHER)
    with pytest.raises(UsageError, match=f"it belongs to user {ANOTHER}"):
        load({})
    named = user_file.with_name("named.toml")
    user_file.rename(named)
    assert load({}, file=str(named)).config.sync_interval_s == 1


@pytest.mark.parametrize(
    "text",
    [
        WITH_SECRET,
        WITH_SECRET.replace("secret_access_key", "client_kwargs"),
        '[mounts."/a"]\nurl = "https://me:password@store.example/"\n',
        '[mounts."/a"]\nurl = "s3://b/"\noptions = { endpoint = "https://me:password@store.example" }\n',
    ],
    ids=["option", "driver", "url", "endpoint"],
)
def test_a_configuration_with_a_secret_that_others_read(user_file: Path, text: str) -> None:
    user_file.write_text(text)
    user_file.chmod(0o644)
    with pytest.raises(UsageError, match=rf"mounts\./a\..* is a secret, and {OTHERS_READ}"):
        load({})
    user_file.chmod(0o600)
    load({})
    user_file.write_text(WITH_SECRET.replace('"x"', '"@/etc/headrace/key"'))
    user_file.chmod(0o644)
    load({})


@pytest.mark.root
def test_what_root_keeps_to_itself_stops_no_other_user(shared_base: Path) -> None:
    system = shared_base / "system.toml"
    system.write_text(WITH_SECRET)
    system.chmod(0o600)
    program = """
loading.SYSTEM_FILE = path
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
result = [sorted(load({}).config.mounts), refused(lambda: load({}, file=path))]
"""
    imports = """
import tomllib, headrace.base.secret_file, headrace.config.secret_options
from headrace.config import load as loading
from headrace.config.load import load
"""
    assert as_nobody(program, imports=imports, path=str(system)) == [[], "UsageError"]
    system.write_text("sync_interval_s = 1")
    system.chmod(0o644)
    program = program.replace("sorted(load({}).config.mounts)", "load({}).config.sync_interval_s")
    assert as_nobody(program, imports=imports, path=str(system))[0] == 1


@pytest.mark.parametrize(
    "url",
    [
        "etcd://root:s3cr3t@127.0.0.1:1/t",
        "https://root:s3cr3t@h/t",
        "http://u:s3cr3t@h",
        "etcd://u:s3/s3cr3t@h",
    ],
)
def test_no_message_repeats_a_password_in_the_url_of_a_cluster(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        load({"cluster": url})
    assert "s3cr3t" not in str(raised.value) and "cluster_password" in raised.value.hint
