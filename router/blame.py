"""Whose session a worker died of, and its end: what the controller asks (`cluster.controller.blames`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.router import Router


def answer(router: Router, operation: str, asked: dict[str, int], now: float) -> dict[str, str] | None:
    """Give whose a session is, by its number and the incarnation of its router, and put it aside if that is asked.

    None: it is gone, or none of a client. What a link or a bridge of this node carries is others' work.
    """
    if asked["router"] != router.shards.incarnation:
        return None
    found = [one for one in router.sessions if one.number == asked["session"] and one.is_client]
    if not found:
        return None
    (session,) = found
    if operation == "put_aside":
        router.rounds.put_aside(session, now)
    return {"vpn": session.vpn.name, "username": session.username, "client": session.client_name}
