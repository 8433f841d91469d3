"""Lone messages of raw clients in a closed loop: K different clients send one each, all K come, and again.

The process answers an order with how many messages came and how long it took; what the router paid for them is for the
one who gives the order to see.
"""

from __future__ import annotations

import json
import select
import sys
import time
from itertools import cycle, islice
from typing import Any, Final

from angarium import wire
from benchmarks.crowd.raw import RawClient
from benchmarks.crowd.task import LOOP, PAYLOAD_BYTES, STAMP_BYTES, TO_COLLECTOR, GroupTask, read_task

#: Between two looks at what came to the publishers: RETIRED, heartbeats of the transport.
SERVICE_S: Final = 0.2
_FILLER: Final = bytes(PAYLOAD_BYTES - STAMP_BYTES)
#: Rows of a DELIVER in its header: `[flags, [[rows, share], ...], dropped]`.
_PARTS: Final = 1


class ClosedLoop:
    """Some raw publishers and their collector."""

    def __init__(self, task: GroupTask) -> None:
        """Connect all, and let each publish once, so that the router knows every topic."""
        self._collector = RawClient(task.url, collects=True)
        self._collector.subscribe(task.collector_filter)
        self._poll = select.poll()
        self._publishers: dict[int, RawClient] = {}
        turns = []
        for number in task.numbers:
            client, topic = RawClient(task.url), task.target(number, TO_COLLECTOR)
            self._publishers[client.fileno()] = client
            self._poll.register(client, select.POLLIN)
            head = wire.pack([0, topic, 0, None, None, _FILLER])[: -len(_FILLER) - 1]
            turns.append((client, client.worker_of(topic), head + bytes((PAYLOAD_BYTES,))))
        self._turns = cycle(turns)
        self.run(len(turns), 0.0)

    def run(self, at_once: int, seconds: float) -> dict[str, Any]:
        """Go round for some time, at least once; give what it took."""
        messages = 0
        laps_ns: list[int] = []
        cpu_s, started = time.process_time(), time.monotonic()
        now = serviced = started
        while not messages or now < started + seconds:
            began_ns = time.monotonic_ns()
            for client, worker, head in islice(self._turns, at_once):
                client.publish(worker, head + time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + _FILLER)
            messages += at_once
            self._collect(at_once)
            laps_ns.append(time.monotonic_ns() - began_ns)
            now = time.monotonic()
            if now > serviced + SERVICE_S:
                serviced = now
                self._service()
        return {
            "messages": messages,
            "seconds": now - started,
            "lap_us": sorted(laps_ns)[len(laps_ns) // 2] / 1_000,
            "cpu_s": time.process_time() - cpu_s,
        }

    def _collect(self, awaited: int) -> None:
        while awaited > 0:
            for frames in self._collector.receive():
                if frames[0] == wire.DELIVER:
                    awaited -= sum(rows for rows, _ in wire.unpack(frames[1])[_PARTS])

    def _service(self) -> None:
        """Read what the publishers were told, so that nothing piles up."""
        for descriptor, _ in self._poll.poll(0):
            for _ in self._publishers[descriptor].receive():
                pass


def main() -> None:
    loop = ClosedLoop(read_task())
    print("READY", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        assert order.pop("do") == LOOP
        print(json.dumps(loop.run(**order)), flush=True)


if __name__ == "__main__":
    main()
