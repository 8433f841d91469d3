"""Tables, pairs and metrics as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cluster.commands.terminal import table as t
from cluster.commands.terminal.output import print_metrics

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (1.25, "1.2"),
        ("a", "a"),
        ([1, "b"], "1, b"),
        ({"a": 1}, "a=1"),
    ],
)
def test_a_cell_shows_a_value_as_people_read_it(value: object, text: str) -> None:
    assert t.cell(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (1 << 50, "1024.0 TiB")],
)
def test_a_size_has_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert t.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0s"), (59, "59s"), (61, "1m01s"), (3725, "1h02m"), (90000, "1d01h")]
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert t.duration(seconds) == text


@pytest.mark.parametrize(
    ("wall_ms", "text"),
    [
        (None, ""),
        (0, ""),
        (1_700_000_000_000, "2023-11-14 22:13:20Z"),
        (1 << 53, "never"),
        (1 << 64, "never"),
    ],
)
def test_a_wall_time_is_read_as_such_whatever_it_is(wall_ms: int | None, text: str) -> None:
    assert t.moment(wall_ms) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 messages"), (1, "1 message"), (1234, "1,234 messages")])
def test_one_thing_is_no_several(number: int, text: str) -> None:
    assert t.counted(number, "message") == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rss_bytes", 37_433_344, "35.7 MiB"),
        ("bytes_spooled", 1536, "1.5 KiB"),
        ("uptime_s", 517, "8m37s"),
        ("pid", 12345, "12345"),
        ("count", 12345, "12,345"),
        ("messages_per_s", 20_000.0, "20,000/s"),
        ("messages_per_s", 0.5, "0.5/s"),
        ("bytes_in_per_s", 2048.0, "2.0 KiB/s"),
        ("cpu_percent", 1.5, "1.5 %"),
        ("p99_us", 120.0, "120 µs"),
        ("first_delivery_ms", 1.25, "1.2 ms"),
        ("max_spool_usage_mb", 5000, "5,000 MB"),
        ("oldest_stored_ms", 1_700_000_000_000, "2023-11-14 22:13:20Z"),
    ],
)
def test_a_number_has_the_unit_in_its_name(name: str, value: float, text: str) -> None:
    assert t.cell(value, name) == text


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("messages_spooled", "messages"),
        ("spool_usage_bytes", "size"),
        ("bind_count", "consumers"),
        ("rss_bytes", "memory"),
        ("uptime_s", "uptime"),
        ("cpu_percent", "cpu"),
        ("bytes_in_per_s", "bytes in"),
        ("messages_in_per_s", "in"),
        ("published", "published"),
    ],
)
def test_a_title_is_a_word_without_a_unit(name: str, title: str) -> None:
    assert t.title(name) == title


ROWS = [
    {
        "name": "orders",
        "vpn": "default",
        "messages_spooled": 5,
        "spool_usage_bytes": 330,
        "access_type": "exclusive",
    },
    {
        "name": "a",
        "vpn": "default",
        "messages_spooled": 12_345,
        "spool_usage_bytes": None,
        "access_type": "exclusive",
    },
]
COLUMNS = ("name", "vpn", "messages_spooled", "spool_usage_bytes", "access_type")


def test_no_figure_is_shown_in_the_place_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics({"queued_messages": 7, "queued_bytes": 2048, "uptime_s": 90})
    assert capsys.readouterr().out.splitlines() == [
        "queued messages  7",
        "queued bytes     2.0 KiB",
        "uptime           1m30s",
    ]


def test_a_table_has_titles_and_aligns_numbers() -> None:
    found = t.table(ROWS, COLUMNS)
    assert found.header == "NAME    MESSAGES   SIZE  ACCESS"
    assert found.body == [
        "orders         5  330 B  exclusive",
        "a         12,345      -  exclusive",
    ]
    assert found.left_out == []


def test_a_column_of_one_message_vpn_is_left_out_unless_all_is_asked_for() -> None:
    assert "VPN" in t.table(ROWS, COLUMNS, None).header
    other = [*ROWS, {**ROWS[0], "vpn": "stock"}]
    assert "VPN" in t.table(other, COLUMNS).header


def test_the_last_columns_go_when_a_name_is_long() -> None:
    name = "orders/" + "x" * 55
    found = t.table([{**ROWS[0], "name": name}], COLUMNS)
    assert found.body == [f"{name}         5  330 B"]
    assert found.left_out == ["ACCESS"]


def test_a_name_alone_may_be_longer_than_the_line() -> None:
    name = "orders/" + "x" * 100
    found = t.table([{**ROWS[0], "name": name}], COLUMNS)
    assert found.body == [name]
    assert found.left_out == ["MESSAGES", "SIZE", "ACCESS"]


def test_sentences_fold_at_blanks_and_stay() -> None:
    sentence = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    found = t.table([{"name": "a" * 30, "text": sentence, "number": 7}], ("name", "number", "text"))
    assert all(len(line) <= 80 for line in found.body)
    assert " ".join(" ".join(found.body).split()) == f"{'a' * 30} 7 {sentence}"


NAMES = st.text("ab/x中", min_size=1, max_size=70)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"name": NAMES, "n": st.integers(0, 10**12), "text": st.text("ab ", max_size=99)}
        ),
        min_size=1,
    ),
    width=st.integers(40, 120),
)
def test_lines_fit_unless_a_word_alone_is_too_long(rows: list[dict[str, Any]], width: int) -> None:
    found = t.table(rows, ("name", "n", "text"), width)
    words = [word for row in rows for word in (*row["text"].split(" "), "x" * 24)]
    longest = max(cell_len(row["name"]) for row in rows) + 2 + max(map(len, words))
    assert all(cell_len(line) <= max(width, longest) for line in (found.header, *found.body))
    for row in rows:
        assert any(line.startswith(row["name"]) for line in found.body)


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("short", 10, ["short"]),
        ("one two three", 7, ["one two", "three"]),
        ("orders/a-very-long-name x", 6, ["orders/a-very-long-name", "x"]),
    ],
)
def test_a_word_is_never_cut(text: str, width: int, lines: Sequence[str]) -> None:
    assert t.fold(text, width) == lines


def test_pairs_fold_their_values() -> None:
    lines = t.pairs({"name": "q", "subscriptions": ["orders/berlin/>", "orders/hamburg/>"]}, 32)
    assert lines == ["name           q", "subscriptions  orders/berlin/>,", "               orders/hamburg/>"]


def test_what_clients_chose_is_made_visible() -> None:
    assert t.table([{"topic": "a\x1b[31m\r"}], ("topic",)).body == ["a\\x1b[31m\\x0d"]
    assert t.pairs({"topic": "a\x07"}) == ["topic  a\\x07"]
