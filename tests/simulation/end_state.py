"""What must hold of a node at rest: nothing is under way, and router and workers know the same.

These checks look inside the state machines; the histories of the clients are judged elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.matching.shards import ShardState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from node.matching.worker import Worker
    from router.router import Router
    from router.sessions.session import Session
    from tests.simulation.simulated_client import SimulatedClient
    from tests.simulation.simulated_node import SimulatedNode


def unrest(node: SimulatedNode) -> list[str]:
    """Say what is still under way; nothing when everything has drained."""
    router = node.router
    if router is None:
        return ["the router is down"]
    found = list(_unrest_of_shards(router))
    for session in router.sessions:
        found += _unrest_of_session(session)
    if router.egress.queued_bytes:
        found.append(f"{router.egress.queued_bytes} bytes are queued for clients")
    if router.rounds.held or router.rounds.held_sessions:
        found.append("dispatching is held")
    # Among them may be some that have ended: what they sent goes on as their Message VPN may.
    found += [
        f"{one.client_name} is held back with {len(one.pending)} rounds" for one in router.effort.waiting
    ]
    found += [f"not all have got what {one.client_name} published" for one in router.dispatcher.crowds.of]
    if router.handshake._tickets:
        found.append(f"{len(router.handshake._tickets)} logins wait for their passwords")
    return found


def _unrest_of_shards(router: Router) -> Iterator[str]:
    for shard in router.shards.shards:
        if shard.state is not ShardState.READY:
            yield f"worker {shard.index} is {shard.state.value}"
        if shard.outstanding:
            yield f"{len(shard.outstanding)} frames are out at worker {shard.index}"
        feed = shard.feed
        if feed._added or feed._removed or feed._sent:
            yield f"filters are on their way to worker {shard.index}"
        if shard.waiting:
            yield f"sessions wait for worker {shard.index}"
        if router.shards._waiting[shard.index]:
            yield f"requests wait for the confirmation of worker {shard.index}"


def _unrest_of_session(session: Session) -> Iterator[str]:
    if session.open_rounds or session.pending or session.parked:
        yield f"{session.client_name} has {len(session.open_rounds)} open rounds"
    if session.unretired_bytes:
        yield f"{session.client_name} has {session.unretired_bytes} bytes unretired"
    table = session.eliding
    if table is not None and any(topic.held is not None for topic in table.topics.values()):
        yield f"{session.client_name} has elided messages held"


def disagreements(node: SimulatedNode) -> list[str]:
    """Say where router and workers know different things, or the router's own tables do."""
    router = node.router
    assert router is not None
    found = list(_broken_sums(router))
    for index, simulated in node.supervisor.workers.items():
        found += [f"worker {index}: {text}" for text in _differences(router, index, simulated.worker)]
    for simulated in node.supervisor.all_workers:
        if simulated.worker.faults:
            found.append(
                f"{simulated.worker.faults} frames at worker {simulated.identity!r} were no router's"
            )
    return found


def _differences(router: Router, index: int, worker: Worker) -> Iterator[str]:
    shards = router.shards
    shard = shards.shards[index]
    told = {f.id: (f.vpn_id, f.pattern, f.kind) for f in router.interest.filters_of_shard(index)}
    yield from _difference("filters", told, worker._matching._filters)
    known = {
        number: tuple(f.id for f in one.filters if f.id in router.interest.filters)
        for number, one in shard.sets.items()
    }
    sets = worker._matching.sets
    held = {
        one.id: tuple(i for i in one.filter_ids if i in router.interest.filters)
        for one in sets._by_values.values()
        if one.defined
    }
    yield from _difference("sets", known, held)
    rules = {number: (allow, tuple(dict.fromkeys(texts))) for number, (allow, texts) in shards.rules.items()}
    theirs = {number: (one.default_allow, one.exceptions) for number, (_, one) in worker._rules.items()}
    yield from _difference("rules", rules, theirs)
    yield from _difference("table", (shards.epoch, shards.table), (worker.epoch, worker._slots))


def _difference(what: str, router: Any, worker: Any) -> Iterator[str]:
    if router != worker:
        yield f"{what} differ: the router knows {router!r:.600}, the worker {worker!r:.600}"


def compare_credit(router: Router, clients: Iterable[SimulatedClient]) -> None:
    """Note where router and client, with nothing on its way, count differently what the credit was used for."""
    sent = {f"{session.number}": [session.sent_messages, session.sent_bytes] for session in router.sessions}
    for client in clients:
        if client.is_settled and client.record is not None and client.session is not None:
            there, here = sent.get(client.record.session), client.session._received
            if there is not None and there != here:
                client.record.overdrafts.append(f"the router counts {there} of its credit, it counts {here}")


def _broken_sums(router: Router) -> Iterator[str]:
    """Check sums over all sessions that no validate() of one object can see."""
    yield from standing_faults(router)
    rules: dict[int, int] = {}
    subscriptions: dict[str, int] = {}
    clients: dict[str, list[str]] = {}
    for session in (one for one in router.sessions if one.is_client):
        if session.publish_rules_id:
            rules[session.publish_rules_id] = rules.get(session.publish_rules_id, 0) + 1
        vpn = session.vpn.name
        subscriptions[vpn] = subscriptions.get(vpn, 0) + len(session.subscriptions)
        clients.setdefault(vpn, []).append(session.client_name)
    users = {entry[0]: entry[1] for entry in router.rights._numbers.values()}
    if users != rules or list(router.shards.rules) != sorted(users):
        yield f"publish rules are used {rules}, counted are {users}, workers know {list(router.shards.rules)}"
    for name, known in router.directory.vpns.items():
        if known.subscriptions != subscriptions.get(name, 0):
            yield f"VPN {name} counts {known.subscriptions} subscriptions, it has {subscriptions.get(name, 0)}"
        if sorted(known.clients) != sorted(clients.get(name, [])):
            yield f"VPN {name} counts the clients {sorted(known.clients)}, it has {sorted(clients.get(name, []))}"
    used = [one for shard in router.shards.shards for one in shard.sets.values()]
    for one in router.interest._sets.values():
        if one.references != used.count(one):
            yield f"a set counts {one.references} references, it has {used.count(one)}"


def standing_faults(router: Router) -> Iterator[str]:
    """Say what must not be at any time, whatever is under way."""
    for session in (one for one in router.sessions if one.is_client):
        username = session.vpn.usernames.get(session.username)
        if username is None or not username.enabled or not session.vpn.enabled:
            yield f"{session.client_name} is connected though its username or VPN is shut down"
    window = router.config.worker_window
    for shard in router.shards.shards:
        if len(shard.outstanding) > window * 2:
            yield f"{len(shard.outstanding)} frames are out at worker {shard.index}, the window is {window}"
    due: dict[tuple[int, str], int] = {}
    for _, _, session, topic, tracked in (*router.eliding.due, *router.eliding.unswept):
        table = session.eliding
        if not session.closed and table is not None and table.topics.get(topic) is tracked:
            due[session.number, topic] = due.get((session.number, topic), 0) + 1
    for (number, topic), count in due.items():
        if count > 1:
            yield f"topic {topic!r} of session {number} has {count} due times"
    topics = sum(len(session.eliding) for session in router.sessions if session.eliding is not None)
    if router.eliding.tracked != topics:
        yield f"{router.eliding.tracked} tracked topics are counted, there are {topics}"
