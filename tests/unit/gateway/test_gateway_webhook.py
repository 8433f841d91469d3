"""A webhook as a state machine: what it asks of the node and of the network, and what becomes of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.client.protocol.answers import FlowBound
from angarium.client.protocol.events import Arrived, Indicated
from angarium.client.protocol.flow_window import spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from gateway.attached import AttachState
from gateway.http.webhooks.attempts import Answer, Rules
from gateway.http.webhooks.room import SHARE_MAX, SHARE_MIN, Room
from gateway.http.webhooks.webhook import (
    ACCEPTED_MAX,
    NO_ROOM,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    TELL_S,
    Held,
    Settings,
    Webhook,
)

if TYPE_CHECKING:
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.message import Row
    from gateway.asking import Done
    from gateway.attached import Attached, Guest, Login

NODE = "0f3a"


class Client:
    """An attached client as a webhook uses it; what it settled is in `settled`."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.state = AttachState.GREETING
        self.bound: list[tuple[FlowWindow, dict[str, Any], Done]] = []
        self.settled: list[tuple[int, int, int]] = []
        self.unbound: list[FlowWindow] = []

    def bind(self, window: FlowWindow, arguments: dict[str, Any], done: Done) -> None:
        self.bound.append((window, arguments, done))

    def settle(self, _window: FlowWindow, partition: int, position: int, outcome: int) -> None:
        self.settled.append((partition, position, outcome))

    def unbind(self, window: FlowWindow) -> None:
        self.unbound.append(window)

    def renew(self, window: FlowWindow) -> None:
        window.renew()

    def leave(self) -> None:
        self.state = AttachState.OVER


class World:
    """A webhook, with its hands."""

    def __init__(
        self,
        window: int = 2,
        rules: Rules | None = None,
        room: Room | None = None,
        share: int = SHARE_MAX,
    ) -> None:
        self.clients: list[Client] = []
        self.posts: list[Held] = []
        self.now = 100.0
        self.room = room or Room(64 << 20)
        rules = rules or Rules(first_delay_s=1.0, longest_delay_s=8.0)
        self.webhook = Webhook(
            Settings("v", "hook", "q", "anna", window, rules), NODE, self, self.room, share
        )

    def attach(self, _guest: Guest, login: Login, vpn: str, _now: float) -> Attached:
        assert vpn == "v"
        self.clients.append(Client(login))
        return cast("Attached", self.clients[-1])

    def post(self, held: Held) -> None:
        self.posts.append(held)

    def chance(self) -> float:
        return 1.0

    @property
    def client(self) -> Client:
        return self.clients[-1]

    def tick(self, later_s: float = 0.0) -> float:
        self.now += later_s
        wake = self.webhook.tick(self.now)
        self.webhook.validate()
        return wake

    def begin(self) -> World:
        """Have it log in and bind."""
        self.tick()
        self.client.state = AttachState.OPEN
        self.webhook.welcomed(cast("Any", None), self.now)
        self.tick()
        return self.bound()

    def bound(self, endpoint_id: int = 7, *, active: bool = True) -> World:
        _, arguments, done = self.client.bound[-1]
        assert arguments == {"name": "q", "active_indication": True}
        done(FlowBound(1, "q", endpoint_id, active, [], "exclusive"), None, self.now)
        return self

    def come(self, *positions: int, partition: int = 0, large: int = 0) -> None:
        window = self.client.bound[-1][0]
        rows: list[Row] = [(0, "a", 0, None, None, b"%d" % position + b" " * large) for position in positions]
        size = spool_size(rows)
        window.receive(len(rows), size)
        runs = [(position, 1) for position in positions]
        delivery = GuaranteedDelivery(window, partition, rows, runs, None, 0, None, size)
        self.webhook.spooled(Arrived(window, [delivery]), self.now)
        self.tick()

    def answer(self, code: int | None, retry_after: str = "", at: int = 0) -> None:
        answer = Answer(code, retry_after, "" if code else "no connection")
        self.webhook.posted(self.posts.pop(at), answer, self.now, 0.0)
        self.tick()


def test_it_logs_in_as_its_username_and_binds_its_queue() -> None:
    world = World().begin()
    login = world.client.login
    assert (login.username, login.password, login.needs_password) == ("anna", None, False)
    assert login.client_name == "#webhook/hook"
    assert world.webhook.is_up


def test_never_more_than_the_window_is_posted_at_once() -> None:
    world = World(window=2).begin()
    world.come(1, 2, 3)
    assert [held.position for held in world.posts] == [1, 2]
    world.answer(200)
    assert [held.position for held in world.posts] == [2, 3]


def test_2xx_accepts_and_gone_rejects() -> None:
    world = World(window=2).begin()
    world.come(1, 2)
    world.answer(200)
    world.answer(410)
    assert world.client.settled == [(0, 1, wire.OUTCOME_ACCEPTED), (0, 2, wire.OUTCOME_REJECTED)]
    assert (world.webhook.is_up, world.webhook.error) == (False, "answered 410")


def test_a_failure_is_posted_again_when_it_is_due_with_the_same_id() -> None:
    world = World(window=1).begin()
    world.come(1)
    first = world.posts[0].message_id
    for delay_s in (1, 2, 4, 8, 8):
        world.answer(503)
        world.tick(delay_s - 0.1)
        assert world.posts == []
        world.tick(0.1)
        assert [held.message_id for held in world.posts] == [first]
    assert world.client.settled == []
    assert first == f"{NODE}-7-0-1"


def test_too_many_attempts_reject() -> None:
    world = World(window=1, rules=Rules(first_delay_s=1, attempts_max=2)).begin()
    world.come(1)
    world.answer(None)
    world.tick(1)
    world.answer(None)
    assert world.client.settled == [(0, 1, wire.OUTCOME_REJECTED)]
    told = world.webhook.describe(world.now)
    assert (told["attempts"], told["failed"], told["rejected"], told["accepted"]) == (2, 1, 1, 0)


def bound_again(world: World) -> None:
    """End the flow, as when a worker dies, and bind the next one."""
    closed = Indicated(world.client.bound[-1][0], wire.FLOW_CLOSED, errors.HOME_NOT_READY, "", [])
    world.webhook.indicated(closed, world.now)
    assert not world.webhook.is_up
    world.tick(PAUSE_MAX_S)
    world.bound()


def test_an_answer_for_a_flow_that_is_over_settles_nothing_and_frees_its_place() -> None:
    world = World(window=1).begin()
    world.come(1)
    bound_again(world)
    world.come(2)
    assert len(world.posts) == 1, "the attempt before has its place yet"
    world.answer(500)
    assert world.client.settled == []
    world.answer(200)
    assert world.client.settled == [(0, 2, wire.OUTCOME_ACCEPTED)]


def test_what_comes_again_while_its_attempt_is_under_way_gets_what_comes_of_that() -> None:
    """The router or a worker died meanwhile: its target would have it twice."""
    world = World(window=2).begin()
    world.come(1, 2)
    bound_again(world)
    world.come(1, 2)
    assert len(world.posts) == 2, "none is posted for the second time"
    world.answer(200)
    assert world.client.settled == [(0, 1, wire.OUTCOME_ACCEPTED)]
    world.answer(503)
    assert world.posts == []
    world.tick(8)
    assert [held.attempts for held in world.posts] == [1]
    world.answer(200)
    assert world.client.settled == [(0, 1, wire.OUTCOME_ACCEPTED), (0, 2, wire.OUTCOME_ACCEPTED)]
    assert (world.client.bound[-1][0].held_messages, world.room.held) == (0, 0)


@pytest.mark.parametrize("is_answered_before", [True, False])
def test_what_was_accepted_and_comes_again_is_settled_without_another_attempt(
    is_answered_before: bool,
) -> None:
    world = World(window=1).begin()
    world.come(1)
    if is_answered_before:
        world.answer(200)
    bound_again(world)
    if not is_answered_before:
        world.answer(200)
    world.client.settled.clear()
    world.come(1)
    assert world.posts == []
    assert world.client.settled == [(0, 1, wire.OUTCOME_ACCEPTED)]
    assert (world.client.bound[-1][0].held_messages, world.room.held) == (0, 0)


def test_what_was_accepted_is_not_remembered_for_ever() -> None:
    world = World(window=1).begin()
    for position in range(1, ACCEPTED_MAX + 2):
        world.come(position)
        world.answer(200)
    world.come(1)
    assert len(world.posts) == 1


def test_what_waits_for_an_attempt_that_is_under_way_goes_with_its_flow() -> None:
    world = World(window=1).begin()
    world.come(1)
    for _ in range(2):
        bound_again(world)
        world.come(1)
    bound_again(world)
    world.answer(503)
    assert (world.client.settled, world.room.held) == ([], 0)
    world.tick(60)
    assert world.posts == []


def test_a_lost_router_is_waited_for_and_the_queue_bound_again() -> None:
    world = World().begin()
    world.come(1)
    assert world.webhook.away(world.now)
    world.client.state = AttachState.WAITING
    world.tick(PAUSE_MAX_S)
    assert len(world.client.bound) == 1
    world.client.state = AttachState.OPEN
    world.webhook.may_go_on(world.now)
    world.tick()
    assert len(world.client.bound) == 2


def test_a_refusal_is_shown_and_tried_again_after_longer_and_longer_pauses() -> None:
    world = World()
    pause_s = PAUSE_FIRST_S
    for times in range(1, 8):
        world.tick()
        assert len(world.clients) == times
        world.webhook.refused(errors.error_for(errors.UNAUTHORIZED), world.now)
        assert "40101" in world.webhook.error
        world.tick(pause_s - 0.01)
        assert len(world.clients) == times
        world.now += 0.01
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def test_a_flow_that_is_refused_is_asked_for_again_by_the_same_client() -> None:
    world = World()
    world.tick()
    world.client.state = AttachState.OPEN
    world.webhook.welcomed(cast("Any", None), world.now)
    world.tick()
    world.client.bound[-1][2](None, errors.error_for(errors.PERMISSION_DENIED), world.now)
    assert "40315" in world.webhook.error
    world.tick(PAUSE_FIRST_S)
    assert (len(world.clients), len(world.client.bound)) == (1, 2)


def test_what_waits_of_a_partition_that_is_lost_is_for_others() -> None:
    world = World(window=1).begin()
    world.come(1, partition=0)
    world.come(1, 2, partition=1)
    window = world.client.bound[-1][0]
    world.webhook.indicated(Indicated(window, wire.FLOW_PARTITIONS, 0, "", [0]), world.now)
    world.answer(200)
    assert world.posts == []
    assert window.held_messages == 0


def test_what_is_under_way_of_a_partition_that_is_lost_is_not_posted_again() -> None:
    """Another consumer has it, and posts what comes behind it: it would be doubled, and out of order."""
    world = World(window=2).begin()
    world.come(1, partition=0)
    world.come(1, partition=1)
    window = world.client.bound[-1][0]
    indicate(world, wire.FLOW_PARTITIONS, [0])
    world.answer(503, at=1)
    world.answer(200)
    world.tick(60)
    assert world.posts == []
    assert (window.held_messages, world.room.held) == (0, 0)
    assert world.client.settled == [(0, 1, wire.OUTCOME_ACCEPTED)]


def test_what_was_not_posted_of_a_partition_that_is_to_move_goes_back_untried() -> None:
    world = World(window=2).begin()
    world.come(1, 2, 3, 4, partition=1)
    world.come(9, partition=0)
    world.answer(503)
    indicate(world, wire.FLOW_LEAVING, [1])
    assert world.client.settled == [(1, 4, wire.OUTCOME_RELEASED)]
    assert [held.position for held in world.posts] == [2, 3]
    world.answer(200)
    world.answer(200)
    world.tick(10)
    assert [held.position for held in world.posts] == [9, 1], "what was tried is tried again here"


def test_a_partition_that_comes_back_brings_what_is_under_way_still() -> None:
    world = World(window=3).begin()
    world.come(1, 2, partition=1)
    window = world.client.bound[-1][0]
    for partitions in ([0], [0, 1]):
        indicate(world, wire.FLOW_PARTITIONS, partitions)
    world.come(1, partition=1)
    world.answer(503)
    world.tick(60)
    assert [held.position for held in world.posts] == [2, 1]
    indicate(world, wire.FLOW_PARTITIONS, [0])
    world.answer(200, at=1)
    world.answer(503)
    world.tick(60)
    assert (world.posts, window.held_messages, world.room.held) == ([], 0, 0)


def test_one_that_is_stopped_leaves_when_its_attempts_have_answers() -> None:
    world = World(window=1).begin()
    world.come(1, 2)
    world.webhook.stop()
    world.tick()
    assert not world.webhook.is_over
    world.answer(200)
    assert world.posts == []
    assert world.client.settled == [(0, 1, wire.OUTCOME_ACCEPTED)]
    assert (world.webhook.is_over, world.client.state) == (True, AttachState.OVER)


def test_a_change_of_its_state_is_told_once_and_not_too_often() -> None:
    world = World(window=1).begin()
    webhook = world.webhook
    assert [webhook.news(world.now), webhook.news(world.now)] == [True, False]
    world.come(1)
    world.answer(500)
    assert not webhook.news(world.now), "it was told a moment ago"
    assert webhook.news(world.now + TELL_S)
    world.tick(1)
    world.answer(200)
    assert (webhook.is_up, webhook.describe(world.now)["last_failure"]) == (True, "answered 500")


ANSWERS = st.sampled_from([200, 204, 410, 500, 302, None])


@pytest.mark.parametrize("window", [1, 3])
@given(st.lists(st.tuples(st.integers(0, 2), ANSWERS), max_size=80))
def test_each_message_is_settled_once_whatever_the_target_answers(
    window: int, steps: list[tuple[int, int | None]]
) -> None:
    world = World(window=window).begin()
    came = 0
    for at, code in steps:
        flow = world.client.bound[-1][0]
        if flow.granted_messages > flow.received_messages:
            came += 1
            world.come(came)
        assert len(world.posts) <= window
        if world.posts:
            world.answer(code, at=at % len(world.posts))
        world.tick(0.5)
    for _ in range(came * 4):
        while world.posts:
            world.answer(200)
        world.tick(8)
    assert sorted(position for _, position, _ in world.client.settled) == list(range(1, came + 1))
    assert world.room.held == 0


def indicate(world: World, event: int, partitions: list[int] | None = None) -> None:
    window = world.client.bound[-1][0]
    world.webhook.indicated(Indicated(window, event, 0, "", partitions or []), world.now)
    world.webhook.validate()


def test_one_whose_turn_it_is_not_stands_by_and_is_no_trouble() -> None:
    world = World(window=1).begin().bound(active=False)
    assert (world.webhook.state, world.webhook.is_up, world.webhook.error) == ("standby", True, "")
    indicate(world, wire.FLOW_ACTIVE)
    world.come(1)
    world.answer(500)
    assert (world.webhook.state, world.webhook.error) == ("down", "answered 500")
    indicate(world, wire.FLOW_INACTIVE)
    assert (world.webhook.state, world.webhook.error) == ("standby", "")
    indicate(world, wire.FLOW_PARTITIONS, [1])
    assert world.webhook.state == "down"
    indicate(world, wire.FLOW_PARTITIONS)
    assert world.webhook.state == "standby"


def test_shares_are_never_more_than_all_and_change_when_webhooks_double() -> None:
    room = Room(64 << 20)
    assert [room.share_of(count) >> 10 for count in (0, 1, 16, 17, 32, 33)] == [
        4096,
        4096,
        4096,
        2048,
        2048,
        1024,
    ]
    assert room.share_of(1 << 30) == SHARE_MIN
    for count in range(1, 3_000):
        assert count * room.share_of(count) <= room.bytes_max


def test_who_finds_no_share_waits_until_one_is_given_back() -> None:
    room = Room(SHARE_MAX)
    first, second = World(room=room).begin(), World(room=room)
    second.tick()
    second.client.state = AttachState.OPEN
    second.webhook.welcomed(cast("Any", None), second.now)
    second.tick()
    assert (second.client.bound, second.webhook.error, room.waits) == ([], NO_ROOM, 1)
    first.webhook.stop()
    first.tick()
    assert room.lent == 0
    second.tick(PAUSE_FIRST_S)
    second.bound()
    assert (second.webhook.state, room.lent) == ("up", SHARE_MAX)


def test_what_is_too_much_for_all_is_given_back_and_comes_again_later() -> None:
    """Two share a room of 10,000 bytes; a message that fits no share comes to each of them."""
    room = Room(10_000)
    first, second = (World(window=2, room=room, share=5_000).begin() for _ in range(2))
    first.come(1, large=12_000)
    assert [held.position for held in first.posts] == [1], "who has all of it goes on"
    second.come(1, 2, large=1_000)
    assert second.posts == []
    assert (second.webhook.error, room.given_back, len(second.client.unbound)) == (NO_ROOM, 2, 1)
    assert room.held == first.posts[0].size
    first.answer(200)
    assert room.held == 0
    second.tick(PAUSE_FIRST_S)
    second.bound()
    second.come(1, 2, large=1_000)
    assert [held.position for held in second.posts] == [1, 2]


def test_what_is_under_way_is_held_until_it_has_its_answer_also_when_its_flow_is_over() -> None:
    world = World(window=1).begin()
    world.come(1, 2)
    world.webhook.away(world.now)
    assert (world.room.held, world.room.lent) == (world.posts[0].size, 0)
    world.answer(200)
    assert world.room.held == 0
