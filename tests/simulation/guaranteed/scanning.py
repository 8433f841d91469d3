"""Clients that read ranges of endpoints without a group: what is there from one position to before another.

They ask for the positions of an endpoint and read each partition from anywhere to its end, with or without a selector,
beside consumers, operators and moves of lanes. One that was told that its range is complete has all of it; one whose
flow ended otherwise has nothing to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.client.protocol import answers
from angarium.client.protocol.flow_window import FlowWindow
from tests.simulation.event_history import what_of
from tests.simulation.guaranteed.flow_rules import COLORS
from tests.simulation.guaranteed.scan_records import Scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.answers import FlowBound, GroupOpened
    from angarium.client.protocol.events import Indicated
    from angarium.client.protocol.messages import GuaranteedDelivery
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient

PAUSE_MAX_S: Final = 0.2
#: How many ranges are read with a selector.
SELECTED: Final = 0.3


class SimulatedScanner:
    """One reader of a client, over all its connections."""

    def __init__(self, client: GuaranteedClient, endpoints: list[tuple[str, str]]) -> None:
        """Make it for endpoints of (kind, name)."""
        self.client = client
        self._endpoints = endpoints
        #: What is read now, and through which window.
        self._scan: Scan | None = None
        self._window: FlowWindow | None = None
        #: Ranges that come after it: (endpoint, partition, first, end).
        self._line: list[tuple[tuple[str, str], int, int, int]] = []
        #: Rises when what was asked for is of no interest any more.
        self._attempt = 0
        #: Whether it begins anything.
        self.is_wanted = True

    def connected(self) -> None:
        """Begin on a new connection."""
        self._later()

    def lost(self) -> None:
        """The connection is over, and what was on its way."""
        self._attempt += 1
        self._window = self._scan = None
        self._line.clear()

    def _later(self) -> None:
        self.lost()
        self._after(self._ask)

    def _after(self, step: Callable[[], None]) -> None:
        attempt = self._attempt

        def go_on() -> None:
            if self._attempt == attempt and self.is_wanted:
                step()

        self.client.loop.after(self.client.rng.random() * PAUSE_MAX_S, go_on)

    def _can_ask(self) -> bool:
        client = self.client
        session = client.session
        if session is None or not session.is_open:
            return False
        if not session.can_ask() or client.is_paused:
            self._later()
            return False
        return True

    def _ask(self) -> None:
        """Ask which positions an endpoint has."""
        if not self._can_ask():
            return
        assert self.client.session is not None
        endpoint = self.client.rng.choice(self._endpoints)
        attempt = self._attempt

        def answered(value: GroupOpened, error: errors.AngariumError | None) -> None:
            if self._attempt != attempt:
                return
            if error is not None:
                self._later()
                return
            self._line = [
                (endpoint, partition, self.client.rng.choice([1, figures.oldest]), figures.next)
                for partition, figures in value.lanes
            ]
            self._read()

        wish = {"kind": endpoint[0], "name": endpoint[1]}
        session = self.client.session
        self.client.wait_for(
            session.guaranteed.ask("endpoint.positions", wish, answers.decode_group), answered
        )
        self.client.transmit()

    def _read(self) -> None:
        """Read the next range."""
        if not self._line or not self._can_ask():
            self._later()
            return
        client, session = self.client, self.client.session
        assert session is not None
        assert client.record is not None
        (kind, name), partition, first, end = self._line.pop(0)
        selector = f"color = '{client.rng.choice(COLORS)}'" if client.rng.random() < SELECTED else None
        window = self._window = FlowWindow(client.rng.choice([1, 3, 20]), 1 << 20)
        scan = self._scan = Scan(client.record, selector, first, end, client.loop.now)
        attempt = self._attempt
        arguments = {
            "kind": kind,
            "name": name,
            "browse": True,
            "selector": selector,
            "range": {"group": "", "partition": partition, "first": first, "end": end},
        }

        def bound(value: FlowBound) -> None:
            scan.lane = value.endpoint_id << wire.LANE_BITS | partition
            client.guaranteed.scans.append(scan)

        def answered(_: Any, error: errors.AngariumError | None) -> None:
            if self._attempt == attempt and error is not None:
                self._later()

        client.wait_for(session.guaranteed.bind(window, arguments, bound), answered)
        client.transmit()

    def owns(self, window: FlowWindow) -> bool:
        """Tell whether something concerns what is being read."""
        return self._window is window

    def arrived(self, deliveries: list[GuaranteedDelivery]) -> None:
        """Messages of the range came."""
        scan, window, session = self._scan, self._window, self.client.session
        assert scan is not None
        assert window is not None
        for delivery in deliveries:
            scan.got += [
                (position, what_of(row))
                for position, row in zip(delivery.positions, delivery.rows, strict=True)
            ]
        window.take(window.held_messages, window.held_bytes)
        if session is not None and session.is_open and window.flow:
            session.guaranteed.renew(window)
        self.client.transmit()

    def indicated(self, event: Indicated) -> None:
        """The range ends, or its flow."""
        if event.event != wire.FLOW_CLOSED:
            return
        assert self._scan is not None
        if event.code:
            self._later()
            return
        self._scan.done_at = self.client.loop.now
        self._attempt += 1
        self._window = self._scan = None
        self._after(self._read)
