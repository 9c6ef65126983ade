"""All that the scripts left is right as a whole: after a restart, and at the origin. These tests are the last of this
folder."""

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
    mount = get_folder(mode)
    assert isinstance(mount, MountedFolder)
    for name in WHEN_ALONE:
        if name not in mount.ran:
            answer = mount.run_script(name)
            assert not answer["error"], answer["error"]
    return mount


def trees(mount: MountedFolder) -> dict[str, str]:
    """Return all that a user sees of some scripts that were run."""
    entries: dict[str, str] = {}
    for name, script in SCRIPTS.items():
        if name in mount.ran and script.run.__module__.rpartition(".")[2] in LOOKED_AT:
            for where in ("new", "lower"):
                tree = mount.tree_of(mount.tree / where / name)
                entries |= {f"{where}/{name}/{path}": shown for path, shown in tree.items()}
    assert len(entries) > 10
    return entries


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_keeps_all(mode: str, get_folder: GetFolder) -> None:
    mount = mounted_of(get_folder, mode)
    before = trees(mount)
    mount.restart()
    assert differences(trees(mount), before) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_new_listing_of_the_origin_changes_nothing(mode: str, get_folder: GetFolder) -> None:
    mount = mounted_of(get_folder, mode)
    before = trees(mount)
    mount.host.ok("sync", limit_s=SYNC_LIMIT_S)
    assert differences(trees(mount), before) == []


def test_local_writes_leave_the_origin_alone(get_folder: GetFolder) -> None:
    mount = mounted_of(get_folder, "local")
    assert differences(mount.contents_of(mount.host.truth), mount.origin_before) == []


def test_all_comes_to_the_origin(get_folder: GetFolder) -> None:
    """Every file's bytes under its last name, and nothing of what was removed; users see no change."""
    mount = mounted_of(get_folder, "back")
    before = trees(mount)
    mount.host.ok("persist", "--wait", limit_s=PERSIST_LIMIT_S)
    changed = 0
    for folder in mount.used:
        wanted = mount.contents_of(mount.tree / folder)
        assert differences(mount.contents_of(mount.host.truth / folder), wanted) == [], folder
        changed += len(wanted)
    assert changed > 10
    mount.host.ok("sync", limit_s=SYNC_LIMIT_S)
    assert differences(trees(mount), before) == []
