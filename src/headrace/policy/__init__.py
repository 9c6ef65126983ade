"""Policies: what is kept, where, for how long, for whom. Pure: no I/O and no clock.

`document.py` parses the rules of an operator, `resolve.py` says what they mean for a path, `current.py` holds those in
force. The other modules decide by them: dues of tenants, expiry of files.
"""
