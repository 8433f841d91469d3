"""Routers and link processes with a fault of their own are found out in a story that has something of everything.

Each fault is one that a change could bring in: a comparison the wrong way round, a step left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cluster.relay.spooled
import node.home.lanes.moves
import router.delivery.dispatcher
import router.links.exports
from angarium import wire
from angarium.topic import slot_of
from cluster.relay.direct import Relay
from cluster.relay.spooled import Forwarder
from router.admission.spooling import Spooling
from router.delivery.dispatcher import Dispatcher
from router.links.imports import Imports
from router.links.stored import StoredInterest
from router.router import Router
from tests.share import some
from tests.simulation import scenario
from tests.simulation.mesh import mesh_scenario
from tests.simulation.mesh.mesh_stage import VPN, MeshStage

if TYPE_CHECKING:
    from collections.abc import Callable

#: What the story waits for comes much sooner, or with a fault never.
WAIT_MAX_S = 10.0
#: The rules find a fault in what happened; that nodes check themselves all the time would take two fifths of the time.
VALIDATE_S = 10.0
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def soon(monkeypatch: Patch) -> None:
    """Wait less long than a seed with every disturbance has to."""
    monkeypatch.setattr(mesh_scenario, "RECOVERY_MAX_S", WAIT_MAX_S)
    monkeypatch.setattr(scenario, "DRAIN_MAX_S", WAIT_MAX_S)


def story() -> list[str]:
    """Play a story in a line of three nodes, a - b - c, and give the rules that object."""
    stage = MeshStage(
        "story", "line", workers=2, queues={"small": {"subscriptions": ["s/>"], "max_message_bytes": 5}}
    )
    one, other = stage["b"].clients
    one.ask([("#share/g/t/2/*", False), ("#noexport/n/>", False), ("d/1", False)])
    other.ask([("#share/g/t/2/*", False), ("d/1", True)])
    stage["c"].clients[1].ask([("d/>", False)])
    stage["a"].clients[1].ask([("d/>", False), ("d/2", True)])
    stage.wait(0.5)
    for _ in range(2):
        for name in "abc":
            stage.publish(name, "t/1/1", "t/1/2", "t/3/0", "s/1")
            stage.publish(name, "t/1/3", "d/1", ttl_ms=60_000, dto=True)
            stage.say(name, "t/1/1", "t/2/1", "n/1", "t/1/2")
            stage.say(name, "d/1", "d/2", flags=wire.FLAG_DTO)
        stage.wait(0.01)
        stage["b"].node.link_processes.kill(stage.link("b"))
        stage.wait(1.0)
    one.give_back([("#share/g/t/2/*", False), ("d/1", False)])
    break_while_a_worker_sleeps(stage)
    wait_for_a_link(stage)
    refuse_and_try_again(stage)
    stage.scenario.recover()
    stage.scenario.drain("drain")
    if not stage.scenario.shared.broken:
        stage.scenario.shared.calm_since = stage.now
    for name in "abc":
        stage.say(name, "t/1/1", "t/2/1", "n/1", "t/1/2")
        stage.say(name, "d/1", "d/2", "t/2/2", flags=wire.FLAG_DTO)
    stage.wait(1.0)
    stage.scenario.drain("last drain")
    stage.scenario.look()
    return [one.rule for one in stage.scenario.outcome().violations]


def break_while_a_worker_sleeps(stage: MeshStage) -> None:
    """What a worker of b still has of its link to a comes behind what the next connection brings."""
    router = stage["b"].node.router
    assert router is not None
    topics = [f"t/1/{number}" for number in range(20)]
    slow, quick = (
        next(one for one in topics if router.shards.table[slot_of(one)] == worker) for worker in (0, 1)
    )
    stage["b"].node.supervisor.pause_worker(0, 2.0)
    stage.say("a", slow)
    stage.wait(0.1)
    stage["b"].node.link_processes.kill(stage.link("b"))
    stage.wait(1.0)
    stage.say("a", quick)
    stage.wait(2.0)


def wait_for_a_link(stage: MeshStage) -> None:
    """A message waits in the queue of a link that is switched off."""
    stage["b"].node.define("link", "", "a", enabled=False)
    stage.wait()
    stage.publish("a", "t/1/4", ttl_ms=60_000)
    stage.wait(1.0)
    stage["b"].node.define("link", "", "a", enabled=True)
    stage.wait(1.0)


def refuse_and_try_again(stage: MeshStage) -> None:
    """A queue of b refuses what one of a takes, and has room when it is tried again."""
    stage["a"].node.define("queue", VPN, "small", max_message_bytes=1_000)
    stage.wait()
    stage.publish("a", "s/2", ttl_ms=60_000)
    stage.wait(1.0)
    stage["b"].node.define("queue", VPN, "small", max_message_bytes=1_000)
    stage.wait(6.0)


def passes_on(patch: Patch) -> None:
    """What came over a link goes to other neighbours too."""
    for_neighbour = router.delivery.dispatcher._for_neighbour

    def everywhere(link: Any, delivery: Any, a_round: Any) -> Any:
        is_of_other = a_round.session.link not in (None, link)
        return delivery if is_of_other else for_neighbour(link, delivery, a_round)

    patch.setattr(router.delivery.dispatcher, "_for_neighbour", everywhere)


def stores_for_others(patch: Patch) -> None:
    """What came over a link goes into the queues of other links."""

    def resolve(self: Spooling, a_round: Any) -> Any:
        return [(result, self._endpoints.resolve(result.set)) for result in a_round.endpoints]

    patch.setattr(Spooling, "_resolve", resolve)


def chooses_again(patch: Patch) -> None:
    """A node chooses a client for every deliver-to-one message of a neighbour."""
    choose = Dispatcher._choose

    def always(self: Dispatcher, choice: Any, a_round: Any, *rest: Any) -> None:
        if a_round.session.link is not None:
            a_round.open = range(1 << 20)
        choose(self, choice, a_round, *rest)

    patch.setattr(Dispatcher, "_choose", always)


def chooses_nobody(patch: Patch) -> None:
    """No neighbour is asked to choose."""
    patch.setattr(router.delivery.dispatcher, "best_neighbour", lambda a_set, publisher: None)


def exports_everything(patch: Patch) -> None:
    """`#noexport/` is not heard."""
    patch.setattr(router.links.exports, "NOEXPORT_PREFIX", "\0")


def keeps_imports(patch: Patch) -> None:
    """What a neighbour wants no more goes on attracting."""
    patch.setattr(Imports, "_leave", lambda self, session, pattern, kind: [])


def sweeps_at_once(patch: Patch) -> None:
    """The interest of endpoints goes when a link breaks, and comes back with the next snapshot."""
    forget = StoredInterest.forget

    def sweep(self: StoredInterest, session: Any) -> None:
        for key, line in list(self._lines.items()):
            if line.session is session:
                line.wanted.clear()
                line.compare(line.queue)
                self._compare(key, line)
        forget(self, session)

    patch.setattr(StoredInterest, "forget", sweep)


def settles_at_once(patch: Patch) -> None:
    """What was published over there is deleted here before it is acknowledged."""
    publish = Forwarder._publish

    def careless(self: Forwarder, welcome: Any) -> None:
        publish(self, welcome)
        self._accept(list(self._under_way[-1].runs))

    patch.setattr(Forwarder, "_publish", careless)


def forgets_who_it_is(patch: Patch) -> None:
    """A link is another producer after each break."""
    opened = Forwarder.open
    count = 0

    def anew(self: Forwarder) -> None:
        nonlocal count
        count += 1
        if self.flow:
            self._endpoint_id = 1_000 + count
        opened(self)

    patch.setattr(Forwarder, "open", anew)


def lives_on(patch: Patch) -> None:
    """What waits in the queue of a link grows no older."""
    patch.setattr(cluster.relay.spooled, "aged", lambda meta, age_ms: meta)


def lives_for_ever(patch: Patch) -> None:
    """What a neighbour refused has no time to live any more."""
    patch.setattr(node.home.lanes.moves, "_is_tried_again", lambda held, reason: False)


def overtakes(patch: Patch) -> None:
    """Of two rounds the second leaves first."""
    passed = Relay.passed
    kept: dict[Relay, Any] = {}

    def swapped(self: Relay, event: Any) -> None:
        if self in kept:
            passed(self, event)
            passed(self, kept.pop(self))
        else:
            kept[self] = event

    patch.setattr(Relay, "passed", swapped)


def delivers_late(patch: Patch) -> None:
    """What a worker still had of a connection that broke is delivered."""
    retired = Router._retired

    def late(self: Router, a_round: Any, now: float) -> None:
        if a_round.session.closed and a_round.session.link is not None and a_round.producer is None:
            self.dispatcher.deliver(a_round, now)
        retired(self, a_round, now)

    patch.setattr(Router, "_retired", late)


FAULTS: dict[Callable[[Patch], None], tuple[str, ...]] = {
    passes_on: ("transit", "duplicate"),
    stores_for_others: ("transit",),
    chooses_again: ("deliver-to-one",),
    chooses_nobody: ("deliver-to-one",),
    exports_everything: ("broken",),
    keeps_imports: ("noexport", "broken"),
    sweeps_at_once: ("lost",),
    settles_at_once: ("lost",),
    forgets_who_it_is: ("duplicate",),
    lives_on: ("ttl",),
    lives_for_ever: ("ttl",),
    overtakes: ("order",),
    delivers_late: ("order",),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", some(FAULTS, of=3), ids=lambda fault: fault.__name__)
def test_a_mesh_with_a_fault_is_found_out(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    monkeypatch.setattr(scenario, "VALIDATE_S", VALIDATE_S)
    fault(monkeypatch)
    assert not {*FAULTS[fault]}.isdisjoint(story())


def test_the_story_is_right_without_a_fault() -> None:
    assert story() == []
