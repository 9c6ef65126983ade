"""Random operations, over new names and the origin's: in a mount as in a plain folder.

HEADRACE_EXAMPLES is the number of sequences a mode.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from tests.integration.writes.conftest import EXAMPLES, MODES, TRIES, Folder, GetFolder, differences
from tests.integration.writes.drawing import operations_of
from tests.integration.writes.place import LOWER

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(600)]

sequence = some.builds(operations_of, seed=some.integers(0, 2**32), count=some.integers(10, 60))


def difference(plain: Folder, mounted: Folder, operations: list[Any]) -> str:
    """Empty where both places agree."""
    wanted, got = (place.run("model", LOWER, {"operations": operations}) for place in (plain, mounted))
    assert not wanted["error"], wanted["error"]
    if got["error"]:
        return str(got["error"])
    lines = [f"{g}, wanted {w}" for g, w in zip(got["notes"], wanted["notes"], strict=True) if g != w]
    lines += differences(got["tree"], wanted["tree"])
    return "\n".join(lines)


def needed(plain: Folder, mounted: Folder, operations: list[Any]) -> list[Any]:
    """Those of the operations without which they agree: halves, quarters, …, single ones are left out, at most so many
    times as there are folders at the origin for it."""
    kept, tries, size = operations, TRIES - 5, len(operations)
    while size := size // 2:
        start = 0
        while start < len(kept) and tries > 0:
            fewer = kept[:start] + kept[start + size :]
            tries -= 1
            if fewer and difference(plain, mounted, fewer):
                kept = fewer
            else:
                start += size
    return kept


@pytest.mark.parametrize("mode", MODES)
def test_random_operations(mode: str, get_folder: GetFolder) -> None:
    plain, mounted = get_folder("plain"), get_folder(mode)
    failed: list[str] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(sequence)
    def agree(operations: list[Any]) -> None:
        if not failed and difference(plain, mounted, operations):
            fewer = needed(plain, mounted, operations)
            failed.append(f"{fewer}\n{difference(plain, mounted, fewer)}")
        assert not failed, failed[0]

    agree()
