"""Feeds the MQTT codec streams that are nearly right, and judges what it makes of them:

- nothing is raised: whatever arrives, `feed` gives packets, and a fault if a rule is broken;
- it is the same in one piece, in random pieces, and by the careful way alone (a memory that keeps nothing);
- what was read can be written, and is read again as the same packet;
- what waits is no larger than a packet may be.

Streams are legal packets with bytes flipped, lengths that lie, pieces repeated, cut out and put in; the seed tells all.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from gateway.mqtt.codec import fields, packets
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect, Will
from gateway.mqtt.codec.control import Auth, Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.fields import Reader
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender
from gateway.mqtt.codec.parser import Parser
from gateway.mqtt.codec.properties import NONE, TABLE, Properties
from gateway.mqtt.codec.publish import Publish, Seen
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.mqtt.codec.packets import Packet

PACKET_BYTES_MAX: Final = 2000
PACKETS_MAX: Final = 8
#: Bytes that mean something somewhere: lengths at their limits, property identifiers, wildcards, the end of UTF-8.
TELLING: Final = bytes(
    [0, 1, 2, 3, 0x0B, 0x21, 0x23, 0x26, 0x2B, 0x30, 0x32, 0x7F, 0x80, 0xC0, 0xED, 0xF4, 0xFF]
)


class Careful(Seen):
    """A memory that keeps nothing, so that every PUBLISH is read the careful way."""

    def __init__(self) -> None:
        self.topics = {}
        self.sections = {}

    def learn(self, topic: bytes, version: int) -> str | None:
        """Leave each topic to the careful way."""
        return None

    def add(self, section: bytes, given: Properties) -> None:
        """Forget it."""


class Corpus:
    """Legal packets of one side in one version, as bytes."""

    def __init__(self, sender: Sender, version: int) -> None:
        self.sender = sender
        self.version = version
        made = list(_first(sender, version)), list(_later(sender, version))
        self.first, self.later = ([packets.write(one, version) for one in some] for some in made)

    def stream(self, rng: random.Random) -> tuple[bytes, int]:
        """Give a stream that was legal once, and how many packets it was made of.

        Half of them are spoilt inside one packet, whose length is right again afterwards: they get further.
        """
        parts = [
            rng.choice(self.first),
            *(rng.choice(self.later) for _ in range(rng.randint(1, PACKETS_MAX))),
        ]
        if rng.random() < 0.5:
            at = rng.randrange(len(parts))
            parts[at] = _reframed(parts[at], rng)
            return b"".join(parts), len(parts)
        stream = bytearray(b"".join(parts))
        # Mostly behind the first packet, or little would be read of all the others.
        least = len(parts[0]) if rng.random() < 0.8 else 0
        _spoil(stream, least, rng)
        return bytes(stream), len(parts)


def _reframed(packet: bytes, rng: random.Random) -> bytes:
    """Spoil what follows the fixed header of a packet."""
    reader = Reader(packet, 1, len(packet), V5, Sender.CLIENT)
    reader.variable_integer()
    body = bytearray(reader.rest())
    _spoil(body, 0, rng)
    first = packet[0] ^ (1 << rng.randrange(4) if rng.random() < 0.1 else 0)
    return bytes([first]) + fields.variable_integer(len(body)) + bytes(body)


def _spoil(stream: bytearray, least: int, rng: random.Random) -> None:
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        rng.choice(MUTATIONS)(stream, rng.randrange(least, len(stream)) if least < len(stream) else 0, rng)


def _flip(stream: bytearray, at: int, rng: random.Random) -> None:
    if stream:
        stream[at % len(stream)] ^= 1 << rng.randrange(8)


def _tell(stream: bytearray, at: int, rng: random.Random) -> None:
    if stream:
        stream[at % len(stream)] = rng.choice(TELLING)


def _step(stream: bytearray, at: int, rng: random.Random) -> None:
    """Make a length lie by one."""
    if stream:
        at %= len(stream)
        stream[at] = (stream[at] + rng.choice((-1, 1))) % 256


def _cut(stream: bytearray, at: int, rng: random.Random) -> None:
    del stream[at : at + rng.randint(1, 12)]


def _insert(stream: bytearray, at: int, rng: random.Random) -> None:
    stream[at:at] = rng.randbytes(rng.randint(1, 6))


def _repeat(stream: bytearray, at: int, rng: random.Random) -> None:
    stream[at:at] = stream[at : at + rng.randint(1, 30)]


MUTATIONS: Final[tuple[Callable[[bytearray, int, random.Random], None], ...]] = (
    _flip,
    _tell,
    _step,
    _cut,
    _insert,
    _repeat,
)

_VALUES: Final[dict[str, Any]] = {
    "response_topic": "answers/\u20ac",
    "subscription_identifiers": (200,),
    "user_properties": (("k", "v"), ("k", "\u00e9")),
    "correlation_data": b"\0\xff",
    "authentication_data": b"\x01",
}


def _all_properties(place: PacketType, sender: Sender, version: int) -> Properties:
    """Give every property that a packet may have, at once."""
    if version == V3:
        return NONE
    given: dict[str, Any] = {}
    for row in TABLE:
        if place not in row.places:
            continue
        is_text = row.data_type.write is TABLE[2].data_type.write
        given[row.name] = _VALUES.get(row.name, "text" if is_text else 1)
    if sender is Sender.CLIENT and place is PacketType.PUBLISH:
        del given["subscription_identifiers"]
    if sender is Sender.SERVER and place is PacketType.DISCONNECT:
        del given["session_expiry_interval"]
    return Properties(**given)


def _first(sender: Sender, version: int) -> Iterator[Packet]:
    if sender is Sender.SERVER:
        yield ConnAck()
        yield ConnAck(
            0, session_present=True, properties=_all_properties(PacketType.CONNACK, sender, version)
        )
        return
    will = Will("gone", b"will", 1, retain=True, properties=_all_properties(PacketType.WILL, sender, version))
    given = _all_properties(PacketType.CONNECT, sender, version)
    yield Connect(version=version, client_id="c")
    yield Connect(
        version=version, client_id="c" * 23, will=will, username="u", password=b"p", properties=given
    )


def _later(sender: Sender, version: int) -> Iterator[Packet]:
    """Give the packets that follow: those of both sides, then those of one."""
    full = _all_properties(PacketType.PUBLISH, sender, version)
    for qos in (0, 1, 2):
        for size in (0, 20, 200, 1500):
            yield Publish(
                "plant/line/\u20ac", bytes(size), qos, 7 if qos else 0, dup=qos == 2, retain=size == 20
            )
        yield Publish("t", b"p", qos, 8 if qos else 0, properties=full)
    for kind in (PubAck, PubRec, PubRel, PubComp):
        yield kind(7)
        if version == V5:
            yield kind(7, 0, _all_properties(kind.kind, sender, version))
    yield from _of_client(version) if sender is Sender.CLIENT else _of_server(version)
    if version == V5:
        yield Publish("", b"p", properties=Properties(topic_alias=3))
        yield Auth(0x18, _all_properties(PacketType.AUTH, sender, version))
        yield Disconnect(0x81, _all_properties(PacketType.DISCONNECT, sender, version))


def _of_client(version: int) -> Iterator[Packet]:
    given = _all_properties(PacketType.SUBSCRIBE, Sender.CLIENT, version)
    first = Subscription("a/+/#", 1)
    if version == V5:
        first = Subscription("a/+/#", 1, no_local=True, retain_as_published=True, retain_handling=2)
    yield Subscribe(1, (first, Subscription("$share/g/a/+", 2)), given)
    yield Unsubscribe(2, ("a/+/#", "#"), _all_properties(PacketType.UNSUBSCRIBE, Sender.CLIENT, version))
    yield PingReq()
    yield Disconnect()


def _of_server(version: int) -> Iterator[Packet]:
    yield SubAck(1, (0, 1, 0x80), _all_properties(PacketType.SUBACK, Sender.SERVER, version))
    codes = (0, 0x11) if version == V5 else ()
    yield UnsubAck(2, codes, _all_properties(PacketType.UNSUBACK, Sender.SERVER, version))
    yield PingResp()


class Fuzzer:
    """Runs streams and counts what they were."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.corpora = [Corpus(sender, version) for sender in Sender for version in (V3, V5)]
        #: What parsers of one side and version share, as those of a gateway do.
        self.seen = [Seen() for _ in self.corpora]
        self.frames = 0
        self.read = 0
        self.faults: dict[str, int] = {}

    def run_one(self) -> None:
        """Make one stream and judge it.

        Raises:
            AssertionError: the codec broke a promise; the text has the stream.
        """
        index = self.rng.randrange(len(self.corpora))
        corpus = self.corpora[index]
        stream, frames = corpus.stream(self.rng)
        self.frames += frames
        found, fault = _parse(corpus, stream, self.seen[index], [len(stream)])
        by_care = _parse(corpus, stream, Careful(), [len(stream)])
        assert (found, fault) == by_care, f"the walk and the careful way differ: {stream.hex()}"
        cuts = sorted(self.rng.randrange(len(stream) + 1) for _ in range(self.rng.randint(1, 6)))
        in_pieces = _parse(corpus, stream, self.seen[index], cuts)
        assert (found, fault) == in_pieces, f"pieces {cuts} differ: {stream.hex()}"
        self._write_again(corpus, found, stream)
        self.read += len(found)
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def _write_again(self, corpus: Corpus, found: list[Packet], stream: bytes) -> None:
        written = b"".join(packets.write(packet, _version(found, corpus)) for packet in found)
        again, fault = _parse(corpus, written, Seen(), [len(written)], large=True)
        assert (again, fault) == (found, ""), f"written and read again it differs: {stream.hex()}"


def _version(found: list[Packet], corpus: Corpus) -> int:
    """Give the version of a stream, which a flipped bit of the CONNECT may have changed."""
    return found[0].version if found and isinstance(found[0], Connect) else corpus.version


def _parse(
    corpus: Corpus, stream: bytes, seen: Seen, cuts: list[int], *, large: bool = False
) -> tuple[list[Packet], str]:
    """Give the packets of a stream that arrives in pieces, and the statement that ended it."""
    bound = PACKET_BYTES_MAX * (2 if large else 1)
    parser = Parser(corpus.sender, bound, corpus.version if corpus.sender is Sender.SERVER else 0, seen)
    found: list[Packet] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        try:
            found += parser.feed(stream[begin:end])
        except Exception as error:
            raise AssertionError(f"{error!r} of {stream.hex()} in pieces {cuts}") from error
        assert parser.waiting_bytes <= bound, f"{parser.waiting_bytes} bytes wait: {stream.hex()}"
    if parser.fault is None:
        return found, ""
    # Whether the version is known by then, which names the statement, depends on the pieces.
    is_early = not found and parser.fault.code == ReasonCode.PACKET_TOO_LARGE
    return found, f"{parser.fault.code:#x} {'' if is_early else parser.fault.statement}"


def main(arguments: list[str] | None = None) -> int:
    """Fuzz for so many frames, and print one line of JSON; the status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=1_000_000, help="stop after so many packets")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 1_000_000, help="the same seed, the same streams"
    )
    given = parser.parse_args(arguments)
    fuzzer = Fuzzer(given.seed)
    verdict, status = "ok", 0
    try:
        while fuzzer.frames < given.frames:
            fuzzer.run_one()
    except KeyboardInterrupt:
        verdict = "interrupted"
    except AssertionError as error:
        verdict, status = str(error), 1
    told = {"seed": given.seed, "frames": fuzzer.frames, "read": fuzzer.read, "faults": fuzzer.faults}
    print(json.dumps({**told, "verdict": verdict}))
    return status


if __name__ == "__main__":
    sys.exit(main())
