"""A will is published: as its client, whose session is over, and by the rights that this has now.

It is a round like any other. Its session has ended when it is made, as those of other clients may have by the time that
their rounds retire: so it is matched, delivered and stored as what a client published, and nobody is told. With a
guaranteed message it has a producer of its own, which no home needs to remember, because nobody sends it again: what a
worker that dies had of it, its successor gets from here.

No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.errors import ERRORS
from angarium.message import HEADER_KEYS, pack_fields, pack_rows, unpack_properties
from angarium_server.access import publish_refusal
from router.matching.accounting import discard_name
from router.sessions.producer import unregistered
from router.sessions.round import Part, Round
from router.sessions.session import Session

if TYPE_CHECKING:
    from router.gateways.wills import Will
    from router.ground.ground import Ground
    from router.matching.rounds import Rounds
    from router.matching.shards import Shards
    from router.sessions.directory import Directory
    from router.sessions.interest import Interest
    from router.subscriptions.rights import Rights

_SENDER_ID: Final = HEADER_KEYS["sender_id"]


class WillPublishing:
    """Publishes wills."""

    def __init__(
        self,
        ground: Ground,
        directory: Directory,
        rights: Rights,
        shards: Shards,
        interest: Interest[Session],
        rounds: Rounds,
    ) -> None:
        self._outbox, self._counters = ground.out, ground.counters
        self._directory = directory
        self._rights = rights
        self._shards = shards
        self._interest = interest
        self._rounds = rounds
        #: Sessions whose wills are under way, the oldest first; behind that one some may be through.
        self._under_way: deque[Session] = deque()

    def publish(self, will: Will, now: float) -> None:
        """Publish a will, or refuse it."""
        code = self._refusal_of(will)
        if code:
            self._refuse(will, code)
            return
        self._counters.totals["wills_published"] += 1
        session = Session(will.number, b"", will.vpn, will.username, will.client_name, now)
        session.closed = True
        self._drop_done()
        self._under_way.append(session)
        self._rounds.accept(self._round(session, will), now)

    def _refusal_of(self, will: Will) -> int:
        """Give the error code for which a will is refused, or 0."""
        vpn, message = will.vpn, will.message
        if self._directory.vpns.get(vpn.name) is not vpn or not vpn.enabled:
            return errors.VPN_UNAVAILABLE
        account = vpn.account_of(will.username) or will.guest
        if account is None or not account.enabled:
            return errors.USERNAME_SHUTDOWN
        granted = self._rights.find(vpn, account, will.grant)
        if granted is None:
            return errors.CLIENT_CONNECT_DENIED
        if message.flags & wire.FLAG_MODE and not granted.profile["allow_guaranteed_send"]:
            return errors.GUARANTEED_SEND_DENIED
        return publish_refusal(granted.acl.publish_rules(will.username), message.topic)

    def _refuse(self, will: Will, code: int) -> None:
        self._counters.totals["wills_refused"] += 1
        self._counters.totals[discard_name(code)] += 1
        self._counters.errors[code] += 1
        self._outbox.event(
            "CLIENT_WILL_REFUSED",
            f"the will of client {will.client_name} is not published to {will.message.topic!r}:"
            f" error {code}: {ERRORS[code].text}",
            severity="warning",
            scope="CLIENT",
            vpn=will.vpn.name,
            client=will.client_name,
            username=will.username,
            code=code,
        )

    def _round(self, session: Session, will: Will) -> Round[Session]:
        """Make the only round of a session."""
        message = will.message
        fields = {**unpack_properties(message.properties), _SENDER_ID: will.client_name}
        batch = pack_rows([message.row(pack_fields(fields))])
        parts = self._shards.assign([Part(0, 1, batch)], epoch=0)
        session.round_number = 1
        a_round = Round(session, 1, parts, 0, 1, len(batch), len(parts), flush=False)
        a_round.next_filter = self._shards.told_below(self._interest.next_id)
        if message.flags & wire.FLAG_MODE:
            # Any sequence will do: it spreads wills over the partitions of queues.
            producer = unregistered(session, will.vpn.name, will.username)
            producer.charge(1, len(batch), will.number, len(batch))
            session.producers[producer.handle] = a_round.producer = producer
            a_round.mode, a_round.first = wire.MATCH_GUARANTEED, will.number
        return a_round

    def _drop_done(self) -> None:
        while self._under_way and _is_done(self._under_way[0]):
            self._under_way.popleft()

    @property
    def is_settled(self) -> bool:
        """Tell whether all that were published are where they should be."""
        return all(map(_is_done, self._under_way))

    def validate(self) -> None:
        """Check that nobody hears of what is under way."""
        for session in self._under_way:
            assert session.closed
            session.validate()


def _is_done(session: Session) -> bool:
    return session.is_sent_on and not any(one.unacked_rows for one in session.producers.values())
