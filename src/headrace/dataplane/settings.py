"""Name the settings of reads; `config` has their meaning and defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadSettings:
    range_bytes: int
    small_file_bytes_max: int
    readahead_bytes: int
    whole_file_after_bytes: int
    verify_origin: bool = True
