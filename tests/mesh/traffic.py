"""The clients of the mesh check: who publishes, subscribes and consumes at each node, and what they write down.

They are ordinary clients, which connect again by themselves, and decide nothing. Topics are `check/KIND/...`:

    direct      direct messages for plain subscribers
    shared      direct messages for share groups
    dto         direct deliver-to-one messages; the level after it says at which nodes there are candidates
    persistent  for queues, and for plain subscribers as copies
    copy        persistent messages that no queue wants
    part        persistent messages for a queue of one node
    both        persistent deliver-to-one messages, for queues and one client
    churn       persistent messages for subscriptions of queues and clients that come and go
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import angarium
from angarium import errors
from tests.mesh.history import (
    ALWAYS,
    DIRECT,
    GUARANTEED,
    PLAIN,
    SHARED,
    Log,
    Mark,
    Queue,
    Sent,
    Subscriber,
    Wish,
    World,
    key_of,
)

if TYPE_CHECKING:
    import random

    from angarium import Acknowledgement, Client, ClientEvent, Message, Subscription
    from tests.mesh.history import Key

CLIENTS: Final = 3
#: Each topic has so many last levels, so that every worker has some.
BRANCHES: Final = 8
#: Messages that are given to a client in one step, and the pause after them.
BURST: Final = (1, 12)
PAUSE_S: Final = (0.05, 0.4)
#: A burst may be so many times as long, and a message have so many bytes, once in so many.
LONG_BURST: Final = 20
LARGE_BYTES: Final = 20_000
RARELY: Final = 50
#: Between two changes of subscriptions that come and go.
CHURN_PAUSE_S: Final = (0.05, 1.0)
#: Nodes die for some seconds; nothing that clients ask for takes longer than this.
PATIENCE_S: Final = 120.0
CLOSE_S: Final = 10.0
DIRECT_KINDS: Final = ("direct", "direct", "shared", "dto", "dto")
GUARANTEED_KINDS: Final = ("persistent", "persistent", "copy", "part", "both", "churn")
DTO_KINDS: Final = ("dto", "both")
CHURN_QUEUE: Final = "churn"
CHURN: Final = tuple(f"check/churn/*/{branch}" for branch in range(BRANCHES))
#: Local and network priority of the subscribers of a node, and which of them always get deliver-to-one messages.
_PRIORITIES: Final = ((2, 1), (1, 2), (1, 1))


def scopes(nodes: list[str]) -> list[str]:
    """Give the names of sets of nodes that have candidates for deliver-to-one messages."""
    return ["any", *(f"at-{node}" for node in nodes), *(f"not-{node}" for node in nodes)]


def _is_in(node: str, scope: str) -> bool:
    how, _, name = scope.partition("-")
    return how == "any" or (how == "at") == (name == node)


def plan(nodes: list[str], links: list[tuple[str, str]]) -> World:
    """Give who there is in a mesh."""
    numbers = range(1, CLIENTS + 1)
    return World(
        {f"{node}.p{number}": node for node in nodes for number in numbers},
        tuple(
            Subscriber(f"{node}.s{number}", node, _wishes(node, number, nodes))
            for node in nodes
            for number in numbers
        )
        + tuple(
            Subscriber(f"{node}.churn", node, tuple(Wish(one, PLAIN) for one in CHURN)) for node in nodes
        ),
        tuple(queue for node in nodes for queue in _queues(node)),
        tuple(links),
    )


def topic_of(kind: str, publisher: str, nodes: list[str], rng: random.Random) -> str:
    """Give a topic for a message of a kind."""
    levels = ["check", kind]
    if kind in DTO_KINDS:
        levels.append(rng.choice(scopes(nodes)))
    elif kind == "part":
        levels.append(rng.choice(nodes))
    return "/".join([*levels, publisher, str(rng.randrange(BRANCHES))])


def _wishes(node: str, number: int, nodes: list[str]) -> tuple[Wish, ...]:
    candidates = [
        Wish(f"check/{kind}/{scope}/>", PLAIN)
        for kind in DTO_KINDS
        for scope in scopes(nodes)
        if _is_in(node, scope)
    ]
    team = Wish("#share/team/check/shared/>", SHARED)
    if number == 1:
        everything = [Wish(f"check/{kind}/>", PLAIN) for kind in ("direct", "persistent", "copy")]
        return (*everything, *candidates, team)
    if number == 2:
        return (Wish("check/direct/*/3", PLAIN), Wish("check/part/>", PLAIN), *candidates, team)
    always = [Wish(f"check/{kind}/>", ALWAYS) for kind in DTO_KINDS]
    return (*always, Wish("check/direct/*/5", PLAIN), team, Wish("#share/few/check/shared/*/1", SHARED))


def _queues(node: str) -> list[Queue]:
    attracted = ("check/persistent/>", "check/both/>")
    part = (f"check/part/{node}/>", f"!check/part/{node}/*/7")
    return [
        Queue(node, "live", attracted, is_live=True),
        Queue(node, "final", attracted),
        Queue(node, "part", part),
        Queue(node, CHURN_QUEUE, CHURN, is_loose=True),
    ]


#: Where clients connect: the address of a node, and whom to trust there if it encrypts.
Place = tuple[str, Path | None]


class Party:
    """What all clients have: a connection, a log, and what went wrong for good."""

    def __init__(self, folder: Path, name: str, place: Place, troubles: list[str]) -> None:
        self.name = name
        self.log = Log(folder, name)
        self._place = place
        self._troubles = troubles
        self.client: Client | None = None

    async def connect(self, **options: Any) -> Client:
        """Connect, for as long as the check runs."""
        url, ca_file = self._place
        self.client = await angarium.connect(
            url, ca_file=ca_file, on_event=self.happened, timeout_s=PATIENCE_S, **options
        )
        return self.client

    def happened(self, event: ClientEvent) -> None:
        """Note what the client tells."""
        self.log.write("event", self.name, event.kind, event.code, event.detail)
        if event.kind in ("failed", "producer_failed", "flow_failed"):
            self._troubles.append(f"{self.name}: {event.kind} {event.code} {event.detail}")

    def failed(self, error: BaseException) -> None:
        """Note that a task of a client ended by an error."""
        self._troubles.append(f"{self.name}: {error!r}")

    async def close(self) -> None:
        """Disconnect; nothing happens the second time."""
        client, self.client = self.client, None
        if client is not None:
            await client.close()
            self.log.close()


class Publisher(Party):
    """Publishes bursts of messages of all kinds until it is told to stop."""

    def __init__(
        self,
        folder: Path,
        name: str,
        place: Place,
        troubles: list[str],
        nodes: list[str],
        rng: random.Random,
        rate: float,
    ) -> None:
        super().__init__(folder, name, place, troubles)
        self._rate = rate
        self._nodes = nodes
        self._random = rng
        self._numbers = {DIRECT: 0, GUARANTEED: 0}
        self._epoch = 0
        #: Sequence -> number of what is not settled.
        self._unsettled: dict[int, int] = {}
        self._producer: Any = None
        self.is_probing = False
        #: What it sent since somebody wanted to know; None if nobody does.
        self.recent: dict[Key, Sent] | None = None

    async def start(self) -> None:
        """Connect, and open the producer."""
        client = await self.connect(client_name=self.name)
        self._producer = await client.producer(f"mesh/{self.name}", on_ack=self._acknowledged)

    def happened(self, event: ClientEvent) -> None:
        """Another connection, another epoch; what is not settled is sent again."""
        super().happened(event)
        if event.kind in ("disconnected", "reconnected"):
            self._epoch += 1
            self.log.write("repeated", self.name, list(self._unsettled.values()))

    def _acknowledged(self, ack: Acknowledgement) -> None:
        refused = {sequence: self._unsettled.pop(sequence) for sequence, _ in ack.refused}
        settled = [sequence for sequence in self._unsettled if sequence <= ack.upto]
        if settled:
            self.log.write("acknowledged", self.name, [self._unsettled.pop(one) for one in settled])
        if refused:
            codes = {refused[sequence]: error.code for sequence, error in ack.refused}
            self.log.write("refused", self.name, list(refused.values()), codes)

    async def publish(self, kinds: tuple[str, ...], stop: asyncio.Event) -> None:
        """Publish bursts of some kinds until it is time to stop."""
        rng = self._random
        while not stop.is_set():
            for _ in range(rng.randint(*BURST) * (1 if rng.randrange(RARELY) else LONG_BURST)):
                await self.send(rng.choice(kinds))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rng.uniform(*PAUSE_S) / self._rate)

    async def send(self, kind: str) -> None:
        """Publish one message of a kind."""
        assert self.client is not None
        stream = GUARANTEED if kind in GUARANTEED_KINDS else DIRECT
        if stream == DIRECT and not self.client.connected:
            return  # the client would keep it, and its mark would say the wrong connection
        topic = topic_of(kind, self.name, self._nodes, self._random)
        is_dto = kind in DTO_KINDS
        number = self._numbers[stream]
        self._numbers[stream] += 1
        mark = Mark(self.name, stream, number, self._epoch)
        size = 0 if self._random.randrange(RARELY) else LARGE_BYTES
        sent = Sent(topic, is_dto, self.is_probing)
        if self.recent is not None:
            self.recent[self.name, stream, number] = sent
        self.log.write("sent", self.name, stream, number, self._epoch, *sent)
        if stream == DIRECT:
            await self.client.publish(topic, mark.payload(size), dto=is_dto)
        else:
            receipt = await self._producer.send(topic, mark.payload(size), dto=is_dto)
            if not receipt.done:
                self._unsettled[receipt.sequence] = number

    async def probe(self, count: int, *, counts: bool) -> None:
        """Publish some messages of every kind; if it counts everybody has to get what is his."""
        self.is_probing = counts
        for _ in range(count):
            for kind in dict.fromkeys((*DIRECT_KINDS, *GUARANTEED_KINDS)):
                await self.send(kind)
        self.is_probing = False

    async def settled(self) -> None:
        """Wait until everything is acknowledged or refused."""
        assert self.client is not None
        await self._producer.flush(PATIENCE_S)
        with contextlib.suppress(
            errors.ConnectionLostError
        ):  # tells of direct messages that were lost before
            await self.client.flush(PATIENCE_S)

    @property
    def sent(self) -> int:
        """Count what it sent."""
        return sum(self._numbers.values())

    @property
    def unsettled(self) -> int:
        """Count what is neither acknowledged nor refused."""
        return len(self._unsettled)

    def tasks(self, stop: asyncio.Event) -> list[asyncio.Task[None]]:
        """Publish both streams at the same time."""
        return [
            asyncio.create_task(self.publish(kinds, stop), name=f"{self.name} {kinds[0]}")
            for kinds in (DIRECT_KINDS, GUARANTEED_KINDS)
        ]


class Watcher(Party):
    """A subscriber: notes what comes."""

    def __init__(self, folder: Path, who: Subscriber, place: Place, troubles: list[str]) -> None:
        super().__init__(folder, who.name, place, troubles)
        self._who = who
        number = who.name.rpartition(".s")[2]
        local, network = _PRIORITIES[int(number) - 1] if number.isdigit() else (1, 1)
        self._options = {"local_priority": local, "network_priority": network}
        self._connection = 0
        self.got = 0
        #: What it got since somebody wanted to know; None if nobody does.
        self.recent: set[Key] | None = None

    async def start(self) -> None:
        """Connect and subscribe."""
        client = await self.connect(client_name=self.name, **self._options)
        by_kind = {how: [w.filter for w in self._who.wishes if w.how == how] for how in (PLAIN, ALWAYS)}
        for how, filters in by_kind.items():
            if filters:
                await client.subscribe(
                    filters, deliver_always=how == ALWAYS, callback=partial(self._take, how)
                )
        for wish in self._who.wishes:
            if wish.how == SHARED:
                await client.subscribe(wish.filter, callback=partial(self._take, SHARED))

    def happened(self, event: ClientEvent) -> None:
        """Another connection."""
        super().happened(event)
        self._connection += event.kind == "disconnected"

    def _take(self, how: str, message: Message) -> None:
        mark = Mark.of(message.payload)
        self.got += 1
        if self.recent is not None:
            self.recent.add(key_of(mark))
        self.log.write("got", self.name, mark, message.topic, message.share or how, self._connection)


class Churner(Watcher):
    """A subscriber whose subscriptions, and those of a queue, come and go until it is told to stop."""

    def __init__(
        self, folder: Path, who: Subscriber, place: Place, troubles: list[str], rng: random.Random
    ) -> None:
        super().__init__(folder, who, place, troubles)
        self._random = rng
        self._subscriptions: dict[str, Subscription] = {}

    async def start(self) -> None:
        """Connect, and let everything be in force."""
        await self.connect(client_name=self.name)
        await self._restore()

    async def churn(self, stop: asyncio.Event) -> None:
        """Change subscriptions until it is time to stop; then all are in force again."""
        rng = self._random
        while not stop.is_set():
            with contextlib.suppress(errors.AngariumError):  # the node is down, or a part of it
                await self._change(rng.choice(CHURN), is_of_queue=rng.random() < 0.6)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rng.uniform(*CHURN_PAUSE_S))
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                return await self._restore()
            except errors.AngariumError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.5)

    async def _change(self, text: str, *, is_of_queue: bool) -> None:
        assert self.client is not None
        if is_of_queue and self._random.random() < 0.5:
            await self.client.remove_queue_subscription(CHURN_QUEUE, text)
        elif is_of_queue:
            await self.client.add_queue_subscription(CHURN_QUEUE, text)
        elif text in self._subscriptions:
            await self._subscriptions.pop(text).close()
        else:
            await self._subscribe(text)

    async def _subscribe(self, text: str) -> None:
        assert self.client is not None
        subscription = await self.client.subscribe(text, callback=partial(self._take, PLAIN))
        self._subscriptions[text] = subscription

    async def _restore(self) -> None:
        assert self.client is not None
        for text in CHURN:
            if text not in self._subscriptions:
                await self._subscribe(text)
        await self.client.add_queue_subscription(CHURN_QUEUE, *CHURN)


class Consumer(Party):
    """Consumes a queue, and accepts everything."""

    def __init__(self, folder: Path, queue: Queue, place: Place, troubles: list[str]) -> None:
        super().__init__(folder, queue.key, place, troubles)
        self._queue = queue
        #: When something came last, by the clock of the loop.
        self.last = 0.0
        self.taken: set[tuple[str, int]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._flow: Any = None

    async def start(self) -> None:
        """Connect, bind and read."""
        client = await self.connect()
        self._flow = await client.consume(self._queue.name, ack="manual")
        self.last = asyncio.get_running_loop().time()
        self._reading = asyncio.create_task(self._read(), name=self.name)

    async def _read(self) -> None:
        async for batch in self._flow.batches():
            self.last = asyncio.get_running_loop().time()
            for message in batch:
                mark = Mark.of(message.payload)
                self.taken.add((mark.publisher, mark.number))
                self.log.write("taken", self.name, mark, message.topic, message.position, message.redelivered)
            self._flow.accept(batch)

    async def close(self) -> None:
        """Say what was accepted, and disconnect."""
        flow, self._flow = self._flow, None
        if flow is not None and self._reading is not None:
            await flow.close(CLOSE_S)
            try:
                await asyncio.wait_for(self._reading, CLOSE_S)
            except (TimeoutError, asyncio.CancelledError):
                pass
            except Exception as error:  # noqa: BLE001 - told with the verdict
                self.failed(error)
        await super().close()
