"""What may be on its way to the clients of a process, shared out as windows of their flows.

A window is what the node may send of a queue while the client has acknowledged nothing. It holds for as long as the
flow; so the first have large ones, and the more there are, the smaller is the next. What ends is given back.
"""

from __future__ import annotations

from typing import Final

#: Windows of all clients, as long as none has the least; half of what the router keeps for a gateway that is busy.
TOTAL_BYTES: Final = 128 << 20
WINDOW_BYTES_MAX: Final = 64 << 10
#: Some small messages; one message always comes, however large it is.
WINDOW_BYTES_LEAST: Final = 4 << 10
#: No window takes more than this part of what is left.
PART: Final = 64


class Credit:
    """The windows of a process."""

    def __init__(self) -> None:
        #: What they have, all together.
        self.given_bytes = 0

    def take(self) -> int:
        """Give a window its bytes."""
        share = (TOTAL_BYTES - self.given_bytes) // PART
        size = max(WINDOW_BYTES_LEAST, min(WINDOW_BYTES_MAX, share))
        self.given_bytes += size
        return size

    def give_back(self, size: int) -> None:
        """Take back what `take` gave."""
        self.given_bytes -= size
        assert self.given_bytes >= 0
