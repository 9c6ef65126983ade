"""The record of a policy keeps earlier versions, and is checked where it is decoded."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base.errors import PathNotFoundError
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import PolicyFaultsError
from headrace.policy.limits import POLICY_TEXT_MAX
from headrace.policy.record import (
    RECORD_BYTES_MAX,
    VERSIONS_KEPT_MAX,
    PolicyRecord,
    PolicyVersion,
    decode_record,
    encode_record,
)
from headrace.policy.resolve import PolicyResolver

RULE = '[[rule]]\nmatch = ["/a/**"]\nttl = "1d"\n'


def after(count: int, text: str = "") -> PolicyRecord:
    record = PolicyRecord()
    for number in range(count):
        record = record.followed_by(f"# {number}\n{text}", author="a@b", now_s=float(number))
    return record


def test_a_record_includes_those_that_it_was_made_from() -> None:
    late = after(VERSIONS_KEPT_MAX + 3)
    assert all(late.includes(after(count)) for count in range(VERSIONS_KEPT_MAX + 4)), "also what is not kept"
    assert not late.includes(after(VERSIONS_KEPT_MAX + 4))
    assert not late.includes(after(10, text="of another branch\n"))
    assert not PolicyRecord().includes(after(1))


def test_a_history_that_began_later_is_another() -> None:
    late = after(VERSIONS_KEPT_MAX + 3)
    for count in range(1, VERSIONS_KEPT_MAX + 6):
        anew = PolicyRecord()
        for number in range(count):
            anew = anew.followed_by("# anew\n", author="b", now_s=100.0 + number)
        assert not late.includes(anew)


def test_versions_follow_each_other_and_the_oldest_go() -> None:
    record = after(VERSIONS_KEPT_MAX + 3)
    assert [version.number for version in record.versions] == list(range(4, VERSIONS_KEPT_MAX + 4))
    assert record.version(4).text == "# 3\n"
    with pytest.raises(PathNotFoundError, match="versions 4 to 19 are kept"):
        record.version(3)
    assert decode_record(encode_record(record)) == record


def test_long_versions_are_fewer_and_the_newest_always_stays() -> None:
    for character in ("x", "\u20ac", "\U0001f600"):
        record = after(VERSIONS_KEPT_MAX, "#" + character * (POLICY_TEXT_MAX - 10))
        assert record.number == VERSIONS_KEPT_MAX and len(record.versions) >= 3
        assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"versions": 3}',
        b'{"versions": [{"number": 0, "text": ""}]}',
        b'{"versions": [{"number": 2, "text": ""}, {"number": 2, "text": ""}]}',
        b'{"versions": [{"number": 3, "text": ""}, {"number": 2, "text": ""}]}',
        b'{"versions": [{"number": 1, "text": "' + b"x" * (POLICY_TEXT_MAX + 1) + b'"}]}',
        b'{"versions": [' + b",".join(b'{"number": %d, "text": ""}' % n for n in range(1, 30)) + b"]}",
        b" " * (RECORD_BYTES_MAX + 1),
    ],
)
def test_a_record_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_record(raw)


def test_a_policy_with_faults_is_not_adopted() -> None:
    policy = CurrentPolicy()
    policy.adopt(PolicyRecord([PolicyVersion(1, RULE)]))
    with pytest.raises(PolicyFaultsError):
        policy.adopt(PolicyRecord([PolicyVersion(2, "x y")]))
    assert policy.record.number == 1 and policy.of(b"/a/b").ttl is not None


def test_listeners_hear_of_changes_of_the_text_only() -> None:
    policy, before = CurrentPolicy(), list[PolicyResolver]()
    policy.changed.add(before.append)
    policy.adopt(PolicyRecord([PolicyVersion(1, RULE)]))
    policy.adopt(PolicyRecord([PolicyVersion(1, RULE), PolicyVersion(2, RULE)]))
    assert len(before) == 1 and before[0].of(b"/a/b").ttl is None
    assert policy.record.number == 2


@pytest.mark.parametrize("count, why", [(0, "none is set"), (1, "versions 1 to 1 are kept")])
def test_a_version_before_the_first_is_called_an_earlier_one(count: int, why: str) -> None:
    record = after(count)
    with pytest.raises(PathNotFoundError, match=f"an earlier version of the policy.*{why}"):
        record.version(record.number - 1)
