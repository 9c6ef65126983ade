"""Find the paths that match a pattern, by listing only the directories that can contain one."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator

from headrace.vfs.file_stat import is_directory
from headrace.vfs.vfs import Vfs

_Pending = tuple[str, list[str]]
"""A path that matches so far, and the words of the pattern for the names below it."""


def matching_paths(vfs: Vfs, pattern: str) -> Iterator[str]:
    """Yield the paths, as `Cache.glob` promises."""
    pending: list[_Pending] = [("/", [word for word in pattern.split("/") if word])]
    while pending:
        path, words = pending.pop()
        if words:
            pending += reversed(_next_matches(vfs, path, words))
        else:
            yield path


def _next_matches(vfs: Vfs, path: str, words: list[str]) -> list[_Pending]:
    """Return the paths that match the first word, each with its remaining words, in the order of names."""
    word, rest = words[0], words[1:]
    if not re.search(r"[*?[]", word):
        child = f"{path.rstrip('/')}/{word}"
        return [(child, rest)] if vfs.exists(os.fsencode(child)) else []
    matches = [(path, rest or ["*"])] if word == "**" else []
    stat = vfs.find(os.fsencode(path))[1]
    if stat is None or not is_directory(stat):
        return matches
    is_match = re.compile(fnmatch.translate(word)).match
    for raw_name, child_stat in vfs.children(os.fsencode(path)):
        name = os.fsdecode(raw_name)
        child = f"{path.rstrip('/')}/{name}"
        if word == "**":
            matches += [(child, words)] if is_directory(child_stat) else []
        elif is_match(name):
            matches.append((child, rest))
    return matches
