"""Headrace: a distributed cache that keeps GPUs busy."""

__version__ = "0.1.0"
