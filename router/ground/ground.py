"""What every part of the router stands on: `Ground`, made once when it starts, with what it collects and counts.

An `Outbox` has what the state machine decided to send, in that order, for its shell to take; the effects are in
`effects`. What is small and leaves for the same place anyhow shares a frame. `Counters` have what happened.
"""

from __future__ import annotations

import random  # noqa: TC003 - a compiler reads the types of fields
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from angarium import wire
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import FlowFrame, FlowOrder
from angarium_server.frames.matching import Bundle
from router.ground.alarms import Alarms
from router.ground.config import Identity, RouterConfig, SpoolLimits
from router.ground.effects import EmitEvent, SendClient, SendWorker

if TYPE_CHECKING:
    from angarium_server.frames.homes import FlowVerb
    from router.ground.effects import Effect

#: A DELIVER may grow to so many bytes of rows; beyond that a frame less spares nothing.
JOINED_BYTES_MAX: Final = 16 * 1024
#: MATCHes of at most so many bytes share a message, so many at most.
BUNDLED_BYTES_MAX: Final = 1_024
BUNDLE_MAX: Final = 64
#: What is said about so many flows shares a message, which a home takes in one step of half a millisecond: as many
#: as are bound here in one (`STEP_MAX` of `router.flows.ends`).
ORDERS_MAX: Final = 64
#: Of a session, or a worker, whose last frame cannot be added to.
SEALED: Final = -1


def nothing(*_: object) -> None:
    """Be what is called where nobody waits, or wants to know."""


class Receiver(Protocol):
    """A session, as far as frames to it are concerned."""

    routing_id: bytes
    #: The number of the effect that sends it a small plain DELIVER, or SEALED if something else was sent after that.
    open_frame: int


class Addressee(Protocol):
    """A worker, as far as frames to it are concerned."""

    index: int
    incarnation: int
    #: The number of the effect that sends it a small MATCH, or FLOW, or SEALED if something else was sent after that.
    open_frame: int


class _Joined:
    """A DELIVER to which rows were added."""

    __slots__ = ("_batches", "_routing_id", "bytes", "rows")

    def __init__(self, first: SendClient) -> None:
        self._routing_id = first.routing_id
        self.rows = first.rows
        self._batches = [(first.rows, first.frames[2])]
        #: As the client will count them.
        self.bytes = len(first.frames[2])

    def add(self, rows: int, batch: bytes) -> int:
        """Add a batch; give by how many bytes that makes the whole longer."""
        grown = len(batch) - wire.array_head_size(rows) - wire.array_head_size(self.rows)
        self.rows += rows
        grown += wire.array_head_size(self.rows)
        self.bytes += grown
        self._batches.append((rows, batch))
        return grown

    def effect(self) -> SendClient:
        """Give it as it leaves."""
        frames = plain_frames(self.rows, wire.join_batches(self._batches))
        return SendClient(self._routing_id, frames, self.rows)


class Outbox:
    """Collects effects in the order in which they were decided.

    Rows for a session join the DELIVER that leaves for it anyhow, if nothing else was said to it since; and so do small
    MATCHes, and what is said about flows, the message that leaves for their worker.
    """

    def __init__(self) -> None:
        #: What is still to be carried out, oldest first.
        self.effects: list[Effect] = []
        #: Effects that were handed over before: the number of the first that was not.
        self._taken = 0
        #: Place in `effects` -> what the DELIVER there has become.
        self._joined: dict[int, _Joined] = {}
        #: Place in `effects` -> the MATCHes that have become one message.
        self._bundles: dict[int, list[list[bytes]]] = {}
        #: Place in `effects` -> the FLOW that leaves there.
        self._flows: dict[int, FlowFrame] = {}

    def take(self) -> list[Effect]:
        """Hand over everything decided so far."""
        effects, self.effects = self.effects, []
        if self._joined:
            for place, joined in self._joined.items():
                effects[place] = joined.effect()
            self._joined = {}
        if self._bundles:
            for place, bundle in self._bundles.items():
                effects[place] = replace(effects[place], frames=Bundle(bundle).frames())  # type: ignore[type-var]
            self._bundles = {}
        if self._flows:
            for place, flow in self._flows.items():
                effects[place].frames.extend((wire.FLOW, encode(flow)))  # type: ignore[union-attr]
            self._flows = {}
        self._taken += len(effects)
        return effects

    def send(self, session: Receiver, frames: list[bytes], rows: int = 0) -> None:
        """Send frames to a session, behind all that was sent to it before."""
        session.open_frame = SEALED
        self.effects.append(SendClient(session.routing_id, frames, rows))

    def send_rows(self, session: Receiver, rows: int, batch: bytes) -> int:
        """Send a small plain batch, with the DELIVER that leaves for a session anyhow if that is the last frame to it.

        Gives by how many bytes the batch that the session gets becomes longer.
        """
        place = session.open_frame - self._taken
        if place >= 0:
            joined = self._joined.get(place)
            if joined is None:
                joined = self._joined[place] = _Joined(self.effects[place])  # type: ignore[arg-type]
            if joined.bytes + len(batch) <= JOINED_BYTES_MAX:
                return joined.add(rows, batch)
        session.open_frame = self._taken + len(self.effects)
        self.effects.append(SendClient(session.routing_id, plain_frames(rows, batch), rows))
        return len(batch)

    def send_worker(self, worker: Addressee, frames: list[bytes]) -> None:
        """Send frames to a worker, behind all that was sent to it before."""
        is_small = frames[0] == wire.MATCH and len(frames[2]) <= BUNDLED_BYTES_MAX
        place = worker.open_frame - self._taken
        if is_small and place >= 0 and place not in self._flows:
            bundle = self._bundles.setdefault(place, [self.effects[place].frames])  # type: ignore[union-attr]
            if len(bundle) < BUNDLE_MAX:
                bundle.append(frames)
                return
        worker.open_frame = self._taken + len(self.effects) if is_small else SEALED
        self.effects.append(SendWorker(worker.index, worker.incarnation, frames))

    def send_order(self, worker: Addressee, router: int, flow: int, verb: FlowVerb) -> None:
        """Send a worker what the router, of this incarnation, says about a flow, behind all that was sent before."""
        frame = self._flows.get(worker.open_frame - self._taken)
        if frame is None or len(frame.orders) >= ORDERS_MAX:
            worker.open_frame = self._taken + len(self.effects)
            frame = self._flows[len(self.effects)] = FlowFrame(router, [])
            self.effects.append(SendWorker(worker.index, worker.incarnation, []))
        frame.orders.append(FlowOrder(flow, verb))

    def event(
        self, name: str, text: str, *, severity: str = "info", scope: str = "SYSTEM", **fields: Any
    ) -> None:
        """Emit an event for the operators."""
        self.effects.append(
            EmitEvent({"event": name, "text": text, "severity": severity, "scope": scope, **fields})
        )


def plain_frames(rows: int, batch: bytes) -> list[bytes]:
    """Give a DELIVER of which there is nothing to say but the number of its rows."""
    return [wire.DELIVER, _plain_head(rows), batch]


@lru_cache(maxsize=1_024)
def _plain_head(rows: int) -> bytes:
    return wire.pack([0, [[rows, None]], 0])


@dataclass
class Counters:
    """What happened since the router started; a session's own are added at its end."""

    #: By name (`docs/metrics.md`).
    totals: Counter[str] = field(default_factory=Counter)
    #: Errors told to clients, by code.
    errors: Counter[int] = field(default_factory=Counter)


class TokenBucket:
    """Allows so many actions a second on average, and a burst; time is a parameter."""

    __slots__ = ("burst", "level", "rate", "stamp")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        #: Between 0 and `burst` after each call.
        self.level = burst
        self.stamp = now

    def take(self, now: float, weight: float = 1.0) -> bool:
        """Tell whether one more action, or a part of one, is allowed now, and count it."""
        self.level = min(self.burst, self.level + (now - self.stamp) * self.rate)
        self.stamp = now
        if self.level < weight:
            return False
        self.level -= weight
        return True


@dataclass
class Ground:
    """Configuration, identity, chance, the clock on the wall, and where effects and counts go."""

    config: RouterConfig
    #: The name of this node.
    node: str
    #: For choices among equals.
    rng: random.Random
    #: For names that nobody may guess.
    secrets: random.Random
    spool: SpoolLimits = field(default_factory=SpoolLimits)
    identity: Identity = field(default_factory=Identity)
    #: Whether a subscription of a queue that starts with `!` is an exception (R125).
    exceptions: bool = True
    out: Outbox = field(default_factory=Outbox)
    counters: Counters = field(default_factory=Counters)
    #: Wall time less the time of this process, in ms; the shell keeps it.
    wall_offset_ms: int = 0
    alarms: Alarms = field(init=False)

    def __post_init__(self) -> None:
        """Watch with the limits of this node."""
        self.alarms = Alarms(self.config, self.spool, self.out.event)

    def wall_ms(self, now: float) -> int:
        """Give the wall time in ms that belongs to a time of this process."""
        return int(now * 1000) + self.wall_offset_ms
