"""Hugging Face's datasets over the door, in a process of their own, held against the files of the origin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.door.conftest import MakeDoor, settled
from tests.integration.door.data_sets import fill_with_pictures, fill_with_texts
from tests.integration.door.examples import run_apart
from tests.lazy_module import lazy_module

pandas = lazy_module("pandas", extra="worlds")
lazy_module("datasets", extra="worlds")
image = lazy_module("PIL.Image", extra="worlds")
pytestmark = pytest.mark.timeout(120)


def test_the_example_of_datasets(make_door: MakeDoor, tmp_path: Path) -> None:
    """Streaming and not, tables and pictures; a saved one is at the origin."""
    host, _ = make_door(write="back")
    rows, pixels = fill_with_texts(host), fill_with_pictures(host)
    host.ok("sync", "/")
    said = run_apart(
        "",
        "Hugging Face datasets",
        """
import json
copied_pictures = datasets.load_dataset(
    "imagefolder", data_files="headrace:///pictures/**", split="train", drop_labels=False
)
def labelled_pixels(rows):
    names = rows.features["label"].names
    return sorted((names[row["label"]], row["image"].convert("RGB").tobytes().hex()) for row in rows)
print(json.dumps({
    "first": first,
    "rows": [list(texts), list(copied), list(again)],
    "pictures": [labelled_pixels(pictures), labelled_pixels(copied_pictures)],
}))
""",
        tmp_path / "home",
    )
    report = json.loads(said.splitlines()[-1])
    assert report["first"] == rows[0]
    assert report["rows"] == [rows] * 3
    expected = sorted([path.split("/")[2], data.hex()] for path, data in pixels.items())
    assert report["pictures"] == [expected] * 2
    settled(host)
    assert sorted(file.name for file in (host.truth / "saved/texts").iterdir()) == [
        "data-00000-of-00001.arrow",
        "dataset_info.json",
        "state.json",
    ]


def test_offline_a_copy_is_made_from_a_mount_and_not_from_a_url(tmp_path: Path) -> None:
    """Test datasets itself, whatever the URL: no node takes part."""
    path = tmp_path / "rows.parquet"
    pandas.DataFrame({"number": [1, 2, 3]}).to_parquet(path)
    script = f"""
import datasets, fsspec, json
fsspec.filesystem("memory").put({str(path)!r}, "/rows.parquet")
read = {{}}
for name in ({str(path)!r}, "memory://rows.parquet"):
    for streaming in (True, False):
        try:
            rows = datasets.load_dataset("parquet", data_files=name, split="train", streaming=streaming)
            read[f"{{name[:3]}} {{streaming}}"] = [row["number"] for row in rows]
        except ConnectionError as error:
            read[f"{{name[:3]}} {{streaming}}"] = type(error).__name__
print(json.dumps(read))
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100, check=True)
    local, rows = str(path)[:3], [1, 2, 3]
    assert json.loads(done.stdout) == {
        f"{local} True": rows,
        f"{local} False": rows,
        "mem True": rows,
        "mem False": "OfflineModeIsEnabled",
    }
