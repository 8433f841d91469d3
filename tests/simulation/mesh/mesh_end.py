"""What must hold of a mesh at rest: every node knows exactly what its neighbours want.

What a node wants is worked out here from its clients and endpoints, as operators know them; what its neighbours know is
looked up in their routers and in the attributes of their queues of links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from angarium.topic import parse_filter
from router.links.imports import _kinds
from tests.simulation.event_history import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.mesh.node_scenario import NodeScenario

NOEXPORT = "#noexport/"


class Wanted(NamedTuple):
    """One subscription of a client."""

    text: str
    deliver_always: bool
    network_priority: int


def merged(subscriptions: list[Wanted], filters: list[str]) -> dict[str, int]:
    """Give the wish of each pattern that clients and endpoints of a node want together (R17, R18, R214, R215)."""
    wishes: dict[str, int] = {}
    best: dict[str, int] = {}
    for text, deliver_always, priority in subscriptions:
        parsed = parse_filter(text)
        if text.startswith(NOEXPORT):
            continue
        if parsed.share is None and (deliver_always or parsed.pattern == ">"):
            wishes[parsed.pattern] = wishes.get(parsed.pattern, 0) | wire.WISH_DELIVER_ALWAYS
        else:
            best[parsed.pattern] = min(priority, best.get(parsed.pattern, priority))
    for text in filters:
        if not text.startswith(("!", NOEXPORT)):
            pattern = parse_filter(text).pattern
            wishes[pattern] = wishes.get(pattern, 0) | wire.WISH_ENDPOINT
    for pattern, priority in best.items():
        wishes[pattern] = wishes.get(pattern, 0) | priority << wire.WISH_DTO_SHIFT
    return wishes


def wishes_of(play: NodeScenario, vpn: str) -> dict[str, int]:
    """Give what a node wants in a Message VPN."""
    subscriptions = [
        Wanted(text, always, client.plan.network_priority)
        for client in play.clients
        if client.plan.vpn == vpn
        for text, always in client.interest.held
    ]
    return merged(subscriptions, [text for one in endpoints_of(play, vpn) for text in filters_of(one)])


def endpoints_of(play: NodeScenario, vpn: str) -> Iterator[dict[str, Any]]:
    """Give the attributes of the endpoints of a node, without the queues of links."""
    for record in play.guaranteed.endpoints.values():
        is_links = record.name.startswith(wire.LINK_NAME_PREFIX)
        if record.vpn == vpn and record.deleted_at == FOREVER and not is_links:
            yield record.changes[-1].attributes


def filters_of(attributes: dict[str, Any]) -> list[str]:
    """Give what an endpoint subscribes to."""
    topic = attributes.get("topic")
    own = [*(attributes.get("subscriptions") or ()), *(attributes.get("client_subscriptions") or ())]
    return own + ([topic] if topic else [])


def disagreements(plays: dict[str, NodeScenario]) -> list[str]:
    """Say what a node does not know of a neighbour, or still believes."""
    return [
        text
        for play in plays.values()
        for other in play.records.neighbours
        for text in _of_pair(play, plays[other])
    ]


def _of_pair(here: NodeScenario, there: NodeScenario) -> Iterator[str]:
    router = here.node.router
    if router is None:
        yield f"the router of node {here.name} is down"
        return
    for vpn in here.world.vpns:
        found = [
            (session, neighbour)
            for session, neighbour in router.links.sessions.items()
            if neighbour.node == there.name and session.vpn.name == vpn
        ]
        title = f"node {here.name} and its neighbour {there.name} in {vpn}"
        if len(found) != 1:
            yield f"{title}: {len(found)} sessions"
            continue
        wanted = wishes_of(there, vpn)
        session, neighbour = found[0]
        if not neighbour.is_synchronised or neighbour.untold is not None:
            yield f"{title}: not synchronised"
        yield from differences(title, wanted, neighbour.imports)
        joined = sorted(
            (one.pattern, one.kind) for one in router.interest.filters.values() if session in one.members
        )
        expected = sorted(
            (pattern, kind) for pattern, wish in neighbour.imports.items() for kind in _kinds(wish)
        )
        if joined != expected:
            yield f"{title}: its session is a member of {joined}, not of {expected}"
        queue = here.node.controller.endpoint(vpn, "queue", wire.LINK_NAME_PREFIX + there.name)
        stored = [] if queue is None else queue.changes[-1].attributes["client_subscriptions"]
        for_endpoints = sorted(one for one, wish in wanted.items() if wish & wire.WISH_ENDPOINT)
        if sorted(stored) != for_endpoints:
            yield f"{title}: its queue has {sorted(stored)}, wanted are {for_endpoints}"


def differences(title: str, wanted: dict[str, int], known: dict[str, int]) -> Iterator[str]:
    """Say where what is known differs from what is wanted."""
    for pattern in sorted({*wanted, *known}):
        if wanted.get(pattern, 0) != known.get(pattern, 0):
            yield f"{title}: {pattern!r} is wanted {wanted.get(pattern, 0):#x}, known is {known.get(pattern, 0):#x}"
