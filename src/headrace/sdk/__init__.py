"""The public library: what `import headrace` gives a program. Read `cache.py` first."""
