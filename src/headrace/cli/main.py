"""Runs the `headrace` command: imports only the module of the command given, and turns errors into exit statuses."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import TYPE_CHECKING, Any

from headrace.base import errors
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.uninterrupted import uninterrupted
from headrace.cli.standard_streams import OUTPUT, prepare_standard_streams

if TYPE_CHECKING:
    import typer

COMMANDS = (
    "up", "down", "status", "ls", "stat", "cat", "load", "free", "pin", "unpin", "sync", "persist", "fsck",
    "job", "seal", "run", "plan", "policy", "mount", "fuse", "s3", "webhdfs", "rest", "node", "checkpoint", "bench",
    "config", "tls", "diagnose", "lab",
)  # fmt: skip
FILE_JOBS = ("load", "free", "pin", "unpin")
"""Commands that share the module file_jobs; each other command has a module of its name."""

_HELP = "Read object stores at local-disk speed, from a cache on NVMe."


def main() -> int:
    """Run the command line, and return its exit status (docs/errors.md)."""
    prepare_standard_streams()
    words = sys.argv[1:]
    try:
        if words == ["--version"]:
            from headrace import __version__
            from headrace.cli.render import say

            say(f"headrace {__version__}")
            return 0
        # not standalone: errors of the parser become one line like all others
        status = build_app(words[0] if words else "")(
            args=words or ["--help"], prog_name="headrace", standalone_mode=False
        )
        sys.stdout.flush()  # here an error of it is one line, at the end of the interpreter a trace
        return status if isinstance(status, int) else 0
    except HeadraceError as error:
        return _report(error)
    except BrokenPipeError:
        return 0
    except SystemExit as end:
        return _status_of(end)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return 2
        translated = _translate(error, words[0] if words else "")
        if translated is not None:
            return _report(translated)
        if type(error).__name__ == "Abort":  # what the parser raises for ^C
            return 130
        if _trace_wanted():
            raise
        from headrace.cli.render import warn

        warn(
            f"{type(error).__name__}: {error} (a defect of Headrace: HEADRACE_TRACE=1 prints a trace to report)"
        )
        return 1
    return 0


def build_app(first_word: str = "") -> typer.Typer:
    """Build the parser with the command that the first word names; with all commands if it names none."""
    import typer

    from headrace.cli.examples import add_examples

    app = typer.Typer(
        help=_HELP,
        add_completion=first_word
        not in COMMANDS,  # a completing shell gives no word; commands start faster without it
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def top(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),  # noqa: FBT001
    ) -> None:
        pass

    names = (first_word,) if first_word in COMMANDS else COMMANDS
    for name in dict.fromkeys("file_jobs" if name in FILE_JOBS else name for name in names):
        with uninterrupted():
            module = importlib.import_module(f"headrace.cli.{name}")
        module.register(app)
    add_examples(app)
    return app


def _report(error: HeadraceError) -> int:
    from headrace.cli.exit_codes import exit_code_of

    if _trace_wanted():
        import traceback

        traceback.print_exception(error)
    from headrace.cli.render import warn

    warn(" ".join(str(error).splitlines()))
    return exit_code_of(error)


def _trace_wanted() -> bool:
    from headrace.config.load import trace_wanted

    return trace_wanted()


def _translate(error: Exception, word: str) -> HeadraceError | None:
    """Return our error for a foreign one: bad usage, a missing extra, or an error of a path; None for others."""
    if hasattr(error, "format_message"):  # raised by Click, or by Typer's copy of it
        return _usage_error(error)
    if isinstance(error, ModuleNotFoundError):
        from headrace.base.missing_extras import missing_extra_of

        return missing_extra_of(error, word, extra=word)
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
        return UsageError(
            word, why="a path or a name of the command is not UTF-8", hint="rename it, or name one above it"
        )
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return _translate_os_error(error, error.filename)
    return None


def _translate_os_error(error: OSError, path: str) -> HeadraceError | None:
    """Return our error for one of a path that the user gave, or of one below it; None for other causes."""
    kinds: dict[int | None, type[HeadraceError]] = {
        errno.ENOENT: errors.PathNotFoundError,
        errno.ENOTDIR: errors.NotADirectoryPathError,
        errno.EISDIR: errors.IsADirectoryPathError,
        errno.EEXIST: errors.PathExistsError,
        errno.ENOTEMPTY: errors.DirectoryNotEmptyError,
        errno.EACCES: errors.PathDeniedError,
        errno.EPERM: errors.PathDeniedError,
        errno.EROFS: errors.ReadOnlyError,
        errno.ENOSPC: errors.NoSpaceError,
        errno.EDQUOT: errors.NoSpaceError,
        errno.ENAMETOOLONG: errors.UsageError,
    }
    kind = kinds.get(error.errno, HeadraceError if path == OUTPUT else None)
    return kind(path, why=(error.strerror or "").lower()) if kind is not None else None


def _usage_error(error: Any) -> UsageError:
    """Return the UsageError for an error of the parser."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "headrace"
    why = " ".join(str(error.format_message()).split()).rstrip(".")
    return UsageError(
        command.removeprefix("headrace "), why=why[:1].lower() + why[1:], hint=f"see `{command} --help`"
    )


def _status_of(end: SystemExit) -> int:
    if isinstance(end.__context__, BrokenPipeError):  # Click raises SystemExit for it
        return 0
    return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


if __name__ == "__main__":
    sys.exit(main())
