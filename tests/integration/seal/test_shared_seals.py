"""Seals that one cluster pushes and another one pulls, over a directory and over SeaweedFS."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from headrace.cli.examples import FIELDS
from headrace.cli.exit_codes import SOME_FAILED
from tests.integration.cli.host import Host
from tests.integration.seal.shared_origin import Origin

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


def tree(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_another_cluster_pulls_what_one_pushed(hosts: list[Host], origin: Origin) -> None:
    first, second = hosts
    first_row = first.json("seal", first.mount / "images", "--as", "images@3")
    assert tuple(first.json("seal", "push", "images@3")) == FIELDS["seal push"]
    first.ok("seal", "push", "images@3")  # the same again
    (row,) = second.json("seal", "list", "--origin")
    assert (row["seal"], row["id"], row["path"]) == ("images@3", first_row["id"], "/images")
    assert second.json("seal", "list") == []
    pulled = second.json("seal", "pull", "images@3")
    assert tuple(pulled) == FIELDS["seal pull"]
    assert pulled["id"] == first_row["id"] and pulled["files"] == first_row["files"]
    second.ok("seal", "verify", "images@3")
    for host in hosts:
        assert ".headrace" not in os.listdir(host.mount)
        assert not (host.mount / ".headrace/seals/images@3.json").exists()
    assert tree(first.mount) == tree(second.mount)


def test_what_changed_or_is_gone_is_named(hosts: list[Host], origin: Origin) -> None:
    first, second = hosts
    first.ok("seal", first.mount / "images", "--as", "images@1")
    first.ok("seal", "push", "images@1")
    origin.put("images/0/0.bin", os.urandom(3000))
    origin.delete("images/1/1.bin")
    state = second.json("seal", "pull", "images@1", status=SOME_FAILED)
    reasons = dict(state["failed"])
    assert set(reasons) == {"0/0.bin", "1/1.bin"}
    assert any(word in reasons["0/0.bin"] for word in ("changed", "another version"))
    assert any(word in reasons["1/1.bin"] for word in ("gone", "another version", "removed"))
    assert second.json("seal", "list") == []
    first.ok("seal", "remove", "images@1")
    first.ok("sync", "/")
    first.ok("seal", first.mount / "images", "--as", "images@1")
    done = first.headrace("seal", "push", "images@1")
    assert done.returncode != 0 and "another seal of that name" in done.stderr


def test_a_forged_list_makes_no_seal(hosts: list[Host], origin: Origin) -> None:
    first, second = hosts
    row = first.json("seal", first.mount / "images", "--as", "images@1")
    first.ok("seal", "push", "images@1")
    forged = gzip.compress(b"headrace seal 1\n" + bytes(1 << 24))
    origin.put(f".headrace/seals/lists/{row['id']}", forged)
    for packed_bytes in (None, len(forged)):
        if packed_bytes is not None:
            record = {
                "format": 1,
                "name": "images",
                "version": 1,
                "path": "images",
                "id": row["id"],
                "files": 10,
                "size_bytes": 5,
                "created_s": 1.0,
                "list_bytes": 1 << 30,
                "packed_bytes": packed_bytes,
            }
            origin.put(".headrace/seals/images@1.json", json.dumps(record).encode())
        done = second.headrace("seal", "pull", "images@1")
        assert done.returncode != 0 and len(done.stderr.splitlines()) == 1, done.stderr
    assert second.json("seal", "list") == []
    assert os.listdir(second.cache / "seals") == []


def test_commands_open_a_seal_that_only_the_origin_has(hosts: list[Host], origin: Origin) -> None:
    first, second = hosts
    first.ok("seal", first.mount / "images", "--as", "images@1")
    first.ok("seal", "push", "images@1")
    origin.put("images/0/0.bin", os.urandom(3000))
    second.ok("sync", "/")
    second.ok("seal", second.mount / "images", "--as", "images@2")
    ours, theirs = first.json("seal", "show", "images@1"), second.json("seal", "show", "images@1")
    for name in ("id", "path", "files", "size_bytes"):
        assert ours[name] == theirs[name]
    difference = second.json("seal", "diff", "images@1", "images@2")
    assert difference["differences"] == [{"change": "changed", "path": "0/0.bin"}]
    assert second.json("seal", "diff", "images@1", "images@1")["differences"] == []
    done = second.headrace("seal", "verify", "images@1", "--json")
    assert [name for name, _ in json.loads(done.stdout)["failed"]] == ["0/0.bin"] and done.returncode != 0
    for command in ("show", "verify"):
        assert second.headrace("seal", command, "images@9").returncode != 0
