"""What a run consists of: the node, its objects and clients, all drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from angarium import wire
from node.config import WorkerConfig
from router.ground.config import RouterConfig
from tests.simulation.simulated_client import ClientPlan
from tests.simulation.simulated_node import NodeSettings

if TYPE_CHECKING:
    import random

    from router.router import Router
    from tests.simulation.simulated_node import SimulatedNode

VPNS: Final = ("default", "blue", "green")
TOPICS: Final = (
    *(f"t/{first}/{second}" for first in range(4) for second in range(5)),
    "t/1/12",
    "t//1",
    "t/0",
    "$t/1",
    "t/u/app",
    "t/u/narrow",
)
FILTERS: Final = (
    "t/>",
    "t/1/*",
    "t/*/1",
    "t/1/1*",
    "t/2/2",
    "t/3/0",
    "t//1",
    "*/0",
    "$t/>",
    "t/u/*",
    ">",
    "e/>",
    "e/>",
    "e/*/0",
    "#noexport/t/2/*",
)
SHARED_FILTERS: Final = (
    "#share/g/t/>",
    "#share/g/t/1/*",
    "#share/h/t/1/*",
    "#share/h/t/2/2",
    "#share/g/e/>",
    "#noexport/#share/g/t/>",
)
#: What subscription managers add; nobody asks for these on their own.
MANAGED_FILTERS: Final = ("t/0/*", "t/3/1")
PASSWORD: Final = "secret"
#: More than any run sends to one client; with less the router waits for proofs that it reads.
WIDE_UNREAD_BYTES: Final = 32 << 20
#: Topics on which one client publishes newest values.
ELIDING_TOPICS: Final = 4


class World(NamedTuple):
    """Everything that a seed draws before anything happens."""

    settings: NodeSettings
    vpns: tuple[str, ...]
    plans: list[ClientPlan]
    objects: list[tuple[str, str, str, dict[str, Any]]]
    hostile_clients: int
    faults: int
    #: Seconds of publishing under disturbances.
    duration_s: float
    #: Mean time between two actions of a client.
    pace_s: float


def draw(rng: random.Random, router_class: type[Router]) -> World:
    """Draw a world."""
    vpns = VPNS[: rng.choice([1, 2, 2, 3])]
    plans = [_plan(rng, f"c{number}", rng.choice(vpns)) for number in range(rng.randint(3, 7))]
    settings = _settings(rng, router_class)
    if settings.router.egress_unread_bytes < WIDE_UNREAD_BYTES:
        plans = [plan._replace(is_prompt=False, is_consuming=plan.is_prompt) for plan in plans]
    return World(
        settings=settings,
        vpns=vpns,
        plans=plans,
        objects=[one for vpn in vpns for one in _objects(rng, vpn)],
        hostile_clients=rng.choice([0, 0, 1, 2]),
        faults=rng.choice([0, 1, 2, 4, 6, 9]),
        duration_s=rng.choice([2.0, 4.0, 6.0]),
        pace_s=rng.choice([0.05, 0.1, 0.2]),
    )


def _settings(rng: random.Random, router_class: type[Router]) -> NodeSettings:
    router = RouterConfig(
        ingress_rounds=rng.choice([1, 2, 8, 64]),
        ingress_bytes=rng.choice([1024, 4 << 20]),
        worker_window=rng.choice([1, 2, 8]),
        egress_memory_bytes=rng.choice([20_000, 512 << 20]),
        egress_unread_bytes=rng.choice([20_000, *[WIDE_UNREAD_BYTES] * 3]),
        send_queue_bytes=rng.choice([20_000, 256 << 20]),
        keepalive_ms=500,
        shard_grace_ms=rng.choice([0, 60, 250]),
        fast_path_topics_max=rng.choice([0, 5, 20_000]),
    )
    is_small = rng.choice([True, False])
    return NodeSettings(
        router=router_config(router, small=is_small),
        worker=worker_config(small=is_small),
        workers=rng.randint(1, 4),
        client_delay_max_s=rng.choice([0.001, 0.01, 0.05]),
        worker_delay_max_s=rng.choice([0.001, 0.01, 0.1]),
        laziness=rng.choice([0.0, 0.3]),
        router_class=router_class,
    )


def router_config(config: RouterConfig, *, small: bool) -> RouterConfig:
    """Give the configuration of a router; a small one sends on row by row what can be cut."""
    return replace(config, delivery_step_us=1) if small else config


def worker_config(*, small: bool) -> WorkerConfig:
    """Give the configuration of workers; small ones forget most topics, and pause at each that they do not know."""
    return WorkerConfig(topic_cache_max=3, matching_step_nodes=1) if small else WorkerConfig()


def _plan(rng: random.Random, name: str, vpn: str) -> ClientPlan:
    username = rng.choice(
        ["app", "app", "guarded", "narrow", "narrow", "elider", "elider", "slow", "manager"]
    )
    is_prompt = username != "slow" and rng.random() < 0.8
    return ClientPlan(
        name=name,
        vpn=vpn,
        username=username,
        password=PASSWORD if username == "guarded" else None,
        local_priority=rng.choice([1, 1, 2, 3, 4]),
        no_local=rng.random() < 0.2,
        window=1_000_000 if is_prompt else rng.choice([1, 5, 40]),
        is_prompt=is_prompt,
        is_consuming=is_prompt,
        is_eliding=username == "elider",
        is_cutting=rng.random() < 0.7,
        is_stale=rng.random() < 0.2,
        wants_replies=rng.random() < 0.3,
    )


def _objects(rng: random.Random, vpn: str) -> list[tuple[str, str, str, dict[str, Any]]]:
    allow = {"client_connect_default": "allow", "publish_topic_default": "allow"}
    narrow = {**allow, "subscribe_topic_default": "allow", "publish_topic_exceptions": ["t/3/>"]}
    narrow["subscribe_topic_exceptions"] = ["t/2/>"]
    small: dict[str, Any] = {}
    for number in (1, 2, 3):
        small[f"queue_direct_{number}_max_depth"] = rng.choice([2, 2, 20])
        small[f"queue_direct_{number}_min_msg_burst"] = rng.choice([0, 1, 4])
    elide = {
        "eliding": True,
        "eliding_delay_ms": rng.choice([0, 20, 150, 400]),
        "eliding_max_topics": rng.choice([1, 2, 3, 256]),
    }
    return [
        ("profile", vpn, "small", small),
        ("profile", vpn, "elide", elide),
        ("acl", vpn, "narrow", narrow),
        ("username", vpn, "app", {}),
        ("username", vpn, "guarded", {"password": PASSWORD}),
        ("username", vpn, "narrow", {"acl_profile": "narrow"}),
        ("username", vpn, "elider", {"client_profile": "elide"}),
        ("username", vpn, "slow", {"client_profile": "small"}),
        (
            "username",
            vpn,
            "manager",
            {"subscription_manager": True, "acl_profile": rng.choice(["default", "narrow"])},
        ),
    ]


def furnish(node: SimulatedNode, world: World) -> None:
    """Create the objects of a world."""
    allow_all = {
        "client_connect_default": "allow",
        "publish_topic_default": "allow",
        "subscribe_topic_default": "allow",
        "subscribe_share_name_default": "allow",
    }
    for vpn in world.vpns:
        node.define("vpn", "", vpn)
        node.define("profile", vpn, "default")
        node.define("acl", vpn, "default", **allow_all)
    node.define("username", "default", "default")
    for kind, vpn, name, attributes in world.objects:
        node.define(kind, vpn, name, **attributes)


def draw_row(rng: random.Random, plan: ClientPlan) -> tuple[str, int]:
    """Draw the topic and flags of a message; topics of newest values have one publisher and one class."""
    if rng.random() < 0.3:
        number = rng.randrange(ELIDING_TOPICS)
        cos = number % 3
        return f"e/{plan.name}/{number}", wire.FLAG_ELIDING | cos << wire.COS_SHIFT
    flags = rng.choice([0, 0, 0, 1, 2]) << wire.COS_SHIFT
    if rng.random() < 0.15:
        flags |= wire.FLAG_DTO
    return rng.choice(TOPICS), flags
