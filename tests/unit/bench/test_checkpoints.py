"""The checkpoints' layout against MLPerf Storage's published sizes; ranks that write, read, and see what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, NoSpaceError, UsageError
from headrace.bench import checkpoint_rank
from headrace.bench.checkpoint_layout import MODELS, Model
from headrace.bench.checkpoints import CheckpointPlan, run

GIB = 1 << 30


def sums(model: Model) -> tuple[float, float]:
    """Model and optimizer, in GiB, of all ranks."""
    files = [item for rank in range(model.ranks) for item in model.files(rank).items()]
    optimizer = sum(size for name, size in files if "optim" in name)
    return (sum(size for _, size in files) - optimizer) / GIB, optimizer / GIB


@pytest.mark.parametrize(
    ("name", "ranks", "model", "optimizer"),
    [("llama3-8b", 8, 15, 90), ("llama3-70b", 64, 130, 781), ("llama3-405b", 512, 755, 4533)],
)
def test_sizes_are_those_that_mlperf_publishes(name: str, ranks: int, model: int, optimizer: int) -> None:
    # mlpstorage/config.py, LLM_SIZE_BY_RANK
    architecture = MODELS[name]
    assert architecture.ranks == ranks
    assert list(sums(architecture)) == pytest.approx([model, optimizer], rel=0.004)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3-8b", 104.70452117919922),
        ("llama3-70b", 911.2121276855469),
        ("llama3-405b", 5292.248718261719),
        ("llama3-1t", 15426.589264154434),
    ],
)
def test_sizes_are_to_the_byte_those_of_closed_submissions_to_version_3(name: str, published: float) -> None:
    # checkpoint_size_GB of closed/{Alluxio,NVIDIA}/results/*/checkpointing/*/*/summary.json, storage_results_v3.0
    model = MODELS[name]
    assert sum(sum(model.files(rank).values()) for rank in range(model.ranks)) / GIB == published


def test_the_largest_model_follows_its_dimensions() -> None:
    # by hand: 128 layers of 2 h + h (h + 2 * 134 * 32) + h^2 + 3 h f, embedding and head, with h = 25872, f = 98304
    h, f = 25_872, 98_304
    parameters = 128 * (2 * h + h * (h + 2 * 134 * 32) + h * h + 3 * h * f) + 2 * 128_256 * h + h
    assert MODELS["llama3-1t"].parameters == parameters
    assert sums(MODELS["llama3-1t"])[0] == pytest.approx(2 * parameters / GIB, rel=0.001)


def test_every_layer_is_in_one_stage() -> None:
    for model in MODELS.values():
        layers = [layer for stage in range(model.pipeline) for layer in model.stage_layers(stage)]
        assert layers == list(range(model.layers + 3)), model.name


def test_names_are_of_one_rank_only() -> None:
    for name in ("llama3-8b", "llama3-70b", "llama3-405b"):
        model = MODELS[name]
        names = [name for rank in range(model.ranks) for name in model.files(rank)]
        assert len(set(names)) == len(names)


def test_ranks_with_zero_1_write_the_model_once() -> None:
    model = MODELS["llama3-405b"]
    assert len(model.files(0)) == 4 + 1 + 1  # its stage's layers, the embedding, the optimizer
    assert list(model.files(model.ranks - 1)) == ["zero_pp_rank_1_mp_rank_255_optim_states.pt"]


@pytest.mark.timeout(60)
def test_checkpoints_are_written_and_read(tmp_path: Path) -> None:
    said: list[str] = []
    plan = CheckpointPlan(
        model="llama3-70b",
        folders=[(str(tmp_path), ())],
        scale=1e-4,
        writes=2,
        reads=2,
        keep=True,
        drop=False,
    )
    report = run(plan, say=said.append)
    (folder,) = tmp_path.iterdir()
    model = MODELS["llama3-70b"]
    for number in range(2):
        names = {name: size for rank in range(8) for name, size in model.files(rank).items()}
        sizes = {path.name: path.stat().st_size for path in (folder / f"checkpoint-{number}").iterdir()}
        assert sizes == {name: max(1, round(size * 1e-4)) for name, size in names.items()}
    assert report.checkpoint_bytes == sum(sizes.values())
    assert (len(report.writes), len(report.reads), report.ranks, report.files) == (2, 2, 8, 16)
    for turn in (*report.writes, *report.reads):
        assert turn.took_s == max(turn.by_rank_s)
        assert turn.bytes_s == pytest.approx(report.checkpoint_bytes / turn.took_s)
        assert turn.wall_s >= turn.took_s
    assert report.called == "MLPerf Storage workload, scaled"
    assert len(said) == 4


@pytest.mark.timeout(60)
def test_nothing_stays(tmp_path: Path) -> None:
    plan = CheckpointPlan(
        model="llama3-8b", folders=[(str(tmp_path), ())], scale=1e-6, writes=1, reads=0, drop=False
    )
    run(plan, say=lambda _line: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spoil", ["swap", "cut", "older"])
def test_a_read_sees_what_was_not_written_so(tmp_path: Path, spoil: str) -> None:
    files, buffer = {"a": (9 << 20) + 5, "b": 3 << 20}, bytearray(os.urandom(checkpoint_rank.PART_BYTES))
    checkpoint_rank.write(str(tmp_path), files, (1, 0), buffer)
    assert checkpoint_rank.read(str(tmp_path), files, (1, 0), buffer) == sum(files.values())
    mark = (2, 0) if spoil == "older" else (1, 0)
    if spoil == "cut":
        os.truncate(tmp_path / "a", 9 << 20)
    if spoil == "swap":
        body = bytearray((tmp_path / "b").read_bytes())
        body[: 1 << 20], body[1 << 20 : 2 << 20] = body[1 << 20 : 2 << 20], body[: 1 << 20]
        (tmp_path / "b").write_bytes(body)
    with pytest.raises(ValueError, match=r"ends at|other bytes than were written"):
        checkpoint_rank.read(str(tmp_path), files, mark, buffer)


@pytest.mark.timeout(60)
def test_what_does_not_fit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    plan = CheckpointPlan(model="llama3-1t", folders=[(str(tmp_path), ())], scale=100, drop=False)
    with pytest.raises(NoSpaceError, match="--scale"):
        run(plan, say=lambda _line: None)
    with pytest.raises(UsageError):
        run(
            CheckpointPlan(model="llama3-8b", folders=[(str(tmp_path), ())], mode="whole"),
            say=lambda _line: None,
        )
    with pytest.raises(HeadraceError):
        run(CheckpointPlan(model="llama3-8b", folders=[(str(tmp_path / "no"), ())]), say=lambda _line: None)
    assert list(tmp_path.iterdir()) == []
