"""A parser is bounded: in what it holds, before it is there, and in the work that small pieces make."""

from __future__ import annotations

import pytest

from gateway.mqtt.codec import errors, packets
from gateway.mqtt.codec.connect import Connect, Will
from gateway.mqtt.codec.control import PingReq
from gateway.mqtt.codec.kinds import V3, V5, Sender
from gateway.mqtt.codec.parser import Parser
from gateway.mqtt.codec.properties import SEVERAL_MAX, Properties
from gateway.mqtt.codec.publish import Publish
from tests.unit.gateway.streams import begun


@pytest.mark.parametrize("version", [V3, V5])
def test_a_packet_that_is_too_large_ends_before_it_is_there(version: int) -> None:
    parser = begun(version=version, packet_bytes_max=1000)
    fits = packets.write(Publish("t", bytes(1000 - (7 if version == V5 else 6))), version)
    assert len(fits) == 1000
    assert len(parser.feed(fits)) == 1
    assert len(parser.feed(fits)) == 1, "the walk bounds as the careful way does"
    header = packets.write(Publish("t", bytes(1000)), version)[:3]
    assert parser.feed(header) == []
    assert parser.fault is not None
    assert parser.fault.rule is errors.TOO_LARGE
    assert parser.fault.code == errors.ReasonCode.PACKET_TOO_LARGE


def test_the_walk_leaves_a_packet_that_is_too_large() -> None:
    parser = begun(packet_bytes_max=1000)
    small, large = (packets.write(Publish("t", bytes(size)), V5) for size in (10, 1000))
    assert len(parser.feed(small * 2 + large + small)) == 2
    assert parser.fault is not None
    assert parser.fault.rule is errors.TOO_LARGE


def test_the_bound_may_grow_when_the_client_is_known() -> None:
    parser = begun(packet_bytes_max=100)
    parser.packet_bytes_max = 10_000
    assert len(parser.feed(packets.write(Publish("t", bytes(5000)), V5))) == 1


def test_a_connect_that_claims_a_quarter_of_a_gigabyte_holds_nothing() -> None:
    parser = Parser(Sender.CLIENT, 1000)
    parser.feed(b"\x10\xff\xff\xff\x7f")
    assert parser.fault is not None
    assert parser.waiting_bytes == 0


@pytest.mark.parametrize("version", [V3, V5])
def test_who_says_too_large_a_connect_is_answered_in_his_version(version: int) -> None:
    will = Will("t", bytes(1000))
    said = packets.write(Connect(version=version, will=will), version)
    for start, known in ((said, version), (said[:3], 0), (said[:7] + b"X" + said[8:], 0)):
        parser = Parser(Sender.CLIENT, 1000)
        assert parser.feed(start) == []
        assert parser.fault is not None
        assert (parser.fault.rule, parser.fault.version) == (errors.TOO_LARGE, known)


def test_a_parser_holds_one_unfinished_packet_and_no_more() -> None:
    parser = begun(packet_bytes_max=1000)
    whole = packets.write(Publish("t", bytes(500)), V5)
    for _ in range(100):
        assert parser.feed(whole + whole[:400]) != []
        assert parser.waiting_bytes == 400
        parser.feed(whole[400:])
        assert parser.waiting_bytes == 0


def test_pieces_of_one_byte_are_looked_at_a_few_times_for_each_packet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for each byte of a header and once at the end, however long the packet is."""
    looks = 0
    read_all = Parser._read_all

    def counted(parser: Parser, data: bytes, at: int, found: list[packets.Packet], most: int) -> int:
        nonlocal looks
        looks += 1
        return read_all(parser, data, at, found, most)

    parser = begun()
    monkeypatch.setattr(Parser, "_read_all", counted)
    data = packets.write(Publish("t", bytes(100_000)), V5)
    found = []
    for byte in data:
        found += parser.feed(bytes([byte]))
    assert len(found) == 1
    assert looks <= 6


def test_a_packet_has_as_many_user_properties_as_there_may_be() -> None:
    given = Properties(user_properties=(("", ""),) * SEVERAL_MAX)
    (found,) = begun().feed(packets.write(Publish("t", properties=given), V5))
    assert isinstance(found, Publish)
    assert found.properties == given


def test_packets_before_a_fault_are_given_and_those_behind_it_are_not() -> None:
    parser = begun()
    good = packets.write(PingReq(), V5)
    assert parser.feed(good + good + b"\x00\x00" + good) == [PingReq(), PingReq()]
    assert parser.fault is not None
    assert parser.fault.rule is errors.UNKNOWN_TYPE


def test_an_empty_piece_changes_nothing() -> None:
    parser = begun()
    assert parser.feed(b"") == []
    assert parser.feed(b"\xc0") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"\x00") == [PingReq()]
