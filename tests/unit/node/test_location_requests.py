"""`headrace stat` says how many copies a file has, and what decided that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.node.location_requests import LocationRequests
from headrace.policy.document import parse_policy
from headrace.policy.resolve import PolicyResolver
from headrace.wire.location_messages import LocationAsk, LocationShown

RULE = '[[rule]]\nmatch = ["/ruled/**"]\nreplicas = 3\n'


class ClusterOfThree:
    """Wants a number of copies of each file. pinned: what a pin asks for."""

    node_id = "a"

    def __init__(self, wanted: int, pinned: int) -> None:
        self.wanted = wanted
        self.pinned = pinned

    def copies_of(self, path: bytes) -> tuple[int, int]:
        return self.wanted, self.pinned

    def owners_of(self, path: bytes, copies: int) -> tuple[list[str], list[str]]:
        return ["a", "b", "c"][:copies], []


@pytest.mark.parametrize(
    ("path", "wanted", "pinned", "copies", "decided_by"),
    [
        (b"/f", 1, 0, 1, "configuration"),
        (b"/f", 1, 2, 2, "pin"),
        (b"/f", 2, 1, 2, "configuration"),
        (b"/ruled/f", 3, 0, 3, "rule 1, line 1"),
        (b"/ruled/f", 3, 2, 3, "rule 1, line 1"),
    ],
)
async def test_a_pin_that_asks_for_more_copies_decides(
    path: bytes, wanted: int, pinned: int, copies: int, decided_by: str
) -> None:
    tree: Any = SimpleNamespace(entry_at=lambda path: None)
    policy: Any = SimpleNamespace(resolver=PolicyResolver(parse_policy(RULE)))
    cluster: Any = ClusterOfThree(wanted, pinned)
    requests = LocationRequests(tree, SimpleNamespace(), policy, cluster)  # type: ignore[arg-type]
    shown = await requests.handlers[LocationAsk](LocationAsk(path))
    assert isinstance(shown, LocationShown)
    location = shown.location
    assert (location.copies, location.copies_by) == (copies, decided_by)
    assert len(location.owners) == copies
