"""This node believes an origin to have what these say: by its journal, by BASE, by the index, and by questions."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError, OriginUnavailableError
from headrace.base.model import Attributes, Version
from headrace.origin.origin import Absent
from headrace.overlay.hiding import hide
from headrace.overlay.marks import base_version, set_base
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import HIDDEN
from headrace.writeback.reconcile import AskFirst, PutFile, SyncStep, reconcile
from headrace.writeback.sync_journal import JournalRecord
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.layer_fixture import LayerFixture

PATH = b"/d/f"
PENDING = Version(6, 7, PendingVersion("n1", 5, 6).token)


def begun(layer: LayerFixture, data: bytes = b"ours") -> JournalRecord:
    """The row of an upload whose answer was lost."""
    status = layer.write(PATH, data)
    row = JournalRecord(
        *(PATH, status.st_ino, status.st_ctime_ns, len(data), Version(-1, 0)),
        begun=True,
        mtime_ns=status.st_mtime_ns,
    )
    layer.journal.note(row)
    return row


async def ask(layer: LayerFixture, row: JournalRecord) -> JournalRecord:
    return await layer.preconditions.ask_origin(row, layer.origin, "d/f", Deadline.after(5))


async def test_a_path_without_an_origin_is_refused(layer: LayerFixture) -> None:
    mount, key = layer.preconditions.locate(PATH)
    assert (mount.path, key) == ("/", "d/f")
    layer.namespace.mount_points.detach("/")
    with pytest.raises(NotSupportedError):
        layer.preconditions.locate(PATH)


async def test_the_condition_is_the_version_that_is_believed(layer: LayerFixture) -> None:
    base = await layer.hold(PATH, b"before")
    condition = layer.preconditions.condition
    assert condition(PATH, None) == Absent() and condition(PATH, base) == base
    ours = Version(4, 1, "ours")
    layer.journal.note(JournalRecord(PATH, 1, 1, 4, ours))
    assert condition(PATH, None) == ours and condition(PATH, base) == ours
    layer.journal.note(JournalRecord.removed(PATH, ours))
    assert condition(PATH, None) == Absent()
    assert condition(PATH, base) == base  # somebody put it there since, and the index has it
    layer.journal.note(JournalRecord.removed(PATH, base))
    assert condition(PATH, base) == Absent()  # this node removed it


async def test_a_row_of_an_unanswered_upload_asks_the_origin_first(layer: LayerFixture) -> None:
    begun(layer)
    assert reconcile(SyncStep.PUT, layer.preconditions.state(PATH, None)) is AskFirst.ORIGIN


@pytest.mark.parametrize("has_id", [True, False])
async def test_our_object_is_recognised_by_its_id_or_its_time(layer: LayerFixture, has_id: bool) -> None:
    row = begun(layer)
    attributes = Attributes(row.mtime_ns, put_id=row.put_id) if has_id else Attributes(row.mtime_ns)
    version = layer.memory.hold("d/f", b"ours", attributes)
    answered = await ask(layer, row)
    assert answered == replace(row, version=version, begun=False) == layer.journal.get(PATH)
    assert reconcile(SyncStep.PUT, layer.preconditions.state(PATH, None)) == PutFile(version)


@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        (b"ours", None),
        (b"ours", Attributes(1, put_id="another")),
        (b"ours", Attributes(1)),
        (b"longer than ours", Attributes(1, put_id="ours")),
    ],
    ids=["no attributes", "another id", "another time", "another size"],
)
async def test_an_object_of_others_is_not_taken_for_ours(
    layer: LayerFixture, data: bytes, attributes: Attributes | None
) -> None:
    row = begun(layer)
    if attributes is not None and attributes.put_id == "ours":
        attributes = Attributes(1, put_id=row.put_id)
    layer.memory.hold("d/f", data, attributes)
    assert await ask(layer, row) == row == layer.journal.get(PATH)


async def test_an_upload_that_did_not_take_place_stays_begun(layer: LayerFixture) -> None:
    row = begun(layer)
    assert await ask(layer, row) == row == layer.journal.get(PATH)


async def test_a_removal_whose_answer_was_lost_is_noted_and_leaves_the_index(layer: LayerFixture) -> None:
    version = await layer.hold(PATH, b"before")
    layer.memory.delete("d/f")
    row = JournalRecord.removal(PATH, version)
    answered = await ask(layer, row)
    assert answered.is_absent and answered.was_removed(version)
    assert layer.namespace.tree.entry_at(PATH) is None


async def test_no_answer_is_no_knowledge(layer: LayerFixture) -> None:
    row = begun(layer)
    layer.origin.fail("head", PlannedFault.UNAVAILABLE)
    with pytest.raises(OriginUnavailableError):
        await ask(layer, row)
    assert layer.journal.get(PATH) == row


async def test_a_base_of_another_node_is_replaced_by_what_that_node_persisted(tmp_path: Path) -> None:
    persisted = Version(6, 8, "persisted")

    async def resolve_version(path: bytes, version: Version) -> Version | None:
        return persisted if path == PATH else None

    layer = LayerFixture(tmp_path, resolve_version=resolve_version)
    for path in (PATH, b"/d/gone"):
        layer.write_over(path, b"ours", PENDING)
    hide(layer.upper, b"/d/removed", PENDING)
    for path, answer in ((PATH, True), (b"/d/gone", False), (b"/d/removed", False)):
        assert await layer.preconditions.resolve_base(path, layer.upper.at(path)) is answer
    assert base_version(layer.upper.at(PATH), PATH) == persisted
    assert base_version(layer.upper.at(b"/d/gone"), b"/d/gone") is None
    # without its base, the whiteout would remove whatever is there
    assert base_version(layer.upper.at(b"/d/removed"), b"/d/removed") == PENDING
    layer.crash()


async def test_an_object_that_is_the_base_is_recognized_by_its_id(tmp_path: Path) -> None:
    """Its writer left after the upload, and no node knows which version it became."""

    async def resolve_version(path: bytes, version: Version) -> Version | None:
        return None

    layer = LayerFixture(tmp_path, resolve_version=resolve_version)
    pending = PendingVersion("n7", 5, -7)
    base = Version(6, 8, pending.token)
    for path, size, put_id in (
        (b"/d/same", 6, pending.put_id),
        (b"/d/longer", 7, pending.put_id),
        (b"/d/theirs", 6, "5-7"),
    ):
        layer.memory.hold(os.fsdecode(path[1:]), b"x" * size, Attributes(8, put_id=put_id))
        layer.write_over(path, b"ours", base)
    hide(layer.upper, b"/d/removed", base)
    layer.memory.hold("d/removed", b"before", Attributes(8, put_id=pending.put_id))
    for path, answer in (
        (b"/d/same", True),
        (b"/d/longer", False),
        (b"/d/theirs", False),
        (b"/d/removed", True),
    ):
        assert await layer.preconditions.resolve_base(path, layer.upper.at(path)) is answer
        persisted = await layer.origin_version(path) if answer else None
        assert base_version(layer.upper.at(path), path) == persisted
    layer.crash()


async def test_a_base_stays_while_the_origin_does_not_say_whether_it_has_it(tmp_path: Path) -> None:
    layer = LayerFixture(tmp_path)
    base = Version(6, 8, PendingVersion("n7", 5, 7).token)
    layer.write_over(PATH, b"ours", base)
    layer.origin.fail("head", PlannedFault.UNAVAILABLE)
    with pytest.raises(OriginUnavailableError):
        await layer.preconditions.resolve_base(PATH, layer.upper.at(PATH))
    assert base_version(layer.upper.at(PATH), PATH) == base
    layer.crash()


async def test_a_base_that_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    newer = Version(3, 9, "newer")

    async def resolve_version(path: bytes, version: Version) -> Version | None:
        set_base(layer.upper.at(PATH), PATH, newer)
        return Version(6, 8, "persisted")

    layer = LayerFixture(tmp_path, resolve_version=resolve_version)
    layer.write_over(PATH, b"ours", PENDING)
    assert await layer.preconditions.resolve_base(PATH, layer.upper.at(PATH))
    assert base_version(layer.upper.at(PATH), PATH) == newer
    layer.crash()


async def test_what_an_entry_stands_for_is_what_its_replicas_replace(layer: LayerFixture) -> None:
    base = await layer.hold(PATH, b"before")

    def replaces() -> Version | None:
        place = layer.upper.at(PATH)
        return layer.preconditions.replaces(PATH, place, place.lstat())

    layer.write(PATH, b"ours")
    assert replaces() is None
    set_base(layer.upper.at(PATH), PATH, base)
    assert replaces() == base
    hide(layer.upper, PATH, base)
    assert layer.upper.lookup(PATH) is HIDDEN and replaces() == base


async def test_others_put_means_that_their_answer_changed_the_journal(tmp_path: Path) -> None:
    answers = [JournalRecord(PATH, 1, 1, 4, Version(4, 1, "theirs"))]

    async def query_replicas(path: bytes) -> None:
        layer.journal.note_all(answers)

    layer = LayerFixture(tmp_path, query_replicas=query_replicas)
    assert await layer.preconditions.query_failover(PATH)
    assert not await layer.preconditions.query_failover(PATH)
    layer.crash()
