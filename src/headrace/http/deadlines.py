"""Limit the seconds that a server waits for a client in each phase of a connection."""

HELLO_S = 10.0
"""Limit for a TLS handshake."""
HEAD_S = 30.0
"""Limit for a head, from its first byte; on a new connection, from the connection's start."""
BODY_S = 60.0
"""Limit for the beginning of a body; the rest has a minimum rate (`pace.py`)."""
IDLE_S = 120.0
"""Limit for the next request of an authenticated client."""
LINGER_S = 2.0
"""Limit for a client to read the answer on a connection that ends."""
