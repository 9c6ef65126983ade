"""The seals of a node on its disk: each is there as a whole, or not at all."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import InvalidImageError, PathExistsError, PathNotFoundError, UsageError
from headrace.seal.catalogue import Catalogue, Place, SealId, SealRecord, ids_now
from headrace.seal.snapshot import SnapshotWriter
from tests.unit.seal.snapshots import TREE

SEAL = SealId("images", 3)
IDS = array("Q", [5, 1 << 40, 7])


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue.of_cache(str(tmp_path))


def publish(catalogue: Catalogue, seal: SealId = SEAL) -> SealRecord:
    with catalogue.draft(seal) as draft:
        with draft.create_list() as out:
            writer = SnapshotWriter(out)
            for entry in TREE:
                writer.add(entry)
        for name, body in (("ids", IDS.tobytes()), ("image", b"an image")):
            with draft.create(name) as out:
                out.write(body)
        record = SealRecord(seal.name, seal.version, "/images", writer.finish(), "digest", 3, 5, 1.5, 2)
        catalogue.publish(draft, record)
    return record


def test_a_seal_is_read_as_it_was_published(catalogue: Catalogue) -> None:
    record = publish(catalogue)
    assert catalogue.seals() == [SEAL] and catalogue.record(SEAL) == record
    assert list(catalogue.entries(record)) == TREE
    assert catalogue.ids(record) == IDS
    assert sorted(os.listdir(catalogue.folder)) == ["images@3"]
    assert os.stat(catalogue.folder).st_mode & 0o777 == 0o700
    assert os.stat(catalogue.path(SEAL, "cover")).st_mode & 0o777 == 0o700
    assert os.stat(catalogue.path(SEAL, "image")).st_mode & 0o777 == 0o600


def test_versions_are_in_the_order_of_numbers(catalogue: Catalogue) -> None:
    assert catalogue.seals() == [] and catalogue.next_version("images") == 1
    for version in (10, 9):
        publish(catalogue, SealId("images", version))
    publish(catalogue, SealId("a", 2))
    assert list(map(str, catalogue.seals())) == ["a@2", "images@9", "images@10"]
    assert catalogue.next_version("images") == 11 and catalogue.next_version("b") == 1


def test_a_draft_that_is_not_published_is_no_seal(catalogue: Catalogue) -> None:
    with catalogue.draft(SEAL) as draft:
        draft.create("list").close()
        assert catalogue.seals() == []
    assert os.listdir(catalogue.folder) == []


def test_what_a_killed_process_left_is_removed(catalogue: Catalogue) -> None:
    publish(catalogue)
    os.mkdir(f"{catalogue.folder}/.images@4.1.abcd")
    Path(f"{catalogue.folder}/.images@4.1.abcd/list").write_bytes(b"half")
    assert catalogue.seals() == [SEAL]
    catalogue.remove_drafts()
    assert os.listdir(catalogue.folder) == ["images@3"]


def test_what_a_kill_left_of_a_renewal_is_removed(catalogue: Catalogue) -> None:
    """Before the new record is in place, and after it."""
    for generation in (0, 2):
        record = publish(catalogue, SealId("images", generation + 1))
        names = ("list", "ids", "image")
        for name in names:
            body = Path(catalogue.path(record.seal, name)).read_bytes()
            for number in (1, 2):
                Path(catalogue.path(record.seal, f"{name}.{number}")).write_bytes(body)
        record = msgspec.structs.replace(record, generation=generation)
        Path(catalogue.path(record.seal, "seal.json")).write_bytes(msgspec.json.encode(record))
        catalogue.remove_drafts()
        kept = {record.file_name(name) for name in names}
        assert set(os.listdir(catalogue.path(record.seal, ""))) == kept | {"seal.json", "cover", "verified"}
        assert catalogue.ids(record) == IDS and list(catalogue.entries(record)) == TREE


def test_one_of_two_makers_wins(catalogue: Catalogue) -> None:
    """They are two processes. Within one process the second maker is refused before it begins."""
    with catalogue.draft(SEAL) as draft:
        with pytest.raises(PathExistsError, match="being made"), catalogue.draft(SEAL):
            pass
        assert catalogue.next_version("images") == 4
        record = publish(Catalogue(catalogue.folder))
        with pytest.raises(PathExistsError):
            catalogue.publish(draft, record)
    with pytest.raises(PathExistsError), catalogue.draft(SEAL):
        pass
    assert catalogue.record(SEAL) == record and os.listdir(catalogue.folder) == ["images@3"]


def test_a_removed_seal_is_gone(catalogue: Catalogue) -> None:
    record = publish(catalogue)
    catalogue.remove(SEAL)
    assert os.listdir(catalogue.folder) == []
    for call in (lambda: catalogue.remove(SEAL), lambda: catalogue.record(SEAL)):
        with pytest.raises(PathNotFoundError):
            call()
    with pytest.raises(PathNotFoundError):
        list(catalogue.entries(record))


def test_places_are_replaced_as_a_whole(catalogue: Catalogue) -> None:
    publish(catalogue)
    assert catalogue.places(SEAL) == []
    places = [Place("/mnt/images", in_place=True), Place("/other", shared=True)]
    catalogue.change_places(SEAL, lambda _: places)
    assert catalogue.places(SEAL) == places
    catalogue.change_places(SEAL, lambda _: [])
    assert catalogue.places(SEAL) == []
    assert not any(name.endswith(".new") for name in os.listdir(f"{catalogue.folder}/images@3"))


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff", b'{"name":1}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["seal.json", "places.json"])
def test_a_damaged_record_is_refused(catalogue: Catalogue, name: str, body: bytes) -> None:
    publish(catalogue)
    Path(catalogue.path(SEAL, name)).write_bytes(body)
    read = catalogue.record if name == "seal.json" else catalogue.places
    with pytest.raises(InvalidImageError):
        read(SEAL)


def test_the_record_of_another_seal_is_refused(catalogue: Catalogue) -> None:
    publish(catalogue)
    os.rename(f"{catalogue.folder}/images@3", f"{catalogue.folder}/images@4")
    with pytest.raises(InvalidImageError):
        catalogue.record(SealId("images", 4))


def test_a_damaged_list_is_refused(catalogue: Catalogue) -> None:
    record = publish(catalogue)
    path = Path(catalogue.path(SEAL, "list"))
    packed = path.read_bytes()
    for end in range(len(packed)):
        path.write_bytes(packed[:end])
        with pytest.raises(InvalidImageError):
            list(catalogue.entries(record))
    for place in range(10, len(packed)):  # before it lies the head of gzip, with flags and times
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0x55]) + packed[place + 1 :])
        with pytest.raises(InvalidImageError):
            list(catalogue.entries(record))


@pytest.mark.parametrize(
    "text",
    [
        *("", "images", "images@", "@1", "images@0", "images@01", "images@-1", "images@1.5", "images@x"),
        *("../a@1", "a/b@1", ".a@1", "a b@1", "a@1@2", "a@1\n", "é@1", "a" * 65 + "@1", "a@99999999999"),
        *("a@1000000001", "-a@1", "a\0@1"),
    ],
)
def test_what_is_no_name_of_a_seal_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        SealId.parse(text)


@pytest.mark.parametrize("text", ["a@1", "imagenet-1k_v2.1@1000000000", "A" * 64 + "@7"])
def test_a_name_is_printed_as_it_is_parsed(text: str) -> None:
    assert str(SealId.parse(text)) == text


def test_a_stray_name_hides_no_seal(catalogue: Catalogue) -> None:
    publish(catalogue)
    for name in ("lost+found", "images@4.bak", "README"):
        os.mkdir(f"{catalogue.folder}/{name}")
    assert catalogue.seals() == [SEAL] and catalogue.next_version("images") == 4


@pytest.mark.parametrize("body", [b"1234567", None])
def test_damaged_ids_are_refused(catalogue: Catalogue, body: bytes | None) -> None:
    record = publish(catalogue)
    path = Path(catalogue.path(SEAL, "ids"))
    path.unlink() if body is None else path.write_bytes(body)
    with pytest.raises(InvalidImageError):
        catalogue.ids(record)


class RenewedMeanwhile(Catalogue):
    """Renews the seal after its record was read, as the node does when all has arrived."""

    def record(self, seal: SealId) -> SealRecord:
        record = super().record(seal)
        if not record.generation:
            renewed = msgspec.structs.replace(record, generation=1)
            for name in ("list", "ids", "image"):
                old, new = (self.path(seal, each.file_name(name)) for each in (record, renewed))
                with open(old, "rb") as source, open(new, "wb") as out:
                    out.write(source.read())
            Catalogue(self.folder).renew(renewed)
        return record


def test_ids_are_read_also_while_a_seal_is_renewed(catalogue: Catalogue) -> None:
    """Else the cache might evict its files in that moment."""
    publish(catalogue)
    busy = RenewedMeanwhile(catalogue.folder)
    assert ids_now(busy, SEAL) == IDS
    os.unlink(catalogue.path(SEAL, "ids.1"))
    with pytest.raises(InvalidImageError):
        ids_now(busy, SEAL)
