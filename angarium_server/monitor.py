"""Reads what the monitor of a ZeroMQ socket tells.

`zmq.utils.monitor` does the same and imports asyncio with it, of which no process of a node makes any use.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import zmq

#: The first frame: which event, and its value. The second one is the endpoint.
_EVENT: Final = struct.Struct("=Hi")


class MonitorEvent(NamedTuple):
    """Something that happened to a connection: one of `zmq.EVENT_...`, and what that event says with it."""

    event: int
    value: int


def next_event(monitor: zmq.Socket[bytes]) -> MonitorEvent:
    """Give the oldest event that was not read.

    Raises:
        zmq.Again: there is none.
    """
    return MonitorEvent(*_EVENT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0]))
