"""How `angarium pub` makes messages and paces them, with a client that only notes what it gets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from angarium.errors import AngariumError
from angarium.message import Message
from cluster.commands.messages import messages, source


class FakeClient:
    """Notes what is published."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def publish_many(self, rows: Any, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.batches.append(list(rows))

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]


def publication(origin: source.Source, template: str = "t", **options: Any) -> messages._Publication:
    rate = options.pop("rate", None)
    return messages._Publication(origin, source.topic_maker(template), options, rate, None)


def show_nothing(done: int, total: int | None = None) -> None:
    """Be the progress bar of a command whose output nobody sees."""


def pump(what: messages._Publication) -> tuple[FakeClient, messages.Published]:
    client, result = FakeClient(), messages.Published()
    asyncio.run(messages._pump(cast("Any", client), what, result, show_nothing, 5.0))
    return client, result


def test_plain_messages_are_pairs_of_topic_and_payload() -> None:
    client, result = pump(publication(source.RepeatSource(b"x", 3), "t/{line}"))
    assert client.rows == [("t/0", b"x"), ("t/1", b"x"), ("t/2", b"x")]
    assert result.published == 3


def test_a_message_with_options_has_them() -> None:
    client, _ = pump(publication(source.RepeatSource(b"x", 1), cos=3, properties={"a": 1}))
    (message,) = client.rows
    assert isinstance(message, Message)
    assert (message.topic, message.payload, message.cos, message.properties) == ("t", b"x", 3, {"a": 1})


def test_line_numbers_go_on_over_batches() -> None:
    count = messages.BATCH_MESSAGES + 5
    client, _ = pump(publication(source.RepeatSource(b"", count), "{line}"))
    assert [len(batch) for batch in client.batches] == [messages.BATCH_MESSAGES, 5]
    assert [topic for topic, _ in client.rows] == [str(number) for number in range(count)]


def test_a_node_that_takes_no_messages_is_given_up() -> None:
    class StuckClient(FakeClient):
        async def publish_many(self, rows: Any, *, timeout_s: float) -> None:
            assert timeout_s == 0.01
            await asyncio.sleep(30)

    what, result = publication(source.RepeatSource(b"", 1)), messages.Published()
    with pytest.raises(AngariumError, match="40801"):
        asyncio.run(messages._pump(cast("Any", StuckClient()), what, result, show_nothing, 0.01))
    assert result.published == 0


def test_a_high_rate_needs_few_batches() -> None:
    """One sleep per message would make a thousand of them."""
    client, _ = pump(publication(source.RepeatSource(b"", 1_000), rate=20_000.0))
    assert len(client.rows) == 1_000
    assert len(client.batches) <= 100
