"""What all webhooks of a process may hold together, in bytes of messages that are taken and not settled.

Each one borrows its share while it consumes, and the shares are never more than all: so there is room for what the
queues may send. One message always fits a share, however large it is; if that makes it too much for all, who got it
gives back what it does not post, and comes again later. So what is held is bounded, and somebody always goes on.
"""

from __future__ import annotations

from typing import Final

#: The largest share, and the smallest one.
SHARE_MAX: Final = 4 << 20
SHARE_MIN: Final = 4 << 10


class Room:
    """Accounts of what is lent and held; no I/O, no clock."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: Final = bytes_max
        #: Shares of those that consume; at most `bytes_max`.
        self.lent = 0
        #: What messages take that are held.
        self.held = 0
        #: How often somebody found no share free, and messages that were given back.
        self.waits = 0
        self.given_back = 0

    def share_of(self, webhooks: int) -> int:
        """Give the share of each of so many; it changes when they are twice as many, and not with each one."""
        parts = 1 << max(0, webhooks - 1).bit_length()
        return max(SHARE_MIN, min(SHARE_MAX, self.bytes_max // parts))

    def borrow(self, share: int) -> bool:
        """Lend a share; false if there is not so much left."""
        if self.lent + share > self.bytes_max:
            self.waits += 1
            return False
        self.lent += share
        return True

    def give_back(self, share: int) -> None:
        """Have a share back."""
        self.lent -= share

    def hold(self, size: int) -> None:
        """Note a message that came."""
        self.held += size

    def drop(self, size: int) -> None:
        """Note that it is not held any more."""
        self.held -= size

    def is_over(self, own: int) -> bool:
        """Tell whether it is too much together, for somebody who holds so much of it: who holds it alone goes on."""
        return self.held > self.bytes_max and self.held > own
