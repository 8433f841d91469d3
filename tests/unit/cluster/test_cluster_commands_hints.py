"""Wildcards of other brokers, and what is said about them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cluster.commands.terminal.hints import (
    attribute_hints,
    filter_hint,
    payload_hint,
    print_hints,
    topic_hint,
    unread_hint,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "wildcard", "meant"),
    [
        ("orders/#", "'#' is no wildcard", "orders/>"),
        ("#", "'#' is no wildcard", ">"),
        ("orders/+/x", "'+' is no wildcard", "orders/*/x"),
        ("+/+", "'+' is no wildcard", "*/*"),
        ("orders/+/#", "'#' is no wildcard", "orders/*/>"),
        ("orders.>", "'.' separates no levels", "orders/>"),
        ("orders.*.x", "'.' separates no levels", "orders/*/x"),
        ("*.orders", "'.' separates no levels", "*/orders"),
        ("orders.eu.#", "'.' separates no levels", "orders/eu/>"),
        ("#.error", "'.' separates no levels", "#/error"),
        ("!orders/#", "'#' is no wildcard", "!orders/>"),
        ("#share/workers/jobs/#", "'#' is no wildcard", "#share/workers/jobs/>"),
    ],
)
def test_a_wildcard_of_another_broker_is_seen(text: str, wildcard: str, meant: str) -> None:
    if meant == "#/error":
        assert filter_hint(text) == "", "nothing here means any number of levels in front"
        return
    assert filter_hint(text).startswith(f"{wildcard} here: did you mean '{meant}'?"), filter_hint(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ">",
        "orders/>",
        "orders/*/x",
        "orders/b*",
        "orders/c#",
        "orders/c++",
        "v1.2/>",
        "a.b.c",
        "host.example.com/temperature",
        "#share/workers/jobs/*",
        "#noexport/orders/>",
        "!orders/test",
        "a/#/b",
    ],
)
def test_what_may_be_meant_is_left_alone(text: str) -> None:
    assert filter_hint(text) == ""


@pytest.mark.parametrize(
    ("topic", "is_hinted"),
    [
        ("a/>", True),
        (">", True),
        ("a/*/b", True),
        ("a/b", False),
        ("a/>/b", False),
        ("a/b*", False),
        ("", False),
    ],
)
def test_a_wildcard_in_a_published_topic_is_seen(topic: str, is_hinted: bool) -> None:
    assert bool(topic_hint(topic)) is is_hinted
    assert not is_hinted or topic in topic_hint(topic)


def test_attributes_that_are_filters_are_looked_at() -> None:
    attributes = {
        "subscriptions": ["orders/#", "ok/>"],
        "publish_topic_exceptions": "a/+",
        "owner": "orders/#",
        "max_ttl_s": 5,
    }
    assert [hint.partition("mean ")[2] for hint in attribute_hints(attributes) if hint] == [
        "'orders/>'?",
        "'a/*'?",
    ]


def test_hints_are_on_stderr_once_and_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    print_hints(["one\x07", "", "one\x07", "two"], quiet=False)
    print_hints(["three"], quiet=True)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "hint: one\\x07\nhint: two\n")


def test_a_payload_that_means_the_standard_input_elsewhere_is_seen() -> None:
    assert "'--file -' reads it" in payload_hint("-")
    assert payload_hint("--") == payload_hint("") == payload_hint(None) == ""


def test_what_waits_unread_in_a_pipe_is_told(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    assert unread_hint(reading) == ""
    os.write(writing, b"hello")
    assert "'--file -' reads it from the standard input" in unread_hint(reading)
    os.read(reading, 5)
    os.close(writing)
    assert unread_hint(reading) == "", "its end is nothing to read"
    os.close(reading)
    assert unread_hint(reading) == "", "a command may have no standard input"
    (tmp_path / "file").write_bytes(b"hello")
    with (tmp_path / "file").open() as file:
        assert unread_hint(file.fileno()) == "", "a script that is run from a file goes on in it"
