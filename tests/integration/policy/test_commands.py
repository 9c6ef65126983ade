"""`headrace policy` on a node without a cluster: what is set is in force at once, and after a restart."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

FIRST = '[[rule]]\nmatch = ["/hot/**"]\npriority = "high"\nttl = "2d"\n'
RULES_AT_ONCE = 8
SECOND = '[[rule]]\nmatch = ["/hot/**"]\npriority = "low"\n'


def policy_file(host: Host, text: str, name: str = "policy.toml") -> str:
    path = host.base / name
    path.write_text(text)
    return str(path)


def numbers(host: Host) -> list[int]:
    return [row["number"] for row in host.json("policy", "history")]


def test_set_show_history_and_rollback(host: Host) -> None:
    host.up()
    assert host.json("policy", "show") == {"number": 0, "text": "", "versions": []}
    assert host.ok("policy", "set", policy_file(host, FIRST)) == "version 1 of the policy is in force\n"
    assert host.ok("policy", "show") == FIRST
    host.ok("policy", "set", policy_file(host, SECOND), "--base", "1")
    late = host.headrace("policy", "set", policy_file(host, FIRST), "--base", "1")
    assert late.returncode == 38 and "version 2 is in force by now" in late.stderr
    assert host.ok("policy", "show", "1") == FIRST
    assert host.json("policy", "rollback")["text"] == FIRST
    assert numbers(host) == [1, 2, 3]
    assert host.headrace("policy", "rollback", "9").returncode != 0
    host.ok("policy", "set", policy_file(host, FIRST))  # what is in force already is no new version
    assert numbers(host) == [1, 2, 3]


def test_a_policy_with_faults_changes_nothing_and_names_them_all(host: Host) -> None:
    host.up()
    host.ok("policy", "set", policy_file(host, FIRST))
    faulty = policy_file(host, '[[rule]]\nmatch = ["/a/**"]\nttl = "soon"\nreplica = 2\n', "faulty.toml")
    for command in ("set", "try", "check"):
        refused = host.headrace("policy", command, faulty)
        assert refused.returncode == 2
        assert f"{faulty}:3: ttl: 'soon' is no duration" in refused.stderr
        assert f"{faulty}:4: 'replica' is unknown, did you mean replicas?" in refused.stderr
    assert host.ok("policy", "show") == FIRST


def test_explain_says_which_rule_and_line(host: Host) -> None:
    host.put("hot/a.bin", 1000)
    host.up()
    host.ok("policy", "set", policy_file(host, FIRST))
    rows = {row["effect"]: row for row in host.json("policy", "explain", host.mount / "hot/a.bin")}
    assert rows["priority"] == {"effect": "priority", "value": "high", "source": "rule", "rule": 1, "line": 1}
    assert rows["ttl"]["value"] == "2d"
    assert (rows["fresh"]["value"], rows["fresh"]["source"]) == ("3600s", "configuration")
    assert (rows["write"]["value"], rows["replicas"]["value"]) == ("off", "1")
    text = host.ok("policy", "explain", "/elsewhere")
    assert "priority" in text and "default" in text


def test_try_counts_cached_files_and_changes_nothing(host: Host) -> None:
    for number in range(5):
        host.put(f"hot/{number}", 1000 + number)
        host.put(f"cold/{number}", 1000)
    host.up()
    host.ok("load", "/")
    (row,) = [
        row
        for row in host.json("policy", "try", policy_file(host, FIRST))["outcomes"]
        if row["effect"] == "priority"
    ]
    assert (row["before"], row["after"], row["files"], row["bytes"]) == ("normal", "high", 5, 5010)
    assert row["example"].startswith("/hot/")
    assert host.json("policy", "show")["number"] == 0
    empty = policy_file(host, "", "empty.toml")
    assert host.ok("policy", "try", empty) == "no cached file would be treated in another way\n"


def test_a_killed_node_comes_back_with_its_policy(host: Host) -> None:
    host.up()
    host.ok("policy", "set", policy_file(host, FIRST))
    host.wait_pid("node", other_than=host.kill("node"))
    assert host.ok("policy", "show") == FIRST
    rows = {row["effect"]: row["value"] for row in host.json("policy", "explain", "/hot/x")}
    assert rows["priority"] == "high"


@pytest.mark.expected_warnings(
    "the policy of the last run can't be read", "the policy record is invalid and will be replaced"
)
@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"versions": [{"number": 1, "text": "x y"}]}', b"\xff" * 2000]
)
def test_a_damaged_file_is_no_policy_and_said(host: Host, damage: bytes) -> None:
    host.up()
    host.ok("policy", "set", policy_file(host, FIRST))
    host.ok("down", "--all")
    (host.cache / "policy.json").write_bytes(damage)
    up = host.up()
    assert host.json("policy", "show")["number"] == 0
    assert "the policy of the last run can't be read" in up.said + node_log(host)
    host.ok("policy", "set", policy_file(host, SECOND))
    assert host.ok("policy", "show") == SECOND


def node_log(host: Host) -> str:
    return "".join(path.read_text() for path in Path(host.run_folder).rglob("*.log"))


def test_listings_are_as_fresh_as_the_policy_says(host: Host) -> None:
    host.put("asked/a", 10)
    host.put("kept/a", 10)
    host.up()
    host.ok("policy", "set", policy_file(host, '[[rule]]\nmatch = ["/asked/**"]\nfresh = "always"\n'))
    assert host.ok("ls", "/asked") == "a\n" and host.ok("ls", "/kept") == "a\n"
    host.put("asked/b", 10)
    host.put("kept/b", 10)
    assert host.ok("ls", "/asked") == "a\nb\n" and host.ok("ls", "/kept") == "a\n"
    host.ok("policy", "set", policy_file(host, '[[rule]]\nmatch = ["/kept/**"]\nfresh = "1s"\n'))
    # under the policy before it was good for an hour
    wait_until(lambda: host.ok("ls", "/kept") == "a\nb\n")
    host.assert_right("kept/b", "asked/b")


def test_a_budget_of_the_origin_is_kept_and_shown(host: Host) -> None:
    for number in range(40):
        host.put(f"d/{number}", 1000 + number)
    host.up()
    policy = f'[origin."file://{host.truth}"]\nrequests_s = 20\nbytes_s = "10Mbit"\n'
    host.ok("policy", "set", policy_file(host, policy))
    begun_s = time.monotonic()
    host.ok("load", "/d")
    assert time.monotonic() - begun_s >= (40 - 20) / 20
    host.assert_right()
    (origin,) = host.status()["policy"]["origins"]
    assert (origin["url"], origin["requests_s"], origin["bytes_s"]) == (f"file://{host.truth}", 20.0, 1.25e6)
    assert origin["requests"] >= 40 and origin["bytes"] >= 40 * 1000
    assert "this node may use 20 requests/s, 1.19 MiB/s" in host.ok("status")
    refused = host.headrace("policy", "set", policy_file(host, '[origin."nothing://x"]\nrequests_s = 1\n'))
    assert refused.returncode == 2 and ":1: origin: nothing://" in refused.stderr
    host.ok("policy", "set", policy_file(host, ""))
    assert host.status()["policy"]["origins"] == []


def test_a_rule_without_a_file(host: Host) -> None:
    host.put("d/a", 10)
    host.up()
    host.ok("policy", "rule", "/d/**", "ttl=2d", "priority=high")
    written = '# by hand\n[[rule]]\nmatch = ["/x/**"]\nfresh = "1m"\n'
    host.ok("policy", "set", policy_file(host, written + host.ok("policy", "show")))
    assert "version 3" in host.ok("policy", "rule", "/d/**", "ttl=3d")
    text = host.ok("policy", "show")
    assert text.startswith(written) and text.count("[[rule]]") == 2
    decisions = {row["effect"]: row["value"] for row in host.json("policy", "explain", host.mount / "d/a")}
    assert (decisions["ttl"], decisions["priority"]) == ("3d", "normal")
    other = host.base / "other"
    other.mkdir()
    (other / "b").write_bytes(b"b")
    host.ok("mount", "add", "/more", other, "--rule", "admit=never", "--rule", "ttl=1h")
    decisions = {row["effect"]: row["value"] for row in host.json("policy", "explain", "/more/b")}
    assert (decisions["ttl"], decisions["admit"]) == ("1h", "never")
    host.ok("policy", "rule", "/d/**", "--remove")
    assert "/d/**" not in host.ok("policy", "show")


def test_more_replicas_than_nodes_are_named(host: Host) -> None:
    host.up()
    file = policy_file(host, '[[rule]]\nmatch = ["/d/**"]\nreplicas = 4\n')
    line = "rule 1, line 1: replicas = 4 needs as many nodes, and this node belongs to no cluster"
    for command in ("try", "set"):
        done = host.headrace("policy", command, file)
        assert (done.returncode, done.stderr) == (0, f"headrace: {line}\n")
    assert host.status()["policy"]["warnings"] == [line]
    assert line in host.ok("status")
    assert host.headrace("policy", "rule", "/d/**", "replicas=1").stderr == f"headrace: {line}\n"
    host.ok("policy", "rollback", "1")
    file = policy_file(host, '[[rule]]\nmatch = ["/d/**"]\nreplicas = 1\n')
    assert host.headrace("policy", "set", file).stderr == ""
    assert host.status()["policy"]["warnings"] == []


def test_the_rule_of_a_mount_ends_with_it(host: Host) -> None:
    """Any other rule stays, also one of the command line below the mount."""
    host.up()
    other = host.base / "other"
    other.mkdir()
    (other / "b").write_bytes(b"b")
    host.ok("policy", "rule", "/more/x/**", "ttl=3d")
    before = host.ok("policy", "show")
    host.ok("mount", "add", "/more", other, "--rule", "ttl=1h")
    host.ok("mount", "remove", "/more")
    assert host.ok("policy", "show") == before
    host.ok("mount", "add", "/more", other)
    decisions = {row["effect"]: row["value"] for row in host.json("policy", "explain", "/more/b")}
    assert decisions["ttl"] == "-"


def test_rules_that_are_set_at_the_same_time_are_all_in_force(host: Host) -> None:
    host.up()
    with ThreadPoolExecutor(RULES_AT_ONCE) as pool:
        set_at_once = [
            pool.submit(host.ok, "policy", "rule", f"/{number}/**", f"ttl={number + 1}h")
            for number in range(RULES_AT_ONCE)
        ]
        for command in set_at_once:
            command.result()
    assert numbers(host) == list(range(1, RULES_AT_ONCE + 1))
    for number in range(RULES_AT_ONCE):
        decisions = {row["effect"]: row["value"] for row in host.json("policy", "explain", f"/{number}/x")}
        assert decisions["ttl"] == f"{number + 1}h"
    with ThreadPoolExecutor(RULES_AT_ONCE) as pool:
        removed = [
            pool.submit(host.ok, "policy", "rule", f"/{number}/**", "--remove")
            for number in range(RULES_AT_ONCE)
        ]
        for command in removed:
            command.result()
    assert "[[rule]]" not in host.json("policy", "show")["text"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["/d/**"], "it needs effects"),
        (["/d/**", "ttl"], "effects are fresh"),
        (["/d/**", "ttl=soon"], "'soon' is no duration"),
        (["/d/**", "--remove"], "no rule of the command line"),
    ],
)
def test_a_rule_with_a_fault_changes_nothing(host: Host, words: list[str], why: str) -> None:
    host.up()
    refused = host.headrace("policy", "rule", *words)
    assert refused.returncode == 2
    assert why in refused.stderr
    assert host.json("policy", "show")["number"] == 0


def test_the_rule_of_a_mount_is_checked_first_and_is_for_its_files_alone(host: Host) -> None:
    other = host.base / "other"
    other.mkdir()
    (other / "b").write_bytes(b"b")
    host.up()
    mounts = host.json("mount", "list")
    refused = host.headrace("mount", "add", "/odd[1]", other, "--rule", "ttl=soon")
    assert refused.returncode == 2
    assert "'soon' is no duration" in refused.stderr
    assert host.json("mount", "list") == mounts
    host.ok("mount", "add", "//odd[1]/", other, "--rule", "ttl=1h")
    for path, ttl in (("/odd[1]/b", "1h"), ("/odd1/b", "-")):
        decisions = {row["effect"]: row["value"] for row in host.json("policy", "explain", path)}
        assert decisions["ttl"] == ttl
