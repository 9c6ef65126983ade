"""An image is read whole once, and again after anything about it has changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import InvalidImageError
from headrace.seal import digest as digests
from headrace.seal import verified
from headrace.seal.verified import mark_verified, verify_once

BODY = b"an image" * 1000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Images:
    """An image with its mark, and how often it was read whole."""

    def __init__(self, folder: Path) -> None:
        self.path, self.mark = folder / "image", folder / "verified"
        self.path.write_bytes(BODY)
        self.reads = 0

    def verify(self, digest: str = DIGEST) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            verify_once(descriptor, digest, str(self.mark))
        finally:
            os.close(descriptor)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Images]:
    images = Images(tmp_path)
    digest_image = digests.digest_image

    def counted(descriptor: int) -> str:
        images.reads += 1
        return digest_image(descriptor)

    monkeypatch.setattr(digests, "digest_image", counted)
    yield images
    assert {path.name for path in tmp_path.iterdir()} <= {"image", "verified"}


def test_it_is_read_whole_once(images: Images) -> None:
    for _ in range(3):
        images.verify()
    assert images.reads == 1


def test_one_that_was_written_just_now_is_not_read(images: Images) -> None:
    mark_verified(str(images.path), DIGEST, str(images.mark))
    images.verify()
    assert images.reads == 0
    os.unlink(images.mark)
    os.unlink(images.path)
    mark_verified(str(images.path), DIGEST, str(images.mark))
    assert not images.mark.exists()


def test_a_mark_of_another_digest_does_not_count(images: Images) -> None:
    images.verify()
    with pytest.raises(InvalidImageError):
        images.verify("0" * 64)
    assert images.reads == 2


@pytest.mark.parametrize("keeps_times", [False, True])
def test_a_changed_image_is_refused(images: Images, keeps_times: bool) -> None:
    """Also one of the same size, in the same file, with the time of before."""
    images.verify()
    before = images.path.stat()
    with images.path.open("r+b") as file:
        file.write(b"A")
    if keeps_times:
        os.utime(images.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(InvalidImageError):
            images.verify()


def test_another_file_of_the_name_is_verified(images: Images) -> None:
    images.verify()
    before = images.path.stat()
    os.rename(images.path, images.path.with_name("before"))
    images.path.write_bytes(BODY[::-1])
    os.utime(images.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.unlink(images.path.with_name("before"))
    with pytest.raises(InvalidImageError):
        images.verify()


def test_another_boot_verifies_again(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    images.verify()
    monkeypatch.setattr(verified, "boot_id", lambda: "another")
    images.verify()
    assert images.reads == 2


@pytest.mark.parametrize("raw", [b"", b"{}", b"null", b"[]", b"\xff" * 5000, b'{"boot": 1}'])
def test_a_damaged_mark_does_not_count_and_is_replaced(images: Images, raw: bytes) -> None:
    images.mark.write_bytes(raw)
    for _ in range(2):
        images.verify()
    assert images.reads == 1


@pytest.mark.parametrize("kind", ["link", "writable", "pipe", "directory"])
def test_a_mark_that_others_may_have_made_does_not_count(images: Images, kind: str, tmp_path: Path) -> None:
    images.verify()
    if kind == "writable":
        images.mark.chmod(0o666)
    elif kind == "link":
        os.rename(images.mark, tmp_path / "elsewhere")
        images.mark.symlink_to(tmp_path / "elsewhere")
    else:
        os.unlink(images.mark)
        os.mkfifo(images.mark) if kind == "pipe" else images.mark.mkdir()
    images.verify()
    assert images.reads == 2
    if kind == "link":
        os.unlink(tmp_path / "elsewhere")


@pytest.mark.root
def test_a_mark_of_another_user_does_not_count(images: Images) -> None:
    images.verify()
    os.chown(images.mark, 12345, 12345)
    images.verify()
    assert images.reads == 2


def test_a_mark_that_can_not_be_written_costs_a_verification(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(msgspec.json, "encode", full)
    for _ in range(2):
        images.verify()
    assert images.reads == 2 and not images.mark.exists()
