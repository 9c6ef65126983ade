"""Finding 25: a name that no origin takes keeps nobody from persisting all else, and nothing is lost by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.dataplane.aside import plain_name
from tests.integration.cli.host import Host
from tests.integration.door.conftest import forget

EVIL = ".headrace-put-evil"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (b"as-it-is \xc3\xbc%", b"as-it-is \xc3\xbc%"),
        (b".headrace-put-x", b"%2Eheadrace-put-x"),
        (b"\xff\xfe", b"%FF%FE"),
        (b"a\nb\x7f\x1b[0m", b"a%0Ab%7F%1B[0m"),
        (b".hidden", b".hidden"),
    ],
)
def test_plain_names(name: bytes, plain: bytes) -> None:
    assert plain_name(name) == plain == plain_name(plain)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_all_is_persisted_under_names_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host").mkdir()
    origin = tmp_path / "origin"
    origin.mkdir()
    host = Host(tmp_path / "host", write="/out=back,off", persist_delay_s=3600)
    config = tmp_path / "config.toml"
    config.write_text(f'[mounts."/out"]\nurl = "{origin}"\n')
    try:
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        layer = host.cache / "upper/tree/out"
        (layer / EVIL / "below").mkdir(parents=True)
        files = {EVIL + "/below/file": b"1", EVIL + "/" + EVIL: b"2", EVIL + "-file": b"3", "honest": b"4"}
        for name, data in files.items():
            (layer / name).write_bytes(data)
        host.ok("persist", "--wait", "/")
        kept = {
            str(path.relative_to(origin)): path.read_bytes() for path in origin.rglob("*") if path.is_file()
        }
        plain = EVIL.replace(".", "%2E")
        assert kept == {
            f"{plain}/below/file": b"1",
            f"{plain}/{plain}": b"2",
            f"{plain}-file": b"3",
            "honest": b"4",
        }
        told = {row["path"]: row["kept"] for row in host.json("status")["write"]["conflicts"]}
        assert told == {
            f"/out/{EVIL}": f"/out/{plain}",
            f"/out/{EVIL}-file": f"/out/{plain}-file",
            f"/out/{plain}/{EVIL}": f"/out/{plain}/{plain}",
        }
    finally:
        forget()
        host.close()
