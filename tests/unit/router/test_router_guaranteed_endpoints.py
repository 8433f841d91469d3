"""Endpoints in the router: what they match, where their lanes are, and what clients may do with them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.topic import Filter, matches, parse_filter
from angarium_server.access import TopicRules
from angarium_server.frames.homes import LaneTotals
from cluster import objects
from router.asking.requests import REQUESTS_MAX
from router.ground.ground import TokenBucket
from router.guaranteed import endpoint_filters
from router.guaranteed.filter_checks import FilterChecks
from router.operators import describe_endpoints
from router.sessions.directory import AclProfile
from tests.garbage import uncollected

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.interest import FilterSet
    from tests.unit.router.flow_rig import FakeClient, Rig


def filters(rig: Rig, endpoint: Endpoint) -> list[tuple[int, str]]:
    """Give (kind, pattern) of the filters of an endpoint that the workers know."""
    return [(one.kind, one.pattern) for one in rig.interest.filters.values() if endpoint in one.members]  # type: ignore[comparison-overlap]


def matched(rig: Rig, topic: str) -> FilterSet[Any]:
    """Give the set that a worker would name for a topic."""
    ids = [one.id for one in rig.interest.filters.values() if matches(one.pattern, topic)]
    return rig.interest.use_set(ids)


def takers(rig: Rig, topic: str) -> list[str]:
    """Give the names of the endpoints that take a message."""
    return [endpoint.name for endpoint in rig.endpoints.resolve(matched(rig, topic))]


# -- filters -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R92", "R112", "R119")
def test_a_queue_matches_its_address_and_its_subscriptions(rig: Rig) -> None:
    queue = rig.controller.put("q", subscriptions=["a/>", "b"])
    assert filters(rig, queue) == [(3, "#P2P/QUE/q"), (3, "a/>"), (3, "b")]
    assert takers(rig, "a/1") == ["q"]
    assert takers(rig, "b") == ["q"]
    assert takers(rig, "#P2P/QUE/q") == ["q"]
    assert takers(rig, "c") == []


@pytest.mark.requirement("R113", "R116")
def test_every_endpoint_that_matches_takes_a_message_and_each_once(rig: Rig) -> None:
    rig.controller.put("one", subscriptions=["a/>", "a/b", "a/*"])
    rig.controller.put("two", subscriptions=["a/b"])
    rig.controller.put("three", kind="topic-endpoint", topic="a/*")
    rig.controller.put("other", subscriptions=["x"])
    assert sorted(takers(rig, "a/b")) == ["one", "three", "two"]


@pytest.mark.requirement("R122", "R124", "R126")
@pytest.mark.parametrize("texts", [["animals/f*", "!animals/fox"], ["!animals/fox", "animals/f*"]])
def test_an_exception_keeps_messages_out_whatever_the_order(rig: Rig, texts: list[str]) -> None:
    rig.controller.put("q", subscriptions=texts)
    rig.controller.put("all", subscriptions=["animals/>"])
    assert sorted(takers(rig, "animals/frog")) == ["all", "q"]
    assert takers(rig, "animals/fox") == ["all"]


@pytest.mark.requirement("R126")
def test_an_exception_that_comes_later_and_goes_again_is_in_force_meanwhile(rig: Rig) -> None:
    rig.controller.put("q", subscriptions=["a/>"])
    assert takers(rig, "a/b") == ["q"]
    rig.controller.put("q", subscriptions=["a/>", "!a/b"])
    assert takers(rig, "a/b") == []
    rig.controller.put("q", subscriptions=["a/>"])
    assert takers(rig, "a/b") == ["q"]


@pytest.mark.requirement("R125")
def test_without_exceptions_the_mark_is_part_of_the_topic(make_rig: Any) -> None:
    rig = make_rig(exceptions=False)
    queue = rig.controller.put("q", subscriptions=["a/>", "!a/b"])
    assert (wire.KIND_ENDPOINT, "!a/b") in filters(rig, queue)
    assert takers(rig, "a/b") == ["q"]
    assert takers(rig, "!a/b") == ["q"]


def test_a_set_is_resolved_anew_only_when_a_filter_of_it_changed(rig: Rig) -> None:
    rig.controller.put("q", subscriptions=["a"])
    a_set = matched(rig, "a")
    first = rig.endpoints.resolve(a_set)
    rig.controller.put("elsewhere", subscriptions=["b"])
    assert rig.endpoints.resolve(a_set) is first
    rig.controller.put("second", subscriptions=["a"])
    assert [endpoint.name for endpoint in rig.endpoints.resolve(a_set)] == ["q", "second"]


@pytest.mark.requirement("R118", "R180")
def test_a_deleted_queue_matches_nothing_and_its_subscriptions_are_gone(rig: Rig) -> None:
    rig.controller.put("q", subscriptions=["a"])
    a_set = matched(rig, "a")
    assert len(rig.endpoints.resolve(a_set)) == 1
    rig.controller.delete("q")
    assert rig.endpoints.resolve(a_set) == ()
    assert len(rig.interest) == 0
    assert rig.endpoints.find("default", "queue", "q") is None
    assert rig.homes[0].lanes == {}


@pytest.mark.requirement("R118")
def test_a_queue_that_is_made_again_is_another_one(rig: Rig) -> None:
    old = rig.controller.put("q", subscriptions=["a"])
    rig.controller.delete("q")
    new = rig.controller.put("q", subscriptions=["b"])
    assert new.id != old.id
    assert list(rig.homes[0].lanes) == [new.id << wire.LANE_BITS]
    assert takers(rig, "a") == []


def test_an_endpoint_of_another_id_under_a_known_name_replaces_it(rig: Rig) -> None:
    old = rig.controller.put("q", subscriptions=["a"])
    rig.consumers.lanes.deletions([old.id])
    new = rig.endpoints.put(rig.vpn, "queue", "q", {**old.attributes, "id": 99})
    rig.settle()
    assert old.is_gone
    assert list(rig.homes[0].lanes) == [new.id << wire.LANE_BITS]
    assert rig.vpn.endpoints == 1


def test_the_fast_path_forgets_topics_that_an_endpoint_begins_to_match(rig: Rig) -> None:
    rig.controller.put("q", subscriptions=["a/>"])
    assert rig.touched == [(1, "#P2P/QUE/q"), (1, "a/>")]
    rig.controller.put("r", subscriptions=["a/>"])
    assert rig.touched[2:] == [(1, "#P2P/QUE/r")]


# -- lanes ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R95", "R96")
def test_a_home_that_starts_is_told_all_its_lanes_once(make_rig: Any) -> None:
    rig = make_rig(2)
    first = rig.controller.put("q", homes=[0])
    rig.controller.put("elsewhere", homes=[1])
    rig.kill_home(0)
    home = rig.start_home(0)
    assert [frame[1] for frame in home.lanes_frames] == [True]
    assert list(home.lanes) == [first.id << wire.LANE_BITS]
    rig.shards.start(rig.shards.shards[0], home.incarnation)  # the number of workers changed
    rig.settle()
    assert len(home.lanes_frames) == 1


def test_no_home_takes_its_lanes_for_orphans_before_the_directory_is_complete(make_rig: Any) -> None:
    rig = make_rig(is_open=False)
    endpoint = rig.controller.put("q")
    assert rig.homes[0].lanes_frames == []
    assert not rig.consumers.lanes.is_ready(endpoint.lanes[0].lane_id, 0)
    rig.consumers.lanes.open()
    rig.settle()
    assert [(frame[1], len(frame[2])) for frame in rig.homes[0].lanes_frames] == [(True, 1)]
    assert rig.consumers.lanes.is_ready(endpoint.lanes[0].lane_id, 0)


def test_a_change_is_confirmed_when_filters_and_lanes_are_in_force(rig: Rig) -> None:
    home = rig.homes[0]
    home.holds = (wire.LANES_CONFIRM,)
    done: list[str] = []
    made = rig.controller.put("q")  # confirmed by hand below
    rig.endpoints.put(rig.vpn, "queue", "q", made.attributes, lambda: done.append("same"))
    rig.settle()
    assert done == [], "the same thing was told before and is not confirmed yet"
    home.report()
    assert done == ["same"]
    rig.endpoints.put(rig.vpn, "queue", "q", made.attributes, lambda: done.append("again"))
    assert done == ["same", "again"], "nothing changes, nobody is waited for"


def test_a_home_that_is_down_confirms_new_lanes_when_it_is_back_and_deleted_ones_at_once(rig: Rig) -> None:
    made = rig.controller.put("q")
    rig.kill_home(0)
    done: list[str] = []
    attributes = {**made.attributes, "max_redelivery_count": 3}
    rig.endpoints.put(rig.vpn, "queue", "q", attributes, lambda: done.append("put"))
    rig.settle()
    assert done == []
    rig.start_home(0)
    assert done == ["put"]
    rig.kill_home(0)
    rig.endpoints.drop("default", "queue", "q", lambda: done.append("gone"))
    assert done == ["put", "gone"]
    assert rig.start_home(0).lanes == {}


def test_the_home_learns_what_it_needs_of_the_attributes(rig: Rig) -> None:
    rig.controller.put(
        "q",
        access_type="non-exclusive",
        max_redelivery_count=3,
        redelivery_delay_enabled=True,
        delivery_delay_s=2,
        respect_priority=True,
        max_spool_usage_mb=0,
    )
    ((generation, settings),) = rig.homes[0].lanes.values()
    assert generation == 1
    assert settings["redelivery_delay"] == [1000, 64000, 200]
    assert (settings["delivery_delay_ms"], settings["max_redeliveries"]) == (2000, 3)
    assert (settings["access_type"], settings["last_value"]) == ("non-exclusive", True)
    assert (settings["respect_priority"], settings["durability"]) == (True, "synced")
    assert (settings["vpn"], settings["name"], settings["kind"]) == ("default", "q", "queue")


def test_a_relaxed_message_vpn_makes_its_endpoints_relaxed(rig: Rig) -> None:
    endpoint = rig.controller.put("q")
    rig.vpn.attributes = {**rig.vpn.attributes, "durability": "relaxed"}
    rig.endpoints.vpn_changed(rig.vpn)
    rig.settle()
    assert endpoint.is_relaxed
    assert [settings["durability"] for _, settings in rig.homes[0].lanes.values()] == ["relaxed"]


def test_a_lane_that_moves_is_put_at_its_new_home_and_not_deleted_at_the_old_one(make_rig: Any) -> None:
    rig = make_rig(2)
    endpoint = rig.controller.put("q", homes=[1])
    rig.homes[0].holds = (wire.LANES_CONFIRM,)
    done: list[str] = []
    moved = {**endpoint.attributes, "homes": [0]}
    rig.endpoints.put(rig.vpn, "queue", "q", moved, lambda: done.append("moved"))
    rig.settle()
    assert done == ["moved"], "the new home confirms when the old one has ended"
    assert list(rig.homes[0].lanes) == list(rig.homes[1].lanes) == [endpoint.id << wire.LANE_BITS]
    assert endpoint.lanes[0].home == 0


def test_a_worker_that_leaves_is_told_no_complete_lanes(make_rig: Any) -> None:
    rig = make_rig(2)
    rig.consumers.lanes.keep_workers(1)
    rig.kill_home(1)
    assert rig.start_home(1).lanes_frames == []
    rig.consumers.lanes.keep_workers(2)
    rig.settle()
    assert [frame[1] for frame in rig.homes[1].lanes_frames] == [True]


# -- usage and partitions ------------------------------------------------------------------------------------


def test_an_endpoint_counts_what_its_homes_report_and_what_is_on_its_way(make_rig: Any) -> None:
    rig = make_rig(2)
    endpoint = rig.controller.put("q", access_type="non-exclusive", partition_count=2, homes=[0, 1])
    first, second = endpoint.lanes
    first.report(LaneTotals(first.lane_id, 5, 500, 1234, 2), rig.now)
    second.report(LaneTotals(second.lane_id, 1, 100, 999, 0), rig.now)
    second.inflight_messages, second.inflight_bytes = 2, 200
    assert (endpoint.messages, endpoint.bytes, endpoint.unacked) == (8, 800, 2)
    described = next(describe_endpoints([endpoint], rig.now))
    assert (described["messages"], described["oldest_stored_ms"]) == (8, 999)
    assert [lane["home"] for lane in described["lanes"]] == [0, 1]
    assert next(describe_endpoints([endpoint], rig.now, ["messages", "vpn"])) == {
        "vpn": "default",
        "messages": 8,
    }
    second.inflight_messages = second.inflight_bytes = 0


def test_lanes_above_a_lowered_partition_count_stay_and_are_seen_until_they_are_empty(rig: Rig) -> None:
    """They know what producers published to them, which is asked when it is sent again."""
    endpoint = rig.controller.put("q", access_type="non-exclusive", partition_count=3)
    for lane in endpoint.lanes:
        lane.report(LaneTotals(lane.lane_id, 4, 400, 1, 0), rig.now)
    kept = endpoint.lanes[0]
    rig.controller.put("q", partition_count=1)
    assert endpoint.lanes == [kept], "the usage of a lane stays one object"
    assert [lane.partition for lane in endpoint.retiring] == [1, 2]
    assert endpoint.messages == 12
    told = {lane_id & 1023: one["partitions"] for lane_id, (_, one) in rig.homes[0].lanes.items()}
    assert told == {0: 1, 1: 1, 2: 1}, "the homes of the others move their messages"
    endpoint.retiring[1].report(LaneTotals(endpoint.retiring[1].lane_id, 0, 0, 0, 0), rig.now)
    rig.settle()
    assert [lane["partition"] for lane in next(describe_endpoints([endpoint], rig.now))["lanes"]] == [0, 1]
    assert [lane_id & 1023 for lane_id in rig.homes[0].lanes] == [0, 1, 2]
    again = endpoint.retiring[1]
    rig.controller.put("q", partition_count=3)
    assert [lane.partition for lane in endpoint.lanes] == [0, 1, 2]
    assert endpoint.lanes[2] is again
    assert endpoint.retiring == []
    rig.controller.put("q", partition_count=0)
    rig.controller.delete("q")
    rig.settle()
    assert rig.homes[0].lanes == {}


# -- provisioning by clients ---------------------------------------------------------------------------------


@pytest.fixture
def client(rig: Rig) -> FakeClient:
    return rig.client("maker", "maker")


@pytest.mark.requirement("R100", "R108", "R131", "R134")
def test_a_client_creates_a_durable_queue_and_owns_it(rig: Rig, client: FakeClient) -> None:
    code, value = client.request("endpoint.create", name="q", attributes={"permission": "consume"})
    assert (code, value) == (0, {"name": "q", "created": True})
    (asked,) = rig.controller.asked
    assert asked[1]["username"] == "maker"
    endpoint = rig.endpoints.find("default", "queue", "q")
    assert endpoint is not None
    assert (endpoint.attributes["owner"], endpoint.attributes["permission"]) == ("maker", "consume")


@pytest.mark.requirement("R111")
@pytest.mark.parametrize(
    ("profile", "durable", "code"),
    [
        ({"allow_endpoint_create": False}, True, errors.ENDPOINT_CREATE_DENIED),
        ({"allow_endpoint_create_durability": "non-durable"}, True, errors.ENDPOINT_CREATE_DENIED),
        ({"allow_endpoint_create_durability": "durable"}, False, errors.ENDPOINT_CREATE_DENIED),
        ({"allow_endpoint_create_durability": "durable"}, True, 0),
    ],
)
def test_the_client_profile_says_what_may_be_created(
    rig: Rig, client: FakeClient, profile: dict[str, Any], durable: bool, code: int
) -> None:
    rig.vpn.profiles["default"].update(profile)
    assert client.request("endpoint.create", name="q", durable=durable)[0] == code
    assert bool(rig.controller.asked) == (code == 0)


@pytest.mark.requirement("R132", "R139")
def test_the_owner_deletes_what_it_created_and_operators_what_they_did(rig: Rig, client: FakeClient) -> None:
    client.request("endpoint.create", name="mine")
    rig.controller.put("theirs", owner="maker", permission="delete")
    assert client.request("endpoint.delete", name="mine") == (0, None)
    assert client.request("endpoint.delete", name="theirs")[0] == errors.OPERATOR_ENDPOINT
    assert client.request("endpoint.delete", name="none")[0] == errors.UNKNOWN_ENDPOINT
    assert [endpoint.name for endpoint in rig.endpoints] == ["theirs"]


@pytest.mark.requirement("R133", "R135", "R136", "R137", "R138", "R139")
@pytest.mark.parametrize(
    ("permission", "show", "browse", "consume", "subscribe", "delete"),
    [
        ("no-access", False, False, False, False, False),
        ("read-only", True, True, False, False, False),
        ("consume", True, True, True, False, False),
        ("modify-topic", True, True, True, True, False),
        ("delete", True, True, True, True, True),
    ],
)
def test_each_permission_includes_the_ones_before_it(
    rig: Rig,
    client: FakeClient,
    permission: str,
    show: bool,
    browse: bool,
    consume: bool,
    subscribe: bool,
    delete: bool,
) -> None:
    client.request("endpoint.create", name="q", attributes={"permission": permission})
    other = rig.client("other", "other")

    def allowed(code: int) -> bool:
        assert code in (0, errors.PERMISSION_DENIED)
        return code == 0

    assert allowed(other.request("endpoint.show", name="q")[0]) == show
    assert allowed(other.request("flow.bind", name="q", browse=True)[0]) == browse
    assert allowed(other.request("flow.bind", name="q")[0]) == consume
    assert allowed(other.request("endpoint.subscribe", name="q", filters=["a"])[0]) == subscribe
    assert allowed(other.request("endpoint.delete", name="q")[0]) == delete


@pytest.mark.requirement("R129", "R130")
def test_the_owner_has_full_access_and_so_has_a_username_that_overrides(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("q", permission="no-access", owner="maker")
    boss = rig.client("boss", "boss", guaranteed_endpoint_permission_override=True)
    nobody = rig.client("nobody", "nobody")
    assert client.request("endpoint.subscribe", name="q", filters=["a"]) == (0, [None])
    assert boss.request("endpoint.subscribe", name="q", filters=["b"]) == (0, [None])
    assert nobody.request("endpoint.subscribe", name="q", filters=["c"])[0] == errors.PERMISSION_DENIED
    rig.controller.put("q", owner="nobody")
    assert client.request("endpoint.show", name="q")[0] == errors.PERMISSION_DENIED
    assert nobody.request("endpoint.show", name="q")[0] == 0


@pytest.mark.requirement("R202")
@pytest.mark.parametrize("kind", ["queue", "topic-endpoint"])
def test_dead_messages_go_only_where_their_client_may_publish(
    rig: Rig, client: FakeClient, kind: str
) -> None:
    """Who may publish to a/> only does not reach the queue of another by letting messages die."""
    rules = {"publish_topic_default": "disallow", "publish_topic_exceptions": ["a/>", "#P2P/QUE/fine"]}
    rig.vpn.acls["narrow"] = AclProfile("narrow", objects.complete("acl", rules))
    rig.controller.put("theirs", permission="delete", owner="maker")
    rig.controller.put("mine", owner="sly")
    sly = rig.client("sly", "sly", acl_profile="narrow")

    def create(dead_message_queue: str) -> Any:
        name = f"q/{dead_message_queue.strip('#') or 'none'}"
        attributes = {"dead_message_queue": dead_message_queue}
        return sly.request("endpoint.create", name=name, kind=kind, attributes=attributes)

    for name in ("theirs", "does-not-exist-yet"):
        code, detail = create(name)
        assert code == errors.PUBLISH_DENIED
        assert f"#P2P/QUE/{name}" in detail
    for name in ("mine", "fine", "#DEAD_MSG_QUEUE", ""):
        assert create(name)[0] == 0, name
    bind = {"name": "temporary", "temporary": True, "attributes": {"dead_message_queue": "theirs"}}
    assert sly.request("flow.bind", **bind)[0] == errors.PUBLISH_DENIED


@pytest.mark.requirement("R24", "R117", "R120", "R122")
def test_a_client_adds_and_removes_subscriptions_one_verdict_each(rig: Rig, client: FakeClient) -> None:
    client.request("endpoint.create", name="q")
    code, verdicts = client.request(
        "endpoint.subscribe",
        name="q",
        filters=["a/>", "!a/b", "#share/g/x", "#P2P/INB/n/1", "#P2P/QUE/r", ""],
    )
    assert code == 0
    assert verdicts[:2] == [None, None]
    assert [verdict[0] for verdict in verdicts[2:]] == [
        errors.SHARED_ON_ENDPOINT,
        errors.RESERVED_TOPIC,
        errors.RESERVED_TOPIC,
        errors.INVALID_FILTER,
    ]
    assert takers(rig, "a/c") == ["q"]
    assert takers(rig, "a/b") == []
    code, verdicts = client.request("endpoint.unsubscribe", name="q", filters=["a/>", "never"])
    assert (code, verdicts[0], verdicts[1][0]) == (0, None, errors.SUBSCRIPTION_NOT_FOUND)
    assert takers(rig, "a/c") == []


def test_a_client_cannot_have_a_queue_listen_to_what_it_may_not_subscribe_to(
    rig: Rig, client: FakeClient
) -> None:
    client.session.permissions = client.session.permissions._replace(
        filters=TopicRules(["secret/>"], default_allow=True)
    )
    client.request("endpoint.create", name="q")
    code, verdicts = client.request("endpoint.subscribe", name="q", filters=["secret/a", "open"])
    assert code == 0
    assert (verdicts[0][0], verdicts[1]) == (errors.SUBSCRIBE_DENIED, None)
    answer = client.request("endpoint.create", name="r", attributes={"subscriptions": ["secret/a"]})
    assert answer[0] == errors.SUBSCRIBE_DENIED
    answer = client.request("endpoint.create", name="r", attributes={"subscriptions": "open, secret/a"})
    assert answer[0] == errors.INVALID_ATTRIBUTE


@pytest.mark.requirement("R24", "R123")
def test_a_topic_endpoint_has_neither_exceptions_nor_subscriptions(rig: Rig, client: FakeClient) -> None:
    client.request("endpoint.create", kind="topic-endpoint", name="t")
    answer = client.request("endpoint.subscribe", kind="topic-endpoint", name="t", filters=["!a"])
    assert answer[0] == errors.EXCEPTIONS_NOT_SUPPORTED
    answer = client.request("endpoint.subscribe", kind="topic-endpoint", name="t", filters=["a"])
    assert answer[0] == errors.INVALID_ARGUMENT
    assert client.refused("t", kind="topic-endpoint", topic="!a") == errors.EXCEPTIONS_NOT_SUPPORTED
    assert client.refused("t", kind="topic-endpoint", topic="#share/g/a") == errors.SHARED_ON_ENDPOINT


@pytest.mark.requirement("R125")
def test_exceptions_that_are_switched_off_are_refused(make_rig: Any) -> None:
    rig = make_rig(exceptions=False)
    client = rig.client("maker", "maker")
    client.request("endpoint.create", name="q")
    code, verdicts = client.request("endpoint.subscribe", name="q", filters=["!a"])
    assert (code, verdicts[0][0]) == (0, errors.EXCEPTIONS_NOT_SUPPORTED)


def test_a_client_sees_attributes_and_figures_without_what_is_the_node_s_own(
    rig: Rig, client: FakeClient
) -> None:
    client.request("endpoint.create", name="q", attributes={"max_redelivery_count": 3})
    code, shown = client.request("endpoint.show", name="q")
    assert code == 0
    assert shown["attributes"]["max_redelivery_count"] == 3
    assert not {"id", "generation", "homes"} & set(shown["attributes"])
    assert (shown["messages"], shown["bind_count"]) == (0, 0)


def test_nothing_is_left_of_a_request_whose_filters_are_refused(client: FakeClient) -> None:
    with uncollected():
        attributes = {"subscriptions": ["a/>", ""]}
        assert client.request("endpoint.create", name="q", attributes=attributes)[0] == errors.INVALID_FILTER
        assert client.refused("q", temporary=True, attributes=attributes) == errors.INVALID_FILTER
        assert not [one for one in gc.get_objects() if isinstance(one, FilterChecks)]


def test_what_the_controller_refuses_is_the_answer(rig: Rig, client: FakeClient) -> None:
    rig.controller.answers = False
    number = client.ask("endpoint.create", name="q")
    assert not client.has_answer(number)
    rig.asks.answered(1, False, [errors.TOO_MANY_ENDPOINTS, "10"], rig.now)
    rig.settle()
    assert client.answer(number) == (errors.TOO_MANY_ENDPOINTS, "10")


# -- requests ------------------------------------------------------------------------------------------------


def test_requests_are_judged_by_their_types(rig: Rig, client: FakeClient) -> None:
    assert client.request("no.such")[0] == errors.UNKNOWN_OPERATION
    assert client.request("endpoint.create", name=3)[0] == errors.INVALID_ARGUMENT
    assert client.request("endpoint.create", name="q", nonsense=1)[0] == errors.INVALID_ARGUMENT
    assert client.request("endpoint.delete", name="q", kind="topic")[0] == errors.INVALID_ARGUMENT
    assert client.session.requests == 0


def test_a_client_has_a_bounded_number_of_requests_waiting(rig: Rig, client: FakeClient) -> None:
    rig.controller.answers = False
    for number in range(REQUESTS_MAX):
        client.ask("endpoint.create", name=f"q{number}")
    assert client.request("endpoint.create", name="one-more")[0] == errors.CONTROL_RATE_EXCEEDED
    rig.asks.answered(1, True, {"created": True}, rig.now)
    assert len(rig.asks) == REQUESTS_MAX - 1
    assert client.session.requests == REQUESTS_MAX - 1


def test_many_filters_count_towards_the_rate_of_a_client(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("q", permission="delete")
    client.session.bucket = TokenBucket(8, 16, rig.now)
    filters = [f"a/{number}" for number in range(256)]
    assert client.request("endpoint.subscribe", name="q", filters=filters)[0] == 0
    assert (
        client.request("endpoint.unsubscribe", name="q", filters=filters)[0] == errors.CONTROL_RATE_EXCEEDED
    )
    rig.now += 2.0
    assert client.request("endpoint.unsubscribe", name="q", filters=filters)[0] == 0


def test_a_change_of_one_subscription_among_many_reads_that_one_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(text: str) -> Filter:
        read.append(text)
        return parse_filter(text)

    monkeypatch.setattr(endpoint_filters, "parse_filter", reading)
    many = [f"a/{number}/>" for number in range(100)]
    rig.controller.put("q", subscriptions=many)
    assert read == many
    read.clear()
    queue = rig.controller.put("q", subscriptions=[*many[1:], "b", "!c"])
    assert read == ["c", "b"], "exceptions first"
    assert filters(rig, queue)[-2:] == [(4, "c"), (3, "b")]
    rig.controller.put("q", subscriptions=many)
    assert read == ["c", "b", many[0]], "what went is not remembered"


# -- what was deleted, and what is only missing --------------------------------------------------------------


@pytest.mark.requirement("R282")
def test_a_home_that_starts_is_told_what_was_deleted_until_all_homes_have_confirmed(rig: Rig) -> None:
    made = rig.controller.put("q")
    rig.kill_home(0)
    rig.endpoints.drop("default", "queue", "q")
    assert rig.consumers.lanes.deletions([made.id, 77]) == []
    home = rig.start_home(0)
    assert home.lanes_frames[0][1:] == [True, [], [made.id << wire.LANE_BITS, 77 << wire.LANE_BITS]]
    assert rig.consumers.lanes.deletions([]) == [made.id, 77]
    assert rig.consumers.lanes.deletions([]) == []
    rig.kill_home(0)
    assert rig.start_home(0).lanes_frames[0][1:] == [True, [], []]


@pytest.mark.requirement("R282")
def test_a_deletion_is_not_complete_before_its_home_has_confirmed_it(rig: Rig) -> None:
    made = rig.controller.put("q")
    rig.homes[0].holds = (wire.LANES_CONFIRM,)
    rig.endpoints.drop("default", "queue", "q")
    rig.settle()
    assert rig.consumers.lanes.deletions([made.id]) == []
    rig.homes[0].report()
    assert rig.consumers.lanes.deletions([]) == [made.id]


@pytest.mark.requirement("R282")
def test_an_endpoint_that_is_missing_and_was_not_deleted_stays_at_its_home(rig: Rig) -> None:
    lost, deleted = rig.controller.put("lost"), rig.controller.put("deleted")
    rig.consumers.lanes.deletions([deleted.id])
    told = len(rig.homes[0].lanes_frames)
    rig.endpoints.lose("queue", "default", "lost")
    rig.endpoints.lose("queue", "default", "deleted")
    rig.settle()
    assert [frame[3] for frame in rig.homes[0].lanes_frames[told:]] == [[deleted.id << wire.LANE_BITS]]
    assert lost.is_gone
    assert rig.endpoints.find("default", "queue", "lost") is None
    assert rig.vpn.endpoints == 0
