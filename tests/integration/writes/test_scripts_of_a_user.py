"""Scripts that run as a node's user without rights: the same answers, errnos and trees in a mount with `--user` as in a
plain folder of that user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.writes.conftest import Folder, Runner, differences
from tests.integration.writes.place import make_lower
from tests.integration.writes.registry import SCRIPTS
from tests.security.unprivileged import NODE_USER, unprivileged_host

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(600),
]

OF_ROOT = {
    *("the_umask", "owners", "groups_are_inherited", "what_another_user_may", "sticky_folders"),
    *(
        "what_another_user_makes_is_theirs",
        "set_id_bits_end_with_a_write_of_another",
        "set_id_bits_after_a_write",
    ),
    *("lower_attributes_are_changed", "lower_folders_made_again_are_their_makers", "a_wheel_is_installed"),
}
"""They need root's rights in a plain folder, too, or a package that the user's Python lacks."""
DIFFER = {"modes": "wanted 2541", "lower_files_are_removed_and_made_anew": "os.symlink"}
"""What docs/semantics/calls.md says is otherwise, and a part of the line where the script ends: set-id bits of files
are dropped; no link takes the place of the origin's file."""


class FolderOfUser(Folder):
    """A plain folder of that user."""

    def run_script(self, name: str) -> dict[str, Any]:
        self._made += 1
        root, low = self.tree / f"new-{self._made}/{name}", self.tree / f"lower-{self._made}/{name}"
        low.mkdir(parents=True)
        root.parent.mkdir(parents=True)
        make_lower(str(low), SCRIPTS[name].lower)
        give_away(self.tree)
        return self._ask(root, low, {"script": name})


class MountOfUser(Folder):
    """The mount of a node that runs as that user."""

    mounted = True

    def run_script(self, name: str) -> dict[str, Any]:
        return self._ask(self.tree / "new" / name, self.tree / "lower" / name, {"script": name})


def give_away(folder: Path) -> None:
    """Change the owner of a tree. `rglob` of Python 3.11.2 fails at a link with a long target."""
    os.lchown(folder, NODE_USER, NODE_USER)
    for parent, directories, files in os.walk(folder):
        for name in (*directories, *files):
            os.lchown(os.path.join(parent, name), NODE_USER, NODE_USER)


@pytest.fixture(scope="module")
def folders() -> Iterator[tuple[Folder, Folder]]:
    base = Path(tempfile.mkdtemp(prefix="headrace-of-user-"))
    base.chmod(0o755)
    for name in ("host", "plain", "beside"):
        (base / name).mkdir()
    give_away(base / "plain")
    give_away(base / "beside")
    with unprivileged_host(base / "host") as host:
        ids = (f"--reuid={NODE_USER}", f"--regid={NODE_USER}", "--clear-groups")
        modules = f"{host.base}/project:{host.environment['PYTHONPATH']}"
        environment = host.environment | {"PYTHONPATH": modules, "HOME": str(base / "plain")}
        command = (str(shutil.which("setpriv")), *ids, host.python)
        for script in SCRIPTS.values():
            make_lower(str(host.truth / "lower" / script.name), script.lower)
        (host.truth / "new").mkdir()
        give_away(host.truth)
        user = f"{NODE_USER}:{NODE_USER}"
        host.up(host.truth, host.mount, "--user", user, "--write", "back", "--allow-other")
        plain = FolderOfUser(base / "plain", Runner(base / "plain", command, environment))
        mounted = MountOfUser(base / "beside", Runner(base / "beside", command, environment))
        mounted.tree = host.mount
        yield plain, mounted
        plain.close()
        mounted.close()
        host.ok("persist", "/", limit_s=120)
        host.ok("down", "--all")
    shutil.rmtree(base)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in OF_ROOT])
def test_the_same_as_in_a_folder_of_the_user(name: str, folders: tuple[Folder, Folder]) -> None:
    needs = SCRIPTS[name].needs
    if needs and shutil.which(needs) is None:
        pytest.skip(f"{needs} is not installed")
    plain, mounted = folders
    wanted, got = plain.run_script(name), mounted.run_script(name)
    assert not wanted["error"], wanted["error"]
    if name in DIFFER:
        assert DIFFER[name] in got["error"]
        return
    assert not got["error"], got["error"]
    assert got["notes"] == wanted["notes"]
    assert differences(got["tree"], wanted["tree"]) == []
