"""The merged tree by path: of this host, of another user's node, and of other hosts. Read `local_vfs.py` first."""
