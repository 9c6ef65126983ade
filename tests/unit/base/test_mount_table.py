"""The table of mounts, as the kernel writes it."""

from __future__ import annotations

import io
import os

import pytest

from headrace.base.mount_table import MountTableRow, mount_table, mounted_at

TABLE = rb"""22 22 252:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
31 22 0:44 / /mnt/a\040b\134c\011d rw,nosuid shared:2 master:1 - fuse.headrace headrace@1000 rw,user_id=0,allow_other
32 22 0:45 /deep/er /mnt/x rw - tmpfs none rw
33 32 0:46 / /mnt/x ro - overlay headrace-seal:a\040@1 ro,lowerdir+=/l
34 22 0:47 / /mnt/\377\303\244 rw - tmpfs none rw
35 36 0:48 / /mnt/beneath rw - tmpfs upper rw
36 22 0:49 / /mnt/beneath rw - tmpfs lower rw
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", lambda *_: io.BytesIO(TABLE))


@pytest.mark.usefixtures("table")
def test_rows_are_read_with_their_escapes() -> None:
    rows = mount_table()
    assert [row.mountpoint for row in rows] == [
        *("/", "/mnt/a b\\c\td", "/mnt/x", "/mnt/x", os.fsdecode(b"/mnt/\xff\xc3\xa4")),
        *("/mnt/beneath", "/mnt/beneath"),
    ]
    assert rows[1].options == ("rw", "user_id=0", "allow_other") and rows[1].source == "headrace@1000"
    assert rows[2] == MountTableRow("/mnt/x", "0:45", "/deep/er", "tmpfs", "none", ("rw",), 32, 22)


@pytest.mark.usefixtures("table")
def test_the_mount_that_no_other_covers_is_on_top() -> None:
    assert mounted_at("/mnt/x") == MountTableRow(
        "/mnt/x", "0:46", "/", "overlay", "headrace-seal:a @1", ("ro", "lowerdir+=/l"), 33, 32
    )
    beneath = mounted_at("/mnt/beneath")
    assert beneath is not None and beneath.source == "upper"
    assert mounted_at("/mnt") is None
    root = mounted_at("/")
    assert root is not None and root.id == 22


def test_the_table_of_this_process_has_a_root() -> None:
    assert mounted_at("/") is not None
    assert [row.mountpoint for row in mount_table(os.getpid())] == [row.mountpoint for row in mount_table()]
