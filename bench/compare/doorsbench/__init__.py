"""Doors beside their peers: what each case does, and who serves."""
