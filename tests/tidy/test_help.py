"""Each command, option and argument has a sentence of help that stands alone."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from headrace.cli.main import build_app
from tests.tidy.words import FRAGMENTS, spoken_verbs

FIRST_LINE_LETTERS_MAX = 60
"""Beyond it, the list of commands cuts a sentence off."""
PARSERS_OWN = {"help", "install_completion", "show_completion"}


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the command and all below it, with their full names."""
    yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {word}", inner)


@functools.cache
def parser() -> Any:
    """Return the whole command, which takes as long to build as a hundred pages of help."""
    return get_command(build_app())


def all_commands() -> list[tuple[str, Any]]:
    return list(commands("headrace", parser()))


def page_of(words: list[str]) -> str:
    """Return what a command prints for --help."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        parser().main([*words, "--help"], prog_name="headrace", standalone_mode=False)
    return output.getvalue()


def fault_of(text: str, *, is_action: bool) -> str:
    """Return why a text is no sentence of help; "" where it is one. is_action: it begins with a verb."""
    words = text.split()
    if len(words) < 3 or not text.endswith("."):
        return "no sentence"
    if words[0] in FRAGMENTS or not words[0][0].isupper():
        return f"a fragment: {words[0]}"
    return "no verb" if is_action and words[0].rstrip(",") not in spoken_verbs() else ""


def test_a_command_says_in_a_sentence_what_it_does() -> None:
    faults = []
    for name, command in all_commands():
        first = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
        fault = fault_of(first, is_action=True)
        if not fault and len(first.removesuffix(".")) > FIRST_LINE_LETTERS_MAX:
            fault = "too long for the list of commands"
        faults += [f"{name}: {fault}: {first}"] if fault else []
    assert faults == []


def test_an_option_or_argument_says_in_a_sentence_what_it_is() -> None:
    faults = []
    for name, command in all_commands():
        for parameter in command.params:
            if parameter.name in PARSERS_OWN:
                continue
            fault = fault_of(parameter.help or "", is_action=getattr(parameter, "is_flag", False))
            faults += [f"{name} {parameter.opts[0]}: {fault}: {parameter.help}"] if fault else []
    assert faults == []


def test_no_help_prints_none() -> None:
    names = [name.split()[1:] for name, _ in all_commands()]
    pages = {" ".join(words): page_of(words) for words in names}
    assert [name for name, page in pages.items() if "Usage:" not in page or "None" in page] == []
