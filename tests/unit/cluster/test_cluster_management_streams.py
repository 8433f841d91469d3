"""Decisions about streams: what they say, when, and when a client has stopped to read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium import errors
from angarium_server.http.problems import RefusedError
from angarium_server.http.sse import QUIET_S
from cluster.management.streams.sources import EVENTS_S, OVER, PIECE, Events, Jobs, Watch, told_of
from cluster.management.streams.streams import STANDING_S, Pace, Standing


def event(number: int) -> dict[str, Any]:
    return {"id": number, "text": "ä\n"}


class Node:
    """Answers like the controller, one answer after another; the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def ask(self, _operation: str, arguments: dict[str, Any]) -> Any:
        self.asked.append(arguments)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_stream_is_quiet_when_nothing_was_said_for_a_while() -> None:
    pace = Pace(0.0)
    assert not pace.is_quiet(QUIET_S - 1)
    assert pace.is_quiet(QUIET_S)
    pace.said(5, QUIET_S)
    assert not pace.is_quiet(QUIET_S + 1)


def test_a_client_that_takes_something_is_slow_and_one_that_takes_nothing_is_gone() -> None:
    pace = Pace(0.0, stalled_s=10)
    pace.said(1_000, 0.0)
    assert not pace.is_stalled(1_000, 9.0)
    assert not pace.is_stalled(900, 9.5)
    pace.said(100, 9.5)  # as much waits as before, and the client took some of it
    assert not pace.is_stalled(900, 19.0)
    assert not pace.is_stalled(900, 28.9)
    assert pace.is_stalled(900, 29.0)
    assert not pace.is_stalled(0, 29.0)
    assert not pace.is_stalled(0, 1_000.0)


def test_an_event_is_one_line_of_json_with_its_id_and_a_gap_comes_first() -> None:
    told = told_of({"events": [event(7)], "upto": 7, "lost": 3})
    assert told == b'event: gap\ndata: {"lost":3}\n\nid: 7\ndata: {"id":7,"text":"\xc3\xa4\\n"}\n\n'
    assert told_of({"events": [], "upto": 7, "lost": None}) == b'event: gap\ndata: {"lost":null}\n\n'
    assert told_of({"events": [], "upto": 7, "lost": 0}) == b""


def test_a_stream_of_events_goes_on_where_it_was_and_tells_its_place() -> None:
    whole = {"events": [event(number) for number in range(PIECE)], "upto": 230, "lost": 0}
    node = Node(whole, {"events": [], "upto": 231, "lost": 0})

    async def follow() -> None:
        source = Events(node.ask, Watch(node.ask), {"vpn": "a", "event": "X*", "limit": 7}, "30")
        assert (await source.next()).count(b"data: ") == PIECE
        assert source.wait_s == 0.0
        assert await source.next() == b""
        assert source.wait_s == EVENTS_S
        assert source.beat() == b":\nid: 231\n\n"

    asyncio.run(follow())
    asked = {"vpn": "a", "event": "X*", "limit": PIECE}
    assert node.asked == [asked | {"since": 30}, asked | {"since": 230}]


@pytest.mark.parametrize("last", ["x", "1.5", "9" * 30, "٣"])
def test_what_is_no_id_of_an_event_is_one_that_nobody_knows(last: str) -> None:
    node = Node({"events": [], "upto": 3, "lost": None})

    async def follow() -> bytes:
        return await Events(node.ask, Watch(node.ask), {"since": 5}, last).next()

    assert b'{"lost":null}' in asyncio.run(follow())
    assert node.asked == [{"since": -1, "limit": PIECE}]


def test_the_watch_asks_once_for_all_and_tells_of_new_events() -> None:
    node = Node(
        *({"events": [], "upto": upto, "lost": 0} for upto in (5, 5, 6)),
    )

    async def watch() -> None:
        seen = Watch(node.ask)
        with seen.watching(), seen.watching():
            first = seen.changed
            assert seen.changed is first
            await asyncio.wait_for(first, 5)  # the first look: nobody knows what was before
            await asyncio.wait_for(seen.changed, 5)
        assert len(node.asked) == 3

    asyncio.run(watch())


def test_jobs_are_told_when_they_change_and_the_last_word_says_so() -> None:
    running = {"state": "running", "done": 1}
    node = Node(running, running, {"state": "done", "done": 2})

    async def follow() -> None:
        source = Jobs(node.ask, {"jobs": [[0, 1]]})
        assert await source.next() == b'data: {"state":"running","done":1}\n\n'
        assert await source.next() == b""
        assert not source.is_over
        assert (await source.next()).startswith(f"id: {OVER}\n".encode())
        assert source.is_over

    asyncio.run(follow())


async def counts() -> None:
    """Say that a login counts."""


@pytest.mark.parametrize(
    "changed",
    [{"enabled": False}, {"password": "other"}, {"password_set": False}],
)
def test_a_login_stands_until_the_operator_is_another(changed: dict[str, Any]) -> None:
    known = {"enabled": True, "password": "hash", "password_set": True}
    node = Node(known, known, known | changed)

    async def look() -> None:
        standing = Standing(node.ask, "anna", counts)
        await standing.check(0.0)
        await standing.check(STANDING_S / 2)
        await standing.check(STANDING_S)
        assert len(node.asked) == 2
        with pytest.raises(errors.UnauthorizedError):
            await standing.check(2 * STANDING_S)

    asyncio.run(look())


def test_an_operator_without_a_password_has_another_hash_each_time_and_stands() -> None:
    known = {"enabled": True, "password": "one", "password_set": False}
    node = Node(known, known | {"password": "two"})

    async def look() -> None:
        standing = Standing(node.ask, "anna", counts)
        await standing.check(0.0)
        await standing.check(STANDING_S)

    asyncio.run(look())


def test_a_token_is_judged_again_and_ends_the_login() -> None:
    node = Node({"enabled": True, "password": "", "password_set": False})
    answers: list[errors.AngariumError | None] = [None, errors.error_for(errors.UNAUTHORIZED, "it has ended")]

    async def shown_again() -> None:
        if error := answers.pop(0):
            raise RefusedError(error, {})

    async def look() -> None:
        standing = Standing(node.ask, "anna", shown_again)
        await standing.check(0.0)
        with pytest.raises(errors.UnauthorizedError, match="it has ended"):
            await standing.check(STANDING_S)

    asyncio.run(look())
