"""Records and the REST API attach only what the configuration has, and lead credentials nowhere else (2, 9)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError, OriginDeniedError, UsageError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.config.load import load
from headrace.config.schema import MountConfig
from headrace.node.node import Node
from headrace.node.shared_mounts import MountRecord, SharedMounts, _encode
from headrace.origin.allowed import AllowedOrigins
from headrace.origin.factory import build_origin
from headrace.testing.waiting import until
from headrace.wire.messages import Done, MountAdd

pytestmark = pytest.mark.expected_warnings(
    "a mount of the cluster could not be attached", "a remembered mount could not be attached"
)


MINIO = {"endpoint": "https://minio.example:9000", "profile": "training"}
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/changes"
MOUNTS = {
    "/a": MountConfig("s3://training/images", MINIO),
    "/b": MountConfig("az://models", {"account_name": "ours"}),
    "/c": MountConfig("https://data.example/sets"),
    "/d": MountConfig("s3://reported", {"events": QUEUE}),
    "/e": MountConfig(
        "headrace://central-1:7480,central-2:7480/sets", {"certificates": "/etc/headrace/central"}
    ),
}
ALLOWED = [
    ("s3://training/images", {}),
    ("s3://training/images/2024", MINIO),
    ("s3a://training/images", {"region": "eu-1", "access_key_id": "k", "secret_access_key": "s"}),
    ("az://models/x", {"account_name": "ours", "timeout_s": "3"}),
    ("https://data.example/sets/a", {"token": "its own"}),
    ("https://DATA.example/sets", {}),
    ("s3://reported/below", {"events": QUEUE}),
    ("headrace://central-1:7480,central-2:7480/sets/a", {"certificates": "/etc/headrace/central"}),
]
REFUSED = [
    ("file:///", {}), ("/etc", {}), ("file:///etc/shadow", {}), ("memory://x", {}), ("synthetic://3x100", {}),
    ("local:///etc", {}), ("ftp://evil.example/x", {}), ("sftp://evil.example/x", {}),
    ("s3://training", {}), ("s3://training/images2", {}), ("s3://training/imag", {}), ("s3://other/images", {}),
    ("gs://training/images", {}), ("s3://training2/images", {}),
    ("s3://training/images", {"endpoint": "https://evil.example"}),
    ("s3://training/images", {"endpoint": "http://minio.example:9000"}),
    ("s3://training/images", {"endpoint": "https://minio.example:9001"}),
    ("s3://training/images", {"endpoint": "https://minio.example:9000.evil.example"}),
    ("s3://training/images", {"profile": "admin"}),
    ("s3://training/images", {"endpoint": "https://evil.example", "access_key_id": "k", "secret_access_key": "s"}),
    ("az://models", {"account_name": "evil"}), ("az://models", {"endpoint": "https://evil.example"}),
    ("az://models", {"profile": "x", "endpoint": "https://minio.example:9000"}),
    ("https://data.example", {}), ("http://data.example/sets", {}), ("https://evil.example/sets", {}),
    ("https://data.example/sets/../secret", {}), ("https://data.example/sets/%2e%2e/secret", {}),
    ("https://data.example/sets/%252e%252e/secret", {}), ("https://data.example/sets/..%2fsecret", {}),
    ("https://data.example/sets/..\\secret", {}), ("https://data.example:444/sets", {}),
    ("https://data.example.evil.example/sets", {}), ("https://data.example/setsx", {}),
    ("https://data.example/sets/", {"endpoint": "https://evil.example"}),
    ("s3://reported", {"events": "https://sqs.evil.example/123456789012/changes"}),
    ("s3://training/images", {"events": "https://evil.example/1/q"}),
    ("headrace://central-1:7480,evil:7480/sets", {}), ("headrace://evil:7480/sets", {}),
    ("headrace://central-1:7480/sets", {}), ("headrace://central-1:7480,central-2:7480/", {}),
    ("headrace://central-1:7480,central-2:7480/sets/%2e%2e/x", {}),
    ("headrace://central-1:7480,central-2:7480/sets", {"certificates": "/etc/headrace/tls"}),
    ("headrace://central-1:7480,central-2:7480/sets", {"allow_http": "true"}),
]  # fmt: skip


@pytest.mark.parametrize(("url", "options"), ALLOWED)
def test_what_lies_below_a_configured_mount(url: str, options: dict[str, str]) -> None:
    AllowedOrigins("", MOUNTS).check(url, options)


@pytest.mark.parametrize(("url", "options"), REFUSED)
def test_what_leads_elsewhere_is_refused(url: str, options: dict[str, str]) -> None:
    with pytest.raises((OriginDeniedError, UsageError)):
        AllowedOrigins("", MOUNTS).check(url, options)


def test_what_the_setting_has_beside_it() -> None:
    allowed = AllowedOrigins("s3://*, file:///data/sets, endpoint=https://Store.example/, sftp://*", {})
    for url, options in (
        ("s3://any/thing", {"endpoint": "https://store.example"}),
        ("file:///data/sets/a", {}),
        ("/data/sets", {}),
        ("sftp://host.example/x", {"timeout_s": "3"}),
    ):
        allowed.check(url, options)
    for url, options in (
        ("file:///data/sets/../../etc", {}),
        ("file:///data", {}),
        ("s3://any", {"endpoint": "https://store.example:1"}),
        ("s3://any", {"profile": "x"}),
        ("sftp://host.example/x", {"host": "evil.example"}),
        ("az://any", {}),
    ):
        with pytest.raises(OriginDeniedError):
            allowed.check(url, options)


@pytest.mark.parametrize("text", ["s3://a*", "*", "s3://", "endpoint", "nothing://x", "s3://b, s4://c"])
def test_a_setting_that_says_something_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        AllowedOrigins(text, {})


@given(st.text(alphabet="sets/.%2eE\\\t ?#@:x", max_size=30))
@example("/../secret")
@example("/%2E./secret")
@example("/..2")
def test_no_spelling_leads_out_of_a_directory_of_a_web_server(tail: str) -> None:
    url = f"https://data.example/sets{tail}"
    try:
        AllowedOrigins("", MOUNTS).check(url, {})
    except HeadraceError:
        return
    assert ".." not in re.split(r"[/\\?#]", unquote(url))
    assert url.startswith("https://data.example/sets") and tail[:1] in ("", "/")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b", {"region": "x.evil.example/"}), ("s3://b", {"region": "evil.example#"}),
        ("s3://b", {"region": "a@evil.example"}), ("az://b", {"account_name": "evil.example/x"}),
        ("s3://evil.example#", {}), ("s3://evil.example:80", {}), ("s3://a%2fb", {}), ("gs://a\\b", {}),
    ],
)  # fmt: skip
def test_a_name_that_would_change_the_host_is_none(url: str, options: dict[str, str]) -> None:
    """Also of who may attach anything: the node's credentials would go there."""
    with pytest.raises(UsageError):
        build_origin(url, options)


@pytest.mark.parametrize("before", [None, MountRecord("s3://training/images/old")])
async def test_a_record_attaches_nothing_that_the_configuration_has_not(
    before: MountRecord | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does it detach what is there."""
    attached: dict[str, str] = {}

    async def attach(path: str, url: str, options: dict[str, str]) -> None:
        attached[path] = url

    async def detach(path: str) -> None:
        del attached[path]

    records = EmbeddedRecords(Followers())
    check = AllowedOrigins("", MOUNTS).check
    mounts = SharedMounts(records, attach=attach, detach=detach, check=check)
    await mounts.start({}, {})
    if before is not None:
        await records.put("mounts/x", _encode(before))
    for url, options in REFUSED[:12]:
        await records.put("mounts/x", _encode(MountRecord(url, options)))
    await records.put("mounts/y", _encode(MountRecord("s3://training/images/new")))
    await until(lambda: "/y" in attached)
    await mounts.stop()
    assert attached.pop("/y") == "s3://training/images/new"
    assert attached == ({} if before is None else {"/x": before.url})
    refused = [
        record.getMessage() for record in caplog.records if "could not be attached" in record.getMessage()
    ]
    assert len(refused) == 12


async def test_who_asks_from_elsewhere_attaches_less_than_the_operator_of_the_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does that stay over a restart when it is not allowed any more. `POST /v1/mounts file:///` made every holder
    of a token root of the host."""
    config = msgspec.structs.replace(
        load({"cache": [f"{tmp_path}/cache:64MiB"], "run_folder": str(tmp_path)}).config,
        mounts={"/a": MountConfig(f"file://{tmp_path}/a")},
        allowed_origins=f"file://{tmp_path}/listed",
    )
    for name in ("a", "a/below", "listed", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    node = await Node.start(config)
    try:
        for path, folder in (("/1", "a/below"), ("/2", "listed")):
            asked = MountAdd(path, f"file://{tmp_path}/{folder}", {}, restricted=True)
            assert await node.answer(asked) == Done()
        for folder in ("other", "", "listed/../other"):
            with pytest.raises(OriginDeniedError):
                await node.answer(MountAdd("/3", f"file://{tmp_path}/{folder}", {}, restricted=True))
        assert await node.answer(MountAdd("/3", f"file://{tmp_path}/other", {})) == Done()
    finally:
        await node.stop()
    later = msgspec.structs.replace(config, allowed_origins="")
    node = await Node.start(later)  # what is not allowed any more is asked for no more
    try:
        assert {mount.path for mount in node.mounts.all()} == {"/a", "/1", "/3"}
        assert set(node.store.index.mounts.all()) >= {"/2"}
    finally:
        await node.stop()
    node = await Node.start(config)
    try:
        assert {mount.path for mount in node.mounts.all()} == {"/a", "/1", "/2", "/3"}
    finally:
        await node.stop()
    refused = [
        record.getMessage()
        for record in caplog.records
        if "mount could not be attached" in record.getMessage()
    ]
    assert len(refused) == 1 and "path=/2" in refused[0] and "allowed_origins" in refused[0]
