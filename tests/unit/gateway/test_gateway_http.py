"""What requests say: targets, credentials, options; and the clients that they are of, at a real router."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.errors import AngariumError
from angarium.message import Message, Row
from angarium.trace_context import CONTEXTS
from gateway.attached import Attached
from gateway.carrier import BACKOFF_MAX_S
from gateway.http.client import ClientState, HttpClient
from gateway.http.clients import CLIENTS_MAX, IDLE_S, LOGIN_S, LOOK_S, Clients
from gateway.http.credentials import Credentials, credentials_of
from gateway.http.messages import Options, headers_of, json_of
from gateway.http.queues import Receiver
from gateway.http.targets import Verb, take_number, target_of
from tests.unit.gateway.wired_gateways import NodeOfGateways, WiredGateway
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


def code_of(call: Any, *arguments: Any) -> int:
    with pytest.raises(AngariumError) as refused:
        call(*arguments)
    return refused.value.code


@pytest.mark.parametrize(
    ("raw", "verb", "topic"),
    [
        ("/v1", Verb.INDEX, ""),
        ("/v1/topics/a/b%20c", Verb.PUBLISH, "a/b c"),
        ("/v1/topics/a%2Fb/", Verb.PUBLISH, "a/b/"),
        ("/v1/topics/caf%C3%A9?delivery=direct", Verb.PUBLISH, "café"),
        ("/v1/queues/a%2Fb", Verb.SEND, "#P2P/QUE/a/b"),
        ("/v1/queues/a%2Fb/receive?max=5", Verb.RECEIVE, "a/b"),
        ("/v1/queues/a/settle", Verb.SETTLE, "a"),
        ("/v1/requests/a/b", Verb.REQUEST, "a/b"),
    ],
)
def test_a_path_says_what_is_wanted(raw: str, verb: Verb, topic: str) -> None:
    target = target_of(raw)
    assert (target.verb, target.name) == (verb, topic)


@pytest.mark.parametrize(
    "raw", ["/", "*", "/v2/topics/a", "/v1/topics", "/v1/queues/", "/v1/queues/a/b", "/V1"]
)
def test_other_paths_are_nothing(raw: str) -> None:
    assert code_of(target_of, raw) == errors.UNKNOWN_RESOURCE


@pytest.mark.parametrize("raw", ["/v1/topics/%ff", "/v1?a", "/v1?a=1&a=2", f"/v1?{'a=1&' * 60}", "/v1?a=%ff"])
def test_a_target_that_cannot_be_read_is_refused(raw: str) -> None:
    assert code_of(target_of, raw) == errors.INVALID_ARGUMENT


def basic(text: bytes) -> str:
    return f"Basic {base64.b64encode(text).decode()}"


def test_credentials_are_a_name_and_a_password_or_a_token_or_nothing() -> None:
    assert credentials_of(None, "v", "::1") == Credentials("v", "default", None, "::1")
    assert credentials_of(basic(b"anna:p:w"), "v", "::1") == Credentials("v", "anna", "p:w", "::1")
    assert credentials_of("bearer  a.b.c", "v", "::1") == Credentials("v", "", None, "::1", "a.b.c")
    assert credentials_of("bearer  a.b.c", "v", "::1").login().hello("v", "").jwt == "a.b.c"
    login = credentials_of(basic(b"anna:p"), "v", "::1").login()
    assert (login.username, login.password, login.client_name, login.sdk) == ("anna", "p", "", "http")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic ?",
        "Digest x",
        basic(b"nocolon"),
        basic(b":p"),
        "Bearer \udcff",
        basic(b"\xff:p"),
        basic(b"#link:p"),
        basic(b"a" * 200 + b":p"),
        "Bearer " + "x" * 9_000,
    ],
)
def test_credentials_that_are_none_are_refused(header: str) -> None:
    assert code_of(credentials_of, header, "default", "::1") == errors.UNAUTHORIZED


def test_headers_and_query_say_the_same_things_of_a_message() -> None:
    headers = {
        "Content-Type": "text/plain",
        "Content-Encoding": "gzip",
        "angarium-correlation-id": "c",
        "Angarium-Reply-To": "r/1",
        "Angarium-Property-Colour": "red",
        "Accept": "*/*",
    }
    query = {"ttl_ms": "5", "delay_ms": "6", "priority": "7", "dmq_eligible": "true", "message_id": "m"}
    options = Options(headers.items(), query)
    row = options.row("a/b", b"x", "me")
    expected = Message(
        "a/b",
        b"x",
        mode="persistent",
        content_type="text/plain",
        content_encoding="gzip",
        correlation_id="c",
        reply_to="r/1",
        properties={"Colour": "red"},
        ttl_ms=5,
        delay_ms=6,
        priority=7,
        dmq_eligible=True,
        application_message_id="m",
        sender_id="me",
    ).row
    assert row[:4] == expected[:4]
    assert wire.unpack(row[4] or b"") == wire.unpack(expected[4] or b"")
    assert options.vpn == "default"
    direct = Options([("Angarium-Vpn", "v")], {"delivery": "direct"})
    assert (direct.vpn, direct.is_guaranteed) == ("v", False)
    assert direct.row("a", b"", "me")[2] & wire.FLAG_MODE == wire.MODE_DIRECT


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Angarium-Tll-Ms": "5"}, {}),
        ({}, {"colour": "red"}),
        ({"Angarium-Ttl-Ms": "5"}, {"ttl_ms": "5"}),
        ({"Angarium-Ttl-Ms": "-5"}, {}),
        ({"Angarium-Ttl-Ms": "\u0665"}, {}),
        ({"Angarium-Ttl-Ms": "9" * 30}, {}),
        ({"Angarium-Retain": "yes"}, {}),
        ({}, {"delivery": "perhaps"}),
        ({"Angarium-Vpn": "\udcff"}, {}),
        ({"Angarium-Property-A": "\udcff"}, {}),
        ({"Angarium-Property-": "5"}, {}),
    ],
)
def test_an_option_that_cannot_be_is_refused(headers: dict[str, str], query: dict[str, str]) -> None:
    assert code_of(Options, headers.items(), query) == errors.INVALID_ARGUMENT


def test_a_property_is_given_once() -> None:
    twice = [("Angarium-Property-A", "1"), ("angarium-property-A", "2")]
    assert code_of(Options, twice, {}) == errors.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", "v" * 33, "v" * 4_000])
def test_a_name_that_no_message_vpn_can_have_goes_no_further(name: str) -> None:
    """The router takes a HELLO with it for malformed, and that would be tried again and again."""
    assert code_of(Options, [("Angarium-Vpn", name)], {}) == errors.VPN_NOT_ALLOWED


@pytest.mark.parametrize("headers", [{"Angarium-Priority": "256"}, {"Content-Type": "\udcff"}])
def test_a_message_that_cannot_be_is_refused(headers: dict[str, str]) -> None:
    assert code_of(Options(headers.items(), {}).row, "a", b"", "me") == errors.INVALID_ARGUMENT


class World:
    """Clients of HTTP at a router."""

    def __init__(self) -> None:
        one = ("profile", "default", "one", {"max_connection_count_per_client_username": 1})
        single = ("username", "default", "single", {"client_profile": "one"})
        self.node = NodeOfGateways(1, snapshot(("username", "default", "default", {}), one, single))
        self.gateway = WiredGateway(self.node)
        self.clients = Clients(
            lambda guest, login, vpn, now: self.gateway.carriers.attach(vpn, guest, login, now)
        )
        self.told: list[int] = []

    def find(self, password: str | None = None, username: str = "default") -> HttpClient:
        return self.clients.find(Credentials("default", username, password, "127.0.0.1"), self.node.now)

    def opened(self, username: str = "default") -> HttpClient:
        client = self.find(username=username)
        self.gateway.settle()
        assert client.state is ClientState.OPEN
        return client

    def done(self, error: AngariumError | None) -> None:
        self.told.append(0 if error is None else error.code)


def is_over(client: HttpClient) -> bool:
    return client.state is ClientState.OVER


@pytest.fixture
def world() -> World:
    return World()


def test_requests_with_the_same_credentials_are_one_client_for_a_minute(world: World) -> None:
    client = world.opened()
    client.users = 1
    assert world.find() is client
    assert world.find("other") is not client
    world.node.now += LOGIN_S
    assert world.find() is not client
    assert client.state is ClientState.OPEN, "its request goes on"
    client.users = 0
    client.idle_since = world.node.now - IDLE_S
    world.clients.tick(world.node.now)
    assert is_over(client)


def test_a_username_with_one_connection_logs_in_anew_each_minute(world: World) -> None:
    """The client of the minute before was there for 20 s more, and all requests were refused until it left."""
    client = world.opened("single")
    for _ in range(3):
        world.node.now += LOGIN_S
        before, client = client, world.opened("single")
        assert client is not before
        assert is_over(before)
        world.clients.tick(world.node.now)
        assert len(world.clients) == 1


def test_a_client_that_is_at_work_serves_on_if_its_username_may_have_no_other_one(world: World) -> None:
    """Beside a stream of events, which does not end, all else of the username was refused from its second minute on."""
    client = world.opened("single")
    client.users = 1
    credentials = Credentials("default", "single", None, "127.0.0.1")
    for _ in range(3):
        world.node.now += LOGIN_S
        refused = world.find(username="single")
        world.gateway.settle()
        assert refused.error
        assert refused.error.code == errors.TOO_MANY_CONNECTIONS
        world.node.now += LOOK_S
        world.clients.tick(world.node.now)
        again = world.find(username="single")
        world.gateway.settle()
        for one in (refused, again):
            assert world.clients.go_back(one, credentials, world.node.now) is client
        assert world.find(username="single") is client
    world.node.now += LOGIN_S
    client.ended(errors.error_for(errors.DISCONNECTED_BY_OPERATOR), world.node.now)
    assert world.clients.go_back(refused, credentials, world.node.now) is None
    world.clients.tick(world.node.now)
    world.node.now += LOOK_S
    world.clients.tick(world.node.now)
    assert not world.clients._known


def test_who_is_refused_for_another_reason_does_not_go_on_with_an_earlier_client(world: World) -> None:
    client = world.opened("single")
    client.users = 1
    world.node.now += LOGIN_S
    refused = world.find(username="single")
    refused.refused(errors.error_for(errors.UNAUTHORIZED), world.node.now)
    credentials = Credentials("default", "single", None, "127.0.0.1")
    assert world.clients.go_back(refused, credentials, world.node.now) is None


def token_of(signature: str = "s", **claims: Any) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJ9.{payload}.{signature}"


def test_a_renewed_token_says_the_same_but_for_when_and_which_one_it_is() -> None:
    def lasting(token: str) -> Credentials:
        return Credentials("v", "", None, "::1", token).lasting

    first = lasting(token_of(iss="i", sub="anna", exp=1, iat=2, jti="3"))
    assert first == lasting(token_of("t", sub="anna", iss="i", exp=9, nbf=8))
    assert first != lasting(token_of(iss="i", sub="anna", scope="less"))
    for unreadable in ("a.b.c", "none", token_of()[:-6] + "W10.s", f"a.{'W' * 7_000}.c"):
        assert lasting(unreadable).token == unreadable
    basic = Credentials("v", "anna", "p", "::1")
    assert basic.lasting is basic


def test_tokens_that_nobody_has_signed_end_no_client_and_leave_nothing_behind(world: World) -> None:
    def find(token: str) -> HttpClient:
        return world.clients.find(Credentials("default", "", None, "127.0.0.1", token), world.node.now)

    client = find(token_of(sub="anna", jti="1"))
    client.state = ClientState.OPEN
    for number in range(50):
        forged = find(token_of(f"{number}", sub="anna", jti="2"))
        assert forged.before is client
        forged.refused(errors.error_for(errors.UNAUTHORIZED), world.node.now)
        world.node.now += LOOK_S
        client.idle_since = world.node.now
        world.clients.tick(world.node.now)
    assert client.state is ClientState.OPEN
    assert len(world.clients._known) == len(world.clients._renewed) == 1
    credentials = Credentials("default", "", None, "127.0.0.1", token_of(sub="anna", jti="3"))
    renewed = world.clients.find(credentials, world.node.now)
    renewed.refused(errors.error_for(errors.TOO_MANY_CONNECTIONS), world.node.now)
    assert world.clients.go_back(renewed, credentials, world.node.now) is client
    client.ended(None, world.node.now)
    world.node.now += LOOK_S
    world.clients.tick(world.node.now)
    assert not world.clients._known
    assert not world.clients._renewed


def test_a_queue_that_an_earlier_client_reads_is_read_through_it_until_it_is_done(world: World) -> None:
    """An exclusive queue gives messages to one client: those of the next minute would get none while it has leases."""
    receipts, receiver = world.clients.receipts, Receiver(1, 30.0, lambda _taken, _error: None)
    client = world.opened()
    reader = client.reader("q", receipts)
    reader.receive(receiver, world.node.now)
    world.node.now += LOGIN_S
    later = world.find()
    assert later is not client
    assert later.reader("q", receipts) is reader
    assert later.reader("other", receipts) is not client.reader("other", receipts)
    reader.give_up(receiver, world.node.now)
    client.idle_since, later.users = world.node.now - IDLE_S, 1
    world.clients.tick(world.node.now)
    assert is_over(client)
    assert later.reader("q", receipts) is not reader


def test_nothing_is_kept_of_queues_that_nobody_reads_any_more(world: World) -> None:
    client = world.opened()
    client.reader("q", world.clients.receipts)
    for _ in range(2):
        world.node.now += IDLE_S
        world.clients.tick(world.node.now)
    assert is_over(client)
    assert world.clients._readings == {}


def test_who_is_not_let_in_is_told_why_and_asks_anew(world: World) -> None:
    client = world.find("wrong", "nobody")
    client.enter(world.done)
    world.gateway.settle()
    assert world.told == [errors.UNAUTHORIZED]
    assert client.state is ClientState.OVER
    assert world.find("wrong", "nobody") is not client


def test_message_vpns_that_there_are_not_leave_nothing_behind(world: World) -> None:
    """Anybody may name them: each stayed, and was looked at in every turn."""
    world.opened()
    for number in range(50):
        credentials = Credentials(f"made-up-{number}", "default", None, "127.0.0.1")
        world.clients.find(credentials, world.node.now).enter(world.done)
        world.gateway.settle()
        world.node.now += BACKOFF_MAX_S
        world.gateway.settle()
        world.clients.tick(world.node.now)
    assert world.told == [errors.VPN_NOT_ALLOWED] * 50
    assert [row["vpn"] for row in world.gateway.carriers.describe()] == ["default"]


def test_a_direct_message_is_done_when_it_left_and_a_guaranteed_one_when_the_node_has_it(
    world: World,
) -> None:
    client = world.opened()
    client.publish(Message("a").row, world.done)
    assert world.told == [0]
    client.publish(Message("a", mode="persistent").row, world.done)
    assert not client.is_idle
    client.publish(Message("a", mode="persistent").row, world.done)
    client.acknowledged([(1, errors.NO_SUBSCRIPTION_MATCH), (2, 0)], world.node.now)
    assert world.told == [0, errors.NO_SUBSCRIPTION_MATCH, 0]
    assert client.is_idle


def test_messages_without_room_wait_and_leave_in_their_order(world: World) -> None:
    client = world.opened()
    for _ in range(100):
        client.publish(Message("a").row, world.done)
    assert 0 < len(world.told) < 100
    for _ in range(20):
        world.gateway.settle()
        world.clients.tick(world.node.now)
    assert world.told == [0] * 100


def test_a_message_that_waits_for_room_is_given_up_with_its_request(world: World) -> None:
    """It was published later, when its request had been answered with 408, and kept its room until then."""
    client, told = world.opened(), list[int]()
    requests = [partial(lambda number, _error: told.append(number), number) for number in range(100)]
    for done in requests:
        client.publish(Message("a").row, done)
    assert len(told) < 50
    for done in requests[50:]:
        client.withdraw(done)
    client.withdraw(requests[0])
    while not client.is_idle:
        world.gateway.settle()
        world.clients.tick(world.node.now)
    assert told == [*range(50)]


def test_a_request_for_whose_reply_nobody_waits_any_more_is_not_published(world: World) -> None:
    """It was published later, when its caller had been answered with 408, and somebody did what he asked for."""
    client, answers = world.opened(), list[Any]()
    given_up = [
        client.request(
            lambda inbox, name: Message("ask", b"old", reply_to=inbox, correlation_id=name).row,
            lambda *answer: answers.append(answer),
        )
        for _ in range(100)
    ]
    waiting = len(client._held)
    assert waiting
    for give_up in given_up:
        give_up()
    assert not client._held
    assert not len(client.replies)
    client.publish(Message("ask", b"new").row, world.done)
    while not client.is_idle:
        world.gateway.settle()
        world.clients.tick(world.node.now)
    given_up[-1]()
    assert world.gateway.carriers.counts()["messages_in"] == 101 - waiting
    assert not answers


def test_what_was_not_stored_is_told_when_the_client_is_over(world: World) -> None:
    client = world.opened()
    client.publish(Message("a", mode="persistent").row, world.done)
    client.ended(errors.error_for(errors.DISCONNECTED_BY_OPERATOR), world.node.now)
    assert world.told == [errors.DISCONNECTED_BY_OPERATOR]
    assert client.is_idle


def test_what_is_published_by_a_client_that_is_over_since_its_body_came_is_refused(world: World) -> None:
    client = world.opened()
    client.ended(errors.error_for(errors.DISCONNECTED_BY_OPERATOR), world.node.now)
    client.publish(Message("a").row, world.done)
    replies: list[AngariumError | None] = []
    client.request(lambda _inbox, _id: Message("a").row, lambda _row, error: replies.append(error))
    assert world.told == [errors.DISCONNECTED_BY_OPERATOR]
    assert [error.code for error in replies if error] == [errors.DISCONNECTED_BY_OPERATOR]
    assert not len(client.replies)


def test_a_client_that_lost_its_router_serves_no_new_requests(world: World) -> None:
    client = world.opened()
    replies: list[AngariumError | None] = []
    client.request(
        lambda inbox, name: Message("a", reply_to=inbox, correlation_id=name).row,
        lambda _row, error: replies.append(error),
    )
    client.publish(Message("a", mode="persistent").row, world.done)
    assert client.away(world.node.now)
    assert [error.code for error in replies if error] == [errors.NOT_CONNECTED]
    assert not client.is_idle, "what was published goes on"
    assert code_of(client.request, lambda _inbox, _name: Message("a").row, print) == errors.NOT_CONNECTED
    assert world.find() is not client


@pytest.mark.parametrize("step", ["tick", "go_on"])
def test_a_fault_in_what_is_due_of_one_client_ends_that_client_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    broken, other = world.opened(), world.find("other")
    world.gateway.settle()
    broken.publish(Message("a", mode="persistent").row, world.done)
    world.clients._waiting.update(dict.fromkeys((broken, other)))
    done: list[HttpClient] = []

    def work(client: HttpClient, *_now: float) -> None:
        if client is broken:
            raise AssertionError("a fault")
        done.append(client)

    monkeypatch.setattr(HttpClient, step, work)
    world.clients.tick(world.node.now)
    assert done == [other]
    assert is_over(broken)
    assert world.told == [errors.INTERNAL], "who waits is told"
    assert "a fault" in caplog.text
    assert len(world.clients) == 1
    assert world.find() is not broken


def test_a_stream_begins_when_its_filters_are_in_force_also_if_another_ends_while_the_router_is_lost(
    world: World,
) -> None:
    """It was told so by the answer to the other one, and never what the next router said of its own filters."""
    client, told = world.opened(), list[AngariumError | None]()
    client.subscribe(["a"], told.append)
    world.gateway.settle()
    client.subscribe(["#share/bad*/b"], told.append)
    client.unsubscribe(["a"])
    world.gateway.lines[-1].break_off()
    assert told == [None], "the other one waits"
    for _ in range(10):
        world.node.now += BACKOFF_MAX_S / 10
        world.gateway.settle()
    assert client.state is ClientState.OPEN
    assert [one and one.code for one in told] == [None, errors.INVALID_SHARE_NAME]


def test_who_waits_when_the_process_ends_is_told_so_and_nobody_new_is_served(world: World) -> None:
    client = world.opened()
    codes: list[int] = []
    reader = client.reader("q", world.clients.receipts)
    reader.receive(Receiver(1, 30.0, lambda _taken, error: codes.append(error.code if error else 0)), 0.0)
    client.request(
        lambda _inbox, _id: Message("a").row, lambda _row, error: codes.append(error.code if error else 0)
    )
    world.clients.stop()
    assert codes == [errors.SHUTTING_DOWN] * 2
    client.publish(Message("a").row, world.done)
    assert world.told == [0], "who publishes is served"
    assert code_of(world.find) == errors.SHUTTING_DOWN


def test_one_client_more_than_there_may_be_is_refused(world: World) -> None:
    world.clients._all = dict.fromkeys(HttpClient({}) for _ in range(CLIENTS_MAX))
    assert code_of(world.find) == errors.TOO_MANY_CLIENTS


def test_a_reply_is_for_who_has_its_correlation_id(world: World) -> None:
    client, responder = world.opened(), world.gateway.open("responder")[0]
    responder.subscribe([("ask", 0)])
    world.gateway.settle()
    replies: list[Any] = []
    requests: list[Row] = []

    def row_of(inbox: str, correlation_id: str) -> Row:
        requests.append(Message("ask", reply_to=inbox, correlation_id=correlation_id).row)
        return requests[-1]

    for _ in range(2):
        client.request(row_of, lambda row, error: replies.append(row and row[5]))
    world.gateway.settle()
    asked = Options([], {}).row("x", b"", "me")
    assert asked[1] == "x"
    for at in (1, 0):
        told = json_of(requests[at])
        reply = Message(told["reply_to"], b"%d" % at, correlation_id=told["correlation_id"]).row
        responder.publish(*reply[1:])
        responder.publish(*Message(told["reply_to"], b"no", correlation_id="other").row[1:])
    world.gateway.settle()
    assert replies == [b"1", b"0"]
    assert not len(client.replies)


def test_a_request_to_a_topic_that_nobody_subscribed_to_is_told_so_at_once(world: World) -> None:
    """It waited for its whole time, as if there were a service that is slow."""
    client, responder = world.opened(), world.gateway.open("responder")[0]
    responder.subscribe([("served", 0)])
    world.gateway.settle()
    told: list[tuple[str, int]] = []

    def ask(topic: str) -> None:
        client.request(
            lambda inbox, name: Message(topic, reply_to=inbox, correlation_id=name).row,
            lambda _row, error: told.append((topic, error.code if error else 0)),
        )

    client.publish(Message("alone").row, world.done)
    for topic in ("nobody", "served", "nobody"):
        ask(topic)
    world.gateway.settle()
    assert told == [("nobody", errors.NO_RESPONDERS)] * 2
    assert len(client.replies) == 1
    ask("else")
    world.gateway.settle()
    assert told[2:] == [("else", errors.NO_RESPONDERS)]
    assert world.gateway.carriers.counts()["refused_messages"] == {}


def test_a_request_that_the_router_refuses_is_told_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.opened()
    refusals: list[Callable[[int], None]] = []
    monkeypatch.setattr(Attached, "report", lambda _client, _topic, refused: refusals.append(refused))
    told: list[int] = []
    client.request(
        lambda inbox, name: Message("dear", reply_to=inbox, correlation_id=name).row,
        lambda _row, error: told.append(error.code if error else 0),
    )
    refusals[0](errors.MATCHING_WORK_EXCEEDED)
    assert told == [errors.MATCHING_WORK_EXCEEDED]


def test_a_request_that_may_not_be_published_waits_for_nothing(world: World) -> None:
    client = world.opened()
    assert (
        code_of(client.request, lambda _inbox, _id: Message("#noexport/a").row, print)
        == errors.RESERVED_TOPIC
    )
    assert not len(client.replies)


def test_what_a_message_says_is_headers_or_json_as_far_as_they_can() -> None:
    properties: dict[str, Any] = {"a": "b", "b\r\n": "c", "c": "x\r\ny", "d": 5, "e": b"\xff"}
    row = Message("t", b"\xff", content_type="a\nb", reply_to="r", properties=properties).row
    assert headers_of(row) == {"Angarium-Topic": "t", "Angarium-Reply-To": "r", "Angarium-Property-a": "b"}
    told = json_of(row)
    assert (told["payload"], told["payload_encoding"]) == ("/w==", "base64")
    assert told["properties"] == properties
    assert json_of((0, "t", 0, None, b"\xc1", b""))["payload"] == ""
    odd = wire.pack({10: {5: "number", "ok": 1}})
    assert json_of((0, "t", 0, None, odd, b""))["properties"]["ok"] == 1


@pytest.mark.parametrize(("count", "size", "kept"), [(200, 1, 40), (30, 4_000, 2), (1, 4_096, 1)])
def test_properties_are_headers_as_far_as_servers_take_them(count: int, size: int, kept: int) -> None:
    """A message with more of them would be refused by its target again and again; its trace is told in any case."""
    properties = {f"p{number}": "x" * size for number in range(count)} | {"traceparent": TRACEPARENT}
    told = headers_of(Message("t", b"", properties=properties).row)
    assert told.pop("traceparent") == TRACEPARENT
    found = [name for name in told if name.startswith("Angarium-Property-")]
    assert found == [f"Angarium-Property-p{number}" for number in range(len(found))]
    assert len(found) == kept - (count > 40)


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("Traceparent", TRACEPARENT)], {"traceparent": TRACEPARENT}),
        (
            [("traceparent", TRACEPARENT), ("tracestate", "a=b"), ("TraceState", "c=d")],
            {"traceparent": TRACEPARENT, "tracestate": "a=b,c=d"},
        ),
        # What is said of the message counts, and not what is said of the request.
        (
            [("Angarium-Property-traceparent", OTHER), ("traceparent", TRACEPARENT)],
            {"traceparent": OTHER},
        ),
        ([("traceparent", TRACEPARENT), ("traceparent", OTHER), ("tracestate", "a=b")], {}),
        ([("traceparent", "none"), ("Angarium-Property-a", "b")], {"a": "b"}),
        ([("tracestate", "a=b")], {}),
    ],
)
def test_the_trace_context_of_a_request_is_that_of_its_message(
    headers: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    before = CONTEXTS.dropped
    row = Options(headers, {}).row("a", b"", "me")
    assert json_of(row).get("properties", {}) == expected
    is_kept = "traceparent" in expected
    assert CONTEXTS.dropped - before == (not is_kept)
    told = headers_of(row)
    assert told.get("traceparent") == expected.get("traceparent")
    assert told.get("tracestate") == expected.get("tracestate")
    assert "Angarium-Property-traceparent" not in told


def test_what_a_native_client_calls_its_trace_context_becomes_no_header_if_it_is_none() -> None:
    before = CONTEXTS.dropped
    row = Message("t", properties={"traceparent": "a\r\nb", "tracestate": 7, "a": "b"}).row
    assert headers_of(row).keys() == {"Content-Type", "Angarium-Topic", "Angarium-Property-a"}
    assert json_of(row)["properties"] == {"a": "b"}
    assert CONTEXTS.dropped - before == 2


def test_a_number_of_the_query_is_in_its_bounds() -> None:
    query = {"max": "5"}
    assert take_number(query, "max", 1, 1, 10) == 5
    assert not query
    assert take_number(query, "max", 1, 1, 10) == 1
    assert take_number({"wait": "0.25"}, "wait", 0, 0, 60) == 0.25
    assert (
        code_of(lambda: take_number({"max": "1.5"}, "max", 1, 1, 10, is_whole=True))
        == errors.INVALID_ARGUMENT
    )
    for text in ("0", "11", "x", "nan", "", "inf", "1_0", " 5", "\u0665", "1e0", "9" * 5_000):
        assert code_of(take_number, {"max": text}, "max", 1, 1, 10) == errors.INVALID_ARGUMENT
