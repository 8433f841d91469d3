"""Many quiet clients of our node and of the peers, one broker after the other, in every repetition from another one on.

A visit of a broker: it starts, some processes connect all clients, they are idle for a while, publish at each rate, and
come back after what they were connected to was killed. Every wait has a bound, and what was not reached is said in the
note of the row. The most connections take minutes, so they are visited once, whatever the repetitions.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.mosquitto import Mosquitto
from benchmarks.brokers.mqtt import mqtt_brokers
from benchmarks.brokers.nats import Nats
from benchmarks.brokers.rabbitmq import RabbitMq
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.crowd import plan
from benchmarks.crowd.people import People, warm_up
from benchmarks.crowd.task import LOOP, GroupTask
from benchmarks.figures import Better, Row, shortened
from benchmarks.harness import ClientProcess, calibrate, say, unique_prefix
from cluster.commands.bench.process import percentile

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.crowd.people import Loaded
    from benchmarks.crowd.plan import Comparison, Load
    from benchmarks.direct import Settings

#: Descriptors of a broker besides its connections.
SPARE_DESCRIPTORS: Final = 500
#: Visits with more connections take minutes, and are not repeated.
REPEATED_MAX: Final = 1_000
#: So long the broker is left alone with idle clients.
IDLE_S: Final = 3.0
MODULE: Final = "benchmarks.crowd."
#: So long it is looked at what else the machine does.
BUSY_LOOK_S: Final = 0.5
#: Client processes that use more of a core than this are the limit themselves.
BUSY_PART: Final = 0.9
#: Messages that left so late, or so few of those that are due, were not offered at the rate.
LATE_MS: Final = 100.0

#: A broker with so many connections.
Stop = tuple[str, int]


class Crowds:
    """The run that all rows share."""

    def __init__(self, directory: Path, settings: Settings, ours: str = plan.OURS) -> None:
        """Find out what is installed; nothing is started."""
        self._settings = settings
        self._ours = ours
        self._brokers = {broker.name: broker for broker in brokers_of(directory, ours)}
        peers = [name for name in plan.PEERS if name in settings.peers]
        self._missing = {name: lack for name in peers if (lack := self._brokers[name].missing())}
        #: Before each visit: the speed of the machine, and how many of its cores something else used.
        self._calibrations: list[float] = []
        self._busy: list[float] = []
        #: What a visit has shown, by figure: one value per repetition.
        self._figures: dict[Stop, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        #: What there is to say about a figure.
        self._notes: dict[Stop, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        #: What each load has shown, by its title.
        self._loaded: dict[Stop, dict[str, list[Loaded]]] = defaultdict(lambda: defaultdict(list))
        self._errors: dict[Stop, str] = {}

    def run(self) -> list[Row]:
        """Measure everything that the chosen rows need, and give them."""
        text, sizes = self._settings.rows, self._settings.crowds
        rows = [row for row in plan.comparisons(self._settings.peers, sizes, self._ours) if text in row.name]
        for size in sizes:
            self._visit_all(size, [row for row in rows if row.size == size])
        at_once = plan.AT_ONCE if self._ours == plan.OURS else ()
        loops = [one for one in at_once if text in plan.loop_name(one)]
        return [self._row(row) for row in rows] + self._loop_rows(loops)

    def versions(self) -> dict[str, str]:
        """Give the versions of what takes part."""
        names = (self._ours, *(name for name in plan.PEERS if name in self._settings.peers))
        return {name: self._brokers[name].version() for name in names if name not in self._missing}

    def conditions(self) -> str:
        """Say how steady the machine was during the runs."""
        if not self._busy:
            return "nothing was measured"
        return (
            f"a fixed loop ran at {min(self._calibrations):.0f} to {max(self._calibrations):.0f} million steps/s "
            f"before the visits, other programs used up to {max(self._busy):.1f} of {psutil.cpu_count()} cores then"
        )

    def _visit_all(self, size: int, rows: list[Comparison]) -> None:
        wanted: dict[str, set[str]] = {}
        for row in rows:
            for name in (row.ours, row.peer):
                if name and name not in self._missing:
                    wanted.setdefault(name, set()).add(row.figure)
        if lack := _allow_descriptors(size) if wanted else "":
            self._errors.update({(name, size): lack for name in wanted})
            return
        names = list(wanted)
        repetitions = 1 if size > REPEATED_MAX else self._settings.repetitions
        for repetition in range(repetitions):
            first = repetition * len(names) // repetitions
            for name in names[first:] + names[:first]:
                say(f"{repetition + 1}/{repetitions} {size:,} clients of {name}")
                self._visit((name, size), wanted[name])

    def _visit(self, stop: Stop, wanted: set[str]) -> None:
        """Start a broker, do with it what is wanted, and stop it."""
        name, size = stop
        broker = self._brokers[name]
        if stop in self._errors:
            return
        self._look_at_machine()
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(broker.stop)
                broker.start()
                module = MODULE + plan.module_of(self._ours, name)
                warm_up(broker, module)
                people = stack.enter_context(People(broker, module, size))
                self._stay(stop, wanted, broker, people)
        except BrokerFailedError as error:
            say(str(error))
            self._errors[stop] = error.summary

    def _stay(self, stop: Stop, wanted: set[str], broker: Broker, people: People) -> None:
        rss_before = people.rss_bytes()
        connected = people.connect()
        self._add(stop, plan.CONNECTS, connected.per_s, connected.lacking, connected.failures)
        if wanted & {plan.MEMORY, plan.IDLE}:
            rss = people.rss_bytes() - rss_before
            self._add(stop, plan.MEMORY, rss / max(1, connected.clients) / 1024, connected.lacking)
            before = sum(broker.cpu_s().values())
            time.sleep(IDLE_S)
            self._add(stop, plan.IDLE, (sum(broker.cpu_s().values()) - before) / IDLE_S * 100)
        loads = [load for load in plan.LOADS if any(one.startswith(load.title) for one in wanted)]
        if loads:
            people.publish_once_each()
        for load in loads:
            self._add_load(stop, load, people.publish(load, self._settings.seconds))
        if plan.STORM in wanted:
            back = people.storm()
            self._add(stop, plan.STORM, back.seconds, back.note)

    def _add(self, stop: Stop, figure: str, value: float, *notes: str) -> None:
        self._figures[stop][figure].append(value)
        said = [note for note in notes if note]
        say(f"    {figure}: {', '.join([f'{shortened(value):,g}', *said])}")
        self._notes[stop][figure] += said

    def _add_load(self, stop: Stop, load: Load, loaded: Loaded) -> None:
        """Note what one load has shown."""
        figures = {
            plan.P50: percentile(loaded.latencies_ns, 0.50) / 1_000,
            plan.P99: percentile(loaded.latencies_ns, 0.99) / 1_000,
            plan.REACHED: loaded.rate,
            plan.BROKER_CPU: loaded.us_per_message(loaded.broker_cpu_s),
        }
        for what, value in figures.items():
            self._add(stop, plan.figure_of(load, what), value, _note_of(loaded))
        self._loaded[stop][load.title].append(loaded)

    # -- the closed loop -----------------------------------------------------------------------------------------

    def _loop_rows(self, loops: list[int]) -> list[Row]:
        """Give the CPU time of the router per lone message, with so many under way."""
        found: dict[int, list[dict[str, float]]] = {at_once: [] for at_once in loops}
        error = ""
        if loops:
            say("closed loop of raw clients")
            try:
                self._run_loops(found)
            except BrokerFailedError as failure:
                say(str(failure))
                error = failure.summary
        return [
            Row(
                name=plan.loop_name(at_once),
                unit="us per message",
                better=Better.LOWER,
                ours=[one["router"] for one in some],
                note=_loop_note(some),
                error=error,
                details={"our_cpu_us_per_message": some[-1] if some else {}},
            )
            for at_once, some in found.items()
        ]

    def _look_at_machine(self) -> None:
        """Note how fast it is, and what else it does, while nothing of ours runs or has work."""
        self._busy.append(psutil.cpu_percent(BUSY_LOOK_S) / 100 * (psutil.cpu_count() or 1))
        self._calibrations.append(calibrate())

    def _run_loops(self, found: dict[int, list[dict[str, float]]]) -> None:
        broker = self._brokers[plan.OURS]
        with contextlib.ExitStack() as stack:
            stack.callback(broker.stop)
            broker.start()
            task = GroupTask(
                role=LOOP,
                module=MODULE + "closed_loop",
                url=broker.url,
                prefix=unique_prefix(),
                clients=plan.LOOP_CLIENTS,
            )
            loader = stack.enter_context(ClientProcess(broker, task)).wait_ready()
            self._look_at_machine()
            for _ in range(self._settings.repetitions):
                for at_once, some in found.items():
                    some.append(_loop_once(broker, loader, at_once, self._settings.seconds))
                    say(f"    {at_once}: {some[-1]}")

    # -- rows ------------------------------------------------------------------------------------------------

    def _row(self, row: Comparison) -> Row:
        ours, peer = (row.ours, row.size), (row.peer, row.size)
        title = row.figure.rpartition(", ")[0]
        is_missing = row.peer in self._missing
        notes = [
            f"{who}: {note}"
            for who, stop in (("ours", ours), (row.peer, peer))
            for note in dict.fromkeys(self._notes[stop][row.figure])
        ]
        details: dict[str, Any] = {
            "our_client": "gmqtt" if self._ours == plan.OURS_MQTT else "angarium",
            "peer_client": plan.client_of(self._ours, row.peer) if row.peer else "",
        }
        details["our_cpu_us_per_message"] = cpu_us_per_message(self._loaded[ours][title])
        details["peer_cpu_us_per_message"] = cpu_us_per_message(self._loaded[peer][title])
        return Row(
            name=row.name,
            unit=row.unit,
            better=row.better,
            ours=self._figures[ours][row.figure],
            peer=self._figures[peer][row.figure],
            against=row.peer,
            note="; ".join(notes),
            install=self._brokers[row.peer].install if is_missing else "",
            error="; ".join(self._errors[stop] for stop in (ours, peer) if stop in self._errors),
            details={name: value for name, value in details.items() if value},
        )


def brokers_of(directory: Path, ours: str) -> list[Broker]:
    """Give ours and the peers."""
    if ours == plan.OURS_MQTT:
        return mqtt_brokers(directory)
    return [Angarium(directory, 1, ours), Nats(directory), Mosquitto(directory), RabbitMq(directory)]


def cpu_us_per_message(loads: list[Loaded]) -> dict[str, float]:
    """Give CPU time per message by process of the broker, and of the clients: medians over repetitions."""
    roles = dict.fromkeys(role for loaded in loads for role in loaded.cpu_s)
    return {
        role: shortened(median(loaded.us_per_message(loaded.cpu_s.get(role, 0.0)) for loaded in loads))
        for role in roles
    }


def _note_of(loaded: Loaded) -> str:
    """Say what makes a figure of a load doubtful."""
    parts = []
    if loaded.received < loaded.sent:
        parts.append(f"{loaded.received:,} of {loaded.sent:,} messages came")
    if loaded.late_ms > LATE_MS or loaded.sent < loaded.due:
        parts.append(f"{loaded.sent:,} of {loaded.due:,} left, up to {loaded.late_ms:,.0f} ms late")
    if loaded.back:
        parts.append(f"{loaded.back:,} clients lost their connection")
    if loaded.busiest_part > BUSY_PART:
        parts.append(f"a client process used {loaded.busiest_part:.0%} of a core")
    return ", ".join(parts)


def _loop_once(broker: Broker, loader: ClientProcess, at_once: int, seconds: float) -> dict[str, float]:
    """Give CPU time per message by role, and how long a lap took at the median."""
    before = broker.cpu_s()
    loader.order(LOOP, at_once=at_once, seconds=seconds)
    figures = loader.result()
    spent = {role: total - before[role] for role, total in broker.cpu_s().items()}
    spent["client"] = figures["cpu_s"]
    each = {role: shortened(cpu_s / figures["messages"] * 1e6) for role, cpu_s in spent.items()}
    return {**each, "lap_us": shortened(figures["lap_us"]), "messages": figures["messages"]}


def _loop_note(some: list[dict[str, float]]) -> str:
    if not some:
        return ""
    last = some[-1]
    others = ", ".join(f"{role} {last[role]:g}" for role in ("worker", "client"))
    return f"{last['messages']:,} messages, a lap took {last['lap_us']:g} us (p50); CPU besides: {others}"


def _allow_descriptors(size: int) -> str:
    """Raise the limit of open files for what is started from here on; say what is in the way, if anything is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = size + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"{needed:,} open files are needed, the hard limit of this shell (ulimit -Hn) is {hard:,}"
    limit = needed if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return ""
