"""User properties as two maps of texts, and back: what was read and is written again is equal.

A value is shown as a person would write it; the second map names the type of each value that is no text:

    {"region": "eu", "amount": 5, "rate": 0.5, "big": True, "raw": bytes(1), "tags": ["a", 1], "none": None}

    user_properties      region=eu  amount=5    rate=0.5    big=true  raw=AA==   tags=["a",1]  none=NULL
    user_property_types             amount=int  rate=float  big=bool  raw=bytes  tags=json

A list or map that JSON cannot hold exactly (bytes inside, numbers that are not finite) is the Base64 of its
MessagePack, type `msgpack`. NULL needs no type. A type that is wrong for its text is an error that names the property.
"""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium.message import MAX_PROPERTY_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_TYPES: Final[dict[type, tuple[str, Callable[[Any], str]]]] = {
    bool: ("bool", lambda value: "true" if value else "false"),
    int: ("int", str),
    float: ("float", repr),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
}
_BOOLEANS: Final = {"true": True, "false": False}

_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": lambda text: text,
    "bool": _BOOLEANS.__getitem__,
    "int": int,
    "float": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "json": json.loads,
    "msgpack": lambda text: msgspec.msgpack.decode(base64.b64decode(text, validate=True)),
}


def texts_of(properties: Mapping[Any, Any]) -> tuple[dict[str, str | None], dict[str, str]]:
    """Give the texts of properties, and the types of those that are no text.

    What no client of ours makes is left out, so that no message keeps a queue from being read: a name that is no text,
    and a value that is nested hundreds of levels deep.
    """
    texts: dict[str, str | None] = {}
    types: dict[str, str] = {}
    for name, value in properties.items():
        if type(name) is not str:
            continue
        if value is None or type(value) is str:
            texts[name] = value
            continue
        known = _TYPES.get(type(value))
        try:
            types[name], texts[name] = _nested(value) if known is None else (known[0], known[1](value))
        except RecursionError:
            types.pop(name, None)
    return texts, types


def values_of(
    texts: Iterable[tuple[str, str | None]], types: Mapping[str, str | None] | None
) -> dict[str, Any]:
    """Give the properties that texts and types stand for.

    Args:
        texts: name and text, as the two maps of a row come from Arrow.
        types: the type of those that are no text; names without a text are ignored.

    Raises:
        InvalidRequestError: a type is unknown, or not that of its text (INVALID_ARGUMENT).
    """
    types = types or {}
    return {name: _value(name, text, types.get(name)) for name, text in texts}


def _value(name: str, text: str | None, kind: str | None) -> Any:
    if text is None or kind is None:
        return text
    reader = _READERS.get(kind)
    if reader is None:
        raise _invalid(f"property {name!r} has the type {kind!r}, possible are {', '.join(_READERS)}")
    try:
        return reader(text)
    except (ValueError, KeyError, RecursionError):
        raise _invalid(f"property {name!r} is said to be {kind}, which {text[:50]!r} is not") from None


def _nested(value: Any) -> tuple[str, str]:
    if _is_json(value, MAX_PROPERTY_DEPTH):
        return "json", json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "msgpack", base64.b64encode(msgspec.msgpack.encode(value)).decode()


def _is_json(value: Any, depth: int) -> bool:
    if isinstance(value, (list, dict)) and depth == 0:
        return False
    if isinstance(value, list):
        return all(_is_json(one, depth - 1) for one in value)
    if isinstance(value, dict):
        return all(type(name) is str and _is_json(one, depth - 1) for name, one in value.items())
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (str, bool, int)


def _invalid(detail: str) -> errors.AngariumError:
    return errors.error_for(errors.INVALID_ARGUMENT, detail)
