"""What a run with several nodes consists of: a topology, the nodes with their clients, all drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import wire
from tests.simulation import world as worlds
from tests.simulation.guaranteed import guaranteed_world

if TYPE_CHECKING:
    import random

    from node.home.home import Home
    from router.router import Router
    from tests.simulation.guaranteed.guaranteed_world import GuaranteedPlan, GuaranteedWorld

#: Topology -> its nodes and links. Names are letters, so that one may stand for a port.
TOPOLOGIES: Final = {
    "pair": ("ab", ("ab",)),
    "line": ("abc", ("ab", "bc")),
    "ring": ("abcd", ("ab", "bc", "cd", "ad")),
    "triangle": ("abc", ("ab", "bc", "ac")),
    "full": ("abcd", ("ab", "ac", "ad", "bc", "bd", "cd")),
}
#: Feature -> how often a world has it.
FEATURES: Final = {
    "promoted": 0.6,
    "ttl": 0.3,
    "small": 0.25,
    "partitions": 0.2,
    "churn": 0.6,
    "slow": 0.25,
    "delay": 0.2,
    "priority": 0.2,
    "dying": 0.3,
    "topic-endpoints": 0.2,
    "temporary": 0.15,
    "selectors": 0.15,
    "unacked": 0.2,
    "low-priority": 0.15,
    "last-value": 0.1,
    "browsers": 0.1,
    "scaling": 0.2,
}
#: How often a direct message is to go to one client, and a guaranteed one.
DTO: Final = 0.25
GUARANTEED_DTO: Final = 0.1
CLIENTS_MAX: Final = 3


class MeshWorld(NamedTuple):
    """Everything that a seed draws before anything happens."""

    topology: str
    features: frozenset[str]
    vpns: tuple[str, ...]
    #: By name.
    nodes: dict[str, GuaranteedWorld]
    #: The nodes of each link, and the longest way of a frame over it.
    links: list[tuple[tuple[str, str], float]]
    #: By how much the clock of each node is ahead.
    clocks_ms: dict[str, int]
    #: Wishes in one frame: of few, a snapshot has several frames.
    wishes_per_frame: int
    #: Of links; nodes have theirs in `nodes`.
    faults: int
    duration_s: float


def draw(rng: random.Random, router_class: type[Router], home_class: type[Home]) -> MeshWorld:
    """Draw a world."""
    topology = rng.choice(["pair", "pair", "line", "ring", "triangle", "full"])
    names, pairs = TOPOLOGIES[topology]
    features = frozenset(name for name, chance in FEATURES.items() if rng.random() < chance)
    vpns = worlds.VPNS[: rng.choice([1, 1, 2])]
    duration = rng.choice([2.0, 3.0, 5.0])
    nodes = {name: _node(rng, name, features, vpns, duration, router_class, home_class) for name in names}
    delays = [0.001, 0.01, 0.05, *([0.3] if "slow" in features else [])]
    return MeshWorld(
        topology=topology,
        features=features,
        vpns=vpns,
        nodes=nodes,
        links=[((pair[0], pair[1]), rng.choice(delays)) for pair in pairs],
        clocks_ms={name: rng.choice([0, 0, 40, -3_000, 60_000]) for name in names},
        wishes_per_frame=rng.choice([1, 3, wire.MAX_WISHES_PER_FRAME]),
        faults=rng.choice([0, 2, 4, 6, 9]),
        duration_s=duration,
    )


def _node(
    rng: random.Random,
    name: str,
    features: frozenset[str],
    vpns: tuple[str, ...],
    duration_s: float,
    router_class: type[Router],
    home_class: type[Home],
) -> GuaranteedWorld:
    drawn = guaranteed_world.draw_with(rng, features, vpns, f"{name}-", router_class, home_class)
    return drawn._replace(
        plans=[_plan(rng, plan) for plan in drawn.plans[:CLIENTS_MAX]],
        hostile_clients=0,
        faults=rng.choice([0, 0, 1, 2, 4]),
        duration_s=duration_s,
    )


def _plan(rng: random.Random, plan: GuaranteedPlan) -> GuaranteedPlan:
    client = plan.client._replace(
        local_priority=rng.choice([1, 1, 2, 3]),
        network_priority=rng.choice([1, 1, 2, 4]),
        wants_replies=rng.random() < 0.3,
    )
    return plan._replace(client=client)


def draw_wish(rng: random.Random) -> tuple[str, bool]:
    """Draw what a client subscribes to, and whether it always wants its messages."""
    if rng.random() < 0.3:
        return rng.choice(worlds.SHARED_FILTERS), False
    return rng.choice(worlds.FILTERS), rng.random() < 0.2


def draw_row(rng: random.Random) -> tuple[str, int]:
    """Draw topic and flags of a direct message."""
    flags = rng.choice([0, 0, 0, 1, 2]) << wire.COS_SHIFT
    if rng.random() < DTO:
        flags |= wire.FLAG_DTO
    return rng.choice(worlds.TOPICS[:20]), flags


def draw_guaranteed_row(rng: random.Random, world: GuaranteedWorld, vpn: str) -> tuple[str, dict[str, Any]]:
    """Draw the topic of a guaranteed message, and what else it says."""
    topic, options = guaranteed_world.draw_guaranteed_row(rng, world, vpn)
    options["dto"] = rng.random() < GUARANTEED_DTO
    return topic, options
