"""Streams of the management API of a running node: events and jobs as Server-Sent Events."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiohttp import web

from angarium import errors
from angarium_server.http import sse
from cluster.configuration.management import ManagementSection
from cluster.management.access.outcomes import Caller
from cluster.management.streams.streams import Standing, Streams
from tests.integration.http_api import LIMIT_S, PASSWORD, Api, basic, managed_node, place_of
from tests.waiting import until, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp.web import BaseRequest

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

#: Of the node: small enough that a test fills it.
EVENTS_MAX: Final = 100
PER_OPERATOR: Final = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = f"[management]\nmax_streams_per_operator = {PER_OPERATOR}\n[events]\nmemory_max = {EVENTS_MAX}\n"
    folder = tmp_path_factory.mktemp("streams")
    with managed_node(folder, config) as running:
        api = Api(running.management_url)
        api.send("POST", "/api/v1/vpns", {"name": "shop"})
        clerk = {"name": "clerk", "role": "viewer", "vpn": "shop", "password": PASSWORD}
        api.send("POST", "/api/v1/operators", clerk)
        api.close()
        yield running


class Source:
    """A client that reads a stream."""

    def __init__(
        self, node: Node, path: str = "/api/v1/events", operator: str = "admin", **more: str
    ) -> None:
        self._line = http.client.HTTPConnection(*place_of(node), timeout=LIMIT_S)
        told = {"Authorization": basic(operator), "Accept": "text/event-stream"}
        told |= {name.replace("_", "-"): value for name, value in more.items()}
        self._line.request("GET", path, headers=told)
        self.answer = self._line.getresponse()
        self.last = ""

    def next(self) -> tuple[str, Any]:
        """Give kind and data of the next event; "" and None at the end."""
        kind = ""
        while line := self.answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                self.last = value
            elif name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)
        return "", None

    def texts(self, count: int) -> list[str]:
        return [self.next()[1]["text"] for _ in range(count)]

    def close(self) -> None:
        self.answer.close()
        self._line.close()


@contextlib.contextmanager
def source(node: Node, *arguments: str, **more: str) -> Iterator[Source]:
    made = Source(node, *arguments, **more)
    try:
        yield made
    finally:
        made.close()


def make(api: Api, *names: str, vpn: str = "default") -> None:
    for name in names:
        made = api.send("POST", f"/api/v1/vpns/{vpn}/queues", {"name": name})
        assert made.status == 201, made.body


def newest(api: Api) -> str:
    return str(api.get("/events?limit=1").value[0]["id"])


@pytest.mark.requirement("R256")
def test_what_happens_comes_as_it_is_listed(node: Node, api: Api) -> None:
    with source(node) as events:
        assert events.answer.headers["Content-Type"] == "text/event-stream"
        assert events.answer.headers["Cache-Control"] == "no-store"
        make(api, "live/1")
        kind, event = events.next()
        assert (kind, event["id"]) == ("", int(events.last))
    assert api.get(f"/events?since={event['id'] - 1}").value[0] == event


@pytest.mark.requirement("R256")
def test_who_comes_again_goes_on_where_it_was(node: Node, api: Api) -> None:
    with source(node) as first:
        make(api, "again/1", "again/2")
        expected = first.texts(1)
        last = first.last
    make(api, "again/3")
    with source(node, Last_Event_ID=last) as second:
        expected += second.texts(2)
        make(api, "again/4")
        expected += second.texts(1)
    assert [f"again/{number}" in text for number, text in enumerate(expected, 1)] == [True] * 4


def test_a_gap_is_told_before_what_is_kept(node: Node, api: Api) -> None:
    since = int(newest(api))
    make(api, *(f"gap/{number}" for number in range(EVENTS_MAX + 5)))
    lost = int(newest(api)) - since - EVENTS_MAX
    assert lost >= 5
    with source(node, Last_Event_ID=str(since)) as events:
        assert events.next() == ("gap", {"lost": lost})
        assert events.next()[1]["id"] == since + lost + 1
    with source(node, Last_Event_ID="of another node") as events:
        assert events.next() == ("gap", {"lost": None})


def test_kinds_and_message_vpns_choose_events(node: Node, api: Api) -> None:
    since = newest(api)
    make(api, "chosen/1")
    make(api, "chosen/2", vpn="shop")
    with source(node, f"/api/v1/events?vpn=shop&since={since}") as events:
        assert "chosen/2" in events.texts(1)[0]
    assert api.get(f"/events?event=CLIENT_*&since={since}").value == []
    assert len(api.get(f"/events?event=SYSTEM_*&since={since}").value) == 2
    with source(node, f"/api/v1/events?event=CLIENT_*&since={since}") as events:
        make(api, "chosen/3")
        node.run("pub", "a/b", "hello")
        assert events.next()[1]["event"] == "CLIENT_CONNECT"


@pytest.mark.requirement("R257")
def test_an_operator_of_a_message_vpn_sees_what_happens_in_it_and_nothing_else(node: Node, api: Api) -> None:
    with source(node, "/api/v1/events", "clerk") as events:
        make(api, "scope/1")
        make(api, "scope/2", vpn="shop")
        assert "scope/2" in events.texts(1)[0]
    with source(node, "/api/v1/events?vpn=default", "clerk") as refused:
        assert refused.answer.status == 403
        assert json.loads(refused.answer.read())["code"] == errors.OPERATOR_DENIED


@pytest.mark.requirement("R257")
def test_a_right_that_is_taken_away_ends_the_stream(node: Node, api: Api) -> None:
    """One operator is disabled, one gets another password; one loses the node and keeps a Message VPN."""
    for name in ("x", "y", "z"):
        api.send("POST", "/api/v1/operators", {"name": name, "role": "viewer", "password": PASSWORD})
    with (
        source(node, "/api/v1/events?event=CLIENT_*", "x") as disabled,
        source(node, "/api/v1/events?event=CLIENT_*", "y") as changed,
        source(node, "/api/v1/events?event=*CONFIG*", "z") as narrowed,
    ):
        changes = {"x": {"enabled": False}, "y": {"password": PASSWORD + "!"}, "z": {"vpn": "shop"}}
        for name, change in changes.items():
            assert api.send("PATCH", f"/api/v1/operators/{name}", change).status == 200
        for events in (disabled, changed):
            kind, told = events.next()
            assert (kind, told["code"]) == ("end", errors.UNAUTHORIZED)
            assert events.next() == ("", None)
        make(api, "right/1")
        make(api, "right/2", vpn="shop")
        seen = []
        while "right/2" not in (text := narrowed.texts(1)[0]):
            seen.append(text)
        assert not [text for text in seen if "right/1" in text]


def test_a_browser_that_logs_out_loses_its_streams(node: Node, api: Api) -> None:
    login = api.send("POST", "/api/v1/login", {"name": "admin", "password": PASSWORD}, Authorization="")
    cookie = login.headers["Set-Cookie"].partition(";")[0]
    line = http.client.HTTPConnection(*place_of(node), timeout=LIMIT_S)
    line.request("GET", "/api/v1/events", headers={"Cookie": cookie, "Accept": "text/event-stream"})
    answer = line.getresponse()
    assert answer.status == 200
    out = http.client.HTTPConnection(*place_of(node), timeout=LIMIT_S)
    out.request("POST", "/api/v1/logout", headers={"Cookie": cookie, "Angarium-Token": login.value["token"]})
    assert out.getresponse().status == 200
    assert b"event: end" in answer.read()
    line.close()
    out.close()


def test_streams_of_an_operator_are_limited(node: Node) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(PER_OPERATOR):
            assert stack.enter_context(source(node, "/api/v1/events", "viewer")).answer.status == 200
        refused = stack.enter_context(source(node, "/api/v1/events", "viewer"))
        assert refused.answer.status == 429
        assert json.loads(refused.answer.read())["code"] == errors.CONTROL_RATE_EXCEEDED
        assert stack.enter_context(source(node)).answer.status == 200


def test_a_stream_goes_on_over_a_controller_that_is_replaced(node: Node, api: Api) -> None:
    with source(node, "/api/v1/events?event=*CONFIG*") as events:
        node.kill("controller")
        wait_until(lambda: api.do("operators.me").status == 200, "the controller")
        make(api, "replaced/1")
        assert "replaced/1" in events.texts(1)[0]


def test_jobs_are_told_to_their_end_and_who_comes_again_hears_that(node: Node, api: Api) -> None:
    make(api, "from", "to")
    node.run("pub", "--queue", "from", "hello", "--count", "3")
    moved = api.send("POST", "/api/v1/vpns/default/queues/from/move", {"target": "to"})
    assert moved.status == 202
    where = moved.headers["Location"]
    with source(node, where) as jobs:
        while (told := jobs.next()[1])["state"] == "running":
            pass
        assert (told["state"], told["done"]) == ("done", 3)
        assert jobs.next() == ("", None)
        assert jobs.last == "over"
    with source(node, where, Last_Event_ID="over") as again:
        assert again.answer.status == 204
    with source(node, "/api/v1/jobs/0-1") as unknown:
        assert unknown.answer.status == 404
    with source(node, where, "clerk") as refused:
        assert refused.answer.status == 403


def test_the_command_follows_over_the_management_api(node: Node, api: Api) -> None:
    file = str(node.data.parent / "password")
    way = ["--management", node.management_url, "--operator", "admin", "--operator-password-file", file]
    command = [sys.executable, "-m", "angarium_server", "events", "--follow", "--since", newest(api)]
    with subprocess.Popen(
        [*command, "--event", "*CONFIG*", *way],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as following:
        assert following.stdout is not None
        for name in ("followed/1", "followed/2"):
            make(api, name)
            assert name in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert following.wait(LIMIT_S) == 0


class Client:
    """The connection of a stream, of which nobody is told."""

    when_lost: Callable[[], None] | None = None


class Much:
    """Says more than any socket takes."""

    wait_s = 0.0
    changed: asyncio.Future[None] | None = None
    is_over = False
    asked = 0

    async def next(self) -> bytes:
        self.asked += 1
        return sse.event_of("x" * 60_000)

    def beat(self) -> bytes:
        return sse.COMMENT


def test_who_does_not_read_is_ended_and_counted_and_costs_little() -> None:
    asyncio.run(_not_reading())


async def _not_reading() -> None:
    async def ask(_operation: str, _arguments: dict[str, Any]) -> Any:
        return {"enabled": True, "password": "", "password_set": False}

    async def counts() -> None:
        pass

    streams, much = Streams(ManagementSection(), {}, stalled_s=0.3), Much()

    async def answer(request: BaseRequest) -> web.StreamResponse:
        standing = Standing(ask, "admin", counts)
        return await streams.serve(request, Client(), Caller("admin", "::1"), much, standing)

    server = web.Server(answer)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(listener.sockets[0].getsockname())
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: len(streams) == 1)
        await until(lambda: streams.slow == 1 and not len(streams))
    # The kernel has some of it, both sides of the connection; what waits here is bounded.
    assert much.asked < 40
    listener.close()
    await server.shutdown()
