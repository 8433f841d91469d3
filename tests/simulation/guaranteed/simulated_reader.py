"""A reader group of the simulation: an application that reads a queue by positions and keeps a checkpoint.

Its steps are those of a stream reader: lease the queue, plan what comes next, write the plan into the checkpoint, read
it, write what was read into the checkpoint, acknowledge, and again. The checkpoint outlives the process; everything
else goes with its connection, and the next one begins at the step where the checkpoint is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import errors, wire
from angarium.client.protocol import answers
from angarium.client.protocol.flow_window import FlowWindow
from tests.simulation.event_history import what_of
from tests.simulation.guaranteed.reader_records import Plan, ReaderRecord

if TYPE_CHECKING:
    from angarium.client.protocol.answers import FlowBound, GroupFigures, GroupOpened
    from angarium.client.protocol.events import Indicated
    from angarium.client.protocol.messages import GuaranteedDelivery
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient

RETRY_MAX_S = 0.3
#: How long it waits before it plans again.
PAUSE_MAX_S = 0.5
#: Longer than any run.
LEASE_MS = 3_600_000


class ReaderPlan(NamedTuple):
    """What kind of reader it is."""

    queue: str
    group: str
    #: Limit of one plan, None for none.
    messages: int | None = None
    bytes: int | None = None
    window: int = 255


class SimulatedReader:
    """One reader group of a client, over all its connections and processes."""

    def __init__(self, client: GuaranteedClient, plan: ReaderPlan) -> None:
        self.client = client
        self.plan = plan
        self.record = ReaderRecord(plan.group)
        client.guaranteed.readers.append(self.record)
        # The checkpoint.
        self._endpoint_id = 0
        #: Partition -> everything below it is read, and acknowledged or about to be.
        self._done: dict[int, int] = {}
        #: What is planned and not acknowledged, and whether it was read.
        self._plans: list[Plan] = []
        # Of the connection.
        self._epochs: dict[int, int] = {}
        self._window: FlowWindow | None = None
        self._got: list[tuple[int, str]] = []
        #: Rises when what was asked for is of no interest any more.
        self._attempt = 0
        #: Whether it is to let the queue go at the next step, and whether it has.
        self.is_wanted = True
        self.is_over = False

    # Life.

    def connected(self) -> None:
        """Begin on a new connection where the checkpoint is."""
        self._later(self._open, 0.0)

    def lost(self) -> None:
        """The connection is over, and what was on its way."""
        self._attempt += 1
        self._window = None
        self._got = []

    def _later(self, step: Any, delay_s: float) -> None:
        self._attempt += 1
        attempt = self._attempt

        def go_on() -> None:
            if self._attempt == attempt and not self.is_over:
                step()

        self.client.loop.after(delay_s, go_on)

    def _ask(self, verb: str, arguments: dict[str, Any], decode: Any, done: Any) -> None:
        """Ask for an operation; try the whole again if it is refused."""
        client, session = self.client, self.client.session
        if session is None or not session.is_open:
            return
        if not session.can_ask() or client.is_paused:
            self._later(self._open, client.rng.random() * RETRY_MAX_S)
            return
        self._attempt += 1
        attempt = self._attempt
        wish = {"name": self.plan.queue, "group": self.plan.group, **arguments}

        def answered(value: Any, error: errors.AngariumError | None) -> None:
            if self._attempt != attempt:
                return
            if error is not None:
                self._refused(verb, error)
            else:
                done(value)

        client.wait_for(session.guaranteed.ask(f"group.{verb}", wish, decode), answered)
        client.transmit()

    def _refused(self, what: str, error: errors.AngariumError) -> None:
        self.record.refusals.append((self.client.loop.now, what, error.code))
        if error.code == errors.UNKNOWN_ENDPOINT and not self.is_wanted:
            self.is_over = True  # there is nothing to let go
        self._later(self._open, 0.02 + self.client.rng.random() * RETRY_MAX_S)

    # Steps.

    def _open(self) -> None:
        self._ask("open", {"lease_ms": LEASE_MS}, answers.decode_group, self._opened)

    def _opened(self, opened: GroupOpened) -> None:
        now = self.client.loop.now
        if opened.endpoint_id != self._endpoint_id:
            # Another queue of that name: nothing of the checkpoint is about it.
            self._endpoint_id, self._done, self._plans = opened.endpoint_id, {}, []
        self._epochs = {partition: figures.epoch for partition, figures in opened.lanes}
        for partition, figures in opened.lanes:
            self._note_open(partition, figures, now)
        if not self.is_wanted and not self._plans:
            self._release()
        else:
            self._go_on()

    def _note_open(self, partition: int, figures: GroupFigures, now: float) -> None:
        lane = self._endpoint_id << wire.LANE_BITS | partition
        if not figures.continued and lane in self.record.leases:
            self.record.lost.append((now, lane))
            self._plans = [one for one in self._plans if one.lane != lane]
        self._done.setdefault(partition, 0)
        self.record.leased(lane, now)

    def _go_on(self) -> None:
        unread = next((one for one in self._plans if one.read_at is None), None)
        if unread is not None:
            self._read(unread)
        elif self._plans:
            self._acknowledge()
        elif not self.is_wanted:
            self._release()
        else:
            self._plan()

    def _plan(self) -> None:
        lanes = [[p, epoch, max(self._done[p], 1), 0] for p, epoch in self._epochs.items()]
        limits = {"messages": self.plan.messages, "bytes": self.plan.bytes}
        self._ask("plan", {"lanes": lanes, **limits}, answers.decode_group_plans, self._planned)

    def _planned(self, found: list[tuple[int, tuple[int, int, int, int]]]) -> None:
        now = self.client.loop.now
        for partition, (start, end, messages, _) in found:
            if start != max(self._done[partition], 1):
                text = f"{self.record} asked from {self._done[partition]} on, and was given {start}"
                self.client.history.break_rule(text)
            if end > start:
                lane = self._endpoint_id << wire.LANE_BITS | partition
                self._plans.append(Plan(lane, start, end, messages, now))
        self.record.plans += self._plans
        self._later(self._go_on if self._plans else self._pause, self._think())

    def _pause(self) -> None:
        self._later(self._open, self.client.rng.random() * PAUSE_MAX_S)

    def _think(self) -> float:
        """Give how long it takes to the next step: mostly nothing."""
        rng = self.client.rng
        return rng.random() * 0.2 if rng.random() < 0.3 else 0.0

    def _read(self, plan: Plan) -> None:
        client, session = self.client, self.client.session
        if session is None or not session.is_open:
            return
        if not session.can_ask() or client.is_paused:
            self._later(self._go_on, client.rng.random() * RETRY_MAX_S)
            return
        self._attempt += 1
        attempt = self._attempt
        window = FlowWindow(self.plan.window, 1 << 20)
        self._window, self._got = window, []
        wanted = {
            "group": self.plan.group,
            "partition": plan.partition,
            "first": plan.start,
            "end": plan.end,
        }
        arguments = {"kind": "queue", "name": self.plan.queue, "browse": True, "range": wanted}

        def bound(_: FlowBound) -> None:
            """Only messages that come from now on count."""

        def answered(_: Any, error: errors.AngariumError | None) -> None:
            if self._attempt == attempt and error is not None:
                self._window = None
                self._refused("range", error)

        client.wait_for(session.guaranteed.bind(window, arguments, bound), answered)
        client.transmit()

    def owns(self, window: FlowWindow) -> bool:
        """Tell whether something concerns what is being read."""
        return self._window is window

    def arrived(self, deliveries: list[GuaranteedDelivery]) -> None:
        """Messages of the range came."""
        window, session = self._window, self.client.session
        assert window is not None
        for delivery in deliveries:
            for at, row in enumerate(delivery.rows):
                self._got.append((delivery.positions[at], what_of(row)))
        window.take(window.held_messages, window.held_bytes)
        if session is not None and session.is_open and window.flow:
            session.guaranteed.renew(window)
        self.client.transmit()

    def indicated(self, event: Indicated) -> None:
        """The range ends, or its flow."""
        if event.event != wire.FLOW_CLOSED:
            return
        self._window = None
        if event.code:
            self._later(self._open, self.client.rng.random() * RETRY_MAX_S)
            return
        plan = next(one for one in self._plans if one.read_at is None)
        plan.read_at, plan.got = self.client.loop.now, self._got
        self._done[plan.partition] = plan.end
        self._later(self._go_on, self._think())

    def _acknowledge(self) -> None:
        now = self.client.loop.now
        lanes = [[one.partition, self._epochs.get(one.partition, 0), one.end] for one in self._plans]
        for one in self._plans:
            one.acknowledged_at = min(one.acknowledged_at, now)
        self._ask("acknowledge", {"lanes": lanes}, answers.decode_group_numbers, self._acknowledged)

    def _acknowledged(self, _: Any) -> None:
        self._plans = []
        self._later(self._open if self.client.rng.random() < 0.3 else self._go_on, self._think())

    def _release(self) -> None:
        for partition in self._epochs:
            self.record.let_go(self._endpoint_id << wire.LANE_BITS | partition, self.client.loop.now)
        lanes = [[partition, epoch] for partition, epoch in self._epochs.items()]
        self._ask("release", {"lanes": lanes}, answers.decode_done, self._released)

    def _released(self, _: Any) -> None:
        self.is_over = True
