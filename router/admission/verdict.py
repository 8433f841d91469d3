"""What is to become of the rows of a round, as judging them finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.admission.usage import Account, Reason
    from router.guaranteed.endpoints import LaneUsage
    from router.matching.rows import Row
    from router.sessions.producer import Nack, Range

#: A lane that a row goes to, with the account of its endpoint.
Target = tuple["Account", "LaneUsage"]


class Discard(NamedTuple):
    """One message that one endpoint did not take."""

    account: Account
    reason: Reason


class Verdict(msgspec.Struct, eq=False):
    """What is to become of the rows of a round."""

    #: Targets -> the rows for exactly these, by rising index.
    stores: dict[tuple[Target, ...], list[Row]] = msgspec.field(default_factory=dict)
    nacks: list[Nack] = msgspec.field(default_factory=list)
    #: Ranges of sequences that are acknowledged although nobody took them.
    unroutable: list[Range] = msgspec.field(default_factory=list)
    #: Lanes that refused rows matched: their records are told.
    touched: dict[LaneUsage, None] = msgspec.field(default_factory=dict)
    #: Indices of rows that were refused.
    left_out: dict[int, None] = msgspec.field(default_factory=dict)
    discards: list[Discard] = msgspec.field(default_factory=list)
    #: Index of the first row that has to wait: an endpoint cannot take now what others may have of an earlier
    #: sending. Neither it nor any row behind it is in this verdict. None: there is none.
    waits_from: int | None = None

    def refuse(self, row: Row, nack: Nack, targets: Iterable[Target]) -> None:
        """A row goes nowhere, and its publisher is told."""
        self.nacks.append(nack)
        self.left_out[row.index] = None
        self.touched.update(dict.fromkeys(lane for _, lane in targets))
