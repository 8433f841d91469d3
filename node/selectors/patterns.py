"""LIKE without backtracking: `%` stands for any text, `_` for one character.

A pattern is cut at its `%` into pieces. The first piece is held to the start, the last to the end, and each between
is taken where it is found first, which is right because `%` takes whatever is left. Nobody goes back, so what a
pattern costs for each character of a text, its `weight`, is known before there is a text. `_` at the ends of a piece
costs nothing: it only moves the place where the rest is looked for.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from node.selectors.grammar import FaultError

#: A literal character, or None for any one.
_Piece = list[str | None]

#: Characters from which on the engine is faster with a number than with so many dots.
_COUNTED_LEAST: Final = 16
#: Characters of a piece without `_` that cost as much as one of a piece with.
_LITERAL_SHARE: Final = 4


class _Literal:
    """A piece without `_` inside."""

    __slots__ = ("_before", "_behind", "_text", "size", "weight")

    def __init__(self, before: int, text: str, behind: int) -> None:
        self._before = before
        self._text = text
        self._behind = behind
        self.size = before + len(text) + behind
        self.weight = 1 + len(text) // _LITERAL_SHARE

    def stands_at(self, text: str, at: int) -> bool:
        """Tell whether it stands at a place that has room for it."""
        return text.startswith(self._text, at + self._before)

    def find(self, text: str, start: int, end: int) -> int:
        """Give where it first stands in text[start:end], or a negative number; there is room for it."""
        return text.find(self._text, start + self._before, end - self._behind) - self._before


class _Masked:
    """A piece with `_` inside. Its expression repeats nothing a variable number of times, so it never goes back."""

    __slots__ = ("_before", "_behind", "_expression", "size", "weight")

    def __init__(self, before: int, core: _Piece, behind: int) -> None:
        self._before = before
        self._behind = behind
        parts = ((is_any, list(run)) for is_any, run in groupby(core, lambda one: one is None))
        texts = (
            _anything(len(run)) if is_any else re.escape("".join(map(str, run))) for is_any, run in parts
        )
        self._expression = re.compile("".join(texts), re.DOTALL)
        self.size = before + len(core) + behind
        self.weight = 1 + len(core)

    def stands_at(self, text: str, at: int) -> bool:
        """Tell whether it stands at a place that has room for it."""
        return self._expression.match(text, at + self._before) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """Give where it first stands in text[start:end], or a negative number; there is room for it."""
        found = self._expression.search(text, start + self._before, end - self._behind)
        return -1 if found is None else found.start() - self._before


class Like:
    """A compiled pattern."""

    __slots__ = ("_between", "_first", "_last", "_size", "weight")

    def __init__(self, pieces: list[_Piece]) -> None:
        compiled = [_compile(piece) for piece in pieces]
        self._first = compiled[0]
        #: What follows the first `%`; None: there is none.
        self._last = compiled[-1] if len(compiled) > 1 else None
        self._between = compiled[1:-1]
        #: Characters of the shortest text that it can stand for.
        self._size = sum(piece.size for piece in compiled)
        #: Steps of about a nanosecond for each character of a text, at most: each is passed by one piece only.
        self.weight = max((piece.weight for piece in self._between), default=1)

    def matches(self, text: str) -> bool:
        """Tell whether it stands for a text."""
        first, last = self._first, self._last
        if last is None:
            return len(text) == self._size and first.stands_at(text, 0)
        end = len(text) - last.size
        if len(text) < self._size or not first.stands_at(text, 0) or not last.stands_at(text, end):
            return False
        at = first.size
        for piece in self._between:
            found = piece.find(text, at, end) if at + piece.size <= end else -1
            if found < at:
                return False
            at = found + piece.size
        return True


def compile_like(pattern: str, escape: str | None) -> Like:
    """Compile a LIKE pattern.

    Raises:
        FaultError: the escape is not one character, or stands before something else.
    """
    return Like(_cut(pattern, escape))


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


def _anything(characters: int) -> str:
    """Give the expression for so many characters of any kind."""
    return f".{{{characters}}}" if characters >= _COUNTED_LEAST else "." * characters


def _compile(piece: _Piece) -> _Literal | _Masked:
    """Compile a piece: its core begins and ends with a literal character, or is empty."""
    before = next((i for i, one in enumerate(piece) if one is not None), len(piece))
    behind = next((i for i, one in enumerate(reversed(piece[before:])) if one is not None), 0)
    core = piece[before : len(piece) - behind]
    if None in core:
        return _Masked(before, core, behind)
    return _Literal(before, "".join(one for one in core if one is not None), behind)
