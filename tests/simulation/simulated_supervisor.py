"""The supervisor of a simulated node, as far as workers go: starts, restarts, kills and lets them go.

It connects workers to the router that runs, and tells that router of deaths. What a worker is is in
`simulated_worker`, the router process in `simulated_node`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from angarium_server.frames.matching import OF_MATCHING
from router.matching.shards import ShardState
from tests.simulation.simulated_worker import RECONNECT_S, SimulatedWorker

if TYPE_CHECKING:
    import random

    from router.ground.effects import SendWorker
    from router.router import Router
    from tests.simulation.event_history import History
    from tests.simulation.simulated_network import Frames, Loop
    from tests.simulation.simulated_node import SimulatedNode

#: As in `cluster.supervisor.supervisor`.
HUNG_AFTER_S = 5.0
BACK_OFF_FIRST_S = 0.1
BACK_OFF_DOUBLINGS_MAX = 3
#: A process needs so long at most from its start to its first frame.
SPAWN_MAX_S = 0.3
#: Between the death of a process and the router's knowledge of it.
DEATH_NOTICE_MAX_S = 0.05
#: It looks so often whether the router goes on without the workers that are to leave.
LET_GO_S = 0.2
#: A worker that is asked to stop looks so often whether it may, and is killed after so long.
STOP_POLL_S = 0.02
STOP_MAX_S = 10.0
#: What was matched waits so long for the router, which takes first what homes say.
MATCHED_WAIT_S = (0.0, 0.0, 0.0, 0.0005, 0.01)


class SimulatedSupervisor:
    """The workers of one node."""

    def __init__(self, loop: Loop, rng: random.Random, node: SimulatedNode, history: History) -> None:
        self._loop = loop
        self._rng = rng
        self._node = node
        self._history = history
        #: The number of workers that is wanted.
        self.target = node.settings.workers
        #: The living workers by index.
        self.workers: dict[int, SimulatedWorker] = {}
        #: Every worker that ever lived.
        self.all_workers: list[SimulatedWorker] = []
        self._incarnation = 0
        self._deaths: dict[int, int] = {}
        #: Workers that are wanted and not started again.
        self.given_up: dict[int, None] = {}
        #: Index -> whether the router takes the living worker for ready.
        self._ready: dict[int, bool] = {}

    def next_incarnation(self) -> int:
        """Give the number of the next process, router or worker."""
        self._incarnation += 1
        return self._incarnation

    # Starting.

    def start_workers(self) -> None:
        """Start every worker that is wanted and not there."""
        for index in range(self.target):
            self._start(index)

    def _start(self, index: int) -> None:
        is_wanted = index < max(self.target, self._used_workers()) and index not in self.given_up
        if not is_wanted or index in self.workers:
            return
        settings = self._node.settings
        worker = SimulatedWorker(
            self._loop,
            self._rng,
            (index, self.next_incarnation()),
            settings.worker,
            settings.worker_delay_max_s,
        )
        self._node.furnish_worker(worker)
        self.workers[index] = worker
        self.all_workers.append(worker)
        if self._node.router is not None:
            self._connect(worker, self._node.router)

    def router_started(self, router: Router) -> None:
        """Connect every worker to a new router, which knows none of them."""
        self._ready = {}
        for index in range(self.target):
            self._history.lose_worker(index, self._loop.now)
        for worker in self.workers.values():
            self._connect(worker, router)

    def router_died(self) -> None:
        """Every worker loses its connection."""
        for worker in self.workers.values():
            if worker.connection is not None:
                worker.connection.close_far()

    def _connect(self, worker: SimulatedWorker, router: Router) -> None:
        node, now = self._node, self._loop

        matched: deque[Frames] = deque()

        def take(frames: Frames) -> None:
            if node.router is router:
                node.act(lambda same: same.worker_frames(worker.identity, frames, now.now), of_frames=True)

        def arrived(frames: Frames) -> None:
            """Take what a home says at once; what was matched may wait, as in `router.server`."""
            wait_s = self._rng.choice(MATCHED_WAIT_S) if frames[0] in OF_MATCHING else None
            if wait_s is None or not (wait_s or matched):
                take(frames)
                return
            matched.append(frames)
            now.after(wait_s, lambda: take(matched.popleft()))

        def connect() -> None:
            if node.router is router and self.workers.get(worker.index) is worker:
                worker.connect(arrived, lambda: None)

        self._loop.after(self._rng.random() * RECONNECT_S, connect)

    # Ending.

    def kill_worker(self, index: int) -> None:
        """A worker dies; the next one starts after the back-off."""
        if self._bury(index):
            deaths = self._deaths[index] = self._deaths.get(index, 0) + 1
            back_off = BACK_OFF_FIRST_S * 2 ** min(deaths - 1, BACK_OFF_DOUBLINGS_MAX)
            self._loop.after(back_off + self._rng.random() * SPAWN_MAX_S, lambda: self._start(index))

    def give_up_worker(self, index: int) -> None:
        """A worker dies, and is not started again before `start_again`."""
        self.given_up[index] = None
        self._bury(index)

    def start_again(self) -> None:
        """An operator has the workers started that were given up and did not leave."""
        given_up, self.given_up = self.given_up, {}
        for index in given_up:
            self._start(index)

    def _bury(self, index: int) -> bool:
        worker = self.workers.pop(index, None)
        if worker is None:
            return False
        self._history.lose_worker(index, self._loop.now)
        self._ready[index] = False
        worker.kill()

        def tell() -> None:
            self._node.act(lambda router: router.worker_lost(index, worker.incarnation, self._loop.now))

        self._loop.after(self._rng.random() * DEATH_NOTICE_MAX_S, tell)
        return True

    def pause_worker(self, index: int, duration_s: float) -> None:
        """Stop a worker for a while; one that hangs for too long is killed."""
        worker = self.workers.get(index)
        if worker is None:
            return
        worker.pause(self._loop.now + duration_s)

        def kill() -> None:
            if worker.hangs_for(HUNG_AFTER_S) and self.workers.get(index) is worker:
                self.kill_worker(index)

        self._loop.after(duration_s, worker.resume)
        self._loop.after(HUNG_AFTER_S, kill)

    def scale(self, workers: int) -> None:
        """Change the number of workers: new ones come at once, others leave when the router does without."""
        before, self.target = self.target, workers
        self.given_up = {index: None for index in self.given_up if index < workers}

        def begin() -> None:
            if self.target == workers:
                self._node.act(lambda router: router.scaling.begin(workers, self._loop.now))

        self._loop.after(self._rng.random() * 0.3, begin)
        for index in range(before, workers):
            delay = self._rng.random() * SPAWN_MAX_S
            self._loop.after(delay, lambda index=index: self._start(index))  # type: ignore[misc]
        self._loop.after(LET_GO_S, self._let_go)

    def _let_go(self) -> None:
        if self._node.router is None or self._used_workers() != self.target:
            self._loop.after(LET_GO_S, self._let_go)
            return
        for index in [index for index in self.workers if index >= self.target]:
            self._stop(index, self.workers[index], self._loop.now + STOP_MAX_S)

    def _stop(self, index: int, worker: SimulatedWorker, deadline: float, *, is_asked: bool = False) -> None:
        """Let a worker go when it has put everything where it survives; it comes again if it is wanted by then."""
        if self.workers.get(index) is not worker or (index < self.target and not is_asked):
            return
        if worker.side is None or self._loop.now >= deadline or (not worker.is_paused and worker.side.stop()):
            if self._bury(index) and index < self.target:
                self._loop.after(self._rng.random() * SPAWN_MAX_S, lambda: self._start(index))
        else:
            self._loop.after(STOP_POLL_S, lambda: self._stop(index, worker, deadline, is_asked=True))

    def _used_workers(self) -> int:
        """Count the workers that the router deals to."""
        router = self._node.router
        return self.target if router is None else len(router.shards.shards)

    # What the router sees of them.

    def send(self, router: Router, effect: SendWorker) -> None:
        """Carry frames to a worker; the router may learn of its death by that, or lose them."""
        worker = self.workers.get(effect.worker)
        if worker is not None and worker.incarnation == effect.incarnation and worker.connection is not None:
            worker.connection.down.send(effect.frames)
        elif self._rng.random() < 0.5:
            router.worker_lost(effect.worker, effect.incarnation, self._loop.now)

    def look(self, router: Router) -> None:
        """Note in the history which workers have become ready."""
        for shard in router.shards.shards:
            worker = self.workers.get(shard.index)
            is_ready = (
                shard.state is ShardState.READY
                and worker is not None
                and shard.incarnation == worker.incarnation
            )
            if is_ready and not self._ready.get(shard.index):
                self._history.regain_worker(shard.index, self._loop.now)
            self._ready[shard.index] = is_ready

    def is_complete(self, router: Router) -> bool:
        """Tell whether every worker that is wanted works, and no other is there."""
        return (
            len(router.shards.shards) == len(self.workers) == self.target
            and all(self._ready.get(index) for index in range(self.target))
            and not any(worker.is_paused for worker in self.workers.values())
        )

    def validate(self) -> None:
        """Let every worker check itself."""
        for worker in self.workers.values():
            worker.worker.validate()
