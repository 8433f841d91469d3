"""POSTs of webhooks to a real server: what it answers, what it does not, and what is never reached."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiohttp import web

from angarium.client.protocol.flow_window import FlowWindow
from cluster.webhook import posting as posting_module
from cluster.webhook.posting import Poster
from cluster.webhook.role import WebhookConfig
from gateway.http.webhooks.addresses import may_reach
from gateway.http.webhooks.attempts import Answer
from gateway.http.webhooks.webhook import Held
from tests.integration.certificates import Authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from ipaddress import IPv4Network, IPv6Network
    from pathlib import Path

#: An address that a name leads to at first, where nobody listens.
OUTSIDE = "127.3.3.3"
LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class Sink:
    """A server that answers as the path says."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self.got: list[tuple[str, bytes, str]] = []
        self.peers: set[object] = set()
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1)
        self.port = 0

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{what}", self._answer)
        return app

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        what = request.match_info["what"]
        self.peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        self.got.append((what, await request.read(), request.headers.get("webhook-id", "")))
        if what == "hang":
            await asyncio.sleep(30)
        if what == "busy":
            return web.Response(status=503, headers={"Retry-After": "7"})
        if what == "redirect":
            return web.Response(status=307, headers={"Location": "/ok"})
        if what == "late":
            response = web.StreamResponse(headers={"Content-Length": "4"})
            await response.prepare(request)
            await asyncio.sleep(0.01)
            await response.write(b"body")
            return response
        if what == "endless":
            return await self._endless(request)
        return web.Response(status=204)

    @staticmethod
    async def _endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(1000))
            await asyncio.sleep(0.01)


async def attempt(
    what: str,
    *,
    host: str = "127.0.0.1",
    allowed: Sequence[IPv4Network | IPv6Network] = LOOPBACK,
    up: bool = True,
) -> tuple[Answer, Sink]:
    sink = Sink()
    await sink.start()
    if not up:
        await sink.stop()
    url = f"http://{host}:{sink.port}/{what}"
    # Whoever answers has the time that a busy machine needs.
    timeout_ms = 500 if what == "hang" else 30_000
    poster = Poster(WebhookConfig(name="w", vpn="v", url=url, window=1, timeout_ms=timeout_ms), allowed)
    held = Held(FlowWindow(1, 1), 0, 1, (0, "a", 0, None, None, b"body"), "one")
    try:
        return await asyncio.wait_for(poster.post(held), 60), sink
    finally:
        await poster.close()
        await sink.stop()


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("ok", Answer(204)),
        ("busy", Answer(503, "7")),
        ("redirect", Answer(307)),
        ("hang", Answer(None, failure="no answer in time")),
        ("endless", Answer(200)),
    ],
)
def test_what_a_server_answers_and_each_attempt_comes_once(what: str, answer: Answer) -> None:
    got, sink = asyncio.run(attempt(what))
    assert got == answer
    assert sink.got == [(what, b"body", "one")]


def test_a_server_that_is_gone_is_no_answer() -> None:
    assert asyncio.run(attempt("ok", up=False))[0] == Answer(None, failure="no connection")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433"])
def test_what_is_not_allowed_is_never_connected_to(host: str) -> None:
    got, sink = asyncio.run(attempt("ok", host=host, allowed=()))
    assert got.code is None
    assert got.failure
    assert sink.got == []


def test_a_public_address_of_the_host_itself_is_never_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting_module, "may_reach", lambda _address, _allowed: True)
    got, sink = asyncio.run(attempt("ok", allowed=()))
    assert "that of the node's host" in got.failure
    assert sink.got == []
    got, sink = asyncio.run(attempt("ok", allowed=LOOPBACK))
    assert (got, len(sink.got)) == (Answer(204), 1)


def test_a_name_is_judged_by_what_it_is_resolved_to() -> None:
    got, sink = asyncio.run(attempt("ok", host="localhost"))
    assert (got, len(sink.got)) == (Answer(204), 1)


def test_a_name_that_leads_elsewhere_now_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name that led to the outside when the webhook was made, and for each of the addresses that it leads to."""
    leads_to: list[str] = []

    async def test() -> tuple[list[Answer], Sink]:
        sink = Sink()
        await sink.start()
        loop = asyncio.get_running_loop()

        async def looked_up(_host: str, port: int, **_asked: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in leads_to]

        monkeypatch.setattr(loop, "getaddrinfo", looked_up)
        monkeypatch.setattr(
            posting_module, "may_reach", lambda *asked: asked[0] == OUTSIDE or may_reach(*asked)
        )
        url = f"http://hook.example:{sink.port}/ok"
        poster = Poster(WebhookConfig(name="w", vpn="v", url=url, window=1, timeout_ms=30_000), ())
        held = Held(FlowWindow(1, 1), 0, 1, (0, "a", 0, None, None, b"body"), "one")
        answers = []
        try:
            for addresses in ([OUTSIDE], ["127.0.0.1"], ["127.0.0.2", "127.0.0.1"], [OUTSIDE, "127.0.0.1"]):
                leads_to[:] = addresses
                poster._session.connector.clear_dns_cache()  # type: ignore[union-attr]
                answers.append(await poster.post(held))
            return answers, sink
        finally:
            await poster.close()
            await sink.stop()

    answers, sink = asyncio.run(test())
    assert answers[0].failure == "no connection", "it may be reached, and nobody is there"
    assert all("not public" in one.failure for one in answers[1:3]), answers
    assert answers[3].failure
    assert sink.got == []


def posting(
    what: str, times: int = 1, context: ssl.SSLContext | None = None, **given: Any
) -> tuple[list[Answer], Sink]:
    """Post so often with one poster."""

    async def test() -> tuple[list[Answer], Sink]:
        sink = Sink(context)
        await sink.start()
        url = f"{'https' if context else 'http'}://127.0.0.1:{sink.port}/{what}"
        told = {"name": "w", "vpn": "v", "url": url, **given}
        poster = Poster(msgspec.convert(told, WebhookConfig), LOOPBACK)
        held = Held(FlowWindow(1, 1), 0, 1, (0, "a", 0, None, None, b"body"), "one")
        try:
            return [await poster.post(held) for _ in range(times)], sink
        finally:
            await poster.close()
            await sink.stop()

    return asyncio.run(test())


@pytest.mark.parametrize(("what", "connections"), [("ok", 1), ("late", 1), ("endless", 3)])
def test_a_connection_is_used_again_unless_an_answer_goes_on_and_on(what: str, connections: int) -> None:
    answers, sink = posting(what, times=3)
    assert all(one.code in (200, 204) for one in answers)
    assert len(sink.peers) == connections


@pytest.mark.parametrize(
    ("attribute", "content", "told"),
    [
        ("secret_file", None, "cannot be read"),
        ("secret_file", "", "no secret"),
        ("secret_file", "whsec_c2hvcnQ=", "no secret"),
        ("secret_file", "A" * 40 + "\n" + "B" * 40 + "\n" + "C" * 40, "no secret"),
        ("authorization_file", None, "cannot be read"),
        ("authorization_file", "\nBearer x", "no value"),
        ("authorization_file", "Bearer \x01", "no value"),
    ],
)
def test_without_what_it_shows_nothing_is_posted(
    tmp_path: Path, attribute: str, content: str | None, told: str
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    given: dict[str, Any] = {attribute: str(file)}
    (answer,), sink = posting("ok", **given)
    assert answer.failure.startswith(f"{attribute}: ")
    assert told in answer.failure
    assert sink.got == []


def test_a_target_shows_a_certificate_that_is_good_for_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    ca_pem = authority.cert.read_text()
    good = authority.issue("sink").server_context()
    other = authority.issue("other", "DNS:elsewhere.example").server_context()
    (answer,), sink = posting("ok", context=good, ca_pem=ca_pem)
    assert (answer, len(sink.got)) == (Answer(204), 1)
    for context, trusted in ((good, ""), (other, ca_pem)):
        (answer,), sink = posting("ok", context=context, ca_pem=trusted)
        assert (answer.failure, sink.got) == ("its certificate is not valid", [])


def test_a_name_that_there_is_not_is_no_answer() -> None:
    assert posting("", url="https://sink.invalid/a")[0] == [
        Answer(None, failure="the name of the host was not found")
    ]
