"""From the text of a selector to a tree, with errors that name position and token.

One expression grammar covers conditions and values, because parentheses enclose both; which is allowed where
is checked by types in `node.selectors.compiler`. Chains (`a OR b OR c`, `1 + 2 + 3`) are flat in the tree, so
only parentheses, NOT and signs nest, and their depth is bounded.
"""

from __future__ import annotations

from typing import Any, Final

import lark

from angarium import errors

#: Bytes of a selector (R141).
SELECTOR_BYTES_MAX: Final = 2_000
#: Parentheses, NOT and signs inside one another: what a person writes has five.
DEPTH_MAX: Final = 64
#: Characters of a selector that an error repeats.
SHOWN_MAX: Final = 20

GRAMMAR: Final = r"""
start: disjunction

?disjunction: conjunction ("OR"i conjunction)*
?conjunction: negation ("AND"i negation)*
?negation: "NOT"i negation -> not_
    | comparison
?comparison: sum
    | sum COMPARE sum -> compare
    | sum "BETWEEN"i sum "AND"i sum -> between
    | sum "NOT"i "BETWEEN"i sum "AND"i sum -> not_between
    | sum "IN"i "(" STRING ("," STRING)* ")" -> in_
    | sum "NOT"i "IN"i "(" STRING ("," STRING)* ")" -> not_in
    | sum "LIKE"i STRING ["ESCAPE"i STRING] -> like
    | sum "NOT"i "LIKE"i STRING ["ESCAPE"i STRING] -> not_like
    | sum "IS"i "NULL"i -> is_null
    | sum "IS"i "NOT"i "NULL"i -> is_not_null
?sum: product (ADD product)*
?product: signed (MULTIPLY signed)*
?signed: ADD signed -> sign
    | atom
?atom: APPROXIMATE -> approximate
    | EXACT -> exact
    | STRING -> text
    | "TRUE"i -> true
    | "FALSE"i -> false
    | NAME -> name
    | "(" disjunction ")" -> group

COMPARE: "=" | "<>" | "<=" | ">=" | "<" | ">"
ADD: "+" | "-"
MULTIPLY: "*" | "/"
APPROXIMATE.2: /(\d+\.\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|\d+[eE][+-]?\d+)/i
EXACT.1: /\d+/i
STRING: /'([^']|'')*'/i
NAME: /[^\W\d][\w$]*|\$[\w$]*/i
%ignore /\s+/
"""

_parser: Final = lark.Lark(GRAMMAR, parser="lalr", lexer="contextual", propagate_positions=True)


def parse(text: str) -> lark.Tree[Any]:
    """Parse a selector.

    Raises:
        InvalidRequestError: it is too long, or no selector; the detail names position and token (40601).
    """
    size = len(text.encode(errors="replace"))
    if size > SELECTOR_BYTES_MAX:
        raise invalid(f"it has {size} bytes, the limit is {SELECTOR_BYTES_MAX}")
    try:
        return _parser.parse(text)
    except lark.UnexpectedToken as error:
        if error.token.type == "$END":
            raise invalid(f"it ends too early, at position {len(text)}") from None
        shown = str(error.token)[:SHOWN_MAX]
        raise invalid(f"unexpected {shown!r} at position {error.pos_in_stream}") from None
    except lark.UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        hint = "; text is in single quotes" if text[at : at + 1] == '"' else ""
        raise invalid(f"unexpected {text[at : at + SHOWN_MAX]!r} at position {at}{hint}") from None


class FaultError(Exception):
    """What is wrong with a part of a selector; who knows where the part stands makes it an answer."""


def invalid(detail: str) -> errors.AngariumError:
    """Give the error for a selector that cannot be used."""
    return errors.error_for(errors.INVALID_SELECTOR, detail)
