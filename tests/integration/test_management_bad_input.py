"""What strangers and broken programs send to the management API: each is refused, and nobody else notices."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium_server.connections.descriptors import raise_descriptors
from cluster.data.node_file import read_node_file
from tests.integration.http_api import LIMIT_S, Api, basic, managed_node, raw, received
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

BODY_MAX = 65_536
CONNECTIONS_MAX = 100
TIMEOUT_MS = 1_000
CONFIG = f"""
[management]
max_body_bytes = {BODY_MAX}
max_connections = {CONNECTIONS_MAX}
max_connections_per_address = 100000
request_timeout_ms = {TIMEOUT_MS}
hosts = ["node.example"]
"""
AUTHORIZATION = f"Authorization: {basic('admin')}\r\n".encode()
DO = "/api/v1/operations/operators.me"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with managed_node(tmp_path_factory.mktemp("management"), CONFIG) as running:
        yield running


@pytest.fixture
def api(node: Node) -> Iterator[Api]:
    made = Api(node.management_url)
    yield made
    made.close()
    again = Api(node.management_url)
    assert again.do("operators.me").status == 200
    again.close()


def request(
    method: bytes = b"POST", target: bytes = DO.encode(), *headers: bytes, host: bytes = b"localhost"
) -> bytes:
    """Give a request with a login; what it brings is behind it."""
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + host, *headers, AUTHORIZATION.strip()]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def status(answer: bytes) -> int:
    """Give the status of the first answer of a connection."""
    return int(answer.split(b" ", 2)[1])


CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(node: Node, api: Api) -> None:
    refused = api.send("POST", DO, b" " * (BODY_MAX + 1))
    assert (refused.status, refused.code) == (413, errors.CONTENT_TOO_LARGE)
    said = request(b"POST", DO.encode(), JSON, CLOSE, b"Content-Length: 1000000000000")
    assert status(received(raw(node, said))) == 413
    chunked = request(b"POST", DO.encode(), JSON, CLOSE, b"Transfer-Encoding: chunked")
    assert status(received(raw(node, chunked + (b"8000\r\n" + b" " * 0x8000 + b"\r\n") * 3))) == 413


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{}{}",
        b'{"a": NaN}',
        b'{"a": \xff}',
        b"[" * 60_000,
        b'{"a":' * 9_000 + b"1" + b"}" * 9_000,
        b'{"kind":"queue","name":"x","attributes":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"name": 123456789012345678901234567890}',
        b'{"name": "\\ud800"}',
        b'{"unknown": 1}',
    ],
)
def test_a_body_that_is_no_object_of_arguments_is_refused(api: Api, body: bytes) -> None:
    refused = api.send("POST", DO, body)
    assert (refused.status, refused.code) == (400, errors.INVALID_ARGUMENT)


def test_a_body_of_another_type_or_compressed_is_refused(api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "a/b"):
        refused = api.send("POST", DO, b"{}", Content_Type=kind)
        assert (refused.status, refused.code) == (415, errors.UNSUPPORTED_MEDIA_TYPE)
    for packed in ("gzip", "deflate", "br", "zstd"):
        refused = api.send("POST", DO, b"\x1f\x8b" + bytes(50), Content_Encoding=packed)
        assert (refused.status, refused.code) == (415, errors.UNSUPPORTED_MEDIA_TYPE)
    assert api.send("POST", DO, b"{}", Content_Type="application/json; charset=utf-8").status == 200


def test_messagepack_that_is_none_is_refused(api: Api) -> None:
    for body in (
        b"\xc1",
        b"\x81",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 60_000,
        b"\x81\x01\x02",
        b"\xc7\x01\x05\x00",
    ):
        refused = api.send("POST", DO, body, Content_Type="application/vnd.msgpack")
        assert (refused.status, refused.code) == (400, errors.INVALID_ARGUMENT)


def test_who_waits_for_a_word_before_the_body_gets_it_when_it_is_known_who_asks(node: Node) -> None:
    head = request(b"POST", DO.encode(), b"Content-Type: application/json", b"Content-Length: 2")
    waits = b"\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    made = raw(node, head[:-4] + waits)
    assert made.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    made.sendall(b"{}")
    assert received(made).startswith(b"HTTP/1.1 200 ")
    stranger = head.replace(AUTHORIZATION.strip(), b"Authorization: Basic eDp5")
    assert received(raw(node, stranger[:-4] + waits)).startswith(b"HTTP/1.1 401 ")


def test_a_request_that_does_not_arrive_is_ended(node: Node, api: Api) -> None:
    began = time.monotonic()
    half_head = raw(node, b"POST / HTTP/1.1\r\nHost: localhost\r\nX: ")
    half_body = raw(node, request(b"POST", DO.encode(), JSON, b"Content-Length: 100") + b"{")
    nothing = raw(node, b"")
    assert received(half_head) == b""
    assert status(received(half_body)) == 408
    assert received(nothing) == b""
    assert time.monotonic() - began < LIMIT_S


def test_a_head_that_trickles_has_no_longer_than_one_that_stalls(node: Node) -> None:
    made = raw(node, b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            made.sendall(b"X: y\r\n")
            time.sleep(0.05)
    except OSError:
        return
    finally:
        made.close()
    pytest.fail("it may take for ever")


@pytest.mark.parametrize(
    "smuggled",
    [
        request(b"POST", DO.encode(), JSON, b"Content-Length: 2", b"Transfer-Encoding: chunked")
        + b"0\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"Transfer-Encoding: chunked", b"Content-Length: 2")
        + b"0\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"Content-Length: 2", b"Content-Length: 3") + b"{} ",
        request(b"POST", DO.encode(), JSON, b"Content-Length: +2") + b"{}",
        request(b"POST", DO.encode(), JSON, b"Content-Length: 2 ,2") + b"{}",
        request(b"POST", DO.encode(), JSON, b"Content-Length: -1") + b"{}",
        request(b"POST", DO.encode(), JSON, b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"Transfer-Encoding: xchunked") + b"0\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"Transfer-Encoding : chunked") + b"0\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"Transfer-Encoding: chunked") + b"-1\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"Transfer-Encoding: chunked") + b"0x1\r\n{\r\n0\r\n\r\n",
        request(b"POST", DO.encode(), JSON, b"X: a\r\n folded", b"Content-Length: 2") + b"{}",
        request(b"POST", DO.encode(), JSON, b"X: a\x00b", b"Content-Length: 2") + b"{}",
        request(b"POST", DO.encode() + b" x", JSON, b"Content-Length: 2") + b"{}",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n",
        b"\x00" * 2_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    ],
)
def test_a_request_whose_end_is_in_doubt_is_the_last_of_its_connection(
    node: Node, smuggled: bytes, api: Api
) -> None:
    """What is behind it would be another request to somebody, as the two that stand in a row see it."""
    hidden = request(b"POST", b"/api/v1/operations/down", JSON, b"Content-Length: 2") + b"{}"
    answer = received(raw(node, smuggled + hidden))
    assert answer.count(b"HTTP/1.") <= 1
    if answer:
        assert 400 <= status(answer) < 500


def test_what_a_trailer_says_is_said_of_no_other_request(node: Node, api: Api) -> None:
    """A proxy sends requests of different people over one connection: the next one would come in as somebody else."""
    chunks = b"2\r\n{}\r\n0\r\n" + AUTHORIZATION + b"X-Forwarded-For: 192.0.2.7\r\n\r\n"
    chunked = request(b"POST", DO.encode(), JSON, b"Transfer-Encoding: chunked") + chunks
    stranger = (
        f"POST {DO} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n".encode() + JSON + b"\r\n\r\n{}"
    )
    answer = received(raw(node, chunked + stranger))
    assert (status(answer), answer.count(b"HTTP/1.1 ")) == (200, 1)
    assert b"Connection: close" in answer


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/%6fperations/operators.me", 200),
        ("/api//v1/operations/operators.me", 404),
        ("//api/v1/operations/operators.me", 404),
        ("/api/v1/operations/operators.me/", 404),
        ("/api/v1/./operations/operators.me", 404),
        ("/api/v1/x/../operations/operators.me", 404),
        ("/api/v1/x/%2e%2e/operations/operators.me", 404),
        ("/api/v1%2Foperations/operators.me", 404),
        ("/api/v1/operations%2Foperators.me", 404),
        ("/api/v1/operations/operators.me%00", 400),
        ("/api/v1/operations/%ff", 400),
        ("/api/v1/operations/..%2f..%2fetc%2fpasswd", 400),
        ("/API/V1/operations/operators.me", 404),
        ("/../../../../etc/passwd", 404),
        ("/static/%2e%2e/%2e%2e/etc/passwd", 404),
    ],
)
def test_no_path_leads_where_another_one_leads(api: Api, path: str, expected: int) -> None:
    assert api.send("POST", path, {}).status == expected


def test_a_line_may_name_the_host_too_and_then_that_one_is_meant(node: Node) -> None:
    for place, host, expected in (
        (b"http://localhost:1", b"evil.example", 200),
        (b"http://evil.example", b"localhost", 421),
        (b"https://localhost", b"localhost", 421),
        (b"http://a@localhost", b"localhost", 400),
        (b"ftp://localhost", b"localhost", 400),
    ):
        said = request(b"POST", place + DO.encode(), JSON, CLOSE, b"Content-Length: 2", host=host)
        assert status(received(raw(node, said + b"{}"))) == expected, place


def test_other_methods_say_which_there_are(node: Node, api: Api) -> None:
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "GET"):
        refused = api.send(method, DO)
        assert (refused.status, refused.headers["Allow"]) == (405, "POST")
    assert received(raw(node, request(b"BREW", DO.encode(), CLOSE)))[9:12] in (b"400", b"405")
    assert received(raw(node, request(b"CONNECT", b"evil.example:443", CLOSE)))[9:12] == b"400"
    head = api.send("HEAD", "/api/v1")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(api.get("").body)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"localhost", 200),
        (b"LOCALHOST:1", 200),
        (b"127.0.0.1", 200),
        (b"127.1.2.3:80", 200),
        (b"[::1]:80", 200),
        (b"node.example", 200),
        (b"evil.example", 421),
        (b"localhost.evil.example", 421),
        (b"127.0.0.1.evil.example", 421),
        (b"10.0.0.1", 421),
        (b"", 421),
        (b"a\r\nHost: localhost", 400),
    ],
)
def test_plain_http_answers_to_names_of_this_host_only(node: Node, host: bytes, expected: int) -> None:
    said = request(b"POST", DO.encode(), JSON, CLOSE, b"Content-Length: 2", host=host)
    assert status(received(raw(node, said + b"{}"))) == expected


def test_a_page_of_another_site_is_refused(node: Node, api: Api) -> None:
    for origin in (
        "http://evil.example",
        "null",
        f"https://{api.place}",
        f"http://{api.place}.evil.example",
        "",
    ):
        refused = api.send("POST", DO, {}, Origin=origin)
        assert (refused.status, refused.code) == (403, errors.CROSS_ORIGIN)
    assert api.send("POST", DO, {}, Origin=f"http://{api.place}").status == 200


def test_who_says_twice_who_asks_is_refused(node: Node, api: Api) -> None:
    for name in (b"Authorization: Basic eDp4", b"Angarium-Token: a\r\nAngarium-Token: b"):
        answer = received(
            raw(node, request(b"POST", DO.encode(), JSON, CLOSE, name, b"Content-Length: 2") + b"{}")
        )
        assert status(answer) == 400, answer


def test_headers_of_logins_that_are_none_are_refused(api: Api) -> None:
    for text in ("Basic " + "A" * 7_000, "Basic \u00e4", "Basic YQ==", "Negotiate x", "Basic " + "A" * 3_000):
        assert api.send("POST", DO, {}, Authorization=text).status == 401


def test_connections_that_ask_for_nothing_keep_nobody_out(node: Node) -> None:
    """Five thousand of them, half with the beginning of a request: who asks for something is answered meanwhile."""
    room = raise_descriptors(6_000)
    wanted = min(5_000, room - 500)
    held = []
    try:
        for number in range(wanted):
            try:
                held.append(raw(node, b"POST / HTTP/1.1\r\nX: " if number % 2 else b""))
            except OSError:
                continue
            if number % 500 == 0:
                api = Api(node.management_url)
                assert api.do("operators.me").status == 200
                api.close()
        stats = _stats(node)
        assert stats["connections"] <= CONNECTIONS_MAX
        assert stats["connections_refused"] > 0
    finally:
        for one in held:
            one.close()
    wait_for(lambda: _stats(node)["connections"], lambda count: count <= 1, "the connections")


def _stats(node: Node) -> dict[str, int]:
    with urllib.request.urlopen(f"{read_node_file(node.data).health}/metrics", timeout=LIMIT_S) as answer:
        page = answer.read().decode()
    found = {}
    for line in page.splitlines():
        if line.startswith("angarium_management_"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0].removeprefix("angarium_management_").removesuffix("_total")] = int(
                float(value)
            )
    return found
