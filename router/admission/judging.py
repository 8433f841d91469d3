"""Admission row by row: what is done when a whole frame does not fit, and with what may be known already.

The checks are R171 to R176 and R182, in this order: quota of the node, of the Message VPN, of the endpoint; largest
message; shut down; low priority; the disk of its home; and the node's spool files. A message that one of its endpoints
refuses goes to none of them, and its publisher is told so, unless that endpoint is set not to tell
(`reject_to_sender`): then only this endpoint does without it (R114, R177).

What a producer sends again is judged by the records of the lanes before any quota (`memory`): refused stays refused,
what a lane has is not given to it again, and what some lanes may have, also those that it does not match any more, is
not refused because of others: it waits until they can take it, and so do the rows behind it; those that have no room
for it however empty they are do without it.

A message without payload that goes to the queue for retained messages removes what is retained of its topic, and leaves
nothing. No quota of the queue, its Message VPN or the node refuses it, or nobody could make room in a full one; until
the home has removed it, it counts.

What no endpoint takes, because nobody wanted the topic or each left it out, is acknowledged, and its publisher hears of
it with the acknowledgement (ACKED), as ranges of sequences. Links count as takers, because what crosses one is in its
queue. Of a message that is sent again nothing is said if an endpoint may have it from before.

Judging changes nothing: it gives a verdict, which `spooling` carries out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors, wire
from router.admission.usage import COPIES, FILES, NO_ROOM, NODE_QUOTA, VPN_QUOTA, Account, Reason
from router.admission.verdict import Discard, Target, Verdict
from router.matching.copies import direct_indices
from router.matching.rows import Row, indices, partition_hash, salt_of
from router.sessions.producer import Nack, Range, join_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.admission.usage import Pool, Usage
    from router.guaranteed.endpoints import Endpoint, LaneUsage
    from router.sessions.producer import Memory
    from router.sessions.round import Round
    from router.sessions.session import Session


class Tally:
    """What the rows judged so far would add, beside what is there."""

    #: Whether the sender hears of every refusal, whatever the endpoint says.
    tells_all = False
    #: Whether what some endpoint may have from before waits for the others; else the sender hears of each refusal.
    waits = True
    #: The spool file in which the rows are, and stay; None: they are new.
    file: int | None = None

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        #: Account -> messages and bytes.
        self._endpoints: dict[Account, tuple[int, int]] = {}
        #: Bytes that take quota.
        self._node = 0
        self._vpn = 0
        #: Homes that get something.
        self._homes: dict[int, None] = {}

    def judge(self, targets: list[Target], row: Row) -> tuple[list[Target], list[Discard], Discard | None]:
        """Say who takes a row, who does without it, and who refuses it so that nobody takes it (or None)."""
        size = row.message_bytes + wire.SPOOL_OVERHEAD_BYTES
        taken: list[Target] = []
        discards: list[Discard] = []
        more = 0
        for target in targets:
            account = target[0]
            reason = self._refusal(account, row, size, more)
            if reason is not None and account.endpoint.retains and not row.payload:
                reason = None
            if reason is None and target[1].home in self.usage.full_homes:
                reason = NO_ROOM
            if reason is None:
                taken.append(target)
                more += size if account.takes_quota else 0
            elif self.tells_all or account.tells_sender(reason):
                return [], [], Discard(account, reason)
            else:
                discards.append(Discard(account, reason))
        if taken and not self._files_fit(taken):
            return [], [], Discard(taken[0][0], FILES)
        return taken, discards, None

    def judge_rest(
        self, missing: list[Target], row: Row
    ) -> tuple[list[Target], list[Discard], Discard | None]:
        """Say who takes a row that others hold; who has no room for it however empty it is does without it."""
        size = row.message_bytes + wire.SPOOL_OVERHEAD_BYTES
        possible, without = [], []
        for target in missing:
            account = target[0]
            if account.takes_never(size, row.message_bytes, int(row.is_low_priority)):
                reason = account.refusal(1, size, row.message_bytes, int(row.is_low_priority))
                assert reason is not None
                without.append(Discard(account, reason))
            else:
                possible.append(target)
        taken, discards, refusal = self.judge(possible, row)
        return taken, without + discards, refusal

    def _refusal(self, account: Account, row: Row, size: int, more: int) -> Reason | None:
        """Ask one endpoint; `more` bytes of the row go to others already."""
        if account.takes_quota:
            node, vpn = self.usage.node, account.vpn
            if node.bytes + self._node + more + size > node.limit_bytes:
                return NODE_QUOTA
            if vpn.bytes + self._vpn + more + size > vpn.limit_bytes:
                return VPN_QUOTA
        return self._own_refusal(account, row, size)

    def _own_refusal(self, account: Account, row: Row, size: int) -> Reason | None:
        messages, held = self._endpoints.get(account, (0, 0))
        return account.refusal(messages + 1, held + size, row.message_bytes, int(row.is_low_priority))

    def _files_fit(self, taken: list[Target]) -> bool:
        files = self.usage.files
        if self.file is not None:
            return files.fits(self.file)
        return files.fit({**self._homes, **{lane.home: None for _, lane in taken}})

    def take(self, taken: list[Target], row: Row) -> None:
        """Count a row that goes to these."""
        size = row.message_bytes + wire.SPOOL_OVERHEAD_BYTES
        for account, _ in taken:
            messages, held = self._endpoints.get(account, (0, 0))
            self._endpoints[account] = (messages + 1, held + size)
            if account.takes_quota:
                self._node += size
                self._vpn += size
        self._homes.update((lane.home, None) for _, lane in taken)


class CopyTally(Tally):
    """The same for messages that a home copies: it hears of every refusal, whatever the endpoint says.

    They have one target, so what that does not hold is nowhere.
    """

    tells_all = True
    waits = False


class MoveTally(CopyTally):
    """The same for messages that a home moves; they are in some sums already, and in a spool file."""

    def __init__(self, usage: Usage, file: int, pools: list[Pool]) -> None:
        super().__init__(usage)
        self.file = file
        #: The sums in which they are.
        self._pools = pools

    def _refusal(self, account: Account, row: Row, size: int, more: int) -> Reason | None:
        if self.usage.node in self._pools and account.vpn in self._pools:
            return self._own_refusal(account, row, size)
        return super()._refusal(account, row, size, more)


def lane_of(endpoint: Endpoint, hashed: int) -> LaneUsage:
    """Give the lane of an endpoint that a row belongs to, by its `partition_hash`."""
    return endpoint.lanes[hashed % len(endpoint.lanes)]


def judge(
    tally: Tally,
    memory: Memory,
    first: int,
    rows: Iterable[tuple[Row, tuple[Endpoint, ...]]],
    *,
    denied: dict[int, str] | None = None,
) -> Verdict:
    """Judge rows with the endpoints that they match, by rising index, up to the first one that has to wait.

    Args:
        tally: of nothing yet.
        memory: what is known of the producer.
        first: the sequence of index 0.
        rows: with the endpoints that they match.
        denied: index -> topic of rows that publish rules forbid, unless they were admitted before.
    """
    verdict, usage = Verdict(), tally.usage
    for row, endpoints in rows:
        sequence = first + row.index
        hashed = partition_hash(row, salt_of(memory.id, sequence))
        targets = [(usage.account(one), lane_of(one, hashed)) for one in endpoints]
        missing, was_admitted = targets, tally.waits and memory.may_be_held(sequence)
        if memory.is_known(sequence):
            code = memory.refusal(sequence)
            if code:
                verdict.refuse(row, Nack(sequence, code, "refused before"), targets)
                continue
            missing = [one for one in targets if not memory.is_held(sequence, one[0].endpoint.id, hashed)]
        if denied and row.index in denied and not was_admitted:
            verdict.refuse(row, Nack(sequence, errors.PUBLISH_DENIED, row.topic), targets)
            continue
        taken, discards, refusal = tally.judge(missing, row)
        if refusal is not None and was_admitted:
            taken, discards, refusal = tally.judge_rest(missing, row)
            if refusal is not None:
                verdict.waits_from = row.index
                break
        if refusal is None:
            tally.take(taken, row)
            verdict.discards += discards
            if taken:
                verdict.stores.setdefault(tuple(taken), []).append(row)
        else:
            verdict.discards.append(refusal)
            recorded = () if refusal.reason is NO_ROOM else targets
            verdict.refuse(row, Nack(sequence, refusal.reason.code, refusal.reason.detail), recorded)
    return verdict


def judge_copies(
    usage: Usage, rows: Iterable[tuple[Row, tuple[Endpoint, ...]]], room: dict[int, int], salt: int
) -> Verdict:
    """Judge promoted copies of direct messages: each endpoint takes or loses its own; nobody is told.

    Args:
        usage: the accounts.
        rows: with the endpoints that they match.
        room: home -> bytes of such copies that it may be given; what is taken is subtracted.
        salt: any number; rows without a key go to partitions by it.
    """
    verdict, tally = Verdict(), Tally(usage)
    for number, (row, endpoints) in enumerate(rows, salt):
        size = row.message_bytes + wire.SPOOL_OVERHEAD_BYTES
        taken: list[Target] = []
        hashed = partition_hash(row, number)
        for endpoint in endpoints:
            target = (usage.account(endpoint), lane_of(endpoint, hashed))
            mine, discards, refusal = tally.judge([target], row)
            if refusal is not None:
                discards = [refusal]
            elif mine and room.get(target[1].home, 0) < size:
                discards = [Discard(target[0], COPIES)]
            elif mine:
                tally.take(mine, row)
                taken += mine
            verdict.discards += discards
        for index in dict.fromkeys(lane.home for _, lane in taken):
            room[index] -= size
        if taken:
            verdict.stores.setdefault(tuple(taken), []).append(row)
    return verdict


def find_unroutable(
    a_round: Round[Session], taken: Sequence[bytes], verdict: Verdict, memory: Memory, span: tuple[int, int]
) -> list[Range]:
    """Give the messages of a round that were judged, and that nobody took.

    Args:
        a_round: the round.
        taken: batches of it that endpoints take whole.
        verdict: what was refused, and what was judged row by row.
        memory: what is known of the producer.
        span: the lowest and the highest index.
    """
    first, (lowest, highest) = a_round.first, span
    is_new = first + lowest > memory.highest
    if is_new and not (taken or verdict.stores or verdict.nacks) and highest - lowest + 1 == a_round.rows:
        return [(first + lowest, a_round.rows)]
    settled = {index for batch in taken for index in indices(batch)}
    settled.update(row.index for rows in verdict.stores.values() for row in rows)
    settled.update(nack.sequence - first for nack in verdict.nacks)
    if len(settled) == a_round.rows:
        return []
    every = sorted(index for part in a_round.parts for index in indices(part.batch))
    left = [first + index for index in every if index not in settled]
    return join_ranges([], [(one, 1) for one in left if is_new or not memory.may_be_held(one)])


def without_direct(a_round: Round[Session], nowhere: list[Range]) -> list[Range]:
    """Leave out what direct subscribers get: clients of a gateway are told that nobody got a message, and mean all."""
    if any(result.rows == a_round.rows for result in a_round.plain):
        return []
    direct = direct_indices(a_round) if nowhere else {}
    if not direct:
        return nowhere
    every = (sequence for first, count in nowhere for sequence in range(first, first + count))
    return join_ranges([], [(one, 1) for one in every if one - a_round.first not in direct])
