"""Training on storage that is slow in one known way: a disk, a share, names, a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.diagnose.conftest import Share, fill, first_cause
from tests.integration.diagnose.job_fork_server import JobForkServer

pytestmark = pytest.mark.timeout(90)


def listed(folder: Path, names: list[str], file: Path) -> Path:
    file.write_text("\n".join(str(folder / name) for name in names))
    return file


def test_a_slow_share_is_ranked_first(job_server: JobForkServer, share: Share, tmp_path: Path) -> None:
    (tmp_path / "truth").mkdir()
    names = fill(tmp_path / "truth")
    mount = share(tmp_path / "truth", "--bwlimit", "4M")
    report = job_server.diagnose("read_files", listed(mount, names, tmp_path / "list"))
    assert first_cause(report)["cause"] == "storage.share", report
    # a job may read modules from the system's disk beside it
    assert (str(mount), "fuse.rclone") in [(place["mountpoint"], place["kind"]) for place in report["places"]]


def test_slow_names_are_ranked_first(job_server: JobForkServer, share: Share, slow_server: str) -> None:
    mount = share(
        *(":http:", "--http-url", f"{slow_server}/", "--http-no-head"),
        *("--dir-cache-time", "0s", "--attr-timeout", "0s"),
    )
    top = first_cause(job_server.diagnose("many_names", mount))
    assert top["cause"] == "storage.metadata", top
    assert str(mount) in " ".join(top["evidence"])


def test_a_slow_server_is_ranked_first(job_server: JobForkServer, slow_server: str) -> None:
    top = first_cause(job_server.diagnose("slow_server", slow_server))
    assert top["cause"] == "storage.network", top
    assert "Remote.__getitem__" in " ".join(top["evidence"])


def test_a_slow_disk_is_ranked_first(
    job_server: JobForkServer, slow_disk: tuple[Path, Path], tmp_path: Path
) -> None:
    mount, group = slow_disk
    names = sorted(path.name for path in mount.glob("*.bin"))
    report = job_server.diagnose("read_files", listed(mount, names, tmp_path / "list"), group=group)
    assert first_cause(report)["cause"] == "storage.disk", report
    (place,) = [row for row in report["places"] if row["mountpoint"] == str(mount)]
    assert 0 < place["bytes_read"] < 40_000_000
