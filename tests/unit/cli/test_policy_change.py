"""A change of the policy by a command is made again when another one came first."""

from __future__ import annotations

import pytest

from headrace.base.errors import PolicyConflictError, UsageError
from headrace.cli import policy
from headrace.wire.message import Message
from headrace.wire.policy_messages import PolicyAsk, PolicySet, PolicyShown

RULE = '[[rule]]\nmatch = ["/{}/**"]\nttl = "1d"\n'


class NodeWithOthers:
    """A node on which others set a policy before each of the first requests. others: how many."""

    def __init__(self, others: int) -> None:
        self.texts = [""]
        self.others = others
        self.set_count = 0

    def ask(self, request: Message, socket: str | None, cache: str | None) -> PolicyShown:
        if isinstance(request, PolicySet):
            self.set_count += 1
            if self.others:
                self.others -= 1
                self.texts.append(self.texts[-1] + RULE.format(f"other{self.others}"))
            if request.base != len(self.texts) - 1:
                raise PolicyConflictError("a policy", why=f"version {len(self.texts) - 1} is in force")
            self.texts.append(request.text)
        else:
            assert isinstance(request, PolicyAsk)
        return PolicyShown(len(self.texts) - 1, self.texts[-1], [])


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PAUSE_MAX_S", 0.0)


def change(node: NodeWithOthers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_ask", node.ask)
    policy.change_policy(lambda text: text + RULE.format("mine"), None, None, json=None)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("others", [0, 1, policy.CHANGE_ATTEMPTS - 1])
def test_the_changes_of_others_stay(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeWithOthers(others)
    change(node, monkeypatch)
    assert node.set_count == others + 1
    assert node.texts[-1].count("[[rule]]") == others + 1
    assert node.texts[-1].endswith(RULE.format("mine"))


@pytest.mark.usefixtures("_no_pauses")
def test_attempts_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeWithOthers(1000)
    with pytest.raises(PolicyConflictError, match="version 16 is in force"):
        change(node, monkeypatch)
    assert node.set_count == policy.CHANGE_ATTEMPTS
    assert "mine" not in node.texts[-1]


def test_another_error_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeWithOthers(0)
    monkeypatch.setattr(policy, "_ask", node.ask)

    def fail(text: str) -> str:
        raise UsageError("pattern", why="no rule has it")

    with pytest.raises(UsageError, match="no rule has it"):
        policy.change_policy(fail, None, None, json=None)
    assert node.set_count == 0
