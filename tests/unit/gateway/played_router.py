"""A router that a test plays for the carriers of a gateway, with guests that write down what they are told."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from angarium import wire
from gateway.attached import Login
from gateway.session import Identity
from gateway.vpn_carriers import VpnCarriers
from tests.welcome import welcome

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached
    from gateway.carrier import Carrier
    from gateway.session import Acknowledged, AttachedWelcome

IDENTITY = Identity("inside", "mqtt", 0, 7)
RIGHTS: list[Any] = [True, [], 100, True, True, True]


class FakeLine:
    """A connection to the played router: takes everything at once unless it is full."""

    def __init__(
        self,
        on_message: Callable[[list[bytes], float], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[AngariumError, float], None],
    ) -> None:
        self._on_message, self._on_drained, self._on_lost = on_message, on_drained, on_lost
        self.sent: list[list[bytes]] = []
        self.is_full = False
        self.closed = False

    @property
    def wake_at(self) -> float:
        return float("inf")

    @property
    def is_gone(self) -> bool:
        return self.closed

    def tick(self, now: float) -> None:
        pass

    def send(self, outgoing: deque[list[bytes]]) -> None:
        if not (self.is_full or self.closed):
            self.sent += outgoing
            outgoing.clear()

    def close(self, outgoing: deque[list[bytes]]) -> None:
        self.send(outgoing)
        self.closed = True

    def drain(self) -> None:
        self.is_full = False
        self._on_drained()

    def says(self, frames: list[bytes], now: float) -> None:
        if not self.closed:
            self._on_message(frames, now)

    def lose(self, error: AngariumError, now: float) -> None:
        if not self.closed:
            self.closed = True
            self._on_lost(error, now)


class FakeGuest:
    """Writes down what it is told, and then does what a test has given it to do."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.then: Callable[[], None] = lambda: None
        #: What it does when its carrier is lost, if it goes on then.
        self.when_away: Callable[[], None] | None = None

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        self.then()

    def welcomed(self, welcome: AttachedWelcome, now: float) -> None:
        self._tell("welcomed", welcome.client_name)

    def refused(self, error: AngariumError, now: float) -> None:
        self._tell("refused", error.code)

    def ended(self, error: AngariumError | None, now: float) -> None:
        self._tell("ended", 0 if error is None else error.code)

    def away(self, now: float) -> bool:
        if self.when_away is None:
            return False
        self._tell("away")
        self.when_away()
        return True

    def may_go_on(self, now: float) -> None:
        self._tell("may_go_on")

    def answered(self, codes: Sequence[int], now: float) -> None:
        self._tell("answered", list(codes))

    def acknowledged(self, answers: Sequence[tuple[int, int]], now: float) -> None:
        self._tell("acknowledged", list(answers))

    def delivered(self, rows: Sequence[Row], share: str | None, now: float) -> None:
        self._tell("delivered", [row[1] for row in rows], share)

    def stored(self, event: Acknowledged, now: float) -> None:
        self._tell("stored", event.upto)

    def spooled(self, event: Arrived, now: float) -> None:
        self._tell("spooled", [row[1] for delivery in event.deliveries for row in delivery.rows])

    def indicated(self, event: Indicated, now: float) -> None:
        self._tell("indicated", event.event, event.code)

    def take(self) -> list[tuple[Any, ...]]:
        told, self.told = self.told, []
        return told


class Gateway:
    """The carriers of one process, and the lines that they have opened."""

    def __init__(self, workers: int = 1, **changes: Any) -> None:
        self.now = 100.0
        self.rows: list[tuple[str, list[Row]]] = []
        self.lines: list[FakeLine] = []
        #: Whether rows are passed on at once.
        self.passes_on = True
        self.carriers = VpnCarriers(IDENTITY, self._connect, self._take_rows, random.Random(1))
        sizes = {"rounds": 4_096, "bytes": 32 << 20, "max_batch_bytes": 16 << 20}
        self._welcome = welcome(workers, **{"client_name": "#gateway/mqtt/0", "epoch": 3, **sizes, **changes})

    def _connect(self, *callbacks: Any) -> FakeLine:
        self.lines.append(FakeLine(*callbacks))
        return self.lines[-1]

    def _take_rows(self, vpn: str, rows: list[Row], now: float) -> bool:
        self.rows.append((vpn, rows))
        return self.passes_on

    @property
    def line(self) -> FakeLine:
        return self.lines[-1]

    @property
    def carrier(self) -> Carrier:
        (carrier,) = self.carriers._by_vpn.values()
        return carrier

    def attach(self, name: str = "", vpn: str = "default") -> tuple[Attached, FakeGuest]:
        guest = FakeGuest()
        login = Login("default", None, name, "127.0.0.1", None, "mqtt 5")
        return self.carriers.attach(vpn, guest, login, self.now), guest

    def opened(self, name: str = "c", rights: list[Any] = RIGHTS) -> tuple[Attached, FakeGuest]:
        """A client that is attached; nothing of that is left to be looked at."""
        client, guest = self.attach(name)
        self.turn()
        if [frames[0] for frames in self.sent()] == [wire.HELLO]:
            self.welcome()
            self.sent()
        self.welcome_client(client.number, name, rights)
        assert guest.take() == [("welcomed", name)]
        return client, guest

    # Time.

    def turn(self) -> float:
        wake = self.carriers.tick(self.now)
        for carrier in self.carriers._by_vpn.values():
            carrier.validate()
        return wake

    def advance(self, seconds: float) -> None:
        """Let time pass; the router says that it is there."""
        end = self.now + seconds
        while self.now < end:
            wake = self.turn()
            if not self.line.closed:
                self.line.says([wire.PONG, wire.pack((0,))], self.now)
            self.now = min(end, max(wake, self.now + 0.01))
        self.turn()

    # What the router says.

    def says(self, operation: bytes, header: Any, *batches: bytes) -> None:
        self.line.says([operation, wire.pack(header), *batches], self.now)
        self.carrier.validate()

    def welcome(self) -> None:
        self.says(wire.WELCOME, self._welcome)
        self.turn()

    def says_to(self, number: int, operation: bytes, header: Any, *batches: bytes) -> None:
        self.line.says(
            [wire.ATTACHED, number.to_bytes(8, "big"), operation, wire.pack(header), *batches], self.now
        )
        self.carrier.validate()
        self.turn()

    def welcome_client(
        self, number: int, name: str = "c", rights: list[Any] = RIGHTS, *, resumed: bool = False
    ) -> None:
        self.says_to(number, wire.WELCOME, self.attached_welcome(number, name, rights, resumed=resumed))

    def attached_welcome(
        self, number: int, name: str = "c", rights: list[Any] = RIGHTS, *, resumed: bool = False
    ) -> dict[str, Any]:
        return {
            "session": "2",
            "client_name": name,
            "username": "default",
            "inbox": f"#P2P/INB/n/{number}",
            "token": b"t%d" % number,
            "resumed": resumed,
            "max_message_bytes": self._welcome["max_message_bytes"],
            "rights": rights,
        }

    # What the gateway says.

    def sent(self) -> list[list[bytes]]:
        """Take what was sent, but for what keeps the session alive."""
        sent, self.line.sent = self.line.sent, []
        return [frames for frames in sent if frames[0] not in (wire.PING, wire.PONG)]

    def sent_of(self) -> list[tuple[int, bytes, Any]]:
        """Take what was sent of clients: number, operation, header."""
        return [
            (int.from_bytes(frames[1], "big"), frames[2], wire.unpack(frames[3]))
            for frames in self.sent()
            if frames[0] == wire.ATTACHED
        ]

    def published(self) -> list[list[str]]:
        """Take the rounds that were sent: the topics of each in the order of the rows."""
        found = []
        for frames in self.sent():
            if frames[0] == wire.PUBLISH:
                rows = sorted(row for batch in frames[2:] for row in wire.unpack(batch))
                assert [row[0] for row in rows] == list(range(len(rows)))
                found.append([row[1] for row in rows])
        return found


def store(client: Any, *names: int, topic: str = "t", payload: bytes = b"x") -> None:
    for name in names:
        client.publish_guaranteed(topic, wire.MODE_PERSISTENT, None, None, payload, name)


def requests(frames: list[list[bytes]]) -> list[Any]:
    return [wire.unpack(one[1]) for one in frames if one[0] == wire.REQUEST]


def rounds(frames: list[list[bytes]]) -> list[Any]:
    """Give producer, first sequence and rows of the guaranteed rounds among frames."""
    heads = [(wire.unpack(one[1]), one[2:]) for one in frames if one[0] == wire.PUBLISH]
    assert all(len(head) == 6 for head, _ in heads)
    return [(*head[4:], sum(len(wire.unpack(batch)) for batch in batches)) for head, batches in heads]


def open_producer(gateway: Gateway, last_sequence: int = 0) -> list[list[bytes]]:
    """Answer the request that a turn sends, and give what is sent then."""
    gateway.turn()
    ((number, operation, arguments),) = requests(gateway.sent())
    assert (operation, arguments) == ("producer.open", {"name": "#mqtt/n/0"})
    value = {"producer": 3, "name": arguments["name"], "last_sequence": last_sequence, "window": 65_536}
    gateway.says(wire.ANSWER, [number, 0, value])
    gateway.turn()
    return gateway.sent()


def acked(gateway: Gateway, upto: int, nacks: Any = (), code: int = 0, unroutable: Any = ()) -> None:
    gateway.says(wire.ACKED, [3, upto, nacks, code, unroutable])
    gateway.turn()
