"""A link process of the simulation: the real decisions of `cluster.link`, and what its shell does around them.

It is told by the controller of its node what to do, connects to both routers, and may be paused or killed. Its
supervisor starts as many as the controller wants, and another one when one dies.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.errors import AngariumError, error_for
from cluster.link.link import Link
from cluster.relay.pair import FAR, OWN, Connect, Disconnect, Emit, Surroundings
from cluster.relay.runtime import RelayRuntime
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.control_plane import ControlPort
from tests.simulation.simulated_network import Endpoint
from tests.simulation.simulated_supervisor import BACK_OFF_FIRST_S, SPAWN_MAX_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.link.link import Channel
    from cluster.relay.pair import Effect, Pair
    from tests.simulation.mesh.cable import Cable
    from tests.simulation.mesh.mesh_node import MeshNode
    from tests.simulation.simulated_network import Connection, Frames, Loop

OWN_URL = "ipc://links"
#: Between a connection that nobody takes and the word of it.
REFUSED_MAX_S = 0.01
#: No loop looks at the clock more often.
POLL_MIN_S = 0.001

Side = tuple["Pair", int]


class Wire:
    """One connection of one side of a channel, or the attempt at one."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        #: When it was begun; None once something came.
        self.begun_at: float | None = None

    @property
    def is_sound(self) -> bool:
        """Tell whether nothing is wrong with the connection."""
        one = self.connection
        return one is not None and not any(pipe.closed or pipe.stalled for pipe in (one.up, one.down))


class SimulatedLink:
    """One link process."""

    def __init__(self, loop: Loop, rng: random.Random, node: MeshNode, index: int, incarnation: int) -> None:
        self._loop = loop
        self._rng = rng
        self._node = node
        self.index = index
        self.incarnation = incarnation
        runtime = RelayRuntime(node=node.name, identity=node.identity)
        self._outbox: list[Effect] = []
        jitter = random.Random(rng.getrandbits(64))
        self.link = Link(Surroundings(runtime, incarnation, OWN_URL, self._outbox, jitter, self._wall_s))
        self._wires: dict[Side, Wire] = {}
        self.is_dead = False
        #: What waits for a paused process; None while it runs.
        self._backlog: deque[Callable[[], None]] | None = None
        self._next_tick = FOREVER
        #: Frames that it sent or took, and who is told of each.
        self.frames = 0
        self.on_frame: Callable[[int], None] | None = None
        self.port = ControlPort(
            loop, rng, node.controller, ("link", index), incarnation, self._run, self._request
        )
        node.controller.ports.append(self.port)

    def _wall_s(self) -> float:
        return self._node.guaranteed.wall_ms(self._loop.now) / 1000

    # The process.

    def _run(self, call: Callable[[], None]) -> None:
        """Have something done by the process: later if it is paused, never if it is dead."""
        if self.is_dead:
            return
        if self._backlog is not None:
            self._backlog.append(call)
            return
        try:
            call()
            self._carry_out()
            wake = max(self.link.tick(self._loop.now), self._loop.now + POLL_MIN_S)
            self._carry_out()
        except Exception:  # noqa: BLE001 - whatever it is, it would have ended the process
            self._node.history.break_rule(f"a link process ends with {traceback.format_exc(limit=-4)}")
            self._node.link_processes.kill(self)
            return
        if wake < self._next_tick or self._next_tick <= self._loop.now:
            self._next_tick = wake
            if wake < FOREVER:
                self._loop.at(wake, self._tick)

    def _tick(self) -> None:
        if self._loop.now >= self._next_tick:
            self._next_tick = FOREVER
            self._run(_nothing)

    def pause(self, duration_s: float) -> None:
        """Stop the process for a while; frames queue."""
        if self.is_dead or self._backlog is not None:
            return
        backlog = self._backlog = deque()

        def go_on() -> None:
            self._backlog = None
            while backlog:
                self._run(backlog.popleft())
            self._run(_nothing)

        self._loop.after(duration_s, go_on)

    @property
    def is_paused(self) -> bool:
        """Tell whether it does not run."""
        return self._backlog is not None

    def die(self) -> None:
        """End without a word."""
        self.is_dead = True
        self.port.close()
        for wire in self._wires.values():
            if wire.connection is not None:
                wire.connection.close_near(is_noticed=True)
        self._wires.clear()

    def stop(self) -> None:
        """Say goodbye everywhere, and end."""
        self._run(lambda: self.link.leave(self._loop.now))
        self.die()

    def _request(self, number: int, operation: str, arguments: Any) -> None:
        try:
            value = self.link.request(operation, arguments, self._loop.now)
        except AngariumError as error:
            self.port.reply(number, ok=False, value=[error.code, error.detail])
        else:
            self.port.reply(number, ok=True, value=value)

    # Effects, as `cluster.relay.shell` carries them out.

    def _carry_out(self) -> None:
        outbox = self._outbox
        while outbox:
            effects, outbox[:] = list(outbox), []
            for effect in effects:
                if isinstance(effect, Connect):
                    self._connect(effect)
                elif isinstance(effect, Disconnect):
                    self._disconnect(effect.channel, effect.side)
                else:
                    assert isinstance(effect, Emit), effect
                    self._node.history.events.append((self._loop.now, effect.event))
        for side in list(self._wires):
            self._flush(side)

    def _flush(self, side: Side) -> None:
        channel, number = side
        wire, session = self._wires[side], channel.sessions[number]
        if session is None or wire.connection is None:
            return
        outgoing = session.take_outgoing()
        while outgoing:
            wire.connection.up.send(outgoing.popleft())
            self._count()

    def _count(self) -> None:
        self.frames += 1
        told, frames = self.on_frame, self.frames
        if told is not None:
            self._loop.after(0.0, lambda: told(frames))

    def _connect(self, effect: Connect) -> None:
        side = (effect.channel, effect.side)
        assert side not in self._wires
        wire = self._wires[side] = Wire()
        wire.begun_at = self._loop.now
        cable: Cable | None = None
        target: MeshNode | None = self._node
        if effect.side == FAR:
            target, cable = self._node.network.reach(self._node, effect.url)
        else:
            assert effect.url == OWN_URL
        if target is None or not target.is_listening:
            self._loop.after(
                self._rng.random() * REFUSED_MAX_S, lambda: self._lost(side, wire, "nobody answers")
            )
            return

        def arrived(frames: Frames) -> None:
            self._run(lambda: self._received(side, wire, frames))

        near = Endpoint(arrived, lambda: self._lost(side, wire, "the connection was closed"))
        delay = None if cable is None else cable.delay_max_s
        address = "10.0.0.1" if effect.side == FAR else ""
        wire.connection = target.accept(near, address, delay)
        if cable is not None:
            cable.carry(wire.connection)

    def _received(self, side: Side, wire: Wire, frames: Frames) -> None:
        if self._wires.get(side) is wire:
            if wire.begun_at is not None:
                self._node.link_processes.greeted(self._loop.now - wire.begun_at)
                wire.begun_at = None
            channel, number = side
            channel.received(number, frames, self._loop.now)
            self._count()

    def _lost(self, side: Side, wire: Wire, why: str) -> None:
        def lost() -> None:
            if self._wires.get(side) is wire:
                channel, number = side
                channel.lost(number, error_for(errors.NOT_CONNECTED, why), self._loop.now)

        self._run(lost)

    def _disconnect(self, channel: Pair, side: int) -> None:
        if (channel, side) in self._wires:
            self._flush((channel, side))
            wire = self._wires.pop((channel, side))
            if wire.connection is not None:
                wire.connection.close_near(is_noticed=True)
        channel.forget(side)

    # What others see of it.

    @property
    def is_up(self) -> bool:
        """Tell whether every channel is up, both sides know what the other wants, and nothing waits."""
        channels = self.link.pairs.values()
        is_sound = all(wire.is_sound for wire in self._wires.values())
        return bool(channels) and not self.is_paused and is_sound and all(map(_is_up, channels))

    def validate(self) -> None:
        """Let the state machines check themselves."""
        if not self.is_dead and not self.is_paused:
            self.link.validate()


def _is_up(channel: Channel) -> bool:
    return channel.state.value == "up" and all(
        relay is not None and relay.is_synchronised and not relay.waiting and not relay.untold
        for relay in (channel.relays[OWN], channel.relays[FAR])
    )


def _nothing() -> None:
    """Only what comes after every event."""


class LinkSupervisor:
    """The link processes of one node."""

    def __init__(self, loop: Loop, rng: random.Random, node: MeshNode) -> None:
        self._loop = loop
        self._rng = rng
        self._node = node
        self._wanted: dict[int, None] = {}
        #: The newest process of each link.
        self.processes: dict[int, SimulatedLink] = {}
        #: Processes that live on beside a newer one.
        self._older: list[SimulatedLink] = []
        #: The longest wait of a process for WELCOME.
        self.greeting_max_s = 0.0
        #: Told of every process that starts.
        self.on_start: Callable[[SimulatedLink], None] = lambda process: None

    def run(self, role: str, indices: list[int]) -> None:
        """Have a process for each of these links, and no other."""
        if role != "link":
            return
        self._wanted = dict.fromkeys(indices)
        for index in indices:
            if index not in self.processes:
                self._loop.after(self._rng.random() * SPAWN_MAX_S, lambda index=index: self._start(index))  # type: ignore[misc]
        for index in [index for index in self.processes if index not in self._wanted]:
            self._forget(self.processes.pop(index))

    def _start(self, index: int) -> None:
        if index in self._wanted and index not in self.processes:
            self._spawn(index)

    def _spawn(self, index: int) -> None:
        incarnation = self._node.supervisor.next_incarnation()
        rng = random.Random(self._rng.getrandbits(64))
        process = self.processes[index] = SimulatedLink(self._loop, rng, self._node, index, incarnation)
        self.on_start(process)

    def _forget(self, process: SimulatedLink, *, in_order: bool = True) -> None:
        if in_order:
            process.stop()
        else:
            process.die()
        if process.port in self._node.controller.ports:
            self._node.controller.ports.remove(process.port)

    def greeted(self, seconds: float) -> None:
        """A router answered a process after so long."""
        self.greeting_max_s = max(self.greeting_max_s, seconds)

    def kill(self, process: SimulatedLink) -> None:
        """A process dies; another one starts after the back-off."""
        if process.is_dead:
            return
        self._forget(process, in_order=False)
        if self.processes.get(process.index) is process:
            del self.processes[process.index]
            delay = BACK_OFF_FIRST_S + self._rng.random() * SPAWN_MAX_S
            self._loop.after(delay, lambda: self._start(process.index))

    def double(self, process: SimulatedLink, duration_s: float) -> None:
        """Start a second process beside one that goes on for a while: nobody heard that it lives."""
        if process.is_dead or self.processes.get(process.index) is not process:
            return
        self._spawn(process.index)
        self._older.append(process)

        def end() -> None:
            if not process.is_dead:
                self._older.remove(process)
                self._forget(process, in_order=False)

        self._loop.after(duration_s, end)

    @property
    def unrest(self) -> list[str]:
        """Say which processes are not there, or not up."""
        name = self._node.name
        found = [
            f"node {name} has no process for link {one}" for one in self._wanted if one not in self.processes
        ]
        for process in self.processes.values():
            if not process.is_up:
                channels = [(one.vpn, one.state.value, str(one.error)) for one in process.link.pairs.values()]
                found.append(f"link {process.index} of node {name} is not up: {channels}")
        return found + [
            f"link {one.index} of node {name} has two processes" for one in self._older if not one.is_dead
        ]

    def validate(self) -> None:
        """Let every process check itself."""
        for process in self.processes.values():
            process.validate()
