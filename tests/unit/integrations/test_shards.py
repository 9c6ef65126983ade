"""The samples of tar files: those that tar and tarfile made, and those that would harm a reader."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.integrations.torch_data import samples_of

KIB = 1024


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_file_is_refused(tmp_path: Path, form: str) -> None:
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
    with pytest.raises(UsageError, match=r"1\.map is a sparse file"):
        list(samples_of(memoryview(shard), "shard.tar"))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_files_are_those_that_tarfile_wrote(form: int) -> None:
    long = "" if form == tarfile.USTAR_FORMAT else "n" * 300
    files = {f"é{long}/{number}.{kind}": os.urandom(700) for number in range(3) for kind in ("jpg", "cls")}
    with tarfile.open(fileobj=(target := io.BytesIO()), mode="w", format=form) as tar:
        folder = tarfile.TarInfo(f"é{long}")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), 1.5  # a time that only pax has
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "l" * (300 if long else 50)
        tar.addfile(link)
    samples = list(samples_of(memoryview(target.getvalue()), "shard.tar"))
    read = {
        f"{sample['__key__']}.{kind}": bytes(sample[kind]) for sample in samples for kind in ("jpg", "cls")
    }
    assert read == files


def header(kind: bytes = b"0", size: bytes = b"0", name: bytes = b"a.jpg") -> bytearray:
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    return with_sum(block)


def with_sum(block: bytearray) -> bytearray:
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block


def extended(kind: bytes, data: bytes) -> bytes:
    return bytes(header(kind, b"%011o" % len(data))) + data.ljust(-(-len(data) // 512) * 512, b"\0")


def binary(number: int) -> bytes:
    return (
        b"\xff" + (256**11 + number).to_bytes(11, "big")
        if number < 0
        else b"\x80" + number.to_bytes(11, "big")
    )


def sparse_of(real_bytes: int) -> bytes:
    block = header(b"S")
    block[386:410] = binary(real_bytes) + binary(0)
    block[483:495] = binary(real_bytes)
    return bytes(with_sum(block))


END = bytes(header()) + bytes(1024)


@pytest.mark.parametrize(
    "shard",
    [
        sparse_of(8 << 30) + END,
        extended(b"x", b"19 GNU.sparse.map=\n") + END,
        bytes(header(size=binary(-512))) + END,
        END[:512] + bytes(header(b"Z", size=binary(-1024))) + END,
        bytes(header(size=binary(2**70))) + END,
        extended(b"x", b"13 size=-512\n") + END,
        extended(b"x", b"11 size=xx\n") + END,
        extended(b"x", b"16 size=99999999\n") + END,
        extended(b"x", b"1" * 30_000) + END,
        extended(b"x", b"1" * 3_000_000) + END,
        extended(b"x", b"0 a=b\n") + END,
        extended(b"x", b"900 a=b\n") + END,
        extended(b"L", b"a" * 70_000) + END,
        extended(b"L", b"abc\0") * 3000 + END,
        extended(b"x", b"10 path=x\n") * 5 + END,
        extended(b"g", b"10 path=x\n") * 3000 + END,
        extended(b"L", b"abc\0"),
        bytes(header(size=b"1000")) + b"short",
        b"\xff" * 1024,
    ],
)
def test_a_tar_that_would_harm_its_reader_is_one_clear_error(shard: bytes) -> None:
    with pytest.raises(UsageError, match="not a tar file"):
        list(samples_of(memoryview(shard), "shard.tar"))


def test_the_headers_of_files_that_were_read_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    original = tarfile.TarFile.next

    def next_(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        kept.append(len(tar.members))  # type: ignore[attr-defined]  # not in the types of tarfile
        return original(tar)

    monkeypatch.setattr(tarfile.TarFile, "next", next_)
    assert len(list(samples_of(memoryview(bytes(header()) * 1000 + bytes(1024)), "shard.tar"))) == 1
    assert len(kept) > 1000 and max(kept) <= 1
