"""A process that runs scripts, one request a line: whatever hangs on a mount hangs here, and can be killed.

Request and answer are JSON: {"script", "root", "lower", "outside", "mounted"} or {"operations", ...}
or {"tree": FOLDER} or {"contents": FOLDER}; → {"notes", "tree", "error"}.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from tests.integration.writes import (
    model_operations,
    scripts_attributes,
    scripts_exercise,
    scripts_files,
    scripts_lower,
    scripts_names,
    scripts_processes,
    scripts_programs,
)
from tests.integration.writes.place import Place, contents_of, tree_of
from tests.integration.writes.registry import SCRIPTS

LOADED = (
    scripts_attributes,
    scripts_exercise,
    scripts_files,
    scripts_lower,
    scripts_names,
    scripts_processes,
    scripts_programs,
)


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Errors are in the answer: this process goes on."""
    for kind, look in (("tree", tree_of), ("contents", contents_of)):
        if kind in request:
            try:
                return {"notes": [], "tree": look(request[kind]), "error": ""}
            except (OSError, AssertionError):
                return {"notes": [], "tree": {}, "error": traceback.format_exc()}
    return answer_to_script(request)


def answer_to_script(request: dict[str, Any]) -> dict[str, Any]:
    place = Place(request["root"], request["lower"], request["outside"], request["mounted"])
    error = ""
    left_out: tuple[str, ...] = ()
    os.umask(0o022)
    try:
        os.makedirs(place.root)
        os.makedirs(place.outside)
        os.chdir(place.root)
        if "script" in request:
            script = SCRIPTS[request["script"]]
            left_out = script.left_out
            script.run(place)
        else:
            model_operations.run(place, request["operations"])
    except Exception:  # noqa: BLE001 - the answer tells of it
        error = traceback.format_exc()
    os.chdir("/")
    os.umask(0o022)
    tree: dict[str, str] = {}
    try:
        tree |= {f"root/{name}": description for name, description in tree_of(place.root, left_out).items()}
        tree |= {f"lower/{name}": description for name, description in tree_of(place.lower, left_out).items()}
    except (OSError, AssertionError):
        error += traceback.format_exc()
    return {"notes": place.notes, "tree": tree, "error": error}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # programs that scripts start print to stderr
    for line in sys.stdin:
        answer = answer_to(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
