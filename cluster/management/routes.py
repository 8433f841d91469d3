"""The table of what there is over HTTP: a method and a path lead to an operation of the admin API.

A path is compared as it was sent, piece by piece, and each piece is decoded on its own. So the name `a/b` is `a%2Fb`,
and `..`, `//` and the like are nothing but names that nobody has: no path means another one.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from angarium import errors

ROOT: Final = ("api", "v1")
#: Of the values behind a question mark.
QUERY_MAX: Final = 50


class Target(NamedTuple):
    """What a request is about."""

    #: Pieces of the path, decoded.
    path: tuple[str, ...]
    query: dict[str, list[str]]


def target_of(raw: str) -> Target:
    """Take the target of a request apart: /api/v1/vpns/default/queues/a%2Fb?limit=50.

    Raises:
        InvalidRequestError: it is none, or is not UTF-8 (40018).
    """
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        raise errors.invalid(f"{raw[:100]!r} is no path")
    try:
        pieces = tuple(unquote_to_bytes(piece).decode() for piece in path[1:].split("/"))
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=QUERY_MAX,
        )
    except ValueError as error:
        raise errors.invalid(f"the target of the request cannot be read: {error}") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return Target(pieces, values)
