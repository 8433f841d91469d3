"""What is asked at the same time shares a transaction of the config store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zmq

from angarium import errors
from angarium_server.frames import control
from cluster.catalog.catalog import Catalog
from cluster.catalog.deletions import Deletions
from cluster.catalog.producers import Producers
from cluster.catalog.registries import Registries
from cluster.catalog.stages import DROPPING, OPEN, Stages
from cluster.controller.asks import SHARING
from cluster.controller.server import FRAMES_PER_ROUND, ControllerServer
from cluster.controller.shipped_store import ShippedStore
from cluster.controller.switchboard import effects as c
from storage.config_store import Change, Counter, Deletion, Entry, Producer, Sink, Stage
from tests.unit.cluster.controller_world import World, answers, replies, requests

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def served() -> World:
    """A world whose router is there and configured."""
    world = World()
    world.answer(world.hello("router"), None)
    return world


def opening(name: str, username: str = "alice", **given: Any) -> tuple[str, Any]:
    whose = {"vpn": "default", "name": f"#mqtt/{name}", "username": username, "client": name}
    return "session.open", {**whose, "clean": False, "expiry_s": 60, **given}


def commits(seen: Sequence[c.Effect]) -> list[list[Entry]]:
    return [effect.changes for effect in seen if isinstance(effect, c.Commit)]


def names(entries: Sequence[Entry]) -> list[str]:
    return [entry.name for entry in entries if isinstance(entry, Change)]


NEW = (True, {"present": False, "filters": {}})


def test_what_is_asked_at_once_is_one_commit_and_told_in_order_after_it(served: World) -> None:
    seen = served.questions(*(opening(f"c{i}") for i in range(50)))
    (entries,) = commits(seen)
    assert names(entries) == [f"#mqtt/c{i}" for i in range(50)]
    assert isinstance(seen[0], c.Commit), "nobody hears of anything before it is durable"
    told = requests(seen)
    assert [(operation, content[2]) for operation, content in told] == [
        ("config_set", f"#mqtt/c{i}") for i in range(50)
    ]
    ids = [content[3]["id"] for _, content in told]
    assert ids == list(range(ids[0], ids[0] + 50))


def test_each_is_answered_when_the_router_has_its_own_change(served: World) -> None:
    seen = served.questions(opening("a"), opening("b"))
    first, second = [effect.number for effect in seen if isinstance(effect, c.Request)]
    assert answers(served.do(served.controller.answered(second, None))) == [NEW]
    seen = served.do(served.controller.refused(first, errors.HOME_NOT_READY, "worker 0"))
    assert answers(seen) == [(False, [errors.HOME_NOT_READY, "worker 0"])]


def test_one_that_is_refused_concerns_no_other(served: World) -> None:
    served.answer(served.questions(opening("taken", "bob")), None)
    seen = served.questions(opening("a"), opening("taken"), ("session.nothing", {}), opening("b"))
    assert [names(entries) for entries in commits(seen)] == [["#mqtt/a", "#mqtt/b"]]
    assert [(ok, value[0]) for ok, value in answers(seen)] == [
        (False, errors.PERMISSION_DENIED),
        (False, errors.UNKNOWN_OPERATION),
    ]
    assert answers(served.answer(seen, None, None)) == [NEW, NEW]


def test_each_is_judged_on_what_the_ones_before_it_left(served: World) -> None:
    limit = {"max_endpoint_count_per_username": 2}
    served.answer(served.call("objects.update", kind="profile", name="default", attributes=limit), None)
    seen = served.questions(opening("a"), opening("a"), opening("b"), opening("c"))
    assert [names(entries) for entries in commits(seen)] == [["#mqtt/a", "#mqtt/b"]]
    goes_on, beyond = answers(seen)
    assert goes_on == (True, {"present": True, "filters": {}})
    assert (beyond[0], beyond[1][0]) == (False, errors.TOO_MANY_ENDPOINTS)
    assert seen.index(next(one for one in seen if isinstance(one, c.Answer))) > 0, "it waits for the commit"


def test_nothing_stays_of_what_the_store_refuses(served: World) -> None:
    before = served.catalog.snapshot()
    served.store_refuses = True
    deleted = {"vpn": "default", "kind": "queue", "name": "#dead-message-queue", "id": None}
    asked = (opening("a"), opening("a"), opening("b", clean=True), ("endpoint.delete", deleted))
    seen = served.questions(*asked, ("producer.open", {"vpn": "default", "username": "x", "name": "p"}))
    assert requests(seen) == []
    refusals = answers(seen)
    assert len(refusals) == 5, "each is answered, and once"
    assert all(not ok for ok, _ in refusals)
    assert (served.catalog.snapshot(), served.producers.find(None, "*")) == (before, [])
    served.store_refuses = False
    seen = served.questions(opening("b"))
    assert requests(seen)[0][1][3]["id"] == 1 + sum(kind == "queue" for kind, *_ in before), "no id is lost"


def test_what_needs_no_room_is_done_though_others_find_none(served: World) -> None:
    served.answer(served.questions(opening("old")), None)
    old = served.catalog.get("queue", "default", "#mqtt/old")
    assert old is not None
    served.takes = lambda commit: (
        not any(isinstance(one, Change) and one.attributes for one in commit.changes)
    )
    gone = {"vpn": "default", "kind": "queue", "name": "#mqtt/old", "id": old["id"]}
    seen = served.questions(opening("new"), ("endpoint.expire", gone), opening("newer"))
    assert [ok for ok, _ in answers(seen)] == [False, False]
    assert requests(seen) == [("config_delete", ["queue", "default", "#mqtt/old"])]
    assert len(commits(seen)) == 4


def test_an_operator_sees_what_was_durable_before(served: World) -> None:
    seen = served.questions(opening("a"), opening("b"))
    assert len(replies(served.call("objects.list", kind="queue", name="#mqtt/*"))[0]) == 2
    assert len(requests(seen)) == 2


def test_who_joins_shares_with_nobody() -> None:
    """A token is used up by being judged, so nothing may be judged again that has one."""
    assert "session.open" in SHARING
    assert "cluster.join" not in SHARING


class Crowd:
    """The socket of a router that has asked very much."""

    def __init__(self, count: int) -> None:
        frames = [control.Ask(number, *opening(f"c{number}")).packed() for number in range(count)]
        self.waiting = [[b"router", frame] for frame in frames]
        self.answered = 0

    def recv_multipart(self, _flags: int) -> list[bytes]:
        if not self.waiting:
            raise zmq.Again
        return self.waiting.pop(0)

    def send_multipart(self, _frames: list[bytes], _flags: int) -> None:
        self.answered += 1


class Untouched:
    """A process whose sockets need no further look, and a store that counts."""

    commits = 0

    def touch(self, _socket: object) -> None:
        pass

    def beat(self, _now: float) -> None:
        pass

    def commit(self, _changes: Sequence[Entry]) -> None:
        self.commits += 1


def serving(crowd: Crowd) -> Any:
    """Give a controller process of which nothing is real but what it does with its frames."""
    server: Any = ControllerServer.__new__(ControllerServer)
    server._controller, server._control = World().controller, crowd
    server._process = server._store = Untouched()
    server._shipped = ShippedStore(server._process, server._store, None)
    return server


def test_a_socket_is_read_again_after_the_answers_were_sent() -> None:
    """What came while they were sent wakes nobody, so a process that has asked just then would wait for ever."""
    server = serving(Crowd(3))
    assert server._read_control()
    assert (server._store.commits, server._control.answered) == (1, 3)
    assert not server._read_control()


def test_operators_have_their_turn_after_one_commit_of_a_thousand_sessions() -> None:
    server = serving(Crowd(1_000))
    assert server._read_control(), "there is more; others have their turn first"
    assert (server._store.commits, server._control.answered) == (1, FRAMES_PER_ROUND)
    assert len(server._control.waiting) == 1_000 - FRAMES_PER_ROUND


WHOSE = ("default", "alice")


@pytest.mark.parametrize(
    "entries",
    [
        [Counter("producer", 9), Producer(*WHOSE, "new", 8, 5)],
        [Producer(*WHOSE, "old", None, 0), Counter("producer", 9), Producer(*WHOSE, "new", 8, 5)],
        [Producer(*WHOSE, "old", 1, 9)],
        [Counter("producer", 9), Stage(*WHOSE, "new", 8, OPEN, 7, "")],
        [Stage(*WHOSE, "old", 2, DROPPING, 7, "")],
        [Stage(*WHOSE, "old", None, OPEN, 0, "")],
        [Sink(*WHOSE, "new", 3, 7), Sink(*WHOSE, "old", 3, 7)],
        [Sink(*WHOSE, "old", None, 7)],
        [Deletion(5, is_complete=True), Deletion(6, is_complete=False)],
        [Counter("passwordless", 1), Change("queue", "default", "#dead-message-queue", None)],
    ],
)
def test_what_is_taken_back_leaves_nothing(entries: list[Entry]) -> None:
    registries = stored()
    before = seen_of(registries)
    undoing = registries.undoing(entries)
    registries.take(entries)
    assert seen_of(registries) != before
    registries.take(undoing)
    assert seen_of(registries) == before
    registries.validate()


def stored() -> Registries:
    catalog = Catalog([], lambda password: password)
    catalog.take(catalog.missing_built_ins())
    producers = Producers([Producer(*WHOSE, "old", 1, 5)], 3, 100, 7)
    stages = Stages([Stage(*WHOSE, "old", 2, OPEN, 5, "")], [Sink(*WHOSE, "old", 1, 5)], producers, 86_400)
    return Registries(catalog, producers, stages, Deletions([Deletion(5, is_complete=False)]))


def seen_of(registries: Registries) -> list[Any]:
    catalog, producers, stages, deletions = registries
    return [
        catalog.snapshot(),
        catalog.passwordless,
        catalog.new_endpoint(("queue", "default", "x"), catalog.snapshot()[-1][3])[1:],
        producers.find(None, "*"),
        producers.newest,
        stages.find(None),
        stages.decided,
        stages.find_sinks(None, "*"),
        deletions.ids,
    ]
