"""The connections of a process, over real sockets: transports behave the same, an unauthenticated peer costs little."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from angarium.client.transport import zmtp
from angarium_server.connections.door import Door, DoorLimits, Refusal
from angarium_server.connections.framing import START, FramingLimits
from angarium_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from angarium_server.connections.connection import Connection

READY = zmtp.pack_command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER")
HANDSHAKE = zmtp.GREETING + READY
LONG_S = 10.0


class House:
    """A door in a loop of its own; it keeps what the owner of a door is told."""

    def __init__(self, **changed: object) -> None:
        limits = DoorLimits(
            framing=FramingLimits(1 << 20, 2 << 20),
            unsent_bytes=8 << 20,
            login_s=0.5,
            unauthenticated=20,
            unauthenticated_per_network=10,
        )
        self.watch = Watch()
        self.admits = self.takes = True
        #: What is said to each message at once.
        self.answer: list[bytes] | None = None
        #: CPU time that each message takes.
        self.costs_s = 0.0
        self.messages: list[tuple[bytes, list[bytes]]] = []
        self.lost: list[tuple[bytes, str]] = []
        self.faults: list[tuple[bytes, str]] = []
        self.refused: list[str] = []
        self.door = Door(
            self.watch,
            limits._replace(**changed),  # type: ignore[arg-type]
            self._message,
            lambda identity, reason, _: self.lost.append((identity, reason)),
            self._fault,
            lambda reason, _: self.refused.append(reason),
            lambda _network, _now: True,
        )

    def _message(self, connection: Connection, frames: list[bytes], _now: float) -> bool:
        busy(self.costs_s)
        if self.takes:
            self.messages.append((connection.id, frames))
            if self.admits:
                self.door.admit(connection.id)
            if self.answer is not None:
                self.door.send(connection.id, self.answer)
        return self.takes

    def _fault(self, identity: bytes, reason: str, now: float) -> None:
        self.faults.append((identity, reason))
        self.door.finish(identity, now)

    def turn(self, seconds: float = 0.01) -> None:
        self.watch.wait(0.0 if self.door.read_rest() else seconds)
        self.door.tick(time.monotonic())
        self.door.flush()
        self.door.validate()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            self.turn()

    def close(self) -> None:
        self.door.close(0.1)
        self.watch.close()


class Peer:
    """The other side, by hand."""

    def __init__(self, house: House, url: str) -> None:
        self.house = house
        scheme, _, place = url.partition("://")
        self.socket = socket.socket(socket.AF_UNIX if scheme == "ipc" else socket.AF_INET)
        host, _, port = place.rpartition(":")
        self.socket.connect(place if scheme == "ipc" else (host, int(port)))
        self.socket.setblocking(False)
        self.received = b""
        self.is_ended = False

    def send(self, data: bytes) -> None:
        """Send all, while the house does its work."""
        while data:
            with contextlib.suppress(BlockingIOError):
                data = data[self.socket.send(data) :]
            self.house.turn(0.0)

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            try:
                while data := self.socket.recv(1 << 20):
                    self.received += data
                self.is_ended = True
            except ConnectionResetError:
                self.is_ended = True
        return self.received

    def greet(self) -> None:
        self.send(HANDSHAKE)
        self.house.until(lambda: self.read().startswith(START), "the greeting")
        self.received = b""

    def login(self) -> bytes:
        """Say something, and give by what the house knows this peer."""
        self.greet()
        count = len(self.house.messages)
        self.send(packed([b"hello"]))
        self.house.until(lambda: len(self.house.messages) > count, "the message")
        return self.house.messages[-1][0]

    def closed(self) -> bool:
        self.read()
        return self.is_ended

    def close(self) -> None:
        self.socket.close()


def packed(*messages: list[bytes]) -> bytes:
    return b"".join(piece for message in messages for piece in zmtp.pack(message))


@pytest.mark.requirement("R230")
def test_a_login_in_the_first_bytes_is_answered_with_the_greeting(house: House, url: str) -> None:
    house.answer = [b"welcome"]
    peer = Peer(house, url)
    peer.socket.sendall(HANDSHAKE + packed([b"hello"]))
    house.turn()
    house.until(peer.read, "an answer")
    assert [frames for _, frames in house.messages] == [[b"hello"]]
    assert peer.received == START + packed([b"welcome"])
    assert house.door.unauthenticated == 0
    peer.close()


def test_what_is_not_taken_is_offered_again_before_anything_else_is_read(house: House, url: str) -> None:
    peer = Peer(house, url)
    peer.login()
    house.takes = False
    before = len(house.messages)
    many = [[b"%d" % number, bytes(100)] for number in range(300)]
    peer.send(b"".join(packed(one) for one in many))
    for _ in range(20):
        house.turn(0.0)
    assert len(house.messages) == before
    house.takes = True
    house.until(lambda: len(house.messages) == before + 300, "all messages")
    assert [frames for _, frames in house.messages[before:]] == many
    assert not house.lost
    peer.close()


def test_who_ends_while_a_message_of_his_waits_is_lost_behind_it(house: House, url: str) -> None:
    peer = Peer(house, url)
    peer.login()
    house.takes = False
    peer.send(packed([b"last"]))
    house.turn(0.0)
    peer.close()
    for _ in range(5):
        house.turn(0.0)
    assert not house.lost
    house.takes = True
    house.until(lambda: house.lost, "the end")
    assert house.messages[-1][1] == [b"last"]


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


@pytest.fixture(params=["tcp", "ipc"])
def url(request: pytest.FixtureRequest, house: House, tmp_path: Path) -> str:
    return listening(house, request.param, tmp_path)


def listening(house: House, scheme: str, folder: Path) -> str:
    """Have a house listen; a path of a socket is short."""
    if scheme == "tcp":
        return house.door.listen("tcp://127.0.0.1:0")
    path = os.path.relpath(folder / "s")
    return house.door.listen(f"ipc://{path}")


@pytest.fixture
def peer(house: House, url: str) -> Iterator[Peer]:
    made = Peer(house, url)
    yield made
    made.close()


def test_messages_go_both_ways(house: House, peer: Peer) -> None:
    identity = peer.login()
    assert house.messages == [(identity, [b"hello"])]
    answers = [[b"a", b"", b"b" * 300], [b"c", b""], [b""]]
    for answer in answers:
        assert house.door.send(identity, answer) is None
    house.until(lambda: peer.read() == packed(*answers), "the answers")
    house.turn()
    assert peer.read() == packed(*answers)


def test_large_messages_go_both_ways_with_a_slow_reader(house: House, peer: Peer) -> None:
    identity = peer.login()
    large = [os.urandom(1 << 20)]
    peer.send(packed(large))
    house.until(lambda: (identity, large) in house.messages, "the large message")
    for _ in range(7):
        assert house.door.send(identity, large) is None
    for _ in range(20):
        house.turn()
    house.until(lambda: len(peer.read()) == 7 * len(packed(large)), "all of the answers")
    assert peer.received == packed(*[large] * 7)


@pytest.mark.requirement("R228")
def test_a_peer_that_does_not_read_is_bounded(house: House, peer: Peer) -> None:
    identity = peer.login()
    sent = 0
    while (refusal := house.door.send(identity, [bytes(100_000)])) is None:
        house.turn(0.0)
        sent += 1
        assert sent < 1_000
    assert refusal is Refusal.BLOCKED
    assert house.door.send(identity, [b"x"]) is Refusal.GONE
    house.until(peer.closed, "the end")
    assert house.lost == [], "who ends it needs not to be told"


@pytest.mark.requirement("R229")
def test_the_end_of_a_peer_is_noticed_at_once(house: House, peer: Peer) -> None:
    identity = peer.login()
    begun = time.monotonic()
    peer.send(packed([b"last"])[:-1])
    peer.close()
    house.until(lambda: house.lost, "the end")
    assert time.monotonic() - begun < 1.0
    assert house.lost == [(identity, "the connection was closed")]
    assert len(house.door) == 0


def test_what_was_sent_before_a_finish_arrives_and_nothing_is_heard_any_more(
    house: House, peer: Peer
) -> None:
    identity = peer.login()
    house.door.send(identity, [b"closed"])
    house.door.finish(identity, time.monotonic())
    peer.send(packed(*[[b"and", b"more"]] * 1000))
    house.until(peer.closed, "the end")
    assert peer.received == packed([b"closed"])
    assert len(house.messages) == 1
    peer.close()
    house.until(lambda: len(house.door) == 0, "the connection is let go of")
    assert house.lost == []


def test_a_peer_that_does_not_end_after_a_finish_is_ended(house: House, peer: Peer) -> None:
    house.door.finish(peer.login(), time.monotonic())
    house.until(lambda: len(house.door) == 0, "the connection is let go of")


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("said", [b"", zmtp.GREETING[:30], HANDSHAKE, HANDSHAKE + b"\x01\x05abc"])
def test_an_unauthenticated_connection_has_a_deadline(house: House, peer: Peer, said: bytes) -> None:
    peer.send(said)
    house.until(peer.closed, "the end")
    assert house.refused == ["no login within 0.5 s"]


def test_one_who_has_logged_in_has_none(house: House, peer: Peer) -> None:
    peer.login()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        house.turn()
    assert not peer.closed()
    assert house.door.unauthenticated == 0


@pytest.mark.requirement("R228", "R231")
@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", HANDSHAKE + b"\x02" + b"\xff" * 8, os.urandom(4096)]
)
def test_garbage_ends_a_connection_and_no_other(house: House, url: str, peer: Peer, said: bytes) -> None:
    innocent = Peer(house, url)
    identity = innocent.login()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.send(said)
    house.until(peer.closed, "the end")
    assert len(house.refused) + len(house.faults) == 1
    assert house.door.send(identity, [b"hi"]) is None
    house.until(lambda: innocent.read() == packed([b"hi"]), "the innocent is served")
    innocent.close()


def test_who_begins_with_garbage_is_greeted_and_can_tell_what_he_has_reached(house: House, url: str) -> None:
    peer = Peer(house, url)
    peer.socket.sendall(b"\x16\x03\x01\x02\x00" + bytes(100))
    house.until(peer.closed, "the end")
    assert peer.received == START
    peer.close()


@pytest.mark.requirement("R228")
def test_a_network_has_a_share_of_the_unauthenticated_connections(house: House, url: str) -> None:
    peers = [Peer(house, url) for _ in range(12)]
    house.until(lambda: len(house.refused) == 2, "two too many")
    assert house.door.unauthenticated == 10
    for one in peers:
        one.close()
    house.until(lambda: len(house.door) == 0, "all are gone")
    Peer(house, url).close()


@pytest.mark.requirement("R228", "R231")
def test_when_too_many_are_unauthenticated_the_oldest_goes(tmp_path: Path) -> None:
    house = House(unauthenticated=3, login_s=60.0)
    url = listening(house, "ipc", tmp_path)
    peers = [Peer(house, url) for _ in range(3)]
    house.until(lambda: house.door.unauthenticated == 3, "three")
    member = peers[0].login()
    peers += [Peer(house, url) for _ in range(2)]
    house.until(lambda: peers[1].closed(), "the oldest unauthenticated one goes")
    assert not any(one.closed() for one in (peers[0], *peers[2:]))
    assert house.door.send(member, [b"x"]) is None
    for one in peers:
        one.close()
    house.close()


def test_a_flood_of_messages_lets_others_have_their_turn(house: House, url: str, peer: Peer) -> None:
    innocent = Peer(house, url)
    innocent.login()
    peer.login()
    peer.socket.send(packed(*[[b"x"]] * 20_000))
    innocent.socket.send(packed([b"please"]))
    before = len(house.messages)
    house.until(
        lambda: any(frames == [b"please"] for _, frames in house.messages), "the turn of the innocent"
    )
    assert len(house.messages) < before + 20_000
    house.until(lambda: len(house.messages) >= before + 20_001, "all of them")
    innocent.close()


def busy(seconds: float) -> None:
    """Use CPU time, as a login does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.requirement("R230")
def test_a_storm_of_logins_waits_while_one_who_is_here_is_served_in_each_turn(tmp_path: Path) -> None:
    house = House(unauthenticated=200, unauthenticated_per_network=200, login_s=60.0)
    peers: list[Peer] = []
    try:
        url = house.door.listen(f"ipc://{tmp_path}/door")
        here = Peer(house, url)
        peers.append(here)
        known = here.login()
        house.costs_s = 0.001
        peers += [Peer(house, url) for _ in range(100)]
        house.until(lambda: len(house.door) > 100, "all are accepted, and have not said anything yet")
        for peer in peers[1:]:
            peer.socket.sendall(HANDSHAKE + packed([b"hello"]))
        house.messages.clear()
        turns: list[list[bytes]] = []
        while sum(map(len, turns)) < 100:
            assert len(turns) < 1_000
            here.socket.sendall(packed([b"lone"]))
            house.turn(0.0)
            served, house.messages = [identity for identity, _ in house.messages], []
            assert served.count(known) == 1, "he waits for nobody"
            turns.append([identity for identity in served if identity != known])
        assert max(map(len, turns)) <= 4, "2 ms of a turn, at 1 ms each"
        assert house.door.put_off_total > 50
        assert house.refused == []
    finally:
        for peer in peers:
            peer.close()
        house.close()


@pytest.mark.requirement("R230")
def test_who_is_admitted_while_he_waits_for_his_turn_is_read_on(house: House, peer: Peer) -> None:
    """A password is compared elsewhere; what came behind the login waits here meanwhile."""
    house.admits = False
    peer.greet()
    count = 64 + 36
    peer.socket.sendall(packed(*[[b"%d" % number] for number in range(count)]))
    house.costs_s = 0.0001
    house.until(lambda: house.messages, "the first of them")
    assert len(house.messages) == 64, "the others are for the next turn"
    house.costs_s = 0.0
    house.door.admit(house.messages[0][0])
    assert house.door.unauthenticated == 0
    house.until(lambda: len(house.messages) == count, "the others")
