"""Ranges that are read without a group: what is there all the time comes once, in order, and nothing else comes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.flow_rules import selects
from tests.simulation.guaranteed.records import Gone
from tests.simulation.guaranteed.removal_rules import covers, reasons
from tests.simulation.guaranteed.storage_rules import was_emptied
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.records import Stored
    from tests.simulation.guaranteed.scan_records import Scan


def scanned(index: GuaranteedIndex) -> Iterator[Violation]:
    """A range that is complete has everything that was there from its question to its end."""
    for scan in index.history.scans:
        if scan.done_at == FOREVER:
            continue
        got = dict(scan.got)
        for place, stored in index.stored_in(scan.lane, scan.first, scan.end):
            if place[1] not in got and _is_there(index, scan, stored):
                text = f"{scan} was complete at {scan.done_at:.4f}, without {stored.what!r} at {place}"
                yield Violation("unseen", text, whats=(stored.what,))


def _is_there(index: GuaranteedIndex, scan: Scan, stored: Stored) -> bool:
    """Tell whether a message certainly was in the lane all the time, and is selected."""
    endpoint, place = index.endpoint(stored.place), stored.place
    if endpoint is None or stored.at > scan.asked_at or index.had_homes(scan.lane) > 1:
        return False
    if endpoint.is_repartitioned:
        return False  # what a closed partition has is on its way to another one
    if scan.selector is not None and not selects(scan.selector, stored.what):
        return False
    gone = index.gone.get(place)
    if gone is not None and (gone.at <= scan.done_at or gone.is_purge):
        return False
    if was_emptied(endpoint, FOREVER) or any(covers(one, place, FOREVER) for one in endpoint.operations):
        return False
    return not reasons(index, endpoint, stored, Gone(scan.done_at, place, False))


def strange(index: GuaranteedIndex) -> Iterator[Violation]:
    """What came is in the range and selected, each position once, rising; and it is what is stored there."""
    for scan in index.history.scans:
        positions = [position for position, _ in scan.got]
        if any(a >= b for a, b in pairwise(positions)):
            yield Violation("twice", f"{scan} got {positions}")
        if positions and not scan.first <= positions[0] <= positions[-1] < scan.end:
            yield Violation("twice", f"{scan} got {positions}")
        for position, what in scan.got:
            stored = index.stored.get((scan.lane, position))
            if stored is not None and stored.what != what:
                yield Violation("misread", f"{scan} got {what!r} at {position}, where {stored} is")
            if scan.selector is not None and not selects(scan.selector, what):
                yield Violation("misread", f"{scan} got {what!r}, which it does not select")


RULES = (scanned, strange)
