"""Judges the history of a mesh: what was promised, and where it was broken.

Pure: a history in, findings out, by rule. The way is that of checkers of distributed systems: clients note what they
attempted, what was confirmed and what they saw; nobody asks the nodes. What nobody knows (a message that was neither
acknowledged nor refused) may have happened or not, but not twice.

    loop          a message came to a node that its own has no link to, or came back to its own a second time
    duplicate     a client got a message twice
    dto_twice     a deliver-to-one message came to two clients that take turns
    shared_twice  a message came to two members of a group at one node
    uninvited     somebody got what was not asked for, or was never sent, or was refused
    order         a publisher's messages came in another order
    lost          an acknowledged message is not in a queue that it matched
    queue_twice   a message is in a queue twice, or was delivered again without the flag
    queue_order   a publisher's messages are in a queue in another order
    deaf          with everything in order somebody did not get what it asked for

Order is promised to a client for what a publisher sent in one connection, and separately for each subscription of the
client, for direct messages, and for guaranteed copies on each of their ways over links (docs/guarantees.md). The copies
for clients of a guaranteed message may come again when a router died, because only queues remember what they had.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.crash.accounts import Account
from tests.mesh.history import ALWAYS, DIRECT, GUARANTEED, PLAIN, SHARED, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mesh.history import Got, History, Key, Queue, Sent, Subscriber, Taken, Wish, World

RULES = (
    "loop",
    "duplicate",
    "dto_twice",
    "shared_twice",
    "uninvited",
    "order",
    "lost",
    "queue_twice",
    "queue_order",
    "deaf",
)


class Finding(NamedTuple):
    """One place where a rule is broken."""

    rule: str
    who: str
    what: str


Findings = dict[str, list[Finding]]


def check(history: History) -> Findings:
    """Give what is wrong, by rule; every rule is there."""
    found: Findings = {rule: [] for rule in RULES}
    for finding in _all(history):
        found[finding.rule].append(finding)
    return found


def _all(history: History) -> Iterator[Finding]:
    for subscriber in history.world.subscribers:
        got = history.got.get(subscriber.name, [])
        yield from _invitations(history, subscriber, got)
        yield from _repetitions(history, subscriber, got)
        yield from _order(history, subscriber, got)
    yield from _choices(history)
    for queue in history.world.queues:
        yield from _queue(history, queue, history.taken.get(queue.key, []))
    yield from _probes(history)


# -- clients ---------------------------------------------------------------------------------------------------


def _invitations(history: History, subscriber: Subscriber, got: list[Got]) -> Iterator[Finding]:
    """Whoever gets a message asked for it, it was sent so, and came over one link at most."""
    world = history.world
    for one in got:
        key, who = key_of(one.mark), subscriber.name
        sent = history.sent.get(key)
        if sent is None or sent.topic != one.topic:
            yield Finding("uninvited", who, f"{key} on {one.topic} was never sent so: {sent}")
        elif not any(w.takes(one.topic) and _came_by(one, w) for w in subscriber.wishes):
            yield Finding("uninvited", who, f"{key} on {one.topic}, which no subscription matches")
        elif key in history.refused:
            yield Finding("uninvited", who, f"{key} was refused")
        elif not world.reaches(world.publishers[one.mark.publisher], subscriber.node):
            yield Finding("loop", who, f"{key} crossed more than one link")


def _came_by(one: Got, wish: Wish) -> bool:
    return one.through == (wish.filter if wish.how == SHARED else wish.how)


def _share(one: Got) -> str:
    """Give the filter of the share group; a message may come once through each, and once without."""
    return one.through if one.through.startswith("#share/") else ""


def _repetitions(history: History, subscriber: Subscriber, got: list[Got]) -> Iterator[Finding]:
    seen: dict[tuple[Key, str], int] = {}
    for one in got:
        key = key_of(one.mark)
        connection = seen.get((key, _share(one)))
        seen[key, _share(one)] = one.connection
        if connection is None or _may_be_repeated(history, key, connection, one.connection):
            continue
        home = history.world.publishers.get(one.mark.publisher)
        rule = "loop" if home == subscriber.node else "duplicate"
        yield Finding(rule, subscriber.name, f"{key} on {one.topic} came again")


def _may_be_repeated(history: History, key: Key, before: int, now: int) -> bool:
    """Only routers remember which copies of guaranteed messages they made; with one of them that dies."""
    return key[1] == GUARANTEED and (key in history.repeated or before != now)


def _order(history: History, subscriber: Subscriber, got: list[Got]) -> Iterator[Finding]:
    newest: dict[tuple[object, ...], int] = {}
    for one in got:
        mark = one.mark
        lane = (mark.publisher, mark.epoch, one.through, *_way(one))
        before = newest.get(lane, -1)
        if mark.number < before and not _is_without_order(history, one):
            yield Finding(
                "order", subscriber.name, f"{key_of(mark)} on {one.topic} came after number {before}"
            )
        newest[lane] = max(before, mark.number)


def _is_without_order(history: History, one: Got) -> bool:
    """What is sent again has no order, and what crosses by another way as subscriptions of queues come and go."""
    return key_of(one.mark) in history.repeated or one.topic.startswith("check/churn/")


def _way(one: Got) -> tuple[object, ...]:
    """Name what a message has a common order with: guaranteed ones cross links on a way that depends on the topic."""
    if one.mark.stream == DIRECT:
        return (DIRECT,)
    _, kind, scope, *_ = one.topic.split("/")
    return (kind, scope, one.connection)


def _choices(history: History) -> Iterator[Finding]:
    """One client in the mesh for deliver-to-one, one member of each group at each node for shared subscriptions."""
    dto: defaultdict[Key, set[str]] = defaultdict(set)
    shared: defaultdict[tuple[Key, str, str], set[str]] = defaultdict(set)
    for subscriber in history.world.subscribers:
        always = [w for w in subscriber.wishes if w.how == ALWAYS]
        for one in history.got.get(subscriber.name, []):
            key = key_of(one.mark)
            sent = history.sent.get(key)
            if sent is not None and sent.is_dto and not any(w.takes(one.topic) for w in always):
                dto[key].add(subscriber.name)
            if _share(one):
                shared[key, subscriber.node, _share(one)].add(subscriber.name)
    for key, names in dto.items():
        if len(names) > 1 and key not in history.repeated:
            yield Finding("dto_twice", ",".join(sorted(names)), f"{key} on {history.sent[key].topic}")
    for (key, node, share), names in shared.items():
        if len(names) > 1 and key not in history.repeated:
            yield Finding("shared_twice", ",".join(sorted(names)), f"{key} in {share} at {node}")


def _probes(history: History) -> Iterator[Finding]:
    """What was sent while nothing was broken came to everybody that it was for."""
    getters: defaultdict[Key, set[str]] = defaultdict(set)
    for name, got in history.got.items():
        for one in got:
            getters[key_of(one.mark)].add(name)
    for key, sent in history.sent.items():
        if sent.is_probe:
            yield from deaf(history.world, key, sent, getters[key])


def deaf(world: World, key: Key, sent: Sent, getters: set[str]) -> Iterator[Finding]:
    """Give who did not get a message that everybody had to get, or one of several."""
    home = world.publishers[key[0]]
    candidates: set[str] = set()
    groups: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in world.subscribers:
        if not world.reaches(home, one.node):
            continue
        for wish in one.wishes:
            if not wish.takes(sent.topic):
                continue
            if wish.how == SHARED:
                groups[one.node, wish.filter].add(one.name)
            elif wish.how == PLAIN and sent.is_dto:
                candidates.add(one.name)
            elif one.name not in getters:
                yield Finding("deaf", one.name, f"{key} on {sent.topic} did not come")
    if candidates and not candidates & getters:
        yield Finding("deaf", ",".join(sorted(candidates)), f"{key} on {sent.topic} came to none of them")
    for (node, share), members in groups.items():
        if not members & getters:
            yield Finding("deaf", f"{share} at {node}", f"{key} on {sent.topic} came to no member")


# -- queues ----------------------------------------------------------------------------------------------------


def _queue(history: History, queue: Queue, taken: list[Taken]) -> Iterator[Finding]:
    publishers = history.world.publishers
    accounts = {name: Account(queue.key, redelivers=queue.is_live) for name in publishers}
    attempts: defaultdict[str, int] = defaultdict(int)
    for publisher, stream, number in history.sent:
        if stream == GUARANTEED:
            attempts[publisher] = max(attempts[publisher], number + 1)
    acknowledged: defaultdict[str, set[int]] = defaultdict(set)
    for publisher, number in wanted(history, queue):
        acknowledged[publisher].add(number)
    for one in taken:
        if one.mark.stream == GUARANTEED and one.mark.publisher in accounts:
            accounts[one.mark.publisher].take(one.mark.number, redelivered=one.is_redelivered)
        yield from _taken(history, queue, one)
    for publisher, account in accounts.items():
        judged = account.judge(attempts[publisher], acknowledged[publisher])
        for kind, rule in (("lost", "lost"), ("duplicated", "queue_twice"), ("out_of_order", "queue_order")):
            for number in judged.get(kind, []):
                yield Finding(rule, queue.key, f"{publisher} {number} is {kind}")
    yield from _positions(queue, taken)


def wanted(history: History, queue: Queue) -> set[tuple[str, int]]:
    """Give publisher and number of the messages that a queue has to have."""
    world = history.world
    return {
        (publisher, number)
        for publisher, stream, number in history.acknowledged
        if queue.takes((sent := history.sent[publisher, stream, number]).topic)
        and (sent.is_probe or not queue.is_loose)
        and world.reaches(world.publishers[publisher], queue.node)
    }


def _taken(history: History, queue: Queue, one: Taken) -> Iterator[Finding]:
    world, key = history.world, key_of(one.mark)
    sent = history.sent.get(key)
    if sent is None or sent.topic != one.topic:
        yield Finding("uninvited", queue.key, f"{key} on {one.topic} was never sent so: {sent}")
    elif not queue.takes(one.topic):
        yield Finding("uninvited", queue.key, f"{key} on {one.topic}, which no subscription matches")
    elif key in history.refused:
        yield Finding("uninvited", queue.key, f"{key} was refused")
    elif not world.reaches(world.publishers[one.mark.publisher], queue.node):
        yield Finding("loop", queue.key, f"{key} crossed more than one link")


def _positions(queue: Queue, taken: list[Taken]) -> Iterator[Finding]:
    """A message that is delivered again has the place that it had; places are in the order of the publisher."""
    places: dict[Key, int] = {}
    for one in taken:
        key = key_of(one.mark)
        if places.setdefault(key, one.position) != one.position:
            what = f"{key} is at {places[key]} and at {one.position}"
            yield Finding("queue_twice", queue.key, what)
    newest: dict[str, int] = {}
    for (publisher, _, number), _ in sorted(places.items(), key=lambda item: item[1]):
        if number < newest.get(publisher, -1):
            yield Finding("queue_order", queue.key, f"{publisher} {number} is behind {newest[publisher]}")
        newest[publisher] = max(number, newest.get(publisher, -1))
