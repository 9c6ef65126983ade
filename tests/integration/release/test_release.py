"""A release can be built again, byte for byte, and nothing that was not looked up counts as sound."""

from __future__ import annotations

import os
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools import lock, release

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EPOCH = 1_700_000_000
PINNED = ("build", "check", "demo", "test", "bench", "release", "runtime", "torch-cuda", "torch-cpu")


def test_wheel_is_the_same_when_built_twice(tmp_path: Path) -> None:
    """In two directories, at two times, by users with other habits."""
    wheels = []
    for name, mtime_s, mode in (("one", 1_000_000_000, 0o600), ("a/longer/path", 1_600_000_000, 0o664)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        source = release.export("HEAD", folder)
        for path in source.rglob("*"):
            os.utime(path, (mtime_s, mtime_s), follow_symlinks=False)
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)
        wheels.append(release.build_wheel(source, folder, EPOCH))
    first, second = (wheel.read_bytes() for wheel in wheels)
    assert first == second
    with zipfile.ZipFile(wheels[0]) as files:
        names = files.namelist()
    assert "headrace/__init__.py" in names and "headrace/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "bench/"))]


def test_what_was_not_looked_up_is_not_sound(capsys: pytest.CaptureFixture[str]) -> None:
    """pip-audit itself ends with status 0 and "No known vulnerabilities found" then."""
    sound = {"name": "a", "version": "1", "vulns": []}
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
    bad = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    assert release.tell([release.audit_of({"dependencies": [sound]})]) == 0
    assert "no known vulnerability" in capsys.readouterr().out
    assert release.tell([release.audit_of({"dependencies": [sound, skipped]})]) == release.NOT_AUDITED
    output = capsys.readouterr().out
    assert "NOT AUDITED 1 packages" in output and "no known" not in output
    assert release.tell([release.audit_of({"dependencies": [skipped, bad]})]) == 1
    assert "VULNERABLE c 2: CVE-1, fixed in 3" in capsys.readouterr().out
    assert release.tell([release.audit_of({"dependencies": []})]) == release.NOT_AUDITED
    assert release.tell([release.Audit(0, [], [], why="no such host")]) == release.NOT_AUDITED


@pytest.mark.parametrize("name", PINNED)
def test_packages_are_pinned_by_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    for word in ("://", "--index", "--extra-index", "--find-links", "file:", " @ "):
        assert word not in text
    blocks = lock._blocks("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    assert blocks
    for block in blocks.values():
        for line in block.splitlines():
            assert re.fullmatch(r"[\w.-]+==\S+( ; .*)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
        assert "--hash" in block


@pytest.mark.parametrize("name", [name for name in lock.ENVIRONMENTS if name not in lock.BARE])
def test_pins_are_of_what_pyproject_asks_for(name: str) -> None:
    """Else: ./dev lock."""
    pinned = _pins(name) | (_pins("torch-cuda") if name in lock.TORCH else {})
    for wanted in _wanted(lock.ENVIRONMENTS[name]):
        if wanted.marker is None or wanted.marker.evaluate():
            version = pinned.get(canonicalize_name(wanted.name))
            assert version is not None and wanted.specifier.contains(version), f"{wanted}: ./dev lock"


def _pins(name: str) -> dict[str, str]:
    """Those for this Python."""
    versions: dict[str, str] = {}
    for block in (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", "").splitlines():
        if not block.startswith("#"):
            pin = Requirement(block.partition("--hash")[0].strip())
            if pin.marker is None or pin.marker.evaluate():
                (versions[canonicalize_name(pin.name)],) = (specifier.version for specifier in pin.specifier)
    return versions


def _wanted(extras: tuple[str, ...]) -> list[Requirement]:
    """With those of the extras that extras name."""
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            wanted += _wanted(tuple(requirement.extras)) if requirement.name == "headrace" else [requirement]
    return wanted
