"""A watch that is closed serves only what it has to, so a process without a lease does nothing but its duties."""

from __future__ import annotations

import os
import time

import pytest
import zmq

from angarium_server.frames.shipping import Order
from angarium_server.process import Lease
from angarium_server.watch import Watch


@pytest.mark.requirement("R266")
def test_what_came_while_a_watch_was_closed_is_served_when_it_opens() -> None:
    watch, served = Watch(), []
    is_closed = False
    always, other = os.eventfd(0), os.eventfd(0)
    watch.add(always, lambda: served.append("always"))
    watch.add(other, lambda: served.append(f"other {os.eventfd_read(other)}"))
    watch.close_while(lambda: is_closed, (always,))
    is_closed = True
    os.eventfd_write(other, 5)
    for _ in range(3):
        watch.wait(0.0)
    assert {*served} == {"always"}
    is_closed = False
    watch.wait(0.0)
    assert "other 5" in served
    watch.close()
    for descriptor in (always, other):
        os.close(descriptor)


@pytest.mark.requirement("R266")
def test_a_lease_holds_until_its_time_by_the_clock_of_the_host() -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as keeper, context.socket(zmq.PAIR) as ours:
        keeper.bind("inproc://keeper")
        ours.connect("inproc://keeper")
        lease = Lease(ours)
        assert not lease.holds(), "nobody has said so"
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        keeper.send_multipart(Order(4, now + 60, 2).frames())
        lease.receive()
        assert lease.holds()
        assert (lease.order.epoch, lease.order.required_by) == (4, 2)
        keeper.send_multipart(Order(4, now - 1, 2).frames())
        lease.receive()
        assert not lease.holds()
