"""Hugging Face's datasets over the door, in a process of their own, held against the files of the origin."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from tests.integration.door.conftest import Host, MakeDoor, settled
from tests.integration.door.examples import run_apart

pandas = pytest.importorskip("pandas", reason="needs headrace[worlds]")
pytest.importorskip("datasets", reason="needs headrace[worlds]")
image = pytest.importorskip("PIL.Image", reason="needs headrace[worlds]")
pytestmark = pytest.mark.timeout(120)


def fill_with_texts(host: Host) -> list[dict[str, object]]:
    """Three files of 100 rows at the origin. → the rows."""
    rows: list[dict[str, object]] = []
    (host.truth / "texts").mkdir()
    for number in range(3):
        some = [{"number": number * 100 + index, "text": f"text {number} {index}"} for index in range(100)]
        pandas.DataFrame(some).to_parquet(host.truth / f"texts/{number}.parquet")
        rows += some
    return rows


def fill_with_pictures(host: Host) -> dict[str, bytes]:
    """At the origin. → path: pixels."""
    chance, pixels = numpy.random.default_rng(0), {}
    for label in ("cat", "dog"):
        (host.truth / "pictures" / label).mkdir(parents=True)
        for number in range(5):
            data = chance.integers(0, 255, (20, 30, 3), dtype=numpy.uint8)
            encoded = io.BytesIO()
            image.fromarray(data).save(encoded, "png")
            (host.truth / f"pictures/{label}/{number}.png").write_bytes(encoded.getvalue())
            pixels[f"/pictures/{label}/{number}.png"] = data.tobytes()
    return pixels


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
def seen(found):
    names = found.features["label"].names
    return sorted((names[one["label"]], one["image"].convert("RGB").tobytes().hex()) for one in found)
print(json.dumps({
    "first": first,
    "rows": [list(texts), list(copied), list(again)],
    "pictures": [seen(pictures), seen(copied_pictures)],
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
    """Of datasets itself, whatever the URL: no node takes part."""
    path = tmp_path / "rows.parquet"
    pandas.DataFrame({"number": [1, 2, 3]}).to_parquet(path)
    script = f"""
import datasets, fsspec, json
fsspec.filesystem("memory").put({str(path)!r}, "/rows.parquet")
read = {{}}
for name in ({str(path)!r}, "memory://rows.parquet"):
    for streaming in (True, False):
        try:
            found = datasets.load_dataset("parquet", data_files=name, split="train", streaming=streaming)
            read[f"{{name[:3]}} {{streaming}}"] = [row["number"] for row in found]
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
