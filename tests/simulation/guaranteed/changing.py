"""An operator who changes attributes of endpoints while messages are in them and on their way.

What is drawn is in force for messages that are there, that are out, and that come; rules know the attributes of each
moment, so nothing here is written down but the change itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode
    from tests.simulation.guaranteed.guaranteed_world import EndpointPlan, GuaranteedWorld

#: Attribute, or several that only make sense together -> what they become.
CHANGES: Final[tuple[tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]], ...]] = (
    (("respect_ttl", "max_ttl_s"), ((True, 1), (True, 3), (True, 0), (False, 0))),
    (("respect_priority",), ((True,), (False,))),
    (("delivery_delay_s",), ((0,), (1,))),
    (("max_redelivery_count",), ((0,), (1,), (3,))),
    (("redelivery_enabled",), ((True,), (True,), (False,))),
    (
        ("redelivery_delay_enabled", "redelivery_delay_initial_ms", "redelivery_delay_max_ms"),
        ((False, 1, 1), (True, 50, 1_000), (True, 400, 1_000)),
    ),
    (("dead_message_queue",), (("",), ("dmq",), ("missing",))),
    (("respect_dmq_eligible",), ((True,), (False,))),
    (("durability",), (("synced",), ("relaxed",))),
    (("max_spool_usage_mb",), ((0,), (5_000,), (5_000,))),
    (("max_delivered_unacked_per_flow",), ((1,), (3,), (10_000,))),
    (("access_type",), (("exclusive",), ("non-exclusive",))),
    (("max_bind_count",), ((0,), (1,), (100,), (100,))),
    (("permission",), (("no-access",), ("read-only",), ("delete",), ("delete",))),
    (("reject_to_sender",), (("always",), ("when-enabled",), ("never",))),
    (("max_message_bytes",), ((200,), (10_000_000,))),
)
#: The same of other objects (kind, name; empty: that of each Message VPN), each with what it is otherwise.
OTHERS: Final[tuple[tuple[str, str, str, tuple[Any, ...], Any], ...]] = (
    ("vpn", "", "enabled", (False,), True),
    ("vpn", "", "durability", ("relaxed",), "synced"),
    ("vpn", "", "max_egress_flow_count", (0, 1, 2), 10_000),
    ("vpn", "", "max_ingress_flow_count", (0, 1, 2), 10_000),
    ("vpn", "", "max_endpoint_count", (0, 3), 10_000),
    ("vpn", "", "max_spool_usage_mb", (0,), 10_000),
    ("profile", "default", "allow_guaranteed_send", (False,), True),
    ("profile", "default", "allow_guaranteed_receive", (False,), True),
    ("profile", "default", "max_egress_flow_count", (0, 1), 1_000),
    ("profile", "default", "max_ingress_flow_count", (0, 1), 1_000),
    ("profile", "default", "reject_no_subscription_match", (True,), False),
    ("username", "app", "enabled", (False,), True),
    ("username", "app", "guaranteed_endpoint_permission_override", (False,), True),
)
#: What every endpoint gets back in the end, so that everything can be taken.
PEACEFUL: Final[dict[str, Any]] = {
    "max_bind_count": 100,
    "permission": "delete",
    "reject_to_sender": "always",
    "max_message_bytes": 10_000_000,
}


#: When it is asked for again.
AGAIN_S: Final = 0.5
#: How often the clock of the host is set, too.
CLOCK: Final = 0.4


class Changing:
    """Changes one endpoint after the other."""

    def __init__(
        self,
        rng: random.Random,
        node: GuaranteedNode,
        world: GuaranteedWorld,
        note: Callable[[str, str], None],
    ) -> None:
        self._rng = rng
        self._node = node
        self._world = world
        self._note = note
        self._pace_s = rng.choice([0.05, 0.2, 0.5])
        self._changes = rng.sample(CHANGES, rng.choice([1, 3, len(CHANGES)]))
        self._is_busy = False
        self._sets_clock = rng.random() < CLOCK
        self._others = rng.sample(OTHERS, rng.choice([0, 1, 3, len(OTHERS)]))

    def begin(self) -> None:
        """Change something now and then from now on."""
        self._is_busy = True
        self._act_later()

    def end(self) -> None:
        """Let everything be as it is, but for what would keep messages where they are."""
        self._is_busy = False
        if self._sets_clock:
            self._set_clock(0)
        self._make_peace()

    def _make_peace(self) -> None:
        """Ask for it until the controller, which may be dead now, has it in its store."""
        wanted = {(one.kind, one.vpn, one.name): {**PEACEFUL} for one in self._world.endpoints}
        for vpn in self._world.vpns:
            for kind, name, attribute, _, usual in self._others:
                key = (kind, "" if kind == "vpn" else vpn, name or vpn)
                wanted.setdefault(key, {})[attribute] = usual
        objects = self._node.controller.store.objects
        is_over = True
        for key, attributes in wanted.items():
            known = objects.get(key)
            if known is not None and any(known[name] != value for name, value in attributes.items()):
                is_over = False
                self._node.define(*key, **attributes)
        if not is_over:
            self._node.loop.after(AGAIN_S, self._make_peace)

    def _act_later(self) -> None:
        self._node.loop.after(self._rng.expovariate(1 / self._pace_s), self._act)

    def _act(self) -> None:
        if not self._is_busy:
            return
        self._act_later()
        if self._sets_clock and self._rng.random() < 0.3:
            self._set_clock(self._rng.choice([-3_600_000, -2_000, -300, 0, 300, 2_000]))
            return
        if self._others and self._rng.random() < 0.3:
            self._change_other()
            return
        plan = self._rng.choice(self._world.endpoints)
        names, values = self._rng.choice(self._changes)
        self._change(plan, dict(zip(names, self._rng.choice(values), strict=True)))

    def _change_other(self) -> None:
        vpn = self._rng.choice(self._world.vpns)
        kind, name, attribute, values, usual = self._rng.choice(self._others)
        value = self._rng.choice([*values, usual])
        self._note("operator", f"{kind} {name} of {vpn}: {attribute}={value}")
        self._node.define(kind, vpn, name or vpn, **{attribute: value})

    def _set_clock(self, shift: int) -> None:
        records, node = self._node.guaranteed, self._node
        self._note("operator", f"sets the clock: {shift} ms")
        records.clock_sets.append((node.loop.now, shift))
        if node.router is not None:
            node.router.ground.wall_offset_ms = records.wall_offset_ms + shift

    def _change(self, plan: EndpointPlan, attributes: dict[str, Any]) -> None:
        if self._node.controller.endpoint(plan.vpn, plan.kind, plan.name) is not None:
            self._note("operator", f"{plan.kind} {plan.name} of {plan.vpn}: {attributes}")
            self._node.define(plan.kind, plan.vpn, plan.name, **attributes)
