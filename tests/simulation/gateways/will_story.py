"""What became of the wills of a run: who gave which to the router, how he ended, and which were published.

What the router took in and what it published is written down at its wills, how clients ended as their gateways saw it.
A router that dies takes its wills along, and one that stops publishes those that wait: of these only the rules count
that hold always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.gateways.wills import Will
    from router.router import Router
    from router.sessions.hello import Behalf
    from router.sessions.session import Session
    from tests.simulation.simulated_network import Loop

#: What is published to topics below it is a will.
TOPIC: Final = "will/"
#: A router may be paused, takes its time to notice that a gateway is gone, and waits for rounds of that which a worker
#: has that hangs.
LATE_MAX_S: Final = 15.0
#: What a client was told may have happened so long before.
TOLD_MAX_S: Final = 1.0


class Admission(NamedTuple):
    """A client was let in."""

    at: float
    #: Of the router.
    incarnation: int
    name: str
    is_clean: bool
    #: Of its will; empty: it has none.
    payload: bytes
    delay_s: int


class End(NamedTuple):
    """A client has ended, as its gateway saw it."""

    at: float
    #: For how long its session is kept at most.
    kept_s: int


class WillStory:
    """The wills of all clients of a run; no two have the same payload."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        #: In the order in which the router let them in.
        self.admissions: list[Admission] = []
        #: When, by which router, and the payload.
        self.published: list[tuple[float, int, bytes]] = []
        #: Payload -> how its client ended; None: it said that all is well, and the router has heard it.
        self.ends: dict[bytes, End | None] = {}
        #: Those that it cannot be known of: the connection ended before the router answered.
        self.unknown: set[bytes] = set()
        self._given = 0

    def new(self, name: str, delay_s: int, flags: int) -> list[Any]:
        """Give a will to be said with HELLO."""
        self._given += 1
        return [f"{TOPIC}{name}", flags, None, None, b"%d" % self._given, delay_s]

    def watch(self, router: Router) -> None:
        """Write down what a new router takes in and publishes."""
        wills, incarnation = router.wills, router.shards.incarnation
        attached, publish = wills.attached, wills._publish

        def take(session: Session, behalf: Behalf, now: float) -> None:
            payload, delay_s = (behalf.will.payload, behalf.will.delay_s) if behalf.will else (b"", 0)
            name, at = session.client_name, self._loop.now
            self.admissions.append(Admission(at, incarnation, name, behalf.clean, payload, delay_s))
            attached(session, behalf, now)

        def give(will: Will, now: float) -> None:
            self.published.append((self._loop.now, incarnation, will.message.payload))
            publish(will, now)

        wills.attached, wills._publish = take, give  # type: ignore[method-assign]

    def done(self, payload: bytes) -> None:
        """A client had said BYE, and is answered."""
        self.ends.setdefault(payload, None)

    def lost(self, payload: bytes, kept_s: int) -> None:
        """A client ended without that."""
        self.ends.setdefault(payload, End(self._loop.now, kept_s))

    def has_come(self, name: str, incarnation: int) -> bool:
        """Tell whether a router has let somebody in by a name."""
        return any(one.name == name and one.incarnation == incarnation for one in self.admissions)

    def _came_again(self, payload: bytes) -> bool:
        return sum(one.payload == payload for one in self.admissions) > 1

    # -- judging ---------------------------------------------------------------------------------------------

    def broken(self, incarnation: int) -> Iterator[str]:
        """Say what became of wills that should not have; `incarnation` is that of the router that is there."""
        times: dict[bytes, float] = {}
        publishers: set[tuple[bytes, int]] = set()
        for at, publisher, payload in self.published:
            # One that ended a client and died before he heard of it is not known to the one that he comes to again.
            if (payload, publisher) in publishers or (payload in times and not self._came_again(payload)):
                yield f"will {payload!r} is published at {times[payload]:.3f} and at {at:.3f}"
            times[payload] = at
            publishers.add((payload, publisher))
        for place, one in enumerate(self.admissions):
            if one.payload:
                end = self.ends.get(one.payload)
                if one.payload in self.ends and end is None and one.payload in times:
                    yield f"{one} is published, but its client had said BYE"
                if end is not None and one.incarnation == incarnation and one.payload not in self.unknown:
                    yield from self._judge(one, end, times.get(one.payload), place)

    def _judge(self, one: Admission, end: End, published: float | None, place: int) -> Iterator[str]:
        """Judge the will of a client that ended without BYE, at a router that has not died since."""
        delay_s = min(one.delay_s, end.kept_s)
        back = next((later for later in self.admissions[place + 1 :] if later.name == one.name), None)
        is_back = delay_s and back is not None and not back.is_clean
        if is_back and back is not None:
            if back.at < end.at + delay_s - TOLD_MAX_S and published is not None:
                yield f"{one} is published at {published:.3f}, but {end} was back at {back.at:.3f}"
            if back.at < end.at + delay_s + LATE_MAX_S:
                return
        due = end.at + delay_s
        if back is not None and back.is_clean:
            due = min(due, back.at)
        if published is None:
            if self._loop.now > due + LATE_MAX_S:
                yield f"{one} is not published after {end}"
        elif not due - TOLD_MAX_S <= published <= due + LATE_MAX_S:
            yield f"{one} is published at {published:.3f} after {end}, due was {due:.3f}"
