"""How the mesh check disturbs a mesh: paths of links are cut and healed, processes of nodes are killed, as a seed says.

Paths and processes are disturbed independently of each other, so that a process may die while a path is cut. Only
processes of the nodes that were started here are touched, by pid.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from tests.crash.breaking import ROLES, Breaker
from tests.mesh.delay_proxy import DOWN, UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.testing import Node
    from tests.mesh.delay_proxy import DelayProxy

#: A link is a process of the node that opens it, and the one that this is about.
_LINK_ROLES: Final = ("link", "link", "link")
PROCESS_PAUSE_S: Final = (0.3, 3.0)
PATH_PAUSE_S: Final = (0.1, 2.0)
#: Both sides of the three seconds after which a silent neighbour is given up.
CUT_S: Final = (0.1, 6.0)
#: Of a path, in ms: what it has, and what it has for a while.
DELAY_MS: Final = (0, 15)
SLOW_MS: Final = (50, 300)
_FAULTS: Final = ("cut", "cut", "silent", UP, UP, DOWN, DOWN, "slow")


class Disturber:
    """Disturbs paths and nodes until it is told to stop."""

    def __init__(
        self,
        nodes: list[Node],
        paths: dict[str, DelayProxy],
        opening: set[int],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        """Choose by the seed.

        Args:
            nodes: all of them.
            paths: name -> what the links go through.
            opening: numbers of the nodes that open a link.
            seed: of the choices.
            say: told each fault.
        """
        self._nodes = nodes
        self._paths = paths
        self._say = say
        self._path_random, self._node_random = random.Random(f"paths {seed}"), random.Random(f"nodes {seed}")
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
                for name, path in self._paths.items():
                    group.create_task(
                        self._cut(name, path, random.Random(f"{name} {self._path_random.random()}"), stop)
                    )
        finally:
            for path in self._paths.values():
                path.heal()

    async def _kill(self, stop: asyncio.Event) -> None:
        rng = self._node_random
        while not await _is_set_within(stop, rng.uniform(*PROCESS_PAUSE_S)):
            number = rng.randrange(len(self._nodes))
            what = await asyncio.to_thread(self._breakers[number].break_something)
            self._count(what, f"{what} of {self._nodes[number].data.name}")

    async def _cut(self, name: str, path: DelayProxy, rng: random.Random, stop: asyncio.Event) -> None:
        path.delay_s = rng.uniform(*DELAY_MS) / 1000
        # All paths together are disturbed as often as the pauses say.
        while not await _is_set_within(stop, rng.uniform(*PATH_PAUSE_S) * len(self._paths)):
            what, length_s, usual_s = rng.choice(_FAULTS), rng.uniform(*CUT_S), path.delay_s
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


async def _is_set_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
