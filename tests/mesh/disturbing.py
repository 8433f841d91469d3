"""How the mesh check disturbs a mesh: paths of links are cut and healed, processes of nodes are killed, links are
disabled and enabled, as a seed says.

Each of these goes on independently of the others, so that a process may die while a path is cut. Only processes of the
nodes that were started here are touched, by pid.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from angarium_server.testing import NodeFailedError
from tests.crash.breaking import ROLES, Breaker
from tests.mesh.delay_proxy import DOWN, UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.testing import Node
    from tests.mesh.delay_proxy import DelayProxy
    from tests.mesh.trial import Pair

#: A link is a process of the node that opens it, and the one that this is about.
_LINK_ROLES: Final = ("link", "link", "link")
PROCESS_PAUSE_S: Final = (0.3, 3.0)
PATH_PAUSE_S: Final = (0.1, 2.0)
OPERATOR_PAUSE_S: Final = (3.0, 10.0)
DISABLED_S: Final = (0.1, 2.0)
#: Of what is done to processes: the whole node is stopped in order, and started.
RESTART_SHARE: Final = 0.07
#: Of what an operator does, the rest is links.
SCALE_SHARE: Final = 0.3
WORKERS_MAX: Final = 3
CUT_MIN_S: Final = 0.1
#: A command that fails, because the node is down, is given again so often.
ATTEMPTS_MAX: Final = 20
#: Of a path, in ms: what it has, and what it has for a while.
DELAY_MS: Final = (0, 15)
SLOW_MS: Final = (50, 300)
_FAULTS: Final = ("cut", "cut", "silent", UP, UP, DOWN, DOWN, "slow")


class Disturber:
    """Disturbs paths and nodes until it is told to stop."""

    def __init__(
        self,
        nodes: list[Node],
        paths: dict[Pair, DelayProxy],
        seed: int,
        longest_cut_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Choose by the seed.

        Args:
            nodes: all of them.
            paths: (number of the node that opens the link, of its neighbour) -> what the link goes through.
            seed: of the choices.
            longest_cut_s: how long a path is cut at most.
            say: told each fault.
        """
        opening = {one for one, _ in paths}
        self._longest_cut_s = longest_cut_s
        self._nodes = nodes
        self._paths = paths
        self._say = say
        self._seed = seed
        self._node_random = random.Random(f"nodes {seed}")
        self._breakers = [
            Breaker(
                node,
                ["kill", "kill", "kill", "stop"],
                random.Random(f"node {number} {seed}"),
                None,
                (*ROLES, *(_LINK_ROLES if number in opening else ())),
            )
            for number, node in enumerate(nodes)
        ]
        #: What was done -> how often.
        self.done: dict[str, int] = {}

    async def disturb(self, stop: asyncio.Event) -> None:
        """Disturb until it is time to stop; nothing is disturbed any more when this returns."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._kill(stop))
                group.create_task(self._operate(random.Random(f"operator {self._seed}"), stop))
                for pair, path in self._paths.items():
                    rng = random.Random(f"{pair} {self._seed}")
                    group.create_task(self._cut(self._name(pair), path, rng, stop))
        finally:
            for path in self._paths.values():
                path.heal()

    def _name(self, pair: Pair) -> str:
        return " to ".join(self._nodes[number].data.name for number in pair)

    async def _operate(self, rng: random.Random, stop: asyncio.Event) -> None:
        """Be an operator, who switches links off and on, on either side, and changes numbers of workers."""
        while not await _is_set_within(stop, rng.uniform(*OPERATOR_PAUSE_S)):
            pair = rng.choice(list(self._paths))
            here, there = pair if rng.random() < 0.5 else pair[::-1]
            node, neighbour = self._nodes[here], self._nodes[there].data.name
            if rng.random() < SCALE_SHARE:
                workers = rng.randint(1, WORKERS_MAX)
                self._count("worker scale", f"{workers} workers are wanted on {node.data.name}")
                await asyncio.to_thread(_insist, node, "worker", "scale", f"{workers}")
                continue
            self._count("link disabled", f"link {neighbour} is disabled on {node.data.name}")
            update = ("link", "update", neighbour, "--set")
            await asyncio.to_thread(_insist, node, *update, "enabled=false")
            await _is_set_within(stop, rng.uniform(*DISABLED_S))
            await asyncio.to_thread(_insist, node, *update, "enabled=true")

    async def _kill(self, stop: asyncio.Event) -> None:
        rng = self._node_random
        while not await _is_set_within(stop, rng.uniform(*PROCESS_PAUSE_S)):
            number = rng.randrange(len(self._nodes))
            if rng.random() < RESTART_SHARE:
                self._count("restart", f"restart of {self._nodes[number].data.name}, in order")
                await asyncio.to_thread(self._nodes[number].restart)
                continue
            what = await asyncio.to_thread(self._breakers[number].break_something)
            self._count(what, f"{what} of {self._nodes[number].data.name}")

    async def _cut(self, name: str, path: DelayProxy, rng: random.Random, stop: asyncio.Event) -> None:
        path.delay_s = rng.uniform(*DELAY_MS) / 1000
        # All paths together are disturbed as often as the pauses say.
        while not await _is_set_within(stop, rng.uniform(*PATH_PAUSE_S) * len(self._paths)):
            what, length_s, usual_s = (
                rng.choice(_FAULTS),
                rng.uniform(CUT_MIN_S, self._longest_cut_s),
                path.delay_s,
            )
            if what == "cut":
                path.cut()
            elif what == "slow":
                path.delay_s = rng.uniform(*SLOW_MS) / 1000
            else:
                path.cut_silently(*([] if what == "silent" else [what]))
            named = f"one way ({what})" if what in (UP, DOWN) else what
            self._count(f"path {named}", f"path {name}: {named} for {length_s:.1f} s")
            await _is_set_within(stop, length_s)
            path.heal()
            path.delay_s = usual_s

    def _count(self, what: str, text: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1
        self._say(text)


def _insist(node: Node, *command: str) -> None:
    """Give a command until the node, which may be down, takes it."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            node.run(*command)
        except NodeFailedError:
            if attempt + 1 == ATTEMPTS_MAX:
                raise
            time.sleep(0.5)
        else:
            return


async def _is_set_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
