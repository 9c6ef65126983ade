"""Define the kernel's FUSE protocol as data, after include/uapi/linux/fuse.h, protocol 7.45.

This module is the authority on these bytes. It supports little-endian hosts only (x86-64, arm64). Some replies exist
a second time with fuse_out_header in front, so that one `pack` makes the whole reply.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

KERNEL_VERSION = 7
KERNEL_MINOR_VERSION = 45

RESENT_BIT = 1 << 63  # set in `unique` when the kernel resends a request after a takeover
NAME_BYTES_MAX = 255


class Opcode(IntEnum):
    """Names the requests of the kernel."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    TMPFILE = 51


class Notify(IntEnum):
    """Names the notifications to the kernel."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    RESEND = 7


# flags of INIT (64 bits: flags | flags2 << 32)
ASYNC_READ = 1 << 0
ATOMIC_O_TRUNC = 1 << 3
BIG_WRITES = 1 << 5
DO_READDIRPLUS = 1 << 13
READDIRPLUS_AUTO = 1 << 14
NO_OPEN_SUPPORT = 1 << 17
PARALLEL_DIROPS = 1 << 18
MAX_PAGES = 1 << 22
EXPLICIT_INVAL_DATA = 1 << 25
HANDLE_KILLPRIV_V2 = 1 << 28
INIT_EXT = 1 << 30
PASSTHROUGH = 1 << 37
HAS_RESEND = 1 << 39

# flags of a reply to OPEN and OPENDIR
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_CACHE_DIR = 1 << 3
FOPEN_NOFLUSH = 1 << 5
FOPEN_PASSTHROUGH = 1 << 7

# bits of `valid` of SETATTR
FATTR_MODE, FATTR_UID, FATTR_GID, FATTR_SIZE, FATTR_ATIME, FATTR_MTIME = 1, 2, 4, 8, 16, 32
FATTR_ATIME_NOW, FATTR_MTIME_NOW = 128, 256
FATTR_KILL_SUIDGID = 1 << 11
OPEN_KILL_SUIDGID = 1 << 0  # of `open_flags` of OPEN and CREATE
WRITE_KILL_SUIDGID = 1 << 2
FSYNC_DATA_ONLY = 1

# ioctls of /dev/fuse
BACKING_OPEN = 0x4010E501  # _IOW(229, 1, struct fuse_backing_map)
BACKING_CLOSE = 0x4004E502  # _IOW(229, 2, uint32_t)
BACKING_MAP = Struct("<iIQ")  # fd, flags, padding

_ATTR = "QQQQQQIIIIIIIIII"  # ino size blocks a/m/ctime a/m/ctimensec mode nlink uid gid rdev blksize flags
_ENTRY = "QQQQII" + _ATTR  # nodeid generation entry_valid attr_valid, their nsec, attr

IN_HEADER = Struct("<IIQQIIIHH")  # len opcode unique nodeid uid gid pid total_extlen padding
HOT_HEADER = Struct("<4xIQQ")  # opcode unique nodeid
CALLER = Struct("<24xI4xI")  # uid; pid: of the thread
CALLER_PID = Struct("<32xI")
OUT_HEADER = Struct("<IiQ")  # len error unique
INIT_IN = Struct("<IIIII")  # major minor max_readahead flags flags2 (+ 11 unused words)
INIT_OUT = Struct("<IIIIHHIIHHIIH22x")
# major minor max_readahead flags max_background congestion_threshold max_write time_gran max_pages
# map_alignment
# flags2 max_stack_depth request_timeout
OPEN_IN = Struct("<II")  # flags open_flags
READ_IN = Struct("<QQII")  # fh offset size read_flags
RELEASE_IN = Struct("<Q")  # fh
FORGET_IN = Struct("<Q")  # nlookup
BATCH_FORGET_IN = Struct("<II")  # count dummy
FORGET_ITEM = Struct("<QQ")  # nodeid nlookup
SETATTR_IN = Struct("<IIQQQQQQIIIIIIII")
# valid padding fh size lock_owner a/m/ctime a/m/ctimensec mode unused uid gid unused
MKNOD_IN = Struct("<IIII")  # mode rdev umask padding
MKDIR_IN = Struct("<II")  # mode umask
RENAME_IN = Struct("<Q")  # newdir
RENAME2_IN = Struct("<QII")  # newdir flags padding
LINK_IN = Struct("<Q")  # oldnodeid
CREATE_IN = Struct("<IIII")  # flags mode umask open_flags
WRITE_IN = Struct("<QQIIQII")  # fh offset size write_flags lock_owner flags padding
FSYNC_IN = Struct("<QII")  # fh fsync_flags padding
FALLOCATE_IN = Struct("<QQQII")  # fh offset length mode padding
LSEEK_IN = Struct("<QQII")  # fh offset whence padding
SETXATTR_IN = Struct("<II")  # size flags
XATTR_IN = Struct("<II")  # size padding

ENTRY_REPLY = Struct("<IiQ" + _ENTRY)
ATTR_REPLY = Struct("<IiQQII" + _ATTR)  # attr_valid, its nsec, dummy, attr
OPEN_REPLY = Struct("<IiQQIi")  # fh open_flags backing_id
XATTR_SIZE_REPLY = Struct("<IiQII")
STATFS_REPLY = Struct("<IiQQQQQQIIII24x")  # blocks bfree bavail files ffree bsize namelen frsize padding
DIRENT = Struct("<QQII")  # ino off namelen type
DIRENTPLUS = Struct("<" + _ENTRY + "QQII")
CREATE_REPLY = Struct("<IiQ" + _ENTRY + "QIi")  # entry, then fh open_flags backing_id
WRITE_REPLY = Struct("<IiQII")  # size padding
LSEEK_REPLY = Struct("<IiQQ")  # offset
INVAL_ENTRY_OUT = Struct("<IiQQII")  # header, parent namelen flags
EXPIRE_ONLY = 1  # flag of INVAL_ENTRY_OUT
INVAL_INODE_OUT = Struct("<IiQQqq")  # header, ino off len

PAGE_BYTES = 4096
READ_BYTES_MAX = (1 << 20) - PAGE_BYTES  # with the header it fits a pipe of 1 MiB, which needs no privilege
REQUEST_BYTES_MAX = 16384
"""Size of the request buffer of a read-only mount, where max_write is one page. The kernel requires 8192 bytes or
more."""
WRITE_BYTES_MAX = 1 << 20
WRITABLE_REQUEST_BYTES_MAX = WRITE_BYTES_MAX + (1 << 16) + PAGE_BYTES
"""Size of the request buffer of a writable mount. It holds max_write, or an extended attribute with its name."""

MOUNTPOINTS_XATTR = "user.headrace.mountpoints"
"""Attribute whose read by root makes the session keep the names of mountpoints, before something is mounted there."""
