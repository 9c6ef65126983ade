"""Implements `headrace up [ORIGIN] [MOUNTPOINT]`: runs a node and a mount of its namespace until ^C."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.account import Account
from headrace.base.errors import UsageError
from headrace.base.write_modes import WriteModes
from headrace.cli import gateways, lowered, options
from headrace.cli.exclusive_mounts import ExclusiveMounts
from headrace.cli.process import MountOptions
from headrace.cli.render import print_json, say, warn
from headrace.cli.start_folders import StartFolders, removed_if_it_fails
from headrace.cli.state import RunState
from headrace.config.load import Loaded, check_cache_parents
from headrace.config.schema import Config

if TYPE_CHECKING:
    from headrace.cli.supervise import Supervisor

IO_MODES = ("auto", "passthrough", "splice", "noopen")


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    origin: Annotated[
        str | None,
        typer.Argument(
            metavar="ORIGIN",
            help="URL of the data (s3://bucket/prefix, gs://, az://, https://, file:///path), or a directory.",
        ),
    ] = None,
    mountpoint: Annotated[
        str | None, typer.Argument(metavar="MOUNTPOINT", help="Empty directory where the data is mounted.")
    ] = None,
    cache: options.Cache = None,
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.OriginOption = None,
    cluster: options.Cluster = None,
    node_id: options.NodeId = None,
    listen: options.Listen = None,
    zone: options.Zone = None,
    io: options.Io = "auto",
    allow_other: options.AllowOther = False,
    write: options.Write = None,
    user: options.User = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the mount is ready; `headrace down` ends it.")
    ] = False,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Run a node, and mount ORIGIN at MOUNTPOINT through its cache.

    Both run until ^C, SIGTERM or `headrace down`. Without ORIGIN, the node attaches the origins of the configuration
    and those that `headrace mount add` attached before. Without MOUNTPOINT, nothing is mounted.
    """
    began_s = time.monotonic()
    options.refuse_empty(mountpoint, "MOUNTPOINT")
    if detach:
        from headrace.cli.detach import run_detached

        run_detached(as_json=json)
        return
    check_io(io)
    of_origin = origin_options(
        endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, pairs=option or []
    )
    loaded = load_with_origin(
        origin,
        of_origin,
        {
            "cache": cache,
            "cluster": cluster,
            "node_id": node_id,
            "listen": listen,
            "zone": zone,
            "write": write,
            "user": user,
        },
        file=config,
    )
    check_cache_parents(loaded)
    settings = _opened_with_the_mount(loaded) if allow_other else loaded.config
    account = _prepare_account(settings)
    mount = MountOptions(io, allow_other, writable=WriteModes.parse(settings.write).any)
    with removed_if_it_fails(settings, log_path_of(settings.socket_path)) as folders:
        url = url_of(origin) if origin else ""
        supervisor = _supervisor(settings, mountpoint, url=url, mount=mount, account=account, folders=folders)
        supervisor.run(lambda _: _ready(supervisor, loaded.config, began_s, folders, as_json=json))


def _prepare_account(config: Config) -> Account | None:
    """Return the user to become, after checking that it can run the node; None keeps this process's user."""
    account = lowered.account_for(config)
    if account is None:
        check_has_origin(config)
        return None
    lowered.hand_over_folders(config, account)
    account.result_of(lambda: _check_as_user(config))
    return account


def _check_as_user(config: Config) -> None:
    lowered.check_program()
    check_has_origin(config)


def _opened_with_the_mount(loaded: Loaded) -> Config:
    """Return the settings with `open_to_others` on, as --allow-other implies, unless they set it."""
    import msgspec

    if loaded.sources["open_to_others"] != "default":
        return loaded.config
    return msgspec.structs.replace(loaded.config, open_to_others=True)


def _ready(
    supervisor: Supervisor, config: Config, began_s: float, folders: StartFolders, *, as_json: bool
) -> None:
    folders.keep()
    took_s = time.monotonic() - began_s
    for line in too_large(config):
        warn(line)
    supervisor.restore_seals()
    show_ready(supervisor.state, took_s, as_json=as_json)


def load_with_origin(
    origin: str | None, origin_settings: dict[str, str], flags: dict[str, Any], *, file: str | None
) -> Loaded:
    """Return the configuration, with ORIGIN attached at the top of the namespace. flags: settings by name."""
    import msgspec

    from headrace.config.load import load
    from headrace.config.schema import MountConfig

    if origin is None and origin_settings:
        names = ", ".join(sorted(origin_settings))
        raise UsageError(
            f"options {names}", why="no ORIGIN is given that they belong to", hint="give an ORIGIN"
        )
    loaded = load(flags, file=file)
    if origin is None:
        return loaded
    mounts = {**loaded.config.mounts, "/": MountConfig(url=url_of(origin), options=origin_settings)}
    return Loaded(msgspec.structs.replace(loaded.config, mounts=mounts), loaded.sources)


def check_has_origin(config: Config) -> None:
    """Raise UsageError if a node would have nothing to serve: no ORIGIN, no configured or remembered mount, no cluster.

    A node with a gateway is allowed to start, since clients of the gateway may attach origins later.
    """
    if config.mounts or config.cluster or gateways.configured_kinds(config):
        return
    from headrace.node.cache import remembers_mounts

    if not remembers_mounts(config):
        raise UsageError(
            "up",
            why="no ORIGIN is given, and no mount is configured",
            hint="for example: headrace up s3://bucket/prefix /mnt/data --cache /nvme0/headrace:800GiB",
        )


def _supervisor(
    config: Config,
    mountpoint: str | None,
    *,
    url: str,
    mount: MountOptions,
    account: Account | None,
    folders: StartFolders,
) -> Supervisor:
    """Return the supervisor, after this process has mounted as root and become the user of account, if there is one."""
    from headrace.base.places import check_places

    caches = [volume.folder for volume in config.cache]
    check_places(caches, [origin.url for origin in config.mounts.values()], mountpoint)
    if account is None or not mountpoint:
        if account is not None:
            account.become()
        folders.create()
        return _supervisor_of(config, mountpoint, url=url, mount=mount, mounted=None)
    mounted = lowered.mount_as_root(account, mountpoint, config.run_folder, mount)
    try:
        account.become(lowered.TO_MOUNT)
        folders.create()
        return _supervisor_of(config, mountpoint, url=url, mount=mount, mounted=mounted)
    except BaseException:
        mounted.undo()
        raise


def _supervisor_of(
    config: Config,
    mountpoint: str | None,
    *,
    url: str,
    mount: MountOptions,
    mounted: lowered.RootsMount | None,
) -> Supervisor:
    from headrace.cli.supervise import Supervisor

    return Supervisor(
        RunState(
            kind="up",
            pid=os.getpid(),
            socket=config.socket_path,
            cache=[volume.folder for volume in config.cache],
            mountpoint=os.path.abspath(mountpoint) if mountpoint else "",
            url=url,
            log=log_path_of(config.socket_path),
        ),
        config.run_folder,
        config=config,
        mount=mount,
        mounted=mounted,
        exclusive=ExclusiveMounts(config.upper_folder, WriteModes.parse(config.write)),
    )


def too_large(config: Config) -> list[str]:
    """Return a line for each cache directory whose capacity exceeds the size of its disk."""
    from headrace.base.sizes import show_size
    from headrace.config.load import disk_bytes

    return [
        f"WARNING: cache {volume.folder} is limited to its disk of {show_size(disk)}, not {show_size(capacity)}"
        for volume in config.cache
        if (capacity := volume.capacity_bytes) > (disk := disk_bytes(volume.folder))
    ]


def log_path_of(socket_path: str) -> str:
    """Return the path of the log that a node and its mounts share."""
    return os.path.splitext(socket_path)[0] + ".log"


def check_io(io: str) -> None:
    """Raise UsageError if there is no such I/O mode."""
    if io not in IO_MODES:
        raise UsageError(f"--io {io}", why="unknown I/O mode", hint=f"one of {', '.join(IO_MODES)}")


def url_of(origin: str) -> str:
    """Return the URL of an origin. Without `://` it is a directory, from this process's working directory. Raises
    UsageError for a URL with a single slash, or an empty one."""
    options.refuse_empty(origin, "ORIGIN")
    scheme, colon, rest = origin.partition(":")
    if colon and rest.startswith("/") and not rest.startswith("//") and scheme.isalnum():
        raise UsageError(origin, why="the URL needs two slashes", hint=f"write {scheme}://{rest.lstrip('/')}")
    if "://" not in origin:
        return "file://" + os.path.abspath(os.path.expanduser(origin))
    return origin


def origin_options(
    *, endpoint: str | None, region: str | None, profile: str | None, anonymous: bool, pairs: list[str]
) -> dict[str, str]:
    """Return the flags and every -o KEY=VALUE as one table, with the contents of files in place of @FILE.

    Raises UsageError for an option that is no pair, and for a secret that is given literally.
    """
    from headrace.config.secret_options import option_of_command

    table = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(
                "-o option", why="it is not KEY=VALUE", hint="for example -o region=eu-central-1"
            )
        table[key] = option_of_command(key, value)
    flags = {"endpoint": endpoint, "region": region, "profile": profile}
    table.update({key: value for key, value in flags.items() if value is not None})
    if anonymous:
        table["anonymous"] = "true"
    return table


def show_ready(state: RunState, took_s: float, *, as_json: bool) -> None:
    """Print the mount, the gateways and the I/O mode. A reader that has what it wants after the first line, such as
    `grep -q ready`, ends nothing."""
    if as_json:
        import msgspec

        fields = msgspec.to_builtins(state)
        del fields["began"]
        if not state.credentials:
            del fields["credentials"]
        print_json({"ready": True, "ready_s": round(took_s, 3), **fields})
        return
    place = (
        f"{state.url or 'the namespace'} at {state.mountpoint}"
        if state.mountpoint
        else f"node at {state.socket}"
    )
    say(f"ready in {took_s:.2f} s: {place}")
    with suppress(BrokenPipeError):
        _show_details(state)


def _show_details(state: RunState) -> None:
    for word in gateways.WORDS:
        if url := getattr(state, word):
            say(f"{word}: {url}")
            if how := gateways.kind_of(word).how_to_sign(state.credentials.get(word, ""), url):
                say(f"{word}: {how}")
    if state.io:
        say(f"io: {state.io}" + (f" ({state.why})" if state.why else ""))
    if sys.stdout.isatty():
        say(f"end it with ^C, or `headrace down{' ' if state.mountpoint else ''}{state.mountpoint}`")
