"""Cuts an iterable of messages into portions that cross to the thread of a client together.

To cross costs as much as a hundred messages, so portions are large; but what an iterable gave is not kept back while
the next message is a long time in coming, and large messages are few. A Python step for each message would cost a
quarter of what it takes to publish it: the clock and the bytes are looked at once for some messages that came fast, and
for each message of an iterable that is slow.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from angarium.message import Message, row_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium.slots import Publishable

#: A portion is over so long after it was begun, when the iterable has given the next message.
PORTION_S: Final = 0.1
#: ... and with so many bytes, by the sizes of some of its messages.
PORTION_BYTES: Final = 16 * 1024 * 1024
#: Messages that are taken at once from an iterable that was fast: so many wait if it is slow from then on, once.
STEP_MESSAGES: Final = 64
#: Slower steps are too long.
_STEP_S: Final = 0.01


def portions(messages: Iterator[Publishable], most: int) -> Iterator[list[Publishable]]:
    """Give all messages in portions of so many at most; if the iterable raises, what it gave before comes first."""
    step = 1
    has_more = True
    while has_more:
        portion: list[Publishable] = []
        size = 0
        began = now = time.monotonic()
        while len(portion) < most and size < PORTION_BYTES and now - began < PORTION_S:
            wanted = min(step, most - len(portion))
            before = len(portion)
            try:
                portion.extend(islice(messages, wanted))
            except Exception:
                if portion:
                    yield portion
                raise
            taken = len(portion) - before
            has_more = taken == wanted
            if not has_more:
                break
            last_size = _size_of(portion[-1])
            size += last_size * taken
            last, now = now, time.monotonic()
            is_fast = now - last < _STEP_S
            step = min(2 * step, STEP_MESSAGES, max(PORTION_BYTES // (last_size + 1), 1)) if is_fast else 1
        if portion:
            yield portion


def _size_of(message: Publishable) -> int:
    """Give the size of a message; 0 for what is none, as who publishes it will say."""
    try:
        return row_size(message.row) if isinstance(message, Message) else len(message[1])
    except (TypeError, LookupError):
        return 0
