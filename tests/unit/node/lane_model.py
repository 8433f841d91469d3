"""A naive model of a lane: a dictionary of messages, looked through from the start for every question.

What may never happen, whatever clients, operators and crashes do: a message is lost, or comes back after it was
gone; one is handed out twice without its count of attempts rising, unless its consumer gave it back unseen; the order
of an exclusive lane is broken; credit, or the limit of unsettled messages, is exceeded; counts are wrong.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from angarium import errors, wire
from node.backlog.segment import Segment
from tests.unit.node.lane_driver import (
    ACCEPTED,
    ACTIVE,
    CLOSED,
    FAILED,
    KINDS,
    REFUSED,
    REJECTED,
    Driver,
    merged,
    row,
)

if TYPE_CHECKING:
    from random import Random

NEW, READY, DUE, DELAYED, OUT, MOVING = "new", "ready", "due", "delayed", "out", "moving"
#: States that a message can die or be replaced in without anybody's doing.
WAITING = (NEW, READY, DUE, DELAYED)

rngs = st.randoms(use_true_random=False)


@dataclass
class Message:
    """What the model knows of a message."""

    position: int
    size: int
    tag: str
    expires_ms: int
    due_ms: int
    priority: int
    eligible: bool
    state: str = READY
    tries: int = 0
    until_ms: int = 0
    reason: str = ""
    told: bool = False


@dataclass
class Consumer:
    """What the model knows of a flow."""

    flow: int
    browser: bool
    selector: str | None
    messages: int
    bytes: int
    max_unacked: int
    resume: bool
    asked: int | None = None
    sent: int = 0
    sent_bytes: int = 0
    cursor: int = 0
    closing_ms: int | None = None
    out: dict[int, None] = field(default_factory=dict)

    def room(self) -> int:
        if self.sent_bytes >= self.bytes or self.closing_ms is not None:
            return 0
        granted = self.messages - self.sent
        return granted if self.browser else max(min(granted, self.max_unacked - len(self.out)), 0)

    def wants(self, message: Message) -> bool:
        return self.selector is None or self.selector == message.tag


class LaneMachine(RuleBasedStateMachine):
    """Everything that can happen to a lane."""

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind: dict[str, Any]) -> None:
        self.driver = Driver(**kind)
        self.messages: dict[int, Message] = {}
        self.consumers: dict[int, Consumer] = {}
        self.flows = 0
        self.newest = 0
        #: Above it nothing was seen by the selector of a topic endpoint.
        self.filtered = 0
        #: What is on disk.
        self.stored: dict[int, Message] = {}
        self.recovered_upto = 0
        self.taken: list[tuple[Segment, int]] = []

    # --- the model ------------------------------------------------------------------------------------------

    @property
    def conf(self) -> Any:
        return self.driver.lane.settings

    @property
    def now_ms(self) -> int:
        return round(self.driver.now * 1000)

    def takers(self) -> list[Consumer]:
        return [one for one in self.consumers.values() if not one.browser]

    def active(self) -> list[Consumer]:
        takers = self.takers()
        return takers[:1] if self.conf.exclusive else takers

    def is_over(self, message: Message) -> bool:
        return 0 < message.expires_ms <= self.driver.wall_ms

    def kill(self, message: Message, reason: str) -> None:
        moves = self.conf.moves_dead and (message.eligible or not self.conf.respect_dmq_eligible)
        if moves:
            message.state, message.reason, message.told = MOVING, reason, False
        else:
            del self.messages[message.position]

    def admit(self, message: Message) -> None:
        message.state = DUE if message.due_ms > self.driver.wall_ms else READY

    def let_in(self, message: Message) -> None:
        self.admit(message)
        if self.conf.last_value:
            self.newest = max(self.newest, message.position)
            for other in list(self.messages.values()):
                if other.position < self.newest and other.state in WAITING:
                    del self.messages[other.position]

    def sync(self) -> None:
        for message in list(self.messages.values()):
            if message.state in WAITING and self.is_over(message):
                self.kill(message, "expired")
                continue
            due = message.state == DUE and message.due_ms <= self.driver.wall_ms
            if due or (message.state == DELAYED and message.until_ms <= self.now_ms):
                message.state = READY

    def give_back(self, message: Message, *, delay: bool) -> None:
        if self.conf.last_value and message.position < self.newest:
            del self.messages[message.position]
            return
        message.tries += 1
        if self.is_over(message):
            self.kill(message, "expired")
        elif not self.conf.redelivery_enabled or 0 < self.conf.max_redeliveries < message.tries:
            self.kill(message, "redeliveries")
        elif delay and self.conf.redelivery_delay is not None:
            message.state = DELAYED
            message.until_ms = self.now_ms + self.conf.redelivery_delay_ms(message.tries)
        else:
            message.state = READY

    def release(self, consumer: Consumer, positions: list[int]) -> None:
        """What its application has not seen comes back as if it had never been sent."""
        self.driver.release(consumer.flow, *[(position, position) for position in positions])
        for position in positions:
            del consumer.out[position]
            message = self.messages[position]
            if self.conf.last_value and position < self.newest:
                del self.messages[position]
            elif self.is_over(message):
                self.kill(message, "expired")
            else:
                message.state = READY

    def end(self, consumer: Consumer) -> None:
        for position in consumer.out:
            self.give_back(self.messages[position], delay=False)
        del self.consumers[consumer.flow]

    # --- rules ----------------------------------------------------------------------------------------------

    @rule(rng=rngs)
    def append(self, rng: Random) -> None:
        wall = self.driver.wall_ms
        batch = [
            (
                rng.choice("aab"),
                rng.choice([0, 0, 0, 0, 50, 300]),
                rng.choice([0, 0, 0, 0, 40, 250]),
                rng.choice([None, None, 0, 4, 9, 200]),
                rng.choice([0, 30]),
                rng.random() < 0.5,
            )
            for _ in range(rng.randint(1, 8))
        ]
        packed = []
        for index, (tag, ttl, delay, priority, size, eligible) in enumerate(batch):
            flags = wire.MODE_PERSISTENT | (wire.FLAG_DMQ_ELIGIBLE if eligible else 0)
            one = row(
                index, payload=b"x" * size, tag=tag, ttl=ttl, delay=delay, priority=priority, flags=flags
            )
            packed.append(one)
        first = self.driver.put(*packed).first
        conf = self.conf
        for offset, (tag, ttl, delay, priority, size, eligible) in enumerate(batch):
            ends = [wall + ttl] if ttl else []
            if conf.max_ttl_s:
                ends.append(wall + 1000 * conf.max_ttl_s)
            message = Message(
                position=first + offset,
                size=64 + size + len(tag),
                tag=tag,
                expires_ms=min(ends) if ends and conf.respect_ttl else 0,
                due_ms=max(wall + delay if delay else 0, wall + conf.delivery_delay_ms),
                priority=4 if priority is None else min(priority, 9),
                eligible=eligible,
            )
            self.messages[message.position] = message
            self.stored[message.position] = copy.copy(message)
            if conf.selector:
                message.state = NEW
            else:
                self.let_in(message)

    @rule(rng=rngs)
    @precondition(lambda self: len(self.consumers) < 5)
    def bind(self, rng: Random) -> None:
        self.flows += 1
        browser, selector = rng.random() < 0.2, rng.choice([None, None, "a", "b"])
        messages, bytes_ = rng.choice([0, 3, 1000, 1000]), rng.choice([0, 150, 100_000, 100_000])
        asked, resume = rng.choice([None, None, 2, 50]), rng.random() < 0.5
        limit = min(asked or self.conf.max_unacked, self.conf.max_unacked)
        consumer = Consumer(self.flows, browser, selector, messages, bytes_, limit, resume, asked)
        events = self.driver.bind(
            self.flows,
            browse=browser,
            selector=selector,
            messages=messages,
            bytes_=bytes_,
            max_unacked=asked,
            resume=resume,
        )
        self.consumers[self.flows] = consumer
        is_active = consumer.browser or consumer in self.active()
        assert events == [(self.flows, wire.FLOW_ACTIVE if is_active else wire.FLOW_INACTIVE, 0, "")]

    def heir_events(self, before: list[Consumer]) -> list[tuple[int, int, int, str]]:
        known = [one.flow for one in before]
        return [(one.flow, ACTIVE, 0, "") for one in self.active() if one.flow not in known]

    @rule(rng=rngs)
    @precondition(lambda self: self.consumers)
    def unbind(self, rng: Random) -> None:
        consumer = rng.choice(list(self.consumers.values()))
        hand_off_ms = rng.choice([None, 0, 100])
        before = self.active()
        events = self.driver.unbind(consumer.flow, hand_off_ms)
        if hand_off_ms is not None and consumer.out:
            assert events == []
            consumer.closing_ms = self.now_ms + hand_off_ms
            return
        self.end(consumer)
        told = [] if hand_off_ms is None else [(consumer.flow, CLOSED, 0, "")]
        assert events == told + self.heir_events(before)

    @rule(rng=rngs)
    @precondition(lambda self: any(one.out for one in self.consumers.values()))
    def leave(self, rng: Random) -> None:
        consumer = rng.choice([one for one in self.consumers.values() if one.out])
        before = self.active()
        self.release(consumer, [one for one in consumer.out if rng.random() < 0.5])
        events = self.driver.unbind(consumer.flow)
        self.end(consumer)
        assert events == self.heir_events(before)

    @rule(rng=rngs)
    @precondition(lambda self: self.consumers)
    def credit(self, rng: Random) -> None:
        consumer = rng.choice(list(self.consumers.values()))
        consumer.messages += rng.randint(0, 20)
        consumer.bytes += rng.randint(0, 2000)
        self.driver.lane.credit(consumer.flow, consumer.messages, consumer.bytes)

    @rule(rng=rngs)
    def hand_out(self, rng: Random) -> None:
        limit = rng.choice([1, 3, 10_000, 10_000])
        handouts = self.driver.handouts(limit)
        if self.consumers and self.conf.egress_enabled:
            self.sync()
        else:
            assert handouts == []
            return
        candidates = sorted(
            (one for one in self.messages.values() if one.state == READY),
            key=lambda one: (-one.priority if self.conf.by_priority else 0, one.position),
        )
        got: dict[int, list[int]] = {}
        for handout in handouts:
            counts = handout.counts or [0] * len(handout.indices)
            for i, count in zip(handout.indices, counts, strict=True):
                position = handout.segment.first + i
                got.setdefault(handout.flow, []).append(position)
                assert count == self.messages[position].tries
        expected = self.expected_of_browsers()
        for consumer in self.consumers.values():
            if consumer.browser:
                assert got.pop(consumer.flow, []) == expected[consumer.flow]
        assert sum(map(len, got.values())) <= limit
        if self.conf.exclusive:
            for consumer in self.active():
                wanted = [one for one in candidates if consumer.wants(one)][:limit]
                assert got.get(consumer.flow, []) == self.prefix(consumer, wanted)
        for flow, positions in got.items():
            consumer = self.consumers[flow]
            assert consumer in self.active()
            rank = {one.position: k for k, one in enumerate(candidates)}
            assert positions == sorted(positions, key=lambda one: rank[one])
            for position in positions:
                self.out(consumer, self.messages[position])
        if not self.driver.lane.more:
            self.nothing_is_left()

    def prefix(self, consumer: Consumer, wanted: list[Message]) -> list[int]:
        room, size = consumer.room(), consumer.sent_bytes
        positions: list[int] = []
        for one in wanted:
            if len(positions) < room and size < consumer.bytes:
                positions.append(one.position)
                size += one.size
        return positions

    def expected_of_browsers(self) -> dict[int, list[int]]:
        expected = {}
        for consumer in self.consumers.values():
            if consumer.browser:
                shown = [
                    one
                    for one in sorted(self.messages.values(), key=lambda one: one.position)
                    if one.state not in (NEW, MOVING)
                    and one.position >= consumer.cursor
                    and consumer.wants(one)
                ]
                positions = self.prefix(consumer, shown)
                for one in shown[: len(positions)]:
                    consumer.sent += 1
                    consumer.sent_bytes += one.size
                    consumer.cursor = one.position + 1
                if consumer.room():
                    upto = self.filtered if self.conf.selector else self.driver.lane.next_position
                    seen = [one for one in self.messages if one <= upto]
                    consumer.cursor = max([consumer.cursor, *(one + 1 for one in seen)])
                expected[consumer.flow] = positions
        return expected

    def out(self, consumer: Consumer, message: Message) -> None:
        assert message.state == READY, "a message was handed out that was not ready"
        assert consumer.wants(message)
        assert consumer.room() > 0, "a flow got more than its credit and its limit allow"
        assert not self.is_over(message)
        assert message.due_ms <= self.driver.wall_ms
        message.state = OUT
        consumer.out[message.position] = None
        consumer.sent += 1
        consumer.sent_bytes += message.size

    def nothing_is_left(self) -> None:
        for consumer in self.active():
            if consumer.room():
                left = [one for one in self.messages.values() if one.state == READY and consumer.wants(one)]
                assert left == []

    @rule(rng=rngs)
    @precondition(lambda self: any(one.out for one in self.consumers.values()))
    def settle_some(self, rng: Random) -> None:
        consumer = rng.choice([one for one in self.consumers.values() if one.out])
        outcome = rng.choice([ACCEPTED, FAILED, FAILED, REJECTED])
        chosen = list(consumer.out)
        if rng.random() < 0.6:
            chosen = rng.sample(chosen, rng.randint(1, len(chosen)))
        before = self.active()
        events = self.driver.settle(consumer.flow, outcome, *[(one, one) for one in chosen])
        self.settled(consumer, outcome, chosen)
        assert events == self.end_if_done(consumer, before)

    @rule(rng=rngs)
    @precondition(lambda self: self.consumers)
    def settle_a_range(self, rng: Random) -> None:
        consumer = rng.choice(list(self.consumers.values()))
        outcome = rng.choice([ACCEPTED, FAILED, REJECTED])
        first = rng.randint(-3, self.driver.lane.next_position + 3)
        length = rng.choice([0, 1, 2, 5, 1 << 62])
        before = self.active()
        last = first + length - 1
        events = self.driver.settle(consumer.flow, outcome, (first, last))
        chosen = [one for one in consumer.out if first <= one <= last]
        hits = len(chosen)
        self.settled(consumer, outcome, chosen)
        if consumer.resume and hits != length:
            hits += self.settled_again(outcome, first, min(last, self.recovered_upto), chosen)
        if hits != length:
            assert events[0][:3] == (consumer.flow, REFUSED, errors.NOT_DELIVERED)
            events = events[1:]
        assert events == self.end_if_done(consumer, before)

    def settled(self, consumer: Consumer, outcome: int, positions: list[int]) -> None:
        for position in positions:
            del consumer.out[position]
            self.apply(self.messages[position], outcome)

    def apply(self, message: Message, outcome: int) -> None:
        if outcome == ACCEPTED:
            del self.messages[message.position]
        elif outcome == FAILED:
            self.give_back(message, delay=True)
        else:
            message.tries += 1
            self.kill(message, "rejected")

    def settled_again(self, outcome: int, first: int, last: int, just: list[int]) -> int:
        """Settle on a resumed flow what an earlier incarnation delivered."""
        found = [one for one in list(self.messages.values()) if first <= one.position <= last]
        found = [one for one in found if one.state in WAITING]
        for message in found:
            if outcome != FAILED:
                self.apply(message, outcome)
        return len(found)

    def end_if_done(self, consumer: Consumer, before: list[Consumer]) -> list[tuple[int, int, int, str]]:
        if consumer.closing_ms is None or consumer.out:
            return []
        self.end(consumer)
        return [(consumer.flow, CLOSED, 0, ""), *self.heir_events(before)]

    @rule(rng=rngs)
    def tick(self, rng: Random) -> None:
        self.driver.pass_ms(rng.choice([0, 10, 50, 100, 300]))
        events = self.driver.tick()
        self.sync()
        # The selector of an endpoint that is shut down examines nothing.
        if self.conf.egress_enabled:
            self.filtered = self.driver.lane.next_position - 1
        for message in [one for one in self.messages.values() if one.position <= self.filtered]:
            if message.state == NEW and message.tag == self.conf.selector:
                self.let_in(message)
            elif message.state == NEW:
                del self.messages[message.position]
        told: list[tuple[int, int, int, str]] = []
        for consumer in list(self.consumers.values()):
            if consumer.closing_ms is not None and (not consumer.out or consumer.closing_ms <= self.now_ms):
                before = self.active()
                code = errors.PARTITION_LOST if consumer.out else 0
                self.end(consumer)
                told += [(consumer.flow, CLOSED, code, ""), *self.heir_events(before)]
        assert sorted(events) == sorted(told)
        due = self.driver.lane.next_due()
        assert due is None or due > self.driver.now

    @rule(rng=rngs)
    def time_passes_unseen(self, rng: Random) -> None:
        self.driver.pass_ms(rng.choice([10, 50, 300]))

    @rule(rng=rngs)
    def purge(self, rng: Random) -> None:
        assert self.driver.lane.purge() == len(self.messages)
        self.messages.clear()
        self.filtered = self.driver.lane.next_position - 1
        for consumer in self.consumers.values():
            consumer.out.clear()

    @rule(rng=rngs)
    @precondition(lambda self: self.messages)
    def delete(self, rng: Random) -> None:
        position = rng.choice(list(self.messages))
        self.driver.gone(position)
        del self.messages[position]
        for consumer in self.consumers.values():
            consumer.out.pop(position, None)

    @rule(rng=rngs)
    def move_dead(self, rng: Random) -> None:
        limit, moved = rng.choice([1, 100]), rng.random() < 0.7
        dead = self.driver.lane.take_dead(limit)
        untold = [
            one for one in self.messages.values() if one.state == MOVING and one.reason and not one.told
        ]
        assert len(dead) == min(limit, len(untold))
        for segment, i, reason in dead:
            message = self.messages[segment.first + i]
            assert (message.state, message.reason, message.told) == (MOVING, reason, False)
            message.told = True
            if moved:
                self.driver.lane.gone(segment, i)
                del self.messages[message.position]

    @rule(rng=rngs)
    @precondition(lambda self: self.messages)
    def take_for_a_move(self, rng: Random) -> None:
        message = rng.choice(list(self.messages.values()))
        found = self.driver.lane.find(message.position)
        assert found is not None
        assert self.driver.lane.take(*found) == (message.state in (READY, DUE, DELAYED))
        if message.state in (READY, DUE, DELAYED):
            message.state, message.reason = MOVING, ""

    @rule(rng=rngs)
    @precondition(lambda self: any(one.state == MOVING for one in self.messages.values()))
    def keep_after_all(self, rng: Random) -> None:
        message = rng.choice([one for one in self.messages.values() if one.state == MOVING])
        found = self.driver.lane.find(message.position)
        assert found is not None
        self.driver.lane.kept(*found, self.driver.now, self.driver.wall_ms)
        message.reason = ""
        rejected = self.conf.selector and message.tag != self.conf.selector
        if self.conf.last_value and message.position < self.newest:
            del self.messages[message.position]
        elif self.conf.selector and message.position > self.filtered:
            message.state = NEW
        elif rejected:
            del self.messages[message.position]
        else:
            self.let_in(message)

    @rule(rng=rngs)
    @precondition(lambda self: self.messages)
    def withdraw(self, rng: Random) -> None:
        message = rng.choice(list(self.messages.values()))
        found = self.driver.lane.find(message.position)
        assert found is not None
        self.driver.lane.withdraw(*found)
        if message.state != MOVING:
            message.state, message.reason = MOVING, ""
            for consumer in self.consumers.values():
                consumer.out.pop(message.position, None)

    @rule(rng=rngs)
    def configure(self, rng: Random) -> None:
        egress, max_unacked = rng.random() < 0.8, rng.choice([1, 4, 10_000])
        assert self.driver.configure(egress_enabled=egress, max_unacked=max_unacked) == []
        for consumer in self.consumers.values():
            consumer.max_unacked = min(consumer.asked or max_unacked, max_unacked)
        for message in self.messages.values():
            if message.state == DUE:
                self.admit(message)

    @rule(rng=rngs)
    def store(self, rng: Random) -> None:
        self.driver.store()
        self.stored = {position: copy.copy(one) for position, one in self.messages.items()}

    @rule(rng=rngs)
    def merge(self, rng: Random) -> None:
        segments = list(self.driver.lane.segments)
        pairs = [k for k in range(1, len(segments)) if segments[k - 1].last + 1 == segments[k].first]
        if not pairs:
            return
        self.store(rng)
        at = rng.choice(pairs)
        old = segments[at - 1 : at + 1]
        new = merged(self.driver, old)
        self.driver.lane.replace(old, new)
        for one in old:
            del self.driver.records[one.key()]
        self.driver.records[new.key()] = (new.pack(), new.pack_state())

    @rule(rng=rngs)
    def restart(self, rng: Random) -> None:
        clean = rng.random() < 0.5
        upto = self.driver.lane.delivered_upto
        self.driver.restart(clean=clean)
        if clean:
            for consumer in list(self.consumers.values())[::-1]:
                self.end(consumer)
            self.stored = {position: copy.copy(one) for position, one in self.messages.items()}
        self.recovered_upto = upto
        self.filtered = 0
        self.consumers.clear()
        self.messages = {position: copy.copy(one) for position, one in self.stored.items()}
        self.newest = 0
        # What a topic endpoint's selector let in is known again when it has examined everything again.
        if self.conf.last_value and not self.conf.selector:
            records = self.driver.records.items()
            self.newest = max([Segment.unpack(key, *one).last for key, one in records], default=0)
        for message in list(self.messages.values()):
            self.reload(message, 0 if clean else upto)
        if self.conf.last_value and not self.conf.selector:
            for message in list(self.messages.values()):
                if message.position < self.newest and message.state in WAITING:
                    del self.messages[message.position]

    def reload(self, message: Message, tried_upto: int) -> None:
        if message.state == MOVING and message.reason:
            message.told = False
            return
        message.reason = ""
        if message.position <= tried_upto:
            message.tries = max(message.tries, 1)
        if self.conf.selector:
            message.state = NEW
        else:
            self.admit(message)
        if message.tries and not self.conf.redelivery_enabled:
            self.kill(message, "redeliveries")

    # --- always ---------------------------------------------------------------------------------------------

    @invariant()
    def model_and_lane_agree(self) -> None:
        lane = self.driver.lane
        lane.validate()
        assert sorted(self.messages) == self.driver.positions()
        assert lane.messages == len(self.messages)
        assert lane.bytes == sum(one.size for one in self.messages.values())
        assert lane.unacked == sum(len(one.out) for one in self.consumers.values())
        names = {NEW: "filtering", READY: "ready", DUE: "delayed", DELAYED: "delayed", OUT: "unacked"}
        states = {one.position: names.get(one.state, "moving") for one in self.messages.values()}
        assert self.driver.states() == states
        for consumer in self.consumers.values():
            flow = lane.flows[consumer.flow]
            assert flow.active == (consumer.browser or consumer in self.active())
            assert (flow.messages_sent, flow.bytes_sent) == (consumer.sent, consumer.sent_bytes)
        assert list(lane.flows) == list(self.consumers)
