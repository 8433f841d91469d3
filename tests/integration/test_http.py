"""HTTP at a running node: publishing, who is let in, what is refused, and the examples of the documentation."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from angarium import blocking, errors
from angarium_server.testing import Node
from tests.acceptance.document import FENCE
from tests.acceptance.installation import ROOT
from tests.integration.http_api import Web, basic, received
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

CONFIG = """
[router]
max_message_bytes = 200_000
[http]
max_body_bytes = 100_000
body_memory_bytes = 1_048_576
request_timeout_ms = 1_000
public_url = "https://messages.example"
proxies = ["127.0.0.1"]

# Who has no password is let in although somebody has one.
[vpn.default.username.default]
enabled = true

[vpn.default.acl.few]
client_connect_default = "allow"

[vpn.default.username.anna]
password_file = "anna.password"
acl_profile = "few"

[vpn.default.username.ben]
password_file = "anna.password"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("http")
    file = folder / "node.toml"
    file.write_text(CONFIG)
    (folder / "anna.password").write_text("right")
    (folder / "anna.password").chmod(0o600)
    with Node(folder / "data", workers=1, http="http://127.0.0.1:0", config=file) as running:
        for name in ("orders", "orders/eu", "jobs"):
            running.run("queue", "create", name, "--set", "owner=default")
        yield running


@pytest.fixture
def web(node: Node) -> Iterator[Web]:
    made = Web(node)
    yield made
    made.close()


@pytest.mark.requirement("R250")
def test_a_message_to_a_queue_is_stored_with_all_that_its_headers_say(node: Node, web: Web) -> None:
    told = {
        "Content_Type": "text/plain",
        "Angarium_Correlation_Id": "c 1",
        "Angarium_Reply_To": "replies/1",
        "Angarium_Ttl_Ms": "60000",
        "Angarium_Property_Colour": "red",
    }
    assert web.post("/v1/queues/orders%2Feu", b"\x00hello", **told).status == 204
    (stored,) = node.run("consume", "orders/eu", "--count", "1", "--json").splitlines()
    message = json.loads(stored)
    assert message["content_type"] == "text/plain"
    assert message["correlation_id"] == "c 1"
    assert message["reply_to"] == "replies/1"
    assert message["ttl_ms"] == 60_000
    assert message["properties"] == {"Colour": "red"}
    assert message["sender_id"]
    assert message["mode"] == "persistent"


def test_a_message_nobody_wants_is_no_fault_but_a_queue_that_is_not_there_is(web: Web) -> None:
    unrouted = web.post("/v1/topics/no/body")
    assert (unrouted.status, unrouted.headers["Angarium-Unrouted"]) == (204, "true")
    none = web.post("/v1/queues/none")
    assert (none.status, none.code) == (404, errors.UNKNOWN_ENDPOINT)
    assert "none" in none.value["detail"]


def test_a_direct_message_reaches_clients_of_the_node(node: Node, web: Web) -> None:
    with blocking.connect(node.url) as client, client.subscribe("lights/>") as subscription:
        assert web.post("/v1/topics/lights/kitchen?delivery=direct", b"on").status == 202
        message = subscription.receive(timeout_s=20.0)
        assert (message.topic, message.payload) == ("lights/kitchen", b"on")


@pytest.mark.requirement("R252")
def test_messages_of_a_queue_are_on_lease_until_they_are_settled(web: Web) -> None:
    for text in (b"one", b"two"):
        assert web.post("/v1/queues/jobs", text).status == 204
    first = web.post("/v1/queues/jobs/receive?max=5&wait=20&lease=1").value["messages"]
    first += (
        web.post("/v1/queues/jobs/receive?max=5&wait=1&lease=1").value["messages"] if len(first) < 2 else []
    )
    assert [one["payload"] for one in first] == ["one", "two"]
    settled = web.post(
        "/v1/queues/jobs/settle",
        json.dumps({"accepted": [first[0]["receipt"], "none"]}).encode(),
        Content_Type="application/json",
    )
    assert settled.value == {"unknown": ["none"]}
    (again,) = web.post("/v1/queues/jobs/receive?max=5&wait=20&ack=auto").value["messages"]
    assert (again["payload"], again["delivery_count"]) == ("two", 2)
    assert web.post("/v1/queues/jobs/receive?wait=0.3").value == {"messages": []}


def test_who_waits_for_a_message_gets_it_when_it_comes(node: Node, web: Web) -> None:
    other = Web(node)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.post, "/v1/queues/jobs/receive?wait=20&ack=auto")
        assert web.post("/v1/queues/jobs", b"\xff").status == 204
        (message,) = waiting.result(30).value["messages"]
    assert (message["payload"], message["payload_encoding"]) == ("/w==", "base64")
    other.close()


def test_who_waits_when_the_node_is_stopped_is_told_so(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1, http="http://127.0.0.1:0") as node, ThreadPoolExecutor(2) as pool:
        node.run("queue", "create", "jobs")
        node.run("queue", "create", "slow", "--subscription", "slow")
        paths = ("/v1/queues/jobs/receive?wait=60", "/v1/requests/slow?timeout=60")
        others = [Web(node) for _ in paths]
        waiting = [pool.submit(other.post, path) for other, path in zip(others, paths, strict=True)]
        wait_until(lambda: json.loads(node.run("gateway", "show", "http.0", "--json"))["requests"] == 2)
        node.stop()
        assert [one.result(30).status for one in waiting] == [503, 503]
        for other in others:
            other.close()


def test_what_came_for_a_request_that_is_gone_comes_again(node: Node, web: Web) -> None:
    head = b"POST /v1/queues/jobs/receive?wait=20&lease=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    raw(node, head).close()
    assert web.post("/v1/queues/jobs", b"here").status == 204
    (message,) = web.post("/v1/queues/jobs/receive?wait=20&ack=auto").value["messages"]
    assert message["payload"] == "here"


@pytest.mark.requirement("R251")
def test_a_request_is_answered_with_its_reply(node: Node, web: Web) -> None:
    with (
        blocking.connect(node.url) as client,
        client.subscribe("ask/>") as requests,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(web.post, "/v1/requests/ask/me?timeout=20", b"what", Angarium_Property_A="b")
        request = requests.receive(timeout_s=20.0)
        assert (request.payload, request.properties) == (b"what", {"A": "b"})
        client.reply(request, b"\x00that", content_type="text/plain", properties={"C": "d"})
        answer = asked.result(30)
        assert (answer.status, answer.body) == (200, b"\x00that")
        assert (answer.headers["Content-Type"], answer.headers["Angarium-Property-C"]) == ("text/plain", "d")
        late = web.post("/v1/requests/ask/slow?timeout=0.1")
        assert (late.status, late.code) == (408, errors.TIMEOUT)
    nobody = web.post("/v1/requests/nobody?timeout=60")
    assert (nobody.status, nobody.code) == (503, errors.NO_RESPONDERS)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/queues/none/receive", b"", errors.UNKNOWN_ENDPOINT),
        ("/v1/queues/jobs/receive?max=0", b"", errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/receive?wait=9999", b"", errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/receive?ack=no", b"", errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/receive?max=1.5", b"", errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/receive", b'{"max": 5}', errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/settle", b"", errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/settle", b"{", errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/settle", b'{"done":["a"]}', errors.INVALID_ARGUMENT),
        ("/v1/queues/jobs/settle", b'{"failed":[5]}', errors.INVALID_ARGUMENT),
        ("/v1/requests/a?timeout=x", b"", errors.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_asked_of_a_queue_is_refused(web: Web, path: str, body: bytes, code: int) -> None:
    assert web.post(path, body, Content_Type="application/json").code == code


@pytest.mark.requirement("R255")
def test_requests_of_one_user_are_one_client_with_its_rights(node: Node) -> None:
    anna = Web(node, "anna", "right")
    others = [Web(node, "anna", "right") for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda one: one.post("/v1/topics/a"), [anna, *others]))
    assert {(one.status, one.code) for one in answers} == {(403, errors.PUBLISH_DENIED)}
    clients = [json.loads(line) for line in node.run("client", "list", "--json").splitlines()]
    assert [one["sdk"] for one in clients if one["username"] == "anna"] == ["http"]
    for one in (anna, *others):
        one.close()


@pytest.mark.requirement("R255")
def test_behind_a_proxy_a_client_is_at_the_address_that_the_proxy_says(node: Node) -> None:
    ben = Web(node, "ben", "right")
    passed_on: dict[str, Any] = {"Host": "messages.example", "X_Forwarded_For": "192.0.2.7"}
    answer = ben.post("/v1/topics/a", Origin="https://messages.example", **passed_on)
    assert (answer.status, answer.headers["Strict-Transport-Security"]) == (204, "max-age=31536000")
    clients = [json.loads(line) for line in node.run("client", "list", "--json").splitlines()]
    assert ["192.0.2.7" in one["address"] for one in clients if one["username"] == "ben"] == [True]
    for origin in ("https://elsewhere.example", "https://messages.example:444"):
        assert ben.post("/v1/topics/a", Origin=origin, **passed_on).code == errors.CROSS_ORIGIN
    ben.close()


def test_who_publishes_into_a_queue_is_counted_also_here(node: Node, web: Web) -> None:
    node.run("queue", "create", "filled", "--set", "owner=default", "--subscription", "filled/>")
    assert node.run("queue", "publishers", "filled", "--json").strip() == ""
    with blocking.connect(node.url, client_name="till") as client:
        with blocking.connect(node.url, client_name="gone") as other:
            for one in (client, client, other):
                one.publish("filled/a", b"x", mode="persistent", sender_id="somebody else")
                one.flush()
        assert web.post("/v1/topics/filled/b", b"y").status == 204
        clients = [json.loads(line) for line in node.run("client", "list", "--json").splitlines()]
        by_http = {one["name"] for one in clients if one["sdk"] == "http"}
        lines = node.run("queue", "publishers", "filled", "--json").splitlines()
        found = {one["client"]: one["messages"] for one in map(json.loads, lines)}
    assert len(by_http & found.keys()) == 1
    assert {name: count for name, count in found.items() if name not in by_http} == {"till": 2, "": 1}


def test_who_has_a_wrong_password_is_told_so_and_asked_for_it(node: Node, web: Web) -> None:
    refused = web.post("/v1/topics/a", Authorization=basic("anna", "wrong"))
    assert (refused.status, refused.code) == (401, errors.UNAUTHORIZED)
    assert refused.headers["WWW-Authenticate"].startswith("Basic ")
    assert web.post("/v1/topics/a", Authorization="Digest x").code == errors.UNAUTHORIZED
    assert web.post("/v1/topics/a", Angarium_Vpn="nowhere").status in (401, 403, 404)
    assert web.post("/v1/topics/a").status == 204, "others are let in"


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/", {}, errors.UNKNOWN_RESOURCE),
        ("/v1/queues/a/b", {}, errors.UNKNOWN_RESOURCE),
        ("/v1/topics/%ff", {}, errors.INVALID_ARGUMENT),
        ("/v1/topics/", {}, errors.INVALID_TOPIC),
        ("/v1/topics/%23share/a/b", {}, errors.RESERVED_TOPIC),
        ("/v1/topics/a?ttl=5", {}, errors.INVALID_ARGUMENT),
        ("/v1/topics/a", {"Angarium_Ttl_Ms": "soon"}, errors.INVALID_ARGUMENT),
        ("/v1/topics/a", {"Angarium_Vpn": "v" * 40}, errors.VPN_NOT_ALLOWED),
        ("/v1/topics/a", {"Angarium_Vpn": "\xff"}, errors.INVALID_ARGUMENT),
        ("/v1/topics/a", {"Authorization": "Bearer \xff"}, errors.UNAUTHORIZED),
        ("/v1/topics/a", {"Origin": "http://evil.example"}, errors.CROSS_ORIGIN),
        ("/v1/topics/a", {"Host": "evil.example"}, errors.MISDIRECTED_REQUEST),
        ("/v1", {}, errors.METHOD_NOT_ALLOWED),
    ],
)
def test_a_request_that_is_wrong_is_refused_with_a_code(
    web: Web, path: str, headers: dict[str, str], code: int
) -> None:
    assert web.post(path, b"x", **headers).code == code


def test_a_body_that_is_too_large_or_too_slow_is_refused(node: Node, web: Web) -> None:
    assert web.post("/v1/topics/a", b"x" * 100_001).code == errors.CONTENT_TOO_LARGE
    assert web.post("/v1/topics/a", b"x" * 100_000).status == 204
    made = raw(node, b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
    assert b"40801" in received(made)
    made = raw(
        node, b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    )
    assert b"400" in received(made)


def test_a_body_that_is_compressed_on_its_way_is_refused(node: Node) -> None:
    """It was stored as it came, and nothing of the message said that it was compressed."""
    head = b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
    chunks = b"\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    assert b" 204 " in received(raw(node, head + b"Chunked" + chunks))
    assert b"41501" in received(raw(node, head + b"gzip, chunked" + chunks))


def test_bodies_on_their_way_in_take_bounded_room(node: Node, web: Web) -> None:
    head = b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    slow = [raw(node, head) for _ in range(11)]
    answers = b"".join(received(one) for one in slow)
    assert b"42902" in answers
    assert web.post("/v1/topics/a", b"x").status == 204, "the room is free again"


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"]
)
def test_what_is_no_request_is_answered_and_the_connection_ends(node: Node, data: bytes) -> None:
    answer = received(raw(node, data))
    assert answer.startswith(b"HTTP/1.")
    assert b"\r\nX-Content-Type-Options: nosniff\r\n" in answer
    assert b"\r\nServer: angarium\r\n" in answer, "which versions work here is nobody's business"


def test_a_line_may_name_the_host_too_and_then_that_one_is_meant(node: Node) -> None:
    rest = b" HTTP/1.1\r\nHost: %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    for place, host, code in (
        (b"localhost", b"evil.example", b"204"),
        (b"evil.example", b"localhost", b"421"),
    ):
        made = raw(node, b"POST http://" + place + b"/v1/queues/jobs" + rest % host)
        assert received(made).startswith(b"HTTP/1.1 " + code), place


def test_who_waits_for_a_word_before_the_body_gets_it(node: Node) -> None:
    head = b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    made = raw(node, head + b"Connection: close\r\nExpect: 100-continue\r\n\r\n")
    assert made.recv(100).startswith(b"HTTP/1.1 100 ")
    made.sendall(b"hi")
    assert received(made).startswith(b"HTTP/1.1 204 ")
    too_large = head.replace(b"Length: 2", b"Length: 100001")
    made = raw(node, too_large + b"Connection: close\r\nExpect: 100-continue\r\n\r\n")
    assert received(made).startswith(b"HTTP/1.1 413 "), "before the body is sent"


def test_a_killed_process_is_replaced_and_stored_messages_are_there(node: Node, web: Web) -> None:
    assert web.post("/v1/queues/orders%2Feu", b"kept").status == 204
    node.kill("http")

    def works() -> bool:
        again = Web(node)
        try:
            return bool(again.post("/v1/topics/a").status == 204)
        except OSError:
            return False
        finally:
            again.close()

    wait_until(works)
    assert node.run("consume", "orders/eu", "--count", "1").strip().endswith(" kept")


def test_what_was_published_is_stored_although_the_router_dies(node: Node, web: Web) -> None:
    node.kill("router")
    answer = web.post("/v1/queues/orders%2Feu", b"over")
    assert answer.status == 204, answer
    assert node.run("consume", "orders/eu", "--count", "1").strip().endswith(" over")


def test_the_examples_of_the_page_print_what_it_says(node: Node, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    blocks = [(kind, body) for kind, _, body in FENCE.findall(text) if kind in ("console", "text")]
    assert len(blocks) >= 6
    with ThreadPoolExecutor(1) as other_terminal:
        printed = ""
        for kind, body in blocks:
            if kind == "text":
                compare(body, printed)
            elif body.startswith("$ angarium reply "):
                ready = tmp_path / "ready"
                ends = ("--count", "1", "--idle-timeout", "20", "--ready-file", str(ready))
                replying = other_terminal.submit(node.run, *shlex.split(body[2:])[1:], *ends)
                wait_until(lambda: ready.exists() or replying.done(), "it replies")  # noqa: B023 - at once
            else:
                printed = "".join(typed(node, line[2:]) for line in body.splitlines())
        replying.result()


def compare(told: str, printed: str) -> None:
    """Compare what is printed with what the page says."""
    for line in told.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        assert re.search(f"(^| ){pattern}$", printed, re.MULTILINE), (line, printed)


def typed(node: Node, line: str) -> str:
    """Type a line of the page at this node, and give what it prints."""
    if line.startswith("angarium queue create"):
        return ""
    if line.startswith("angarium "):
        return node.run(*shlex.split(line)[1:])
    line = line.replace("http://127.0.0.1:8080", node.http_url).replace("curl ", "curl -sS --max-time 20 ", 1)
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=True)
    return ran.stdout.replace("\r", "") + "\n"


def raw(node: Node, data: bytes) -> socket.socket:
    place = urlsplit(node.http_url)
    made = socket.create_connection((place.hostname or "", place.port or 0), 20.0)
    made.sendall(data)
    return made
