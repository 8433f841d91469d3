"""Messages that are acknowledged although no endpoint took them: nobody wanted the topic, or each left them out.

Publishers hear of them with the acknowledgement (ACKED), as ranges of sequences. Links count as takers, because what
crosses one is in its queue. Of a message that is sent again nothing is said if an endpoint may have it from before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.publishers.producer import join_ranges
from router.spool.rows import indices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.matching.round import Round
    from router.publishers.memory import Memory
    from router.publishers.producer import Range
    from router.session import Session
    from router.spool.judging import Verdict


def find(
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
