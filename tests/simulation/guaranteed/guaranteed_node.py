"""A simulated node with guaranteed messages: homes in its workers, disks below them, and the controller.

It adds to `simulated_node` what `router.server` does with the controller: questions out, requests in.
"""

from __future__ import annotations

import random
import traceback
from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.errors import AngariumError, error_for
from cluster.supervisor.supervisor import STOPPED
from node.home.home import Home, HomeLimits
from router.ground.config import SpoolLimits
from router.ground.effects import AskController, ReplyController
from tests.simulation.guaranteed.control_plane import ControlPort
from tests.simulation.guaranteed.simulated_controller import SimulatedController
from tests.simulation.guaranteed.simulated_home import SimulatedHome, WorkerDisk
from tests.simulation.simulated_node import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.ground.effects import Effect
    from router.router import Router
    from tests.simulation.event_history import History
    from tests.simulation.guaranteed.records import GuaranteedHistory
    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import NodeSettings
    from tests.simulation.simulated_worker import SimulatedWorker


class SpoolSettings:
    """What differs from node to node in what it keeps."""

    def __init__(
        self,
        limits: SpoolLimits | None = None,
        home: HomeLimits | None = None,
        home_class: type[Home] = Home,
        write_max_s: float = 0.01,
    ) -> None:
        self.limits = limits or SpoolLimits()
        self.home = home or HomeLimits()
        self.home_class = home_class
        #: A commit takes so long at most, unless a fault makes the disk slow.
        self.write_max_s = write_max_s


class DeferredReply:
    """A request of the controller that the router answers later."""

    def __init__(self, number: int) -> None:
        self.number = number


class GuaranteedNode(SimulatedNode):
    """One node; its router, workers and controller come and go, its disks stay."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        settings: NodeSettings,
        history: History,
        guaranteed: GuaranteedHistory,
        spool: SpoolSettings,
    ) -> None:
        super().__init__(loop, rng, settings, history)
        self._rng_more = random.Random(rng.getrandbits(64))
        self.guaranteed = guaranteed
        self.spool = spool
        self.controller = SimulatedController(
            loop, random.Random(rng.getrandbits(64)), history, guaranteed, settings.workers
        )
        self.controller.on_scale = self.supervisor.scale
        self.controller.look_at_node = self._look_at_node
        self.controller.when_installed = self._when_installed
        #: What is called when nothing waits for workers to confirm.
        self._installing: list[Callable[[], None]] = []
        #: By worker index.
        self.disks: dict[int, WorkerDisk] = {}
        #: The homes of living workers, by index.
        self.homes: dict[int, SimulatedHome] = {}
        self._port: ControlPort | None = None

    def _look_at_node(self) -> dict[str, Any]:
        """Describe the node as the supervisor does it, with the processes that live."""
        alive = [("worker", one.index, one.incarnation) for one in self.supervisor.workers.values()]
        if self.router is not None:
            alive.append(("router", 0, self.router.shards.incarnation))
        rows = [
            {"role": role, "index": index, "incarnation": incarnation, "pid": incarnation, "state": "ready"}
            for role, index, incarnation in alive
        ]
        rows += [
            {"role": "worker", "index": index, "incarnation": 0, "pid": None, "state": STOPPED}
            for index in self.supervisor.given_up
        ]
        return {"workers": self.supervisor.target, "processes": rows, "events": []}

    # Configuration.

    def define(self, kind: str, vpn: str, name: str, **attributes: Any) -> None:
        """Create or change an object, as an operator does it."""
        key = (kind, "" if kind == "vpn" else vpn, name)
        operation = "objects.update" if key in self.controller.store.objects else "objects.create"
        arguments = {"kind": kind, "vpn": key[1], "name": name, "attributes": attributes}
        self.controller.admin(operation, arguments)

    def remove(self, kind: str, vpn: str, name: str) -> None:
        """Delete an object, as an operator does it."""
        arguments = {"kind": kind, "vpn": "" if kind == "vpn" else vpn, "name": name}
        self.controller.admin("objects.delete", arguments)

    # Processes.

    def make_router(self, **more: Any) -> Router:
        """Make the state machine of a new router process, with its connection to the controller."""
        router = super().make_router(exceptions=True, spool=self.spool.limits, **more)
        router.ground.wall_offset_ms = self.guaranteed.wall_ms(self.loop.now) - int(self.loop.now * 1000)
        return router

    def configure_router(self, router: Router) -> None:
        """Let a new router say hello to the controller, which configures it."""
        if self._port is not None:
            self._port.close()
            self.controller.ports.remove(self._port)

        def run(call: Callable[[], None]) -> None:
            if self.router is router:
                self.act(lambda same: call())

        def request(number: int, operation: str, arguments: Any) -> None:
            self._request(router, number, operation, arguments)

        incarnation = router.shards.incarnation
        self._port = ControlPort(
            self.loop, self._rng_more, self.controller, ("router", 0), incarnation, run, request
        )
        self.controller.ports.append(self._port)

    def kill_router(self) -> None:
        """The router process dies."""
        if self._port is not None:
            self._port.close()
        super().kill_router()

    def furnish_worker(self, worker: SimulatedWorker) -> None:
        """Give a new worker process its home."""
        index = worker.index
        if index not in self.disks:
            self.disks[index] = WorkerDisk(self.guaranteed, index, self.loop, self.spool.write_max_s)

        def die() -> None:
            if self.supervisor.workers.get(index) is worker:
                self.supervisor.kill_worker(index)

        old = self.homes.get(index)
        if old is not None and old.port in self.controller.ports:
            self.controller.ports.remove(old.port)
        home = self.homes[index] = SimulatedHome(
            self.loop,
            random.Random(self._rng_more.getrandbits(64)),
            self.history,
            self.guaranteed,
            worker,
            self.disks,
            self.spool.home,
            self.spool.home_class,
            die,
        )
        home.connect(self.controller)
        worker.side = home

    def carry_more(self, router: Router, effect: Effect) -> None:
        """Carry out what the router wants of the controller."""
        assert self._port is not None
        if isinstance(effect, AskController):
            ticket, now = effect.ticket, self.loop

            def answered(ok: bool, value: Any) -> None:
                if self.router is router:
                    router.controller_answered(ticket, ok, value, now.now)

            self._port.ask(effect.operation, effect.arguments, answered)
        else:
            assert isinstance(effect, ReplyController), effect
            self._port.reply(effect.deferred.number, ok=True, value=effect.value)

    @property
    def is_scaled(self) -> bool:
        """Tell whether no change of the number of workers is under way, and no home waits for another's lanes."""
        router = self.router
        return (
            router is not None
            and self.supervisor.is_complete(router)
            and not router.rounds.held
            and not any(place.claims for place in self.disks.values())
        )

    # Requests of the controller to the router, as `router.server` answers them.

    def _request(self, router: Router, number: int, operation: str, arguments: Any) -> None:
        assert self._port is not None
        try:
            value = self._answer(router, number, operation, arguments)
        except AngariumError as error:
            self._port.reply(number, ok=False, value=[error.code, error.detail])
            return
        if not isinstance(value, DeferredReply):
            self._port.reply(number, ok=True, value=value)

    def _answer(self, router: Router, number: int, operation: str, arguments: Any) -> Any:
        now = self.loop.now
        deferred = DeferredReply(number)

        def done() -> None:
            router.out.effects.append(ReplyController(deferred, None))

        if operation == "config_snapshot":
            self.objects = {(kind, vpn, name): attributes for kind, vpn, name, attributes in arguments}
            router.operators.configure(arguments, now)
            self._note_all_rights()
            return None
        if operation == "config_set":
            kind, vpn, name, attributes = arguments
            self.objects[kind, vpn, name] = attributes
            router.operators.put_object(kind, vpn, name, attributes, now, done)
            self.note_rights(vpn)
            return deferred
        if operation == "config_edit":
            kind, vpn, name, edits = arguments
            router.operators.edit_object(kind, vpn, name, edits, done)
            endpoint = router.endpoints.find(vpn, kind, name)
            assert endpoint is not None
            self.objects[kind, vpn, name] = endpoint.attributes
            return deferred
        if operation == "config_delete":
            kind, vpn, name = arguments
            self.objects.pop((kind, vpn, name), None)
            router.operators.drop_object(kind, vpn, name, now, done)
            return deferred
        if operation == "deletions":
            return router.lanes.deletions(arguments)
        if operation == "stages":
            return router.publishing.stages.told(arguments, now)
        if operation == "lane_loads":
            return list(router.operators.lane_loads(arguments, now))
        if operation == "stats":
            return router.stats()
        raise error_for(errors.UNKNOWN_OPERATION, operation)

    def _when_installed(self, call: Callable[[], None]) -> None:
        self._installing.append(call)
        self.act(lambda router: None)

    def after_event(self, router: Router, *, of_frames: bool = False) -> None:
        """Look whether everything that was changed is in force."""
        super().after_event(router, of_frames=of_frames)
        if self._installing and not any(router.shards._waiting):
            calls, self._installing = self._installing, []
            for call in calls:
                call()

    def _note_all_rights(self) -> None:
        for kind, _, name in list(self.objects):
            if kind == "vpn":
                self.note_rights(name)

    def validate(self) -> None:
        """Let every state machine check itself."""
        super().validate()
        try:
            for index, home in self.homes.items():
                if self.supervisor.workers.get(index) is not None:
                    home.validate()
            self.controller.validate()
        except AssertionError:
            self.history.break_rule(f"at {self.loop.now:.3f} {traceback.format_exc(limit=-3)}")
