"""Stages: a batch that was committed is there whole and once, and what was not committed is nowhere (R221)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.index import is_moved
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.records import Place, Stored
    from tests.simulation.guaranteed.writer_records import Attempt, Batch, WriterRecord


def batches(index: GuaranteedIndex) -> Iterator[Violation]:
    """Of the attempts at a batch one is published at most, whole, once, and not before its commit was asked for."""
    for writer in index.history.writers:
        for batch in writer.batches:
            published = [one for one in batch.attempts if any(_copies(index, what) for what in one.rows)]
            numbers = [one.number for one in published]
            name = f"batch {batch.number} of {writer}"
            if len(published) > 1:
                yield Violation("staged", f"{name} was published by attempts {numbers}")
            if batch.answered_at < FOREVER and not published and not _may_be_nowhere(index, writer, batch):
                yield Violation("staged", f"{name} was answered at {batch.answered_at:.4f}, and is nowhere")
            if sum(batch.answers) > 1:
                yield Violation(
                    "staged", f"{name} was published by {sum(batch.answers)} commits, they were told"
                )
            for attempt in published:
                yield from _whole(index, writer, batch, attempt)


def _whole(
    index: GuaranteedIndex, writer: WriterRecord, batch: Batch, attempt: Attempt
) -> Iterator[Violation]:
    name = f"attempt {attempt.number} at batch {batch.number} of {writer}"
    for what, queue in attempt.rows.items():
        copies = _copies(index, what)
        if any(one.at < attempt.committed_at for one in copies):
            text = f"{what!r} of {name} was published at {copies[0].at:.4f}, before it was committed"
            yield Violation("staged", text, whats=(what,))
        if len(copies) > 1 and what not in index.rehomed:
            yield Violation(
                "staged", f"{what!r} of {name} is at {[one.place for one in copies]}", whats=(what,)
            )
        if _may_go_without(index, writer.vpn, queue):
            continue
        if not any(one.at <= batch.answered_at for one in copies):
            text = f"{what!r} of {name} was not published by {batch.answered_at:.4f}, and others of it were"
            yield Violation("staged", text, whats=(what,))


def _copies(index: GuaranteedIndex, what: str) -> list[Stored]:
    """Give where a row was stored for its queue, without what was moved from there, each place once."""
    found: dict[Place, Stored] = {}
    for one in index.copies.get(what, ()):
        endpoint = index.endpoint(one.place)
        if endpoint is not None and not is_moved(one, endpoint):
            found.setdefault(one.place, one)
    return list(found.values())


def _may_go_without(index: GuaranteedIndex, vpn: str, queue: str) -> bool:
    """Tell whether a queue was deleted, or left out what it had no room for without a word."""
    return any(
        one.deleted_at < FOREVER
        or any(state.get("reject_to_sender", "always") != "always" for state in one.possible(0.0, FOREVER))
        for one in index.history.endpoints.values()
        if (one.vpn, one.kind, one.name) == (vpn, "queue", queue)
    )


def _may_be_nowhere(index: GuaranteedIndex, writer: WriterRecord, batch: Batch) -> bool:
    queues = dict.fromkeys(queue for one in batch.attempts for queue in one.rows.values())
    return any(_may_go_without(index, writer.vpn, queue) for queue in queues)


RULES = (batches,)
