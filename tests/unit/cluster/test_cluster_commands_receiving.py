"""The loop of commands that receive: when it ends, and what it gives."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import click
import pytest

from angarium import errors
from angarium.message import Delivery, Message, MessageBatch
from cluster.commands.messages import receiving
from cluster.commands.messages.receiving import Received, announce, ready_file, receive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def batch(count: int) -> MessageBatch:
    rows = [(index, *Message("a", b"x").row[1:]) for index in range(count)]
    return MessageBatch(rows, Delivery(rows, None, 0))


class FakeSubscription:
    """Gives batches of the sizes it was made with; a 0 stands for a time in which nothing comes."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes
        self.closed = False

    async def batches(self) -> AsyncIterator[MessageBatch]:
        try:
            for size in self._sizes:
                if size:
                    yield batch(size)
                else:
                    await asyncio.sleep(30)
        finally:
            self.closed = True


def run(subscription: FakeSubscription, **options: Any) -> tuple[list[int], int]:
    """Give the sizes of the batches that came, and how often nothing was there."""
    idle = 0

    async def on_idle() -> None:
        nonlocal idle
        idle += 1

    async def collect() -> list[int]:
        batches = receive(
            subscription.batches(),
            count=options.get("count"),
            idle_timeout_s=options.get("idle_timeout_s"),
            on_idle=on_idle,
        )
        return [len(found) async for found in batches]

    return asyncio.run(collect()), idle


def test_it_ends_with_the_subscription() -> None:
    assert run(FakeSubscription(2, 3))[0] == [2, 3]


def test_it_gives_no_more_than_the_count_and_takes_no_more_than_it_needs() -> None:
    assert run(FakeSubscription(2, 3, 0), count=4)[0] == [2, 2]
    assert run(FakeSubscription(2, 0), count=2)[0] == [2]


def test_it_ends_when_nothing_comes_for_long_enough() -> None:
    subscription = FakeSubscription(2, 0)
    assert run(subscription, idle_timeout_s=0.02) == ([2], 1)
    assert subscription.closed


def test_it_tells_when_nothing_is_there_so_that_output_is_flushed() -> None:
    assert run(FakeSubscription(1, 1, 1))[1] == 0
    assert run(FakeSubscription(1, 0), idle_timeout_s=0.01)[1] == 1


def test_who_interrupts_it_is_not_told_to_raise_a_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.Abort):
        Received(messages=2, seconds=1.0, interrupted=True).conclude("received", 3, quiet=False)
    assert capsys.readouterr().err == "received 2 messages in 1.000 s\n"
    with pytest.raises(errors.TimeoutExpiredError, match="2 of 3 messages came"):
        Received(messages=2, seconds=1.0).conclude("received", 3, quiet=False)
    Received(messages=3, interrupted=True).conclude("received", 3, quiet=True)


def test_the_ready_file_says_who_listens_to_what(tmp_path: Path) -> None:
    client = cast("Any", SimpleNamespace(name="c", url="tcp://127.0.0.1:1"))
    path = tmp_path / "ready"
    announce(client, ["a/>", "b"], str(path), "subscribed to a/> b", quiet=False)
    ready = json.loads(path.read_text())
    assert ready["client_name"] == "c"
    assert ready["filters"] == ["a/>", "b"]
    assert [found.name for found in tmp_path.iterdir()] == ["ready"]
    announce(client, ["a"], None, "subscribed to a", quiet=True)


@pytest.mark.parametrize(
    ("quiet", "said"), [(False, "subscribed to a at tcp://127.0.0.1:1, Ctrl-C ends\n"), (True, "")]
)
def test_a_command_that_waits_says_what_for(
    quiet: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where stderr is no terminal: a log shows why nothing comes, and from when on."""
    client = cast("Any", SimpleNamespace(name="c", url="tcp://127.0.0.1:1"))
    announce(client, ["a"], None, "subscribed to a", quiet=quiet)
    assert capsys.readouterr() == ("", said)


def test_a_ready_file_is_there_for_one_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that runs twice waits for the file of the second run, not for the one that the first left."""
    monkeypatch.setattr(receiving, "READY_SEEN_S", 0.1)
    client = cast("Any", SimpleNamespace(name="c", url="tcp://127.0.0.1:1"))
    path = tmp_path / "ready"
    path.write_text("of a run that was killed")
    began = time.monotonic()
    with ready_file(str(path)):
        assert not path.exists()
        announce(client, ["a"], str(path), "subscribed to a", quiet=True)
        assert path.exists()
    assert not path.exists()
    assert 0.05 < time.monotonic() - began < 5, "a script has time to see it"
    with ready_file(str(path)):
        pass
    with ready_file(None):
        pass


def test_a_ready_file_goes_when_the_command_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "READY_SEEN_S", 0.0)

    def fail() -> None:
        with ready_file(str(tmp_path / "ready")):
            (tmp_path / "ready").write_text("{}")
            raise errors.error_for(errors.TIMEOUT)

    with pytest.raises(errors.TimeoutExpiredError):
        fail()
    assert list(tmp_path.iterdir()) == []
