"""What a client of MQTT takes that is connected and does little: there may be very many of them."""

from __future__ import annotations

import tracemalloc

from gateway.mqtt.codec.kinds import V3
from gateway.mqtt.codec.subscribe import Subscribe, Subscription
from tests.unit.gateway.clients.conversation import Conversation

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
