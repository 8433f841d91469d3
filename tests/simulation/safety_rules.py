"""What must never happen, whatever is disturbed.

Order, duplicates, leaks, credit, and that a client which keeps the rules never loses its session for it.
What must happen when nothing is disturbed is in `delivery_rules`; `history_checker` asks both.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from angarium import errors
from angarium.topic import parse_filter
from tests.simulation.event_history import FOREVER
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord, Delivery, Message
    from tests.simulation.history_index import Index

#: With these a client that keeps the rules may lose its session, or be refused one.
HONEST_ENDS = {
    errors.NOT_CONNECTED: True,
    errors.KEEPALIVE_TIMEOUT: True,
    errors.SESSION_UNKNOWN: True,
    errors.EGRESS_BLOCKED: True,
    errors.SHUTTING_DOWN: False,
    errors.SHARD_UNAVAILABLE: False,  # a worker left for good with guaranteed messages on their way
    errors.DISCONNECTED_BY_OPERATOR: False,
    errors.USERNAME_SHUTDOWN: False,
    errors.VPN_UNAVAILABLE: False,
    errors.VPN_NOT_ALLOWED: False,
    errors.UNAUTHORIZED: False,
    errors.CLIENT_CONNECT_DENIED: False,
    errors.CLIENT_NAME_IN_USE: False,
}
#: An end for which somebody must have been disturbed follows the disturbance within this time.
CAUSE_MAX_S = 12.0


def order(index: Index) -> Iterator[Violation]:
    """Rows of one publisher, class of service and share keep their order (R3).

    Where rows may be elided, the order of each topic is left.
    """
    for connection in index.history.connections:
        last: dict[tuple[object, ...], Message] = {}
        for message, share, _ in connection.deliveries:
            key: tuple[object, ...]
            if share is not None:
                key = (message.publisher, share)
            elif connection.is_eliding and message.is_eliding:
                key = (message.publisher, message.cos, message.topic)
            else:
                key = (message.publisher, message.cos)
            before = last.get(key)
            if before is not None and before.place > message.place:
                yield Violation(
                    "order", f"{connection} got {before} before {message}", (before, message), (connection,)
                )
            last[key] = message


def duplicates(index: Index) -> Iterator[Violation]:
    """A client gets one copy by its own subscriptions, or one by each shared one (R86)."""
    for connection in index.history.connections:
        copies: dict[int, list[str | None]] = {}
        for message, share, _ in connection.deliveries:
            copies.setdefault(message.number, []).append(share)
        for number, shares in copies.items():
            if len(shares) > 1 and (len(dict.fromkeys(shares)) < len(shares) or None in shares):
                message = index.history.messages[number]
                text = f"{connection} got {message} {len(shares)} times, by {shares}"
                yield Violation("duplicate", text, (message,), (connection,))


def leaks(index: Index) -> Iterator[Violation]:
    """A message goes only to whom a subscription of its Message VPN and the ACLs let it (R53, R56, R57)."""
    for connection in index.history.connections:
        for delivery in connection.deliveries:
            fault = _leak(index, connection, delivery)
            if fault:
                text = f"{connection} got {delivery.message} at {delivery.at:.4f}: {fault}"
                yield Violation("leak", text, (delivery.message,), (connection,))
        for one in connection.subscriptions:
            asker = (connection.vpn, one.asker or connection.username)
            if one.confirmed_at == FOREVER or one.parsed.pattern.startswith("#P2P"):
                continue
            allowed = index.history.subscribe_verdict(one, asker)
            if allowed is not None and allowed == (one.refused == errors.SUBSCRIBE_DENIED):
                text = f"{one} was {'refused' if one.refused else 'accepted'} against the ACL"
                yield Violation("leak", text, (), (connection,))


def _leak(index: Index, connection: ConnectionRecord, delivery: Delivery) -> str:
    message, share, at = delivery
    if message.publisher.vpn != connection.vpn:
        return f"it is of another Message VPN, {message.publisher.vpn}"
    if index.history.publish_verdict(message) is False:
        return "its publisher was denied the topic"
    if share is None and connection is message.publisher and connection.no_local:
        return "it is the client's own, against no-local"
    own = [
        one
        for one in index.own(connection, message)
        if (one.text == share if share is not None else one.parsed.share is None)
    ]
    if not own:
        return "no subscription matches"
    held_back = not connection.is_prompt or (connection.is_eliding and message.is_eliding)
    # Only the client's own UNSUBACK comes on the connection of its deliveries, and behind them.
    if not any(one.may_hold(message.sent_at if held_back or one.asker else at, at) for one in own):
        return f"no subscription held: {own}"
    return ""


def lateness(index: Index) -> Iterator[Violation]:
    """RETIRED means dispatched: whatever comes to a client with credit comes before later answers."""
    for connection in index.history.connections:
        answers = connection.answers
        if not connection.is_prompt or not answers:
            continue
        for message, _, at in connection.deliveries:
            if at <= message.retired_at or (connection.is_eliding and message.is_eliding):
                continue
            place = bisect_left(answers, (message.retired_at, 0.0))
            if place < len(answers) and answers[place][1] < at:
                text = f"{connection} got {message} at {at:.4f}, it had retired by {message.retired_at:.4f}"
                yield Violation("late", text, (message,), (connection,))


def groups(index: Index) -> Iterator[Violation]:
    """One member of a share group at most gets a message (R19)."""
    for number, received in index.received.items():
        members: dict[tuple[str, str], list[ConnectionRecord]] = {}
        for connection, delivery in received:
            if delivery.share is not None:
                parsed = parse_filter(delivery.share)
                members.setdefault((str(parsed.share), parsed.pattern), []).append(connection)
        for group, got in members.items():
            if len(got) > 1:
                message = index.history.messages[number]
                text = f"{len(got)} members of {group} got {message}: {got}"
                yield Violation("shared", text, (message,), tuple(got))


def deliver_to_one(index: Index) -> Iterator[Violation]:
    """One client at most gets a deliver-to-one message, beside those that always do (R68, R81)."""
    for number, received in index.received.items():
        message = index.history.messages[number]
        if not message.is_dto:
            continue
        chosen = [
            connection
            for connection, delivery in received
            if not any(
                one.deliver_always and one.may_hold(message.sent_at, delivery.at)
                for one in index.own(connection, message)
            )
        ]
        if len(chosen) > 1:
            text = f"{len(chosen)} clients got {message}: {chosen}"
            yield Violation("deliver-to-one", text, (message,), tuple(chosen))


def credit(index: Index) -> Iterator[Violation]:
    """The router overdraws egress credit by one frame at most, and counts it as the client does."""
    for connection in index.history.connections:
        for text in connection.overdrafts:
            yield Violation("credit", f"{connection}: {text}", (), (connection,))


def ends(index: Index) -> Iterator[Violation]:
    """A client that keeps the rules loses its session by a disturbance or an operator only."""
    faults = index.history.faults
    for connection in index.history.connections:
        code = connection.close_code
        if code is None:
            continue
        if code not in HONEST_ENDS:
            yield Violation("end", f"{connection} was closed with {code}", (), (connection,))
        elif HONEST_ENDS[code] and not any(
            0 <= connection.closed_at - at <= CAUSE_MAX_S and whom in (connection.client, "router")
            for at, whom, _ in faults
        ):
            yield Violation("end", f"{connection} was closed with {code} without a cause", (), (connection,))
