"""What a client of MQTT takes that is connected and does little: there may be very many; and what is left of it."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from gateway.mqtt.codec.acknowledge import PubComp, PubRec
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.kinds import V3
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Subscription, Unsubscribe
from tests.garbage import uncollected
from tests.unit.gateway.clients.conversation import Conversation
from tests.unit.gateway.clients.sessions_of_tests import KEPT, again, row, subscribed, twice

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 200
#: Less than an object more for each, as an empty deque, would take.
CLIENT_BYTES = 1_750


def test_a_client_that_only_subscribes_with_qos_0_has_nothing_for_the_rest() -> None:
    def talk(number: int) -> Conversation:
        made = Conversation(V3).connect()
        made.says(Subscribe(1, (Subscription(f"a/{number}"),)))
        return made

    talk(0)
    tracemalloc.start()
    try:
        talks = [talk(number) for number in range(COUNT)]
        found = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, "*/gateway/mqtt/*"), tracemalloc.Filter(False, "*/tests/*")]
        )
    finally:
        tracemalloc.stop()
    assert len(talks) == COUNT
    assert sum(one.size for one in found.statistics("filename")) / COUNT < CLIENT_BYTES


SHARED = "$share/crew/a/#"
QUEUE = f"#mqtt/{SHARED}"


def does_nothing() -> Conversation:
    return Conversation().here()


def is_in_the_middle_of_a_login() -> Conversation:
    return Conversation().connect()


def has_a_session_that_ends_with_it() -> Conversation:
    talk = subscribed(
        Conversation().here(), Subscription("a", 0), Subscription("b", 2), Subscription(SHARED, 2)
    )
    talk.node_brings((1, twice("x")))
    talk.node_brings((1, twice("x")), window=talk.node.shared[QUEUE])
    talk.says(Publish("c", qos=1, packet_id=1), Publish("c", qos=2, packet_id=2))
    return talk


def waits_for_an_answer() -> Conversation:
    talk = Conversation().here()
    talk.says(Subscribe(1, (Subscription("a"),)), Subscribe(2, (Subscription("b"),)))
    return talk


def has_shared_before() -> Conversation:
    talk = subscribed(Conversation().here(**KEPT[5]), Subscription(SHARED, 2))
    talk.says(Unsubscribe(2, (SHARED,)))
    talk.node_does_all()
    return talk


def is_kept(*, is_told: bool = True) -> Conversation:
    """Give a client in the middle of everything, with or without the answers to what it was in the middle of."""
    talk = subscribed(Conversation().here(**KEPT[5]), Subscription("b", 2), Subscription(SHARED, 2))
    talk.node_brings((1, twice("x")), (2, twice("y")), (3, row("z")))
    talk.node_brings((1, twice("x")), (2, twice("y")), window=talk.node.shared[QUEUE])
    talk.says(Publish("c", qos=2, packet_id=2))
    if is_told:
        talk.node_works()
    received = [one for one in talk.hears() if isinstance(one, Publish) and one.qos == 2]
    talk.says(*[PubRec(one.packet_id) for one in received])
    if is_told:
        talk.node_works()
        talk.says(PubComp(received[0].packet_id))
    return talk


def is_kept_and_waits_for_the_disk() -> Conversation:
    return is_kept(is_told=False)


def has_come_back_without_its_share() -> Conversation:
    before = is_kept()
    before.says(Unsubscribe(3, (SHARED,)))
    before.node_does_all()
    before.client.lost("gone", before.now)
    talk = again(before)
    talk.welcome()
    talk.node_does_all()
    end_of(before)
    return talk


def is_lost(talk: Conversation) -> None:
    talk.client.lost("gone", talk.now)


def disconnects(talk: Conversation) -> None:
    talk.says(Disconnect())
    is_lost(talk)  # it may have to wait for an answer


def breaks_a_rule(talk: Conversation) -> None:
    talk.says_bytes(b"\x00\x00")
    is_lost(talk)


def sends_no_text(talk: Conversation) -> None:
    talk.says_bytes(b"\x30\x04\x00\x01\xff\x00")
    is_lost(talk)


def is_ended(talk: Conversation) -> None:
    talk.node.requests.clear()  # as the client at the node does at its end
    talk.node_ends(errors.DISCONNECTED_BY_OPERATOR)


def end_of(talk: Conversation) -> None:
    """Let go of a client as its process and its node do."""
    talk.node.requests.clear()
    del talk.client


@pytest.mark.parametrize("ends", [is_lost, disconnects, breaks_a_rule, sends_no_text, is_ended])
@pytest.mark.parametrize(
    "client",
    [
        does_nothing,
        is_in_the_middle_of_a_login,
        has_a_session_that_ends_with_it,
        waits_for_an_answer,
        has_shared_before,
        is_kept,
        is_kept_and_waits_for_the_disk,
        has_come_back_without_its_share,
    ],
)
def test_nothing_is_left_of_a_client_that_is_gone(
    client: Callable[[], Conversation], ends: Callable[[Conversation], None]
) -> None:
    with uncollected():
        before = objects_of_mqtt()
        talk = client()
        assert objects_of_mqtt() > before
        ends(talk)
        end_of(talk)
        del talk
        assert objects_of_mqtt() - before == Counter()


def objects_of_mqtt() -> Counter[str]:
    """Count those of clients and their sessions."""
    parts = (
        "gateway.mqtt.clients.",
        "gateway.mqtt.codec.",
        "gateway.mqtt.delivering",
        "gateway.mqtt.sessions.",
    )
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one).__module__.startswith(parts))
