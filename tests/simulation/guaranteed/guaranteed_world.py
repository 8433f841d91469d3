"""What a run with guaranteed messages consists of: node, disks, endpoints and clients, all drawn from the seed.

A world has some features of the broker and not the others, so that rules which need a plain queue find plain queues,
and every feature meets every other one in some seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import wire
from node.home.home import Home, HomeLimits
from router.ground.config import RouterConfig, SpoolLimits
from router.router import Router
from tests.simulation import world as worlds
from tests.simulation.guaranteed.flow_rules import COLORS
from tests.simulation.guaranteed.guaranteed_node import SpoolSettings
from tests.simulation.guaranteed.simulated_flow import FlowPlan
from tests.simulation.simulated_client import ClientPlan
from tests.simulation.simulated_node import NodeSettings

if TYPE_CHECKING:
    import random

    from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode

#: Feature -> how often a world has it.
FEATURES: Final = {
    "ttl": 0.3,
    "delay": 0.15,
    "priority": 0.15,
    "dying": 0.4,
    "partitions": 0.4,
    "small": 0.3,
    "files": 0.15,
    "relaxed": 0.25,
    "topic-endpoints": 0.3,
    "temporary": 0.2,
    "selectors": 0.25,
    "operators": 0.4,
    "last-value": 0.15,
    "promoted": 0.5,
    "shared-names": 0.15,
    "forget": 0.2,
    "low-priority": 0.15,
    "unacked": 0.3,
    "browsers": 0.2,
    "scaling": 0.25,
}
#: How often flows of a world want nothing of what their own client sent. Drawn last, with what it leads to.
NO_LOCAL: Final = 0.2
USERNAME: Final = "app"
KEYS: Final = ("k0", "k1", "k2", "k3")
QUEUE_FILTERS: Final = ("t/>", "t/1/*", "t/*/1", "t/1/1*", "t/2/2", "t/3/0", "*/0", "t/0/*", "t/u/*", ">")
EXCEPTIONS: Final = ("!t/1/*", "!t/2/2", "!t/*/0", "!t/3/>")
#: In a world of small quotas a megabyte has so many bytes, and a spool file is so large.
SMALL_MB_BYTES: Final = 1_500
SMALL_FILE_BYTES: Final = 2_500
MB_BYTES: Final = 1_000_000
FILE_BYTES: Final = 8_000_000


class EndpointPlan(NamedTuple):
    """One endpoint that an operator makes."""

    vpn: str
    kind: str
    name: str
    attributes: dict[str, Any]


class ProducerPlan(NamedTuple):
    """One producer of a client."""

    name: str
    window: int
    has_journal: bool


class GuaranteedPlan(NamedTuple):
    """One client with its producers and flows."""

    client: ClientPlan
    producers: list[ProducerPlan]
    flows: list[FlowPlan]


class GuaranteedWorld(NamedTuple):
    """Everything that a seed draws before anything happens."""

    features: frozenset[str]
    settings: NodeSettings
    spool: SpoolSettings
    vpns: tuple[str, ...]
    vpn_attributes: dict[str, Any]
    endpoints: list[EndpointPlan]
    plans: list[GuaranteedPlan]
    hostile_clients: int
    faults: int
    duration_s: float
    pace_s: float
    mb_bytes: int
    file_bytes: int


def draw(
    rng: random.Random, router_class: type[Router] = Router, home_class: type[Home] = Home
) -> GuaranteedWorld:
    """Draw a world."""
    features = frozenset(name for name, chance in FEATURES.items() if rng.random() < chance)
    return draw_with(rng, features, worlds.VPNS[: rng.choice([1, 1, 2])], "g", router_class, home_class)


def draw_with(
    rng: random.Random,
    features: frozenset[str],
    vpns: tuple[str, ...],
    prefix: str,
    router_class: type[Router] = Router,
    home_class: type[Home] = Home,
) -> GuaranteedWorld:
    """Draw a world with these features and Message VPNs; the names of its clients begin with a prefix."""
    endpoints = [one for vpn in vpns for one in _endpoints(rng, vpn, features)]
    plans = [
        _client(rng, f"{prefix}{number}", rng.choice(vpns), endpoints, features)
        for number in range(rng.randint(2, 5))
    ]
    is_small = "small" in features
    world = GuaranteedWorld(
        features=features,
        settings=_settings(rng, router_class),
        spool=_spool(rng, features, home_class),
        vpns=vpns,
        vpn_attributes=_vpn_attributes(rng, features),
        endpoints=endpoints,
        plans=plans,
        hostile_clients=rng.choice([0, 0, 0, 1]),
        faults=rng.choice([0, 2, 4, 6, 9, 12]),
        duration_s=rng.choice([2.0, 3.0, 5.0]),
        pace_s=rng.choice([0.05, 0.1, 0.2]),
        mb_bytes=SMALL_MB_BYTES if is_small else MB_BYTES,
        file_bytes=SMALL_FILE_BYTES if is_small or "files" in features else FILE_BYTES,
    )
    if rng.random() < NO_LOCAL:
        for plan in world.plans:
            plan.flows[:] = [flow._replace(no_local=rng.random() < 0.5) for flow in plan.flows]
    return world


def _settings(rng: random.Random, router_class: type[Router]) -> NodeSettings:
    router = RouterConfig(
        ingress_rounds=rng.choice([2, 8, 64]),
        ingress_bytes=rng.choice([2048, 4 << 20]),
        worker_window=rng.choice([1, 2, 8]),
        producer_window_bytes=rng.choice([4096, 16 << 20]),
        promoted_bytes_max=rng.choice([2048, 64 << 20]),
        keepalive_ms=500,
        resume_ms=rng.choice([500, 3_000]),
        shard_grace_ms=rng.choice([0, 60, 250]),
        fast_path_topics_max=rng.choice([0, 5, 20_000]),
    )
    is_small = rng.choice([True, False])
    return NodeSettings(
        router=worlds.router_config(router, small=is_small),
        worker=worlds.worker_config(small=is_small),
        workers=rng.randint(1, 3),
        client_delay_max_s=rng.choice([0.001, 0.01, 0.05]),
        worker_delay_max_s=rng.choice([0.001, 0.01, 0.05]),
        laziness=rng.choice([0.0, 0.3]),
        router_class=router_class,
    )


def _spool(rng: random.Random, features: frozenset[str], home_class: type[Home]) -> SpoolSettings:
    is_small, has_files = "small" in features, "files" in features
    limits = SpoolLimits(
        max_usage_mb=rng.choice([6, 20, 10_000]) if is_small else 10_000,
        max_files=rng.choice([4, 10]) if has_files else 50_000,
        max_delivered_unacked=rng.choice([6, 60]) if "unacked" in features else 1_000_000,
    )
    home = HomeLimits(
        ack_delay_ms=rng.choice([0, 20, 200]),
        write_delay_ms=rng.choice([10, 50, 500]),
        cache_bytes_max=rng.choice([200, 64 << 20]),
        unwritten_bytes_max=rng.choice([2_000, 64 << 20]),
    )
    return SpoolSettings(limits, home, home_class, rng.choice([0.001, 0.01, 0.08]))


def _vpn_attributes(rng: random.Random, features: frozenset[str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if "small" in features and rng.random() < 0.4:
        attributes["max_spool_usage_mb"] = rng.choice([3, 8])
    if "relaxed" in features and rng.random() < 0.2:
        attributes["durability"] = "relaxed"
    return attributes


# Endpoints.


def _endpoints(rng: random.Random, vpn: str, features: frozenset[str]) -> list[EndpointPlan]:
    made = [
        EndpointPlan(vpn, "queue", f"q{number}", _queue(rng, features)) for number in range(rng.randint(2, 4))
    ]
    if "topic-endpoints" in features:
        attributes = _common(rng, features)
        made += [EndpointPlan(vpn, "topic-endpoint", f"e{number}", attributes) for number in range(2)]
    if "dying" in features or "ttl" in features:
        made.append(EndpointPlan(vpn, "queue", "dmq", {"dead_message_queue": "", "respect_ttl": False}))
    return made


def _queue(rng: random.Random, features: frozenset[str]) -> dict[str, Any]:
    attributes = _common(rng, features)
    filters = rng.sample(QUEUE_FILTERS, rng.randint(0, 3))
    if filters and rng.random() < 0.3:
        filters.append(rng.choice(EXCEPTIONS))
        rng.shuffle(filters)
    attributes["subscriptions"] = filters
    if "partitions" in features and rng.random() < 0.6:
        attributes |= {
            "access_type": "non-exclusive",
            "partition_count": rng.randint(1, 4),
            "partition_rebalance_delay_s": rng.choice([0, 1]),
            "partition_rebalance_max_handoff_s": rng.choice([0, 1, 3]),
        }
    elif "last-value" in features and rng.random() < 0.4:
        attributes["max_spool_usage_mb"] = 0
    return attributes


def _common(rng: random.Random, features: frozenset[str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "access_type": rng.choice(["exclusive", "exclusive", "non-exclusive"]),
        "permission": "delete",
        "max_bind_count": 100,
    }
    if "dying" in features:
        attributes["max_redelivery_count"] = rng.choice([0, 1, 3])
        attributes["redelivery_enabled"] = rng.random() < 0.85
        attributes["dead_message_queue"] = rng.choice(["dmq", "dmq", "#DEAD_MSG_QUEUE", "missing", ""])
        attributes["respect_dmq_eligible"] = rng.random() < 0.3
        if rng.random() < 0.3:
            attributes |= {
                "redelivery_delay_enabled": True,
                "redelivery_delay_initial_ms": rng.choice([50, 400]),
                "redelivery_delay_max_ms": 1_000,
            }
    if "ttl" in features:
        attributes["max_ttl_s"] = rng.choice([0, 0, 1, 3])
        attributes["respect_ttl"] = rng.random() < 0.8
    if "priority" in features:
        attributes["respect_priority"] = rng.random() < 0.5
    if "delay" in features:
        attributes["delivery_delay_s"] = rng.choice([0, 0, 1])
    if "relaxed" in features:
        attributes["durability"] = rng.choice(["synced", "relaxed"])
    if "small" in features:
        attributes["max_spool_usage_mb"] = rng.choice([1, 2, 5, 5_000])
        attributes["reject_to_sender"] = rng.choice(["always", "always", "when-enabled", "never"])
        attributes["max_message_bytes"] = rng.choice([200, 10_000_000])
    if "unacked" in features:
        attributes["max_delivered_unacked_per_flow"] = rng.choice([1, 3, 20])
    if "low-priority" in features and attributes.get("reject_to_sender") != "never":
        attributes |= {"reject_low_priority": True, "reject_low_priority_limit": rng.choice([0, 3, 10])}
    return attributes


# Clients.


def _client(
    rng: random.Random, name: str, vpn: str, endpoints: list[EndpointPlan], features: frozenset[str]
) -> GuaranteedPlan:
    plan = ClientPlan(
        name=name,
        vpn=vpn,
        username=USERNAME,
        window=ClientPlan._field_defaults["window"],
        is_cutting=rng.random() < 0.7,
        is_stale=rng.random() < 0.1,
    )
    names = [f"p{number}" for number in range(rng.choice([0, 1, 1, 2]))]
    shared = "shared-names" in features
    producers = [
        ProducerPlan(
            one if shared and rng.random() < 0.5 else f"{name}-{one}",
            rng.choice([1, 4, 20, 255]),
            rng.random() < 0.4,
        )
        for one in names
    ]
    mine = [one for one in endpoints if one.vpn == vpn]
    flows = [_flow(rng, one, features) for one in rng.choices(mine, k=rng.choice([0, 1, 2, 3]))]
    if "temporary" in features and rng.random() < 0.5:
        flows.append(FlowPlan(f"{name}-temporary", temporary=True, is_prompt=rng.random() < 0.5))
    return GuaranteedPlan(plan, producers, flows)


def _flow(rng: random.Random, endpoint: EndpointPlan, features: frozenset[str]) -> FlowPlan:
    is_dying = "dying" in features
    is_partitioned = bool(endpoint.attributes.get("partition_count"))
    selector = topic = None
    if "selectors" in features and rng.random() < 0.5:
        selector = f"color = '{rng.choice(COLORS)}'"
    if endpoint.kind != "queue":
        topic = rng.choice(QUEUE_FILTERS[:6])
    return FlowPlan(
        endpoint.name,
        kind=endpoint.kind,
        browse="browsers" in features and not is_partitioned and rng.random() < 0.3,
        window=rng.choice([1, 3, 20, 255]),
        window_bytes=rng.choice([300, 1 << 20]),
        selector=selector,
        topic=topic,
        max_unacked=rng.choice([None, None, 1, 5]),
        is_prompt=rng.random() < 0.5,
        fails=rng.choice([0.0, 0.2, 0.5]) if is_dying else rng.choice([0.0, 0.0, 0.1]),
        rejects=0.2 if is_dying and rng.random() < 0.5 else 0.0,
    )


def furnish(node: GuaranteedNode, world: GuaranteedWorld) -> None:
    """Create the objects of a world."""
    allow_all = {
        "client_connect_default": "allow",
        "publish_topic_default": "allow",
        "subscribe_topic_default": "allow",
        "subscribe_share_name_default": "allow",
    }
    for vpn in world.vpns:
        node.define("vpn", "", vpn, **world.vpn_attributes)
        node.define("acl", vpn, "narrow", **allow_all)
        node.define(
            "username", vpn, USERNAME, acl_profile="narrow", guaranteed_endpoint_permission_override=True
        )
    for one in world.endpoints:
        node.define(one.kind, one.vpn, one.name, **one.attributes)


def draw_guaranteed_row(rng: random.Random, world: GuaranteedWorld, vpn: str) -> tuple[str, dict[str, Any]]:
    """Draw the topic of a guaranteed message, and what else it says."""
    features = world.features
    queues = [one.name for one in world.endpoints if one.vpn == vpn and one.kind == "queue"]
    if rng.random() < 0.3:
        topic = f"{wire.QUEUE_TOPIC_PREFIX}{rng.choice([*queues, 'missing'])}"
    else:
        topic = rng.choice(worlds.TOPICS[:20])
    options: dict[str, Any] = {"cos": rng.choice([1, 2, 3])}
    if "partitions" in features and rng.random() < 0.6:
        options["partition_key"] = rng.choice(KEYS)
    if "ttl" in features and rng.random() < 0.4:
        options["ttl_ms"] = rng.choice([50, 500, 2_000])
    if "delay" in features and rng.random() < 0.3:
        options["delay_ms"] = rng.choice([50, 800])
    if "priority" in features and rng.random() < 0.5:
        options["priority"] = rng.randint(0, 9)
    if "dying" in features and rng.random() < 0.5:
        options["dmq_eligible"] = True
    if rng.random() < 0.05:
        options["dto"] = True
    return topic, options
