"""Read the settings. Later sources win: defaults, /etc/headrace/headrace.toml, ~/.config/headrace/headrace.toml,
--config FILE, HEADRACE_* in the environment, flags. Only this module reads the environment."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.base.decoding import convert_words
from headrace.base.errors import StoreError, UsageError
from headrace.base.private_folder import make_private, unfollowed
from headrace.base.sizes import parse_size
from headrace.base.trusted_owner import chosen_by_root, is_trusted
from headrace.config.schema import CAPACITY_BYTES_MIN, Config

SYSTEM_FILE = "/etc/headrace/headrace.toml"
SYSTEM_RUN_FOLDER = "/run/headrace"
SIZES = ("_bytes", "_bytes_max", "_bytes_s")
"""Ends of the names of settings that are sizes, or bytes per second: they may have a unit."""
CAPACITY_FILE = "capacity"
_NUMBER_CHARACTERS_MAX = 32
_AT_SETTING = re.compile(r"(.*) - at `\$\.([a-z0-9_]+)(.*)`", re.DOTALL)
_ENVIRONMENT = "environment, "
_IN_THE_FILE_ONLY = ("mounts",)


class Loaded(msgspec.Struct, frozen=True):
    """The settings and their sources. sources: by name of the setting: "default", a file, a variable, or "flag"."""

    config: Config
    sources: dict[str, str] = {}


def trace_wanted() -> bool:
    """Return whether errors are shown with their trace (HEADRACE_TRACE=1), not as one line."""
    return os.environ.get("HEADRACE_TRACE", "") not in ("", "0")


def environment_of(prefix: str) -> dict[str, str]:
    """Return variables with a prefix that other programs set, such as a batch system."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def default_run_folder() -> str:
    if os.geteuid() == 0:
        return SYSTEM_RUN_FOLDER
    return os.path.join(os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/headrace-{os.getuid()}", "headrace")


def settle_run_folder(directory: str) -> None:
    """Make this process, and those that it starts, use that run directory, also as another user with another
    default."""
    os.environ["HEADRACE_RUN_FOLDER"] = directory


def default_cache_folder() -> str:
    """Return the directory of the cache. It begins with ~ for a user without a home directory: such a user can run all
    commands that need no cache."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "headrace")


def default_authority_folder() -> str:
    """Return the directory in which `headrace tls` keeps the authority. Raises UsageError for a user without a home
    directory."""
    if os.geteuid() == 0:
        return "/etc/headrace/authority"
    file = user_file()
    if not file:
        raise UsageError(
            "directory of the authority",
            why="this user has no home directory",
            hint="name one by --folder DIR",
        )
    return os.path.join(os.path.dirname(file), "authority")


def user_file() -> str:
    """Return the path of the user's settings; "" for a user without a home directory, as in a container."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return "" if folder.startswith("~") else os.path.join(folder, "headrace/headrace.toml")


def variable_of(name: str) -> str | None:
    """Return the environment variable of a setting; None if it has none."""
    return None if name in _IN_THE_FILE_ONLY else f"HEADRACE_{name.upper()}"


def load(flags: Mapping[str, Any] | None = None, *, file: str | None = None) -> Loaded:
    """Read all sources. flags: settings by name, None where not given; `cache` as a list of strings for
    `volume_of`. Raises UsageError."""
    values: dict[str, Any] = {}
    sources = dict.fromkeys(Config.__struct_fields__, "default")

    def put(settings: Mapping[str, Any], source: str | None) -> None:
        for name, value in settings.items():
            if value is None or value == []:
                continue
            values[name] = value
            sources[name] = source or _ENVIRONMENT + str(variable_of(name))

    for path in (SYSTEM_FILE, user_file()):
        if os.path.exists(path) and not _is_of_root_alone(path):
            put(_read_file(path, named=False), path)
    if file is not None:
        put(_read_file(file, named=True), file)
    put(_environment(), None)
    put(flags or {}, "flag")
    values.setdefault("run_folder", default_run_folder())
    with _placed("cache", sources["cache"]):
        values["cache"] = _volumes(values.get("cache") or [default_cache_folder()])
    for name, value in values.items():
        if name.endswith(SIZES):
            with _placed(name, sources[name]):
                values[name] = parse_size(str(value))
    try:
        loaded = Loaded(convert_words(values, Config), sources)
        check_run_folder(loaded.config.run_folder)
        return loaded
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise _wrong_kind(str(error), sources) from error


def _wrong_kind(text: str, sources: Mapping[str, str]) -> UsageError:
    """Return the error for a value of a kind that its setting does not take. text: as msgspec says it."""
    match = _AT_SETTING.fullmatch(text)
    hint = "see `headrace config explain`"
    if match is None:
        return UsageError("configuration", why=text, hint=hint)
    why, name, rest = match.groups()
    return UsageError(_place(name + rest, sources.get(name, "")), why=why[:1].lower() + why[1:], hint=hint)


@contextmanager
def _placed(name: str, source: str) -> Iterator[None]:
    """Add to a UsageError which setting it is about, and who set it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{_place(name, source)}: {error.what}", why=error.why, hint=error.hint) from error


def _place(name: str, source: str) -> str:
    """Return a setting and where its value comes from, for a message. source: as in `Loaded`."""
    if source in ("", "default", "flag"):
        return f"setting {name}"
    if source.startswith(_ENVIRONMENT):
        return f"setting {name} ({source})"
    return f"configuration file {source}: setting {name}"


def check_run_folder(directory: str) -> None:
    """Refuse a run directory that another user owns or may change, because this process trusts its files.
    Raises UsageError."""
    for path, writable_by in ((directory, 0o022), (os.path.dirname(directory), 0o002)):
        try:
            status = os.lstat(path)
        except OSError:
            continue  # the process that needs it creates it, or reports why it can't
        why = ""
        if not is_trusted(status.st_uid) and not (
            path == directory and chosen_by_root(directory) == status.st_uid
        ):
            why = f"{path} belongs to user {status.st_uid}"
        elif stat.S_ISLNK(status.st_mode) and path == directory:
            why = f"{path} is a link"
        elif (
            stat.S_ISDIR(status.st_mode)
            and status.st_mode & writable_by
            and not status.st_mode & stat.S_ISVTX
        ):
            why = f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
        if why:
            raise UsageError(
                f"run directory {directory}", why=why, hint="set HEADRACE_RUN_FOLDER to a directory of yours"
            )


def check_cache_parents(loaded: Loaded) -> None:
    """Refuse a cache directory that a user named below one that does not exist: most often its path has a mistake.
    Refuse one below a home directory that is not known. Raises UsageError."""
    for volume in loaded.config.cache:
        if volume.folder.startswith("~"):
            raise UsageError(
                f"cache directory {volume.folder}",
                why="no such home directory is known",
                hint="set HOME, or name a directory with --cache DIR:SIZE",
            )
    for volume in loaded.config.cache if loaded.sources["cache"] != "default" else ():
        above = os.path.dirname(os.path.abspath(volume.folder))
        try:
            os.stat(above)
        except FileNotFoundError:
            raise UsageError(
                f"cache directory {volume.folder}",
                why=f"{above} does not exist",
                hint=f"correct the path, or create it: mkdir -p {above}",
            ) from None
        except OSError:
            continue  # who creates the cache directory reports it


def remember_capacity(config: Config, on_created: Callable[[str], None] = lambda _: None) -> None:
    """Store the capacity of each volume: one that was half of the free space stays the same, however full the cache
    gets. on_created: called with each cache directory that this call created. Raises StoreError if one can't be created
    or written."""
    for volume in config.cache:
        path = os.path.join(volume.folder, CAPACITY_FILE)
        line = f"{volume.capacity_bytes}\n".encode("ascii")
        try:
            if make_private(volume.folder):
                on_created(volume.folder)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, line, 0)  # in place: on a full disk the file keeps its block
                os.ftruncate(fd, len(line))
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(
                f"cache directory {volume.folder}",
                why=f"cannot be written: {error.strerror}",
                hint="name another with --cache DIR:SIZE",
            ) from error


def _is_of_root_alone(path: str) -> bool:
    """Return whether only root's processes may read the file. Those of other users ignore it then."""
    return path == SYSTEM_FILE and os.geteuid() != 0 and not os.access(path, os.R_OK)


def _read_file(path: str, *, named: bool) -> dict[str, Any]:
    """Read a configuration file. named: the caller named it, so another user may own it. Raises UsageError."""
    import tomllib  # not before there is a file

    try:
        with open(path, "rb") as source:
            settings = tomllib.load(source)
            _check_users(path, source.fileno(), settings.get("mounts"), named=named)
    except OSError as error:
        raise UsageError(f"configuration file {path}", why=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:  # bad TOML, bad UTF-8, or a number of thousands of digits
        raise UsageError(f"configuration file {path}", why=str(error)) from error
    unknown = sorted(set(settings) - set(Config.__struct_fields__))
    if unknown:
        raise UsageError(
            f"configuration file {path}",
            why=f"no setting is called {', '.join(unknown)}",
            hint="see `headrace config explain`",
        )
    for name, value in settings.items():
        if _has_nul(value):
            raise UsageError(f"configuration file {path}", why=f"setting {name} has a NUL character")
    return settings


def _has_nul(value: object) -> bool:
    """Return whether any text in a value of TOML has a NUL character; no path, host or URL can."""
    unseen = [value]
    while unseen:
        part = unseen.pop()
        if isinstance(part, str) and "\0" in part:
            return True
        if isinstance(part, dict):
            unseen += [*part, *part.values()]
        elif isinstance(part, list):
            unseen += part
    return False


def _check_users(path: str, fd: int, mounts: object, *, named: bool) -> None:
    """Refuse a file that another user can write, and secrets that another user can read. mounts: the file's table.
    Raises UsageError."""
    from headrace.base.secret_file import exposure_of, writers_of  # not before there is a file, either
    from headrace.config.secret_options import literal_secret

    owner, me = os.fstat(fd).st_uid, os.geteuid()
    why, hint = writers_of(fd), f"chmod go-w {path}"
    if not why and not is_trusted(owner) and not named:
        why, hint = f"it belongs to user {owner}", f"name it with --config, or chown it to user {me}"
    secret = literal_secret(mounts) if owner == me else ""
    if not why and secret and (exposed := exposure_of(fd)):
        why = f"{secret} is a secret, and {exposed}"
        hint = f"chmod 600 {path}; or put the secret into a file of mode 0600 and say @FILE"
    if why:
        raise UsageError(f"configuration file {path}", why=why, hint=hint)


def _environment() -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in Config.__struct_fields__:
        variable = variable_of(name)
        text = os.environ.get(variable, "") if variable else ""
        if text:
            settings[name] = text.split(",") if name == "cache" else text
    return settings


def _volumes(values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the volumes as tables. values: each is a table of the file, or a string for `volume_of`. Raises
    UsageError."""
    if isinstance(values, str):
        values = [values]
    if not isinstance(values, list):
        raise UsageError(repr(values), why="not a list of directories")
    return [_volume_table(value) if isinstance(value, dict) else volume_of(str(value)) for value in values]


def _volume_table(table: dict[str, Any]) -> dict[str, Any]:
    table = dict(table)
    directory = str(table.get("folder", ""))
    if not directory:
        raise UsageError("an entry", why="a directory is missing", hint='folder = "/data/headrace"')
    table["folder"] = _absolute(directory)
    capacity = table.get("capacity_bytes")
    table["capacity_bytes"] = (
        parse_size(str(capacity)) if capacity is not None else _default_capacity(table["folder"])
    )
    if "writes_a_day" in table:
        table["writes_a_day"] = parse_size(str(table["writes_a_day"]))
    return table


def volume_of(text: str) -> dict[str, Any]:
    """Parse DIR, DIR:SIZE, DIR:SIZE:TIER or DIR:SIZE:TIER:WRITES_A_DAY. Raises UsageError."""
    parts = text.split(":")
    if not parts[0] or len(parts) > 4:
        raise UsageError(
            f"cache {text!r}",
            why="not DIR:SIZE[:TIER[:WRITES_A_DAY]]",
            hint="for example /data/headrace:500GiB",
        )
    directory = _absolute(parts[0])
    capacity_bytes = parse_size(parts[1]) if len(parts) > 1 else _default_capacity(directory)
    volume = {
        "folder": directory,
        "capacity_bytes": capacity_bytes,
        "tier": parts[2] if len(parts) > 2 else "nvme",
    }
    return volume | ({"writes_a_day": parse_size(parts[3])} if len(parts) > 3 else {})


def _absolute(directory: str) -> str:
    if "\0" in directory:
        raise UsageError(f"folder {directory!r}", why="it has a NUL character")
    path = os.path.expanduser(directory)
    return path if path.startswith("~") else os.path.abspath(path)


def _default_capacity(directory: str) -> int:
    """Return the stored capacity, or else half of the free space, in bytes."""
    try:
        with open(os.path.join(directory, CAPACITY_FILE), encoding="ascii", opener=unfollowed) as source:
            return max(CAPACITY_BYTES_MIN, int(source.read(_NUMBER_CHARACTERS_MAX)))
    except (OSError, ValueError):
        pass
    probe = directory
    while not os.path.isdir(probe):
        probe = os.path.dirname(probe) or "/"
    disk = os.statvfs(probe)
    return disk.f_bavail * disk.f_frsize // 2


def disk_bytes(directory: str) -> int:
    """Return the size of the file system of a directory."""
    disk = os.statvfs(directory)
    return disk.f_blocks * disk.f_frsize
