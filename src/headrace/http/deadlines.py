"""Name how long a server waits for a client in each phase of a connection, in seconds."""

HELLO_S = 10.0
HEAD_S = 30.0
"""The limit for a head, from its first byte; on a new connection, from the connection's start."""
BODY_S = 60.0
"""The limit for the beginning of a body; the rest has a minimum rate (`pace.py`)."""
IDLE_S = 120.0
LINGER_S = 2.0
