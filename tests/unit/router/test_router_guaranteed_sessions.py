"""Sessions of clients of gateways at the router, with a real catalog: who may what, and when one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.errors import AngariumError
from angarium_server.access import TopicRules
from cluster.catalog.catalog import Catalog
from cluster.catalog.endpoints import ClientEndpoints
from cluster.catalog.sessions import ChangeWish, ClientSessions, OpenWish, ShareWish
from cluster.controller.switchboard.changes import request_of
from router.guaranteed.temporaries import AGAIN_S, KEPT_S
from router.sessions.kinds import GATEWAY
from router.sessions.session import QUEUE_NAME_BYTES_MAX, Session, session_queue, share_queue
from storage.config_store import Change
from tests.unit.router.flow_rig import FakeClient, FakeController, Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.asking.work import Work
    from router.ground.effects import AskController
    from router.guaranteed.endpoints import Endpoint
    from storage.config_store import Entry

NAME = "#mqtt/dev1"
PUT = {"a/#": [["a", "a/>"], 1, 0]}


class CatalogController(FakeController):
    """Endpoints as the catalog makes them."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.catalog = Catalog([], lambda password: password)
        self.catalog.take(self.catalog.missing_built_ins())
        self.endpoints = ClientEndpoints(self.catalog)
        self.sessions = ClientSessions(self.catalog, self.endpoints)
        #: Every change of an object so far.
        self.written: list[Change] = []

    def take(self, effect: AskController) -> None:
        self.asked.append((effect.operation, effect.arguments))
        if not self.answers:
            return
        try:
            ok, value = True, self._catalog_answer(effect.operation, effect.arguments)
        except AngariumError as error:
            ok, value = False, [error.code, error.detail]
        self.rig.asks.answered(effect.ticket, ok, value, self.rig.now)

    def _catalog_answer(self, operation: str, wish: dict[str, Any]) -> Any:
        if operation == "session.open":
            opened = self.sessions.open(OpenWish(**wish))
            self.make(opened.changes)
            return {"present": opened.present, "filters": opened.filters}
        if operation == "session.change":
            changed = self.sessions.change(ChangeWish(**wish))
            self.make(changed.changes)
            return changed.verdicts
        if operation == "session.share":
            self.make(self.sessions.share(ShareWish(**wish)))
            return None
        act = self.endpoints.expire if operation == "endpoint.expire" else self.endpoints.delete
        self.make(act(wish["vpn"], wish["kind"], wish["name"], wish["id"]))
        return None

    def make(self, changes: list[Entry]) -> None:
        """Make changes, and tell the router as the controller does."""
        made = [one for one in changes if isinstance(one, Change)]
        told = [request_of(one, self.catalog.get(*one[:3])) for one in made]
        self.catalog.take(changes)
        self.catalog.validate()
        self.written += made
        for operation, (kind, _, name, *content) in told:
            if operation == "config_delete":
                self.rig.endpoints.drop("default", kind, name)
            elif operation == "config_edit":
                self.rig.endpoints.edit(self.find(name), content[0], lambda: None)
            else:
                self.rig.endpoints.put(self.rig.vpn, kind, name, content[0], now=self.rig.now)
        self.rig.settle()

    def find(self, name: str) -> Endpoint:
        found = self.rig.endpoints.find("default", "queue", name)
        assert found is not None
        return found


class World:
    """A router whose controller is a catalog, and clients of a gateway."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.controller = self.rig.controller = CatalogController(self.rig)
        self.carrier = Session(99, b"\0gate", self.rig.vpn, "#gateway", "#gateway/mqtt/0", 0.0, GATEWAY)

    def client(self, name: str = "dev1", username: str = "alice") -> FakeClient:
        made = self.rig.client(name, username)
        made.session.carrier = self.carrier
        return made

    def opened(self, client: FakeClient, *, clean: bool = False, expiry_s: int = 60) -> dict[str, Any]:
        code, value = client.request("session.open", clean=clean, expiry_s=expiry_s)
        assert code == 0, (code, value)
        assert isinstance(value, dict)
        return value

    @property
    def queue(self) -> Endpoint | None:
        return self.rig.endpoints.find("default", "queue", NAME)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.rig.validate()


def test_a_session_is_opened_filled_bound_and_closed(world: World) -> None:
    client = world.client()
    assert world.opened(client) == {"name": NAME, "present": False, "temporary": False, "filters": {}}
    assert client.request("session.change", put={**PUT, "b": [[], 0, 3]}) == (0, [None, None])
    assert world.queue is not None
    assert sorted(one.pattern for one in world.queue.filters.values()) == ["a", "a/>"]
    client.bind(NAME)
    client.leave(wanted=True)
    again = world.client()
    assert world.opened(again)["filters"] == {**PUT, "b": [[], 0, 3]}
    assert again.request("session.close") == (0, None)
    assert world.queue is None
    assert again.request("session.close") == (0, None)


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_session_that_is_ended_goes_also_if_the_controller_had_no_time_for_that(
    world: World, is_bound: bool
) -> None:
    """Of a fleet that ended all of its sessions at once some stayed until they expired, and took messages."""
    client = world.client()
    world.opened(client, expiry_s=1_000)
    if is_bound:
        client.bind(NAME)
    world.controller.answers = False
    client.ask("session.close")
    refused = [errors.CONTROL_RATE_EXCEEDED, ""]
    world.rig.asks.answered(2, False, refused, world.rig.now)
    client.leave(wanted=True)
    world.controller.answers = True
    world.rig.advance(AGAIN_S - 1)
    assert world.queue is not None
    world.rig.advance(2)
    assert world.queue is None
    assert world.controller.asked[-1][0] == "endpoint.delete"


@pytest.mark.parametrize("is_bound_in_time", [True, False])
def test_who_comes_again_after_it_has_ended_its_session_has_a_new_one_and_keeps_it(
    world: World, is_bound_in_time: bool
) -> None:
    """The old one may be there until the controller has time: who went on with it lost it when that came to it."""
    client = world.client()
    world.opened(client, expiry_s=1_000)
    client.request("session.change", put=PUT)
    client.bind(NAME)
    world.controller.answers = False
    client.ask("session.close")
    client.leave(wanted=True)
    world.controller.answers = True
    again = world.client()
    opened = world.opened(again, expiry_s=1_000)
    assert (opened["present"], opened["filters"]) == (False, {})
    if is_bound_in_time:
        again.bind(NAME)
    world.rig.advance(2 * AGAIN_S)
    assert world.queue is not None


def test_who_leaves_changes_how_long_its_session_stays_whoever_else_subscribes(world: World) -> None:
    """The change waited for its turn behind filters of others, and was dropped with the client, who is gone by then."""
    client = world.client()
    world.opened(client, expiry_s=1_000)
    others: list[Work] = []
    world.rig.consumers.begin_work = others.append
    client.ask("session.change", expiry_s=5)
    client.leave(wanted=True)
    for work in others:
        work.finish()
    world.rig.settle()
    assert world.queue is not None
    assert world.queue.attributes["max_idle_s"] == 5


def test_the_router_is_told_of_filters_and_not_of_the_session(world: World) -> None:
    client = world.client()
    world.opened(client)
    client.request("session.change", put={"b": [[], 0, 0]})
    client.request("session.change", put=PUT)
    assert world.queue is not None
    assert not world.queue.attributes.get("session")
    assert world.controller.written[-1].attributes["session"]["filters"].keys() == {"b", "a/#"}  # type: ignore[index]


def test_who_comes_back_writes_nothing(world: World) -> None:
    for _ in range(3):
        client = world.client()
        world.opened(client)
        client.bind(NAME)
        client.leave(wanted=False)
    assert len(world.controller.written) == 1


def test_one_that_ends_with_its_connection_asks_for_nothing_until_it_has_a_filter(world: World) -> None:
    client = world.client()
    opened = world.opened(client, clean=True, expiry_s=0)
    assert opened == {"name": NAME, "present": False, "temporary": True, "filters": {}}
    assert world.controller.asked == []
    assert client.request("session.change", put={"a": [[], 0, 0]}, temporary=True) == (0, [None])
    assert world.queue is None
    assert client.request("session.change", put=PUT, temporary=True) == (0, [None])
    assert world.queue is not None
    before = world.queue.id
    assert client.request("session.change", put={"b": [["b"], 1, 0]}, temporary=True) == (0, [None])
    assert world.queue.id == before
    client.bind(NAME, temporary=True)
    client.leave(wanted=True)
    assert world.queue is None


def test_it_is_kept_for_a_moment_when_its_gateway_dies_and_is_not_found_again(world: World) -> None:
    client = world.client()
    world.opened(client, expiry_s=0)
    client.request("session.change", put=PUT, temporary=True)
    client.bind(NAME, temporary=True)
    client.leave(wanted=False)
    assert world.queue is not None
    again = world.client()
    assert world.opened(again, expiry_s=0)["present"] is False
    assert world.queue is None
    world.rig.advance(2 * KEPT_S)


def test_filters_are_judged_like_the_clients_own(world: World) -> None:
    client = world.client()
    world.opened(client)
    rules = TopicRules(["secret/>"], default_allow=True)
    client.session.permissions = client.session.permissions._replace(filters=rules)
    put = {
        "a": [["a"], 1, 0],
        "secret/#": [["secret", "secret/>"], 1, 0],
        "!x": [["!x"], 1, 0],
        "s": [["#share/g/a"], 1, 0],
        "p": [["#P2P/x"], 1, 0],
        "e": [[""], 1, 0],
        "secret/q0": [[], 0, 0],
    }
    code, verdicts = client.request("session.change", put=put)
    assert code == 0
    assert [one and one[0] for one in verdicts] == [
        None,
        errors.SUBSCRIBE_DENIED,
        errors.EXCEPTIONS_NOT_SUPPORTED,
        errors.SHARED_ON_ENDPOINT,
        errors.RESERVED_TOPIC,
        errors.INVALID_FILTER,
        None,
    ]
    assert list(world.opened(client)["filters"]) == ["a", "secret/q0"]
    asked = len(world.controller.asked)
    code, verdicts = client.request("session.change", put={"secret/1": [["secret/1"], 1, 0]})
    assert verdicts[0][0] == errors.SUBSCRIBE_DENIED
    assert len(world.controller.asked) == asked


def test_more_than_sixteen_filters_are_too_many(world: World) -> None:
    client = world.client()
    world.opened(client)
    many = {str(number): [[], 0, 0] for number in range(17)}
    assert client.request("session.change", put=many)[0] == errors.INVALID_ARGUMENT
    assert client.request("session.change", drop=list(many))[0] == errors.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [("session.open", {"clean": False, "expiry_s": 9}), ("session.change", {}), ("session.close", {})],
)
def test_sessions_are_for_clients_of_gateways_that_may_receive(
    world: World, operation: str, arguments: dict[str, Any]
) -> None:
    native = world.rig.client("native", "alice")
    assert native.request(operation, **arguments)[0] == errors.UNKNOWN_OPERATION
    client = world.client()
    world.rig.vpn.profiles["default"]["allow_guaranteed_receive"] = False
    assert client.request(operation, **arguments)[0] == errors.GUARANTEED_RECEIVE_DENIED


def test_creating_endpoints_is_another_right(world: World) -> None:
    world.rig.vpn.profiles["default"]["allow_endpoint_create"] = False
    client = world.client()
    world.opened(client)
    assert client.request("session.change", put=PUT) == (0, [None])


def test_a_session_is_for_its_own_client_alone(world: World) -> None:
    client = world.client()
    world.opened(client)
    override = world.rig.client("native", "alice", guaranteed_endpoint_permission_override=True)
    same_name = world.rig.client("dev1", "alice")
    other = world.client("dev2", "alice")
    for one in (override, same_name, other):
        assert one.refused(NAME) == errors.PERMISSION_DENIED
        assert one.refused(NAME, browse=True) == errors.PERMISSION_DENIED
        for operation in ("endpoint.delete", "endpoint.show"):
            assert one.request(operation, name=NAME)[0] == errors.PERMISSION_DENIED
        assert one.request("endpoint.subscribe", name=NAME, filters=["x"])[0] == errors.PERMISSION_DENIED
    assert client.request("endpoint.subscribe", name=NAME, filters=["x"])[0] == errors.PERMISSION_DENIED
    assert client.request("endpoint.delete", name=NAME)[0] == errors.PERMISSION_DENIED
    client.bind(NAME)


def test_a_session_of_another_username_is_refused(world: World) -> None:
    world.opened(world.client())
    thief = world.client("dev1", "bob")
    for operation, arguments in (
        ("session.open", {"clean": True, "expiry_s": 9}),
        ("session.open", {"clean": True, "expiry_s": 0}),
        ("session.change", {"put": PUT}),
        ("session.close", {}),
    ):
        assert thief.request(operation, **arguments)[0] == errors.PERMISSION_DENIED
    assert thief.refused(NAME) == errors.PERMISSION_DENIED
    assert world.queue is not None


def test_a_session_that_an_operator_deleted_is_gone(world: World) -> None:
    client = world.client()
    world.opened(client)
    world.controller.make(world.controller.catalog.delete("queue", "default", NAME))
    assert client.request("session.change", put=PUT)[0] == errors.UNKNOWN_ENDPOINT


def test_nobody_publishes_to_it_by_name(world: World) -> None:
    world.opened(world.client())
    assert world.queue is not None
    assert world.queue.address == ""
    assert world.queue.filters == {}


def test_memory_is_charged_while_the_controller_is_asked(world: World) -> None:
    client = world.client()
    client.session.permissions = client.session.permissions._replace(memory_max=10)
    code, _ = client.request("session.open", clean=False, expiry_s=60)
    assert code == errors.MEMORY_EXCEEDED
    assert client.session.memory_bytes == 0


# -- queues that are shared -----------------------------------------------------------------------------------

SHARED = "#mqtt/$share/crew/a/#"
SHARE = {"filter": "$share/crew/a/#", "filters": ["#share/crew/a", "#share/crew/a/>"]}


def test_those_who_share_a_filter_are_bound_to_one_queue(world: World) -> None:
    members = [world.client(f"dev{number}", username) for number, username in enumerate(("alice", "bob"))]
    for number, client in enumerate(members):
        assert client.request("session.share", **SHARE, expiry_s=90 - number) == (0, {"name": SHARED})
        client.bind(SHARED)
    queue = world.controller.find(SHARED)
    assert len(queue.flows) == 2
    assert len(world.controller.written) == 1
    assert queue.address == ""
    for client in members:
        client.leave(wanted=True)
    world.rig.advance(89)
    world.controller.find(SHARED)
    world.rig.advance(3)
    assert world.rig.endpoints.find("default", "queue", SHARED) is None


def test_a_queue_that_is_shared_is_for_clients_of_gateways(world: World) -> None:
    assert world.client().request("session.share", **SHARE, expiry_s=0)[0] == 0
    native = world.rig.client("native", "alice", guaranteed_endpoint_permission_override=True)
    assert native.request("session.share", **SHARE, expiry_s=0)[0] == errors.UNKNOWN_OPERATION
    assert native.refused(SHARED) == errors.PERMISSION_DENIED
    for operation, more in (("endpoint.delete", {}), ("endpoint.subscribe", {"filters": ["x"]})):
        for one in (native, world.client("dev2")):
            assert one.request(operation, name=SHARED, **more)[0] == errors.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("rights", "filters", "code"),
    [
        ({"shared_allowed": False}, SHARE["filters"], errors.SHARED_SUBSCRIPTION_DENIED),
        ({"share_names": TopicRules([], default_allow=False)}, SHARE["filters"], errors.SHARE_NAME_DENIED),
        ({"filters": TopicRules(["a/>"], default_allow=True)}, SHARE["filters"], errors.SUBSCRIBE_DENIED),
        ({}, ["a"], errors.INVALID_FILTER),
        ({}, ["#share/crew/"], errors.INVALID_FILTER),
        ({}, ["#share/crew/#P2P/INB/x"], errors.RESERVED_TOPIC),
        ({"memory_max": 10}, SHARE["filters"], errors.MEMORY_EXCEEDED),
    ],
)
def test_what_is_shared_is_judged_like_a_shared_subscription(
    world: World, rights: dict[str, Any], filters: list[str], code: int
) -> None:
    client = world.client()
    client.session.permissions = client.session.permissions._replace(**rights)
    asked = {"filter": "$share/crew/a/#", "filters": filters, "expiry_s": 0}
    assert client.request("session.share", **asked)[0] == code
    assert world.controller.written == []


def test_who_may_not_receive_shares_nothing(world: World) -> None:
    world.rig.vpn.profiles["default"]["allow_guaranteed_receive"] = False
    client = world.client()
    assert client.request("session.share", **SHARE, expiry_s=0)[0] == errors.GUARANTEED_RECEIVE_DENIED


def test_names_of_queues_that_are_shared_say_their_filters_and_no_two_have_one() -> None:
    assert share_queue("$share/crew/a/+/#") == "#mqtt/$share/crew/a/+/#"
    assert share_queue("$share/crew/a//b?") == "#mqtt/$share/crew/a/%/b%3F"
    texts = ["a", "a/", "/a", "//", "a/%", "a/%25", "x" * 300, "x" * 301, "a/#", "a/+"]
    names = {share_queue(f"$share/g/{text}") for text in texts}
    assert len(names) == len(texts)
    assert max(len(name) for name in names) <= QUEUE_NAME_BYTES_MAX
    assert not names & {session_queue("$share"), session_queue("$share/g/a")}


# -- time ----------------------------------------------------------------------------------------------------


def test_a_session_ends_when_it_had_no_flow_for_its_expiry(world: World) -> None:
    client = world.client()
    world.opened(client, expiry_s=100)
    client.bind(NAME)
    world.rig.advance(300)
    client.leave(wanted=True)
    world.rig.advance(99)
    assert world.queue is not None
    world.rig.advance(3)
    assert world.queue is None
    assert world.controller.catalog.get("queue", "default", NAME) is None


def test_one_that_goes_on_for_this_connection_only_ends_a_second_after_it(world: World) -> None:
    first = world.client()
    world.opened(first, expiry_s=100)
    first.leave(wanted=True)
    client = world.client()
    assert world.opened(client, expiry_s=0) == {
        "name": NAME,
        "present": True,
        "temporary": False,
        "filters": {},
    }
    client.bind(NAME)
    world.rig.advance(50)
    client.leave(wanted=True)
    world.rig.advance(3)
    assert world.queue is None


def test_a_native_queue_ends_without_a_flow_too_and_begins_anew_when_that_changes(world: World) -> None:
    make, catalog = world.controller.make, world.controller.catalog
    make(catalog.create("queue", "default", "idle", {"owner": "alice", "max_idle_s": 50}))
    make(catalog.create("queue", "default", "stays", {"owner": "alice"}))
    world.rig.advance(49)
    make(catalog.update("queue", "default", "idle", {"max_idle_s": 30}))
    world.rig.advance(29)
    assert len(world.rig.endpoints) == 2
    make(catalog.update("queue", "default", "idle", {"max_idle_s": 0}))
    world.rig.advance(1_000)
    assert len(world.rig.endpoints) == 2
    make(catalog.update("queue", "default", "idle", {"max_idle_s": 5}))
    consumer = world.rig.client("consumer", "alice")
    consumer.bind("idle")
    consumer.bind("idle")
    world.rig.advance(20)
    consumer.request("flow.unbind", flow=1)
    world.rig.advance(20)
    consumer.request("flow.unbind", flow=2)
    world.rig.advance(4)
    assert len(world.rig.endpoints) == 2
    world.rig.advance(3)
    assert [one.name for one in world.rig.endpoints] == ["stays"]
    assert world.controller.asked[-1][0] == "endpoint.expire"


def test_the_controller_is_asked_again_and_keeps_one_that_may_stay_by_now(world: World) -> None:
    make, catalog = world.controller.make, world.controller.catalog
    make(catalog.create("queue", "default", "idle", {"max_idle_s": 5}))
    world.controller.answers = False
    world.rig.advance(22)
    assert [operation for operation, _ in world.controller.asked] == ["endpoint.expire"] * 4
    arguments = world.controller.asked[0][1]
    catalog.take(catalog.update("queue", "default", "idle", {"max_idle_s": 0}))
    assert world.controller.endpoints.expire(**_renamed(arguments)) == []


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"endpoint" if name == "id" else name: value for name, value in arguments.items()}


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client_name", "queue"),
    [
        ("dev1", "#mqtt/dev1"),
        ("a/b", "#mqtt/a%2Fb"),
        ("a%2Fb", "#mqtt/a%252Fb"),
        ("#x", "#mqtt/%23x"),
        ("<'*?&;>", "#mqtt/%3C%27%2A%3F%26%3B%3E"),
        ("\x01 Fühler", "#mqtt/%01 Fühler"),
    ],
)
def test_a_name_has_what_names_of_queues_may_have(client_name: str, queue: str) -> None:
    assert session_queue(client_name) == queue


def test_a_long_name_is_a_hash() -> None:
    names = [session_queue("ü*" * 80 + end) for end in ("", "x")]
    assert names[0] != names[1]
    assert all(name.startswith("#mqtt/%~") and len(name.encode()) <= 200 for name in names)
    assert wire.SESSION_QUEUE_PREFIX == "#mqtt/"


def test_a_session_keeps_a_note_that_the_next_connection_reads_and_that_ends_with_it(world: World) -> None:
    client = world.client()
    world.opened(client)
    assert client.request("session.note") == (0, b"")
    assert client.request("session.keep", note=b"in the middle") == (0, None)
    client.leave(wanted=True)
    again = world.client()
    world.opened(again)
    assert again.request("session.note") == (0, b"in the middle")
    world.opened(again, clean=True)
    assert again.request("session.note") == (0, b"")


def test_a_note_is_only_for_who_has_the_session(world: World) -> None:
    client = world.client()
    assert client.request("session.keep", note=b"x")[0] == errors.UNKNOWN_ENDPOINT
    world.opened(client)
    client.leave(wanted=True)
    other = world.client(username="bob")
    assert other.request("session.note")[0] == errors.PERMISSION_DENIED
    native = world.rig.client("dev2", "alice")
    assert native.request("session.note")[0] == errors.UNKNOWN_OPERATION


# -- what sessions hold of queues that are shared --------------------------------------------------------------


def member(world: World, name: str) -> tuple[FakeClient, int]:
    """Give a client with a kept session that shares a queue, and the number of its flow."""
    client = world.client(name)
    world.opened(client)
    assert client.request("session.share", **SHARE, expiry_s=60) == (0, {"name": SHARED})
    return client, client.bind(SHARED)["flow"]


def hold(client: FakeClient, *held: int, note: bytes = b"note") -> tuple[int, Any]:
    return client.request("session.keep", share=SHARED, note=note, held=held)


def test_what_a_session_holds_is_its_own_until_it_ends(world: World) -> None:
    first, _ = member(world, "dev1")
    home = world.rig.homes[0]
    home.store(world.controller.find(SHARED), 2)
    assert first.messages() == 2
    assert hold(first, 1) == (0, [])
    first.leave(wanted=False)
    second, _ = member(world, "dev2")
    assert second.messages() == 1
    again, _ = member(world, "dev1")
    assert again.request("session.note", share=SHARED) == (0, [b"note", [1]])
    assert again.messages() == 1
    again.leave(wanted=True)
    world.opened(world.client("dev1"), clean=True)
    world.rig.advance(1)
    assert second.messages() == 1


def test_what_was_held_is_given_back_however_late_the_home_hears_of_the_end(world: World) -> None:
    first, _ = member(world, "dev1")
    second, _ = member(world, "dev2")
    world.rig.homes[0].store(world.controller.find(SHARED), 1)
    assert first.messages() == 1
    assert hold(first, 1) == (0, [])
    world.rig.kill_home(0)
    first.leave(wanted=True)
    world.opened(world.client("dev1"), clean=True)
    world.rig.advance(25)
    world.rig.start_home(0)
    world.rig.advance(1)
    assert second.messages() == 1


def test_who_joins_has_what_is_left_of_sessions_given_back_that_are_gone(world: World) -> None:
    first, _ = member(world, "dev1")
    world.rig.homes[0].store(world.controller.find(SHARED), 1)
    assert hold(first, 1) == (0, [])
    first.leave(wanted=True)
    world.rig.consumers.holders._shares.clear()  # as a router that has just begun
    world.opened(world.client("dev1"), clean=True)
    world.rig.advance(1)
    second, _ = member(world, "dev2")
    world.rig.advance(1)
    assert second.messages() == 1


def test_only_sessions_that_are_kept_hold_messages_and_only_of_queues_that_are_shared(world: World) -> None:
    client = world.client()
    assert client.request("session.share", **SHARE, expiry_s=0)[0] == 0
    client.bind(SHARED)
    assert hold(client)[0] == errors.UNKNOWN_ENDPOINT
    world.opened(client)
    for name in (NAME, "#mqtt/$share/crew/b"):
        assert client.request("session.keep", share=name, note=b"")[0] == errors.UNKNOWN_ENDPOINT
    assert hold(client, 9) == (0, [9])
