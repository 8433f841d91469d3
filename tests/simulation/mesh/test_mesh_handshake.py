"""A link that starts over is disturbed after each of its frames: nothing is lost and nothing comes twice.

A pair of nodes has traffic, its link process is killed, and there is more traffic while it is away. The frames of the
next process are counted, in both directions and at both routers. After the k-th, for all k until the link is up and has
carried everything, somebody dies.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from angarium import wire
from tests.share import short
from tests.simulation.mesh.mesh_stage import MeshStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.mesh.simulated_link import SimulatedLink

#: Node b has the higher name: it runs the link process.
OPENS, OTHER = "b", "a"
#: More than the frames of a handshake and of what is carried after it.
FRAMES: Final = 45
#: By default every so many frames, beginning with another one for each victim; with more seeds after each.
STEP: Final = 1 if "ANGARIUM_SIMULATION_SEEDS" in os.environ else short(44, long=5)


def kill_link(stage: MeshStage, process: SimulatedLink) -> None:
    stage[OPENS].node.link_processes.kill(process)


def kill_router(name: str) -> Callable[[MeshStage, SimulatedLink], None]:
    return lambda stage, process: stage[name].node.kill_router()


def kill_worker(name: str) -> Callable[[MeshStage, SimulatedLink], None]:
    return lambda stage, process: stage[name].node.supervisor.kill_worker(0)


def kill_controller(name: str) -> Callable[[MeshStage, SimulatedLink], None]:
    return lambda stage, process: stage[name].node.controller.kill()


def cut_connections(stage: MeshStage, process: SimulatedLink) -> None:
    (cable,) = stage.scenario.network.cables.values()
    cable.sever(near_notices=False, far_notices=True)


def start_another(stage: MeshStage, process: SimulatedLink) -> None:
    stage[OPENS].node.link_processes.double(process, 1.0)


VICTIMS: Final = {
    "link process": kill_link,
    "own router": kill_router(OPENS),
    "other router": kill_router(OTHER),
    "own worker": kill_worker(OPENS),
    "other worker": kill_worker(OTHER),
    "own controller": kill_controller(OPENS),
    "other controller": kill_controller(OTHER),
    "connections": cut_connections,
    "two link processes": start_another,
}


def traffic(stage: MeshStage) -> None:
    """Publish something of everything at both nodes."""
    for name in (OPENS, OTHER):
        stage.publish(name, "t/1/1", "t/1/2", "t/2/1")
        stage.publish(name, "t/1/3", ttl_ms=60_000, dto=True)
        stage.say(name, "t/1/1", "t/2/2")
        stage.say(name, "t/1/4", flags=wire.FLAG_DTO)


def disturbed(
    seed: str, frame: int, act: Callable[[MeshStage, SimulatedLink], None]
) -> tuple[MeshStage, int]:
    """Let somebody die after a frame of the new link; gives how many frames there were."""
    stage = MeshStage(seed)
    frames = 0
    first: SimulatedLink | None = None

    def began(process: SimulatedLink) -> None:
        nonlocal first
        if first is None:
            first = process
            process.on_frame = counted

    def counted(count: int) -> None:
        nonlocal frames
        frames = count
        if count == frame and first is not None:
            stage.scenario.shared.fault(stage.now, "somebody", f"dies after frame {frame}")
            act(stage, first)

    traffic(stage)
    stage.wait(0.05)
    processes = stage[OPENS].node.link_processes
    processes.on_start = began
    processes.kill(stage.link(OPENS))
    traffic(stage)
    stage.wait(1.0)
    assert first is not None
    first.on_frame = None
    return stage, frames


@pytest.mark.slow
@pytest.mark.requirement("R167", "R214", "R199")
@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_dies_after_a_frame_of_a_new_link_nothing_is_lost_and_nothing_comes_twice(
    victim: str,
) -> None:
    first = 1 + list(VICTIMS).index(victim) % STEP
    broken = []
    for frame in range(first, FRAMES, STEP):
        stage, _ = disturbed(f"{victim} {frame}", frame, VICTIMS[victim])
        violations = stage.finish()
        broken += [f"after frame {frame}: {one.rule}: {one.text}" for one in violations[:3]]
    assert not broken, "\n".join(broken)


def test_the_frames_counted_are_those_of_the_whole_handshake() -> None:
    stage, frames = disturbed("nobody", 0, kill_link)
    assert frames > 20
    assert stage.link(OPENS).is_up
    assert stage.finish() == []
