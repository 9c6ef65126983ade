"""Create keys that end in a slash. Each is a directory here, and an empty object to S3 clients."""

from __future__ import annotations

import os

from headrace.base.errors import NotADirectoryPathError
from headrace.base.namespace_path import split
from headrace.http.messages import Request
from headrace.s3 import conditions
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import ObjectAttributes, mark_directory
from headrace.s3.routes import S3Call
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs

FOLDER = ObjectAttributes(0, 0, '"d41d8cd98f00b204e9800998ecf8427e"')
"""Attributes of a key that ends in a slash: an empty object."""


def put_folder(vfs: LocalVfs, request: Request, call: S3Call, *, size_bytes: int) -> ObjectAttributes:
    """Create a directory that is listed as a key, if the request's conditions hold, and return its attributes.
    `size_bytes` is the size of the object that the client puts or copies. Raises S3Error; PathExistsError if another
    client creates the directory first, and the request is for a new one only."""
    if size_bytes:
        raise S3Error("InvalidArgument", "a key that ends in / is a folder here, and has no bytes")
    vfs.check_writable(call.path)
    file_stat = vfs.find(call.path)[1]
    if file_stat is not None and not is_directory(file_stat):
        raise NotADirectoryPathError(os.fsdecode(call.path), why="it is an object")
    conditions.check_write(request, None if file_stat is None else FOLDER.etag)
    if file_stat is None and "if-none-match" in request.headers:
        vfs.make_directories(split(call.path)[0])
        vfs.make_directory(call.path)
    else:
        vfs.make_directories(call.path)
    mark_directory(vfs.tree.upper.at(call.path))
    return FOLDER
