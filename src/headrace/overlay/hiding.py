"""Hide names of the lower layer, by whiteouts and removed directories."""

from __future__ import annotations

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE, NOREPLACE, WHITEOUT, SafePath
from headrace.base.model import Version
from headrace.base.namespace_path import is_at_or_below, split
from headrace.overlay.kept_times import keeping_times
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import make_removed, make_whiteout, mark_value, set_base
from headrace.overlay.moves import unmark
from headrace.overlay.upper import Upper


def hide(upper: Upper, path: bytes, base: Version | None) -> None:
    """Put a whiteout in the place of a name, also of an existing file. base: the origin's version that it hides."""
    upper.unmark_demoted(split(path)[0])
    whiteout = new_whiteout(upper, path, base)
    try:
        whiteout.rename(upper.at(path))
    except OSError:
        whiteout.unlink()
        raise


def hide_missing(upper: Upper, path: bytes, base: Version | None, *, directory: bool = False) -> bytes | None:
    """Hide a name that reached the origin after it was removed here, so that the node removes it there. Whiteouts
    and removed directories are created for the name, and for missing directories above it. Return the topmost path
    that was created, or that the caller must examine; None if the name exists here. The caller holds the lock. No
    program sees this change, so the directory keeps its times."""
    if upper.at(path).exists():
        return None
    top, missing = path, [split(path)[1]]
    while not upper.at(split(top)[0]).exists():
        top = split(top)[0]
        missing.insert(0, split(top)[1])
    parent = split(top)[0]
    chain = last = upper.new()
    for name in missing[1:]:
        make_removed(last)
        last = last / name
    if directory:
        make_removed(last)
    else:
        make_whiteout(last, path, base)
    if upper.at(parent).is_directory():
        with keeping_times(upper.at(parent)):
            chain.rename(upper.at(top), NOREPLACE)
        return top
    container = upper.new()  # a file, or a whiteout, took the place of a directory above
    container.mkdir(0o700)
    chain.rename(container / missing[0])
    container.setxattr(MARKS.path, parent)
    container.rename(upper.new_in_gone())
    return parent


def new_whiteout(upper: Upper, path: bytes, base: Version | None) -> SafePath:
    """Create a whiteout in `work`, for the place of a name. base: the origin's version that it hides."""
    whiteout = upper.new()
    make_whiteout(whiteout, path, base)
    return whiteout


def rename_leaving_whiteout(upper: Upper, source: bytes, target: bytes, base: Version | None) -> None:
    """Rename source to target atomically and leave a whiteout at the source. base: the version that the whiteout
    hides. The kernel's whiteout has none, so one of `work` replaces it. After a crash, `clear_work` does that."""
    upper.unmark_demoted(split(source)[0])
    if MARKS.single_owner:
        _move_by_work(upper, source, target, base)
        return
    whiteout = new_whiteout(upper, source, base)
    try:
        upper.at(source).rename(upper.at(target), WHITEOUT)
    except OSError:
        whiteout.unlink()
        raise
    failpoint.hit("tree.renamed")
    whiteout.rename(upper.at(source))


def _move_by_work(upper: Upper, source: bytes, target: bytes, base: Version | None) -> None:
    """Rename a file in two steps, because the kernel leaves no whiteout of a user's kind. After a crash, `clear_work`
    takes the second step. The mark names the entry of `work`, so a mark that a crash left on the old name is invalid
    after another rename."""
    moving = new_whiteout(upper, source, base)
    try:
        upper.at(source).setxattr(MARKS.moving, target + b"\0" + moving.path[1:])
        moving.rename(upper.at(source), EXCHANGE)
    except OSError:
        moving.unlink()
        raise
    failpoint.hit("tree.moved")
    moving.rename(upper.at(target))
    unmark(upper.at(target))


def exchange(upper: Upper, source: bytes, target: bytes) -> None:
    """Exchange two visible entries atomically. Each keeps the base version of its new name."""
    bases = [(source, target, upper.base_of(target)), (target, source, upper.base_of(source))]
    for path, other, base in bases:
        set_base(upper.at(path), other, base)
    upper.at(source).rename(upper.at(target), EXCHANGE)


def defer_removal(upper: Upper, path: bytes) -> None:
    """Move a removed directory to `gone`, so that a file can take its place; the node finds it there. A whiteout hides
    the same names until the file is placed."""
    upper_path, base = upper.at(path), upper.base_of(path)
    upper_path.setxattr(MARKS.path, path)
    whiteout = new_whiteout(upper, path, base)
    whiteout.rename(upper_path, EXCHANGE)
    failpoint.hit("tree.away")
    whiteout.rename(upper.new_in_gone())


def pending_removals(
    upper: Upper, unread: dict[SafePath, OSError] | None = None
) -> list[tuple[SafePath, bytes]]:
    """Return the directories in `gone` with their former paths. unread: gets the errors of directories whose path can't
    be read now; by default the first one is raised, as any path may have to be removed at the origin."""
    directories = []
    for name in upper.gone.at(b"/").names():
        directory = upper.gone.at(b"/" + name)
        try:
            former_path = mark_value(directory, MARKS.path)
        except OSError as error:
            if unread is None:
                raise
            unread[directory] = error
            continue
        if former_path is not None:
            directories.append((directory, former_path))
    return directories


def is_removal_pending(upper: Upper, path: bytes) -> bool:
    """Return whether a directory in `gone` was at a path or above it. The node will check the origin's entry at the
    path, and may remove it."""
    return any(is_at_or_below(path, former_path) for _, former_path in pending_removals(upper))
