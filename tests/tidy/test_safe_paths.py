"""Paths below directories that others change are reached by `SafePath` only (base/beneath.py): no plain call is made
with a path that was joined. mypy refuses a SafePath where a plain path belongs; this looks for the rest."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.survey import PACKAGE, ROOT, Module, survey

MODULES = (
    *(
        "overlay/upper.py",
        "overlay/marks.py",
        "overlay/hiding.py",
        "overlay/moves.py",
        "writeback/replication/replica_layer.py",
        "overlay/snapshot.py",
        "overlay/lease_marks.py",
    ),
    *(
        "vfs/vfs_reader.py",
        "vfs/local_vfs.py",
        "vfs/staged_file.py",
        "vfs/tree_changes.py",
        "overlay/merged_tree.py",
        "overlay/whiteouts.py",
        "overlay/lease_check.py",
    ),
    *("fuse/node_table.py", "fuse/upper_files.py", "fuse/namespace_ops.py", "fuse/file_ops.py"),
    *(
        "writeback/conflicts.py",
        "writeback/preconditions.py",
        "writeback/replication/replicator.py",
        "writeback/demotion.py",
    ),
    *(
        "writeback/removal.py",
        "writeback/upload.py",
        "writeback/replication/snapshots.py",
        "writeback/origin_changes.py",
    ),
    *(
        "writeback/coherence/pending_names.py",
        "writeback/action.py",
        "writeback/writeback.py",
        "writeback/replication/dirty_files.py",
    ),
    *(
        "webhdfs/read_ops.py",
        "webhdfs/status_ops.py",
        "webhdfs/write_ops.py",
        "s3/object_attributes.py",
        "s3/listing.py",
        "s3/objects.py",
    ),
    *("rest/files.py", "origin/local.py", "origin/local_write.py", "checkpoint/posix_storage.py"),
    "checkpoint/node_storage.py",
)
"""Those that know what lies there."""
BY_PATH = {
    *(
        "access",
        "chdir",
        "lchown",
        "link",
        "listdir",
        "lstat",
        "makedirs",
        "mkdir",
        "mkfifo",
        "mknod",
        "open",
    ),
    *("readlink", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "symlink"),
    *("unlink", "walk", "exists", "lexists", "isdir", "isfile", "islink", "ismount", "realpath", "getsize"),
}
BY_EITHER = {
    *("chmod", "chown", "getxattr", "listxattr", "removexattr", "setxattr", "stat", "statvfs", "truncate"),
    "utime",
}
"""Calls that take a descriptor, too, or the path of a Pin."""
HELD = {"fd", "file", "at", "proc_path", "target", "_fd"}
ALLOWED = {
    ("writeback/coherence/pending_names.py", "exists"): "a file beside the layer",
    ("overlay/upper.py", "getxattr"): "an entry of a directory that is held",
    ("vfs/vfs_reader.py", "open"): "a file of the cache",
    ("vfs/local_vfs.py", "open"): "/proc",
    ("webhdfs/read_ops.py", "open"): "a file of the cache",
    ("origin/local.py", "isdir"): "the folder itself",
    ("checkpoint/posix_storage.py", "isdir"): "the folder itself, and those above it",
    ("checkpoint/posix_storage.py", "mkdir"): "the folder itself, and those above it",
    ("checkpoint/posix_storage.py", "open"): "/proc, and descriptors",
}


@survey(*(PACKAGE + name for name in MODULES))
def plain_calls(module: Module) -> Iterator[tuple[str, int]]:
    """(call, line) of each that may be by a joined path."""
    for node in module.nodes(ast.Call):
        name = ast.unparse(node.func)
        library, _, call = name.rpartition(".")
        by_path = (
            library == "shutil"
            or name in ("Path", "rename")
            or (library in ("os", "os.path") and call in BY_PATH)
        )
        if by_path or ((name == "open" or (library == "os" and call in BY_EITHER)) and not _is_held(node)):
            yield call, node.lineno


def _is_held(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    name = first.id if isinstance(first, ast.Name) else first.attr if isinstance(first, ast.Attribute) else ""
    return name in HELD or isinstance(first, ast.Call)


def test_modules_that_know_the_layers_make_no_plain_calls() -> None:
    calls = [
        (module.removeprefix(PACKAGE), call, line)
        for module, findings in plain_calls.findings().items()
        for call, line in findings
    ]
    assert [site for site in calls if site[:2] not in ALLOWED] == []
    assert [entry for entry in ALLOWED if entry not in {row[:2] for row in calls}] == []


def test_the_modules_are_there() -> None:
    assert [name for name in MODULES if not (ROOT / PACKAGE / name).is_file()] == []


def test_a_plain_call_would_be_found() -> None:
    text = (
        "import os, shutil\n"
        "os.lstat(upper.tree.path + path)\n"
        "os.chmod(upper.tree.path + path, 0o777)\n"
        "shutil.rmtree(tree)\n"
        "open(path)\n"
        "os.fchmod(fd, 0o600)\n"
        "os.utime(pin.proc_path)\n"
    )
    assert [line for _, line in plain_calls.look(Module("module.py", text))] == [2, 3, 4, 5]


@survey(PACKAGE)
def paths_of_layers(module: Module) -> Iterator[int]:
    """Yield the lines that ask for the path of a layer."""
    for node in module.nodes(ast.Attribute):
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else ""
        if node.attr == "path" and owner in ("tree", "work", "gone", "root"):
            yield node.lineno


def test_nobody_else_asks_where_a_layer_lies() -> None:
    """The path of a `Root` is for those who open it."""
    assert {name.removeprefix(PACKAGE) for name in paths_of_layers.findings()} <= {"base/beneath.py"}
    assert paths_of_layers.look(Module("a.py", "layer.tree.path\nself.path\n")) == [1]
