"""Policies on real nodes."""
