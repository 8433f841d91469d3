"""How `angarium reply` answers: real programs, and a client that only notes the replies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from angarium import errors
from angarium.message import Message
from cluster.commands.messages.requests import EXIT_STATUS, STATUS_TIMED_OUT, Answering

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


class FakeClient:
    """Notes replies, or refuses them."""

    def __init__(self, failure: errors.AngariumError | None = None) -> None:
        self.replies: list[tuple[str, bytes, Mapping[str, Any] | None]] = []
        self._failure = failure

    async def reply(self, message: Message, payload: bytes, *, properties: Mapping[str, Any] | None) -> None:
        if self._failure is not None:
            raise self._failure
        self.replies.append((message.topic, payload, properties))


def answering(command: list[str], **changes: Any) -> tuple[Answering, list[dict[str, Any]]]:
    shown: list[dict[str, Any]] = []
    usual: dict[str, Any] = {
        "filter_text": "a",
        "command": command,
        "exec_timeout": 10.0,
        "parallel": 2,
        "count": None,
        "idle_timeout": None,
        "ready_file": None,
        "quiet": True,
        "show": shown.append,
    }
    return Answering(**(usual | changes)), shown


def answer(
    command: list[str], *messages: Message, client: FakeClient | None = None, **changes: Any
) -> tuple[FakeClient, list[dict[str, Any]]]:
    client = client or FakeClient()
    work, shown = answering(command, **changes)

    async def scene() -> None:
        running: set[asyncio.Task[None]] = set()
        await work._start(cast("Any", client), messages, running)
        assert len(running) <= work.parallel
        if running:
            await asyncio.wait(running)

    asyncio.run(scene())
    return client, shown


def question(topic: str = "a", payload: bytes = b"hello") -> Message:
    return Message(topic, payload, reply_to="inbox/1", correlation_id="c1")


def test_the_payload_is_the_input_and_the_output_is_the_answer() -> None:
    client, shown = answer(["tr", "a-z", "A-Z"], question())
    assert client.replies == [("a", b"HELLO", None)]
    assert shown[0][EXIT_STATUS] == 0


def test_a_program_finds_topic_and_correlation_id_in_its_environment() -> None:
    client, _ = answer(["sh", "-c", 'echo "$ANGARIUM_TOPIC $ANGARIUM_CORRELATION_ID"'], question("x/y"))
    assert client.replies == [("x/y", b"x/y c1\n", None)]


def test_a_program_that_fails_is_answered_with_its_exit_status() -> None:
    client, _ = answer(["sh", "-c", "echo half; exit 3"], question())
    assert client.replies == [("a", b"half\n", {EXIT_STATUS: 3})]


def test_a_program_that_takes_too_long_is_ended() -> None:
    client, _ = answer(["sleep", "30"], question(), exec_timeout=0.1)
    assert client.replies == [("a", b"", {EXIT_STATUS: STATUS_TIMED_OUT})]


def test_a_message_that_asks_for_no_reply_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = answer(["true"], Message("a", b""))
    assert client.replies == []
    assert "asks for no reply" in capsys.readouterr().err


def test_more_requests_than_run_at_a_time_are_all_answered() -> None:
    client, _ = answer(["cat"], *(question(payload=b"%d" % number) for number in range(5)), parallel=2)
    assert sorted(payload for _, payload, _ in client.replies) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_reply_that_cannot_be_sent_is_told_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lost = FakeClient(errors.error_for(errors.NOT_CONNECTED))
    _, shown = answer(["true"], question(), client=lost)
    assert shown == []
    assert "error 60001" in capsys.readouterr().err
