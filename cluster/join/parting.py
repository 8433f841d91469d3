"""What goes before `angarium cluster leave`: the queues of the links take nothing more, and what they hold crosses.

A message in such a queue is acknowledged, and gone when the link is deleted. So both ends are shut, the publishers that
come meanwhile are refused, and the links carry over what is there. If that takes too long both are opened again. Dead
messages do not cross: operators decide about them first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal

from angarium import errors, wire
from cluster.catalog.node_queues import names_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin.client import Admin

#: How long what waits may take to cross.
EMPTY_S: Final = 15.0
#: Reports of neighbours come every 5 s; one that is heard so long after the queues were shut tells of them as they are.
SEEN_S: Final = 2.0
LOOK_S: Final = 0.2

Row = dict[str, Any]


def empty(admin: Admin, neighbours: list[str], tell: Callable[[Literal["part", "stay"]], None]) -> None:
    """Have the queues of the links with neighbours take nothing more, and wait until they are empty.

    Args:
        admin: of the node that leaves.
        neighbours: names of the others.
        tell: has them shut (`part`) or open (`stay`) the queue of their link with it.

    Raises:
        ConflictError: they do not get empty, and take messages again, or one has dead messages (40902).
    """
    _refuse_dead(admin.call("cluster.status"))
    queues = [  # also those that are shut: a node that was killed in here left them so
        {"kind": "queue", "vpn": queue["vpn"], "name": queue["name"]}
        for node in neighbours
        for queue in admin.call("objects.list", kind="queue", vpn=None, name=f"{wire.LINK_NAME_PREFIX}{node}")
    ]
    try:
        _switch(admin, queues, takes=False)
        tell("part")
        _wait(admin)
    except BaseException:
        try:
            _switch(admin, queues, takes=True)
        finally:  # the others do not know that nobody answers here
            tell("stay")
        raise


def _switch(admin: Admin, queues: list[Row], *, takes: bool) -> None:
    for queue in queues:
        admin.call("objects.update", **queue, attributes={"ingress_enabled": takes})


def _wait(admin: Admin) -> None:
    shut_at = time.monotonic()
    while True:
        shut_s = time.monotonic() - shut_at
        status = admin.call("cluster.status")
        _refuse_dead(status)
        waiting = waiting_messages(status)
        if not waiting and _is_told(status, shut_s):
            return
        if waiting and (shut_s > EMPTY_S or not _is_moving(status)):
            told = ", ".join(f"{count} from {source} to {target}" for source, target, count in waiting)
            detail = f"messages wait for the way over links: {told}"
            raise errors.error_for(
                errors.OBJECT_IN_USE, detail, "wait until they are over, or give them up: --force"
            )
        if shut_s > EMPTY_S:  # who has not been heard for so long is not heard at all
            return
        time.sleep(LOOK_S)


def _refuse_dead(status: Row) -> None:
    """Refuse to go while the ends of links have dead messages.

    Raises:
        ConflictError: some do (40902).
    """
    dead = [
        f"{row['dead_messages']} on {row['node']} in '{names_of(row['neighbour'])[2]}'"
        for row in _own_ends(status)
        if row["dead_messages"]
    ]
    if dead:
        detail = f"dead messages would be deleted with the links: {', '.join(dead)}"
        advice = "'angarium queue redrive' or 'angarium queue purge' there, or give them up: --force"
        raise errors.error_for(errors.OBJECT_IN_USE, detail, advice)


def _is_told(status: Row, shut_s: float) -> bool:
    """Tell whether the neighbours that are heard have told since the queues were shut."""
    ends = [row for row in status["links"] if row["neighbour"] == status["node"] and not row["stale"]]
    return all(row["heard_s"] + SEEN_S <= shut_s for row in ends)


def _is_moving(status: Row) -> bool:
    """Tell whether a link that has something to carry is up."""
    return any(row["state"] == "up" and not row["stale"] for row in _own_ends(status) if _waiting_at(row))


def waiting_messages(status: Row) -> list[tuple[str, str, int]]:
    """Give (from, to, messages) of each end of a link of this node in whose queues messages wait."""
    counted = [(row["node"], row["neighbour"], _waiting_at(row)) for row in _own_ends(status)]
    return [row for row in counted if row[2]]


def _own_ends(status: Row) -> list[Row]:
    own = status["node"]
    return [row for row in status["links"] if own in (row["node"], row["neighbour"])]


def _waiting_at(row: Row) -> int:
    return int((row["spooled_messages"] or 0) + (row["retry_messages"] or 0))
