"""The client of a node in the processes of users: connection, hit path, discovery. Read `node_client.py` first."""
