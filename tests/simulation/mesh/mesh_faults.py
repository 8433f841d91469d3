"""What is done to links and to several nodes at once: drawn from the seed, written into the history.

Every disturbance ends by itself, so that a run can be judged at rest. What is done to one node is as in other runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.guaranteed.guaranteed_faults import BASE, DISKS, GuaranteedFaults

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.event_history import History
    from tests.simulation.mesh.cable import Cable
    from tests.simulation.mesh.mesh_node import MeshNode, Network
    from tests.simulation.mesh.simulated_link import SimulatedLink
    from tests.simulation.simulated_network import Loop

#: Longest of everything here: longer than a keepalive of links, and than the pauses between their attempts.
LONG_MAX_S = 6.0
#: How long an operator waits for an answer: longer than a controller that runs takes.
OPERATOR_WAITS_S = 1.0


class NodeFaults(GuaranteedFaults):
    """Disturbs one node of a mesh."""

    def kinds(self) -> dict[str, int]:
        """Give what is drawn here, and how often."""
        kinds = {**BASE, **DISKS}
        del kinds["change_acl"]
        return kinds | ({"scale": 12} if "scaling" in self._world.features else {})


class LinkFaults:
    """Disturbs the links of a mesh."""

    def __init__(self, loop: Loop, rng: random.Random, network: Network, history: History) -> None:
        self._loop = loop
        self._rng = rng
        self._network = network
        self._history = history

    def schedule(self, count: int, start: float, end: float) -> None:
        """Draw so many disturbances between two times."""
        names = [name for name, weight in KINDS.items() for _ in range(weight)]
        for _ in range(count):
            method: Callable[[], None] = getattr(self, self._rng.choice(names))
            self._loop.at(start + self._rng.random() * (end - start), method)

    def _note(self, whom: str, what: str) -> None:
        self._history.fault(self._loop.now, whom, what)

    def _some_time(self) -> float:
        return 0.02 + self._rng.random() ** 2 * LONG_MAX_S

    def _cable(self) -> Cable:
        return self._rng.choice(list(self._network.cables.values()))

    def _node(self) -> MeshNode:
        return self._rng.choice(list(self._network.nodes.values()))

    def _process(self) -> tuple[MeshNode, SimulatedLink] | None:
        found = [
            (node, process)
            for node in self._network.nodes.values()
            for process in node.link_processes.processes.values()
        ]
        return self._rng.choice(found) if found else None

    def _cut(self, *, up: bool, down: bool) -> None:
        cable, duration = self._cable(), self._some_time()
        way = "both ways" if up and down else "away from its process" if up else "towards its process"
        self._note(f"link {'-'.join(cable.nodes)}", f"is cut {way} for {duration:.2f} s")
        cable.cut(up=up, down=down)
        self._loop.after(duration, cable.heal)

    def partition(self) -> None:
        self._cut(up=True, down=True)

    def partition_one_way(self) -> None:
        up = self._rng.random() < 0.5
        self._cut(up=up, down=not up)

    def isolate(self) -> None:
        """A node loses all its links."""
        node, duration = self._node(), self._some_time()
        self._note(f"node {node.name}", f"is cut off for {duration:.2f} s")
        for pair, cable in self._network.cables.items():
            if node.name in pair:
                cable.cut(up=True, down=True)
                self._loop.after(duration, cable.heal)

    def sever(self) -> None:
        cable = self._cable()
        near, far = self._rng.random() < 0.6, self._rng.random() < 0.6
        self._note(f"link {'-'.join(cable.nodes)}", f"loses its connections; noticed: {near}, {far}")
        cable.sever(near_notices=near, far_notices=far)

    def kill_link(self) -> None:
        found = self._process()
        if found is not None:
            self._note(f"link {found[1].index} of node {found[0].name}", "is killed")
            found[0].link_processes.kill(found[1])

    def pause_link(self) -> None:
        found, duration = self._process(), self._some_time()
        if found is not None:
            self._note(f"link {found[1].index} of node {found[0].name}", f"pauses for {duration:.2f} s")
            found[1].pause(duration)

    def double_link(self) -> None:
        """Two processes of one link live at once; the older one may be asleep."""
        found, duration = self._process(), self._some_time()
        if found is None:
            return
        node, process = found
        self._note(f"link {process.index} of node {node.name}", f"has two processes for {duration:.2f} s")
        if self._rng.random() < 0.5:
            process.pause(duration * self._rng.random())
        node.link_processes.double(process, duration)

    def disable_link(self) -> None:
        """An operator of one side switches a link off, and on again."""
        cable, duration = self._cable(), self._some_time()
        here, there = self._rng.sample(cable.nodes, 2)
        self.switch_off(here, there, duration)

    def switch_off(self, here: str, there: str, duration: float) -> None:
        """Have an operator switch a link off at one side, and on again after a while."""
        node = self._network.nodes[here]
        self._note(f"link {here}-{there}", f"is disabled at {here} for {duration:.2f} s")
        node.define("link", "", there, enabled=False)
        self._loop.after(duration, lambda: self._switch_on(node, there))

    def _switch_on(self, node: MeshNode, neighbour: str) -> None:
        """Ask again while no controller answers: one that is down loses the request, and the link would stay off."""
        done: list[bool] = []
        arguments = {"kind": "link", "vpn": "", "name": neighbour, "attributes": {"enabled": True}}
        node.controller.admin("objects.update", arguments, lambda ok, _: done.append(ok))
        self._loop.after(OPERATOR_WAITS_S, lambda: None if any(done) else self._switch_on(node, neighbour))

    def restart_node(self) -> None:
        """Everything of a node dies at once, but its disks."""
        node = self._node()
        self._note(f"node {node.name}", "is killed as a whole")
        for process in list(node.link_processes.processes.values()):
            node.link_processes.kill(process)
        if node.router is not None:
            node.kill_router()
        for index in range(node.supervisor.target):
            node.supervisor.kill_worker(index)
        node.controller.kill()


KINDS: Final[dict[str, int]] = {
    "partition": 6,
    "partition_one_way": 6,
    "isolate": 2,
    "sever": 6,
    "kill_link": 8,
    "pause_link": 4,
    "double_link": 4,
    "disable_link": 2,
    "restart_node": 3,
}
