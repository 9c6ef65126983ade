"""What is left after all scripts, as a whole: after a restart, and at the origin. The last of this folder."""

from __future__ import annotations

import pytest

from tests.integration.writes.conftest import MODES, GetFolder, MountedFolder, differences
from tests.integration.writes.registry import SCRIPTS

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(600)]

WHEN_ALONE = ("lower_files_are_renamed", "trees_are_copied_and_removed")
"""Run before where they were not yet."""
PERSIST_LIMIT_S = 300.0
SYNC_LIMIT_S = 120.0
LOOKED_AT = ("scripts_lower", "scripts_programs", "scripts_exercise")
"""Modules of the scripts whose trees are compared as they were seen before; files' bytes are compared of all."""


def mounted_of(get_folder: GetFolder, mode: str) -> MountedFolder:
    made = get_folder(mode)
    assert isinstance(made, MountedFolder)
    for name in WHEN_ALONE:
        if name not in made.ran:
            answer = made.run_script(name)
            assert not answer["error"], answer["error"]
    return made


def trees(made: MountedFolder) -> dict[str, str]:
    """Of some scripts that were run: all that a user sees."""
    seen: dict[str, str] = {}
    for name, script in SCRIPTS.items():
        if name in made.ran and script.run.__module__.rpartition(".")[2] in LOOKED_AT:
            for where in ("new", "lower"):
                tree = made.tree_of(made.tree / where / name)
                seen |= {f"{where}/{name}/{path}": shown for path, shown in tree.items()}
    assert len(seen) > 10
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_keeps_all(mode: str, get_folder: GetFolder) -> None:
    made = mounted_of(get_folder, mode)
    before = trees(made)
    made.restart()
    assert differences(trees(made), before) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_new_listing_of_the_origin_changes_nothing(mode: str, get_folder: GetFolder) -> None:
    made = mounted_of(get_folder, mode)
    before = trees(made)
    made.host.ok("sync", limit_s=SYNC_LIMIT_S)
    assert differences(trees(made), before) == []


def test_local_writes_leave_the_origin_alone(get_folder: GetFolder) -> None:
    made = mounted_of(get_folder, "local")
    assert differences(made.contents_of(made.host.truth), made.origin_before) == []


def test_all_comes_to_the_origin(get_folder: GetFolder) -> None:
    """Every file's bytes under its last name, and nothing of what was removed; users see no change."""
    made = mounted_of(get_folder, "back")
    before = trees(made)
    made.host.ok("persist", "--wait", limit_s=PERSIST_LIMIT_S)
    changed = 0
    for folder in made.used:
        wanted = made.contents_of(made.tree / folder)
        assert differences(made.contents_of(made.host.truth / folder), wanted) == [], folder
        changed += len(wanted)
    assert changed > 10
    made.host.ok("sync", limit_s=SYNC_LIMIT_S)
    assert differences(trees(made), before) == []
