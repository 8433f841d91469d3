"""What matching costs the workers, charged to who publishes; who costs too much is held back.

A worker tells of batches whose topics cost it more than what is free (WORK). Such a batch does not count in the
window of the worker any more, because it waits there for turns; what its session publishes next waits here instead
until it is answered. The work is taken from a token bucket of the client and from one of its Message VPN. A client
that found one of them empty goes on when both have recovered: its rounds wait, so its credit does not come back.
An operator who allows more meanwhile lets it go on sooner. Clients whose messages cost nothing do not look at the
buckets.

No I/O, no clock; `Rounds` asks before it hands over a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.sessions.burden import Burden, WorkBucket

if TYPE_CHECKING:
    from router.ground.ground import Counters, Outbox
    from router.sessions.session import Session

#: A client that is held back again and again is told of once in this time.
TELL_INTERVAL_S: Final = 60.0
#: Usernames of a Message VPN whose clients have left and spent something; what the oldest one spent is forgotten.
SPENT_MAX: Final = 1_000


class Effort:
    """Takes the work from the buckets, and knows who is held back."""

    def __init__(self, counters: Counters, outbox: Outbox) -> None:
        self._counters = counters
        self._outbox = outbox
        #: Sessions with rounds that wait because of what they cost; they are parked.
        self.waiting: dict[Session, None] = {}
        #: Nobody can go on before it, but by the answer of a worker.
        self.next_due = float("inf")
        #: Nobody is held back any more: the node stops.
        self.is_over = False

    def begin_slow(self, session: Session, now: float) -> Burden:
        """A batch of a session waits for turns at a worker."""
        burden = session.burden
        if burden is None:
            burden = session.burden = Burden(now)
            if session.closed:
                self._keep(session, burden, now)
        burden.slow_parts += 1
        return burden

    def session_ended(self, session: Session, _error: object, now: float) -> None:
        """Keep the account of a client for the next one of its username: a bucket is not filled by a reconnect."""
        burden = session.burden
        if burden is not None and (burden.slow_parts or burden.bucket.missing(now)):
            self._keep(session, burden, now)

    def _keep(self, session: Session, burden: Burden, now: float) -> None:
        if not session.is_client:
            return
        spent = session.vpn.spent
        other = spent.pop(session.username, burden)
        spent[session.username] = max(burden, other, key=lambda one: one.bucket.missing(now))
        if len(spent) > SPENT_MAX:
            del spent[next(iter(spent))]

    def charge(self, session: Session, work: int, now: float) -> None:
        """A worker has worked for a session that began to be slow."""
        burden = session.burden
        assert burden is not None
        burden.work += work
        self._counters.totals["matching_work"] += work
        if not session.is_client:
            return
        free_at = _take(session, burden, work, now)
        if free_at > now:
            self._hold_back(session, burden, free_at, now)

    def _hold_back(self, session: Session, burden: Burden, free_at: float, now: float) -> None:
        if burden.free_at <= now:
            self._counters.totals["publishers_held_back"] += 1
            session.count("held_back")
        burden.free_at = free_at
        if now - burden.told_at < TELL_INTERVAL_S:
            return
        burden.told_at = now
        text = (
            f"client {session.client_name} publishes to topics that very many filters match: it is held back, now for "
            f"{free_at - now:.1f} s"
        )
        fields = {"scope": "CLIENT", "vpn": session.vpn.name, "client": session.client_name}
        fields["username"] = session.username
        self._outbox.event("CLIENT_MATCHING_WORK_EXCEEDED", text, severity="warning", **fields)

    def may_go_on(self, session: Session, now: float) -> bool:
        """Tell whether the next round of a session may be handed over; if not, it is waiting from now on."""
        if self.is_over or _is_free(session, now):
            return True
        assert session.burden is not None
        self.waiting[session] = None
        if not session.burden.slow_parts:
            self.next_due = min(self.next_due, session.burden.free_at)
        return False

    def holds_back(self, session: Session, now: float) -> bool:
        """Tell whether a client has to wait with its next round, also if no worker is needed to match it."""
        return session.is_client and not (self.is_over or _is_free(session, now))

    def end_slow(self, session: Session) -> None:
        """A batch of a session that waited for turns is over."""
        assert session.burden is not None
        session.burden.slow_parts -= 1
        self.next_due = min(self.next_due, session.burden.free_at)

    def limits_changed(self, session: Session, now: float) -> None:
        """See whether who is held back may go on: an operator has perhaps allowed more."""
        if session in self.waiting:
            self.next_due = now

    def take_free(self, now: float) -> list[Session]:
        """Give the waiting sessions that may go on, which wait no longer."""
        if now < self.next_due and not self.is_over:
            return []
        free = [one for one in self.waiting if self.is_over or _is_free(one, now)]
        for session in free:
            del self.waiting[session]
        burdens = [one.burden for one in self.waiting if one.burden is not None]
        times = [one.free_at for one in burdens if not one.slow_parts]
        self.next_due = min(times, default=float("inf"))
        return free

    def validate(self) -> None:
        """Check what the comments promise."""
        for session in self.waiting:
            assert session.parked
            assert session.pending


def _is_free(session: Session, now: float) -> bool:
    burden = session.burden
    if burden is None or burden.slow_parts:
        return burden is None
    if burden.free_at > now:
        burden.free_at = min(burden.free_at, _take(session, burden, 0, now))
    return burden.free_at <= now


def _take(session: Session, burden: Burden, work: int, now: float) -> float:
    """Take work from the buckets of a client by the limits of now; gives when both are not overdrawn any more."""
    vpn = session.vpn
    shared = vpn.work_bucket
    if shared is None:
        shared = vpn.work_bucket = WorkBucket(now)
    burden.bucket.allow(session.permissions.matching_work_per_s, now)
    shared.allow(int(vpn.attributes["max_matching_work_per_s"]), now)
    return max(burden.bucket.take(work, now), shared.take(work, now))
