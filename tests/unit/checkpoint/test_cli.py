"""`headrace checkpoint …`, as a user calls it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headrace.base.errors import UsageError
from headrace.checkpoint import SaveOptions, Saver, load, save, steps
from headrace.checkpoint.posix_storage import PosixStorage
from headrace.cli.examples import FIELDS
from headrace.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Status, stdout and stderr of `headrace checkpoint` with these words."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "checkpoint", *map(str, words)])
        status = main()
        out, err = capfd.readouterr()
        return status, out, err

    return call


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """Return what it prints with --json, held against the manual."""

    def call(*words: object) -> Any:
        status, out, err = run(*words, "--json")
        assert (status, err) == (0, "")
        answer = json.loads(out)
        for row in answer if isinstance(answer, list) else [answer]:
            assert tuple(row) == FIELDS[f"checkpoint {words[0]}"]
        return answer

    return call


STATE: dict[str, Any] = {
    "model": {"w": torch.arange(40_000.0).reshape(200, 200), "b": torch.ones(3, dtype=torch.bfloat16)},
    "rng": np.arange(2000), "step": 5, "lr": np.float64(0.5),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Steps 1 to 4, each with a changed tensor; 2 is pinned."""
    where = str(tmp_path / "run")
    options = SaveOptions(chunk_bytes=4096, slot_bytes=16384)
    with Saver(where, options=options) as saver:
        for step in (1, 2, 3, 4):
            state = {**STATE, "rng": np.arange(step, 2000 + step)}
            saver.save(state, step, metadata={"loss": 0.5}, pinned=step == 2).wait()
    return where


def test_list_and_show(run: Run, run_json: Callable[..., Any], folder: str) -> None:
    rows = run_json("list", folder)
    assert [(row["step"], row["full"], row["pinned"]) for row in rows] == [
        (1, True, False), (2, False, True), (3, False, False), (4, False, False)
    ]  # fmt: skip
    assert rows[0]["data_bytes"] == 160_000 + 6 + 16_000 + 8
    assert rows[1]["written_bytes"] == 16_000
    shown = run_json("show", folder, 3)
    assert shown["metadata"] == {"loss": 0.5}
    assert [leaf["name"] for leaf in shown["leaves"]] == ["model.w", "model.b", "rng", "lr"]
    assert set(shown["packs"]) <= set(os.listdir(f"{folder}/packs")) and len(shown["packs"]) == 2
    assert run("list", folder)[1].splitlines()[1].endswith("15.6 KiB\tpinned")
    status, out, _ = run("show", folder)
    assert status == 0
    assert re.search(r"model\.w +float32 \[200, 200\], 156 KiB", out)


def test_verify_names_what_is_wrong(run: Run, run_json: Callable[..., Any], folder: str) -> None:
    assert [row["bytes"] for row in run_json("verify", folder, "--all")] == [176_000] * 4
    assert run("verify", folder)[1].startswith("step 4: 172 KiB in ")
    shared = min(run_json("show", folder, 1)["packs"])
    with open(f"{folder}/packs/{shared}", "r+b") as file:
        file.seek(50_000)
        file.write(b"rotten")
    status, out, err = run("verify", folder, "--all", "--json")
    assert status == 61
    assert all("model.w" in row["problem"] for row in json.loads(out))
    assert re.fullmatch(r"headrace: model\.w, in \S+ at \d+: its bytes do not match .*\n", err)


def test_prune(run: Run, run_json: Callable[..., Any], folder: str) -> None:
    would = run_json("prune", folder, "--last", 1, "--dry-run")
    assert would["steps"] == [1, 3]
    assert len(os.listdir(f"{folder}/packs")) == 4
    assert run_json("prune", folder, "--last", 1) == would
    assert steps(PosixStorage(folder)) == [2, 4]
    assert sorted(os.listdir(f"{folder}/packs")) == sorted(
        set(run_json("show", folder, 2)["packs"]) | set(run_json("show", folder, 4)["packs"])
    )
    run_json("unpin", folder, 2)
    run_json("pin", folder, 4)
    status, out, _ = run("prune", folder, "--step", 2)
    assert status == 0 and out.startswith("deleted: 1 checkpoints (2), 1 packs, ")
    assert np.array_equal(load(folder)["rng"], np.arange(4, 2004))


def test_export_is_what_safetensors_reads(
    run: Run, run_json: Callable[..., Any], folder: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "model.safetensors")
    done = run_json("export", folder, file, "--step", 3)
    assert (done["tensors"], done["left_out"]) == (3, ["lr"])
    tensors = load_file(file)
    assert list(tensors) == ["model.b", "model.w", "rng"]
    assert torch.equal(tensors["model.w"], STATE["model"]["w"])
    assert torch.equal(tensors["model.b"], torch.ones(3, dtype=torch.bfloat16))
    assert torch.equal(tensors["rng"], torch.arange(3, 2003))
    assert run("export", folder, file, "--only", "model.*")[0] == 0
    assert list(load_file(file)) == ["model.b", "model.w"]
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "run"]


@pytest.mark.expected_warnings("headrace.checkpoint.prune")
def test_every_failure_is_one_line_and_a_status(run: Run, folder: str, tmp_path: Path) -> None:
    save({"a": torch.ones(3, dtype=torch.complex128), "a.b": 1}, str(tmp_path / "odd"), 1)
    (tmp_path / "empty").mkdir()
    wrong: dict[int, list[tuple[Any, ...]]] = {
        3: [("list", tmp_path / "none")],
        60: [("show", folder, 9), ("verify", tmp_path / "empty"), ("prune", folder, "--step", 9), ("pin", folder, 9),
             ("export", folder, tmp_path / "x", "--only", "nothing"), ("export", folder, tmp_path / "x", "--rank", 2)],
        8: [("export", tmp_path / "odd", tmp_path / "x")],
        2: [("prune", folder, "--every", 3), ("prune", folder, "--last", 0), ("verify", folder, 1, "--all"), ("show",)],
        62: [("export", folder, tmp_path / "none" / "x")],
    }  # fmt: skip
    for expected, calls in wrong.items():
        for words in calls:
            status, out, err = run(*words)
            assert (status, out) == (expected, ""), (words, err)
            assert re.fullmatch(r"headrace: .*\n", err), err
    (Path(folder) / "manifests" / f"{3:012d}").write_bytes(b"rot")
    status, out, err = run("list", folder)
    assert status == 0 and "does not begin like a manifest" in out.splitlines()[2]
    assert run("show", folder, 3)[0] == 61
    status, out, err = run("prune", folder, "--last", 2)
    assert status == 0 and "no pack was deleted" in err


@pytest.mark.parametrize("words", [["list"], ["verify", "--all"], ["prune"]])
def test_a_url_that_no_checkpoint_can_have_is_refused(words: list[str], run: Run) -> None:
    status, out, err = run(words[0], "s3://bucket/run7", *words[1:])
    assert (status, out) == (2, "")
    assert err.startswith("headrace: s3://bucket/run7: checkpoints are saved in a directory")


def test_no_checkpoint_is_saved_below_a_directory_named_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="mount the object store"):
        save(STATE, "s3://bucket/run7", step=1)
    assert list(tmp_path.iterdir()) == []
