"""What a request is about: its path and what is behind the question mark.

POST /v1/topics/a/b?delivery=direct       publish to the topic a/b
POST /v1/queues/a%2Fb                     publish to the queue a/b
/v1/topics/a%2Fb                          the topic a/b too: levels are what is between slashes, however written
/v1/queues/a/b                            nothing: the name of a queue is one piece
/v1/topics/                               an empty topic, refused later
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from angarium import errors, wire

EVENTS: Final = "/v1/events"
#: Of the values behind a question mark.
QUERY_MAX: Final = 50
#: A number as programs write it; `float` takes 1_0, blanks and digits of all scripts too.
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


class Verb(enum.Enum):
    """What a request is to do."""

    INDEX = "index"
    PUBLISH = "publish"
    SEND = "send"
    REQUEST = "request"
    RECEIVE = "receive"
    SETTLE = "settle"
    EVENTS = "events"


#: What may be done, and with which method.
METHODS: Final = dict.fromkeys(Verb, ("POST",)) | {
    Verb.INDEX: ("GET", "HEAD"),
    Verb.EVENTS: ("GET",),
}


class Target(NamedTuple):
    """What a request is about."""

    verb: Verb
    #: The topic that is published to, or the name of the queue that is read.
    name: str
    query: dict[str, str]
    #: Of a stream of events.
    topics: tuple[str, ...] = ()


def target_of(raw: str) -> Target:
    """Take the target of a request apart.

    Raises:
        InvalidRequestError: it is none, or is not UTF-8 (40018); there is nothing of this kind (40406).
    """
    path, _, query = raw.partition("?")
    try:
        pieces = path.split("/")
        if "%" in path or not path.isascii():
            pieces = [unquote_to_bytes(piece).decode() for piece in pieces]
        pairs: list[tuple[str, str]] = []
        if query:
            pairs = parse_qsl(
                query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=QUERY_MAX
            )
    except ValueError as error:
        raise errors.invalid(f"the target of the request cannot be read: {error}") from None
    values = dict(pairs)
    if path == EVENTS:
        return _events(pairs)
    if len(values) < len(pairs):
        raise errors.invalid("a value is given twice behind the question mark")
    match pieces:
        case ["", "v1"] | ["", "v1", ""]:
            return Target(Verb.INDEX, "", values)
        case ["", "v1", "topics", *levels] if levels:
            return Target(Verb.PUBLISH, "/".join(levels), values)
        case ["", "v1", "requests", *levels] if levels:
            return Target(Verb.REQUEST, "/".join(levels), values)
        case ["", "v1", "queues", name, "receive"] if name:
            return Target(Verb.RECEIVE, name, values)
        case ["", "v1", "queues", name, "settle"] if name:
            return Target(Verb.SETTLE, name, values)
        case ["", "v1", "queues", name] if name:
            return Target(Verb.SEND, f"{wire.QUEUE_TOPIC_PREFIX}{name}", values)
    raise errors.error_for(errors.UNKNOWN_RESOURCE, repr(path[:200]), "GET /v1 lists those that there are")


def _events(pairs: list[tuple[str, str]]) -> Target:
    """Give what a stream is about: filters, each as `topic`, or one queue."""
    topics = tuple(dict.fromkeys(value for name, value in pairs if name == "topic"))
    others = [pair for pair in pairs if pair[0] != "topic"]
    query = dict(others)
    queue = query.pop("queue", "")
    if len(query) + bool(queue) < len(others):
        raise errors.invalid("a value is given twice behind the question mark")
    if bool(queue) == bool(topics):
        raise errors.invalid("a stream is of topics, or of a queue", "say ?topic=a/> or ?queue=NAME")
    for one in topics:
        if one.startswith(("!", "#share/", "#noexport/")):
            raise errors.invalid(f"{one[:100]!r} is no filter of a stream")
    return Target(Verb.EVENTS, queue, query, topics)


def take_number(
    query: dict[str, str], name: str, default: float, least: float, most: float, *, is_whole: bool = False
) -> float:
    """Take a number of the query out of it.

    Raises:
        InvalidRequestError: it is none, or not in these bounds (40018).
    """
    text = query.pop(name, None)
    if text is None:
        return default
    pattern = _WHOLE if is_whole else _NUMBER
    if pattern.fullmatch(text) is None or not least <= float(text) <= most:
        raise errors.invalid(f"{name} is {text[:50]!r}, from {least:g} to {most:g} is possible")
    return float(text)
