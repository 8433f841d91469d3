"""Parsers that are past the first packet, for tests of what comes then."""

from __future__ import annotations

from gateway.mqtt.codec import packets
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.kinds import V5, Sender
from gateway.mqtt.codec.parser import PACKET_BYTES_MAX, Parser


def begun(
    sender: Sender = Sender.CLIENT, version: int = V5, packet_bytes_max: int = PACKET_BYTES_MAX
) -> Parser:
    """Give a parser that has read the CONNECT of a client, or the CONNACK of a server."""
    parser = Parser(sender, packet_bytes_max, version=version if sender is Sender.SERVER else 0)
    first = Connect(version=version, client_id="c") if sender is Sender.CLIENT else ConnAck()
    assert parser.feed(packets.write(first, version)) == [first]
    return parser


def read_one(data: bytes, sender: Sender, version: int) -> packets.Packet:
    """Give the packet that bytes are, which stand at the beginning of a stream or later."""
    is_first = data[0] >> 4 in (1, 2)
    parser = Parser(sender, version=version) if is_first else begun(sender, version)
    found = parser.feed(data)
    if parser.fault:
        raise parser.fault
    assert len(found) == 1
    assert parser.waiting_bytes == 0
    return found[0]
