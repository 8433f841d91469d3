"""What a command tells of the events of its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from angarium.client.connection.connection import ClientEvent
from cluster.commands.messages.notices import Notices

if TYPE_CHECKING:
    import pytest


def test_without_a_refusal_there_is_no_error() -> None:
    assert Notices().refusal() is None


def test_refusals_are_counted_and_the_first_one_is_the_error() -> None:
    notices = Notices()
    notices(ClientEvent("notice", code=errors.PUBLISH_DENIED, detail="a/b", messages=3))
    notices(ClientEvent("notice", code=errors.INVALID_TOPIC, detail="c", messages=2))
    assert notices.refused == 5
    error = notices.refusal()
    assert error is not None
    assert error.code == errors.PUBLISH_DENIED
    assert error.detail == "a/b; 5 messages refused"


def test_direct_messages_that_a_failure_cost_are_lost_and_not_refused() -> None:
    notices = Notices()
    notices(ClientEvent("notice", code=errors.SHARD_UNAVAILABLE, messages=2))
    assert (notices.lost, notices.refused, notices.refusal()) == (2, 0, None)


def test_discards_are_counted() -> None:
    notices = Notices()
    notices(ClientEvent("discard", messages=7))
    notices(ClientEvent("discard", messages=1))
    assert notices.discarded == 8
    assert notices.refusal() is None


def test_a_lost_connection_is_told_when_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    notices = Notices()
    notices(ClientEvent("connected", url="tcp://a:1"))
    notices(ClientEvent("disconnected", code=errors.KEEPALIVE_TIMEOUT))
    notices(ClientEvent("reconnected", url="tcp://b:2"))
    lost, again = capsys.readouterr().err.splitlines()
    assert "error 40802" in lost
    assert again == "connected again to tcp://b:2"


def test_a_lost_connection_is_told_unless_it_is_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    notices = Notices()
    notices(ClientEvent("disconnected", code=errors.DISCONNECTED_BY_OPERATOR))
    assert capsys.readouterr().err == "", "the command ends with that very error"
    notices(ClientEvent("disconnected", code=errors.KEEPALIVE_TIMEOUT, detail="\x1b[31m"))
    told = capsys.readouterr().err
    assert told.startswith("connection lost, trying again: error ")
    assert "\x1b" not in told
