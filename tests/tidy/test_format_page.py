"""docs/format/ names every failpoint, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HIT = re.compile(r'failpoint\.hit\("([a-z._]+)"\)')


def test_every_failpoint_stands_beside_its_step() -> None:
    in_code = {name for path in (ROOT / "src").rglob("*.py") for name in HIT.findall(path.read_text())}
    pages = "".join(page.read_text() for page in (ROOT / "docs/format").glob("*.md"))
    in_page = {
        word
        for word in re.findall(r"`([a-z]+\.[a-z]+)`", pages)
        if word.split(".")[1] not in ("py", "new", "mdb", "db")
    }
    assert in_page == in_code
