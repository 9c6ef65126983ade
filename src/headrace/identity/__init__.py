"""Names in certificates, connections that verify them, and records signed with their keys."""
