"""Requests with many filters that are being done: a few filters at a time, in turns.

SUBSCRIBE and UNSUBSCRIBE may have hundreds of filters, and so may the operation endpoint.subscribe; each filter costs
tens of microseconds. So `subscriptions` does some of them in a step, and goes on in the next one.
Usernames take turns, and the sessions of each: whoever asks for one filter does not wait for those who ask for
thousands. A session whose request is not done is *busy*: what it sends next is taken afterwards, so its frames keep
their order, and it has one request here at most. One that is attached to a gateway is not: that would hold up all
others of the gateway, so the gateway waits for each answer, and who asks for more is at fault.

No I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.asking.work import Work
    from router.sessions.interest import Filter
    from router.sessions.session import Session

#: So much of a request is done before another one has its turn.
PIECE: Final = 16
#: Bytes of a filter that cost as much as a filter does at least: a long one has more levels to check and to file.
_BYTES_PER_UNIT: Final = 64


class Request:
    """One SUBSCRIBE or UNSUBSCRIBE, and how far it is."""

    __slots__ = (
        "_do",
        "_finish",
        "actor",
        "answers",
        "entries",
        "joined",
        "number",
        "on_known",
        "operation",
        "target",
    )

    def __init__(
        self,
        operation: bytes,
        number: int,
        actor: Session,
        target: Session,
        entries: list[tuple[str, int]],
        do: Callable[[Request, int], int],
        finish: Callable[[Request], None],
    ) -> None:
        self._do, self._finish = do, finish
        self.operation = operation
        self.number = number
        #: Who asks, and for whom: another one if a subscription manager asks.
        self.actor, self.target = actor, target
        self.entries = entries
        #: What was said to each of the first entries.
        self.answers: list[Any] = []
        #: Filters that the target is subscribed to by this, which the workers may still have to confirm.
        self.joined: list[Filter[Session]] = []
        #: Called when the workers know these.
        self.on_known: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Tell whether every filter has its answer."""
        return len(self.answers) == len(self.entries)

    def do(self, limit: int) -> int:
        """Do the next filters."""
        return self._do(self, limit)

    def finish(self) -> None:
        """Answer when the workers have confirmed."""
        self._finish(self)


class RequestLine:
    """Requests that are not done, in the order of their turns."""

    def __init__(self) -> None:
        #: Username in its Message VPN -> session -> its request; nothing is empty. Who had a turn goes to the end.
        self._users: OrderedDict[tuple[int, str], OrderedDict[Session, Work]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._users)

    @property
    def is_contended(self) -> bool:
        """Tell whether there are several."""
        return len(self._users) > 1 or any(len(requests) > 1 for requests in self._users.values())

    def push(self, request: Work) -> None:
        """Put a request behind the others of its username.

        Raises:
            InvalidRequestError: an attached session has one already (40009).
        """
        actor = request.actor
        assert not actor.is_busy
        requests = self._users.setdefault((actor.vpn.id, actor.username), OrderedDict())
        if actor in requests:
            raise error_for(errors.INGRESS_CREDIT_EXCEEDED, "an attached client has one request under way")
        actor.is_busy = actor.carrier is None
        requests[actor] = request

    def next(self) -> Work:
        """Give the request whose turn it is; it stays in the line."""
        user, requests = next(iter(self._users.items()))
        actor, request = next(iter(requests.items()))
        self._users.move_to_end(user)
        requests.move_to_end(actor)
        return request

    def remove(self, request: Work) -> None:
        """Take a request out: its session goes on."""
        actor = request.actor
        user = actor.vpn.id, actor.username
        requests = self._users[user]
        del requests[actor]
        actor.is_busy = False
        if not requests:
            del self._users[user]

    def validate(self) -> None:
        """Check what the comments promise."""
        for requests in self._users.values():
            assert requests
            for actor, request in requests.items():
                assert request.actor is actor
                assert actor.is_busy == (actor.carrier is None)
                assert not request.is_done


def units_of(text: str) -> int:
    """Give what a filter costs, in those of a short one."""
    return 1 + len(text) // _BYTES_PER_UNIT
