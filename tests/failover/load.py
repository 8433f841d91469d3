"""The clients of a pair under trouble: a program that is told on its standard input when to stop, and judges by sets.

    quiet    stop sending, take what comes until nothing more does, and say how much that was
    check    take all that there is, judge, and end

Each answer is one line of JSON. The program runs where the clients are, which may be another namespace.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import os
import ssl
import sys
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import aiohttp

import angarium
from angarium import errors
from tests.failover.pair import NODE, PASSWORD, USERNAME
from tests.failover.sets import Id, Objects, Operation, Queue, Reigns, Retained, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

TIMEOUT_S: Final = 10.0
#: Nobody is away for so long.
OUTAGE_S: Final = 180.0
KEEPALIVE_MS: Final = 1_000
PRODUCERS: Final = ("p1", "p2", "p3")
KEYS: Final = 16
#: Of the queues that are consumed: consumers of each.
PLAIN, SHARED, PARTED, TOPIC_ENDPOINT, KEPT = "plain", "shared", "parted", "endpoint", "kept"
CONSUMERS: Final = {PLAIN: 2, SHARED: 2, PARTED: 2, TOPIC_ENDPOINT: 1}
FILTER: Final = "load/>"
#: A consumer ends its flow and binds another one after so long; it keeps what it got for so long before it accepts it.
FLOW_S: Final = 4.0
WORK_S: Final = 0.01
BETWEEN_S: Final = 0.1
BURST: Final = 5
RETAINED_S, OBJECT_S, LOOK_S = 0.4, 1.5, 0.05
PROBE_S: Final = 0.1
#: A queue from which nothing comes for so long is empty.
IDLE_S: Final = 3.0
#: Families of errors that pass.
_PASSING: Final = (408, 429, 500, 503, 600)


class Load:
    """All clients."""

    def __init__(
        self, urls: dict[str, str], ca_file: str | None, stores: list[str], between_s: float = BETWEEN_S
    ) -> None:
        """Do nothing yet.

        Args:
            urls: address of each host.
            ca_file: the authority of their certificates.
            stores: addresses of the members of the outside store.
            between_s: between some messages of a producer and the next ones.
        """
        self._between_s = between_s
        self._urls = urls
        self._ca_file = ca_file
        self._stores = stores
        self.sent = Sent()
        self.queues = {name: Queue(name, is_ordered=name in (PLAIN, KEPT)) for name in (*CONSUMERS, KEPT)}
        self.retained = {name: Retained() for name in PRODUCERS}
        self.objects = Objects()
        self.operations: list[Operation] = []
        #: When producers, who have both addresses, saw that something was acknowledged.
        self.acknowledged_at: list[float] = []
        self.reigns = Reigns()
        #: What should not happen.
        self.failures: list[str] = []
        #: What may happen, by what it is.
        self.told: Counter[str] = Counter()
        self._is_quiet = False
        self._last_at = time.monotonic()

    def connect(self, *urls: str) -> Any:
        """Connect a client, to either host."""
        return angarium.connect(
            urls or list(self._urls.values()),
            username=USERNAME,
            password=PASSWORD,
            ca_file=self._ca_file,
            timeout_s=TIMEOUT_S,
            retry_for_s=OUTAGE_S,
            keepalive_ms=KEEPALIVE_MS,
        )

    async def set_up(self) -> None:
        """Make the endpoints."""
        async with self.connect() as client:
            for name in (PLAIN, SHARED, PARTED, KEPT):
                attributes: dict[str, Any] = {"subscriptions": [FILTER]}
                if name == PLAIN:
                    attributes["access_type"] = "exclusive"
                if name == PARTED:
                    attributes |= {"partition_count": 4, "partition_rebalance_delay_s": 0}
                await client.create_queue(name, ignore_exists=True, **attributes)
            await client.create_topic_endpoint(TOPIC_ENDPOINT, ignore_exists=True)
            async with client.consume(TOPIC_ENDPOINT, kind="topic-endpoint", topic=FILTER):
                pass

    # -- the life of the load ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send and take until it is told to be quiet, and judge when it is told to."""
        loop = asyncio.get_running_loop()
        await self.set_up()
        watching = [loop.create_task(self._guard("store", self._watch_store))]
        watching += [
            loop.create_task(self._guard(f"probe {host}", lambda host=host: self._probe(host)))  # type: ignore[misc]
            for host in self._urls
        ]
        sending = [
            loop.create_task(self._guard(name, lambda name=name: self._produce(name)))  # type: ignore[misc]
            for name in PRODUCERS
        ]
        sending.append(loop.create_task(self._guard("objects", self._make_objects)))
        consuming = [
            loop.create_task(self._guard(name, lambda name=name: self._consume(name)))  # type: ignore[misc]
            for name, count in CONSUMERS.items()
            for _ in range(count)
        ]
        say({"is_up": True})
        await self._told_to("quiet")
        self._is_quiet = True
        hangs = await self._end("sending", sending, OUTAGE_S)
        hangs += await self._end("consuming", consuming, OUTAGE_S)
        say({"is_quiet": True, "acknowledged": len(self.sent.acknowledged), "hangs": hangs})
        await self._told_to("check")
        for task in watching:
            task.cancel()
        # The producer at a host that is the standby now would wait for it.
        await asyncio.wait(watching, timeout=BETWEEN_S)
        verdict = await self._judge()
        verdict["failures"] = self.failures
        say(verdict)
        os._exit(0)

    async def _told_to(self, what: str) -> None:
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if line.strip() != what:
            raise SystemExit(f"told {line!r} instead of {what}")

    async def _end(self, what: str, tasks: list[asyncio.Task[None]], timeout_s: float) -> list[str]:
        """Wait for tasks; gives where those stand that do not end."""
        _, waiting = await asyncio.wait(tasks, timeout=timeout_s)
        found = []
        for task in waiting:
            stack = task.get_stack(limit=1)
            where = f"{stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else "?"
            found.append(f"{what}: {task.get_coro()} at {where}")
            task.cancel()
        return found

    async def _guard(self, what: str, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Live again after an error that passes, until it is quiet."""
        while True:
            try:
                await life()
            except errors.AngariumError as error:
                self.told[f"{what.split()[0]}: {error.code}"] += 1
                if error.code // 100 not in _PASSING:
                    self.failures.append(f"{what}: {error}")
                await asyncio.sleep(BETWEEN_S)
            except Exception:  # noqa: BLE001 - told at the end
                self.failures.append(f"{what}: {traceback.format_exc()[-600:]}")
                return
            else:
                return

    # -- sending -----------------------------------------------------------------------------------------------

    async def _produce(self, name: str) -> None:
        """Send as one named producer, with a retained message now and then."""
        numbers = itertools.count(
            max((one.number for one in self.sent.attempted if one.producer == name), default=-1) + 1
        )
        retained_at = 0.0
        async with self.connect() as client, client.producer(name) as producer:
            waiting: list[tuple[Id, Any]] = []
            keeping: list[tuple[int, Any]] = []
            while not self._is_quiet or waiting or keeping:
                if not self._is_quiet and len(waiting) < 100:
                    for number in itertools.islice(numbers, BURST):
                        one = Id(name, number)
                        self.sent.attempted.add(one)
                        key = str(number % KEYS)
                        receipt = await producer.send(
                            f"load/{name}/{key}", payload_of(one), partition_key=key
                        )
                        waiting.append((one, receipt))
                    if time.monotonic() > retained_at and len(keeping) < 10:
                        retained_at = time.monotonic() + RETAINED_S
                        kept = self.retained[name]
                        kept.sent += 1
                        receipt = await producer.send(f"keep/{name}", b"%d" % kept.sent, retain=True)
                        keeping.append((kept.sent, receipt))
                await asyncio.sleep(self._between_s)
                waiting = [(one, receipt) for one, receipt in waiting if not self._is_settled(one, receipt)]
                for number, receipt in keeping:
                    if receipt.done and receipt.error is None:
                        self.retained[name].acknowledged = max(number, self.retained[name].acknowledged)
                keeping = [(number, receipt) for number, receipt in keeping if not receipt.done]

    def _is_settled(self, one: Id, receipt: Any) -> bool:
        if not receipt.done:
            return False
        error = receipt.error
        if error is None:
            self.sent.acknowledged.add(one)
            self.acknowledged_at.append(time.monotonic())
            if receipt.unroutable:
                self.failures.append(f"{one} found no queue")
        else:
            self.told[f"nack: {error.code}"] += 1
            if error.code != errors.CLIENT_CLOSED:
                self.sent.refused[one] = error.code
        return True

    async def _make_objects(self) -> None:
        """Create a queue and delete the one before the last, again and again; what was not answered does not count."""
        async with self.connect() as client:
            for number in itertools.count(len(self.objects.created) * 10):
                if self._is_quiet:
                    return
                name = f"made-{number}"
                try:
                    await client.create_queue(name)
                    self.objects.created.add(name)
                    if number >= 2 and f"made-{number - 2}" in self.objects.created:
                        # Until it is answered nobody knows.
                        self.objects.created.discard(f"made-{number - 2}")
                        await client.delete_queue(f"made-{number - 2}")
                        self.objects.deleted.add(f"made-{number - 2}")
                except errors.AngariumError as error:
                    self.told[f"objects: {error.code}"] += 1
                    if error.code // 100 not in _PASSING:
                        self.failures.append(f"object {name}: {error}")
                await asyncio.sleep(OBJECT_S)

    # -- taking ------------------------------------------------------------------------------------------------

    async def _consume(self, name: str) -> None:
        """Take and accept, with a new flow from time to time, until it is quiet and nothing comes."""
        async with self.connect() as client:
            while not (self._is_quiet and time.monotonic() - self._last_at > IDLE_S):
                await self._consume_for(client, self.queues[name], FLOW_S)

    async def _consume_for(self, client: Any, queue: Queue, flow_s: float) -> None:
        kind = {"kind": "topic-endpoint", "topic": FILTER} if queue.name == TOPIC_ENDPOINT else {}
        flow = await client.consume(queue.name, ack="manual", **kind)
        accepted: list[tuple[Any, list[Id]]] = []
        reader = asyncio.get_running_loop().create_task(self._read(flow, queue, accepted))
        try:
            await asyncio.wait([reader], timeout=flow_s)
        finally:
            reader.cancel()
            await asyncio.wait([reader])
        window = flow._binding.window
        if await end_flow(flow):
            # What was accepted on an earlier bind may not have been told.
            queue.confirmed.update(one for bind, ids in accepted if bind is window for one in ids)
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error

    async def _read(self, flow: Any, queue: Queue, accepted: list[tuple[Any, list[Id]]]) -> None:
        async for batch in flow.batches():
            ids = [id_of(message.payload) for message in batch]
            for one, message in zip(ids, batch, strict=True):
                queue.take(one, redelivered=message.redelivered)
            self._last_at = time.monotonic()
            window = flow._binding.window
            await asyncio.sleep(WORK_S)
            if window is flow._binding.window:
                flow.accept(batch)
                accepted.append((window, ids))
                queue.accepted.update(ids)

    # -- watching ----------------------------------------------------------------------------------------------

    async def _probe(self, host: str) -> None:
        """Ask one host all the time: store a message, and get one back."""
        topic = f"probe/{host}/echo"
        async with (
            self.connect(self._urls[host]) as client,
            client.subscribe(topic) as echoes,
            client.producer(f"probe-{host}") as producer,
        ):
            for number in itertools.count():
                since = time.monotonic()
                await (await producer.send(f"probe/{host}/stored", b"%d" % number))
                self.operations.append(Operation(host, since, time.monotonic()))
                since = time.monotonic()
                await client.publish(topic, f"{since!r}".encode())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        async for message in echoes:
                            sent_at = float(bytes(message.payload))
                            self.operations.append(Operation(host, sent_at, time.monotonic()))
                            if sent_at == since:
                                break
                await asyncio.sleep(PROBE_S)

    async def _watch_store(self) -> None:
        """Read in the outside store who is the primary."""
        context = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else None
        key = base64.b64encode(f"angarium/{NODE}/standing".encode()).decode()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context or True)) as session:
            for store in itertools.cycle(self._stores):
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError, ValueError, IndexError):
                    while True:
                        await self._ask_store(session, f"{store}/v3/kv/range", key)
                        await asyncio.sleep(LOOK_S)
                await asyncio.sleep(LOOK_S)

    async def _ask_store(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        asked_at = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=1.0)
        async with session.post(url, data=json.dumps({"key": key}), timeout=timeout) as response:
            found = await response.json(content_type=None)
        answered_at = time.monotonic()
        if "kvs" not in found:
            raise ValueError("no standing")
        standing = json.loads(base64.b64decode(found["kvs"][0]["value"]))
        self.reigns.saw(standing["epoch"], standing["primary"], asked_at, answered_at)

    # -- the end -----------------------------------------------------------------------------------------------

    async def _judge(self) -> dict[str, Any]:
        """Take all that is left, and compare."""
        wrong: dict[str, Any] = {}
        async with self.connect() as client:
            for queue in self.queues.values():
                await self._drain(client, queue)
                if found := queue.judge(self.sent):
                    wrong[queue.name] = found
            there = set()
            for name in self.objects.created | self.objects.deleted:
                with contextlib.suppress(angarium.NotFoundError):
                    await client.show_queue(name)
                    there.add(name)
            wrong |= self.objects.judge(there)
            values = {message.topic: int(message.payload) async for message in client.retained("keep/>")}
            for name, kept in self.retained.items():
                wrong |= kept.judge(f"keep/{name}", values.get(f"keep/{name}"))
        wrong |= self.reigns.judge(self.operations)
        return {
            "attempted": len(self.sent.attempted),
            "acknowledged": len(self.sent.acknowledged),
            "refused": len(self.sent.refused),
            "queues": {queue.name: queue.figures() for queue in self.queues.values()},
            "objects": [len(self.objects.created), len(self.objects.deleted)],
            "retained": {name: kept.acknowledged for name, kept in self.retained.items()},
            "epochs": [[one.epoch, one.primary, round(one.since, 2)] for one in self.reigns.all],
            "seen_s": round(sum(one.until - one.since for one in self.reigns.all), 1),
            "told": dict(self.told),
            "wrong": wrong,
            "acknowledged_at": self.acknowledged_at,
        }

    async def _drain(self, client: Any, queue: Queue) -> None:
        """Take what is in a queue until nothing more comes."""
        self._last_at = time.monotonic()
        while time.monotonic() - self._last_at < IDLE_S:
            await self._consume_for(client, queue, IDLE_S)


async def end_flow(flow: Any) -> bool:
    """End a flow, and tell whether the node has answered: then it knows what was accepted."""
    binding = flow._binding
    if binding.closed:
        return False
    binding.tell()
    number = binding.window.flow
    binding.end(None)
    if not number:
        return False
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await binding._operations.ask(lambda session: session.guaranteed.unbind(number))
    except (TimeoutError, errors.AngariumError):
        return False
    return True


def payload_of(one: Id) -> bytes:
    """Give the payload of a message."""
    return f"{one.producer} {one.number}".encode()


def id_of(payload: Any) -> Id:
    """Give the message of a payload."""
    producer, number = bytes(payload).decode().split()
    return Id(producer, int(number))


def say(what: dict[str, Any]) -> None:
    """Answer."""
    print(json.dumps(what), flush=True)


def main() -> None:
    """Run the load as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", action="append", required=True, help="NAME=URL of a host")
    parser.add_argument("--ca-file")
    parser.add_argument("--store", action="append", required=True, help="address of a member of etcd")
    parser.add_argument("--between", type=float, default=BETWEEN_S, help="seconds between messages")
    options = parser.parse_args()
    urls = dict(one.split("=", 1) for one in options.url)
    asyncio.run(Load(urls, options.ca_file, options.store, options.between).run())


if __name__ == "__main__":
    main()
