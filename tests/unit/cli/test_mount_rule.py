"""A rule that `mount add` gives a mount ends with the mount, also if another command removes that at the same time."""

from __future__ import annotations

import pytest

from headrace.base.errors import NodeUnavailableError, PathNotFoundError
from headrace.cli import policy, request
from headrace.cli.mount import _add_rule, add, remove
from headrace.policy.rule_text import with_rule
from headrace.wire.message import Message
from headrace.wire.messages import Done, MountAdd, MountList, MountRemove, MountRow, Mounts
from headrace.wire.policy_messages import PolicyAsk, PolicySet, PolicyShown

OTHERS = '[[rule]]\nmatch = ["/other/**"]\nttl = "1d"\n'


class Node:
    """A node with the mounts of these paths."""

    def __init__(self, *paths: str) -> None:
        self.rows = [MountRow(path=path, url="s3://b", sync_interval_s=60.0) for path in paths]
        self.texts = [OTHERS]

        self.fail: dict[tuple[type[Message], str], BaseException] = {}
        """Exceptions that messages end by, once each, before or after their effect."""

    def ask(self, message: Message, socket: str | None, cache: str | None) -> PolicyShown | Mounts | Done:
        self._fail(message, "before")
        if isinstance(message, MountAdd):
            self.rows.append(MountRow(path=message.path, url=message.url, sync_interval_s=60.0))
        elif isinstance(message, MountRemove):
            self.rows = [row for row in self.rows if row.path != message.path]
        elif isinstance(message, PolicySet):
            self.texts.append(message.text)
        self._fail(message, "after")
        if isinstance(message, MountList):
            return Mounts(rows=self.rows)
        if isinstance(message, MountAdd | MountRemove):
            return Done()
        return PolicyShown(len(self.texts), self.texts[-1], [])

    def _fail(self, message: Message, when: str) -> None:
        if error := self.fail.pop((type(message), when), None):
            raise error


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


def interrupted(node: Node, message: type[Message], when: str, *, rule: list[str]) -> None:
    node.fail[message, when] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        add("/more", "s3://more", rule=rule)


@pytest.mark.parametrize(
    ("message", "when", "said"),
    [
        (MountAdd, "before", ""),
        (MountAdd, "after", "s3://more is attached at /more without its rule"),
        (PolicyAsk, "before", "s3://more is attached at /more without its rule"),
        (PolicySet, "before", "s3://more is attached at /more without its rule"),
        (PolicySet, "after", "s3://more is attached at /more, completely"),
    ],
)
def test_an_interrupted_command_says_what_exists(
    node: Node, message: type[Message], when: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(node, message, when, rule=["ttl=2d"])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == bool(said) and said in printed.err


def test_without_a_rule_only_the_mount_is_said(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(node, MountAdd, "after", rule=[])
    assert capsys.readouterr().err == "headrace: s3://more is attached at /more, completely\n"


def test_what_a_node_that_went_away_has_is_not_known(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.fail[MountList, "before"] = NodeUnavailableError("no node answers at s")
    interrupted(node, MountAdd, "after", rule=["ttl=2d"])
    assert "whether s3://more is attached at /more is not known: no node answers" in capsys.readouterr().err


def test_a_rule_that_is_refused_leaves_a_mount_that_is_named(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.fail[PolicySet, "before"] = NodeUnavailableError("etcd does not answer")
    with pytest.raises(NodeUnavailableError, match="etcd"):
        add("/more", "s3://more", rule=["ttl=2d"])
    assert "s3://more is attached at /more without its rule" in capsys.readouterr().err


@pytest.mark.parametrize(("when", "lines"), [("before", 1), ("after", 0)])
def test_an_interrupted_removal_says_whether_the_mount_is_left(
    node: Node, when: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    node.fail[MountRemove, when] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        remove("/d")
    assert capsys.readouterr().err.count("/d is still attached, and a rule") == lines
