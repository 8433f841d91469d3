"""What a session takes that is there and does nothing: a router may have very many of them."""

from __future__ import annotations

import tracemalloc

from router.sessions.directory import Vpn
from router.sessions.session import Session

COUNT = 200
#: Less than an object more for each, as an empty deque, would take.
SESSION_BYTES = 1_750


def test_a_session_of_the_router_has_little_before_it_is_used() -> None:
    vpn = Vpn(1, "v", {})
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sessions = [Session(number, b"", vpn, "u", "", 0.0) for number in range(COUNT)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / len(sessions) < SESSION_BYTES
