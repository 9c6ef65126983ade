"""The parts of a node id: 16 bits of a count, and below them an id of the index, or UPPER and an inode number.

The count of a file of the index is its incarnation (`io_modes.py`), and that of an inode number says how many files had
it before (`generations.py`). The id of a directory of the index has none.
"""

NODE_SHIFT = 48
UPPER = 1 << 47
"""Bit that all ids of the upper layer have; ids of the index are below it."""
