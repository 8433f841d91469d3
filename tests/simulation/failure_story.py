"""What is printed of a run that broke a rule: the seed, what was broken, and the part of the history behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.topic import matches
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed import guaranteed_story
from tests.simulation.mesh import mesh_story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord, History, Message
    from tests.simulation.history_index import Violation
    from tests.simulation.scenario import Outcome

#: Enough to see what kind of failure it is; the seed gives everything else.
VIOLATIONS_MAX = 8
LINES_MAX = 60
WHATS_MAX = 2

Line = tuple[float, str]


def tell(outcome: Outcome) -> str:
    """Give the reduced history of a failed run."""
    history = outcome.history
    lines = [f"seed {outcome.seed}: {len(outcome.violations)} broken rules"]
    lines += [f"  {one.rule}: {one.text}" for one in outcome.violations[:VIOLATIONS_MAX]]
    if not outcome.violations:
        return "\n".join(lines)
    first = outcome.violations[0]
    story = sorted(_story(history, first))
    for what in dict.fromkeys(first.whats[:WHATS_MAX]):
        story += life_of(outcome, what)
    story = sorted(dict.fromkeys(story))
    shown = story if len(story) <= LINES_MAX else [*story[: LINES_MAX // 2], *story[-LINES_MAX // 2 :]]
    lines.append(f"  what led to the first ({len(story)} lines, {len(shown)} shown):")
    lines += [f"    {at:9.4f} {text}" for at, text in shown]
    return "\n".join(lines)


def life_of(outcome: Outcome, what: str) -> list[Line]:
    """Give everything that happened to a guaranteed message, and the endpoints that had to do with it."""
    if outcome.mesh is not None:
        return mesh_story.life_of(outcome.mesh, what)
    lines: list[Line] = []
    for guaranteed in outcome.all_guaranteed:
        lines += guaranteed_story.life_of(guaranteed, what)
        lines += guaranteed_story.endpoints(guaranteed, what)
    return sorted(dict.fromkeys(lines))


def _story(history: History, violation: Violation) -> Iterator[Line]:
    for at, whom, what in history.faults:
        yield at, f"! {whom} {what}"
    for message in violation.messages:
        yield from _life(history, message)
    for connection in violation.connections:
        yield from _ends(connection)
        yield from _subscriptions(connection, violation.messages)


def _life(history: History, message: Message) -> Iterator[Line]:
    yield message.sent_at, f"{message} left with flags {message.flags:#x}"
    if message.retired_at < FOREVER:
        yield message.retired_at, f"{message} retired"
    for connection in history.connections:
        for delivery in connection.deliveries:
            if delivery.message is message:
                yield delivery.at, f"{message} came to {connection}, share {delivery.share}"


def _ends(connection: ConnectionRecord) -> Iterator[Line]:
    if connection.opened_at < FOREVER:
        kind = "prompt" if connection.is_prompt else "slow"
        yield connection.opened_at, f"{connection} opened: {kind}, priority {connection.priority}"
    if connection.closed_at < FOREVER:
        yield connection.closed_at, f"{connection} closed: {connection.close_code}"
    if connection.ended_at < FOREVER:
        yield connection.ended_at, f"{connection} ended in the router"


def _subscriptions(connection: ConnectionRecord, messages: tuple[Message, ...]) -> Iterator[Line]:
    for one in connection.subscriptions:
        if messages and not any(matches(one.parsed.pattern, message.topic) for message in messages):
            continue
        for at, what in (
            (one.asked_at, "asked"),
            (one.confirmed_at, "in force" if one.refused is None else f"refused with {one.refused}"),
            (one.leaving_at, "leaving"),
            (one.gone_at, "gone"),
        ):
            if at < FOREVER:
                yield at, f"{one}: {what}"
