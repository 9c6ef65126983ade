"""Sealed data sets: images of metadata, which the kernel serves without a process of Headrace.

An image is an EROFS file system without data. Each regular file in it names a cache file by the extended attributes of
overlayfs, as composefs does. The package writes, reads, checks and mounts images. It leaves to others which entries an
image has, and where the data-only layer lies.
"""
