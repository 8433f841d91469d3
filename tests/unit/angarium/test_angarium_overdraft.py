"""How far a node may overdraw its credit: the memory of a slow application is bounded, in numbers written here."""

from __future__ import annotations

import pytest

from angarium import errors
from angarium.client.protocol.flow_window import FlowWindow
from angarium.client.protocol.session import ClientSession, EgressWindow, Hello

WINDOW_BYTES = 10_000
OVERDRAFT_BYTES = 64 * 1024**2


def test_a_router_may_overdraw_by_64_mib_and_a_window_of_bytes() -> None:
    session = ClientSession(Hello(), EgressWindow(100, WINDOW_BYTES), 0.0)
    session.count_received(1, WINDOW_BYTES + OVERDRAFT_BYTES + WINDOW_BYTES)
    session.count_received(1, 1)
    with pytest.raises(errors.AngariumError, match="more messages than there is credit for"):
        session.count_received(1, 1)


def test_a_node_may_overdraw_a_flow_by_64_mib_and_a_window_of_bytes() -> None:
    window = FlowWindow(100, WINDOW_BYTES)
    window.receive(1, WINDOW_BYTES + OVERDRAFT_BYTES + WINDOW_BYTES)
    window.receive(1, 1)
    with pytest.raises(errors.AngariumError, match="more messages than there is credit for"):
        window.receive(1, 1)
