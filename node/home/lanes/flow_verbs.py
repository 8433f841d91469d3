"""FLOW: what the router says about flows, carried out at their lanes.

Flows have numbers of the router, never used twice. A lane that closes a flow says so with an event; from then
on nothing comes for it any more.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from angarium import errors, wire
from angarium_server.black_box import DELIVER, BlackBox
from angarium_server.frames.homes import Bind, Credit, FlowEventFrame, Settle, Unbind
from node.endpoints.flow import FlowEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from angarium_server.frames.homes import FlowFrame
    from node.home.lanes.outbox import Outbox
    from node.home.spool.held_lanes import HeldLane, HeldLanes

_decode_bind = msgspec.msgpack.Decoder(Bind).decode
_decode_unbind = msgspec.msgpack.Decoder(Unbind).decode
_decode_credit = msgspec.msgpack.Decoder(Credit).decode
_decode_settle = msgspec.msgpack.Decoder(Settle).decode


class FlowVerbs:
    """Carries out bind, unbind, credit and settle."""

    def __init__(self, lanes: HeldLanes, outbox: Outbox, box: BlackBox) -> None:
        """Make it; `box` takes which lane a selector is bound to."""
        self._lanes = lanes
        self._outbox = outbox
        self._box = box
        self._verbs: dict[str, Callable[[int, msgspec.Raw, float, int], None]] = {
            "bind": self._bind,
            "unbind": self._unbind,
            "credit": self._credit,
            "settle": self._settle,
        }

    def carry_out(self, header: FlowFrame, now: float, wall_ms: int) -> bool:
        """Do what a FLOW says; False if it is none that a router of ours sends."""
        verb = self._verbs.get(header.verb)
        if verb is None:
            return False
        try:
            verb(header.flow, header.arguments, now, wall_ms)
        except errors.AngariumError:
            raise
        except (ValueError, RecursionError):
            return False
        return True

    def _bind(self, flow: int, arguments: msgspec.Raw, now: float, _wall_ms: int) -> None:
        bind = _decode_bind(arguments)
        held = self._lanes.get(bind.lane)
        if held is None:
            detail = f"lane {bind.lane} is not here"
            self.tell([FlowEvent(flow, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT, detail)])
            return
        if held.importing and "end" in bind.options:
            # What is not here yet would be missing in the range.
            detail = f"lane {bind.lane} is being taken over"
            self.tell([FlowEvent(flow, wire.FLOW_CLOSED, errors.HOME_NOT_READY, detail)])
            return
        self._box.begin(DELIVER, bind.lane)
        events = held.lane.bind(
            flow,
            browse=bind.browse,
            selector=bind.selector,
            messages=bind.messages,
            bytes_=bind.bytes,
            options=bind.options,
            now=now,
        )
        self._box.end()
        if flow in held.lane.flows:
            self._lanes.flows[flow] = held
        self._touch(held, events)

    def _unbind(self, flow: int, arguments: msgspec.Raw, now: float, wall_ms: int) -> None:
        held = self._lanes.flows.get(flow)
        if held is None:
            return
        hand_off_ms = _decode_unbind(arguments).hand_off_ms
        self._touch(held, held.lane.unbind(flow, hand_off_ms, now, wall_ms))
        if flow not in held.lane.flows:
            self._lanes.flows.pop(flow, None)

    def _credit(self, flow: int, arguments: msgspec.Raw, _now: float, _wall_ms: int) -> None:
        held = self._lanes.flows.get(flow)
        if held is not None:
            credit = _decode_credit(arguments)
            held.lane.credit(flow, credit.messages, credit.bytes)
            self._lanes.touched[held] = None

    def _settle(self, flow: int, arguments: msgspec.Raw, now: float, wall_ms: int) -> None:
        said = _decode_settle(arguments)
        held = self._lanes.flows.get(flow)
        if held is None:
            detail = f"flow {flow} is not here"
            self.tell([FlowEvent(flow, wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED, detail)])
            return
        self._touch(held, held.lane.settle(flow, said.outcome, said.ranges, now, wall_ms))

    def _touch(self, held: HeldLane, events: list[FlowEvent]) -> None:
        self._lanes.touched[held] = None
        if events:
            self.tell(events)

    def tell(self, events: Iterable[FlowEvent]) -> None:
        """Tell the router what a lane says of its flows, and forget those that are closed."""
        for event in events:
            if event.event == wire.FLOW_CLOSED:
                self._lanes.flows.pop(event.flow, None)
            self._outbox.say(FlowEventFrame(self._outbox.incarnation, *event))

    def end_all(self, now: float, wall_ms: int) -> None:
        """End all flows without a word: their router is gone, or this home stops."""
        self._lanes.flows.clear()
        for held in self._lanes:
            if held.lane.flows:
                held.lane.end_flows(now, wall_ms)
                self._lanes.touched[held] = None
