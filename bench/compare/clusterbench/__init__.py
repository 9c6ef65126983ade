"""Cases and tables of `bench/compare/cluster.py`."""
