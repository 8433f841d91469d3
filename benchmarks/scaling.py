"""How the cost of a mesh grows with its nodes, counted by `scripts/scaling`: state machines without sockets.

The state machines of all nodes run in this process, each with one client that holds some subscriptions, and a hand
carries every frame of every link, and counts it. CPU time is that of routers, workers and links alone, not of the hand.

    start     all nodes have their subscriptions; then all links come up at once
    rejoin    one node is there again without any memory, with the same subscriptions; its links come up again
    change    a client of one node subscribes to one filter more
    idle      one second in which nothing happens
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.scaling_chart import Line, draw
from tests.unit.router.wired_mesh import WiredLink, WiredMesh, make_node

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from tests.unit.router.wired_node import FakeClient, WiredNode

ROOT: Final = Path(__file__).resolve().parents[1]
NODES: Final = (5, 10, 20, 35, 50)
SUBSCRIPTIONS: Final = 1_000
#: Filters of one SUBSCRIBE of a client.
_PER_REQUEST: Final = 250
#: The side of a link that is another node.
_FAR: Final = 1
_CHANGES: Final = 5
_IDLE_S: Final = 4.0


@dataclass
class Cost:
    """What a phase cost the whole mesh."""

    #: Multiparts between nodes, and what is in them; those between a link process and its own router do not count.
    frames: int = 0
    bytes: int = 0
    #: Of routers and workers, and of links.
    node_cpu_s: float = 0.0
    link_cpu_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """CPU seconds of everything."""
        return self.node_cpu_s + self.link_cpu_s


class CountedLink(WiredLink):
    """A link whose frames are counted."""

    def __init__(self, own: WiredNode, far: WiredNode, cost: Cost) -> None:
        """Join two nodes; the first one opens the link."""
        self.cost = cost
        super().__init__(own, far)

    def _to_node(self, side: int, client: FakeClient, outgoing: deque[list[bytes]]) -> None:
        self._count(side, outgoing)
        began = time.process_time()
        super()._to_node(side, client, outgoing)
        self.cost.node_cpu_s += time.process_time() - began

    def _to_link(self, side: int, client: FakeClient) -> None:
        self._count(side, client.received)
        began = time.process_time()
        super()._to_link(side, client)
        self.cost.link_cpu_s += time.process_time() - began

    def _count(self, side: int, multiparts: deque[list[bytes]]) -> None:
        if side == _FAR:
            self.cost.frames += len(multiparts)
            self.cost.bytes += sum(len(frame) for frames in multiparts for frame in frames)


class CountedMesh(WiredMesh):
    """A full mesh whose links come up when they are told to."""

    def __init__(self, count: int, subscriptions: int) -> None:
        """Make the nodes, each with a client and its subscriptions, and no link."""
        self.cost = Cost()
        self._subscriptions = subscriptions
        self.names = [f"n{number:02d}" for number in range(count)]
        self.links = {}
        self.nodes = {name: self._make(name) for name in self.names}

    def _make(self, name: str) -> WiredNode:
        node = make_node(name, self.names)
        self._holder = client = node.client()
        filters = [
            f"{name}/a/{number}/b" if number % 2 else f"{name}/a/*/c{number}"
            for number in range(self._subscriptions)
        ]
        for first in range(0, len(filters), _PER_REQUEST):
            node.now += 0.1  # more at once would be refused
            client.subscribe(*filters[first : first + _PER_REQUEST])
        return node

    def _now(self) -> None:
        now = max(node.now for node in self.nodes.values())
        for node in self.nodes.values():
            node.now = now

    def connect(self, *names: str) -> None:
        """Join these nodes with all others, and let everything settle."""
        self._now()
        for one in self.names:
            for other in self.names:
                if one > other and (one in names or other in names):
                    self.links[one, other] = CountedLink(self.nodes[one], self.nodes[other], self.cost)
        self.run()
        self._check()

    def _check(self) -> None:
        wanted = (len(self.names) - 1) * self._subscriptions
        for name, node in self.nodes.items():
            neighbours = node.router.links.sessions.values()
            assert all(neighbour.is_synchronised for neighbour in neighbours), name
            known = sum(len(neighbour.imports) for neighbour in neighbours)
            assert wanted <= known <= wanted + _CHANGES * len(self.names), (name, known, wanted)

    def replace(self, name: str) -> None:
        """A node starts over: all its processes, and the links that it opened."""
        for pair in [pair for pair in self.links if name in pair]:
            self.links.pop(pair).kill()
        self.nodes[name] = self._make(name)
        self._now()
        self.settle()

    def _tick(self, node: WiredNode) -> bool:
        began = time.process_time()
        moved = super()._tick(node)
        if moved:
            self.cost.node_cpu_s += time.process_time() - began
        return moved

    def count(self, action: Callable[[], Any], *, only: str = "") -> Cost:
        """Give what an action costs, on the links of one node or on all."""
        self.cost = Cost()
        for pair, link in self.links.items():
            assert isinstance(link, CountedLink)
            link.cost = self.cost if only in ("", *pair) else Cost()
        action()
        return self.cost

    def change(self) -> None:
        """One client subscribes to one filter more, several times."""
        name = self.names[len(self.names) // 2]  # it opens half of its links
        client = self.nodes[name].client()
        for number in range(_CHANGES):
            client.subscribe(f"{name}/more/{number}")
            self.settle()


@dataclass
class Finding:
    """What a mesh of so many nodes cost."""

    nodes: int
    subscriptions: int
    start: Cost
    rejoin: Cost
    change: Cost
    idle: Cost
    #: Resident memory that the interest of the others takes on each node: router, worker and its links.
    memory_bytes: float
    #: How long all of it took here.
    seconds: float


def measure(nodes: int, subscriptions: int) -> Finding:
    """Start a mesh, let a node start over, and change one subscription."""
    began = time.monotonic()
    mesh = CountedMesh(nodes, subscriptions)
    gc.collect()
    before = psutil.Process().memory_info().rss
    start = mesh.count(lambda: mesh.connect(*mesh.names))
    gc.collect()
    memory = (psutil.Process().memory_info().rss - before) / nodes
    last = mesh.names[-1]
    mesh.replace(last)
    rejoin = mesh.count(lambda: mesh.connect(last), only=last)
    change = _share(mesh.count(mesh.change), _CHANGES)
    idle = _share(mesh.count(lambda: mesh.run(_IDLE_S)), _IDLE_S)
    return Finding(
        nodes, subscriptions, start, rejoin, change, idle, memory, seconds=time.monotonic() - began
    )


def _share(cost: Cost, count: float) -> Cost:
    return Cost(
        round(cost.frames / count),
        round(cost.bytes / count),
        cost.node_cpu_s / count,
        cost.link_cpu_s / count,
    )


# -- fitting -------------------------------------------------------------------------------------------------


def exponent(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit value = coefficient * nodes ** exponent by least squares of the logarithms; gives both."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean_x) ** 2 for x in xs
    )
    return slope, math.exp(mean_y - slope * mean_x)


#: What is fitted: title, value of a finding, and what it should be proportional to.
FITS: Final[tuple[tuple[str, Callable[[Finding], float], str, Callable[[int], float]], ...]] = (
    ("start, frames", lambda f: f.start.frames, "N(N-1)", lambda n: n * (n - 1)),
    ("start, bytes", lambda f: f.start.bytes, "N(N-1)", lambda n: n * (n - 1)),
    ("start, CPU s", lambda f: f.start.cpu_s, "N(N-1)", lambda n: n * (n - 1)),
    ("memory of a node, bytes", lambda f: f.memory_bytes, "N-1", lambda n: n - 1),
    ("rejoin, frames", lambda f: f.rejoin.frames, "N-1", lambda n: n - 1),
    ("rejoin, bytes", lambda f: f.rejoin.bytes, "N-1", lambda n: n - 1),
    ("rejoin, CPU s", lambda f: f.rejoin.cpu_s, "N-1", lambda n: n - 1),
    ("change, frames", lambda f: f.change.frames, "N-1", lambda n: n - 1),
    ("change, bytes", lambda f: f.change.bytes, "N-1", lambda n: n - 1),
    ("change, CPU s", lambda f: f.change.cpu_s, "N-1", lambda n: n - 1),
    ("idle second, bytes", lambda f: f.idle.bytes, "N(N-1)", lambda n: n * (n - 1)),
)


def report(findings: list[Finding]) -> str:
    """Give the tables of docs/scaling.md."""
    lines = [
        "| nodes | start: frames | MB | CPU s | memory of a node, MiB | rejoin: frames | MB | CPU s "
        "| change: frames | bytes | CPU ms | idle: bytes/s |",
        "|" + "---:|" * 12,
    ]
    for f in findings:
        lines.append(
            f"| {f.nodes} | {f.start.frames:,} | {f.start.bytes / 1e6:.2f} | {f.start.cpu_s:.2f} "
            f"| {f.memory_bytes / (1 << 20):.1f} | {f.rejoin.frames:,} | {f.rejoin.bytes / 1e6:.2f} "
            f"| {f.rejoin.cpu_s:.2f} | {f.change.frames} | {f.change.bytes:,} | {f.change.cpu_s * 1e3:.2f} "
            f"| {f.idle.bytes:,} |"
        )
    if len(findings) > 1:
        lines += ["", "| what | exponent of N | expected | each unit of that costs |", "|---|---:|---|---:|"]
        for title, value, unit, size in FITS:
            slope, _ = exponent([(f.nodes, value(f)) for f in findings])
            wanted, _ = exponent([(f.nodes, size(f.nodes)) for f in findings])
            largest = findings[-1]
            each = value(largest) / size(largest.nodes)
            lines.append(f"| {title} | {slope:.2f} | {unit}: {wanted:.2f} | {each:,.4g} |")
    return "\n".join(lines)


def chart(findings: list[Finding]) -> str:
    """Give the picture of docs/scaling.md: bytes between nodes by the number of nodes."""
    kinds: tuple[tuple[str, Callable[[Finding], float]], ...] = (
        ("start of the mesh", lambda f: f.start.bytes),
        ("a node rejoins", lambda f: f.rejoin.bytes),
        ("one subscription changes", lambda f: f.change.bytes),
    )
    lines = []
    for title, value in kinds:
        points = [(float(f.nodes), float(value(f))) for f in findings]
        lines.append(Line(f"{title}: N^{exponent(points)[0]:.2f}", points))
    each = f"{findings[0].subscriptions:,} subscriptions on each node"
    return draw(f"Bytes between nodes, {each}", "nodes", "bytes", lines)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        prog="scripts/scaling", description="Count what a mesh of N nodes costs, without sockets."
    )
    parser.add_argument(
        "--nodes", default=",".join(map(str, NODES)), metavar="LIST", help="numbers of nodes [%(default)s]"
    )
    parser.add_argument("--subscriptions", type=int, default=SUBSCRIPTIONS, metavar="N", help="[%(default)s]")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="write the chart (SVG) here")
    parser.add_argument("--json", action="store_true", help="one JSON object per number of nodes")
    options = parser.parse_args()
    try:
        counts = sorted({int(text) for text in options.nodes.split(",")})
    except ValueError:
        parser.error(f"--nodes is a list of numbers, not {options.nodes!r}")
    if counts[0] < 2 or counts[-1] > 100:
        parser.error("2 to 100 nodes are possible")
    findings = []
    for count in counts:
        # A fresh process for each, so that none finds the memory of another.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            findings.append(fresh.submit(measure, count, options.subscriptions).result())
        took = findings[-1].seconds
        print(
            f"{count} nodes with {options.subscriptions:,} subscriptions each: {took:.0f} s", file=sys.stderr
        )
    if options.json:
        for finding in findings:
            print(json.dumps(asdict(finding)))
    else:
        print(report(findings))
    if options.chart is not None:
        options.chart.write_text(chart(findings), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
