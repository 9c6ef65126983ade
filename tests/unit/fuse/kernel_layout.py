"""Lay out the kernel's structures as include/uapi/linux/fuse.h declares them, independently of fuse/abi.py.

The field names are the header's. ctypes pads as the kernel's compiler does. Where the header has several versions of
one structure, this is the one that the flags of INIT choose.
"""

from __future__ import annotations

from ctypes import LittleEndianStructure
from ctypes import c_int32 as i32
from ctypes import c_int64 as i64
from ctypes import c_uint16 as u16
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64


class InHeader(LittleEndianStructure):
    _fields_ = [
        ("len", u32),
        ("opcode", u32),
        ("unique", u64),
        ("nodeid", u64),
        ("uid", u32),
        ("gid", u32),
        ("pid", u32),
        ("total_extlen", u16),
        ("padding", u16),
    ]


class OutHeader(LittleEndianStructure):
    _fields_ = [("len", u32), ("error", i32), ("unique", u64)]


class Attr(LittleEndianStructure):
    _fields_ = [
        ("ino", u64),
        ("size", u64),
        ("blocks", u64),
        ("atime", u64),
        ("mtime", u64),
        ("ctime", u64),
        ("atimensec", u32),
        ("mtimensec", u32),
        ("ctimensec", u32),
        ("mode", u32),
        ("nlink", u32),
        ("uid", u32),
        ("gid", u32),
        ("rdev", u32),
        ("blksize", u32),
        ("flags", u32),
    ]


class EntryOut(LittleEndianStructure):
    _fields_ = [
        ("nodeid", u64),
        ("generation", u64),
        ("entry_valid", u64),
        ("attr_valid", u64),
        ("entry_valid_nsec", u32),
        ("attr_valid_nsec", u32),
        ("attr", Attr),
    ]


class AttrOut(LittleEndianStructure):
    _fields_ = [("attr_valid", u64), ("attr_valid_nsec", u32), ("dummy", u32), ("attr", Attr)]


class OpenOut(LittleEndianStructure):
    _fields_ = [("fh", u64), ("open_flags", u32), ("backing_id", i32)]


class CreateOut(LittleEndianStructure):
    _fields_ = [("entry", EntryOut), ("open", OpenOut)]


class WriteOut(LittleEndianStructure):
    _fields_ = [("size", u32), ("padding", u32)]


class StatfsOut(LittleEndianStructure):
    _fields_ = [
        ("blocks", u64),
        ("bfree", u64),
        ("bavail", u64),
        ("files", u64),
        ("ffree", u64),
        ("bsize", u32),
        ("namelen", u32),
        ("frsize", u32),
        ("padding", u32),
        ("spare", u32 * 6),
    ]


class GetxattrOut(LittleEndianStructure):
    _fields_ = [("size", u32), ("padding", u32)]


class LseekOut(LittleEndianStructure):
    _fields_ = [("offset", u64)]


class InitOut(LittleEndianStructure):
    _fields_ = [
        ("major", u32),
        ("minor", u32),
        ("max_readahead", u32),
        ("flags", u32),
        ("max_background", u16),
        ("congestion_threshold", u16),
        ("max_write", u32),
        ("time_gran", u32),
        ("max_pages", u16),
        ("map_alignment", u16),
        ("flags2", u32),
        ("max_stack_depth", u32),
        ("request_timeout", u16),
        ("unused", u16 * 11),
    ]


class Dirent(LittleEndianStructure):
    _fields_ = [("ino", u64), ("off", u64), ("namelen", u32), ("type", u32)]


class Direntplus(LittleEndianStructure):
    _fields_ = [("entry_out", EntryOut), ("dirent", Dirent)]


class InvalEntryOut(LittleEndianStructure):
    _fields_ = [("parent", u64), ("namelen", u32), ("flags", u32)]


class InvalInodeOut(LittleEndianStructure):
    _fields_ = [("ino", u64), ("off", i64), ("len", i64)]


class InitIn(LittleEndianStructure):
    _fields_ = [
        ("major", u32),
        ("minor", u32),
        ("max_readahead", u32),
        ("flags", u32),
        ("flags2", u32),
        ("unused", u32 * 11),
    ]


class ForgetIn(LittleEndianStructure):
    _fields_ = [("nlookup", u64)]


class ForgetOne(LittleEndianStructure):
    _fields_ = [("nodeid", u64), ("nlookup", u64)]


class BatchForgetIn(LittleEndianStructure):
    _fields_ = [("count", u32), ("dummy", u32)]


class GetattrIn(LittleEndianStructure):
    _fields_ = [("getattr_flags", u32), ("dummy", u32), ("fh", u64)]


class SetattrIn(LittleEndianStructure):
    _fields_ = [
        ("valid", u32),
        ("padding", u32),
        ("fh", u64),
        ("size", u64),
        ("lock_owner", u64),
        ("atime", u64),
        ("mtime", u64),
        ("ctime", u64),
        ("atimensec", u32),
        ("mtimensec", u32),
        ("ctimensec", u32),
        ("mode", u32),
        ("unused4", u32),
        ("uid", u32),
        ("gid", u32),
        ("unused5", u32),
    ]


class MknodIn(LittleEndianStructure):
    _fields_ = [("mode", u32), ("rdev", u32), ("umask", u32), ("padding", u32)]


class MkdirIn(LittleEndianStructure):
    _fields_ = [("mode", u32), ("umask", u32)]


class RenameIn(LittleEndianStructure):
    _fields_ = [("newdir", u64)]


class Rename2In(LittleEndianStructure):
    _fields_ = [("newdir", u64), ("flags", u32), ("padding", u32)]


class LinkIn(LittleEndianStructure):
    _fields_ = [("oldnodeid", u64)]


class OpenIn(LittleEndianStructure):
    _fields_ = [("flags", u32), ("open_flags", u32)]


class CreateIn(LittleEndianStructure):
    _fields_ = [("flags", u32), ("mode", u32), ("umask", u32), ("open_flags", u32)]


class ReleaseIn(LittleEndianStructure):
    _fields_ = [("fh", u64), ("flags", u32), ("release_flags", u32), ("lock_owner", u64)]


class FlushIn(LittleEndianStructure):
    _fields_ = [("fh", u64), ("unused", u32), ("padding", u32), ("lock_owner", u64)]


class ReadIn(LittleEndianStructure):
    _fields_ = [
        ("fh", u64),
        ("offset", u64),
        ("size", u32),
        ("read_flags", u32),
        ("lock_owner", u64),
        ("flags", u32),
        ("padding", u32),
    ]


class WriteIn(LittleEndianStructure):
    _fields_ = [
        ("fh", u64),
        ("offset", u64),
        ("size", u32),
        ("write_flags", u32),
        ("lock_owner", u64),
        ("flags", u32),
        ("padding", u32),
    ]


class FsyncIn(LittleEndianStructure):
    _fields_ = [("fh", u64), ("fsync_flags", u32), ("padding", u32)]


class SetxattrIn(LittleEndianStructure):
    _fields_ = [("size", u32), ("flags", u32)]


class GetxattrIn(LittleEndianStructure):
    _fields_ = [("size", u32), ("padding", u32)]


class AccessIn(LittleEndianStructure):
    _fields_ = [("mask", u32), ("padding", u32)]


class InterruptIn(LittleEndianStructure):
    _fields_ = [("unique", u64)]


class FallocateIn(LittleEndianStructure):
    _fields_ = [("fh", u64), ("offset", u64), ("length", u64), ("mode", u32), ("padding", u32)]


class LseekIn(LittleEndianStructure):
    _fields_ = [("fh", u64), ("offset", u64), ("whence", u32), ("padding", u32)]


class CopyFileRangeIn(LittleEndianStructure):
    _fields_ = [
        ("fh_in", u64),
        ("off_in", u64),
        ("nodeid_out", u64),
        ("fh_out", u64),
        ("off_out", u64),
        ("len", u64),
        ("flags", u64),
    ]
