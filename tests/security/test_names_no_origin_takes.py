"""Finding 25: a name that no origin takes keeps nobody from persisting all else, and nothing is lost by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import ProtocolError, UsageError
from headrace.base.origin_names import plain_name
from headrace.config.schema import CacheVolume, Config
from headrace.node.member import node_id_of
from headrace.wire.frame import HEADER_BYTES, decode_request, encode
from headrace.wire.messages import Secure
from tests.integration.cli.host import Host
from tests.integration.door.conftest import forget

EVIL = ".headrace-put-evil"
USAGE = 2
LONG = b"/a/" + b"x" * 256


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


@pytest.mark.root
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
        refused = host.headrace("persist", "/out/" + "x" * 300)
        assert refused.returncode == USAGE and "255 are allowed" in refused.stderr
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
        conflicts = {row["path"]: row["kept"] for row in host.status()["write"]["conflicts"]}
        assert conflicts == {
            f"/out/{EVIL}": f"/out/{plain}",
            f"/out/{EVIL}-file": f"/out/{plain}-file",
            f"/out/{plain}/{EVIL}": f"/out/{plain}/{plain}",
        }
    finally:
        forget()
        host.close()


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "Secure", "path": LONG},
        {"type": "AcquireLease", "path": LONG},
        {"type": "Changed", "paths": [b"/a", LONG]},
        {"type": "Changed", "paths": [], "begun": [LONG]},
    ],
    ids=["secure", "claim", "changed", "begun"],
)
def test_a_name_that_no_directory_has_is_refused_where_it_is_decoded(request_: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="256 bytes"):
        decode_request(msgspec.msgpack.encode(request_))


def test_a_deep_path_of_names_that_a_directory_has_is_taken() -> None:
    """A folder that was moved into a deep one has more below it than one call takes."""
    deep = Secure(b"/".join([b"", *[b"x" * 255] * 40]))
    assert decode_request(encode(deep)[HEADER_BYTES:]) == deep


@pytest.mark.parametrize("node", ["x" * 256, ".hidden", "a/b", ".."])
def test_a_node_id_that_is_none_is_refused_in_words(node: str) -> None:
    with pytest.raises(UsageError, match="node id"):
        node_id_of(Config(cache=[CacheVolume("/cache", 1 << 30)], run_folder="/run", node_id=node), None)
