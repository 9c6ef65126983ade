"""The changes during which tests kill processes, the names that are left, and failpoints of the steps."""

from __future__ import annotations

STEPS = (
    *("persist.chosen", "persist.begun", "persist.put", "persist.shown", "persist.noted", "persist.made"),
    *("persist.removing", "persist.removed", "persist.emptied"),
)

SCRIPT = """
os.makedirs('d/e')
for n in range(4): open(f'd/e/f{n}', 'wb').write(os.urandom(5000 + n))
open('low/a', 'ab').write(b'more')
os.rename('low/b', 'd/b')
os.unlink('low/c')
os.rename('top', 'over')
os.rename('d', 'g')
import shutil; shutil.rmtree('old')
"""

NAMES = {"low", "low/a", "g", "g/b", "g/e", *(f"g/e/f{n}" for n in range(4)), "over"}
