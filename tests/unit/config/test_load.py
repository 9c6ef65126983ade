"""Settings come from several places: these tests say which wins, and what is refused."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from headrace.base.errors import StoreError, UsageError
from headrace.base.sizes import parse_size, show_size
from headrace.config import load as loading
from headrace.config.load import (
    check_cache_parents,
    default_authority_folder,
    load,
    remember_capacity,
    volume_of,
)
from headrace.config.schema import CacheVolume, Config


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [variable for variable in os.environ if variable.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "SYSTEM_FILE", str(tmp_path / "etc.toml"))


def test_later_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(**flags: object) -> tuple[float, str]:
        settings = load(flags, file=str(given) if given.exists() else None)
        return settings.config.sync_interval_s, settings.sources["sync_interval_s"]

    given = tmp_path / "given.toml"
    user = tmp_path / "config/headrace/headrace.toml"
    user.parent.mkdir(parents=True)
    assert seen() == (60.0, "default")
    (tmp_path / "etc.toml").write_text("sync_interval_s = 1")
    assert seen() == (1.0, str(tmp_path / "etc.toml"))
    user.write_text("sync_interval_s = 2")
    assert seen() == (2.0, str(user))
    given.write_text("sync_interval_s = 3")
    assert seen() == (3.0, str(given))
    monkeypatch.setenv("HEADRACE_SYNC_INTERVAL_S", "4")
    assert seen() == (4.0, "environment, HEADRACE_SYNC_INTERVAL_S")
    assert seen(sync_interval_s=5) == (5.0, "flag")


@pytest.mark.parametrize("value", ["32MiB", "33554432", 33554432])
def test_a_rate_may_have_a_unit(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    monkeypatch.setenv("HEADRACE_REBALANCE_BYTES_S", str(value))
    config = load({"scrub_bytes_s": value}, file=None).config
    assert (config.scrub_bytes_s, config.rebalance_bytes_s) == (32 << 20, 32 << 20)


@pytest.mark.parametrize(
    "text",
    [
        "scrub_bytes_s = 'fast'",
        "nonsense = 1",
        "sync_interval_s = 'soon'",
        "sync_interval_s = -1",
        "not toml",
        "origin_timeout_s = 0",
        "seal_quiet_s = 0",
        "eviction_policy = 'random'",
        "watermark_low = 0.99",
        "small_file_bytes_max = '2MiB'",
        "cache = ['/c:1KiB']",
        "cache = ['/c:lots']",
        "cache = ['/c:1GiB', '/c/../c:1GiB']",
        "cache = [{capacity_bytes = '1GiB'}]",
        "[mounts.'/x']\nurl = 's3://b'\nsecret = 1",
        "log_level = 'loud'",
        "origin_timeout_s = nan",
        "sync_interval_s = inf",
        "persist_delay_s = -1",
        'run_folder = "/run/\\u0000"',
        '[mounts."/x"]\nurl = "s3://b/\\u0000"',
        '[mounts."/x\\u0000"]\nurl = "s3://b"',
    ],
)
def test_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "given.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(file=str(file))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "setting", "why"),
    [
        ("s3_domains = 5", "s3_domains", "expected `str`, got `int`"),
        ("replicas = 'two'", "replicas", "expected `int`, got `str`"),
        ("[mounts.'/x']\nurl = 5", "mounts[...].url", "expected `str`, got `int`"),
        ("scrub_bytes_s = 'fast'", "scrub_bytes_s", "size 'fast': not a size"),
        ("cache = ['/c:lots']", "cache", "size 'lots': not a size"),
        ("cache = 5", "cache", "5: not a list of directories"),
        ("cache = [{capacity_bytes = 1}]", "cache", "an entry: a directory is missing"),
    ],
)
def test_a_wrong_value_is_refused_with_its_setting_and_its_file(
    tmp_path: Path, text: str, setting: str, why: str
) -> None:
    file = tmp_path / "given.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(file=str(file))
    assert str(caught.value).startswith(f"configuration file {file}: setting {setting}: {why}")


def test_a_wrong_value_is_refused_with_its_variable_or_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^setting replicas: expected `int`, got `str`"):
        load({"replicas": "two"})
    monkeypatch.setenv("HEADRACE_REPLICAS", "two")
    with pytest.raises(UsageError, match=r"^setting replicas \(environment, HEADRACE_REPLICAS\): expected"):
        load()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.toml"):
        load(file=str(tmp_path / "nothing.toml"))


def test_volumes(tmp_path: Path) -> None:
    assert volume_of("/data/x:1GiB:nvme:2TiB")["writes_a_day"] == 2 << 40
    assert volume_of("/data/x:1.5GiB:hdd") == {
        "folder": "/data/x", "capacity_bytes": 3 << 29, "tier": "hdd"
    }  # fmt: skip
    half = volume_of(str(tmp_path / "new"))["capacity_bytes"]
    room = os.statvfs(tmp_path)
    assert half == pytest.approx(room.f_bavail * room.f_frsize // 2, rel=0.05)
    for word in ("", ":1GiB", "/a:1GiB:nvme:x"):
        with pytest.raises(UsageError):
            volume_of(word)


def test_a_capacity_is_remembered(tmp_path: Path) -> None:
    folder = str(tmp_path / "new")
    remember_capacity(load({"cache": [f"{folder}:123MiB"]}).config)
    assert volume_of(folder)["capacity_bytes"] == 123 << 20
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match="cannot be written"):
        remember_capacity(load({"cache": [f"{file}:123MiB"]}).config)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64", 64),
        ("64k", 65536),
        ("1.5 GiB", 3 << 29),
        ("2MB", 2_000_000),
        ("1T", 1 << 40),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1X", "GiB", "1e3", "1,5G"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_shown_sizes() -> None:
    assert [show_size(size) for size in (0, 1023, 1024, 1536 << 20, 100 << 30, 1 << 60)] == [
        "0 B", "1023 B", "1.00 KiB", "1.50 GiB", "100 GiB", "1024 PiB"
    ]  # fmt: skip


def test_the_first_directory_on_a_disk_has_what_outlives_a_restart() -> None:
    memory, disk, other = (
        CacheVolume("/m", 1 << 30, "memory"),
        CacheVolume("/d", 1 << 30, "hdd"),
        CacheVolume("/e", 1 << 30),
    )
    config = Config(cache=[memory, disk, other], run_folder="/run/h")
    assert config.cache == [disk, memory, other]
    assert config.upper_folder == "/d/upper"
    assert Config(cache=[memory], run_folder="/run/h").cache == [memory]
    with pytest.raises(UsageError, match="memory loses them"):
        Config(cache=[memory], run_folder="/run/h", write="back")


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user whom no home directory is known of, as in a container, in a directory that has one named ~."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_user(_uid: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_user)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    (tmp_path / "~/.config/headrace").mkdir(parents=True)
    (tmp_path / "~/.config/headrace/headrace.toml").write_text("sync_interval_s = 7")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("homeless")
def test_a_directory_named_like_a_home_directory_is_none(tmp_path: Path) -> None:
    run_folder = str(tmp_path / "run")
    loaded = load({"run_folder": run_folder})
    assert loaded.sources["sync_interval_s"] == "default"
    for flags in ({}, {"cache": ["~/cache:1GiB"]}, {"cache": ["~nobody-of-this-name/cache:1GiB"]}):
        with pytest.raises(UsageError, match="no such home directory is known"):
            check_cache_parents(load({"run_folder": run_folder, **flags}))
    check_cache_parents(load({"run_folder": run_folder, "cache": [f"{tmp_path}/cache:1GiB"]}))
    with pytest.raises(UsageError, match="--folder DIR"):
        default_authority_folder()
