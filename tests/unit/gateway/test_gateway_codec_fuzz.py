"""A short share of what `scripts/fuzz` does for as long as one likes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gateway.mqtt.codec import publish
from gateway.mqtt.codec.kinds import V3, Sender
from gateway.mqtt.codec.publish import Seen
from tests.share import short
from tests.unit.gateway import codec_fuzzer

if TYPE_CHECKING:
    from gateway.mqtt.codec.publish import Publish


@pytest.mark.slow
def test_nothing_that_arrives_breaks_the_codec(capsys: pytest.CaptureFixture[str]) -> None:
    frames = short(8_000, long=20_000)
    status = codec_fuzzer.main(["--frames", str(frames)])
    told = json.loads(capsys.readouterr().out)
    assert status == 0, told
    assert told["read"] > frames / 4
    assert len(told["faults"]) > 30, "it hardly comes past the first check"


def test_a_first_packet_that_is_too_large_is_so_in_any_pieces() -> None:
    """Its version, which names the statement, is known if the pieces bring it: found after three million frames."""
    stream = b"\x10\x9c\x35\x00\x04MQTT\x04\xee"
    corpora, seen = codec_fuzzer.Corpus(Sender.CLIENT, V3), Seen()
    whole, early = (codec_fuzzer._parse(corpora, stream, seen, cuts) for cuts in ([len(stream)], [3]))
    assert whole == early == ([], "0x95 ")


def test_the_fuzzer_notices_a_walk_that_takes_too_much(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be worth nothing otherwise: here the walk takes a DUP of QoS 0."""

    def lax(
        data: bytes, at: int, version: int, seen: Seen, size_max: int, packets: list[Publish], most: int
    ) -> int:
        spoilt = bytearray(data)
        if at < len(data) and data[at] >> 4 == 3 and not data[at] & 6:
            spoilt[at] &= 0xF7
        return walk(bytes(spoilt), at, version, seen, size_max, packets, most)

    walk = publish.walk
    monkeypatch.setattr(publish, "walk", lax)
    assert codec_fuzzer.main(["--frames", "100000", "--seed", "1"]) == 1
    assert "differ" in json.loads(capsys.readouterr().out)["verdict"]
