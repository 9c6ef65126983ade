"""kill -9 at each step of each commit, in a real process; then recovery in this one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from headrace.base.errors import CorruptIndexError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.store.store import Store
from headrace.store.volume import Volume
from tests import fork_server
from tests.unit.store.conftest import crash
from tests.unit.store.kill_scenario import BODIES, SMALL, entry_of, open_at

ROOT = Path(__file__).parents[3]

FAILPOINTS = [
    "create.files", "writer.created", "writer.bytes", "writer.bits", "complete.renamed", "small.written",
    "index.commit", "index.committed", "index.commit:4", "index.commit:6", "index.commit:9",
    "index.committed:9", "discard.records", "repair.record", "sync.volumes", "checkpoint.synced:2",
    "checkpoint.written:2", "checkpoint.renamed:2",
]  # fmt: skip


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_kill(tmp_path: Path, failpoint: str) -> None:
    folder = str(tmp_path)
    done = fork_server.run(
        [sys.executable, "-m", "tests.unit.store.kill_scenario", folder],
        env={**os.environ, "HEADRACE_FAILPOINT": failpoint},
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, "the failpoint was not reached"
    if failpoint in ("index.commit", "index.committed"):
        return  # the index was being made: there is nothing yet; the node makes it anew (CorruptIndexError)
    store = open_at(folder)
    for name, body in BODIES.items():
        check(store, name, body, rotten=name == b"bad" and os.path.exists(f"{folder}/files"))
    report = store.fsck(lambda *_: None)
    assert report.records_without_file == 0 or failpoint == "writer.created"
    assert store.fsck(lambda *_: None).sound
    store.close()
    assert open_and_close(folder)


def check(store: Store, name: bytes, body: bytes, *, rotten: bool) -> None:
    """Check that a complete file is the body, and that an incomplete one can be filled to the end."""
    entry = entry_of(store, name)
    cached = store.index.cached(entry.id)
    if cached is None:
        store.complete_small(entry, body) if len(body) < BLOCK_SIZE_BYTES else refill(store, entry.id, body)
    elif not cached.trusted:
        if cached.unverified:
            store.verifier.verify(entry.id)
        refill(store, entry.id, body)
    content = Path(store.volumes[0].data_path(entry.id)).read_bytes()
    assert content == body or (rotten and content[6:] == body[6:])


def refill(store: Store, id: FileId, body: bytes) -> None:
    entry = store.index.entry(id)
    assert entry is not None
    writer = store.writer(id) or store.create(entry)
    for start, end in writer.missing(0, len(body)):
        writer.write(start, body[start:end])
    store.complete(writer)


def open_and_close(folder: str) -> bool:
    store = open_at(folder)
    clean = store.index.state.clean
    store.close()
    return clean


def test_killed_while_it_recovers_from_a_power_loss(tmp_path: Path) -> None:
    """The second start does not trust what was not synced either, and still looks for strays."""
    folder = str(tmp_path)
    store = open_at(folder)
    store.complete_small_many([(entry_of(store, b"small"), SMALL)])
    store.index.state.checkpoint()  # the record is on the disk, the file's bytes perhaps not
    id = entry_of(store, b"small").id
    Path(store.volumes[0].data_path(id)).write_bytes(b"T" * len(SMALL))
    stray = Path(store.volumes[0].data_path(FileId(id + 1)))
    stray.write_bytes(b"stray")
    crash(store)
    code = (
        "import sys; from headrace.store.store import Store; from headrace.store.volume import Volume;"
        "Store.open(sys.argv[1] + '/index', [Volume(0, sys.argv[1], 1 << 30, '')], boot_id='after')"
    )
    for point in ("recover.marked", "checkpoint.synced", "checkpoint.written"):
        killed = fork_server.run(
            [sys.executable, "-c", code, folder], env={**os.environ, "HEADRACE_FAILPOINT": point}, timeout=60
        )
        assert killed.returncode == -signal.SIGKILL, point
        stray.write_bytes(b"stray")
    store = Store.open(f"{folder}/index", [Volume(0, folder, 1 << 30, "")], boot_id="after")
    record = store.index.cached(id)
    assert record is not None and record.unverified
    assert not store.verifier.verify(id)
    assert not stray.exists()
    store.close()


def test_a_start_killed_before_its_first_checkpoint_is_made_anew(tmp_path: Path) -> None:
    folder = str(tmp_path)
    code = "import sys; from tests.unit.store.kill_scenario import open_at; open_at(sys.argv[1])"
    killed = fork_server.run(
        [sys.executable, "-c", code, folder],
        env={**os.environ, "HEADRACE_FAILPOINT": "recover.marked"},
        cwd=ROOT,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(CorruptIndexError, match="no checkpoint"):
        open_at(folder)
