"""Implements `headrace checkpoint list | show | verify | prune | export | pin | unpin`, which need no node."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import (
    CorruptCheckpointError,
    HeadraceError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.sizes import show_size
from headrace.cli import options
from headrace.cli.render import print_json, print_lines, print_rows, say, warn

if TYPE_CHECKING:
    from headrace.checkpoint.manifest import Head
    from headrace.checkpoint.storage import CheckpointStorage

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Directory of the checkpoints, or its URL.")]
Step = Annotated[
    int | None, typer.Argument(metavar="STEP", help="Step of the checkpoint.", show_default="the newest")
]
ThatStep = Annotated[int, typer.Argument(metavar="STEP", help="Step of the checkpoint.")]
All = Annotated[bool, typer.Option("--all", help="Verify every checkpoint in FOLDER.")]
Last = Annotated[
    int | None, options.define("--last", "N", "Number of the newest checkpoints to keep.", default="all")
]
Every = Annotated[int | None, options.define("--every", "K", "Keep the steps that are multiples of K, too.")]
Drop = Annotated[
    list[int] | None,
    options.define("--step", "STEP", "Delete the checkpoint of this step, even if pinned; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="Path of the safetensors file to write.")]
StepOption = Annotated[
    int | None, options.define("--step", "STEP", "Step of the checkpoint to export.", default="the newest")
]
Rank = Annotated[int, options.define("--rank", "N", "Rank whose state to export, if several ranks saved.")]
Only = Annotated[
    list[str] | None,
    options.define(
        "--only", "PATTERN", "Export only tensors whose names match, such as model.*; may be repeated."
    ),
]
LEAVES_SHOWN_MAX = 1000


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, verify, export and delete checkpoints.", no_args_is_help=True)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("verify")(verify)
    group.command("prune")(prune)
    group.command("export")(export)
    group.command("pin")(pin)
    group.command("unpin")(unpin)
    app.add_typer(group, name="checkpoint")


def list_(folder: Folder, json: options.Json = False) -> None:
    """Print the checkpoints of FOLDER, oldest first."""
    place = _place(folder)
    from headrace.checkpoint.folder import head, pinned, steps

    pins = pinned(place)
    rows: list[dict[str, Any]] = []
    for step in steps(place):
        try:
            rows.append(_row(head(place, step), pinned=step in pins))
        except CorruptCheckpointError as error:
            rows.append(
                {**dict.fromkeys(_COLUMNS), "step": step, "pinned": step in pins, "problem": str(error)}
            )
    if json:
        print_json(rows)
        return
    print_rows([_for_people(row) for row in rows], as_json=False, right=("step", "ranks", "data", "written"))


def show(folder: Folder, step: Step = None, json: options.Json = False) -> None:
    """Print the tensors, arrays and packs of a checkpoint."""
    place = _place(folder)
    from headrace.checkpoint.folder import manifest, newest, pinned

    saved = manifest(place, newest(place) if step is None else step)
    row = _row(saved.head, pinned=saved.head.step in pinned(place))
    leaves: list[dict[str, Any]] = [
        {"rank": part.rank, "name": leaf.name, "kind": leaf.kind, "dtype": leaf.dtype, "shape": leaf.shape,
         "size_bytes": leaf.size_bytes}
        for part in saved.body.parts
        for leaf in part.leaves
    ]  # fmt: skip
    packs = dict(zip(saved.head.packs, saved.head.pack_bytes, strict=True))
    if json:
        print_json(
            {
                **row,
                "save": saved.head.save,
                "metadata": saved.head.metadata,
                "data": saved.head.data,
                "packs": packs,
                "leaves": leaves,
            }
        )
        return
    lines = [(name, str(value)) for name, value in _for_people(row).items() if value != ""]
    lines += [("metadata", f"{name}: {value}") for name, value in saved.head.metadata.items()]
    lines += [("data", f"{name}, id {id}") for name, id in saved.head.data.items()]
    lines += [("pack", f"{name}, {show_size(size)}") for name, size in packs.items()]
    print_lines(lines)
    for leaf in leaves[:LEAVES_SHOWN_MAX]:
        rank = f"rank {leaf['rank']}: " if saved.head.ranks > 1 else ""
        say(
            f"  {rank}{leaf['name']}  {leaf['dtype'] or leaf['kind']} {leaf['shape']}, {show_size(leaf['size_bytes'])}"
        )
    if len(leaves) > LEAVES_SHOWN_MAX:
        say(f"… {len(leaves)} in all; --json names them")


def verify(folder: Folder, step: Step = None, all_: All = False, json: options.Json = False) -> None:
    """Read a checkpoint and compare every byte with its checksums."""
    place = _place(folder)
    if all_ and step is not None:
        raise UsageError("checkpoint verify", why="STEP and --all exclude each other")
    from headrace.checkpoint.folder import newest, steps
    from headrace.checkpoint.restore import verify as check

    rows: list[dict[str, Any]] = []
    first_error: HeadraceError | None = None
    for number in steps(place) if all_ else [newest(place) if step is None else step]:
        start_s = time.perf_counter()
        try:
            size, problem = check(place, number), ""
        except CorruptCheckpointError as error:
            size, problem, first_error = 0, str(error), first_error or error
        took_s = round(time.perf_counter() - start_s, 3)
        rows.append({"step": number, "bytes": size, "took_s": took_s, "problem": problem})
        if not json:
            text = problem or f"{show_size(size)} in {took_s:.1f} s, all as it was saved"
            say(f"step {number}: {text}")
    if json:
        print_json(rows)
    if first_error is not None:
        raise first_error


def prune(
    folder: Folder,
    last: Last = None,
    every: Every = None,
    step: Drop = None,
    dry_run: DryRun = False,
    json: options.Json = False,
) -> None:
    """Delete old checkpoints, and packs that none needs.

    Pinned checkpoints and the newest stay, unless --step names them. Without --last and --step, only the leftovers of
    killed saves and packs that no checkpoint refers to are deleted. Running saves are not disturbed.
    """
    place = _place(folder)
    from headrace.checkpoint.prune import prune as run
    from headrace.checkpoint.retention import Retention

    if every is not None and last is None:
        raise UsageError(
            "checkpoint prune --every", why="it adds to what --last keeps", hint="give --last, too"
        )
    pruned = run(place, Retention(last, every), also=step or [], dry=dry_run)
    for number in pruned.corrupt:
        warn(
            f"no pack was deleted: the manifest of step {number} can't be read (delete it by --step {number})"
        )
    if json:
        print_json(
            {"steps": pruned.steps, "packs": pruned.packs, "bytes": pruned.bytes, "corrupt": pruned.corrupt}
        )
        return
    action = "would be deleted" if dry_run else "deleted"
    numbers = f" ({', '.join(map(str, pruned.steps))})" if pruned.steps else ""
    size = show_size(pruned.bytes)
    say(f"{action}: {len(pruned.steps)} checkpoints{numbers}, {len(pruned.packs)} packs, {size}")


def export(
    folder: Folder,
    file: File,
    step: StepOption = None,
    rank: Rank = 0,
    only: Only = None,
    json: options.Json = False,
) -> None:
    """Write the tensors of a checkpoint to one safetensors file.

    Plain values are left out.
    """
    place = _place(folder)
    import msgspec

    from headrace.checkpoint.export import export as run

    exported = run(place, file, step, rank=rank, only=only or [])
    if json:
        print_json(msgspec.to_builtins(exported))
        return
    say(f"step {exported.step}: {exported.tensors} tensors, {show_size(exported.bytes)} in {file}")


def pin(folder: Folder, step: ThatStep, json: options.Json = False) -> None:
    """Protect a checkpoint from deletion by retention."""
    place = _place(folder)
    from headrace.checkpoint.folder import head
    from headrace.checkpoint.folder import pin as run

    head(place, step)  # raises where there is none
    run(place, step)
    print_json({"step": step}) if json else say(f"pinned: step {step}")


def unpin(folder: Folder, step: ThatStep, json: options.Json = False) -> None:
    """Allow retention to delete a pinned checkpoint again."""
    place = _place(folder)
    from headrace.checkpoint.folder import unpin as run

    run(place, step)
    print_json({"step": step}) if json else say(f"unpinned: step {step}")


_COLUMNS = ("step", "saved", "kind", "ranks", "full", "data_bytes", "written_bytes", "pinned", "problem")


def _row(head: Head, *, pinned: bool) -> dict[str, Any]:
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(head.created_ns / 1e9))
    values = (
        head.step,
        saved,
        head.kind,
        head.ranks,
        head.full,
        head.data_bytes,
        head.written_bytes,
        pinned,
        "",
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    data, written = row["data_bytes"], row["written_bytes"]
    marks = (
        ["full"] * bool(row["full"])
        + ["pinned"] * row["pinned"]
        + ([row["problem"]] if row["problem"] else [])
    )
    return {
        "step": row["step"],
        "saved": row["saved"] or "?",
        "kind": row["kind"] or "?",
        "ranks": row["ranks"] or "?",
        "data": "?" if data is None else show_size(data),
        "written": "?" if written is None else show_size(written),
        "": ", ".join(marks),
    }


def _place(folder: str) -> CheckpointStorage:
    if "://" not in folder and not os.path.isdir(folder):
        raise PathNotFoundError(folder, why="no such directory")
    from headrace.checkpoint.open_storage import storage_at

    return storage_at(folder)
