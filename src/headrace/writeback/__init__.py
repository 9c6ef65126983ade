"""Persist writes of this node to their origins. Read `writeback.py` first."""
