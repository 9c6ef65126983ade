"""The write path: persists what was written on this node to its origins. Read `writeback.py` first."""
