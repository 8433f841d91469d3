"""Addresses to connect to, and what is said about what is none."""

from __future__ import annotations

import time

import pytest

import angarium
from angarium import blocking, errors
from angarium.client.transport.address import is_of_this_host, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://127.0.0.1:55555", ("127.0.0.1", 55555)),
        ("tcp://node-2.example:1", ("node-2.example", 1)),
        ("tcp://[::1]:65535", ("::1", 65535)),
        ("tcp://[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
        ("tls://node-2.example:55556", ("node-2.example", 55556)),
        ("tls://[::1]:7", ("::1", 7)),
        ("ipc:///run/angarium/clients", "/run/angarium/clients"),
    ],
)
def test_an_address_has_a_host_and_a_port_or_a_path(url: str, expected: object) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:42689", "write tcp://localhost:42689"),
        ("localhost", "write tcp://localhost:55555"),
        ("nats://127.0.0.1:4222", "write tcp://127.0.0.1:4222"),
        ("tcp://127.0.0.1", "it names no port: write tcp://127.0.0.1:55555"),
        ("tcp://[::1]", "it names no port: write tcp://[::1]:55555"),
        ("tcp://127.0.0.1:0", "it names no port"),
        ("tls://node-2.example", "it names no port: write tls://node-2.example:55555"),
        ("tls://node-2.example:0", "it names no port"),
        ("tls://node-2.example:x", "write tls://HOST:PORT, with a port"),
        ("tls://", "write tls://HOST:PORT"),
        ("TLS://node-2.example:1", "write tls://node-2.example:1"),
        ("ssl://node-2.example", "write tls://node-2.example:55555"),
        ("tls:node-2.example:1", "write tcp://HOST:PORT"),
        ("tcp://127.0.0.1:99999", "a port of 1 to 65535"),
        ("tcp://127.0.0.1:seven", "a port of 1 to 65535"),
        ("tcp://*:55555", "write tcp://HOST:PORT"),
        ("tcp://127.0.0.1:55555/", "write tcp://HOST:PORT"),
        ("tcp://", "write tcp://HOST:PORT"),
        ("ipc://", "tcp://HOST:PORT"),
        ("", "write tcp://HOST:PORT"),
        ("a b", "write tcp://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused_with_the_right_form(url: str, advice: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        parse(url)
    assert caught.value.code == errors.INVALID_ARGUMENT
    assert repr(url) in caught.value.detail
    assert advice in caught.value.advice


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tls://127.10.2.3:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///run/x", True),
        ("tcp://localhost:1", False),
        ("tcp://127.example:1", False),
        ("tcp://128.0.0.1:1", False),
        ("tls://[::2]:1", False),
    ],
)
def test_addresses_of_this_host_are_known_without_asking_for_names(url: str, *, is_here: bool) -> None:
    assert is_of_this_host(parse(url)) is is_here


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(
        errors.InvalidRequestError, match="username and password are given separately"
    ) as caught:
        parse("tcp://alice:s3cret@127.0.0.1:55555")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(errors.InvalidRequestError, match="the address is tls://HOST:PORT") as caught:
        parse("tls://alice:s3cret@127.0.0.1:55555")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("connect", [angarium.connect, blocking.connect])
def test_connecting_to_no_address_fails_at_once(connect: object) -> None:
    began = time.monotonic()
    for url in ("localhost:1", ["tcp://127.0.0.1:1", "nats://localhost:4222"]):
        with pytest.raises(errors.InvalidRequestError, match="no address to connect to"):
            connect(url)  # type: ignore[operator]
    assert time.monotonic() - began < 2.5, "an attempt takes 5 s"


@pytest.mark.parametrize("connect", [angarium.connect, blocking.connect])
def test_a_password_that_is_no_text_is_refused_before_anybody_is_asked(connect: object) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="password is text, not bytes") as refused:
        connect("tcp://127.0.0.1:1", password=b"secret")  # type: ignore[operator]
    assert "secret" not in str(refused.value)
