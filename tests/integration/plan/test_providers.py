"""The loaders of other packages: what the plan hook learns is what they give, and they give the same without the hook.

Each program trains an epoch, and goes on from the middle of one, alone and as two ranks. What does not belong to the
extra `plan-providers` has environments of its own. They are made in the directory $HEADRACE_PROVIDERS, if that is set.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest

import headrace.hook
from tests import fork_server
from tests.integration.cli.host import Host, wait_until
from tests.integration.plan.hooked import start_hooked

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
SITE = Path(headrace.hook.__file__).with_name("site")
OWN_ENVIRONMENTS = {
    "lightning": ["lightning>=2.6,<3"],
    "transformers": ["transformers>=5,<6", "accelerate>=1.15,<2"],
    "streaming": ["mosaicml-streaming>=0.13,<0.14", "torchvision==0.28.*"],
    "litdata": ["litdata>=0.2.76,<0.3", "torchvision==0.28.*"],
    "megatron": [
        *("--ignore-requires-python", "--no-binary=megatron-core"),
        *("megatron-core>=0.19,<0.20", "triton>=3,<4"),
    ],
}
"""torchvision of the torch that is installed; else pip brings another torch. megatron-core has wheels for Python 3.12
only, so it is built."""
SHARDS = 12
NOT_THIS_EPOCH = "own sampler 0: resumed"
"""The run whose order can't be known: the sampler drew random numbers before it was asked, and can't be copied."""
NOT_IN_RANKS = "own: "
"""How the names of runs begin whose sampler is the program's own, and may wait for other ranks."""
RESUMED_FILES = 88
"""Files of which two ranks read 20 each. The rest can be divided by one, two and three ranks."""
STREAMED = """
import datasets, json, sys, torch
from torch.utils.data import DataLoader
rows = datasets.load_from_disk(sys.argv[1]).to_iterable_dataset(num_shards=3).shuffle(seed=3, buffer_size=10)
epochs = []
for workers in (0, 2):
    for epoch in range(2):
        rows.set_epoch(epoch)
        loader = DataLoader(rows, batch_size=7, num_workers=workers)
        epochs.append([number for batch in loader for number in batch["number"].tolist()])
print(json.dumps(epochs))
"""
LEFT = ("begun", "left: epoch 0")
"""How the names of runs end that leave their epoch early."""


def python_with(package: str) -> str:
    """Return a Python that has a package. Skip the test where there is none."""
    if package not in OWN_ENVIRONMENTS:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'headrace[plan-providers]'")
        return sys.executable
    if not os.environ.get("HEADRACE_PROVIDERS"):
        pytest.skip(
            f"{package} needs an environment of its own: HEADRACE_PROVIDERS names no directory for it"
        )
    folder = Path(os.environ["HEADRACE_PROVIDERS"], package)
    python = str(folder / "bin/python")
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=False)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        subprocess.run([*install, *OWN_ENVIRONMENTS[package]], check=True)
        (folder / "ready").touch()
    return python


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def environment_of_hook(mount: str) -> dict[str, str]:
    """Return the environment that loads the hook, below a mount. Its node is away."""
    return {
        "HEADRACE_PLAN_SOCKET": "/no/such/node",
        "HEADRACE_PLAN_MOUNTS": json.dumps([[mount, "/"]]),
        "PYTHONPATH": str(SITE),
    }


def run_ranks(command: list[str], ranks: int, *, is_planned: bool, mount: str = "/no/mount") -> list[Any]:
    """Run a program as some ranks, and return what they print. The plan's node is away: only the hook is tested."""
    planned = environment_of_hook(mount)
    group = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "1",
    }
    everywhere = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    everywhere |= {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    processes = [
        fork_server.TorchPopen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ
            | everywhere
            | (planned if is_planned else {})
            | (group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
        )
        for rank in range(ranks)
    ]
    printed = []
    for process in processes:
        output, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
        printed.append(json.loads(output.splitlines()[-1]))
    return printed


def check_runs(planned: dict[str, Any], plain: dict[str, Any], ranks: int) -> None:
    assert planned["states"] == plain["states"]
    for name, run in planned["runs"].items():
        given = run["given"]
        assert given == plain["runs"][name]["given"], name
        if name == NOT_THIS_EPOCH or (ranks > 1 and name.startswith(NOT_IN_RANKS)):
            assert run["learned"] == []
        elif name.endswith(LEFT):
            assert given
            assert run["learned"][: len(given)] == given, name
        else:
            assert run["learned"] == given, name


@pytest.mark.parametrize(
    ("package", "ranks"),
    [
        ("torchdata", 1),
        ("accelerate", 1),
        ("accelerate", 2),
        ("lightning", 1),
        ("lightning", 2),
        ("transformers", 1),
        ("transformers", 2),
        ("megatron", 1),
        ("megatron", 2),
    ],
)
def test_the_learned_order_is_what_the_loader_gives(package: str, ranks: int, tmp_path: Path) -> None:
    program = [python_with(package), "-m", "tests.integration.plan.provided", package]
    everything = zip(
        run_ranks([*program, str(tmp_path / "planned")], ranks, is_planned=True),
        run_ranks([*program, str(tmp_path / "plain")], ranks, is_planned=False),
        strict=True,
    )
    for planned, plain in everything:
        check_runs(planned, plain, ranks)
        if package == "accelerate":
            runs = planned["runs"]
            assert runs["seedable True: epoch 0"]["later"] == runs["seedable True: epoch 1"]["given"]


class BegunJob:
    """A job of two ranks that read half an epoch, and saved the states of their loaders."""

    def __init__(self, loader: str, base: Path) -> None:
        self.loader = loader
        self.folder, self._states = base / "files", base / "states"
        self.folder.mkdir()
        self._states.mkdir()
        for number in range(RESUMED_FILES):
            (self.folder / f"{number:03}").write_bytes(b"x")
        self.ranks = self.run("begin", 2, is_planned=True)

    def run(self, phase: str, ranks: int, *, is_planned: bool) -> list[Any]:
        """Return what the ranks opened, and what the hook learned."""
        program = [sys.executable, "-m", "tests.integration.plan.resumer", self.loader, phase]
        mount = str(self.folder) if is_planned else "/no/mount"
        words = [*program, str(self.folder), str(self._states)]
        return run_ranks(words, ranks, is_planned=is_planned, mount=mount)


@pytest.fixture(scope="module", params=["torchdata", "torch", "headrace"])
def begun_job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BegunJob:
    if request.param == "torchdata":
        python_with(request.param)
    return BegunJob(request.param, tmp_path_factory.mktemp("begun"))


def test_what_half_an_epoch_opens_is_learned(begun_job: BegunJob) -> None:
    for rank in begun_job.ranks:
        assert len(rank["opened"]) == 20
        assert rank["learned"][:20] == rank["opened"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_job_that_goes_on_with_other_ranks_opens_what_is_learned(begun_job: BegunJob, ranks: int) -> None:
    """Two ranks read half an epoch. Then so many ranks read the rest, or what the loader takes for it."""
    resumed = begun_job.run("resume", ranks, is_planned=True)
    plain = begun_job.run("resume", ranks, is_planned=False)
    for rank, rank_without_hook in zip(resumed, plain, strict=True):
        assert rank["opened"]
        assert rank["learned"] == rank["opened"] == rank_without_hook["opened"]
    if begun_job.loader == "torch" or (begun_job.loader == "headrace" and ranks == 2):
        opened = [path for rank in (*begun_job.ranks, *resumed) for path in rank["opened"]]
        assert len(set(opened)) == len(opened) == RESUMED_FILES


def test_an_iterable_data_set_of_hugging_face_runs_as_without_the_hook(tmp_path: Path) -> None:
    """It has no plan, and the hook says so once."""
    datasets: Any = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"number": list(range(60))}).save_to_disk(tmp_path / "rows", num_shards=3)
    outputs = [
        fork_server.run_with_torch(
            [sys.executable, "-c", STREAMED, tmp_path / "rows"],
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ | environment,
        )
        for environment in ({}, environment_of_hook(str(tmp_path)))
    ]
    plain, planned = outputs
    assert (plain.returncode, planned.returncode) == (0, 0), (plain.stderr, planned.stderr)
    assert planned.stdout == plain.stdout
    assert len(json.loads(plain.stdout)) == 4
    said = [line for line in planned.stderr.splitlines() if line.startswith("headrace")]
    assert said == [
        "headrace: a loader runs without a plan: IterableDataset has no order that a sampler knows"
    ]
    assert "headrace" not in plain.stderr


def put_tars(folder: Path) -> None:
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:02}.tar", "w") as tar:
            for number in range(shard * 5, shard * 5 + 5):
                head = tarfile.TarInfo(f"{number}.txt")
                head.size = 1
                tar.addfile(head, io.BytesIO(b"x"))


@pytest.mark.parametrize(
    ("package", "ranks", "workers"),
    [
        ("webdataset", 1, 2),
        ("webdataset", 2, 0),
        ("streaming", 1, 0),
        ("streaming", 1, 2),
        ("litdata", 1, 0),
        ("litdata", 1, 2),
    ],
)
def test_the_learned_shards_are_those_that_are_opened(
    package: str, ranks: int, workers: int, tmp_path: Path
) -> None:
    folder, log = tmp_path / "shards", tmp_path / "log"
    if package == "webdataset":
        put_tars(folder)
    program = [
        python_with(package),
        "-m",
        "tests.integration.plan.shard_reader",
        package,
        str(folder),
        str(workers),
    ]
    plain = run_ranks([*program, str(tmp_path / "unplanned")], ranks, is_planned=False)
    planned = run_ranks([*program, str(log)], ranks, is_planned=True, mount=str(folder))
    assert planned == plain
    learned: dict[int, list[str]] = {}
    opened: dict[int, list[str]] = {}
    for line in map(json.loads, log.read_text().splitlines()):
        if "learned" in line:
            learned.setdefault(line["pid"], []).extend(line["learned"])
        elif line["opened"].endswith((".tar", ".mds", ".bin")):
            files = opened.setdefault(line["pid"], [])
            if line["opened"] not in files[-1:]:
                files.append(line["opened"])
    if package != "webdataset":  # it gives samples of several shards in turn
        opened = {pid: list(dict.fromkeys(files)) for pid, files in opened.items()}
    assert sum(map(len, opened.values())) > 10
    assert learned == opened


WAITING = """
import os, sys, time, torch, webdataset
folder, go = sys.argv[1:]
names = sorted(os.path.join(folder, name) for name in os.listdir(folder))
data = webdataset.WebDataset(names, shardshuffle=100).decode().map(lambda sample: int(sample["__key__"]))
loader = iter(torch.utils.data.DataLoader(data, num_workers=2, batch_size=1))
count = len(next(loader))
while not os.path.exists(go):
    time.sleep(0.02)
print(count + sum(map(len, loader)))
"""


@pytest.mark.fuse
def test_shards_of_workers_are_cached_before_they_are_opened(tmp_path: Path) -> None:
    """A program that waits after its first sample finds all shards of both workers in the cache. At its end their
    streams end."""
    python = python_with("webdataset")
    host = Host(tmp_path)
    try:
        put_tars(host.truth / "shards")
        host.up()
        go = host.base / "go"
        words = (python, "-c", WAITING, host.mount / "shards", go)
        program = start_hooked(host, words)

        def ahead() -> list[int]:
            return [row["position"] + row["ahead_samples"] for row in host.plans("job")]

        wait_until(lambda: ahead() == [SHARDS // 2] * 2, limit_s=60, hint=lambda: str(ahead()))
        go.touch()
        assert program.wait(60) == 0
        wait_until(lambda: host.plans("job") == [], limit_s=60)
    finally:
        host.close()


ROWS = """
import datasets, os, sys, time, torch
folder, go = sys.argv[1:]
rows = datasets.load_from_disk(folder)
loader = iter(torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True))
numbers = next(loader)["number"].tolist()
while not os.path.exists(go):
    time.sleep(0.02)
for batch in loader:
    numbers += batch["number"].tolist()
assert sorted(numbers) == list(range(len(rows)))
"""


@pytest.mark.fuse
def test_arrow_files_are_cached_before_their_rows_are_read(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")
    host = Host(tmp_path)
    try:
        datasets.Dataset.from_dict({"number": list(range(60))}).save_to_disk(
            host.truth / "rows", num_shards=3
        )
        host.up()
        go = host.base / "go"
        words = (sys.executable, "-c", ROWS, host.mount / "rows", go)
        program = start_hooked(host, words)

        def ahead() -> list[tuple[str, int]]:
            rows = host.plans("job")
            return [(row["state"], row["position"] + row["ahead_samples"]) for row in rows]

        wait_until(lambda: ahead() == [("planned", 60)], limit_s=60, hint=lambda: str(ahead()))
        go.touch()
        assert program.wait(60) == 0
    finally:
        host.close()
