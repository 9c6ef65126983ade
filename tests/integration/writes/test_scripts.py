"""Each script in a plain folder and in a mount: the same answers, errnos and trees."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.integration.writes.conftest import MODES, GetFolder, differences
from tests.integration.writes.registry import SCRIPTS

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(600)]

WANTED: dict[str, dict[str, Any]] = {}
"""What each script gave in the plain folder; run there once."""


THROUGH = ("sqlite", "vim", "editors_save", "models_are_saved")
"""Run there, too, where each close and each rename waits for the origin; the others take long."""


@pytest.mark.parametrize("kind", ["plain", *MODES])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_as_in_a_folder(name: str, kind: str, get_folder: GetFolder) -> None:
    check(name, kind, get_folder)


@pytest.mark.parametrize("name", THROUGH)
def test_the_same_through(name: str, get_folder: GetFolder) -> None:
    check(name, "through", get_folder)


def check(name: str, kind: str, get_folder: GetFolder) -> None:
    needs = SCRIPTS[name].needs
    if needs and shutil.which(needs) is None:
        pytest.skip(f"{needs} is not installed")
    if name not in WANTED:
        WANTED[name] = get_folder("plain").run_script(name)
    wanted = WANTED[name]
    assert not wanted["error"], f"in a plain folder: {wanted['error']}"
    got = get_folder(kind).run_script(name)
    assert not got["error"], got["error"]
    assert got["notes"] == wanted["notes"]
    assert differences(got["tree"], wanted["tree"]) == []
