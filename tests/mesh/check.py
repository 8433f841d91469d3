"""Disturbs a mesh of real nodes while clients use it, and judges what they saw: the program behind scripts/mesh-check.

start the nodes, joined through paths that can be cut
──► clients publish, subscribe and consume; everybody hears everybody
──► paths are cut and healed, processes are killed
──► all is healed: what is sent now comes to everybody
──► all queues are drained, and the checker reads the logs of all clients
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.crash.breaking import describe
from tests.mesh.checker import Finding, Findings, check, deaf, wanted
from tests.mesh.delay_proxy import DelayProxy
from tests.mesh.disturbing import Disturber
from tests.mesh.history import History, Log, Queue, read_history
from tests.mesh.traffic import CHURN, PATIENCE_S, Churner, Consumer, Place, Publisher, Watcher, plan
from tests.mesh.trial import NODES_MAX, TOPOLOGIES, Trial, pairs_of

if TYPE_CHECKING:
    from angarium_server.testing import Node

#: Everybody hears everybody within this time, when nothing is disturbed.
QUIET_S: Final = 60.0
ROUND_S: Final = 3.0
PROBES: Final = 10
#: A queue that gave all that it has to have, and from which nothing more comes for so long, is empty.
DRAINED_S: Final = 2.0
#: What did not come within this time is lost.
LOST_S: Final = 40.0
PROGRESS_S: Final = 5.0
#: Findings of each rule that are shown.
SHOWN: Final = 5


class MeshCheck:
    """One run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._options = options
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self._seed: int = options.seed
        self._started = time.monotonic()
        self.trial = Trial(folder / "nodes", options.nodes, options.workers, is_encrypted=options.encrypted)
        self._pairs = pairs_of(options.topology, options.nodes)
        names = [node.data.name for node in self.trial.nodes]
        self.world = plan(names, [(names[one], names[two]) for one, two in self._pairs])
        self.world.write(self.logs)
        self._own = Log(self.logs, "check")
        #: What went wrong besides what the checker finds.
        self.troubles: list[str] = []
        self.faults: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self._paths: dict[tuple[int, int], DelayProxy] = {}
        self._publishers: list[Publisher] = []
        self._watchers: list[Watcher] = []
        self._churners: list[Churner] = []
        self._consumers: list[Consumer] = []

    def say(self, text: str) -> None:
        """Tell what goes on, on standard error and in the logs."""
        self._own.write("note", "check", text)
        print(f"{time.monotonic() - self._started:6.1f} s  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Let go of the log of the check itself."""
        self._own.close()

    async def run(self, seconds: float) -> History:
        """Do it all.

        Raises:
            NodeFailedError, TimeoutError: nodes or clients do not come up, or back.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._start_nodes(stack)
            await self._start_clients(stack)
            await self._disturb(seconds)
            await self._come_to_rest()
            return await self._drain()

    # -- start -------------------------------------------------------------------------------------------------

    async def _start_nodes(self, stack: contextlib.AsyncExitStack) -> None:
        nodes = self.trial.nodes
        await asyncio.gather(*[asyncio.to_thread(node.start) for node in nodes])
        for node in nodes:
            self._places[node.data.name] = (node.url, self.trial.ca_file)
        for low, high in self._pairs:  # the node with the higher name opens the link
            path = DelayProxy(nodes[low].url)
            self._paths[high, low] = await stack.enter_async_context(path)
        scheme = nodes[0].url.partition("://")[0]
        addresses = {pair: f"{scheme}://{path.url.partition('://')[2]}" for pair, path in self._paths.items()}
        await asyncio.to_thread(self.trial.join, self._pairs, addresses)
        await asyncio.to_thread(self._limit_link_queues)
        await asyncio.gather(*[asyncio.to_thread(self._make_queues, node.data.name) for node in nodes])
        self.say(f"{len(nodes)} nodes are up, with {len(self._pairs)} links")

    def _limit_link_queues(self) -> None:
        size = self._options.link_queue_mb
        for one, two in self._pairs if size else ():
            for here, there in ((one, two), (two, one)):
                name = f"#link/{self.trial.name(there)}"
                self.trial.nodes[here].run("queue", "update", name, "--set", f"max_spool_usage_mb={size}")

    def _make_queues(self, name: str) -> None:
        node = next(node for node in self.trial.nodes if node.data.name == name)
        for queue in self.world.queues:
            if queue.node == name:
                fixed = () if queue.is_loose else queue.filters
                filters = [part for one in fixed for part in ("--subscription", one)]
                node.run("queue", "create", queue.name, *filters)

    async def _start_clients(self, stack: contextlib.AsyncExitStack) -> None:
        names = list(self._places)
        for subscriber in self.world.subscribers:
            place = self._places[subscriber.node]
            if subscriber.name.endswith(".churn"):
                rng = random.Random(f"{subscriber.name} {self._seed}")
                churner = Churner(self.logs, subscriber, place, self.troubles, rng)
                self._churners.append(churner)
                self._watchers.append(churner)
            else:
                self._watchers.append(Watcher(self.logs, subscriber, place, self.troubles))
        for queue in self.world.queues:
            if queue.is_live:
                self._consumers.append(Consumer(self.logs, queue, self._places[queue.node], self.troubles))
        for name, node in self.world.publishers.items():
            rng = random.Random(f"{name} {self._seed}")
            place, rate = self._places[node], self._options.rate
            self._publishers.append(Publisher(self.logs, name, place, self.troubles, names, rng, rate))
        parties: list[Watcher | Consumer | Publisher] = [*self._watchers, *self._consumers, *self._publishers]
        for party in parties:
            await party.start()
            stack.push_async_callback(party.close)
        await self._hear(QUIET_S)
        self.say(f"{len(self._publishers)} publishers and {len(self._watchers)} subscribers hear each other")

    async def _hear(self, timeout_s: float) -> None:
        """Publish some messages of every kind, again and again, until everybody gets what is his."""
        deadline = time.monotonic() + timeout_s
        while (
            missing := await self._probe(1, counts=False, timeout_s=ROUND_S)
        ) and time.monotonic() < deadline:
            continue
        if missing:
            self.troubles.append(f"not everybody hears everybody after {timeout_s:g} s: {missing[:SHOWN]}")

    async def _probe(self, count: int, *, counts: bool, timeout_s: float) -> list[Finding]:
        """Publish some messages of every kind, and give who did not get them in time."""
        for publisher in self._publishers:
            publisher.recent = {}
        for watcher in self._watchers:
            watcher.recent = set()
        await asyncio.gather(*[one.probe(count, counts=counts) for one in self._publishers])
        deadline = time.monotonic() + timeout_s
        while (missing := self._missing()) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        for publisher in self._publishers:
            publisher.recent = None
        for watcher in self._watchers:
            watcher.recent = None
        return missing

    def _missing(self) -> list[Finding]:
        return [
            finding
            for publisher in self._publishers
            for key, sent in (publisher.recent or {}).items()
            for finding in deaf(
                self.world, key, sent, {one.name for one in self._watchers if key in (one.recent or ())}
            )
        ]

    # -- disturbing --------------------------------------------------------------------------------------------

    async def _disturb(self, seconds: float) -> None:
        stop = asyncio.Event()
        longest_s = self._options.longest_cut
        disturber = Disturber(self.trial.nodes, self._paths, self._seed, longest_s, self.say)
        self.faults = disturber.done
        publishing = [task for one in self._publishers for task in one.tasks(stop)]
        publishing += [asyncio.create_task(one.churn(stop), name=one.name) for one in self._churners]
        disturbing = asyncio.create_task(disturber.disturb(stop))
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0 and not disturbing.done():
            await asyncio.sleep(min(PROGRESS_S, left_s))
            self.say(self._progress())
        stop.set()
        await disturbing
        self.say("everything is healed")
        self._look_after(await asyncio.wait(publishing, timeout=PATIENCE_S))

    def _look_after(self, ended: tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]) -> None:
        done, pending = ended
        for task in pending:
            self.troubles.append(f"{task.get_name()} did not end")
            task.cancel()
        self.troubles += [f"{task.get_name()}: {task.exception()!r}" for task in done if task.exception()]

    def _progress(self) -> str:
        sent = sum(one.sent for one in self._publishers)
        got = sum(one.got for one in self._watchers)
        taken = sum(len(one.taken) for one in self._consumers)
        unsettled = sum(one.unsettled for one in self._publishers)
        faults = sum(self.faults.values())
        return (
            f"{sent:,} sent, {got:,} got, {taken:,} taken from queues, {unsettled} unsettled, {faults} faults"
        )

    # -- the end -----------------------------------------------------------------------------------------------

    async def _come_to_rest(self) -> None:
        """Wait until all nodes, links and publishers are well; then everybody has to get everything."""
        nodes = self.trial.nodes
        ready = "all processes are ready"
        await asyncio.gather(
            *[asyncio.to_thread(node.wait_for, ready, _is_ready, PATIENCE_S) for node in nodes]
        )
        await asyncio.to_thread(self._wait_for_links)
        for publisher in self._publishers:
            try:
                await publisher.settled()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the verdict
                publisher.failed(error)
        self.say("all links are up, all publishers are settled")
        await self._hear(QUIET_S)
        missing = await self._probe(PROBES, counts=True, timeout_s=ROUND_S)
        self.say(
            f"{PROBES} probes of each kind: {len(missing)} missing"
            if missing
            else "everybody hears everybody"
        )
        for publisher in self._publishers:
            await publisher.settled()

    def _wait_for_links(self) -> None:
        """Wait until links are up, and nodes know what endpoints of their neighbours want."""
        deadline = time.monotonic() + QUIET_S
        for one, two in self._pairs:
            for here, there in ((one, two), (two, one)):
                while missing := self._lacks(here, there):
                    if time.monotonic() > deadline:
                        self.troubles.append(f"{self.trial.name(here)}: {missing}")
                        break
                    time.sleep(0.2)

    def _lacks(self, here: int, there: int) -> str:
        """Tell what is wrong with a link on one side; empty if nothing is."""
        link = self.trial.link(here, there)
        if link["state"] != "up":
            return f"link {link}"
        name = f"#link/{self.trial.name(there)}"
        queue = json.loads(self.trial.nodes[here].run("queue", "show", name, "--json"))
        missing = [text for text in CHURN if text not in queue["client_subscriptions"]]
        return f"queue {name} does not attract {missing}" if missing else ""

    async def _drain(self) -> History:
        """Consume all that the queues hold, and put the logs together."""
        for party in (*self._publishers, *self._watchers):
            await party.close()
        history = read_history(self.logs, list(self.world.publishers))
        await asyncio.gather(*[self._empty(queue, wanted(history, queue)) for queue in self.world.queues])
        await asyncio.to_thread(self._look_for_leftovers)
        self.say("all queues are drained")
        return read_history(self.logs)

    async def _empty(self, queue: Queue, expected: set[tuple[str, int]]) -> None:
        consumer = next((one for one in self._consumers if one.name == queue.key), None)
        if consumer is None:
            consumer = Consumer(self.logs, queue, self._places[queue.node], self.troubles)
            await consumer.start()
        loop = asyncio.get_running_loop()
        while loop.time() - consumer.last < (DRAINED_S if expected <= consumer.taken else LOST_S):
            await asyncio.sleep(0.1)
        await consumer.close()

    def _look_for_leftovers(self) -> None:
        """Whatever a queue of a link holds now was not carried over."""
        for node in self.trial.nodes:
            for line in node.run("queue", "list", "--json").splitlines():
                queue = json.loads(line)
                if queue["messages_spooled"]:
                    name, count = queue["name"], queue["messages_spooled"]
                    self.troubles.append(f"{node.data.name}: queue {name} still has {count} messages")


def _is_ready(status: dict[str, Any]) -> bool:
    return {row["state"] for row in status["processes"]} == {"ready"}


def verdict_of(
    run: MeshCheck, history: History, found: Findings, options: argparse.Namespace
) -> dict[str, Any]:
    """Put together what a run was and what it showed."""
    if history.refused and not options.link_queue_mb:
        run.troubles.append(f"{len(history.refused)} messages were refused")
    is_bad = bool(run.troubles or any(found.values()))
    return {
        "seed": options.seed,
        "topology": options.topology,
        "nodes": options.nodes,
        "minutes": options.minutes,
        "more": f"--workers {options.workers} --rate {options.rate:g} --longest-cut {options.longest_cut:g}"
        f" --link-queue-mb {options.link_queue_mb}" + " --encrypted" * options.encrypted,
        "faults": describe(run.faults),
        "sent": len(history.sent),
        "got": sum(map(len, history.got.values())),
        "acknowledged": len(history.acknowledged),
        "refused": len(history.refused),
        "taken": sum(map(len, history.taken.values())),
        "checks": {rule: len(findings) for rule, findings in found.items()},
        "examples": [list(one) for findings in found.values() for one in findings[:SHOWN]],
        "troubles": run.troubles[: 4 * SHOWN],
        "logs": str(run.folder) if is_bad or options.keep else None,
        "verdict": "bad" if is_bad else "good",
    }


def perform(options: argparse.Namespace) -> dict[str, Any]:
    """Run once; the folder goes if all is well."""
    folder = Path(tempfile.mkdtemp(prefix="angarium-mesh-", dir=options.data))
    run = MeshCheck(folder, options)
    try:
        try:
            history = asyncio.run(run.run(options.minutes * 60))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - told with the verdict
            run.troubles.insert(0, f"broken off, so what is lost is not judged: {error!r}")
            history = read_history(run.logs)
            history.acknowledged.clear()
    finally:
        run.close()
        with ThreadPoolExecutor() as pool:
            list(pool.map(_stop, run.trial.nodes))
    verdict = verdict_of(run, history, check(history), options)
    if verdict["logs"] is None:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _stop(node: Node) -> None:
    with contextlib.suppress(Exception):
        node.stop()
    node.kill_all()


def tell(verdict: dict[str, Any]) -> None:
    """Print the verdict for people."""
    names = ("sent", "got", "acknowledged", "refused", "taken")
    print(", ".join(f"{verdict[name]:,} {name}" for name in names), file=sys.stderr)
    print("faults: " + ", ".join(f"{n} x {what}" for what, n in verdict["faults"].items()), file=sys.stderr)
    for rule, count in verdict["checks"].items():
        print(f"  {rule:<13} {count or 'none'}", file=sys.stderr)
    for rule, who, what in verdict["examples"]:
        print(f"  {rule}: {who}: {what}", file=sys.stderr)
    for trouble in verdict["troubles"]:
        print(f"  trouble: {trouble}", file=sys.stderr)
    if verdict["logs"] is not None:
        again = f"scripts/mesh-check --minutes {verdict['minutes']:g} --seed {verdict['seed']}"
        again += f" --topology {verdict['topology']} --nodes {verdict['nodes']} {verdict['more']}"
        print(f"logs of clients and nodes: {verdict['logs']}\nagain: {again}", file=sys.stderr)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/mesh-check", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="of disturbance [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="chooses messages and faults [%(default)s]")
    parser.add_argument("--topology", choices=TOPOLOGIES, default="full", help="[%(default)s]")
    parser.add_argument("--nodes", type=int, default=3, help=f"2 to {NODES_MAX} [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="of each node [%(default)s]")
    parser.add_argument(
        "--rate", type=float, default=1.0, help="so many times the usual messages [%(default)g]"
    )
    parser.add_argument(
        "--longest-cut", type=float, default=6.0, metavar="S", help="of a path, in seconds [%(default)g]"
    )
    parser.add_argument(
        "--link-queue-mb", type=int, default=0, metavar="N", help="quota of the queues of links, to fill them"
    )
    parser.add_argument(
        "--data", type=Path, help="where the folder of the run is made, by default the system's"
    )
    parser.add_argument("--encrypted", action="store_true", help="links and clients use TLS")
    parser.add_argument("--keep", action="store_true", help="keep the folder also if all is well")
    parser.add_argument("--json", action="store_true", help="the verdict as one line of JSON")
    options = parser.parse_args(arguments)
    if not 2 <= options.nodes <= NODES_MAX:
        parser.error(f"{options.nodes} nodes: 2 to {NODES_MAX} are possible")
    if min(options.workers, options.rate, options.longest_cut) <= 0:
        parser.error("--workers, --rate and --longest-cut are more than 0")
    return options


def main() -> int:
    """Run as the command line says."""
    options = read_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        verdict = perform(options)
    except KeyboardInterrupt:
        print("stopped before there was a verdict", file=sys.stderr)
        return 1
    tell(verdict)
    print(json.dumps(verdict) if options.json else f"verdict: {verdict['verdict']}", flush=True)
    return int(verdict["verdict"] != "good")


if __name__ == "__main__":
    sys.exit(main())
