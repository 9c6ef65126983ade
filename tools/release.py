"""./dev release: the wheel, its bill of materials, and what is known of its packages' vulnerabilities, in dist/.

The wheel is built twice from the commit, in two directories, and must be the same byte for byte. What the vulnerability
service could not be asked about is not counted as sound. Status 1: something is wrong; 3: not all could be audited.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
AUDITED = ("runtime", "test", "torch-cuda", "build", "release")
NOT_AUDITED = 3


@dataclass(frozen=True)
class Audit:
    """packages: how many were asked about. unknown: names that the service said nothing of. vulnerable: lines. why:
    of the service, where nothing could be asked."""

    packages: int
    unknown: list[str]
    vulnerable: list[str]
    why: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    wheel = build_same_twice("HEAD", out)
    print(
        f"wheel      {wheel.name}  sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}  (built twice, the same)"
    )
    bill = write_bill(wheel, out)
    print(f"SBOM       {bill.name}  {len(json.loads(bill.read_bytes())['components'])} components, CycloneDX")
    return tell([audit(name) for name in AUDITED])


def build_same_twice(commit: str, out: Path) -> Path:
    """Return the wheel of a commit. SystemExit where two builds differ."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        wheel_1, wheel_2 = (
            build_wheel(export(commit, Path(folder)), Path(folder), epoch_of(commit))
            for folder in (first, second)
        )
        if wheel_1.read_bytes() != wheel_2.read_bytes():
            raise SystemExit("release: two builds of the same commit differ")
        wheel = out / wheel_1.name
        wheel.write_bytes(wheel_1.read_bytes())
    return wheel


def export(commit: str, folder: Path) -> Path:
    """Export the files of a commit, and no others."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    source = folder / "source"
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        # Python before 3.11.4, as Debian 12 has it, knows no filters. The archive is of our own files.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(source)
    return source


def epoch_of(commit: str) -> int:
    """Return when it was committed: the time of all that is built of it."""
    command = ["git", "log", "-1", "--format=%ct", commit]
    return int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def build_wheel(source: Path, out: Path, epoch: int) -> Path:
    """By the setuptools of this Python. Times and modes of the files, umask and place make no difference."""
    for path in source.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    # pip would do the same in four processes more
    program = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    command = [sys.executable, "-P", "-c", program, str(out / "wheel")]
    subprocess.run(command, cwd=source, check=True, env=environment, umask=0o022, stdout=subprocess.DEVNULL)
    return next((out / "wheel").glob("*.whl"))


def write_bill(wheel: Path, out: Path) -> Path:
    """CycloneDX, of the packages that requirements/runtime.txt pins, and of the wheel's own name and licence."""
    bill = out / f"{wheel.name.removesuffix('.whl')}.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "requirements/runtime.txt"]
    command += ["--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_of("HEAD"))}
    subprocess.run([*command, "-o", str(bill)], cwd=ROOT, check=True, env=environment)
    return bill


def audit(name: str) -> Audit:
    """Audit the packages of one file of requirements/."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "-r",
        f"requirements/{name}.txt",
        "--disable-pip",
        "--no-deps",
    ]
    command += ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return audit_of(json.loads(done.stdout))
    except ValueError:
        return Audit(0, [], [], why=(done.stderr.strip().splitlines() or ["no answer"])[-1][:200])


def audit_of(report: dict[str, Any]) -> Audit:
    """told: pip-audit's JSON, which counts a package that it could not ask about as sound."""
    rows = report["dependencies"]
    unknown = sorted(row["name"] for row in rows if "skip_reason" in row)
    vulnerable = [
        f"{row['name']} {row['version']}: {finding['id']}, fixed in {', '.join(finding['fix_versions']) or 'none'}"
        for row in rows
        for finding in row.get("vulns", [])
    ]
    return Audit(len(rows), unknown, vulnerable)


def tell(audits: list[Audit]) -> int:
    """Return the status of the whole."""
    unknown = sorted({name for audit in audits for name in audit.unknown})
    vulnerable = sorted({line for audit in audits for line in audit.vulnerable})
    broken = [audit.why for audit in audits if audit.why or not audit.packages]
    asked = sum(audit.packages - len(audit.unknown) for audit in audits)
    for line in vulnerable:
        print(f"VULNERABLE {line}")
    if broken or unknown:
        print(
            f"NOT AUDITED {len(unknown)} packages, and {len(broken)} of {len(audits)} files, were not looked up"
        )
        print(
            f"           {(broken or ['the service says nothing of ' + ', '.join(unknown[:5]) + ', …'])[0]}"
        )
        print("           Run ./dev release where the vulnerability service of PyPI can be reached.")
    if vulnerable:
        return 1
    if broken or unknown:
        return NOT_AUDITED
    print(f"audit      {asked} pinned packages, no known vulnerability")
    return 0


if __name__ == "__main__":
    sys.exit(main())
