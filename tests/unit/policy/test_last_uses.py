"""The last use of a file is its latest one, and only files that were added take memory."""

from __future__ import annotations

from headrace.base.model import FileId
from headrace.policy.last_uses import LastUses

A, B = FileId(7), FileId(8)


def test_a_use_counts_for_files_that_were_added() -> None:
    uses = LastUses()
    uses.add(A, 100.9)
    uses.use([A, B], 200.0)
    assert (uses.of(A), uses.of(B), len(uses)) == (200.0, 0.0, 1)


def test_adding_again_never_makes_a_use_earlier() -> None:
    uses = LastUses()
    uses.add(A, 100.0)
    uses.add(A, 50.0)
    assert uses.of(A) == 100.0
    uses.remove(A)
    uses.remove(A)
    uses.add(B, 10.0)  # in the place of the other
    assert (uses.of(A), uses.of(B)) == (0.0, 10.0)
    uses.add(A, 20.0)
    assert (uses.of(A), uses.of(B)) == (20.0, 10.0)


def test_a_clock_of_another_century_is_no_error() -> None:
    """Reads of files note their uses, and must not fail."""
    uses = LastUses()
    uses.add(A, 1e11)
    assert uses.of(A) == 2.0**32 - 1
    uses.use([A], -1e10)
    assert uses.of(A) == 0.0
