"""Whom a request over HTTP means, which page sent it, and from where a proxy passes it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from multidict import CIMultiDict

from angarium import errors
from angarium_server.http.origins import Origins, origin_of, target_in
from angarium_server.http.proxies import Proxies

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

LISTEN = ["http://127.0.0.1:8090"]


class Request:
    """As much of a request as is looked at."""

    def __init__(self, *headers: tuple[str, str], raw_path: str = "/") -> None:
        self.headers = CIMultiDict(headers)
        self.raw_path = raw_path


def code_of(
    origins: Origins, *headers: tuple[str, str], is_encrypted: bool = False, raw_path: str = "/"
) -> int:
    """Give the code of the refusal, 0 if there is none."""
    request: Any = Request(*headers, raw_path=raw_path)
    try:
        origins.check(cast("BaseRequest", request), is_encrypted=is_encrypted)
    except errors.AngariumError as error:
        return error.code
    return 0


@pytest.mark.parametrize(
    ("host", "origin", "code"),
    [
        ("broker.example", "https://broker.example", 0),
        ("127.0.0.1:8090", "https://broker.example", 0),
        ("broker.example", "HTTPS://Broker.Example", 0),
        ("127.0.0.1:8090", "http://127.0.0.1:8090", 0),
        ("broker.example", "https://broker.example:8443", errors.CROSS_ORIGIN),
        ("broker.example", "https://broker.example.evil.example", errors.CROSS_ORIGIN),
        ("broker.example", "https://evil.example", errors.CROSS_ORIGIN),
        ("127.0.0.1:8090", "https://127.0.0.1:8090", errors.CROSS_ORIGIN),
        ("broker.example", "null", errors.CROSS_ORIGIN),
        ("broker.example", "", errors.CROSS_ORIGIN),
        ("evil.example", "https://broker.example", errors.MISDIRECTED_REQUEST),
    ],
)
def test_pages_of_the_public_address_are_ours_behind_a_proxy(host: str, origin: str, code: int) -> None:
    origins = Origins(LISTEN, [], "https://broker.example")
    assert code_of(origins, ("Host", host), ("Origin", origin)) == code


def test_without_one_a_page_of_tls_is_none_of_ours_over_plain_http() -> None:
    origins = Origins(LISTEN, ["broker.example"])
    headers = (("Host", "broker.example"), ("Origin", "https://broker.example"))
    assert code_of(origins, *headers) == errors.CROSS_ORIGIN
    assert code_of(origins, *headers, is_encrypted=True) == 0
    assert code_of(origins, *headers, ("Origin", "https://evil.example"), is_encrypted=True)


@pytest.mark.parametrize(
    ("target", "host", "code"),
    [
        ("http://127.0.0.1:8090/a", "evil.example", 0),
        ("HTTP://LocalHost/a", "evil.example", 0),
        ("http://evil.example/a", "127.0.0.1:8090", errors.MISDIRECTED_REQUEST),
        ("https://127.0.0.1:8090/a", "127.0.0.1:8090", errors.MISDIRECTED_REQUEST),
        ("http://127.0.0.1@evil.example/a", "127.0.0.1", errors.INVALID_ARGUMENT),
        ("http://evil.example@127.0.0.1/a", "127.0.0.1", errors.INVALID_ARGUMENT),
        ("http:///a", "127.0.0.1", errors.INVALID_ARGUMENT),
        ("/http://evil.example/a", "127.0.0.1", 0),
    ],
)
def test_the_host_in_the_line_of_a_request_is_the_one_that_counts(target: str, host: str, code: int) -> None:
    assert code_of(Origins(LISTEN, []), ("Host", host), raw_path=target) == code


def test_a_page_is_compared_with_the_host_in_the_line() -> None:
    origins = Origins(LISTEN, [])
    for host, code in (("a.example", 0), ("b.example", errors.CROSS_ORIGIN)):
        headers = (("Host", "b.example"), ("Origin", f"https://{host}"))
        assert code_of(origins, *headers, is_encrypted=True, raw_path="https://a.example/") == code


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("/a%2Fb?c=http://d/", "/a%2Fb?c=http://d/"),
        ("http://h:1/a%2Fb?c", "/a%2Fb?c"),
        ("https://h", "/"),
        ("http://h?c=d", "/?c=d"),
        ("http://h//a", "//a"),
        ("*", "*"),
        ("ftp://h/a", "ftp://h/a"),
    ],
)
def test_the_path_is_what_is_behind_the_host(raw: str, target: str) -> None:
    request: Any = Request(raw_path=raw)
    assert target_in(request) == target


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Broker.example", "https://broker.example"),
        ("https://broker.example:443/", "https://broker.example"),
        ("http://localhost:80", "http://localhost"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
    ],
)
def test_an_address_is_written_as_browsers_write_it(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("address", "forwarded", "found"),
    [
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["1.1.1.1, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["1.1.1.1", "192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        ("10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["::ffff:192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["<script>"], "10.0.0.1"),
        ("10.0.0.1", [","], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.2, " * 30 + "10.0.0.3"], "10.0.0.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("192.0.2.9", ["1.1.1.1"], "192.0.2.9"),
        ("", ["1.1.1.1"], ""),
    ],
)
def test_only_a_proxy_says_where_a_request_comes_from(address: str, forwarded: list[str], found: str) -> None:
    assert Proxies(["10.0.0.0/8"]).address_of(address, forwarded) == found


def test_nobody_is_believed_unless_configured() -> None:
    assert Proxies([]).address_of("127.0.0.1", ["1.1.1.1"]) == "127.0.0.1"
