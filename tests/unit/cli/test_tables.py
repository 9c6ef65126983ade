"""The tables of the command line are whole, and the generated pages are as the code says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.base.errors import error_classes
from headrace.cli.examples import EXAMPLES, FIELDS
from headrace.cli.exit_codes import EXIT_CODES, SOME_FAILED
from headrace.cli.gen_docs import pages

ROOT = Path(__file__).parents[3]


def test_every_error_has_an_exit_status_of_its_own() -> None:
    assert set(EXIT_CODES) == set(error_classes())
    statuses = [*EXIT_CODES.values(), SOME_FAILED]
    assert len(set(statuses)) == len(statuses)
    assert all(0 < status < 256 for status in statuses)


def test_every_command_has_examples_fields_and_json() -> None:
    commands = _commands()
    assert set(commands) == set(EXAMPLES) == set(FIELDS)
    for name, command in commands.items():
        assert any("--json" in option.opts for option in command.params), name


def test_generated_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (ROOT / "docs" / name).read_text() == text, f"docs/{name}: run ./dev docs"


def _commands() -> dict[str, Any]:
    from typer.main import get_command

    from headrace.cli.main import build_app

    commands: dict[str, Any] = {}
    pending = [("", get_command(build_app()))]
    while pending:
        name, command = pending.pop()
        below: dict[str, Any] = getattr(command, "commands", {})
        if not below:
            commands[name.strip()] = command
        pending += [(f"{name} {subcommand}", inner) for subcommand, inner in below.items()]
    return commands
