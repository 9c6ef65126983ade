"""Images that the kernel mounts: a walk finds what was written, and an overlay reads the bytes of a data-only layer."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from headrace.base.errors import InvalidImageError, MountError
from headrace.fuse.device import unmount
from headrace.seal.digest import digest_image
from headrace.seal.erofs import ImageEntry
from headrace.seal.mount import attach_view, open_image, open_view
from headrace.seal.writer import write_image
from tests.unit.seal.trees import ROOT, SHAPES, directory, file, in_order, trees

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
WALKED = [shape for shape in SHAPES if shape not in ("300 deep", "more links than 16 bits")]


def _image(folder: Path, entries: list[ImageEntry]) -> Path:
    image = folder / "image"
    descriptor = os.open(image, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    try:
        write_image(entries, descriptor)
    finally:
        os.close(descriptor)
    return image


@contextmanager
def _mounted(folder: Path, entries: list[ImageEntry]) -> Iterator[bytes]:
    """Yield the path at which an image of the entries is mounted, without a view over it."""
    image = _image(folder, entries)
    digest = _digest(image)
    mountpoint = folder / "mount"
    mountpoint.mkdir(exist_ok=True)
    with _opened(image) as source, _opened(mountpoint) as target:
        metadata = open_image(source, digest)
        attach_view(metadata, target)
        os.close(metadata)
    try:
        yield bytes(mountpoint)
    finally:
        assert unmount(str(mountpoint), detach=False) == 0


@contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entry(top: int, path: bytes, name: bytes) -> ImageEntry:
    """Return what the kernel says of a name in a directory that is open."""
    status = os.stat(name, dir_fd=top, follow_symlinks=False)
    target, size_bytes = b"", status.st_size
    if stat.S_ISLNK(status.st_mode):
        target, size_bytes = os.readlink(name, dir_fd=top), 0
        assert status.st_size == len(target)
    elif stat.S_ISDIR(status.st_mode):
        size_bytes = 0
    elif status.st_size or os.listxattr(f"/proc/self/fd/{top}/".encode() + name):
        whole = f"/proc/self/fd/{top}/".encode() + name
        assert os.getxattr(whole, "trusted.overlay.metacopy") == b""
        target = os.getxattr(whole, "trusted.overlay.redirect")
    return ImageEntry(
        path, status.st_mode, size_bytes, status.st_uid, status.st_gid, status.st_mtime_ns, target
    )


def _walk(top: int, path: bytes = b"") -> Iterator[ImageEntry]:
    """Yield entries as a walk finds them, by descriptors: with the mount's, paths are longer than PATH_MAX."""
    names = sorted(os.listdir(f"/proc/self/fd/{top}".encode()))
    for name in names:
        below = path + b"/" + name if path else name
        entry = _entry(top, below, name)
        yield entry
        if stat.S_ISDIR(entry.mode):
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
            try:
                yield from _walk(child, below)
            finally:
                os.close(child)


def _walked(mountpoint: bytes) -> list[ImageEntry]:
    top = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(top)
        root = ImageEntry(b"", status.st_mode, 0, status.st_uid, status.st_gid, status.st_mtime_ns, b"")
        return [root, *_walk(top)]
    finally:
        os.close(top)


@pytest.mark.parametrize("shape", WALKED)
def test_a_walk_of_a_mount_finds_what_was_written(tmp_path: Path, shape: str) -> None:
    entries = in_order(SHAPES[shape])
    with _mounted(tmp_path, entries) as mountpoint:
        assert _walked(mountpoint) == entries
        assert all(os.path.lexists(os.path.join(mountpoint, entry.path)) for entry in entries)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(trees())
def test_a_walk_of_a_random_tree_finds_what_was_written(tmp_path: Path, entries: list[ImageEntry]) -> None:
    with _mounted(tmp_path, entries) as mountpoint:
        assert _walked(mountpoint) == entries


def test_a_deep_path_is_found(tmp_path: Path) -> None:
    entries = in_order(SHAPES["300 deep"])
    with _mounted(tmp_path, entries) as mountpoint:
        for entry in entries:
            assert os.lstat(os.path.join(mountpoint, entry.path)).st_mtime_ns == entry.mtime_ns


def test_a_directory_of_100_000_names_is_found(tmp_path: Path) -> None:
    names = [b"n%06d" % number for number in range(100_000)]
    with _mounted(tmp_path, in_order(file(name) for name in names)) as mountpoint:
        assert sorted(os.listdir(mountpoint)) == names
        for name in random.Random(1).sample(names, 1000):
            assert os.lstat(os.path.join(mountpoint, name)).st_size == 3
        assert not os.path.lexists(os.path.join(mountpoint, b"n0500005"))


def test_an_overlay_reads_the_bytes_of_the_data_only_layer(tmp_path: Path) -> None:
    numbers, contents, entries = random.Random(1), {}, [directory(b"d"), directory(b"empty")]
    data, merged = tmp_path / "data", tmp_path / "merged"
    merged.mkdir()
    for number, size_bytes in enumerate([0, 1, 4095, 4096, 4097, 1 << 20]):
        redirect, path = (
            f"/{number & 255:02x}/{number:012x}",
            f"d/fil\N{LATIN SMALL LETTER E WITH ACUTE} {number}".encode(),
        )
        contents[path] = numbers.randbytes(size_bytes)
        (data / redirect[1:]).parent.mkdir(parents=True)
        (data / redirect[1:]).write_bytes(contents[path])
        entries.append(file(path, size_bytes, target=redirect.encode()))
    image = _image(tmp_path, in_order(entries))
    with _opened(image) as source, _opened(data) as layer, _opened(merged) as target:
        metadata = open_image(source, _digest(image))
        view = open_view(metadata, [layer], source="a view")
        attach_view(view, target)
        os.close(metadata)
        os.close(view)
    try:
        read = {path: (merged / os.fsdecode(path)).read_bytes() for path in contents}
        sizes = {path: (merged / os.fsdecode(path)).stat().st_size for path in contents}
        listed = sorted(os.listdir(merged))
    finally:
        assert unmount(str(merged), detach=False) == 0
    assert read == contents
    assert sizes == {path: len(content) for path, content in contents.items()}
    assert listed == ["d", "empty"]


def _refusal(image: Path, digest: str, tmp_path: Path, flags: int = os.O_RDONLY) -> str:
    """Return why an image is not mounted."""
    with _opened(image, flags) as source, pytest.raises((InvalidImageError, MountError)) as caught:
        open_image(source, digest)
    return caught.value.why


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return _image(tmp_path, [ROOT, file(b"a")])


def _digest(image: Path) -> str:
    with _opened(image) as descriptor:
        return digest_image(descriptor)


def test_another_digest_is_not_mounted(image: Path, tmp_path: Path) -> None:
    digest = _digest(image)
    assert _refusal(image, digest[:-1] + ("0" if digest[-1] != "0" else "1"), tmp_path) == (
        "it is not the one that was recorded"
    )
    assert "not the one" in _refusal(image, "", tmp_path)


def test_an_image_that_others_may_write_is_not_mounted(image: Path, tmp_path: Path) -> None:
    for mode in (0o620, 0o602):
        image.chmod(mode)
        assert _refusal(image, _digest(image), tmp_path) == "others may write to it"


def test_an_image_of_another_user_is_not_mounted(image: Path, tmp_path: Path) -> None:
    os.chown(image, 1234, 1234)
    assert _refusal(image, _digest(image), tmp_path) == "it belongs to user 1234"


def test_an_image_that_is_open_for_writing_is_not_mounted(image: Path, tmp_path: Path) -> None:
    digest = _digest(image)
    assert "open for writing" in _refusal(image, digest, tmp_path, os.O_RDWR)
    with _opened(image, os.O_RDWR):
        assert "open for writing" in _refusal(image, digest, tmp_path)


def test_what_is_no_file_is_not_mounted(tmp_path: Path) -> None:
    assert _refusal(tmp_path, "", tmp_path) == "it is no file"


def test_a_mutated_image_is_not_mounted(image: Path, tmp_path: Path) -> None:
    """Bytes change after the digest was recorded. Set MUTATED_IMAGES for more than 200, and MUTATED_SEED for others."""
    seed, count = int(os.environ.get("MUTATED_SEED", "2")), int(os.environ.get("MUTATED_IMAGES", "200"))
    digest, data, numbers = _digest(image), bytearray(image.read_bytes()), random.Random(seed)
    for _ in range(count):
        mutated = bytearray(data)
        for _ in range(numbers.randint(1, 4)):
            mutated[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
        image.write_bytes(mutated)
        if mutated != data:
            assert "not the one" in _refusal(image, digest, tmp_path)
