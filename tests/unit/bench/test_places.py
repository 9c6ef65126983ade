"""What a user's word names, and folders: whole files or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.bench.places import FolderPlace, Where, s3fs_options, where


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
    place = FolderPlace(str(tmp_path))
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
