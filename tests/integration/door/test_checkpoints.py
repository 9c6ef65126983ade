"""`headrace.checkpoint` at `headrace://`: the same checkpoints as in a folder, and at the origin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base import boot_clock
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    NodeUnavailableError,
    ReadOnlyError,
)
from headrace.checkpoint import PosixStorage, Retention, SaveOptions, Saver, load, save, steps, verify
from headrace.checkpoint.claim_owner import ABANDONED_AFTER_S
from headrace.checkpoint.layout import SaveId, claim_name
from headrace.checkpoint.node_storage import NodeStorage
from headrace.checkpoint.prune import prune
from tests.integration.door.conftest import MakeDoor, settled, tree_of
from tests.unit.checkpoint.states import same, state_of

pytestmark = pytest.mark.timeout(90)
URL = "headrace:///saved/run7"
SMALL = SaveOptions(chunk_bytes=4096, slot_bytes=16384, budget_bytes=1 << 20, retention=Retention(last=2))


def test_saved_by_the_door_and_loaded_from_the_origin(make_door: MakeDoor) -> None:
    """In mode through the commit waits for the origin; what retention removed is gone there, too."""
    host, fs = make_door(write="through")
    with Saver(URL, options=SMALL) as saver:
        for step in range(1, 5):
            saver.save(state_of(7, step, 0), step)
            saver.wait()
    assert steps(NodeStorage(URL)) == [3, 4]
    there = PosixStorage(str(host.truth / "saved/run7"))
    assert steps(there) == [3, 4]
    for where in (URL, there):
        assert same(load(where), state_of(7, 4, 0))
        assert same(load(where, 3), state_of(7, 3, 0))
        verify(where)
    assert [row["step"] for row in host.json("checkpoint", "list", URL)] == [3, 4]
    held = tree_of(host.truth / "saved/run7")
    files = {
        name.removeprefix("/saved/run7/"): data.hex() for name, data in fs.cat(URL, recursive=True).items()
    }
    assert files == {name: data for name, data in held.items() if data != "dir"}


def test_what_only_the_origin_has_is_loaded_by_the_cache(make_door: MakeDoor) -> None:
    host, _ = make_door(write="back")
    save(state_of(3, 1, 0), str(host.truth / "saved/run7"), 1, options=SMALL)
    assert same(load(URL), state_of(3, 1, 0))
    with Saver(URL, options=SMALL) as saver:
        saver.save(state_of(3, 2, 0), 2)
    settled(host)
    assert same(load(str(host.truth / "saved/run7")), state_of(3, 2, 0))
    with pytest.raises(CheckpointNotFoundError):
        load("headrace:///saved/other")


def test_a_claim_holds_as_long_as_its_owner(make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    _, fs = make_door(write="local")
    place = NodeStorage(URL)
    place.make_folder("saves/x")
    name = claim_name(SaveId("x"), 0)
    assert not place.is_claimed(name)
    claim = place.claim(name, b"words")
    assert place.is_claimed(name)
    claim.release()
    assert not place.is_claimed(name)
    child = os.fork()
    if child == 0:
        held = place.claim(name, b"of a child")
        os._exit(0 if NodeStorage(URL).is_claimed(name) and held else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not place.is_claimed(name)
    fs.pipe(f"{URL}/{name}", b"of another host\nwords")
    assert place.is_claimed(name) and place.is_claimed(name)
    began_s = boot_clock.now_s()
    monkeypatch.setattr(boot_clock, "now_s", lambda: began_s + ABANDONED_AFTER_S)
    assert not place.is_claimed(name)


@pytest.mark.expected_warnings("headrace.checkpoint")
def test_names_that_are_no_files_stop_nothing(make_door: MakeDoor) -> None:
    _, fs = make_door(write="local")
    place = NodeStorage(URL)
    save(state_of(3, 1, 0), URL, 1, options=SMALL)
    place.make_folder("manifests/000000000009")
    place.make_folder("saves/000000000009-a-0/0.claim")
    fs.pipe(f"{URL}/saves/x", b"no directory")
    with Saver(URL, options=SMALL) as saver:
        assert saver.save(state_of(3, 2, 0), 2).wait().step == 2
    assert prune(place, Retention()).corrupt == [9]
    with pytest.raises(CorruptCheckpointError, match="not a regular file"):
        load(URL)
    assert same(load(URL, 2), state_of(3, 2, 0))


@pytest.mark.expected_warnings("a checkpoint was not saved")
def test_what_can_not_be_saved_is_said(
    make_door: MakeDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_door()
    with pytest.raises((ReadOnlyError, CheckpointFailedError), match="write mode is off"):
        save(state_of(1, 1, 0), URL, 1, options=SMALL)
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path / "none"))
    with pytest.raises(NodeUnavailableError, match="headrace up"):
        save(state_of(1, 1, 0), URL, 1, options=SMALL)
