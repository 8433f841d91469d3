"""When addresses of issuers are asked for their keys."""

from __future__ import annotations

from typing import Any

import pytest

from angarium_server.tokens.config import TokenIssuer, faults_of
from cluster.controller.issuers.keys import Fetches


def issuer(**changed: Any) -> TokenIssuer:
    given = {"name": "login", "issuer": "i", "audience": ["a"], "jwks_url": "https://x.example/keys"}
    return TokenIssuer(**{**given, "refresh_s": 100, "refresh_min_s": 10, **changed})


def names(fetches: Fetches, now: float) -> list[str]:
    fetches.validate()
    return [one.name for one in fetches.take_due(now)]


def test_an_address_is_asked_at_the_start_and_then_now_and_then() -> None:
    fetches = Fetches([issuer(), issuer(name="file", issuer="j", jwks_url="", keys_file="k")])
    assert names(fetches, 0.0) == ["login"]
    assert names(fetches, 500.0) == [], "one request at a time"
    assert fetches.done("login", 500.0, is_good=True) is False
    assert names(fetches, 599.9) == []
    assert names(fetches, 600.0) == ["login"]


def test_failures_are_told_once_and_tried_again_more_and_more_seldom() -> None:
    fetches = Fetches([issuer()])
    now, waits, told = 0.0, [], []
    for _ in range(6):
        assert names(fetches, now) == ["login"]
        told.append(fetches.done("login", now, is_good=False))
        began = now
        while True:
            now += 1.0
            due = names(fetches, now)
            if due:
                fetches._of["login"].is_under_way = False
                fetches._of["login"].due = now
                break
        waits.append(now - began)
    assert waits == [10.0, 20.0, 40.0, 80.0, 100.0, 100.0]
    assert told == [True] + [False] * 5
    assert names(fetches, now) == ["login"]
    assert fetches.done("login", now, is_good=True) is True


def test_an_unknown_key_is_worth_a_request_but_not_too_often() -> None:
    fetches = Fetches([issuer()])
    assert not fetches.want("nobody", 0.0)
    names(fetches, 0.0)
    assert fetches.want("login", 5.0), "one is under way"
    fetches.done("login", 6.0, is_good=True)
    assert not fetches.want("login", 9.9)
    assert names(fetches, 9.9) == []
    assert fetches.want("login", 10.0)
    assert names(fetches, 10.0) == ["login"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"jwks_url": ""}, "one of them"),
        ({"keys_file": "k"}, "one of them"),
        ({"jwks_url": "http://x.example/keys"}, "another host"),
        ({"jwks_url": "ftp://x.example/keys"}, "write https"),
        ({"jwks_url": "https://"}, "write https"),
        ({"jwks_url": "https://user:secret@x.example/"}, "write https"),
        ({"jwks_url": "https://x.example:99999/"}, "jwks_url"),
        ({"jwks_url": "https://x.example/\r\nX: y"}, "write https"),
    ],
)
def test_an_address_that_is_none_is_told(changed: dict[str, Any], told: str) -> None:
    (fault,) = faults_of([issuer(**changed)])
    assert told in fault


def test_an_address_on_this_host_needs_no_encryption() -> None:
    assert faults_of([issuer(jwks_url="http://127.0.0.1:8080/keys")]) == []
