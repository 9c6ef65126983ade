"""Ray Data over the door: a small Ray of its own, whose processes end with it, held against the files of the origin."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.integration.door.conftest import MakeDoor, settled
from tests.integration.door.data_sets import fill_with_pictures, fill_with_texts
from tests.integration.door.examples import run_apart
from tests.lazy_module import lazy_module

pandas = lazy_module("pandas", extra="worlds")
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs headrace[ray], which `./dev test` does not install: 240 MB for one test of half a minute",
    ),
]


def processes_below(folder: str) -> dict[int, bytes]:
    """Those whose command line names it."""
    processes = {}
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if folder.encode() in line:
                    processes[int(pid)] = line
    return processes


def test_the_example_of_ray(make_door: MakeDoor, tmp_path: Path) -> None:
    host, _ = make_door(write="back")
    rows, pixels = fill_with_texts(host), fill_with_pictures(host)
    host.ok("sync", "/")
    short = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets lie below it: names of 107 bytes at most
    try:
        said = run_apart(
            f"""
import atexit, ray
atexit.register(ray.shutdown)
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir={short!r}, log_to_driver=False)
""",
            "Ray Data",
            """
import json
print(json.dumps({
    "rows": sorted(texts.take_all(), key=lambda row: row["number"]),
    "pictures": {row["path"]: row["image"].tobytes().hex() for row in pictures.take_all()},
}))
""",
            tmp_path / "home",
        )
        assert processes_below(short) == {}
    finally:
        for pid in processes_below(short):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(short)
    report = json.loads(said.splitlines()[-1])
    assert report["rows"] == rows
    assert report["pictures"] == {path: data.hex() for path, data in pixels.items()}
    settled(host)
    doubled = pandas.read_parquet(host.truth / "doubled")
    assert sorted(doubled["twice"]) == [int(str(row["number"])) * 2 for row in rows]
