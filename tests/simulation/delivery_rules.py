"""What must happen to a message that nothing disturbed, and how everything else adds up.

A message is *sure* when its publisher heard that it was dispatched, was allowed to publish it all the time,
and no worker was lost meanwhile. A connection *proves* a time when everything dispatched to it before that
has arrived. A sure message reaches every client that was certainly subscribed, proves the time and never
lacked credit; what others miss is counted by the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from tests.simulation.event_history import FOREVER
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord, Message, SubscriptionRecord
    from tests.simulation.history_index import Index

CONGESTION = "discard.transmit-congestion"
ELIDED = "discard.message-elided"
#: Plenty to understand what is wrong.
EXAMPLES = 5


def is_sure(index: Index, message: Message) -> bool:
    """Tell whether a message was dispatched for certain."""
    return (
        message.retired_at < FOREVER
        and not index.history.was_out(message.topic, message.sent_at, message.retired_at)
        and index.history.publish_verdict(message) is True
    )


def proves(connection: ConnectionRecord, message: Message) -> bool:
    """Tell whether a message, if it was for that client, has arrived."""
    return message.retired_at <= connection.proven_until


def _wants(one: SubscriptionRecord, message: Message) -> bool:
    """Tell whether a subscription of one's own certainly gets a sure message, credit apart."""
    connection = one.connection
    return (
        one.parsed.share is None
        and (one.deliver_always or not message.is_dto)
        and one.must_hold(message.sent_at, message.retired_at)
        and proves(connection, message)
        and not (connection is message.publisher and connection.no_local)
    )


def _is_safe(connection: ConnectionRecord, message: Message) -> bool:
    """Tell whether nothing of the client itself can cost it a message."""
    return connection.is_prompt and not (connection.is_eliding and message.is_eliding)


def is_certain(one: SubscriptionRecord, message: Message) -> bool:
    """Tell whether a sure message reaches a subscription for certain."""
    return _wants(one, message) and _is_safe(one.connection, message)


def completeness(index: Index) -> Iterator[Violation]:
    """A sure message reaches everybody who certainly wants it and has credit."""
    got = index.got
    for message in index.history.messages:
        if not is_sure(index, message):
            continue
        for one in index.matcher.find(message):
            connection = one.connection
            if is_certain(one, message) and (message.number, connection.number, None) not in got:
                yield Violation("lost", f"{one}, but never got {message}", (message,), (connection,))


def groups(index: Index) -> Iterator[Violation]:
    """One member of a steady share group gets a sure message (R19), the publisher too (R27)."""
    got = index.got
    for message in index.history.messages:
        if message.is_dto or not is_sure(index, message):
            continue
        members: dict[tuple[str, str, str], list[SubscriptionRecord]] = {}
        for one in index.matcher.find(message):
            if one.group is not None and one.may_count(message.sent_at, message.retired_at):
                members.setdefault(one.group, []).append(one)
        for group, records in members.items():
            if not all(_is_steady(one, message) for one in records):
                continue
            shared = any((message.number, one.connection.number, one.text) in got for one in records)
            plain = any((message.number, one.connection.number, None) in got for one in records)
            if not shared and not plain:
                connections = tuple(one.connection for one in records)
                text = f"nobody of the group {group} got {message}: {list(connections)}"
                yield Violation("shared", text, (message,), connections)


def _is_steady(one: SubscriptionRecord, message: Message) -> bool:
    return (
        one.must_hold(message.sent_at, message.retired_at)
        and proves(one.connection, message)
        and _is_safe(one.connection, message)
    )


def deliver_to_one(index: Index) -> Iterator[Violation]:
    """Of steady candidates one of the best priority gets a sure deliver-to-one message (R68, R73)."""
    for message in index.history.messages:
        if not message.is_dto or not is_sure(index, message):
            continue
        matching = [
            one
            for one in index.matcher.find(message)
            if one.may_count(message.sent_at, message.retired_at)
            and not (
                one.parsed.share is None and one.connection is message.publisher and one.connection.no_local
            )
        ]
        candidates = [one for one in matching if not one.deliver_always]
        if not candidates or not all(_is_steady(one, message) for one in matching):
            continue
        always = {one.connection.number for one in matching if one.deliver_always}
        best = min(one.connection.priority for one in candidates)
        got = [
            received.connection
            for received in index.received.get(message.number, ())
            if received.connection.number not in always
        ]
        is_served = bool(got) or any(
            one.connection.priority == best and one.connection.number in always for one in candidates
        )
        connections = tuple(one.connection for one in candidates)
        if not is_served:
            yield Violation("deliver-to-one", f"nobody got {message}: {candidates}", (message,), connections)
        elif got and got[0].priority != best:
            text = f"{got[0]} of priority {got[0].priority} got {message}, the best present is {best}"
            yield Violation("deliver-to-one", text, (message,), connections)


def fairness(index: Index) -> Iterator[Violation]:
    """Steady candidates of one priority take turns (R74)."""
    turns: dict[ConnectionRecord, int] = {}
    for message in index.history.burst:
        candidates = [
            one for one in index.matcher.find(message) if one.may_count(message.sent_at, message.retired_at)
        ]
        if not is_sure(index, message) or not all(
            _is_steady(one, message) and one.parsed.share is None and not one.deliver_always
            for one in candidates
        ):
            return
        candidates = [
            one
            for one in candidates
            if one.connection is not message.publisher or not one.connection.no_local
        ]
        best = min((one.connection.priority for one in candidates), default=0)
        turns |= {one.connection: 0 for one in candidates if one.connection.priority == best and not turns}
        for received in index.received.get(message.number, ()):
            turns[received.connection] = turns.get(received.connection, 0) + 1
    if turns and max(turns.values()) - min(turns.values()) > 1:
        text = f"of {len(index.history.burst)} messages on {index.history.burst[0].topic!r} they got {turns}"
        yield Violation("deliver-to-one", text, tuple(index.history.burst[:EXAMPLES]), tuple(turns))


def losses(index: Index) -> Iterator[Violation]:
    """What is lost with a worker is counted, and its publisher is told (R9)."""
    got = index.got
    lost: dict[ConnectionRecord, list[Message]] = {}
    for message in index.history.messages:
        if message.retired_at == FOREVER or index.history.publish_verdict(message) is not True:
            continue
        if not index.history.was_out(message.topic, message.sent_at, message.retired_at):
            continue
        if any(
            is_certain(one, message) and (message.number, one.connection.number, None) not in got
            for one in index.matcher.find(message)
        ):
            lost.setdefault(message.publisher, []).append(message)
    for publisher, messages in lost.items():
        if len(messages) > publisher.lost_rows:
            text = f"{len(messages)} messages of {publisher} were lost, it was told of {publisher.lost_rows}"
            yield Violation("lost", text, tuple(messages[:EXAMPLES]), (publisher,))


def refusals(index: Index) -> Iterator[Violation]:
    """Every refused message is told to its publisher, and no other is refused (R57)."""
    history = index.history
    for publisher in history.connections:
        denied = open_verdicts = 0
        told = publisher.refusals.get(errors.PUBLISH_DENIED, 0)
        for message in (one for one in history.messages if one.publisher is publisher):
            verdict = history.publish_verdict(message)
            was_out = history.was_out(message.topic, message.sent_at, message.retired_at)
            if verdict is None or (verdict is False and (message.retired_at == FOREVER or was_out)):
                open_verdicts += 1
            elif verdict is False:
                denied += 1
        if not denied <= told <= denied + open_verdicts:
            text = (
                f"{publisher} was told of {told} denied messages, {denied} were, perhaps {open_verdicts} more"
            )
            yield Violation("refused", text, (), (publisher,))
        others = {code: n for code, n in publisher.refusals.items() if code != errors.PUBLISH_DENIED}
        if others:
            yield Violation("refused", f"{publisher} was told of {others}", (), (publisher,))


def discards(index: Index) -> Iterator[Violation]:
    """What a slow or eliding client misses is what the router counted, neither more nor less (R8, R45)."""
    history = index.history
    for connection in history.connections:
        counters = history.counters.get(connection.session) if connection.is_open else None
        if counters is None:
            continue
        counted = counters.get(CONGESTION, 0) + counters.get(ELIDED, 0)
        missed: list[Message] = []
        perhaps = 0
        if not connection.is_prompt or connection.is_eliding or counted:
            missed, perhaps = _missed(index, connection)
        if connection.vpn in history.polluted_vpns:
            perhaps = max(perhaps, counted)
        if not len(missed) <= counted <= len(missed) + perhaps:
            text = (
                f"{connection} misses {len(missed)} messages, perhaps {perhaps} more; counted are {counted}"
            )
            yield Violation("discards", text, tuple(missed[:EXAMPLES]), (connection,))
        if connection.is_prompt and counters.get(CONGESTION, 0):
            yield Violation("discards", f"{connection} always had credit: {counters}", (), (connection,))


def _missed(index: Index, connection: ConnectionRecord) -> tuple[list[Message], int]:
    """Give the messages that a connection must have been offered and did not get; and count what it may."""
    got = index.got
    missed: list[Message] = []
    perhaps = 0
    for message in index.history.messages:
        own = [
            one
            for one in index.own(connection, message)
            if one.may_count(message.sent_at, message.retired_at)
        ]
        plain = [one for one in own if one.parsed.share is None]
        if plain and (message.number, connection.number, None) not in got:
            if is_sure(index, message) and any(_wants(one, message) for one in plain):
                missed.append(message)
            else:
                perhaps += 1
        perhaps += sum(
            (message.number, connection.number, one.text) not in got
            for one in own
            if one.parsed.share is not None
        )
    return missed, perhaps


def indications(index: Index) -> Iterator[Violation]:
    """Deliveries tell of every discard before them (R45)."""
    history = index.history
    for connection in history.connections:
        counters = history.counters.get(connection.session) if connection.is_open else None
        if counters is None:
            continue
        untold = history.untold.get(connection.session, 0)
        if connection.dropped + untold != counters.get(CONGESTION, 0):
            text = f"{connection} was told of {connection.dropped} discards, {untold} are untold: {counters}"
            yield Violation("indication", text, (), (connection,))
        before = history.calm_untold.get(connection.session)
        if before is None or not before[0]:
            continue
        if connection.dropped == before[1] and any(d.at > history.calm_since for d in connection.deliveries):
            text = f"{connection} got more, but was never told of the {before[0]} discards before"
            yield Violation("indication", text, (), (connection,))


def newest_values(index: Index) -> Iterator[Violation]:
    """Where older messages of a topic are left out, the newest arrives in the end (R32, R51)."""
    history = index.history
    for connection in history.connections:
        counters = history.counters.get(connection.session) if connection.is_open else None
        if counters is None or not connection.is_eliding or counters.get(CONGESTION, 0):
            continue
        reached: dict[str, Message] = {}
        for message, _, _ in connection.deliveries:
            if message.topic not in reached or reached[message.topic].number < message.number:
                reached[message.topic] = message
        for message in _newest(index, connection):
            last = reached.get(message.topic)
            if last is None or last.number < message.number:
                text = f"{connection} never got the newest value, {message}; its last is {last}"
                yield Violation("eliding", text, (message,), (connection,))


def _newest(index: Index, connection: ConnectionRecord) -> Iterator[Message]:
    """Give the newest sure message of each topic that a connection certainly wants.

    A topic is left out if an older message, of an earlier connection of its publisher, may have been
    dispatched after it.
    """
    by_topic: dict[str, list[Message]] = {}
    for message in index.history.messages:
        if message.is_eliding and message.publisher.vpn == connection.vpn:
            by_topic.setdefault(message.topic, []).append(message)
    for messages in by_topic.values():
        sure = [
            one
            for one in messages
            if is_sure(index, one) and any(_wants(own, one) for own in index.own(connection, one))
        ]
        if sure and not any(
            one.publisher is not sure[-1].publisher and one.retired_at > sure[-1].sent_at
            for one in messages
            if one.number < sure[-1].number
        ):
            yield sure[-1]


def accounts(index: Index) -> Iterator[Violation]:
    """While nothing is disturbed, every row is matched, refused or unmatched, and counted once."""
    history = index.history
    calm = [one for one in history.messages if one.sent_at >= history.calm_since]
    if not calm:
        return
    allowed = [one for one in calm if history.publish_verdict(one)]
    matched = {True: 0, False: 0}
    for message in allowed:
        records = index.matcher.find(message)
        sure = any(
            one.must_hold(message.sent_at, message.retired_at) for one in records if one.connection.is_open
        )
        if sure or any(one.may_count(message.sent_at, message.retired_at) for one in records):
            matched[sure] += 1
    unmatched = len(allowed) - matched[True] - matched[False]
    expected = {
        "messages_in": (len(calm), len(calm)),
        "no-subscription-match": (unmatched, unmatched + matched[False]),
        "publish-topic-acl": (len(calm) - len(allowed),) * 2,
        "shard-unavailable": (0, 0),
    }
    before, after = _flat(history.calm_stats), _flat(history.end_stats)
    for name, (least, most) in expected.items():
        counted = after.get(name, 0) - before.get(name, 0)
        if not least <= counted <= most:
            yield Violation("accounts", f"{name}: {counted} were counted, right are {least} to {most}")
    unretired = [one for one in calm if one.retired_at == FOREVER]
    if unretired:
        text = f"{len(unretired)} messages never retired, the first is {unretired[0]}"
        yield Violation("accounts", text, tuple(unretired[:EXAMPLES]))


def _flat(stats: dict[str, object]) -> dict[str, int]:
    discards = stats.get("discards", {})
    assert isinstance(discards, dict)
    return {name: value for name, value in {**stats, **discards}.items() if isinstance(value, int)}
