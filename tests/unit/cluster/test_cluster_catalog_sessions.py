"""Sessions of MQTT clients in the catalog: what is written for them, and what nobody else may do to them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from cluster import objects
from cluster.catalog.catalog import Catalog
from cluster.catalog.endpoints import ClientEndpoints
from cluster.catalog.sessions import Changed, ChangeWish, ClientSessions, Opened, OpenWish, ShareWish
from storage.config_store import Change, Entry

NAME = "#mqtt/dev1"
SHARED = "#mqtt/$share/crew/a/#"
KEY = ("queue", "default", NAME)
WHOSE = {"vpn": "default", "name": NAME, "username": "alice", "client": "dev1"}


class World:
    """A catalog, and the sessions of one client."""

    def __init__(self) -> None:
        self.catalog = Catalog([], lambda password: f"scrypt$16384$8$1$00${password}", workers=3)
        self.catalog.take(self.catalog.missing_built_ins())
        self.sessions = ClientSessions(self.catalog, ClientEndpoints(self.catalog))

    def open(self, **wish: Any) -> Opened:
        opened = self.sessions.open(OpenWish(**{**WHOSE, "clean": False, "expiry_s": 60, **wish}))
        self.do(opened.changes)
        return opened

    def change(self, put: dict[str, Any] | None = None, *drop: str, **wish: Any) -> Changed:
        changed = self.sessions.change(ChangeWish(**{**WHOSE, "put": put or {}, "drop": [*drop], **wish}))
        self.do(changed.changes)
        return changed

    def share(self, expiry_s: int = 0, **wish: Any) -> dict[str, Any]:
        """Share a filter, and give its queue."""
        asked = {**WHOSE, "name": SHARED, "filter": "$share/crew/a/#", "filters": ["a", "a/>"], **wish}
        self.do(self.sessions.share(ShareWish(**asked, expiry_s=expiry_s)))
        found = self.catalog.get("queue", "default", asked["name"])
        assert found is not None
        return found

    def do(self, changes: list[Entry]) -> None:
        self.catalog.take(changes)
        self.catalog.validate()

    @property
    def queue(self) -> dict[str, Any]:
        found = self.catalog.get(*KEY)
        assert found is not None
        return found

    def subscribed(self) -> list[str]:
        return list(self.queue["client_subscriptions"])


@pytest.fixture
def world() -> World:
    return World()


def test_a_new_session_is_a_durable_exclusive_queue_of_its_username(world: World) -> None:
    opened = world.open(version=5)
    assert (opened.present, opened.filters) == (False, {})
    queue = world.queue
    assert (queue["durable"], queue["access_type"], queue["permission"]) == (True, "exclusive", "no-access")
    assert (queue["owner"], queue["created_by"], queue["client"]) == ("alice", "client:alice", "")
    assert (queue["max_idle_s"], queue["dead_message_queue"]) == (60, "")
    assert queue["session"] == {"client": "dev1", "version": 5, "filters": {}}


def test_who_comes_back_writes_nothing(world: World) -> None:
    world.open(version=4)
    world.change({"a/#": (["a", "a/>"], 1, 0), "b": ([], 0, 0)})
    opened = world.open(version=4)
    assert opened == Opened([], True, {"a/#": (["a", "a/>"], 1, 0), "b": ([], 0, 0)})
    assert world.change({"a/#": (["a", "a/>"], 1, 0)}, "never/there").changes == []
    assert len(world.open(version=4, expiry_s=61).changes) == 1
    assert world.queue["max_idle_s"] == 61


def test_a_clean_start_takes_the_place_of_what_was_there(world: World) -> None:
    world.open()
    world.change({"a": (["a"], 1, 0)})
    before = world.queue["id"]
    assert not world.open(clean=True).present
    assert world.queue["id"] > before
    assert world.subscribed() == []
    assert not world.open(clean=True, expiry_s=0).present
    assert world.catalog.get(*KEY) is None


def test_a_session_that_goes_on_for_this_connection_ends_a_second_later(world: World) -> None:
    world.open()
    assert world.open(expiry_s=0).present
    assert world.queue["max_idle_s"] == 1


def test_the_queue_has_the_filters_that_are_left(world: World) -> None:
    world.open()
    world.change({"a/#": (["a", "a/>"], 1, 0), "a": (["a"], 1, 7), "q0": ([], 0, 0)})
    assert world.subscribed() == ["a", "a/>"]
    world.change(None, "a/#")
    assert world.subscribed() == ["a"]
    world.change({"a": ([], 0, 0), "z": (["z"], 1, 0)})
    assert world.subscribed() == ["z"]
    assert world.queue["session"]["filters"] == {"q0": ([], 0, 0), "a": ([], 0, 0), "z": (["z"], 1, 0)}


def test_a_change_of_the_expiry_is_kept(world: World) -> None:
    world.open()
    world.change(expiry_s=7)
    assert world.queue["max_idle_s"] == 7


def test_a_filter_that_cannot_be_leaves_the_others_and_what_was_there(world: World) -> None:
    world.open()
    world.change({"a": (["a"], 1, 0)})
    verdicts = world.change(
        {
            "a": (["#share/g/a"], 1, 0),
            "b": (["b", ""], 1, 0),
            "p": (["#P2P/QUE/q"], 1, 0),
            "c": (["c"], 1, 0),
        }
    ).verdicts
    assert [one[0] if one else None for one in verdicts] == [
        errors.SHARED_ON_ENDPOINT,
        errors.INVALID_FILTER,
        errors.RESERVED_TOPIC,
        None,
    ]
    assert world.queue["session"]["filters"] == {"a": (["a"], 1, 0), "c": (["c"], 1, 0)}


def test_a_session_has_no_more_filters_than_a_queue(world: World) -> None:
    world.open()
    limit = objects.MAX_QUEUE_SUBSCRIPTIONS
    many = {f"t/{number}": ([f"t/{number}"] if number % 2 else [], number % 2, 0) for number in range(limit)}
    assert world.change(many).verdicts == [None] * limit
    for more in (["more"], []):
        ((code, _),) = [one for one in world.change({"more": (more, 1, 0)}).verdicts if one]
        assert code == errors.MAX_SUBSCRIPTIONS_EXCEEDED
    assert world.change({"t/0": (["t/0"], 1, 0)}).verdicts == [None], "it is there already"
    assert world.change({"more": (["more"], 1, 0)}, "t/1").verdicts == [None]


def test_kinds_of_filters_that_overlap_are_limited(world: World) -> None:
    world.do(world.catalog.update("vpn", "", "default", {"max_overlapping_filters_per_queue": 2}))
    world.open()
    world.change({"a": (["a/*/1", "a/*/b/*"], 1, 0)})
    (verdict,) = world.change({"b": (["*/x/*/y"], 1, 0)}).verdicts
    assert verdict is not None
    assert verdict[0] == errors.OVERLAPPING_FILTERS
    assert world.subscribed() == ["a/*/1", "a/*/b/*"]


@pytest.mark.parametrize("act", ["open", "change"])
def test_a_session_of_another_username_is_not_touched(world: World, act: str) -> None:
    world.open()
    before = world.queue
    with pytest.raises(errors.ForbiddenError) as refused:
        getattr(world, act)(username="bob")
    assert refused.value.code == errors.PERMISSION_DENIED
    assert world.queue is before


def test_sessions_count_among_the_endpoints_of_a_username(world: World) -> None:
    world.do(world.catalog.update("profile", "default", "default", {"max_endpoint_count_per_username": 1}))
    world.open()
    assert not world.open(clean=True).present, "it takes its own place"
    for wish in ({"expiry_s": 60}, {"expiry_s": 0}):
        other = {"name": "#mqtt/dev2", "client": "dev2"}
        if wish["expiry_s"]:
            with pytest.raises(errors.UnavailableError):
                world.open(**other, **wish)
        else:
            with pytest.raises(errors.UnavailableError):
                world.change({"a": (["a"], 1, 0)}, temporary=True, **other)


def test_a_full_message_vpn_takes_a_clean_start_still(world: World) -> None:
    world.open()
    count = world.catalog.placement.in_vpn["default"]
    world.do(world.catalog.update("vpn", "", "default", {"max_endpoint_count": count}))
    assert not world.open(clean=True).present
    with pytest.raises(errors.UnavailableError):
        world.open(name="#mqtt/dev2", client="dev2")


def test_a_template_says_what_operators_may_set_and_nothing_else(world: World) -> None:
    template = {
        "max_spool_usage_mb": 7,
        "access_type": "non-exclusive",
        "permission": "delete",
        "name_filter": "x",
    }
    world.do(world.catalog.create("template", "default", "small", template))
    world.do(world.catalog.update("profile", "default", "default", {"queue_template": "small"}))
    world.open()
    queue = world.queue
    assert (queue["max_spool_usage_mb"], queue["access_type"], queue["permission"]) == (
        7,
        "exclusive",
        "no-access",
    )


# -- temporary ones ------------------------------------------------------------------------------------------


def test_a_temporary_one_is_made_with_the_first_filter_of_a_queue(world: World) -> None:
    assert world.change({"a": ([], 0, 0)}, temporary=True) == Changed([], [None])
    world.change({"a": (["a"], 1, 0), "b": ([], 0, 0)}, temporary=True)
    queue = world.queue
    assert (queue["durable"], queue["client"], queue["owner"]) == (False, "dev1", "alice")
    assert queue["session"]["filters"] == {"a": (["a"], 1, 0)}
    world.change({"a": ([], 0, 0)})
    assert world.subscribed() == []


def test_nothing_is_left_of_a_temporary_one_of_an_earlier_connection(world: World) -> None:
    world.change({"a": (["a"], 1, 0)}, temporary=True)
    before = world.queue["id"]
    world.change({"b": (["b"], 1, 0)}, temporary=True)
    assert (world.queue["id"] > before, world.subscribed()) == (True, ["b"])
    opened = world.open()
    assert (opened.present, world.queue["durable"], world.subscribed()) == (False, True, [])


def test_without_one_nothing_is_changed(world: World) -> None:
    with pytest.raises(errors.NotFoundError):
        world.change({"a": (["a"], 1, 0)})


# -- operators -----------------------------------------------------------------------------------------------


def test_operators_change_a_few_switches_and_delete(world: World) -> None:
    world.open()
    world.do(world.catalog.update(*KEY, {"egress_enabled": False, "max_spool_usage_mb": 1}))
    assert world.queue["egress_enabled"] is False
    for values in ({"owner": "bob"}, {"subscriptions": ["a"]}, {"max_idle_s": 0}, {"permission": "delete"}):
        with pytest.raises(errors.ConflictError, match="session of an MQTT client"):
            world.catalog.update(*KEY, values)
    world.do(world.catalog.delete(*KEY))


def test_nobody_makes_one_by_name(world: World) -> None:
    for values in ({}, {"session": {"client": "dev1"}}):
        with pytest.raises(errors.InvalidRequestError):
            world.catalog.create(*KEY, values)
    lanes = {0: 1}
    with pytest.raises(errors.InvalidRequestError):
        world.catalog.adopt("default", NAME, {}, 77, 1, lanes)


def test_a_backup_brings_sessions_back_and_leaves_out_temporary_ones(world: World) -> None:
    world.open(version=5)
    world.change({"a/#": (["a", "a/>"], 1, 3), "b": ([], 0, 0)})
    world.change({"a": (["a"], 1, 0)}, temporary=True, name="#mqtt/dev2", client="dev2")
    backup = world.catalog.export()
    later = World()
    later.do(later.catalog.apply(backup).changes)
    restored = {name: value for name, value in later.queue.items() if name not in ("id", "homes")}
    assert restored == {name: value for name, value in world.queue.items() if name not in ("id", "homes")}
    assert later.catalog.get("queue", "default", "#mqtt/dev2") is None
    assert later.open(version=5) == Opened([], True, world.queue["session"]["filters"])
    later.open(version=5, expiry_s=7)
    assert later.catalog.apply(backup).changes == [], "what is there is newer"


def test_a_queue_that_is_shared_belongs_to_nobody_and_stays_as_long_as_its_longest_member(
    world: World,
) -> None:
    queue = world.share()
    assert (queue["durable"], queue["access_type"], queue["permission"]) == (
        True,
        "non-exclusive",
        "no-access",
    )
    assert (queue["owner"], queue["created_by"], queue["client"]) == ("", "client:alice", "")
    assert (queue["client_subscriptions"], queue["dead_message_queue"]) == (["a", "a/>"], "")
    assert queue["session"] == {
        "client": "",
        "version": 0,
        "filters": {"$share/crew/a/#": (["a", "a/>"], 1, 0)},
    }
    kept = [
        world.share(expiry_s, username=name)["max_idle_s"]
        for expiry_s, name in ((0, "b"), (90, "c"), (70, "d"))
    ]
    assert (queue["max_idle_s"], kept) == (60, [60, 90, 90])
    assert world.catalog.get("queue", "default", SHARED)["id"] == queue["id"]  # type: ignore[index]


def test_who_shares_a_queue_first_has_one_endpoint_more(world: World) -> None:
    profile = world.catalog.get("profile", "default", "default")
    assert profile is not None
    limited = {**profile, "max_endpoint_count_per_username": 1}
    world.do([Change("profile", "default", "default", limited)])
    world.share()
    world.share(username="bob")
    with pytest.raises(errors.UnavailableError):
        world.share(name="#mqtt/$share/crew/b", filter="$share/crew/b", filters=["b"])


def test_a_backup_has_queues_that_are_shared(world: World) -> None:
    before = world.share(70)
    later = World()
    later.do(later.catalog.apply(world.catalog.export()).changes)
    after = later.catalog.get("queue", "default", SHARED)
    assert after is not None
    assert {**after, "id": 0, "homes": []} == {**before, "id": 0, "homes": []}


@pytest.mark.parametrize(
    "name", ["orders", "#mqtt/a/b", "#mqtt/$share/", "#mqtt/$share//b", "#mqtt/", "#mqtt/#x", "#link/x"]
)
def test_a_backup_has_sessions_under_names_of_sessions_only(world: World, name: str) -> None:
    with pytest.raises(errors.InvalidRequestError):
        world.catalog.apply([["queue", "default", name, {"session": {"client": "dev1"}}]])


def test_fewer_workers_take_them_along(world: World) -> None:
    for number in range(6):
        world.open(name=f"#mqtt/{number}", client=str(number))
    world.do(world.catalog.leave_homes(1))
    assert {home for one in world.catalog.of_kind("queue").values() for home in one["homes"]} == {0}


def test_what_is_stored_is_loaded_as_it_was(world: World) -> None:
    world.open()
    world.change({"a": (["a"], 1, 0)})
    stored = objects.convert_stored(
        "queue", {**world.queue, "session": {"client": "dev1", "filters": {"a": [["a"], 1, 0]}}}
    )
    assert Catalog([*_stored(world), Change(*KEY, stored)]).get(*KEY) == world.queue


def _stored(world: World) -> list[Change]:
    return [Change(*entry) for entry in world.catalog.snapshot() if tuple(entry[:3]) != KEY]


_FILTERS = ["a", "b", "c/*", "c/>", "d"]
_CHANGES = st.tuples(
    st.dictionaries(
        st.sampled_from("uvwx"),
        st.tuples(st.lists(st.sampled_from(_FILTERS), max_size=3, unique=True), st.just(1), st.just(0)),
        max_size=3,
    ),
    st.lists(st.sampled_from("uvwx"), max_size=2),
)


@given(st.lists(_CHANGES, max_size=8))
def test_the_filters_follow_from_the_session_and_keep_their_order(changes: list[Any]) -> None:
    world = World()
    world.open()
    for put, drop in changes:
        before = world.subscribed()
        world.change(put, *drop)
        wanted = {each for one in world.queue["session"]["filters"].values() for each in one[0]}
        after = world.subscribed()
        assert (set(after), len(after)) == (wanted, len(wanted))
        assert after[: sum(each in wanted for each in before)] == [each for each in before if each in wanted]
