"""`headrace status` prints seals for people."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cli.status import _event_lines, _seal_lines

SEAL: dict[str, Any] = {
    "seal": "a@1", "files": 3, "size_bytes": 4096, "missing_files": 0, "mounted": ["/mnt/a"], "trouble": ""
}  # fmt: skip


def test_seals_that_can_not_be_read_are_named() -> None:
    report = {"seals": [], "seal_trouble": "", "seals_unread": "the disk does not answer"}
    assert _seal_lines(report) == [("seals", "not known: the disk does not answer")]


def test_a_damaged_seal_is_named() -> None:
    damaged = {**SEAL, "seal": "b@1", "files": 0, "trouble": "seal b@1: its record is cut off"}
    assert _seal_lines({"seals": [SEAL, damaged], "seal_trouble": "", "seals_unread": ""}) == [
        ("seal", "a@1  3 files, 4.00 KiB"),
        ("", "mounted at /mnt/a"),
        ("seal", "b@1  damaged: seal b@1: its record is cut off"),
        ("", "mounted at /mnt/a"),
    ]


@pytest.mark.parametrize(
    ("url", "texts"),
    [
        (
            "headrace://a:1/d",
            ["/d: 3 changes from its far cluster", "the far cluster reports no changes: why, "],
        ),
        ("s3://b", ["/d: 3 changes from its queue", "the queue can't be read: why, "]),
    ],
)
def test_the_source_of_changes_is_named_as_what_it_is(url: str, texts: list[str]) -> None:
    row = {"changes": 3, "since_s": None, "error": "why", "retry_s": 2.0}
    lines = [text for _, text in _event_lines({"receivers": {"/d": row}}, {"/d": url})]
    assert lines == [texts[0], f"{texts[1]}next try in 2 s"]
