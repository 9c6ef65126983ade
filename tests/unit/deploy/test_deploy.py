"""What lies in deploy/: the unit by systemd's own check, the manifests by the schemas of the API, the scripts run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.config.schema import Config

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
NOT_SETTINGS = {"DRY_RUN", "SETTINGS", "PROGRAM", "PER_JOB"}
"""Words of the scripts themselves."""

pytestmark = pytest.mark.timeout(60)


def load(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def container() -> dict[str, Any]:
    found: dict[str, Any] = load(DEPLOY / "kubernetes/daemonset.yaml")["spec"]["template"]["spec"]
    return {**found["containers"][0], "volumes": found["volumes"]}


def test_there_is_something_to_check() -> None:
    assert len(MANIFESTS) == 3
    assert len(SCRIPTS) == 2


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_what_the_api_takes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(load(path), validate.latest_version(), strict=True)


def test_the_schemas_refuse_what_the_api_would() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    wrong = load(DEPLOY / "kubernetes/daemonset.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPropagate"] = "Bidirectional"
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, validate.latest_version(), strict=True)


def test_the_daemonset_is_consistent() -> None:
    daemonset, one = load(DEPLOY / "kubernetes/daemonset.yaml"), container()
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()
    volumes = {volume["name"] for volume in one["volumes"]}
    assert {mount["name"] for mount in one["volumeMounts"]} == volumes
    config = load(DEPLOY / "kubernetes/configmap.yaml")
    assert one["envFrom"][0]["configMapRef"]["name"] == config["metadata"]["name"]
    mounts = {mount["name"]: mount for mount in one["volumeMounts"]}
    assert mounts["mounts"]["mountPropagation"] == "Bidirectional"
    assert one["securityContext"]["privileged"]
    cache = config["data"]["HEADRACE_CACHE"].split(":")[0]
    assert mounts["cache"]["mountPath"] == cache
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert cache in one[probe]["exec"]["command"]
    names = [entry["name"] for entry in one["env"]]
    assert names.index("HOST_IP") < names.index("HEADRACE_LISTEN")  # else $(HOST_IP) is not put in


def test_every_setting_that_is_named_exists() -> None:
    known = {f"HEADRACE_{name.upper()}" for name in Config.__struct_fields__}
    known |= {f"HEADRACE_{name}" for name in NOT_SETTINGS}
    named = {
        word
        for path in DEPLOY.rglob("*")
        if path.is_file()
        for word in re.findall(r"\bHEADRACE_[A-Z_]+\b", path.read_text())
    }
    assert named - known == set()
    assert "HEADRACE_CLUSTER" in named


def test_commands_and_options_that_are_named_exist() -> None:
    cli = (DEPLOY.parent / "docs/cli.md").read_text()
    for option in ("--allow-other", "--detach", "--cache", "--json"):
        assert option in cli
    for command in ("headrace up", "headrace status", "headrace down", "headrace node drain"):
        assert command in cli


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/headrace.service").read_text()
    unit = tmp_path / "headrace.service"
    unit.write_text(text.replace("/opt/headrace/bin/headrace", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "headrace" in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], timeout=10, check=True)
    assert os.access(path, os.X_OK)


def script(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEPLOY / "slurm" / name)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={"PATH": os.environ["PATH"], "HEADRACE_PROGRAM": "headrace", **environment},
    )


def test_prolog_mounts(tmp_path: Path) -> None:
    settings = tmp_path / "headrace.env"
    settings.write_text((DEPLOY / "systemd/headrace.env").read_text())
    done = script("prolog.sh", HEADRACE_DRY_RUN="1", HEADRACE_SETTINGS=str(settings))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "would run: mkdir -p /mnt/imagenet",
        "would run: timeout 120 headrace up s3://training-data/imagenet /mnt/imagenet --allow-other --detach",
    ]


def test_prolog_fails_without_settings_or_mount(tmp_path: Path) -> None:
    assert script("prolog.sh", HEADRACE_SETTINGS=str(tmp_path / "none")).returncode != 0
    given = {"ORIGIN": "s3://x", "MOUNTPOINT": str(tmp_path / "mnt"), "HEADRACE_PROGRAM": "false"}
    assert script("prolog.sh", HEADRACE_SETTINGS=str(tmp_path / "none"), **given).returncode != 0


def test_epilog_keeps_the_node_unless_told_and_never_fails(tmp_path: Path) -> None:
    given = {
        "HEADRACE_SETTINGS": str(tmp_path / "none"),
        "MOUNTPOINT": "/mnt/imagenet",
        "HEADRACE_CLUSTER": "etcd://etcd.example:2379",
        "HEADRACE_CACHE": "/nvme0/headrace:800GiB",
    }
    assert script("epilog.sh", HEADRACE_DRY_RUN="1", **given).stdout == ""
    done = script("epilog.sh", HEADRACE_DRY_RUN="1", HEADRACE_PER_JOB="1", **given)
    assert done.stdout.splitlines() == [
        "would run: timeout 300 headrace node drain --cache /nvme0/headrace",
        "would run: timeout 60 headrace down /mnt/imagenet",
    ]
    failing = script("epilog.sh", **{**given, "HEADRACE_PER_JOB": "1", "HEADRACE_PROGRAM": "false"})
    assert failing.returncode == 0
    assert "not all was handed over" in failing.stderr
