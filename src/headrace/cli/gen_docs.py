"""Writes the generated pages: docs/cli.md, docs/errors.md, docs/configuration.md, docs/openapi.json. `./dev docs`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from headrace.base.errors import error_classes
from headrace.cli.examples import EXAMPLES, FIELDS
from headrace.cli.exit_codes import EXIT_CODES, SOME_FAILED
from headrace.config import describe as configuration
from headrace.rest import openapi

_CLI_HEAD = """# The command line

Written by `./dev docs` from `src/headrace/cli/`: don't edit.

A failure is one line on stderr and an exit status ([errors.md](errors.md)); `HEADRACE_TRACE=1` adds a trace.

**Which node.** Where several run on a host, a command means the node of `--cache` or `--socket`; else the one whose
mount PATH is below; else the one that has PATH in its origin (`s3://bucket/prefix/folder`, or a folder's path); else
the only one. Where that says nothing, it is an error, and its line names the nodes. A node of another host is meant by
the URL of its REST API ([rest.md](rest.md)): `--socket https://HOST:PORT`, or the setting `nodes` where no node runs.

**JSON.** Every command takes `--json` and then prints one object with the fields named below; `down`, `lab` (but not
`lab down`), `job list`, `mount list`, `checkpoint list`, `checkpoint verify` and `config` a list of them, `ls` one a
line. `stat` of a directory has no `cached`, `version` and `origin`; `mtime` is null where an origin knows none. `up`
and `fuse` print theirs when the mount is ready, and go on.
"""

_ERRORS_HEAD = """# Errors and exit statuses

Written by `./dev docs` from `src/headrace/base/errors.py` and `src/headrace/cli/exit_codes.py`: don't edit.

A failure is one line, `headrace: what: why (hint)`. `HEADRACE_TRACE=1` shows where it came from. "Again" says that
the same call may work later.

| code | exit status | again | meaning |
|---|---|---|---|
"""

_MEANINGS = {
    "internal": "A defect of Headrace, or a process of it that ended without a word.",
    "path.not_found": "No such file or directory.",
    "path.not_a_directory": "A file is where a directory is needed.",
    "path.is_a_directory": "A directory is where a file is needed.",
    "path.exists": "Something is there already.",
    "path.not_empty": "The directory has something in it.",
    "path.read_only": "Nothing can be written there.",
    "origin.no_bucket": "The bucket or container doesn't exist.",
    "store.corrupt_index": "The index can't be read; the node puts it aside and makes a new one.",
    "deadline": "It took longer than it may.",
    "cancelled": "Stopped by the user.",
}


def cli_page() -> str:
    from typer.main import get_command

    from headrace.cli.main import build_app

    parts = [_CLI_HEAD]
    _describe("headrace", get_command(build_app()), parts)
    return "\n".join(parts)


def errors_page() -> str:
    rows = []
    classes = error_classes()
    for code, status in EXIT_CODES.items():
        kind = classes[code]
        text = _MEANINGS.get(code) or " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        rows.append(f"| `{code}` | {status} | {'yes' if kind.retryable else ''} | {text} |")
    rows.append(f"| | {SOME_FAILED} | | A job came to its end, and some files failed; it names them. |")
    return _ERRORS_HEAD + "\n".join(rows) + "\n"


def pages() -> dict[str, str]:
    """File name in docs/ → text."""
    return {
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "configuration.md": configuration.page(),
        "openapi.json": openapi.text(),
    }


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in pages().items():
        (folder / name).write_text(text)
    return 0


def _describe(name: str, command: Any, parts: list[str]) -> None:
    """Depth first: a group's commands stand under their full names."""
    below = getattr(command, "commands", None)
    if below:
        for one, inner in below.items():
            _describe(f"{name} {one}", inner, parts)
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([name, *(_argument(p) for p in arguments)])
    parts.append(f"\n## {name}\n\n`{usage}`\n\n{(command.help or '').strip()}\n")
    rows = [f"* `{p.name.upper()}`: {p.help}" for p in arguments if p.help]
    rows += [f"* {_flags(p)}: {p.help}" for p in options]
    parts.append("\n".join(rows) + "\n" if rows else "")
    short = name.removeprefix("headrace ")
    if short in FIELDS:
        parts.append(f"JSON: {', '.join(f'`{field}`' for field in FIELDS[short])}.\n")
    if short in EXAMPLES:
        parts.append("```\n" + "\n".join(EXAMPLES[short]) + "\n```\n")


def _argument(parameter: Any) -> str:
    word = str(parameter.name).upper()
    return word if parameter.required else f"[{word}]"


def _flags(parameter: Any) -> str:
    value = "" if parameter.is_flag else f" {parameter.metavar or str(parameter.name).upper()}"
    return ", ".join(f"`{one}{value if one.startswith('--') else ''}`" for one in parameter.opts)


if __name__ == "__main__":
    sys.exit(main())
