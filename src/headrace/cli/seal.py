"""Implements `headrace seal`: makes seals of directories, mounts, lists, compares, verifies and removes them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headrace.base.errors import (
    CancelledByUserError,
    HeadraceError,
    MountError,
    NodeUnavailableError,
    PathNotFoundError,
    UsageError,
)
from headrace.cli import options
from headrace.cli.exit_codes import SOME_FAILED
from headrace.cli.render import print_json, print_rows, say, show_time, warn
from headrace.cli.sealed_mounts import SealNode, known_node, running_node

if TYPE_CHECKING:
    from headrace.seal.catalogue import Catalogue, Place, SealId, SealRecord

SealName = Annotated[
    str, typer.Argument(metavar="NAME@VERSION", help="The seal, as `headrace seal list` prints it.")
]
DIFFERENCES_SHOWN_MAX = 1000
_HEADINGS = {"size_bytes": "size", "created_s": "created"}


class _MakeByDefault(TyperGroup):
    """Parses `headrace seal PATH` as `headrace seal make PATH`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=_MakeByDefault,
        help="Freeze directories that the kernel serves from the cache.\n\n"
        "`headrace seal PATH` is short for `headrace seal make PATH`.",
        no_args_is_help=True,
    )
    for name, command in (
        ("make", make),
        ("complete", complete),
        ("mount", mount),
        ("list", list_),
        ("show", show),
        ("diff", diff),
        ("verify", verify),
        ("remove", remove),
        ("push", push),
        ("pull", pull),
    ):
        group.command(name)(command)
    app.add_typer(group, name="seal")


At = Annotated[
    str | None, typer.Option("--at", metavar="MOUNTPOINT", help="Mount the seal at this empty directory.")
]
InPlace = Annotated[
    bool,
    typer.Option("--in-place", help="Mount the seal over the same directory of the node's own mount."),
]


def make(
    path: options.Path,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME[@VERSION]",
            help="Name of the seal.",
            show_default="the directory's name, with the next version",
        ),
    ] = None,
    mountpoint: At = None,
    in_place: InPlace = False,
    allow_other: options.AllowOther = False,
    lazy: Annotated[
        bool,
        typer.Option("--lazy", help="Fetch nothing now: each missing file is fetched when it is first read."),
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Fetch all files below PATH, keep them, and freeze the tree.

    The seal has the names, sizes and times of this moment. It does not change when the origin changes. With --at or
    --in-place it is mounted, too, and again whenever `headrace up` starts its node.
    """
    from headrace.cli.job_progress import show_result, watch
    from headrace.seal.catalogue import SealId
    from headrace.seal.mountpoint import check_mountpoint
    from headrace.wire.messages import JobStart

    options.refuse_empty(mountpoint, "MOUNTPOINT")
    node, began_s = running_node(socket, cache, path), time.monotonic()
    if mountpoint or in_place:
        _check_may_mount(node)
    seal_options = {"seal": _name_of(node, as_)} | ({"lazy": "true"} if lazy else {})
    start = JobStart(kind="seal", path=node.path, options=seal_options)
    places = node.places(mountpoint, node.path, in_place=in_place, shared=allow_other)
    for place in places:
        if not place.in_place:
            check_mountpoint(place.mountpoint)  # before hours of fetching
    state = watch(start, node.socket, ("seal", node.path), is_shown=not json)
    if state.failed_files or not json:
        show_result("seal", node.path, state, time.monotonic() - began_s, as_json=json)
    if state.failed_files:
        raise typer.Exit(SOME_FAILED)
    (name,) = state.data
    record = node.catalogue.record(SealId.parse(name))
    _mount_at(node, record, places)
    _say_made(node.catalogue, record, places, as_json=json)


def complete(
    name: SealName, socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False
) -> None:
    """Fetch what a lazy seal lacks.

    The complete seal is mounted in its place. The kernel then serves it without a process of Headrace. A seal that
    lacks nothing stays as it is.
    """
    from headrace.cli.job_progress import run_job
    from headrace.seal.catalogue import SealId

    seal = SealId.parse(name)
    node = running_node(socket, cache, None)
    node.catalogue.record(seal)
    run_job("complete-seal", "/", socket=node.socket, cache=None, as_json=json, options={"seal": str(seal)})
    if os.geteuid() == 0:
        for failure in node.renew_mounts(node.catalogue.record(seal)):
            warn(failure)


def mount(
    name: SealName,
    mountpoint: At = None,
    in_place: InPlace = False,
    allow_other: options.AllowOther = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Mount a seal at a directory, or over its own directory.

    It replaces another seal there in one step. Needs no running node. `headrace up` mounts it again.
    """
    from headrace.seal.catalogue import SealId

    options.refuse_empty(mountpoint, "MOUNTPOINT")
    if not (mountpoint or in_place):
        raise UsageError("seal mount", why="no place is given", hint="use --at MOUNTPOINT, or --in-place")
    node = known_node(socket, cache)
    _check_may_mount(node)
    record = node.catalogue.record(SealId.parse(name))
    places = node.places(mountpoint, record.path, in_place=in_place, shared=allow_other)
    _mount_at(node, record, places)
    rows = [{"seal": str(record.seal), "mountpoint": place.mountpoint} for place in places]
    print_json(rows) if json else say(*(f"mounted: {row['seal']} at {row['mountpoint']}" for row in rows))


def list_(
    from_origin: Annotated[
        bool,
        typer.Option(
            "--origin", help="Print the seals that were pushed to the origins of the node's mounts instead."
        ),
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the seals of a node, and where they are mounted.

    Needs no running node, except for --origin.
    """
    if from_origin:
        _list_of_origins(socket, cache, as_json=json)
        return
    node = known_node(socket, cache)
    rows = [row for seal in node.catalogue.seals() if (row := _row_of(node.catalogue, seal)) is not None]
    _print_seals(rows, as_json=json)


def push(
    name: SealName, socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False
) -> None:
    """Put the content list of a seal to its origin.

    Other clusters can pull it; no bytes of files are put. A version at an origin never changes: another seal of the
    same name is refused.
    """
    from headrace.cli.job_progress import watch
    from headrace.seal.catalogue import SealId
    from headrace.wire.messages import JobStart

    seal, node = SealId.parse(name), running_node(socket, cache, None)
    record = node.catalogue.record(seal)
    start = JobStart(kind="push-seal", path=record.path, options={"seal": str(seal)})
    watch(start, node.socket, ("push", str(seal)), is_shown=not json)
    row = {"seal": str(seal), "id": record.id, "path": record.path}
    print_json(row) if json else say(f"pushed: {seal}, id {record.id[:12]}")


def pull(
    name: SealName,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            help="Path below the mount whose origin has the seal.",
            show_default="all mounts are searched",
        ),
    ] = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Make a seal of a version that another cluster pushed.

    All its files are fetched and compared with the list. If a file has changed at its origin since, the command names
    it, and makes no seal.
    """
    from headrace.cli.job_progress import show_result, watch
    from headrace.seal.catalogue import SealId
    from headrace.wire.messages import JobStart

    seal, node, began_s = SealId.parse(name), running_node(socket, cache, path), time.monotonic()
    start = JobStart(kind="pull-seal", path=node.path, options={"seal": str(seal)})
    state = watch(start, node.socket, ("pull", str(seal)), is_shown=not json)
    if state.failed_files or not json:
        show_result("pull", str(seal), state, time.monotonic() - began_s, as_json=json)
    if state.failed_files:
        raise typer.Exit(SOME_FAILED)
    _say_made(node.catalogue, node.catalogue.record(seal), [], as_json=json)


def _list_of_origins(socket: str | None, cache: str | None, *, as_json: bool) -> None:
    import msgspec

    from headrace.cli.request import ask
    from headrace.wire.seal_messages import SealList, SealRows

    answer = ask(SealList(from_origin=True), socket, cache)
    assert isinstance(answer, SealRows)
    rows = [msgspec.to_builtins(row) for row in answer.rows]
    _print_seals(rows, as_json=as_json)


def _print_seals(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    print_rows(rows if as_json else list(map(_for_people, rows)), as_json=as_json, right=("files", "size"))


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    from headrace.base.sizes import show_size

    shown = {**row, "size_bytes": show_size(row["size_bytes"]), "created_s": show_time(row["created_s"])}
    return {_HEADINGS.get(name, name): value for name, value in shown.items()}


def show(
    name: SealName, socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False
) -> None:
    """Print a seal and where it is mounted.

    The id is a hash of the contents. A seal that only an origin has needs a running node.
    """
    from headrace.cli.origin_seal import row_at_origin
    from headrace.cli.render import print_tree
    from headrace.seal.catalogue import SealId

    catalogue, seal = known_node(socket, cache).catalogue, SealId.parse(name)
    try:
        record = catalogue.record(seal)
        row = {**_row(catalogue, record), "image": record.image}
    except PathNotFoundError as missing:
        try:
            row = row_at_origin(seal, socket, cache)
        except NodeUnavailableError:
            raise missing from None
    print_tree(row, as_json=json)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The older seal, as NAME@VERSION.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The newer seal, as NAME@VERSION.")],
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the files that differ between two seals.

    Each is a seal of the node or else of an origin. Only one of an origin needs a running node.
    """
    from headrace.cli.origin_seal import entries_of
    from headrace.seal.catalogue import SealId
    from headrace.seal.snapshot import differences

    catalogue = known_node(socket, cache).catalogue
    before, after = (entries_of(catalogue, SealId.parse(name), socket, cache) for name in (old, new))
    counts = {"added": 0, "removed": 0, "changed": 0}
    shown: list[dict[str, str]] = []
    for change, entry in differences(before, after):
        counts[change] += 1
        path = os.fsdecode(entry.path) + ("" if entry.is_file else "/")
        if json:
            shown.append({"change": change, "path": path})
        elif sum(counts.values()) <= DIFFERENCES_SHOWN_MAX:
            say(f"{change:<8} {path}")
    if json:
        print_json({"old": old, "new": new, **counts, "differences": shown})
        return
    if sum(counts.values()) > DIFFERENCES_SHOWN_MAX:
        warn(f"only the first {DIFFERENCES_SHOWN_MAX} differences are shown; --json prints all")
    say(f"{old} to {new}: " + ", ".join(f"{count} {change}" for change, count in counts.items()))


def verify(
    name: SealName, socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False
) -> None:
    """Compare the cached bytes of a seal with its checksums.

    The image is compared with its recorded digest, too. For a seal that only an origin has, the origin is asked whether
    it still has the sealed version of each file.
    """
    from headrace.cli.job_progress import run_job
    from headrace.seal.catalogue import SealId

    seal = SealId.parse(name)
    node = running_node(socket, cache, None)
    if seal in node.catalogue.seals():
        _verify_image(node.catalogue, seal)
    run_job("verify-seal", "/", socket=node.socket, cache=None, as_json=json, options={"seal": str(seal)})


def _verify_image(catalogue: Catalogue, seal: SealId) -> None:
    from headrace.seal.digest import verify_image
    from headrace.seal.stored_image import open_stored_image

    record = catalogue.record(seal)
    image = open_stored_image(catalogue, record)
    try:
        verify_image(image, record.image)
    finally:
        os.close(image)


def remove(
    name: SealName, socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False
) -> None:
    """Unmount a seal and remove it.

    Its files stay cached until the space is needed, and while a process or a container still reads them.
    """
    from headrace.cli.job_progress import watch
    from headrace.seal.catalogue import SealId
    from headrace.seal.mounted import is_of, mounts_of, source_on_top
    from headrace.seal.places import unmount_seal
    from headrace.wire.messages import JobStart

    seal = SealId.parse(name)
    node = known_node(socket, cache)
    if seal not in node.catalogue.seals():
        node.catalogue.record(seal)  # raises PathNotFoundError
    for mountpoint in dict.fromkeys(reversed(mounts_of(node.catalogue, seal))):
        if not is_of(source_on_top(mountpoint), node.catalogue, seal):
            raise MountError(
                f"cannot unmount {mountpoint}", why="another file system is mounted over the seal"
            )
        unmount_seal(mountpoint)  # while the session still keeps the name of the mountpoint
    places = node.catalogue.places(seal)
    node.catalogue.change_places(seal, lambda _: [])
    for place in places:
        node.unmount_unrecorded(place.mountpoint)
    if node.is_running:
        start = JobStart(kind="unseal", path="/", options={"seal": str(seal)})
        watch(start, node.socket, ("unseal", str(seal)), is_shown=False)
    else:
        node.catalogue.remove(seal)
    in_use = str(seal) in node.catalogue.in_use()
    if not in_use:  # a mount namespace may have it at its mountpoint
        node.remove_mountpoints(places)
    if json:
        print_json({"seal": str(seal), "in_use": in_use})
    else:
        say(f"removed: {seal}" + ("; its files stay while they are open elsewhere" if in_use else ""))


def _check_may_mount(node: SealNode) -> None:
    from headrace.seal.probe import seal_trouble

    if os.geteuid() != 0:
        raise UsageError(
            "seal",
            why="only root can mount a seal, of a node that runs as root",
            hint="leave --at and --in-place out, or use sudo",
        )
    trouble = seal_trouble(node.folders[0])
    if trouble:
        raise MountError("cannot mount a seal", why=trouble)


def _mount_at(node: SealNode, record: SealRecord, places: list[Place]) -> None:
    for place in places:
        try:
            node.mount(record, place)
        except KeyboardInterrupt:
            raise CancelledByUserError(
                f"mount of seal {record.seal} at {place.mountpoint}",
                why="cancelled; the seal is made, and not mounted there",
                hint=f"`headrace seal mount {record.seal}` mounts it",
            ) from None


def _name_of(node: SealNode, name: str | None) -> str:
    """Return NAME@VERSION of a new seal, or NAME: then the node chooses the version. Raises UsageError."""
    from headrace.seal.catalogue import SealId

    name = name or os.path.basename(node.path) or "all"
    SealId.parse(name if "@" in name else f"{name}@1")
    return name


def _say_made(catalogue: Catalogue, record: SealRecord, places: list[Place], *, as_json: bool) -> None:
    if as_json:
        print_json(_row(catalogue, record))
        return
    lacking = f", {record.missing} files are fetched when they are read" if record.is_lazy else ""
    say(f"sealed: {record.seal}, id {record.id[:12]}{lacking}")
    for place in places:
        say(f"mounted: {record.seal} at {place.mountpoint}")
    for seal in catalogue.seals():
        if seal.name == record.name and seal < record.seal and catalogue.record(seal).id == record.id:
            say(f"{seal} has the same contents")


def _row_of(catalogue: Catalogue, seal: SealId) -> dict[str, Any] | None:
    """Return the row of a seal; None after a warning if it is damaged."""
    try:
        return _row(catalogue, catalogue.record(seal))
    except HeadraceError as error:
        warn(f"{error}; remove it with `headrace seal remove {seal}`")
        return None


def _row(catalogue: Catalogue, record: SealRecord) -> dict[str, Any]:
    from headrace.seal.mounted import mounts_of

    return {
        "seal": str(record.seal),
        "id": record.id,
        "path": record.path,
        "files": record.files,
        "size_bytes": record.size_bytes,
        "created_s": round(record.created_s, 3),
        "missing": record.missing,
        "mounted": ", ".join(mounts_of(catalogue, record.seal)),
    }
