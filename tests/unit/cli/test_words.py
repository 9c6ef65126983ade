"""Words of the command line name origins, options of origins, paths and secrets."""

from __future__ import annotations

import os

import pytest

from headrace.base.errors import UsageError
from headrace.base.rate_meter import RateMeter
from headrace.cli.config import hide_secrets
from headrace.cli.job_progress import progress_text
from headrace.cli.state import RunState
from headrace.cli.target import _below_mountpoint, _namespace_path
from headrace.cli.up import origin_options, url_of
from headrace.wire.messages import JobState


def test_an_origin_is_a_url_or_a_folder() -> None:
    assert url_of("s3://bucket/prefix") == "s3://bucket/prefix"
    assert url_of("/data") == "file:///data"
    for word in ("x", "./x", "y/../x"):
        assert url_of(word) == f"file://{os.getcwd()}/x"
    assert url_of("./x") == f"file://{os.getcwd()}/x"
    assert url_of("~/x") == f"file://{os.path.expanduser('~')}/x"
    for word in ("s3:/bucket", "https:/host/x"):
        with pytest.raises(UsageError, match="two slashes"):
            url_of(word)


def test_origin_options() -> None:
    options = origin_options(
        endpoint="http://x", region=None, profile=None, anonymous=True, pairs=["a=b=c", "region=r"]
    )
    assert options == {"a": "b=c", "region": "r", "endpoint": "http://x", "anonymous": "true"}
    for word in ("a", "=b", ""):
        with pytest.raises(UsageError):
            origin_options(endpoint=None, region=None, profile=None, anonymous=False, pairs=[word])


def test_a_path_below_the_innermost_mountpoint() -> None:
    states = [
        RunState(kind="up", pid=1, socket="outer", mountpoint="/mnt"),
        RunState(kind="fuse", pid=2, socket="inner", mountpoint="/mnt/in"),
        RunState(kind="node", pid=3, socket="none"),
    ]
    places = {
        path: _below_mountpoint(path, states)
        for path in ("/mnt", "/mnt/in/a/b/", "/mnt/inn", "/x", "s3://mnt/a")
    }
    assert {path: place and (place.socket, place.path) for path, place in places.items()} == {
        "/mnt": ("outer", "/"),
        "/mnt/in/a/b/": ("inner", "/a/b"),
        "/mnt/inn": ("outer", "/inn"),
        "/x": None,
        "s3://mnt/a": None,
    }
    assert _below_mountpoint(None, states) is None


def test_paths_of_the_namespace() -> None:
    assert [_namespace_path(path) for path in (None, "", "/", "a", "./a//b/", "/a")] == [
        "/", "/", "/", "/a", "/a/b", "/a"
    ]  # fmt: skip


def test_secrets_are_hidden() -> None:
    shown = hide_secrets(
        {"options": {"secret_access_key": "x", "region": "r", "token": "t"}, "url": "https://me:pass@host/x"}
    )
    assert shown == {
        "options": {"secret_access_key": "***", "region": "r", "token": "***"},
        "url": "https://***@host/x",
    }


def test_rate_is_of_the_last_seconds() -> None:
    rate = RateMeter()
    assert rate.update(0, 10.0) == 0
    assert rate.update(100, 11.0) == 100
    for second in range(12, 40):
        last = rate.update(100, float(second))
    assert last == 0


def test_progress_fits_80_columns_beside_a_bar() -> None:
    state = JobState(
        files_done=1_234_567,
        files_total=9_999_999,
        bytes_done=123 << 40,
        bytes_total=999 << 40,
        listing=True,
        done=False,
        failed_files=0,
        failed=[],
    )
    text = progress_text("unpin", state, 999e6)
    assert text == "1234567/9999999+ files, 123 TiB/999 TiB+, 953 MiB/s"
    assert len("unpin  " + text + "  00:00:00") <= 72
    assert progress_text("sync", state, 0) == "1234567 directories"


def test_a_secret_that_is_not_set_shows_as_such() -> None:
    assert hide_secrets({"rest_token": "", "tls_key": "/k", "options": {"token": ""}}) == {
        "rest_token": "", "tls_key": "***", "options": {"token": ""}
    }  # fmt: skip
