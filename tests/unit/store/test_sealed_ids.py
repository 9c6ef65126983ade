"""The ids that seals hold."""

from __future__ import annotations

from array import array

from headrace.base.model import FileId
from headrace.store.sealed_ids import SealedIds


def test_an_id_is_held_as_long_as_some_seal_has_it() -> None:
    ids = SealedIds()
    ids.add(array("Q", [5, 3, 9]))
    ids.add([3, 4])
    assert ids.all() == {3, 4, 5, 9}
    assert [FileId(id) in ids for id in range(11)] == [id in (3, 4, 5, 9) for id in range(11)]
    assert list(ids.replace([[4, 3], [3, 7]])) == [5, 9]
    assert ids.all() == {3, 4, 7}
    assert list(ids.replace([])) == [3, 4, 7] and ids.all() == set()


def test_a_seal_in_the_making_holds_its_ids_until_it_ends() -> None:
    ids = SealedIds()
    ids.begin("a@1").add(8)
    ids.begin("b@1").add(9)
    assert FileId(8) in ids and FileId(9) in ids and FileId(7) not in ids
    ids.end("a@1")
    assert FileId(8) not in ids and ids.all() == {9}
    ids.end("a@1")
    assert list(ids.replace([])) == [] and FileId(9) in ids
