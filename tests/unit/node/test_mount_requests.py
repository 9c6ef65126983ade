"""A mount that is detached leaves no rule of its own in the policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.node.requests import MountRequests
from headrace.wire.messages import Done, MountRemove


class Node:
    """A node without a cluster that has a mount at /d. late_rule: whether the mount gets a rule just before it is
    detached. failure: of the policy, once the mount is detached."""

    def __init__(self, *, late_rule: bool, failure: Exception | None = None) -> None:
        self.mounts = [SimpleNamespace(path="/d")]
        self.rules = ["/d"]
        self._late_rule = late_rule
        self._failure = failure

    def all(self) -> list[Any]:
        return self.mounts

    async def end_rule_of_mount(self, path: str) -> None:
        if self._failure is not None and not self.mounts:
            raise self._failure
        self.rules = [rule for rule in self.rules if rule != path]

    async def remove(self, path: str) -> None:
        if self._late_rule:
            self.rules.append(path)
        self.mounts = []

    async def detach(self) -> Done:
        node = cast(Any, self)
        return await MountRequests(node, node, None, node)._remove(MountRemove(path="/d"))


@pytest.mark.parametrize("late_rule", [False, True])
async def test_a_rule_that_comes_while_its_mount_is_detached_ends(late_rule: bool) -> None:
    node = Node(late_rule=late_rule)
    assert (await node.detach()).warning == ""
    assert (node.mounts, node.rules) == ([], [])


async def test_a_rule_that_can_not_be_ended_is_named() -> None:
    node = Node(late_rule=True, failure=ClusterUnavailableError("etcd", why="it does not answer"))
    assert "the policy may still have its rule" in (await node.detach()).warning
    assert node.mounts == []
