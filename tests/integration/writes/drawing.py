"""Draws sequences of operations that mostly do something: it follows roughly which names there are.

Pure. Where it follows wrongly, an operation is refused, in both places the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from tests.integration.writes.model_operations import ATTRIBUTES, MODES, PATHS, SIZES, SLOTS
from tests.integration.writes.place import LOWER, LOWER_EMPTY_FOLDERS

FOLLOWED = 0.85
"""How often a name is taken that fits; else any."""
WEIGHTS = {
    "create": 4,
    "overwrite": 3,
    "write_at": 4,
    "append": 3,
    "truncate": 3,
    "read": 2,
    "look": 2,
    "list": 2,
    "unlink": 6,
    "mkdir": 4,
    "rmdir": 4,
    "rename": 9,
    "rename_noreplace": 2,
    "link": 4,
    "symlink": 1,
    "chmod": 2,
    "set_time": 2,
    "set_attribute": 2,
    "remove_attribute": 1,
    "open": 4,
    "slot_write": 3,
    "slot_read": 3,
    "slot_truncate": 1,
    "slot_close": 2,
}
NEW, FILE, FOLDER, EMPTY, ANY, TARGET = "new", "file", "folder", "empty", "any", "target"
WANTS = {
    "create": (NEW,),
    "overwrite": (FILE,),
    "write_at": (FILE,),
    "append": (FILE,),
    "truncate": (FILE,),
    "read": (FILE,),
    "look": (ANY,),
    "list": (FOLDER,),
    "unlink": (FILE,),
    "mkdir": (NEW,),
    "rmdir": (EMPTY,),
    "rename": (ANY, TARGET),
    "rename_noreplace": (ANY, NEW),
    "link": (FILE, NEW),
    "symlink": (ANY, NEW),
    "chmod": (ANY,),
    "set_time": (ANY,),
    "set_attribute": (ANY,),
    "remove_attribute": (ANY,),
    "open": (FILE,),
}


class Drawing:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._kinds: dict[str, str] = {"R": FOLDER, "L": FOLDER}
        for name in LOWER:
            self._kinds[f"L/{name}"] = FILE
            while name := os.path.dirname(name):
                self._kinds[f"L/{name}"] = FOLDER
        self._kinds |= {f"L/{name}": FOLDER for name in LOWER_EMPTY_FOLDERS}
        self._attributes: list[list[str]] = []

    def draw(self) -> list[Any]:
        """Name and arguments of one operation; what it would do is followed."""
        chance = self._chance
        (name,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if name == "remove_attribute" and self._attributes:
            return [name, *chance.choice(self._attributes)]
        paths: list[Any] = [self._path(kind) for kind in WANTS.get(name, ())]
        self._follow(name, paths)
        more: dict[str, Callable[[], list[Any]]] = {
            "write_at": lambda: [chance.choice(SIZES), chance.choice(SIZES)],
            "chmod": lambda: [chance.choice(MODES)],
            "set_time": lambda: [chance.randrange(10**6)],
            "set_attribute": lambda: [chance.choice(ATTRIBUTES), chance.choice(SIZES)],
            "remove_attribute": lambda: [chance.choice(ATTRIBUTES)],
            "open": lambda: [chance.randrange(SLOTS)],
            "slot_write": lambda: [chance.randrange(SLOTS), chance.choice(SIZES), chance.choice(SIZES)],
            "slot_truncate": lambda: [chance.randrange(SLOTS), chance.choice(SIZES)],
            "slot_read": lambda: [chance.randrange(SLOTS)],
            "slot_close": lambda: [chance.randrange(SLOTS)],
        }
        sized = ("create", "overwrite", "append", "truncate")
        drawn = [name, *paths, *([chance.choice(SIZES)] if name in sized else more.get(name, list)())]
        if name == "set_attribute":
            self._attributes.append(drawn[1:3])
        return drawn

    def _path(self, kind: str) -> str:
        there = [path for path in self._kinds if "/" in path]
        new = [path for path in PATHS if path not in self._kinds and os.path.dirname(path) in self._kinds]
        fitting = {
            NEW: new,
            ANY: there,
            TARGET: [*new, *new, *there],
            FILE: [path for path in there if self._kinds[path] == FILE],
            EMPTY: self._empty(),
            FOLDER: [path for path in there if self._kinds[path] == FOLDER],
        }[kind]
        return self._chance.choice(fitting if fitting and self._chance.random() < FOLLOWED else PATHS)

    def _follow(self, name: str, paths: list[str]) -> None:
        kinds = self._kinds
        if name in ("create", "mkdir", "symlink", "link"):
            path = paths[-1]
            if path not in kinds and kinds.get(os.path.dirname(path)) == FOLDER:
                kinds[path] = FOLDER if name == "mkdir" else FILE
        elif (name == "unlink" and kinds.get(paths[0]) == FILE) or (
            name == "rmdir" and paths[0] in self._empty()
        ):
            del kinds[paths[0]]
        elif name.startswith("rename") and paths[0] in kinds:
            self._follow_rename(*paths)

    def _follow_rename(self, old: str, new: str) -> None:
        kinds = self._kinds
        held = kinds.get(new)
        if f"{new}/".startswith(f"{old}/") or kinds.get(os.path.dirname(new)) != FOLDER:
            return
        if held is not None and (held != kinds[old] or self._below(new)):
            return
        moved = {f"{new}{path[len(old) :]}": kinds.pop(path) for path in [old, *self._below(old)]}
        kinds |= moved

    def _empty(self) -> list[str]:
        folders = (path for path in self._kinds if "/" in path and self._kinds[path] == FOLDER)
        return [path for path in folders if not self._below(path)]

    def _below(self, folder: str) -> list[str]:
        return [path for path in self._kinds if path.startswith(f"{folder}/")]


def operations_of(seed: int, count: int) -> list[list[Any]]:
    drawing = Drawing(random.Random(seed))
    return [drawing.draw() for _ in range(count)]
