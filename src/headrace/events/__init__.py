"""Decode what origins report about changes of their objects. Pure; it trusts nothing.

An event is a hint. It makes a node list a directory again; bytes and versions always come from the origin itself.
"""
