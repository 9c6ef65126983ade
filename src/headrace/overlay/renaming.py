"""Rename and exchange names of the merged tree, in steps that a crash may interrupt anywhere. The caller holds the
layer's lock."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE, NOREPLACE
from headrace.base.model import Entry, Kind
from headrace.base.namespace_path import join
from headrace.overlay.copy_up import CopyUp, NeedsContentError
from headrace.overlay.hiding import exchange, rename_leaving_whiteout
from headrace.overlay.lease_check import LeaseCheck
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import set_base
from headrace.overlay.merged_view import FileStat, Lower, MergedView, is_directory, os_error
from headrace.overlay.moves import move_in
from headrace.overlay.upper import Upper
from headrace.overlay.whiteouts import WhiteoutBuilder


class Renamer:
    """Rename names. on_changed: called with both paths."""

    def __init__(
        self,
        view: MergedView,
        copies: CopyUp,
        lower: Lower,
        upper: Upper,
        *,
        whiteouts: WhiteoutBuilder,
        other_nodes: LeaseCheck,
        on_changed: Callable[[list[bytes]], None],
    ) -> None:
        self._view = view
        self._copies = copies
        self._lower = lower
        self._upper = upper
        self._whiteouts = whiteouts
        self._other_nodes = other_nodes
        self._on_changed = on_changed

    def rename(self, source: bytes, target: bytes, flags: int, *, copied: bool) -> None:
        """Rename a name. flags: NOREPLACE or EXCHANGE. copied: `copy_up_all` has copied the origin's directory, and the
        target's listing is fresh. Raises NeedsContentError if that is still needed, and LeaseRequiredError for
        NOREPLACE without a lease."""
        if flags == EXCHANGE:
            self._exchange(source, target)
            return
        if flags & ~NOREPLACE:
            raise os_error(errno.EINVAL, source)
        self._view.check_writable(source, target)
        moved = self._view.lookup_existing(source)
        self._view.check_same_area(source, target)
        if target.startswith(source + b"/"):
            raise os_error(errno.EINVAL, target)
        replaced = self._view.lookup(target)
        if replaced is not None:
            if flags & NOREPLACE:
                raise os_error(errno.EEXIST, target)
            self._check_replace(moved, replaced, source, target)
            if _same_file(moved, replaced):
                return
        if isinstance(moved, Entry):
            raise NeedsContentError(source)
        self._copies.folder_for(target)
        if flags & NOREPLACE:
            self._other_nodes.check_lease(target)
        if stat.S_ISDIR(moved.st_mode):
            if not copied and (self._view.lookup_lower(source) is not None or replaced is not None):
                raise NeedsContentError(source)
            self._rename_directory(source, target)
        else:
            self._rename_file(source, target)
        self._on_changed([target, source])

    def _exchange(self, source: bytes, target: bytes) -> None:
        """Exchange two names. Raises EINVAL for a directory that the origin has, or that hides names of the origin: no
        single step can exchange those."""
        self._view.check_writable(source, target)
        statuses = {path: self._view.lookup_existing(path) for path in (source, target)}
        self._view.check_same_area(source, target)
        for path, status in statuses.items():
            if is_directory(status):
                entry = self._view.lookup_lower(path)
                if self._view.hides_any(path) or (entry is not None and entry.kind is Kind.DIRECTORY):
                    raise os_error(errno.EINVAL, path)
            elif isinstance(status, Entry):
                raise NeedsContentError(path)
        for path, new_name in ((source, target), (target, source)):
            hidden = self._view.lookup_lower(new_name)  # a file has replaced the origin's directory
            if is_directory(statuses[path]) and hidden is not None and hidden.kind is Kind.DIRECTORY:
                self._whiteouts.hide_below(self._upper.at(path), new_name, hidden)
        exchange(self._upper, source, target)
        self._on_changed([target, source])

    def _check_replace(self, moved: FileStat, replaced: FileStat, source: bytes, target: bytes) -> None:
        """Raise the error of rename(2) if one name can't replace the other."""
        if is_directory(replaced):
            if not is_directory(moved):
                raise os_error(errno.EISDIR, target)
            if source.startswith(target + b"/") or not self._view.is_empty(target):
                raise os_error(errno.ENOTEMPTY, target)
        elif is_directory(moved):
            raise os_error(errno.ENOTDIR, target)

    def _rename_file(self, source: bytes, target: bytes) -> None:
        lower_entry, replaced = self._view.lookup_lower(source), self._view.base(target)
        base = self._view.base(source)
        set_base(self._upper.at(source), target, replaced)
        self._copies.clear_removed_directory(target)
        if lower_entry is None and base is None:
            self._upper.at(source).rename(self._upper.at(target))
        else:
            rename_leaving_whiteout(self._upper, source, target, base)

    def _rename_directory(self, source: bytes, target: bytes) -> None:
        entry = self._view.lookup_lower(source)
        if entry is not None and not self._is_whole(source, entry):
            raise NeedsContentError(source)  # clean files were demoted since it was copied
        source_path, target_path = self._upper.at(source), self._upper.at(target)
        whiteout = (
            self._whiteouts.replacement_for(source, entry)
            if entry is not None or self._view.hides_any(source)
            else None
        )
        hidden, is_taken = self._view.lookup_lower(target), target_path.exists()
        if target_path.is_directory():
            self._whiteouts.inherit_hidden(target, source)
        elif is_taken:  # a whiteout has the name
            set_base(source_path, target, self._upper.base_of(target))
        if hidden is not None and hidden.kind is Kind.DIRECTORY:
            self._whiteouts.hide_below(source_path, target, hidden)
        if whiteout is None and not is_taken:
            source_path.rename(target_path)
            return
        # Until `move_in` the directory is in `work`. After a crash, the cleaning of `work` ends the move by this mark.
        source_path.setxattr(MARKS.moving, target)
        failpoint.hit("tree.moving")
        moving = whiteout or self._upper.new()
        source_path.rename(moving, EXCHANGE if whiteout is not None else 0)
        failpoint.hit("tree.moved")
        move_in(self._upper, moving, target)

    def _is_whole(self, path: bytes, entry: Entry) -> bool:
        """Return whether everything visible in a directory of the origin is in the upper layer."""
        pending = [(path, entry)]
        while pending:
            path, entry = pending.pop()
            for child in self._lower.children(entry.id):
                child_path = join(path, child.name)
                status = self._upper.lookup(child_path)
                if status is None:
                    return False
                is_directory = isinstance(status, os.stat_result) and stat.S_ISDIR(status.st_mode)
                if is_directory and child.kind is Kind.DIRECTORY:
                    pending.append((child_path, child))
        return True


def _same_file(first: FileStat, second: FileStat) -> bool:
    return (
        isinstance(first, os.stat_result)
        and isinstance(second, os.stat_result)
        and (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    )
