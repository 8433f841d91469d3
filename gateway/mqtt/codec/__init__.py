"""MQTT 3.1.1 and 5.0 as bytes: packets are read from what arrives, and written to what is sent. No sockets, no clock.

From the top to the ground: `parser` reads a stream; `packets` knows all types; `connect`, `publish`, `acknowledge`,
`subscribe` and `control` each hold some packets with their reading and writing side by side; `properties` and
`topics` what stands in several of them; `fields` what all are made of; `kinds` and `errors` the tables of the
specification. The numbers in brackets are statements of the OASIS standards of 5.0 and, where it is said, 3.1.1.
"""

from gateway.mqtt.codec.errors import PacketError, ReasonCode
from gateway.mqtt.codec.kinds import V3, V5, Sender
from gateway.mqtt.codec.packets import Packet, write
from gateway.mqtt.codec.parser import Parser

__all__ = ["V3", "V5", "Packet", "PacketError", "Parser", "ReasonCode", "Sender", "write"]
