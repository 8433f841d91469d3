"""Texts that clients chose, made harmless for terminals and logs.

A topic or a client name may hold any character but NUL, a payload any byte. Written as it is, one with control
characters could steer an operator's terminal, show text in another order than it is in, or begin a line in a log that
nobody but the client wrote.
"""

from __future__ import annotations

import re
from typing import Final

#: C0, DEL and C1; separators of lines and paragraphs; what changes the direction of text (UAX 9).
_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
#: The same without tab and line feed, which only lay a payload out, and without C0, which JSON never has.
_IN_PAYLOAD: Final = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
_IN_JSON: Final = re.compile("[\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """Give a text with its control characters written out: a line feed as a backslash and `x0a`."""
    return _CONTROL.sub(_written_out, text)


def visible_payload(payload: bytes) -> bytes:
    """Give a payload for a terminal: control characters but tab and line feed, and what is no UTF-8, written out."""
    return _IN_PAYLOAD.sub(_written_out, payload.decode(errors="backslashreplace")).encode()


def visible_json(text: str) -> str:
    """Give JSON with the same meaning, without the control characters that JSON allows."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _written_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
