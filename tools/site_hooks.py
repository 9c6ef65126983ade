"""Add pages outside docs/ to the site, correct the links between them, and expand directories of the navigation.

Pages are plain Markdown whose links are relative to the repository, so that a code host shows them too. The site has
the files of docs/ at its root and all others at their path in the repository.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "bench/results/*",
    "src/headrace/bench/*.toml",
)
"""Files outside docs/ that are part of the site, as patterns."""
MERMAID = ROOT / ".venv/docs/mermaid.min.js"
MERMAID_URI = "assets/javascripts/mermaid.min.js"
"""`./dev docs` fetches it. Without it, the theme loads mermaid from the network."""
_FENCE_OR_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")


def on_config(config: Any) -> Any:
    """Replace each `DIRECTORY/*` of the navigation by the pages of that directory, and add mermaid."""
    for section in config.nav:
        for name, entries in section.items():
            section[name] = [page for entry in entries for page in _expanded(entry)]
    if MERMAID.exists():
        config.extra_javascript.append(MERMAID_URI)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/."""
    if MERMAID.exists():
        files.append(File.generated(config, MERMAID_URI, abs_src_path=str(MERMAID)))
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links of the repository at the site, and show unreleased changes."""
    uri = page.file.src_uri
    if uri == "CHANGELOG.md":
        markdown += "\n" + _unreleased()
    directory = posixpath.dirname(uri if _is_outside(page.file) else f"docs/{uri}")
    parts = _FENCE_OR_CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda link: _to_site(link, directory, uri), part) for part in parts[::2]]
    return "".join(parts)


def _to_site(link: re.Match[str], directory: str, uri: str) -> str:
    target = posixpath.normpath(posixpath.join(directory, link[2]))
    in_site = target.removeprefix("docs/")
    relative = posixpath.relpath(in_site, posixpath.dirname(uri) or ".")
    return f"{link[1]}{relative}{link[3] or ''}{link[4]}"


def _is_outside(file: Any) -> bool:
    return Path(file.src_dir) == ROOT


def _expanded(entry: Any) -> list[Any]:
    if not (isinstance(entry, str) and entry.endswith("/*")):
        return [entry]
    return [
        path.relative_to(ROOT / "docs").as_posix()
        for path in sorted((ROOT / "docs").glob(f"{entry}.md"))
        if path.name != "index.md"
    ]


def _unreleased() -> str:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Unreleased"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
