"""Who gets a message that only one client gets: deliver-to-one (R68 to R79).

Clients of this node come first: those of the best priority level that is there, one after the other. Only if there is
none a neighbour gets it, and the choice is made there, among its clients: the row travels *open*. So at most one copy
in the whole mesh is open, and deliver-always subscribers get theirs everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from router.sessions.interest import Filter, FilterSet
    from router.sessions.session import Session

#: One session with a plain subscription, or the members of a share group with the texts of their subscriptions.
Candidate = list[tuple["Session", tuple[str, ...]]]
_Levels = dict[int, list[Candidate]]


def candidates(a_set: FilterSet[Session], publisher: Session) -> list[Candidate]:
    """Give the candidates of the best priority level present on this node (R72, R73).

    A share group stands for one candidate with the priority of its best member.
    """
    levels: _Levels = {}
    sessions: dict[Session, None] = {}
    for a_filter in a_set.filters:
        if a_filter.kind == wire.KIND_SHARED:
            _add_group(a_filter, publisher, levels)
        else:
            sessions.update(dict.fromkeys(a_filter.members))
    for session in sessions:
        if (
            not session.is_neighbour
            and not session.closed
            and not (session is publisher and session.no_local)
        ):
            levels.setdefault(_priority(session, publisher), []).append([(session, ())])
    return levels[min(levels)] if levels else []


def _add_group(a_filter: Filter[Session], publisher: Session, levels: _Levels) -> None:
    members = [(session, texts) for session, texts in a_filter.members.items() if not session.closed]
    if members:
        best = min(_priority(session, publisher) for session, _ in members)
        group = [member for member in members if _priority(member[0], publisher) == best]
        levels.setdefault(best, []).append(group)


def _priority(session: Session, publisher: Session) -> int:
    """Give the priority of a session for what was published here, or on another node."""
    return session.network_priority if publisher.is_neighbour else session.local_priority


def best_neighbour(a_set: FilterSet[Session], publisher: Session) -> Session | None:
    """Give the neighbour that gets a message for which there is no client here (R75-R77): always the same one.

    What came over a link goes to none.
    """
    if publisher.is_neighbour:
        return None
    best: tuple[int, str] | None = None
    found: Session | None = None
    for a_filter in a_set.filters:
        for session in a_filter.members:
            if session.link is None or session.closed or a_filter.kind != wire.KIND_PLAIN:
                continue
            rank = (session.link.imports[a_filter.pattern] >> wire.WISH_DTO_SHIFT, session.link.node)
            if best is None or rank < best:
                best, found = rank, session
    return found
