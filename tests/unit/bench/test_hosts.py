"""Each host knows its number, by SLURM's words and by ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.bench.hosts import BenchHosts, address, first_of, of_slurm, over_ssh, words_without_ssh


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[003-006,9],login", "gpu003"),
        ("gpu[7,9-11]", "gpu7"),
        ("rack-2-node[01-02]", "rack-2-node01"),
    ],
)
def test_the_first_of_slurms_list(listed: str, first: str) -> None:
    assert first_of(listed) == first


def test_a_task_of_a_step_knows_its_place() -> None:
    environment = {
        "SLURM_PROCID": "2", "SLURM_NODEID": "2", "SLURM_NNODES": "4", "SLURM_NTASKS": "4",
        "SLURM_JOB_NODELIST": "gpu[01-04]",
    }  # fmt: skip
    assert of_slurm(environment) == BenchHosts(4, 2, "gpu01:29540")
    assert of_slurm({**environment, "SLURM_NNODES": "1", "SLURM_NTASKS": "1"}) is None
    assert of_slurm({name: value for name, value in environment.items() if name != "SLURM_PROCID"}) is None
    with pytest.raises(UsageError, match="ntasks-per-node"):
        of_slurm({**environment, "SLURM_NTASKS": "8"})


def test_accelerators_meet_beside_their_hosts() -> None:
    assert BenchHosts(2, 0, "gpu1:100").accelerators_meet == "gpu1:101"
    for wrong in ("gpu1", ":5", "gpu1:x"):
        with pytest.raises(UsageError):
            address(wrong)


def test_the_same_words_go_to_all_hosts() -> None:
    words = [
        "bench",
        "training",
        "unet3d",
        "/data",
        "--ssh",
        "a,b",
        "--remote=/opt/headrace",
        "--json",
        "--remote",
        "x",
    ]
    assert words_without_ssh([*words, "--remote", "x"]) == ["bench", "training", "unet3d", "/data", "--json"]


@pytest.mark.parametrize(("failing", "status"), [("", 0), ("node2", 3)])
def test_over_ssh_each_host_gets_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, status: int
) -> None:
    """With an ssh of our own, which runs here what it is to run there, and writes down what that was."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"""#!/bin/sh
for last; do :; done
while [ "$1" != BatchMode=yes ]; do shift; done
echo "$2 $last" >> {tmp_path}/said
[ "$2" != "{failing}" ] || exit 3
sh -c "$last"
"""
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["bench", "training", "unet3d", "/data with space", "--json"]
    assert over_ssh(["me@node1", "node2"], words, program="echo") == status
    said = sorted((tmp_path / "said").read_text().splitlines())
    place = "bench training unet3d '/data with space' --json --hosts 2 --host"
    second = f"node2 echo {place} 1 --meet node1:29540"
    if failing:
        assert second in said  # the other one may have been ended before it wrote
    else:
        assert said == [f"me@node1 echo {place} 0 --meet node1:29540", second]
    with pytest.raises(UsageError):
        over_ssh(["alone"], words, program="echo")
