"""Stands in for libfuse's fusermount3, which mounts for programs and is not everywhere: `fusermount3 -o OPTIONS --
FOLDER` hands the caller a descriptor of /dev/fuse by the socket that _FUSE_COMMFD names. As root only.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import sys


def main() -> int:
    words = sys.argv[1:]
    if "-u" in words:
        return os.EX_OK if ctypes.CDLL(None).umount2(os.fsencode(words[-1]), 2) == 0 else 1
    given = words[words.index("-o") + 1].split(",")
    kind = next((option.split("=", 1)[1] for option in given if option.startswith("subtype=")), "slow")
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other"
    done = ctypes.CDLL(None, use_errno=True).mount(
        b"share", os.fsencode(words[-1]), f"fuse.{kind}".encode(), ctypes.c_ulong(0), options.encode()
    )
    if done != 0:
        sys.stderr.write(os.strerror(ctypes.get_errno()) + "\n")
        return 1
    with socket.socket(fileno=int(os.environ["_FUSE_COMMFD"])) as asker:
        asker.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
