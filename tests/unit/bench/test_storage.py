"""A user's word names a place, and folders have whole files or none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError, UsageError
from headrace.bench import dataset
from headrace.bench.storage import DirectoryStorage, Where, open_place, s3fs_options, where


def test_words_are_folders_or_urls() -> None:
    assert where("/data/x") == Where("folder", "/data/x")
    assert where("s3://b/p/", {"region": "r"}) == Where("fsspec", "s3://b/p", {"region": "r"})
    assert where("s3://b/", by="obstore") == Where("obstore", "s3://b", {})
    assert where("headrace:///") == Where("fsspec", "headrace:///", {})
    assert where("headrace:///a/") == Where("fsspec", "headrace:///a", {})
    with pytest.raises(UsageError):
        where("s3://b", by="boto")


def test_options_of_an_origin_in_the_words_of_s3fs() -> None:
    given = {
        "endpoint": "http://h",
        "region": "r",
        "access_key_id": "a",
        "secret_access_key": "b",
        "anonymous": "true",
    }
    assert s3fs_options(given) == {
        "key": "a",
        "secret": "b",
        "anon": True,
        "client_kwargs": {"endpoint_url": "http://h", "region_name": "r"},
    }


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    place = DirectoryStorage(str(tmp_path))
    out = place.create("train/a")
    out.write(b"half")
    assert place.names("train") == {}
    out.close()
    assert place.names("train") == {"train/a": 4}
    with pytest.raises(KeyError), place.create("train/b") as broken:
        broken.write(b"half")
        raise KeyError
    assert place.names("train") == {"train/a": 4}
    assert place.window("train/a", 1, 3) == b"al"


@pytest.mark.parametrize(
    ("by", "credentials", "expected"),
    [
        ("fsspec", False, OriginDeniedError),
        ("obstore", True, OriginUnavailableError),
    ],
)
def test_an_object_store_that_cannot_be_asked_is_explained(
    by: str,
    credentials: bool,
    expected: type[OriginError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        options = {"endpoint": f"http://127.0.0.1:{listening.getsockname()[1]}", "region": "us-east-1"}
    if credentials:
        options |= {"access_key_id": "a", "secret_access_key": "b"}
    with pytest.raises(expected) as raised:
        dataset.read_note(open_place(where("s3://bucket/prefix", options, by=by)))
    assert dataset.NOTE in raised.value.what
    assert raised.value.hint
