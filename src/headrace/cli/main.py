"""The `headrace` command: finds the command's module, imports only that, turns errors into a line and a status."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import TYPE_CHECKING, Any

from headrace.base import errors
from headrace.base.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    import typer

COMMANDS = (
    "up", "down", "status", "ls", "stat", "cat", "load", "free", "pin", "unpin", "sync", "persist", "fsck",
    "job", "mount", "fuse", "s3", "webhdfs", "rest", "node", "checkpoint", "bench", "config", "tls", "diagnose",
    "lab",
)  # fmt: skip

_HELP = "Read object stores at local-disk speed, from a cache on NVMe."


def main() -> int:
    """The exit status; see docs/errors.md."""
    words = sys.argv[1:]
    if words == ["--version"]:
        from headrace import __version__

        sys.stdout.write(f"headrace {__version__}\n")
        return 0
    try:
        # not standalone: its errors come to us, and become one line like ours
        status = build_app(words[0] if words else "")(
            args=words or ["--help"], prog_name="headrace", standalone_mode=False
        )
        return status if isinstance(status, int) else 0
    except HeadraceError as error:
        return _report(error)
    except BrokenPipeError:
        _drop_stdout()
        return 0
    except SystemExit as end:
        return _status_of(end)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return 2
        ours = _ours(error, words[0] if words else "")
        if ours is not None:
            return _report(ours)
        if type(error).__name__ == "Abort":  # their word for ^C
            return 130
        if _trace_wanted():
            raise
        from headrace.cli.render import warn

        warn(f"{type(error).__name__}: {error} (a defect: HEADRACE_TRACE=1 shows where)")
        return 1
    return 0


def build_app(first_word: str = "") -> typer.Typer:
    """With the one command that is wanted; with all when it is not clear which."""
    import typer

    from headrace.cli.examples import add_examples

    app = typer.Typer(
        help=_HELP,
        add_completion=first_word
        not in COMMANDS,  # a shell that completes gives no word; others needn't wait for it
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

    for name in (first_word,) if first_word in COMMANDS else COMMANDS:
        importlib.import_module(f"headrace.cli.{name}").register(app)
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


def _ours(error: Exception, word: str) -> HeadraceError | None:
    """Return the error that a foreign one means: a wrong word of the user, or a missing package of an extra."""
    if hasattr(error, "format_message"):  # the parser's: Click's or Typer's own copy of it
        return _usage_error(error)
    if isinstance(error, ModuleNotFoundError):
        from headrace.base.missing_extras import missing_extra_of

        return missing_extra_of(error, word, extra=word)
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return _of_the_system(error, error.filename)
    return None


def _of_the_system(error: OSError, path: str) -> HeadraceError | None:
    """Return the error of a path that the user named, or that lies below it; None where the cause is another."""
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
    kind = kinds.get(error.errno)
    return kind(path, why=(error.strerror or "").lower()) if kind is not None else None


def _usage_error(error: Any) -> UsageError:
    """A wrong word of the user as our error."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "headrace"
    why = " ".join(str(error.format_message()).split()).rstrip(".")
    return UsageError(
        command.removeprefix("headrace "), why=why[:1].lower() + why[1:], hint=f"see `{command} --help`"
    )


def _status_of(end: SystemExit) -> int:
    if isinstance(end.__context__, BrokenPipeError):  # Click's way with it
        _drop_stdout()
        return 0
    return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _drop_stdout() -> None:
    """Who read our output has gone; the interpreter must not try to flush it."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
