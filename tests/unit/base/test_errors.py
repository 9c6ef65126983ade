"""All errors of Headrace's have this in common."""

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


def test_a_code_stands_for_one_class() -> None:
    """A subclass without a code of its own never stands for its parent where a code is looked up."""
    pending, codes = [HeadraceError], []
    while pending:
        error = pending.pop()
        if "code" in vars(error):
            codes.append(error.code)
            assert error_classes()[error.code] is error
        pending += error.__subclasses__()
    assert len(codes) == len(set(codes))
