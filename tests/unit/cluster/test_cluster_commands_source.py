"""Payloads, topics, pace and properties of `angarium pub`, without a connection."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.errors import AngariumError
from cluster.commands.messages import source

if TYPE_CHECKING:
    from pathlib import Path


def read_all(path: Path, *, limit: int = 7, count: int | None = None) -> list[bytes]:
    async def read() -> list[bytes]:
        descriptor = os.open(path, os.O_RDONLY)
        lines = source.LineSource(descriptor, count)
        found: list[bytes] = []
        try:
            while taken := await lines.take(limit):
                assert len(taken) <= limit
                found += taken
            assert await lines.take(limit) == []
        finally:
            os.close(descriptor)
        return found

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"\n\n", [b"", b""]),
        (b"a\r\nb\x0bc\x85d\n", [b"a\r", b"b\x0bc\x85d"]),
        (b"\xff\xfe\x00\n", [b"\xff\xfe\x00"]),
    ],
)
def test_a_line_ends_at_a_line_feed_and_goes_as_bytes(
    tmp_path: Path, content: bytes, lines: list[bytes]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert read_all(path) == lines


@pytest.mark.slow
@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    limit=st.integers(1, 9),
    read_bytes=st.integers(1, 16),
)
def test_lines_are_the_same_however_they_are_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], limit: int, read_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "READ_BYTES", read_bytes)
        assert read_all(path, limit=limit) == lines


def test_a_count_ends_the_lines_early(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\nc\nd\n")
    assert read_all(path, limit=2, count=3) == [b"a", b"b", b"c"]


def test_a_line_that_has_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "READ_BYTES", 4)
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 10)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 11)
    with pytest.raises(AngariumError, match="40007"):
        read_all(path)


def test_a_line_from_a_pipe_is_given_before_the_pipe_ends() -> None:
    async def read() -> None:
        reading, writing = os.pipe()
        lines = source.LineSource(reading)
        os.write(writing, b"first\nsec")
        assert await lines.take(10) == [b"first"]
        second = asyncio.ensure_future(lines.take(10))
        await asyncio.sleep(0)
        assert not second.done()
        os.write(writing, b"ond\n")
        assert await second == [b"second"]
        os.close(writing)
        assert await lines.take(10) == []
        os.close(reading)

    asyncio.run(read())


def test_a_payload_is_a_text_a_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture").write_bytes(b"\0\xff\n\n")
    path = str(tmp_path / "picture")
    assert source.payload_of(None, None) == b""
    assert source.payload_of("\udcff", None) == b"\xff"
    assert source.payload_of(None, path) == b"\0\xff\n\n"
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 3)
    with pytest.raises(AngariumError, match="40007"):
        source.payload_of(None, path)


def test_a_payload_is_repeated_as_often_as_was_said() -> None:
    async def read() -> list[list[bytes]]:
        repeated = source.RepeatSource(b"x", 5)
        return [await repeated.take(2) for _ in range(4)]

    assert asyncio.run(read()) == [[b"x", b"x"], [b"x", b"x"], [b"x"], []]


@pytest.mark.parametrize(
    ("template", "topics"),
    [
        ("plain", ["plain", "plain", "plain"]),
        ("a/{line}", ["a/9", "a/10", "a/11"]),
        ("a/{line%4}", ["a/1", "a/2", "a/3"]),
        ("{line%3}/{line%2}/{line}", ["0/1/9", "1/0/10", "2/1/11"]),
        ("{line%1000000}", ["9", "10", "11"]),
        ("{Line}/{line%}/{}/{line", ["{Line}/{line%}/{}/{line"] * 3),
    ],
)
def test_a_topic_template_counts_lines(template: str, topics: list[str]) -> None:
    assert list(source.topic_maker(template)(range(9, 12))) == topics


def test_a_topic_template_cannot_count_modulo_zero() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        source.topic_maker("a/{line%0}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("0", 0),
        ("true", True),
        ("false", False),
        ('"1"', "1"),
        ('"true"', "true"),
        ('"a \\u00e4"', "a ä"),
        ("01", "01"),
        ("1.", "1."),
        ("+1", "+1"),
        ("NaN", "NaN"),
        ("null", "null"),
        ("True", "True"),
        ("[1]", "[1]"),
        ('"open', '"open'),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_a_property_has_the_type_that_json_gives_it(text: str, value: Any) -> None:
    key, found = source.parse_property(f"k={text}")
    assert (key, found, type(found)) == ("k", value, type(value))


@pytest.mark.parametrize("text", ["", "novalue", "=v", f"n={1 << 64}", f"n={-(1 << 63) - 1}"])
def test_what_is_no_property_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="property"):
        source.parse_property(text)


def test_the_first_message_is_due_at_once_and_the_others_at_the_rate() -> None:
    pace = source.Pace(rate=100, started=10.0)
    assert pace.due(10.0, 0) == 1
    assert pace.due(10.0, 1) == 0
    assert pace.due(10.5, 1) == 50
    assert pace.due(11.0, 101) == 0
    assert pace.until_due_s(10.0, 1) == pytest.approx(0.01)
    assert pace.until_due_s(11.0, 1) == 0.0


@given(rate=st.floats(0.1, 1e6), seconds=st.floats(0.01, 10))
def test_a_pace_keeps_its_rate_with_few_waits(rate: float, seconds: float) -> None:
    """However fast, a pace waits once per interval at most: what falls due meanwhile leaves together."""
    pace = source.Pace(rate, started=0.0)
    now, sent, waits = 0.0, 0, 0
    while now < seconds:
        sent += pace.due(now, sent)
        now += pace.wait_s(now, sent)
        waits += 1
    assert sent <= now * rate + 1
    assert sent >= (seconds - source.PACE_INTERVAL_S - 1 / rate) * rate - 1
    assert waits <= seconds / source.PACE_INTERVAL_S + 2
