"""./dev lock: pins the environments of `./dev`, each package by its version and the hashes of its files.

uv resolves for all Pythons and platforms that pyproject.toml names at once. Files are of pip's own format and name no
registry: where packages come from is pip's configuration, and what comes is known by its hash.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
ENVIRONMENTS = {
    "test": ("test", "build"),
    "build": ("build",),
    "check": ("check",),
    "demo": ("demo",),
    "bench": ("bench",),
    "docs": ("docs",),
    "release": ("release",),
    "runtime": ("fsspec", "cluster", "checkpoint", "s3", "rest", "webhdfs", "diagnose", "events"),
}
"""By file, the extras that it installs. The first one decides the versions that the others have, too."""
BARE = ("build", "docs", "release")
"""Environments of tools, without the program."""
TORCH = ("test", "bench")
"""Environments with torch, which has files of its own: its wheels bring CUDA, or do not."""
_CUDA = re.compile(r"(nvidia-(?!ml-py)|cuda-|triton\b)")
_HEAD = "# Written by `./dev lock`. {}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev lock", description=__doc__)
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions, not those that are pinned"
    )
    upgrade = parser.parse_args().upgrade
    FOLDER.mkdir(exist_ok=True)
    torch: dict[str, str] = {}
    for name in ENVIRONMENTS:
        pins = _resolved(name, upgrade=upgrade)
        cuda = {package: text for package, text in pins.items() if package == "torch" or _CUDA.match(package)}
        torch |= cuda if name in TORCH else {}
        _write(
            name, "Install with --require-hashes --no-deps.", {k: v for k, v in pins.items() if k not in cuda}
        )
        print(f"requirements/{name}.txt: {len(pins) - len(cuda)} packages")
    _write("torch-cuda", "torch, and what its wheels for Linux with CUDA need.", torch)
    _write_cpu(torch["torch"])


def _resolved(name: str, *, upgrade: bool) -> dict[str, str]:
    """Return the lines of each package, by its name."""
    output, first = FOLDER / f"{name}.txt", FOLDER / f"{next(iter(ENVIRONMENTS))}.txt"
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
    ]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--python-version", _oldest_python()]
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before.txt")
        if output.exists() and not upgrade:
            torch = FOLDER / "torch-cuda.txt"
            before.write_text(
                output.read_text() + (torch.read_text() if name in TORCH and torch.exists() else "")
            )
        if name != first.stem:
            command += ["--constraint", str(_pins_of(first, Path(folder, "constraints.txt")))]
        command += _sources_of(name, Path(folder, "wanted.in"))
        subprocess.run([*command, "--output-file", str(before)], cwd=ROOT, check=True)
        return _blocks(before.read_text())


def _sources_of(name: str, wanted: Path) -> list[str]:
    """Return what is asked for: extras of the program, or their packages alone."""
    if name in BARE:
        wanted.write_text("\n".join(_project()["optional-dependencies"][name]))
        return [str(wanted)]
    return ["pyproject.toml", *(word for extra in ENVIRONMENTS[name] for word in ("--extra", extra))]


def _pins_of(path: Path, target: Path) -> Path:
    """Its versions without hashes, as constraints."""
    first_lines = [block.partition("\n")[0].rstrip("\\ ") for block in _blocks(path.read_text()).values()]
    target.write_text("\n".join(first_lines) + "\n")
    return target


def _blocks(text: str) -> dict[str, str]:
    blocks: dict[str, str] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)[1:]:
        name = re.split(r"[=<>~!\[; ]", block, maxsplit=1)[0]
        blocks[name] = blocks.get(name, "") + block.rstrip("\n") + "\n"
    return blocks


def _write(name: str, about: str, blocks: dict[str, str]) -> None:
    (FOLDER / f"{name}.txt").write_text(_HEAD.format(about) + "".join(blocks[key] for key in sorted(blocks)))


def _write_cpu(block: str) -> None:
    """torch's wheel without CUDA is on no registry of Python's: of the one that pip finds here."""
    version = block.split("==")[1].split()[0]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            f"torch=={version}+cpu",
        ]
        if subprocess.run(command, check=False).returncode:
            print(f"pip finds no torch {version}+cpu here: requirements/torch-cpu.txt stays as it was")
            return
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()]
    lines = f"torch=={version}+cpu" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes) + "\n"
    _write("torch-cpu", "torch without CUDA, where pip is configured to find it.", {"torch": lines})


def _oldest_python() -> str:
    return str(_project()["requires-python"].removeprefix(">="))


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


if __name__ == "__main__":
    main()
