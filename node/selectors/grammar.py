"""From the text of a selector to a tree, with errors that name position and token.

    disjunction   conjunction (OR conjunction)*
    conjunction   negation (AND negation)*
    negation      NOT negation | comparison
    comparison    sum [= <> < <= > >= sum | [NOT] BETWEEN sum AND sum | [NOT] IN (text, ...)
                       | [NOT] LIKE text [ESCAPE text] | IS [NOT] NULL]
    sum           product (+ - product)*
    product       signed (* / signed)*
    signed        + - signed | number | text | TRUE | FALSE | name | (disjunction)

One expression grammar covers conditions and values, because parentheses enclose both; which is allowed where
is checked by types in `node.selectors.compiler`. Chains (`a OR b OR c`, `1 + 2 + 3`) are flat in the tree, so
only parentheses, NOT and signs nest, and their depth is bounded. Words are keywords only where one may stand.

Written by hand: a worker compiles what a client sends, and a generated parser in Python takes eight times as long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes of a selector (R141).
SELECTOR_BYTES_MAX: Final = 2_000
#: Parentheses, NOT and signs inside one another: what a person writes has five.
DEPTH_MAX: Final = 64
#: Characters of a selector that an error repeats.
SHOWN_MAX: Final = 20

_APPROXIMATE: Final = "approximate"
_EXACT: Final = "exact"
_TEXT: Final = "text"
_NAME: Final = "name"
_COMPARE: Final = "compare"
_ADD: Final = "add"
_MULTIPLY: Final = "multiply"
_WRONG: Final = "wrong"
_END: Final = "end"
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<approximate>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<exact>\d+)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>[^\W\d][\w$]*|\$[\w$]*)
    |(?P<compare><>|<=|>=|=|<|>)
    |(?P<add>[+-])
    |(?P<multiply>[*/])
    |(?P<mark>[(),])
    |(?P<wrong>\S)
    |(?P<end>\Z))""",
    re.VERBOSE,
)


class Tree(NamedTuple):
    """A part of a selector."""

    data: str
    #: Trees, and the texts of tokens.
    children: list[Any]
    #: Where it begins in the selector.
    position: int


class FaultError(Exception):
    """What is wrong with a part of a selector; who knows where the part stands makes it an answer."""


def invalid(detail: str) -> errors.AngariumError:
    """Give the error for a selector that cannot be used."""
    return errors.error_for(errors.INVALID_SELECTOR, detail)


def parse(text: str) -> Tree:
    """Parse a selector.

    Raises:
        InvalidRequestError: it is too long, or no selector; the detail names position and token (40601).
    """
    size = len(text.encode(errors="replace"))
    if size > SELECTOR_BYTES_MAX:
        raise invalid(f"it has {size} bytes, the limit is {SELECTOR_BYTES_MAX}")
    parser = _Parser(text)
    tree = parser.disjunction()
    if parser.kind != _END:
        raise parser.unexpected()
    return tree


class _Parser:
    """Goes through a text token by token; a method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self._go_to(0)

    def _go_to(self, position: int) -> None:
        """Take the token that begins at a position, or behind spaces there."""
        match = _TOKEN.match(self._text, position)
        assert match is not None
        self.kind = match.lastgroup
        self._lexeme = match[self.kind or 0]
        self._end = match.end()

    @property
    def _position(self) -> int:
        return self._end - len(self._lexeme)

    def _take(self) -> str:
        """Pass the token, and give it."""
        token = self._lexeme
        self._go_to(self._end)
        return token

    def _has_word(self, word: str) -> bool:
        """Pass a keyword if it is here, where nothing but a keyword may stand: `OR5` is `OR 5`."""
        if self.kind != _NAME or self._lexeme[: len(word)].upper() != word:
            return False
        self._go_to(self._position + len(word))
        return True

    def _has_mark(self, mark: str) -> bool:
        if self._lexeme != mark:
            return False
        self._go_to(self._end)
        return True

    def _expect(self, is_there: bool) -> None:  # noqa: FBT001 - what was found, no mode
        if not is_there:
            raise self.unexpected()

    def unexpected(self) -> errors.AngariumError:
        """Give the error for a token that cannot stand here."""
        at = self._position
        if self.kind == _END:
            return invalid(f"it ends too early, at position {len(self._text)}")
        shown = self._text[at:] if self.kind == _WRONG else self._lexeme
        hint = "; text is in single quotes" if self._lexeme == '"' else ""
        return invalid(f"unexpected {shown[:SHOWN_MAX]!r} at position {at}{hint}")

    def _nested(self, part: Callable[[], Tree], position: int) -> Tree:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            near = self._text[position : position + SHOWN_MAX]
            raise invalid(f"it nests more than {DEPTH_MAX} deep, near {near!r} at position {position}")
        tree = part()
        self._depth -= 1
        return tree

    # -- conditions ------------------------------------------------------------------------------------------

    def disjunction(self) -> Tree:
        """Give what a selector is, or stands between parentheses."""
        position = self._position
        parts = [self._conjunction()]
        while self._has_word("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Tree("disjunction", parts, position)

    def _conjunction(self) -> Tree:
        position = self._position
        parts = [self._negation()]
        while self._has_word("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Tree("conjunction", parts, position)

    def _negation(self) -> Tree:
        position = self._position
        if self._lexeme.upper() == "NOT":
            self._take()
            return Tree("not_", [self._nested(self._negation, position)], position)
        return self._comparison(position)

    def _comparison(self, position: int) -> Tree:
        left = self._sum()
        if self.kind == _COMPARE:
            return Tree("compare", [left, self._take(), self._sum()], position)
        if self.kind != _NAME:
            return left
        if self._has_word("IS"):
            is_not = self._has_word("NOT")
            self._expect(self._has_word("NULL"))
            return Tree("is_not_null" if is_not else "is_null", [left], position)
        prefix = "not_" if self._has_word("NOT") else ""
        if self._has_word("BETWEEN"):
            low = self._sum()
            self._expect(self._has_word("AND"))
            return Tree(f"{prefix}between", [left, low, self._sum()], position)
        if self._has_word("IN"):
            return Tree(f"{prefix}in" if prefix else "in_", [left, *self._texts()], position)
        if self._has_word("LIKE"):
            pattern = self._quoted()
            escape = self._quoted() if self._has_word("ESCAPE") else None
            return Tree(f"{prefix}like", [left, pattern, escape], position)
        self._expect(not prefix)
        return left

    def _texts(self) -> list[str]:
        self._expect(self._has_mark("("))
        texts = [self._quoted()]
        while self._has_mark(","):
            texts.append(self._quoted())
        self._expect(self._has_mark(")"))
        return texts

    def _quoted(self) -> str:
        self._expect(self.kind == _TEXT)
        return self._take()

    # -- values ----------------------------------------------------------------------------------------------

    def _sum(self) -> Tree:
        position = self._position
        parts: list[Any] = [self._product()]
        while self.kind == _ADD:
            parts += [self._take(), self._product()]
        return parts[0] if len(parts) == 1 else Tree("sum", parts, position)

    def _product(self) -> Tree:
        position = self._position
        parts: list[Any] = [self._signed()]
        while self.kind == _MULTIPLY:
            parts += [self._take(), self._signed()]
        return parts[0] if len(parts) == 1 else Tree("product", parts, position)

    def _signed(self) -> Tree:
        position, kind = self._position, self.kind
        if kind == _ADD:
            return Tree("sign", [self._take(), self._nested(self._signed, position)], position)
        if kind in (_APPROXIMATE, _EXACT, _TEXT):
            return Tree(kind, [self._take()], position)
        if kind == _NAME:
            name = self._take()
            if name.upper() in ("TRUE", "FALSE"):
                return Tree(name.lower(), [], position)
            return Tree("name", [name], position)
        self._expect(self._has_mark("("))
        inner = self._nested(self.disjunction, position)
        self._expect(self._has_mark(")"))
        return Tree("group", [inner], position)
