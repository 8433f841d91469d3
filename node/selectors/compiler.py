"""From the tree of a selector to a function that judges messages.

Each node becomes a closure over `Fields` and a static type. Conditions give True, False or None (unknown);
only True selects. Where the types are known to be wrong (`'a' + 1`, `5 LIKE ...`, `TRUE > FALSE`) the
selector is refused; where a property turns out to have another type, a comparison is false and arithmetic is
NULL (JMS 1.1, 3.8.1.1).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from node.selectors.fields import FORBIDDEN, HEADERS, Fields, Row, Value
from node.selectors.grammar import SHOWN_MAX, FaultError, Tree, invalid, parse
from node.selectors.patterns import compile_like

_CONDITION: Final = "condition"
_NUMBER: Final = "number"
_TEXT: Final = "text"
_ANY: Final = "property"
#: The range of exact numbers.
_EXACT_MAX: Final = (1 << 63) - 1
#: What numbers are of; a boolean is none.
_NUMBERS: Final = frozenset((int, float))
#: Bits of what is computed exactly; the next product of a chain costs as much as this one is long.
_COMPUTED_BITS_MAX: Final = 1_024

#: Steps of about a nanosecond that a message costs before anything is asked of it, and for each character of the
#: selector: a term of it takes some 250 and has six characters or more.
STEPS_LEAST: Final = 1_000
STEPS_PER_CHARACTER: Final = 40

_Evaluate = Callable[[Fields], Value]


class _Node(NamedTuple):
    evaluate: _Evaluate
    type: str


class Selector:
    """A compiled selector."""

    __slots__ = ("_evaluate", "_least", "steps")

    def __init__(self, text: str, evaluate: _Evaluate) -> None:
        self._evaluate = evaluate
        self._least = STEPS_LEAST + len(text) * STEPS_PER_CHARACTER
        #: What the last message cost, in steps of about a nanosecond; never much less than it took.
        self.steps = 0

    def matches(self, row: Row) -> bool:
        """Tell whether a message is selected."""
        fields = Fields(row)
        selected = self._evaluate(fields) is True
        self.steps = self._least + fields.steps
        return selected


def compile_selector(text: str) -> Selector:
    """Compile a selector.

    Raises:
        InvalidRequestError: it is none; the detail names what is wrong, with the text and its position (40601).
    """
    root = parse(text)
    try:
        return Selector(text, _condition(_compile(root), "a selector").evaluate)
    except _PlacedError as error:
        at = error.position
        raise invalid(f"{error}, near {text[at : at + SHOWN_MAX]!r} at position {at}") from None
    except FaultError as error:
        raise invalid(f"{error}, near {text[:SHOWN_MAX]!r} at position 0") from None


class _PlacedError(Exception):
    """What is wrong, and where the innermost part stands that it is wrong with."""

    def __init__(self, fault: FaultError, position: int) -> None:
        super().__init__(str(fault))
        self.position = position


def _compile(tree: Tree) -> _Node:
    try:
        return _COMPILERS[tree.data](tree.children)
    except FaultError as fault:
        raise _PlacedError(fault, tree.position) from None


def _condition(node: _Node, what: str) -> _Node:
    """Take a node as a condition: a property counts if it is a boolean, else it is unknown."""
    if node.type == _CONDITION:
        return node
    if node.type != _ANY:
        raise FaultError(f"{what} is a condition, not a {node.type}")
    evaluate = node.evaluate

    def as_condition(fields: Fields) -> Value:
        value = evaluate(fields)
        return value if isinstance(value, bool) else None

    return _Node(as_condition, _CONDITION)


def _number(node: _Node, what: str) -> _Evaluate:
    """Take a node as a number: a property that is none is NULL."""
    if node.type == _NUMBER:
        return node.evaluate
    if node.type != _ANY:
        raise FaultError(f"{what} takes numbers, not a {node.type}")
    evaluate = node.evaluate

    def as_number(fields: Fields) -> Value:
        value = evaluate(fields)
        return value if _is_number(value) else None

    return as_number


def _is_number(value: Value) -> bool:
    return type(value) in _NUMBERS


# -- logic ---------------------------------------------------------------------------------------------------


def _connected(children: list[Any], *, word: str, decisive: bool) -> _Node:
    """Compile conditions of which the first that is `decisive` decides; else all have to be known."""
    parts = [_condition(_compile(child), word).evaluate for child in children]

    def evaluate(fields: Fields) -> Value:
        result: Value = not decisive
        for part in parts:
            value = part(fields)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _Node(evaluate, _CONDITION)


def _negated(evaluate: _Evaluate) -> _Node:
    def negate(fields: Fields) -> Value:
        value = evaluate(fields)
        return None if value is None else not value

    return _Node(negate, _CONDITION)


def _not(children: list[Any]) -> _Node:
    return _negated(_condition(_compile(children[0]), "NOT").evaluate)


def _negating(condition: Callable[[list[Any]], _Node]) -> Callable[[list[Any]], _Node]:
    """Give what compiles the opposite of a condition."""
    return lambda children: _negated(condition(children).evaluate)


# -- comparison ----------------------------------------------------------------------------------------------

_ORDERED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(children: list[Any]) -> _Node:
    left, sign, right = _compile(children[0]), str(children[1]), _compile(children[2])
    if sign in _ORDERED:
        evaluate = _ordering(_ORDERED[sign], _number(left, sign), _number(right, sign))
        return _Node(evaluate, _CONDITION)
    return _Node(_equality(left.evaluate, right.evaluate, wanted=sign == "="), _CONDITION)


def _ordering(compare: Callable[[Any, Any], bool], left: _Evaluate, right: _Evaluate) -> _Evaluate:
    def evaluate(fields: Fields) -> Value:
        one, other = left(fields), right(fields)
        return None if one is None or other is None else compare(one, other)

    return evaluate


def _equality(left: _Evaluate, right: _Evaluate, *, wanted: bool) -> _Evaluate:
    def evaluate(fields: Fields) -> Value:
        one, other = left(fields), right(fields)
        if one is None or other is None:
            return None
        return _are_alike(one, other) and (one == other) is wanted

    return evaluate


def _are_alike(one: Value, other: Value) -> bool:
    """Tell whether two values can be compared: two numbers, two texts or two booleans."""
    return type(one) is type(other) or (_is_number(one) and _is_number(other))


def _between(children: list[Any]) -> _Node:
    value, low, high = (_number(_compile(child), "BETWEEN") for child in children)
    above = _ordering(operator.ge, value, low)
    below = _ordering(operator.le, value, high)

    def evaluate(fields: Fields) -> Value:
        one, other = above(fields), below(fields)
        if one is False or other is False:
            return False
        return None if one is None or other is None else True

    return _Node(evaluate, _CONDITION)


def _in(children: list[Any]) -> _Node:
    field = _property(children[0])
    texts = frozenset(_unquoted(child) for child in children[1:])

    def evaluate(fields: Fields) -> Value:
        value = field(fields)
        return value in texts if isinstance(value, str) else None

    return _Node(evaluate, _CONDITION)


def _like(children: list[Any]) -> _Node:
    name, pattern, escape = children
    field = _property(name)
    like = compile_like(_unquoted(pattern), None if escape is None else _unquoted(escape))
    weight, matches = like.weight, like.matches

    def evaluate(fields: Fields) -> Value:
        value = field(fields)
        if not isinstance(value, str):
            return None
        fields.steps += len(value) * weight
        return matches(value)

    return _Node(evaluate, _CONDITION)


def _is_null(children: list[Any]) -> _Node:
    field = _property(children[0])
    return _Node(lambda fields: field(fields) is None, _CONDITION)


def _is_not_null(children: list[Any]) -> _Node:
    field = _property(children[0])
    return _Node(lambda fields: field(fields) is not None, _CONDITION)


# -- arithmetic ----------------------------------------------------------------------------------------------


def _divide(one: Any, other: Any) -> Value:
    """Divide as SQL and Java do: exact numbers towards zero; by zero there is no value."""
    if other == 0:
        return None
    if isinstance(one, float) or isinstance(other, float):
        return float(one / other)
    quotient = abs(one) // abs(other)
    return int(quotient if (one < 0) == (other < 0) else -quotient)


_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Value]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


def _chain(children: list[Any]) -> _Node:
    """Compile `value sign value sign value ...`, from left to right."""
    first = _number(_compile(children[0]), str(children[1]))
    rest = [
        (_ARITHMETIC[str(sign)], _number(_compile(child), str(sign)))
        for sign, child in zip(children[1::2], children[2::2], strict=True)
    ]

    def evaluate(fields: Fields) -> Value:
        result = first(fields)
        for apply, part in rest:
            value = part(fields)
            if result is None or value is None:
                return None
            result = _apply(apply, result, value)
        return result

    return _Node(evaluate, _NUMBER)


def _apply(apply: Callable[[Any, Any], Value], one: Value, other: Value) -> Value:
    try:
        result = apply(one, other)
    except OverflowError:  # an exact number too large for an approximate one: no value
        return None
    return None if isinstance(result, int) and result.bit_length() > _COMPUTED_BITS_MAX else result


def _sign(children: list[Any]) -> _Node:
    sign, operand = str(children[0]), _number(_compile(children[1]), str(children[0]))
    if sign == "+":
        return _Node(operand, _NUMBER)

    def evaluate(fields: Fields) -> Value:
        value = operand(fields)
        return None if value is None else -value  # type: ignore[operator]

    return _Node(evaluate, _NUMBER)


# -- atoms ---------------------------------------------------------------------------------------------------


def _exact(children: list[Any]) -> _Node:
    value = int(children[0])
    if value > _EXACT_MAX + 1:
        raise FaultError(f"{children[0][:SHOWN_MAX]} is no 64-bit number")
    return _Node(lambda _: value, _NUMBER)


def _approximate(children: list[Any]) -> _Node:
    value = float(children[0])
    return _Node(lambda _: value, _NUMBER)


def _text(children: list[Any]) -> _Node:
    value = _unquoted(children[0])
    return _Node(lambda _: value, _TEXT)


def _name(children: list[Any]) -> _Node:
    return _Node(_field(str(children[0])), _ANY)


def _group(children: list[Any]) -> _Node:
    return _compile(children[0])


def _field(name: str) -> _Evaluate:
    if name in FORBIDDEN:
        raise FaultError(f"{name} cannot be selected by")
    header = HEADERS.get(name)
    return header if header is not None else lambda fields: fields.user(name)


def _property(tree: Tree) -> _Evaluate:
    """Give the field that IN, LIKE and IS NULL ask about: a property, nothing computed."""
    if tree.data != "name":
        raise FaultError("IN, LIKE and IS NULL ask about a property by its name")
    return _field(str(tree.children[0]))


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


_COMPILERS: Final[dict[str, Callable[[list[Any]], _Node]]] = {
    "disjunction": partial(_connected, word="OR", decisive=True),
    "conjunction": partial(_connected, word="AND", decisive=False),
    "not_": _not,
    "compare": _compare,
    "between": _between,
    "not_between": _negating(_between),
    "in_": _in,
    "not_in": _negating(_in),
    "like": _like,
    "not_like": _negating(_like),
    "is_null": _is_null,
    "is_not_null": _is_not_null,
    "sum": _chain,
    "product": _chain,
    "sign": _sign,
    "exact": _exact,
    "approximate": _approximate,
    "text": _text,
    "true": lambda _children: _Node(lambda _: True, _CONDITION),
    "false": lambda _children: _Node(lambda _: False, _CONDITION),
    "name": _name,
    "group": _group,
}
