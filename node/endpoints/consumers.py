"""The flows of a lane: whose turn it is, and who gets what.

Of an exclusive lane the first flow that bound is active and gets everything; of another all are, and take turns:
each gets a run of at most `TURN_MAX` messages, less if there are few, so that few messages spread over many flows
and many stay in batches. One that is alone gets what it has room for at once. Flows that have no room are not asked
until credit or a settle gives them room, so that a thousand idle flows cost nothing. Browsers are apart: they
consume nothing and take no turns.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from angarium import errors, wire
from angarium_server.frames.homes import FlowEvent
from node.backlog.segment import OUT, POSITION_MAX, READY, Row, Segment
from node.endpoints.effort import Payer
from node.endpoints.flow import Flow
from node.endpoints.reader import Reader, Work, browse, read_range
from node.selectors import compile_selector

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from angarium_server.frames.settings import FlowOptions
    from node.backlog.backlog import Backlog, PositionSet
    from node.endpoints.effort import Effort
    from node.endpoints.lease import Lease
    from node.endpoints.reader import Run

#: Messages that one flow of a non-exclusive lane gets before it is the turn of the next.
TURN_MAX: Final = 64
#: Runs of messages that consumers, browsers, or a reader group get in one call, 2 ms: one costs as much as a hundred
#: neighbours in it.
RUNS_MAX: Final = 200
#: Messages that browsers get in one call.
BROWSED_MAX: Final = 1_000
#: Messages that a reader group gets in one call: it takes whole blocks, which cost little each.
RANGE_ROWS_MAX: Final = 10_000

#: What it costs to compile a selector, for each character, in steps of `Effort`.
COMPILE_STEPS: Final = 3_000


class Selector(Protocol):
    """What `node.selectors.compile_selector` gives."""

    #: What the last row cost, in the steps of `Effort`.
    steps: int

    def matches(self, row: Any) -> bool:
        """Tell whether it selects a row."""


class Sources(NamedTuple):
    """What a lane is given to look into messages."""

    #: Reads a row; raises an AngariumError if its block is damaged.
    read_row: Callable[[Segment, int], Row]
    #: What that may cost.
    effort: Effort
    #: Raises an InvalidRequestError for an invalid text (40601).
    compile_selector: Callable[[str], Selector] = compile_selector
    #: Reason -> dead messages that were deleted; None: nobody counts them.
    discards: Counter[str] | None = None


class Handout(NamedTuple):
    """Messages for a flow."""

    flow: int
    segment: Segment
    #: Rows of the segment, rising.
    indices: list[int] | range
    #: Earlier delivery attempts of each row; None: none of any.
    counts: list[int] | None


class _Shown:
    """What browsers get in one call: runs of rows, and how many rows may follow."""

    __slots__ = ("left", "rows", "runs")

    def __init__(self, rows_max: int) -> None:
        self.runs: list[tuple[Flow, Segment, int, int]] = []
        self.rows = 0
        self.left = rows_max

    def add(self, flow: Flow, run: Run) -> None:
        """Take note of what a flow gets."""
        rows = run.j - run.i
        flow.sent(rows, run.size)
        self.rows += rows
        self.runs.append((flow, run.segment, run.i, run.j))
        self.left = self.left - rows if len(self.runs) < RUNS_MAX else 0


class Bound:
    """The flows of a lane and what they share."""

    __slots__ = ("browsing", "consuming", "flows", "ranging", "readers")

    def __init__(self) -> None:
        #: Flow number -> flow, in the order of their binds.
        self.flows: dict[int, Flow] = {}
        #: Those that are no browsers, and those that are; some of these have a range.
        self.consuming: dict[int, Flow] = {}
        self.browsing: dict[int, Flow] = {}
        #: Those that read a range of the lease; `flows` has them, too.
        self.ranging: dict[int, Flow] = {}
        #: Key -> the reader that flows of this kind share; each has flows.
        self.readers: dict[object, Reader[Flow]] = {}


#: Of every lane without flows: most partitions have none, and tables keep the room of what was in them. It stays empty.
NOBODY: Final = Bound()


class Consumers:
    """Flows and readers of a lane."""

    __slots__ = (
        "_backlog",
        "_is_exclusive",
        "_sources",
        "_turn",
        "bound",
        "delivered_upto",
        "lease",
        "resuming",
    )

    def __init__(self, backlog: Backlog, sources: Sources) -> None:
        self._backlog = backlog
        self._sources = sources
        #: Whether only one consumer is active, as the settings say.
        self._is_exclusive = backlog.settings.exclusive
        #: Its flows; for others to look at.
        self.bound = NOBODY
        #: Those that get what their holders have before anything new.
        self.resuming: dict[int, tuple[Flow, PositionSet]] = {}
        #: While there is one, consumers stand by; whose turn it would be goes on.
        self.lease: Lease | None = None
        #: Which reader begins the next round of turns.
        self._turn = 0
        #: The highest position that a consumer got.
        self.delivered_upto = 0

    def readied(self, segment: Segment, i: int, j: int) -> None:
        """Take note that a run became ready that was not."""
        for reader in self.bound.readers.values():
            reader.readied(segment, i, j)

    # --- flows come and go ------------------------------------------------------------------------------

    def bind(
        self, flow_id: int, selector: str | None, options: FlowOptions, *, is_browser: bool
    ) -> list[FlowEvent]:
        """Add a flow without credit; gives whether it is active, or that its selector is invalid."""
        if flow_id in self.bound.flows:
            return [self._turn_event(self.bound.flows[flow_id])]
        payer = None
        if selector:
            payer = Payer(self._backlog.settings.vpn, options.username or options.client)
            self._sources.effort.charge(payer, len(selector) * COMPILE_STEPS)
        try:
            matches = self._matcher(selector or None, options)
            if options.group:
                self._check_range(options)
        except errors.AngariumError as error:
            return [FlowEvent(flow_id, wire.FLOW_CLOSED, error.code, error.detail)]
        flow = Flow(
            flow_id,
            is_browser=is_browser,
            selector=selector or None,
            matches=matches,
            options=options,
            payer=payer,
        )
        flow.limit_unacked(self._backlog.settings.max_unacked)
        if self.bound is NOBODY:
            self.bound = Bound()
        self.bound.flows[flow_id] = flow
        if options.has_range:
            flow.cursor, flow.end = options.first, options.end
        self._table_of(flow)[flow_id] = flow
        if is_browser or not self._is_exclusive or len(self.bound.consuming) == 1:
            return self._activate(flow)
        return [self._turn_event(flow)]

    def _check_range(self, options: FlowOptions) -> None:
        """Return if a range may be read.

        Raises:
            ConflictError: its group does not have the lease (40906).
            InvalidRequestError: it is not planned (40018).
        """
        if self.lease is None:
            raise errors.error_for(errors.LEASE_LOST, "nobody has it now")
        self.lease.check_range(options.group, options.first, options.end)

    def _table_of(self, flow: Flow) -> dict[int, Flow]:
        if flow.options.group:
            return self.bound.ranging
        return self.bound.browsing if flow.is_browser else self.bound.consuming

    def _turn_event(self, flow: Flow) -> FlowEvent:
        is_active = flow.active and (flow.is_browser or self.lease is None)
        return FlowEvent(flow.id, wire.FLOW_ACTIVE if is_active else wire.FLOW_INACTIVE, 0, "")

    # --- a lease ----------------------------------------------------------------------------------------

    def consuming(self) -> list[Flow]:
        """Give the flows that are no browsers."""
        return list(self.bound.consuming.values())

    def stand_by(self, lease: Lease) -> list[FlowEvent]:
        """Give consumers nothing more while there is a lease; tells those whose turn it was."""
        self.lease = lease
        return [self._turn_event(flow) for flow in self.bound.consuming.values() if flow.active]

    def go_on(self) -> list[FlowEvent]:
        """Give consumers messages again: the lease is over, and so is who reads with it."""
        self.lease = None
        events = []
        for flow in list(self.bound.ranging.values()):
            events.append(FlowEvent(flow.id, wire.FLOW_CLOSED, errors.LEASE_LOST, "the lease has ended"))
            self.drop(flow)
        return events + [self._turn_event(flow) for flow in self.bound.consuming.values() if flow.active]

    def read_ranges(self, work: Work) -> list[Handout]:
        """Give the reader group what it has planned and asks for."""
        lease = self.lease
        if lease is None or not self.bound.ranging:
            return []
        shown = _Shown(RANGE_ROWS_MAX)
        for flow in self.bound.ranging.values():
            assert flow.end is not None
            while shown.left > 0 and flow.cursor < flow.end:
                rows, size = min(flow.room(), shown.left), flow.room_bytes()
                flow.cursor, run = read_range(
                    self._backlog.segments, lease.out, flow.cursor, flow.end, rows, size, work
                )
                if run is None:
                    break
                shown.add(flow, run)
        return self._browsed(shown, work)

    @property
    def is_read(self) -> bool:
        """Whether the reader group reads a range."""
        return bool(self.bound.ranging)

    @property
    def has_complete(self) -> bool:
        """Whether `take_complete` would give something."""
        return any(flow.cursor >= end for flow, end in self._bounded())

    def _bounded(self) -> Iterator[tuple[Flow, int]]:
        """Give the flows that have a range, and its end."""
        flows = chain(self.bound.ranging.values(), self.bound.browsing.values())
        return ((flow, flow.end) for flow in flows if flow.end is not None)

    def take_complete(self) -> list[FlowEvent]:
        """End the flows that have got all of their range."""
        over = [flow for flow, end in self._bounded() if flow.cursor >= end]
        for flow in over:
            self.drop(flow)
        return [FlowEvent(flow.id, wire.FLOW_CLOSED, 0, "") for flow in over]

    # --- turns ------------------------------------------------------------------------------------------

    def _matcher(self, text: str | None, options: FlowOptions) -> Callable[[Segment, int], bool] | None:
        """Give what tells whether a message is for a flow; None if all are.

        Raises:
            InvalidRequestError: the selector is invalid (40601).
        """
        by_selector = None if text is None else self.selecting(self._sources.compile_selector(text))
        own = options.no_local
        if not own:
            return by_selector

        def matches(segment: Segment, i: int) -> bool:
            return segment.publisher(i) != own and (by_selector is None or by_selector(segment, i))

        return matches

    def selecting(self, selector: Selector) -> Callable[[Segment, int], bool]:
        """Give what tells whether a selector selects a message; one that cannot be read is not selected."""
        statistics, effort, read_row = self._backlog.statistics, self._sources.effort, self._sources.read_row

        def matches(segment: Segment, i: int) -> bool:
            statistics["selector_examined"] += 1
            try:
                row = read_row(segment, i)
            except errors.AngariumError:
                statistics["unreadable"] += 1
                return False
            selected = selector.matches(row)
            effort.left -= selector.steps
            statistics["selector_matched"] += selected
            return selected

        return matches

    def _activate(self, flow: Flow) -> list[FlowEvent]:
        flow.active = True
        self._attach(flow)
        return [self._turn_event(flow)]

    def _take_over(self) -> list[FlowEvent]:
        """Make the first flow of an exclusive lane active if it is not; the order is that of the binds (R101)."""
        heir = next(iter(self.bound.consuming.values()), None)
        return [] if heir is None or heir.active else self._activate(heir)

    def _attach(self, flow: Flow) -> None:
        """Give a flow that became active its reader."""
        if flow.is_browser:
            return
        # Only flows that see the same messages may share: no_local makes that depend on the client.
        key = (flow.selector, flow.options.no_local)
        reader = self.bound.readers.get(key)
        if reader is None:
            # Not `Reader[Flow](...)`: that takes longer than to make the reader.
            backlog = self._backlog
            reader = self.bound.readers[key] = Reader(
                key, flow.matches, by_priority=backlog.by_priority, in_order=backlog.in_order
            )
        reader.flows += 1
        flow.reader = reader
        self.wake(flow)

    def _detach(self, flow: Flow) -> None:
        reader = flow.reader
        if reader is None:
            return
        self._rest(flow)
        flow.reader = None
        reader.flows -= 1
        if not reader.flows:
            del self.bound.readers[reader.key]

    def wake(self, flow: Flow) -> None:
        """Ask a flow again if it may have room now."""
        if flow.reader is not None and not flow.is_willing and flow.room() > 0:
            flow.is_willing = True
            flow.reader.willing.append(flow)

    def _rest(self, flow: Flow) -> None:
        if flow.is_willing and flow.reader is not None:
            flow.is_willing = False
            flow.reader.willing.remove(flow)

    def hand_off(self, flow: Flow, closing_at: float) -> None:
        """Give a flow nothing more; it stays active until it is dropped, so that no other overtakes it."""
        self._rest(flow)
        flow.closing_at = closing_at

    def drop(self, flow: Flow) -> list[FlowEvent]:
        """Remove a flow that has nothing out any more; tells who is active now."""
        assert not flow.out.count
        self._detach(flow)
        del self.bound.flows[flow.id]
        del self._table_of(flow)[flow.id]
        if not self.bound.flows:
            self.bound = NOBODY
        self.resuming.pop(flow.id, None)
        return self._take_over()

    def apply_settings(self) -> list[FlowEvent]:
        """Follow changed settings; tells whose turn changed."""
        exclusive = self._is_exclusive = self._backlog.settings.exclusive
        events: list[FlowEvent] = []
        # All leave their readers before the first comes back, for readers depend on the settings.
        for flow in self.bound.consuming.values():
            self._detach(flow)
            flow.limit_unacked(self._backlog.settings.max_unacked)
        for turn, flow in enumerate(self.bound.consuming.values()):
            was = flow.active
            flow.active = turn == 0 or not exclusive
            if flow.active:
                self._attach(flow)
            if flow.active != was:
                events.append(self._turn_event(flow))
        return events

    def wants_order(self) -> bool:
        """Tell whether a consumer whose turn it is asks for the order of positions."""
        return any(flow.options.in_order and flow.active for flow in self.bound.consuming.values())

    def forget(self, position: int) -> None:
        """Take a message from the flow that has it out."""
        for flow in self.bound.consuming.values():
            if position in flow.out:
                flow.out.remove(position, position)
                self.wake(flow)

    def purge(self) -> None:
        """Take all messages from all flows."""
        for flow in self.bound.flows.values():
            flow.out.clear()
            self.wake(flow)
        for reader in self.bound.readers.values():
            for track in reader.tracks:
                track.behind.clear()

    # --- messages go out --------------------------------------------------------------------------------

    def resume(self, flow: Flow, held: PositionSet) -> None:
        """Let a flow have again what its holder has; it comes before anything new."""
        if held.count:
            flow.cursor = 0
            self.resuming[flow.id] = flow, held

    def hand_out_held(self, work: Work) -> list[Handout]:
        """Give flows again what their holders have."""
        runs: list[tuple[Flow, Segment, int, int]] = []
        for flow, held in list(self.resuming.values()):
            while (room := flow.room()) > 0:
                flow.cursor, run = read_range(
                    self._backlog.segments, held, flow.cursor, POSITION_MAX, room, flow.room_bytes(), work
                )
                if run is None:
                    if flow.cursor >= POSITION_MAX:
                        del self.resuming[flow.id]
                    break
                flow.sent(run.j - run.i, run.size)
                runs.append((flow, run.segment, run.i, run.j))
        return self._handouts(runs)

    def hand_out(self, limit: int, work: Work) -> list[Handout]:
        """Give active flows at most `limit` messages, as far as they have room."""
        ready = self._backlog.counts[READY]
        readers = [reader for reader in self.bound.readers.values() if reader.willing]
        if not ready or not readers:
            return []
        if len(readers) > 1:
            self._turn = (self._turn + 1) % len(readers)
            readers = readers[self._turn :] + readers[: self._turn]
        runs: list[tuple[Flow, Segment, int, int]] = []
        left = limit
        while readers and left > 0:
            turn = left if self._is_exclusive else self._turn_of(readers, left)
            again: list[Reader[Flow]] = []
            for reader in readers:
                left, dry = self._give_turns(reader, turn, left, work, runs)
                if not dry and reader.willing:
                    again.append(reader)
            readers = again
        if self._sources.effort.is_charged:
            self._sources.effort.end()
        if left <= 0 and readers and self._backlog.counts[READY]:
            work.leave()
        return self._handouts(runs)

    def _turn_of(self, readers: list[Reader[Flow]], left: int) -> int:
        """Give how many messages a flow gets in one turn."""
        willing = sum(len(reader.willing) for reader in readers)
        if willing == 1:
            return left
        return max(min(-(-self._backlog.counts[READY] // willing), TURN_MAX), 1)

    def _give_turns(
        self,
        reader: Reader[Flow],
        turn: int,
        left: int,
        work: Work,
        runs: list[tuple[Flow, Segment, int, int]],
    ) -> tuple[int, bool]:
        """Give each flow of a reader one turn; tells what is left of the limit and if the reader is dry."""
        willing = reader.willing
        has_asked = False
        for _ in range(len(willing)):
            if left <= 0:
                break
            flow = willing[0]
            if not work.may_pay(flow.payer):
                willing.rotate(-1)
                continue
            has_asked = True
            want = min(turn, left)
            got = self._fill(flow, reader, want, work, runs)
            left -= got
            room = flow.room() > 0
            dry = got < want and room
            if got or not room:
                willing.popleft()
                flow.is_willing = room
                if room:
                    willing.append(flow)
            if dry:
                return left, True
        return left, left > 0 and not has_asked

    def _fill(
        self,
        flow: Flow,
        reader: Reader[Flow],
        want: int,
        work: Work,
        runs: list[tuple[Flow, Segment, int, int]],
    ) -> int:
        """Give a flow at most `want` messages; gives how many it got."""
        backlog = self._backlog
        got = 0
        while got < want and (room := flow.room()) > 0:
            if len(runs) >= RUNS_MAX:
                work.leave()
                break
            run = reader.take(backlog.segments, min(room, want - got), flow.room_bytes(), work)
            if run is None:
                break
            segment, i, j, size = run
            last = segment.first + j - 1
            backlog.change(segment, i, j, READY, OUT)
            flow.out.add(segment.first + i, last)
            flow.sent(j - i, size)
            got += j - i
            if last > self.delivered_upto:
                self.delivered_upto = last
            runs.append((flow, segment, i, j))
        backlog.statistics["delivered"] += got
        return got

    def browse_ranges(self, work: Work) -> list[Handout]:
        """Give browsers of a range what they have not seen of it; it is over when nothing more of it is there."""
        if not self.bound.browsing:
            return []
        shown = _Shown(RANGE_ROWS_MAX)
        bounded = [flow for flow in self.bound.browsing.values() if flow.end is not None]
        for flow in self._in_turn(bounded, work):
            assert flow.end is not None
            own = Work(work.effort, min(work.upto, flow.end - 1))
            while shown.left > 0 and flow.cursor < flow.end and (room := flow.room()) > 0:
                rows, size = min(room, shown.left), flow.room_bytes()
                flow.cursor, run = browse(self._backlog.segments, flow.cursor, flow.matches, rows, size, own)
                if run is None:
                    waits = own.barred and work.upto < flow.end - 1
                    flow.cursor = flow.cursor if own.exhausted or waits else flow.end
                    work.exhausted |= own.exhausted
                    work.more |= own.more
                    work.is_short |= own.is_short
                    work.barred |= waits
                    break
                shown.add(flow, run)
        return self._browsed(shown, work)

    def browse(self, work: Work) -> list[Handout]:
        """Give browsers what they have not seen."""
        if not self.bound.browsing:
            return []
        shown = _Shown(BROWSED_MAX)
        unbounded = [flow for flow in self.bound.browsing.values() if flow.end is None]
        for flow in self._in_turn(unbounded, work):
            while shown.left > 0 and (room := flow.room()) > 0:
                rows, size = min(room, shown.left), flow.room_bytes()
                flow.cursor, run = browse(self._backlog.segments, flow.cursor, flow.matches, rows, size, work)
                if run is None:
                    break
                shown.add(flow, run)
        return self._browsed(shown, work)

    def _in_turn(self, flows: list[Flow], work: Work) -> Iterator[Flow]:
        """Give browsers that want something and can pay; those that used the effort up come last from now on."""
        for flow in flows:
            if flow.room() > 0 and work.may_pay(flow.payer):
                yield flow
                if work.is_short and flow.payer is not None:
                    self.bound.browsing[flow.id] = self.bound.browsing.pop(flow.id)

    def _browsed(self, shown: _Shown, work: Work) -> list[Handout]:
        """Count what browsers get, and give it."""
        if shown.left <= 0:
            work.leave()
        if work.effort.is_charged:
            work.effort.end()
        self._backlog.statistics["browsed"] += shown.rows
        return self._handouts(shown.runs, browsed=True)

    def _handouts(
        self, runs: list[tuple[Flow, Segment, int, int]], *, browsed: bool = False
    ) -> list[Handout]:
        """Put neighbouring runs of a flow in one segment together, and add the counts of attempts."""
        handouts: list[Handout] = []
        at = 0
        while at < len(runs):
            flow, segment, i, j = runs[at]
            spans = [range(i, j)]
            at += 1
            while at < len(runs) and runs[at][:2] == (flow, segment) and runs[at][2] >= spans[-1].stop:
                spans.append(range(runs[at][2], runs[at][3]))
                at += 1
            indices = spans[0] if len(spans) == 1 else list(chain.from_iterable(spans))
            counts = None
            if segment.tries is not None:
                counts = [segment.tries[row] for row in indices]
                tried = len(counts) - counts.count(0)
                counts = counts if tried else None
                if not browsed:
                    self._backlog.statistics["redelivered"] += tried
            handouts.append(Handout(flow.id, segment, indices, counts))
        return handouts

    def validate(self, next_position: int, held: int) -> None:
        """Check what the comments on the attributes say; so many messages are held by others than flows."""
        assert not NOBODY.flows
        assert not NOBODY.readers
        for reader in self.bound.readers.values():
            assert reader.flows == sum(flow.reader is reader for flow in self.bound.flows.values())
            assert reader.flows
            reader.validate(self._backlog.segments, next_position)
        owners: dict[int, int] = {}
        for flow in self.bound.flows.values():
            flow.validate()
            for first, last in flow.out.runs():
                for position in range(first, last + 1):
                    assert position not in owners
                    owners[position] = flow.id
                    segment = self._backlog.segments.find(position)
                    assert segment is not None
                    assert segment.state[position - segment.first] == OUT
        leased = 0 if self.lease is None else self.lease.out.count
        assert len(owners) + leased + held == self._backlog.counts[OUT]
        assert {**self.bound.consuming, **self.bound.browsing, **self.bound.ranging} == self.bound.flows
        assert self.lease is not None or not self.bound.ranging
        exclusive = self._backlog.settings.exclusive
        for turn, flow in enumerate(self.bound.consuming.values()):
            assert flow.active == (turn == 0 or not exclusive)
