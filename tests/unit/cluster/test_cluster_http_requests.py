"""What a request of HTTP waits for, and what becomes of that when it waits no more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from angarium import errors
from angarium.errors import AngariumError, error_for
from cluster.http.requests import Requests
from gateway.http.client import ClientState, HttpClient
from gateway.http.credentials import Credentials

if TYPE_CHECKING:
    from cluster.http.events import Events
    from cluster.http.role import HttpRuntime
    from gateway.http.client import Done
    from gateway.http.clients import Clients


def requests(clients: object = None) -> Requests:
    settings = SimpleNamespace(max_body_bytes=1, body_memory_bytes=1, request_timeout_ms=1)
    runtime = cast("HttpRuntime", SimpleNamespace(settings=settings, max_message_bytes=1))
    return Requests(runtime, cast("Clients", clients), cast("Events", None), lambda: None)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["its time is over", "its client is gone"])
def test_who_waits_no_more_gives_up_what_was_asked_for(is_cancelled: bool) -> None:
    asked: list[Done] = []
    given_up: list[Done] = []

    async def run() -> None:
        limit_s = 60.0 if is_cancelled else 0.01
        task = asyncio.ensure_future(requests()._done(asked.append, limit_s, given_up.append))
        await asyncio.sleep(0)
        if is_cancelled:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else AngariumError):
            await task
        asked[0](error_for(errors.SHUTTING_DOWN))  # nobody is told

    asyncio.run(run())
    assert len(given_up) == 1
    assert given_up[0] is asked[0]


def test_what_is_done_is_not_given_up() -> None:
    given_up: list[Done] = []
    asyncio.run(requests()._done(lambda done: done(None), 60.0, given_up.append))
    assert given_up == []


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_request_whose_client_is_not_let_in_is_of_the_one_before_if_that_serves_on(
    *, goes_back: bool
) -> None:
    refused, before = HttpClient({}), HttpClient({})
    refused.state, refused.error = ClientState.OVER, error_for(errors.TOO_MANY_CONNECTIONS)
    found = before if goes_back else None
    clients = SimpleNamespace(find=lambda *_: refused, go_back=lambda *_: found)
    asked = requests(clients)._client_of(Credentials("v", "anna", None, "::1"))
    if goes_back:
        assert asyncio.run(asked) is before
    else:
        with pytest.raises(AngariumError):
            asyncio.run(asked)
