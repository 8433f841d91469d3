"""Schemathesis loads this: it learns to speak MessagePack, as the management API does beside JSON.

It also gets tuples as lists of either type: it writes `prefixItems` in the words of an older draft of JSON Schema
before it looks at an answer, and then finds that it is none of the draft of OpenAPI 3.1. And it asks for every so
many-th path, as OPENAPI_PATHS_OF says.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

from angarium import wire
from tests import characters

MSGPACK = "application/vnd.msgpack"

characters.tell()


def _packed(_context: Any, value: Any) -> bytes:
    try:
        return wire.pack(value)
    except OverflowError:  # MessagePack has no such integer: send what is none of its values
        return b"\xc1"


def _unpacked(_context: Any, response: Any) -> Any:
    return wire.unpack(response.content)


def _without_tuples(value: Any) -> None:
    if isinstance(value, dict) and "prefixItems" in value:
        value["items"] = {"anyOf": value.pop("prefixItems")}
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _without_tuples(one)


def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    _without_tuples(raw_schema)
    paths = raw_schema["paths"]
    raw_schema["paths"] = {path: paths[path] for path in list(paths)[:: int(os.environ["OPENAPI_PATHS_OF"])]}


schemathesis.hook(before_load_schema)
schemathesis.serializer(MSGPACK)(_packed)
schemathesis.deserializer(MSGPACK)(_unpacked)
