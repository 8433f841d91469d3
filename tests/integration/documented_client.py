"""A client written from the protocol document alone."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, Self

import msgpack
import zmq

if TYPE_CHECKING:
    from types import TracebackType


LIMIT_S = 20.0
WORKERS = 3
WINDOW = (100, 1 << 20)
Row = list[Any]


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def row(index: int, topic: str, payload: bytes, *, flags: int = 0, properties: bytes | None = None) -> Row:
    return [index, topic, flags, None, properties, payload]


class DocumentedClient:
    """What the page asks of a client, and no more; a context manager that closes the socket."""

    def __init__(self, url: str, window: tuple[int, int] = WINDOW, **hello: Any) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 3_600_000)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 1_000)
        self.socket.connect(url)
        self.window = window
        self.granted = list(window)
        #: Messages and bytes of all DELIVERs.
        self.received = [0, 0]
        #: (share, row) of plain and shared parts, in order.
        self.rows: list[tuple[str | None, Row]] = []
        self.answers: dict[int, list[Any]] = {}
        self.notices: list[list[Any]] = []
        self.pongs: list[int] = []
        #: What the discard indications said.
        self.dropped: list[int] = []
        self.round = 0
        #: Round -> bytes of its batches; those that did not retire.
        self.unretired: dict[int, int] = {}
        self.closed: list[Any] | None = None
        self.welcome: dict[str, Any] = {}
        self.send("H", {"version": 1, "credit": list(window), "unroutable": True, **hello})
        self.read_until(lambda: bool(self.welcome) or self.closed is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, operation: str, header: Any, *batches: bytes) -> None:
        self.socket.send_multipart([operation.encode(), pack(header), *batches])

    def read_until(self, condition: Any) -> None:
        """Take frames until a condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            left_ms = int((deadline - time.monotonic()) * 1000)
            assert left_ms > 0, f"nothing helpful came: {vars(self)}"
            assert self.socket.poll(left_ms), f"nothing came: {vars(self)}"
            operation, header, *batches = self.socket.recv_multipart()
            self.take(operation.decode(), unpack(header), batches)

    def take(self, operation: str, header: Any, batches: list[bytes]) -> None:
        assert self.closed is None, "something came after CLOSED"
        match operation:
            case "W":
                self.welcome = header
            case "A":
                self.answers[header[0]] = header[1]
            case "D":
                self.deliver(header, batches)
            case "R":
                self.unretired = {
                    number: size for number, size in self.unretired.items() if number > header[0]
                }
            case "N":
                self.notices.append(header)
            case "T":
                self.welcome.update(epoch=header[0], slots=header[1])
            case "K":
                self.send("k", header)
            case "k":
                self.pongs.append(header[0])
            case "X":
                self.closed = header
            case _:
                raise AssertionError(f"{operation!r} is not on the page")

    def deliver(self, header: list[Any], batches: list[bytes]) -> None:
        flags, parts, dropped = header
        assert len(parts) == len(batches)
        assert bool(flags & 1) == bool(dropped)
        if flags & 1:
            self.dropped.append(dropped)
        for (count, share), batch in zip(parts, batches, strict=True):
            rows: list[Row] = unpack(batch)
            assert len(rows) == count
            if flags & 2:
                rows.sort(key=lambda one: one[0])
            self.rows += [(share, one) for one in rows]
            self.received[0] += count
            self.received[1] += len(batch)

    def renew_credit(self) -> None:
        """Grant a whole window from here on, if that is at least half a window more than before."""
        wanted = [got + room for got, room in zip(self.received, self.window, strict=True)]
        if any(
            2 * (new - old) >= room for new, old, room in zip(wanted, self.granted, self.window, strict=True)
        ):
            self.granted = [max(new, old) for new, old in zip(wanted, self.granted, strict=True)]
            self.send("C", self.granted)

    def receive(self, count: int) -> None:
        """Take frames until so many rows have come, and renew the credit on the way."""

        def enough() -> bool:
            self.renew_credit()
            return len(self.rows) >= count

        self.read_until(enough)
        assert len(self.rows) == count

    def subscribe(self, *filters: str, operation: str = "S") -> list[Any]:
        request = len(self.answers) + 1
        self.send(operation, [request, [[one, 0] for one in filters], None])
        self.read_until(lambda: request in self.answers)
        return self.answers[request]

    def may_publish(self) -> bool:
        limit: int = self.welcome["bytes"]
        return len(self.unretired) < self.welcome["rounds"] and sum(self.unretired.values()) < limit

    def publish(self, rows: list[Row], *, flush: bool = False) -> None:
        """Publish a round that is not cut."""
        self.publish_parts(0, {0: rows}, flush=flush)

    def publish_cut(self, rows: list[Row], *, flush: bool = False) -> None:
        """Publish a round with one part for each worker."""
        parts: dict[int, list[Row]] = {}
        for one in rows:
            slot = zlib.crc32(one[1].encode()) % 1024
            parts.setdefault(self.welcome["slots"][slot], []).append(one)
        self.publish_parts(self.welcome["epoch"], parts, flush=flush)

    def publish_parts(self, epoch: int, parts: dict[int, list[Row]], *, flush: bool) -> None:
        self.read_until(self.may_publish)
        self.round += 1
        batches = [pack(rows) for rows in parts.values()]
        self.unretired[self.round] = sum(map(len, batches))
        heads = [[worker, len(rows)] for worker, rows in parts.items()]
        self.send("P", [self.round, epoch, flush, heads], *batches)

    def flush(self) -> None:
        """Wait until every round has retired: of the last ones the router tells before a PONG."""
        while self.unretired:
            self.ping()

    def ping(self) -> None:
        """Wait until everything has come that was sent to this client before now."""
        number = len(self.pongs) + 1
        self.send("K", [number])
        self.read_until(lambda: number in self.pongs)

    def leave(self) -> None:
        self.send("B", [])
        self.read_until(lambda: self.closed is not None)
        assert self.closed == [0, "bye"]
