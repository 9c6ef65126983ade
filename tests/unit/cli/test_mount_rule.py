"""A rule that `mount add` gives a mount ends with the mount, also if another command removes that at the same time."""

from __future__ import annotations

import pytest

from headrace.base.errors import PathNotFoundError
from headrace.cli import policy, request
from headrace.cli.mount import _add_rule
from headrace.policy.rule_text import with_rule
from headrace.wire.message import Message
from headrace.wire.messages import MountList, MountRow, Mounts
from headrace.wire.policy_messages import PolicySet, PolicyShown

OTHERS = '[[rule]]\nmatch = ["/other/**"]\nttl = "1d"\n'


class Node:
    """A node with the mounts of these paths."""

    def __init__(self, *paths: str) -> None:
        self.rows = [MountRow(path=path, url="s3://b", sync_interval_s=60.0) for path in paths]
        self.texts = [OTHERS]

    def ask(self, message: Message, socket: str | None, cache: str | None) -> PolicyShown | Mounts:
        if isinstance(message, MountList):
            return Mounts(rows=self.rows)
        if isinstance(message, PolicySet):
            self.texts.append(message.text)
        return PolicyShown(len(self.texts), self.texts[-1], [])


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node("/", "/d")
    monkeypatch.setattr(policy, "_ask", node.ask)
    monkeypatch.setattr(request, "ask", node.ask)
    return node


@pytest.mark.parametrize("path", ["/d", "//d/"])
def test_a_mount_has_its_rule(node: Node, path: str) -> None:
    _add_rule(path, {"ttl": '"2d"'}, None, None)
    assert node.texts[-1] == with_rule(OTHERS, "/d/**", {"ttl": '"2d"'}, of_mount=True)


def test_a_mount_that_is_gone_leaves_no_rule(node: Node) -> None:
    with pytest.raises(PathNotFoundError, match="detached before it had its rule"):
        _add_rule("/gone", {"ttl": '"2d"'}, None, None)
    assert len(node.texts) == 3 and node.texts[-1] == OTHERS
