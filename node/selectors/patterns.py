"""LIKE without backtracking: `%` stands for any text, `_` for one character.

A pattern is cut at its `%` into pieces. The first piece is held to the start, the last to the end, and each
between is taken where it is found first, which is right because `%` takes whatever is left. So the cost is
bounded by the length of text times pattern, whatever pattern a client chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.selectors.grammar import FaultError

if TYPE_CHECKING:
    from collections.abc import Callable

#: A literal character, or None for any one.
_Piece = list[str | None]


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Give the test of a LIKE pattern.

    Raises:
        FaultError: the escape is not one character, or stands before something else.
    """
    pieces = _cut(pattern, escape)
    if len(pieces) == 1:
        only = pieces[0]
        return lambda text: len(text) == len(only) and _fits(text, 0, only)
    first, *between, last = pieces
    needed = sum(len(piece) for piece in pieces)

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        if len(text) < needed or not _fits(text, 0, first) or not _fits(text, end, last):
            return False
        at = len(first)
        for piece in between:
            found = _find(text, at, end, piece)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    return matches


def _cut(pattern: str, escape: str | None) -> list[_Piece]:
    if escape is not None and len(escape) != 1:
        raise FaultError(f"ESCAPE takes one character, not {escape[:9]!r}")
    pieces: list[_Piece] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal not in ("%", "_", escape):
                raise FaultError(f"ESCAPE {escape!r} stands before % or _")
            pieces[-1].append(literal)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _fits(text: str, at: int, piece: _Piece) -> bool:
    return all(one is None or text[at + offset] == one for offset, one in enumerate(piece))


def _find(text: str, start: int, end: int, piece: _Piece) -> int:
    """Give where a piece first stands in text[start:end], or -1."""
    if None not in piece:
        return text.find("".join(one for one in piece if one is not None), start, end)
    for at in range(start, end - len(piece) + 1):
        if _fits(text, at, piece):
            return at
    return -1
