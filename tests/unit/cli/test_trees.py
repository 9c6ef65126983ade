"""A tree is printed as lines that a person reads."""

from __future__ import annotations

import json

import msgspec
import pytest

from headrace.cli.main import main
from headrace.cli.render import print_tree
from headrace.wire.seal_messages import SealRow, SealRows


def test_a_tree_shows_a_time_as_a_date_beside_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    print_tree({"seal": {"created_s": 1795886721.433}}, as_json=False)
    assert capsys.readouterr().out == "seal.created_s  2026-11-28T17:25:21Z (1795886721.433)\n"


def test_a_tree_shows_words_and_no_values_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    tree = {"holders": [], "owners": ["node-1", "node-2"], "pinned": False, "sealed": True, "mtime": None}
    print_tree(tree, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        ["holders", "-"],
        ["owners", "node-1, node-2"],
        ["pinned", "no"],
        ["sealed", "yes"],
        ["mtime", "-"],
    ]


def test_a_list_of_seals_shows_sizes_and_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = SealRow("a@1", "f00d", "/d", 3, 5 << 20, 1795886721.433)
    monkeypatch.setattr("headrace.cli.request.ask", lambda *_: SealRows([row]))
    monkeypatch.setattr("sys.argv", ["headrace", "seal", "list", "--origin"])
    assert main() == 0
    assert capsys.readouterr().out == "a@1\tf00d\t/d\t3\t5.00 MiB\t2026-11-28T17:25:21Z\n"
    monkeypatch.setattr("sys.argv", ["headrace", "seal", "list", "--origin", "--json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out) == [msgspec.to_builtins(row)]
