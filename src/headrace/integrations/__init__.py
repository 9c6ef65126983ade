"""Contain the adapters to other libraries: one third-party package per module, and each is an extra."""
