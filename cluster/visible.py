"""Texts that clients chose, made harmless for terminals and logs.

A topic or a client name may hold any character but NUL. Written as it is, one with control characters could steer an
operator's terminal, or begin a line in a log that nobody but the client wrote.
"""

from __future__ import annotations

import re
from typing import Final

#: C0, DEL and C1.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Give a text with its control characters written out, a line feed as a backslash and `x0a`."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
