"""The contract of a framing, held by each protocol that a door speaks."""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from angarium.client.transport import zmtp
from angarium_server.connections.framing import MESSAGES_MAX, FramingError, FramingLimits
from angarium_server.connections.zmtp import ZmtpFraming
from gateway.mqtt.codec import V3, V5, PacketError, write
from gateway.mqtt.codec.connect import Connect
from gateway.mqtt.codec.publish import Publish, Seen
from gateway.mqtt.framing import MqttFraming
from gateway.mqtt.websocket import WebSocketFraming
from tests.share import short
from tests.unit.gateway import websocket_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium_server.connections.framing import Framing, Speak

LIMITS = FramingLimits(frame_bytes=100_000, message_bytes=100_000)
SMALL = FramingLimits(frame_bytes=200, message_bytes=200)


class Spoken(NamedTuple):
    """A protocol, as its clients write it."""

    speak: Speak
    #: What comes before the first message, and what the framing makes of it.
    opening: bytes
    opened: list[Any]
    #: A message with such a payload, as bytes and as the framing gives it.
    say: Callable[[bytes], tuple[bytes, Any]]
    #: What none of its clients says first.
    foreign: bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def say_zmtp(payload: bytes) -> tuple[bytes, Any]:
    frames = [b"P", payload]
    return b"".join(zmtp.pack(frames)), frames


def mqtt(version: int) -> Spoken:
    connect = Connect(version=version, client_id="c")

    def say(payload: bytes) -> tuple[bytes, Any]:
        packet = Publish("a/b", payload)
        return write(packet, version), packet

    return Spoken(lambda limits: MqttFraming(limits, Seen()), write(connect, version), [connect], say)


def websocket(within: Spoken) -> Spoken:
    """Each message in a frame of its own."""

    def say(payload: bytes) -> tuple[bytes, Any]:
        data, message = within.say(payload)
        return websocket_client.frame(data), message

    return Spoken(
        lambda limits: WebSocketFraming(limits, within.speak),
        websocket_client.request() + websocket_client.frame(within.opening),
        within.opened,
        say,
        within.opening,
    )


#: Those whose limit is looked at when the length of a message has come, and not when its first byte has.
PATIENT = {
    "zmtp": Spoken(ZmtpFraming, zmtp.GREETING + zmtp.pack_command(b"READY", b""), [], say_zmtp),
    "mqtt 3.1.1": mqtt(V3),
    "mqtt 5.0": mqtt(V5),
}
SPOKEN = PATIENT | {"websocket": websocket(PATIENT["mqtt 5.0"])}


@pytest.fixture(params=SPOKEN)
def spoken(request: pytest.FixtureRequest) -> Spoken:
    return SPOKEN[request.param]


def opened(spoken: Spoken, limits: FramingLimits = LIMITS) -> Framing:
    framing = spoken.speak(limits)
    assert not framing.is_open
    assert taken(framing, spoken.opening) == spoken.opened
    assert framing.is_open
    return framing


def taken(framing: Framing, data: bytes) -> list[Any]:
    messages = framing.received(data)
    while framing.has_more:
        framing.validate()
        more = framing.received(b"")
        assert len(more) < 2 * MESSAGES_MAX
        messages += more
    framing.validate()
    return messages


def is_ended(framing: Framing, data: bytes) -> bool:
    """Whether bytes are taken for the end: by an error, or by one that is the last message."""
    try:
        messages = taken(framing, data)
    except FramingError:
        return True
    assert not any(isinstance(message, PacketError) for message in messages[:-1])
    return bool(messages) and isinstance(messages[-1], PacketError)


def pieces(rng: random.Random, data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = rng.choice(sizes)
        yield data[at : at + size]
        at += size


def receive_in_pieces(framing: Framing, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        framing.received(data[at : at + size])


@pytest.mark.parametrize("seed", range(short(1, long=4)))
@pytest.mark.parametrize("sizes", [[1], [1, 7, 64, 1_000, 100_000], [100_000]])
def test_messages_are_the_same_however_the_bytes_are_cut(spoken: Spoken, seed: int, sizes: list[int]) -> None:
    rng = random.Random(seed)
    lengths = [0, 1, 2, 120, 121, 254, 255, 256, 257] + ([] if sizes == [1] else [60_000, 99_900])
    said = [spoken.say(rng.randbytes(rng.choice(lengths))) for _ in range(100)]
    framing, got = spoken.speak(LIMITS), []
    for piece in pieces(rng, spoken.opening + b"".join(data for data, _ in said), sizes):
        got += taken(framing, piece)
    assert got == spoken.opened + [message for _, message in said]


def test_what_comes_while_there_is_more_is_behind_it(spoken: Spoken) -> None:
    framing = opened(spoken)
    said = [spoken.say(b"%d" % number) for number in range(3_000)]
    data, got = b"".join(data for data, _ in said), []
    for at in range(0, len(data), 10_000):
        got += framing.received(data[at : at + 10_000])
    assert framing.has_more
    assert got + taken(framing, b"") == [message for _, message in said]


def test_many_messages_come_in_turns(spoken: Spoken) -> None:
    framing = opened(spoken)
    said = [spoken.say(b"%d" % number) for number in range(3 * MESSAGES_MAX + 1)]
    first = framing.received(b"".join(data for data, _ in said))
    assert MESSAGES_MAX <= len(first) < 2 * MESSAGES_MAX
    assert framing.has_more
    assert first + taken(framing, b"") == [message for _, message in said]


def test_what_came_at_once_ends_with_a_turn_or_shortly_behind_it(spoken: Spoken) -> None:
    """Who is taken to have more is not read: that has to end."""
    data, message = spoken.say(b"x")
    for behind in range(len(data)):
        framing = opened(spoken)
        assert framing.received(data * MESSAGES_MAX + data[:behind]) == [message] * MESSAGES_MAX
        assert framing.received(b"") == []
        assert not framing.has_more
        assert framing.received(data[behind:]) == [message]


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("count", [0, MESSAGES_MAX - 1, MESSAGES_MAX])
def test_an_unauthenticated_peer_may_send_little_and_one_who_has_logged_in_more(
    spoken: Spoken, count: int
) -> None:
    small, small_message = spoken.say(b"s")
    large, large_message = spoken.say(b"x" * 90_000)
    framing = opened(spoken, SMALL)
    framing.trust(LIMITS)
    assert taken(framing, small * count + large) == [small_message] * count + [large_message]
    assert is_ended(opened(spoken, SMALL), small * count + large)
    assert is_ended(opened(spoken, SMALL), small * count + large[:20]), "before it is there"


@pytest.mark.parametrize("spoken", PATIENT, indirect=True)
def test_a_larger_message_is_taken_that_began_to_come_when_its_peer_was_trusted(spoken: Spoken) -> None:
    framing = opened(spoken, SMALL)
    data, message = spoken.say(b"x" * 90_000)
    assert framing.received(data[:1]) == []
    framing.trust(LIMITS)
    assert taken(framing, data[1:]) == [message]


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("size", [2, 100])
def test_what_comes_in_small_pieces_is_held_in_about_its_bytes(spoken: Spoken, size: int) -> None:
    framing = opened(spoken)
    data, message = spoken.say(b"x" * 90_000)
    tracemalloc.start()
    try:
        receive_in_pieces(framing, data[:-1], size)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(data)
    assert taken(framing, data[-1:]) == [message]


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("said", [None, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0" * 200])
def test_who_speaks_another_protocol_is_refused_and_not_answered(spoken: Spoken, said: bytes | None) -> None:
    for size in (1, 1_000):
        framing = spoken.speak(LIMITS)
        with pytest.raises(FramingError):
            receive_in_pieces(framing, said or spoken.foreign, size)
        assert not framing.is_open
        assert not framing.replies


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("seed", range(short(2, long=10)))
def test_garbage_is_taken_or_refused_and_nothing_else(spoken: Spoken, seed: int) -> None:
    """No other exception, and never more held than may be."""
    rng = random.Random(seed)
    for _ in range(100):
        said = [spoken.say(rng.randbytes(rng.randint(0, 300)))[0] for _ in range(5)]
        data = bytearray(spoken.opening + b"".join(said))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        framing = spoken.speak(LIMITS)
        for piece in pieces(rng, bytes(data), [97, 1_000]):
            if is_ended(framing, piece):
                break
