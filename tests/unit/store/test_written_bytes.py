"""The counts of written bytes: a day, over restarts, and from damaged files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.written_bytes import FILE_BYTES_MAX, HOUR_S, WrittenBytes, decode_record


class Clock:
    def __init__(self) -> None:
        self.s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.s


def test_a_day_is_the_last_24_hours(tmp_path: Path) -> None:
    clock = Clock()
    written = WrittenBytes(f"{tmp_path}/written", clock=clock)
    for _ in range(30):
        written.add(100)
        clock.s += HOUR_S
    assert written.total_bytes == 3000
    assert written.day_bytes() == 2300  # the hour that begins now has none
    clock.s += 25 * HOUR_S
    assert written.day_bytes() == 0
    assert written.total_bytes == 3000


def test_counts_survive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    path = f"{tmp_path}/written"
    written = WrittenBytes(path, clock=clock)
    written.add(5)
    written.save()
    written.add(7)
    written.save()  # too soon
    again = WrittenBytes(path, clock=clock)
    again.load()
    assert again.day_bytes() == 5
    written.save(now=True)
    again.load()
    assert (again.day_bytes(), again.total_bytes) == (12, 12)


def test_a_clock_that_is_set_back_does_not_keep_a_volume_spent(tmp_path: Path) -> None:
    clock = Clock()
    written = WrittenBytes(f"{tmp_path}/written", clock=clock)
    written.add(100)
    clock.s -= 90 * HOUR_S
    assert written.day_bytes() == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"total": -1}', b'{"hours": {"x": 1}}', b'{"total": 1, "more": 2}', b"{" * 9000,
     b'{"total": 99999999999999999999999}', b'{"hours": {"3": "4"}}', b"\xff\xfe"],
)  # fmt: skip
@pytest.mark.expected_warnings("the counts of written bytes are lost")
def test_damaged_counts_are_none(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "written"
    path.write_bytes(body)
    written = WrittenBytes(str(path))
    written.load()
    assert written.day_bytes() == written.total_bytes == 0
    written.add(3)
    written.save(now=True)
    assert decode_record(path.read_bytes()).total == 3


@given(st.binary(max_size=2 * FILE_BYTES_MAX))
def test_any_bytes_are_counts_or_refused(body: bytes) -> None:
    try:
        record = decode_record(body)
    except msgspec.DecodeError:
        return
    assert record.total >= 0
