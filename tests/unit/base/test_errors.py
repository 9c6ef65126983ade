"""What all errors of Headrace's have in common."""

from __future__ import annotations

import pytest

from headrace.base.errors import HeadraceError, error_classes


@pytest.mark.parametrize("kind", error_classes().values(), ids=error_classes())
def test_a_copy_says_the_same_and_has_no_trace(kind: type[HeadraceError]) -> None:
    with pytest.raises(HeadraceError) as caught:
        raise kind("/a", why="it broke", hint="mend it") from OSError("below")
    copy = caught.value.copied()
    assert type(copy) is kind
    assert str(copy) == str(caught.value) == "/a: it broke (mend it)"
    assert (copy.__traceback__, copy.__cause__, copy.__context__) == (None, None, None)


def test_each_class_has_a_code_of_its_own() -> None:
    """Else it would stand for its parent wherever a code is looked up."""
    pending, codes = [HeadraceError], []
    while pending:
        error = pending.pop()
        assert "code" in vars(error), error
        codes.append(error.code)
        pending += error.__subclasses__()
    assert len(codes) == len(set(codes))
