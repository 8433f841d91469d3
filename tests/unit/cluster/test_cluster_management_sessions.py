"""Sessions of browsers: how long they last, and how many there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from aiohttp import web

from angarium_server.connections.tls import LOCAL
from cluster.management.access.browsers import (
    IDLE_S,
    LIFETIME_S,
    PER_OPERATOR_MAX,
    SESSIONS_MAX,
    Sessions,
    cookie_name,
    set_cookie,
)

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


def test_a_session_lasts_while_it_is_used_and_no_longer_than_its_lifetime() -> None:
    sessions = Sessions()
    name, _ = sessions.begin("anna", "hash", 0.0)
    now = 0.0
    while now + IDLE_S <= LIFETIME_S:
        now += IDLE_S
        assert sessions.use(name, now) is not None
    assert sessions.use(name, LIFETIME_S + 1) is None
    idle, _ = sessions.begin("anna", "hash", 0.0)
    assert sessions.use(idle, IDLE_S + 1) is None
    assert len(sessions) == 0


def test_only_its_own_id_and_its_own_token_open_a_session() -> None:
    sessions = Sessions()
    name, session = sessions.begin("anna", "hash", 0.0)
    _, other = sessions.begin("anna", "hash", 0.0)
    assert sessions.use("", 0.0) is sessions.use(name + "x", 0.0) is None
    assert session.allows_change(session.token)
    assert not any(session.allows_change(token) for token in ("", "ä", other.token))
    sessions.end(name)
    assert sessions.use(name, 0.0) is None


def test_one_operator_more_ends_the_session_that_was_idle_for_longest() -> None:
    sessions = Sessions()
    names = [sessions.begin("anna", "hash", 0.0)[0] for _ in range(PER_OPERATOR_MAX)]
    stranger, _ = sessions.begin("bob", "hash", 0.0)
    sessions.use(names[0], 1.0)
    sessions.begin("anna", "hash", 2.0)
    assert sessions.use(names[1], 2.0) is None
    assert sessions.use(names[0], 2.0)
    assert sessions.use(stranger, 2.0)


def test_there_are_so_many_sessions_and_those_that_are_over_make_room_first() -> None:
    sessions = Sessions()
    for number in range(SESSIONS_MAX + 5):
        sessions.begin(f"operator-{number}", "hash", 0.0)
    assert len(sessions) == SESSIONS_MAX
    sessions.begin("anna", "hash", IDLE_S + 1)
    assert len(sessions) == 1


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8090", "angarium-8090"),
        ("localhost", "angarium"),
        ("[::1]", "angarium"),
        ("localhost:\u0661", "angarium"),
    ],
)
def test_a_cookie_has_a_name_that_cookies_can_have(host: str, name: str) -> None:
    request = cast("BaseRequest", SimpleNamespace(headers={"Host": host}))
    assert cookie_name(request, LOCAL) == name
    set_cookie(web.Response(), cookie_name(request, LOCAL), "x", LOCAL)
