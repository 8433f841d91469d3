"""What clients of a carrier ask for, and what they are done with of their queues: what leaves of that in a turn.

A client asks for one thing at a time. What the controller is asked for takes a write to disk, so many ask faster than
it answers; the router lets some thousand wait, and refuses more. Here they wait in their order, as long as it takes: so
all are answered of a fleet that comes at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from angarium import wire
from gateway.session import FILTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Range
    from angarium.errors import AngariumError
    from gateway.session import GatewaySession

#: Clients of a carrier for which the controller is asked at once: more than it needs to have always something to do,
#: and few enough that those of 16 gateways of a node, all of one username, are no more than the router lets wait.
AT_CONTROLLER_MAX: Final = 64
#: Operations for which the router asks it.
_OF_CONTROLLER: Final = ("session.open", "session.change", "session.share")
UNBIND: Final = "flow.unbind"
Decode: TypeAlias = "Callable[[bytes], Any]"
DECODE_ANY: Final[Decode] = msgspec.msgpack.Decoder().decode


class Done(Protocol):
    """Is told what became of an operation."""

    def __call__(self, value: Any, error: AngariumError | None, now: float, /) -> None:
        """It was carried out with this value, or refused for this reason."""


class Request:
    """One subscribe() or unsubscribe()."""

    __slots__ = ("codes", "done", "filters", "operation")

    #: The router and its workers know of filters.
    is_of_controller = False

    def __init__(
        self,
        operation: bytes,
        filters: Sequence[tuple[str, int]],
        done: Callable[[Sequence[int], float], None] | None = None,
    ) -> None:
        self.operation = operation
        self.filters = filters
        #: Who is told, if it is not the guest.
        self.done = done
        #: The answers so far, fewer than filters.
        self.codes: list[int] = []

    def send(self, session: GatewaySession, number: int) -> None:
        """Ask for the next piece."""
        done = len(self.codes)
        session.ask(number, self.operation, self.filters[done : done + FILTERS_MAX])

    @property
    def waiting(self) -> int:
        """Count the filters without an answer."""
        return len(self.filters) - len(self.codes)


class Operation(NamedTuple):
    """One request()."""

    name: str
    arguments: dict[str, Any]
    decode: Decode
    done: Done
    #: Of the flow that it binds or unbinds; None if it is another operation.
    window: FlowWindow | None
    waiting: int = 0

    @property
    def is_of_controller(self) -> bool:
        """Whether the controller has to be asked: a change takes it a write to disk."""
        return self.name in _OF_CONTROLLER

    def send(self, session: GatewaySession, number: int) -> None:
        """Ask for it."""
        guaranteed = session.guaranteed_of(number)
        if self.window is None:
            guaranteed.ask(self.name, self.arguments, self.decode)
        elif self.name == UNBIND:
            guaranteed.unbind(self.window.flow, self.arguments.get("released", ()))
        else:
            guaranteed.bind(self.window, self.arguments, lambda _: None)


class Asker(Protocol):
    """A client."""

    @property
    def asks_controller(self) -> bool:
        """Whether what it asks for next is a matter of the controller."""

    def ask(self, session: GatewaySession, /) -> None:
        """Ask for what comes next, if there is anything and nothing is under way."""


class Asking:
    """Clients that have something to ask for, in their order."""

    def __init__(self) -> None:
        #: Some may have left.
        self._line: deque[Asker] = deque()
        #: Those whose turn it was, and that wait for the controller; some may have left.
        self._put_off: deque[Asker] = deque()
        #: Those for which it is asked, at most AT_CONTROLLER_MAX.
        self._at_controller: dict[Asker, None] = {}

    def __bool__(self) -> bool:
        """Tell whether somebody may ask now."""
        return bool(self._line) or (bool(self._put_off) and self._has_place)

    @property
    def _has_place(self) -> bool:
        return len(self._at_controller) < AT_CONTROLLER_MAX

    def add(self, client: Asker) -> None:
        """Take note that a client has something to ask for, and nothing under way."""
        self._line.append(client)

    def over(self, client: Asker) -> None:
        """Take note that a client has its answer, or has left."""
        self._at_controller.pop(client, None)

    def send(self, session: GatewaySession, has_room: Callable[[GatewaySession], bool]) -> None:
        """Have them ask, as long as there is room for frames."""
        while self and has_room(session):
            has_place = self._has_place
            client = (self._put_off if self._put_off and has_place else self._line).popleft()
            is_of_controller = client.asks_controller
            if is_of_controller and not has_place:
                self._put_off.append(client)
                continue
            if is_of_controller:
                self._at_controller[client] = None
            client.ask(session)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self._at_controller) <= AT_CONTROLLER_MAX


class Accepting:
    """Messages that the router is to hear of."""

    def __init__(self) -> None:
        #: Flow and outcome -> its client, and ranges of positions; the oldest first.
        self.gathered: dict[tuple[FlowWindow, int], tuple[int, list[Range]]] = {}

    def add(
        self,
        number: int,
        window: FlowWindow,
        position: int,
        partition: int = 0,
        outcome: int = wire.OUTCOME_ACCEPTED,
    ) -> None:
        """Gather a message of a client."""
        key = window, outcome
        known = self.gathered.get(key)
        if known is None or not known[1]:
            self.gathered[key] = number, [(partition, position, position)]
            return
        at, first, last = known[1][-1]
        if position == last + 1 and at == partition:
            known[1][-1] = partition, first, position
        else:
            known[1].append((partition, position, position))

    def renew(self, number: int, window: FlowWindow) -> None:
        """Have more granted to a flow, though nothing of it is to be accepted."""
        self.gathered.setdefault((window, wire.OUTCOME_ACCEPTED), (number, []))

    def send(self, session: GatewaySession, has_room: Callable[[GatewaySession], bool]) -> None:
        """Tell the router, as long as there is room for frames."""
        while self.gathered and has_room(session):
            (window, outcome), (number, ranges) = next(iter(self.gathered.items()))
            del self.gathered[window, outcome]
            session.settle(number, window, outcome, ranges)
