"""Where `angarium pub` takes messages from, and how fast: payloads, topics and pace.

A source gives payloads in batches as soon as some are there. A topic template turns line numbers into topics.
A pace says how many messages are due; it owns no clock. The one thing here that waits is `LineSource`, for
its file descriptor; nothing here knows the SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: One read fills several batches, and one line after another still leaves as soon as it is there.
READ_BYTES: Final = 1 << 18
#: The longest line, and the largest file that is one payload; either would otherwise be read into memory whole.
MAX_LINE_BYTES: Final = 64 << 20
#: Sleeping for less costs more than the steadier flow is worth, so messages that fall due meanwhile leave
#: together.
PACE_INTERVAL_S: Final = 0.005
#: Topics of a `{line%N}` template are made once when there are at most so many.
MAX_PREPARED_TOPICS: Final = 100_000

#: Add `--file`; the function gets `file: str | None`.
file_option = click.option(
    "--file",
    metavar="FILE|-",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The payload is the content of a file (- is stdin), as it is.",
)

_PLACEHOLDER: Final = re.compile(r"\{line(?:%(\d+))?\}")
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


class Source(Protocol):
    """Gives payloads, in order."""

    async def take(self, limit: int) -> list[bytes]:
        """Give the next payloads, 1 to `limit` of them, as soon as there is one; none at the end."""


class RepeatSource:
    """One payload, a number of times."""

    def __init__(self, payload: bytes, count: int) -> None:
        self._payload = payload
        #: How many are still to be given; never negative.
        self._left = count

    async def take(self, limit: int) -> list[bytes]:
        """Give the next payloads, 1 to `limit` of them; none at the end."""
        count = min(limit, self._left)
        self._left -= count
        return [self._payload] * count


def payload_of(text: str | None, path: str | None) -> bytes:
    """Give the payload that a command was given: a text, what a file has, or nothing.

    Raises:
        AngariumError: it has more bytes than any node takes (MESSAGE_TOO_LARGE).
    """
    if path is None:
        return os.fsencode(text or "")
    with os.fdopen(os.dup(sys.stdin.fileno()), "rb") if path == "-" else open(path, "rb") as file:
        payload = file.read(MAX_LINE_BYTES + 1)
    if len(payload) > MAX_LINE_BYTES:
        raise errors.error_for(errors.MESSAGE_TOO_LARGE, f"'{path}' has more than {MAX_LINE_BYTES} bytes")
    return payload


class LineSource:
    """The lines of a file descriptor, as bytes without their line feed.

    Only LF ends a line; a carriage return stays in it. Text after the last line feed is a line. Empty lines
    count.
    """

    def __init__(self, descriptor: int, count: int | None = None) -> None:
        self._descriptor = descriptor
        #: Lines that were read and not given; all before `_at` are given.
        self._lines: list[bytes] = []
        self._at = 0
        #: The start of a line whose line feed was not read yet.
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        #: How many lines may still be given, or None for all.
        self._left = count
        self._ended = False

    async def take(self, limit: int) -> list[bytes]:
        """Give the next lines, 1 to `limit` of them; none at the end."""
        if self._left is not None:
            limit = min(limit, self._left)
        while limit and self._at == len(self._lines) and not self._ended:
            await _readable(self._descriptor)
            self._add(os.read(self._descriptor, READ_BYTES))
        taken = self._lines[self._at : self._at + limit]
        self._at += len(taken)
        if self._left is not None:
            self._left -= len(taken)
        return taken

    def _add(self, data: bytes) -> None:
        """Cut what was read into lines; nothing means the end of the file."""
        self._at = 0
        if not data:
            self._ended = True
            self._lines = [b"".join(self._partial)] if self._partial else []
            return
        first, *rest = data.split(b"\n")
        self._partial.append(first)
        self._partial_bytes += len(first)
        if self._partial_bytes > MAX_LINE_BYTES:
            raise errors.error_for(errors.MESSAGE_TOO_LARGE, f"a line of more than {MAX_LINE_BYTES} bytes")
        if not rest:
            self._lines = []
            return
        self._lines = [b"".join(self._partial), *rest[:-1]]
        self._partial = [rest[-1]] if rest[-1] else []
        self._partial_bytes = len(rest[-1])


async def _readable(descriptor: int) -> None:
    """Wait until a read would not block, so that the connection stays alive behind a slow pipe."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(descriptor, readable)
    except PermissionError:  # A regular file cannot be waited for, and never blocks for long.
        return
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def topic_maker(template: str) -> Callable[[range], Iterable[str]]:
    """Give the function from line numbers to topics.

    `{line}` stands for the number, `{line%N}` for the number modulo N; other braces are literal.
    `a/{line%2}` makes a/0, a/1, a/0, ...

    Raises:
        ValueError: a modulus is 0.
    """
    moduli = [int(match.group(1)) if match.group(1) else None for match in _PLACEHOLDER.finditer(template)]
    if 0 in moduli:
        text = f"topic '{template}': {{line%N}} needs an N of at least 1"
        raise ValueError(text)
    if not moduli:
        return lambda numbers: [template] * len(numbers)
    if len(moduli) == 1 and moduli[0] is not None and moduli[0] <= MAX_PREPARED_TOPICS:
        modulus = moduli[0]
        prepared = [_expand(template, number) for number in range(modulus)]
        return lambda numbers: [prepared[number % modulus] for number in numbers]
    return lambda numbers: [_expand(template, number) for number in numbers]


def _expand(template: str, number: int) -> str:
    return _PLACEHOLDER.sub(
        lambda match: str(number % int(match.group(1)) if match.group(1) else number), template
    )


class Pace:
    """How many messages are due when messages leave at a fixed rate, the first one at once."""

    def __init__(self, rate: float, started: float) -> None:
        self._rate = rate
        self._started = started

    def due(self, now: float, sent: int) -> int:
        """Give how many more messages are due by now."""
        return max(0, int((now - self._started) * self._rate) + 1 - sent)

    def until_due_s(self, now: float, sent: int) -> float:
        """Give how long it is until the next message is due, 0 if it is."""
        return max(0.0, self._started + sent / self._rate - now)

    def wait_s(self, now: float, sent: int) -> float:
        """Give how long to wait until the next is due, but at least one interval, so that they gather."""
        return max(PACE_INTERVAL_S, self.until_due_s(now, sent))


def parse_property(text: str) -> tuple[str, Any]:
    """Read `K=V`.

    V that reads as a JSON number, `true` or `false` has that type; a JSON string in quotes forces text; all
    else is text as it stands. `n=1` is a number, `n="1"` is the text 1, `n=01` is the text 01.

    Raises:
        ValueError: there is no `=`, no key before it, or a whole number that has more than 64 bits.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        message = f"'{text}' is no property; write KEY=VALUE"
        raise ValueError(message)
    if value in ("true", "false") or _NUMBER.fullmatch(value):
        return key, _in_range(json.loads(value), text)
    if value.startswith('"'):
        try:
            decoded = json.loads(value)
        except ValueError:
            return key, value
        return key, decoded
    return key, value


def _in_range(value: Any, text: str) -> Any:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        message = f"property '{text}': a number of more than 64 bits; quote it to send it as text"
        raise ValueError(message)
    return value
