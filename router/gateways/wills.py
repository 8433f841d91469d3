"""Wills: what clients of gateways want published when their sessions end without a word.

A will is given with HELLO and kept here, not in the gateway: the death of that is one of the ends that wills are for.

    BYE []             the client is done: there is no will any more
    BYE [seconds]      it is not, and what it subscribed to is kept for so long
    any other end      it is not

After the last two the will *waits* for its delay, but not for longer than the client's kept session is there, and is
then published, once (`will_publishing`). Who comes back meanwhile, to whichever process of whichever gateway, and goes
on with the session, cancels it; who begins a new session ends the old one, so its will is published.

It comes behind what its client has published before, which travels in rounds of the gateway, and before what the client
says when it is back. Of who is back before all of the former has left only the latter holds: later rounds of the
gateway may be answered already, and would leave before a will that waits.

While it waits its username and Message VPN are charged for it. A router that dies takes all wills along; one that goes
down in order publishes those that wait.

No I/O, no clock.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from angarium import wire
from angarium.message import row_size
from angarium_server.costs import WILL_BYTES
from router.guaranteed.endpoints import QUEUE
from router.sessions.session import session_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.frames import gateways
    from angarium_server.tokens.claims import Grant
    from router.guaranteed.endpoints import Endpoint
    from router.guaranteed.memory_accounts import MemoryAccounts
    from router.sessions.directory import Username, Vpn
    from router.sessions.hello import Behalf
    from router.sessions.session import Session

#: Wills that are published in one step: 2 ms.
WILLS_PER_STEP: Final = 50
#: Between two looks whether what comes before a will has left.
_LOOK_S: Final = 0.01
#: Times of wills that do not wait any more, beside those of as many as wait; more are taken out at once.
_STALE_MAX: Final = 1_000
_Seconds = Annotated[int, Meta(ge=0, lt=1 << 32)]
_decode_bye: Final = msgspec.msgpack.Decoder(Annotated[list[_Seconds], Meta(max_length=1)]).decode
#: Number of the Message VPN, username, and the queue of the kept session.
Key: TypeAlias = tuple[int, str, str]


class Will(msgspec.Struct, frozen=True, eq=False):
    """The will of one session."""

    #: Of the session.
    number: int
    vpn: Vpn
    username: str
    client_name: str
    #: What counts for its username if no operator has made that.
    guest: Username | None
    #: What its token grants; None for a password.
    grant: Grant | None
    message: gateways.Will
    #: How long it waits at most.
    delay_s: int
    #: The session of its gateway, and the last round of that which came before the end.
    behind: tuple[Session, int] | None = None

    @property
    def key(self) -> Key:
        """Give whose it is."""
        return self.vpn.id, self.username, session_queue(self.client_name)

    @property
    def bytes(self) -> int:
        """Give what it costs."""
        return _bytes_of(self.message)

    @property
    def is_next(self) -> bool:
        """Tell whether what its client has published before has left."""
        if self.behind is None:
            return True
        carrier, number = self.behind
        return carrier.retired_round >= number or not carrier.open_rounds


def _will_of(session: Session, message: gateways.Will) -> Will:
    account = session.vpn.account_of(session.username)
    return Will(
        session.number,
        session.vpn,
        session.username,
        session.client_name,
        account if account is not None and account.is_guest else None,
        session.grant,
        message,
        message.delay_s,
    )


def _bytes_of(message: gateways.Will) -> int:
    return WILL_BYTES + len(message.topic.encode()) + row_size(message.row(message.properties))


class Wills:
    """The wills of all clients: those of sessions are at the sessions, the others here."""

    def __init__(
        self,
        memory: MemoryAccounts,
        find_endpoint: Callable[[str, str, str], Endpoint | None],
        publish: Callable[[Will, float], None],
    ) -> None:
        """Begin without any; `find_endpoint` takes Message VPN, kind and name, `publish` publishes or refuses."""
        self._memory = memory
        self._find_endpoint = find_endpoint
        self._publish = publish
        #: Those that wait for their time, and that.
        self._waiting: dict[Key, tuple[float, Will]] = {}
        #: (time, number of the session, key), the next one first; one for each that waits, and some that do not.
        self._times: list[tuple[float, int, Key]] = []
        #: Those whose time has come, the oldest first.
        self.due: dict[Key, Will] = {}

    # -- sessions --------------------------------------------------------------------------------------------

    def check(self, session: Session, behalf: Behalf | None) -> None:
        """Judge whether a client may give the will that it has.

        Raises:
            UnavailableError: it, its username or its Message VPN may not have so much (50325).
        """
        if behalf is not None and behalf.will is not None:
            self._memory.refuse(session, _bytes_of(behalf.will))

    def attached(self, session: Session, behalf: Behalf, now: float) -> None:
        """A client has come: its earlier will is cancelled, or published if it begins anew. It may have a new one."""
        key = session.vpn.id, session.username, session_queue(session.client_name)
        before = self._waiting.pop(key, None)
        if before is not None and behalf.clean:
            self.due[key] = before[1]
        elif before is not None:
            self._let_go(before[1])
        if key in self.due:
            self._give(key, now)
        if behalf.will is not None:
            session.will = _will_of(session, behalf.will)
            self._memory.charge(session, session.will.bytes)

    def says_bye(self, session: Session, header: bytes) -> None:
        """A client leaves by itself, done or not.

        Raises:
            InvalidRequestError: the header is malformed (40001).
        """
        will: Will | None = session.will
        if will is None:
            return
        kept_s = wire.decode_header(_decode_bye, header)
        if kept_s:
            session.will = msgspec.structs.replace(will, delay_s=min(will.delay_s, *kept_s))
        else:
            session.will = None
            self._memory.refund(session, will.bytes)

    def session_ended(self, session: Session, _error: object, now: float) -> None:
        """Have the will of a session wait, or be due; the memory that it was charged for is given back besides."""
        will: Will | None = session.will
        if will is None:
            return
        session.will = None
        self._memory.keep(will.vpn, will.username, will.bytes)
        assert will.key not in self._waiting, "a client has two wills"
        assert will.key not in self.due, "a client has two wills"
        if session.carrier is not None:
            will = msgspec.structs.replace(will, behind=(session.carrier, session.carrier.round_number))
        if will.delay_s and self._is_kept(will):
            self._wait(will, now + will.delay_s)
        else:
            self.due[will.key] = will

    def new_session(self, session: Session) -> str:
        """Give the name that the queue of a client's session is to have; empty if it is there, from an earlier one."""
        name = session_queue(session.client_name)
        return name if self._find_endpoint(session.vpn.name, QUEUE, name) is None else ""

    def _is_kept(self, will: Will) -> bool:
        """Tell whether the session that its client goes on with is there."""
        return self._find_endpoint(will.vpn.name, QUEUE, will.key[2]) is not None

    def _wait(self, will: Will, due: float) -> None:
        self._waiting[will.key] = due, will
        heappush(self._times, (due, will.number, will.key))
        if len(self._times) > 2 * len(self._waiting) + _STALE_MAX:
            self._times = [(at, one.number, one.key) for at, one in self._waiting.values()]
            heapify(self._times)

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """A queue is gone: if it was a kept session, the will of that is due."""
        if endpoint.name.startswith(wire.SESSION_QUEUE_PREFIX):
            key = endpoint.vpn.id, str(endpoint.attributes["owner"]), endpoint.name
            before = self._waiting.pop(key, None)
            if before is not None:
                self.due[key] = before[1]

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Publish what is due, some in each step; gives when to come again."""
        times = self._times
        while times and times[0][0] <= now:
            _, number, key = heappop(times)
            found = self._waiting.get(key)
            if found is not None and found[1].number == number:
                del self._waiting[key]
                self.due[key] = found[1]
        wake = times[0][0] if times else math.inf
        return min(wake, self._give_some(now)) if self.due else wake

    def _give_some(self, now: float) -> float:
        """Publish some that are due; gives when to come again."""
        ready = (key for key, will in self.due.items() if will.is_next)
        some = [*islice(ready, WILLS_PER_STEP)]
        for key in some:
            self._give(key, now)
        if not self.due:
            return math.inf
        return now if len(some) == WILLS_PER_STEP else now + _LOOK_S

    def _give(self, key: Key, now: float) -> None:
        will = self.due.pop(key)
        self._let_go(will)
        self._publish(will, now)

    def end_waits(self) -> None:
        """The node goes down: what waits is due."""
        self.due.update((key, will) for key, (_, will) in self._waiting.items())
        self._waiting.clear()
        self._times.clear()

    def _let_go(self, will: Will) -> None:
        self._memory.keep(will.vpn, will.username, -will.bytes)

    # -- telling ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count those that are not published yet and whose sessions are over."""
        return len(self._waiting) + len(self.due)

    @property
    def charged_bytes(self) -> int:
        """Give what usernames and Message VPNs are charged for these."""
        return sum(will.bytes for will in (*(one for _, one in self._waiting.values()), *self.due.values()))

    def validate(self) -> None:
        """Check the sentences above."""
        timed = set(self._times)
        assert not self._waiting.keys() & self.due.keys()
        assert all(will.key == key for key, will in self.due.items())
        for key, (due, will) in self._waiting.items():
            assert will.key == key
            assert (due, will.number, key) in timed
            assert self._is_kept(will)
