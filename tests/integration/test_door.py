"""The connections of a process, over real sockets: transports behave the same, an unauthenticated peer costs little."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from angarium.client.transport import zmtp
from angarium_server.connections import door
from angarium_server.connections.connection import Connection, ConnectionOverError
from angarium_server.connections.door import Refusal
from angarium_server.connections.zmtp import START
from tests.integration.house import HANDSHAKE, LONG_S, House, Peer, packed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.certificates import Authority, Pair


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


def paused(house: House, peer: Peer, said: bytes) -> bytes:
    """Have a peer say something that is not taken, and give by what the house knows him."""
    identity = peer.login()
    house.takes, house.pauses = False, True
    peer.send(said)
    house.until(lambda: house.door.is_paused(identity), "the pause")
    house.takes = True
    return identity


def is_quiet(house: House) -> bool:
    """Whether the loop sleeps when it may."""
    began = time.monotonic()
    house.turn(0.05)
    return time.monotonic() - began >= 0.04


def test_one_who_is_paused_costs_no_turn_and_goes_on_where_he_was(house: House, url: str, peer: Peer) -> None:
    other = Peer(house, url)
    many = [[b"%d" % number, bytes(100)] for number in range(300)]
    identity = paused(house, peer, b"".join(packed(one) for one in many[:150]))
    peer.socket.sendall(b"".join(packed(one) for one in many[150:]))
    before = len(house.messages)
    assert is_quiet(house)
    assert len(house.messages) == before
    known = other.login()
    assert house.messages[before:] == [(known, [b"hello"])], "others are served"
    house.door.resume(identity)
    house.until(lambda: len(house.messages) == before + 301, "all messages")
    assert [frames for _, frames in house.messages[before + 1 :]] == many
    assert is_quiet(house)
    other.close()
    house.door.resume(identity)
    house.door.resume(b"nobody")
    house.door.pause(b"nobody")


def test_one_who_is_paused_is_told_what_he_takes_slowly(house: House, peer: Peer) -> None:
    identity = paused(house, peer, packed([b"first"]))
    for _ in range(4):
        house.door.send(identity, [bytes(1 << 20)])
    house.door.flush()
    assert house.door.unsent(identity)
    house.until(lambda: peer.read() and not house.door.unsent(identity), "all has left")
    assert house.rooms == [identity]
    assert is_quiet(house)
    house.door.resume(identity)
    house.until(lambda: house.messages[-1] == (identity, [b"first"]), "what he had said")


def test_one_who_ends_while_he_is_paused_is_lost_behind_what_he_said(house: House, peer: Peer) -> None:
    identity = paused(house, peer, packed([b"first"]))
    peer.socket.sendall(packed([b"last"]))
    peer.close()
    house.turn()
    assert is_quiet(house), "an end is signalled once"
    assert not house.lost
    house.door.resume(identity)
    house.until(lambda: house.lost, "the end")
    assert [frames for _, frames in house.messages[-2:]] == [[b"first"], [b"last"]]


def test_what_a_peer_said_last_is_taken_also_if_he_is_gone_when_something_is_sent_to_him(
    house: House, peer: Peer
) -> None:
    """A client that subscribes to a busy topic says goodbye and closes, with messages that it has not read."""
    identity = peer.login()
    house.door.send(identity, [bytes(1_000)])
    house.door.flush()
    peer.socket.sendall(packed([b"last"]))
    peer.close()
    for _ in range(2):
        house.door.send(identity, [b"more"])
        house.door.flush()
    house.until(lambda: house.lost, "the end")
    assert house.messages[-1] == (identity, [b"last"])
    assert len(house.door) == 0


def test_a_peer_is_told_nothing_behind_the_half_of_a_message(
    house: House, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send may fail for want of memory, while the peer is there and reads on."""
    identity = peer.login()
    peer.received = b""
    house.door.send(identity, [bytes(4 << 20)])
    house.door.flush()
    assert house.door.unsent(identity)

    def send(_connection: Connection) -> None:
        raise ConnectionOverError("no buffer space available")

    peer.read()
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "flush", send)
        house.until(lambda: not house.door.unsent(identity), "the failure")
    house.door.send(identity, [b"behind it"])
    house.until(peer.closed, "the end of what he is told")
    assert b"behind it" not in peer.received
    peer.send(packed([b"last"]))
    peer.close()
    house.until(lambda: house.lost, "the end")
    assert house.messages[-1] == (identity, [b"last"])


def test_who_is_gone_while_he_is_paused_is_lost_behind_what_he_said(house: House, peer: Peer) -> None:
    identity = paused(house, peer, packed([b"first"]))
    peer.close()
    for _ in range(20):
        house.door.send(identity, [bytes(1 << 20)])
        house.turn()
    assert is_quiet(house)
    assert (house.lost, house.door.unsent(identity)) == ([], 0)
    house.door.resume(identity)
    house.until(lambda: house.lost, "the end")
    assert house.messages[-1] == (identity, [b"first"])


def test_one_who_ends_while_his_login_is_paused_is_lost_at_once(house: House, peer: Peer) -> None:
    house.admits, house.pauses = False, True
    identity = peer.login()
    assert house.door.is_paused(identity)
    peer.close()
    house.until(lambda: house.lost, "the end")
    assert house.lost == [(identity, "the connection was closed before the login")]
    assert len(house.door) == house.door.unauthenticated == 0


def test_one_who_is_finished_while_he_is_paused_is_read_to_his_end(house: House, peer: Peer) -> None:
    identity = paused(house, peer, packed([b"first"]))
    before = len(house.messages)
    house.door.finish(identity, time.monotonic())
    house.until(peer.closed, "the end")
    peer.close()
    house.until(lambda: len(house.door) == 0, "nothing is left")
    house.door.resume(identity)
    assert len(house.messages) == before
    assert not house.lost


def test_the_deadline_of_a_login_holds_in_a_pause(house: House, peer: Peer) -> None:
    house.admits, house.pauses = False, True
    peer.login()
    house.until(peer.closed, "the end")


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


def test_the_owner_hears_of_a_message_that_is_long_on_its_way(
    house: House, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "PART_S", 0.05)
    parts: list[bytes] = []
    house.door.on_part = lambda identity, _now: parts.append(identity)
    identity = peer.login()
    for _ in range(3):
        peer.send(packed([bytes(100)]))
        house.turn()
        time.sleep(0.03)
    assert not parts, "whole messages came"
    said = packed([bytes(1_000)])
    for at in range(0, len(said), 100):
        peer.send(said[at : at + 100])
        house.turn()
        time.sleep(0.03)
    house.until(lambda: house.messages[-1] == (identity, [bytes(1_000)]), "the message")
    assert set(parts) == {identity}
    told = len(parts)
    peer.send(said[:100])
    for _ in range(5):  # the rest of it does not come
        house.turn()
        time.sleep(0.03)
    assert len(parts) == told


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
    assert time.monotonic() - begun < 5.0
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


def test_a_handshake_that_does_not_go_on_holds_nobody_up_at_the_end(
    server_pair: Pair,
) -> None:
    """Nothing is read any more, so it cannot end: a host that hands over would wait for whoever has just come."""
    house = House()
    url = house.door.listen("tls://127.0.0.1:0", server_pair.server_context())
    peer = Peer(house, url)
    house.until(lambda: len(house.door) == 1, "a connection")
    begun = time.monotonic()
    house.door.close(LONG_S)
    assert time.monotonic() - begun < LONG_S / 2
    peer.close()
    house.watch.close()


def test_nobody_comes_any_more_when_it_is_over_and_who_is_here_stays(house: House, url: str) -> None:
    peer = Peer(house, url)
    identity = peer.login()
    house.door.stop_listening()
    scheme, _, place = url.partition("://")
    with socket.socket(socket.AF_UNIX if scheme == "ipc" else socket.AF_INET) as late:
        host, _, port = place.rpartition(":")
        with pytest.raises(OSError, match=r"refused|No such file"):
            late.connect(place if scheme == "ipc" else (host, int(port)))
    house.door.send(identity, [b"still here"])
    house.until(peer.read, "what is said")
    peer.close()


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


@pytest.mark.requirement("R231")
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@pytest.mark.parametrize("said", [b"", b"hello"])
def test_who_has_reset_a_connection_before_it_is_accepted_harms_nobody(
    house: House, server_pair: Pair, authority: Authority, scheme: str, said: bytes
) -> None:
    context = server_pair.server_context() if scheme == "tls" else None
    url = house.door.listen(f"{scheme}://127.0.0.1:0", context)
    innocent = Peer(house, url, authority.client_context() if context else None)
    identity = innocent.login()
    for _ in range(3):
        one = Peer(house, url).socket
        one.sendall(said)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        one.close()
    if context is not None:
        house.until(lambda: len(house.refused) == 3, "their ends")
    assert house.door.send(identity, [b"hi"]) is None
    house.until(lambda: innocent.read() == packed([b"hi"]), "the innocent is served")
    house.until(lambda: len(house.door) == 1, "the end of the others")
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


def test_bytes_of_any_protocol_are_sent_as_they_are(house: House, peer: Peer) -> None:
    identity = peer.login()
    for data in (b"one", b"two", bytes(100_000)):
        assert house.door.send_bytes(identity, data) is None
    assert house.door.unsent(identity) == 100_006
    house.until(lambda: len(peer.read()) == 100_006, "all of it")
    assert peer.received == b"onetwo" + bytes(100_000)
    house.turn()
    assert house.door.unsent(identity) == 0
    assert house.door.send_bytes(identity, bytes(9 << 20)) is Refusal.BLOCKED
    assert house.door.send_bytes(identity, b"x") is Refusal.GONE
    assert house.door.unsent(identity) == 0


def test_who_had_to_wait_is_told_of_once_when_all_has_left(house: House, peer: Peer) -> None:
    identity = peer.login()
    house.door.send_bytes(identity, b"small")
    house.until(lambda: peer.read() == b"small", "what is small")
    assert house.rooms == [], "it never had to wait"
    house.door.send_bytes(identity, bytes(7 << 20))
    for _ in range(20):
        house.turn()
    assert house.door.unsent(identity) > 0
    assert house.rooms == []
    house.until(lambda: len(peer.read()) == (7 << 20) + 5, "all of it")
    house.until(lambda: house.rooms, "room")
    assert house.door.unsent(identity) == 0
    for _ in range(5):
        house.turn()
    assert house.rooms == [identity]


def test_room_that_is_there_is_told_of_soon_to_who_asks_for_it(house: House, peer: Peer) -> None:
    """Who keeps something back would else not hear that all has left at once."""
    identity = peer.login()
    house.door.send_bytes(identity, b"part")
    house.door.await_room(identity)
    house.until(lambda: house.rooms, "room")
    house.until(lambda: peer.read() == b"part", "what was said before")
    house.door.await_room(identity)
    house.until(lambda: len(house.rooms) > 1, "room once more")
    for _ in range(5):
        house.turn()
    assert house.rooms == [identity, identity]
    house.door.await_room(b"nobody")


def test_who_was_finished_is_not_told_of(house: House, peer: Peer) -> None:
    identity = peer.login()
    house.door.send_bytes(identity, bytes(7 << 20))
    for _ in range(5):
        house.turn()
    house.door.finish(identity, time.monotonic())
    house.until(lambda: peer.closed(), "the end")
    assert len(peer.received) == 7 << 20
    assert house.rooms == []


def test_processes_may_share_a_port_that_the_system_chose(house: House) -> None:
    other = House()
    peers = []
    try:
        url = house.door.listen("tcp://127.0.0.1:0", shares_port=True)
        assert not url.endswith(":0")
        assert other.door.listen(url, shares_port=True) == url
        peers = [Peer(house, url) for _ in range(40)]
        other.until(lambda: len(other.door) > 0, "some come to the one")
        house.until(lambda: len(house.door) > 0, "and some to the other")
    finally:
        for one in peers:
            one.close()
        other.close()


def test_a_port_is_not_shared_by_chance(house: House) -> None:
    other = House()
    try:
        url = house.door.listen("tcp://127.0.0.1:0")
        with pytest.raises(OSError, match="in use"):
            other.door.listen(url, shares_port=True)
    finally:
        other.close()
