"""What every outside store does for one host: it answers requests of one holder, or nobody knows.

`etcd.py`, `kubernetes.py` and `manual.py` are stores; `opening.py` makes the one that is configured. All pass one suite
of tests, and so does the simulated store in which the pair was tried first.

A store promises what `cluster.standby.pair.outside` says: requests are carried out as a whole or not at all, in one
order for everybody. It promises nothing about a request without an answer: that one may be carried out later, in part
of the time of its lease, or never. Whoever asked finds out by reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from cluster.standby.pair.outside import Answer, Request

#: Of what servers and files say, in a reason.
_REASON_CHARACTERS_MAX: Final = 200


class NoAnswerError(Exception):
    """Nobody knows whether the request was or will be carried out; `reason` is a sentence without a secret."""

    def __init__(self, reason: str) -> None:
        self.reason = "".join(c if c.isprintable() else " " for c in reason)[:_REASON_CHARACTERS_MAX]
        super().__init__(self.reason)


class Store(Protocol):
    """The outside store as one holder asks it; one request at a time."""

    async def ask(self, number: int, request: Request, timeout_s: float) -> Answer:
        """Have a request carried out.

        Args:
            number: comes back in the answer.
            request: what is asked.
            timeout_s: then it is given up.

        Raises:
            NoAnswerError: nobody knows whether it was or will be carried out.
        """

    async def close(self) -> None:
        """End its connections; what is under way has no answer."""
