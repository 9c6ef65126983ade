"""Generates docs/cli.md, docs/errors.md, docs/configuration.md, docs/metrics.md, docs/openapi.json for `./dev docs`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from headrace.base.errors import error_classes
from headrace.cli.examples import EXAMPLES, FIELDS
from headrace.cli.exit_codes import EXIT_CODES, SOME_FAILED
from headrace.config import describe as configuration
from headrace.rest import metrics, openapi

_CLI_HEAD = """# The command line

Written by `./dev docs` from `src/headrace/cli/`: don't edit.

A command that fails prints one line on stderr and returns an exit status ([errors.md](errors.md)).
`HEADRACE_TRACE=1` adds a stack trace.

**Choice of the node.** A command uses the first of these nodes that exists:

1. the node of `--socket` or `--cache`;
2. the node whose mount has PATH;
3. the node whose origin has PATH (`s3://bucket/prefix/directory`, or a path of a directory that is an origin);
4. the only node on this host;
5. if no node runs on this host, the nodes of the setting `nodes`.

If several nodes fit, the command fails and its message names them. To use a node of another host, give the URL of its
REST API ([rest.md](rest.md)): `--socket https://HOST:PORT`.

**JSON.** Every command takes `--json`. It then prints one object with the fields below, with these exceptions:

| command | prints |
|---|---|
| `job list`, `mount list`, `checkpoint list`, `checkpoint verify` | a list of objects |
| `seal list`, `seal mount`, `plan show`, `policy history`, `policy explain` | a list of objects |
| `down`, `config`, `tls`, `lab` except `lab down` | a list of objects |
| `ls` | one object a line |
| `up`, `fuse` | the object when the mount is ready; the command keeps running |

`stat` of a directory has no `cached`, `version` and `origin`. `mtime` is null if the origin knows none.
"""

_ERRORS_HEAD = """# Errors and exit statuses

Written by `./dev docs` from `src/headrace/base/errors.py` and `src/headrace/cli/exit_codes.py`: don't edit.

A command that fails prints one line: `headrace: what failed: why (what to do)`. `HEADRACE_TRACE=1` adds a stack trace.
*Retry* is yes if the same call may succeed later.

| code | exit status | retry | meaning |
|---|---|---|---|
"""

_METRICS_HEAD = """# Metrics

Written by `./dev docs` from `src/headrace/rest/metrics.py`: don't edit.

The REST API serves these at `/metrics`, in the text format of Prometheus ([rest.md](rest.md)). Each value is a field of
`headrace status --json`.

| metric | kind | field of the status | meaning |
|---|---|---|---|
"""

_MEANINGS = {
    "internal": "A defect of Headrace, or one of its processes ended without a message.",
    "path.not_found": "No such file or directory.",
    "path.not_a_directory": "A file is where a directory is needed.",
    "path.is_a_directory": "A directory is where a file is needed.",
    "path.exists": "The path exists already.",
    "path.not_empty": "The directory is not empty.",
    "path.read_only": "The mount, or this path of it, is read-only (setting `write`).",
    "origin.no_bucket": "The bucket or container doesn't exist.",
    "store.corrupt_index": "The index can't be read. The node renames it and creates a new one.",
    "deadline": "The call took longer than its limit.",
    "cancelled": "Stopped by the user.",
}


def cli_page() -> str:
    """Return docs/cli.md, made from the tree of commands."""
    from typer.main import get_command

    from headrace.cli.main import build_app

    parts = [_CLI_HEAD]
    _describe("headrace", get_command(build_app()), parts)
    return "\n".join(parts)


def errors_page() -> str:
    """Return docs/errors.md, made from EXIT_CODES, _MEANINGS and the docstrings of errors."""
    rows = []
    classes = error_classes()
    for code, status in EXIT_CODES.items():
        kind = classes[code]
        text = _MEANINGS.get(code) or " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        rows.append(f"| `{code}` | {status} | {'yes' if kind.retryable else ''} | {text} |")
    rows.append(f"| | {SOME_FAILED} | | The job ended, and some files failed. The command names them. |")
    return _ERRORS_HEAD + "\n".join(rows) + "\n"


def metrics_page() -> str:
    """Return the table of metrics, from the REST gateway's."""
    rows = []
    for metric in metrics.METRICS:
        label = [metric.label.upper(), metric.each] if metric.each else []
        field = ".".join([*metric.where, *label])
        rows.append(f"| `{metric.name}` | {metric.kind} | `{field}` | {metric.text} |")
    rows.append("| `headrace_cluster_members` | gauge | `cluster.members` | Nodes in the cluster. |")
    return _METRICS_HEAD + "\n".join(rows) + "\n"


def pages() -> dict[str, str]:
    """Return the text of each generated page by its file name in docs/."""
    return {
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "configuration.md": configuration.page(),
        "metrics.md": metrics_page(),
        "openapi.json": openapi.text(),
    }


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in pages().items():
        (folder / name).write_text(text)
    return 0


def _describe(name: str, command: Any, parts: list[str]) -> None:
    """Append the section of a command, or depth first those of all commands of a group, under their full names."""
    below = getattr(command, "commands", None)
    if below:
        for word, inner in below.items():
            _describe(f"{name} {word}", inner, parts)
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([name, *(_argument(p) for p in arguments)])
    parts.append(f"\n## {name}\n\n`{usage}`\n\n{(command.help or '').strip()}\n")
    rows = [f"* `{p.metavar}`: {p.help}{_default(p)}" for p in arguments]
    rows += [f"* {_flags(p)}: {p.help}{_default(p)}" for p in options]
    parts.append("\n".join(rows) + "\n" if rows else "")
    short = name.removeprefix("headrace ")
    if short in FIELDS:
        parts.append(f"JSON: {', '.join(f'`{field}`' for field in FIELDS[short])}.\n")
    if short in EXAMPLES:
        parts.append("```\n" + "\n".join(EXAMPLES[short]) + "\n```\n")


def _argument(parameter: Any) -> str:
    word = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
    return f"{word}..." if parameter.nargs == -1 else word


def _default(parameter: Any) -> str:
    """Return the sentence that names a default; "" for a flag, and where an omitted value means nothing."""
    if isinstance(parameter.show_default, str):
        return f" Default: {parameter.show_default}."
    plain = parameter.default in (None, "") or getattr(parameter, "is_flag", False)
    return "" if plain else f" Default: {parameter.default}."


def _flags(parameter: Any) -> str:
    value = "" if parameter.is_flag else f" {parameter.metavar or str(parameter.name).upper()}"
    names = (*parameter.opts, *parameter.secondary_opts)
    return ", ".join(f"`{name}{value if name.startswith('--') else ''}`" for name in names)


if __name__ == "__main__":
    sys.exit(main())
