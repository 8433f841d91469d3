"""Watches a home from outside: what its disk holds after each commit, and which frames go in and out.

It knows the layout of the disk and the frames, and nothing of the home's own memory; so what it writes into the
history is what a restart would find, and what the router was told.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgpack

from angarium import wire
from node.backlog.segment import GONE, Segment, segment_key
from node.home.spool import layout
from node.home.spool.held_lanes import PROVISIONAL
from storage.spool import Table
from tests.simulation.event_history import what_of
from tests.simulation.guaranteed.records import (
    Bound,
    Died,
    Emitted,
    Gone,
    HomeSettled,
    Rehomed,
    Stored,
    Unbound,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.spool import Change
    from tests.simulation.guaranteed.records import GuaranteedHistory, Place
    from tests.simulation.simulated_disk import SimulatedDisk
    from tests.simulation.simulated_network import Frames


class DiskObserver:
    """What is on the disk of one worker, by its commits."""

    def __init__(self, history: GuaranteedHistory, worker: int) -> None:
        self._history = history
        self._worker = worker
        #: Block -> what its rows are, and their times to live.
        self._blocks: dict[int, list[tuple[str, int]]] = {}
        #: Key of a segment -> its live places.
        self._places: dict[bytes, list[Place]] = {}
        self._lanes: dict[int, dict[bytes, None]] = {}
        #: Every place that was ever live here.
        self._known: dict[Place, str] = {}
        self._floors: dict[int, int] = {}
        #: Lanes that there are; segments of others were copied early, and are nobody's.
        self._rows: dict[int, None] = {}
        #: Lane -> its mark of an import.
        self._importing: dict[int, int] = {}
        history.observers[worker] = self

    def committed(self, disk: SimulatedDisk, changes: Sequence[Change], now: float) -> None:
        """Take note that these changes are durable; `disk` has them."""
        touched: dict[bytes, None] = {}
        purged: dict[int, None] = {}
        for table, key, value in changes:
            if table is Table.BLOCKS:
                self._note_block(key, value)
            elif table in (Table.SEGMENTS, Table.STATES):
                touched[key] = None
            elif table is Table.LANES and len(key) == 8:
                self._note_lane(key, value, touched, purged)
                self._note_row(disk, key, value, touched)
            elif table is Table.LANES and value is not None and not layout.is_lease_key(key):
                lane = int.from_bytes(key[:8], "big")
                self._history.note_gaps(lane, layout.unpack_positions(value).gaps)
        before = {place: None for key in touched for place in self._places.get(key, ())}
        for key in touched:
            self._read(disk, key, before, now)
        after = {place: None for key in touched for place in self._places.get(key, ())}
        for place in before:
            if place not in after and not self._has_copy(place):
                self._history.home_events.append(Gone(now, place, place[0] in purged, self._worker))

    def _note_block(self, key: bytes, value: bytes | None) -> None:
        number = int.from_bytes(key, "big")
        if value is None:
            self._blocks.pop(number, None)
        else:
            rows = msgpack.unpackb(value[layout.BLOCK_HEAD_BYTES :], strict_map_key=False)
            self._blocks[number] = [(what_of(row), (row[wire.ROW_META] or (0,))[0]) for row in rows]

    def _note_lane(
        self, key: bytes, value: bytes | None, touched: dict[bytes, None], purged: dict[int, None]
    ) -> None:
        """A lane was made, purged or deleted: segments below its floor count as gone, wherever they are."""
        lane = int.from_bytes(key, "big")
        importing = 0 if value is None else layout.unpack_lane(value).importing
        if self._importing.get(lane) == PROVISIONAL + 1 and importing not in (0, PROVISIONAL + 1):
            self._place(lane, importing - 1 - PROVISIONAL, touched)
        if importing == layout.COPIED and self._importing.get(lane, 0) > 0:
            for other in self._history.observers.values():
                other._placed_elsewhere(lane, self)
        self._importing[lane] = importing
        floor = 1 << 62 if value is None else layout.unpack_lane(value).floor
        if floor < PROVISIONAL:
            self._history.emptied[lane] = max(self._history.emptied.get(lane, 0), floor - 1)
        if floor != self._floors.get(lane, 1):
            purged[lane] = None
            touched.update(self._lanes.get(lane, {}))
        self._floors[lane] = floor

    def _has_copy(self, place: Place) -> bool:
        """Tell whether a lane that is being taken over has a place in another segment: it was copied early."""
        lane = place[0]
        if self._importing.get(lane, 0) <= 0:
            return False
        return any(place in self._places.get(key, ()) for key in self._lanes.get(lane, ()))

    def _note_row(
        self, disk: SimulatedDisk, key: bytes, value: bytes | None, touched: dict[bytes, None]
    ) -> None:
        """What was copied early belongs to a lane when there is one."""
        lane = int.from_bytes(key, "big")
        if value is None:
            self._rows.pop(lane, None)
        elif lane not in self._rows:
            self._rows[lane] = None
            found = disk.scan(Table.SEGMENTS, key, layout.lane_end(lane))
            touched.update((one, None) for one, _ in found)

    def _place(self, lane: int, by: int, touched: dict[bytes, None]) -> None:
        """What waits in a lane that is taken over has its true positions now, and nobody ever saw the others."""
        if self._floors.get(lane, 1) > PROVISIONAL:
            self._floors[lane] += by
        for key in [key for key in self._lanes.get(lane, {}) if int.from_bytes(key[8:], "big") > PROVISIONAL]:
            new = segment_key(lane, int.from_bytes(key[8:], "big") + by)
            self._lanes[lane][new] = self._lanes[lane].pop(key)
            places = self._places.pop(key)
            self._places[new] = [(lane, position + by) for _, position in places]
            self._known.update(
                {place: self._known.pop(old) for old, place in zip(places, self._places[new], strict=True)}
            )
            touched[new] = None
        self._history.place(self._worker, lane, by)

    def _placed_elsewhere(self, lane: int, new: DiskObserver) -> None:
        """Another worker has all of a lane that was unfinished here, so the same contents under the true positions.

        If that is nothing, because the lane was emptied, the last position here is the one before the first there.
        """
        here = {what: at for (of, at), what in self._known.items() if of == lane and at > PROVISIONAL}
        if self._importing.get(lane) != PROVISIONAL + 1 or not here:
            return
        found = {what: at for (of, at), what in new._known.items() if of == lane}
        shifts = Counter(found[what] - at for what, at in here.items() if what in found)
        shifts = shifts or Counter([new._importing[lane] - 1 - max(here.values())])
        self._place(lane, shifts.most_common(1)[0][0], {})
        self._importing[lane] = 0

    def _read(self, disk: SimulatedDisk, key: bytes, before: dict[Place, None], now: float) -> None:
        """Read a segment that changed."""
        lane = int.from_bytes(key[:8], "big")
        value = disk.get(Table.SEGMENTS, key)
        is_nobodys = lane not in self._rows and key not in self._places
        if value is None or is_nobodys or int.from_bytes(key[8:], "big") < self._floors.get(lane, 1):
            self._places.pop(key, None)
            self._lanes.get(lane, {}).pop(key, None)
            return
        segment = Segment.unpack(key, value, disk.get(Table.STATES, key))
        places = []
        for i in range(segment.count):
            if segment.state[i] != GONE:
                place = (lane, segment.first + i)
                places.append(place)
                self._see(segment, i, place, now, is_new=place not in before)
        self._places[key] = places
        self._lanes.setdefault(lane, {})[key] = None

    def _see(self, segment: Segment, i: int, place: Place, now: float, *, is_new: bool) -> None:
        what, ttl_ms = self._blocks[segment.block][segment.row_in_block(i)]
        if is_new or self._known[place] != what:
            self._known[place] = what
            origin = segment.origins[i] if segment.origins is not None else None
            stored_ms = segment.stored_at_ms(i)
            found = None if origin is None else (str(origin[0]), str(origin[1]), str(origin[2]))
            event = Stored(now, place, what, self._worker, stored_ms, found, ttl_ms)
            self._history.home_events.append(event)

    def removed(self, now: float) -> None:
        """The whole disk is gone."""
        for places in self._places.values():
            for place in places:
                self._history.home_events.append(Gone(now, place, True, self._worker))
        self.__init__(self._history, self._worker)  # type: ignore[misc]

    def live(self) -> dict[int, dict[int, str]]:
        """Give what is on the disk: lane -> position -> what."""
        found: dict[int, dict[int, str]] = {}
        for places in self._places.values():
            for place in places:
                found.setdefault(place[0], {})[place[1]] = self._known[place]
        return found


class FrameObserver:
    """The frames of one home process."""

    def __init__(self, history: GuaranteedHistory, worker: int) -> None:
        self._history = history
        self._worker = worker
        self._router = 0
        #: Flow -> its lane.
        self._flows: dict[int, int] = {}
        self._browsers: dict[int, None] = {}
        #: Flows that are to end when what they have is settled.
        self._ending: dict[int, None] = {}

    def died(self, now: float) -> None:
        """The process died."""
        self._history.home_events.append(Died(now, self._worker))

    def incoming(self, frames: Frames, now: float) -> None:
        """A frame of the router is about to be taken."""
        if frames[0] == wire.START:
            router = wire.unpack(frames[1])[0]
            if router != self._router:
                self._router = router
                for flow in list(self._flows):
                    self._end(flow, now)
        elif frames[0] == wire.FLOW:
            router, orders = wire.unpack(frames[1])
            for flow, (verb, *arguments) in orders if router == self._router else ():
                self._verb(verb, flow, arguments, now)
        elif frames[0] == wire.STORE:
            _, _, relaxed, _, groups, *_ = wire.unpack(frames[1])
            for (lanes, _, _), batch in zip(groups, frames[2:], strict=True) if relaxed else ():
                for row in wire.unpack(batch):
                    for lane in lanes:
                        self._history.note_unsynced(lane, what_of(row))

    def _verb(self, verb: str, flow: int, arguments: list[Any], now: float) -> None:
        events = self._history.home_events
        if verb == "bind":
            lane, browse, selector, _, _, options = arguments
            is_choosy = selector is not None or bool(options["no_local"])
            own = options.get("max_unacked") or 0
            self._flows[flow] = lane
            if browse:
                self._browsers[flow] = None
            events.append(Bound(now, self._worker, flow, lane, browse, is_choosy, own))
        elif flow not in self._flows:
            return
        elif verb == "settle":
            outcome, ranges = arguments
            positions = [at for first, last in ranges for at in range(first, last + 1)]
            events.append(HomeSettled(now, self._worker, flow, self._flows[flow], outcome, positions))
        elif verb == "unbind" and arguments[0] is None:
            self._end(flow, now)

    def outgoing(self, frames: Frames, now: float) -> None:
        """A frame leaves for the router."""
        if frames[0] == wire.FLOW_EVENT:
            for flow, event, _, _ in wire.unpack(frames[1])[1]:
                if event == wire.FLOW_CLOSED:
                    self._end(flow, now)
        elif frames[0] == wire.MOVE:
            _, lane, first, target, *_ = wire.unpack(frames[1])
            for row in wire.unpack(frames[2]) if target[0] == "lane-home" else ():
                what = what_of(row)
                self._history.home_events.append(Rehomed(now, lane, first + row[0], what))
        elif frames[0] == wire.FLOW_MESSAGES:
            _, flow, parts, *_ = wire.unpack(frames[1])
            lane = self._flows.get(flow)
            if lane is None:
                return
            for _, rows, runs, counts, _, _ in parts:
                positions = [at for first, count in runs for at in range(first, first + count)]
                counts = counts or [0] * rows
                is_browser = flow in self._browsers
                self._history.home_events.append(
                    Emitted(now, self._worker, flow, lane, positions, counts, is_browser)
                )

    def _end(self, flow: int, now: float) -> None:
        lane = self._flows.pop(flow, None)
        self._browsers.pop(flow, None)
        if lane is not None:
            self._history.home_events.append(Unbound(now, self._worker, flow, lane))
