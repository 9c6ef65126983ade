"""Name the files of a checkpoint directory, and return the save that a name belongs to.

docs/format/checkpoint.md describes them.
"""

from __future__ import annotations

import re
from typing import NewType

from headrace.base.errors import UsageError

SaveId = NewType("SaveId", str)
"""`<step>-<run>-<number>`: one attempt to save one step. It is the same on all ranks and never reused."""

MANIFESTS, PACKS, SAVES, PINS = "manifests", "packs", "saves", "pins"
"""Directories of a checkpoint directory."""
STEP_MAX = 10**12 - 1
"""Highest step. Names have 12 digits."""
FAILED = "failed"
"""Name of the file with the reason of a failed save."""
NEW = ".new"
"""Suffix of a file that is not complete yet."""
_RUN = re.compile(r"[a-z0-9]{1,40}")
_MANIFEST = re.compile(r"\d{12}")
_PACK = re.compile(r"(\d{12}-[a-z0-9]+-\d+)-(\d+)\.pack")


def save_id(step: int, run: str, number: int) -> SaveId:
    return SaveId(f"{step_name(step)}-{run}-{number}")


def step_name(step: int) -> str:
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        raise UsageError(f"step {step!r}", why=f"a step is a whole number from 0 to {STEP_MAX}")
    return f"{step:012d}"


def check_run(run: str) -> str:
    """Return the run if it is valid. Raises UsageError."""
    if not _RUN.fullmatch(run):
        raise UsageError(f"run {run!r}", why="a run is 1 to 40 lower-case letters and digits")
    return run


def manifest_name(step: int) -> str:
    return f"{MANIFESTS}/{step_name(step)}"


def new_manifest_name(step: int, save: SaveId) -> str:
    return f"{MANIFESTS}/{save}{NEW}"


def steps_of(names: list[str]) -> list[int]:
    """Return the steps that names in MANIFESTS have, ascending; other names are ignored."""
    return sorted(int(name) for name in names if _MANIFEST.fullmatch(name))


def pack_name(save: SaveId, rank: int) -> str:
    return f"{save}-{rank}.pack"


def save_of_pack(name: str) -> SaveId | None:
    """Return the save that wrote a pack; None if the name is not that of a pack."""
    match = _PACK.fullmatch(name)
    return SaveId(match.group(1)) if match else None


def save_of_new_manifest(name: str) -> SaveId | None:
    return SaveId(name.removesuffix(NEW)) if name.endswith(NEW) else None


def save_folder(save: SaveId) -> str:
    return f"{SAVES}/{save}"


def claim_name(save: SaveId, rank: int) -> str:
    return f"{save_folder(save)}/{rank}.claim"


def sighting_name(claim: str, boot: str) -> str:
    return f"{claim}.seen-{boot}"


def part_name(save: SaveId, rank: int) -> str:
    return f"{save_folder(save)}/{rank}.part"


def failed_name(save: SaveId) -> str:
    return f"{save_folder(save)}/{FAILED}"


def pin_name(step: int) -> str:
    return f"{PINS}/{step_name(step)}"
