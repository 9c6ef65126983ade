"""The examples of docs/fsspec.md, as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs/fsspec.md"
LIMIT_S = 90.0


def example(title: str) -> str:
    """The Python below `### title`."""
    _, heading, below = PAGE.read_text().partition(f"\n### {title}\n")
    assert heading, f"docs/fsspec.md has no example of {title}"
    _, begin, code = below.partition("```python\n")
    assert begin
    return code.partition("```")[0]


def run_example(title: str) -> dict[str, Any]:
    """In this process. → its names."""
    names: dict[str, Any] = {}
    exec(compile(example(title), f"docs/fsspec.md {title}", "exec"), names)
    return names


def run_apart(before: str, title: str, after: str, home: Path) -> str:
    """Between two pieces of code, in a process of its own, whose files lie below `home`. → what it printed."""
    home.mkdir()
    environment = os.environ | {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(home),
    }
    code = f"{before}\n{example(title)}\n{after}\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
