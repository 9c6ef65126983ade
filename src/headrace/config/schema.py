"""Every setting, in one place: what it means, its default, what is allowed."""

from __future__ import annotations

import os
import zlib

import msgspec

from headrace.base.errors import UsageError
from headrace.base.model import BLOCK_SIZE_BYTES

CAPACITY_BYTES_MIN = 64 * BLOCK_SIZE_BYTES


class CacheVolume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder for cache files and how much of its disk they may take."""

    folder: str
    capacity_bytes: int
    tier: str = "nvme"


class MountConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An origin to attach. options: see `origin/locate.py`."""

    url: str
    options: dict[str, str] = {}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """cache: at least one volume; the index lives on the first.
    run_folder: sockets and state files. sync_interval_s: how old a listing may be before the origin is asked again.
    fill_range_bytes: one range read. small_file_bytes_max: fetched whole at open, at most one block.
    whole_file_after_bytes: a sequential reader that got this far gets the whole file."""

    cache: list[CacheVolume]
    run_folder: str
    mounts: dict[str, MountConfig] = {}
    sync_interval_s: float = 60.0
    eviction_policy: str = "s3fifo"
    watermark_high: float = 0.95
    watermark_low: float = 0.90
    fill_concurrency_max: int = 64
    fill_range_bytes: int = 8 * BLOCK_SIZE_BYTES
    small_file_bytes_max: int = BLOCK_SIZE_BYTES
    readahead_bytes: int = 64 * BLOCK_SIZE_BYTES
    whole_file_after_bytes: int = 32 * BLOCK_SIZE_BYTES
    origin_timeout_s: float = 60.0
    log_level: str = "warning"

    def __post_init__(self) -> None:
        if not self.cache:
            raise UsageError("no cache folder", why="at least one is needed", hint="--cache DIR:SIZE")
        for volume in self.cache:
            if volume.capacity_bytes < CAPACITY_BYTES_MIN:
                raise UsageError(
                    f"cache {volume.folder} of {volume.capacity_bytes} bytes", why="too small", hint="64 MiB at least"
                )
        if not 0 < self.watermark_low <= self.watermark_high <= 1:
            raise UsageError("watermarks", why="must be 0 < low <= high <= 1")

    @property
    def socket_path(self) -> str:
        """One node a cache folder, so one socket a cache folder."""
        mark = zlib.crc32(os.path.abspath(self.cache[0].folder).encode())
        return os.path.join(self.run_folder, f"{mark:08x}.sock")


def default_run_folder() -> str:
    if os.geteuid() == 0:
        return "/run/headrace"
    return os.path.join(os.environ.get("XDG_RUNTIME_DIR", f"/tmp/headrace-{os.getuid()}"), "headrace")
