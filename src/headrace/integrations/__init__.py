"""Headrace in other people's frameworks: one third-party package a file, each an extra."""
