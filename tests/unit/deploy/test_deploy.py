"""Systemd's own check accepts the unit of deploy/, the schemas of the API accept the manifests, and the scripts run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.mount_table import mounted_at
from headrace.config.schema import Config, public_folder_of
from headrace.fuse import device

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
UNITS = sorted(path.name for path in (DEPLOY / "systemd").glob("*.service"))
NOT_SETTINGS = {"DRY_RUN", "SETTINGS", "PROGRAM", "PER_JOB"}
"""Words of the scripts themselves."""

pytestmark = pytest.mark.timeout(60)


def load(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = load(DEPLOY / "kubernetes/daemonset.yaml")["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (spec,) = [candidate for candidate in pod()["containers"] if candidate["name"] == name]
    return {**spec, "mounts": {mount["name"]: mount for mount in spec["volumeMounts"]}}


def test_there_is_something_to_check() -> None:
    assert len(MANIFESTS) == 4
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
    daemonset, node, mount = (
        load(DEPLOY / "kubernetes/daemonset.yaml"),
        container("node"),
        container("mount"),
    )
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()
    volumes = {volume["name"] for volume in pod()["volumes"]}
    assert set(node["mounts"]) | set(mount["mounts"]) == volumes
    config = load(DEPLOY / "kubernetes/configmap.yaml")
    assert node["envFrom"][0]["configMapRef"]["name"] == config["metadata"]["name"]
    assert mount["mounts"]["mounts"]["mountPropagation"] == "Bidirectional"
    cache = config["data"]["HEADRACE_CACHE"].split(":")[0]
    for spec in (node, mount):
        assert spec["mounts"]["cache"]["mountPath"] == cache
        assert spec["mounts"]["run"]["mountPath"] == "/run/headrace"
    assert node["mounts"]["public"]["mountPath"] == public_folder_of("/run/headrace")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert cache in node[probe]["exec"]["command"]
    names = [entry["name"] for entry in node["env"]]
    assert names.index("POD_IP") < names.index("HEADRACE_LISTEN")  # else $(POD_IP) is not put in


def test_only_the_container_that_mounts_is_privileged() -> None:
    """And it has neither credentials nor a port; what talks with the network becomes a user without capabilities."""
    node, mount = container("node"), container("mount")
    assert mount["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert not {"env", "envFrom", "ports"} & set(mount)
    assert "tls" not in mount["mounts"]
    context = node["securityContext"]
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    assert context["readOnlyRootFilesystem"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"]["drop"] == ["ALL"]
    assert set(context["capabilities"]["add"]) == {"CHOWN", "SETUID", "SETGID", "SETPCAP"}
    assert node["args"][-2:] == ["--user", "10001:10001"]
    assert "fuse" not in node["mounts"]
    assert not pod()["hostNetwork"]
    assert not pod()["automountServiceAccountToken"]


def test_without_certificates_no_pod_starts() -> None:
    (folder,) = [volume["hostPath"] for volume in pod()["volumes"] if volume["name"] == "tls"]
    assert folder["type"] == "Directory"  # of the host; a pod waits for it
    settings = load(DEPLOY / "kubernetes/configmap.yaml")["data"]
    assert {"HEADRACE_TLS_CERTIFICATE", "HEADRACE_TLS_KEY", "HEADRACE_TLS_AUTHORITY"} <= set(settings)
    assert not [name for name in settings if name.endswith("_INSECURE")]


def test_the_peers_port_is_for_the_pods_of_the_cache() -> None:
    policy = load(DEPLOY / "kubernetes/networkpolicy.yaml")["spec"]
    labels = load(DEPLOY / "kubernetes/daemonset.yaml")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": policy["podSelector"]}]
    (port,) = container("node")["ports"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    assert policy["policyTypes"] == ["Ingress"]


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


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_the_units_are_ones(tmp_path: Path, name: str) -> None:
    for unit in UNITS:
        text = (DEPLOY / f"systemd/{unit}").read_text()
        (tmp_path / unit).write_text(text.replace("/opt/headrace/bin/headrace", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "headrace" in line]
    assert (done.returncode, said) == (0, [])


@needs_systemd
@pytest.mark.parametrize(("name", "limit"), [("headrace.service", 15), ("headrace-mount.service", 45)])
def test_the_units_expose_little(name: str, limit: int) -> None:
    """The mount needs CAP_SYS_ADMIN, and the host's own file systems, or the host would not see it."""
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            f"--threshold={limit}",
            str(DEPLOY / "systemd" / name),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]


def test_the_unit_that_mounts_has_no_file_system_of_its_own() -> None:
    """systemd.exec(5): these make the propagation of mounts to the host end."""
    text = (DEPLOY / "systemd/headrace-mount.service").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    ending = re.compile(
        "Private(Tmp|Devices|Mounts|Users)|Protect(System|Home|KernelTunables|KernelModules|ControlGroups|KernelLogs|Proc)|"
        "(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec)Paths|Bind|RootDirectory|TemporaryFileSystem|ProcSubset|MountFlags"
    )
    assert [line for line in lines if ending.match(line)] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], timeout=60, check=True)
    assert os.access(path, os.X_OK)


def script(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEPLOY / "slurm" / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HEADRACE_PROGRAM": "headrace", **environment},
    )


def test_prolog_mounts(tmp_path: Path) -> None:
    settings = tmp_path / "headrace.env"
    settings.write_text((DEPLOY / "systemd/headrace.env").read_text())
    done = script("prolog.sh", HEADRACE_DRY_RUN="1", HEADRACE_SETTINGS=str(settings))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "would run: mkdir -p -- /mnt/imagenet",
        "would run: timeout 120 headrace up s3://training-data/imagenet /mnt/imagenet --allow-other --detach",
    ]


@pytest.mark.root
@pytest.mark.parametrize(("name", "status"), [("prolog.sh", 1), ("epilog.sh", 0)])
@pytest.mark.parametrize("fault", ["owner", "group", "others", "folder", "link", "folder of a link", "above"])
def test_settings_that_others_can_change_are_not_run(
    tmp_path: Path, name: str, status: int, fault: str
) -> None:
    """They are a program that root runs."""
    folder, ran = tmp_path / "above/etc", tmp_path / "ran"
    folder.mkdir(parents=True)
    settings = folder / "headrace.env"
    settings.write_text(f"touch {ran}\nORIGIN=s3://x\nMOUNTPOINT=/mnt\n")
    given = {"HEADRACE_DRY_RUN": "1", "HEADRACE_SETTINGS": str(settings)}
    assert script(name, **given).returncode == 0
    assert ran.exists()
    ran.unlink()
    if fault == "owner":
        os.chown(settings, 65534, 65534)
    elif fault in ("folder", "above"):
        (folder if fault == "folder" else folder.parent).chmod(0o777)
    elif fault == "folder of a link":
        (folder / "theirs").mkdir()
        os.chown(folder / "theirs", 65534, 65534)
        settings.rename(folder / "theirs/roots.env")
        settings.symlink_to("theirs/roots.env")
    elif fault == "link":
        settings.rename(folder / "theirs.env")
        settings.symlink_to(folder / "theirs.env")
        os.chown(folder / "theirs.env", 65534, 65534)
    else:
        settings.chmod(0o620 if fault == "group" else 0o602)
    done = script(name, **given)
    assert done.returncode == status
    assert "is not root's alone to change" in done.stderr
    assert not ran.exists()


@pytest.mark.root
@pytest.mark.parametrize(
    ("mountpoint", "why"),
    [
        ("users/link/new", "users"),
        ("users/new/mnt", "users"),
        ("link/new", "link"),
        ("roots/../users/new", "users"),
        ("way/new", "users"),
        ("sticky/new", "sticky"),
        ("open/roots/new", "open"),
    ],
)
def test_prolog_creates_no_mountpoint_where_others_lead_it(tmp_path: Path, mountpoint: str, why: str) -> None:
    """`mkdir -p` followed a link of any user, so root created directories wherever that led."""
    for name, mode in (("users", 0o755), ("roots", 0o755), ("sticky", 0o1777), ("open", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "open/roots").mkdir()
    os.chown(tmp_path / "users", 65534, 65534)
    (tmp_path / "way").symlink_to("users/link")
    for link in ("users/link", "link"):
        (tmp_path / link).symlink_to(tmp_path / "roots")
        os.lchown(tmp_path / link, 65534, 65534)
    given = {"ORIGIN": "s3://x", "HEADRACE_PROGRAM": "true", "HEADRACE_SETTINGS": str(tmp_path / "none")}
    before = sorted(tmp_path.rglob("*"))
    done = script("prolog.sh", MOUNTPOINT=str(tmp_path / mountpoint), **given)
    assert done.returncode == 1
    assert f"{tmp_path / why} is not root's alone to change" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.root
@pytest.mark.parametrize("mountpoint", ["new", "a/b c/d", "link/new", "sticky/roots/new"])
def test_prolog_creates_a_mountpoint_where_root_alone_does(tmp_path: Path, mountpoint: str) -> None:
    for name in ("sticky", "sticky/roots", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "link").symlink_to("./sticky/../disk")
    given = {"ORIGIN": "s3://x", "HEADRACE_PROGRAM": "true", "HEADRACE_SETTINGS": str(tmp_path / "none")}
    done = script("prolog.sh", MOUNTPOINT=str(tmp_path / mountpoint), **given)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / mountpoint).is_dir()


def test_both_scripts_check_paths_in_the_same_way() -> None:
    """Each is copied to its place alone."""
    prolog, epilog = (
        re.findall(r"(?ms)^exchangeable\(\) \{.*?^\}", (DEPLOY / "slurm" / name).read_text())
        for name in ("prolog.sh", "epilog.sh")
    )
    assert prolog == epilog and len(prolog) == 1


@pytest.fixture(params=["dead", "hanging"])
def broken_mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The mount of a session that was killed with its FD store, or that answers nothing."""
    place = tmp_path / "a mount"
    place.mkdir()
    fd = device.open_device()
    device.mount(fd, str(place), allow_other=False)
    if request.param == "dead":
        os.close(fd)
    yield place
    if mounted_at(str(place)) is not None:
        device.unmount(str(place), detach=True, abort=True)
    if request.param == "hanging":
        os.close(fd)


@pytest.mark.root
@pytest.mark.fuse
def test_prolog_ends_a_mount_whose_processes_are_dead_or_hang(tmp_path: Path, broken_mount: Path) -> None:
    program = tmp_path / "headrace"
    program.write_text(
        f"""#!/bin/sh
echo "$*" >> {tmp_path}/calls
case $1 in status) exit 30 ;; down) umount -l "$2" ;; esac
"""
    )
    program.chmod(0o755)
    given = {"ORIGIN": "s3://x", "MOUNTPOINT": f"{broken_mount}/", "HEADRACE_PROGRAM": str(program)}
    done = script("prolog.sh", HEADRACE_SETTINGS=str(tmp_path / "none"), **given)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"status {broken_mount}/ --json",
        f"down {broken_mount}/",
        f"up s3://x {broken_mount}/ --allow-other --detach",
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
