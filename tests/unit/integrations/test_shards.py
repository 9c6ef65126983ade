"""The samples of tar files, which tar itself made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.integrations.torch_data import samples_of

KIB = 1024


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_file_has_its_holes(tmp_path: Path, form: str) -> None:
    sparse = bytearray(300 * KIB)
    sparse[70 * KIB : 71 * KIB] = b"a" * KIB
    sparse[200 * KIB : 202 * KIB] = b"b" * 2 * KIB
    files = {"1.bin": b"first", "1.map": bytes(sparse), "2.bin": b"second", "2.map": bytes(100 * KIB)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name, parts in {"1.map": ((70 * KIB, 1 * KIB), (200 * KIB, 2 * KIB)), "2.map": ()}.items():
        with (tmp_path / name).open("r+b") as file:  # tar asks how many blocks a file has
            file.truncate(0)
            file.truncate(len(files[name]))
            for start, length in parts:
                file.seek(start)
                file.write(files[name][start : start + length])
    command = ["tar", "--sparse", "--hole-detection=raw", f"--format={form}", "-cf", "shard.tar", *files]
    subprocess.run(command, cwd=tmp_path, check=True)
    shard = (tmp_path / "shard.tar").read_bytes()
    assert len(shard) < 100 * KIB, "the holes are not in it"
    samples = list(samples_of(memoryview(shard), "shard.tar"))
    assert [sample["__key__"] for sample in samples] == ["1", "2"]
    read = {
        f"{sample['__key__']}.{kind}": bytes(sample[kind]) for sample in samples for kind in ("bin", "map")
    }
    assert read == files
