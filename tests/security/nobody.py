"""Being another user of the host. A process begins as root, as its interpreter may lie where only root can read, and
becomes the other user when it has imported what it needs."""

from __future__ import annotations

NOBODY = 65534
BECOME_NOBODY = f"import os; os.setgroups([]); os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3)"
