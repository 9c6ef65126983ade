"""The map of a data set that no stream uses is forgotten in time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.prefetch.learned_maps import KEPT_S, LearnedMaps
from headrace.testing.virtual_loop import pass_time, running_loop

BEFORE_S = 2**15 - KEPT_S / 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parts", range(4))
async def test_it_is_forgotten_also_when_the_clock_passes_a_power_of_two(parts: int) -> None:
    """The sum of a time and a period is rounded there: a difference told that its time had not come, without end."""
    running_loop().waits.now_s = BEFORE_S + parts * math.ulp(BEFORE_S)
    maps = LearnedMaps(lambda: None)
    maps.begin("key", cast(Any, SimpleNamespace(has_files=True, is_reliable=True, samples=1)))
    maps.end("key", is_learned=True)
    await pass_time(KEPT_S - 1)
    assert "key" in maps
    await pass_time(2)
    assert "key" not in maps
