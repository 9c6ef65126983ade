"""Bound what XML from outside takes to parse. A short document can expand without any entity: expat writes the address
of a namespace into the name of each element and attribute that has its prefix."""

from __future__ import annotations

import re
from xml.etree import ElementTree

ENCODING = "utf-8"
"""Give it to the parser: in another encoding, which a document may declare, `check_xml` finds nothing. It refuses
UTF-16, which expat recognizes all the same."""
NAMESPACE_BYTES_MAX = 256
"""Longest address of a namespace. Those of the stores have some 50 bytes."""
_LONG_NAMESPACE = re.compile(
    rb"xmlns(?::[^=\s<]{65}|(?::[^=\s<]{0,64})?(?:\s{17}|\s{0,16}=(?:\s{17}|\s{0,16}(?:\"[^\"<]{%d}|'[^'<]{%d}))))"
    % ((NAMESPACE_BYTES_MAX + 1,) * 2)
)
"""Matches a declaration with a long address, or with a prefix or white space so long that the address is not looked
for: each step has a limit, so that the search takes little time."""


def check_xml(body: bytes, *, run_bytes_max: int) -> None:
    """Refuse a document whose parser could need much more memory than its bytes. run_bytes_max: most bytes of a tag
    together with the text behind it; a parser holds all attributes of a tag. Raises ValueError."""
    if b"\0" in body:
        raise ValueError("it is not UTF-8")
    if _LONG_NAMESPACE.search(body):
        raise ValueError(f"the address of a namespace has more than {NAMESPACE_BYTES_MAX} bytes")
    start = body.find(b"<")
    while start >= 0:
        end = body.find(b"<", start + 1)
        if (len(body) if end < 0 else end) - start > run_bytes_max:
            raise ValueError(f"a tag, with the text behind it, has more than {run_bytes_max} bytes")
        start = end


class BoundedBuilder(ElementTree.TreeBuilder):
    """Builds the elements of a document, without their attributes. Raises ValueError for more than `most` elements and
    attributes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = self._most = most

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self._left -= 1 + len(attrs)
        if self._left < 0:
            raise ValueError(f"more than {self._most} elements and attributes")
        return super().start(tag, {})
