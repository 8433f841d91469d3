"""What is done to a node with guaranteed messages: disks, homes, the controller, operators' work on endpoints.

Every disturbance ends by itself, so that a run can be judged at rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from node.home.spool import layout
from storage.spool import Table
from tests.simulation.fault_injection import KINDS as DIRECT_KINDS
from tests.simulation.fault_injection import SHORT_MAX_S, Faults
from tests.simulation.guaranteed.guaranteed_world import (
    EXCEPTIONS,
    QUEUE_FILTERS,
    EndpointPlan,
    draw_guaranteed_row,
)
from tests.simulation.guaranteed.records import Operation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.event_history import History
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
    from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode
    from tests.simulation.guaranteed.guaranteed_world import GuaranteedWorld
    from tests.simulation.guaranteed.records import EndpointRecord
    from tests.simulation.guaranteed.simulated_home import WorkerDisk
    from tests.simulation.simulated_network import Loop


#: Whether an operator changes the number of workers while an earlier change is under way. A worker that is to
#: leave and is wanted again keeps what others wait for.
OVERLAPPING_SCALES: Final = True


class GuaranteedFaults(Faults):
    """Disturbs one node with its disks, its controller and its clients."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        node: GuaranteedNode,
        history: History,
        clients: list[GuaranteedClient],
        world: GuaranteedWorld,
    ) -> None:
        super().__init__(loop, rng, node, history, clients, list(world.vpns))
        self._guaranteed_node, self._guaranteed_clients = node, clients
        self._world = world

    def kinds(self) -> dict[str, int]:
        """Give what is drawn here, and how often."""
        kinds = {**BASE, **DISKS}
        if "operators" in self._world.features:
            kinds |= OPERATORS
        if "partitions" in self._world.features:
            kinds |= {"change_partitions": 15, "change_partitions_and_kill": 25}
        if "scaling" in self._world.features:
            kinds |= {"scale": 12, "scale_and_kill": 25}
        return kinds

    # Disks and homes.

    def slow_disk(self, index: int | None = None, duration: float = 0.0) -> None:
        index, duration = self._worker() if index is None else index, duration or self._some_time()
        self._note(f"worker {index}", f"has a slow disk for {duration:.2f} s")
        disk = self._guaranteed_node.disks.get(index)
        if disk is not None:
            disk.slow_until = self._loop.now + duration

    def fill_disk(self) -> None:
        index, duration = self._worker(), self._some_time()
        self._note(f"worker {index}", f"has a full disk for {duration:.2f} s")
        disk = self._guaranteed_node.disks.get(index)
        if disk is not None:
            disk.fill(duration, takes_nothing=True)

    def fill_disk_gently(self) -> None:
        index, duration = self._worker(), self._some_time()
        self._note(f"worker {index}", f"has room only for what is under way for {duration:.2f} s")
        disk = self._guaranteed_node.disks.get(index)
        if disk is not None:
            disk.fill(duration, takes_nothing=False)

    def fail_sync(self) -> None:
        index = self._worker()
        self._note(f"worker {index}", "will find that a sync fails")
        disk = self._guaranteed_node.disks.get(index)
        if disk is not None and index not in self._node.supervisor.given_up:  # its worker would find it
            disk.disk.is_failing = True

    def scale(self) -> None:
        self._scale_to(self._rng.randint(1, 3), lambda: None)

    def _scale_to(self, workers: int, then: Callable[[], None]) -> None:
        if not OVERLAPPING_SCALES and not self._guaranteed_node.is_scaled:
            return
        self._note("operator", f"wants {workers} workers")

        def answered(is_done: bool, _: Any) -> None:
            if is_done:
                then()

        self._guaranteed_node.controller.admin("workers.scale", {"workers": workers}, answered)

    def scale_and_kill(self) -> None:
        """Messages are on their way to the slow disk of a worker when it is to leave, and more come; then it dies."""
        leaving = self._node.supervisor.target - 1
        if not leaving:
            self._scale_to(self._rng.randint(2, 3), lambda: None)
            return
        end = self._rng.choice([self.kill_worker, self.kill_router_and_worker])
        rest = self._rng.random() * 0.3

        def go_on() -> None:
            self.publish_all()
            self._loop.after(rest, lambda: end(leaving))

        self.slow_disk(leaving, SHORT_MAX_S)
        self.publish_all()
        self._loop.after(self._rng.random() * 0.1, lambda: self._scale_to(leaving, go_on))

    def give_up_heir(self, rng: random.Random, until: float) -> None:
        """The worker that takes over lanes of the last one dies for good while it does, and is to leave with them.

        Who was given up and is still wanted at the end is started again.
        """
        node = self._guaranteed_node

        def poll(is_done: Callable[[], bool], then: Callable[[], None]) -> None:
            if is_done():
                then()
            elif self._loop.now < until:
                self._loop.after(0.005, lambda: poll(is_done, then))

        def scaled(workers: int) -> Callable[[], bool]:
            def is_done() -> bool:
                if node.supervisor.target <= workers:
                    return True
                if rng.random() < 0.1:
                    self._scale_to(workers, lambda: None)
                return False

            return is_done

        def give_up() -> None:
            self._note("worker 1", "is given up")
            node.supervisor.give_up_worker(1)
            node.disks[1].disk.is_failing = False
            poll(scaled(1), lambda: None)

        def take_over() -> None:
            self.slow_disk(1, SHORT_MAX_S)
            self.publish_all()
            poll(lambda: rng.random() < 0.05 and is_taking_over(node.disks.get(1)), give_up)

        poll(scaled(2), take_over)
        self._loop.at(until, node.supervisor.start_again)

    def publish_all(self) -> None:
        """Everybody publishes a little, with each producer."""
        for client in self._guaranteed_clients:
            for producer in client.producers if client.is_open and not client.is_paused else ():
                count = self._rng.randint(1, 3)
                rows = [draw_guaranteed_row(self._rng, self._world, client.plan.vpn) for _ in range(count)]
                client.publish_guaranteed(producer, rows)

    def kill_all_workers(self) -> None:
        self._note("node", "loses all workers at once")
        for index in range(self._node.supervisor.target):
            self._node.supervisor.kill_worker(index)

    def kill_router_and_worker(self, index: int | None = None) -> None:
        index = self._worker() if index is None else index
        self._note("router", f"is killed, and worker {index} with it")
        if self._node.router is not None:
            self._node.kill_router()
        self._node.supervisor.kill_worker(index)

    # The controller.

    def pause_controller(self) -> None:
        duration = self._some_time()
        self._note("controller", f"pauses for {duration:.2f} s")
        self._guaranteed_node.controller.pause(duration)

    def kill_controller(self) -> None:
        self._note("controller", "is killed")
        self._guaranteed_node.controller.kill()

    def doom_controller(self) -> None:
        self._note("controller", "will die after its next commit")
        self._guaranteed_node.controller.is_doomed = True

    # Operators.

    def _endpoint(self) -> tuple[EndpointPlan, EndpointRecord] | None:
        plan = self._rng.choice(self._world.endpoints)
        record = self._guaranteed_node.controller.endpoint(plan.vpn, plan.kind, plan.name)
        return None if record is None else (plan, record)

    def _update(self, plan: EndpointPlan, **attributes: Any) -> None:
        self._note("operator", f"{plan.kind} {plan.name} of {plan.vpn}: {attributes}")
        self._node.define(plan.kind, plan.vpn, plan.name, **attributes)

    def change_filters(self) -> None:
        found = self._endpoint()
        if found is not None and found[0].kind == "queue":
            filters = self._rng.sample(QUEUE_FILTERS, self._rng.randint(0, 3))
            filters += self._rng.sample(EXCEPTIONS, self._rng.choice([0, 0, 1]))
            self._update(found[0], subscriptions=filters)

    def shut_endpoint(self) -> None:
        found = self._endpoint()
        if found is None:
            return
        plan = found[0]
        which = self._rng.choice(["ingress_enabled", "egress_enabled"])
        self._update(plan, **{which: False})

        def open_again() -> None:
            if self._guaranteed_node.controller.endpoint(plan.vpn, plan.kind, plan.name) is not None:
                self._node.define(plan.kind, plan.vpn, plan.name, **{which: True})

        self._loop.after(self._some_time(), open_again)

    def change_limits(self) -> None:
        found = self._endpoint()
        if found is not None:
            self._update(
                found[0],
                max_delivered_unacked_per_flow=self._rng.choice([1, 5, 10_000]),
                max_redelivery_count=self._rng.choice([0, 0, 2]),
            )

    def change_partitions(self) -> None:
        """Some queue gets more or fewer partitions, or none, whatever is on its way."""
        partitioned = [one for one in self._world.endpoints if one.attributes.get("partition_count")]
        if partitioned:
            plan = self._rng.choice(partitioned)
            if self._guaranteed_node.controller.endpoint(plan.vpn, plan.kind, plan.name) is not None:
                self._update(plan, partition_count=self._rng.choice([0, 1, 2, 3, 4, 5]))

    def change_partitions_and_kill(self) -> None:
        """Messages are on their way to a slow disk; producers send them again when the number is another one."""
        self.slow_disk()
        delay = self._rng.random() * 0.3
        self._loop.after(delay, self.change_partitions)
        end = self._rng.choice([self.restart_router, self.kill_router_and_worker, self.sever])
        self._loop.after(delay + self._rng.random() * 0.3, end)

    def remake_endpoint(self) -> None:
        found = self._endpoint()
        if found is None:
            return
        plan, _ = found
        self._note("operator", f"{plan.kind} {plan.name} of {plan.vpn} is deleted and made again")
        self._node.remove(plan.kind, plan.vpn, plan.name)

        def make_again() -> None:
            if self._guaranteed_node.controller.endpoint(plan.vpn, plan.kind, plan.name) is None:
                self._node.define(plan.kind, plan.vpn, plan.name, **plan.attributes)

        self._loop.after(self._rng.choice([0.001, self._some_time()]), make_again)

    def _operate(self, kind: str, operation: str, record: EndpointRecord, place: int, **more: Any) -> None:
        wish = Operation(kind, self._loop.now, place, more.get("positions"))
        record.operations.append(wish)
        self._note("operator", f"{operation} of {record.name} in {record.vpn} {more}")

        def answered(ok: bool, value: Any) -> None:
            wish.answered_at = self._loop.now
            wish.is_done = ok

        arguments = {"kind": record.kind, "name": record.name, "vpn": record.vpn, **more}
        self._guaranteed_node.controller.admin(operation, arguments, answered)

    def purge(self) -> None:
        found = self._endpoint()
        if found is None:
            return
        record = found[1]
        count = max(change.attributes.get("partition_count", 0) for change in record.changes)
        for partition in range(1, count):
            # The others are purged with it, closed ones too: each gets a wish of its own with the same answer.
            record.operations.append(Operation("purge", self._loop.now, partition))
        self._operate("purge", "endpoints.purge", record, 0)

    def delete_messages(self) -> None:
        found = self._endpoint()
        if found is not None:
            first = self._rng.randint(1, 20)
            positions = list(range(first, first + self._rng.randint(1, 10)))
            self._operate("delete", "messages.delete", found[1], 0, positions=positions)

    def move_messages(self) -> None:
        found, other = self._endpoint(), self._endpoint()
        if found is None or other is None or found[1] is other[1] or found[1].vpn != other[1].vpn:
            return
        source, target = found[1], other[1]
        kind = self._rng.choice(["move", "copy"])
        self._operate(
            kind,
            f"endpoints.{kind}",
            source,
            0,
            target=target.name,
            target_kind=target.kind,
            partition=0,
            limit=self._rng.choice([None, 5]),
        )

    def redrive(self) -> None:
        vpn = self._rng.choice(self._vpns)
        record = self._guaranteed_node.controller.endpoint(vpn, "queue", "dmq")
        if record is not None:
            self._operate("redrive", "endpoints.redrive", record, 0)

    # Clients.

    def crash_consumer(self) -> None:
        """A client with flows dies, the connection lingers."""
        client = self._client()
        self._note(client.plan.name, "crashes unnoticed")
        client.crash(is_noticed=False)

    def burst(self) -> None:
        """Everybody settles everything that is held."""
        for client in self._clients:
            for flow in getattr(client, "flows", ()):
                flow.settle_some(len(flow.held))


def is_taking_over(place: WorkerDisk | None) -> bool:
    """Tell whether the disk of a worker has lanes of which not all is there."""
    rows = [] if place is None else place.disk.scan(Table.LANES)
    return any(layout.unpack_lane(value).importing > 0 for key, value in rows if len(key) == 8)


BASE: Final[dict[str, int]] = {
    **{
        name: weight
        for name, weight in DIRECT_KINDS.items()
        if name
        in (
            "pause_worker",
            "hang_worker",
            "kill_worker",
            "pause_router",
            "restart_router",
            "stop_router",
            "pause_client",
            "crash_client",
            "leave",
            "partition",
            "sever",
            "disconnect",
            "change_acl",
        )
    },
    "pause_controller": 3,
    "kill_controller": 2,
    "doom_controller": 1,
    "crash_consumer": 3,
    "kill_all_workers": 1,
    "kill_router_and_worker": 2,
}
DISKS: Final[dict[str, int]] = {"slow_disk": 5, "fill_disk": 3, "fill_disk_gently": 5, "fail_sync": 4}
OPERATORS: Final[dict[str, int]] = {
    "change_filters": 6,
    "shut_endpoint": 5,
    "change_limits": 3,
    "remake_endpoint": 5,
    "purge": 5,
    "delete_messages": 3,
    "move_messages": 3,
    "redrive": 2,
}
