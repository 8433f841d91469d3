"""Which node a command is about: the decision, apart from where its grounds come from.

The first of these that names a node wins:

    1. options of the command: --url, --data, --admin-url, --management
    2. the context that --context names
    3. variables: ANGARIUM_URL, ANGARIUM_DATA, ANGARIUM_ADMIN_URL, ANGARIUM_MANAGEMENT
    4. the context that ANGARIUM_CONTEXT names, else the one chosen with 'angarium context use'
    5. the node of ./angarium-data; if it does not run, no other is taken for it
    6. the only node of this user that runs on this host

A client command is about an address for clients, an operator command about a controller. A source that names only the
other of the two is an error: the next one might lead to another node, and something may be deleted there.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cluster.data.registry import RunningNode

#: More running nodes than these are counted, not listed.
_LISTED_MAX: Final = 20


class Purpose(Enum):
    """What a command wants of the node."""

    CLIENT = "an address for clients"
    OPERATOR = "an address for operators"


class Place(NamedTuple):
    """What one source says about where a node is; empty where it says nothing."""

    #: How people call the source.
    source: str
    url: str = ""
    data: str = ""
    admin_url: str = ""
    management: str = ""

    @property
    def names_a_node(self) -> bool:
        """Whether it says anything."""
        return bool(self.url or self.data or self.of_operators)

    @property
    def of_operators(self) -> str:
        """The address for operators."""
        return self.admin_url or self.management


class Target(NamedTuple):
    """Where the node of a command is: one of the two is not empty."""

    #: The address for the purpose that was asked for.
    url: str = ""
    #: The data directory of a node of this host, which may not run.
    data: str = ""


class Here(NamedTuple):
    """The node of the working directory."""

    data: str
    runs: bool


def choose(
    purpose: Purpose,
    places: Sequence[Place],
    here: Callable[[], Here | None],
    running: Callable[[], Iterable[RunningNode]],
    *,
    waits: bool = False,
) -> Target | None:
    """Give the node that is meant, or None if nothing names one and none runs.

    Args:
        purpose: what for.
        places: what options, variables and contexts say, the most important first.
        here: gives the node of the data directory in the working directory; asked if no place names one.
        running: gives the nodes that run; asked last.
        waits: whether the command waits for a node that does not run.

    Raises:
        InvalidRequestError: several nodes run, or a context does not name what is needed (40018).
        UnavailableError: the node of the working directory does not run (50308).
    """
    target = named(purpose, places)
    if target is not None:
        return target
    own = here()
    if own is not None:
        if own.runs or waits:
            return Target(data=own.data)
        raise _stopped(own.data, list(running()))
    nodes = list(running())
    if len(nodes) > 1:
        raise errors.invalid(_listed(nodes), f"choose one: {_HOW_TO_CHOOSE}")
    return Target(data=nodes[0].data) if nodes else None


_HOW_TO_CHOOSE: Final = "--data DIR, ANGARIUM_DATA=DIR, or 'angarium context use NAME'"


def named(purpose: Purpose, places: Sequence[Place]) -> Target | None:
    """Give the node that options, variables and contexts name, None if they name none.

    Raises:
        InvalidRequestError: a context does not name what is needed (40018).
    """
    place = next((place for place in places if place.names_a_node), None)
    if place is None:
        return None
    url = place.url if purpose is Purpose.CLIENT else place.of_operators
    if not url and not place.data:
        option = "--url" if purpose is Purpose.CLIENT else "--admin-url"
        advice = f"'angarium context add NAME {option} ...' adds one; --data names a node of this host"
        raise errors.invalid(f"{place.source} has no {purpose.value[3:]}", advice)
    return Target(url=url) if url else Target(data=place.data)


def _stopped(data: str, others: Sequence[RunningNode]) -> errors.AngariumError:
    detail, advice = f"the node of {data} does not run", "'angarium up' starts it"
    if others:
        detail += f"; {_listed(others)}"
        advice += f"; choose another one with {_HOW_TO_CHOOSE}"
    return errors.error_for(errors.NODE_UNREACHABLE, detail, advice)


def _listed(nodes: Sequence[RunningNode]) -> str:
    shown = nodes[:_LISTED_MAX]
    name_width = max(len(node.name) for node in shown)
    data_width = max(len(node.data) for node in shown)
    lines = [
        f"  {row.name:<{name_width}}  {row.data:<{data_width}}  {row.url or 'starting'}" for row in shown
    ]
    if len(nodes) > len(shown):
        lines.append(f"  and {len(nodes) - len(shown)} more")
    count = "1 node runs" if len(nodes) == 1 else f"{len(nodes)} nodes run"
    return "\n".join([f"{count}:", *lines, ""])
