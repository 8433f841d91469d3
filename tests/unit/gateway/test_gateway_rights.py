"""What attached clients may publish: the gateway judges as workers do, because theirs do not judge it again."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from angarium_server.frames.gateways import Rights
from gateway import rights as module
from gateway.rights import ClientRights, KnownRights
from node.config import WorkerConfig
from tests.unit.gateway.played_router import Gateway
from tests.unit.node.fake_router import PLAIN, Router, row_of

if TYPE_CHECKING:
    import pytest

LIMIT = 1_024


def rights_of(*exceptions: str, allowed: bool = True, queue_units: int = 1) -> Rights:
    return Rights(
        publish_allowed=allowed,
        publish_exceptions=list(exceptions),
        queue_units=queue_units,
        may_share=True,
        may_send_guaranteed=True,
        may_receive_guaranteed=True,
    )


_LEVELS = st.sampled_from(
    ["a", "b", "ab", "", "*", ">", "a*", "$SYS", "#P2P", "INB", "#share", "#LOG", "#noexport"]
)
_TOPICS = st.one_of(
    st.lists(_LEVELS, min_size=1, max_size=4).map("/".join),
    st.sampled_from(["x" * 250, "x" * 251, "a\0b", "/".join("a" * 129), "ü" * 126]),
)
_PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "a*", "", ">"]), min_size=1, max_size=3).map("/".join)


@given(
    st.booleans(),
    st.lists(_PATTERNS.filter(bool), max_size=4),
    st.lists(st.tuples(_TOPICS, st.sampled_from([0, LIMIT - 1, LIMIT, LIMIT + 1])), min_size=1, max_size=8),
)
def test_gateway_and_worker_refuse_the_same(
    allowed: bool, exceptions: list[str], published: list[tuple[str, int]]
) -> None:
    router = Router(WorkerConfig(max_message_bytes=LIMIT))
    router.filters((1, "nothing", PLAIN))
    router.rules(5, allowed, exceptions)
    gateway = Gateway(max_message_bytes=LIMIT)
    client, _ = gateway.opened(rights=[allowed, exceptions, 1, True, True, True])
    for topic, size in published:
        answer = router.match([row_of(0, topic, 0, bytes(size))], rules=5)
        assert client.refusal_of(topic, size) == next(iter(answer.refused), 0), topic


def test_the_same_rights_are_one_object_as_long_as_somebody_has_them() -> None:
    known = KnownRights()
    first = known.find(rights_of("a"))
    assert known.find(rights_of("a")) is first
    assert known.find(rights_of("b")) is not first
    assert known.find(rights_of("a", queue_units=2)) is not first
    del first
    gc.collect()
    assert len(known._known) == 0


def test_verdicts_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERDICTS_MAX", 10)
    monkeypatch.setattr(module, "ALL_VERDICTS_MAX", 25)
    known = KnownRights()
    lists: list[ClientRights] = [known.find(rights_of(f"no/{number}")) for number in range(4)]
    for round_ in range(30):
        for number, one in enumerate(lists):
            assert one.refusal_of(f"no/{number}") == errors.PUBLISH_DENIED
            assert one.refusal_of(f"t/{round_}") == 0
            known.validate()
